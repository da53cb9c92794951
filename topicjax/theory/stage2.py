"""Stage 2: the optimal attention for a given value matrix.

Three families of attention: Assumption 2's weights (alpha, beta) on infinite documents of disjoint uniform
topics, in closed form; the same weights fitted to documents of any kind; and arbitrary weights on infinite
documents, where the best ones that treat topics and words alike are found.  The loss is squared unless an
objective is given.
Letters: D documents, R queries, W = Tv words, V = W + 1 tokens ([MASK] = 0), Q kinds of queries, K parts of
keys; weights are exp of attention scores, query x key.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from topicjax.theory.document_settings import Objective
from topicjax.theory.documents import Array, DataModel, Queries, first_documents, is_enumerated, topic_subsets
from topicjax.theory.stage_models import Outputs, StageModel, examples_of, pair_weights
from topicjax.theory.theorems import theorem2_entries

FIT_QUERIES = 4_000  # used to fit the two parameters of attention
GRID = [np.array(logs) for logs in product((-4.0, -1.0, 0.0, 2.0, 4.0), (-2.0, 0.0, 2.0, 4.0))]
FIT_BOUNDS = [(-6.0, 12.0)] * 2  # of log alpha and log beta
SYMMETRIC_STARTS = ((0.0, 0.0, 0.0), (2.0, 2.0, 0.0), (0.0, 4.0, 0.0))  # logs: uniform, topical, copying
SYMMETRIC_BOUNDS = [(-12.0, 12.0)] * 3  # a weight at the lower bound is optimal at 0
PRECISE: dict[str, Any] = dict(ftol=1e-15, gtol=1e-9, maxls=50)


class Landscape(NamedTuple):
    """Squared loss of each kind of query, and `total`, their mean weighted by probability."""

    total: Array
    mask: Array
    kept: Array
    random_inside: Array
    random_outside: Array


class _TopicMass(NamedTuple):
    """Attention on the query's own topic, on each other topic inside and outside the document, on [MASK]."""

    own: Array
    inside: Array
    outside: Array
    mask: Array


def _attend(own: Array, inside: Any, outside: Any, mask: Any, counts: Array) -> _TopicMass:
    """Normalise the masses; `counts` = number of own, inside and outside topics."""
    total = counts[0] * own + counts[1] * inside + counts[2] * outside + mask
    return _TopicMass(own / total, inside / total, outside / total, mask / total)


def _query_loss(mass: _TopicMass, counts: Array, target: Array, entries: tuple, words: int) -> Array:
    """Compute E|f - y|^2 of one kind of query; `target` = probability that y is own, inside, outside."""
    mask_column, different, same = entries
    base = mask_column * mass.mask + different * (1 - mass.mask)
    loss = np.ones_like(base)
    for share, count, chance in zip(mass[:3], counts, target, strict=True):
        prediction = base + (same - different) * share  # every word of that topic
        loss = loss + words * count * prediction**2 - 2 * chance * prediction
    return loss


def key_masses(data: DataModel) -> tuple[float, float, float]:
    """Compute the share of keys of one topic inside the document, of one outside, and of [MASK]."""
    tau = data.topics_per_document
    if data.key_visibility == "unmasked":
        return 1 / tau, 0.0, 0.0
    outside = data.p_mask * data.p_random / data.topics
    mask = data.p_mask * (1 - data.p_keep - data.p_random)
    return data.survival / tau + outside, outside, mask


def attention_landscape(
    data: DataModel, alpha: Any, beta: Any, entries: tuple | None = None, mask_pair: Any = None
) -> Landscape:
    """Compute the exact population squared loss of Assumption 2's attention, broadcast over alpha and beta.

    Documents are infinite, with tau disjoint uniform topics, and W^V = `entries` (W_i0, W_diff, W_same), by
    default those of Theorem 2.  A query weighs its own token by beta, other words of its topic by alpha and
    everything else by 1.  [MASK] is a token like others and a topic of its own: it weighs [MASK] keys by beta
    too, or by `mask_pair` if given (with 1 only alpha' matters: Remark 5).
    """
    entries = theorem2_entries(*data.sizes_and_masking) if entries is None else entries
    alpha, beta = np.broadcast_arrays(np.asarray(alpha, float), np.asarray(beta, float))
    topics, words, tau = data.topics, data.words_per_topic, data.topics_per_document
    inside, outside, mask = key_masses(data)
    average = ((words - 1) * alpha + beta) / words  # alpha'
    pair = np.asarray(beta if mask_pair is None else mask_pair, float) + 0 * average

    none = np.array([0, tau, topics - tau])
    within = np.array([1, tau - 1, topics - tau])
    beyond = np.array([1, tau, topics - tau - 1])
    mask_query = _attend(0 * average, inside, outside, mask * pair, none)
    inside_query = _attend(inside * average, inside, outside, mask, within)
    outside_query = _attend(outside * average, inside, outside, mask, beyond)
    losses = (
        _query_loss(mask_query, none, np.array([0, 1, 0]), entries, words),
        _query_loss(inside_query, within, np.array([1, 0, 0]), entries, words),
        _query_loss(inside_query, within, np.array([1, tau - 1, 0]) / tau, entries, words),
        _query_loss(outside_query, beyond, np.array([0, 1, 0]), entries, words),
    )
    random_inside = data.p_random * tau / topics
    chances = (1 - data.p_keep - data.p_random, data.p_keep, random_inside)
    chances += (data.p_random - random_inside,)
    total = sum(chance * loss for chance, loss in zip(chances, losses, strict=True))
    return Landscape(np.asarray(total), *losses)


