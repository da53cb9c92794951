"""Figure 3, Tables 1 and 2 as data: similarity of embeddings and attention between words, model by model."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from topicjax.corpora.corpus import Corpus
from topicjax.errors import UserError
from topicjax.probe import attention, similarity
from topicjax.probe.cooccurrence import cut_windows, pick_windows, shared_windows
from topicjax.probe.models import Model
from topicjax.probe.topics import Topics, assign, translated

NINE = ("frog", "toad", "lizard", "mozart", "beethoven", "schubert", "algebra", "arithmetic", "calculus")
BATCH = 16  # windows
RANDOM_PAIRS = 20_000
Say = Callable[[str], object]


@dataclass(frozen=True)
class Choices:
    """What the paper leaves open."""

    thresholds: tuple[float, ...] = (0.0005, 0.001, 0.002)  # words per topic / vocabulary, as in the paper
    words: int = 64  # of a window
    windows: int = 2000  # one per document
    seed: int = 0

    def check(self) -> None:
        """Raise a UserError unless windows can hold pairs and be resampled."""
        if not 2 <= self.words <= 512:
            raise UserError(f"--words is {self.words}; allowed: 2 to 512")
        if self.windows < 2:
            raise UserError(f"--windows is {self.windows}; allowed: 2 or more")


class Lists(NamedTuple):
    """The words of each topic and the pairs that share most windows, for one threshold."""

    threshold: float
    per_topic: int
    topic: dict[str, int]  # of the words that have one
    pairs: list[tuple[str, str]]


class Measured(NamedTuple):
    """All that tables and figures are made of; a row per model and threshold, attention per layer too."""

    embeddings: pd.DataFrame
    attention: pd.DataFrame
    pairs: pd.DataFrame
    nine: pd.DataFrame


def make_lists(topics: Topics, content: Corpus, choices: Choices) -> list[Lists]:
    """Return the word lists of each threshold; pairs are as many as a topic has."""
    V = len(content.vocabulary)
    is_word_V = np.arange(V) >= 2
    sizes = [max(2, round(threshold * V)) for threshold in choices.thresholds]
    windows = cut_windows(np.asarray(content.ids), np.asarray(content.ends), choices.words)
    pairs = shared_windows(windows, is_word_V, max(size * (size - 1) // 2 for size in sizes))
    named = [(content.vocabulary[low], content.vocabulary[high]) for low, high in pairs]
    found = []
    for threshold, size in zip(choices.thresholds, sizes, strict=True):
        topic_V = assign(topics.probability_TxV, size)
        own = {word: int(topic) for word, topic in zip(topics.words, topic_V, strict=True) if topic >= 0}
        found.append(Lists(threshold, size, own, named[: size * (size - 1) // 2]))
    return found


def measure(
    models: Iterable[Model], lists: Sequence[Lists], content: Sequence[str], choices: Choices, say: Say
) -> Measured:
    """Return the measurements of all models."""
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in Measured._fields}
    for model in models:
        say(f"{model.name}: embeddings")
        own = {"model": model.name, "what": model.what, "is_trained": model.is_trained}
        tables["nine"] += [own | row for row in nine_words(model)]
        for listed in lists:
            tables["embeddings"].append(own | embedding_row(model, listed))
        for contrast, listed, row in attention_rows(model, lists, content, choices, say):
            row = {"contrast": contrast, "threshold": listed.threshold, **row}
            tables["attention"].append(own | row)
        for listed in lists:
            tables["pairs"].append(own | pair_row(model, listed, content, choices.seed))
    return Measured(**{name: pd.DataFrame(rows) for name, rows in tables.items()})


def nine_words(model: Model) -> list[dict[str, Any]]:
    """Return the cosine of each two of Figure 3's words; not a number where the model does not know one."""
    number = {word: place for place, word in enumerate(model.corpus.vocabulary) if model.is_known_V[place]}
    vectors = {
        word: similarity.unit(model.embedding_VxD[[number[word]]])[0] for word in NINE if word in number
    }
    rows = []
    for word, other in itertools.product(NINE, repeat=2):
        is_known = word in vectors and other in vectors
        cosine = float(vectors[word] @ vectors[other]) if is_known else np.nan
        rows.append({"word": word, "other": other, "cosine": cosine})
    return rows


