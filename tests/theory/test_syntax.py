"""Lines of the language of syntax and topics: against enumeration, samples and loops over positions."""

import dataclasses
from collections import Counter
from itertools import pairwise, product
from math import gamma

import numpy as np
import pytest

from topicjax.theory import syntax
from topicjax.theory.syntax import (
    PREDICTORS,
    Language,
    document_parts,
    population_lines,
    population_parts,
    reference_losses,
)

NAMES = ("class", "topic", "word")
TINY = Language(
    topics=2,
    words_per_topic=1,
    classes=3,
    words_per_class=1,
    alpha=0.4,
    sharpness=0.8,
    stay=0.3,
    length_min=3,
    length_max=4,
    p_mask=0.3,
)
SMALL = dataclasses.replace(
    TINY, topics=3, words_per_topic=2, words_per_class=4, length_min=2, length_max=9, p_mask=0.25
)


def chain(language: Language) -> tuple[np.ndarray, np.ndarray]:
    """Make (pi, A) from the definition: pi is the eigenvector of P, solved for numerically."""
    size, stay = language.classes, language.stay
    moves = np.zeros((size, size))
    for c in range(size):
        moves[c, (c + 1) % size] += 1 - stay if c == 0 else 1.0
    moves[0, 0] += stay
    equations = np.vstack([moves.T - np.eye(size), np.ones(size)])
    pi = np.linalg.lstsq(equations, np.r_[np.zeros(size), 1.0])[0]
    return pi, language.sharpness * moves + (1 - language.sharpness) * pi


def word_joint(language: Language, length: int) -> np.ndarray:
    """List the probability of every document of one word per topic and class, one axis a position."""
    pi, moves = chain(language)
    topics, alpha = language.topics, language.alpha
    joint = np.zeros((topics + language.classes - 1,) * length)
    for words in product(range(joint.shape[0]), repeat=length):
        classes = [max(0, word - topics + 1) for word in words]
        counts = Counter(word for word in words if word < topics)
        chance = pi[classes[0]] * np.prod([moves[pair] for pair in pairwise(classes)])
        for count in counts.values():
            chance *= gamma(alpha + count) / gamma(alpha)
        joint[words] = chance * gamma(topics * alpha) / gamma(topics * alpha + counts.total())
    return joint


def posterior(joint: np.ndarray, position: int, seen: set[int]) -> np.ndarray:
    """Compute P(hidden word | words seen), with axes of size 1 for everything else."""
    unseen = tuple(axis for axis in range(joint.ndim) if axis != position and axis not in seen)
    kept = joint.sum(axis=unseen, keepdims=True)
    return kept / kept.sum(axis=position, keepdims=True)


