"""The page of a run of any experiment: what it says first, its figures, its cells and settings.

A cell is a combination of the settings that vary, except the seed.
"""

import functools
import html
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from topicjax.store.files import write_whole
from topicjax.store.manifest import last_run
from topicjax.store.reader import Run, Status, status

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
from ..frames import cell_of_rows, varying
from ..one_layer.catalogue import Catalogue, Entry, any_run
from ..one_layer.tables import ERROR, HEADERS
from ..pictures import MOST_VALUES, counted, first_of
from . import html as page
from .live import Live
from .progress import Progress
from .provenance import files, plans_sentence, provenance
from .safely import absent, part
from .selection import Selection


def render(
    run: Run,
    catalogues: Sequence[Catalogue],
    draw: Callable[..., str],
    tabulate: Callable[..., str],
    progress: Progress,
    chosen: Selection,
    filtered: str = "",
    live: Live | None = None,
) -> str:
    """Return the page of one catalogue after the other.

    `draw` and `tabulate` make an entry of the page and write its files on the way.
    """
    state = status(run.folder)
    plans = [sentence for sentence in (plans_sentence(state), filtered) if sentence]
    lead = (live.sentence(run) if live else "") + "".join(f"<p>{html.escape(text)}</p>\n" for text in plans)
    scored, failed = scored_by(run, catalogues, progress, chosen)
    progress.total = sum(fits(entry, run, scores) for own, scores in scored for entry in own.entries)
    lead += part("answer", answer, run, scored, state) + failed
    sections: list[tuple[str, str]] = []
    for own, scores in scored:

        def made(make: Callable[..., str], entries: Iterable[Entry], scores: pd.DataFrame = scores) -> str:
            return "".join(make(chosen.applied(each, filtered), run, scores, progress) for each in entries)

        lead += made(draw, own.lead)
        drawn = own.figures if own.live or live is None else {}
        sections += [(head, made(draw, entries)) for head, entries in drawn.items()]
        sections += [(head, made(tabulate, entries)) for head, entries in own.tables.items()]
        sections += [("Words", page.items(own.words))] if own.words else []
    sections += [
        ("Settings", part("settings", settings_tables, run)),
        ("Provenance", part("provenance", provenance, run)),
        ("Files", part("files", files, run.folder)),
    ]
    question = str(last_run(run.manifest).get("description", "")).split("\n")[0]
    cells = len(np.unique(cell_of_rows(run.trials, swept(run)[0])))
    counts = f"{counted(len(run.trials), 'trial')} in {counted(cells, 'cell')}."
    subtitle = f"{question} Experiment {run.experiment}: {counts}".strip()
    head = live.head if live else ""
    return page.page(f"topicjax: {run.name}", subtitle, lead, [each for each in sections if each[1]], head)


def scored_by(
    run: Run, catalogues: Sequence[Catalogue], progress: Progress, chosen: Selection
) -> tuple[list[tuple[Catalogue, pd.DataFrame]], str]:
    """Return the catalogues with their scores, and paragraphs on those whose scores cannot be made."""
    scored, failed = [], ""
    for catalogue in catalogues:
        own = catalogue.without({name for earlier, _ in scored for name in earlier.replaces})
        try:
            scores = own.score(run, chosen.x, chosen.y)
            if own.file and not chosen.filters:  # the file is of all trials
                progress(f"scored {counted(len(run.trials), 'trial')} ...")
                write_whole(run.folder / own.file, functools.partial(scores.to_parquet, index=False))
            scored.append((own, scores))
        except Exception as error:
            failed += absent("Not scored", own.file, error)
    return scored, failed


def answer(run: Run, scored: Sequence[tuple[Catalogue, pd.DataFrame]], state: Status) -> str:
    """Return the sentences of all catalogues."""
    return page.items([text for own, scores in scored for text in own.findings(run, scores, state)], "answer")


def fits(entry: Entry, run: Run, scores: pd.DataFrame) -> bool:
    """Return whether an entry will be tried."""
    try:
        return entry.fits(run, scores)
    except Exception:  # whoever makes it says why
        return False


def findings(run: Run, cells: pd.DataFrame, state: Status) -> Iterator[str]:
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
    cell = cell_of_rows(run.trials, names)
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


CATALOGUE = Catalogue(
    score=cell_table,
    findings=findings,
    figures={
        "Records": (Entry("records", any_run, records, axes=("x", "y")),),
        "Details": (Entry("details", has_details, details),),
        "Final values": (Entry("finals", has_axis, finals, axes=("x", "y")),),
    },
    tables={
        "Cells": (
            Entry(
                "cells",
                any_run,
                readable,
                "Cells: trials, and medians of those that did not diverge, at the end",
            ),
        )
    },
)