def known_topics(model: Model, listed: Lists) -> np.ndarray:
    """Return the topic of each word of the model's corpus, -1 for words without one or without embedding."""
    words = list(listed.topic)
    topic_V = translated(np.array(list(listed.topic.values())), words, model.corpus.vocabulary, -1)
    return np.where(model.is_known_V, topic_V, -1)


def embedding_row(model: Model, listed: Lists) -> dict[str, Any]:
    """Return the average similarities within and between topics."""
    topic_V = known_topics(model, listed)
    words = np.flatnonzero(topic_V >= 0)
    row = {"threshold": listed.threshold, "per_topic": listed.per_topic, "words": len(words)}
    row |= {"topics": len(np.unique(topic_V[words])), "split": float(model.is_split_V[words].mean())}
    return row | similarity.embedding_averages(model.embedding_VxD[words], topic_V[words])


def attention_rows(
    model: Model, lists: Sequence[Lists], content: Sequence[str], choices: Choices, say: Say
) -> list[tuple[str, Lists, dict[str, float]]]:
    """Return a row per contrast, threshold and layer, from one window of each of many documents."""
    corpus = model.corpus
    windows = pick_windows(
        np.asarray(corpus.ids), np.asarray(corpus.ends), choices.words, choices.windows, choices.seed
    ).astype(np.int64)
    windows = np.where((windows < 2) | model.is_known_V[windows], windows, 1)
    is_content_V = np.isin(corpus.vocabulary, content) & model.is_known_V
    topics = [known_topics(model, listed) for listed in lists]
    codes = [pair_codes(listed.pairs, corpus.vocabulary) for listed in lists]
    parts: dict[tuple[str, int], list[attention.PairSums]] = {}
    for start in range(0, len(windows), BATCH):
        words_BxW = windows[start : start + BATCH]
        weights = model.attend(words_BxW)
        for place in range(len(lists)):
            kinds = {
                "topic": attention.topic_kinds(words_BxW, topics[place]),
                "pairs": attention.listed_kinds(words_BxW, is_content_V, codes[place]),
            }
            for contrast, kind in kinds.items():
                parts.setdefault((contrast, place), []).append(attention.add_up(kind, weights))
        if start % (BATCH * 25) == 0:
            say(f"{model.name}: attention in {start:,} of {len(windows):,} windows")
    return [
        (contrast, lists[place], row)
        for (contrast, place), found in parts.items()
        for row in attention.by_layer(attention.joined(found))
    ]


def pair_codes(pairs: Sequence[tuple[str, str]], vocabulary: Sequence[str]) -> np.ndarray:
    """Return the codes of pairs of words in another vocabulary; pairs it does not have are left out."""
    known = known_pairs(pairs, vocabulary)
    return attention.pair_code(known.min(axis=1), known.max(axis=1), len(vocabulary))


def known_pairs(pairs: Sequence[tuple[str, str]], vocabulary: Sequence[str]) -> np.ndarray:
    """Return the numbers of both words of each pair that a vocabulary has, as pairs x 2."""
    number = {word: place for place, word in enumerate(vocabulary)}
    found = [[number[a], number[b]] for a, b in pairs if a in number and b in number]
    return np.array(found, np.int64).reshape(-1, 2)


def pair_row(model: Model, listed: Lists, content: Sequence[str], seed: int) -> dict[str, Any]:
    """Return the mean cosine of the pairs that share most windows, and of random pairs of content words."""
    pairs = known_pairs(listed.pairs, model.corpus.vocabulary)
    pairs = pairs[model.is_known_V[pairs].all(axis=1)]
    candidates = np.flatnonzero(np.isin(model.corpus.vocabulary, content) & model.is_known_V)
    random = np.random.default_rng(seed).choice(candidates, (RANDOM_PAIRS, 2))
    random = random[random[:, 0] != random[:, 1]]
    row: dict[str, Any] = {"threshold": listed.threshold, "count": len(pairs)}
    for name, chosen in (("together", pairs), ("random", random)):
        values = similarity.pair_cosine(model.embedding_VxD, chosen)
        row |= {f"{name}_{column}": value for column, value in values.items()}
    return row
