"""Sphinx extension: parts of pages that are made from the code while the site is built.

A line `<!-- made: NAME ARGUMENT -->` in a page is replaced by what the function NAME makes, as Markdown.  The
import graph, a Mermaid block that forges draw, becomes an inline SVG.  Docstrings are plain text with names
in backticks; autodoc gets them as reStructuredText.
"""

import argparse
import ast
import importlib
import inspect
import io
import re
import tokenize
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from topicjax.cli.parser import make_parser
from topicjax.experiments import SHIPPED, trial_settings
from topicjax.sweep import expand
from topicjax.sweep.files import load_sweep, sweep_names

MARK = re.compile(r"^<!-- made: (\w+)(?: (\w+))? -->$", re.MULTILINE)
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./(\w+\.md)\)")  # a link to a page beside the README, not on the site
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENCODERS = "topicjax.experiments.shared.layer_records"
GALLERY = Path(__file__).resolve().parent / "gallery"
HEIGHT, WIDTH = 0.62, 11.0  # inches: a floor of the import graph, and all of it


def cell(text: Any) -> str:
    """Make text safe inside a cell of a Markdown table."""
    return re.sub(r"([|\\<>*\[\]$^~])", r"\\\1", str(text)).replace("_", r"\_").replace("\n", " ")


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Lay out a Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def settings(name: str) -> str:
    """List the settings of an experiment: default, what is allowed, meaning, as `topicjax settings` does."""
    known = trial_settings(name)
    parts = zip(("Spec (static)", "Stream (fixes the data)", "Hypers (traced)"), known.names, strict=True)
    texts = []
    for title, names in parts:
        rows = [
            (f"`{each}`", f"`{entry.default}`", cell(entry.kind.allowed), cell(entry.meaning))
            for each, entry in known.settings.items()
            if each in names
        ]
        texts.append(f"**{title}**\n\n{table(('setting', 'default', 'allowed', 'meaning'), rows)}")
    return "\n\n".join(texts)


def record_modules(name: str) -> list[Any]:
    """Import the modules that may declare columns of an experiment: its own first, then others."""
    paths = [f"{SHIPPED[each]}.records" for each in sorted(SHIPPED, key=lambda other: other != name)]
    return [importlib.import_module(path) for path in (paths[0], ENCODERS, *paths[1:])]


def column_names(name: str) -> list[str]:
    """List the columns of an experiment in their order: those of every record, then the rare ones."""
    own = record_modules(name)[0]
    tuples = [getattr(own, each) for each in ("Record", "Gains", "Rare") if hasattr(own, each)]
    return [column for fields in tuples for column in fields._fields]


def commented_columns(module: Any) -> dict[tuple[str, ...], str]:
    """Find the columns that a module declares, each with the comment behind it.

    Columns are fields of a NamedTuple, or entries of a tuple of names, which may be computed or taken over
    from other tuples.  Those without a comment belong to the ones before them.
    """
    source = inspect.getsource(module)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    found: dict[tuple[str, ...], str] = {}

    def add(entries: list[tuple[Any, list[str]]]) -> None:
        """Add the entries of one declaration; a comment that begins with dots continues the one before."""
        rows: list[tuple[list[str], str]] = []
        for node, names in entries:
            comment = comments.get(node.end_lineno, "") or comments.get(node.lineno, "")
            if rows and (not comment or comment.startswith("...")):
                before = rows[-1][1].removesuffix("...").rstrip(" ,")
                more = f", {comment.lstrip('. ')}" if comment else ""
                rows[-1] = (rows[-1][0] + names, before + more)
            elif comment:
                rows.append((names, comment))
        found.update({tuple(names): comment for names, comment in rows})

    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
            add([(field, [ast.unparse(field.target)]) for field in fields])
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            entries = [entry for entry in node.value.elts if node.lineno != node.end_lineno]
            add(
                [
                    (entry, names_in(entry, module))
                    for entry in entries
                    if not is_declared_elsewhere(entry, comments)
                ]
            )
        elif isinstance(node, ast.Assign) and node.lineno in comments:
            add([(node, names_in(ast.Starred(node.value, ast.Load()), module))])
    return found


def is_declared_elsewhere(entry: ast.expr, comments: Mapping[int, str]) -> bool:
    """Whether an entry of a tuple takes over another tuple that has its own comments."""
    is_other = isinstance(entry, ast.Starred) and isinstance(entry.value, ast.Name)
    return is_other and entry.end_lineno not in comments


def names_in(entry: ast.expr, module: Any) -> list[str]:
    """Evaluate an entry of a tuple; keep the names it stands for."""
    try:
        values = eval(ast.unparse(ast.Tuple([entry], ast.Load())), dict(vars(module)))
    except TypeError:  # not a sequence, so not names
        return []
    return [each for each in values if isinstance(each, str)]


def columns(name: str) -> str:
    """List the record columns of an experiment; their meaning is the comment of their declaration."""
    wanted, rows = column_names(name), []
    for module in record_modules(name):
        for names, meaning in commented_columns(module).items():
            mine = [each for each in names if each in wanted]
            if mine:
                rows.append((mine, meaning))
                wanted = [each for each in wanted if each not in mine]
    if wanted:
        raise ValueError(f"columns of {name} without a comment that says what they are: {', '.join(wanted)}")
    order = column_names(name)
    rows.sort(key=lambda row: order.index(row[0][0]))
    shown = [(" ".join(f"`{each}`" for each in shortened(names)), cell(meaning)) for names, meaning in rows]
    return table(("column", "meaning"), shown)


def shortened(names: list[str]) -> list[str]:
    """Cut a long list of columns to its first two and its last."""
    return names if len(names) <= 6 else [*names[:2], "...", names[-1]]


