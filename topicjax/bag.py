"""The exact type-space kernel: documents become counts, counts become the loss.

Without positions a token's key, query and value depend on its type alone.  A document is its counts of
keys of each type, and its masked positions are rows (document, query type, histogram of targets): the
[MASK] queries of a document share one row, every kept or random word has a row of its own.  The result
equals the token-space model to rounding.

All arrays are padded with zeros to a multiple of the vector width.  Padding never moves: its counts are
zero, it takes no part in the softmax, so its gradient is exactly zero under every optimizer.
Dimension letters: B documents, N positions, R rows, V vocabulary, D embedding, A head (all padded).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from topicjax.config import Spec, Stream, code
from topicjax.lda import Documents, key_positions
from topicjax.model import Params
from topicjax.objectives import rows_loss

VECTOR_WIDTH = 8
OVERFLOW_PROBABILITY = 1e-12  # of a batch with more kept and random words than rows: an error
UNUSUAL_PROBABILITY = 0.05  # of a batch that needs more than the usual rows: it only takes longer


class Bag(NamedTuple):
    """Documents as the kernel takes them; the first B rows are the documents' own ([MASK]) rows."""

    count_RxV: jax.Array  # keys of each type in the row's document
    query_R: jax.Array  # the type that attends
    target_RxV: jax.Array  # histogram of the words to predict, weighted so that the loss is a sum
    rows_missing: jax.Array  # kept and random words beyond the capacity: above 0 is an error


class Effective(NamedTuple):
    """All that a model is to the kernel, whatever its variant."""

    score_VxV: jax.Array | None  # query, key; None: uniform attention
    value_VxV: jax.Array  # key, output
    bias_V: jax.Array


