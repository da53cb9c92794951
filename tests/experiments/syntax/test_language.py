"""Documents of syntax and topics: frequencies and exact losses within four standard errors."""

import functools
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from topicjax.experiments.shared import threefry
from topicjax.experiments.shared.lda import Documents
from topicjax.experiments.syntax import experiment, language
from topicjax.experiments.syntax.settings import Spec, Stream, traced
from topicjax.theory.syntax import Language, document_parts, population_parts

SPEC = Spec(topics=3, words_per_topic=2, classes=4, words_per_class=3, longest=24, mask_probability=0.2)
STREAM = Stream(alpha=0.4, sharpness=0.8, stay=0.3, length_min=12, length_max=24, p_mask=0.2)
OWN = Language(3, 2, 4, 3, **{name: value for name, value in STREAM._asdict().items() if name != "seed"})
NUMBER = 4000


def as_arrays(documents: Documents) -> Documents:
    return Documents(*map(np.asarray, documents))


@functools.cache
def drawing(spec: Spec, number: int):
    """Return a compiled draw of documents, of (stream, number of the key)."""

    @jax.jit
    def draw(stream, key):
        return language.draw_documents(spec, stream, threefry.raw(jax.random.key(key)), number)

    return lambda stream, key: as_arrays(draw(traced(stream), key))


@pytest.fixture(scope="module")
def drawn() -> Documents:
    return drawing(SPEC, NUMBER)(STREAM, 0)


def assert_mean(per_document: np.ndarray, expected: Any) -> None:
    """Check that means over independent documents are within four standard errors."""
    error = per_document.std(axis=0, ddof=1) / len(per_document) ** 0.5
    assert (np.abs(per_document.mean(axis=0) - expected) <= 4 * error + 1e-12).all()


def assert_ratio(numerator_BxK: np.ndarray, denominator_B: np.ndarray, expected_K: Any) -> None:
    """Check ratios of sums over documents: the mean of numerator - expected x denominator is zero."""
    assert denominator_B.sum() > NUMBER / 2
    assert_mean(numerator_BxK - np.asarray(expected_K) * denominator_B[:, None], 0.0)


def of_classes(documents: Documents) -> np.ndarray:
    """Look up the class of each present position; -1 elsewhere."""
    return np.where(documents.present_BxN, OWN.class_of_word[documents.word_BxN], -1)


def test_words_are_numbered_as_in_theory():
    for sizes in ((3, 2, 4, 3), (1, 1, 2, 1), (10, 5, 4, 5)):
        names = ("topics", "words_per_topic", "classes", "words_per_class")
        spec = replace(Spec(), **dict(zip(names, sizes, strict=True)))
        theory, found = Language(**dict(zip(names, sizes, strict=True))), language.blocks(spec)
        assert spec.vocabulary == theory.vocabulary
        np.testing.assert_array_equal(found.class_V, theory.class_of_word)
        np.testing.assert_array_equal(found.topic_V, theory.topic_of_word)
        for one_hot, names_V in ((found.class_VxC, found.class_V), (found.topic_VxT, found.topic_V)):
            np.testing.assert_array_equal(one_hot, names_V[:, None] == np.arange(one_hot.shape[1]))


@pytest.mark.parametrize(("classes", "stay", "sharpness"), [(4, 0.3, 0.8), (2, 0.0, 1.0), (5, 0.9, 0.0)])
def test_transitions_are_those_of_theory(classes, stay, sharpness):
    spec, stream = replace(SPEC, classes=classes), STREAM._replace(stay=stay, sharpness=sharpness)
    found = language.transitions(spec, traced(stream))
    theory = replace(OWN, classes=classes, stay=stay, sharpness=sharpness)
    for matrix, expected in zip(found, (theory.transition, theory.stationary), strict=True):
        np.testing.assert_allclose(matrix, expected, atol=1e-6)


