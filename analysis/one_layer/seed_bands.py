"""Medians and quartiles over seeds: norms with their order parameters, and how fast W^V turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..figures.step_panels import (
    ACROSS,
    ENDS,
    HALF,
    QUARTILES,
    TITLE_SIZE,
    panel_grid,
    shared_legend,
    step_axis,
    title_lines,
)
from ..frames import bands, column, varying
from ..pictures import SMALL, Picture, counted, described, label, sentences, style
from ..topic_model import MAIN_SETTINGS, PART_COLOURS, SETTINGS, aligned, settings_in
from .cells import cell_settings, majority
from .example_trials import ranked_trials
from .norm_panels import (
    NORMS,
    ORDER,
    TURNING,
    draw,
    drawable,
    norm_panel,
    order_panel,
)
from .stages import classes_of
from .trajectories import LEGEND, ROWS, UNITS, remarks

MOST_CELLS = 6
TURNING_ROWS = {"rotation of $W^V$": 1.3, "norm / max": 1.0}  # of panels: label, height in inches
SETTLED = 0.1  # W^V has settled where its rotation stays below this share of its largest
SETTLES = "rotation below a tenth of its largest from here on"
DEGREES = (10.0, 1.0, 0.1)  # lines to read the rotation by
TURNING_WORDS = (
    "Rotation: (1 - cos)/2 between W^V and itself ten steps before, on a logarithmic scale (the paper's"
    " Figure 5); grey lines say which angle that is."
)


@dataclass(frozen=True)
class Cells:
    """The cells that a figure shows, of how many, and what tells them apart."""

    run: Run
    names: list[str]
    shown: list[pd.DataFrame]  # their trials
    classes: list[str]  # the most frequent of each
    count: int

    @classmethod
    def of(cls, run: Run, scores: pd.DataFrame, by: Sequence[str] | None) -> "Cells":
        """Return up to MOST_CELLS cells, those of the clearest trials.

        A cell has equal values of `by`, by default of every setting that varies but the seed.
        """
        run = aligned(run)
        names = varying(run.trials, cell_settings(run.trials)) if by is None else list(by)
        allowed = settings_in(run.trials)
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise UserError(f"unknown setting {unknown[0]!r} for cells; allowed: {', '.join(allowed)}")
        cell = cell_of(run, names)
        chosen = telling_cells(run, scores, cell)
        kinds = majority(cell, np.array(classes_of(scores, run.trials["trial_id"].tolist())))[0]
        shown = [run.trials.loc[cell == number] for number in chosen]
        return cls(run, names, shown, [kinds[number] for number in chosen], int(cell.max()) + 1)

    @property
    def titles(self) -> list[list[str]]:
        """The class and the settings of each cell, on lines."""
        several = self.names or MAIN_SETTINGS
        texts = [title_lines(described(own.iloc[0], several), len(self.shown)) for own in self.shown]
        return [[kind, *lines] for kind, lines in zip(self.classes, texts, strict=True)]

    @property
    def marks(self) -> list[Patch]:
        """What the legend says of bands, if there are any."""
        return [QUARTILES] if max(map(len, self.shown)) > 1 else []

    def quartiles(self) -> list[pd.DataFrame]:
        """Return for each cell the medians and quartiles of what is drawn, by step."""
        ids = (own["trial_id"].tolist() for own in self.shown)
        return [quartiles(drawable(self.run.select(own))) for own in ids]

    def caption(self, frames: Sequence[pd.DataFrame], words: str, more: dict[str, bool]) -> str:
        """Return what is drawn, over what the quartiles are taken, and what is not drawn."""
        several = varying(self.run.trials, SETTINGS)
        pooled = [label(name) for name in several if name not in self.names] or ["seed"]
        sizes, own = sorted({len(cell) for cell in self.shown}), pd.concat(self.shown)
        span = counted(sizes[0], "trial") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} trials"
        diverged = (own["status"] == "diverged").to_numpy().sum()
        parts = {
            f"Lines are medians and bands quartiles over {', '.join(pooled)}, {span} each.": sizes[-1] > 1,
            "Each line is a trial.": sizes[-1] == 1,
            f"Drawn are {len(self.shown)} of {self.count} settings: those of the clearest trials of each"
            " class, two-stage first.": self.count > len(self.shown),
            words: True,
            f"Of these trials {diverged} diverged; values that are not finite are left out.": diverged,
            ENDS: any((frame["trials"] < HALF * frame["trials"].max()).any() for frame in frames),
            **more,
        }
        return sentences(parts)


def norm_bands(run: Run, scores: pd.DataFrame, by: Sequence[str] | None = None) -> Picture:
    """Return norms and order parameters of some cells, median and quartiles over their trials."""
    cells = Cells.of(run, scores, by)
    frames = cells.quartiles()
    with style():
        figure, columns = panel_grid(cells.titles, ACROSS, dict(list(ROWS.items())[:2]))
        for frame, axes in zip(frames, columns, strict=True):
            for ax in (norm_panel(frame, axes[0]), order_panel(frame, axes[1])):
                step_axis(ax, frame["step"])
        shared_legend(figure, columns, LEGEND, cells.marks)
    return Picture(
        figure,
        "Norms and order parameters over seeds",
        cells.caption(frames, UNITS, remarks(pd.concat(cells.shown), columns)),
        f"Norms of the weights and order parameters against the step for {counted(len(frames), 'setting')},"
        " medians with bands of quartiles.",
    )


def rotation(run: Run, scores: pd.DataFrame, by: Sequence[str] | None = None) -> Picture:
    """Return how fast W^V turns in some cells, median and quartiles over their trials, above its norm."""
    if not (turns := turning(run)).any():
        raise UserError("no trial has a rotation of W^V; needed: a trained W^V and the column rotation_v")
    cells = Cells.of(run.select(run.trials.loc[turns, "trial_id"].tolist()), scores, by)
    frames = cells.quartiles()
    with style():
        figure, columns = panel_grid(cells.titles, ACROSS, TURNING_ROWS)
        for frame, axes in zip(frames, columns, strict=True):
            for ax in (rotation_panel(frame, axes[0]), norm_panel(frame, axes[1])):
                settled = settling_step(frame)
                if np.isfinite(settled):
                    ax.axvline(settled, color="black", ls=":", lw=0.9, label=SETTLES)
                step_axis(ax, frame["step"])
            axes[1].set_xlabel(f"step\n{axes[1].get_xlabel()}", fontsize=TITLE_SIZE)
        share_limits([axes[0] for axes in columns])
        shared_legend(figure, columns, (label(TURNING), *LEGEND, SETTLES), cells.marks)
    steps = [settling_step(frame) for frame in frames]
    never = sum(np.isnan(step) for step in steps)
    more = {f"In {counted(never, 'setting')} W^V does not settle before training ends.": never > 0}
    return Picture(
        figure,
        "How fast W^V turns",
        cells.caption(frames, TURNING_WORDS, more),
        f"Rotation of W^V in ten steps, and norms, against the step for {counted(len(frames), 'setting')},"
        " medians with bands of quartiles.",
    )


def turning(run: Run) -> np.ndarray:
    """Return for each trial whether the rotation of a trained W^V was recorded."""
    if TURNING not in run.trajectories:
        return np.zeros(len(run.trials), bool)
    known = run.trajectories.loc[run.trajectories[TURNING] > 0, "trial_id"].unique()
    return (run.trials["trial_id"].isin(known) & (run.trials["value"] == "trained")).to_numpy()


def rotation_panel(frame: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the rotation of W^V on a logarithmic axis, with lines at some angles."""
    draw(frame, ax, TURNING, 1.0, color=PART_COLOURS["norm_v"], label=label(TURNING))
    ax.set_yscale("log")
    ax.yaxis.set_minor_locator(NullLocator())
    for angle in DEGREES:
        height = np.sin(np.radians(angle) / 2) ** 2  # (1 - cos)/2
        ax.axhline(height, color="0.75", lw=0.6, zorder=0)
        look: dict[str, Any] = dict(fontsize=SMALL, color="0.35", va="bottom", annotation_clip=True)
        ax.annotate(f"{angle:g}°", (0.01, height), xycoords=("axes fraction", "data"), **look)
    return ax


