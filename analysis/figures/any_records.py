"""Records and final values of any experiment: medians and quartiles of each cell.

A cell is a combination of the settings that vary, except the seed.  Figures are functions of (run, cells).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..frames import bands, cell_of_rows, varying
from ..one_layer.onsets import COLOURS
from ..pictures import Picture, counted, evenly, first_of, sentences, style, written
from .step_panels import (
    ACROSS,
    ENDS,
    HALF,
    MOST_POINTS,
    is_cut_short,
    panel_grid,
    step_axis,
    thinned,
)

FINAL, TRIALS, DIVERGED = "final_", "number of trials", "diverged trials"  # no names of settings
MOST_LINES, MOST_PLACES, MOST_SERIES = 24, 40, 8  # cells of a figure; values along x, and with a line each
PANELS, MOST_COLUMNS = 6, 24  # columns of a figure, and of all figures of records
SHADES = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.93, 256))).with_extremes(bad="0.6")


def swept(run: Run, x: str | None = None, y: str | None = None) -> tuple[list[str], str | None, str | None]:
    """Return the settings that make cells, and of these the one along an axis and the one of the lines.

    These two come first: `x` and `y`, or those that have the most values; not words that are too many to be
    told apart.
    """
    names = varying(run.trials, [name for name in run.setting_names if name != "seed"])
    sizes = {name: len(run.trials[name].unique()) for name in names}
    chosen: list[str | None] = []
    for given, most in ((x, MOST_LINES), (y, MOST_SERIES)):
        free = [given] if given else [n for n in names if n not in (*chosen, x, y)]
        fit = [n for n in free if n in names and (is_number(run.trials[n]) or sizes[n] <= most)]
        chosen.append(max(fit, key=lambda name: sizes[name], default=None))
    first = [name for name in chosen if name is not None]
    return [*first, *(name for name in names if name not in first)], chosen[0], chosen[1]


def records(run: Run, cells: pd.DataFrame, x: str | None = None, y: str | None = None) -> list[Picture]:
    """Return every record column over the steps, median and quartiles of each cell, six to a figure."""
    names, axis, _ = swept(run, x, y)
    cell, counts = cell_of_rows(run.trials, names), (cells[TRIALS] - cells[DIVERGED]).to_numpy()
    known = np.flatnonzero(counts)
    drawn = known[evenly(len(known), MOST_LINES)]
    own = rows_of(run, run.trajectories, is_ok(run) & np.isin(cell, drawn))
    columns = [name for name in own if name not in ("trial_id", "step") and is_numeric_dtype(own[name])]
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
        "Each line is a trial.": sizes[-1] == 1,
        f"Drawn are {len(drawn)} of {counted(len(known), 'cell')} with a trial that did not diverge, evenly"
        f" picked in the order of {', '.join(map(said, names))}.": len(drawn) < len(known),
        left_out(run): not is_ok(run).all(),
        f"More than {MOST_POINTS} records are drawn as medians over bins of steps.": (
            own["step"].nunique() > MOST_POINTS
        ),
        f"Not drawn, for want of a finite value: {first_of(empty)}.": empty,
        f"Drawn are the first {MOST_COLUMNS} of {len(full)} columns.": len(full) > MOST_COLUMNS,
    }
    lines, values = cells[names].iloc[drawn], None if axis is None else run.trials[axis]
    groups = (full[first : first + PANELS] for first in range(0, len(full[:MOST_COLUMNS]), PANELS))
    tables = ({name: quartiles(own, name, cell) for name in group} for group in groups)
    return [step_figure(panels, lines, values, remarks) for panels in tables]


def rows_of(run: Run, table: pd.DataFrame, is_drawn: np.ndarray) -> pd.DataFrame:
    """Return the records or details of these trials, with the row of the trial as trial_id."""
    owner = pd.Index(run.trials["trial_id"]).get_indexer(pd.Index(table["trial_id"]))
    rows = np.flatnonzero(is_drawn[owner] & (owner >= 0))
    return table.take(rows).assign(trial_id=owner[rows])


def quartiles(own: pd.DataFrame, name: str, cell: np.ndarray) -> pd.DataFrame:
    """Return one row per cell and step: q25, q50, q75 of a column over the cell's trials, and how many."""
    frame = thinned(own[["trial_id", "step"]].assign(value=own[name].to_numpy(float)), ["value"])
    return bands(frame.assign(cell=cell[frame["trial_id"]]), "value", "cell", least=HALF)


def step_figure(
    panels: Mapping[str, pd.DataFrame], lines: pd.DataFrame, values: Any, remarks: Mapping[str, Any]
) -> Picture:
    """Return a panel per column with a line per cell, coloured along the values of a setting if any."""
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