def enumerated_parts(language: Language) -> dict[str, dict[str, float]]:
    """Sum over all documents and masks; every posterior is a ratio of sums over documents."""
    totals, weight = {name: Counter() for name in PREDICTORS}, 0.0
    topics = language.topics
    for length in range(language.length_min, language.length_max + 1):
        joint = word_joint(language, length)
        for mask in product((False, True), repeat=length):
            masked = {i for i in range(length) if mask[i]}
            if not masked:
                continue
            chance = language.p_mask ** len(masked) * (1 - language.p_mask) ** (length - len(masked))
            weight += chance
            for i, name in product(masked, PREDICTORS):
                ranges = {"within_1": (1, 1), "within_2": (2, 2), "both": (9, 9), "syntax": (9, 0)}
                for_class, for_topic = ranges.get(name, (0, 9 if name == "topics" else 0))
                class_given, topic_given = (
                    np.moveaxis(posterior(joint, i, seen), i, -1)
                    for seen in (
                        {j for j in range(length) if j not in masked and abs(j - i) <= far}
                        for far in (for_class, for_topic)
                    )
                )
                content = class_given[..., :topics].sum(axis=-1, keepdims=True)
                of_class = np.concatenate([content.repeat(topics, -1), class_given[..., topics:]], axis=-1)
                of_topic = topic_given[..., :topics] / topic_given[..., :topics].sum(axis=-1, keepdims=True)
                of_topic = np.concatenate([of_topic, np.ones_like(topic_given[..., topics:])], axis=-1)
                if name in ("both", "within_1", "within_2"):  # the Bayes posterior itself
                    np.testing.assert_allclose(of_class * of_topic, class_given, rtol=1e-12)
                document = np.moveaxis(joint, i, -1)
                totals[name]["class"] -= chance * np.sum(document * np.log(of_class)) / len(masked)
                totals[name]["topic"] -= chance * np.sum(document * np.log(of_topic)) / len(masked)
    return {name: {part: total / weight for part, total in parts.items()} for name, parts in totals.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(classes=2, alpha=1.5, p_mask=0.9),
        dict(topics=3, classes=1, length_min=1),
        dict(topics=1, classes=4, stay=0.6),
        dict(length_max=5, p_mask=1e-5),  # long runs of masked words are left out
    ],
)
def test_population_lines_are_the_sums_over_all_documents_and_masks(changes):
    language = dataclasses.replace(TINY, **changes)
    lines, parts = population_lines(language), population_parts(language)
    for name, expected in enumerated_parts(language).items():
        assert parts[name] == pytest.approx({**expected, "word": 0.0}, rel=1e-12, abs=1e-12), name
        assert lines[name] == pytest.approx(sum(expected.values()), rel=1e-12), name


def sample(language: Language, documents: int, seed: int) -> tuple[np.ndarray, ...]:
    """Draw (word, shown, masked, present) position by position; absent positions are filled with junk."""
    rng = np.random.default_rng(seed)
    pi, moves = chain(language)
    shape = (documents, language.length_max)
    words_of_topics = language.topics * language.words_per_topic
    word = rng.integers(0, language.vocabulary, shape)
    masked = rng.random(shape) < language.p_mask
    lengths = rng.integers(language.length_min, language.length_max + 1, documents)
    present = np.arange(shape[1]) < lengths[:, None]
    for number, length in enumerate(lengths):
        shares, row = rng.dirichlet(np.full(language.topics, language.alpha)), pi
        for i in range(length):
            c = rng.choice(language.classes, p=row)
            row = moves[c]
            if c == 0:
                topic = rng.choice(language.topics, p=shares)
                word[number, i] = (
                    1 + topic * language.words_per_topic + rng.integers(language.words_per_topic)
                )
            else:
                first = 1 + words_of_topics + (c - 1) * language.words_per_class
                word[number, i] = first + rng.integers(language.words_per_class)
    return word, np.where(masked & present, 0, word), masked, present


def test_population_parts_are_the_means_over_sampled_documents():
    arrays = sample(SMALL, 4000, seed=1)
    has_mask = (arrays[2] & arrays[3]).any(axis=1)
    assert 0.6 < has_mask.mean() < 0.9  # the others count for nothing
    blocks = [[array[has_mask][k::40] for array in arrays] for k in range(40)]
    drawn = [document_parts(SMALL, *block, objective="cross_entropy") for block in blocks]
    for name, expected in population_parts(SMALL).items():
        for part in NAMES:
            means = np.array([parts[name][part] for parts in drawn])
            error = means.std(ddof=1) / np.sqrt(len(means))
            assert abs(means.mean() - expected[part]) < 4 * error, (name, part)
        whole = document_parts(SMALL, *arrays, objective="cross_entropy")[name]
        assert whole["class"] == pytest.approx(np.mean([parts[name]["class"] for parts in drawn]), rel=0.01)


