"""Draw held-out losses of all trials over the steps, with the limit lines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from topicjax.errors import counted
from topicjax.store.reader import Run
from topicjax.theory.document_settings import DATA_SETTINGS

from ..figures.step_panels import (
    ACROSS,
    ENDS,
    HALF,
    LEGEND_LINE,
    MOST_POINTS,
    QUARTILES,
    is_cut_short,
    panel_grid,
    step_axis,
    thinned,
    title_lines,
)
from ..frames import bands, column, owners, varying
from ..maps.layouts import combinations, having
from ..pictures import Picture, described, evenly, label, sentences, style
from ..topic_model import CLASS_COLOURS, LINES, MAIN_SETTINGS, aligned
from .scores import classes_of

LIMITS: dict[str, tuple[str, Any]] = {  # name: (label, line style)
    "uniform": ("uniform over words", (0, (1, 3))),
    "stage1": ("stage 1", (0, (5, 1.5))),
    "stage2": ("stage 2", (0, (4, 1.5, 1, 1.5))),
    "bayes": ("Bayes", "-"),
}
DOTS = (0, (1, 1))  # a limit evaluated on the held-out documents of the trials
HELD_OUT = ("stage1", "stage2")  # limits that can be known on these documents
STRIP = 0.014  # width of the strip that shows the error of a limit, as a share of the panel
DASHES = (0, (2, 1.5))  # the loss with attention forced uniform
LOSSES = ("eval_loss", "eval_loss_uniform")
LOSS_ROWS = {"held-out loss": 1.35, "enlarged": 1.35}  # rows of panels: label, height in inches
MOST_PANELS, MOST_LINES, FEW_LINES = 8, 60, 12  # up to FEW_LINES trials have dashed lines, more a median
DOCUMENTS = "#C2185B"  # limits on the held-out documents
COLOURS = CLASS_COLOURS | {"unfinished": "#BBBBBB", "unscored": "#888888"}  # on white


def loss_curves(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw held-out losses against the step with the limit lines, enlarged below.

    There is one panel per objective, optimizer and data setting that varies: the lines depend on these.
    """
    run = aligned(run)
    names = [*varying(run.trials, DATA_SETTINGS), *MAIN_SETTINGS]
    groups = combinations(run.trials, names)
    shown = [having(run.trials, groups[place]) for place in evenly(len(groups), MOST_PANELS)]
    classes = np.array(classes_of(scores, run.trials["trial_id"].tolist()))
    with style():
        firsts = [", ".join(described(trials.iloc[0], MAIN_SETTINGS)) for trials in shown]
        others = [title_lines(described(trials.iloc[0], names[:-2]), len(shown)) for trials in shown]
        titles = [[first, *other] for first, other in zip(firsts, others, strict=True)]
        figure, columns = panel_grid(titles, ACROSS, LOSS_ROWS)
        drawn = [*map(loss_panels, panel_records(run, classes, shown), shown, columns)]
        loss_legend(figure, set(classes), shown)
    return Picture(
        figure,
        "Held-out loss and limit lines",
        loss_caption(run, len(groups), len(shown), *map(sum, zip(*drawn, strict=True))),
        f"Held-out loss against the step, {counted(len(shown), 'panel')} by {', '.join(map(label, names))};"
        " horizontal lines mark the losses of uniform prediction, stage 1, stage 2 and Bayes.",
    )