def sweeps() -> str:
    """Describe every shipped sweep: the docstring of its file, and its number of trials."""
    texts = []
    for name in sweep_names():
        named = load_sweep(name)
        count = len(expand(named.settings, named.base, named.sweep))
        question, *rest = inspect.cleandoc(named.description).split("\n\n", 1)
        facts = re.sub(r"^Command:.*\n", "", rest[0], flags=re.MULTILINE) if rest else ""
        texts.append(
            f"## {name}\n\n{cell(question)}\n\n{count:,} trials of the experiment "
            f"`{named.settings.experiment}`.\n\n```text\n{facts.strip()}\n```"
        )
    return "\n\n".join(texts)


def commands() -> str:
    """Print the help of every command."""
    parser = make_parser()
    (choices,) = (a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    texts = [f"```text\n{help_of(parser)}\n```"]
    texts += [f"## topicjax {name}\n\n```text\n{help_of(sub)}\n```" for name, sub in choices.items()]
    return "\n\n".join(texts)


def help_of(parser: argparse.ArgumentParser) -> str:
    """Format the help of a command at a fixed width, whatever the terminal."""
    formatter: Any = parser.formatter_class
    parser.formatter_class = lambda prog: formatter(prog, width=96, max_help_position=32)
    return parser.format_help().strip()


def gallery() -> str:
    """Show the pictures that are in docs/gallery, in the order of its table of captions."""
    parts = []
    for run in tomllib.loads((GALLERY / "captions.toml").read_text())["run"]:
        shown = [
            f"![{caption.split('.')[0]}]({GALLERY.name}/{run['name']}_{figure}.png){{width=32rem}}\n\n{caption}"
            for figure, caption in run["figures"].items()
            if (GALLERY / f"{run['name']}_{figure}.png").exists()
        ]
        if shown:
            parts += [f"## {run['title']}", f"`{run['name']}`: {run['text']}", *shown]
    return "\n\n".join(parts)


MAKERS: Mapping[str, Callable[..., str]] = {
    made.__name__: made for made in (settings, columns, sweeps, commands, gallery)
}


def filled(text: str) -> str:
    """Fill in the marked parts of a page."""
    text = MARK.sub(lambda mark: MAKERS[mark[1]](*filter(None, [mark[2]])), text)
    text = OUTSIDE.sub(r"\1 (`\2`)", text)
    return MERMAID.sub(lambda block: import_graph(block[1]), text)


def import_graph(mermaid: str) -> str:
    """Draw who imports whom, top down, as an inline SVG; arrows that follow from others are left out."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    arrows = re.findall(r"^\s*(\w+) --> (\w+)$", mermaid, re.MULTILINE)
    below: dict[str, set[str]] = {name: set() for pair in arrows for name in pair}
    for here, there in arrows:
        below[here].add(there)

    def reached(name: str) -> set[str]:
        return below[name].union(*(reached(other) for other in below[name]))

    def floor(name: str) -> int:
        return 1 + max((floor(other) for other in below[name]), default=-1)

    kept = [(a, b) for a, b in arrows if not any(b in reached(other) for other in below[a] - {b})]
    floors = [[name for name in sorted(below) if floor(name) == n] for n in range(1 + max(map(floor, below)))]
    x: dict[str, float] = {}
    for names in floors:  # each room above the middle of what it imports
        middle = {n: sum(x[o] for o in below[n]) / len(below[n]) if below[n] else 0.5 for n in names}
        for place, name in enumerate(sorted(names, key=lambda n: middle[n])):
            x[name] = (place + 0.5) / len(names)
    with rc_context({"svg.fonttype": "none", "font.size": 10}):
        figure = Figure((WIDTH, HEIGHT * len(floors)))
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, 1), ylim=(-0.5, len(floors) - 0.5))
        ax.axis("off")
        for here, there in kept:
            ends = dict(xy=(x[there], floor(there) + 0.16), xytext=(x[here], floor(here) - 0.16))
            ax.annotate(
                "", **ends, arrowprops=dict(arrowstyle="->", color="0.55", lw=0.8, shrinkA=0, shrinkB=0)
            )
        for name in below:
            box = dict(boxstyle="round,pad=0.3", fc="#eef3fa", ec="#7a8aa0", lw=0.8)
            ax.text(x[name], floor(name), name, ha="center", va="center", bbox=box, color="#1b2430")
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    svg = drawn.getvalue()[drawn.getvalue().index("<svg") :]
    svg = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" style="width:100%">', svg, count=1)
    return re.sub(r"\n\s*\n", "\n", svg)  # a blank line would end the HTML


def as_restructured(lines: list[str]) -> None:
    """Turn a docstring of plain text into reStructuredText, in place."""
    made: list[str] = []
    is_literal = False
    for line in lines:
        begins = line.startswith("    ") and not is_literal
        ends = is_literal and bool(line) and not line.startswith("  ")
        made += ["", "::", ""] if begins else [""] if ends else []
        is_literal = begins or (is_literal and not ends)
        pieces = re.split(r"(`[^`]+`)", line)
        plain = [f"`{p}`" if p.startswith("`") else re.sub(r"([*|_\\])", r"\\\1", p) for p in pieces]
        made.append(f"    {line}" if is_literal and line else "".join(plain))
    lines[:] = made


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    marked: set[str] = set()

    def read(app: Any, name: str, source: list[str]) -> None:
        if MARK.search(source[0]) or MERMAID.search(source[0]):
            marked.add(name)
        source[0] = filled(source[0])

    app.connect("source-read", read)
    app.connect("env-get-outdated", lambda app, env, added, changed, removed: [*marked & env.found_docs])
    app.connect(
        "autodoc-process-docstring", lambda app, what, name, obj, options, lines: as_restructured(lines)
    )
    return {"parallel_read_safe": False}
