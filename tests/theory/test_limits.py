"""Limit lines against quadrature, full enumeration of tiny models and the exact closed forms."""

from collections import defaultdict
from dataclasses import replace
from itertools import combinations, pairwise, product
from math import comb

import numpy as np
import pytest
from scipy.special import gammaln
from threadpoolctl import threadpool_limits

from topicjax.theory import limits, posterior, stage1, stage_models
from topicjax.theory.documents import DataModel, sample_queries, topic_subsets
from topicjax.theory.limits import (
    Limits,
    bayes_lines,
    document_losses,
    limit_lines,
    stage1_line,
    stage2_line,
    stage_lines,
)
from topicjax.theory.posterior import (
    bayes_prediction,
    dirichlet_topic_mean,
    posterior_words,
    subset_topic_mean,
)
from topicjax.theory.progress import progress, units
from topicjax.theory.stage1 import stage1_value, uniform_attention_loss, uniform_attention_optimum
from topicjax.theory.stage2 import attention_landscape, best_attention, optimal_attention, stage2_model
from topicjax.theory.stage_models import Outputs, StageModel, examples_of, model_losses, pair_weights
from topicjax.theory.theorems import theorem2_matrix

SHORT = DataModel(p_mask=0.3, p_keep=0.2, p_random=0.15, topics=3, words_per_topic=2, alpha=0.3)
LDA = replace(SHORT, length_min=4, length_max=8)
TINY = replace(SHORT, documents="tau", length_min=2, length_max=2)
BOTH = pytest.mark.parametrize("visibility", ["all", "unmasked"])
OBJECTIVES = pytest.mark.parametrize("objective", ["cross_entropy", "squared"])


def mean_losses(data, queries, objective, model):
    """The loss of each document, expected over what its masked positions hide."""
    return model_losses(data, examples_of(data, queries), model, objective)


def entries_of(value):
    """[MASK], different topic, same topic."""
    return value[1, 0], value[1, -1], value[1, 1]


def best_line(data, values, queries):
    model = stage2_model(data, "squared", values, queries)
    return stage2_line(data, "squared", model, values[0], queries)


def test_dirichlet_topic_mean_equals_quadrature():
    alpha, signal, noise = 0.4, 0.8, 0.05
    counts = np.array([[3, 0], [1, 6], [0, 0], [40, 3]])
    # theta^(alpha-1) is integrable but singular: substitute theta = u^5 at both ends
    u = (np.arange(400_000) + 0.5) / 400_000
    half = u**5 / 2
    theta = np.concatenate([half, 1 - half])
    log_jacobian = np.tile(4 * np.log(u), 2)
    prior = (alpha - 1) * (np.log(theta) + np.log(np.concatenate([1 - half, half])))
    for count, mean in zip(counts, dirichlet_topic_mean(counts, alpha, signal, noise), strict=True):
        likelihood = count[0] * np.log(signal * theta + noise)
        likelihood += count[1] * np.log(signal * (1 - theta) + noise)
        density = np.exp(prior + log_jacobian + likelihood - likelihood.max())
        assert mean[0] == pytest.approx(np.sum(theta * density) / density.sum(), abs=1e-5)


def test_dirichlet_topic_mean_equals_enumerated_noise_assignments():
    alpha, signal, noise = 0.2, 0.7, 0.1
    count = np.array([2, 0, 3])
    total, mean = 0.0, np.zeros(3)
    for real in product(*(range(n + 1) for n in count)):
        words = sum(real)
        weight = np.prod([comb(n, k) for n, k in zip(count, real, strict=True)])
        weight *= signal**words * noise ** (count.sum() - words)
        weight *= np.exp(np.sum(gammaln(alpha + np.array(real))) - gammaln(3 * alpha + words))
        total += weight
        mean += weight * (alpha + np.array(real)) / (3 * alpha + words)
    found = dirichlet_topic_mean(count[None], alpha, signal, noise)[0]
    np.testing.assert_allclose(found, mean / total, atol=1e-12)