def share_limits(axes: Sequence[Axes]) -> None:
    """Give the panels one range: that of all their curves."""
    curves = [np.asarray(ax.lines[0].get_ydata(), float) for ax in axes if ax.lines]
    values = np.concatenate(curves)
    values = values[np.isfinite(values) & (values > 0)]
    for ax in axes:
        ax.set_ylim(values.min() / 2, min(1.0, 2 * values.max()))


def settling_step(frame: pd.DataFrame) -> float:
    """Return the step from which on the median rotation stays below SETTLED of its largest; NaN if never."""
    values, steps = column(frame, TURNING), column(frame, "step")
    known = np.isfinite(values)
    values, steps = values[known], steps[known]
    above = np.flatnonzero(values >= SETTLED * values.max(initial=0))
    after = above[-1] + 1 if len(above) else 0
    return float(steps[after]) if after < len(values) else np.nan


def telling_cells(run: Run, scores: pd.DataFrame, cell: np.ndarray) -> list[int]:
    """Return the cells in the order of their most telling trials, at most MOST_CELLS of them."""
    place = dict(zip(run.trials["trial_id"].tolist(), cell.tolist(), strict=True))
    found: dict[int, None] = {}
    for trial_id in ranked_trials(scores.loc[scores["trial_id"].isin(run.trials["trial_id"])]):
        found[place[trial_id]] = None
        if len(found) == MOST_CELLS:
            break
    return list(found)


def cell_of(run: Run, names: Sequence[str]) -> np.ndarray:
    """Return the number of each trial's cell, in the order of their settings."""
    if not names:
        return np.zeros(len(run.trials), int)
    return run.trials.groupby(list(names), dropna=False).ngroup().to_numpy()


def quartiles(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per step: the median of each column, its quartiles as _low and _high, and the trials."""
    columns = {}
    for name in (*NORMS, *ORDER, TURNING):
        band = bands(frame, name, least=HALF)
        columns |= {"step": band["step"], name: band["q50"]}
        columns |= {f"{name}_low": band["q25"], f"{name}_high": band["q75"]}
    return pd.DataFrame(columns).assign(trials=frame.groupby("step").size().to_numpy())