def optimal_attention(data: DataModel, entries: tuple | None = None) -> tuple[float, float]:
    """Find (alpha'*, its loss), the minimum over alpha and beta of Assumption 2.

    The optimum has beta = 1, since uniform attention is best for [MASK] queries if W^V is the stage-1
    optimum, and alpha = (v alpha' - 1) / (v - 1); mask_pair = 1 gives the same point.
    """

    def loss(log_average: Any) -> Array:
        weight = np.exp(log_average)
        return attention_landscape(data, weight, weight, entries, mask_pair=1.0).total

    grid = np.linspace(np.log(1e-2), np.log(1e5 * data.topics), 400)
    best = int(np.clip(np.argmin(loss(grid)), 1, len(grid) - 2))
    bracket = (grid[best - 1], grid[best + 1])
    found: Any = minimize_scalar(loss, bounds=bracket, method="bounded", options={"xatol": 1e-10})
    return float(np.exp(found.x)), float(found.fun)


def stage2_model(data: DataModel, objective: Objective, values: list[Array], queries: Queries) -> StageModel:
    """Find the best model with W^V frozen at a stage-1 optimum and the attention of Assumption 2.

    `values` holds the optimum of stage 1 and, if that has a diagonal, the one by topics (as in Theorem 3);
    the better of them is used.  Exact for the squared loss with infinite tau-topic documents and disjoint
    topics.
    """
    value = values[0]
    if objective == "squared" and is_enumerated(data) and data.topic_word is None:
        average, _ = optimal_attention(data, (value[1, 0], value[1, -1], value[1, 1]))
        return StageModel(value, average, average, mask_beta=1.0)
    few = first_documents(queries, 1 + FIT_QUERIES * len(queries.words) // len(queries.token))
    found = [best_attention(data, objective, value, few) for value in values]
    return min(found, key=lambda pair: pair[1])[0]


def best_attention(
    data: DataModel, objective: Objective, value: Array, queries: Queries
) -> tuple[StageModel, float]:
    """Fit the (alpha, beta) of Assumption 2 that minimise the mean loss; return the model and that loss.

    A coarse grid search comes first: with keys `all` there can be two minima, topics (alpha > 1) and
    copying (alpha near 0, beta > 1, if W^V has a diagonal).
    """
    outputs, size = Outputs(data, examples_of(data, queries), value), len(queries.words)
    squared = squared_loss(outputs) if objective == "squared" else None

    def loss(logs: Array) -> float:
        alpha, beta = np.exp(logs)
        if squared is not None:
            return squared(alpha, beta) / size
        return float(outputs.losses(StageModel(value, alpha, beta), objective).sum()) / size

    def loss_and_slopes(logs: Array) -> tuple[float, Array]:
        total, slopes = outputs.cross_entropy_slopes(StageModel(value, *np.exp(logs)))
        return total / size, slopes / size

    start = min(GRID, key=loss)
    look: dict[str, Any] = dict(method="L-BFGS-B", bounds=FIT_BOUNDS)
    found: Any = (
        minimize(loss, start, **look)
        if squared is not None
        else minimize(loss_and_slopes, start, jac=True, **look)
    )
    alpha, beta = np.exp(found.x)
    return StageModel(value, float(alpha), float(beta)), float(found.fun)


def squared_loss(outputs: Outputs) -> Callable[[float, float], float]:
    """Build the summed squared loss as a function of alpha and beta.

    For each query it is a rational function of them, so sums over the vocabulary are computed once.
    """
    gram = {
        (i, j): np.einsum("rg,rg,g->r", outputs.sums[i], outputs.sums[j], outputs.size_G)
        for i, j in product(range(3), repeat=2)
    }
    score = [np.einsum("rg,rg->r", outputs.target_RxG, part) for part in outputs.sums]
    total_weight = float(outputs.weight_R.sum())

    def loss(alpha: float, beta: float) -> float:
        factor = (1.0, alpha - 1, beta - alpha)
        total_R = sum(f * part for f, part in zip(factor, outputs.totals, strict=True))
        inverse_R = np.divide(1.0, total_R, out=np.zeros_like(total_R), where=total_R > 0)
        square_R = sum(factor[i] * factor[j] * each for (i, j), each in gram.items()) * inverse_R**2
        score_R = sum(f * each for f, each in zip(factor, score, strict=True)) * inverse_R
        return total_weight + float(np.sum(outputs.weight_R * square_R - 2 * score_R))

    return loss


class AttentionWeights(NamedTuple):
    """Weights of a word query on each kind of key, relative to words of other topics."""

    alpha: float  # other words of its topic
    beta: float  # the word itself
    mask: float  # [MASK]

    def average(self, words_per_topic: int) -> float:
        """Return alpha' = ((v - 1) alpha + beta) / v."""
        return ((words_per_topic - 1) * self.alpha + self.beta) / words_per_topic


def attention_loss(data: DataModel, value: Array, weight_VxV: Array, alike: bool = False) -> float:
    """Compute the squared loss over all documents of attention with these weights and W^V = `value`.

    If the model treats topics and words `alike`, one document and one query of each kind are enough.
    """
    inside = data.topics_per_document * data.words_per_topic
    query_Q, times_Q = np.arange(data.num_words + 1), np.ones(data.num_words + 1)
    if alike:
        query_Q, times_Q = np.array([0, 1, data.num_words]), np.array([1, inside, data.num_words - inside])
    share_Q = np.where(query_Q == 0, 1 - data.p_keep - data.p_random, data.p_random / data.num_words)
    keys_KxV, weight_QxV = _key_parts(data), weight_VxV[query_Q]
    part_KxQxV = (weight_QxV * keys_KxV[:, None, :]) @ value.T
    total_KxQ = keys_KxV @ weight_QxV.T
    first_T = np.where(np.arange(data.topics) < data.topics_per_document, 1 / data.topics_per_document, 0.0)
    losses = []
    for theta_T in [first_T] if alike else topic_subsets(data):
        theta_K, words_V = np.r_[1.0, theta_T], np.r_[0.0, theta_T @ data.words_by_topic()]
        output_QxV = np.tensordot(theta_K, part_KxQxV, 1) / (theta_K @ total_KxQ)[:, None]
        kept_Q = data.p_keep * words_V[query_Q]  # the target is the query itself
        square_Q = (share_Q + kept_Q) * np.einsum("qv,qv->q", output_QxV, output_QxV)
        score_Q = share_Q * (output_QxV @ words_V) + kept_Q * output_QxV[np.arange(len(query_Q)), query_Q]
        losses.append(1 + times_Q @ (square_Q - 2 * score_Q))
    return float(np.mean(losses))


def _key_parts(data: DataModel) -> Array:
    """Split the keys of any document, (1 + T) x V: a part common to all, and one per unit of each topic."""
    words_TxV = np.pad(data.words_by_topic(), ((0, 0), (1, 0)))
    if data.key_visibility == "unmasked":
        return np.vstack([np.zeros(data.num_words + 1), words_TxV])
    return np.vstack([data.shown_distribution(np.zeros(data.num_words)), data.survival * words_TxV])


def symmetric_weights(data: DataModel, weights: AttentionWeights) -> Array:
    """Make the V x V weight matrix, query x key: words use these weights, [MASK] attends uniformly."""
    weight_VxV = pair_weights(data, StageModel(np.zeros(0), weights.alpha, weights.beta, mask_beta=1.0))
    weight_VxV[1:, 0] = weights.mask
    return weight_VxV


def best_symmetric_attention(data: DataModel, value: Array) -> tuple[AttentionWeights, float]:
    """Find the best attention that treats topics and words alike, and its loss; so must the value matrix.

    It improves on Assumption 2's optimum, where words weigh [MASK] by 1.  [MASK] queries attend uniformly:
    that is optimal for them if W^V is optimal for uniform attention (Lemma 1).  With uniform blocks only
    alpha' matters; alpha and beta are then one of many pairs that give it.
    """

    def loss(logs: Array) -> float:
        weights = AttentionWeights(*np.exp(logs))
        return attention_loss(data, value, symmetric_weights(data, weights), alike=True)

    look: dict[str, Any] = dict(method="L-BFGS-B", bounds=SYMMETRIC_BOUNDS, options=PRECISE)
    found: list[Any] = [minimize(loss, np.array(start), **look) for start in SYMMETRIC_STARTS]
    best = min(found, key=lambda result: result.fun)
    weights = np.where(best.x > SYMMETRIC_BOUNDS[0][0], np.exp(best.x), 0.0)
    return AttentionWeights(*map(float, weights)), float(best.fun)