def finals(run: Run, cells: pd.DataFrame, x: str | None = None, y: str | None = None) -> Picture:
    """Return final values against the setting of most values, with a line per value of another."""
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
        f"Values at the end against {said(axis)}{lines}, of {counted(len(ok), 'trial')}.": True,
        f"Medians and quartiles{' over ' * bool(others)}{', '.join(others)}.": True,
        left_out(run): not is_ok(run).all(),
        f"Drawn are the first {PANELS} of {len(full)} columns.": len(full) > PANELS,
    }
    for name, most in ((axis, MOST_PLACES), (series, MOST_SERIES)):
        text = f"Neighbouring values of {said(name)} share {most} places, named by the middle one."
        parts[text] = bool(name) and len(ok[name].unique()) > most
    return Picture(
        figure, f"Final values by {said(axis)}", sentences(parts), f"{what} by {said(axis)}{lines}."
    )


def panel_figure(names: Sequence[str], below: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with a titled panel per column."""
    figure, columns = panel_grid([[said(name)] for name in names], ACROSS, {"": 1.5})
    for (ax,) in columns:
        ax.set_xlabel(below)
    return figure, [ax for (ax,) in columns]


def coloured(figure: Figure, axes: Sequence[Axes], values: Any, drawn: Any) -> list[Any]:
    """Return a colour for each drawn value, explained on the figure; one colour if there are no values."""
    if values is None:
        return [COLOURS[0]] * len(drawn)
    name = said(values.name)
    if is_number(values):
        known = np.unique(finite(values)[np.isfinite(finite(values))])
        norm = (LogNorm if is_wide(known) else Normalize)(known[0], known[-1])
        bar = figure.colorbar(ScalarMappable(norm, SHADES), ax=axes, aspect=40, pad=0.02, label=name)
        if len(known) <= MOST_SERIES and min(np.diff(norm(known)), default=1) > 0.05:
            bar.set_ticks(list(known), labels=[written(value) for value in known])
            bar.minorticks_off()
        return list(SHADES(norm(np.asarray(drawn, float))))
    texts = [plain(value) for value in drawn]
    found = list(dict.fromkeys(texts))
    palette = COLOURS if len(found) <= len(COLOURS) else SHADES(np.linspace(0, 1, len(found)))
    shade = dict(zip(found, palette, strict=False))
    handles = [Line2D([], [], color=shade[text], label=text) for text in found]
    across = max(1, int(figure.get_figwidth() / (0.6 + 0.07 * max(map(len, found)))))  # in inches
    figure.set_figheight(figure.get_figheight() + 0.16 * (len(found) // across))
    figure.legend(handles=handles, title=name, loc="outside lower center", ncols=across)
    return [shade[text] for text in texts]


def draw_bands(ax: Axes, table: pd.DataFrame, key: str, shades: Mapping[Any, Any], look: str = "-") -> None:
    """Draw median and quartiles over the step for each value of `key`, logarithmic if they span much."""
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
    """Scale an axis of values of a setting: a place for each word, logarithmic for numbers that span much."""
    if is_number(x):
        ax.set_xscale("log" if is_wide(x.to_numpy(float)) else "linear")
        return
    texts = [plain(value) for value in pd.factorize(x, sort=True, use_na_sentinel=False)[1]]
    texts = [text if len(text) <= 20 else f"{text[:19]}…" for text in texts]
    ax.set_xticks(range(len(texts)), texts, rotation=90 if sum(map(len, texts)) > 30 else 0)


def pooled(values: Any, most: int) -> pd.Series:
    """Return the values, or of more than `most` the middle one of the neighbours that each belongs to."""
    if values.nunique() <= most:
        return values
    found, place = np.unique(values.to_numpy(), return_inverse=True)
    bins = np.arange(len(found)) * most // len(found)
    middle = (np.searchsorted(bins, bins) + np.searchsorted(bins, bins, "right") - 1) // 2
    return pd.Series(found[middle][place], values.index, name=values.name)


def has_axis(run: Run, cells: pd.DataFrame) -> bool:
    """Return whether a setting varies that final values can be drawn against."""
    return swept(run)[1] is not None


def is_ok(run: Run) -> np.ndarray:
    """Return for each trial whether it did not diverge."""
    return (run.trials["status"] == "ok").to_numpy()


def left_out(run: Run) -> str:
    """Return a sentence on the trials that diverged."""
    return (
        f"Diverged, and left out: {np.count_nonzero(~is_ok(run)):,} of {counted(len(run.trials), 'trial')}."
    )


def final_names(run: Run) -> list[str]:
    """Return the columns of final values."""
    names = [name for name in run.trials if str(name).startswith(FINAL)]
    return [str(name) for name in names if is_numeric_dtype(run.trials[name])]


def finite(values: Any) -> np.ndarray:
    """Return the numbers in double precision, NaN for those that are not finite."""
    numbers = values.to_numpy(float)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def is_wide(values: np.ndarray, ratio: float = 10) -> bool:
    """Return whether all values are above 0 and the largest is more than so many times the smallest."""
    return bool(len(values)) and bool(np.min(values) > 0) and bool(np.max(values) > ratio * np.min(values))


def is_number(values: Any) -> bool:
    """Return whether a setting is a number, not a word or a truth value."""
    return is_numeric_dtype(values) and not is_bool_dtype(values)


def said(name: Any) -> str:
    """Return a setting or column as a reader says it."""
    return str(name).replace("_", " ")


def plain(value: Any) -> str:
    """Return a value as a figure shows it, without mathematics."""
    return written(value).replace("$", r"\$")