def slow_prediction(language: Language, shown: list[int], i: int, far_class: int, far_topic: int):
    """Compute the word probabilities at one position, by forward-backward over the words within reach."""
    pi, moves = chain(language)
    size, topics = language.classes, language.topics
    sizes = [topics * language.words_per_topic] + (size - 1) * [language.words_per_class]
    class_of = {}
    for c in range(size):
        for _ in range(sizes[c]):
            class_of[len(class_of) + 1] = c

    def sees(j: int, c: int) -> float:
        return float(shown[j] == 0 or class_of[shown[j]] == c)

    first, last = max(0, i - far_class), min(len(shown) - 1, i + far_class)
    forward = list(pi)
    for j in range(first, i):
        forward = [sum(forward[c] * sees(j, c) * moves[c, d] for c in range(size)) for d in range(size)]
    backward = [1.0] * size
    for j in range(last, i, -1):
        backward = [sum(moves[c, d] * sees(j, d) * backward[d] for d in range(size)) for c in range(size)]
    weights = [f * b for f, b in zip(forward, backward, strict=True)]
    counts = [0] * topics
    for j in range(max(0, i - far_topic), min(len(shown), i + far_topic + 1)):
        if shown[j] and class_of[shown[j]] == 0:
            counts[(shown[j] - 1) // language.words_per_topic] += 1
    prediction = np.zeros(language.vocabulary)
    for word, c in class_of.items():
        prediction[word] = weights[c] / sum(weights) / sizes[c]
        if c == 0:
            topic = (word - 1) // language.words_per_topic
            share = (language.alpha + counts[topic]) / (topics * language.alpha + sum(counts))
            prediction[word] *= topics * share
    return prediction, list(class_of.values()), sizes


def slow_parts(language: Language, word: int, prediction, classes, sizes, objective) -> list[float]:
    """Compute (class, topic, word, whole loss) from the definitions, given the word probabilities."""
    v, topics = language.words_per_topic, language.topics
    content = word <= topics * v
    of_class = [sum(prediction[1:][np.array(classes) == c]) for c in range(language.classes)]
    of_topic = [sum(prediction[1 + k * v : 1 + (k + 1) * v]) for k in range(topics)]
    own, topic = classes[word - 1], (word - 1) // v
    if objective == "cross_entropy":
        whole, by_class = -np.log(prediction[word]), -np.log(of_class[own])
        by_topic = -np.log(of_topic[topic] / of_class[0]) if content else 0.0
        return [by_class, by_topic, whole - by_class - by_topic, whole]
    target = np.eye(language.vocabulary)[word]
    by_class = sum((of_class[c] - (own == c)) ** 2 / sizes[c] for c in range(language.classes))
    by_topic = 0.0
    for k in range(topics):
        aim = float(content and topic == k) - float(content) / topics
        by_topic += (of_topic[k] - of_class[0] / topics - aim) ** 2 / v
    whole = np.sum((prediction - target) ** 2)
    return [by_class, by_topic, whole - by_class - by_topic, whole]


REACHES = dict(
    unigram=(0, 0), topics=(0, 99), syntax=(99, 0), both=(99, 99), within_1=(1, 1), within_2=(2, 2)
)


@pytest.mark.parametrize("objective", ["cross_entropy", "squared"])
def test_parts_on_documents_are_those_of_the_predictors_word_probabilities(objective):
    arrays = sample(SMALL, 12, seed=2)
    losses = reference_losses(SMALL, *arrays, objective=objective)
    parts = document_parts(SMALL, *arrays, objective=objective)
    for name, reach in REACHES.items():
        by_document = []
        for word, shown, masked, present in zip(*arrays, strict=True):
            length = present.sum()
            by_position = []
            for i in np.flatnonzero(masked[:length]):
                predicted = slow_prediction(SMALL, shown[:length].tolist(), i, *reach)
                assert predicted[0].sum() == pytest.approx(1)
                by_position.append(slow_parts(SMALL, word[i], *predicted, objective))
            if by_position:
                by_document.append(np.mean(by_position, axis=0))
        *expected, whole = np.mean(by_document, axis=0)
        assert list(parts[name].values()) == pytest.approx(expected, rel=1e-12), name
        assert losses[f"held_out_{name}"] == pytest.approx(whole, rel=1e-12), name


def test_reference_losses_are_named_after_predictors_and_parts():
    arrays = sample(SMALL, 12, seed=2)
    losses = reference_losses(SMALL, *arrays, objective="cross_entropy")
    parts = document_parts(SMALL, *arrays, objective="cross_entropy")
    assert losses["held_out_class_best"] == parts["syntax"]["class"] == parts["both"]["class"]
    assert losses["held_out_topic_best"] == parts["both"]["topic"]
    assert losses["held_out_class_unigram"] == parts["unigram"]["class"]
    assert losses["held_out_topic_unigram"] == parts["unigram"]["topic"]
    for name in ("within_1", "within_2"):
        assert losses[f"held_out_class_{name}"] == parts[name]["class"]
    assert {name: losses[name] for name in PREDICTORS} == population_lines(SMALL)
    squared = reference_losses(SMALL, *arrays, objective="squared")
    assert squared.keys() == losses.keys() and len(losses) == 18
    assert [name for name, loss in squared.items() if np.isnan(loss)] == list(PREDICTORS)


@pytest.mark.parametrize("objective", ["cross_entropy", "squared"])
def test_the_bayes_predictor_has_made_all_progress_in_both_parts(objective):
    """Its parts come from its word probabilities, by forward-backward over all visible words."""
    arrays = sample(SMALL, 12, seed=2)
    losses = reference_losses(SMALL, *arrays, objective=objective)
    by_predictor = {}
    for name in ("both", "syntax"):
        by_document = []
        for word, shown, masked, present in zip(*arrays, strict=True):
            length = present.sum()
            own = [
                slow_parts(
                    *(SMALL, word[i]),
                    *slow_prediction(SMALL, shown[:length].tolist(), i, *REACHES[name]),
                    objective,
                )
                for i in np.flatnonzero(masked[:length])
            ]
            by_document += [np.mean(own, axis=0)] if own else []
        by_predictor[name] = np.mean(by_document, axis=0)
    for at, part in enumerate(("class", "topic")):
        unigram, best = (losses[f"held_out_{part}_{end}"] for end in ("unigram", "best"))
        progress = {name: (unigram - own[at]) / (unigram - best) for name, own in by_predictor.items()}
        assert progress == pytest.approx({"both": 1, "syntax": 1 if part == "class" else 0}, abs=1e-10), part


def test_documents_without_a_masked_position_have_no_loss():
    word, _, masked, present = sample(SMALL, 3, seed=2)
    losses = reference_losses(SMALL, word, word, np.zeros_like(masked), present, objective="squared")
    assert all(np.isnan(loss) for loss in losses.values())


def test_weights_of_the_loss_are_those_of_sampled_masks():
    """E[1/(m + other masked positions)], and the chance of any mask, on documents of several lengths."""
    language = Language(length_min=3, length_max=30, p_mask=0.15)
    inverse_FxM = syntax._mean_inverse(language)
    rng = np.random.default_rng(3)
    for further, masked in ((0, 1), (2, 1), (10, 1), (29, 1), (12, 5)):
        drawn = 1 / (masked + (rng.random((200_000, further)) < 0.15).sum(axis=1))
        error = drawn.std() / len(drawn) ** 0.5
        assert abs(drawn.mean() - inverse_FxM[further, masked]) <= 4 * error + 1e-12, (further, masked)
    exact = sum(1 - 0.85**length for length in language.lengths)
    assert syntax._chance_of_mask(language, inverse_FxM) == pytest.approx(exact, rel=1e-12)


def test_default_language_has_its_known_losses_as_the_loss_weighs_documents():
    """The class of a masked position is known less well in documents with many masked positions."""
    lines = population_lines(Language())
    known = dict(unigram=3.8627, topics=3.3212, syntax=2.7958, both=2.2543)
    assert {name: lines[name] for name in known} == pytest.approx(known, abs=5e-5)


@pytest.fixture
def every_position_alike(monkeypatch):
    """Weigh every masked position alike, as published numbers do; the loss weighs every document alike."""
    inverse = syntax._mean_inverse
    monkeypatch.setattr(syntax, "_mean_inverse", lambda language: 1.0 * (inverse(language) > 0))
    monkeypatch.setattr(syntax, "_chance_of_mask", lambda own, _: own.p_mask * sum(own.lengths))


@pytest.mark.usefixtures("every_position_alike")
def test_default_language_has_its_known_losses():
    lines = population_lines(Language())
    known = dict(unigram=3.8627, topics=3.3218, syntax=2.8002, both=2.2594)
    assert {name: lines[name] for name in known} == pytest.approx(known, abs=5e-5)


@pytest.mark.usefixtures("every_position_alike")
def test_two_neighbours_tell_their_share_of_syntax():
    """From the entropies of a class given the one before, the one after, both or none."""
    language = Language()
    pi, moves = chain(language)
    joint = pi[:, None, None] * moves[:, :, None] * moves[None]

    def entropy(p):
        return -np.sum(p * np.log(np.where(p > 0, p, 1)))

    both = entropy(joint) - entropy(joint.sum(axis=1))
    left = entropy(joint.sum(axis=2)) - entropy(joint.sum(axis=(1, 2)))
    right = entropy(joint.sum(axis=0)) - entropy(joint.sum(axis=(0, 1)))
    hidden = language.p_mask
    inside = (1 - hidden) ** 2 * both + hidden * (1 - hidden) * (left + right) + hidden**2 * entropy(pi)
    at_an_end = (1 - hidden) * left + hidden * entropy(pi)  # the chain looks the same from both sides
    known = (62 * inside + 2 * at_an_end) / 64
    assert population_parts(language)["within_1"]["class"] == pytest.approx(known, rel=1e-12)


@pytest.mark.usefixtures("every_position_alike")
@pytest.mark.parametrize(("sharpness", "gain"), [(0.5, 0.370), (0.7, 0.678), (0.9, 1.062), (0.99, 1.279)])
def test_sharpness_moves_the_gain_by_syntax_only(sharpness, gain):
    lines = population_lines(Language(sharpness=sharpness))
    assert lines["unigram"] - lines["syntax"] == pytest.approx(gain, abs=6e-4)
    assert lines["unigram"] == pytest.approx(population_lines(Language())["unigram"], rel=1e-12)


@pytest.mark.usefixtures("every_position_alike")
@pytest.mark.parametrize(("alpha", "gain"), [(0.03, 0.756), (0.1, 0.541), (0.3, 0.294), (1.0, 0.097)])
def test_alpha_moves_the_gain_by_topics_only(alpha, gain):
    lines, default = population_lines(Language(alpha=alpha)), population_lines(Language())
    assert lines["unigram"] - lines["topics"] == pytest.approx(gain, abs=6e-4)
    for name in ("unigram", "syntax"):
        assert lines[name] == pytest.approx(default[name], rel=1e-12)


@pytest.mark.parametrize("sharpness", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(("classes", "stay"), [(1, 0.5), (2, 0.0), (5, 0.7), (3, 1.0)])
def test_stationary_classes_do_not_depend_on_sharpness(classes, stay, sharpness):
    language = Language(classes=classes, stay=stay, sharpness=sharpness)
    pi, moves = chain(language)
    np.testing.assert_allclose(language.stationary, pi, atol=1e-14)
    np.testing.assert_allclose(language.transition, moves, atol=1e-14)
    np.testing.assert_allclose(language.transition.sum(axis=1), 1, atol=1e-14)
    np.testing.assert_allclose(language.stationary @ language.transition, pi, atol=1e-14)


def test_tokens_are_mask_then_topics_then_classes():
    language = Language(topics=2, words_per_topic=3, classes=3, words_per_class=2)
    assert language.vocabulary == 11
    assert language.class_sizes.tolist() == [6, 2, 2]
    assert language.class_of_word.tolist() == [-1, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2]
    assert language.topic_of_word.tolist() == [-1, 0, 0, 0, 1, 1, 1, -1, -1, -1, -1]
