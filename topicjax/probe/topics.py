"""Topics of a corpus: fitted by LDA, kept in the data folder, with the words that belong to each.

Dimension letters: T topics, V words.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from topicjax.corpora.corpus import Corpus
from topicjax.errors import UserError
from topicjax.probe.cooccurrence import occurrences
from topicjax.store.files import write_whole

FIRST_WORD = 2  # below: [MASK], [UNK]
MOST_TOPICS = 10_000
TOP_WORDS = 10  # of a topic: for NPMI
INSTALL = ".venv/bin/pip install --constraint constraints.txt --editable '.[text]'"


@dataclass(frozen=True)
class Fit:
    """How topics are fitted."""

    topics: int = 100
    iterations: int = 300
    alpha: float = 0.1  # of topics in a document
    eta: float = 0.01  # of words in a topic
    seed: int = 0
    workers: int = 1  # more would give other topics each time

    def check(self) -> None:
        """Raise a UserError unless words can be of the same topic and of different ones."""
        if not 2 <= self.topics <= MOST_TOPICS:
            raise UserError(f"--topics is {self.topics}; allowed: 2 to {MOST_TOPICS:,}")


class Topics(NamedTuple):
    """Probabilities of words in topics, and where they come from."""

    words: tuple[str, ...]
    probability_TxV: np.ndarray
    npmi_T: np.ndarray
    about: dict[str, Any]


def load_topics(corpus: Corpus, fit: Fit, folder: Path, say: Callable[[str], object]) -> Topics:
    """Return the topics of a corpus: those kept in the folder, or new ones, which are kept."""
    about = {"corpus": corpus.about["hash"], **asdict(fit)}
    short = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    path = folder / f"topics-{short}.npz"
    if not path.exists():
        found = fit_topics(corpus, fit, about, say)
        kept = {"words": np.array(found.words), "probability": found.probability_TxV, "npmi": found.npmi_T}
        kept["about"] = np.array(json.dumps(found.about))
        write_whole(path, lambda file: np.savez_compressed(file, allow_pickle=False, **kept))
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as read:
            arrays = {name: read[name] for name in ("words", "probability", "npmi", "about")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged: remove it, and the topics are fitted again") from error
    words = tuple(map(str, arrays["words"]))
    return Topics(words, arrays["probability"], arrays["npmi"], json.loads(str(arrays["about"])))


def fit_topics(corpus: Corpus, fit: Fit, about: dict[str, Any], say: Callable[[str], object]) -> Topics:
    """Return the topics that LDA finds in a corpus, by Gibbs sampling."""
    try:
        import tomotopy  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(f"topics need tomotopy, which is not installed: {INSTALL}") from error

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
    """Return the normalised pointwise mutual information of each topic's words over the corpus's documents.

    Mean over pairs of ln(p(a, b) / (p(a) p(b))) / -ln p(a, b), p the share of documents; -1 for pairs that no
    document has.
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


def assign(probability_TxV: np.ndarray, per_topic: int) -> np.ndarray:
    """Return the topic of each word, -1 for none: each word's likeliest, which keeps its likeliest words."""
    best_V = probability_TxV.argmax(axis=0)
    topic_V = np.full(len(best_V), -1)
    for topic, probability_V in enumerate(probability_TxV):
        own = np.flatnonzero(best_V == topic)
        topic_V[own[np.argsort(-probability_V[own], kind="stable")][:per_topic]] = topic
    return topic_V


def translated(
    values_V: np.ndarray, words: Sequence[str], vocabulary: Sequence[str], missing: int
) -> np.ndarray:
    """Return values of words for the words of another vocabulary."""
    known = dict(zip(words, values_V.tolist(), strict=True))
    return np.array([known.get(word, missing) for word in vocabulary])
