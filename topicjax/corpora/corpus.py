"""A corpus: documents of numbered words in a folder, identified by the hash of its contents."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from topicjax.advice import corpus_command
from topicjax.errors import UserError
from topicjax.store.files import (
    OF_THE_DISK,
    explained,
    first_line,
    open_regular,
    plain,
    read_regular,
    reason,
    scan,
    write_whole,
)

MASK, UNKNOWN = "[MASK]", "[UNK]"  # words 0 and 1 of every vocabulary
ABOUT = "corpus.json"  # written last: a folder without it is not a corpus
SIZES = ("documents", "words", "vocabulary")
HASH = re.compile("[0-9a-f]{12}")


class Standard(NamedTuple):
    """What is known of a standard corpus before it is made."""

    hash: str
    documents: int
    words: int


STANDARD = {  # the corpora of `topicjax corpus`, which is deterministic
    "wikipedia": Standard("e44b3ca087e7", 8_290, 11_312_222),
    "wikipedia_content": Standard("0db2e5a40426", 8_290, 5_848_206),
}


class Corpus(NamedTuple):
    """Concatenated documents."""

    name: str
    ids: np.ndarray  # the words of all documents by number, memory-mapped
    ends: np.ndarray  # where each document ends in ids
    vocabulary: tuple[str, ...]  # [MASK] and [UNK], then words from most to least frequent
    about: dict[str, Any]  # corpus.json: source, licence, sizes, hash


def data_folder() -> Path:
    """Locate the folder of all corpora: TOPICJAX_DATA, else data/ here."""
    return Path(os.environ.get("TOPICJAX_DATA") or "data")


def load_corpus(name_or_hash: str, folder: Path | None = None) -> Corpus:
    """Load a corpus of the data folder, by name or hash, or raise a UserError that says how to make it."""
    folder = folder or data_folder()
    known = known_corpora(folder)
    hashes = {digest: name for name, digest in known.items()}
    name = name_or_hash if name_or_hash in known else hashes.get(name_or_hash, "")
    if not name:
        raise UserError(missing(name_or_hash, folder))
    return read_corpus(folder / name)


def missing(name_or_hash: str, folder: Path) -> str:
    """Word the message that a corpus is missing, and what to type."""
    names = {corpus.hash: name for name, corpus in STANDARD.items()}
    name = names.get(name_or_hash, name_or_hash)
    return f"the corpus {name} is not in {folder}; to make it: {how_to_make(name)}"


def how_to_make(name: str) -> str:
    """Say what to type to make a corpus."""
    if name in STANDARD:
        return corpus_command(is_standard=True)
    return f"{corpus_command(is_standard=False)}, with the text that it was made of"


def find_hash(name_or_hash: str) -> str | None:
    """Find the hash of a corpus, given itself or a name: a standard one, else one in the data folder."""
    if HASH.fullmatch(name_or_hash):
        return name_or_hash
    if name_or_hash in STANDARD:
        return STANDARD[name_or_hash].hash
    return known_corpora(data_folder()).get(name_or_hash)


def corpus_size(known: str) -> tuple[int, int]:
    """Return the numbers of documents and words of a corpus by hash; a standard one need not exist yet."""
    for standard in STANDARD.values():
        if standard.hash == known and known not in known_corpora(data_folder()).values():
            return standard.documents, standard.words
    corpus = load_corpus(known)
    return len(corpus.ends), len(corpus.ids)


def known_corpora(folder: Path) -> dict[str, str]:
    """Map the name of every corpus in a data folder to its hash."""
    found = {}
    for entry in sorted(scan(folder), key=lambda entry: entry.name):
        if os.path.isfile(os.path.join(entry.path, ABOUT)):
            found[entry.name] = read_about(Path(entry.path))["hash"]
    return found


def read_about(folder: Path) -> dict[str, Any]:
    """Read the description of a corpus."""
    path = folder / ABOUT
    try:
        about = json.loads(read_regular(path))
        if not isinstance(about, dict) or not isinstance(about.get("hash"), str):
            raise ValueError("it has no hash")
        if any(type(about.get(name)) is not int for name in SIZES):
            raise ValueError(f"it lacks a number of {', '.join(SIZES)}")
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    return about


def damaged(path: Path, error: Exception) -> Exception:
    """Word the message about a file of a corpus that cannot be used, and what to type."""
    if isinstance(error, OSError) and error.errno in OF_THE_DISK:
        return error  # the file may be as good as it was
    why = reason(error) if isinstance(error, OSError) else first_line(error)
    return UserError(f"{path} cannot be used: {why}; to make it again: {how_to_make(path.parent.name)}")


def read_corpus(folder: Path) -> Corpus:
    """Read the corpus of a folder, its words memory-mapped, or raise a UserError that names the bad file."""
    about = read_about(folder)
    path = folder / "vocabulary.txt"
    try:
        words = tuple(read_regular(path).decode().splitlines())
        if words[:2] != (MASK, UNKNOWN):
            raise ValueError(f"it does not begin with {MASK} and {UNKNOWN}")
    except (OSError, ValueError) as error:
        raise damaged(path, error) from None
    ends = read_numbers(
        folder / "ends.npy", lambda ends: bool((np.diff(ends.astype(int), prepend=0) > 0).all())
    )
    ids = read_numbers(folder / "ids.npy", lambda ids: len(ids) == ends[-1] and ids.max() < len(words))
    corpus = Corpus(folder.name, ids, ends, words, about)
    if content_hash(ids, ends, words) != about["hash"]:
        raise UserError(
            f"the corpus in {folder} is not as it was written; to make it again: {how_to_make(folder.name)}"
        )
    return corpus


def read_numbers(path: Path, fits: Callable[[np.ndarray], bool]) -> np.ndarray:
    """Memory-map a list of whole numbers from 0 that fits the rest of its corpus."""
    try:
        os.close(open_regular(path, os.O_RDONLY))  # NumPy would wait for a pipe
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind not in "iu":
            raise ValueError("it is not a list of whole numbers")
        if not len(found) or found.min() < 0 or not fits(found):
            raise ValueError("its numbers do not fit the other files of the corpus")
    except Exception as error:  # a header may contain anything, and NumPy may raise anything
        raise damaged(path, error) from None
    return found


def write_corpus(
    folder: Path, ids: np.ndarray, ends: np.ndarray, vocabulary: Sequence[str], about: Mapping[str, Any]
) -> str:
    """Write a corpus into its folder atomically, and return its hash."""
    known = content_hash(ids, ends, vocabulary)
    sizes = dict(zip(SIZES, map(len, (ends, ids, vocabulary)), strict=True))
    unknown = float(np.mean(ids == vocabulary.index(UNKNOWN)))
    described = {"hash": known, **sizes, "share_unknown": unknown, **about}
    with explained("write into", folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ABOUT).unlink(missing_ok=True)
    write_whole(folder / "ids.npy", lambda file: np.save(file, ids))
    write_whole(folder / "ends.npy", lambda file: np.save(file, ends))
    text = "".join(f"{word}\n" for word in vocabulary)
    write_whole(folder / "vocabulary.txt", lambda file: file.write(text.encode()))
    told = json.dumps(plain(described), indent=2) + "\n"
    write_whole(folder / ABOUT, lambda file: file.write(told.encode()))
    return known


def content_hash(ids: np.ndarray, ends: np.ndarray, vocabulary: Sequence[str]) -> str:
    """Compute 12 hexadecimal digits that depend only on the documents and their words."""
    digest = hashlib.sha256("\n".join(vocabulary).encode())
    for array, kind in ((ends, "<u8"), (ids, "<u4")):
        digest.update(len(array).to_bytes(8, "little"))
        for start in range(0, len(array), 1 << 22):
            digest.update(np.ascontiguousarray(array[start : start + (1 << 22)], kind).tobytes())
    return digest.hexdigest()[:12]
