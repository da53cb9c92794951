"""Posterior predictive distributions of the hidden words, exact where possible.

Letters: D documents, R queries, T topics, W = Tv words, V = W + 1 tokens ([MASK] = 0), K terms.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, log_softmax

from topicjax.theory.documents import Array, DataModel, Queries, kept_chance, topic_subsets

GIBBS_DOCUMENTS, GIBBS_SWEEPS, GIBBS_BURN_IN = 400, 300, 50


def _coupled_mean(factor_TxKxR: Array, feature_TxKxR: Array, coupling_KxR: Array) -> Array:
    """Sum over k_1..k_T of feature_t(k_t) prod_s factor_s(k_s) coupling(sum k), T x R.

    Forward-backward over topics; terms whose sum exceeds K - 1 are dropped.
    """
    topics, terms, queries = factor_TxKxR.shape
    used = [1 + int(np.nonzero(factor.any(axis=1))[0].max()) for factor in factor_TxKxR]
    backward = [coupling_KxR]
    for t in reversed(range(topics)):
        step = np.zeros((terms, queries))
        for k in range(used[t]):
            step[: terms - k] += factor_TxKxR[t, k] * backward[-1][k:]
        backward.append(step)
    forward = np.zeros((terms, queries))
    forward[0] = 1.0
    result = np.zeros((topics, queries))
    for t in range(topics):
        following, step = backward[topics - 1 - t], np.zeros((terms, queries))
        for k in range(used[t]):
            moved = factor_TxKxR[t, k] * forward[: terms - k]
            result[t] += feature_TxKxR[t, k] * np.einsum("kr,kr->r", moved, following[k:])
            step[k:] += moved
        forward = step
    return result


def dirichlet_topic_mean(count_RxT: Array, alpha: float, signal: float, noise: float) -> Array:
    """Compute E[theta | counts], R x T, if theta ~ Dirichlet(alpha) and P(topic t) = signal theta_t + noise.

    Exact: k_t of the n_t words are noise, theta given all k is Dirichlet, and the k_t are coupled only
    through their sum.  Sums in the far tail (probability below 1e-8) are dropped.
    """
    total_R, topics = count_RxT.sum(axis=1), count_RxT.shape[1]
    if noise == 0:
        return (count_RxT + alpha) / (total_R[:, None] + alpha * topics)
    order_TxR = np.argsort(-count_RxT, axis=1).T  # small counts last: they have few terms
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
    """Compute E[theta | counts], R x T, for tau of T topics at `inside` each and the others at `outside`.

    Exact for any T: the topics are coupled only through the number of chosen ones.
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
    """Return (signal, noise): a visible word i has probability signal P_i + noise, up to a factor."""
    if data.key_visibility == "unmasked":
        return 1.0, 0.0
    return data.survival, data.p_mask * data.p_random / data.num_words


def _posterior_disjoint(data: DataModel, evidence_NxW: Array) -> Array:
    """Compute E[P | visible words], N x W, for disjoint uniform topics: topic counts are sufficient.

    If words are in pairs, so are counts of pairs, as long as no visible word is a random one (knows_pairs):
    given the counts, shares of topics and of pairs are independent Dirichlets.
    """
    count_NxT = evidence_NxW.reshape(-1, data.topics, data.words_per_topic).sum(axis=2)
    signal, noise = _noise(data)
    noise *= data.words_per_topic
    if data.documents == "lda":
        topic = dirichlet_topic_mean(count_NxT, data.alpha, signal, noise)
    else:
        tau = data.topics_per_document
        topic = subset_topic_mean(count_NxT, tau, signal / tau + noise, noise)
    word_NxW = topic @ data.words_by_topic()
    if data.pair_strength > 0:
        pairs = data.words_per_topic // 2
        count_NxTxM = evidence_NxW.reshape(-1, data.topics, pairs, 2).sum(axis=3) + data.pair_concentration
        share_NxTxM = count_NxTxM / count_NxTxM.sum(axis=2, keepdims=True)
        word_NxW *= pairs * share_NxTxM.reshape(len(topic), -1).repeat(2, axis=1)
    return word_NxW


def knows_pairs(data: DataModel) -> bool:
    """Check whether the posterior is known: for words in pairs, only if no visible word is a random one."""
    return data.pair_strength == 0 or data.infinite_documents or _noise(data)[1] == 0


def _posterior_subsets(data: DataModel, evidence_NxW: Array) -> Array:
    """Compute E[P | visible words], N x W, for tau-topic documents with any topic_word, over all subsets."""
    word_SxW = topic_subsets(data) @ data.words_by_topic()
    signal, noise = _noise(data)
    log_likelihood = evidence_NxW @ np.log(np.maximum(signal * word_SxW + noise, 1e-300)).T
    return np.exp(log_softmax(log_likelihood, axis=1)) @ word_SxW


def _posterior_gibbs(data: DataModel, queries: Queries, seed: int) -> Array:
    """Estimate E[P | words at the other positions], R x W, by Gibbs sampling of each word's topic or noise.

    A query's own word is removed from the evidence by the weight 1 / P(shown word).
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
    """Compute E[P | what each query sees at other positions], R x W."""
    if data.infinite_documents:
        return queries.words[queries.document]
    if data.documents == "lda" and data.topic_word is not None:
        return _posterior_gibbs(data, queries, seed)
    own_R = queries.token if data.key_visibility == "all" else np.zeros_like(queries.token)
    has_like_words = data.topic_word is None and data.pair_strength == 0
    if has_like_words:  # removing any word of one topic gives the same posterior
        own_R = -(-own_R // data.words_per_topic) * data.words_per_topic
    code, inverse = np.unique(queries.document * (data.num_words + 1) + own_R, return_inverse=True)
    document, own = np.divmod(code, data.num_words + 1)
    evidence_NxV = queries.keys[document]
    evidence_NxV[np.arange(len(own)), own] -= own > 0
    posterior = _posterior_disjoint if data.topic_word is None else _posterior_subsets
    return posterior(data, evidence_NxV[:, 1:])[inverse]


def bayes_prediction(data: DataModel, queries: Queries, seed: int = 0) -> Array:
    """Compute the posterior predictive of each query's hidden word, R x W, given all it can see.

    Exact with keys `unmasked`.  With keys `all` the other positions are treated as independent given P; the
    1/|M| of eq. (1) slightly tilts how many of them are masked, so the loss is an upper bound.
    """
    words_RxW = posterior_words(data, queries, seed)
    own = np.arange(len(words_RxW)), np.maximum(queries.token - 1, 0)
    kept_R = kept_chance(data, words_RxW[own], queries.token)
    prediction = (1 - kept_R[:, None]) * words_RxW
    prediction[own] += kept_R
    return prediction
