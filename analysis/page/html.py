"""A page of HTML that needs nothing else: pictures, style and tables are inside the file."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from ..pictures import Picture

LARGEST_SVG = 300_000  # bytes; beyond, the page shows the PNG if it is smaller
MOST_OPEN_ROWS = 12  # of a table; a longer one is folded
STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --faint: #57606a; --rule: #d5dae0; --link: #0b5394; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.2rem 1rem 4rem; color: var(--ink); background: #fff;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.65rem; line-height: 1.2; margin: 0 0 .2rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid var(--rule); padding-bottom: .2rem; }
.sub { color: var(--faint); margin: 0 0 1.2rem; }
.answer li { margin: .35rem 0; }
.answer li:first-child { font-size: 1.1rem; font-weight: 600; }
figure { margin: 1.2rem 0 1.8rem; }
figure img { display: block; width: 100%; max-width: 46rem; height: auto; }
figcaption { color: var(--faint); font-size: .88rem; margin-top: .4rem; }
figcaption b { color: var(--ink); }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding-bottom: .3rem; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--rule);
  overflow-wrap: normal; }
th { font-weight: 600; }
td.text, th.text { text-align: left; }
summary { color: var(--faint); font-size: .88rem; padding: .6rem 0; cursor: pointer; }
summary b { color: var(--ink); white-space: nowrap; }
.terms { font-size: .9rem; margin: .8rem 0; padding: .5rem .8rem; background: #f6f8fa; border-radius: 6px; }
.terms dt { float: left; clear: left; margin-right: .4rem; font-weight: 600; }
.terms dd { margin: 0 0 .3rem; }
@media (min-width: 700px) { .terms { columns: 2; column-gap: 2rem; } .terms dd { break-inside: avoid; } }
a { color: var(--link); }
nav { font-size: .9rem; margin-bottom: 1rem; }
nav a { margin-right: 1rem; white-space: nowrap; display: inline-block; }
pre { overflow-x: auto; background: #f6f8fa; padding: .7rem; font-size: .82rem; white-space: pre-wrap; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  details::details-content { content-visibility: visible; block-size: auto; }
  figure, table { break-inside: avoid; }
  h2 { break-after: avoid; }
  .wide { overflow: visible; }
}
"""


def page(title: str, subtitle: str, lead: str, sections: Sequence[tuple[str, str]], head: str = "") -> str:
    """Return the whole document: the lead, then a list of contents, then headed sections; `head` is HTML."""
    links = " ".join(f'<a href="#{anchor(heading)}">{html.escape(heading)}</a>' for heading, _ in sections)
    body = "\n".join(
        f'<section id="{anchor(heading)}"><h2>{html.escape(heading)}</h2>\n{content}</section>'
        for heading, content in sections
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'  # a browser asks for one otherwise
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n{head}</head>\n<body>\n"
        f'<h1>{html.escape(title)}</h1>\n<p class="sub">{html.escape(subtitle)}</p>\n'
        f"{lead}\n<nav>{links}</nav>\n{body}\n</body>\n</html>\n"
    )


def anchor(head: str) -> str:
    """Return a heading as the name of its place on the page."""
    return "".join(letter if letter.isalnum() else "-" for letter in head.lower())


def figure(picture: Picture, files: Sequence[Path], folder: Path) -> str:
    """Return a picture inside the page, with its caption and links to its files."""
    by_kind = {file.suffix: file for file in files}
    shown = by_kind[".svg"]
    if shown.stat().st_size > max(LARGEST_SVG, by_kind[".png"].stat().st_size):
        shown = by_kind[".png"]
    kind = "image/svg+xml" if shown.suffix == ".svg" else "image/png"
    data = base64.b64encode(shown.read_bytes()).decode()
    links = " · ".join(link(file, folder, file.suffix[1:].upper()) for file in files)
    return (
        f'<figure><a href="{address(by_kind[".svg"], folder)}"><img src="data:{kind};base64,{data}" '
        f'alt="{html.escape(picture.alt)}"></a>\n'
        f"<figcaption><b>{html.escape(picture.title)}.</b> {html.escape(picture.caption)} {links}"
        "</figcaption></figure>\n"
    )


def link(file: Path, folder: Path, text: str) -> str:
    """Return a link to a file of the run folder, relative to the page."""
    return f'<a href="{address(file, folder)}">{html.escape(text)}</a>'


def address(file: Path, folder: Path) -> str:
    """Return where a file is, seen from the page."""
    return html.escape(quote(file.relative_to(folder).as_posix()))


def table(frame: pd.DataFrame, caption: str, after: str = "") -> str:
    """Return a frame as a table that scrolls by itself where the page is narrow; `after` is HTML.

    A table of more than MOST_OPEN_ROWS rows is folded.
    """
    is_text = [not all(shown(value)[:1] in "-+.0123456789" for value in frame[name]) for name in frame]
    head = table_row("th", list(frame.columns), is_text)
    rows = "\n".join(table_row("td", row, is_text) for row in frame.itertuples(index=False))
    title = f"{html.escape(caption)} {after}"
    is_long = len(frame) > MOST_OPEN_ROWS
    inside = (
        f'<div class="wide"><table>{"" if is_long else f"<caption>{title}</caption>"}\n'
        f"<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody></table></div>\n"
    )
    if not is_long:
        return inside
    return f"<details><summary>{title} <b>{len(frame)} rows</b></summary>\n{inside}</details>\n"


def table_row(tag: str, values: Sequence, is_text: Sequence[bool]) -> str:
    """Return one row of a table."""
    kinds = [' class="text"' if text else "" for text in is_text]
    entries = zip(kinds, values, strict=True)
    inside = "".join(f"<{tag}{kind}>{html.escape(shown(value))}</{tag}>" for kind, value in entries)
    return f"<tr>{inside}</tr>"


def shown(value: object) -> str:
    """Return a value as a reader wants it: four digits, a dash for what is not there."""
    if isinstance(value, float):
        return "-" if value != value else f"{value:.4g}"
    return str(value)


def items(sentences: Sequence[str], name: str = "") -> str:
    """Return sentences as a list."""
    inside = "\n".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{name}">\n{inside}\n</ul>\n'
