"""Measure models one by one: the data of Figure 3, Tables 1 and 2."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from topicjax.corpora.corpus import Corpus
from topicjax.errors import UserError
from topicjax.probe.models import Model
from topicjax.probe.pairs import (
    PairSums,
    add_up,
    by_layer,
    cut_windows,
    embedding_averages,
    joined,
    listed_kinds,
    pair_code,
    pair_cosine,
    pick_windows,
    shared_windows,
    topic_kinds,
    unit,
)
from topicjax.probe.topics import FIRST_WORD, Topics, assign, translated

NINE = ("frog", "toad", "lizard", "mozart", "beethoven", "schubert", "algebra", "arithmetic", "calculus")
UNKNOWN = 1  # id of [UNK]
BATCH = 16  # windows
RANDOM_PAIRS = 20_000
Say = Callable[[str], object]


@dataclass(frozen=True)
class Choices:
    """Choices that the paper leaves open."""

    thresholds: tuple[float, ...] = (0.0005, 0.001, 0.002)  # words per topic / vocabulary, as in the paper
    words: int = 64  # per window
    windows: int = 2000  # one per document
    seed: int = 0

    def check(self) -> None:
        """Raise a UserError unless windows can hold pairs and be resampled."""
        if not 2 <= self.words <= 512:
            raise UserError(f"--words is {self.words}; allowed: 2 to 512")
        if self.windows < 2:
            raise UserError(f"--windows is {self.windows}; allowed: 2 or more")


class Lists(NamedTuple):
    """The words of each topic and the pairs that share the most windows, for one threshold."""

    threshold: float
    per_topic: int
    topic: dict[str, int]  # of each word that has one
    pairs: list[tuple[str, str]]


class Measured(NamedTuple):
    """The data of all tables and figures: a row per model and threshold, for attention also per layer."""

    embeddings: pd.DataFrame
    attention: pd.DataFrame
    pairs: pd.DataFrame
    nine: pd.DataFrame


def make_lists(topics: Topics, content: Corpus, choices: Choices) -> list[Lists]:
    """Make the word lists of each threshold, with as many pairs as one topic has."""
    V = len(content.vocabulary)
    sizes = [max(2, round(threshold * V)) for threshold in choices.thresholds]
    counts = [size * (size - 1) // 2 for size in sizes]
    windows = cut_windows(np.asarray(content.ids), np.asarray(content.ends), choices.words)
    pairs = shared_windows(windows, np.arange(V) >= FIRST_WORD, max(counts))
    pairs = [(content.vocabulary[low], content.vocabulary[high]) for low, high in pairs]
    lists = []
    for threshold, size, count in zip(choices.thresholds, sizes, counts, strict=True):
        topic_V = assign(topics.probability_TxV, size)
        topic = {word: int(topic) for word, topic in zip(topics.words, topic_V, strict=True) if topic >= 0}
        lists.append(Lists(threshold, size, topic, pairs[:count]))
    return lists


def measure(
    models: Iterable[Model], lists: Sequence[Lists], content: Sequence[str], choices: Choices, say: Say
) -> Measured:
    """Measure all models; `content` holds the content words of the corpus."""
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in Measured._fields}
    for model in models:
        check_words(model, lists)
        say(f"{model.name}: embeddings")
        about = {"model": model.name, "what": model.what, "is_trained": model.is_trained}
        is_content_V = np.isin(model.corpus.vocabulary, content) & model.is_known_V
        tables["nine"] += [about | row for row in nine_words(model)]
        tables["embeddings"] += [about | embedding_row(model, words) for words in lists]
        tables["attention"] += [
            about | row for row in attention_rows(model, lists, is_content_V, choices, say)
        ]
        tables["pairs"] += [about | pair_row(model, words, is_content_V, choices.seed) for words in lists]
    return Measured(**{name: pd.DataFrame(rows) for name, rows in tables.items()})


def check_words(model: Model, lists: Sequence[Lists]) -> None:
    """Raise a UserError if a model knows so few words that there are no two topics to compare."""
    for words in lists:
        topic_V = known_topics(model, words)
        if len(np.unique(topic_V[topic_V >= 0])) < 2:
            raise UserError(
                f"{model.name} knows {np.count_nonzero(topic_V >= 0)} of the {len(words.topic)} words that "
                f"topics of {model.corpus.name} are compared by; allowed: words of two topics or more"
            )


def nine_words(model: Model) -> list[dict[str, Any]]:
    """Compute the cosine of each pair of Figure 3's words; NaN if the model does not know one of them."""
    number = {word: place for place, word in enumerate(model.corpus.vocabulary) if model.is_known_V[place]}
    vectors = {word: unit(model.embedding_VxD[[number[word]]])[0] for word in NINE if word in number}
    rows = []
    for word, other in itertools.product(NINE, repeat=2):
        is_known = word in vectors and other in vectors
        cosine = float(vectors[word] @ vectors[other]) if is_known else np.nan
        rows.append({"word": word, "other": other, "cosine": cosine})
    return rows