def padded(size: int) -> int:
    """Return the size rounded up to the vector width."""
    return -(-size // VECTOR_WIDTH) * VECTOR_WIDTH


def pad(params: Params) -> Params:
    """Return the parameters with zeros appended to every axis."""
    return {
        name: jnp.pad(leaf, [(0, padded(size) - size) for size in leaf.shape])
        for name, leaf in params.items()
    }


def unpad(spec: Spec, params: Params) -> Params:
    """Return the parameters in their true shapes."""
    V, D, A = spec.vocabulary, spec.width, spec.head_width
    shapes = dict(W_K=(A, D), W_Q=(A, D), W_V=(D, D), W_E=(D, V))
    shapes |= dict(b_K=(A,), b_Q=(A,), b_V=(D,), b_pred=(V,))
    return {name: leaf[tuple(map(slice, shapes[name]))] for name, leaf in params.items()}


def effective(spec: Spec, params: Params) -> Effective:
    """Return the scores, values and biases between token types (DESIGN section 4)."""
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
    value_DxV = embed(params["W_V"])
    if W_E is None:
        return Effective(score_VxV, value_DxV.T, params["b_pred"] + b_V)
    head_bias_V = params["b_pred"] if "b_V" not in params else params["b_pred"] + W_E.T @ b_V
    return Effective(score_VxV, value_DxV.T @ W_E, head_bias_V)


@functools.lru_cache(maxsize=1024)
def row_capacity(spec: Spec, num_documents: int, more: float = OVERFLOW_PROBABILITY) -> int:
    """Return how many rows hold the kept and random words of this many documents.

    Chernoff's bound on the probability of `more` of them: exp(-s k) E[exp(s rows)], with the generating
    function of a binomial of random length, minimised over s.
    """
    positions, p_row = num_documents * spec.length_max, spec.row_probability
    if p_row <= 0 or p_row >= 1:
        return positions if p_row > 0 else 0
    slope_S = np.linspace(0.0, 10.0, 2001)[1:]
    length_N = np.arange(spec.length_min, spec.length_max + 1)
    log_factor_S = np.log1p(p_row * np.expm1(slope_S))
    log_sum_S = np.asarray(scipy.special.logsumexp(np.outer(log_factor_S, length_N), axis=1))
    log_document_S = log_sum_S - math.log(len(length_N))
    log_tail_S = num_documents * log_document_S - math.log(more)
    enough = math.ceil(np.min(log_tail_S / slope_S))  # smallest k whose bound is low enough
    return min(padded(enough), positions)


def from_documents(spec: Spec, stream: Stream, documents: Documents, uniform: bool = False) -> Bag:
    """Return the bag of finite documents, with a fixed number of rows for kept and random words.

    Under uniform attention a document's positions all predict the same: one row a document.
    """
    B, V = documents.word_BxN.shape[0], padded(spec.vocabulary)
    masked_BxN = documents.masked_BxN
    masked_B = masked_BxN.sum(axis=1)
    num_counted = jnp.maximum((masked_B > 0).sum(), 1)
    weight_B = 1.0 / (jnp.maximum(masked_B, 1) * num_counted)
    count_BxV = histogram(documents.shown_BxN, key_positions(stream, documents), V)
    is_own_BxN = masked_BxN if uniform else masked_BxN & (documents.shown_BxN == 0)
    target_BxV = histogram(documents.word_BxN, is_own_BxN, V) * weight_B[:, None]
    query_B = jnp.zeros(B, jnp.int32)
    if uniform:
        return Bag(count_BxV, query_B, target_BxV, jnp.zeros((), jnp.int32))

    capacity = row_capacity(spec, B)
    is_row = (masked_BxN & (documents.shown_BxN != 0)).reshape(-1)
    (position_C,) = jnp.nonzero(is_row, size=capacity, fill_value=is_row.size)
    taken_C = position_C < is_row.size
    safe_C = jnp.minimum(position_C, is_row.size - 1)
    document_C = safe_C // documents.word_BxN.shape[1]
    word_C = documents.word_BxN.reshape(-1)[safe_C]
    target_CxV = jax.nn.one_hot(word_C, V) * jnp.where(taken_C, weight_B[document_C], 0.0)[:, None]
    return Bag(
        jnp.concatenate([count_BxV, count_BxV[document_C]]),
        jnp.concatenate([query_B, documents.shown_BxN.reshape(-1)[safe_C]]),
        jnp.concatenate([target_BxV, target_CxV]),
        is_row.sum(dtype=jnp.int32) - capacity,
    )


def in_usual_rows(spec: Spec, function: Callable[[Bag], Any], batch: Bag, num_documents: int) -> Any:
    """Return function(batch) without the rows only an unusual batch needs: the same but for rounding."""
    usual = num_documents + row_capacity(spec, num_documents, UNUSUAL_PROBABILITY)
    spare = batch.query_R.size - usual
    if spec.infinite_documents or spare <= 0:
        return function(batch)

    def in_first_rows() -> Any:
        count_RxV, query_R, target_RxV, missing = batch
        return function(Bag(count_RxV[:usual], query_R[:usual], target_RxV[:usual], missing))

    return jax.lax.cond(largest(batch.rows_missing) <= -spare, in_first_rows, lambda: function(batch))


@jax.custom_batching.custom_vmap
def largest(number: jax.Array) -> jax.Array:
    """Return the largest over all batches that are computed together: `vmap` of `cond` would run both."""
    return number


@largest.def_vmap
def _largest_of_many(axis_size: int, in_batched: list[bool], number_B: jax.Array) -> tuple[jax.Array, bool]:
    return number_B.max(axis=0), False


def histogram(token_BxN: jax.Array, counted_BxN: jax.Array, size: int) -> jax.Array:
    """Return how often each token occurs in each document, of the counted positions."""
    document_Bx1 = jnp.arange(token_BxN.shape[0])[:, None]
    zeros_BxV = jnp.zeros((token_BxN.shape[0], size))
    return zeros_BxV.at[document_Bx1, token_BxN].add(counted_BxN.astype(zeros_BxV.dtype))


def from_distributions(spec: Spec, stream: Stream, P_BxW: jax.Array, uniform: bool = False) -> Bag:
    """Return the bag of infinite documents: every count is its expectation, every query type a row.

    Keys: [MASK] p_m (1 - p_c - p_r), word i  a P_i + p_m p_r / Tv, or (1 - p_m) P_i if masked are hidden.
    Targets of a query: [MASK] predicts P; word i was kept (p_c P_i, target i) or random (p_r / Tv, P).
    """
    B, W = P_BxW.shape
    V = padded(spec.vocabulary)
    p_m, p_c, p_r = stream.p_mask, stream.p_keep, stream.p_random
    P_BxV = jnp.pad(P_BxW, ((0, 0), (1, V - W - 1)))
    is_word_V = (jnp.arange(V) >= 1) & (jnp.arange(V) <= W)
    noise_V = jnp.where(is_word_V, p_m * p_r / W, 0.0).at[0].set(p_m * (1 - p_c - p_r))
    all_BxV = (1 - (1 - p_c) * p_m) * P_BxV + noise_V[None, :]
    hides_masked = stream.key_visibility == code("key_visibility", "unmasked")
    count_BxV = jnp.where(hides_masked, (1 - p_m) * P_BxV, all_BxV)
    none_missing = jnp.zeros((), jnp.int32)
    if uniform:
        return Bag(count_BxV, jnp.zeros(B, jnp.int32), P_BxV / B, none_missing)

    own_BxV = (1 - p_c - p_r) * P_BxV / B
    kept_BxWxV = p_c * P_BxW[:, :, None] * jax.nn.one_hot(jnp.arange(1, W + 1), V)[None]
    random_Bx1xV = (p_r / W) * P_BxV[:, None, :]
    target_BWxV = ((kept_BxWxV + random_Bx1xV) / B).reshape(B * W, V)
    return Bag(
        jnp.concatenate([count_BxV, jnp.repeat(count_BxV, W, axis=0)]),
        jnp.concatenate([jnp.zeros(B, jnp.int32), jnp.tile(jnp.arange(1, W + 1), B)]),
        jnp.concatenate([own_BxV, target_BWxV]),
        none_missing,
    )


def attention_rows(score_VxV: jax.Array | None, bag: Bag) -> jax.Array:
    """Return the attention each row pays to each key type: c_k exp(S_kq) / sum_l c_l exp(S_lq)."""
    weight_RxV = bag.count_RxV
    if score_VxV is not None:
        logit_RxV = jnp.where(bag.count_RxV > 0, score_VxV[bag.query_R], -jnp.inf)
        largest_Rx1 = logit_RxV.max(axis=1, keepdims=True)
        weight_RxV = bag.count_RxV * jnp.exp(logit_RxV - jnp.where(largest_Rx1 == -jnp.inf, 0.0, largest_Rx1))
    total_Rx1 = weight_RxV.sum(axis=1, keepdims=True)
    return weight_RxV / jnp.where(total_Rx1 == 0, 1.0, total_Rx1)  # no visible key: zeros


@jax.custom_vjp
def loss(model: Effective, bag: Bag, objective: jax.Array, real_V: jax.Array) -> jax.Array:
    """Return the loss of eq. (1) on the bag; real_V marks the outputs that are not padding."""
    return _loss_forward(model, bag, objective, real_V)[0]


def _loss_forward(model: Effective, bag: Bag, objective: jax.Array, real_V: jax.Array):
    attention_RxV = attention_rows(model.score_VxV, bag)
    output_RxV = attention_RxV @ model.value_VxV + model.bias_V[None, :]
    value, d_output_RxV = rows_loss(objective, output_RxV, bag.target_RxV, real_V)
    return value, (model, bag, attention_RxV, d_output_RxV)


def _loss_backward(residuals, cotangent: jax.Array):
    model, bag, attention_RxV, d_output_RxV = residuals
    d_output_RxV = cotangent * d_output_RxV
    d_score_VxV = None
    if model.score_VxV is not None:
        d_attention_RxV = d_output_RxV @ model.value_VxV.T
        mean_Rx1 = (attention_RxV * d_attention_RxV).sum(axis=1, keepdims=True)
        d_logit_RxV = attention_RxV * (d_attention_RxV - mean_Rx1)
        d_score_VxV = jnp.zeros_like(model.score_VxV).at[bag.query_R].add(d_logit_RxV)
    d_model = Effective(d_score_VxV, attention_RxV.T @ d_output_RxV, d_output_RxV.sum(axis=0))
    return d_model, None, None, None


loss.defvjp(_loss_forward, _loss_backward)


def real_types(spec: Spec) -> jax.Array:
    """Return which of the padded types are tokens of the vocabulary."""
    return jnp.arange(padded(spec.vocabulary)) < spec.vocabulary
