"""Which pairs of words share most windows of a corpus?"""

from typing import Any

import numpy as np
from scipy import sparse

from topicjax.errors import UserError

FIRST = 500  # words that are tried at first, the most frequent ones


def cut_windows(ids: np.ndarray, ends: np.ndarray, length: int) -> np.ndarray:
    """Return all whole windows of documents, one after the other, as windows x length."""
    starts = np.concatenate([[0], ends[:-1]])
    found = [
        ids[start : start + (end - start) // length * length].reshape(-1, length)
        for start, end in zip(starts, ends, strict=True)
    ]
    return np.concatenate(found)


def pick_windows(ids: np.ndarray, ends: np.ndarray, length: int, most: int, seed: int) -> np.ndarray:
    """Return one window from each of so many documents that are long enough, at a random place."""
    draw = np.random.default_rng(seed)
    starts = np.concatenate([[0], ends[:-1]])
    long = np.flatnonzero(ends - starts >= length)
    if len(long) < 2:
        raise UserError(f"no 2 documents of the corpus have {length} words; allowed: fewer --words")
    chosen = np.sort(draw.permutation(long)[:most])
    places = starts[chosen] + draw.integers(0, ends[chosen] - starts[chosen] - length + 1)
    return ids[places[:, None] + np.arange(length)[None]]


def occurrences(rows: np.ndarray, words: np.ndarray, shape: tuple[int, int]) -> Any:
    """Return a sparse matrix: 1 where the row (a window or document) has the word."""
    counts: Any = sparse.csc_array((np.ones(len(rows), np.int32), (rows, words)), shape)
    return (counts > 0).astype(np.int32)


def shared_windows(windows: np.ndarray, is_content_V: np.ndarray, count: int) -> np.ndarray:
    """Return the pairs of different content words that share most windows, lower id first, most first.

    Only frequent words are tried: no pair shares more windows than its rarer word is in.
    """
    rows = np.repeat(np.arange(len(windows)), windows.shape[1])
    shape = (len(windows), len(is_content_V))
    contains = occurrences(rows, windows.ravel(), shape)
    found_in = np.where(is_content_V, np.asarray(contains.sum(axis=0)), 0)
    order = np.argsort(-found_in, kind="stable")[: np.count_nonzero(found_in)]
    tried = FIRST
    while True:
        words = np.sort(order[:tried])
        shared: Any = sparse.triu(contains[:, words].T @ contains[:, words], k=1).tocoo()
        best = np.lexsort((shared.col, shared.row, -shared.data))[:count]
        rest = found_in[order[tried]] if tried < len(order) else 0
        if not rest or (len(best) == count and shared.data[best[-1]] >= rest):
            return np.stack([words[shared.row[best]], words[shared.col[best]]], axis=1)
        tried *= 2
