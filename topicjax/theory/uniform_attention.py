"""The exact optimum of the value matrix under uniform attention, for finite documents too (squared loss)."""

import numpy as np
from scipy.stats import binom

from topicjax.theory.documents import Array, DataModel, same_topic


def visible_key_moments(data: DataModel) -> tuple[float, float]:
    """Return (P(K >= 1), E[1/K; K >= 1]), K = N - |M| the number of unmasked positions, given |M| >= 1."""
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
    """Return (C, G) of the squared loss E|W x - y|^2 = 1 - 2 tr(W^T C) + tr(W G W^T), both V x V.

    x is the mean of the one-hot keys (0 without visible keys), y the mean of the one-hot targets over M,
    given |M| >= 1.  Exact for every topic_word, document length and key visibility.
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
    """Return the W^V of least norm that minimises the squared loss with uniform attention and no biases.

    C G^+ is exact for finite documents; for infinite ones it is Theorem 2 (keys `all`, tau < T).  With
    by_topic, return the best W^V that treats the words of a topic alike (disjoint topics): one without the
    diagonal that finite documents with keys `all` otherwise give it.
    """
    cross, gram = uniform_attention_moments(data)
    if by_topic:
        average = np.pad(same_topic(data.topics, data.words_per_topic), (1, 0))
        average = average / data.words_per_topic
        average[0, 0] = 1.0
        cross, gram = cross @ average, average @ gram @ average
    return cross @ np.linalg.pinv(gram, rcond=1e-11, hermitian=True)


def uniform_attention_loss(data: DataModel, value: Array) -> float:
    """Return the population squared loss of a value matrix, V x V, with uniform attention and no biases."""
    cross, gram = uniform_attention_moments(data)
    return float(1 - 2 * np.sum(value * cross) + np.sum((value @ gram) * value))


def ridge_path(data: DataModel, l2: float) -> Array:
    """Return the minimiser of the squared loss + l2 |W|_F^2 with uniform attention: C (G + l2 I)^-1.

    For infinite documents this is W* G (G + l2 I)^-1 with the W* of Theorem 2.
    """
    cross, gram = uniform_attention_moments(data)
    return np.linalg.solve(gram + l2 * np.eye(len(gram)), cross.T).T
