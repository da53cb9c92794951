"""Measure a trial at one step: losses, norms, gradients and order parameters.

The order parameters are exact functions of the weights, because everything depends only on token types.
Word i belongs to topic (i - 1) // v; overlapping topics also use words of others.
Words 2j - 1 and 2j of a topic are partners, whether documents tie them (pair_strength) or not: without a tie
the columns of partners are a control.
The frequent words of a topic are the more likely half of its words, its rare words the other half (of an odd
number the middle one is neither).  Words of Zipf's law are ranked even if its exponent is 0: a control.
A column that does not apply is NaN: `norm_e` and `e_*` with one-hot embeddings, gradient norms of frozen
parts, `rotation_v` before step 10 or at W_V = 0, differences over an empty set of pairs, losses by kind of
query under uniform attention (they hardly differ) or without such queries, participation ratios of zero
matrices, frequent minus rare words if all are equally likely (word_distribution is uniform),
`eval_loss_mask_query` unless the Spec asks for it.
Dimension letters: B documents, V vocabulary (padded), T topics, J words of one topic, W = T J words.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.experiments.one_layer import kernel
from topicjax.experiments.one_layer.kernel import Effective, LossSplit
from topicjax.experiments.one_layer.model import lemma1_value
from topicjax.experiments.one_layer.settings import SOFTMAX, Hypers, Spec
from topicjax.experiments.shared import bags
from topicjax.experiments.shared.bags import Bag
from topicjax.experiments.shared.model import (
    Params,
    block_differences,
    norm,
    pair_difference,
    pair_masks,
    participation,
    partner_masks,
    rotation,
    topic_block,
)
from topicjax.theory.document_settings import Stream

HEALTHY = ("loss", "eval_loss", "eval_loss_uniform", "norm_k", "norm_q", "norm_v")  # non-finite: diverged
MAX_SCORE_RANGE = 80.0  # float32 can safely divide by weights down to exp(-80)


class Record(NamedTuple):
    """The measurements of one trial at one step; the names are the columns of the trajectory files."""

    loss: jax.Array  # eq. (1) on the batch of this step, before its update, without L2
    eval_loss: jax.Array  # on the held-out documents
    eval_loss_uniform: jax.Array  # the same weights with attention forced uniform
    eval_loss_mask: jax.Array  # eval_loss of positions that show [MASK], ...
    eval_loss_kept: jax.Array  # ... their own word, ...
    eval_loss_random: jax.Array  # ... another word; eval_loss is a weighted mean of the three
    norm_k: jax.Array  # Frobenius norms of W^K, W^Q, W^V, W^E
    norm_q: jax.Array
    norm_v: jax.Array
    norm_e: jax.Array
    grad_norm_k: jax.Array  # of the training objective, with L2, on the batch of this step
    grad_norm_q: jax.Array
    grad_norm_v: jax.Array
    rotation_v: jax.Array  # (1 - cos) / 2 between W_V now and ten steps earlier
    v_block: jax.Array  # value: same topic, other word - other topic
    v_diag: jax.Array  # value: own word - same topic, other word
    v_pair: jax.Array  # value: partner - other word of the topic
    e_block: jax.Array  # W_E^T W_E: same topic, other word - other topic
    e_pair: jax.Array  # W_E^T W_E: partner - other word of the topic
    a_topic: jax.Array  # score of word queries: same topic, other word - other topic
    a_self: jax.Array  # score of word queries: own word - same topic, other word
    a_pair: jax.Array  # score of word queries: partner - other word of the topic
    a_mask: jax.Array  # score of [MASK] queries: mean word key - [MASK] key
    a_key: jax.Array  # standard deviation over keys of the score averaged over queries
    attn_same_word: jax.Array  # mean attention between two positions: the same word
    attn_same_topic: jax.Array  # other words of one topic
    attn_partner: jax.Array  # partners; they are among the other words of one topic
    attn_diff_topic: jax.Array  # words of different topics
    theorem2_distance: jax.Array  # |U - W*| / |W*|, U the effective value, W* Theorem 2's
    rank_k: jax.Array  # participation ratios of W^K, W^Q, W^V, W^E: (tr G)^2 / tr G^2, G = W W^T
    rank_q: jax.Array
    rank_v: jax.Array
    rank_e: jax.Array
    a_frequent: jax.Array  # score of word queries: frequent - rare keys, other words of the query's topic
    a_frequent_other: jax.Array  # the same for keys of other topics
    a_topic_weighted: jax.Array  # a_topic with queries and keys weighted by how frequent they are
    eval_loss_mask_query: jax.Array  # eval_loss if every query had the scores of [MASK]; see mask_query_loss


class HeldOut(NamedTuple):
    """The held-out documents as bags, for trained and for uniform attention."""

    attended: Bag
    uniform: Bag


def measure_model(
    spec: Spec,
    stream: Stream,
    hypers: Hypers,
    held_out: HeldOut,
    params: Params,
    earlier_value: jax.Array,
    has_past: jax.Array,
    loss: jax.Array,
    gradients: Params,
    phi_TxW: jax.Array,
) -> Record:
    """Measure a trial at a step, given the loss and gradients of that step's batch, and its topics.

    `earlier_value` is W_V ten steps earlier, if the trial `has_past`.
    """
    model = kernel.effective(spec, params)
    split, uniform_loss = held_out_losses(spec, hypers, held_out, model)
    embedding = params.get("W_E")
    value_VxV = model.value_VxV.T  # output, key: the paper's W_ij predicts i from j
    nan = jnp.full((), jnp.nan, value_VxV.dtype)
    same_word, same_topic, other_topic, partner = attention_pairs(spec, model, held_out)
    return Record(
        loss=loss,
        eval_loss=split.total,
        eval_loss_uniform=uniform_loss,
        eval_loss_mask=split.mask,
        eval_loss_kept=split.kept,
        eval_loss_random=split.random,
        norm_k=norm(params["W_K"]),
        norm_q=norm(params["W_Q"]),
        norm_v=norm(params["W_V"]),
        norm_e=nan if embedding is None else norm(embedding),
        grad_norm_k=norm(gradients["W_K"]) if "W_K" in gradients else nan,
        grad_norm_q=norm(gradients["W_Q"]) if "W_Q" in gradients else nan,
        grad_norm_v=norm(gradients["W_V"]) if "W_V" in gradients else nan,
        rotation_v=jnp.where(has_past, rotation(params["W_V"], earlier_value), nan),
        **block_differences(spec, value_VxV, "v_block", "v_diag"),
        v_pair=pair_difference(spec, value_VxV),
        e_block=nan if embedding is None else topic_block(spec, embedding.T @ embedding),
        e_pair=nan if embedding is None else pair_difference(spec, embedding.T @ embedding),
        **score_differences(spec, model),
        attn_same_word=same_word,
        attn_same_topic=same_topic,
        attn_partner=partner,
        attn_diff_topic=other_topic,
        theorem2_distance=theorem2_distance(spec, stream, value_VxV),
        rank_k=participation(params["W_K"]),
        rank_q=participation(params["W_Q"]),
        rank_v=participation(params["W_V"]),
        rank_e=nan if embedding is None else participation(embedding),
        **frequency_differences(spec, phi_TxW, model),
        eval_loss_mask_query=mask_query_loss(spec, hypers, held_out, model),
    )


def held_out_losses(
    spec: Spec, hypers: Hypers, held_out: HeldOut, model: Effective
) -> tuple[LossSplit, jax.Array]:
    """Compute the held-out loss, split by kind of query, and the loss with attention forced uniform."""
    uniform_model, real_V = model._replace(score_VxV=None), kernel.real_types(spec)
    uniform_loss = kernel.loss(uniform_model, held_out.uniform, hypers.objective, real_V)
    if spec.attention == "uniform":
        nan = jnp.full((), jnp.nan, uniform_loss.dtype)
        return LossSplit(uniform_loss, nan, nan, nan), uniform_loss
    split = bags.with_usual_queries(
        spec,
        lambda bag: kernel.loss_by_kind(model, bag, hypers.objective, real_V),
        held_out.attended,
        spec.eval_documents,
    )
    return split, uniform_loss


def mask_query_loss(spec: Spec, hypers: Hypers, held_out: HeldOut, model: Effective) -> jax.Array:
    """Compute the held-out loss with the scores of [MASK] for every query; NaN unless the Spec asks for it.

    All positions of a document then predict the same, as under uniform attention: one query per document.
    Unlike forced uniform attention this is a function of the products of scores and values alone, so it does
    not change if linear attention moves a factor from its scores to its values.
    """
    if not spec.mask_query_loss:
        return jnp.full((), jnp.nan, model.value_VxV.dtype)
    return kernel.loss(model, held_out.uniform, hypers.objective, kernel.real_types(spec))


def score_differences(spec: Spec, model: Effective) -> dict[str, jax.Array]:
    """Compute the order parameters of attention; all zero under uniform attention."""
    if model.score_VxV is None:
        zero = jnp.zeros((), model.value_VxV.dtype)
        return dict(a_topic=zero, a_self=zero, a_pair=zero, a_mask=zero, a_key=zero)
    V = spec.vocabulary
    score_VxV = model.score_VxV[:V, :V]  # query, key
    differences = block_differences(spec, model.score_VxV, "a_topic", "a_self")
    a_pair = pair_difference(spec, model.score_VxV)
    a_mask = score_VxV[0, 1:].mean() - score_VxV[0, 0]
    return dict(**differences, a_pair=a_pair, a_mask=a_mask, a_key=score_VxV.mean(axis=0).std())


def frequency_differences(spec: Spec, phi_TxW: jax.Array, model: Effective) -> dict[str, jax.Array]:
    """Compare scores of frequent with those of rare words, and weigh a_topic by how frequent words are.

    Means are taken for each query before they are averaged over queries: like attention, they do not change
    if a number is added to all scores of a query.
    """
    T, J, W = spec.topics, spec.words_per_topic, spec.num_words
    score_WxW = jnp.zeros((W, W)) if model.score_VxV is None else model.score_VxV[1 : W + 1, 1 : W + 1]
    topic_W = np.arange(W) // J
    same_WxW: Any = (topic_W[:, None] == topic_W[None, :]) & ~np.eye(W, dtype=bool)
    other_WxW: Any = topic_W[:, None] != topic_W[None, :]
    own_TxJ = phi_TxW.reshape(T, T, J)[np.arange(T), np.arange(T)]
    rank_W = jnp.argsort(jnp.argsort(-own_TxJ, axis=1), axis=1).reshape(W)  # within its topic
    frequent_W, rare_W = rank_W < J // 2, rank_W >= J - J // 2
    chance_W = phi_TxW.mean(axis=0)

    def apart(plus_WxW: jax.Array, minus_WxW: jax.Array, query_W: jax.Array) -> jax.Array:
        """Average over queries the weighted mean of some keys minus that of others; NaN without both."""
        plus_W, minus_W = plus_WxW.sum(axis=1), minus_WxW.sum(axis=1)
        has_both_W = (plus_W > 0) & (minus_W > 0)
        weight_WxW = plus_WxW / jnp.where(has_both_W, plus_W, 1.0)[:, None]
        weight_WxW -= minus_WxW / jnp.where(has_both_W, minus_W, 1.0)[:, None]
        query_W = jnp.where(has_both_W, query_W, 0.0)
        return (query_W * (weight_WxW * score_WxW).sum(axis=1)).sum() / query_W.sum()

    def frequent_keys(pairs_WxW: Any) -> jax.Array:
        if spec.word_distribution == "uniform":
            return jnp.full((), jnp.nan, score_WxW.dtype)
        return apart(pairs_WxW * frequent_W[None, :], pairs_WxW * rare_W[None, :], jnp.ones(W))

    return dict(
        a_frequent=frequent_keys(same_WxW),
        a_frequent_other=frequent_keys(other_WxW),
        a_topic_weighted=apart(same_WxW * chance_W[None, :], other_WxW * chance_W[None, :], chance_W),
    )


def attention_pairs(spec: Spec, model: Effective, held_out: HeldOut) -> tuple[jax.Array, ...]:
    """Compute the mean attention from one position to another, by kind of word pair (the paper's Table 3).

    The kinds are the same word, the same topic, different topics, and partners.

    The mean is over all pairs of different positions in the held-out documents that both show words and are
    keys.  Infinite documents have no positions: there it is relative to uniform attention.
    """
    count_BxV = held_out.uniform.count_BxV
    score_VxV = model.score_VxV
    V = count_BxV.shape[1]
    if score_VxV is None:
        score_VxV = jnp.zeros((V, V), count_BxV.dtype)
    kind = SOFTMAX if model.score_VxV is None else model.kind.name
    if kind == SOFTMAX:
        shifted_VxV = score_VxV - score_VxV.max(axis=1, keepdims=True)
        weight_VxV = jnp.exp(jnp.maximum(shifted_VxV, -MAX_SCORE_RANGE))  # query, key
        total_BxV = count_BxV @ weight_VxV.T  # per query type and document
        share_BxV = count_BxV / jnp.where(total_BxV == 0, 1.0, total_BxV)
    else:
        weight_VxV = score_VxV if kind == "scores_only" else 1 + score_VxV
        share_BxV = kernel.shares(count_BxV)
    attention_VxV = weight_VxV * (share_BxV.T @ count_BxV)  # summed over query and key positions
    pairs_VxV = count_BxV.T @ count_BxV
    own_V = jnp.diag(weight_VxV) * share_BxV.sum(axis=0)  # what positions pay to themselves
    if kind == "one_plus_centred":
        of_mean_BxV = share_BxV * (share_BxV @ score_VxV.T)
        attention_VxV -= of_mean_BxV.T @ count_BxV
        own_V -= of_mean_BxV.sum(axis=0)
    if not spec.infinite_documents:  # a position does not pair with itself
        attention_VxV -= jnp.diag(own_V)
        pairs_VxV -= jnp.diag(count_BxV.sum(axis=0))

    def mean_of(mask: np.ndarray) -> jax.Array:
        return jnp.where(mask, attention_VxV, 0).sum() / jnp.where(mask, pairs_VxV, 0).sum()

    partner, _ = partner_masks(spec)
    nan = jnp.full((), jnp.nan, attention_VxV.dtype)
    of_partners = mean_of(partner) if partner.any() else nan
    return *(mean_of(mask) for mask in pair_masks(spec)), of_partners


def theorem2_distance(spec: Spec, stream: Stream, value_VxV: jax.Array) -> jax.Array:
    """Compute the relative distance of the effective value matrix from that of Theorem 2."""
    optimum = lemma1_value(spec, stream)
    return norm(value_VxV[: spec.vocabulary, : spec.vocabulary] - optimum) / norm(optimum)
