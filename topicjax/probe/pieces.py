"""Words in WordPiece: the longest piece that fits, then the longest of the rest."""

import string
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

LONGEST = 100  # characters of a word; a longer one is unknown
SPECIALS = {  # BERT's name, MPNet's name
    "[UNK]": ("[UNK]", "<unk>"),
    "[CLS]": ("[CLS]", "<s>"),
    "[SEP]": ("[SEP]", "</s>"),
    "[MASK]": ("[MASK]", "<mask>"),
}


def special(name: str, ids: Mapping[str, int]) -> int:
    """Return the id of a special piece under whichever name the vocabulary has it."""
    return next(ids[other] for other in SPECIALS[name] if other in ids)


def pieces_of_words(words: Sequence[str], pieces: Sequence[str]) -> list[list[int]]:
    """Return the ids of the pieces of each word; a word that cannot be spelt is the unknown piece."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    unknown = special("[UNK]", ids)
    found = []
    for word in words:
        if word in SPECIALS:
            found.append([special(word, ids)])
        else:
            parts = [spell(part, ids) or [unknown] for part in split_punctuation(plain(word))]
            found.append([piece for part in parts for piece in part] or [unknown])
    return found


def plain(word: str) -> str:
    """Return the word in lower case and without accents, as uncased models know it."""
    spread = unicodedata.normalize("NFD", word.lower())
    return "".join(letter for letter in spread if unicodedata.category(letter) != "Mn")


def split_punctuation(word: str) -> list[str]:
    """Return the parts of a word; a punctuation mark is a part of its own."""
    spaced = (f" {letter} " if is_punctuation(letter) else letter for letter in word)
    return "".join(spaced).split()


def is_punctuation(letter: str) -> bool:
    """Return whether BERT parts words at this letter: punctuation, and every other sign of ASCII."""
    return letter in string.punctuation or unicodedata.category(letter).startswith("P")


def spell(part: str, ids: Mapping[str, int]) -> list[int]:
    """Return the pieces of a part, longest first; none if it cannot be spelt."""
    if len(part) > LONGEST:
        return []
    found, start = [], 0
    while start < len(part):
        before = "##" if start else ""
        ends = (end for end in range(len(part), start, -1) if before + part[start:end] in ids)
        end = next(ends, None)
        if end is None:
            return []
        found.append(ids[before + part[start:end]])
        start = end
    return found


def mean_embeddings(words: Sequence[Sequence[int]], embedding_VxD: np.ndarray) -> np.ndarray:
    """Return the embedding of each word: the mean over its pieces."""
    return np.stack([embedding_VxD[list(pieces)].mean(axis=0) for pieces in words])
