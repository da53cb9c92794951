"""BERT: states and attention of every layer, from weights under the names their checkpoints give them.

Dimension letters: B windows, N pieces, D width, H heads, A size of a head, L layers.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

Weights = Mapping[str, jax.Array]
HIDDEN = -1e9  # score of a key that is no piece of the window
BUCKETS, FARTHEST = 32, 128  # of relative distances, as MPNet groups them


class Shape(NamedTuple):
    """What the weights do not say."""

    layers: int
    heads: int
    epsilon: float  # of layer norms
    first_position: int = 0  # MPNet counts from 2


def forward(shape: Shape, weights: Weights, ids_BxN: jax.Array, is_piece_BxN: jax.Array):
    """Return the last states, B x N x D, and the attention from query to key, L x B x H x N x N."""
    X_BxNxD = embed(shape, weights, ids_BxN)
    score_BxHxNxN = jnp.where(is_piece_BxN, 0.0, HIDDEN)[:, None, None, :]
    if "encoder.relative_attention_bias.weight" in weights:
        by_distance = weights["encoder.relative_attention_bias.weight"][buckets(ids_BxN.shape[1])]
        score_BxHxNxN = score_BxHxNxN + by_distance.transpose(2, 0, 1)[None]
    attention = []
    for layer in range(shape.layers):
        start = f"encoder.layer.{layer}."
        own = {name.removeprefix(start): leaf for name, leaf in weights.items() if name.startswith(start)}
        update_BxNxD, A_BxHxNxN = attend(shape, own, X_BxNxD, score_BxHxNxN)
        X_BxNxD = normed(shape, own, "attention.output.LayerNorm", X_BxNxD + update_BxNxD)
        hidden = jax.nn.gelu(linear(own, "intermediate.dense", X_BxNxD), approximate=False)
        X_BxNxD = normed(shape, own, "output.LayerNorm", X_BxNxD + linear(own, "output.dense", hidden))
        attention.append(A_BxHxNxN)
    return X_BxNxD, jnp.stack(attention)


def embed(shape: Shape, weights: Weights, ids_BxN: jax.Array) -> jax.Array:
    """Return the states before the first layer; every piece belongs to the first segment."""
    places = slice(shape.first_position, shape.first_position + ids_BxN.shape[1])
    X_BxNxD = weights["embeddings.word_embeddings.weight"][ids_BxN]
    X_BxNxD = X_BxNxD + weights["embeddings.position_embeddings.weight"][None, places]
    if "embeddings.token_type_embeddings.weight" in weights:
        X_BxNxD = X_BxNxD + weights["embeddings.token_type_embeddings.weight"][None, :1]
    return normed(shape, weights, "embeddings.LayerNorm", X_BxNxD)


def attend(shape: Shape, own: Weights, X_BxNxD: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return what attention adds to the states of a layer, and the attention of its heads."""
    B, N, D = X_BxNxD.shape
    Q, K, V = (
        linear(own, f"attention.self.{part}", X_BxNxD).reshape(B, N, shape.heads, -1)
        for part in ("query", "key", "value")
    )
    score_BxHxNxN = jnp.einsum("bqha,bkha->bhqk", Q, K) / (D // shape.heads) ** 0.5
    A_BxHxNxN = jax.nn.softmax(score_BxHxNxN + bias, axis=-1)
    joined_BxNxD = jnp.einsum("bhqk,bkha->bqha", A_BxHxNxN, V).reshape(B, N, D)
    return linear(own, "attention.output.dense", joined_BxNxD), A_BxHxNxN


def linear(weights: Weights, name: str, X: jax.Array) -> jax.Array:
    """Return W x + b."""
    return X @ weights[f"{name}.weight"].T + weights[f"{name}.bias"][None, None]


def normed(shape: Shape, weights: Weights, name: str, X: jax.Array) -> jax.Array:
    """Return the states with mean 0 and variance 1, then scaled and shifted."""
    centred = X - X.mean(axis=-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + shape.epsilon)
    return scaled * weights[f"{name}.weight"][None, None] + weights[f"{name}.bias"][None, None]


def buckets(N: int) -> jax.Array:
    """Return the bucket of the distance of each query and key: exact if near, logarithmic if far."""
    distance_NxN = jnp.arange(N)[None] - jnp.arange(N)[:, None]
    half, near = BUCKETS // 2, BUCKETS // 4
    size = jnp.abs(distance_NxN)
    share = jnp.log(jnp.maximum(size, 1) / near) / jnp.log(FARTHEST / near)
    far = jnp.minimum(near + (share * (half - near)).astype(int), half - 1)
    return jnp.where(distance_NxN > 0, half, 0) + jnp.where(size < near, size, far)
