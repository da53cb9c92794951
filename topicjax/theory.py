"""Closed forms: what the paper proves, and its exact finite-document versions (NumPy, float64).

Notation of the paper: T topics of v words, words 1..Tv, [MASK] = 0, V = Tv + 1 tokens.
Arrays over tokens have [MASK] first. p_m = p_mask, p_c = p_keep, p_r = p_random and
a = 1 - (1 - p_c) p_m, the probability that a position still shows its own word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import binom

Array = np.ndarray


@dataclass(frozen=True)
class DataModel:
    """Plain numbers that describe how documents are written, masked and seen by the keys."""

    topics: int = 10
    words_per_topic: int = 10
    documents: Literal["lda", "tau"] = "lda"
    infinite_documents: bool = False
    alpha: float = 0.1
    topics_per_document: int = 2
    length_min: int = 100
    length_max: int = 150
    p_mask: float = 0.15
    p_keep: float = 0.1
    p_random: float = 0.1
    key_visibility: Literal["all", "unmasked"] = "all"
    topic_word: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Raise one ValueError that names the bad value and what is allowed."""
        if self.documents not in ("lda", "tau"):
            raise ValueError(f"unknown documents {self.documents!r}; allowed: 'lda', 'tau'")
        if self.key_visibility not in ("all", "unmasked"):
            raise ValueError(f"unknown key_visibility {self.key_visibility!r}; allowed: 'all', 'unmasked'")
        if self.documents == "tau" and not 1 <= self.topics_per_document <= self.topics:
            raise ValueError(f"topics_per_document is {self.topics_per_document}; allowed: 1..{self.topics}")
        if min(self.masking) < 0 or self.p_mask in (0, 1) or self.p_keep + self.p_random > 1:
            raise ValueError(
                f"p_mask, p_keep, p_random = {self.masking}; allowed: 0 < p_mask < 1, "
                "p_keep and p_random at least 0 with sum at most 1"
            )
        if not 1 <= self.length_min <= self.length_max:
            raise ValueError(f"lengths {self.length_min}..{self.length_max}; allowed: 1 <= min <= max")
        shape = (self.topics, self.num_words)
        if self.topic_word is not None and self.topic_word.shape != shape:
            raise ValueError(f"topic_word has shape {self.topic_word.shape}; allowed: {shape}")

    @classmethod
    def of(cls, settings: Mapping[Any, Any], topic_word: np.ndarray | None = None) -> DataModel:
        """The documents of a trial with these settings; `topic_word` unless words are uniform in topics."""
        names = [field.name for field in fields(cls) if field.name != "topic_word"]
        return cls(**{name: settings[name] for name in names}, topic_word=topic_word)

    @property
    def num_words(self) -> int:
        """Tv, the number of words without [MASK]."""
        return self.topics * self.words_per_topic

    @property
    def masking(self) -> tuple[float, float, float]:
        """(p_m, p_c, p_r)."""
        return self.p_mask, self.p_keep, self.p_random

    @property
    def sizes_and_masking(self) -> tuple[int, int, float, float, float]:
        """(T, v, p_m, p_c, p_r): the arguments of Theorems 1 and 2."""
        return self.topics, self.words_per_topic, *self.masking

    @property
    def survival(self) -> float:
        """The paper's 1 - (1 - p_c) p_m: a position shows its own word, masked or not."""
        return 1 - (1 - self.p_keep) * self.p_mask

    def lengths(self) -> Array:
        """Every document length; all are equally likely."""
        return np.arange(self.length_min, self.length_max + 1)

    def mean_inverse_length(self) -> float:
        """E[1/N] over document lengths; 0 for infinite documents."""
        return 0.0 if self.infinite_documents else float(np.mean(1 / self.lengths()))

    def words_by_topic(self) -> Array:
        """T x Tv probabilities of every word in every topic (disjoint uniform topics if unset)."""
        if self.topic_word is not None:
            return np.asarray(self.topic_word, dtype=float)
        return np.kron(np.eye(self.topics), np.full(self.words_per_topic, 1 / self.words_per_topic))

    def topic_second_moment(self) -> Array:
        """E[theta theta^T], T x T, of the topic proportions theta of a document; E[theta] = 1/T."""
        total = self.alpha * self.topics
        tau = self.topics_per_document
        if self.documents == "lda":
            same, different = (self.alpha + 1) / (total + 1), self.alpha / (total + 1)
        else:
            same, different = 1 / tau, (tau - 1) / (tau * max(self.topics - 1, 1))
        moment = np.full((self.topics, self.topics), different / self.topics)
        np.fill_diagonal(moment, same / self.topics)
        return moment

    def mean_words(self) -> Array:
        """E[P], P the word distribution of a document (Tv numbers)."""
        return self.words_by_topic().mean(axis=0)

    def second_moment_words(self) -> Array:
        """E[P P^T], Tv x Tv."""
        words_TxW = self.words_by_topic()
        return words_TxW.T @ self.topic_second_moment() @ words_TxW

    def shown_distribution(self, words: Array) -> Array:
        """q(P), (..., V): the token a position shows, given the document's words P (..., Tv)."""
        mask_share = self.p_mask * (1 - self.p_keep - self.p_random)
        noise = self.p_mask * self.p_random / self.num_words
        mask = np.full((*words.shape[:-1], 1), mask_share)
        return np.concatenate([mask, self.survival * words + noise], axis=-1)


