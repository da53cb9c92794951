"""Extract articles from enwik8, the first 10^8 bytes of the English Wikipedia's dump of March 2006."""

import gzip
import hashlib
import html
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from topicjax.corpora.download import Say, fetch
from topicjax.corpora.words import words_of
from topicjax.errors import UserError
from topicjax.store.files import first_line

PROJECT, VERSION = "product-key-memory", "0.3.0"  # a package that carries enwik8 in its source archive
ARCHIVE = f"product_key_memory-{VERSION}.tar.gz"
SHA256 = "e4961ee71da62a25e6740bfca693feef20f4503e1049233c8684c27def065a2a"
MEMBER, MD5 = f"product_key_memory-{VERSION}/data/enwik8.gz", "a1fa5ffddb56f4953e226637dabbb36a"
SHORTEST = 50  # words of an article: shorter ones are lists of links and notes

PAGE = re.compile(r"<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", re.DOTALL)
REDIRECT = re.compile(r"\s*#\s*redirect", re.IGNORECASE)
SPACES = (
    "Wikipedia",
    "Template",
    "Image",
    "Category",
    "Portal",
    "Help",
    "MediaWiki",
    "User",
    "Talk",
    "Special",
)
NOT_ARTICLES = re.compile(rf"(?:{'|'.join(SPACES)})(?: talk)?:")
DROPPED = re.compile(
    r"<!--.*?-->|<(math|ref|gallery|timeline|nowiki|pre|code|tt|div)\b[^>]*?(?:/>|>.*?</\1\s*>)",
    re.DOTALL | re.IGNORECASE,
)
INNERMOST = re.compile(r"\{\{[^{}]*\}\}|\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)  # templates and tables
MEDIA = re.compile(r"\[\[[a-z -]+:(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", re.IGNORECASE)  # and other languages
LINK = re.compile(r"\[\[(?:[^|\[\]]*\|)?([^|\[\]]*)\]\]")
ADDRESS = re.compile(r"\[?\b(?:https?|ftp|mailto):[^\s\]]*")
TAG = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
DEEPEST = 8  # nesting of templates


def read_enwik8(folder: Path, say: Say) -> str:
    """Read enwik8 as text, downloaded into the folder if necessary."""
    path = fetch(PROJECT, ARCHIVE, SHA256, folder, say)
    try:
        with tarfile.open(path) as archive:
            member = archive.extractfile(MEMBER)
            raw = gzip.decompress(member.read()) if member else b""
    except (tarfile.TarError, KeyError, OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read: {first_line(error)}; allowed: remove it and try again"
        ) from None
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != MD5:
        raise UserError(f"{path} does not hold enwik8; allowed: remove it and try again")
    return raw.decode(errors="ignore")  # it ends in the middle of a character


def articles(dump: str) -> Iterator[list[str]]:
    """Yield the words of every article in a dump, without redirects, pages about pages and short ones."""
    for title, markup in PAGE.findall(dump):
        if NOT_ARTICLES.match(title) or REDIRECT.match(markup):
            continue
        words = words_of(plain_text(html.unescape(markup)))
        if len(words) >= SHORTEST:
            yield words


def plain_text(markup: str) -> str:
    """Extract the running text of wiki markup, without tables, templates, pictures and references."""
    text = DROPPED.sub(" ", markup)
    for _ in range(DEEPEST):
        text, count = INNERMOST.subn(" ", text)
        if not count:
            break
    text = MEDIA.sub(" ", text)
    text = LINK.sub(r"\1", text)
    text = ADDRESS.sub(" ", text)
    text = html.unescape(TAG.sub(" ", text))
    return text.replace("'''", "").replace("''", "")
