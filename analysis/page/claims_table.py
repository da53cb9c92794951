"""Table of claims over several runs: claim, what it says, what was measured, verdict; and what is missing.

Everything is judged again from the run folders; the table links to the page and the figure of each run.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from topicjax.errors import UserError, counted
from topicjax.experiments import SHIPPED
from topicjax.store.manifest import last_run
from topicjax.store.reader import Run, load
from topicjax.sweep.files import load_sweep, sweep_names
from topicjax.version import __version__

from ..outputs import write_file
from ..tables import markdown_cell
from . import html
from .claims import asked_claims, evidence, judge
from .contract import Scores
from .lookup import Found, find_page, page_of
from .provenance import FIGURES_FOLDER, REPORT, TABLES_FOLDER

HEAD = ("claim", "what it says", "measured", "verdict")
FILES = {"figure": (FIGURES_FOLDER, "svg"), "table": (TABLES_FOLDER, "md")}  # kind of evidence: where it lies
Say = Callable[[str], object]
IN_THE_PAPER = re.compile(  # the source of a claim of the paper itself begins with its place there
    "(sections?|captions?|eq\\.|appendix|theorem|remark|lemma|assumption|figures?|tables?) ", re.IGNORECASE
)
PROBED = {  # claims of the paper that `topicjax probe` is about, not a sweep: where, and what they say
    "Figure 3": (
        "section 4",
        "In pretrained models the cosine similarity of word embeddings shows the topics.",
    ),
    "Table 1": (
        "section 6.2",
        "In pretrained models words of the same topic have more similar embeddings, and attend more to each "
        "other, than words of different topics.",
    ),
    "Table 2": ("section 8.2", "Co-occurrence alone does not explain what Table 1 shows."),
}
PROBE_PAGE = "tables/tables.html"  # beside the runs, where `topicjax probe` writes it


def now() -> str:
    """Write the time at which a table is made."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def origin(commit: str, made: str) -> str:
    """Say which code made a table, and when."""
    return f"Made by topicjax {__version__}, commit {commit or 'unknown'}, {made}."


@dataclass(frozen=True)
class Scored:
    """A run folder, read and scored for a table over several runs."""

    folder: Path
    run: Run  # prepared by its page
    found: Found
    scores: Scores

    @property
    def name(self) -> str:
        """Name the run by its sweep."""
        return str(last_run(self.run.manifest).get("sweep", self.folder.name))

    @property
    def commit(self) -> str:
        """Return the commit of the code that trained it; empty if unknown."""
        return str(last_run(self.run.manifest).get("git_commit") or "")

    @property
    def page(self) -> str:
        """Return the path of the run's page; empty if it has none yet."""
        return str(self.folder / REPORT) if (self.folder / REPORT).is_file() else ""

    @property
    def remarks(self) -> list[str]:
        """Say what was changed in the run, and what it lacks."""
        entry = last_run(self.run.manifest)
        changed = [" ".join(entry["overrides"])] if entry.get("overrides") else []
        remarks = [f"{self.folder}: run with {text}." for text in changed]
        remarks += [f"{self.folder}: {sentence}." for sentence in self.run.missing]
        return (
            remarks
            if self.page
            else [*remarks, f"{self.folder} has no page yet: topicjax report {self.folder}"]
        )


def scored(folder: Path, run: Run, found: Found) -> Scored:
    """Prepare and score a run as its page does."""
    page = found.page
    prepared = page.prepare(run) if page.prepare else run
    return Scored(folder, prepared, found, page.score(prepared) if page.score else prepared.trials)


@dataclass(frozen=True)
class Row:
    """What one run says about one claim."""

    claim: str
    source: str
    says: str
    verdict: str
    measured: str
    change: str
    run: str
    commit: str  # of the code that trained it
    page: str = ""  # path of the run's page, empty if it has none yet
    shown_by: str = ""  # path of the figure or table that shows it, empty if there is none
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """A claim of the paper that none of the runs is about, and the shipped sweeps that are."""

    claim: str
    source: str
    says: str
    sweeps: tuple[str, ...]  # empty: it is about pretrained models

    @property
    def commands(self) -> list[tuple[str, ...]]:
        """List the commands of topicjax that test it."""
        return [("run", name) for name in self.sweeps] or [("probe",)]

    @property
    def ways(self) -> list[str]:
        """Write these commands."""
        return [f"topicjax {' '.join(command)}" for command in self.commands]


@dataclass(frozen=True)
class Table:
    """The claims of several runs, those without a run, and where the table comes from."""

    rows: list[Row]
    missing: list[Missing]
    remarks: list[str]  # on runs that are not complete, and on sweeps that would add to these claims
    commit: str
    made: str = field(default_factory=now)

    @property
    def origin(self) -> str:
        """Say which code made the table, and when."""
        return origin(self.commit, self.made)

    @property
    def summary(self) -> str:
        """Count the verdicts."""
        found = pd.Series([row.verdict for row in self.rows], dtype=object).value_counts()
        counts = [f"{count} {verdict}" for verdict, count in found.items()]
        runs = counted(len({row.run for row in self.rows}), "run")
        text = f"{counted(len(self.rows), 'verdict')} from {runs}: {', '.join(counts)}." if counts else ""
        return f"{text} Claims of the paper without a run: {len(self.missing)}.".strip()


