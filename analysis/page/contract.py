"""What an experiment brings to its page: scores, classes, claims, figures, tables, words.

`Experiment.report` returns a Page.  Everything in it is optional: a page without any of it still shows loss
curves with their reference losses, a map, the explorer, details, final values and how trials ended.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from topicjax.store.reader import Run, Status

Scores = pd.DataFrame  # one row per trial: trial_id, its settings, what the experiment scores, its class
CLASS = "class"  # the column of a trial's class


@dataclass(frozen=True)
class Look:
    """How a class is drawn: a colour, and a hatch where colours alone do not tell classes apart."""

    colour: str
    hatch: str = ""


@dataclass(frozen=True)
class Entry:
    """A figure (or several) or a table: the name of its files, what makes it, and when it fits a run.

    `make(run, scores)` returns a Picture, a list of Pictures, or a DataFrame for a table.  A plain function
    of (run, scores) stands for the Entry of its name.
    """

    name: str
    make: Callable[..., Any]
    fits: Callable[[Run, Scores], bool] = lambda run, scores: True
    title: str = ""  # of a table
    can_pool: bool = False  # a table that takes a third argument: settings to pool
    axes: tuple[str, ...] = ()  # of x, y and panel: those that a reader may choose, as arguments of `make`


class Verdict:
    """What a run says of a claim: Verdict("holds", "the ratio is 2.02 (predicted 2)", ratio=2.02)."""

    WORDS = ("holds", "fails", "partly", "undecided")

    def __init__(self, verdict: str, sentence: str, **numbers: float) -> None:
        """Take the verdict, a sentence with its numbers, and the numbers by name."""
        if verdict not in self.WORDS:
            raise ValueError(f"the verdict is {verdict!r}; allowed: {', '.join(self.WORDS)}")
        self.verdict, self.sentence, self.numbers = verdict, sentence, numbers


@dataclass(frozen=True)
class Claim:
    """A sentence that someone has stated, and the function that says whether a run bears it out."""

    name: str
    says: str
    check: Callable[[Run, Scores], Verdict]
    source: str = ""


@dataclass(frozen=True)
class View:
    """One way to class trials: the suffix of its columns (class, theta, ...), and what it looks at."""

    name: str
    suffix: str = ""
    words: str = ""
    score: str = ""  # a column from 0 to 1: its median is written into cells of a map and shades their colour
    hollow: Callable[[pd.DataFrame], Any] | None = None  # of the table of cells: which have a white middle
    hollow_words: str = ""  # what a white middle means


@dataclass(frozen=True)
class Chart:
    """Columns of the trajectories that the explorer draws in one panel over the steps."""

    title: str
    columns: Mapping[str, str]  # a column: what the legend calls it
    scale: Literal["linear", "log"] = "linear"
    references: bool = False  # whether reference losses are drawn in it


@dataclass(frozen=True)
class Page:
    """The page of an experiment's runs."""

    score: Callable[[Run], Scores] | None = None
    classes: Mapping[str, str | Look] = field(default_factory=dict)  # in the order of legends and of ties
    claims: Sequence[Claim] = ()
    findings: Callable[[Run, Scores, pd.DataFrame, Status], Iterable[str]] | None = None
    # (run, scores, cells, status) -> opening sentences
    terms: Callable[[Sequence[str]], Mapping[str, str]] | None = None  # words of these sentences: meanings
    lead: Sequence[Entry] = ()  # figures above the list of contents
    figures: Any = ()  # Entries or functions of (run, scores), in a list, or in lists by section
    tables: Any = ()  # the same
    headers: Mapping[str, str] = field(default_factory=dict)  # columns of tables as a reader says them
    words: Any = ()  # sentences, or {word: meaning}
    views: Sequence[View] = (View("class"),)
    charts: Sequence[Chart] = ()  # none: the loss columns with their references, then every other column
    references: Sequence[str] = ()  # reference losses that are drawn; none: all, without standard errors
    inspect: Callable[..., Any] | None = None  # (run, trial_id, step) -> Pictures of one trained model
    prepare: Callable[[Run], Run] | None = None  # the run as `score` and all other functions take it
    of_trials: Callable[[Scores], Scores] | None = None  # one row per trial, where `score` returns more
    panels: Sequence[str] = ()  # settings that tell panels of a map apart first
    cells: Callable[[Scores, Sequence[str]], pd.DataFrame] | None = None  # columns of cells: see maps.cells
    refine_by: Callable[[pd.DataFrame], Iterable[tuple[str, float]]] | None = None  # of cells: class, score
    replaces: Sequence[str] = ()  # figures and tables of every page, or "findings", that this one has better
    live: Sequence[str] = ()  # sections of figures that a page has while its sweep runs
    file: str = "scores.parquet"  # of the run folder: what `score` returned
    file_holds: str = "one row per trial: scores and classes"


def entries_of(listed: Any, head: str) -> dict[str, list[Entry]]:
    """Return the figures or tables of a Page by section; a plain list is the section `head`."""
    by_section = listed if isinstance(listed, Mapping) else {head: listed} if listed else {}
    return {
        str(section): [each if isinstance(each, Entry) else entry_of(each) for each in entries]
        for section, entries in by_section.items()
    }


def entry_of(make: Callable[..., Any]) -> Entry:
    """Return the Entry of a function: its name, titled by the first line of its docstring."""
    name = getattr(make, "__name__", type(make).__name__).strip("<>")
    title = (getattr(make, "__doc__", None) or name.replace("_", " ")).strip().splitlines()[0]
    return Entry(name, make, title=title.rstrip("."))
