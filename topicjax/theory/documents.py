"""Documents in theory: their settings, moments and samples (NumPy, float64).

Notation of the paper: T topics of v words, words 1..Tv, [MASK] = 0, V = Tv + 1 tokens.
Arrays over tokens have [MASK] first.  p_m = p_mask, p_c = p_keep, p_r = p_random and
a = 1 - (1 - p_c) p_m, the probability that a position still shows its own word.
Words 2j - 1 and 2j are partners: with pair_strength rho > 0 each document also draws, for each topic, the
shares of its v/2 pairs from a symmetric Dirichlet of total concentration 1/rho - 1, and partners are equally
likely.  The distributions of theta and of single words do not change.  For theta ~ Dirichlet(alpha) and
rho = 1/(1 + alpha) the documents are those of T v/2 topics of two words: topics of v words have vanished.
Dimension letters of samples: D documents, R queries, T topics, W = Tv words, V = W + 1 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np

from topicjax.errors import UserError
from topicjax.theory.document_settings import DOCUMENT_SETTINGS, SETTINGS, check_documents

Array = np.ndarray
MAX_SUBSETS = 20_000  # limit on listing subsets of topics one by one

# Typed as Any: the fields are all settings with the role DOCUMENTS.
DocumentSettings: Any = make_dataclass(
    "DocumentSettings", [(name, Any, SETTINGS[name].default) for name in DOCUMENT_SETTINGS], frozen=True
)


@dataclass(frozen=True)
class DataModel(DocumentSettings):
    """The settings that determine documents, and the words of each topic (default: disjoint and uniform)."""

    topic_word: Array | None = None  # T x Tv probabilities

    def __post_init__(self) -> None:
        """Raise a UserError that names the bad value and what is allowed."""
        for name in DOCUMENT_SETTINGS:
            SETTINGS[name].check(getattr(self, name))
        check_documents(self, self)
        if self.p_mask == 1:
            raise UserError(f"p_mask is {self.p_mask}; allowed in theory: below 1")
        shape = (self.topics, self.num_words)
        if self.topic_word is not None and self.topic_word.shape != shape:
            raise ValueError(f"topic_word has shape {self.topic_word.shape}; allowed: {shape}")
        if self.topic_word is not None and self.pair_strength > 0:
            raise ValueError("topic_word is given; allowed: None with pair_strength > 0")

    @classmethod
    def of(cls, settings: Mapping[Any, Any], topic_word: Array | None = None) -> DataModel:
        """Take the document settings of a trial, with these words of each topic."""
        return cls(**{name: settings[name] for name in DOCUMENT_SETTINGS}, topic_word=topic_word)

    @property
    def num_words(self) -> int:
        """Tv, the number of words without [MASK]."""
        return self.topics * self.words_per_topic

    @property
    def masking(self) -> tuple[float, float, float]:
        """(p_m, p_c, p_r)."""
        return self.p_mask, self.p_keep, self.p_random

    @property
    def sizes_and_masking(self) -> tuple[int, int, float, float, float]:
        """(T, v, p_m, p_c, p_r), the arguments of Theorems 1 and 2."""
        return self.topics, self.words_per_topic, *self.masking

    @property
    def survival(self) -> float:
        """1 - (1 - p_c) p_m, the probability that a position shows its own word."""
        return 1 - (1 - self.p_keep) * self.p_mask

    def lengths(self) -> Array:
        """List every document length; all are equally likely."""
        return np.arange(self.length_min, self.length_max + 1)

    def words_by_topic(self) -> Array:
        """Return the probability of every word in every topic, T x Tv."""
        if self.topic_word is not None:
            return np.asarray(self.topic_word, dtype=float)
        return np.kron(np.eye(self.topics), np.full(self.words_per_topic, 1 / self.words_per_topic))

    def topic_second_moment(self) -> Array:
        """Compute E[theta theta^T], T x T, for the topic proportions theta of a document; E[theta] = 1/T."""
        total = self.alpha * self.topics
        tau = self.topics_per_document
        if self.documents == "lda":
            same, different = (self.alpha + 1) / (total + 1), self.alpha / (total + 1)
        else:
            same, different = 1 / tau, (tau - 1) / (tau * max(self.topics - 1, 1))
        moment = np.full((self.topics, self.topics), different / self.topics)
        np.fill_diagonal(moment, same / self.topics)
        return moment

    @property
    def pair_concentration(self) -> float:
        """The Dirichlet concentration of a topic's pairs in a document, if pair_strength is above 0."""
        return 2 * (1 / self.pair_strength - 1) / self.words_per_topic

    def mean_words(self) -> Array:
        """Compute E[P] for the word distribution P of a document (Tv numbers)."""
        return self.words_by_topic().mean(axis=0)

    def second_moment_words(self) -> Array:
        """Compute E[P P^T], Tv x Tv.

        Shares w of M pairs of strength rho have E[w_j w_k] = (1 - rho) / M^2 + rho / M if j = k; those of
        different topics are independent.
        """
        words_TxW = self.words_by_topic()
        moment_WxW = words_TxW.T @ self.topic_second_moment() @ words_TxW
        if self.pair_strength > 0:
            sizes = self.topics, self.words_per_topic
            excess_WxW = self.words_per_topic / 2 * same_pair(*sizes) - same_topic(*sizes)
            moment_WxW *= 1 + self.pair_strength * excess_WxW
        return moment_WxW

    def shown_distribution(self, words: Array) -> Array:
        """Compute the distribution of the token that a position shows, (..., V), given P, (..., Tv)."""
        mask_share = self.p_mask * (1 - self.p_keep - self.p_random)
        noise = self.p_mask * self.p_random / self.num_words
        mask = np.full((*words.shape[:-1], 1), mask_share)
        return np.concatenate([mask, self.survival * words + noise], axis=-1)


