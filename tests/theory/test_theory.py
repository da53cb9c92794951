"""Closed forms against enumerated documents, large samples and finite differences."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

from topicjax.experiments.one_layer.settings import DEFAULTS, make_trial, settings_of
from topicjax.theory.documents import DataModel, same_topic
from topicjax.theory.stage1 import (
    ridge_path,
    uniform_attention_loss,
    uniform_attention_moments,
    uniform_attention_optimum,
)
from topicjax.theory.stage2 import (
    AttentionWeights,
    attention_landscape,
    best_symmetric_attention,
    optimal_attention,
    symmetric_weights,
)
from topicjax.theory.stage2 import attention_loss as exact_attention_loss
from topicjax.theory.theorems import (
    lemma1_entries,
    lemma1_member,
    lemma1_residual,
    many_topics_weight,
    onset_rate,
    relative_residual,
    theorem1_bias,
    theorem1_member,
    theorem1_residual,
    theorem2_entries,
    theorem2_matrix,
    theorem3_interval,
    theorem3_limit,
)

SMALL = DataModel(
    topics=4,
    words_per_topic=3,
    documents="tau",
    infinite_documents=True,
    p_mask=0.3,
    p_keep=0.2,
    p_random=0.15,
)


def all_documents(data):
    """Word distributions of every topic subset, plain loops."""
    tau, rows = data.topics_per_document, []
    for subset in combinations(range(data.topics), tau):
        row = np.zeros(data.num_words)
        for topic in subset:
            for word in range(data.words_per_topic):
                row[topic * data.words_per_topic + word] = 1 / (tau * data.words_per_topic)
        rows.append(row)
    return np.array(rows)


def shown_tokens(data, words):
    """Token distribution of a masked document, straight from the paper's section 3.2."""
    shown = np.zeros(data.num_words + 1)
    for word, chance in enumerate(words, start=1):
        shown[word] += chance * (1 - data.p_mask)
        shown[word] += chance * data.p_mask * data.p_keep
        shown[0] += chance * data.p_mask * (1 - data.p_keep - data.p_random)
        shown[1:] += chance * data.p_mask * data.p_random / data.num_words
    return shown


def enumerated_loss(data, value, bias=0.0):
    """Squared loss with uniform attention over all subsets of infinite documents."""
    losses = []
    for words in all_documents(data):
        prediction = value @ shown_tokens(data, words)
        prediction[1:] += bias
        losses.append(1 + prediction @ prediction - 2 * words @ prediction[1:])
    return np.mean(losses)


def test_theorem2_has_the_known_values():
    entries = theorem2_entries(10, 10, 0.15, 0.1, 0.1)
    assert entries == pytest.approx((0.05419075, -0.00758671, 0.10802023), abs=5e-9)


def test_theorem_arithmetic_uses_plain_operators_only():
    masking = (Fraction(15, 100), Fraction(1, 10), Fraction(1, 10))
    exact = theorem2_entries(10, 10, *masking)
    assert all(isinstance(entry, Fraction) for entry in exact)
    assert [float(entry) for entry in exact] == pytest.approx(theorem2_entries(10, 10, 0.15, 0.1, 0.1))
    assert lemma1_entries(10, 10, *masking) == (*exact, exact[2])
    assert all(isinstance(entry, Fraction) for entry in lemma1_entries(10, 10, *masking, 3, Fraction(1, 2)))
    assert theorem1_bias(10, 10, *masking) == Fraction(-15, 1000) / (Fraction(865, 1000) * 100)


@pytest.mark.parametrize("tau", [1, 2, 3])
def test_theorem2_is_the_least_norm_regression_over_all_subsets(tau):
    data = replace(SMALL, topics_per_document=tau)
    words = all_documents(data)
    keys = np.array([shown_tokens(data, row) for row in words])
    least_norm = np.linalg.lstsq(keys, np.pad(words, ((0, 0), (1, 0))), rcond=1e-12)[0].T
    theorem = theorem2_matrix(*data.sizes_and_masking)
    np.testing.assert_allclose(theorem, least_norm, atol=1e-12)
    np.testing.assert_allclose(uniform_attention_optimum(data), theorem, atol=1e-12)