def make_table(folders: Sequence[str | Path], commit: str = "", say: Say = lambda text: None) -> Table:
    """Judge the claims of these run folders; `commit` is that of the code that makes the table."""
    rows: list[Row] = []
    remarks: list[str] = []
    for folder in folders:
        say(f"{folder} ...")
        own, sentences = rows_of(Path(folder))
        rows += own
        remarks += sentences
    by_claim = sweeps_by_claim()
    order = list(by_claim)
    rows.sort(
        key=lambda row: (not of_the_paper(row.source), row.claim not in order, *places(row.claim, order))
    )
    judged = {row.claim for row in rows}
    missing = [
        Missing(claim.name, claim.source, claim.says, tuple(sweeps))
        for claim, sweeps in ((claims_known()[name], sweeps) for name, sweeps in by_claim.items())
        if claim.name not in judged and of_the_paper(claim.source)
    ]
    probed = {page for folder in folders if (page := Path(folder).parent / PROBE_PAGE).is_file()}
    if probed:
        remarks += [f"{', '.join(PROBED)}: {page} has their numbers." for page in sorted(probed)]
    else:
        missing += [Missing(name, *said, ()) for name, said in PROBED.items()]
    present = {row.run for row in rows} | {sweep for each in missing for sweep in each.sweeps}
    others = sorted({sweep for name in judged for sweep in by_claim.get(name, [])} - present)
    if others:
        remarks.append(f"More sweeps test some of these claims: {', '.join(others)} (topicjax run NAME).")
    return Table(rows, missing, remarks, commit)


def places(name: str, order: Sequence[str]) -> list[int]:
    """Find the place of a claim in the order, if it has one."""
    return [order.index(name)] if name in order else []


def of_the_paper(source: str) -> bool:
    """Tell whether a claim is one of the paper, by its source: a place there, not a reading of it."""
    return IN_THE_PAPER.match(source) is not None


def rows_of(folder: Path) -> tuple[list[Row], list[str]]:
    """Judge the claims of one run; return its rows, and sentences on what the run lacks."""
    run = load(folder)
    found = find_page(run)
    claims = asked_claims(run, found)
    if not claims:
        sweep = last_run(run.manifest).get("sweep", "")
        return [], [f"{folder}: its sweep {sweep} names no claims."]
    own = scored(folder, run, found)
    rows = []
    for claim in claims:
        judged = judge(claim, own.run, own.scores, explain).verdict
        kind, name = evidence(claim, found.page)
        file = folder / FILES[kind][0] / f"{name}.{FILES[kind][1]}" if kind else folder
        rows.append(
            Row(
                *(claim.name, claim.source, claim.says, judged.verdict, judged.sentence, judged.change),
                run=own.name,
                commit=own.commit,
                page=own.page,
                shown_by=str(file) if file.is_file() else "",
                numbers={name: float(value) for name, value in judged.numbers.items()},
            )
        )
    return rows, own.remarks


def explain(name: str, error: BaseException) -> str:
    """Say why a claim could not be judged."""
    text = str(error).removesuffix(".")
    return text if isinstance(error, UserError) else f"{name} raises {type(error).__name__}: {text}"


def claims_known() -> dict[str, Any]:
    """Return the claims of all shipped experiments by name; the experiment with most sweeps comes first."""
    sweeps = Counter(load_sweep(name).settings.experiment for name in sweep_names())
    experiments = sorted(SHIPPED, key=lambda name: -sweeps[name])
    return {claim.name: claim for name in experiments for claim in page_of(name).claims}


def sweeps_by_claim() -> dict[str, list[str]]:
    """List the shipped sweeps that are about each claim, in the order of the table."""
    sweeps = [load_sweep(name) for name in sweep_names()]
    return {name: [sweep.name for sweep in sweeps if name in sweep.claims] for name in claims_known()}


def write_table(table: Table, path: Path, title: str = "Claims and verdicts") -> list[Path]:
    """Write the table as HTML to this path, and as Markdown beside it; return both paths."""
    text = to_html(table, path.parent, title)
    return [
        write_file(path, text),
        write_file(path.with_suffix(".md"), to_markdown(table, path.parent, title)),
    ]


def to_html(table: Table, base: Path, title: str) -> str:
    """Write the page: the table, what is missing, and remarks; links are relative to `base`."""
    linked = [(row, relative(row.page, base), relative(row.shown_by, base)) for row in table.rows]
    lead = html.claims_table(HEAD, linked, table.missing)
    lead += html.items(table.remarks) if table.remarks else ""
    return html.page(title, f"{table.summary} {table.origin}", lead, [])


def named(each: Row | Missing) -> str:
    """Write the name of a claim, and where it is stated if its author says so."""
    return f"{each.claim} ({each.source})" if each.source else each.claim


def to_markdown(table: Table, base: Path, title: str) -> str:
    """Write the same as Markdown."""
    lines = []
    for row in table.rows:
        links = [
            f"[{text}]({relative(to, base)})"
            for text, to in ((row.run, row.page), ("figure", row.shown_by))
            if to
        ]
        ending = f" ({', '.join(links) or row.run})"
        change = f" What would change it: {row.change}" if row.change else ""
        cells = (named(row), row.says, row.measured + change, row.verdict)
        lines.append([markdown_cell(cell) for cell in cells])
        lines[-1][2] += ending
    for each in table.missing:
        ways = " or ".join(f"`{way}`" for way in each.ways)
        lines.append([markdown_cell(named(each)), markdown_cell(each.says), ways, "not run"])
    body = "\n".join(f"| {' | '.join(line)} |" for line in [list(HEAD), ["---"] * len(HEAD), *lines])
    remarks = "".join(f"- {markdown_cell(text)}\n" for text in table.remarks)
    return f"# {title}\n\n{table.summary} {table.origin}\n\n{body}\n\n{remarks}"


def relative(path: str, base: Path) -> str:
    """Return the URL of a file relative to the folder of the table; empty without a file."""
    return quote(Path(os.path.relpath(path, base)).as_posix()) if path else ""
