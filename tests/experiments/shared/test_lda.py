"""The sampler: frequencies within four standard errors, and what seeds share."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from topicjax.experiments.one_layer.settings import Spec, traced
from topicjax.experiments.shared import lda, threefry
from topicjax.theory.document_settings import Stream as AnyStream
from topicjax.theory.documents import DataModel

SPEC = Spec(topics=4, words_per_topic=3, shortest=20, longest=30)
Stream = functools.partial(AnyStream, length_min=20, length_max=30)


def sample(spec: Spec, num_documents: int = 4000, key: int = 0, **stream) -> lda.Documents:
    @jax.jit
    def draw(stream):
        phi_TxW = lda.topic_words(spec, stream)
        return lda.sample_documents(spec, stream, phi_TxW, threefry.raw(jax.random.key(key)), num_documents)

    return lda.Documents(*(np.asarray(x) for x in draw(traced(Stream(**stream)))))


def assert_share(observed_total: float, trials: float, probability: float, spread: float = 1.0):
    """Within four standard errors of a binomial, inflated where draws are correlated."""
    error = spread * np.sqrt(trials * probability * (1 - probability))
    assert abs(observed_total - trials * probability) < 4 * error


def test_lengths_are_uniform_on_their_range():
    length_B = sample(SPEC).present_BxN.sum(axis=1)
    for length in range(20, 31):
        assert_share((length_B == length).sum(), 4000, 1 / 11)
    assert length_B.min() == 20 and length_B.max() == 30


def test_topics_are_dirichlet():
    """Mean 1/T, and the variance of a share (1/T)(1 - 1/T)/(T alpha + 1), from word frequencies."""
    documents = sample(SPEC, alpha=0.3)
    topic_BxN = (documents.word_BxN - 1) // 3
    share_BxT = np.stack([(topic_BxN == t).mean(axis=1) for t in range(4)], axis=1)
    within = 0.25 * 0.75 / (4 * 0.3 + 1)
    expected_variance = within + (0.25 - (within + 0.25**2)) / 30  # N = 30 drawn words
    error = np.sqrt(expected_variance / 4000)
    assert np.abs(share_BxT.mean(axis=0) - 0.25).max() < 4 * error
    assert share_BxT.var() == pytest.approx(expected_variance, rel=0.05)


def test_tau_documents_have_tau_equal_topics():
    spec = replace(SPEC, documents="tau", shortest=200, longest=200)
    documents = sample(spec, 500, topics_per_document=2, length_min=200, length_max=200)
    topic_BxN = (documents.word_BxN - 1) // 3
    used_BxT = np.stack([(topic_BxN == t).any(axis=1) for t in range(4)], axis=1)
    assert (used_BxT.sum(axis=1) == 2).all()
    for t in range(4):
        assert_share(used_BxT[:, t].sum(), 500, 0.5)
        assert_share((topic_BxN == t).sum(), (used_BxT[:, t] * 200).sum(), 0.5)


def test_words_are_uniform_within_their_topic():
    word_BxN = sample(SPEC).word_BxN
    for topic in range(4):
        of_topic = word_BxN[(word_BxN - 1) // 3 == topic]
        for word in range(3):
            assert_share((of_topic == 3 * topic + word + 1).sum(), of_topic.size, 1 / 3)


def test_masking_kinds():
    documents = sample(SPEC, p_mask=0.3, p_keep=0.2, p_random=0.25)
    present, masked = documents.present_BxN, documents.masked_BxN
    assert not (masked & ~present).any()
    assert_share(masked.sum(), present.sum(), 0.3)
    shown, word = documents.shown_BxN[masked], documents.word_BxN[masked]
    assert_share((shown == 0).sum(), shown.size, 0.55)
    assert_share((shown == word).sum(), shown.size, 0.2 + 0.25 / 12)
    random = shown[(shown != 0) & (shown != word)]
    for other in range(1, 13):
        assert_share((random == other).sum(), random.size, 1 / 12, spread=1.2)
    visible = present & ~masked
    assert (documents.shown_BxN[visible] == documents.word_BxN[visible]).all()


def test_zipf_and_overlap_do_what_they_say():
    zipf = lda.topic_words(replace(SPEC, word_distribution="zipf"), traced(Stream(zipf_exponent=2.0)))
    np.testing.assert_allclose(zipf[1, 3:6], np.array([36, 9, 4]) / 49, rtol=1e-6)
    shared = lda.topic_words(SPEC, traced(Stream(overlap=0.34)))  # one word in three
    np.testing.assert_allclose(shared[0], [0.25, 0.25, 0.25, 0.25, *[0] * 8], rtol=1e-6)
    np.testing.assert_allclose(shared[3], [0.25, *[0] * 8, 0.25, 0.25, 0.25], rtol=1e-6)
    np.testing.assert_allclose(shared.sum(axis=1), 1, rtol=1e-6)


def test_dirichlet_words_depend_on_the_seed_and_concentration():
    spec = replace(SPEC, topics=200, word_distribution="dirichlet")
    first, second = (lda.topic_words(spec, traced(Stream(seed=s))) for s in (0, 1))
    assert not np.allclose(first, second)
    own = np.asarray(first).reshape(200, 200, 3)[np.arange(200), np.arange(200)]
    assert own.var() == pytest.approx(1 / 3 * 2 / 3 / (3 + 1), rel=0.2)  # Dirichlet(1, 1, 1)
    flat = lda.topic_words(spec, traced(Stream(word_concentration=1e4)))
    np.testing.assert_allclose(np.asarray(flat).max(axis=1), 1 / 3, rtol=0.1)


def test_a_zero_probability_word_is_never_drawn():
    P_BxW = jnp.array([[0.0, 0.5, 0.0, 0.5, 0.0]])
    edges = jnp.array([[0.0, 0.4999, 0.5, 0.75, 1 - 2**-23]])
    assert lda.draw_words(P_BxW, edges).tolist() == [[2, 2, 4, 4, 4]]


def test_equal_seeds_share_documents_other_seeds_do_not():
    first, again, other = (lda.stream_keys(s).documents for s in (3, 3, 4))
    assert first == again and first != other
    keys = lda.stream_keys(3)
    assert len({str(jax.random.key_data(key)) for key in keys}) == 3


def test_documents_do_not_depend_on_the_longest_of_their_program():
    """Each trial sees the documents that its settings name, whatever room its program has."""
    alone = sample(SPEC, 50)
    beside_longer = sample(replace(SPEC, longest=47), 50)
    for mine, other in zip(alone, beside_longer, strict=True):
        np.testing.assert_array_equal(mine[alone.present_BxN], other[:, :30][alone.present_BxN])
    assert not beside_longer.present_BxN[:, 30:].any()


def test_numbers_of_positions_are_those_of_jax():
    key = jax.random.key(3)
    found = lda.position_uniforms(threefry.raw(key), 4, 5, 40, jnp.int32(30))
    expected = jax.random.uniform(key, (4 * 5 * 30,)).reshape(4, 5, 30)
    np.testing.assert_array_equal(found[:, :, :30], expected)


PAIRED = replace(SPEC, topics=3, words_per_topic=6, paired=True)


@pytest.mark.parametrize("strength", [0.2, 0.9])
def test_partners_co_occur_by_their_closed_form_and_single_words_as_without_pairs(strength):
    """Of two positions of a document: the chance of one word and of another, by kind of pair."""
    given = dict(alpha=0.4, pair_strength=strength)
    documents = sample(PAIRED, 6000, **given)
    word_BxN = np.where(documents.present_BxN, documents.word_BxN, 0)
    count_BxW = (word_BxN[:, :, None] == np.arange(1, 19)).sum(axis=1)
    length_B = documents.present_BxN.sum(axis=1)
    share_BxW = count_BxW / length_B[:, None]
    error_W = share_BxW.std(axis=0) / np.sqrt(6000)
    assert (np.abs(share_BxW.mean(axis=0) - 1 / 18) < 4 * error_W).all()

    data = DataModel(topics=3, words_per_topic=6, length_min=20, length_max=30, **given)
    expected_WxW, index = data.second_moment_words(), np.arange(18)
    topic, pair = index[:, None] // 6 == index // 6, index[:, None] // 2 == index // 2
    for kind in (pair & (index[:, None] != index), topic & ~pair, ~topic):
        pairs_B = np.einsum("bi,ij,bj->b", count_BxW, kind, count_BxW) / (length_B * (length_B - 1))
        wanted = (expected_WxW * kind).sum()
        assert abs(pairs_B.mean() - wanted) < 4 * pairs_B.std() / np.sqrt(6000)


def test_tau_documents_have_pairs_too():
    spec = replace(PAIRED, documents="tau", shortest=200, longest=200)
    documents = sample(spec, 300, topics_per_document=1, pair_strength=0.999, length_min=200, length_max=200)
    used_BxM = np.stack([((documents.word_BxN - 1) // 2 == pair).any(axis=1) for pair in range(9)], axis=1)
    assert np.mean(used_BxM.sum(axis=1) == 1) > 0.9  # nearly every document uses one pair of its topic
    assert_share((documents.word_BxN % 2).sum(), documents.word_BxN.size, 0.5)


def test_a_trial_without_pairs_has_the_same_documents_in_a_program_that_draws_pairs():
    for first, second in zip(sample(PAIRED), sample(replace(PAIRED, paired=False)), strict=True):
        np.testing.assert_array_equal(first, second)
