"""Pretrained encoders of every layout: the forward pass, and attention between words.

Dimension letters: B windows, W words of a window, N pieces of a window, V words of the corpus, D width,
L layers, H heads, A size of a head.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.corpora.corpus import Corpus
from topicjax.errors import UserError
from topicjax.probe.layouts import BUCKETS, Shape
from topicjax.probe.models import Checkpoint, Model, untrained
from topicjax.probe.pieces import mean_embeddings, special, spell

Weights = Mapping[str, jax.Array]
PADDED_TO = 32  # windows are padded to a multiple of this many pieces, to compile few programs
HIDDEN = -1e9  # score of a key that is padding
FARTHEST = 128  # distance beyond which MPNet treats all distances alike


class PieceWindows(NamedTuple):
    """Windows in pieces: [CLS], the pieces of the words, [SEP], padding."""

    ids_BxN: np.ndarray
    is_piece_BxN: np.ndarray
    mean_BxWxN: np.ndarray  # averages over the pieces of each word


def with_control(name: str, what: str, checkpoint: Checkpoint, corpus: Corpus, seed: int) -> Iterator[Model]:
    """Yield a pretrained model, then its architecture with random weights."""
    yield pretrained_model(name, what, True, checkpoint, corpus)
    control = untrained(checkpoint, seed)
    yield pretrained_model(f"{name}, random", f"control: {name} with random weights", False, control, corpus)


def pretrained_model(name: str, what: str, is_trained: bool, checkpoint: Checkpoint, corpus: Corpus) -> Model:
    """Make a Model from a checkpoint; it reads the corpus's words in pieces."""
    words = spell(corpus.vocabulary, checkpoint.tokenizer)
    ids = checkpoint.tokenizer.get_vocab()
    unknown, begin, end = (special(piece, ids) for piece in ("[UNK]", "[CLS]", "[SEP]"))
    embedding_VxD = mean_embeddings(words, checkpoint.weights["embeddings.word_embeddings.weight"])
    is_known_V = np.array([unknown not in pieces for pieces in words])
    is_known_V[:2] = False  # [MASK] and [UNK] are not words
    is_split_V = np.array([len(pieces) > 1 for pieces in words])
    weights = jax.device_put(checkpoint.weights)
    program = jax.jit(partial(word_attention, checkpoint.shape))

    def attend(words_BxW: np.ndarray) -> np.ndarray:
        return np.asarray(program(weights, *in_pieces(words_BxW, words, begin, end, checkpoint.positions)))

    return Model(name, what, is_trained, corpus, is_known_V, embedding_VxD, attend, is_split_V)


