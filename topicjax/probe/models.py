"""The models that are probed: what each is, the embeddings of a corpus's words, and attention between words.

Dimension letters: B windows, W words of a window, N pieces, L layers, H heads, V words, D width.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.corpora.corpus import Corpus
from topicjax.errors import UserError
from topicjax.probe.bert import Shape, Weights, forward
from topicjax.probe.pieces import mean_embeddings, pieces_of_words, special
from topicjax.probe.weights import Checkpoint, untrained

Array = Any
LENGTHS = 32  # windows are padded to a multiple of it: few programs


class Model(NamedTuple):
    """A model as the tables need it."""

    name: str
    what: str  # how it was trained, in a phrase
    is_trained: bool
    corpus: Corpus  # whose words it reads
    is_known_V: np.ndarray  # words that it has an embedding for
    embedding_VxD: np.ndarray
    attend: Callable[[np.ndarray], np.ndarray]  # words_BxW: attention_BxLxWxW, uniform attention being 1
    is_split_V: np.ndarray  # words of several pieces


class PieceWindows(NamedTuple):
    """Windows in pieces: [CLS], the pieces of the words, [SEP], padding."""

    ids_BxN: np.ndarray
    is_piece_BxN: np.ndarray
    mean_BxWxN: np.ndarray  # averages over the pieces of each word


def with_control(name: str, what: str, checkpoint: Checkpoint, corpus: Corpus, seed: int) -> Iterator[Model]:
    """Yield a pretrained model, then its architecture with random weights."""
    yield bert_model(name, what, True, checkpoint, corpus)
    control = untrained(checkpoint, seed)
    yield bert_model(f"{name}, random", f"control: {name} with random weights", False, control, corpus)


def bert_model(name: str, what: str, is_trained: bool, checkpoint: Checkpoint, corpus: Corpus) -> Model:
    """Return a model of BERT's kind that reads a corpus's words in pieces."""
    words = pieces_of_words(corpus.vocabulary, checkpoint.pieces)
    ids = {piece: number for number, piece in enumerate(checkpoint.pieces)}
    unknown, begin, end = (special(piece, ids) for piece in ("[UNK]", "[CLS]", "[SEP]"))
    embedding = mean_embeddings(words, checkpoint.weights["embeddings.word_embeddings.weight"])
    is_known = np.array([unknown not in pieces for pieces in words])
    is_known[:2] = False  # [MASK] and [UNK] are no words
    weights = jax.device_put(checkpoint.weights)
    program = jax.jit(partial(word_attention, checkpoint.shape))

    def attend(words_BxW: np.ndarray) -> np.ndarray:
        return np.asarray(program(weights, *in_pieces(words_BxW, words, begin, end, checkpoint.positions)))

    is_split = np.array([len(pieces) > 1 for pieces in words])
    return Model(name, what, is_trained, corpus, is_known, embedding, attend, is_split)


def in_pieces(
    words_BxW: np.ndarray, pieces: Sequence[Sequence[int]], begin: int, end: int, most: int
) -> PieceWindows:
    """Return windows of words in pieces, all padded to one length."""
    B, W = words_BxW.shape
    rows = [[pieces[word] for word in window] for window in words_BxW]
    longest = 2 + max(sum(map(len, row)) for row in rows)
    if longest > most:
        raise UserError(f"{W} words are {longest} pieces; the model reads {most}; allowed: fewer --words")
    N = min(-(-longest // LENGTHS) * LENGTHS, most)
    ids, is_piece, mean = np.zeros((B, N), np.int32), np.zeros((B, N), bool), np.zeros((B, W, N), np.float32)
    for window, row in enumerate(rows):
        spelt = [begin, *(piece for word in row for piece in word), end]
        ids[window, : len(spelt)], is_piece[window, : len(spelt)] = spelt, True
        place = 1
        for word, own in enumerate(row):
            mean[window, word, place : place + len(own)] = 1 / len(own)
            place += len(own)
    return PieceWindows(ids, is_piece, mean)


def word_attention(
    shape: Shape, weights: Weights, ids_BxN: Array, is_piece_BxN: Array, mean_BxWxN: Array
) -> jax.Array:
    """Return the mean attention from word to word over heads and pieces, times the pieces of the window."""
    _, A_LxBxHxNxN = forward(shape, weights, ids_BxN, is_piece_BxN)
    A_BxLxNxN = A_LxBxHxNxN.mean(axis=2).swapaxes(0, 1)
    between = jnp.einsum("bwn,blnm,bvm->blwv", mean_BxWxN, A_BxLxNxN, mean_BxWxN)
    return between * is_piece_BxN.sum(axis=1).reshape(-1, 1, 1, 1)