@pytest.mark.parametrize("outside", [0.0, 0.04])
def test_subset_topic_mean_equals_enumerated_subsets(outside):
    count, tau, inside = np.array([[3, 0, 1, 0, 0], [0, 0, 0, 0, 9], [0] * 5]), 2, 0.44
    expected = np.zeros((3, 5))
    for subset in combinations(range(5), tau):
        member = np.isin(np.arange(5), subset)
        likelihood = np.prod(np.where(member, inside, outside) ** count, axis=1)
        expected += likelihood[:, None] * member
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(subset_topic_mean(count, tau, inside, outside), expected, atol=1e-12)


def enumerated_bayes(data, objective):
    """Least loss of any predictor that sees what a query sees; LDA by its urn, tau by subsets."""
    size = data.num_words + 1
    kinds = [(None, 1 - data.p_mask), ("keep", data.p_mask * data.p_keep)]
    kinds += [(0, data.p_mask * (1 - data.p_keep - data.p_random))]
    kinds += [(w, data.p_mask * data.p_random / data.num_words) for w in range(1, size)]
    joint, length, some = defaultdict(lambda: np.zeros(size)), data.length_min, 0.0
    for words in product(range(1, size), repeat=length):
        chance_words = probability_of_words(data, words)
        for choice in product(kinds, repeat=length):
            chance = chance_words * np.prod([probability for _, probability in choice])
            masked = [i for i in range(length) if choice[i][0] is not None]
            some += chance if masked else 0.0
            shown = [w if k in (None, "keep") else k for w, (k, _) in zip(words, choice, strict=True)]
            for i in masked:
                others = [j for j in range(length) if j != i]
                if data.key_visibility == "unmasked":
                    others = [j for j in others if j not in masked]
                view = (tuple(sorted(shown[j] for j in others)), shown[i])
                joint[view][words[i]] += chance / len(masked)
    loss = 0.0
    for weight in joint.values():
        if objective == "cross_entropy":
            seen = weight[weight > 0]
            loss -= np.sum(seen * np.log(seen / weight.sum()))
        else:
            loss += weight.sum() - np.sum(weight**2) / max(weight.sum(), 1e-300)
    return loss / some


