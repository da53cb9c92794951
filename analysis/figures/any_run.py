"""Figures and tables of any run: losses with their references, records, details, endings, cells.

A cell is a combination of the settings that vary, except the seed.  Figures and tables are functions of
(run, scores) but read only the run, so they also work for a run without scores.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from topicjax.errors import UserError, counted, unknown_name
from topicjax.settings import SEEDS
from topicjax.store.reader import Run, Status

from ..frames import Frame, bands, cell_of_rows, measured_columns, reference_losses, varying
from ..page.contract import Entry, Page
from ..pictures import MOST_VALUES, PALETTE, Picture, evenly, first_of, sentences, style, written
from ..tables import ERROR, SPREAD
from .step_panels import (
    ACROSS,
    ENDS,
    HALF,
    MOST_POINTS,
    is_cut_short,
    panel_grid,
    shared_legend,
    step_axis,
    thinned,
    title_lines,
)

TAKEN = ("trial_id", "step")
FINAL, TRIALS, DIVERGED = "final_", "number of trials", "diverged trials"  # with spaces, unlike settings
MOST_LINES, MOST_PLACES, MOST_SERIES = 24, 40, 8  # cells per figure; values along x; values with a line each
PANELS, MOST_COLUMNS = 6, 24  # columns per figure, and in all figures of records
MOST_DETAILS = 4  # columns of details, each with its own figure
COLOURS = PALETTE[:6]  # yellow is too light for lines
SHADES = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.93, 256))).with_extremes(bad="0.6")
DEEPEST = 1e-3  # logarithmic axes of losses end at this share of the lowest positive reference
DASHES = ("-", (0, (5, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (1, 1)), (0, (1, 3)))  # of reference losses


CELL_TITLE = "Cells: number of trials, and medians of the final values of those that did not diverge"


def any_page(own: Page) -> Page:
    """Make the general page of any run, without the entries that its experiment's page replaces."""

    def loss_figure(run: Run, scores: pd.DataFrame, **axes: Any) -> Picture:
        return losses(run, loss_column(run, own), reference_losses(run, own.references), **axes)

    figures = {
        "Losses": [Entry("losses", loss_figure, lambda run, _: has_references(run, own), axes=("x", "y"))],
        "Records": [Entry("records", records, axes=("x", "y"))],
        "Measured after training": [Entry("measured", measured, is_measured, axes=("x", "y"))],
        "Details": [Entry("details", details, has_details, axes=("x", "y"))],
        "Final values": [Entry("finals", finals, has_axis, axes=("x", "y"))],
    }
    tables = {
        "How trials ended": [Entry("ended", ended, ends_differ, "Trials by the reason they ended")],
        "Cells": [Entry("cells", cells, title=CELL_TITLE)],
    }

    def kept(sections: Mapping[str, list[Entry]]) -> dict[str, list[Entry]]:
        left = {head: [e for e in own_ if e.name not in own.replaces] for head, own_ in sections.items()}
        return {head: entries for head, entries in left.items() if entries}

    return Page(
        findings=None if "findings" in own.replaces else findings,
        figures=kept(figures),
        tables=kept(tables),
    )


def findings(run: Run, scores: pd.DataFrame, cells: pd.DataFrame, state: Status) -> Iterator[str]:
    """Yield sentences on how many trials finished and how they ended, what is missing, and what varies."""
    finished, several = len(run.trials), varying(run.trials, run.setting_names)
    diverged = int((~is_ok(run)).sum())
    first = f"{counted(finished, 'trial')} finished (number planned unknown)"
    if state.planned:
        left = max(0, state.planned - (finished - state.beyond))
        first = f"{finished - state.beyond:,} of {counted(state.planned, 'planned trial')} finished"
        first += f", {left:,} missing" * bool(left)
        first += f", and {counted(state.beyond, 'trial')} that no plan names" * bool(state.beyond)
    yield f"{first}: {finished - diverged:,} ok, {diverged:,} diverged."
    missing = state.problems if state.planned else (*run.missing, *state.problems)
    yield from (f"Not complete: {sentence}." for sentence in missing[:MOST_VALUES])
    values = [f"{said(name)} ({counted(len(run.trials[name].unique()), 'value')})" for name in several]
    yield f"Settings that vary: {first_of(values)}." if values else "No setting varies."