def same_topic(topics: int, words_per_topic: int) -> Array:
    """Tv x Tv: 1 where two words share a topic, else 0."""
    return np.kron(np.eye(topics), np.ones((words_per_topic, words_per_topic)))


def _constants(
    topics: Any, words_per_topic: Any, p_mask: Any, p_keep: Any, p_random: Any
) -> tuple[Any, Any, Any]:
    """(c1, c2, c3) of Theorem 2."""
    c3 = 1 / (1 - (1 - p_keep) * p_mask)
    c2 = 1 / ((1 - p_keep - p_random) * p_mask) - 1
    c1 = p_random * c3 / ((1 - p_keep - p_random) * topics * words_per_topic)
    return c1, c2, c3


def theorem1_bias(topics: Any, words_per_topic: Any, p_mask: Any, p_keep: Any, p_random: Any) -> Any:
    """b^pred of every word in Theorem 1 ([MASK] has bias 0); arithmetic only, so it traces."""
    return -p_mask * p_random / ((1 - (1 - p_keep) * p_mask) * topics * words_per_topic)


def theorem2_entries(
    topics: Any, words_per_topic: Any, p_mask: Any, p_keep: Any, p_random: Any
) -> tuple[Any, Any, Any]:
    """(W_i0, W_diff, W_same) of Theorem 2; arithmetic only, so it traces.

    Assumes Assumption 1 with tau < T, disjoint uniform topics and keys at every position.
    """
    c1, c2, c3 = _constants(topics, words_per_topic, p_mask, p_keep, p_random)
    num_words = topics * words_per_topic
    different = -(c1 * c2 + c3) / (c2**2 + num_words)
    return (
        (c2 * c3 - c1 * num_words) / (c2**2 + num_words),
        different,
        different + c3 / words_per_topic,
    )


def theorem2_matrix(
    topics: int, words_per_topic: int, p_mask: float, p_keep: float, p_random: float
) -> Array:
    """W^V of Theorem 2, V x V, row 0 zero."""
    entries = theorem2_entries(topics, words_per_topic, p_mask, p_keep, p_random)
    mask_column, different, same = entries
    value = np.zeros((topics * words_per_topic + 1,) * 2)
    value[1:, 0] = mask_column
    value[1:, 1:] = different + (same - different) * same_topic(topics, words_per_topic)
    return value


