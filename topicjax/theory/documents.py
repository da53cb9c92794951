"""Documents as theory takes them: how they are written, masked and seen, and their moments (float64).

Notation of the paper: T topics of v words, words 1..Tv, [MASK] = 0, V = Tv + 1 tokens.
Arrays over tokens have [MASK] first.  p_m = p_mask, p_c = p_keep, p_r = p_random and
a = 1 - (1 - p_c) p_m, the probability that a position still shows its own word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any

import numpy as np

from topicjax.errors import UserError
from topicjax.experiments.one_layer.settings import DEFAULTS, DOCUMENT_SETTINGS, SETTINGS, check_documents

Array = np.ndarray

# Typed as Any, since the fields are those that trial.py declares with the role DOCUMENTS.
DocumentSettings: Any = make_dataclass(
    "DocumentSettings", [(name, Any, DEFAULTS[name]) for name in DOCUMENT_SETTINGS], frozen=True
)


@dataclass(frozen=True)
class DataModel(DocumentSettings):
    """The settings that documents depend on, and the words of each topic: by default disjoint and uniform."""

    topic_word: Array | None = None  # T x Tv probabilities

    def __post_init__(self) -> None:
        """Raise a UserError that names the bad value and what is allowed."""
        values = {name: getattr(self, name) for name in DOCUMENT_SETTINGS}
        for name, value in values.items():
            SETTINGS[name].check(value)
        check_documents(values)
        if self.p_mask == 1:
            raise UserError(f"p_mask is {self.p_mask}; allowed in theory: below 1")
        shape = (self.topics, self.num_words)
        if self.topic_word is not None and self.topic_word.shape != shape:
            raise ValueError(f"topic_word has shape {self.topic_word.shape}; allowed: {shape}")

    @classmethod
    def of(cls, settings: Mapping[Any, Any], topic_word: Array | None = None) -> DataModel:
        """Return the documents of a trial with these settings and these words of each topic."""
        return cls(**{name: settings[name] for name in DOCUMENT_SETTINGS}, topic_word=topic_word)

    @property
    def num_words(self) -> int:
        """Return Tv, the number of words without [MASK]."""
        return self.topics * self.words_per_topic

    @property
    def masking(self) -> tuple[float, float, float]:
        """Return (p_m, p_c, p_r)."""
        return self.p_mask, self.p_keep, self.p_random

    @property
    def sizes_and_masking(self) -> tuple[int, int, float, float, float]:
        """Return (T, v, p_m, p_c, p_r), the arguments of Theorems 1 and 2."""
        return self.topics, self.words_per_topic, *self.masking

    @property
    def survival(self) -> float:
        """Return 1 - (1 - p_c) p_m, the probability that a position shows its own word."""
        return 1 - (1 - self.p_keep) * self.p_mask

    def lengths(self) -> Array:
        """Return every document length; all are equally likely."""
        return np.arange(self.length_min, self.length_max + 1)

    def words_by_topic(self) -> Array:
        """Return the probability of every word in every topic, T x Tv."""
        if self.topic_word is not None:
            return np.asarray(self.topic_word, dtype=float)
        return np.kron(np.eye(self.topics), np.full(self.words_per_topic, 1 / self.words_per_topic))

    def topic_second_moment(self) -> Array:
        """Return E[theta theta^T], T x T, theta the topic proportions of a document; E[theta] = 1/T."""
        total = self.alpha * self.topics
        tau = self.topics_per_document
        if self.documents == "lda":
            same, different = (self.alpha + 1) / (total + 1), self.alpha / (total + 1)
        else:
            same, different = 1 / tau, (tau - 1) / (tau * max(self.topics - 1, 1))
        moment = np.full((self.topics, self.topics), different / self.topics)
        np.fill_diagonal(moment, same / self.topics)
        return moment

    def mean_words(self) -> Array:
        """Return E[P], P the word distribution of a document (Tv numbers)."""
        return self.words_by_topic().mean(axis=0)

    def second_moment_words(self) -> Array:
        """Return E[P P^T], Tv x Tv."""
        words_TxW = self.words_by_topic()
        return words_TxW.T @ self.topic_second_moment() @ words_TxW

    def shown_distribution(self, words: Array) -> Array:
        """Return the distribution of the token that a position shows, (..., V), given P, (..., Tv)."""
        mask_share = self.p_mask * (1 - self.p_keep - self.p_random)
        noise = self.p_mask * self.p_random / self.num_words
        mask = np.full((*words.shape[:-1], 1), mask_share)
        return np.concatenate([mask, self.survival * words + noise], axis=-1)


def same_topic(topics: int, words_per_topic: int) -> Array:
    """Return the Tv x Tv matrix that is 1 where two words share a topic, else 0."""
    return np.kron(np.eye(topics), np.ones((words_per_topic, words_per_topic)))
