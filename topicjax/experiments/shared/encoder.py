"""Reference definition of the encoder, position by position.

It is slow and serves as the reference in tests; training uses the equivalent `layers`.  With one layer, one
head and everything else off it is the one-layer transformer of eq. (5)-(7).
Dimension letters: N positions, V vocabulary, D width, L layers, H heads, A size of a head, M hidden units,
O offsets from -r to r without 0, of a key from its query.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from topicjax.experiments.shared.model import Initializer, Params, initializer, masked_softmax
from topicjax.experiments.shared.settings import POST_NORM, PRE_NORM, LayerHypers, LayerSpec

EPSILON = 1e-5  # of layer norms
BY_LAYER = ("W_K", "W_Q", "W_V")  # start near zero; rows are ordered by head


class Encoder(nn.Module):
    """States X = W_E tokens; in each layer attention, then the MLP; outputs by W_E^T or by W_head."""

    spec: LayerSpec
    hypers: Any  # LayerHypers, or others with these fields

    @nn.compact
    def __call__(self, shown_N: jax.Array, is_key_N: jax.Array) -> jax.Array:
        """Compute the outputs f_NxV of every position of a document."""
        spec, hypers = self.spec, self.hypers
        weights = {name: self.param(name, *how) for name, how in parameters(spec, hypers).items()}
        V = spec.vocabulary
        W_E = weights["W_E"] if spec.embedding != "one_hot" else jnp.eye(V)
        X_NxD = W_E.T[shown_N]
        if spec.places:
            X_NxD = X_NxD + weights["W_P"].T[: len(shown_N)]
        is_pre = hypers.layer_norm == PRE_NORM
        is_post = hypers.layer_norm == POST_NORM

        def sublayer(X_NxD: jax.Array, function: Any, norm: str, layer: int) -> jax.Array:
            gain, bias = weights[f"gain_{norm}"][layer], weights[f"bias_{norm}"][layer]
            inside = jnp.where(is_pre, layer_norm(X_NxD, gain, bias), X_NxD)
            X_NxD = jnp.where(hypers.residual, X_NxD, 0.0) + function(inside, layer)
            return jnp.where(is_post, layer_norm(X_NxD, gain, bias), X_NxD)

        def attention(X_NxD: jax.Array, layer: int) -> jax.Array:
            heads = []
            for head in range(spec.heads):
                own = slice(head * spec.head_size, (head + 1) * spec.head_size)
                K_NxA, Q_NxA, V_NxA = (X_NxD @ weights[name][layer, own].T for name in BY_LAYER)
                score_NxN = K_NxA @ Q_NxA.T / spec.head_size**0.5  # key, query
                if spec.reach:
                    bias_O = hypers.bias_gain * weights["R"][layer, head]
                    score_NxN += jnp.tensordot(bias_O, offsets(spec.reach, len(shown_N)), 1).T
                heads.append(masked_softmax(score_NxN, is_key_N[:, None]).T @ V_NxA)
            joined_NxD = jnp.concatenate(heads, axis=1)
            return joined_NxD @ weights["W_O"][layer].T if spec.output_projection else joined_NxD

        def mlp(X_NxD: jax.Array, layer: int) -> jax.Array:
            return feed_forward(X_NxD, *(weights[name][layer] for name in ("W_1", "b_1", "W_2", "b_2")))

        for layer in range(spec.layers):
            X_NxD = sublayer(X_NxD, attention, "attention", layer)
            X_NxD = sublayer(X_NxD, mlp, "mlp", layer) if spec.mlp else X_NxD
        last_NxD = layer_norm(X_NxD, weights["gain_last"], weights["bias_last"])
        X_NxD = jnp.where(is_pre, last_NxD, X_NxD)
        head_DxV = W_E if spec.head == "tied" else weights["W_head"].T
        return X_NxD @ head_DxV + weights["b_pred"][None, :]


def offsets(reach: int, positions: int) -> np.ndarray:
    """Mark for each offset the pairs of positions (query, key) that it separates: O x N x N."""
    place = np.arange(positions)
    offset_O = [offset for offset in range(-reach, reach + 1) if offset]
    return np.array([place[None, :] - place[:, None] == offset for offset in offset_O], np.float32)


def layer_norm(X_NxD: jax.Array, gain_D: jax.Array, bias_D: jax.Array) -> jax.Array:
    """Normalise states to mean 0 and variance 1, then scale and shift them."""
    centred_NxD = X_NxD - X_NxD.mean(axis=-1, keepdims=True)
    variance_Nx1 = (centred_NxD**2).mean(axis=-1, keepdims=True)
    scaled_NxD = centred_NxD * jax.lax.rsqrt(variance_Nx1 + EPSILON)
    return scaled_NxD * along(gain_D, X_NxD) + along(bias_D, X_NxD)


def feed_forward(X: jax.Array, W_1: jax.Array, b_1: jax.Array, W_2: jax.Array, b_2: jax.Array) -> jax.Array:
    """Compute what the MLP adds to the states."""
    hidden = nn.gelu(X @ W_1.T + along(b_1, X))
    return hidden @ W_2.T + along(b_2, X)


def along(values_D: jax.Array, X: jax.Array) -> jax.Array:
    """Reshape values to broadcast along the last axis of an array."""
    return values_D.reshape((1,) * (X.ndim - 1) + values_D.shape)


def parameters(spec: LayerSpec, hypers: LayerHypers) -> dict[str, tuple[Initializer, tuple[int, ...]]]:
    """List the initializer and shape of every parameter; those of layers are stacked."""
    L, D, V, M = spec.layers, spec.size, spec.vocabulary, spec.mlp
    near_zero, usual = by_layer(initializer(hypers)), by_layer(usual_initializer)
    zeros, ones = nn.initializers.zeros, nn.initializers.ones
    embedding = nn.initializers.normal(hypers.embedding_scale / D**0.5)
    score = near_zero if spec.attention == "trained" else zeros
    found: dict[str, Any] = {"W_K": (score, (L, D, D)), "W_Q": (score, (L, D, D))}
    found |= {"W_V": (near_zero, (L, D, D)), "b_pred": (zeros, (V,))}
    if spec.embedding != "one_hot":
        found |= {"W_E": (embedding, (D, V))}
    if spec.places:
        found |= {"W_P": (embedding, (D, spec.places))}
    if spec.reach:
        found |= {"R": (zeros, (L, spec.heads, 2 * spec.reach))}
    if spec.output_projection:
        found |= {"W_O": (usual, (L, D, D))}
    if M:
        found |= {"W_1": (usual, (L, M, D)), "b_1": (zeros, (L, M))}
        found |= {"W_2": (usual, (L, D, M)), "b_2": (zeros, (L, D))}
        found |= {"gain_mlp": (ones, (L, D)), "bias_mlp": (zeros, (L, D))}
    found |= {"gain_attention": (ones, (L, D)), "bias_attention": (zeros, (L, D))}
    found |= {"gain_last": (ones, (D,)), "bias_last": (zeros, (D,))}
    return found if spec.head == "tied" else found | {"W_head": (usual_initializer, (V, D))}


def usual_initializer(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw the usual default of linear layers: uniform between -1/sqrt(fan_in) and 1/sqrt(fan_in)."""
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) / shape[-1] ** 0.5


def by_layer(draw: Initializer) -> Initializer:
    """Stack independent draws, one per layer."""
    return lambda key, shape: jnp.stack([draw(own, shape[1:]) for own in jax.random.split(key, shape[0])])


def init(spec: LayerSpec, hypers: LayerHypers, key: jax.Array) -> Params:
    """Draw the initial parameters, frozen ones included."""
    found = Encoder(spec, hypers).init(key, jnp.zeros(1, jnp.int32), jnp.ones(1, bool))["params"]
    return {name: jnp.asarray(leaf) for name, leaf in found.items()}


def trained_names(spec: LayerSpec) -> tuple[str, ...]:
    """List the parameters that are trained; all others are frozen."""
    frozen = {"W_K", "W_Q", "R"} if spec.attention == "uniform" else set()
    frozen |= {"W_E"} if spec.embedding != "trained" else set()
    frozen |= {"b_pred"} if spec.output_bias == "zero" else set()
    shapes = parameters(spec, LayerHypers(init=0))  # hyperparameters do not change the set of parameters
    return tuple(sorted(shapes.keys() - frozen))
