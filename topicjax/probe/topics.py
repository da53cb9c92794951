"""Fit topics to a corpus by LDA, cache them in the data folder, and assign words to them.

Dimension letters: T topics, V words.
"""

import hashlib
import io
import json
import os
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from topicjax.corpora.corpus import Corpus
from topicjax.errors import UserError
from topicjax.probe import import_extra
from topicjax.probe.pairs import occurrences
from topicjax.store.files import read_regular, write_whole

FIRST_WORD = 2  # id; [MASK] and [UNK] come before
MOST_TOPICS = 10_000
TOP_WORDS = 10  # per topic, for NPMI
MOST_FITS = 100
ONE, SEVERAL = "one", "several"  # topics that a word may have


@dataclass(frozen=True)
class Fit:
    """Settings of the fit."""

    topics: int = 100
    iterations: int = 300
    alpha: float = 0.1  # Dirichlet prior of topics in a document
    eta: float = 0.01  # Dirichlet prior of words in a topic
    seed: int = 0
    workers: int = 1  # with more, every fit gives different topics

    def check(self) -> None:
        """Raise a UserError unless there can be pairs of words within a topic and between topics."""
        if not 2 <= self.topics <= MOST_TOPICS:
            raise UserError(f"--topics is {self.topics}; allowed: 2 to {MOST_TOPICS:,}")


def check_fits(count: int) -> None:
    """Raise a UserError unless fits have a spread."""
    if not 2 <= count <= MOST_FITS:
        raise UserError(f"--fits is {count}; allowed: 2 to {MOST_FITS}: errors include the spread over fits")


class Topics(NamedTuple):
    """Probabilities of words in topics, their coherence, and how they were fitted."""

    words: tuple[str, ...]
    probability_TxV: np.ndarray
    npmi_T: np.ndarray
    about: dict[str, Any]


def load_fits(
    corpus: Corpus, fit: Fit, count: int, folder: Path, say: Callable[[str], object]
) -> list[Topics]:
    """Load the topics of `count` fits with consecutive seeds; missing ones are fitted, one per core."""
    is_stopped = threading.Event()

    def load(number: int) -> Topics:
        def tell(text: str) -> None:
            if is_stopped.is_set():
                raise InterruptedError  # ends the training of this thread
            say(f"fit {number + 1} of {count}: {text}")

        return load_topics(corpus, replace(fit, seed=fit.seed + number), folder, tell)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # tomotopy releases Python's lock
        loading = [pool.submit(load, number) for number in range(count)]
        try:
            return [each.result() for each in loading]
        except BaseException:
            is_stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def load_topics(corpus: Corpus, fit: Fit, folder: Path, say: Callable[[str], object]) -> Topics:
    """Load the topics of a corpus from the folder, or fit and store them there."""
    about = {"corpus": corpus.about["hash"], **asdict(fit)}
    short = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    path = folder / f"topics-{short}.npz"
    if not path.exists():
        found = fit_topics(corpus, fit, about, say)
        kept = {"words": np.array(found.words), "probability": found.probability_TxV, "npmi": found.npmi_T}
        kept["about"] = np.array(json.dumps(found.about))
        write_whole(path, lambda file: np.savez_compressed(file, allow_pickle=False, **kept))
    try:
        with np.load(io.BytesIO(read_regular(path)), allow_pickle=False) as read:
            arrays = {name: read[name] for name in ("words", "probability", "npmi", "about")}
        about = json.loads(str(arrays["about"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged: remove it, and the topics are fitted again") from error
    words = tuple(map(str, arrays["words"]))
    return Topics(words, arrays["probability"], arrays["npmi"], about)


def fit_topics(corpus: Corpus, fit: Fit, about: dict[str, Any], say: Callable[[str], object]) -> Topics:
    """Fit LDA to a corpus by Gibbs sampling."""
    tomotopy = import_extra("tomotopy")
    model = tomotopy.LDAModel(k=fit.topics, alpha=fit.alpha, eta=fit.eta, seed=fit.seed)
    for document in np.split(corpus.ids, corpus.ends[:-1]):
        known = document[document >= FIRST_WORD]
        if len(known):
            model.add_doc([corpus.vocabulary[word] for word in known])

    def report(model: Any, done: int, total: int) -> None:
        say(f"topics: {done} of {total} iterations, log-likelihood per word {model.ll_per_word:.3f}")

    report_every = max(1, fit.iterations // 5)
    model.train(fit.iterations, workers=fit.workers, callback=report, callback_interval=report_every)
    words = tuple(model.used_vocabs)
    probability_TxV = np.stack([model.get_topic_word_dist(topic) for topic in range(fit.topics)])
    number = {word: place for place, word in enumerate(corpus.vocabulary)}
    top_TxW = np.argsort(-probability_TxV, axis=1, kind="stable")[:, :TOP_WORDS]
    npmi_T = npmi(corpus, np.array([[number[words[word]] for word in top] for top in top_TxW]))
    more = {"tomotopy": tomotopy.__version__, "log_likelihood_per_word": float(model.ll_per_word)}
    more |= {"documents": len(model.docs), "tokens": int(model.num_words), "npmi": float(npmi_T.mean())}
    return Topics(words, probability_TxV.astype(np.float32), npmi_T, about | more)


def npmi(corpus: Corpus, words_TxW: np.ndarray) -> np.ndarray:
    """Compute the normalised pointwise mutual information of each topic's words over the documents.

    It is the mean over pairs of ln(p(a, b) / (p(a) p(b))) / -ln p(a, b), where p is the share of documents;
    -1 for pairs that occur in no document.
    """
    lengths = np.diff(corpus.ends, prepend=0)
    document = np.repeat(np.arange(len(lengths)), lengths)
    shape = (len(lengths), len(corpus.vocabulary))
    contains = occurrences(document, np.asarray(corpus.ids), shape)
    found = []
    for words in words_TxW:
        has_DxW = contains[:, words].toarray().astype(np.float64)
        joint_WxW = has_DxW.T @ has_DxW / len(lengths)
        alone_W = has_DxW.mean(axis=0)
        pairs = np.triu_indices(len(words), k=1)
        joint, apart = joint_WxW[pairs], (alone_W[:, None] * alone_W[None])[pairs]
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(joint / apart) / -np.log(joint)
        found.append(np.where(joint == 0, -1.0, np.where(joint == 1, 1.0, values)).mean())
    return np.array(found)


def assign(probability_TxV: np.ndarray, per_topic: int, pairing: str) -> np.ndarray:
    """Choose the words of each topic: its most likely ones, per_topic of them; members, V x T.

    ONE: among the words that no other topic gives a higher probability, so each word has at most one topic,
    as in the paper's Table 1.  SEVERAL: among all words, so a word may belong to several.  We take this to be
    the paper's list "when the restriction of one topic per word is removed" (its Appendix E.3, which we do
    not have).
    """
    is_open_TxV = np.ones(probability_TxV.shape, bool)
    if pairing == ONE:
        is_open_TxV = probability_TxV.argmax(axis=0)[None] == np.arange(len(probability_TxV))[:, None]
    member_VxT = np.zeros(probability_TxV.T.shape, bool)
    for topic, (probability_V, is_open_V) in enumerate(zip(probability_TxV, is_open_TxV, strict=True)):
        words = np.flatnonzero(is_open_V)
        member_VxT[words[np.argsort(-probability_V[words], kind="stable")][:per_topic], topic] = True
    return member_VxT
