"""LDA topics, NPMI and the assignment of words against counting."""

import itertools
import math

import numpy as np
import pytest
from support.small_corpus import small_corpus

from topicjax.errors import UserError
from topicjax.probe import topics

DRAW = np.random.default_rng(3)
DOCUMENTS = [list(words) for words in ("aab", "abc", "cd", "ddd", "bcd", "ae", "abbb")]


def test_npmi_is_that_of_counting_documents():
    corpus = small_corpus(DOCUMENTS, "abcde")
    found = topics.npmi(corpus, np.array([[2, 3, 4], [2, 5, 6]]))
    for place, words in enumerate(("abc", "ade")):
        values = []
        for a, b in itertools.combinations(words, 2):
            p_a, p_b = (np.mean([w in d for d in DOCUMENTS]) for w in (a, b))
            both = np.mean([a in d and b in d for d in DOCUMENTS])
            values.append(math.log(both / p_a / p_b) / -math.log(both) if both else -1)
        assert found[place] == pytest.approx(np.mean(values))


def test_words_that_are_in_every_document_together_have_npmi_1():
    corpus = small_corpus([["a", "b"], ["b", "a"]], "ab")
    assert topics.npmi(corpus, np.array([[2, 3]])).tolist() == [1]


def test_each_topic_has_its_likeliest_words_and_with_one_topic_per_word_only_its_own():
    probability = DRAW.dirichlet(np.full(40, 0.3), size=5)
    one, several = (topics.assign(probability, 4, pairing) for pairing in (topics.ONE, topics.SEVERAL))
    for word, topic in itertools.product(range(40), range(5)):
        own = [w for w in range(40) if probability[:, w].argmax() == topic]
        above = {w for w in range(40) if probability[topic, w] > probability[topic, word]}
        assert one[word, topic] == (word in own and len(above & set(own)) < 4)
        assert several[word, topic] == (len(above) < 4)
    assert one.sum(axis=1).max() == 1 < several.sum(axis=1).max()


def two_topics():
    draw = np.random.default_rng(0)
    return [[str(w) for w in draw.choice(list("abcd" if i % 2 else "efgh"), 20)] for i in range(60)]


def test_topics_are_found_kept_and_read_again_without_fitting(tmp_path, monkeypatch):
    tomotopy = pytest.importorskip("tomotopy")
    corpus, fit, said = small_corpus([*two_topics(), ["[UNK]"]], "abcdefgh"), topics.Fit(2, 50), []
    found = topics.load_topics(corpus, fit, tmp_path, said.append)
    assert len(said) >= 2 and found.about["corpus"] == "0123456789ab" and found.about["seed"] == 0
    assert found.about["tomotopy"] == tomotopy.__version__ and found.about["tokens"] == 1200
    assert found.about["npmi"] == pytest.approx(found.npmi_T.mean())
    member = topics.assign(found.probability_TxV, 4, topics.ONE)
    topic = dict(zip(found.words, member.argmax(axis=1).tolist(), strict=True))
    assert (
        len({topic[w] for w in "abcd"}) == len({topic[w] for w in "efgh"}) == 1 and topic["a"] != topic["e"]
    )
    monkeypatch.setattr(topics, "fit_topics", None)
    again = topics.load_topics(corpus, fit, tmp_path, said.append)
    np.testing.assert_array_equal(again.probability_TxV, found.probability_TxV)
    assert again.words == found.words and again.about == found.about
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="is damaged: remove it"):
        topics.load_topics(corpus, fit, tmp_path, said.append)


def test_fits_have_their_own_seeds_and_an_error_stops_them_all(tmp_path, monkeypatch):
    pytest.importorskip("tomotopy")
    corpus, said = small_corpus(two_topics(), "abcdefgh"), []
    fits = topics.load_fits(corpus, topics.Fit(3, 20), 3, tmp_path, said.append)
    assert [fit.about["seed"] for fit in fits] == [0, 1, 2] and len(list(tmp_path.iterdir())) == 3
    assert {text.split(":")[0] for text in said} == {f"fit {number} of 3" for number in (1, 2, 3)}
    (other := tmp_path / "other").mkdir()
    alone = topics.load_topics(corpus, topics.Fit(3, 20, seed=1), other, said.append)
    np.testing.assert_array_equal(alone.probability_TxV, fits[1].probability_TxV)
    assert (fits[0].probability_TxV != fits[1].probability_TxV).any()
    for path in tmp_path.glob("*.npz"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="is damaged: remove it"):
        topics.load_fits(corpus, topics.Fit(3, 20), 3, tmp_path, said.append)


def test_without_the_extra_a_sentence_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tomotopy", None)
    with pytest.raises(
        UserError, match=r"the probe needs tomotopy, which is not installed: .*'tomotopy>=0.14'"
    ):
        topics.load_topics(small_corpus([["a"]], "a"), topics.Fit(2, 5), tmp_path, print)
    assert not list(tmp_path.iterdir())
