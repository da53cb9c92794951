"""Stage 1: the optimal value matrix under uniform attention; exact for squared loss, fitted otherwise.

Letters: D documents, W = Tv words, V = W + 1 tokens ([MASK] = 0), G groups of words, B blocks of documents,
C coordinates of keys.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

from topicjax.theory.document_settings import Objective
from topicjax.theory.documents import Array, DataModel, Queries, same_pair, same_topic
from topicjax.theory.stage_models import examples_of, merged

# Multiplications per product.  OpenBLAS spreads larger products over several threads, which wait for each
# other while training uses the cores: up to a hundred times slower than the product alone.
ONE_THREAD = 2**18
ENTRY_TOLERANCE = 1e-7  # fitted matrices have losses within 3e-5 of the converged ones


def visible_key_moments(data: DataModel) -> tuple[float, float]:
    """Compute (P(K >= 1), E[1/K; K >= 1]) for K = N - |M| unmasked positions, given |M| >= 1."""
    from scipy.stats import binom  # slow to import

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
    """Compute (C, G) of the squared loss E|W x - y|^2 = 1 - 2 tr(W^T C) + tr(W G W^T), both V x V.

    x is the mean of the one-hot keys (0 without visible keys), y the mean of the one-hot targets over M,
    given |M| >= 1.  Exact for every topic_word, document length and key visibility.
    """
    mean_W, second_WxW = data.mean_words(), data.second_moment_words()
    mean_VxV = np.diag(np.concatenate([[0], mean_W]))  # documents never contain [MASK] as a word
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
        empty = (1 - data.p_mask) ** length  # P(|M| = 0): subtracted
        cross += target_VxV - empty * second_VxV
        cross += (1 - empty) * data.p_keep / length * (mean_VxV - second_VxV)
        gram += np.diag(shown_V) / length + (1 - 1 / length) * gram_VxV
        gram -= empty * (mean_VxV / length + (1 - 1 / length) * second_VxV)
        total += 1 - empty
    return cross / total, gram / total


def uniform_attention_optimum(data: DataModel, by_topic: bool = False) -> Array:
    """Compute the minimum-norm W^V that minimises the squared loss with uniform attention and no biases.

    C G^+ is exact for finite documents; for infinite ones it is Theorem 2 (keys `all`, tau < T).  With
    by_topic, it is the best W^V that treats the words of a topic alike (disjoint topics): without the
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
    """Compute the population squared loss of a value matrix, V x V, with uniform attention and no biases."""
    cross, gram = uniform_attention_moments(data)
    return float(1 - 2 * np.sum(value * cross) + np.sum((value @ gram) * value))


def ridge_path(data: DataModel, l2: float) -> Array:
    """Compute the minimiser of the squared loss + l2 |W|_F^2 with uniform attention: C (G + l2 I)^-1.

    For infinite documents this is W* G (G + l2 I)^-1 with the W* of Theorem 2.
    """
    cross, gram = uniform_attention_moments(data)
    return np.linalg.solve(gram + l2 * np.eye(len(gram)), cross.T).T


def has_diagonal(data: DataModel) -> bool:
    """Check whether kept words make a diagonal of W^V worth learning: finite documents, keys `all`."""
    return data.key_visibility == "all" and not data.infinite_documents and data.topic_word is None


def stage1_value(
    data: DataModel, objective: Objective, queries: Queries | None = None, by_topic: bool = False
) -> Array:
    """Find the optimal W^V, V x V, under uniform attention; by_topic: without a diagonal.

    Row 0 is 0.  The squared loss has an exact optimum; cross-entropy is convex and fitted to the documents of
    these queries.  For disjoint uniform topics the fit has the same-topic entry, the diagonal where it helps
    (has_diagonal), and the entry of partners if words are in pairs.  Different-topic entries, the [MASK]
    column and output biases shift all words alike and have no effect, as keys sum to 1, and the [MASK] logit
    is taken as -infinity.  For any other topic_word all entries are fitted: T = v = 10 has 10,100 of them,
    and with 6,000 documents the loss is 0.01 above the minimum, or 0.002 where topics are alike
    (over_shifts).
    """
    if objective == "squared":
        return uniform_attention_optimum(data, by_topic and has_diagonal(data))
    if queries is None:
        raise TypeError("the best value matrix of cross-entropy needs documents to be fitted to")
    documents = merged(examples_of(data, queries))
    total = documents.keys.sum(axis=1, keepdims=True)
    key_DxV = documents.keys / np.where(total > 0, total, 1.0)
    value = np.zeros((data.num_words + 1, data.num_words + 1))
    if data.topic_word is not None:
        value[1:] = _fit_every_entry(documents.words, key_DxV)
        return over_shifts(data, value)
    same_WxW = same_topic(data.topics, data.words_per_topic)
    if data.pair_strength > 0:
        own_WxW = [np.eye(data.num_words)] if has_diagonal(data) else []
        parts = [same_WxW, same_pair(data.topics, data.words_per_topic), *own_WxW]
        entries = _fit_coefficients(documents.words, [key_DxV[:, 1:] @ part for part in parts])
        value[1:, 1:] = sum(entry * part for entry, part in zip(entries, parts, strict=True))
        return value
    if by_topic or not has_diagonal(data):
        key_DxT, target_DxT = (
            array.reshape(len(array), data.topics, -1).sum(axis=2)
            for array in (key_DxV[:, 1:], documents.words)
        )
        value[1:, 1:] = _fit_coefficients(target_DxT, [key_DxT])[0] * same_WxW
        return value
    same, own = _fit_coefficients(documents.words, [key_DxV[:, 1:] @ same_WxW, key_DxV[:, 1:]])
    value[1:, 1:] = same * same_WxW + own * np.eye(data.num_words)
    return value


