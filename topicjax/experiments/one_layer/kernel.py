"""Exact type-space kernel: reduce a model to scores and values between token types, and a bag to its loss.

The model has no position embeddings, so a token's key, query and value depend only on its type, and a
document is described by its bag (see bags.py).  The result equals the token-space model to rounding.
All arrays are padded with zeros to a multiple of the vector width.  Padding never changes: its counts are
zero and it is excluded from the softmax, so its gradient is exactly zero under every optimizer.
Attention without softmax (see `AttentionWeights`) is linear in the scores: a key's weight is a share of the
document times S, 1 + S, or 1 + S minus the mean of S over the document, which keeps the sum of weights at 1.
Dimension letters: R queries, C of them word queries, S of them that share their document's targets, V
vocabulary, D embedding, A head (all padded), K kinds of query.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.one_layer.settings import SOFTMAX, AttentionWeights, Spec
from topicjax.experiments.shared.bags import Bag, padded, shared_targets, targets
from topicjax.experiments.shared.losses import Terms, for_objective, queries_loss, where_set
from topicjax.experiments.shared.model import Params


@jax.tree_util.register_static
@dataclass(frozen=True)
class Kind:
    """How scores become attention weights; static: it selects the program."""

    name: AttentionWeights


OF_SOFTMAX = Kind(SOFTMAX)
SUM_TO_ONE = (SOFTMAX, "one_plus_centred")  # whatever the scores, the weights of a query sum to 1


class Effective(NamedTuple):
    """A model of any variant, reduced to what the kernel needs."""

    score_VxV: jax.Array | None  # query, key; None: uniform attention
    value_VxV: jax.Array  # key, output
    bias_V: jax.Array
    kind: Kind = OF_SOFTMAX


def pad(params: Params) -> Params:
    """Pad every axis of the parameters with zeros."""
    return {
        name: jnp.pad(leaf, [(0, padded(size) - size) for size in leaf.shape])
        for name, leaf in params.items()
    }


def unpad(spec: Spec, params: Params) -> Params:
    """Cut the parameters to their unpadded shapes."""
    V, D, A = spec.vocabulary, spec.width, spec.head_width
    shapes = dict(W_K=(A, D), W_Q=(A, D), W_V=(D, D), W_E=(D, V))
    shapes |= dict(b_K=(A,), b_Q=(A,), b_V=(D,), b_pred=(V,))
    return {name: leaf[tuple(map(slice, shapes[name]))] for name, leaf in params.items()}


def effective(spec: Spec, params: Params) -> Effective:
    """Compute scores, values and biases between token types: (W_K E)^T W_Q E / sqrt(d_a) and E^T W_V E."""
    W_E = params.get("W_E")
    b_V = params.get("b_V", 0.0)

    def embed(W_xD: jax.Array) -> jax.Array:
        return W_xD if W_E is None else W_xD @ W_E

    score_VxV = None
    if spec.attention == "trained":
        K_AxV, Q_AxV = embed(params["W_K"]), embed(params["W_Q"])
        if "b_K" in params:
            K_AxV, Q_AxV = K_AxV + params["b_K"][:, None], Q_AxV + params["b_Q"][:, None]
        score_VxV = (Q_AxV.T @ K_AxV) / spec.head_width**0.5
    value_DxV, kind = embed(params["W_V"]), Kind(spec.attention_weights)
    if W_E is None:
        return Effective(score_VxV, value_DxV.T, params["b_pred"] + b_V, kind)
    head_bias_V = params["b_pred"] if "b_V" not in params else params["b_pred"] + W_E.T @ b_V
    return Effective(score_VxV, value_DxV.T @ W_E, head_bias_V, kind)


def query_attention(
    score_VxV: jax.Array | None, count_RxV: jax.Array, type_R: jax.Array, kind: Kind = OF_SOFTMAX
) -> jax.Array:
    """Compute the attention of each query to each key type: c_k exp(S_kq) / sum_l c_l exp(S_lq)."""
    if score_VxV is not None and kind.name != SOFTMAX:
        return linear_attention(kind, score_VxV[type_R], shares(count_RxV))
    weight_RxV = count_RxV
    if score_VxV is not None:
        logit_RxV = jnp.where(count_RxV > 0, score_VxV[type_R], -jnp.inf)
        largest_Rx1 = logit_RxV.max(axis=1, keepdims=True)
        weight_RxV = count_RxV * jnp.exp(logit_RxV - jnp.where(largest_Rx1 == -jnp.inf, 0.0, largest_Rx1))
    total_Rx1 = weight_RxV.sum(axis=1, keepdims=True)
    return weight_RxV / jnp.where(total_Rx1 == 0, 1.0, total_Rx1)  # no visible key: zeros


def linear_attention(kind: Kind, score_RxV: jax.Array, share_RxV: jax.Array) -> jax.Array:
    """Compute attention that is linear in the scores: c_k S_kq / sum_l c_l, or 1 + S in the place of S."""
    if kind.name == "scores_only":
        return share_RxV * score_RxV
    if kind.name == "one_plus_centred":
        score_RxV = score_RxV - (share_RxV * score_RxV).sum(axis=1, keepdims=True)
    return share_RxV * (1 + score_RxV)


def shares(count_RxV: jax.Array) -> jax.Array:
    """Compute the share of each type among the keys of a document; zeros if it has none."""
    total_Rx1 = count_RxV.sum(axis=1, keepdims=True)
    return count_RxV / jnp.where(total_Rx1 == 0, 1.0, total_Rx1)


def outputs(model: Effective, bag: Bag) -> tuple[jax.Array, jax.Array]:
    """Compute the attention and the outputs of every query."""
    count_RxV = bag.count_BxV[bag.queries.document_R]
    attention_RxV = query_attention(model.score_VxV, count_RxV, bag.queries.type_R, model.kind)
    return attention_RxV, attention_RxV @ model.value_VxV + model.bias_V[None, :]


@jax.custom_vjp
def loss(model: Effective, bag: Bag, objective: jax.Array, real_V: jax.Array) -> jax.Array:
    """Compute the loss of eq. (1) on the bag; real_V marks the outputs that are not padding."""
    return loss_by_kind(model, bag, objective, real_V).total


def _loss_forward(model: Effective, bag: Bag, objective: jax.Array, real_V: jax.Array):
    attention_RxV, output_RxV = outputs(model, bag)
    value, d_output_RxV = queries_loss(objective, output_RxV, targets(bag), real_V)
    return value, (model, bag, attention_RxV, d_output_RxV)


def _loss_backward(residuals, cotangent: jax.Array):
    model, bag, attention_RxV, d_output_RxV = residuals
    d_output_RxV = cotangent * d_output_RxV
    d_score_VxV = None
    if model.score_VxV is not None:
        slope_RxV = attention_RxV  # of softmax in its scores; linear attention has its shares instead
        if model.kind.name != SOFTMAX:
            slope_RxV = shares(bag.count_BxV[bag.queries.document_R])
        d_logit_RxV = where_set(slope_RxV, d_output_RxV @ model.value_VxV.T)
        if model.kind.name in SUM_TO_ONE:
            d_logit_RxV = d_logit_RxV - slope_RxV * d_logit_RxV.sum(axis=1, keepdims=True)
        d_score_VxV = jnp.zeros_like(model.score_VxV).at[bag.queries.type_R].add(d_logit_RxV)
    d_output_VxR = jax.lax.optimization_barrier(d_output_RxV.T)  # transposed first, faster on cores
    d_value_VxV, d_bias_V = (d_output_VxR @ attention_RxV).T, d_output_RxV.sum(axis=0)
    return Effective(d_score_VxV, d_value_VxV, d_bias_V, model.kind), None, None, None


loss.defvjp(_loss_forward, _loss_backward)


class LossSplit(NamedTuple):
    """The loss of eq. (1), and its means over queries that show [MASK], their own word, another word."""

    total: jax.Array
    mask: jax.Array  # NaN without such queries, as the two below
    kept: jax.Array  # a random word that happens to be the own one counts as kept: it looks the same
    random: jax.Array


def loss_by_kind(model: Effective, bag: Bag, objective: jax.Array, real_V: jax.Array) -> LossSplit:
    """Compute the loss of eq. (1) and split it by what a query shows, with the weights of eq. (1).

    Losses are linear in their targets, so the target of a word query splits into its own word and others; and
    the loss of one word needs no target array.
    """
    queries, B, every_R = bag.queries, bag.count_BxV.shape[0], jnp.arange(bag.queries.type_R.size)
    is_kept_C = (queries.word_R == queries.type_R)[B:]  # the first B queries show [MASK]
    shared_SxV = shared_targets(bag)
    every_S, type_S = every_R[: len(shared_SxV)], queries.type_R[: len(shared_SxV)]

    def sums(word_R: jax.Array, shared_S: jax.Array, own_S: jax.Array) -> jax.Array:
        """Sum over queries of each kind, given their one word, their shared words, and their type there."""
        kept = jnp.where(is_kept_C, word_R[B:], 0.0).sum() + own_S[B:].sum()
        random = jnp.where(is_kept_C, 0.0, word_R[B:]).sum() + (shared_S - own_S)[B:].sum()
        return jnp.stack([word_R[:B].sum() + shared_S[:B].sum(), kept, random])

    own_S = shared_SxV[every_S, type_S]
    weight_R, weight_S = queries.word_weight_R, shared_SxV.sum(axis=1)

    def losses(terms: Callable[[jax.Array], Terms], output_RxV: jax.Array) -> jax.Array:
        any_word_R, word_RxV = terms(output_RxV)
        any_word_S, word_SxV = any_word_R[: len(shared_SxV)], word_RxV[: len(shared_SxV)]
        return sums(
            weight_R * (any_word_R + word_RxV[every_R, queries.word_R]),
            weight_S * any_word_S + where_set(shared_SxV, word_SxV).sum(axis=1),
            own_S * (any_word_S + word_SxV[every_S, type_S]),
        )

    loss_K = for_objective(objective, losses, outputs(model, bag)[1], real_V)
    weight_K = sums(weight_R, weight_S, own_S)
    mean_K = jnp.where(weight_K > 0, loss_K / jnp.where(weight_K > 0, weight_K, 1.0), jnp.nan)
    return LossSplit(loss_K.sum(), *mean_K)


def real_types(spec: Spec) -> jax.Array:
    """Mark which of the padded types are tokens of the vocabulary."""
    return jnp.arange(padded(spec.vocabulary)) < spec.vocabulary
