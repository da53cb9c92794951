"""The encoder over rows, as it is trained: equal positions of a document are computed once.

For measurements the scores of each document and layer can be multiplied by a gate, and the model with uniform
attention has its own function, in which outputs of attention can be gated and layer norms can keep given
scales.  The last layer computes only rows that predict.
Dimension letters: B documents, U rows (keys), R rows (queries), Q rows with words to predict, D width,
H heads, A size of a head, V vocabulary, L layers, O offsets with a relative bias.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.shared.encoder import EPSILON, along, feed_forward, layer_norm, offsets
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.settings import POST_NORM, PRE_NORM, LayerHypers, LayerSpec

LOOPED = 12  # layers from which on they are a loop in the program

Watch = Callable[[jax.Array], Any]  # takes the attention of a layer, B x H x R x U


class Predicting(NamedTuple):
    """Rows that predict: some of the first Q of each document, by index among all of these."""

    Q: int
    index_F: jax.Array


def head(spec: LayerSpec, params: Params) -> jax.Array:
    """Return the matrix, D x V, from states to outputs."""
    return embedding(spec, params) if spec.head == "tied" else params["W_head"].T


def embedding(spec: LayerSpec, params: Params) -> jax.Array:
    """Return W_E, D x V."""
    return params["W_E"] if "W_E" in params else jnp.eye(spec.vocabulary)


def first_states(spec: LayerSpec, params: Params, rows: Any) -> jax.Array:
    """Look up the states B x U x D before the first layer."""
    X_BxUxD = embedding(spec, params).T[rows.token_BxU]
    return X_BxUxD + params["W_P"].T[rows.place_BxU] if spec.places else X_BxUxD


def states(
    spec: LayerSpec,
    hypers: LayerHypers,
    params: Params,
    rows: Any,
    predicting: int | Predicting,
    gate_BxL: jax.Array | None = None,
) -> jax.Array:
    """Compute the last states of the rows that predict: the first Q of each document, or some of these.

    `gate_BxL` multiplies the scores of each document and layer (0: uniform attention).  Only token_BxU,
    place_BxU and keys_BxU of the rows are used.  With a relative bias the rows are the positions, in their
    order.
    """
    return watched_states(spec, hypers, params, rows, predicting, None, gate_BxL)[0]


def watched_states(
    spec: LayerSpec,
    hypers: LayerHypers,
    params: Params,
    rows: Any,
    predicting: int | Predicting,
    watch: Watch | None,
    gate_BxL: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
    """Compute `states`, and what `watch` returns for the attention of each layer, along a leading axis.

    The last layer then computes all rows too.
    """

    def layer(X_BxUxD: jax.Array, inputs: Any, given: None, is_last: bool) -> tuple[jax.Array, Any]:
        own, gate_B = inputs
        chosen = predicting if is_last else X_BxUxD.shape[1]
        X_BxRxD, found = attend(spec, hypers, own, rows.keys_BxU, X_BxUxD, chosen, gate_B, watch)
        return transform(spec, hypers, own, X_BxRxD) if spec.mlp else X_BxRxD, found

    inputs = of_layers(params), None if gate_BxL is None else gate_BxL.T
    X, found, found_last = through_layers(layer, first_states(spec, params, rows), inputs)
    every = jax.tree.map(lambda first, last: jnp.concatenate([first, last[None]]), found, found_last)
    return normed(hypers, PRE_NORM, X, params["gain_last"], params["bias_last"]), every


def through_layers(
    layer: Callable[[jax.Array, Any, Any, bool], tuple[jax.Array, Any]],
    X_BxUxD: jax.Array,
    inputs: Any,
    given: tuple[Any, Any] = (None, None),
) -> tuple[jax.Array, Any, Any]:
    """Apply layer(states, its inputs, what it is given, whether it is the last) -> (states, what it found).

    `inputs` has a leading axis of all layers.  Return the last states and what was found: of all layers but
    the last along a leading axis, and of the last, whose shapes may differ.  `given` is such a pair.
    Few layers are written out in the program, whose steps are then fastest.  Many are a loop, so that a deep
    model compiles in little more than the time of a few layers.
    """
    number, (given_first, given_last) = len(jax.tree.leaves(inputs)[0]), given

    def at(place: int | slice, stacked: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[place], stacked)

    if number >= LOOPED:
        first = at(slice(-1), inputs), given_first
        X_BxUxD, found = jax.lax.scan(lambda X_BxUxD, own: layer(X_BxUxD, *own, False), X_BxUxD, first)
    else:
        each = []
        for place in range(number - 1):
            X_BxUxD, own = layer(X_BxUxD, at(place, inputs), at(place, given_first), False)
            each.append(own)
        found = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each) if each else None
    X_BxQxD, found_last = layer(X_BxUxD, at(-1, inputs), given_last, True)
    if number == 1:
        found = jax.tree.map(lambda leaf: jnp.zeros((0, *leaf.shape), leaf.dtype), found_last)
    return X_BxQxD, found, found_last


def choose(chosen: int | Predicting, X_BxRxD: jax.Array) -> jax.Array:
    """Take the chosen rows: B x Q x D, or F x D."""
    if isinstance(chosen, int):
        return X_BxRxD[:, :chosen]
    return X_BxRxD[:, : chosen.Q].reshape(-1, X_BxRxD.shape[2])[chosen.index_F]


STACKED = ("W_K", "W_Q", "W_V", "R", "W_O", "W_1", "b_1", "W_2", "b_2")
STACKED += ("gain_attention", "bias_attention", "gain_mlp", "bias_mlp")


def of_layers(params: Params) -> Params:
    """Return the parameters of layers, stacked along a leading axis."""
    return {name: leaf for name, leaf in params.items() if name in STACKED}


def of_layer(params: Params, layer: int) -> Params:
    """Return the parameters of one layer."""
    return {name: leaf[layer] for name, leaf in of_layers(params).items()}


def attend(
    spec: LayerSpec,
    hypers: LayerHypers,
    own: Params,
    keys_BxU: jax.Array,
    X_BxUxD: jax.Array,
    chosen: int | Predicting,
    gate_B: jax.Array | None,
    watch: Watch | None,
) -> tuple[jax.Array, Any]:
    """Apply a layer's attention; return the states of the chosen rows, and what `watch` returns."""
    needed = chosen if isinstance(chosen, int) else chosen.Q
    needed = X_BxUxD.shape[1] if watch is not None else needed
    gain, bias = own["gain_attention"], own["bias_attention"]
    inside_BxUxD = normed(hypers, PRE_NORM, X_BxUxD, gain, bias)
    K_BxUxHxA, V_BxUxHxA, Q_BxRxHxA = (in_heads(spec, each) for each in projected(own, inside_BxUxD, needed))
    score_BxHxRxU = jnp.einsum("brha,buha->bhru", Q_BxRxHxA, K_BxUxHxA) / spec.head_size**0.5
    if spec.reach:
        score_BxHxRxU += relative_bias(spec, hypers, own, *score_BxHxRxU.shape[2:])[None]
    if gate_B is not None:
        score_BxHxRxU = score_BxHxRxU * gate_B[:, None, None, None]
    attention_BxHxRxU = counted_softmax(score_BxHxRxU, keys_BxU[:, None, None, :])
    found = None if watch is None else watch(attention_BxHxRxU)
    joined_BxRxD = jnp.einsum("bhru,buha->brha", attention_BxHxRxU, V_BxUxHxA).reshape(
        *Q_BxRxHxA.shape[:2], spec.size
    )
    X_BxRxD, joined_BxRxD = choose(chosen, X_BxUxD), choose(chosen, joined_BxRxD)
    if spec.output_projection:
        joined_BxRxD = joined_BxRxD @ own["W_O"].T
    return normed(hypers, POST_NORM, passed_on(hypers, X_BxRxD) + joined_BxRxD, gain, bias), found