def lemma1_member(data: DataModel, constants: Array, free: Array | None = None) -> Array:
    """A minimiser W of Lemma 1, V x V, from its constants u_0..u_Tv and a free V x V direction.

    Of `free` only the part that leaves the sum over each topic's words unchanged acts.
    """
    topics, words = data.topics, data.words_per_topic
    c1, c2, c3 = _constants(*data.sizes_and_masking)
    member = np.repeat(constants[:, None], data.num_words + 1, axis=1).astype(float)
    member[1:, 1:] += c3 / words * same_topic(topics, words)
    member[:, 0] = -c2 * constants
    member[1:, 0] -= c1
    if free is not None:
        member[:, 1:] += free[:, 1:] - free[:, 1:] @ same_topic(topics, words) / words
    return member


def theorem1_member(data: DataModel, constants: Array, free: Array | None = None) -> Array:
    """A matrix E with the properties of Theorem 1 (b^pred = theorem1_bias), as lemma1_member.

    It is W^E^T W^E for some W^E only if it is also symmetric positive semidefinite.
    """
    member = lemma1_member(data, constants, free)
    member[1:, 0] += _constants(*data.sizes_and_masking)[0]
    return member


def lemma1_residual(data: DataModel, matrix: Array) -> float:
    """Largest violation of Lemma 1's equations; 0 if and only if `matrix` is in its family.

    The constants u_i are read off as the mean entry over other topics (row 0: over all words).
    """
    topics, words = data.topics, data.words_per_topic
    c1, c2, c3 = _constants(*data.sizes_and_masking)
    block_VxT = matrix[:, 1:].reshape(-1, topics, words).mean(axis=2)
    block_VxT[1:] -= c3 / words * np.kron(np.eye(topics), np.ones((words, 1)))
    constants = block_VxT.mean(axis=1)
    column = matrix[:, 0] + c2 * constants
    column[1:] += c1
    spread = words * (block_VxT - constants[:, None])
    return float(max(np.abs(column).max(), np.abs(spread).max()))


def theorem1_residual(data: DataModel, matrix: Array) -> float:
    """Largest violation of Theorem 1's equations by E; 0 if and only if E satisfies them."""
    shifted = np.array(matrix, dtype=float)
    shifted[1:, 0] -= _constants(*data.sizes_and_masking)[0]
    return lemma1_residual(data, shifted)


def visible_key_moments(data: DataModel) -> tuple[float, float]:
    """(P(K >= 1), E[1/K; K >= 1]), K = N - |M| the unmasked positions, given |M| >= 1."""
    if data.infinite_documents:
        return 1.0, 0.0
    visible, inverse, total = 0.0, 0.0, 0.0
    for length in data.lengths():
        keys = np.arange(1, length)
        chance = binom.pmf(keys, length, 1 - data.p_mask)
        visible += chance.sum()
        inverse += (chance / keys).sum()
        total += 1 - (1 - data.p_mask) ** length
    return visible / total, inverse / total


