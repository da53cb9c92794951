"""Small corpora: given documents in memory, and thirty lines on three subjects as files."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from topicjax.corpora import make
from topicjax.corpora.corpus import Corpus

SUBJECTS = {
    "garden": ("rose", "soil", "seed", "bloom", "hedge", "leaf", "spade", "frost"),
    "harbour": ("ship", "tide", "anchor", "sail", "crew", "rope", "wave", "quay"),
    "kitchen": ("bread", "flour", "oven", "salt", "butter", "knife", "soup", "spoon"),
}
PATTERNS = (
    "the {0} and the {1} are in the {2} with {3}",
    "it is said that a {1} of {0} has its {3} under the {2}",
    "when the {3} was old, {2} came after {1} and {0}",
)


def small_corpus(documents: Sequence[Sequence[str]], vocabulary: Sequence[str]) -> Corpus:
    """Make a corpus of documents, each a sequence of words; the vocabulary begins with [MASK] and [UNK]."""
    words = ("[MASK]", "[UNK]", *vocabulary)
    ids = [words.index(word) for document in documents for word in document]
    ends = np.cumsum([len(document) for document in documents])
    return Corpus("small", np.array(ids), ends, words, {"hash": "0123456789ab"})


def lines() -> list[str]:
    """Make thirty documents of up to 40 words, each on one subject."""
    found = []
    for number, (subject, words) in zip(range(30), itertools.cycle(SUBJECTS.items()), strict=False):
        sentences = []
        for turn in range(1 + number % 4):
            chosen = [words[(number * 3 + turn * 5 + place * 2) % 8] for place in range(4)]
            sentences.append(PATTERNS[(number + turn) % 3].format(*chosen))
        found.append(f"In the {subject}: {'. '.join(sentences)}.")
    return found


def write_text(folder: Path) -> Path:
    """Write the documents as a text file, one per line."""
    path = folder / "own.txt"
    path.write_text("\n".join(lines()) + "\n")
    return path


def write_corpora(folder: Path) -> Path:
    """Write the corpora own and own_content into a data folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    make.make_corpora(make.file_text(write_text(folder), None), None, folder / "data", lambda text: None)
    return folder / "data"