def relative_bias(spec: LayerSpec, hypers: Any, own: Params, R: int, U: int) -> jax.Array:
    """Compute what a layer's heads add to the scores of positions at most `reach` apart: H x R x U."""
    bias_HxO = hypers.bias_gain * own["R"]
    return jnp.tensordot(bias_HxO, offsets(spec.reach, U)[:, :R], 1)


def projected(own: Params, inside_BxUxD: jax.Array, needed: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute keys and values of all rows, and queries of the first `needed`, in one product or two."""
    names = ("W_K", "W_V", "W_Q") if needed == inside_BxUxD.shape[1] else ("W_K", "W_V")
    parts: Any = equal_parts(len(names), inside_BxUxD @ jnp.concatenate([own[name] for name in names]).T)
    Q_BxRxD = parts[2] if len(parts) == 3 else inside_BxUxD[:, :needed] @ own["W_Q"].T
    return parts[0], parts[1], Q_BxRxD


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def equal_parts(number: int, X_BxUxM: jax.Array) -> tuple[jax.Array, ...]:
    """Cut the last axis into equal parts; their gradients are joined, not padded and added."""
    return tuple(jnp.split(X_BxUxM, number, axis=-1))


equal_parts.defvjp(
    lambda number, X_BxUxM: (equal_parts(number, X_BxUxM), None),
    lambda number, _, d_parts: (jnp.concatenate(d_parts, axis=-1),),
)


def transform(spec: LayerSpec, hypers: LayerHypers, own: Params, X_BxRxD: jax.Array) -> jax.Array:
    """Apply a layer's MLP."""
    gain, bias = own["gain_mlp"], own["bias_mlp"]
    inside_BxRxD = normed(hypers, PRE_NORM, X_BxRxD, gain, bias)
    added_BxRxD = feed_forward(inside_BxRxD, *(own[name] for name in ("W_1", "b_1", "W_2", "b_2")))
    return normed(hypers, POST_NORM, passed_on(hypers, X_BxRxD) + added_BxRxD, gain, bias)


def normed(hypers: LayerHypers, where: int, X: jax.Array, gain_D: jax.Array, bias_D: jax.Array) -> jax.Array:
    """Apply layer norm if the trial has one at this place."""
    return normed_if(hypers.layer_norm == where, X, gain_D, bias_D)


@jax.custom_vjp
def normed_if(applies: jax.Array, X: jax.Array, gain_D: jax.Array, bias_D: jax.Array) -> jax.Array:
    """Apply layer norm if asked to.

    Gradients start from X again: what a branch would keep for them has to be copied, or filled with zeros by
    the other branch, which takes longer than a second pass over X.
    """
    return jax.lax.cond(applies, lambda: layer_norm(X, gain_D, bias_D), lambda: X)


def _normed_backward(given: tuple[jax.Array, ...], d_Y: jax.Array) -> tuple[Any, ...]:
    applies, *inputs = given
    return None, *jax.lax.cond(
        applies,
        lambda: jax.vjp(layer_norm, *inputs)[1](d_Y),
        lambda: (d_Y, *(jnp.zeros_like(each) for each in inputs[1:])),
    )


normed_if.defvjp(lambda *given: (normed_if(*given), given), _normed_backward)


class Scales(NamedTuple):
    """Scales of layer norms: within all layers but the last, within the last, and after it."""

    first: tuple[jax.Array, ...]
    last: tuple[jax.Array, ...]
    end: tuple[jax.Array, ...]


def uniform_states(
    spec: LayerSpec,
    hypers: LayerHypers,
    params: Params,
    rows: Any,
    predicting: int | Predicting,
    gate_BxL: jax.Array | None = None,
    scales: Scales | None = None,
) -> tuple[jax.Array, Scales]:
    """Compute the last states of the rows that predict under uniform attention, and the scales of all norms.

    Every row of a document then attends to the mean of its keys, computed once.  `gate_BxL` multiplies the
    output of attention (0: silenced).  With `scales`, layer norms centre their input, but multiply it by
    these instead of 1 / its standard deviation.
    """
    keys_BxU = rows.keys_BxU
    share_BxU = keys_BxU / jnp.maximum(keys_BxU.sum(axis=1, keepdims=True), 1e-30)  # 0 without keys

    def layer(X_BxUxD: jax.Array, inputs: Any, given: Any, is_last: bool) -> tuple[jax.Array, Any]:
        own, gate_B = inputs
        norm = Norms(hypers, given)
        norm_weights = own["gain_attention"], own["bias_attention"]
        inside_BxUxD = norm(PRE_NORM, X_BxUxD, *norm_weights)
        joined_BxD = jnp.einsum("bu,bud->bd", share_BxU, inside_BxUxD) @ own["W_V"].T
        joined_BxD = joined_BxD @ own["W_O"].T if spec.output_projection else joined_BxD
        joined_BxD = joined_BxD if gate_B is None else joined_BxD * gate_B[:, None]
        added_BxUxD = passed_on(hypers, X_BxUxD) + joined_BxD[:, None, :]
        added_BxUxD = choose(predicting, added_BxUxD) if is_last else added_BxUxD
        X_BxUxD = norm(POST_NORM, added_BxUxD, *norm_weights)
        if spec.mlp:
            norm_weights = own["gain_mlp"], own["bias_mlp"]
            inside_BxUxD = norm(PRE_NORM, X_BxUxD, *norm_weights)
            added_BxUxD = feed_forward(inside_BxUxD, *(own[name] for name in ("W_1", "b_1", "W_2", "b_2")))
            X_BxUxD = norm(POST_NORM, passed_on(hypers, X_BxUxD) + added_BxUxD, *norm_weights)
        return X_BxUxD, tuple(norm.used)

    given_first, given_last, given_end = scales or (None, None, None)
    inputs = of_layers(params), None if gate_BxL is None else gate_BxL.T
    X, used, used_last = through_layers(
        layer, first_states(spec, params, rows), inputs, (given_first, given_last)
    )
    end = Norms(hypers, given_end)
    X = end(PRE_NORM, X, params["gain_last"], params["bias_last"])
    return X, Scales(used, used_last, tuple(end.used))


class Norms:
    """Layer norms of one layer in their order: with these scales, if given; `used` lists those they had."""

    def __init__(self, hypers: LayerHypers, given: Sequence[jax.Array] | None) -> None:
        self.hypers, self.given = hypers, given
        self.used: list[jax.Array] = []

    def __call__(self, where: int, X_BxUxD: jax.Array, gain_D: jax.Array, bias_D: jax.Array) -> jax.Array:
        """Apply layer norm if the trial has one at this place."""
        given = None if self.given is None else self.given[len(self.used)]
        Y_BxUxD, scale_BxUx1 = jax.lax.cond(
            self.hypers.layer_norm == where,
            lambda: norm_with_scale(X_BxUxD, gain_D, bias_D, given),
            lambda: (X_BxUxD, jnp.ones_like(X_BxUxD[..., :1])),
        )
        self.used.append(scale_BxUx1)
        return Y_BxUxD


def norm_with_scale(
    X: jax.Array, gain_D: jax.Array, bias_D: jax.Array, scale: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Apply layer norm with this scale instead of 1 / standard deviation, if given; return it too."""
    centred = X - X.mean(axis=-1, keepdims=True)
    if scale is None:
        scale = jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    return centred * scale * along(gain_D, X) + along(bias_D, X), scale


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