def test_classes_have_the_frequencies_and_transitions_of_the_chain(drawn):
    class_BxN = of_classes(drawn)
    is_class_BxNxC = class_BxN[:, :, None] == np.arange(4)
    assert_ratio(is_class_BxNxC.sum(axis=1), drawn.present_BxN.sum(axis=1), OWN.stationary)
    assert_mean(is_class_BxNxC[:, 0], OWN.stationary)  # the first position is like every other one
    for before in range(4):
        is_before_BxN = is_class_BxNxC[:, :-1, before] & drawn.present_BxN[:, 1:]
        follows_BxC = (is_before_BxN[:, :, None] & is_class_BxNxC[:, 1:]).sum(axis=1)
        assert_ratio(follows_BxC, is_before_BxN.sum(axis=1), OWN.transition[before])
    two_apart_BxC = (is_class_BxNxC[:, :10, 1, None] & is_class_BxNxC[:, 2:12]).sum(axis=1)
    expected_C = np.linalg.matrix_power(OWN.transition, 2)[1]
    assert_ratio(two_apart_BxC, is_class_BxNxC[:, :10, 1].sum(axis=1), expected_C)


def test_content_words_have_dirichlet_topics_and_words_are_uniform(drawn):
    topic_BxN = np.where(drawn.present_BxN, OWN.topic_of_word[drawn.word_BxN], -1)
    count_BxT = (topic_BxN[:, :, None] == np.arange(3)).sum(axis=1)
    content_B = count_BxT.sum(axis=1)
    assert_ratio(count_BxT, content_B, np.full(3, 1 / 3))
    pairs_B, same_B = content_B * (content_B - 1), (count_BxT * (count_BxT - 1)).sum(axis=1)
    assert_ratio(same_B[:, None], pairs_B, [(0.4 + 1) / (3 * 0.4 + 1)])  # two words of one document
    word_BxN = np.where(drawn.present_BxN, drawn.word_BxN, 0)
    count_BxV = (word_BxN[:, :, None] == np.arange(OWN.vocabulary)).sum(axis=1)
    for kind_V, size in ((OWN.topic_of_word, 2), (OWN.class_of_word, 3)):
        for number in range(1 if size == 3 else 0, kind_V.max() + 1):
            own_BxJ = count_BxV[:, kind_V == number]
            assert_ratio(own_BxJ, own_BxJ.sum(axis=1), np.full(size, 1 / size))
    assert count_BxV[:, 1:].sum() == drawn.present_BxN.sum()  # [MASK] is not a word


def test_lengths_are_uniform_and_masked_positions_show_mask(drawn):
    length_B = drawn.present_BxN.sum(axis=1)
    assert_mean(length_B[:, None] == np.arange(12, 25), np.full(13, 1 / 13))
    np.testing.assert_array_equal(drawn.present_BxN, np.arange(24) < length_B[:, None])
    assert not (drawn.masked_BxN & ~drawn.present_BxN).any()
    assert_ratio(drawn.masked_BxN.sum(axis=1)[:, None], length_B, [0.2])
    is_class_BxC = (of_classes(drawn)[:, :, None] == np.arange(4)) & drawn.masked_BxN[:, :, None]
    assert_ratio(is_class_BxC.sum(axis=1), drawn.masked_BxN.sum(axis=1), OWN.stationary)  # whatever the word
    np.testing.assert_array_equal(drawn.shown_BxN, np.where(drawn.masked_BxN, 0, drawn.word_BxN))


def test_reference_losses_are_those_of_exact_predictors_on_drawn_documents(drawn):
    """Every predictor of theory, on documents drawn on the device: class, topic and word."""
    blocks = [Documents(*(part[number::40] for part in drawn)) for number in range(40)]
    found = [document_parts(OWN, *block, objective="cross_entropy") for block in blocks]
    for name, expected in population_parts(OWN).items():
        for part, value in expected.items():
            assert_mean(np.array([own[name][part] for own in found]), value)


def test_documents_do_not_depend_on_the_room_of_the_program():
    """Neither the longest document nor the most masked positions of other trials change a document."""
    stream = STREAM._replace(length_min=5, length_max=9)
    small, large = (
        drawing(replace(SPEC, longest=longest, mask_probability=p), 6)(stream, 3)
        for longest, p in ((9, 0.2), (16, 0.9))
    )
    for name, part, other in zip(Documents._fields, small, large, strict=True):
        own = np.where(small.present_BxN, part, 0)
        np.testing.assert_array_equal(np.where(large.present_BxN, other, 0)[:, :9], own, err_msg=name)
    assert not large.present_BxN[:, 9:].any()


