"""The exact type-space kernel: documents become counts, counts become the loss.

The model has no position embeddings, so a token's key, query and value depend on its type alone.  A document
is described by how many keys of each type it has, and its masked positions by queries (document, query type,
histogram of targets): the positions of a document that show [MASK] are one query, every kept or random word
is a query of its own.  The result equals the token-space model to rounding.

All arrays are padded with zeros to a multiple of the vector width.  Padding never changes: its counts are
zero and it takes no part in the softmax, so its gradient is exactly zero under every optimizer.
Dimension letters: B documents, N positions, R queries, C of them kept and random words, V vocabulary,
D embedding, A head (all padded).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from topicjax.experiments.one_layer.lda import Documents, key_positions
from topicjax.experiments.one_layer.losses import queries_loss
from topicjax.experiments.one_layer.model import Params
from topicjax.experiments.one_layer.settings import Spec, Stream, code

VECTOR_WIDTH = 8
OVERFLOW_PROBABILITY = 1e-12  # of a batch with more kept and random words than the capacity: an error
USUAL_SIGMAS = (0.0, 1.7)  # above the mean: a batch that needs more queries only takes longer


class Bag(NamedTuple):
    """Documents as the kernel takes them; the first B queries are the [MASK] queries of the B documents."""

    count_RxV: jax.Array  # keys of each type in the query's document
    query_R: jax.Array  # the type of the query
    target_RxV: jax.Array  # histogram of the words to predict, weighted so that the loss is a sum
    queries_missing: jax.Array  # kept and random words beyond the capacity: above 0 is an error


class Effective(NamedTuple):
    """A model of any variant, reduced to what the kernel needs."""

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
    """Return the scores, values and biases between token types: (W_K E)^T W_Q E / sqrt(d_a) and E^T W_V E."""
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
def query_capacity(spec: Spec, num_documents: int, overflow: float = OVERFLOW_PROBABILITY) -> int:
    """Return how many queries suffice for the kept and random words of this many documents.

    The probability of more than k of them is at most exp(-s k) E[exp(s number)] for every s (Chernoff); the
    number is a binomial of random length.  Return a k for which that is below `overflow`.
    """
    positions, probability = num_documents * spec.longest, spec.word_query_probability
    if probability <= 0 or probability >= 1:
        return positions if probability > 0 else 0
    slope_S = np.linspace(0.0, 10.0, 2001)[1:]
    length_N = np.arange(spec.shortest, spec.longest + 1)
    log_factor_S = np.log1p(probability * np.expm1(slope_S))
    log_sum_S = np.asarray(scipy.special.logsumexp(np.outer(log_factor_S, length_N), axis=1))
    log_document_S = log_sum_S - math.log(len(length_N))
    log_tail_S = num_documents * log_document_S - math.log(overflow)
    enough = math.ceil(np.min(log_tail_S / slope_S))  # smallest k whose bound is low enough
    return min(padded(enough), positions)


def from_documents(spec: Spec, stream: Stream, documents: Documents, uniform: bool = False) -> Bag:
    """Return the bag of finite documents, with a fixed number of queries for kept and random words.

    Under uniform attention all positions of a document predict the same: one query per document.
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

    capacity = query_capacity(spec, B)
    is_word_query = (masked_BxN & (documents.shown_BxN != 0)).reshape(-1)
    (position_C,) = jnp.nonzero(is_word_query, size=capacity, fill_value=is_word_query.size)
    taken_C = position_C < is_word_query.size
    safe_C = jnp.minimum(position_C, is_word_query.size - 1)
    document_C = safe_C // documents.word_BxN.shape[1]
    word_C = documents.word_BxN.reshape(-1)[safe_C]
    target_CxV = jax.nn.one_hot(word_C, V) * jnp.where(taken_C, weight_B[document_C], 0.0)[:, None]
    return Bag(
        jnp.concatenate([count_BxV, count_BxV[document_C]]),
        jnp.concatenate([query_B, documents.shown_BxN.reshape(-1)[safe_C]]),
        jnp.concatenate([target_BxV, target_CxV]),
        is_word_query.sum(dtype=jnp.int32) - capacity,
    )


def with_usual_queries(
    spec: Spec, function: Callable[[Bag], Any], batch: Bag, num_documents: int, num_sizes: int = 1
) -> Any:
    """Return function(batch) to rounding, without the queries that only unusual batches need.

    The function is compiled for all queries and for this many smaller sizes.
    """
    most = batch.query_R.size - num_documents
    sizes = [size for size in usual_capacities(spec, num_documents)[-num_sizes:] if size < most]
    if spec.infinite_documents or not sizes or most == 0:
        return function(batch)

    def with_first(size: int) -> Callable[[], Any]:
        count_RxV, query_R, target_RxV, missing = batch
        end = num_documents + size
        return lambda: function(Bag(count_RxV[:end], query_R[:end], target_RxV[:end], missing))

    needed = largest(batch.queries_missing) + most
    place = sum((needed > size).astype(jnp.int32) for size in sizes)
    return jax.lax.switch(place, [*map(with_first, sizes), lambda: function(batch)])


def usual_capacities(spec: Spec, num_documents: int) -> list[int]:
    """Return numbers of kept and random words that about half of the batches, and nearly all, stay below."""
    probability, lengths = spec.word_query_probability, spec.longest - spec.shortest + 1
    mean_length = (spec.shortest + spec.longest) / 2
    mean = num_documents * probability * mean_length
    variance = mean * (1 - probability) + num_documents * probability**2 * (lengths**2 - 1) / 12
    return sorted({padded(math.ceil(mean + sigmas * variance**0.5)) for sigmas in USUAL_SIGMAS})


@jax.custom_batching.custom_vmap
def largest(number: jax.Array) -> jax.Array:
    """Return the number; under `vmap` the largest, unbatched: `cond` on it then runs one branch only."""
    return number


@largest.def_vmap
def _largest_of_many(axis_size: int, in_batched: list[bool], number_B: jax.Array) -> tuple[jax.Array, bool]:
    return number_B.max(axis=0), False


def histogram(token_BxN: jax.Array, counted_BxN: jax.Array, size: int) -> jax.Array:
    """Return how often each token occurs at the counted positions of each document, B x size."""
    document_Bx1 = jnp.arange(token_BxN.shape[0])[:, None]
    zeros_BxV = jnp.zeros((token_BxN.shape[0], size))
    return zeros_BxV.at[document_Bx1, token_BxN].add(counted_BxN.astype(zeros_BxV.dtype))


def from_distributions(spec: Spec, stream: Stream, P_BxW: jax.Array, uniform: bool = False) -> Bag:
    """Return the bag of infinite documents: every count is its expectation, every type is a query.

    Keys: p_m (1 - p_c - p_r) for [MASK], (1 - (1 - p_c) p_m) P_i + p_m p_r / Tv for word i; only (1 - p_m)
    P_i for word i if masked positions are hidden.  Targets: [MASK] has P, word i was kept (weight p_c P_i,
    target i) or drawn at random (weight p_r / Tv, target P).
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


def query_attention(score_VxV: jax.Array | None, bag: Bag) -> jax.Array:
    """Return the attention of each query to each key type: c_k exp(S_kq) / sum_l c_l exp(S_lq)."""
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
    attention_RxV = query_attention(model.score_VxV, bag)
    output_RxV = attention_RxV @ model.value_VxV + model.bias_V[None, :]
    value, d_output_RxV = queries_loss(objective, output_RxV, bag.target_RxV, real_V)
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