def over_shifts(data: DataModel, value: Array) -> Array:
    """Average a matrix over all cyclic shifts of the topics, if these leave the documents unchanged.

    The optimum is then invariant under shifts, so averaging reduces the errors of a fitted matrix.
    """
    words_TxW, size = data.words_by_topic(), data.words_per_topic
    if not np.allclose(np.roll(words_TxW, (1, size), (0, 1)), words_TxW, atol=1e-6):
        return value
    shifts = [size * shift for shift in range(data.topics)]
    mean = value.copy()
    mean[1:, 1:] = np.mean([np.roll(value[1:, 1:], (shift, shift), (0, 1)) for shift in shifts], axis=0)
    mean[1:, 0] = np.mean([np.roll(value[1:, 0], shift) for shift in shifts], axis=0)
    return mean


def _fit_coefficients(target_DxG: Array, features: list[Array]) -> Array:
    """Fit the coefficients that minimise the cross-entropy of softmax(sum of coefficient x feature, D x G).

    Equivalent words may form one group, if all groups have the same size.
    """
    size = len(target_DxG)
    gains = np.array([np.sum(target_DxG * feature) for feature in features]) / size

    def loss(parameters: Array) -> tuple[float, Array]:
        logit = np.add.reduce([p * feature for p, feature in zip(parameters, features, strict=True)])
        largest_D = logit.max(axis=1)
        share = np.exp(logit - largest_D[:, None])
        sum_D = share.sum(axis=1)
        value = np.mean(np.log(sum_D) + largest_D) - parameters @ gains
        weight_D = 1 / (sum_D * size)
        slopes = [np.einsum("dg,dg,d->", share, feature, weight_D) for feature in features]
        return float(value), np.array(slopes) - gains

    return _minimum(loss, len(features))


def _fit_every_entry(target_DxW: Array, key_DxV: Array) -> Array:
    """Fit the W x V matrix that minimises the cross-entropy of softmax(matrix @ keys).

    The search uses whitened coordinates of the keys: otherwise rare words would need many more steps.
    """
    variance_V, axes_VxV = np.linalg.eigh(key_DxV.T @ key_DxV / len(key_DxV))
    seen = variance_V > 1e-10 * variance_V[-1]
    whiten_VxC = axes_VxV[:, seen] / np.sqrt(variance_V[seen])
    shape = (target_DxW.shape[1], whiten_VxC.shape[1])
    key_BxDxC, target_BxDxW = (stacked(array, shape) for array in (key_DxV @ whiten_VxC, target_DxW))
    weight_BxD = target_BxDxW.sum(axis=2)

    def loss(parameters: Array) -> tuple[float, Array]:
        logit = key_BxDxC @ parameters.reshape(shape).T
        logit -= logit.max(axis=2, keepdims=True)
        score = np.vdot(target_BxDxW, logit)
        share = np.exp(logit, out=logit)
        total_BxD = share.sum(axis=2)
        value = np.vdot(weight_BxD, np.log(total_BxD)) - score
        share *= (weight_BxD / total_BxD)[:, :, None]
        share -= target_BxDxW
        slopes = (share.transpose(0, 2, 1) @ key_BxDxC).sum(axis=0)
        return float(value) / len(target_DxW), slopes.ravel() / len(target_DxW)

    return _minimum(loss, shape[0] * shape[1], ENTRY_TOLERANCE).reshape(shape) @ whiten_VxC.T


def stacked(array_DxA: Array, shape: tuple[int, int]) -> Array:
    """Split the documents into blocks, B x D x A, whose products with a matrix of this shape are small.

    The last block is padded with zeros.
    """
    block = max(1, ONE_THREAD // (shape[0] * shape[1]))
    filled = np.concatenate([array_DxA, np.zeros((-len(array_DxA) % block, array_DxA.shape[1]))])
    return filled.reshape(-1, block, array_DxA.shape[1])


def _minimum(loss: Callable[[Array], tuple[float, Array]], size: int, tolerance: float = 1e-12) -> Array:
    """Minimise a convex function that also returns its gradient, starting from zero.

    The search ends when a step lowers the loss by a smaller share than the tolerance.
    """
    options = {"maxiter": 200, "ftol": tolerance, "gtol": 1e-8}
    found: Any = minimize(loss, np.zeros(size), jac=True, method="L-BFGS-B", options=options)
    return found.x
