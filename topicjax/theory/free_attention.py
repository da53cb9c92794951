"""Attention of any kind: its exact loss, and the best one that treats topics and words alike (squared loss).

For infinite documents of tau disjoint uniform topics, and any value matrix.  Letters: D documents, W = Tv
words, V = W + 1 tokens ([MASK] = 0), Q queries, K parts of keys; weights are exp of attention scores,
query x key.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from topicjax.theory.documents import Array, DataModel
from topicjax.theory.queries import topic_subsets
from topicjax.theory.stage_models import StageModel, pair_weights

STARTS = ((0.0, 0.0, 0.0), (2.0, 2.0, 0.0), (0.0, 4.0, 0.0))  # logarithms: uniform, topical, copying
BOUNDS = [(-12.0, 12.0)] * 3  # a weight at the lower one is best at 0
PRECISE: dict[str, Any] = dict(ftol=1e-15, gtol=1e-9, maxls=50)


class AttentionWeights(NamedTuple):
    """How much a word weighs each kind of key, beside words of other topics."""

    alpha: float  # other words of its topic
    beta: float  # the word itself
    mask: float  # [MASK]

    def average(self, words_per_topic: int) -> float:
        """Return alpha' = ((v - 1) alpha + beta) / v."""
        return ((words_per_topic - 1) * self.alpha + self.beta) / words_per_topic


def attention_loss(data: DataModel, value: Array, weight_VxV: Array, alike: bool = False) -> float:
    """Return the squared loss over all documents of attention with these weights, W^V = `value`.

    If the model treats topics and words `alike`, one document and one query of each kind are enough.
    """
    inside = data.topics_per_document * data.words_per_topic
    query_Q, times_Q = np.arange(data.num_words + 1), np.ones(data.num_words + 1)
    if alike:  # the topics of the first document come first
        query_Q, times_Q = np.array([0, 1, data.num_words]), np.array([1, inside, data.num_words - inside])
    share_Q = np.where(query_Q == 0, 1 - data.p_keep - data.p_random, data.p_random / data.num_words)
    keys_KxV, weight_QxV = _key_parts(data), weight_VxV[query_Q]
    part_KxQxV = (weight_QxV * keys_KxV[:, None, :]) @ value.T
    total_KxQ = keys_KxV @ weight_QxV.T
    losses = []
    for theta_T in topic_subsets(data)[: 1 if alike else None]:
        theta_K, words_V = np.r_[1.0, theta_T], np.r_[0.0, theta_T @ data.words_by_topic()]
        output_QxV = np.tensordot(theta_K, part_KxQxV, 1) / (theta_K @ total_KxQ)[:, None]
        kept_Q = data.p_keep * words_V[query_Q]  # must predict the query itself
        square_Q = (share_Q + kept_Q) * np.einsum("qv,qv->q", output_QxV, output_QxV)
        score_Q = share_Q * (output_QxV @ words_V) + kept_Q * output_QxV[np.arange(len(query_Q)), query_Q]
        losses.append(1 + times_Q @ (square_Q - 2 * score_Q))
    return float(np.mean(losses))


def _key_parts(data: DataModel) -> Array:
    """Return the keys of any document, (1 + T) x V: a part that all have, and one per unit of each topic."""
    words_TxV = np.pad(data.words_by_topic(), ((0, 0), (1, 0)))
    if data.key_visibility == "unmasked":
        return np.vstack([np.zeros(data.num_words + 1), words_TxV])
    return np.vstack([data.shown_distribution(np.zeros(data.num_words)), data.survival * words_TxV])


def symmetric_weights(data: DataModel, weights: AttentionWeights) -> Array:
    """Return how queries weigh keys, V x V: words by these weights, [MASK] all keys alike."""
    weight_VxV = pair_weights(data, StageModel(np.zeros(0), weights.alpha, weights.beta, mask_beta=1.0))
    weight_VxV[1:, 0] = weights.mask
    return weight_VxV


def best_symmetric_attention(data: DataModel, value: Array) -> tuple[AttentionWeights, float]:
    """Return the best attention that treats topics and words alike, and its loss, for such a value matrix.

    It is better than the best of Assumption 2's kind, in which words weigh [MASK] by 1.  [MASK] queries
    attend uniformly: nothing is better for them if W^V is optimal for uniform attention (Lemma 1).  With
    uniform blocks only alpha' matters; alpha and beta are then one of many pairs that have it.
    """

    def loss(logs: Array) -> float:
        weights = AttentionWeights(*np.exp(logs))
        return attention_loss(data, value, symmetric_weights(data, weights), alike=True)

    look: dict[str, Any] = dict(method="L-BFGS-B", bounds=BOUNDS, options=PRECISE)
    found: list[Any] = [minimize(loss, np.array(start), **look) for start in STARTS]
    best = min(found, key=lambda result: result.fun)
    weights = np.where(best.x > BOUNDS[0][0], np.exp(best.x), 0.0)
    return AttentionWeights(*map(float, weights)), float(best.fun)