def in_pieces(
    words_BxW: np.ndarray, pieces: Sequence[Sequence[int]], begin: int, end: int, most: int
) -> PieceWindows:
    """Convert windows of words to pieces, padded to one length."""
    B, W = words_BxW.shape
    spelt = [[pieces[word] for word in window] for window in words_BxW]
    longest = 2 + max(sum(map(len, window)) for window in spelt)
    if longest > most:
        raise UserError(f"{W} words are {longest} pieces; the model reads {most}; allowed: fewer --words")
    N = min(-(-longest // PADDED_TO) * PADDED_TO, most)
    ids_BxN, is_piece_BxN = np.zeros((B, N), np.int32), np.zeros((B, N), bool)
    mean_BxWxN = np.zeros((B, W, N), np.float32)
    for window, words in enumerate(spelt):
        flat = [begin, *(piece for word in words for piece in word), end]
        ids_BxN[window, : len(flat)], is_piece_BxN[window, : len(flat)] = flat, True
        place = 1
        for number, word in enumerate(words):
            mean_BxWxN[window, number, place : place + len(word)] = 1 / len(word)
            place += len(word)
    return PieceWindows(ids_BxN, is_piece_BxN, mean_BxWxN)


def word_attention(
    shape: Shape, weights: Weights, ids_BxN: Any, is_piece_BxN: Any, mean_BxWxN: Any
) -> jax.Array:
    """Average attention from word to word over heads and pieces, times the number of pieces: uniform is 1."""
    _, A_LxBxHxNxN = forward(shape, weights, ids_BxN, is_piece_BxN)
    A_BxLxNxN = A_LxBxHxNxN.mean(axis=2).swapaxes(0, 1)
    between = jnp.einsum("bwn,blnm,bvm->blwv", mean_BxWxN, A_BxLxNxN, mean_BxWxN)
    return between * is_piece_BxN.sum(axis=1).reshape(-1, 1, 1, 1)


def forward(shape: Shape, weights: Weights, ids_BxN: jax.Array, is_piece_BxN: jax.Array):
    """Compute the last states, B x N x D, and the attention from query to key, L x B x H x N x N."""
    X_BxNxD = embed(shape, weights, ids_BxN)
    score_BxHxNxN = jnp.where(is_piece_BxN, 0.0, HIDDEN)[:, None, None, :]
    if "encoder.relative_attention_bias.weight" in weights:
        by_distance = weights["encoder.relative_attention_bias.weight"][buckets(ids_BxN.shape[1])]
        score_BxHxNxN = score_BxHxNxN + by_distance.transpose(2, 0, 1)[None]
    attention = []
    for layer in range(shape.layers):
        start = f"encoder.layer.{layer * shape.groups // shape.layers}."
        block = {name.removeprefix(start): leaf for name, leaf in weights.items() if name.startswith(start)}
        update_BxNxD, A_BxHxNxN = attend(shape, block, X_BxNxD, score_BxHxNxN)
        X_BxNxD = layer_norm(shape, block, "attention.output.LayerNorm", X_BxNxD + update_BxNxD)
        hidden = linear(block, "intermediate.dense", X_BxNxD)
        hidden = jax.nn.gelu(hidden, approximate=not shape.is_gelu_exact)
        update_BxNxD = linear(block, "output.dense", hidden)
        X_BxNxD = layer_norm(shape, block, "output.LayerNorm", X_BxNxD + update_BxNxD)
        attention.append(A_BxHxNxN)
    return X_BxNxD, jnp.stack(attention)


def embed(shape: Shape, weights: Weights, ids_BxN: jax.Array) -> jax.Array:
    """Compute the states before the first layer; every piece belongs to the first segment."""
    places = slice(shape.first_position, shape.first_position + ids_BxN.shape[1])
    X_BxNxD = weights["embeddings.word_embeddings.weight"][ids_BxN]
    X_BxNxD = X_BxNxD + weights["embeddings.position_embeddings.weight"][None, places]
    if "embeddings.token_type_embeddings.weight" in weights:
        X_BxNxD = X_BxNxD + weights["embeddings.token_type_embeddings.weight"][None, :1]
    X_BxNxD = layer_norm(shape, weights, "embeddings.LayerNorm", X_BxNxD)
    is_projected = "embeddings.project.weight" in weights  # from their own width to that of the model
    return linear(weights, "embeddings.project", X_BxNxD) if is_projected else X_BxNxD


def attend(shape: Shape, block: Weights, X_BxNxD: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute what attention adds to the states of a layer, and the attention of its heads."""
    B, N, D = X_BxNxD.shape
    Q, K, V = (
        linear(block, f"attention.self.{part}", X_BxNxD).reshape(B, N, shape.heads, -1)
        for part in ("query", "key", "value")
    )
    score_BxHxNxN = jnp.einsum("bqha,bkha->bhqk", Q, K) / (D // shape.heads) ** 0.5
    A_BxHxNxN = jax.nn.softmax(score_BxHxNxN + bias, axis=-1)
    joined_BxNxD = jnp.einsum("bhqk,bkha->bqha", A_BxHxNxN, V).reshape(B, N, D)
    return linear(block, "attention.output.dense", joined_BxNxD), A_BxHxNxN


def linear(weights: Weights, name: str, X: jax.Array) -> jax.Array:
    """Compute W x + b."""
    return X @ weights[f"{name}.weight"].T + weights[f"{name}.bias"][None, None]


def layer_norm(shape: Shape, weights: Weights, name: str, X: jax.Array) -> jax.Array:
    """Normalise the states to mean 0 and variance 1, then scale and shift them."""
    centred = X - X.mean(axis=-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + shape.epsilon)
    return scaled * weights[f"{name}.weight"][None, None] + weights[f"{name}.bias"][None, None]


def buckets(N: int) -> jax.Array:
    """Sort the distances from query to key into buckets: exact if near, logarithmic if far."""
    distance_NxN = jnp.arange(N)[None] - jnp.arange(N)[:, None]
    half, near = BUCKETS // 2, BUCKETS // 4
    size = jnp.abs(distance_NxN)
    share = jnp.log(jnp.maximum(size, 1) / near) / jnp.log(FARTHEST / near)
    far = jnp.minimum(near + (share * (half - near)).astype(int), half - 1)
    return jnp.where(distance_NxN > 0, half, 0) + jnp.where(size < near, size, far)
