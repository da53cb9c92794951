"""Limit lines of a data setting: the losses that uniform, stage 1, stage 2 and Bayes reach.

Letters: D documents, R queries, T topics, W = Tv words, V = W + 1 tokens ([MASK] = 0), K terms.
Every line is the mean over documents of the mean over masked positions, eq. (1), by Monte Carlo.
Given a document's words P and what its masked positions show, the expected loss over the hidden
words replaces the loss of drawn ones, and the known means of |P|^2 and of the entropy of P serve
as control variates: both leave the mean unchanged and shrink the standard error.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Literal

import numpy as np
from scipy.optimize import minimize
from scipy.special import digamma, entr, log_softmax

from topicjax.posterior import GIBBS_DOCUMENTS, bayes_prediction
from topicjax.queries import Queries, first_documents, is_enumerated, kept_chance, sample_queries
from topicjax.theory import (
    Array,
    DataModel,
    optimal_attention,
    same_topic,
    uniform_attention_loss,
    uniform_attention_optimum,
)

Objective = Literal["cross_entropy", "squared"]
Line = tuple[float, float]  # (value, standard error)
FIT_QUERIES = 4_000  # for the two parameters of attention


def document_losses(data: DataModel, queries: Queries, prediction_RxW: Array, objective: Objective) -> Array:
    """Expected mean loss over the masked positions of each document (D numbers).

    `prediction_RxW` holds log probabilities (cross-entropy) or the prediction itself (squared).
    """
    words_RxW = queries.words[queries.document]
    kept_R = kept_chance(data, words_RxW, queries.token)
    own_R = prediction_RxW[np.arange(len(kept_R)), np.maximum(queries.token - 1, 0)]
    other_R = np.einsum("rw,rw->r", words_RxW, prediction_RxW)
    score_R = np.where(kept_R > 0, kept_R * own_R, 0.0) + (1 - kept_R) * other_R
    if objective == "cross_entropy":
        loss_R = -score_R
    else:
        loss_R = 1 - 2 * score_R + np.einsum("rw,rw->r", prediction_RxW, prediction_RxW)
    size = len(queries.words)
    return np.bincount(queries.document, queries.weight * loss_R, minlength=size)


def _controlled_mean(data: DataModel, queries: Queries, values_D: Array, *known: tuple) -> Line:
    """Mean and standard error, with control variates; `known` = pairs (values, exact mean)."""
    if is_enumerated(data):
        return float(values_D.mean()), 0.0
    word_DxW, size = queries.words, len(queries.words)
    word_share = queries.weight * (queries.token > 0)
    kept_share = queries.weight * kept_chance(data, word_DxW[queries.document], queries.token)
    controls = [
        (np.sum(word_DxW**2, axis=1), np.trace(data.second_moment_words())),
        (np.bincount(queries.document, word_share, size), data.p_keep + data.p_random),
        (np.bincount(queries.document, kept_share, size), data.p_keep),
        *known,
    ]
    if data.documents == "lda" and data.topic_word is None:
        total = data.alpha * data.topics
        mean = np.log(data.words_per_topic) + digamma(total + 1) - digamma(data.alpha + 1)
        controls.append((entr(word_DxW).sum(axis=1), mean))
    shift_DxC = np.stack([values - mean for values, mean in controls], axis=1)
    design = np.concatenate([np.ones((len(values_D), 1)), shift_DxC], axis=1)
    coefficient = np.linalg.lstsq(design, values_D, rcond=1e-9)[0]
    residual = values_D - design @ coefficient
    error = residual.std(ddof=design.shape[1]) / np.sqrt(len(values_D))
    return float(coefficient[0]), float(error)


def uniform_line(data: DataModel, objective: Objective) -> Line:
    """Loss of the uniform prediction over words, exact: ln(Tv), or 1 - 1/(Tv) for squared loss.

    It puts nothing on [MASK]. (A model at zero puts 1/V on each token: ln V; squared: 1.)
    """
    words = data.num_words
    return (float(np.log(words)) if objective == "cross_entropy" else 1 - 1 / words), 0.0


def _keys_per_document(queries: Queries) -> Array:
    """Mean one-hot key of each document, D x V; zero without visible keys."""
    total = queries.keys.sum(axis=1, keepdims=True)
    return queries.keys / np.maximum(total, 1e-300)


def _target_mean(data: DataModel, queries: Queries) -> Array:
    """Expected mean one-hot target over the masked positions of each document, D x W."""
    words_RxW = queries.words[queries.document]
    share_R = queries.weight * kept_chance(data, words_RxW, queries.token)
    shape = queries.words.shape
    flat = queries.document * shape[1] + np.maximum(queries.token - 1, 0)
    own = np.bincount(flat, share_R, minlength=shape[0] * shape[1]).reshape(shape)
    return own + (1 - own.sum(axis=1, keepdims=True)) * queries.words


def _fit_cross_entropy(target_DxW: Array, key_DxV: Array, blocks: list[Array]) -> Array:
    """W x V matrix least in cross-entropy of softmax(W keys), on `blocks` or, if none, free.

    With blocks (W x V matrices) only their coefficients are fitted.
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