def uniform_attention_moments(data: DataModel) -> tuple[Array, Array]:
    """(C, G) of the squared loss E|W x - y|^2 = 1 - 2 tr(W^T C) + tr(W G W^T), both V x V.

    x = mean of the one-hot keys, y = mean of the one-hot targets over M, given |M| >= 1. Exact for
    every topic_word, document length and both visibilities; without visible keys x = 0.
    """
    mean_W, second_WxW = data.mean_words(), data.second_moment_words()
    mean_VxV = np.diag(np.concatenate([[0], mean_W]))  # [MASK] is never written
    second_VxV = np.pad(second_WxW, (1, 0))
    if data.key_visibility == "unmasked":
        visible, inverse = visible_key_moments(data)
        return visible * second_VxV, inverse * mean_VxV + (visible - inverse) * second_VxV
    shown_V = data.shown_distribution(mean_W)
    noise_V = data.shown_distribution(np.zeros_like(mean_W))  # q = a P + noise
    target_VxV = data.survival * second_VxV + np.outer(mean_VxV.diagonal(), noise_V)  # E[P q^T]
    gram_VxV = data.survival * target_VxV + np.outer(noise_V, shown_V)  # E[q q^T]
    lengths = np.array([np.inf]) if data.infinite_documents else data.lengths().astype(float)
    cross, gram, total = np.zeros_like(gram_VxV), np.zeros_like(gram_VxV), 0.0
    for length in lengths:
        empty = (1 - data.p_mask) ** length  # P(|M| = 0): its share is taken out
        cross += target_VxV - empty * second_VxV
        cross += (1 - empty) * data.p_keep / length * (mean_VxV - second_VxV)
        gram += np.diag(shown_V) / length + (1 - 1 / length) * gram_VxV
        gram -= empty * (mean_VxV / length + (1 - 1 / length) * second_VxV)
        total += 1 - empty
    return cross / total, gram / total


def uniform_attention_optimum(data: DataModel, by_topic: bool = False) -> Array:
    """W^V of least norm that minimises the squared loss with uniform attention and no biases.

    C G^+ is exact for finite documents. For infinite ones it is Theorem 2 (keys `all`, tau < T).
    by_topic: the best W^V that treats the words of a topic alike (disjoint topics), so that
    finite documents with keys `all` have no diagonal.
    """
    cross, gram = uniform_attention_moments(data)
    if by_topic:
        average = np.pad(same_topic(data.topics, data.words_per_topic), (1, 0))
        average = average / data.words_per_topic
        average[0, 0] = 1.0
        cross, gram = cross @ average, average @ gram @ average
    return cross @ np.linalg.pinv(gram, rcond=1e-11, hermitian=True)


def uniform_attention_loss(data: DataModel, value: Array) -> float:
    """Population squared loss of a value matrix, V x V, with uniform attention and no biases."""
    cross, gram = uniform_attention_moments(data)
    return float(1 - 2 * np.sum(value * cross) + np.sum((value @ gram) * value))


def ridge_path(data: DataModel, l2: float) -> Array:
    """Minimiser of the squared loss + l2 |W|_F^2 with uniform attention: C (G + l2 I)^-1.

    For infinite documents this is W* G (G + l2 I)^-1, W* that of Theorem 2.
    """
    cross, gram = uniform_attention_moments(data)
    return np.linalg.solve(gram + l2 * np.eye(len(gram)), cross.T).T


def theorem3_interval(data: DataModel) -> tuple[float, float]:
    """Theorem 3's bounds on alpha' = ((v - 1) alpha + beta) / v, under Assumptions 1-4."""
    p_mask, p_keep, p_random = data.masking
    lost = (1 - p_keep) * p_mask
    lower = (1 - lost + p_mask * p_random) * (1 + lost) / (2 * (1 - lost))
    upper = 100 * ((1 - lost) / (p_mask * p_random) + 1)
    return lower * (data.topics_per_document - 1), upper * data.topics


class Landscape(NamedTuple):
    """Squared loss by kind of query, and `total`, their mean with the kinds' probabilities."""

    total: Array
    mask: Array
    kept: Array
    random_inside: Array
    random_outside: Array


class _TopicMass(NamedTuple):
    """Attention on the query's own topic, each other topic in the document, each one outside."""

    own: Array
    inside: Array
    outside: Array
    mask: Array


def _attend(own: Array, inside: Any, outside: Any, mask: Any, counts: Array) -> _TopicMass:
    """Normalise unnormalised masses; `counts` = topics of the kinds own, inside, outside."""
    total = counts[0] * own + counts[1] * inside + counts[2] * outside + mask
    return _TopicMass(own / total, inside / total, outside / total, mask / total)


