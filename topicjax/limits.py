"""Limit lines of a data setting: the losses that uniform, stage 1, stage 2 and Bayes reach.

Letters: D documents, R queries, T topics, W = Tv words, V = W + 1 tokens ([MASK] = 0), K terms.
Every line is the mean over documents of the mean over masked positions, eq. (1), by Monte Carlo.
Given a document's words P and what its masked positions show, the expected loss over the hidden
words replaces the loss of drawn ones, and the known means of |P|^2 and of the entropy of P serve
as control variates: both leave the mean unchanged and shrink the standard error.
"""

from __future__ import annotations

from itertools import combinations, product
from math import comb
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import digamma, entr, gammaln, log_softmax

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
MAX_SUBSETS = 20_000
FIT_QUERIES = 4_000  # for the two parameters of attention
GIBBS_DOCUMENTS, GIBBS_SWEEPS, GIBBS_BURN_IN = 400, 300, 50


class Queries(NamedTuple):
    """Documents, their visible keys, and the queries at their masked positions."""

    topics: Array  # D x T, topic proportions theta
    words: Array  # D x W, word distribution P
    keys: Array  # D x V, counts of visible keys (infinite documents: their distribution)
    document: Array  # R, the query's document
    token: Array  # R, what the query position shows
    weight: Array  # R, its share of the document's mean over masked positions


def _subsets(data: DataModel) -> Array:
    """All topic proportions of tau-topic documents, one row each."""
    count = comb(data.topics, data.topics_per_document)
    if count > MAX_SUBSETS:
        raise ValueError(f"{count} topic subsets; allowed: at most {MAX_SUBSETS}")
    member = np.zeros((count, data.topics))
    for row, subset in enumerate(combinations(range(data.topics), data.topics_per_document)):
        member[row, list(subset)] = 1 / data.topics_per_document
    return member


def _is_enumerated(data: DataModel) -> bool:
    """True if the documents are not sampled: infinite tau-topic ones, so errors are zero."""
    return data.infinite_documents and data.documents == "tau"


def _sample_topics(data: DataModel, num_documents: int, rng: np.random.Generator) -> Array:
    """Topic proportions, D x T; all of them (one, if all are alike) when they are enumerated."""
    tau = data.topics_per_document
    if _is_enumerated(data):
        first = np.where(np.arange(data.topics) < tau, 1 / tau, 0.0)[None]
        return first if data.topic_word is None else _subsets(data)
    if data.documents == "lda":
        return rng.dirichlet(np.full(data.topics, data.alpha), num_documents)
    order = rng.random((num_documents, data.topics)).argsort(axis=1)
    return np.where(order < tau, 1 / tau, 0.0)


def _draw(table: Array, row: Array, rng: np.random.Generator) -> Array:
    """For each entry of `row`, an index drawn from that row of a table of probabilities."""
    cumulative = np.cumsum(table, axis=1)
    cumulative /= cumulative[:, -1:]
    flat = (cumulative + np.arange(len(table))[:, None]).ravel()
    drawn = np.searchsorted(flat, row + rng.random(row.shape), side="right")
    return np.minimum(drawn - row * table.shape[1], table.shape[1] - 1)


def _draw_masks(data: DataModel, num_documents: int, rng: np.random.Generator) -> tuple:
    """(present, masked), D x N booleans, given at least one masked position in a document."""
    position = np.arange(data.length_max)
    lengths = np.zeros(num_documents, int)
    masked = np.zeros((num_documents, data.length_max), bool)
    while (again := ~masked.any(axis=1)).any():
        count = int(again.sum())
        lengths[again] = rng.integers(data.length_min, data.length_max + 1, count)
        draws = rng.random((count, data.length_max)) < data.p_mask
        masked[again] = draws & (position < lengths[again, None])
    return position < lengths[:, None], masked


