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
    WINDOW_RESAMPLES,
    Array,
    PairSums,
    add_up,
    by_layer,
    compared,
    cut_windows,
    embedding_averages,
    joined,
    listed_kinds,
    pair_code,
    pair_cosine,
    pick_windows,
    resamples,
    shared_windows,
    topic_kinds,
    unit,
    with_errors,
)
from topicjax.probe.topics import FIRST_WORD, ONE, SEVERAL, Topics, assign

TOGETHER = "together"  # pairs of words that share the most windows, beside those of ONE and SEVERAL
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


class Words(NamedTuple):
    """Words and the topics that each belongs to, from one fit."""

    words: tuple[str, ...]
    member_WxT: np.ndarray


class Lists(NamedTuple):
    """The words of each topic and the pairs that share the most windows, for one threshold."""

    threshold: float
    per_topic: int
    fits: dict[str, list[Words]]  # by pairing, ONE or SEVERAL: the words of each topic fit
    pairs: list[tuple[str, str]]


class Measured(NamedTuple):
    """The data of all tables and figures: a row per model, pairing and threshold, or layer too."""

    embeddings: pd.DataFrame
    attention: pd.DataFrame
    pairs: pd.DataFrame
    nine: pd.DataFrame
    fits: pd.DataFrame  # the same for each topic fit alone, attention over all layers