def _query_loss(mass: _TopicMass, counts: Array, target: Array, entries: tuple, words: int) -> Array:
    """E|f - y|^2 of one query kind; `target` = probability that y is own, inside, outside."""
    mask_column, different, same = entries
    base = mask_column * mass.mask + different * (1 - mass.mask)
    loss = np.ones_like(base)
    for share, count, chance in zip(mass[:3], counts, target, strict=True):
        prediction = base + (same - different) * share  # every word of that topic
        loss = loss + words * count * prediction**2 - 2 * chance * prediction
    return loss


def _key_masses(data: DataModel) -> tuple[float, float, float]:
    """Share of keys of one topic inside, of one outside the document, and of [MASK]."""
    tau = data.topics_per_document
    if data.key_visibility == "unmasked":
        return 1 / tau, 0.0, 0.0
    outside = data.p_mask * data.p_random / data.topics
    mask = data.p_mask * (1 - data.p_keep - data.p_random)
    return data.survival / tau + outside, outside, mask


def attention_landscape(
    data: DataModel, alpha: Any, beta: Any, entries: tuple | None = None, mask_pair: Any = None
) -> Landscape:
    """Exact population squared loss of Assumption 2's attention, broadcast over alpha and beta.

    Infinite tau-topic documents, disjoint uniform topics, W^V = `entries` (W_i0, W_diff, W_same),
    by default Theorem 2. A query weighs its own token by beta, other words of its topic by alpha,
    everything else by 1. [MASK] is a token like others, a topic of its own: it weighs [MASK] keys
    by beta too, or by `mask_pair` if given (with 1 only alpha' matters: Remark 5).
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
    """(alpha'*, its loss): the minimum of attention_landscape over alpha and beta.

    The optimum has beta = 1, since uniform attention is best for [MASK] queries if W^V is the
    stage-1 optimum, and alpha = (v alpha' - 1) / (v - 1); mask_pair = 1 is that same point.
    """

    def loss(log_average: Any) -> Array:
        weight = np.exp(log_average)
        return attention_landscape(data, weight, weight, entries, mask_pair=1.0).total

    grid = np.linspace(np.log(1e-2), np.log(1e5 * data.topics), 400)
    best = int(np.clip(np.argmin(loss(grid)), 1, len(grid) - 2))
    bracket = (grid[best - 1], grid[best + 1])
    found: Any = minimize_scalar(loss, bounds=bracket, method="bounded", options={"xatol": 1e-10})
    return float(np.exp(found.x)), float(found.fun)


def limit_optimal_average(data: DataModel) -> float:
    """tau / ((1 - p_c) p_m): alpha'* for T -> infinity, tau -> infinity, tau = o(T)."""
    return data.topics_per_document / ((1 - data.p_keep) * data.p_mask)


def onset_rate(
    topics: Any,
    words_per_topic: Any,
    topics_per_document: Any,
    p_mask: Any,
    p_keep: Any,
    p_random: Any,
    attention_size: Any,
) -> Any:
    """gamma: the rate at which topic attention leaves the saddle W^K = W^Q = 0, per eta t.

    gamma = -tr(Pi dL/d(W_K^T W_Q)) / (T - 1), Pi the projector on topic differences, for the
    squared loss at Theorem 2's W^V, one-hot embeddings, infinite tau-topic documents and keys
    at every position; scores are W_K^T W_Q / sqrt(attention_size). Arithmetic only, so it traces.
    """
    tau = topics_per_document
    survival = 1 - (1 - p_keep) * p_mask
    topic_mass = survival / tau + p_mask * p_random / topics
    numerator = 2 * p_keep / survival * topic_mass * (1 - 1 / tau)
    return numerator / (words_per_topic**2 * (topics - 1) * attention_size**0.5)


def onset_time(rate: Any, init_scale: Any, c0: float = 0.0) -> Any:
    """eta t at which gamma eta t = ln(1 / init_scale) + c0: the end of the saddle under SGD."""
    return (c0 - np.log(init_scale)) / rate
