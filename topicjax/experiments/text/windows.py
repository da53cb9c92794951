"""Windows of a corpus: consecutive words of one document, as few windows as its length allows.

Every tenth document is held out: none of its windows is used for training.  All of this is NumPy on the host;
the arrays are copied to the devices once.  Dimension letters: C words of the corpus, W training windows,
B held-out windows, N words of a window, V vocabulary.
"""

import functools
from typing import NamedTuple

import numpy as np

from topicjax.corpora.corpus import Corpus, corpus_size, load_corpus
from topicjax.errors import UserError
from topicjax.experiments.contract import Data
from topicjax.experiments.text.settings import SPECIAL, Spec

HELD_OUT = 10  # every tenth document
EVAL_SEED = 20230723  # selects the held-out windows: the same for all trials
UNKNOWN = 1


class Windows(NamedTuple):
    """The windows of a corpus, as arrays for programs."""

    id_C: np.ndarray
    start_W: np.ndarray  # places in id_C
    length_W: np.ndarray
    number: np.ndarray  # of windows; the rest of W is empty
    count_V: np.ndarray  # word counts over the training windows
    held_out_BxN: np.ndarray  # words of the held-out windows
    held_out_B: np.ndarray  # their lengths


class Cut(NamedTuple):
    """Windows as columns: start, length, and whether the document is held out."""

    start: np.ndarray
    length: np.ndarray
    is_held_out: np.ndarray


def data(spec: Spec) -> Data:
    """Describe the windows of a Spec: shapes now, arrays on load."""
    documents, words = corpus_size(spec.corpus)
    windows, held_out = words // spec.context + documents, (spec.eval_windows, spec.context)
    shapes = Windows(
        id_C=np.empty((words,), id_type(spec.vocabulary_size)),
        start_W=np.empty((windows,), np.int32),
        length_W=np.empty((windows,), np.int32),
        number=np.empty((), np.int32),
        count_V=np.empty((spec.vocabulary,), np.int32),
        held_out_BxN=np.empty(held_out, np.int32),
        held_out_B=np.empty(held_out[:1], np.int32),
    )
    return Data(
        shapes, lambda: load(spec.corpus, spec.vocabulary_size, spec.unknown, spec.context, spec.eval_windows)
    )


def id_type(vocabulary_size: int) -> type:
    """Choose the smallest integer type that holds the vocabulary."""
    return np.uint16 if vocabulary_size <= 1 << 16 else np.int32


@functools.lru_cache(maxsize=2)
def load(corpus: str, vocabulary_size: int, unknown: str, context: int, eval_windows: int) -> Windows:
    """Load the windows of a corpus, or raise a UserError if it is missing or too small."""
    found = load_corpus(corpus)
    words, lengths = known_words(found, vocabulary_size, unknown)
    cut = cut_documents(lengths, context)
    held_out = np.flatnonzero(cut.is_held_out)
    if len(held_out) < eval_windows:
        raise UserError(
            f"eval_windows is {eval_windows}; allowed: at most {len(held_out)}, the windows in every "
            f"{HELD_OUT}th document of the corpus {found.name}"
        )
    chosen = np.sort(np.random.default_rng(EVAL_SEED).permutation(held_out)[:eval_windows])
    documents, all_words = len(found.ends), len(found.ids)
    own = Cut(*(column[~cut.is_held_out] for column in cut))
    return Windows(
        id_C=filled(words, all_words, id_type(vocabulary_size)),
        start_W=filled(own.start, all_words // context + documents, np.int32),
        length_W=filled(own.length, all_words // context + documents, np.int32),
        number=np.asarray(len(own.start), np.int32),
        count_V=word_counts(words, own, vocabulary_size),
        held_out_BxN=np.stack(
            [filled(words[cut.start[w] :][: cut.length[w]], context, np.int32) for w in chosen]
        ),
        held_out_B=cut.length[chosen].astype(np.int32),
    )


def filled(values: np.ndarray, size: int, kind: type) -> np.ndarray:
    """Copy the values to an array of this size and type, padded with zeros."""
    result = np.zeros(size, kind)
    result[: len(values)] = values
    return result


def known_words(corpus: Corpus, vocabulary_size: int, unknown: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the words of all documents, rarer ones as [UNK] or left out, and each document's length."""
    if vocabulary_size > len(corpus.vocabulary):
        raise UserError(
            f"vocabulary_size is {vocabulary_size}; allowed: at most {len(corpus.vocabulary)}, the words of "
            f"the corpus {corpus.name}"
        )
    ids, ends = np.asarray(corpus.ids), np.asarray(corpus.ends, np.int64)
    is_known = (ids >= SPECIAL) & (ids < vocabulary_size)
    if unknown == "shown":
        return np.where(is_known, ids, UNKNOWN), np.diff(ends, prepend=0)
    before = np.concatenate([[0], np.cumsum(is_known)])
    return ids[is_known], np.diff(before[ends], prepend=0)


def cut_documents(lengths: np.ndarray, context: int) -> Cut:
    """Cut documents into windows, in order; the windows of a document have nearly equal length."""
    begins = np.cumsum(lengths) - lengths
    counts = -(-lengths // context)
    document = np.repeat(np.arange(len(lengths)), counts)
    place = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    first, last = (lengths[document] * at // counts[document] for at in (place, place + 1))
    return Cut(begins[document] + first, last - first, document % HELD_OUT == HELD_OUT - 1)


def word_counts(words: np.ndarray, cut: Cut, vocabulary_size: int) -> np.ndarray:
    """Count how often each word occurs in the windows."""
    marks = np.zeros(len(words) + 1, np.int64)
    np.add.at(marks, cut.start, 1)
    np.add.at(marks, cut.start + cut.length, -1)
    inside = np.cumsum(marks[:-1]) > 0
    return np.bincount(words[inside], minlength=vocabulary_size).astype(np.int32)