def test_documents_depend_on_stream_and_step_alone():
    spec = replace(SPEC, batch_size=4, eval_documents=3)

    @jax.jit
    def sources(stream_S, step):
        def draw(stream):
            source = experiment.make_source(spec, stream)
            return source.held_out.rows, experiment.draw_batch(spec, stream, source, step).rows

        return jax.vmap(draw)(stream_S)

    streams = [STREAM, STREAM._replace(seed=1), STREAM._replace(alpha=2.0)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *map(traced, streams))
    held_out, batch = sources(stacked, 3)
    alone = jax.tree.map(lambda leaf: np.stack([leaf] * 3), traced(streams[1]))
    again_held_out, again = sources(alone, 3)
    token_SxBxN, again_SxBxN = np.asarray(batch.token_BxU), np.asarray(again.token_BxU)
    np.testing.assert_array_equal(again_SxBxN, np.broadcast_to(token_SxBxN[1], again_SxBxN.shape))
    assert not np.array_equal(token_SxBxN[0], token_SxBxN[1])  # another seed
    _, later = sources(stacked, 4)
    assert not np.array_equal(np.asarray(later.token_BxU), token_SxBxN)  # another step
    held = np.asarray(held_out.token_BxU)
    np.testing.assert_array_equal(held[0], held[1])  # held-out documents are the same for all seeds
    np.testing.assert_array_equal(held[0], np.asarray(again_held_out.token_BxU)[0])
    assert not np.array_equal(held[0], held[2])


def test_a_class_that_cannot_follow_is_never_drawn():
    stream = STREAM._replace(sharpness=1.0, stay=0.0)
    class_BxN = of_classes(drawing(SPEC, NUMBER)(stream, 1))
    is_pair = (class_BxN[:, :-1] >= 0) & (class_BxN[:, 1:] >= 0)
    assert ((class_BxN[:, 1:] - class_BxN[:, :-1]) % 4 == 1)[is_pair].all()


def test_changed_words_lose_their_order_or_their_topics_and_nothing_else(drawn):
    change = jax.jit(functools.partial(language.changed_documents, SPEC))
    found = change(traced(STREAM), drawn)
    for changed in map(as_arrays, found.values()):
        for name in ("word_BxN", "masked_BxN", "present_BxN"):
            np.testing.assert_array_equal(getattr(changed, name), getattr(drawn, name))
        hidden = drawn.masked_BxN | ~drawn.present_BxN
        np.testing.assert_array_equal(changed.shown_BxN[hidden], drawn.shown_BxN[hidden])
    shuffled, redrawn = (np.asarray(found[name].shown_BxN) for name in ("shuffled", "redrawn"))
    visible = drawn.present_BxN & ~drawn.masked_BxN
    for own, other, seen in zip(shuffled, drawn.shown_BxN, visible, strict=True):
        assert sorted(own[seen]) == sorted(other[seen])
    is_class_BxNxC = (OWN.class_of_word[shuffled][:, :, None] == np.arange(4)) & visible[:, :, None]
    follows_BxC = (is_class_BxNxC[:, :-1, 1, None] & is_class_BxNxC[:, 1:]).sum(axis=1)
    pairs_B = is_class_BxNxC[:, :-1, 1].sum(axis=1) + 1e-9
    assert np.abs(follows_BxC.sum(axis=0) / pairs_B.sum() - 0.8 * OWN.stationary).max() < 0.06  # visible
    before, after = (OWN.class_of_word[words][visible] for words in (drawn.shown_BxN, redrawn))
    np.testing.assert_array_equal(before, after)
    function = OWN.class_of_word[drawn.shown_BxN] != 0
    np.testing.assert_array_equal(redrawn[function], drawn.shown_BxN[function])
    content = visible & ~function
    before_BxNxT, after_BxNxT = (
        (OWN.topic_of_word[words][:, :, None] == np.arange(3)) & content[:, :, None]
        for words in (drawn.shown_BxN, redrawn)
    )
    same_B = (before_BxNxT & after_BxNxT).sum(axis=(1, 2))
    assert_ratio(same_B[:, None], content.sum(axis=1), [1 / 3])  # new topics are independent of the old
    count_BxT = after_BxNxT.sum(axis=1)
    pairs_B = content.sum(axis=1) * (content.sum(axis=1) - 1)
    assert_ratio((count_BxT * (count_BxT - 1)).sum(axis=1)[:, None], pairs_B, [1.4 / 2.2])  # as coherent
