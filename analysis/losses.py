"""What the loss says: curves against the limit lines, and the stages of one trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, NullLocator

from analysis.frames import DATA_SETTINGS, LINES, Run, bands
from analysis.pictures import CLASS_COLOURS, PART_COLOURS, WIDTH, Picture, label, style
from analysis.scores import Array, Cuts, Records, loss_split, monotone, numbers, trains_value
from analysis.stages import CLASSES, CUTS, score_trials

LIMITS: dict[str, tuple[str, Any]] = {  # name: label and line
    "uniform": ("uniform over words", (0, (1, 1.5))),
    "stage1": ("stage 1", (0, (5, 1.5))),
    "stage2": ("stage 2", (0, (4, 1.5, 1, 1.5))),
    "bayes": ("Bayes", "-"),
}
DASHES = (0, (2, 1.5))  # the loss with attention forced uniform
LOSSES = ("eval_loss", "eval_loss_uniform")
LOSS_ROWS = {"held-out loss": 1.35, "enlarged": 1.35}  # label: height in inches
MOST_PANELS, MOST_LINES, FEW_LINES = 16, 60, 12  # FEW_LINES: dashes of each trial, not their median
MOST_POINTS = 250  # of a line; more records are drawn as medians over windows of steps
INTERVALS = 15  # more record intervals than this: steps on a logarithmic axis
TITLE_SIZE, TITLE_LINE = 6.5, 0.115  # points, and inches a line
NO_CLASS = "trials"
COLOURS = CLASS_COLOURS | {"unscored": "#888888", NO_CLASS: "#0072B2"}  # as lines on white
Columns = list[list[Axes]]


@dataclass(frozen=True)
class Stages:
    """One trial in the loss view: its scores, its progress, and where its first stage ends."""

    trial: Any  # its row of score_trials
    progress: dict[str, Array]  # step, P, Q, and their monotone fits F_V, F_A; NaN if frozen or diverged
    boundary: float  # the first step that attains Theta; NaN without a Theta


def stages_of(run: Run, trial_id: str, cuts: Cuts = CUTS) -> Stages:
    """Return progress and stage boundary of one trial."""
    one = select(run, [trial_id])
    trial: Any = score_trials(one, cuts).iloc[0]
    records = Records.of(one.trajectories["step"].to_numpy())
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        split = loss_split(records, one.trajectories, one.trials, cuts)
        F_V, F_A = monotone(records, split.value), monotone(records, split.attention)
    is_ok = trial["class"] != "diverged"
    of_value = np.nan if not (is_ok and trains_value(one.trials)[0]) else 1.0
    of_attention = np.nan if not (is_ok and trial["attention"] == "trained") else 1.0
    progress = dict(step=records.step, P=of_value * split.value, F_V=of_value * F_V)
    progress |= dict(Q=of_attention * split.attention, F_A=of_attention * F_A)
    has_theta = np.isfinite(trial["theta"])
    return Stages(trial, progress, boundary(records.step, F_V, F_A) if has_theta else np.nan)


def select(run: Run, trial_ids: Sequence[str]) -> Run:
    """Return the run with these trials only, in its own order."""
    unknown = sorted(set(trial_ids) - set(run.trials["trial_id"]))
    if unknown:
        raise ValueError(f"{run.name} has no finished trial {unknown[0]!r}; allowed: ids in its trials")
    frames = [frame[frame["trial_id"].isin(trial_ids)] for frame in (run.trials, run.trajectories)]
    trials, trajectories = (pd.DataFrame(frame.reset_index(drop=True)) for frame in frames)
    return replace(run, trials=trials, trajectories=trajectories)


def boundary(step: Array, F_V: Array, F_A: Array) -> float:
    """Return the first step where min(F_V, 1 - F_A) is Theta: F_V + F_A gets to 1, or F_V to its end."""
    total = F_V + F_A - 1
    reached = np.flatnonzero(total >= 0)
    if not len(reached):
        return float(step[np.searchsorted(F_V, F_V[-1])])
    row = reached[0]
    share = total[row - 1] / (total[row - 1] - total[row])
    return float(step[row - 1] + share * (step[row] - step[row - 1]))


def progress_panel(stages: Stages, ax: Axes) -> Axes:
    """Draw the progress of V and of attention: thin as measured, thick the monotone fits."""
    curves = stages.progress
    for raw, fit, part, name in (("P", "F_V", "norm_v", "V"), ("Q", "F_A", "norm_k", "attention")):
        if np.isfinite(curves[fit]).any():
            ax.plot(curves["step"], curves[raw], color=PART_COLOURS[part], linewidth=0.6, alpha=0.5)
            ax.plot(curves["step"], curves[fit], color=PART_COLOURS[part], label=f"progress of {name}")
    if np.isfinite(stages.boundary):
        look: dict[str, Any] = dict(color="black", markersize=3.5, clip_on=False, zorder=4, label="Θ")
        ax.plot(stages.boundary, stages.trial["theta"], "o", **look)
    if not np.isfinite([curves["F_V"], curves["F_A"]]).any():
        reason = "diverged" if stages.trial["class"] == "diverged" else "no limit lines"
        ax.text(0.5, 0.5, f"{reason}: no score", transform=ax.transAxes, ha="center", va="center")
    ax.set_ylim(-0.08, 1.12)
    return ax


def mark(stages: Stages, ax: Axes) -> Axes:
    """Mark the stage boundary and the onsets of V and of attention."""
    marks = {
        "stage boundary": (stages.boundary, "black", "-"),
        "onset of V (half way)": (stages.trial["onset_v"], PART_COLOURS["norm_v"], ":"),
        "onset of attention (half way)": (stages.trial["onset_attention"], PART_COLOURS["norm_k"], ":"),
    }
    for text, (step, colour, line) in marks.items():
        if np.isfinite(step):
            ax.axvline(step, color=colour, linestyle=line, linewidth=0.9, zorder=1, label=text)
    return ax


def step_axis(ax: Axes, step: Any) -> Axes:
    """Scale an axis of steps: logarithmic from the first record on if there are many records."""
    steps = np.unique(np.asarray(step, float))
    first, last = steps[steps > 0].min(initial=np.inf), steps.max()
    ax.set_xlim(0, max(last, 1))
    if last > INTERVALS * first:
        ax.set_xscale("symlog", linthresh=first, linscale=0.4)
        ax.set_xlim(0, last)
        decades = 10.0 ** np.arange(np.ceil(np.log10(1.5 * first)), np.log10(last) + 1e-9)
        ax.set_xticks([0, *decades])
        ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    return ax


def thinned(frame: Any, names: Sequence[str]) -> pd.DataFrame:
    """Return these columns with at most MOST_POINTS records a trial: medians over windows of log step."""
    step = numbers(frame, "step")
    if len(np.unique(step)) > MOST_POINTS:
        first, last = step[step > 0].min(), step.max()
        place = np.log(np.maximum(step, first) / first) / np.log(last / first)
        window = np.where(step > 0, 1 + np.floor((MOST_POINTS - 2) * place), 0)
        groups = frame.assign(window=window).groupby(["trial_id", "window"], sort=False)
        frame = groups[["step", *names]].median().reset_index()
    return frame[["trial_id", "step", *names]].copy()


def varying(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return those of the settings that take more than one value."""
    return [name for name in names if name in frame and len(frame[name].unique()) > 1]


