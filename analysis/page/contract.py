"""The contract of a page: an experiment's scores, classes, claims, figures, tables, words and matrices.

`Experiment.report` returns a Page.  Everything in it is optional: an empty Page still shows loss curves with
their reference losses, a map, the explorer, details, final values and how trials ended.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from topicjax.store.reader import Run, Status

Scores = pd.DataFrame  # one row per trial: trial_id, settings, the experiment's scores, class
CLASS = "class"  # the column of a trial's class
Matrices = Mapping[str, Any]  # name: a DataFrame, whose labels stand at rows and columns, or a plain matrix
Inside = Callable[[Run, Scores, Sequence[str]], Mapping[str, Matrices]]
# (run, scores, trial ids) -> matrices of each of these trials, without those that have none


@dataclass(frozen=True)
class Look:
    """How a class is drawn: a colour, and a hatch where colours alone do not distinguish classes."""

    colour: str
    hatch: str = ""


@dataclass(frozen=True)
class Entry:
    """A figure (or several) or a table: the name of its files, the function that makes it, when it applies.

    `make(run, scores)` returns a Picture, a list of Pictures, or a DataFrame for a table.  A plain function
    of (run, scores) may be listed instead: it becomes the Entry of its name.
    """

    name: str
    make: Callable[..., Any]
    fits: Callable[[Run, Scores], bool] = lambda run, scores: True
    title: str = ""  # of a table
    can_pool: bool = False  # whether the table takes a third argument: settings to pool
    axes: tuple[str, ...] = ()  # those of x, y and panel that `make` accepts, for a reader to choose


class Verdict:
    """What a run says about a claim: Verdict("holds", "the ratio is 2.02 (predicted 2)", ratio=2.02)."""

    WORDS = ("holds", "fails", "partly", "undecided")

    def __init__(self, verdict: str, sentence: str, change: str = "", **numbers: float) -> None:
        """Take the verdict, a sentence with its numbers, what would change it, and the numbers by name."""
        if verdict not in self.WORDS:
            raise ValueError(f"the verdict is {verdict!r}; allowed: {', '.join(self.WORDS)}")
        self.verdict, self.sentence, self.change, self.numbers = verdict, sentence, change, numbers


@dataclass(frozen=True)
class Claim:
    """A statement (a theorem, a figure, an open question), and the function that checks it on a run.

    A sweep names the claims it is about (CLAIMS in its file); its page opens with their verdicts, and with
    what shows the first of them.
    """

    name: str
    says: str
    check: Callable[[Run, Scores], Verdict]
    source: str = ""  # where it stands: a section, a paper
    shown_by: str = ""  # the name of the page's figure, or else table, that shows it


@dataclass(frozen=True)
class View:
    """One way to classify trials: the suffix of its columns (class, theta, ...), and what it measures."""

    name: str
    suffix: str = ""
    words: str = ""
    score: str = ""  # a column from 0 to 1: its median is written into cells of a map and shades their colour
    hollow: Callable[[pd.DataFrame], Any] | None = None  # table of cells -> mask of those with a white centre
    hollow_words: str = ""  # what a white centre means


@dataclass(frozen=True)
class Staged:
    """One way to tell whether training has two stages, for `topicjax general`: which classes say so.

    Cells whose class is among `not_judged` do not count: there the question has no answer, because stage 2
    did not happen within the steps, say.  Diverged and unscored cells never count.
    """

    name: str  # what it looks at: "loss", "norms of single layers"
    two_stage: Sequence[str]
    not_judged: Sequence[str] = ()
    column: str = CLASS  # of the classes
    theta: str = "theta"  # the column of Theta, from 0 to 1
    words: str = ""  # what is measured, to follow "by"
    rows: Callable[[Scores], Scores] | None = (
        None  # selects from the scores; default: `of_trials` of the page
    )
    unit: str = ""  # the column that distinguishes rows of the same trial: "layer"
    # The measure by which it tells them apart, a column of the first table; default: the one in its name.
    by: Literal["", "loss", "order parameters", "norms"] = ""


@dataclass(frozen=True)
class Chart:
    """Columns of the trajectories that the explorer draws in one panel over the steps."""

    title: str
    columns: Mapping[str, str]  # column: its name in the legend
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
    lead: Sequence[Entry] = ()  # figures that follow the answer
    figures: Any = ()  # Entries or functions of (run, scores), in a list, or in lists by section
    tables: Any = ()  # the same
    headers: Mapping[str, str] = field(default_factory=dict)  # columns of tables in words
    words: Any = ()  # {word: meaning, or (meaning, pattern of its uses)}; or sentences
    views: Sequence[View] = (View("class"),)
    staged: Sequence[Staged] = ()  # whether training has two stages, the most important way first
    charts: Sequence[Chart] = ()  # default: the loss columns with their references, then every other column
    references: Sequence[str] = ()  # reference losses that are drawn; default: all, without standard errors
    inspect: Callable[..., Any] | None = None  # (run, trial_id, step) -> Pictures of one trained model
    inside: Inside | None = None  # small matrices of every trained model, drawn when its cell is open
    inside_cell: Inside | None = None  # larger ones, of the trial that stands for a cell
    prepare: Callable[[Run], Run] | None = None  # applied to the run before `score` and all other functions
    of_trials: Callable[[Scores], Scores] | None = None  # reduces the scores to one row per trial
    panels: Sequence[str] = ()  # settings that separate panels of a map first
    cells: Callable[[Scores, Sequence[str]], pd.DataFrame] | None = None  # columns of cells: see maps.cells
    refine_by: Callable[[pd.DataFrame], Iterable[tuple[str, float]]] | None = None  # cells -> (class, score)
    replaces: Sequence[str] = ()  # general figures and tables, or "findings", that this page replaces
    live: Sequence[str] = ()  # sections of figures shown while the sweep runs
    file: str = "scores.parquet"  # file in the run folder for what `score` returns
    file_holds: str = "one row per trial: scores and classes"


def entries_of(listed: Any, head: str) -> dict[str, list[Entry]]:
    """Sort the figures or tables of a Page by section; a plain list becomes the section `head`."""
    by_section = listed if isinstance(listed, Mapping) else {head: listed} if listed else {}
    return {
        str(section): [each if isinstance(each, Entry) else entry_of(each) for each in entries]
        for section, entries in by_section.items()
    }


def entry_of(make: Callable[..., Any]) -> Entry:
    """Make an Entry from a function: its name, and the first line of its docstring as title."""
    name = getattr(make, "__name__", type(make).__name__).strip("<>")
    title = (getattr(make, "__doc__", None) or name.replace("_", " ")).strip().splitlines()[0]
    return Entry(name, make, title=title.rstrip("."))