def test_moments_match_enumerated_documents_with_any_topic_word():
    rng = np.random.default_rng(0)
    topic_word = rng.dirichlet(np.ones(12), 4)
    data = replace(SMALL, topics_per_document=3, topic_word=topic_word)
    rows = np.array([topic_word[list(s)].mean(axis=0) for s in combinations(range(4), 3)])
    np.testing.assert_allclose(data.mean_words(), rows.mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(data.second_moment_words(), rows.T @ rows / 4, atol=1e-14)
    np.testing.assert_allclose(data.shown_distribution(rows[0]), shown_tokens(data, rows[0]))
    lda = replace(data, documents="lda", alpha=0.4)
    sample = rng.dirichlet(np.full(4, 0.4), 200_000) @ topic_word
    moment = sample.T @ sample / len(sample)
    np.testing.assert_allclose(lda.second_moment_words(), moment, rtol=0.015)


def test_lemma1_members_are_optimal_and_others_are_not():
    rng = np.random.default_rng(1)
    constants, free = rng.normal(size=13), rng.normal(size=(13, 13))
    best = enumerated_loss(SMALL, theorem2_matrix(*SMALL.sizes_and_masking))
    assert best == pytest.approx(1 - 1 / 6, abs=1e-12)
    member = lemma1_member(SMALL, constants, free)
    assert lemma1_residual(SMALL, member) < 1e-12
    assert enumerated_loss(SMALL, member) == pytest.approx(best, abs=1e-12)
    assert uniform_attention_loss(SMALL, member) == pytest.approx(best, abs=1e-12)
    changes = [
        [(0, 0)],
        [(3, 0)],
        [(0, 5)],
        [(3, 1)],
        [(3, 7)],
        [(3, 7), (3, 11)],
        [(0, 2), (0, 5)],
    ]
    for first, *second in changes:  # pairs keep the row's mean: only the sums over topics change
        perturbed = member.copy()
        perturbed[first] += 0.1
        for entry in second:
            perturbed[entry] -= 0.1
        assert lemma1_residual(SMALL, perturbed) > 0.01
        assert enumerated_loss(SMALL, perturbed) > best + 1e-6


def test_lemma1_constants_of_theorem2():
    theorem = theorem2_matrix(*SMALL.sizes_and_masking)
    constants = np.full(13, theorem2_entries(*SMALL.sizes_and_masking)[1])
    constants[0] = 0
    np.testing.assert_allclose(lemma1_member(SMALL, constants), theorem, atol=1e-14)


def test_theorem1_members_are_optimal_with_its_bias_only():
    rng = np.random.default_rng(2)
    bias = theorem1_bias(*SMALL.sizes_and_masking)
    member = theorem1_member(SMALL, rng.normal(size=13), rng.normal(size=(13, 13)))
    assert theorem1_residual(SMALL, member) < 1e-12
    assert enumerated_loss(SMALL, member, bias) == pytest.approx(1 - 1 / 6, abs=1e-12)
    assert enumerated_loss(SMALL, member) > 1 - 1 / 6 + 1e-5
    simplest = np.diag([0.0] + [1 / SMALL.survival] * 12)  # Appendix B's W^E = I / sqrt(a)
    assert theorem1_residual(SMALL, simplest) < 1e-12
    assert lemma1_residual(SMALL, simplest) > 1e-3


def test_relative_residuals_are_0_in_the_family_and_1_at_zero():
    rng = np.random.default_rng(2)
    member = theorem1_member(SMALL, rng.normal(size=13), rng.normal(size=(13, 13)))
    assert relative_residual(SMALL, member, with_bias=True) < 1e-13
    assert relative_residual(SMALL, lemma1_member(SMALL, rng.normal(size=13)), with_bias=False) < 1e-13
    for with_bias in (True, False):
        assert relative_residual(SMALL, np.zeros((13, 13)), with_bias) == 1
    half = np.pad(same_topic(4, 3) / (2 * 3 * SMALL.survival), (1, 0))  # half of every topic's sum
    assert relative_residual(SMALL, half, with_bias=True) == pytest.approx(0.5)


def test_ridge_path_is_the_regularised_regression():
    l2, words = 0.02, all_documents(SMALL)
    keys = np.array([shown_tokens(SMALL, row) for row in words])
    weight = np.sqrt(len(words) * l2)
    design = np.concatenate([keys, weight * np.eye(13)])
    target = np.concatenate([np.pad(words, ((0, 0), (1, 0))), np.zeros((13, 13))])
    direct = np.linalg.lstsq(design, target, rcond=None)[0].T
    np.testing.assert_allclose(ridge_path(SMALL, l2), direct, atol=1e-12)
    gram = keys.T @ keys / len(words)
    theorem = theorem2_matrix(*SMALL.sizes_and_masking)
    path = theorem @ gram @ np.linalg.inv(gram + l2 * np.eye(13))
    np.testing.assert_allclose(ridge_path(SMALL, l2), path, atol=1e-12)
    np.testing.assert_allclose(ridge_path(SMALL, 1e-9), theorem, atol=1e-5)


def enumerated_moments(data, visibility):
    """C and G of every masked document of every length, token by token."""
    size = data.num_words + 1
    cross, gram, total = np.zeros((size, size)), np.zeros((size, size)), 0.0
    masked_shown = [("keep", data.p_keep), (0, 1 - data.p_keep - data.p_random)]
    masked_shown += [(w, data.p_random / data.num_words) for w in range(1, size)]
    kinds = [(None, 1 - data.p_mask)] + [(s, data.p_mask * p) for s, p in masked_shown]
    for words_P in all_documents(data):
        cells = [
            (word, kind, words_P[word - 1] * chance)
            for word in range(1, size)
            for kind, chance in kinds
            if words_P[word - 1] > 0
        ]
        for length in data.lengths():
            for document in product(cells, repeat=int(length)):
                masked = [word for word, kind, _ in document if kind is not None]
                if not masked:
                    continue
                key, target = np.zeros(size), np.zeros(size)
                for word, kind, _ in document:
                    if kind is None or visibility == "all":
                        key[word if kind in (None, "keep") else kind] += 1
                for word in masked:
                    target[word] += 1 / len(masked)
                key /= max(key.sum(), 1)
                chance = np.prod([cell[2] for cell in document])
                cross += chance * np.outer(target, key)
                gram += chance * np.outer(key, key)
                total += chance
    return cross / total, gram / total


@pytest.mark.parametrize("visibility", ["all", "unmasked"])
def test_finite_document_moments_equal_full_enumeration(visibility):
    data = replace(
        SMALL,
        topics=2,
        words_per_topic=2,
        topics_per_document=1,
        infinite_documents=False,
        length_min=1,
        length_max=3,
        key_visibility=visibility,
    )
    cross, gram = uniform_attention_moments(data)
    expected_cross, expected_gram = enumerated_moments(data, visibility)
    np.testing.assert_allclose(cross, expected_cross, atol=1e-13)
    np.testing.assert_allclose(gram, expected_gram, atol=1e-13)


def simulated_documents(data, count, rng):
    """(mean one-hot key, mean one-hot target) of LDA documents with a masked position."""
    size, width = data.num_words + 1, data.length_max
    theta = rng.dirichlet(np.full(data.topics, data.alpha), count)
    topic = (rng.random((count, width, 1)) > np.cumsum(theta, axis=1)[:, None, :]).sum(axis=2)
    topic = np.minimum(topic, data.topics - 1)
    word = 1 + topic * data.words_per_topic + rng.integers(data.words_per_topic, size=topic.shape)
    length = rng.integers(data.length_min, data.length_max + 1, count)
    present = np.arange(width) < length[:, None]
    masked = present & (rng.random(present.shape) < data.p_mask)
    kinds = [data.p_keep, data.p_random, 1 - data.p_keep - data.p_random]
    kind = rng.choice(3, size=present.shape, p=kinds)
    shown = np.where(masked & (kind == 1), rng.integers(1, size, present.shape), word)
    shown = np.where(masked & (kind == 2), 0, shown)
    key_mask = present & ~masked if data.key_visibility == "unmasked" else present
    some = masked.any(axis=1)
    key = (np.eye(size)[shown] * key_mask[:, :, None]).sum(axis=1)[some]
    target = (np.eye(size)[word] * masked[:, :, None]).sum(axis=1)[some]
    return key / np.maximum(key.sum(axis=1, keepdims=True), 1), target / target.sum(1)[:, None]


@pytest.mark.parametrize("visibility", ["all", "unmasked"])
def test_finite_document_optimum_is_the_regression_on_simulated_documents(visibility):
    data = replace(
        SMALL,
        topics=3,
        words_per_topic=2,
        documents="lda",
        alpha=0.3,
        infinite_documents=False,
        length_min=4,
        length_max=8,
        key_visibility=visibility,
    )
    key, target = simulated_documents(data, 150_000, np.random.default_rng(3))
    used = slice(0, None) if visibility == "all" else slice(1, None)
    regression = np.linalg.lstsq(key[:, used], target, rcond=None)[0].T
    optimum = uniform_attention_optimum(data)
    np.testing.assert_allclose(optimum[:, used], regression, atol=0.025)
    losses = 1 - 2 * np.sum(target * (key @ optimum.T), 1) + np.sum((key @ optimum.T) ** 2, 1)
    error = losses.std() / np.sqrt(len(losses))
    assert abs(losses.mean() - uniform_attention_loss(data, optimum)) < 4 * error


def test_only_keys_all_make_the_diagonal_stand_out():
    data = DataModel()
    value = uniform_attention_optimum(data)
    assert value[1, 1] - value[1, 2] == pytest.approx(0.1 / (data.survival + 0.015), abs=1e-8)
    hidden = uniform_attention_optimum(replace(data, key_visibility="unmasked"))
    assert hidden[1, 1] == pytest.approx(hidden[1, 2], abs=1e-12)
    assert hidden[1, 1] > 20 * abs(hidden[1, 11])


def test_optimum_by_topic_is_the_regression_on_topic_shares():
    data = replace(
        SMALL,
        topics=3,
        words_per_topic=2,
        documents="lda",
        infinite_documents=False,
        length_min=4,
        length_max=8,
    )
    key, target = simulated_documents(data, 100_000, np.random.default_rng(5))
    share = np.stack([key[:, 0], *(key[:, i : i + 2].sum(axis=1) for i in (1, 3, 5))], axis=1)
    regression = np.linalg.lstsq(share, target, rcond=None)[0].T
    value = uniform_attention_optimum(data, by_topic=True)
    np.testing.assert_allclose(value, np.repeat(regression, [1, 2, 2, 2], axis=1), atol=0.02)
    best = uniform_attention_loss(data, uniform_attention_optimum(data))
    assert uniform_attention_loss(data, value) > best + 1e-4


def attention_loss(data, value, score):
    """Population loss of infinite documents, every (document, query, target) in turn; by kind."""
    size = data.num_words + 1
    mask_chance = 1 - data.p_keep - data.p_random
    kinds = dict.fromkeys(["mask", "kept", "random_inside", "random_outside"], 0.0)
    weights = dict.fromkeys(kinds, 0.0)
    documents = all_documents(data)
    for words in documents:
        visible = np.concatenate([[0], words])
        shown = shown_tokens(data, words) if data.key_visibility == "all" else visible
        for query in range(size):
            attention = shown * np.exp(score[:, query])
            output = value @ (attention / attention.sum())
            for target in np.nonzero(words)[0] + 1:
                loss = np.sum((output - np.eye(size)[target]) ** 2)
                cases = [("mask", mask_chance)] if query == 0 else []
                if query == target:
                    cases.append(("kept", data.p_keep))
                if query > 0:
                    side = "random_inside" if words[query - 1] > 0 else "random_outside"
                    cases.append((side, data.p_random / data.num_words))
                for kind, chance in cases:
                    kinds[kind] += chance * words[target - 1] * loss / len(documents)
                    weights[kind] += chance * words[target - 1] / len(documents)
    return sum(kinds.values()), {kind: kinds[kind] / weights[kind] for kind in kinds}


def pattern_score(data, alpha, beta):
    """Scores of Assumption 2, one pair of tokens at a time; [MASK] is a topic of its own."""
    size = data.num_words + 1
    score = np.zeros((size, size))
    for key, query in product(range(size), repeat=2):
        topics = [-(-token // data.words_per_topic) for token in (key, query)]
        if key == query:
            score[key, query] = np.log(beta)
        elif topics[0] == topics[1]:
            score[key, query] = np.log(alpha)
    return score


@pytest.mark.parametrize("visibility", ["all", "unmasked"])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (3.0, 7.0), (0.4, 2.5)])
def test_landscape_equals_explicit_attention_over_all_queries(visibility, alpha, beta):
    data = replace(SMALL, key_visibility=visibility)
    value = theorem2_matrix(*data.sizes_and_masking)
    total, kinds = attention_loss(data, value, pattern_score(data, alpha, beta))
    landscape = attention_landscape(data, np.array([alpha, 9.0]), np.array([beta, 9.0]))
    assert landscape.total[0] == pytest.approx(total, abs=1e-12)
    for kind, loss in kinds.items():
        assert getattr(landscape, kind)[0] == pytest.approx(loss, abs=1e-12)


def test_landscape_describes_sampled_long_documents():
    alpha, beta, length, rng = 4.0, 2.0, 4000, np.random.default_rng(4)
    data = replace(SMALL, infinite_documents=False)
    value, size = theorem2_matrix(*data.sizes_and_masking), data.num_words + 1
    pair = np.exp(pattern_score(data, alpha, beta))
    losses = []
    for _ in range(150):
        topics = rng.choice(data.topics, data.topics_per_document, replace=False)
        word = 1 + 3 * rng.choice(topics, length) + rng.integers(3, size=length)
        masked = rng.random(length) < data.p_mask
        kind = rng.choice(3, length, p=[data.p_keep, data.p_random, 0.65])
        shown = np.where(masked & (kind == 1), rng.integers(1, size, length), word)
        shown = np.where(masked & (kind == 2), 0, shown)
        attention = np.bincount(shown, minlength=size)[:, None] * pair
        output = value @ (attention / attention.sum(axis=0))
        error = output[:, shown[masked]] - np.eye(size)[:, word[masked]]
        losses.append(np.mean(np.sum(error**2, axis=0)))
    exact = attention_landscape(SMALL, alpha, beta).total
    assert np.std(losses) / np.sqrt(150) < 5e-4
    assert abs(np.mean(losses) - exact) < 4 * np.std(losses) / np.sqrt(150)
    assert abs(attention_landscape(SMALL, 1.0, 1.0).total - exact) > 0.005


def test_word_queries_depend_on_the_average_weight_alone():
    # Remark 5: (v - 1) alpha + beta = 10 in both, v = 3
    first = attention_landscape(SMALL, 4.0, 2.0, mask_pair=1.0)
    second = attention_landscape(SMALL, 2.0, 6.0, mask_pair=1.0)
    np.testing.assert_allclose(first, second, atol=1e-14)
    literal = attention_landscape(SMALL, 4.0, 2.0)
    assert literal.kept == pytest.approx(first.kept) and literal.mask > first.mask


def test_optimal_attention_is_the_minimum_over_alpha_and_beta():
    average, loss = optimal_attention(SMALL)
    alpha = (SMALL.words_per_topic * average - 1) / (SMALL.words_per_topic - 1)
    assert attention_landscape(SMALL, alpha, 1.0).total == pytest.approx(loss, abs=1e-13)
    grid = alpha * np.linspace(0.8, 1.25, 46)[:, None], np.linspace(0.5, 2, 31)
    everywhere = attention_landscape(SMALL, *grid).total
    assert everywhere.min() >= loss
    assert everywhere.min() == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("visibility", ["all", "unmasked"])
def test_exact_loss_of_any_attention_equals_explicit_loops(visibility):
    data, rng = replace(SMALL, key_visibility=visibility), np.random.default_rng(1)
    value, score = rng.normal(size=(2, 13, 13))
    total, _ = attention_loss(data, value, score)
    assert exact_attention_loss(data, value, np.exp(score.T)) == pytest.approx(total, rel=1e-12)


def test_one_document_is_enough_for_models_that_treat_topics_alike():
    value = lemma1_member(SMALL, np.full(13, -0.01), 0.4 * np.eye(13))
    weight = symmetric_weights(SMALL, AttentionWeights(2.0, 5.0, 1.7))
    assert weight[1, [0, 1, 2, 4]].tolist() == [1.7, 5.0, 2.0, 1.0] and (weight[0] == 1).all()
    one = exact_attention_loss(SMALL, value, weight, alike=True)
    assert one == pytest.approx(exact_attention_loss(SMALL, value, weight), rel=1e-12)


@pytest.mark.parametrize(
    ("tau", "least", "mask", "average", "assumed"),
    [
        (2, 0.946069, 1.34, 5.86, 0.946103),
        (3, 0.961726, 1.42, 7.25, 0.961770),
        (4, 0.969794, 1.50, 8.11, 0.969849),
    ],
)
def test_attention_beyond_assumption_2_has_the_known_values(tau, least, mask, average, assumed):
    data = DataModel(10, 10, "tau", True, topics_per_document=tau)
    weights, loss = best_symmetric_attention(data, theorem2_matrix(*data.sizes_and_masking))
    assert (loss, optimal_attention(data)[1]) == pytest.approx((least, assumed), abs=6e-7)
    assert (weights.mask, weights.average(10)) == pytest.approx((mask, average), abs=6e-3)


def test_best_symmetric_attention_is_a_minimum_also_for_a_diagonal():
    value = lemma1_member(SMALL, np.zeros(13), np.diag([0.0, *[1 / SMALL.survival] * 12]))
    weights, least = best_symmetric_attention(SMALL, value)
    assert weights.beta > 5 * weights.alpha  # a kept word is best predicted by copying it
    for change in product((0.9, 1.0, 1.1), repeat=3):
        near = AttentionWeights(*np.array(weights) * change)
        assert exact_attention_loss(SMALL, value, symmetric_weights(SMALL, near)) >= least - 1e-12
    for pair in (0.8, 1.25):  # uniform attention is best for [MASK]
        weight = symmetric_weights(SMALL, weights)
        weight[0, 0] = pair
        assert exact_attention_loss(SMALL, value, weight) > least


@pytest.mark.parametrize(("topics", "tau"), [(100, 5), (1000, 10), (10_000, 100)])
def test_optimum_lies_in_the_interval_of_theorem3(topics, tau):
    data = DataModel(topics, 10, "tau", True, topics_per_document=tau)
    lower, upper = theorem3_interval(data)
    assert 1 < lower < optimal_attention(data)[0] < upper


def test_theorem3_interval_values():
    data = DataModel(100, 10, "tau", True, topics_per_document=11)
    assert theorem3_interval(data) == pytest.approx((0.88 * 1.135 / 1.73 * 10, 100 * 88 / 1.5 * 100))


def test_optimum_approaches_tau_over_the_share_of_words_lost():
    ratios = []
    for topics, tau in [(10**3, 10), (10**5, 100), (10**7, 1000), (10**9, 10_000)]:
        data = DataModel(topics, 10, "tau", True, topics_per_document=tau)
        ratios.append(optimal_attention(data)[0] * (1 - data.p_keep) * data.p_mask / tau)
    assert np.all(np.diff(np.abs(np.array(ratios) - 1)) < 0)
    assert ratios[-1] == pytest.approx(1, abs=2e-4)


@pytest.mark.parametrize("tau", [2, 3])
def test_onset_rate_is_the_gradient_on_topic_differences(tau):
    data = replace(SMALL, words_per_topic=2, topics_per_document=tau)
    value, size, attention_size = theorem2_matrix(*data.sizes_and_masking), data.num_words + 1, 5
    words = np.kron(np.eye(4), np.ones((2, 2))) / 2 - 1 / 8
    projector = np.pad(words, (1, 0))
    rate = onset_rate(4, 2, tau, *data.masking, attention_size)
    step, slope = 1e-3, np.zeros((size, size))
    for entry in product(range(size), repeat=2):
        score = np.zeros((size, size))
        score[entry] = step / np.sqrt(attention_size)
        up, down = attention_loss(data, value, score)[0], attention_loss(data, value, -score)[0]
        slope[entry] = (up - down) / (2 * step)
    assert rate == pytest.approx(-np.trace(projector @ slope) / 3, rel=1e-5)
    np.testing.assert_allclose(projector @ slope @ projector, -rate * projector, atol=1e-8)
    assert np.abs(slope[:, 0]).max() < 1e-8  # [MASK] queries feel no force at Theorem 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"documents": "tua"}, "documents is tua; allowed: lda, tau"),
        ({"key_visibility": "none"}, "key_visibility is none; allowed: all, unmasked"),
        ({"alpha": 0}, "alpha is 0; allowed: above 0"),
        ({"topics": 0}, "topics is 0; allowed: 1 or more"),
        (
            {"documents": "tau", "topics_per_document": 11},
            "topics_per_document is 11; allowed: at most topics",
        ),
        ({"length_min": 200}, "length_min is 200; allowed: at most length_max = 150"),
        ({"p_keep": 0.6, "p_random": 0.5}, "allowed: a sum of at most 1"),
        ({"p_keep": -0.1}, r"p_keep is -0\.1; allowed: 0 to 1"),
        ({"p_mask": 0}, "p_mask is 0; allowed: above 0, at most 1"),
        ({"p_mask": 1}, "p_mask is 1; allowed in theory: below 1"),
        ({"topic_word": np.ones((2, 3))}, r"shape \(2, 3\); allowed: \(10, 100\)"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        DataModel(**change)


def test_documents_of_a_trial_have_its_settings():
    changed = dict(
        topics=3, words_per_topic=4, length_max=170, alpha=0.7, p_keep=0.2, key_visibility="unmasked"
    )
    settings = settings_of(make_trial(changed | dict(word_distribution="zipf", zipf_exponent=2)))
    words = np.full((3, 12), 1 / 12)
    data = DataModel.of(settings, words)
    assert data == replace(DataModel(**changed), topic_word=words)
    assert DataModel.of(DEFAULTS) == DataModel()


def test_theorem3_has_the_limit_of_many_topics():
    """The exact optimum approaches tau / ((1 - p_c) p_m) if tau grows more slowly than T, and only then."""

    def exact(topics, tau):
        plain = DataModel(documents="tau", infinite_documents=True)
        return optimal_attention(replace(plain, topics=topics, topics_per_document=tau))[0]

    for topics, tau, of_limit, of_many in ((1000, 32, 0.81, 0.01), (10**6, 1000, 0.9926, 1e-4)):
        limit, many = theorem3_limit(tau, 0.15, 0.1), many_topics_weight(topics, tau, 0.15, 0.1, 0.1)
        assert exact(topics, tau) / limit == pytest.approx(of_limit, rel=0.01)
        assert many == pytest.approx(exact(topics, tau), rel=of_many)
    assert many_topics_weight(10**6, 10**5, 0.15, 0.1, 0.1) == pytest.approx(exact(10**6, 10**5), rel=2e-3)
    assert many_topics_weight(1e12, 100, 0.15, 0.1, 0.1) == pytest.approx(theorem3_limit(100, 0.15, 0.1))