def probability_of_words(data, words):
    topic = [(w - 1) // data.words_per_topic for w in words]
    within = data.words_per_topic ** -len(words)
    if data.documents == "lda":
        chance, count = 1.0, np.zeros(data.topics)
        for drawn, t in enumerate(topic):
            chance *= (data.alpha + count[t]) / (data.topics * data.alpha + drawn)
            count[t] += 1
        return chance * within
    tau = data.topics_per_document
    holding = comb(data.topics - len(set(topic)), tau - len(set(topic))) if len(set(topic)) <= tau else 0
    return holding / comb(data.topics, tau) * tau ** -len(words) * within


@OBJECTIVES
@pytest.mark.parametrize("documents", ["lda", "tau"])
def test_bayes_line_equals_enumerated_posterior_with_hidden_masks(documents, objective):
    data = replace(TINY, documents=documents, key_visibility="unmasked")
    exact = enumerated_bayes(data, objective)
    value, error = bayes_lines(data, sample_queries(data, 60_000, 0))[objective]
    assert 0 < error < 2e-3
    assert abs(value - exact) < 4 * error


@pytest.mark.parametrize("documents", ["lda", "tau"])
def test_bayes_line_with_visible_masks_is_a_tight_upper_bound(documents):
    data = replace(TINY, documents=documents)
    exact = enumerated_bayes(data, "cross_entropy")
    value, error = bayes_lines(data, sample_queries(data, 60_000, 0))["cross_entropy"]
    assert -4 * error < value - exact < 4 * error + 2e-3


@BOTH
@pytest.mark.parametrize("documents", ["lda", "tau"])
def test_general_posterior_agrees_with_the_disjoint_one(visibility, documents, monkeypatch):
    data = replace(LDA, documents=documents, key_visibility=visibility)
    general = replace(data, topic_word=data.words_by_topic())
    queries = sample_queries(data, 60, 1)
    monkeypatch.setattr(posterior, "GIBBS_SWEEPS", 2500)
    difference = posterior_words(general, queries) - posterior_words(data, queries)
    assert np.abs(difference).max() < (0.02 if documents == "lda" else 1e-12)


def test_a_matrix_fitted_entry_by_entry_has_no_slope_left(monkeypatch):
    """The loss by its definition, without blocks or other coordinates; the last block is not full."""
    rng = np.random.default_rng(0)
    targets, keys = rng.dirichlet(np.ones(4), 50), rng.dirichlet(np.array([1, 1, 0.1, 3, 1]), 50)
    keys[:, 2] = keys[:, 1]  # two keys that cannot be told apart
    monkeypatch.setattr(stage1, "ONE_THREAD", 60)
    monkeypatch.setattr(stage1, "ENTRY_TOLERANCE", 1e-15)
    fitted = stage1._fit_every_entry(targets, keys)

    def loss(matrix):
        logit = keys @ matrix.T
        return np.mean(np.log(np.exp(logit).sum(axis=1)) - (targets * logit).sum(axis=1))

    assert stage1.stacked(targets, (4, 5)).shape == (17, 3, 4)
    for place in np.ndindex(4, 5):
        step = np.zeros((4, 5))
        step[place] = 1e-4
        assert abs(loss(fitted + step) - loss(fitted - step)) < 2e-4 * 1e-6


def test_means_over_shifts_bring_a_fitted_matrix_to_the_best_one():
    """Disjoint topics as if they were any: few documents fit all entries badly, and their mean well."""
    data = DataModel(5, 2, "lda", length_min=20, length_max=30, key_visibility="unmasked")
    general = replace(data, topic_word=data.words_by_topic())
    queries, others = (sample_queries(data, 400, seed) for seed in (0, 1))
    fitted = stage1_value(general, "cross_entropy", queries)
    raw = np.zeros_like(fitted)
    documents = stage_models.merged(examples_of(data, queries))
    raw[1:] = stage1._fit_every_entry(
        documents.words, documents.keys / documents.keys.sum(axis=1, keepdims=True)
    )
    best, symmetric, single = (
        mean_losses(data, others, "cross_entropy", StageModel(value)).mean()
        for value in (stage1_value(data, "cross_entropy", queries), fitted, raw)
    )
    assert 0 < symmetric - best < (single - best) / 2.5
    np.testing.assert_allclose(np.roll(fitted[1:, 1:], (2, 2), (0, 1)), fitted[1:, 1:])
    uneven = replace(data, topic_word=np.random.default_rng(0).dirichlet(np.ones(10), 5))
    assert stage1.over_shifts(uneven, raw) is raw


def test_bayes_prediction_of_a_shown_word_mixes_kept_and_random():
    data = replace(TINY, infinite_documents=True)
    queries = sample_queries(data, 1, 0)  # one document: topics 1 and 2, words 1..4 at 1/4
    prediction = bayes_prediction(data, queries)
    kept = 0.2 / 4 / (0.2 / 4 + 0.15 / 6)
    np.testing.assert_allclose(prediction[0], [0.25] * 4 + [0] * 2)
    expected = (1 - kept) * np.array([0.25] * 4 + [0] * 2) + kept * np.eye(6)[1]
    np.testing.assert_allclose(prediction[2], expected)
    np.testing.assert_allclose(prediction[6], prediction[0])  # a word no topic of it writes


@BOTH
def test_sampled_documents_reproduce_the_exact_stage1_loss(visibility):
    data = replace(LDA, key_visibility=visibility)
    queries = sample_queries(data, 40_000, 2)
    value = uniform_attention_optimum(data) + 0.05  # any matrix, also [MASK]'s column
    value[0] = 0
    losses = mean_losses(data, queries, "squared", StageModel(value))
    plain_error = losses.std() / np.sqrt(len(losses))
    exact = uniform_attention_loss(data, value)
    assert abs(losses.mean() - exact) < 4 * plain_error
    controlled, error = limits._controlled_mean(data, queries, losses)
    assert error < 0.7 * plain_error
    assert abs(controlled - exact) < 4 * error


def test_expected_losses_equal_losses_of_drawn_targets():
    rng = np.random.default_rng(3)
    queries = sample_queries(LDA, 5000, 3)
    prediction = rng.normal(size=(len(queries.token), 6))
    drawn = np.zeros(len(queries.words))
    for row, (document, token) in enumerate(zip(queries.document, queries.token, strict=True)):
        joint = queries.words[document].copy()  # Bayes' rule: word, then what it shows
        if token > 0:
            joint *= 0.15 / 6 + 0.2 * (np.arange(1, 7) == token)
        target = rng.choice(6, p=joint / joint.sum())
        loss = np.sum((prediction[row] - np.eye(6)[target]) ** 2)
        drawn[document] += queries.weight[row] * loss
    difference = drawn - document_losses(LDA, queries, prediction, "squared")
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(len(difference))


@BOTH
def test_sampled_attention_equals_the_landscape(visibility):
    data = replace(TINY, infinite_documents=True, key_visibility=visibility)
    queries = sample_queries(data, 1, 0)
    value = theorem2_matrix(*data.sizes_and_masking)
    found = mean_losses(data, queries, "squared", StageModel(value, 3.0, 0.5))
    assert found[0] == pytest.approx(attention_landscape(data, 3.0, 0.5).total, abs=1e-13)
    optimum = uniform_attention_optimum(data)
    by_search = best_attention(data, "squared", optimum, queries)[1]
    model = stage2_model(data, "squared", [optimum], queries)
    exact, error = stage2_line(data, "squared", model, optimum, queries)
    assert error == 0 and model.mask_beta == 1
    assert exact == pytest.approx(optimal_attention(data, entries_of(optimum))[1], abs=1e-13)
    assert by_search == pytest.approx(exact, abs=1e-8)


# with the default sizes, squared: copying lies below topics, which a search from (1, 1) finds
@pytest.mark.parametrize("size", [6, pytest.param(10, marks=pytest.mark.slow)])
@OBJECTIVES
def test_stage2_attention_is_the_lowest_point_of_a_grid(objective, size):
    data = DataModel(topics=size, words_per_topic=size)
    queries = sample_queries(data, 20 * size, 0)
    value = stage1_value(data, objective, sample_queries(data, 100 * size, 1))

    def loss(alpha, beta):
        return mean_losses(data, queries, objective, StageModel(value, alpha, beta)).mean()

    lowest = min(loss(*np.exp(point)) for point in product(np.linspace(-5, 5, 11), repeat=2))
    model, least = best_attention(data, objective, value, queries)
    assert least < lowest + 1e-6
    assert least == pytest.approx(loss(model.alpha, model.beta), abs=1e-12)


def test_stage2_counts_the_better_of_the_two_stage1_optima():
    data = DataModel()
    queries = sample_queries(data, 2000, 0)
    full, blocks = (stage1_value(data, "squared", by_topic=one) for one in (False, True))
    copying, topics, both = (
        best_line(data, values, queries) for values in ([full], [blocks], [full, blocks])
    )
    assert topics[0] < copying[0] - 3e-4
    assert both[0] == pytest.approx(topics[0], abs=4 * topics[1])
    short = DataModel(length_min=3, length_max=5, p_mask=0.5)  # here the diagonal is worth more
    queries = sample_queries(short, 2000, 0)
    full, blocks = (stage1_value(short, "squared", by_topic=one) for one in (False, True))
    assert best_line(short, [blocks], queries)[0] > uniform_attention_loss(short, full)
    check_order(limit_lines(short, "squared", 2000))


@BOTH
def test_symmetric_stage1_fit_is_the_best_of_all_matrices(visibility):
    data = replace(LDA, key_visibility=visibility)
    symmetric = stage1_value(data, "cross_entropy", sample_queries(data, 20_000, 4))
    general = replace(data, topic_word=data.words_by_topic())
    free = stage1_value(general, "cross_entropy", sample_queries(general, 20_000, 4))
    queries = sample_queries(data, 20_000, 5)
    first, error = stage1_line(data, "cross_entropy", symmetric, queries)
    second, _ = stage1_line(data, "cross_entropy", free, queries)
    assert second == pytest.approx(first, abs=2e-3)
    worse, _ = stage1_line(data, "cross_entropy", 0.5 * symmetric, queries)
    assert worse > first + 10 * error


def test_documents_without_visible_keys_predict_nothing():
    data = replace(LDA, length_min=1, length_max=1, key_visibility="unmasked")  # its word is masked
    queries, value = sample_queries(data, 50, 0), np.ones((7, 7))
    assert stage1_line(data, "cross_entropy", value, queries)[0] == pytest.approx(np.log(7))
    assert uniform_attention_loss(data, value) == 1
    np.testing.assert_allclose(posterior_words(data, queries), 1 / 6)


def test_stage1_cross_entropy_of_infinite_documents_is_the_entropy_of_the_topics_inside():
    data = DataModel(5, 4, "tau", True, topics_per_document=3)
    lines = limit_lines(data, "cross_entropy")
    assert lines["stage1"] == pytest.approx(np.log(12), abs=1e-5)
    assert lines["stage1_se"] == lines["stage2_se"] == lines["bayes_se"] == 0


@BOTH
def test_stage2_cross_entropy_of_infinite_documents_has_its_closed_form(visibility):
    # W^V grows without bound, so that attention only splits the mass inside the document: a query
    # that shows a word of it (chance .12) favours that word's topic, right with chance .11 / .12
    data = DataModel(documents="tau", infinite_documents=True, key_visibility=visibility)
    right = 0.11 / 0.12
    split = -right * np.log(right) - (1 - right) * np.log(1 - right)
    expected = 0.88 * np.log(20) + 0.12 * (np.log(10) + split)
    assert limit_lines(data, "cross_entropy")["stage2"] == pytest.approx(expected, abs=1e-4)


def check_order(lines):
    names = ["uniform", "stage1", "stage2", "bayes"]
    for upper, lower in pairwise(names):
        slack = 4 * np.hypot(lines[f"{upper}_se"], lines[f"{lower}_se"])
        assert lines[upper] > lines[lower] - slack, (upper, lower, lines)


@OBJECTIVES
@BOTH
@pytest.mark.parametrize("infinite", [False, True])
@pytest.mark.parametrize("documents", ["lda", "tau"])
def test_lines_are_ordered(documents, infinite, visibility, objective):
    data = DataModel(6, 4, documents, infinite, length_min=30, length_max=50, key_visibility=visibility)
    lines = limit_lines(data, objective, num_documents=1500)
    check_order(lines)
    assert lines["uniform"] > lines["stage1"] + 0.01


@OBJECTIVES
def test_lines_of_topics_that_share_words_are_ordered(objective):
    topic_word = np.random.default_rng(6).dirichlet(np.full(12, 0.3), 4)
    data = DataModel(4, 3, "lda", length_min=20, length_max=30, topic_word=topic_word)
    check_order(limit_lines(data, objective, num_documents=4000))


def test_recorded_run_of_the_authors_lies_just_above_the_stage1_line():
    data = DataModel(key_visibility="unmasked")
    value = stage1_value(data, "cross_entropy", sample_queries(data, 4000, 7))
    line, error = stage1_line(data, "cross_entropy", value, sample_queries(data, 4000, 8))
    assert error < 0.002
    assert 3.34 < line < 3.395


@OBJECTIVES
@BOTH
@pytest.mark.parametrize("shared", [False, True])
def test_losses_of_a_model_equal_loops_over_queries_and_keys(objective, visibility, shared, monkeypatch):
    words = np.random.default_rng(6).dirichlet(np.full(6, 0.5), 3) if shared else None
    data = replace(LDA, length_min=1, key_visibility=visibility, topic_word=words)
    rng, queries = np.random.default_rng(7), sample_queries(data, 60, 9)
    model = StageModel(rng.normal(size=(7, 7)), 3.0, 0.4, mask_beta=2.0)
    weights = pair_weights(data, model)
    expected = np.zeros(60)
    for document, token, weight in zip(queries.document, queries.token, queries.weight, strict=True):
        attention = queries.keys[document] * weights[token]
        output = sum(attention[k] * model.value[:, k] for k in range(7)) / max(attention.sum(), 1e-9)
        target = queries.words[document].copy()  # Bayes' rule: word, then what it shows
        target *= 1 if token == 0 else 0.15 / 6 + 0.2 * (np.arange(1, 7) == token)
        for word, chance in zip(range(1, 7), target / target.sum(), strict=True):
            expected[document] += weight * chance * word_loss(output, word, objective, attention.any())
    monkeypatch.setattr(stage_models, "BLOCK", 17)
    np.testing.assert_allclose(mean_losses(data, queries, objective, model), expected, rtol=1e-12)
    uniform = StageModel(model.value)
    almost = StageModel(model.value, 1 + 1e-13)  # not merged: query by query
    found = (mean_losses(data, queries, objective, each) for each in (uniform, almost))
    np.testing.assert_allclose(*found, rtol=1e-9)


def word_loss(output, word, objective, has_keys):
    """[MASK] is never predicted where there is a key: its output is -infinity in the limit."""
    if objective == "squared":
        return (1 - output[word]) ** 2 + sum(output[k] ** 2 for k in range(1, 7) if k != word)
    return np.log(sum(np.exp(output[0 if not has_keys else 1 :]))) - output[word]


def test_slopes_of_cross_entropy_are_those_of_the_losses():
    queries = sample_queries(LDA, 200, 0)
    value = np.random.default_rng(0).normal(size=(7, 7))
    outputs, logs = Outputs(LDA, examples_of(LDA, queries), value), np.array([0.7, -0.4])

    def loss(logs):
        return outputs.cross_entropy_slopes(StageModel(value, *np.exp(logs)))

    total, slopes = loss(logs)
    expected = outputs.losses(StageModel(value, *np.exp(logs)), "cross_entropy").sum()
    assert total == pytest.approx(expected, rel=1e-12)
    for place, step in enumerate(1e-5 * np.eye(2)):
        assert slopes[place] == pytest.approx((loss(logs + step)[0] - loss(logs - step)[0]) / 2e-5, rel=1e-6)


RECORDED = {  # default documents, by the plain search over all queries and tokens that came first
    ("all", "cross_entropy"): (3.3598413395225197, 0.001017164258831, 3.3018110383350425, 0.000759883295406),
    ("all", "squared"): (0.9453218439834408, 0.0, 0.942721954243397, 1.5252021995e-05),
    ("unmasked", "cross_entropy"): (3.3619985878818746, 0.00106060871, 3.301067843966687, 0.00075820102),
    ("unmasked", "squared"): (0.9454261109114879, 0.0, 0.942568327481899, 1.4935507978e-05),
}


@OBJECTIVES
@BOTH
def test_stage_lines_are_those_on_record(visibility, objective):
    with threadpool_limits(1):  # as beside training
        lines = stage_lines(DataModel(key_visibility=visibility), objective)
    found = [lines[name] for name in ("stage1", "stage1_se", "stage2", "stage2_se")]
    # Other threads or another processor's BLAS round differently, and the search may end 1e-7 elsewhere.
    np.testing.assert_allclose(found, RECORDED[visibility, objective], rtol=0, atol=1e-6)


def test_objectives_share_what_they_have_in_common_and_give_the_same_lines():
    limits = Limits(LDA, 500, seed=1)
    for objective in ("squared", "cross_entropy"):
        together = limits.stages(objective) | limits.others(objective)
        assert together == limit_lines(LDA, objective, 500, seed=1)
        assert stage_lines(LDA, objective, 500, seed=1).items() < together.items()


def test_lines_depend_on_their_arguments_alone():
    first, again = (limit_lines(LDA, "cross_entropy", 500, seed=1) for _ in range(2))
    other = limit_lines(LDA, "cross_entropy", 500, seed=2)
    assert first == again
    assert first["bayes"] != other["bayes"]


def test_units_of_progress_are_read_from_an_entry_of_the_manifest():
    entry = dict(stage1=3.4, stage2=3.2, stage1_se=0.01, stage2_se=None, held_out_stage1=3.3)
    np.testing.assert_allclose(units(4.6, entry), [1.3, 0.2])
    np.testing.assert_allclose(units(4.6, entry | dict(held_out_stage2=3.15)), [1.3, 0.15])
    np.testing.assert_allclose(units(4.6, entry | dict(stage1_se=0.11)), [1.3, np.nan])
    np.testing.assert_allclose(units(3.3, {}), [np.nan, np.nan])
    several = units(np.array([4.6, 3.2]), dict(stage1=np.array([3.4, 3.4]), stage2=3.2))
    np.testing.assert_allclose(several, [[1.2, np.nan], [0.2, 0.2]])
    np.testing.assert_allclose(progress(3.3, 3.6, 4.6, 1.25, 0.2), [0.8, 1.5, 1.04])


def test_unknown_objective_is_named():
    with pytest.raises(ValueError, match="no limit lines for objective hinge; it has for cross"):
        limit_lines(LDA, "hinge")  # pyright: ignore[reportArgumentType]


def test_too_many_subsets_are_refused():
    words = np.full((40, 40), 1 / 40)
    data = DataModel(40, 1, "tau", topics_per_document=10, topic_word=words)
    with pytest.raises(ValueError, match="847660528 topic subsets; allowed: at most 20000"):
        topic_subsets(data)


PAIRS = replace(LDA, words_per_topic=4, pair_strength=0.3)
VANISHED = replace(PAIRS, alpha=0.25, pair_strength=0.8)  # 1 / (1 + alpha): every pair is a topic of its own
SMALL_TOPICS = replace(VANISHED, topics=6, words_per_topic=2, alpha=0.125, pair_strength=0.0)


def test_moments_of_pairs_are_those_of_sampled_documents():
    words = sample_queries(replace(PAIRS, key_visibility="unmasked"), 20_000, 0).words
    products = np.einsum("di,dj->dij", words, words)
    error = products.std(axis=0) / np.sqrt(len(words))
    assert (np.abs(products.mean(axis=0) - PAIRS.second_moment_words()) < 4.5 * error).all()
    assert np.abs(words.mean(axis=0) - PAIRS.mean_words()).max() < 0.01


@BOTH
def test_the_squared_stage_1_line_of_pairs_is_the_loss_on_sampled_documents(visibility):
    data = replace(PAIRS, key_visibility=visibility)
    value = stage1_value(data, "squared")
    queries = sample_queries(data, 20_000, 0)
    losses = mean_losses(data, queries, "squared", StageModel(value))
    exact, _ = stage1_line(data, "squared", value, queries)
    assert abs(losses.mean() - exact) < 4 * losses.std() / np.sqrt(len(losses))
    assert (
        exact < uniform_attention_loss(data, stage1_value(replace(data, pair_strength=0.0), "squared")) - 1e-3
    )


@BOTH
def test_where_topics_vanish_lines_are_those_of_topics_of_two_words(visibility):
    pairs, topics = (replace(data, key_visibility=visibility) for data in (VANISHED, SMALL_TOPICS))
    for ours, theirs in zip(*map(stage1.uniform_attention_moments, (pairs, topics)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-15)
    found, expected = (limit_lines(data, "cross_entropy", 2000) for data in (pairs, topics))
    known = ["stage1", "bayes"] if visibility == "unmasked" else ["stage1"]
    for name in known:
        error = np.hypot(found[f"{name}_se"], expected[f"{name}_se"])
        assert found[name] == pytest.approx(expected[name], abs=4 * error)
    unknown = {"stage2", "stage2_se"} | (set() if "bayes" in known else {"bayes", "bayes_se"})
    assert {name for name, value in found.items() if np.isnan(value)} == unknown


@pytest.mark.parametrize("documents", ["lda", "tau"])
def test_the_posterior_of_pairs_weighs_documents_by_what_is_visible(documents):
    """Draw words from the prior, weigh each draw by the likelihood of the visible words, and average."""
    data = replace(PAIRS, key_visibility="unmasked", documents=documents)
    draws = sample_queries(data, 100_000, 1).words
    queries = sample_queries(data, 5, 0)
    predicted = posterior_words(data, queries)
    for number, document in enumerate(queries.document):
        counts = queries.keys[document, 1:]
        weight = np.exp(counts @ np.log(np.maximum(draws, 1e-300)).T)
        mean = weight @ draws / weight.sum()
        error = np.sqrt((weight**2) @ (draws - mean) ** 2) / weight.sum()
        assert (np.abs(predicted[number] - mean) < 5 * error + 1e-6).all()
