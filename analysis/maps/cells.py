"""Cells (trials that differ only in the seed): their majority class and the medians of their scores."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from topicjax.errors import UserError
from topicjax.settings import SEEDS
from topicjax.store.reader import Run

from ..frames import distinct, varying
from ..page.contract import CLASS, Look, Page, Scores, View
from ..pictures import PALETTE

FINAL, STATUS, DIVERGED, UNSCORED = "final_", "status", "diverged", "unscored"
NOTES = (STATUS, "diverged_step", "stopped_step", "stop_reason")  # columns that say how a trial ended
ENDINGS = {"ok": Look("#009E73"), DIVERGED: Look("#333333", "xxxx")}  # for trials without a class
Table = Callable[[pd.DataFrame, Sequence[str]], pd.DataFrame]  # (trials, settings) -> one row per cell


def scored_trials(run: Run, scores: Scores, page: Page) -> tuple[pd.DataFrame, list[str]]:
    """Join settings, scores, final values and ending of each scored trial; return the rows and the settings.

    Columns of the scores come first, in their order; a missing class becomes "unscored".
    """
    rows = pd.Index(run.trials["trial_id"]).get_indexer(pd.Index(scores["trial_id"]))
    names = run.setting_names
    more = [*names, *(name for name in run.trials if str(name).startswith(FINAL) or name in NOTES)]
    own = run.trials[[name for name in more if name not in scores]].iloc[rows]
    frame = pd.concat([scores.reset_index(drop=True), own.reset_index(drop=True)], axis=1)
    classes = [CLASS + view.suffix for view in page.views if CLASS + view.suffix in frame]
    frame = frame.assign(**{name: frame[name].astype(object).fillna(UNSCORED) for name in classes})
    return frame, [str(name) for name in frame if name in names]


def first_panels(trials: pd.DataFrame, settings: Sequence[str], page: Page) -> list[str]:
    """List the settings that split a map into panels first: the page's, or those that vary and are words."""
    words = [name for name in varying(trials, settings) if isinstance(trials[name].iloc[0], str)]
    return [name for name in page.panels or words if name in settings]


def class_views(trials: pd.DataFrame, page: Page) -> tuple[list[View], dict[str, Look]]:
    """Return the views whose classes the trials have, and the look of each class; without any, the status.

    Classes that the page does not list come last, in colours of the palette.
    """
    views = [view for view in page.views if CLASS + view.suffix in trials]
    if not views:
        return [View(STATUS, words="how trials ended")], ENDINGS
    listed = {name: Look(look) if isinstance(look, str) else look for name, look in page.classes.items()}
    found = dict.fromkeys(name for view in views for name in trials[CLASS + view.suffix].tolist())
    others = [name for name in found if name not in listed]
    return views, listed | {name: Look(PALETTE[n % len(PALETTE)]) for n, name in enumerate(others)}


def class_column(view: View) -> str:
    """Name the column of a view's classes."""
    return STATUS if view.name == STATUS else CLASS + view.suffix


def score_columns(trials: pd.DataFrame, settings: Sequence[str]) -> list[str]:
    """List the numeric columns other than settings."""
    names = [str(name) for name in trials if name not in settings and is_numeric_dtype(trials[name])]
    return [name for name in names if not is_bool_dtype(trials[name])]


def cell_table(page: Page, settings: Sequence[str]) -> Table:
    """Make the function that pools a table of trials to cells: one row per combination of some columns.

    A row has these columns, the counts `trials` and `diverged`, and for each view the most frequent class (in
    a tie the first that the page lists) with its share, `agreement`.  It also has the median of each score
    over the trials that have one, and of each final value over the trials that did not diverge.  Columns that
    `page.cells` returns replace those of the same name.
    """

    def table(trials: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
        number, cells = distinct(trials, by)
        views, looks = class_views(trials, page)
        is_lost = (trials[STATUS] == DIVERGED).to_numpy() if STATUS in trials else np.zeros(len(trials), bool)
        columns: dict[str, Any] = dict(trials=np.bincount(number))
        columns[DIVERGED] = np.bincount(number, is_lost, len(cells)).astype(int)
        for view in views:
            kinds, share = majority(number, trials[class_column(view)].to_numpy(), list(looks))
            columns |= {class_column(view): kinds, f"agreement{view.suffix}": share}
        names = [name for name in score_columns(trials, settings) if name not in by]
        values: Any = trials[names].astype(float)
        is_final = np.array([name.startswith(FINAL) for name in names], bool)
        values = values.where(np.isfinite(values) & ~(is_lost[:, None] & is_final))
        medians = values.groupby(number).median()
        columns |= {name: medians[name].to_numpy() for name in names}
        if page.cells is not None:
            own = page.cells(trials, by)
            columns |= {str(name): own[name].to_numpy() for name in own if name not in by}
        return cells.assign(**columns)

    return table


def majority(cell: np.ndarray, classes: np.ndarray, kinds: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the most frequent class of each cell, in a tie the first of `kinds`, and its share."""
    place, size = pd.Index(kinds).get_indexer(pd.Index(classes)), len(kinds)
    counts = np.bincount(size * cell + place, minlength=size * (cell.max(initial=-1) + 1)).reshape(-1, size)
    return np.array(kinds)[counts.argmax(axis=1)], counts.max(axis=1) / counts.sum(axis=1)


def cell_labels(run: Run, scores: Scores, page: Page) -> list[tuple[dict[str, Any], str, float]]:
    """Return what refinement compares: the settings, the class and a score (NaN: none) of each cell."""
    if CLASS not in scores:
        raise UserError(
            f"trials of {run.experiment} have no class; allowed: to refine an experiment whose page scores "
            "trials with classes"
        )
    trials, settings = scored_trials(run, scores, page)
    names = [name for name in settings if name not in SEEDS]
    cells = cell_table(page, settings)(trials, names)
    labels = page.refine_by(cells) if page.refine_by else ((kind, np.nan) for kind in cells[CLASS])
    rows: Any = cells[names]
    pairs = zip(rows.to_dict("records"), labels, strict=True)
    return [(own, str(kind), float(score)) for own, (kind, score) in pairs]
