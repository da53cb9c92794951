"""Limit lines of a data setting: the losses that uniform, stage-1, stage-2 and Bayes predictions reach.

Letters: D documents, R queries, T topics, W = Tv words, V = W + 1 tokens ([MASK] = 0), C control variates.
Every line is the mean over documents of the mean over masked positions, eq. (1), by Monte Carlo.  Given a
document's words P and what its masked positions show, the expected loss over the hidden words replaces the
loss of drawn ones, and the known means of |P|^2 and of the entropy of P serve as control variates: both leave
the mean unchanged and shrink the standard error.
"""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import numpy as np
from scipy.optimize import minimize
from scipy.special import digamma, entr, log_softmax

from topicjax.experiments.one_layer.settings import Objective, convert
from topicjax.theory.documents import Array, DataModel
from topicjax.theory.landscape import optimal_attention
from topicjax.theory.posterior import GIBBS_DOCUMENTS, bayes_prediction
from topicjax.theory.queries import Queries, first_documents, is_enumerated, kept_chance, sample_queries
from topicjax.theory.stage1_value import has_diagonal, stage1_value
from topicjax.theory.uniform_attention import uniform_attention_loss

Line = tuple[float, float]  # (value, standard error)
FIT_QUERIES = 4_000  # that fit the two parameters of attention


def document_losses(data: DataModel, queries: Queries, prediction_RxW: Array, objective: Objective) -> Array:
    """Return the expected mean loss over the masked positions of each document (D numbers).

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
    """Return mean and standard error with control variates; `known` = further pairs (values, exact mean)."""
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
    """Return the exact loss of the uniform prediction over words: ln(Tv), or 1 - 1/(Tv) for squared loss.

    It puts nothing on [MASK], unlike a model with zero weights, whose losses are ln V and 1.
    """
    words = data.num_words
    return (float(np.log(words)) if objective == "cross_entropy" else 1 - 1 / words), 0.0


def attention_weights(data: DataModel, queries: Queries, alpha: float, beta: float) -> Array:
    """Return the attention of each query over tokens, R x V, with the pattern of Assumption 2.

    A query weighs its own token by beta, other words of its topic by alpha, all others by 1; a shared word
    counts for the topic most likely to write it, and [MASK] is a topic of its own.  Zero without visible
    keys.
    """
    topic_V = np.concatenate([[-1], data.words_by_topic().argmax(axis=0)])
    pair_VxV = np.where(topic_V[:, None] == topic_V, alpha, 1.0)
    np.fill_diagonal(pair_VxV, beta)
    weight_RxV = queries.keys[queries.document] * pair_VxV[queries.token]
    return weight_RxV / np.maximum(weight_RxV.sum(axis=1, keepdims=True), 1e-300)


def _attention_losses(
    data: DataModel, queries: Queries, objective: Objective, value: Array, alpha: float, beta: float
) -> Array:
    """Return the loss of each document with W^V = value and the attention (alpha, beta)."""
    attention_RxV = attention_weights(data, queries, alpha, beta)
    prediction_RxW = attention_RxV @ value[1:].T
    if objective == "cross_entropy":
        prediction_RxW = log_softmax(prediction_RxW, axis=1)
        prediction_RxW[attention_RxV.sum(axis=1) == 0] = -np.log(data.num_words + 1)
    return document_losses(data, queries, prediction_RxW, objective)


def stage1_line(data: DataModel, objective: Objective, value: Array, queries: Queries) -> Line:
    """Return the loss of value = stage1_value(...) with uniform attention; exact for the squared loss."""
    if objective == "squared":
        return uniform_attention_loss(data, value), 0.0
    losses = _attention_losses(data, queries, objective, value, 1.0, 1.0)
    return _controlled_mean(data, queries, losses)


def stage2_attention(
    data: DataModel, objective: Objective, value: Array, queries: Queries
) -> tuple[float, float]:
    """Return the (alpha, beta) of Assumption 2 with the least mean loss over the queries, W^V frozen.

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
    """Return the best loss with W^V frozen at a stage-1 optimum and the attention of Assumption 2.

    `values` holds the optimum of stage 1 and, if that has a diagonal, the one by topics (as in Theorem 3);
    the better of them counts.  Exact for the squared loss with infinite tau-topic documents and disjoint
    topics.
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
    """Return the loss of the posterior predictive (see bayes_prediction for when it is exact)."""
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
    """Return the uniform, stage1, stage2 and bayes losses, and standard errors `<name>_se` (0 where exact).

    Cross-entropy stage 1 is fitted on other documents than it is evaluated on.
    """
    convert("objective", objective)  # raises unless it is one of them
    if objective not in get_args(Objective):
        raise ValueError(f"theory has no limit lines for objective {objective}")
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
