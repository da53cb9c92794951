"""The encoder over rows, as it is trained: equal positions of a document are computed once.

Each layer has two gates, for measurements: the first multiplies its scores (0: uniform attention), the second
the output of its attention (0: silenced).  The last layer computes only rows that predict.
Dimension letters: B documents, U rows (keys), R rows (queries), Q rows with words to predict, D width,
H heads, A size of a head, V vocabulary, L layers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.shared.encoder import feed_forward, layer_norm
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.settings import POST_NORM, PRE_NORM, LayerHypers, LayerSpec


class Gates(NamedTuple):
    """Gates on the attention of each layer: 1 as trained, 0 uniform (score) or silenced (output)."""

    score_L: jax.Array
    output_L: jax.Array


Watch = Callable[[jax.Array], object]  # takes the attention of a layer, B x H x R x U


def open_gates(spec: LayerSpec) -> Gates:
    """Return the gates of the model as trained."""
    return Gates(jnp.ones(spec.layers), jnp.ones(spec.layers))


def head(spec: LayerSpec, params: Params) -> jax.Array:
    """Return the matrix, D x V, from states to outputs."""
    return embedding(spec, params) if spec.head == "tied" else params["W_head"].T


def embedding(spec: LayerSpec, params: Params) -> jax.Array:
    """Return W_E, D x V."""
    return params["W_E"] if "W_E" in params else jnp.eye(spec.vocabulary)


def states(
    spec: LayerSpec,
    hypers: LayerHypers,
    params: Params,
    rows: Any,
    Q: int,
    gates: Gates | None = None,
    watch: Watch | None = None,
) -> jax.Array:
    """Compute the last states of the first Q rows of each document: those that predict.

    Only token_BxU, place_BxU and keys_BxU of the rows are used.
    """
    X_BxUxD = embedding(spec, params).T[rows.token_BxU]
    if spec.places:
        X_BxUxD = X_BxUxD + params["W_P"].T[rows.place_BxU]
    for layer in range(spec.layers):
        own = {name: leaf[layer] for name, leaf in params.items() if leaf.ndim > 1 and name in STACKED}
        gate = None if gates is None else (gates.score_L[layer], gates.output_L[layer])
        needed = Q if layer == spec.layers - 1 and watch is None else X_BxUxD.shape[1]
        X_BxUxD = attend(spec, hypers, own, rows.keys_BxU, X_BxUxD, needed, gate, watch)
        X_BxUxD = transform(spec, hypers, own, X_BxUxD) if spec.mlp else X_BxUxD
    return normed(hypers, PRE_NORM, X_BxUxD[:, :Q], params["gain_last"], params["bias_last"])


STACKED = ("W_K", "W_Q", "W_V", "W_O", "W_1", "b_1", "W_2", "b_2")
STACKED += ("gain_attention", "bias_attention", "gain_mlp", "bias_mlp")


def attend(
    spec: LayerSpec,
    hypers: LayerHypers,
    own: Params,
    keys_BxU: jax.Array,
    X_BxUxD: jax.Array,
    needed: int,
    gate: tuple[jax.Array, jax.Array] | None,
    watch: Watch | None,
) -> jax.Array:
    """Apply a layer's attention; return the states of the first `needed` rows."""
    gain, bias = own["gain_attention"], own["bias_attention"]
    inside_BxUxD = normed(hypers, PRE_NORM, X_BxUxD, gain, bias)
    K_BxUxHxA, V_BxUxHxA = (in_heads(spec, inside_BxUxD @ own[name].T) for name in ("W_K", "W_V"))
    Q_BxRxHxA = in_heads(spec, inside_BxUxD[:, :needed] @ own["W_Q"].T)
    score_BxHxRxU = jnp.einsum("brha,buha->bhru", Q_BxRxHxA, K_BxUxHxA) / spec.head_size**0.5
    if gate is not None:
        score_BxHxRxU = score_BxHxRxU * gate[0]
    attention_BxHxRxU = counted_softmax(score_BxHxRxU, keys_BxU[:, None, None, :])
    if watch is not None:
        watch(attention_BxHxRxU)
    joined_BxRxD = jnp.einsum("bhru,buha->brha", attention_BxHxRxU, V_BxUxHxA).reshape(
        *Q_BxRxHxA.shape[:2], spec.size
    )
    if spec.output_projection:
        joined_BxRxD = joined_BxRxD @ own["W_O"].T
    if gate is not None:
        joined_BxRxD = joined_BxRxD * gate[1]
    return normed(hypers, POST_NORM, passed_on(hypers, X_BxUxD[:, :needed]) + joined_BxRxD, gain, bias)


def transform(spec: LayerSpec, hypers: LayerHypers, own: Params, X_BxRxD: jax.Array) -> jax.Array:
    """Apply a layer's MLP."""
    gain, bias = own["gain_mlp"], own["bias_mlp"]
    inside_BxRxD = normed(hypers, PRE_NORM, X_BxRxD, gain, bias)
    added_BxRxD = feed_forward(inside_BxRxD, *(own[name] for name in ("W_1", "b_1", "W_2", "b_2")))
    return normed(hypers, POST_NORM, passed_on(hypers, X_BxRxD) + added_BxRxD, gain, bias)


def normed(hypers: LayerHypers, where: int, X: jax.Array, gain_D: jax.Array, bias_D: jax.Array) -> jax.Array:
    """Apply layer norm if the trial has one at this place."""
    return jax.lax.cond(
        hypers.layer_norm == where,
        lambda: layer_norm(X, gain_D, bias_D),
        lambda: X,
    )


def passed_on(hypers: LayerHypers, X: jax.Array) -> jax.Array:
    """Return what a residual connection adds: the states, or zeros."""
    return X * hypers.residual.astype(X.dtype)


def in_heads(spec: LayerSpec, X_BxRxD: jax.Array) -> jax.Array:
    """Split off the axis of heads."""
    return X_BxRxD.reshape(*X_BxRxD.shape[:2], spec.heads, spec.head_size)


@jax.custom_vjp
def counted_softmax(score: jax.Array, count: jax.Array) -> jax.Array:
    """Compute count exp(score), normalised over the last axis; zeros where all counts are 0."""
    logit = jnp.where(count > 0, score, -jnp.inf)
    largest = logit.max(axis=-1, keepdims=True)
    weight = count * jnp.exp(logit - jnp.where(largest == -jnp.inf, 0.0, largest))
    total = weight.sum(axis=-1, keepdims=True)
    return weight / jnp.where(total == 0, 1.0, total)


def _softmax_forward(score: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    attention = jax.lax.optimization_barrier(counted_softmax(score, count))  # prevents recomputation
    return attention, attention


def _softmax_backward(attention: jax.Array, d_attention: jax.Array) -> tuple[jax.Array, None]:
    mean = (attention * d_attention).sum(axis=-1, keepdims=True)
    return attention * (d_attention - mean), None


counted_softmax.defvjp(_softmax_forward, _softmax_backward)
