"""Our own trained encoders: attention between the words of a window, from the weights that a run keeps.

Dimension letters: B windows, N words of a window, V vocabulary, D width, L layers, H heads, A size of a head.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from topicjax.experiments.encoder.model import feed_forward, layer_norm

Weights = Mapping[str, jax.Array]
OF_NO_LAYER = ("W_E", "W_P", "W_head", "b_pred", "gain_last", "bias_last")


def encode(settings: Mapping[str, Any], weights: Weights, words_BxN: Any) -> tuple[jax.Array, jax.Array]:
    """Return the last states, B x N x D, and the attention from query to key, L x B x H x N x N.

    The model is that of `experiments.encoder.model`, with every word a key.
    """
    X_BxNxD = weights["W_E"].T[words_BxN]
    if "W_P" in weights:
        X_BxNxD = X_BxNxD + weights["W_P"].T[None, : words_BxN.shape[1]]
    found = []
    for layer in range(len(weights["W_K"])):
        own = {name: leaf[layer] for name, leaf in weights.items() if name not in OF_NO_LAYER}
        A_BxHxNxN = attention(settings["heads"], own, normed_before(settings, own, "attention", X_BxNxD))
        values = partial(attended, own, A_BxHxNxN)
        X_BxNxD = sublayer(settings, own, "attention", X_BxNxD, values)
        if "W_1" in own:
            mlp = partial(feed_forward, W_1=own["W_1"], b_1=own["b_1"], W_2=own["W_2"], b_2=own["b_2"])
            X_BxNxD = sublayer(settings, own, "mlp", X_BxNxD, mlp)
        found.append(A_BxHxNxN)
    if settings["layer_norm"] == "pre":
        X_BxNxD = layer_norm(X_BxNxD, weights["gain_last"], weights["bias_last"])
    return X_BxNxD, jnp.stack(found)


def normed_before(settings: Mapping[str, Any], own: Weights, name: str, X_BxNxD: jax.Array) -> jax.Array:
    """Return the states as a sublayer sees them."""
    is_pre = settings["layer_norm"] == "pre"
    return layer_norm(X_BxNxD, own[f"gain_{name}"], own[f"bias_{name}"]) if is_pre else X_BxNxD


def sublayer(
    settings: Mapping[str, Any], own: Weights, name: str, X_BxNxD: jax.Array, function: Any
) -> jax.Array:
    """Return the states after a sublayer."""
    added_BxNxD = function(normed_before(settings, own, name, X_BxNxD))
    X_BxNxD = X_BxNxD + added_BxNxD if settings["residual"] else added_BxNxD
    is_post = settings["layer_norm"] == "post"
    return layer_norm(X_BxNxD, own[f"gain_{name}"], own[f"bias_{name}"]) if is_post else X_BxNxD


def heads_of(W_DxD: jax.Array, H: int) -> jax.Array:
    """Return a matrix head by head, H x A x D."""
    return W_DxD.reshape(H, -1, W_DxD.shape[1])


def attention(H: int, own: Weights, X_BxNxD: jax.Array) -> jax.Array:
    """Return the attention of every head, from query to key."""
    Q_BxHxNxA, K_BxHxNxA = (
        jnp.einsum("bnd,had->bhna", X_BxNxD, heads_of(own[name], H)) for name in ("W_Q", "W_K")
    )
    score_BxHxNxN = Q_BxHxNxA @ K_BxHxNxA.swapaxes(2, 3) / Q_BxHxNxA.shape[-1] ** 0.5
    return jax.nn.softmax(score_BxHxNxN, axis=-1)


def attended(own: Weights, A_BxHxNxN: jax.Array, X_BxNxD: jax.Array) -> jax.Array:
    """Return what attention adds to the states."""
    V_HxAxD = heads_of(own["W_V"], A_BxHxNxN.shape[1])
    joined = jnp.einsum("bhqk,bkd,had->bqha", A_BxHxNxN, X_BxNxD, V_HxAxD).reshape(X_BxNxD.shape)
    return joined @ own["W_O"].T if "W_O" in own else joined


def word_attention(settings: Mapping[str, Any], weights: Weights, words_BxN: Any) -> jax.Array:
    """Return the mean attention from word to word over heads, uniform attention being 1."""
    _, A_LxBxHxNxN = encode(settings, weights, words_BxN)
    return A_LxBxHxNxN.mean(axis=2).swapaxes(0, 1) * words_BxN.shape[1]
