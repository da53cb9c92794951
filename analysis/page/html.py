"""Self-contained HTML pages: templates filled with pictures, style and tables.

Text arguments are escaped; functions return Markup, which is not escaped again.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from topicjax.errors import printable

from ..pictures import Picture
from .contract import Claim, Verdict
from .scripts import bundle, packed

LARGEST_SVG = 2_000_000  # bytes; browsers are slow to draw a larger SVG, so the page shows the PNG
MOST_OPEN_ROWS = 12  # a longer table is folded
MOST_ALSO = 3  # other claims beside the first that the answer names
SENTENCES, LETTERS, FEWEST = 2, 260, 40  # of a text that are shown; the rest is behind "more"
SENTENCE_END = re.compile(r"(?<=[.?!)])(?<!\b[a-z]\.[a-z]\.)\s+(?=[^\sa-z])")


def finalized(value: object) -> object:
    """Prepare a value that a template writes: text has no control characters; Markup is finished."""
    return value if hasattr(value, "__html__") else printable(str(value))


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=finalized,
    trim_blocks=True,
    lstrip_blocks=True,
)
PARTS: Any = TEMPLATES.get_template("parts.html").module


def page(
    title: str, subtitle: str, lead: str, sections: Sequence[tuple[str, str]], reload_seconds: int = 0
) -> str:
    """Render the document: lead, table of contents, sections with headings; lead and contents are HTML.

    With `reload_seconds` a browser reloads the page at that interval and keeps the scroll position.
    """
    parts = [{"head": head, "anchor": anchor(head), "content": Markup(content)} for head, content in sections]
    template = TEMPLATES.get_template("page.html")
    return template.render(
        title=title,
        subtitle=subtitle,
        lead=Markup(lead),
        sections=parts,
        script=Markup(bundle("document.js")),
        reload=reload_seconds,
    )


def anchor(head: str) -> str:
    """Turn a heading into the anchor of its section."""
    return "".join(letter if letter.isalnum() else "-" for letter in head.lower())


def paragraph(text: str, kind: str = "") -> Markup:
    """Write a paragraph; `kind` is its CSS class."""
    return PARTS.paragraph(text, kind)


def preformatted(text: str) -> Markup:
    """Write a text with its own line breaks."""
    return PARTS.preformatted(text)


def items(sentences: Iterable[str], kind: str = "") -> Markup:
    """Write sentences as a list; `kind` is its CSS class."""
    return PARTS.items(list(sentences), kind)


class Words:
    """Words of a page with their meanings: each use is a link to the glossary, which tells its meaning."""

    def __init__(self, given: Any = ()) -> None:
        """Take {word: meaning, or (meaning, pattern of its uses)}; sentences are for the glossary alone."""
        self.sentences = [] if isinstance(given, Mapping) else list(given)
        pairs = given.items() if isinstance(given, Mapping) else ()
        found = {word: (own, re.escape(word)) if isinstance(own, str) else own for word, own in pairs}
        self.meanings = {str(word): meaning for word, (meaning, _) in found.items()}
        longest_first = sorted(found.items(), key=lambda pair: -len(pair[1][1]))
        self.patterns = {
            str(word): re.compile(rf"(?<![-\w])(?:{own[1]})(?![-\w])") for word, own in longest_first
        }

    def anchor(self, text: str) -> str:
        """Return the anchor of the word that this whole text is a use of; empty if there is none."""
        own = (word for word, pattern in self.patterns.items() if word == text or pattern.fullmatch(text))
        return next((word_anchor(word) for word in own), "")

    def linked(self, text: str) -> Markup:
        """Link the first use of each word in a text to the glossary."""
        text, taken = printable(text), list[tuple[int, int, str]]()
        for word, pattern in self.patterns.items():
            uses = (use.span() for use in pattern.finditer(text))
            free = (span for span in uses if all(span[1] <= low or high <= span[0] for low, high, _ in taken))
            taken += [(*span, word_anchor(word)) for span in [next(free, None)] if span]
        made, end = Markup(), 0
        for low, high, place in sorted(taken):
            made += text[end:low] + PARTS.term(text[low:high], place)
            end = high
        return made + text[end:]

    def folded(self, text: str) -> Markup:
        """Write a text with its words linked; of a long one, all but the first sentences behind "more"."""
        first, rest = split(text)
        return self.linked(first) + (PARTS.more(self.linked(rest)) if rest else Markup())

    def glossary(self) -> Markup:
        """List all words with their meanings, or the sentences."""
        pairs = [(word, word_anchor(word), meaning) for word, meaning in self.meanings.items()]
        return (PARTS.glossary(pairs) if pairs else Markup()) + (
            items(self.sentences) if self.sentences else Markup()
        )


NO_WORDS = Words()


def word_anchor(word: str) -> str:
    """Name the anchor of a word in the glossary."""
    return f"word-{anchor(word)}"


def split(text: str) -> tuple[str, str]:
    """Split a text into what is shown, one or two sentences or the beginning of a long one, and the rest."""
    parts, shown = SENTENCE_END.split(text.strip()), 1
    begin, colon, end = parts[0].partition(": ")
    if len(parts[0]) > LETTERS and FEWEST < len(begin) <= LETTERS and colon:
        return f"{begin}:", " ".join([end, *parts[1:]])
    while shown < min(SENTENCES, len(parts)) and len(" ".join(parts[: shown + 1])) <= LETTERS:
        shown += 1
    return " ".join(parts[:shown]), " ".join(parts[shown:])


def answer(text: str, head: str, kind: str, others: Sequence[tuple[str, str]], words: Words) -> Markup:
    """Write the answer of a page: its first claim with the verdict, or its first finding.

    `kind` is its verdict, `others` are the names and verdicts of the other claims.  All but MOST_ALSO of them
    are folded, so that the map stays on the first screen.
    """
    return PARTS.answer(words.folded(text), head, kind, others, MOST_ALSO)


def claims(judged: Sequence[tuple[Claim, Verdict, str]], words: Words = NO_WORDS) -> Markup:
    """Write claims, each with its verdict and the anchor of what shows it (empty: nothing does)."""
    rows = [(claim, verdict, words.linked(verdict.sentence), place) for claim, verdict, place in judged]
    return PARTS.claims(rows)


def claims_table(head: Sequence[str], rows: Sequence[tuple[Any, str, str]], missing: Sequence[Any]) -> Markup:
    """Write a table of claims: rows with the links to their pages and figures, then claims without a run."""
    return PARTS.claims_table(head, rows, missing)


def general_table(head: Sequence[str], groups: Sequence[tuple[str, Sequence[tuple[Any, str]]]]) -> Markup:
    """Write the rows of several runs and views by experiment, each with the link to its page."""
    return PARTS.general_table(head, groups)


def runs(entries: Sequence[Any]) -> Markup:
    """Write a table of runs with a box to search their names, questions and settings."""
    return PARTS.runs(entries)


def figure(picture: Picture, files: Sequence[Path], folder: Path, words: Words = NO_WORDS) -> Markup:
    """Embed a picture in the page, with its caption and links to its files."""
    by_kind = {file.suffix: file for file in files}
    svg, png = by_kind[".svg"].read_bytes(), by_kind[".png"].read_bytes()
    source, kind = packed(svg), "image/svg+xml"
    if len(svg) > LARGEST_SVG or len(source) > len(packed(png)):
        source, kind = packed(png), "image/png"
    size = [round(96 * inches) for inches in picture.figure.get_size_inches()]  # CSS pixels
    pairs = [(address(file, folder), file.suffix[1:].upper()) for file in files]
    svg_address = address(by_kind[".svg"], folder)
    caption, place = words.folded(picture.caption), f"figure-{files[0].stem}"
    return PARTS.figure(picture, caption, source, kind, size, svg_address, pairs, place)


def links(files: Sequence[Path], folder: Path) -> Markup:
    """Write links to files of the run folder, named by file type."""
    return PARTS.links([(address(file, folder), file.suffix[1:]) for file in files])


def file_list(files: Mapping[Path, str], folder: Path) -> Markup:
    """Write links to files of the run folder, each with its contents."""
    return PARTS.file_list([(address(file, folder), file.name, holds) for file, holds in files.items()])


def address(file: Path, folder: Path) -> str:
    """Return the URL of a file relative to the page."""
    return quote(file.relative_to(folder).as_posix())


def table(
    frame: pd.DataFrame, caption: str, after: str = "", place: str = "", words: Words = NO_WORDS
) -> Markup:
    """Write a frame as a table that scrolls sideways on narrow pages; `after` is HTML, `place` its anchor.

    A table of more than MOST_OPEN_ROWS rows is folded.
    """
    is_text = [not all(shown(value)[:1] in "-+.0123456789" for value in frame[name]) for name in frame]
    rows = [[shown(value) for value in row] for row in frame.itertuples(index=False)]
    is_folded = len(frame) > MOST_OPEN_ROWS
    first, rest = split(caption)
    # "more" within the summary of a folded table would open the table: the rest of its caption is inside
    begin, inside = (words.linked(first), words.linked(rest)) if is_folded else (words.folded(caption), "")
    title = Markup("{} {}").format(begin, Markup(after))
    head = [shown(name) for name in frame.columns]
    return PARTS.table(head, rows, is_text, title, inside, is_folded, place)


def shown(value: object) -> str:
    """Format a value for readers: four digits, and a dash for NaN."""
    if isinstance(value, float):
        return "-" if value != value else f"{value:.4g}"
    return str(value)
