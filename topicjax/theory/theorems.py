"""Closed-form results of the paper: Lemma 1, Theorems 1-3, and the growth rate at the onset of stage 2."""

from typing import Any

import numpy as np

from topicjax.theory.documents import Array, DataModel, same_topic


def _constants(
    topics: Any, words_per_topic: Any, p_mask: Any, p_keep: Any, p_random: Any
) -> tuple[Any, Any, Any]:
    """Compute (c1, c2, c3) of Theorem 2."""
    c3 = 1 / (1 - (1 - p_keep) * p_mask)
    c2 = 1 / ((1 - p_keep - p_random) * p_mask) - 1
    c1 = p_random * c3 / ((1 - p_keep - p_random) * topics * words_per_topic)
    return c1, c2, c3


def theorem1_bias(topics: Any, words_per_topic: Any, p_mask: Any, p_keep: Any, p_random: Any) -> Any:
    """Compute b^pred of every word in Theorem 1 ([MASK] has bias 0); arithmetic only, so it can be traced."""
    return -p_mask * p_random / ((1 - (1 - p_keep) * p_mask) * topics * words_per_topic)


def theorem2_entries(
    topics: Any, words_per_topic: Any, p_mask: Any, p_keep: Any, p_random: Any
) -> tuple[Any, Any, Any]:
    """Compute (W_i0, W_diff, W_same) of Theorem 2; arithmetic only, so it can be traced.

    Theorem 2 needs Assumption 1 with tau < T, disjoint uniform topics and keys at every position.
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
    """Make W^V of Theorem 2, V x V, with zeros in row 0."""
    entries = theorem2_entries(topics, words_per_topic, p_mask, p_keep, p_random)
    mask_column, different, same = entries
    value = np.zeros((topics * words_per_topic + 1,) * 2)
    value[1:, 0] = mask_column
    value[1:, 1:] = different + (same - different) * same_topic(topics, words_per_topic)
    return value


def lemma1_entries(
    topics: Any, words_per_topic: Any, p_mask: Any, p_keep: Any, p_random: Any, shift: Any = 0, own: Any = 0
) -> tuple[Any, Any, Any, Any]:
    """Compute (W_i0, W_diff, W_same, W_ii) of a member of Lemma 1's family; arithmetic only, can be traced.

    All u_i are 1 - shift times Theorem 2's, u_0 is 0, and the share `own` of the sum over a topic's words is
    moved to the word itself.  (0, 0) is Theorem 2, (1, 1) the diagonal matrix of the paper's App. D.4.
    """
    sizes_and_masking = topics, words_per_topic, p_mask, p_keep, p_random
    c1, c2, c3 = _constants(*sizes_and_masking)
    constant = (1 - shift) * theorem2_entries(*sizes_and_masking)[1]
    same = constant + (1 - own) * c3 / words_per_topic
    return -c1 - c2 * constant, constant, same, same + own * c3


def lemma1_member(data: DataModel, constants: Array, free: Array | None = None) -> Array:
    """Make a minimiser W of Lemma 1, V x V, from its constants u_0..u_Tv and a free V x V direction.

    Only the part of `free` that leaves the sum over each topic's words unchanged has an effect.
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
    """Make a matrix E with the properties of Theorem 1 (b^pred = theorem1_bias), like lemma1_member.

    It is W^E^T W^E for some W^E only if it is also symmetric positive semidefinite.
    """
    member = lemma1_member(data, constants, free)
    member[1:, 0] += _constants(*data.sizes_and_masking)[0]
    return member


def lemma1_residual(data: DataModel, matrix: Array) -> float:
    """Find the largest violation of Lemma 1's equations; 0 if and only if `matrix` is in its family.

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
    """Find the largest violation of Theorem 1's equations by E; 0 if and only if E satisfies them."""
    shifted = np.array(matrix, dtype=float)
    shifted[1:, 0] -= _constants(*data.sizes_and_masking)[0]
    return lemma1_residual(data, shifted)


def relative_residual(data: DataModel, matrix: Array, with_bias: bool) -> float:
    """Compute the residual of Theorem 1 (with_bias) or Lemma 1, relative to that of the zero matrix.

    0: all equations of the family hold; 1: some equation is missed by as much as the zero matrix misses it.
    """
    residual = theorem1_residual if with_bias else lemma1_residual
    return residual(data, matrix) / residual(data, np.zeros_like(matrix))


def theorem3_interval(data: DataModel) -> tuple[float, float]:
    """Compute Theorem 3's bounds on alpha' = ((v - 1) alpha + beta) / v, under Assumptions 1-4."""
    p_mask, p_keep, p_random = data.masking
    lost = (1 - p_keep) * p_mask
    lower = (1 - lost + p_mask * p_random) * (1 + lost) / (2 * (1 - lost))
    upper = 100 * ((1 - lost) / (p_mask * p_random) + 1)
    return lower * (data.topics_per_document - 1), upper * data.topics


def onset_rate(
    topics: Any,
    words_per_topic: Any,
    topics_per_document: Any,
    p_mask: Any,
    p_keep: Any,
    p_random: Any,
    attention_size: Any,
) -> Any:
    """Compute gamma, the rate at which topic attention leaves the saddle W^K = W^Q = 0, per eta t.

    gamma = -tr(Pi dL/d(W_K^T W_Q)) / (T - 1), Pi the projector on topic differences, for the squared loss at
    Theorem 2's W^V, one-hot embeddings, infinite tau-topic documents and keys at every position; scores are
    W_K^T W_Q / sqrt(attention_size).  Arithmetic only, so it can be traced.
    """
    tau = topics_per_document
    survival = 1 - (1 - p_keep) * p_mask
    topic_mass = survival / tau + p_mask * p_random / topics
    numerator = 2 * p_keep / survival * topic_mass * (1 - 1 / tau)
    return numerator / (words_per_topic**2 * (topics - 1) * attention_size**0.5)


def theorem3_limit(topics_per_document: Any, p_mask: Any, p_keep: Any) -> Any:
    """Compute the limit of alpha'*, Theorem 3's optimum, as tau and T grow with tau = o(T)."""
    return topics_per_document / ((1 - p_keep) * p_mask)


def many_topics_weight(topics: Any, topics_per_document: Any, p_mask: Any, p_keep: Any, p_random: Any) -> Any:
    """Compute the limit of alpha'* as tau and T grow at a fixed ratio; theorem3_limit for a small one.

    With many topics per document only the attention x on the query's own topic matters, and predicting the
    own topic by c3 x is best at c3 x = kept, the chance that a word of the document is there because it was
    kept, not drawn at random: 1 / (1 + p_r tau / (p_c T)).  A topic has the share m of the keys, so
    x = alpha' m / (alpha' m + 1).  Random words of topics outside the document are left out; they change
    alpha' by less than 1 %.
    """
    survival = 1 - (1 - p_keep) * p_mask
    share = survival / topics_per_document + p_mask * p_random / topics
    own = survival / (1 + p_random * topics_per_document / (p_keep * topics))
    return own / (1 - own) / share