def sample_queries(data: DataModel, num_documents: int, seed: int) -> Queries:
    """Documents with at least one masked position, one row for the [MASK]s of each document."""
    rng = np.random.default_rng(seed)
    if data.infinite_documents:
        return _infinite_queries(data, _sample_topics(data, num_documents // 20, rng))
    topic_DxT = _sample_topics(data, num_documents, rng)
    present, masked = _draw_masks(data, num_documents, rng)
    document = np.broadcast_to(np.arange(num_documents)[:, None], masked.shape)
    word = 1 + _draw(data.words_by_topic(), _draw(topic_DxT, document, rng), rng)
    kind = rng.random(masked.shape)
    random_word = rng.integers(1, data.num_words + 1, masked.shape)
    replaced = np.where(kind < data.p_keep + data.p_random, random_word, 0)
    shown = np.where(masked & (kind >= data.p_keep), replaced, word)

    size = data.num_words + 1
    visible = present & ~masked if data.key_visibility == "unmasked" else present
    keys = np.bincount((document * size + shown)[visible], minlength=num_documents * size)
    masked_count = masked.sum(axis=1)
    mask_share = (masked & (shown == 0)).sum(axis=1) / masked_count
    mask_document = np.nonzero(mask_share)[0]
    is_word = masked & (shown > 0)
    return Queries(
        topic_DxT,
        topic_DxT @ data.words_by_topic(),
        keys.reshape(num_documents, size).astype(float),
        np.concatenate([mask_document, document[is_word]]),
        np.concatenate([np.zeros_like(mask_document), shown[is_word]]),
        np.concatenate([mask_share[mask_document], 1 / masked_count[document[is_word]]]),
    )


def _infinite_queries(data: DataModel, topic_DxT: Array) -> Queries:
    """Expected keys of infinite documents and all V kinds of queries of each, with their shares."""
    word_DxW = topic_DxT @ data.words_by_topic()
    size = data.num_words + 1
    keys = data.shown_distribution(word_DxW)
    if data.key_visibility == "unmasked":
        keys = np.concatenate([np.zeros((len(word_DxW), 1)), word_DxW], axis=1)
    weight_DxV = np.empty_like(keys)
    weight_DxV[:, 0] = 1 - data.p_keep - data.p_random
    weight_DxV[:, 1:] = data.p_keep * word_DxW + data.p_random / data.num_words
    document_R = np.repeat(np.arange(len(word_DxW)), size)
    token_R = np.tile(np.arange(size), len(word_DxW))
    return Queries(topic_DxT, word_DxW, keys, document_R, token_R, weight_DxV.ravel())


def first_documents(queries: Queries, num_documents: int) -> Queries:
    """The same queries, of the first documents only."""
    rows = queries.document < num_documents
    documents = (array[:num_documents] for array in queries[:3])
    return Queries(*documents, *(array[rows] for array in queries[3:]))


def _kept_chance(data: DataModel, words_RxW: Array, token_R: Array) -> Array:
    """P(a masked position's word is the one it shows | it shows token, words), 0 for [MASK]."""
    rows = np.nonzero(token_R)[0]
    chance = np.zeros(len(token_R))
    kept = data.p_keep * words_RxW[rows, token_R[rows] - 1]
    total = kept + data.p_random / data.num_words
    chance[rows] = np.divide(kept, total, out=np.zeros_like(kept), where=total > 0)
    return chance


def document_losses(data: DataModel, queries: Queries, prediction_RxW: Array, objective: Objective) -> Array:
    """Expected mean loss over the masked positions of each document (D numbers).

    `prediction_RxW` holds log probabilities (cross-entropy) or the prediction itself (squared).
    """
    words_RxW = queries.words[queries.document]
    kept_R = _kept_chance(data, words_RxW, queries.token)
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
    if _is_enumerated(data):
        return float(values_D.mean()), 0.0
    word_DxW, size = queries.words, len(queries.words)
    word_share = queries.weight * (queries.token > 0)
    kept_share = queries.weight * _kept_chance(data, word_DxW[queries.document], queries.token)
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
    share_R = queries.weight * _kept_chance(data, words_RxW, queries.token)
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
    if objective == "squared" and _is_enumerated(data) and data.topic_word is None:
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


def _coupled_mean(factor_TxKxR: Array, feature_TxKxR: Array, coupling_KxR: Array) -> Array:
    """sum over k_1..k_T of feature_t(k_t) prod_s factor_s(k_s) coupling(sum k), T x R.

    Forward-backward over topics; terms whose sum exceeds K - 1 are dropped.
    """
    topics, terms, rows = factor_TxKxR.shape
    used = [1 + int(np.nonzero(factor.any(axis=1))[0].max()) for factor in factor_TxKxR]
    backward = [coupling_KxR]
    for t in reversed(range(topics)):
        step = np.zeros((terms, rows))
        for k in range(used[t]):
            step[: terms - k] += factor_TxKxR[t, k] * backward[-1][k:]
        backward.append(step)
    forward = np.zeros((terms, rows))
    forward[0] = 1.0
    result = np.zeros((topics, rows))
    for t in range(topics):
        following, step = backward[topics - 1 - t], np.zeros((terms, rows))
        for k in range(used[t]):
            moved = factor_TxKxR[t, k] * forward[: terms - k]
            result[t] += feature_TxKxR[t, k] * np.einsum("kr,kr->r", moved, following[k:])
            step[k:] += moved
        forward = step
    return result


def dirichlet_topic_mean(count_RxT: Array, alpha: float, signal: float, noise: float) -> Array:
    """E[theta | counts], R x T: theta ~ Dirichlet(alpha), P(topic t) = signal theta_t + noise.

    Exact: k_t of the n_t words are noise, and given all k theta is Dirichlet; the k_t are coupled
    through their sum alone. Sums in the far tail (probability below 1e-8) are dropped.
    """
    total_R, topics = count_RxT.sum(axis=1), count_RxT.shape[1]
    if noise == 0:
        return (count_RxT + alpha) / (total_R[:, None] + alpha * topics)
    order_TxR = np.argsort(-count_RxT, axis=1).T  # small counts last: few terms there
    count_Tx1xR = np.take_along_axis(count_RxT.T, order_TxR, axis=0)[:, None, :]
    expected = total_R.max() * noise * topics / (signal + noise * topics)
    terms = 1 + int(min(total_R.max(), np.ceil(expected + 6 * np.sqrt(expected) + 6)))
    k_Kx1 = np.arange(terms)[:, None]
    scale_R = np.maximum(total_R, 1.0)  # keeps every power in range
    real = np.maximum(count_Tx1xR - k_Kx1, 0)
    choose = gammaln(count_Tx1xR + 1) - gammaln(k_Kx1 + 1) - gammaln(real + 1)
    prior = gammaln(real + alpha) - gammaln(count_Tx1xR + alpha)
    log_factor = choose + prior + k_Kx1 * np.log(noise / signal * scale_R)
    factor_TxKxR = np.exp(np.where(count_Tx1xR >= k_Kx1, log_factor, -np.inf))
    left = np.maximum(total_R - k_Kx1, 0) + topics * alpha
    log_coupling = gammaln(total_R + topics * alpha) - gammaln(left) - k_Kx1 * np.log(scale_R)
    coupling_KxR = np.where(total_R >= k_Kx1, np.exp(log_coupling) / left, 0.0)
    mean_TxR = _coupled_mean(factor_TxKxR, real + alpha, coupling_KxR)
    mean_RxT = np.take_along_axis(mean_TxR, np.argsort(order_TxR, axis=0), axis=0).T
    return mean_RxT / mean_RxT.sum(axis=1, keepdims=True)


def subset_topic_mean(count_RxT: Array, tau: int, inside: float, outside: float) -> Array:
    """E[theta | counts], R x T: tau of T topics, at `inside` each, the others at `outside`.

    Exact for any T: the topics are coupled through the number of chosen ones alone.
    """
    ratio = np.log(inside / outside) if outside > 0 else 1e5
    factor_TxKxR = np.zeros((count_RxT.shape[1], tau + 1, len(count_RxT)))
    factor_TxKxR[:, 0] = np.exp(-ratio * count_RxT.T)
    factor_TxKxR[:, 1] = 1.0
    chosen_K = np.arange(tau + 1)[:, None]
    feature = np.broadcast_to(chosen_K == 1, factor_TxKxR.shape)
    coupling_KxR = np.broadcast_to(chosen_K == tau, factor_TxKxR.shape[1:]).astype(float)
    mean_RxT = _coupled_mean(factor_TxKxR, feature, coupling_KxR).T
    return mean_RxT / mean_RxT.sum(axis=1, keepdims=True)


def _noise(data: DataModel) -> tuple[float, float]:
    """(signal, noise): a visible word i has probability signal P_i + noise, up to a factor."""
    if data.key_visibility == "unmasked":
        return 1.0, 0.0
    return data.survival, data.p_mask * data.p_random / data.num_words


def _posterior_disjoint(data: DataModel, evidence_NxW: Array) -> Array:
    """E[P | visible words], N x W, disjoint uniform topics: topic counts are sufficient."""
    count_NxT = evidence_NxW.reshape(-1, data.topics, data.words_per_topic).sum(axis=2)
    signal, noise = _noise(data)
    noise *= data.words_per_topic
    if data.documents == "lda":
        topic = dirichlet_topic_mean(count_NxT, data.alpha, signal, noise)
    else:
        tau = data.topics_per_document
        topic = subset_topic_mean(count_NxT, tau, signal / tau + noise, noise)
    return topic @ data.words_by_topic()


def _posterior_subsets(data: DataModel, evidence_NxW: Array) -> Array:
    """E[P | visible words], N x W, tau-topic documents and any topic_word: all subsets."""
    word_SxW = _subsets(data) @ data.words_by_topic()
    signal, noise = _noise(data)
    log_likelihood = evidence_NxW @ np.log(np.maximum(signal * word_SxW + noise, 1e-300)).T
    return np.exp(log_softmax(log_likelihood, axis=1)) @ word_SxW


def _posterior_gibbs(data: DataModel, queries: Queries, seed: int) -> Array:
    """E[P | visible words of the others], R x W, by Gibbs sampling of topics (or noise) per word.

    A query's own word is taken out of the evidence by the weight 1 / P(shown word).
    """
    rng = np.random.default_rng(seed)
    words_TxW = data.words_by_topic()
    signal, noise = _noise(data)
    doc, word = np.nonzero(queries.keys[:, 1:])
    count = queries.keys[:, 1:][doc, word].astype(int)
    document_R, index_R = queries.document, np.maximum(queries.token - 1, 0)
    reweigh = (queries.token > 0) & (data.key_visibility == "all")
    theta = np.full(queries.topics.shape, 1 / data.topics)
    total = np.zeros((len(document_R), data.topics))
    for sweep in range(GIBBS_SWEEPS):
        cause = np.empty((len(doc), data.topics + 1))
        cause[:, :-1] = signal * theta[doc] * words_TxW[:, word].T
        cause[:, -1] = noise
        assigned = rng.multinomial(count, cause / cause.sum(axis=1, keepdims=True))[:, :-1]
        topic_count = np.zeros_like(theta)
        np.add.at(topic_count, doc, assigned)
        theta = np.maximum(rng.gamma(data.alpha + topic_count), 1e-300)
        theta /= theta.sum(axis=1, keepdims=True)
        if sweep >= GIBBS_BURN_IN:
            shown_R = np.einsum("rt,tr->r", theta[document_R], words_TxW[:, index_R])
            weight_R = np.where(reweigh, 1 / (signal * shown_R + noise), 1.0)
            total += weight_R[:, None] * theta[document_R]
    return total / total.sum(axis=1, keepdims=True) @ words_TxW


def posterior_words(data: DataModel, queries: Queries, seed: int = 0) -> Array:
    """E[P | what each query sees at the other positions], R x W; the own position is left out."""
    if data.infinite_documents:
        return queries.words[queries.document]
    if data.documents == "lda" and data.topic_word is not None:
        return _posterior_gibbs(data, queries, seed)
    own_R = queries.token if data.key_visibility == "all" else np.zeros_like(queries.token)
    if data.topic_word is None:  # removing any word of one topic gives the same posterior
        own_R = -(-own_R // data.words_per_topic) * data.words_per_topic
    code, inverse = np.unique(queries.document * (data.num_words + 1) + own_R, return_inverse=True)
    document, own = np.divmod(code, data.num_words + 1)
    evidence_NxV = queries.keys[document]
    evidence_NxV[np.arange(len(own)), own] -= own > 0
    posterior = _posterior_disjoint if data.topic_word is None else _posterior_subsets
    return posterior(data, evidence_NxV[:, 1:])[inverse]


def bayes_prediction(data: DataModel, queries: Queries, seed: int = 0) -> Array:
    """Posterior predictive of each query's hidden word, R x W, given all it can see.

    Exact with keys `unmasked`. With keys `all` the other positions count as independent given P;
    the 1/|M| of eq. (1) tilts their number of masked ones slightly, so the loss is an upper bound.
    """
    words_RxW = posterior_words(data, queries, seed)
    kept_R = _kept_chance(data, words_RxW, queries.token)
    prediction = (1 - kept_R[:, None]) * words_RxW
    prediction[np.arange(len(kept_R)), np.maximum(queries.token - 1, 0)] += kept_R
    return prediction


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