def same_topic(topics: int, words_per_topic: int) -> Array:
    """Make the Tv x Tv matrix that is 1 where two words share a topic, else 0."""
    return np.kron(np.eye(topics), np.ones((words_per_topic, words_per_topic)))


def same_pair(topics: int, words_per_topic: int) -> Array:
    """Make the Tv x Tv matrix that is 1 where two words are partners or the same word, else 0."""
    return same_topic(topics * words_per_topic // 2, 2)


class Queries(NamedTuple):
    """Documents, their visible keys, and the queries at their masked positions."""

    topics: Array  # D x T, topic proportions theta
    words: Array  # D x W, word distribution P
    keys: Array  # D x V, counts of visible keys (infinite documents: their distribution)
    document: Array  # R, the query's document
    token: Array  # R, what the query position shows
    weight: Array  # R, its weight in the document's mean over masked positions


def topic_subsets(data: DataModel) -> Array:
    """List all topic proportions of tau-topic documents, one per row."""
    count = comb(data.topics, data.topics_per_document)
    if count > MAX_SUBSETS:
        raise ValueError(f"{count} topic subsets; allowed: at most {MAX_SUBSETS}")
    member = np.zeros((count, data.topics))
    for row, subset in enumerate(combinations(range(data.topics), data.topics_per_document)):
        member[row, list(subset)] = 1 / data.topics_per_document
    return member


def is_enumerated(data: DataModel) -> bool:
    """Whether all documents are listed instead of sampled (infinite tau-topic ones), so errors are zero."""
    return data.infinite_documents and data.documents == "tau"


def _sample_topics(data: DataModel, num_documents: int, rng: np.random.Generator) -> Array:
    """Draw topic proportions, D x T; enumerated ones are listed, or only one if all are equivalent."""
    tau = data.topics_per_document
    if is_enumerated(data):
        first = np.where(np.arange(data.topics) < tau, 1 / tau, 0.0)[None]
        return first if data.topic_word is None else topic_subsets(data)
    if data.documents == "lda":
        return rng.dirichlet(np.full(data.topics, data.alpha), num_documents)
    order = rng.random((num_documents, data.topics)).argsort(axis=1)
    return np.where(order < tau, 1 / tau, 0.0)


def _words_of(data: DataModel, topic_DxT: Array, rng: np.random.Generator) -> Array:
    """Compute the word distribution of each document, D x W, from its topics; draw its pairs, if any."""
    word_DxW = topic_DxT @ data.words_by_topic()
    if data.pair_strength > 0:
        pairs = data.words_per_topic // 2
        share = rng.dirichlet(np.full(pairs, data.pair_concentration), topic_DxT.shape)
        word_DxW *= pairs * share.reshape(len(topic_DxT), -1).repeat(2, axis=1)
    return word_DxW


def _draw(table: Array, row: Array, rng: np.random.Generator) -> Array:
    """Draw, for each entry of `row`, an index from that row of a probability table."""
    cumulative = np.cumsum(table, axis=1)
    cumulative /= cumulative[:, -1:]
    flat = (cumulative + np.arange(len(table))[:, None]).ravel()
    drawn = np.searchsorted(flat, row + rng.random(row.shape), side="right")
    return np.minimum(drawn - row * table.shape[1], table.shape[1] - 1)


def _draw_masks(data: DataModel, num_documents: int, rng: np.random.Generator) -> tuple:
    """Draw (present, masked), D x N booleans, with at least one masked position in each document."""
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
    """Draw documents with at least one masked position; the [MASK]s of a document form one query."""
    rng = np.random.default_rng(seed)
    if data.infinite_documents:
        topic_DxT = _sample_topics(data, num_documents // 20, rng)
        return _infinite_queries(data, topic_DxT, _words_of(data, topic_DxT, rng))
    topic_DxT = _sample_topics(data, num_documents, rng)
    present, masked = _draw_masks(data, num_documents, rng)
    document = np.broadcast_to(np.arange(num_documents)[:, None], masked.shape)
    word_DxW = _words_of(data, topic_DxT, rng)
    if data.pair_strength > 0:
        word = 1 + _draw(word_DxW, document, rng)
    else:
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
        word_DxW,
        keys.reshape(num_documents, size).astype(float),
        np.concatenate([mask_document, document[is_word]]),
        np.concatenate([np.zeros_like(mask_document), shown[is_word]]),
        np.concatenate([mask_share[mask_document], 1 / masked_count[document[is_word]]]),
    )


def _infinite_queries(data: DataModel, topic_DxT: Array, word_DxW: Array) -> Queries:
    """List all V kinds of queries of infinite documents with their shares, and the expected keys."""
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
    """Keep the queries of the first documents only."""
    chosen = queries.document < num_documents
    documents = (array[:num_documents] for array in queries[:3])
    return Queries(*documents, *(array[chosen] for array in queries[3:]))


def kept_chance(data: DataModel, own_R: Array, token_R: Array) -> Array:
    """Compute P(a masked position hides the word it shows | its token), 0 for [MASK].

    `own_R` is the probability of that word in the position's document.
    """
    kept_R = data.p_keep * own_R
    total_R = kept_R + data.p_random / data.num_words
    shows_word = (token_R > 0) & (total_R > 0)
    return np.divide(kept_R, total_R, out=np.zeros_like(kept_R), where=shows_word)


def kept_chances(data: DataModel, queries: Queries) -> Array:
    """Compute for each query the chance that its position hides the word it shows, given its document."""
    own_R = queries.words[queries.document, np.maximum(queries.token - 1, 0)]
    return kept_chance(data, own_R, queries.token)