def cell_table(run: Run, x: str | None = None, y: str | None = None) -> pd.DataFrame:
    """Tabulate cells: settings, trials, diverged trials, and medians of the other trials' final values."""
    names, ok = swept(run, x, y)[0], is_ok(run)
    cell = cell_of_rows(run.trials, names)
    table = run.trials[names].iloc[np.unique(cell, return_index=True)[1]].reset_index(drop=True)
    table = table.assign(**{TRIALS: np.bincount(cell), DIVERGED: np.bincount(cell, ~ok).astype(int)})
    values = pd.DataFrame({f"{name} (median)": finite(run.trials[name])[ok] for name in final_names(run)})
    return table.join(values.groupby(cell[ok]).median())


def cells(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Make the table of cells; rename settings whose name ends like a column of errors or quartiles."""
    ends = (ERROR, *SPREAD)
    return cell_table(run).rename(columns=lambda n: f"{n} (setting)" if n.endswith(ends) else n)


def ended(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Count for each cell how many of its trials ended for each reason."""
    names = swept(run)[0]
    cell = cell_of_rows(run.trials, names)
    table = run.trials[names].iloc[np.unique(cell, return_index=True)[1]].reset_index(drop=True)
    counts = pd.crosstab(cell, stop_reasons(run).to_numpy())
    return table.assign(
        **{TRIALS: np.bincount(cell), **{f"ended: {why}": counts[why].to_numpy() for why in counts}}
    )


def stop_reasons(run: Run) -> pd.Series:
    """Return why each trial ended: its stop reason, or its status if none was recorded."""
    reasons: Any = run.trials["stop_reason"] if "stop_reason" in run.trials else pd.Series(dtype=object)
    reasons = reasons.reindex(run.trials.index).astype(object)
    return reasons.where(reasons.notna() & (reasons != ""), run.trials["status"].astype(object))


def ends_differ(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether the trials that did not diverge ended for several reasons."""
    return len(set(stop_reasons(run)[is_ok(run)])) > 1


def swept(run: Run, x: str | None = None, y: str | None = None) -> tuple[list[str], str | None, str | None]:
    """Choose the settings that define cells, and among them that of the x axis and that of the lines.

    These two come first: `x` and `y`, or the settings with the most values.  Words with too many values to
    distinguish are not used.
    """
    names = varying(run.trials, [name for name in run.setting_names if name not in SEEDS])
    sizes = {name: len(run.trials[name].unique()) for name in names}
    chosen: list[str | None] = []
    for given, most in ((x, MOST_LINES), (y, MOST_SERIES)):
        free = [given] if given else [n for n in names if n not in (*chosen, x, y)]
        fit = [n for n in free if n in names and (is_number(run.trials[n]) or sizes[n] <= most)]
        chosen.append(max(fit, key=lambda name: sizes[name], default=None))
    first = [name for name in chosen if name is not None]
    return [*first, *(name for name in names if name not in first)], chosen[0], chosen[1]


def loss_column(run: Run, own: Page) -> str:
    """Find the column that reference losses belong to: the page's own, a held-out loss, or any loss."""
    drawn = [name for chart in own.charts if chart.references for name in chart.columns]
    named = [str(name) for name in run.trajectories if "loss" in str(name) and not str(name).endswith(ERROR)]
    held_out = [name for name in named if name.startswith(("eval", "held_out", "test", "valid"))]
    return next((name for name in (*drawn, *held_out, *named) if name in run.trajectories), "")


def has_references(run: Run, own: Page) -> bool:
    """Tell whether there are reference losses to draw, and trials that did not diverge."""
    has_some = len(reference_losses(run, own.references).columns) > 0
    return has_some and bool(loss_column(run, own)) and bool(is_ok(run).any())


def losses(
    run: Run, name: str, references: pd.DataFrame, x: str | None = None, y: str | None = None
) -> Picture:
    """Draw a loss over the steps with its reference losses, and below it the excess over the lowest of them.

    Trials with equal references share a panel.  The lower panels are logarithmic, so a plateau shows as a
    level however close to the lowest reference it is.
    """
    names, axis, _ = swept(run, x, y)
    ok, references = is_ok(run), references.set_axis(run.trials.index)
    group = cell_of_rows(references.fillna(np.inf), list(references.columns))
    groups = np.unique(group[ok])
    shown = groups[evenly(len(groups), PANELS)]
    cell = cell_of_rows(run.trials, names)
    apart = [n for n in names if max(run.trials[n].groupby(group).nunique(dropna=False).tolist()) == 1]
    apart = apart if len(groups) > 1 else []
    firsts = [run.trials.loc[group == number].iloc[0] for number in shown]
    titles = [title_lines([in_words(n, row[n]) for n in apart], len(shown)) or [""] for row in firsts]
    own: Frame = rows_of(run, run.trajectories, ok & np.isin(group, shown))
    lowest = references.min(axis=1).to_numpy(float)
    excess = own[name].to_numpy(float) - lowest[own["trial_id"]]
    is_above = bool(np.isfinite(excess).any()) and bool(np.mean(excess[np.isfinite(excess)] > 0) > HALF)
    rows = {said(name): 1.5} | ({"above the lowest": 1.3} if is_above else {})  # label: height in inches
    own = own.assign(excess=np.where(excess > 0, excess, np.nan))
    with style():
        figure, columns = panel_grid(titles, ACROSS, rows)
        known = run.trials.loc[ok & np.isin(group, shown)]
        values = None if axis is None or len(known[axis].unique()) < 2 else known[axis]
        cut_short = False
        for number, axes in zip(shown, columns, strict=True):
            inside = np.unique(cell[ok & (group == number)])
            inside = inside[evenly(len(inside), MOST_LINES)]
            first_rows = run.trials.iloc[[np.flatnonzero(cell == place)[0] for place in inside]]
            drawn = first_rows.index if values is None else first_rows[values.name]
            shades = dict(zip(inside, shades_of(values, drawn), strict=True))
            part = own.loc[np.isin(cell[own["trial_id"]], inside) & (group[own["trial_id"]] == number)]
            here = references.loc[group == number].iloc[0]
            for ax, (column, below) in zip(axes, ((name, 0.0), ("excess", here.min())), strict=False):
                band = quartiles(part, column, cell)
                cut_short |= is_cut_short(band)
                draw_bands(ax, band, "cell", shades)
                step_axis(ax, band["step"])
                ax.set_yscale("linear" if column == name else "log")
                draw_references(ax, here - below)
        shared_legend(figure, columns)
        if values is not None:
            explain_shades(figure, [ax for axes in columns for ax in axes], values)
    listed = {
        str(n): sorted({float(f"{value:.4g}") for value in references.loc[ok, n].dropna()})
        for n in references
    }
    texts = [f"{said(n)} {first_of([written(v, 4) for v in found])}" for n, found in listed.items() if found]
    cells_drawn = sum(min(MOST_LINES, len(np.unique(cell[ok & (group == number)]))) for number in shown)
    cells_there = len(np.unique(cell[ok]))
    parts = {
        f"{said(name).capitalize()} of {counted(int(ok.sum()), 'trial')}: medians and quartiles over seeds,"
        " one line per cell.": True,
        f"Black: reference losses ({'; '.join(texts)}).": texts,
        "Below: excess over the lowest reference, on a logarithmic scale.": is_above,
        f"Shown: {cells_drawn} of {counted(cells_there, 'cell')}.": cells_drawn < cells_there,
        f"Shown: {len(shown)} of {len(groups)} panels, one for each set of references.": (
            len(shown) < len(groups)
        ),
        left_out(run): not ok.all(),
        f"Colour: {said(axis)}.": values is not None,
        ENDS: cut_short,
    }
    alt = f"{said(name)} against the step with horizontal lines at {first_of(list(map(said, references)))}."
    return Picture(figure, f"{said(name).capitalize()} and reference losses", sentences(parts), alt)


def draw_references(ax: Axes, references: pd.Series) -> None:
    """Draw a horizontal line at each reference loss that is finite and, on a log axis, positive."""
    for number, (name, value) in enumerate(references.items()):
        is_drawn = np.isfinite(value) and (value > 0 or ax.get_yscale() == "linear")
        if is_drawn:
            look: Any = DASHES[number % len(DASHES)]
            ax.axhline(value, color="black", linestyle=look, linewidth=0.8, zorder=3, label=said(name))
    above = references[np.isfinite(references) & (references > 0)]
    if ax.get_yscale() == "log" and len(above):  # a loss that keeps falling would squeeze the plateaus
        ax.set_ylim(bottom=max(ax.get_ylim()[0], DEEPEST * above.min()))


def is_measured(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether columns were measured after training."""
    return not {*measured_columns(run)}.isdisjoint(run.trajectories)


def measured(run: Run, scores: pd.DataFrame, x: str | None = None, y: str | None = None) -> list[Picture]:
    """Draw every column that was measured after training over the steps of its snapshots."""
    return over_steps(run, measured_columns(run), x, y)


def records(run: Run, scores: pd.DataFrame, x: str | None = None, y: str | None = None) -> list[Picture]:
    """Draw every record column over the steps, median and quartiles of each cell, six columns per figure."""
    later = measured_columns(run)  # have a section of their own
    return over_steps(run, [str(name) for name in run.trajectories if name not in later], x, y)


def over_steps(run: Run, wanted: Sequence[str], x: str | None, y: str | None) -> list[Picture]:
    """Draw these columns over the steps, median and quartiles of each cell, six columns per figure."""
    names, axis, _ = swept(run, x, y)
    cells, cell = cell_table(run, x, y), cell_of_rows(run.trials, names)
    counts = (cells[TRIALS] - cells[DIVERGED]).to_numpy()
    known = np.flatnonzero(counts)
    drawn = known[evenly(len(known), MOST_LINES)]
    own = rows_of(run, run.trajectories, is_ok(run) & np.isin(cell, drawn))
    own = own.filter([*TAKEN, *(name for name in wanted if name not in TAKEN)])
    columns = [name for name in own if name not in TAKEN and is_numeric_dtype(own[name])]
    full = [str(name) for name in columns if np.isfinite(own[name].to_numpy(float)).any()]
    if not full:
        raise UserError(
            f"no value of the {counted(int(counts.sum()), 'trial')} that did not diverge is finite"
        )
    empty = [said(name) for name in columns if name not in full]
    sizes = np.unique(counts[drawn])
    span = counted(sizes[0], "trial") if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,} trials"
    remarks = {
        f"Lines are medians and bands quartiles over seeds, {span} each.": sizes[-1] > 1,
        "Each line is one trial.": sizes[-1] == 1,
        f"Shown: {len(drawn)} of {counted(len(known), 'cell')} with a trial that did not diverge, evenly"
        f" spaced in the order of {', '.join(map(said, names))}.": len(drawn) < len(known),
        left_out(run): not is_ok(run).all(),
        f"More than {MOST_POINTS} records are drawn as medians over bins of steps.": (
            own["step"].nunique() > MOST_POINTS
        ),
        f"Not drawn, without finite values: {first_of(empty)}.": empty,
        f"Shown: the first {MOST_COLUMNS} of {len(full)} columns.": len(full) > MOST_COLUMNS,
    }
    lines, values = cells[names].iloc[drawn], None if axis is None else run.trials[axis]
    groups = (full[first : first + PANELS] for first in range(0, len(full[:MOST_COLUMNS]), PANELS))
    tables = ({name: quartiles(own, name, cell) for name in group} for group in groups)
    return [step_figure(panels, lines, values, remarks) for panels in tables]


def rows_of(run: Run, table: pd.DataFrame, is_drawn: np.ndarray) -> pd.DataFrame:
    """Select the records or details of these trials, with the row of the trial as trial_id."""
    owner = pd.Index(run.trials["trial_id"]).get_indexer(pd.Index(table["trial_id"]))
    rows = np.flatnonzero(is_drawn[owner] & (owner >= 0))
    return table.take(rows).assign(trial_id=owner[rows])


def quartiles(own: pd.DataFrame, name: str, cell: np.ndarray) -> pd.DataFrame:
    """Compute q25, q50, q75 of a column over the trials of each cell at each step, and count these trials."""
    frame = thinned(own[["trial_id", "step"]].assign(value=own[name].to_numpy(float)), ["value"])
    return bands(frame.assign(cell=cell[frame["trial_id"]]), "value", "cell", least=HALF)


def step_figure(
    panels: Mapping[str, pd.DataFrame], lines: pd.DataFrame, values: Any, remarks: Mapping[str, Any]
) -> Picture:
    """Draw a panel per column with a line per cell, coloured by the values of a setting if given."""
    by = "" if values is None else said(values.name)
    with style():
        figure, axes = panel_figure(list(panels), "step")
        shades = coloured(figure, axes, values, lines.index if values is None else lines[values.name])
        for ax, band in zip(axes, panels.values(), strict=True):
            draw_bands(ax, band, "cell", dict(zip(lines.index, shades, strict=True)))
            step_axis(ax, band["step"])
    logarithmic = [said(name) for name, ax in zip(panels, axes, strict=True) if ax.get_yscale() == "log"]
    what = ", ".join(map(said, panels))
    parts = {
        ENDS: any(map(is_cut_short, panels.values())),
        f"Colour: {by}.": by,
        f"On a logarithmic scale: {', '.join(logarithmic)}.": logarithmic,
    }
    alt = f"{what} against the step, {counted(len(lines), 'line')}{' coloured by ' * bool(by)}{by}."
    return Picture(figure, f"{what} over the steps", sentences({**remarks, **parts}), alt)


def finals(run: Run, scores: pd.DataFrame, x: str | None = None, y: str | None = None) -> Picture:
    """Draw final values against the setting with the most values, with a line per value of another."""
    _, axis, series = swept(run, x, y)
    ok = run.trials.loc[is_ok(run)]
    full = [name for name in final_names(run) if np.isfinite(finite(ok[name])).any()]
    if axis is None or not full:
        raise UserError(f"no final value of the {counted(len(ok), 'trial')} that did not diverge is finite")
    along, line = pooled(ok[axis], MOST_PLACES), pooled(ok[series], MOST_SERIES) if series else None
    place = along if is_number(along) else pd.factorize(along, sort=True, use_na_sentinel=False)[0]
    rows = pd.Series(0, ok.index) if line is None else line
    number, shown = pd.factorize(rows, sort=True, use_na_sentinel=False)
    with style():
        figure, axes = panel_figure([name.removeprefix(FINAL) for name in full[:PANELS]], said(axis))
        shades = dict(enumerate(coloured(figure, axes, line, shown)))
        for ax, name in zip(axes, full, strict=False):
            frame = pd.DataFrame(dict(line=number, step=place, value=finite(ok[name])))
            draw_bands(ax, bands(frame, "value", "line"), "line", shades, "o-" if is_number(along) else "o")
            scale_x(ax, along)
    others = [said(name) for name in varying(ok, run.setting_names, [n for n in (axis, series) if n])]
    lines = f", a colour per value of {said(series)}" if series else ""
    what = f"Final values of {', '.join(said(name.removeprefix(FINAL)) for name in full[:PANELS])}"
    parts = {
        f"Final values of {counted(len(ok), 'trial')} against {said(axis)}{lines}.": True,
        f"Medians and quartiles{' over ' * bool(others)}{', '.join(others)}.": True,
        left_out(run): not is_ok(run).all(),
        f"Shown: the first {PANELS} of {len(full)} columns.": len(full) > PANELS,
    }
    for name, most in ((axis, MOST_PLACES), (series, MOST_SERIES)):
        text = f"Neighbouring values of {said(name)} share {most} places, labelled by the middle value."
        parts[text] = bool(name) and len(ok[name].unique()) > most
    return Picture(
        figure, f"Final values by {said(axis)}", sentences(parts), f"{what} by {said(axis)}{lines}."
    )


def has_details(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether a trial that did not diverge has details."""
    return bool(run.detail_names) and bool(is_ok(run).any())


def details(run: Run, scores: pd.DataFrame, x: str | None = None, y: str | None = None) -> list[Picture]:
    """Draw a figure per detail column: a panel per cell, a line per index, medians over seeds only."""
    indices, ok = run.detail_names, is_ok(run)
    names, _, _ = swept(run, x, y)
    cell = cell_of_rows(run.trials, names)
    known = np.unique(cell[ok])
    drawn = known[evenly(len(known), PANELS)]
    own = rows_of(run, run.details, ok & np.isin(cell, drawn))
    kept = ("trial_id", "step", *indices)
    columns = [name for name in own if name not in kept and is_numeric_dtype(own[name])]
    full = [str(name) for name in columns if np.isfinite(own[name].to_numpy(float)).any()]
    if not full:
        raise UserError("no value in the details of trials that did not diverge is finite")
    place, places = distinct_places(own, indices)
    lines = evenly(len(places), MOST_LINES)
    rows = own["trial_id"].to_numpy(int)
    own = own.assign(trial_id=rows * len(places) + place).loc[np.isin(place, lines)]
    place_of = np.tile(np.arange(len(places)), len(run.trials))
    what, firsts = (
        " and ".join(map(said, indices)),
        [run.trials.loc[cell == number].iloc[0] for number in drawn],
    )
    counts = [int((ok & (cell == number)).sum()) for number in drawn]
    remarks = {
        f"A panel per cell, a line per {what}; medians and quartiles over seeds,"
        f" {counted(max(counts), 'trial')} at most.": max(counts) > 1,
        f"A panel per cell, a line per {what} of its trial.": max(counts) == 1,
        f"Shown: {len(drawn)} of {counted(len(known), 'cell')}, evenly spaced in the order of"
        f" {', '.join(map(said, names))}.": len(drawn) < len(known),
        f"Shown: {len(lines)} of {len(places)} lines.": len(lines) < len(places),
        f"Shown: the first {MOST_DETAILS} of {len(full)} columns.": len(full) > MOST_DETAILS,
        f"More than {MOST_POINTS} records are drawn as medians over bins of steps.": (
            own["step"].nunique() > MOST_POINTS
        ),
        left_out(run): not ok.all(),
    }
    made = []
    for name in full[:MOST_DETAILS]:
        with style():
            titles = [title_lines([in_words(n, row[n]) for n in names], len(drawn)) or [""] for row in firsts]
            figure, axes = panel_grid(titles, ACROSS, {said(name): 1.5})
            values = places[indices[0]]
            shades = coloured(figure, [ax for (ax,) in axes], values if len(places) > 1 else None, values)
            for (ax,), number in zip(axes, drawn, strict=True):
                part = own.loc[cell[own["trial_id"].to_numpy(int) // len(places)] == number]
                band = quartiles(part, name, place_of)
                draw_bands(ax, band, "cell", dict(enumerate(shades)))
                step_axis(ax, band["step"])
            share_scale([ax for (ax,) in axes])
        alt = f"{said(name)} against the step, {counted(len(drawn), 'panel')} with a line per {what}."
        made.append(Picture(figure, f"{said(name)} by {what}", sentences(remarks), alt))
    return made


def distinct_places(own: pd.DataFrame, indices: Sequence[str]) -> tuple[np.ndarray, pd.DataFrame]:
    """Number the combinations of the indices; return each row's number and the combinations in order."""
    place = own.groupby(list(indices)).ngroup().to_numpy()
    places: Frame = own[list(indices)].drop_duplicates()
    return place, places.sort_values(list(indices)).reset_index(drop=True)


def share_scale(axes: Sequence[Axes]) -> None:
    """Make all panels logarithmic if one is and the others can be, so that they are comparable."""
    positive = all((np.asarray(line.get_ydata(), float) > 0).all() for ax in axes for line in ax.lines)
    if positive and any(ax.get_yscale() == "log" for ax in axes):
        for ax in axes:
            ax.set_yscale("log")


def curves_by(
    run: Run,
    columns: Sequence[str] | str,
    panel: str = "",
    where: Mapping[str, Any] | None = None,
    scale: str = "linear",
) -> Figure:
    """Draw columns of the trajectories over the steps: medians over seeds, a panel per value of a setting.

    `where` selects trials with these settings.  Trials that diverged are left out.  Trials that differ in
    more than the seed are never pooled: each cell of a panel has its own line; where a panel has one cell,
    the quartiles over its seeds are drawn too.
    """
    columns, by = [columns] if isinstance(columns, str) else list(columns), [panel] if panel else []
    kept = trials_where(run, columns, by, where or {})
    inside = [name for name in varying(run.trials.loc[kept], run.setting_names, by) if name not in SEEDS]
    place, cell = cell_of_rows(run.trials, by), cell_of_rows(run.trials, [*by, *inside])
    found = np.unique(place[kept])
    panels = found[evenly(len(found), PANELS)]
    firsts = [run.trials.loc[kept & (place == number)].iloc[0] for number in panels]
    cells = {number: np.unique(cell[kept & (place == number)]) for number in panels}
    shown = {number: own[evenly(len(own), MOST_LINES)] for number, own in cells.items()}
    own: Frame = rows_of(run, run.trajectories, kept & np.isin(cell, np.concatenate(list(shown.values()))))
    with style():
        titles = [[in_words(n, row[n]) for n in by] or [""] for row in firsts]
        figure, axes = panel_grid(titles, ACROSS, {said(columns[0]) if len(columns) == 1 else "": 1.6})
        colours = COLOURS if len(columns) <= len(COLOURS) else SHADES(np.linspace(0, 1, len(columns)))
        for (ax,), number in zip(axes, panels, strict=True):
            part = own.loc[np.isin(cell[own["trial_id"]], shown[number])]
            for name, colour in zip(columns, colours, strict=False):
                band = quartiles(part, name, cell)
                if inside:
                    band = band.assign(q25=band["q50"], q75=band["q50"])  # bands of many cells hide lines
                draw_bands(ax, band, "cell", dict.fromkeys(shown[number].tolist(), colour))
                ax.lines[-1].set_label(said(name))
            ax.set_yscale(scale)
            step_axis(ax, own["step"])
        few = f", {len(panels)} of {len(found)} values of {said(panel)}" if len(panels) < len(found) else ""
        over = Patch(fc="0.5", alpha=0.3, lw=0, label=f"band: quartiles over seeds{few}")
        if inside:
            left = sum(map(len, cells.values())) - sum(map(len, shown.values()))
            some = f" ({counted(left, 'cell')} not drawn)" if left else ""
            alone = f"a line per {', '.join(map(said, inside))}: median over seeds{few}{some}"
            over = Line2D([], [], color="0.5", label=alone)
        shared_legend(figure, axes, more=[over])
    return figure


def trials_where(run: Run, columns: Sequence[str], by: Sequence[str], where: Mapping[str, Any]) -> np.ndarray:
    """Return which trials have these settings and did not diverge; raise a UserError for unknown names."""
    for name in columns:
        if name not in run.trajectories:
            raise UserError(unknown_name("column", name, map(str, run.trajectories.columns[2:])))
    for name in (*where, *by):
        if name not in run.setting_names:
            raise UserError(unknown_name("setting", name, run.setting_names))
    kept = is_ok(run)
    for name, value in where.items():
        kept = kept & (run.trials[name] == value).to_numpy()
    if not kept.any():
        raise UserError("no trial that did not diverge has these settings")
    return kept


def panel_figure(names: Sequence[str], below: str) -> tuple[Figure, list[Axes]]:
    """Make a figure with a titled panel per column."""
    figure, columns = panel_grid([[said(name)] for name in names], ACROSS, {"": 1.5})
    for (ax,) in columns:
        ax.set_xlabel(below)
    return figure, [ax for (ax,) in columns]


def coloured(figure: Figure, axes: Sequence[Axes], values: Any, drawn: Any) -> list[Any]:
    """Choose a colour for each drawn value, and explain it on the figure; one colour without values."""
    if values is not None:
        explain_shades(figure, axes, values)
    return shades_of(values, drawn)


def shades_of(values: Any, drawn: Any) -> list[Any]:
    """Choose a colour for each drawn value; one colour without values."""
    if values is None:
        return [COLOURS[0]] * len(drawn)
    if is_number(values):
        return list(SHADES(scale_of(values)(np.asarray(drawn, float))))
    return [palette_of(values)[plain(value)] for value in drawn]


def scale_of(values: Any) -> Normalize:
    """Choose the colour scale of numbers, logarithmic if they span a wide range."""
    known = np.unique(finite(values)[np.isfinite(finite(values))])
    return (LogNorm if is_wide(known) else Normalize)(known[0], known[-1])


def palette_of(values: Any) -> dict[str, Any]:
    """Choose a colour for each word."""
    found = [plain(value) for value in pd.factorize(values, sort=True, use_na_sentinel=False)[1]]
    palette = COLOURS if len(found) <= len(COLOURS) else SHADES(np.linspace(0, 1, len(found)))
    return dict(zip(found, palette, strict=False))


def explain_shades(figure: Figure, axes: Sequence[Axes], values: Any) -> None:
    """Explain the colours of values: a bar beside the panels for numbers, a legend below them for words."""
    name = said(values.name)
    if is_number(values):
        norm, known = scale_of(values), np.unique(finite(values)[np.isfinite(finite(values))])
        bar = figure.colorbar(ScalarMappable(norm, SHADES), ax=axes, aspect=40, pad=0.02, label=name)
        if len(known) <= MOST_SERIES and min(np.diff(norm(known)), default=1) > 0.05:
            bar.set_ticks(list(known), labels=[written(value) for value in known])
            bar.minorticks_off()
        return
    shade = palette_of(values)
    handles = [Line2D([], [], color=colour, label=text) for text, colour in shade.items()]
    across = max(1, int(figure.get_figwidth() / (0.6 + 0.07 * max(map(len, shade)))))  # in inches
    figure.set_figheight(figure.get_figheight() + 0.16 * (len(shade) // across))
    figure.legend(handles=handles, title=name, loc="outside lower center", ncols=across)


def draw_bands(ax: Axes, table: pd.DataFrame, key: str, shades: Mapping[Any, Any], look: str = "-") -> None:
    """Draw median and quartiles over the step per value of `key`; log scale if they span a wide range."""
    table = table.loc[table["q50"].notna()]
    for value, own in table.groupby(key):
        line, low, high = "o" if len(own) == 1 else look, own["q25"], own["q75"]
        ax.plot(own["step"], own["q50"], line, color=shades[value], markersize=2.5, linewidth=1)
        if line == "o":
            ax.vlines(own["step"], low, high, color=shades[value], linewidth=0.8)
        else:
            ax.fill_between(own["step"], low, high, color=shades[value], alpha=0.15, linewidth=0)
    if is_wide(table[["q25", "q75"]].to_numpy(), 100):
        ax.set_yscale("log")


def scale_x(ax: Axes, x: pd.Series) -> None:
    """Scale the axis of a setting: one place per word; logarithmic for numbers that span a wide range."""
    if is_number(x):
        ax.set_xscale("log" if is_wide(x.to_numpy(float)) else "linear")
        return
    texts = [plain(value) for value in pd.factorize(x, sort=True, use_na_sentinel=False)[1]]
    texts = [text if len(text) <= 20 else f"{text[:19]}…" for text in texts]
    ax.set_xticks(range(len(texts)), texts, rotation=90 if sum(map(len, texts)) > 30 else 0)


def pooled(values: Any, most: int) -> pd.Series:
    """Pool more than `most` values: replace each by the middle one of its neighbours."""
    if values.nunique() <= most:
        return values
    found, place = np.unique(values.to_numpy(), return_inverse=True)
    bins = np.arange(len(found)) * most // len(found)
    middle = (np.searchsorted(bins, bins) + np.searchsorted(bins, bins, "right") - 1) // 2
    return pd.Series(found[middle][place], values.index, name=values.name)


def has_axis(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether final values can be drawn against a setting that varies."""
    return swept(run)[1] is not None


def is_ok(run: Run) -> np.ndarray:
    """Mask the trials that did not diverge."""
    return (run.trials["status"] == "ok").to_numpy()


def left_out(run: Run) -> str:
    """Write a sentence on the trials that diverged."""
    return f"Diverged and left out: {np.count_nonzero(~is_ok(run)):,} of {counted(len(run.trials), 'trial')}."


def final_names(run: Run) -> list[str]:
    """List the columns of final values."""
    names = [name for name in run.trials if str(name).startswith(FINAL)]
    return [str(name) for name in names if is_numeric_dtype(run.trials[name])]


def finite(values: Any) -> np.ndarray:
    """Return the numbers as float64, with NaN for non-finite ones."""
    numbers = values.to_numpy(float)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def is_wide(values: np.ndarray, ratio: float = 10) -> bool:
    """Tell whether all values are positive and the largest is more than `ratio` times the smallest."""
    return bool(len(values)) and bool(np.min(values) > 0) and bool(np.max(values) > ratio * np.min(values))


def is_number(values: Any) -> bool:
    """Tell whether a setting is numeric, not a word or a boolean."""
    return is_numeric_dtype(values) and not is_bool_dtype(values)


def said(name: Any) -> str:
    """Write a setting or column in words."""
    return str(name).replace("_", " ")


def plain(value: Any) -> str:
    """Write a value for a figure, without math text."""
    return written(value).replace("$", r"\$")


def in_words(name: str, value: Any) -> str:
    """Write a setting with its value, for titles."""
    return f"{said(name)} {plain(value)}"
