"""The page of a run of any experiment: what it says first, its figures, its cells and settings.

A cell is a combination of the settings that vary, except the seed.
"""

import html
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from topicjax.store.manifest import last_run
from topicjax.store.reader import Run
from topicjax.store.status import Status, status

from ..figures.any_details import details, has_details
from ..figures.any_records import (
    DIVERGED,
    TRIALS,
    final_names,
    finals,
    finite,
    has_axis,
    is_ok,
    records,
    said,
    swept,
)
from ..figures.seed_bands import cell_of
from ..frames import varying
from ..pictures import MOST_VALUES, counted, first_of
from . import page
from .catalogue import Entry, any_run
from .live import Live
from .progress import Progress
from .provenance import files, plans_sentence, provenance
from .safely import part
from .selection import Selection
from .tables import ERROR, HEADERS


def render(
    run: Run,
    draw: Callable[..., str],
    tabulate: Callable[..., str],
    progress: Progress,
    chosen: Selection,
    filtered: str = "",
    live: Live | None = None,
) -> str:
    """Return the page; `draw` and `tabulate` make an entry of it and write its files on the way."""
    cells, state = cell_table(run, chosen.x, chosen.y), status(run.folder)
    shown = {head: chosen.applied(entry, filtered) for head, entry in FIGURES.items()}
    table = chosen.applied(CELLS, filtered)
    progress.total = 1 + sum(entry.fits(run, cells) for entry in shown.values())
    plans = [sentence for sentence in (plans_sentence(state), filtered) if sentence]
    lead = (live.sentence(run) if live else "") + "".join(f"<p>{html.escape(text)}</p>\n" for text in plans)
    lead += part("answer", lambda: page.items([*findings(run, state)], "answer"))
    sections = [
        *((head, draw(entry, run, cells, progress)) for head, entry in shown.items()),
        ("Cells", tabulate(table, run, cells, progress)),
        ("Settings", part("settings", settings_tables, run)),
        ("Provenance", part("provenance", provenance, run)),
        ("Files", part("files", files, run.folder)),
    ]
    question = str(last_run(run.manifest).get("description", "")).split("\n")[0]
    counts = f"{counted(len(run.trials), 'trial')} in {counted(len(cells), 'cell')}."
    subtitle = f"{question} Experiment {run.experiment}: {counts}".strip()
    head = live.head if live else ""
    return page.page(f"topicjax: {run.name}", subtitle, lead, [each for each in sections if each[1]], head)


def findings(run: Run, state: Status) -> Iterator[str]:
    """Give sentences on how many trials are finished and how they ended, what is missing, what varies."""
    finished, several = len(run.trials), varying(run.trials, run.setting_names)
    diverged = int((~is_ok(run)).sum())
    first = f"{counted(finished, 'trial')} finished, of an unknown number"
    if state.planned:
        left = max(0, state.planned - (finished - state.beyond))
        first = f"{finished - state.beyond:,} of {counted(state.planned, 'planned trial')} finished"
        first += f", {left:,} missing" * bool(left)
        first += f", and {counted(state.beyond, 'trial')} that no plan names" * bool(state.beyond)
    yield f"{first}: {finished - diverged:,} ok, {diverged:,} diverged."
    missing = state.problems if state.planned else (*run.missing, *state.problems)
    yield from (f"Not complete: {sentence}." for sentence in missing[:MOST_VALUES])
    values = [f"{said(name)} ({counted(len(run.trials[name].unique()), 'value')})" for name in several]
    yield f"What varies: {first_of(values)}." if values else "No setting varies."


def cell_table(run: Run, x: str | None = None, y: str | None = None) -> pd.DataFrame:
    """Return one row per cell: its settings, trials, diverged ones, medians of the others' final values."""
    names, ok = swept(run, x, y)[0], is_ok(run)
    cell = cell_of(run, names)
    cells = run.trials[names].iloc[np.unique(cell, return_index=True)[1]].reset_index(drop=True)
    cells = cells.assign(**{TRIALS: np.bincount(cell), DIVERGED: np.bincount(cell, ~ok).astype(int)})
    values = pd.DataFrame({f"{name} (median)": finite(run.trials[name])[ok] for name in final_names(run)})
    return cells.join(values.groupby(cell[ok]).median())


def settings_tables(run: Run) -> str:
    """Return the settings that vary with their values, and those that all trials share."""
    values = {
        name: pd.factorize(run.trials[name], sort=True, use_na_sentinel=False)[1]
        for name in run.setting_names
    }
    shown = {n: first_of([page.shown(value) for value in v[: MOST_VALUES + 1]]) for n, v in values.items()}
    varied = [(n, len(v), shown[n]) for n, v in values.items() if len(v) > 1]
    fixed = [(n, shown[n]) for n, v in values.items() if len(v) <= 1]
    first = page.table(pd.DataFrame(varied, columns=["setting", "values", "which"]), "Settings that vary.")
    second = page.table(pd.DataFrame(fixed, columns=["setting", "value"]), "Settings that all trials share.")
    return first * bool(varied) + second * bool(fixed)


def readable(run: Run, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the table of cells, without names that tables say in the words of another experiment."""
    return cells.rename(columns=lambda n: f"{n} (setting)" if n in HEADERS or n.endswith(ERROR) else n)


FIGURES = {
    "Records": Entry("records", any_run, records, axes=("x", "y")),
    "Details": Entry("details", has_details, details),
    "Final values": Entry("finals", has_axis, finals, axes=("x", "y")),
}
CELLS = Entry(
    "cells", any_run, readable, "Cells: trials, and medians of those that did not diverge, at the end"
)