def make_lists(fits: Sequence[Topics], content: Corpus, choices: Choices) -> list[Lists]:
    """Make the word lists of each threshold, with as many pairs as one topic has."""
    V = len(content.vocabulary)
    sizes = [max(2, round(threshold * V)) for threshold in choices.thresholds]
    counts = [size * (size - 1) // 2 for size in sizes]
    windows = cut_windows(np.asarray(content.ids), np.asarray(content.ends), choices.words)
    pairs = shared_windows(windows, np.arange(V) >= FIRST_WORD, max(counts))
    pairs = [(content.vocabulary[low], content.vocabulary[high]) for low, high in pairs]
    lists = []
    for threshold, size, count in zip(choices.thresholds, sizes, counts, strict=True):
        chosen = {pairing: [chosen_words(fit, size, pairing) for fit in fits] for pairing in (ONE, SEVERAL)}
        lists.append(Lists(threshold, size, chosen, pairs[:count]))
    return lists


def chosen_words(topics: Topics, per_topic: int, pairing: str) -> Words:
    """List the words that have a topic."""
    member_VxT = assign(topics.probability_TxV, per_topic, pairing)
    places = np.flatnonzero(member_VxT.any(axis=1))
    return Words(tuple(topics.words[place] for place in places), member_VxT[places])


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
        for name, rows in (
            *embedding_rows(model, lists).items(),
            *attention_rows(model, lists, is_content_V, choices, say).items(),
        ):
            tables[name] += [about | row for row in rows]
        tables["pairs"] += [about | pair_row(model, words, is_content_V, choices.seed) for words in lists]
    return Measured(**{name: pd.DataFrame(rows) for name, rows in tables.items()})


def check_words(model: Model, lists: Sequence[Lists]) -> None:
    """Raise a UserError if a model knows so few words that there are no two topics to compare."""
    for words in itertools.chain(*(own for each in lists for own in each.fits.values())):
        member_VxT = known_topics(model, words)
        if np.count_nonzero(member_VxT.any(axis=0)) < 2:
            raise UserError(
                f"{model.name} knows {np.count_nonzero(member_VxT.any(axis=1))} of the {len(words.words)} "
                f"words that topics of {model.corpus.name} are compared by; "
                "allowed: words of two topics or more"
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


def known_topics(model: Model, words: Words) -> np.ndarray:
    """Mark the topics of each word of the model's corpus, V x T; words it does not know have none."""
    place = {word: number for number, word in enumerate(model.corpus.vocabulary)}
    pairs = [(place[word], number) for number, word in enumerate(words.words) if word in place]
    member_VxT = np.zeros((len(place), words.member_WxT.shape[1]), bool)
    if pairs:
        here, there = np.array(pairs).T
        member_VxT[here] = words.member_WxT[there]
    return member_VxT & model.is_known_V[:, None]


def embedding_rows(model: Model, lists: Sequence[Lists]) -> dict[str, list[dict[str, Any]]]:
    """Compute average similarities within and between topics: over fits, and of each fit alone."""
    rows: dict[str, list[dict[str, Any]]] = {"embeddings": [], "fits": []}
    for each, pairing in itertools.product(lists, (ONE, SEVERAL)):
        members = [known_topics(model, words) for words in each.fits[pairing]]
        chosen = [np.flatnonzero(member_VxT.any(axis=1)) for member_VxT in members]
        sizes = [
            {
                "words": len(words),
                "topics": np.count_nonzero(member_VxT.any(axis=0)),
                "shared": float((member_VxT[words].sum(axis=1) > 1).mean()),
                "split": float(model.is_split_V[words].mean()),
            }
            for words, member_VxT in zip(chosen, members, strict=True)
        ]
        averages = [
            embedding_averages(model.embedding_VxD[words], member_VxT[words])
            for words, member_VxT in zip(chosen, members, strict=True)
        ]
        about = {"threshold": each.threshold, "pairing": pairing}
        mean = {name: np.mean([size[name] for size in sizes]) for name in sizes[0]}
        row = {**about, "per_topic": each.per_topic, "fits": len(sizes), **mean}
        row |= {"words": round(mean["words"]), "topics": round(mean["topics"])}
        for kind in averages[0]:
            found = {name: np.stack([fit[kind][name] for fit in averages]) for name in averages[0][kind]}
            row |= {f"{kind}_{name}": value for name, value in with_errors(found).items()}
            rows["fits"] += [about | {"measure": kind, **fit} for fit in each_fit(found)]
        rows["embeddings"].append(row)
    return rows


def each_fit(found: dict[str, Array]) -> list[dict[str, Any]]:
    """Compare kinds in each topic fit alone; the errors are those within the fit."""
    count = len(next(iter(found.values())))
    return [
        {"fit": fit, **with_errors({name: values[[fit]] for name, values in found.items()})}
        for fit in range(count)
    ]


def attention_rows(
    model: Model, lists: Sequence[Lists], is_content_V: np.ndarray, choices: Choices, say: Say
) -> dict[str, list[dict[str, Any]]]:
    """Compute a row per pairing, threshold and layer, from one window of each of many documents."""
    corpus = model.corpus
    windows = pick_windows(
        np.asarray(corpus.ids), np.asarray(corpus.ends), choices.words, choices.windows, choices.seed
    ).astype(np.int64)
    windows = np.where((windows < FIRST_WORD) | model.is_known_V[windows], windows, UNKNOWN)
    weight_RxB = resamples(len(windows), WINDOW_RESAMPLES)
    members = {
        (place, pairing): [known_topics(model, words) for words in own]
        for place, each in enumerate(lists)
        for pairing, own in each.fits.items()
    }
    codes = [pair_codes(each.pairs, corpus.vocabulary) for each in lists]
    sums: dict[tuple[int, str], list[PairSums]] = {}
    for start in range(0, len(windows), BATCH):
        words_BxW, weights = windows[start : start + BATCH], weight_RxB[:, start : start + BATCH]
        attention = model.attend(words_BxW)
        for place in range(len(lists)):
            kinds = {
                pairing: [topic_kinds(words_BxW, member_VxT) for member_VxT in members[place, pairing]]
                for pairing in (ONE, SEVERAL)
            }
            kinds[TOGETHER] = [listed_kinds(words_BxW, is_content_V, codes[place])]
            for pairing, fits in kinds.items():
                found = [add_up(kind, attention, weights) for kind in fits]
                before = sums.get((place, pairing))
                sums[place, pairing] = list(map(joined, before, found)) if before else found
        if start % (BATCH * 25) == 0:
            say(f"{model.name}: attention in {start:,} of {len(windows):,} windows")
    rows: dict[str, list[dict[str, Any]]] = {"attention": [], "fits": []}
    for (place, pairing), fits in sums.items():
        about = {"threshold": lists[place].threshold, "pairing": pairing}
        rows["attention"] += [about | {"windows": len(windows)} | row for row in by_layer(fits)]
        if pairing != TOGETHER:
            alone = each_fit(compared(fits, 0))
            rows["fits"] += [about | {"measure": "attention"} | row for row in alone]
    return rows


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
