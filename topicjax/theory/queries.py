"""Documents for theory, drawn or enumerated in NumPy: what each masked position sees.

Letters: D documents, R queries, T topics, W = Tv words, V = W + 1 tokens ([MASK] = 0).
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from topicjax.theory.documents import Array, DataModel

MAX_SUBSETS = 20_000


class Queries(NamedTuple):
    """Documents, their visible keys, and the queries at their masked positions."""

    topics: Array  # D x T, topic proportions theta
    words: Array  # D x W, word distribution P
    keys: Array  # D x V, counts of visible keys (infinite documents: their distribution)
    document: Array  # R, the query's document
    token: Array  # R, what the query position shows
    weight: Array  # R, its share of the document's mean over masked positions


def topic_subsets(data: DataModel) -> Array:
    """Return all topic proportions of tau-topic documents, one per row."""
    count = comb(data.topics, data.topics_per_document)
    if count > MAX_SUBSETS:
        raise ValueError(f"{count} topic subsets; allowed: at most {MAX_SUBSETS}")
    member = np.zeros((count, data.topics))
    for row, subset in enumerate(combinations(range(data.topics), data.topics_per_document)):
        member[row, list(subset)] = 1 / data.topics_per_document
    return member


def is_enumerated(data: DataModel) -> bool:
    """Return whether all documents are listed, not sampled (infinite tau-topic ones): errors are zero."""
    return data.infinite_documents and data.documents == "tau"


def _sample_topics(data: DataModel, num_documents: int, rng: np.random.Generator) -> Array:
    """Return topic proportions, D x T; all of them (or one, if all are alike) when they are enumerated."""
    tau = data.topics_per_document
    if is_enumerated(data):
        first = np.where(np.arange(data.topics) < tau, 1 / tau, 0.0)[None]
        return first if data.topic_word is None else topic_subsets(data)
    if data.documents == "lda":
        return rng.dirichlet(np.full(data.topics, data.alpha), num_documents)
    order = rng.random((num_documents, data.topics)).argsort(axis=1)
    return np.where(order < tau, 1 / tau, 0.0)


def _draw(table: Array, row: Array, rng: np.random.Generator) -> Array:
    """Return, for each entry of `row`, an index drawn from that row of a table of probabilities."""
    cumulative = np.cumsum(table, axis=1)
    cumulative /= cumulative[:, -1:]
    flat = (cumulative + np.arange(len(table))[:, None]).ravel()
    drawn = np.searchsorted(flat, row + rng.random(row.shape), side="right")
    return np.minimum(drawn - row * table.shape[1], table.shape[1] - 1)


def _draw_masks(data: DataModel, num_documents: int, rng: np.random.Generator) -> tuple:
    """Return (present, masked), D x N booleans, with at least one masked position in each document."""
    position = np.arange(data.length_max)
    lengths = np.zeros(num_documents, int)
    masked = np.zeros((num_documents, data.length_max), bool)
    while (again := ~masked.any(axis=1)).any():
        count = int(again.sum())
        lengths[again] = rng.integers(data.length_min, data.length_max + 1, count)
        draws = rng.random((count, data.length_max)) < data.p_mask
        masked[again] = draws & (position < lengths[again, None])
    return position < lengths[:, None], masked


def sample_queries(data: DataModel, num_documents: int, seed: int) -> Queries:
    """Return documents with a masked position or more; the [MASK]s of a document are one query."""
    rng = np.random.default_rng(seed)
    if data.infinite_documents:
        return _infinite_queries(data, _sample_topics(data, num_documents // 20, rng))
    topic_DxT = _sample_topics(data, num_documents, rng)
    present, masked = _draw_masks(data, num_documents, rng)
    document = np.broadcast_to(np.arange(num_documents)[:, None], masked.shape)
    word = 1 + _draw(data.words_by_topic(), _draw(topic_DxT, document, rng), rng)
    kind = rng.random(masked.shape)
    random_word = rng.integers(1, data.num_words + 1, masked.shape)
    replaced = np.where(kind < data.p_keep + data.p_random, random_word, 0)
    shown = np.where(masked & (kind >= data.p_keep), replaced, word)

    size = data.num_words + 1
    visible = present & ~masked if data.key_visibility == "unmasked" else present
    keys = np.bincount((document * size + shown)[visible], minlength=num_documents * size)
    masked_count = masked.sum(axis=1)
    mask_share = (masked & (shown == 0)).sum(axis=1) / masked_count
    mask_document = np.nonzero(mask_share)[0]
    is_word = masked & (shown > 0)
    return Queries(
        topic_DxT,
        topic_DxT @ data.words_by_topic(),
        keys.reshape(num_documents, size).astype(float),
        np.concatenate([mask_document, document[is_word]]),
        np.concatenate([np.zeros_like(mask_document), shown[is_word]]),
        np.concatenate([mask_share[mask_document], 1 / masked_count[document[is_word]]]),
    )


def _infinite_queries(data: DataModel, topic_DxT: Array) -> Queries:
    """Return infinite documents with their expected keys and all V kinds of queries, with their shares."""
    word_DxW = topic_DxT @ data.words_by_topic()
    size = data.num_words + 1
    keys = data.shown_distribution(word_DxW)
    if data.key_visibility == "unmasked":
        keys = np.concatenate([np.zeros((len(word_DxW), 1)), word_DxW], axis=1)
    weight_DxV = np.empty_like(keys)
    weight_DxV[:, 0] = 1 - data.p_keep - data.p_random
    weight_DxV[:, 1:] = data.p_keep * word_DxW + data.p_random / data.num_words
    document_R = np.repeat(np.arange(len(word_DxW)), size)
    token_R = np.tile(np.arange(size), len(word_DxW))
    return Queries(topic_DxT, word_DxW, keys, document_R, token_R, weight_DxV.ravel())


def first_documents(queries: Queries, num_documents: int) -> Queries:
    """Return the queries of the first documents only."""
    chosen = queries.document < num_documents
    documents = (array[:num_documents] for array in queries[:3])
    return Queries(*documents, *(array[chosen] for array in queries[3:]))


def kept_chance(data: DataModel, own_R: Array, token_R: Array) -> Array:
    """Return P(a masked position hides the word it shows | its token), 0 for [MASK].

    `own_R` is the probability of that word in the position's document.
    """
    kept_R = data.p_keep * own_R
    total_R = kept_R + data.p_random / data.num_words
    shows_word = (token_R > 0) & (total_R > 0)
    return np.divide(kept_R, total_R, out=np.zeros_like(kept_R), where=shows_word)


def kept_chances(data: DataModel, queries: Queries) -> Array:
    """Return for each query the chance that its position hides the word it shows, given its document."""
    own_R = queries.words[queries.document, np.maximum(queries.token - 1, 0)]
    return kept_chance(data, own_R, queries.token)
