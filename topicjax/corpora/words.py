"""Words of documents, numbered from most to least frequent."""

import re
from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from topicjax.corpora.corpus import MASK, UNKNOWN
from topicjax.corpora.function_words import FUNCTION_WORDS

WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
SHORTEST = 3  # letters of a content word
ALL_RULE = "runs of letters in lower case, with inner apostrophes; no numbers, no punctuation"
CONTENT_RULE = (
    f"{ALL_RULE}; without words of fewer than {SHORTEST} letters, words with an apostrophe and the "
    f"{len(FUNCTION_WORDS)} function words of topicjax.corpora.function_words"
)


class Numbered(NamedTuple):
    """Documents with every word numbered, however rare."""

    ids: np.ndarray
    ends: np.ndarray
    words: list[str]  # by number, in order of first occurrence


def words_of(text: str) -> list[str]:
    """Extract the words of a text."""
    return [word.replace("\u2019", "'") for word in WORD.findall(text.lower())]


def number_words(documents: Iterable[list[str]]) -> Numbered:
    """Number the words of documents in order of first occurrence."""
    numbers: dict[str, int] = {}
    ids, ends = array("I"), array("Q")
    for words in documents:
        ids.extend([numbers.setdefault(word, len(numbers)) for word in words])
        ends.append(len(ids))
    return Numbered(np.array(ids, np.uint32), np.array(ends, np.int64), list(numbers))


def content_only(numbered: Numbered) -> Numbered:
    """Remove function words; documents without content words are dropped."""
    stays = np.array([is_content(word) for word in numbered.words], bool)
    return without(numbered, stays[numbered.ids])


def without(numbered: Numbered, stays: np.ndarray) -> Numbered:
    """Keep only the marked words, and drop documents that have none."""
    before = np.concatenate([[0], np.cumsum(stays)])
    ends = before[numbered.ends]
    return numbered._replace(ids=numbered.ids[stays], ends=np.unique(ends[ends > 0]))


def is_content(word: str) -> bool:
    """Check whether a word says something about the topic of a text."""
    return len(word) >= SHORTEST and "'" not in word and word not in FUNCTION_WORDS


def rank(numbered: Numbered, size: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Renumber words by frequency rank, in a vocabulary of at most this size; rarer words are [UNK].

    Numbers 0 and 1 are [MASK] and [UNK]; equally frequent words are in alphabetical order.
    """
    counts = np.bincount(numbered.ids, minlength=len(numbered.words))
    used = np.flatnonzero(counts).tolist()
    ordered = sorted(used, key=lambda number: (-counts[number], numbered.words[number]))[: size - 2]
    numbers = np.ones(len(numbered.words), np.uint16 if size <= 1 << 16 else np.uint32)
    numbers[ordered] = np.arange(2, len(ordered) + 2)
    return numbers[numbered.ids], (MASK, UNKNOWN, *(numbered.words[number] for number in ordered))
