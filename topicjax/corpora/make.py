"""Make corpora from Wikipedia or any text with one document per line: all words, and content words."""

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from topicjax.corpora import wikipedia
from topicjax.corpora.corpus import ABOUT, MASK, STANDARD, UNKNOWN, read_corpus, write_corpus
from topicjax.corpora.download import Say, need_disk
from topicjax.corpora.words import (
    ALL_RULE,
    CONTENT_RULE,
    Numbered,
    content_only,
    number_words,
    rank,
    words_of,
)
from topicjax.errors import UserError, shown
from topicjax.store.files import explained, read_regular, write_whole

VOCABULARY = 32_768  # default number of words; rarer ones are [UNK]
CLEANER = 1  # version of the rules that extract words from a text
DOWNLOADS = "downloads"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
ATTRIBUTION = """The words in this folder are those of the English Wikipedia of March 2006, by its authors, as
enwik8 has them (the first 100,000,000 bytes of its dump; M. Mahoney's Large Text Compression Benchmark).
The text is under the Creative Commons Attribution-ShareAlike licence (CC BY-SA) and the GNU Free
Documentation License (GFDL); who passes it on, also in this form, does so under the same licence and names
its source: https://en.wikipedia.org, where every article lists its authors.
Changed here: markup, numbers and punctuation are removed, words are in lower case and numbered.
"""


class Text(NamedTuple):
    """A source of documents: its description, and a function that yields them."""

    name: str
    about: dict[str, Any]
    documents: Callable[[], Iterable[list[str]]]
    size: float  # estimated bytes to write
    licence: str = ""


def wikipedia_text(folder: Path, vocabulary: int | None, say: Say) -> Text:
    """Describe the English Wikipedia of 2006; its archive is downloaded when its documents are needed."""

    def documents() -> Iterable[list[str]]:
        dump = wikipedia.read_enwik8(folder / DOWNLOADS, say)
        say("cleaning the articles: half a minute or so")
        return wikipedia.articles(dump)

    about = {
        "source": "English Wikipedia, March 2006, as enwik8 has it (the first 10^8 bytes of its dump)",
        "source_hash": f"md5:{wikipedia.MD5}",
        "licence": "CC BY-SA and GFDL; see LICENCE.txt",
        "documents_are": f"articles of {wikipedia.SHORTEST} words or more",
    }
    name = "wikipedia" if vocabulary in (None, VOCABULARY) else f"wikipedia_{vocabulary}"
    return Text(name, about, documents, 100e6, ATTRIBUTION)


def file_text(path: Path, name: str | None) -> Text:
    """Read a user's text, one document per line, or raise a UserError if it is not text."""
    name = name or path.stem.lower()
    taken = (DOWNLOADS, *STANDARD)
    if not NAME.fullmatch(name) or name in taken or f"{name}_content" in taken:
        raise UserError(
            f"the name of the corpus is {shown(name)}; allowed: --name with a to z, digits, _ and -, "
            f"and none of {', '.join(taken)}"
        )
    with explained("read", path):
        raw = read_regular(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 at byte {error.start}; allowed: UTF-8 text") from None
    if "\0" in text:
        raise UserError(f"{path} is binary; allowed: UTF-8 text, one document per line")
    documents = [words for line in text.split("\n") if (words := words_of(line))]
    if not documents:
        raise UserError(f"{path} has no words; allowed: UTF-8 text, one document per line")
    about = {
        "source": path.name,
        "source_hash": f"sha256:{hashlib.sha256(raw).hexdigest()}",
        "licence": "that of the text",
        "documents_are": "lines",
    }
    return Text(name, about, lambda: documents, 2.0 * len(raw))


def make_corpora(text: Text, vocabulary: int | None, folder: Path, say: Say) -> tuple[list[Path], bool]:
    """Make the two corpora of a text; return their folders, and False if they existed already."""
    if vocabulary is not None and vocabulary < 3:
        raise UserError(f"--vocabulary is {vocabulary}; allowed: 3 or more, [MASK] and [UNK] among them")
    size = vocabulary or VOCABULARY
    rules = {text.name: ALL_RULE, f"{text.name}_content": CONTENT_RULE}
    about = {**text.about, "cleaner": CLEANER, "asked_vocabulary": size}
    wanted = {name: {**about, "words_are": rule} for name, rule in rules.items()}
    folders = {name: folder / name for name in wanted}
    if all(is_made(folders[name], about) for name, about in wanted.items()):
        return list(folders.values()), False
    need_disk(folder, text.size)
    numbered = number_words(text.documents())
    if vocabulary is not None:
        check_vocabulary(vocabulary, numbered)
    content = content_only(numbered)
    if not len(content.ids):
        raise UserError(f"{text.about['source']} has no content words; allowed: {CONTENT_RULE}")
    for name, documents in zip(wanted, (numbered, content), strict=True):
        ids, words = rank(documents, size)
        say(f"writing {folders[name]}: {len(documents.ends):,} documents, {len(ids):,} words")
        write_corpus(folders[name], ids, documents.ends, words, wanted[name])
        if text.licence:
            write_whole(folders[name] / "LICENCE.txt", lambda file: file.write(text.licence.encode()))
    return list(folders.values()), True


def check_vocabulary(size: int, numbered: Numbered) -> None:
    """Raise a UserError if a text has fewer distinct words than requested."""
    most = len(numbered.words) + 2
    if size > most:
        raise UserError(
            f"--vocabulary is {size}; allowed: at most {most}, the different words of the text, {MASK} and "
            f"{UNKNOWN}"
        )


def is_made(folder: Path, wanted: dict[str, Any]) -> bool:
    """Whether a folder already holds the requested corpus, undamaged."""
    try:
        return (folder / ABOUT).is_file() and wanted.items() <= read_corpus(folder).about.items()
    except UserError:
        return False
