"""The best value matrix under uniform attention: exact for the squared loss, fitted for cross-entropy.

Letters: D documents, R queries, W = Tv words, V = W + 1 tokens ([MASK] = 0).
"""

from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from topicjax.experiments.one_layer.settings import Objective
from topicjax.theory.documents import Array, DataModel, same_topic
from topicjax.theory.queries import Queries, kept_chance, sample_queries
from topicjax.theory.uniform_attention import uniform_attention_optimum


def has_diagonal(data: DataModel) -> bool:
    """Return whether kept words make a diagonal of W^V worth learning: finite documents, keys `all`."""
    return data.key_visibility == "all" and not data.infinite_documents and data.topic_word is None


def stage1_value(
    data: DataModel, objective: Objective, num_documents: int, seed: int, by_topic: bool = False
) -> Array:
    """Return the W^V, V x V, that is best with uniform attention; by_topic: without a diagonal.

    Row 0 is 0.  The squared loss has an exact optimum; cross-entropy is convex and fitted to sampled
    documents.  For disjoint uniform topics the fit has the same-topic entry, and the diagonal where it helps
    (has_diagonal): different-topic entries, the [MASK] column and output biases shift all words alike and
    cannot matter, as keys sum to 1, and the [MASK] logit is taken as -infinity.  For any other topic_word all
    entries are fitted.
    """
    if objective == "squared":
        return uniform_attention_optimum(data, by_topic and has_diagonal(data))
    queries = sample_queries(data, num_documents, seed)
    words = data.num_words
    blocks = [same_topic(data.topics, data.words_per_topic)]
    if has_diagonal(data) and not by_topic:
        blocks.append(np.eye(words))
    blocks = [np.pad(block, ((0, 0), (1, 0))) for block in blocks]
    value = np.zeros((words + 1, words + 1))
    value[1:] = _fit_cross_entropy(
        _target_mean(data, queries),
        _keys_per_document(queries),
        blocks if data.topic_word is None else [],
    )
    return value


def _keys_per_document(queries: Queries) -> Array:
    """Return the mean one-hot key of each document, D x V; zero without visible keys."""
    total = queries.keys.sum(axis=1, keepdims=True)
    return queries.keys / np.maximum(total, 1e-300)


def _target_mean(data: DataModel, queries: Queries) -> Array:
    """Return the expected mean one-hot target over the masked positions of each document, D x W."""
    words_RxW = queries.words[queries.document]
    share_R = queries.weight * kept_chance(data, words_RxW, queries.token)
    shape = queries.words.shape
    flat = queries.document * shape[1] + np.maximum(queries.token - 1, 0)
    own = np.bincount(flat, share_R, minlength=shape[0] * shape[1]).reshape(shape)
    return own + (1 - own.sum(axis=1, keepdims=True)) * queries.words


def _fit_cross_entropy(target_DxW: Array, key_DxV: Array, blocks: list[Array]) -> Array:
    """Return the W x V matrix of least cross-entropy of softmax(matrix @ keys).

    With `blocks` (W x V matrices) only their coefficients are fitted, without them every entry is.
    """
    features = [key_DxV @ block.T for block in blocks]
    shape = (target_DxW.shape[1], key_DxV.shape[1])

    def loss(parameters: Array) -> tuple[float, Array]:
        if blocks:
            logit = sum(p * feature for p, feature in zip(parameters, features, strict=True))
        else:
            logit = key_DxV @ parameters.reshape(shape).T
        log_prob = log_softmax(logit, axis=1)
        error = (np.exp(log_prob) - target_DxW) / len(target_DxW)
        slope = [np.sum(error * feature) for feature in features] if blocks else error.T @ key_DxV
        return -float(np.sum(target_DxW * log_prob)) / len(target_DxW), np.ravel(slope)

    start = np.zeros(len(blocks) or shape[0] * shape[1])
    options = {"maxiter": 200, "ftol": 1e-12, "gtol": 1e-8}
    found: Any = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    if not blocks:
        return found.x.reshape(shape)
    return np.sum([p * block for p, block in zip(found.x, blocks, strict=True)], axis=0)
