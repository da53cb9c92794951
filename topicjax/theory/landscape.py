"""Stage 2: the exact loss over Assumption 2's attention weights (alpha, beta), and its minimum."""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from topicjax.theory.documents import Array, DataModel
from topicjax.theory.theorems import theorem2_entries


class Landscape(NamedTuple):
    """Squared loss of each kind of query, and `total`, their mean weighted by the kinds' probabilities."""

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
    """Return the masses divided by their total; `counts` = number of own, inside and outside topics."""
    total = counts[0] * own + counts[1] * inside + counts[2] * outside + mask
    return _TopicMass(own / total, inside / total, outside / total, mask / total)


def _query_loss(mass: _TopicMass, counts: Array, target: Array, entries: tuple, words: int) -> Array:
    """Return E|f - y|^2 of one kind of query; `target` = probability that y is own, inside, outside."""
    mask_column, different, same = entries
    base = mask_column * mass.mask + different * (1 - mass.mask)
    loss = np.ones_like(base)
    for share, count, chance in zip(mass[:3], counts, target, strict=True):
        prediction = base + (same - different) * share  # every word of that topic
        loss = loss + words * count * prediction**2 - 2 * chance * prediction
    return loss


def _key_masses(data: DataModel) -> tuple[float, float, float]:
    """Return the share of keys of one topic inside the document, of one outside, and of [MASK]."""
    tau = data.topics_per_document
    if data.key_visibility == "unmasked":
        return 1 / tau, 0.0, 0.0
    outside = data.p_mask * data.p_random / data.topics
    mask = data.p_mask * (1 - data.p_keep - data.p_random)
    return data.survival / tau + outside, outside, mask


def attention_landscape(
    data: DataModel, alpha: Any, beta: Any, entries: tuple | None = None, mask_pair: Any = None
) -> Landscape:
    """Return the exact population squared loss of Assumption 2's attention, broadcast over alpha and beta.

    Documents are infinite, with tau disjoint uniform topics, and W^V = `entries` (W_i0, W_diff, W_same), by
    default those of Theorem 2.  A query weighs its own token by beta, other words of its topic by alpha and
    everything else by 1.  [MASK] is a token like others and a topic of its own: it weighs [MASK] keys by beta
    too, or by `mask_pair` if given (with 1 only alpha' matters: Remark 5).
    """
    entries = theorem2_entries(*data.sizes_and_masking) if entries is None else entries
    alpha, beta = np.broadcast_arrays(np.asarray(alpha, float), np.asarray(beta, float))
    topics, words, tau = data.topics, data.words_per_topic, data.topics_per_document
    inside, outside, mask = _key_masses(data)
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
    """Return (alpha'*, its loss), the best of Assumption 2's kind: the minimum over alpha and beta.

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