def panel_records(run: Run, classes: np.ndarray, shown: Sequence[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield the records of each panel's trials: the row of the trial as trial_id, its class, step, losses."""
    owner = owners(run)
    steps, kinds = pd.unique(run.trajectories["step"].to_numpy()), np.unique(classes)
    for trials in shown:
        is_shown = np.zeros(len(run.trials), bool)
        is_shown[run.trials.index.get_indexer(trials.index)] = True
        rows = np.flatnonzero(is_shown[owner])
        frame = run.trajectories[["step", *LOSSES]].take(rows).assign(trial_id=owner[rows])
        table = thinned(frame, LOSSES, steps)
        kind = np.searchsorted(kinds, classes)[table["trial_id"]]
        yield table.assign(**{"class": pd.Categorical.from_codes(kind, list(kinds))})


def loss_panels(frame: Any, trials: Any, axes: Sequence[Axes]) -> tuple[int, bool]:
    """Draw the losses of one panel in full and enlarged; return how many leave it and if a median ends."""
    loss = column(frame, "eval_loss")
    finite, lines = np.isfinite(loss), line_ranges(trials)
    start, least = loss[finite & (frame["step"] == 0)], loss[finite].min(initial=np.inf)
    ends = np.array(
        [*(value for value, _, _ in lines.values()), *np.sort(start)[len(start) // 2 :][:1], least]
    )
    ends = ends[np.isfinite(ends)] if np.isfinite(ends).any() else np.array([0.0, 1.0])
    margin = 0.04 * np.ptp(ends) or 0.5
    full = (ends.min() - margin, ends.max() + margin)
    ends = False
    for name, records in frame.groupby("class", observed=True):
        ends |= draw_losses(records, axes, COLOURS[str(name)], len(trials))
    for ax, limits in zip(axes, (full, enlarged(lines, least, full)), strict=True):
        for place, (name, (value, low, high)) in enumerate(lines.items(), 1):
            ax.axhline(value, color="black", linestyle=LIMITS[name][1], linewidth=0.8, zorder=3)
            # A strip at the right edge: across the panel the ranges of all limits would cover the curves.
            right = 1 - STRIP * (len(lines) - place)
            ax.axhspan(low, high, right - 0.8 * STRIP, right, color="0.55", linewidth=0, zorder=2.5)
        for value in held_out(trials).values():
            ax.axhline(value, color=DOCUMENTS, linestyle=DOTS, linewidth=1.0, zorder=3)
        ax.set_ylim(*limits)
        step_axis(ax, frame["step"])
    return len(frame["trial_id"][~(loss <= full[1])].unique()), ends


def line_ranges(trials: pd.DataFrame) -> dict[str, tuple[float, float, float]]:
    """Compute for each limit its mean over the trials, and low and high: two standard errors and the spread.

    The error combines that of the line and, where known, that of a mean over the held-out documents.
    """
    lines = {}
    for name in LINES:
        value, own = column(trials, f"line_{name}"), np.nan_to_num(column(trials, f"line_{name}_se"))
        error = 2 * np.hypot(own, np.nan_to_num(optional(trials, f"held_out_{name}_se")))
        if np.isfinite(value).any():
            lines[name] = (np.nanmean(value), np.nanmin(value - error), np.nanmax(value + error))
    return lines


def held_out(trials: pd.DataFrame) -> dict[str, float]:
    """Average the limits known on the held-out documents over the trials."""
    values = {name: optional(trials, f"held_out_{name}") for name in HELD_OUT}
    return {name: float(np.nanmean(value)) for name, value in values.items() if np.isfinite(value).any()}


def optional(trials: pd.DataFrame, name: str) -> np.ndarray:
    """Read a column that not every run has; NaN without it."""
    return column(trials, name) if name in trials else np.full(len(trials), np.nan)


def enlarged(lines: Mapping[str, Sequence[float]], least: float, full: tuple) -> tuple[float, float]:
    """Choose a range around both stages and losses not far below them; the full range without lines."""
    stage1, stage2 = (lines.get(name, [np.nan])[0] for name in ("stage1", "stage2"))
    low = max(min(stage2, least), stage1 - 4 * (stage1 - stage2))
    span = stage1 - low
    return (low - 0.15 * span, stage1 + 0.75 * span) if 0 < span < np.inf else full


def draw_losses(frame: Any, axes: Sequence[Axes], colour: str, trials: int) -> bool:
    """Draw the trials of one class as lines or, in a panel of many trials, as median and quartiles.

    Return whether a median ends before its last trial does.
    """
    ends = False
    starts = np.flatnonzero(frame["trial_id"].to_numpy()[1:] != frame["trial_id"].to_numpy()[:-1]) + 1
    for name, line, width, most in zip(
        LOSSES, ("-", DASHES), (0.8, 0.5), (MOST_LINES, FEW_LINES), strict=True
    ):
        if trials <= most or len(starts) < 3:
            tables = np.split(frame[["step", name]].to_numpy(float), starts)
            segments = [table[np.isfinite(table).all(axis=1)] for table in tables]
            look: dict[str, Any] = dict(colors=colour, linewidths=width, linestyles=[line], alpha=0.75)
            for ax in axes:
                ax.add_collection(LineCollection(segments, **look), autolim=False)
            continue
        band = bands(frame, name, least=HALF)
        ends |= is_cut_short(band)
        band = band.loc[band["q50"].notna()]
        for ax in axes:
            ax.plot(band["step"], band["q50"], color=colour, linestyle=line, linewidth=1.4 * width)
            if line == "-":
                ax.fill_between(band["step"], band["q25"], band["q75"], color=colour, alpha=0.25, linewidth=0)
    return ends


def loss_legend(figure: Figure, classes: set[str], shown: Sequence[pd.DataFrame]) -> None:
    """Explain colours and lines below the panels of these trials."""
    trials = pd.concat(shown)
    named = [name for name in COLOURS if name in classes]
    handles: list[Any] = [Line2D([], [], color=COLOURS[name], label=name) for name in named]
    others = {"the same, attention forced uniform": ("#666666", DASHES)}
    known = line_ranges(trials)
    others |= {f"limit: {text}": ("black", line) for name, (text, line) in LIMITS.items() if name in known}
    others |= {"limit on these held-out documents": (DOCUMENTS, DOTS)} if held_out(trials) else {}
    for text, (colour, line) in others.items():
        handles.append(Line2D([], [], color=colour, linewidth=0.9, linestyle=line, label=text))
    handles += [Patch(fc="0.55", lw=0, label="right edge: limit ± two standard errors")] if known else []
    if max(map(len, shown)) > MOST_LINES:
        handles.append(QUARTILES)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * max(0, -(-len(handles) // ACROSS) - 4))
    figure.legend(handles=handles, loc="outside lower center", ncols=ACROSS)


def loss_caption(run: Run, panels: int, shown: int, clipped: int, ends: int) -> str:
    """Say what is drawn and what is not."""
    trials, without = len(run.trials), np.isnan(column(run.trials, "line_stage1")).sum()
    diverged = (run.trials["status"] == "diverged").to_numpy().sum()
    parts = {
        f"Held-out loss of {counted(trials, 'trial')} (cross-entropy in nats, squared loss summed over"
        " words); the lower row enlarges the range of both stages.": True,
        f"{shown} of {panels} settings are drawn, evenly spaced.": shown < panels,
        "Black: limits of the data, namely uniform over words, stage 1 (best loss with uniform attention), "
        "stage 2 (best topical attention on top, W^V kept: training both can go lower) and Bayes; grey "
        "strips at the right edge: two standard errors and any spread over trials, in this "
        "order.": without < trials,
        "Dotted: the models of stage 1 and stage 2 on the trials' own held-out documents; the grey range"
        " includes the error of a mean over these documents.": held_out(run.trials),
        ENDS: ends,
        f"Thin lines: trials; where a panel has more than {MOST_LINES}, median and quartiles of each class."
        " Dashed: the same weights with attention forced uniform, as a median for more than"
        f" {FEW_LINES} trials.": True,
        f"More than {MOST_POINTS} records are drawn as medians over bins of steps.": (
            len(run.trajectories["step"].unique()) > MOST_POINTS
        ),
        f"Trials that go above the range or become non-finite: {clipped}.": clipped,
        f"Diverged (not finite at the end): {diverged}.": diverged,
        f"Trials without limit lines: {without}.": without,
    }
    return sentences(parts)