def has_diagonal(data: DataModel) -> bool:
    """True if kept words make a diagonal of W^V worth learning: finite documents, keys `all`."""
    return data.key_visibility == "all" and not data.infinite_documents and data.topic_word is None


def stage1_value(
    data: DataModel, objective: Objective, num_documents: int, seed: int, by_topic: bool = False
) -> Array:
    """W^V, V x V, that is best with uniform attention; row 0 is 0. by_topic: without a diagonal.

    Squared: exact. Cross-entropy: convex, fitted to sampled documents. Disjoint uniform topics:
    the same-topic entry, and the diagonal where it helps (has_diagonal). Different-topic entries,
    the [MASK] column and output biases shift all words alike and cannot matter, as keys sum to 1;
    the [MASK] logit is taken as -infinity. Any topic_word: all entries are free.
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


def attention_weights(data: DataModel, queries: Queries, alpha: float, beta: float) -> Array:
    """Attention of each query over tokens, R x V, with the pattern of Assumption 2.

    beta for the same token, alpha for other words of one topic (of a shared word: the topic most
    likely to write it), 1 otherwise. [MASK] is a topic of its own. Zero without visible keys.
    """
    topic_V = np.concatenate([[-1], data.words_by_topic().argmax(axis=0)])
    pair_VxV = np.where(topic_V[:, None] == topic_V, alpha, 1.0)
    np.fill_diagonal(pair_VxV, beta)
    weight_RxV = queries.keys[queries.document] * pair_VxV[queries.token]
    return weight_RxV / np.maximum(weight_RxV.sum(axis=1, keepdims=True), 1e-300)


def _attention_losses(
    data: DataModel, queries: Queries, objective: Objective, value: Array, alpha: float, beta: float
) -> Array:
    """Loss of each document with W^V = value and the attention (alpha, beta)."""
    attention_RxV = attention_weights(data, queries, alpha, beta)
    prediction_RxW = attention_RxV @ value[1:].T
    if objective == "cross_entropy":
        prediction_RxW = log_softmax(prediction_RxW, axis=1)
        prediction_RxW[attention_RxV.sum(axis=1) == 0] = -np.log(data.num_words + 1)
    return document_losses(data, queries, prediction_RxW, objective)


def stage1_line(data: DataModel, objective: Objective, value: Array, queries: Queries) -> Line:
    """Best loss with uniform attention, value = stage1_value(...); exact for the squared loss."""
    if objective == "squared":
        return uniform_attention_loss(data, value), 0.0
    losses = _attention_losses(data, queries, objective, value, 1.0, 1.0)
    return _controlled_mean(data, queries, losses)


def stage2_attention(
    data: DataModel, objective: Objective, value: Array, queries: Queries
) -> tuple[float, float]:
    """(alpha, beta) of Assumption 2 with the least mean loss over the queries, W^V frozen.

    A coarse grid comes first: with keys `all` there can be two minima, topics (alpha > 1) and
    copying (alpha near 0, beta > 1, if W^V has a diagonal).
    """

    def loss(logs: Array) -> float:
        alpha, beta = np.exp(logs)
        return float(_attention_losses(data, queries, objective, value, alpha, beta).mean())

    grid = [np.array(logs) for logs in product((-4.0, -1.0, 0.0, 2.0, 4.0), (-2.0, 0.0, 2.0, 4.0))]
    bounds = [(-6.0, 12.0)] * 2
    found: Any = minimize(loss, min(grid, key=loss), method="L-BFGS-B", bounds=bounds)
    alpha, beta = np.exp(found.x)
    return float(alpha), float(beta)


def stage2_line(data: DataModel, objective: Objective, values: list[Array], queries: Queries) -> Line:
    """Best loss with W^V frozen at a stage-1 optimum and the attention of Assumption 2.

    `values`: the optimum of stage 1 and, if that has a diagonal, the one by topics (Theorem 3's
    kind); the better of them counts. Exact from the landscape for the squared loss, infinite
    tau-topic documents and disjoint topics.
    """
    value = values[0]
    if objective == "squared" and is_enumerated(data) and data.topic_word is None:
        return optimal_attention(data, (value[1, 0], value[1, -1], value[1, 1]))[1], 0.0
    few = first_documents(queries, 1 + FIT_QUERIES * len(queries.words) // len(queries.token))
    found = [(one, *stage2_attention(data, objective, one, few)) for one in values]
    best = min(found, key=lambda one: _attention_losses(data, few, objective, *one).mean())
    losses = _attention_losses(data, queries, objective, *best)
    if objective == "cross_entropy":
        return _controlled_mean(data, queries, losses)
    stage1 = _attention_losses(data, queries, objective, value, 1.0, 1.0)
    known = (stage1, uniform_attention_loss(data, value))
    return _controlled_mean(data, queries, losses, known)


def bayes_line(data: DataModel, objective: Objective, queries: Queries, seed: int = 0) -> Line:
    """Loss of the exact posterior predictive (see bayes_prediction for what is exact)."""
    if data.documents == "lda" and data.topic_word is not None and not data.infinite_documents:
        queries = first_documents(queries, GIBBS_DOCUMENTS)
    prediction = bayes_prediction(data, queries, seed)
    if objective == "cross_entropy":
        prediction = np.log(np.maximum(prediction, 1e-300))
    losses = document_losses(data, queries, prediction, objective)
    return _controlled_mean(data, queries, losses)


def limit_lines(
    data: DataModel, objective: Objective, num_documents: int = 6000, seed: int = 0
) -> dict[str, float]:
    """uniform, stage1, stage2 and bayes losses with `<name>_se` standard errors (0 where exact).

    Cross-entropy stage 1 is fitted on other documents than it is evaluated on.
    """
    if objective not in ("cross_entropy", "squared"):
        raise ValueError(f"unknown objective {objective!r}; allowed: 'cross_entropy', 'squared'")
    queries = sample_queries(data, num_documents, seed)
    value = stage1_value(data, objective, num_documents, seed + 1)
    values = [value]
    if has_diagonal(data):
        values.append(stage1_value(data, objective, num_documents, seed + 1, by_topic=True))
    lines = {
        "uniform": uniform_line(data, objective),
        "stage1": stage1_line(data, objective, value, queries),
        "stage2": stage2_line(data, objective, values, queries),
        "bayes": bayes_line(data, objective, queries, seed),
    }
    result = {name: line[0] for name, line in lines.items()}
    return result | {f"{name}_se": line[1] for name, line in lines.items()}