def known_topics(model: Model, lists: Lists) -> np.ndarray:
    """Look up the topic of each word of the model's corpus; -1 for words without topic or embedding."""
    topics = np.array(list(lists.topic.values()))
    topic_V = translated(topics, list(lists.topic), model.corpus.vocabulary, -1)
    return np.where(model.is_known_V, topic_V, -1)


def embedding_row(model: Model, lists: Lists) -> dict[str, Any]:
    """Compute the average similarities within and between topics."""
    topic_V = known_topics(model, lists)
    words = np.flatnonzero(topic_V >= 0)
    row = {"threshold": lists.threshold, "per_topic": lists.per_topic, "words": len(words)}
    row |= {"topics": len(np.unique(topic_V[words])), "split": float(model.is_split_V[words].mean())}
    return row | embedding_averages(model.embedding_VxD[words], topic_V[words])


def attention_rows(
    model: Model, lists: Sequence[Lists], is_content_V: np.ndarray, choices: Choices, say: Say
) -> list[dict[str, Any]]:
    """Compute a row per contrast, threshold and layer, from one window of each of many documents."""
    corpus = model.corpus
    windows = pick_windows(
        np.asarray(corpus.ids), np.asarray(corpus.ends), choices.words, choices.windows, choices.seed
    ).astype(np.int64)
    windows = np.where((windows < FIRST_WORD) | model.is_known_V[windows], windows, UNKNOWN)
    topics = [known_topics(model, words) for words in lists]
    codes = [pair_codes(words.pairs, corpus.vocabulary) for words in lists]
    batches: dict[tuple[str, int], list[PairSums]] = {}
    for start in range(0, len(windows), BATCH):
        words_BxW = windows[start : start + BATCH]
        attention = model.attend(words_BxW)
        for place in range(len(lists)):
            kinds = {
                "topic": topic_kinds(words_BxW, topics[place]),
                "pairs": listed_kinds(words_BxW, is_content_V, codes[place]),
            }
            for contrast, kind in kinds.items():
                batches.setdefault((contrast, place), []).append(add_up(kind, attention))
        if start % (BATCH * 25) == 0:
            say(f"{model.name}: attention in {start:,} of {len(windows):,} windows")
    return [
        {"contrast": contrast, "threshold": lists[place].threshold, **row}
        for (contrast, place), sums in batches.items()
        for row in by_layer(joined(sums))
    ]


def pair_codes(pairs: Sequence[tuple[str, str]], vocabulary: Sequence[str]) -> np.ndarray:
    """Compute the codes of word pairs in another vocabulary; pairs it lacks are left out."""
    known = known_pairs(pairs, vocabulary)
    return pair_code(known.min(axis=1), known.max(axis=1), len(vocabulary))


def known_pairs(pairs: Sequence[tuple[str, str]], vocabulary: Sequence[str]) -> np.ndarray:
    """Look up both words of each pair that a vocabulary has: pairs x 2."""
    number = {word: place for place, word in enumerate(vocabulary)}
    known = [[number[a], number[b]] for a, b in pairs if a in number and b in number]
    return np.array(known, np.int64).reshape(-1, 2)


def pair_row(model: Model, lists: Lists, is_content_V: np.ndarray, seed: int) -> dict[str, Any]:
    """Compute the mean cosine of the pairs that share the most windows, and of random content word pairs."""
    pairs = known_pairs(lists.pairs, model.corpus.vocabulary)
    pairs = pairs[model.is_known_V[pairs].all(axis=1)]
    random = np.random.default_rng(seed).choice(np.flatnonzero(is_content_V), (RANDOM_PAIRS, 2))
    random = random[random[:, 0] != random[:, 1]]
    row: dict[str, Any] = {"threshold": lists.threshold, "count": len(pairs)}
    for name, chosen in (("together", pairs), ("random", random)):
        values = pair_cosine(model.embedding_VxD, chosen)
        row |= {f"{name}_{column}": value for column, value in values.items()}
    return row