def describe(row: Any, names: Sequence[str]) -> list[str]:
    """Return each of these settings as a reader says it."""
    values = {name: row[name] for name in names}
    texts = {name: f"{x:.3g}" if isinstance(x, float) else label(x) for name, x in values.items()}
    alone = ("optimizer", "objective")
    return [text if name in alone else f"{label(name)} {text}" for name, text in texts.items()]


def panel_grid(
    titles: Sequence[Sequence[str]], across: int, rows: Mapping[str, float]
) -> tuple[Figure, Columns]:
    """Return a figure with a column of panels under each title; rows have a label and a height."""
    across = min(across, len(titles))
    lines, heights = -(-len(titles) // across), list(rows.values())
    height = sum(heights) + 0.4 + TITLE_LINE * max(map(len, titles))
    figure = Figure(figsize=(WIDTH if len(titles) > 1 else 0.7 * WIDTH, lines * height + 0.9))
    grid = figure.subplots(lines * len(rows), across, squeeze=False, height_ratios=heights * lines)
    columns = [list(part) for line in np.split(grid, lines) for part in line.T]
    for ax in (ax for axes in columns[len(titles) :] for ax in axes):
        ax.remove()
    for number, (title, axes) in enumerate(zip(titles, columns, strict=False)):
        for ax, name in zip(axes, rows, strict=True):
            ax.set_ylabel("" if number % across else name)
            ax.tick_params(labelbottom=ax is axes[-1])
        axes[0].set_title("\n".join(title), fontsize=TITLE_SIZE)
        axes[-1].set_xlabel("step")
    figure.align_ylabels(grid[:, 0])
    return figure, columns[: len(titles)]


def loss_curves(run: Run, scores: pd.DataFrame | None = None) -> Picture:
    """Return held-out losses against the step with the limit lines, enlarged below.

    One panel per objective, optimizer and data setting that varies: the lines depend on these.
    """
    names = [*varying(run.trials, DATA_SETTINGS), "objective", "optimizer"]
    groups = [rows for _, rows in run.trials.groupby(names, dropna=False)]
    places = np.linspace(0, len(groups) - 1, min(len(groups), MOST_PANELS)).astype(int)
    shown = [groups[place] for place in places]
    kinds = len(run.trials[["objective", "optimizer"]].drop_duplicates())
    classes = {} if scores is None else dict(zip(scores["trial_id"], scores["class"], strict=True))
    table = thinned(run.trajectories, LOSSES)
    table["kind"] = [classes.get(name, NO_CLASS) for name in table["trial_id"]]
    with style():
        firsts = [", ".join(describe(trials.iloc[0], ("optimizer", "objective"))) for trials in shown]
        others = [describe(trials.iloc[0], names[:-2]) for trials in shown]
        titles = [[first, *other] for first, other in zip(firsts, others, strict=True)]
        figure, columns = panel_grid(titles, kinds if 1 < kinds < len(shown) else 4, LOSS_ROWS)
        tables = [table[table["trial_id"].isin(trials["trial_id"])] for trials in shown]
        clipped = sum(map(loss_panels, tables, shown, columns))
        loss_legend(figure, set(table["kind"]))
    return Picture(
        figure,
        f"{run.name}: held-out loss and limit lines",
        loss_caption(run, len(groups), len(shown), clipped),
        f"Held-out loss against the step, {len(shown)} panels by {', '.join(map(label, names))};"
        " horizontal lines mark the losses of uniform prediction, stage 1, stage 2 and Bayes.",
    )


def loss_panels(frame: Any, trials: Any, axes: Sequence[Axes]) -> int:
    """Draw the losses of one panel in full and enlarged; return how many trials leave the full range."""
    loss = numbers(frame, "eval_loss")
    finite, lines = np.isfinite(loss), limit_lines(trials)
    start, least = loss[finite & (frame["step"] == 0)], loss[finite].min(initial=np.inf)
    ends = np.array(
        [*(value for value, _, _ in lines.values()), *np.sort(start)[len(start) // 2 :][:1], least]
    )
    ends = ends[np.isfinite(ends)] if np.isfinite(ends).any() else np.array([0.0, 1.0])
    margin = 0.04 * np.ptp(ends) or 0.5
    full = (ends.min() - margin, ends.max() + margin)
    for ax, limits in zip(axes, (full, enlarged(lines, least, full)), strict=True):
        for kind, rows in frame.groupby("kind"):
            draw_losses(rows, ax, COLOURS[str(kind)], len(trials))
        for name, (value, low, high) in lines.items():
            ax.axhline(value, color="black", linestyle=LIMITS[name][1], linewidth=0.8, zorder=3)
            ax.axhspan(low, high, color="black", alpha=0.15, linewidth=0, zorder=1)
        ax.set_ylim(*limits)
        step_axis(ax, frame["step"])
    return len(frame["trial_id"][~(loss <= full[1])].unique())


def limit_lines(trials: pd.DataFrame) -> dict[str, tuple[float, float, float]]:
    """Return per limit its mean over the trials, low and high: two standard errors and the spread."""
    lines = {}
    for name in LINES:
        value, error = numbers(trials, f"line_{name}"), 2 * np.nan_to_num(numbers(trials, f"line_{name}_se"))
        if np.isfinite(value).any():
            lines[name] = (np.nanmean(value), np.nanmin(value - error), np.nanmax(value + error))
    return lines


def enlarged(lines: Mapping[str, Sequence[float]], least: float, full: tuple) -> tuple[float, float]:
    """Return the range around stage 1 and what trials reached below it; the full one without lines."""
    low = min(lines.get("stage2", [np.inf])[0], least)
    span = lines.get("stage1", [np.nan])[0] - low
    return (low - 0.15 * span, low + 1.5 * span) if 0 < span < np.inf else full


def draw_losses(frame: Any, ax: Axes, colour: str, trials: int) -> Axes:
    """Draw the trials of one class in a panel of so many: lines, or median and quartiles."""
    is_few = len(frame["trial_id"].unique()) < 4
    for name, line, width, most in zip(
        LOSSES, ("-", DASHES), (0.8, 0.5), (MOST_LINES, FEW_LINES), strict=True
    ):
        if trials <= most or is_few:
            tables = [rows[["step", name]].to_numpy(float) for _, rows in frame.groupby("trial_id")]
            segments = [table[np.isfinite(table).all(axis=1)] for table in tables]
            look: dict[str, Any] = dict(colors=colour, linewidths=width, linestyles=[line], alpha=0.75)
            ax.add_collection(LineCollection(segments, **look), autolim=False)
            continue
        band = bands(frame, name)
        ax.plot(band["step"], band["q50"], color=colour, linestyle=line, linewidth=1.4 * width)
        if line == "-":
            ax.fill_between(band["step"], band["q25"], band["q75"], color=colour, alpha=0.25, linewidth=0)
    return ax


def loss_legend(figure: Figure, kinds: set[str]) -> None:
    """Explain colours and lines below the panels."""
    named = [name for name in (*CLASSES, NO_CLASS) if name in kinds]
    handles = [Line2D([], [], color=COLOURS[name], label=name) for name in named]
    others = {"uniform attention": ("#666666", DASHES)}
    others |= {f"limit: {text}": ("black", line) for text, line in LIMITS.values()}
    for text, (colour, line) in others.items():
        handles.append(Line2D([], [], color=colour, linewidth=0.8, linestyle=line, label=text))
    figure.legend(handles=handles, loc="outside lower center", ncols=4)


def loss_caption(run: Run, panels: int, shown: int, clipped: int) -> str:
    """Return what is drawn and what is not."""
    trials, without = len(run.trials), np.isnan(numbers(run.trials, "line_stage1")).sum()
    diverged = (run.trials["status"] == "diverged").to_numpy().sum()
    is_thinned = len(run.trajectories["step"].unique()) > MOST_POINTS
    sentences = {
        f"Held-out loss of {trials} trials against the step: cross-entropy in nats, squared loss summed over"
        " words. The lower row enlarges what lies around and below the stage-1 line.": True,
        f"{shown} of {panels} panels are drawn, evenly spaced over the settings.": shown < panels,
        "Black: limits of the data, namely uniform over words, stage 1 (best loss with uniform attention),"
        " stage 2 (best topical attention on top of it) and Bayes; grey bands: two standard errors and any"
        " spread over trials. Held-out documents are a sample: a loss can lie below its limit.": without
        < trials,
        f"Panels of up to {MOST_LINES} trials show each as a thin line, others median and quartiles of each"
        " class. Dashed: the same weights with attention forced uniform, each trial in panels of up to"
        f" {FEW_LINES}, the median of a class in others.": True,
        f"More than {MOST_POINTS} records are drawn as medians over windows of steps.": is_thinned,
        f"Trials that leave the range upwards or stop being finite: {clipped}.": clipped,
        f"Diverged, not finite at the end: {diverged}.": diverged,
        f"Trials without limit lines: {without}.": without,
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds)
