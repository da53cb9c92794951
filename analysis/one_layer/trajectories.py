"""Draw norms, order parameters and progress over the steps (the paper's Figure 4), and the rotation of W^V.

`figure4` draws single trials, `norm_bands` and `rotation` medians and quartiles over the trials of a cell.
Norms are drawn as shares of their own maxima, the unit of the norm view: those of W^V and W^K may differ by
a factor of forty.  The value's order parameters are divided by Theorem 2's v_block for the squared loss, to
which the theorem applies, and drawn as logits for cross-entropy.  So they share an axis with a_topic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from topicjax.errors import UserError, counted
from topicjax.store.reader import Run
from topicjax.theory.progress import CUTS, Cuts

from ..figures.step_panels import (
    ACROSS,
    ENDS,
    HALF,
    QUARTILES,
    TITLE_SIZE,
    Columns,
    panel_grid,
    shared_legend,
    step_axis,
    thinned,
    title_lines,
)
from ..frames import cell_of_rows, column, owners, varying
from ..maps.cells import majority
from ..pictures import SMALL, Picture, described, label, sentences, style
from ..topic_model import MAIN_SETTINGS, PART_COLOURS, SETTINGS, aligned, settings_in
from .cells import cell_settings
from .example_trials import example_trials, ranked_trials
from .scores import CLASSES, VIEWS, TrialStages, classes_of, scores_of, stages_of, theorem2_block

VALUE, ATTENTION, MASK = PART_COLOURS["norm_v"], PART_COLOURS["norm_k"], "#CC79A7"
NORMS = {"norm_v": "-", "norm_k": "-", "norm_q": (0, (3, 2)), "norm_e": "-"}  # K and Q often coincide
ORDER = {  # column: (label, colour, line style, column whose size it must approach to be drawn)
    "v_block": ("V: same - other topic", VALUE, "-", ""),
    "a_topic": ("attention: same - other topic", ATTENTION, "-", ""),
    "v_diag": ("V: own word - same topic", VALUE, "--", "v_block"),
    "a_self": ("attention: own word - same topic", ATTENTION, "--", "a_topic"),
    "a_mask": ("attention of [MASK]: words - [MASK]", MASK, "-.", "a_topic"),
}
TURNING = "rotation_v"  # of W^V, in ten steps
GROWN = 1.05  # a norm whose maximum is less than this times its initial value has not grown
FLAT: dict[str, Any] = dict(linewidth=0.6, alpha=0.4)
WORTH, LEAST = 0.25, 0.1  # least size to be drawn: relative to its companion, and in its own unit
TITLE_SETTINGS = (*MAIN_SETTINGS, "key_visibility", "learning_rate", "init_scale")
TITLE_LINES = 3  # of settings; the caption has the rest
ROWS = {"norm / max": 1.1, "order parameter": 1.2, "progress": 1.0}  # rows of panels: label, height in inches
MOST_TRIALS = 8
UNITS = (
    "Norms are shares of their maxima, given below. Order parameters are differences of means: of the value"
    " matrix (in units of Theorem 2's for squared loss, logits for cross-entropy) and of attention scores;"
    " those of own words and [MASK] are drawn only where they reach a quarter of the topical ones."
)
PROGRESS = (
    "Progress: of V, the drop of the loss under uniform attention towards stage 1; of attention, its gain"
    " in units of stage 1 - stage 2; thick: monotone fits. Black: the first step at which min(progress of V,"
    " 1 - progress of attention) reaches its maximum, Θ."
)
AS_MEASURED = Line2D([], [], color="0.5", linewidth=0.6, label="thin: progress as measured")
LEGEND = (
    *(label(name) for name in NORMS),
    *(text for text, *_ in ORDER.values()),
    *("progress of V", "progress of attention", "Θ", "stage boundary"),
    *("onset of V (half way)", "onset of attention (half way)"),
)
RULE = (
    " chosen by rule, the clearest of each class (no small change of a cut changes its class);"
    " two-stage first, then the most frequent classes"
)
MOST_CELLS = 6
TURNING_ROWS = {"rotation of $W^V$": 1.3, "norm / max": 1.0}  # rows of panels: label, height in inches
STEADY = 0.1  # W^V is steady once its rotation stays below this share of its maximum
SETTLES = "rotation below a tenth of its maximum from here on"
DEGREES = (10.0, 1.0, 0.1)  # angles of the guide lines
TURNING_WORDS = (
    "Rotation: (1 - cos)/2 between W^V now and ten steps earlier, on a logarithmic scale (the paper's"
    " Figure 5); grey lines mark angles."
)


def figure4(
    run: Run, scores: pd.DataFrame, trial_ids: Sequence[str] | None = None, cuts: Cuts = CUTS
) -> Picture:
    """Draw norms, order parameters and progress of some trials, by default of `example_trials`."""
    chosen = example_trials(scores) if trial_ids is None else list(trial_ids)
    if not 0 < len(chosen) <= MOST_TRIALS:
        raise UserError(f"{len(chosen)} trials for one figure; allowed: 1 to {MOST_TRIALS}")
    drawn = aligned(run.select(chosen))
    names = list(dict.fromkeys([*TITLE_SETTINGS, *varying(run.trials, SETTINGS)]))
    own = [scores_of(scores, trial_id) for trial_id in chosen]
    texts = [title_lines(described(score, names), len(own)) for score in own]
    with style():
        titles = [[verdict(score), *lines[:TITLE_LINES]] for score, lines in zip(own, texts, strict=True)]
        figure, columns = panel_grid(titles, ACROSS, ROWS)
        for axes, score in zip(columns, own, strict=True):
            draw_trial(drawn, scores, score["trial_id"], axes, cuts)
            below = f"by norms: {score['class_norm']}\n{axes[0].get_xlabel()}"
            axes[0].set_xlabel(below, fontsize=TITLE_SIZE)
        shared_legend(figure, columns, LEGEND, [AS_MEASURED])
    listed = [listed_trial(score, lines[TITLE_LINES:]) for score, lines in zip(own, texts, strict=True)]
    rule = RULE if trial_ids is None else ""
    parts = {
        f"Of {counted(len(run.trials), 'trial')}{rule}, row by row: {', '.join(listed)}.": True,
        f"{UNITS} {PROGRESS}": True,
        **remarks(drawn.trials, columns),
    }
    return Picture(
        figure,
        "Norms, order parameters and stages of single trials",
        sentences(parts),
        f"Three panels for each trial (classes {', '.join(str(score['class']) for score in own)}): norms of"
        " the weights, order parameters, and progress of V and of attention against the step, with the"
        " stage boundary marked.",
    )


def listed_trial(score: Any, more: Sequence[str]) -> str:
    """Write the id of a trial, with its suffix and the settings that do not fit into its title."""
    notes = ", ".join(filter(None, (score["suffix"], *more)))
    return f"{score['trial_id']} ({notes})" if notes else score["trial_id"]


def verdict(score: Any, view: str = "loss") -> str:
    """Write the class of a trial in a view, with its Theta, from its row of the scores."""
    theta = score["theta" + VIEWS[view]]
    return str(score["class" + VIEWS[view]]) + (f", Θ {theta:.2f}" if np.isfinite(theta) else "")


def trajectory_panels(
    run: Run, scores: pd.DataFrame, trial_id: str, axes: Sequence[Axes], cuts: Cuts = CUTS
) -> Sequence[Axes]:
    """Draw norms, order parameters and progress of one trial on three axes; return the axes.

    Every line has a label for `shared_legend(figure, [axes])` or `ax.legend()`.
    """
    if len(axes) != len(ROWS):
        raise UserError(f"{len(axes)} axes for the panels of a trial; allowed: {len(ROWS)}")
    draw_trial(run, scores, trial_id, axes, cuts)
    for ax, name in zip(axes, ROWS, strict=True):
        ax.set_ylabel(name)
    axes[-1].set_xlabel("step")
    return axes


def draw_trial(run: Run, scores: pd.DataFrame, trial_id: str, axes: Sequence[Axes], cuts: Cuts) -> None:
    """Draw the three panels of a trial, with the stages marked in each."""
    stages, frame = stages_of(run, scores, trial_id, cuts), drawable(run.select([trial_id]))
    norm_panel(frame, axes[0])
    order_panel(frame, axes[1])
    progress_panel(stages, axes[2])
    for ax in axes:
        step_axis(mark(stages, ax), frame["step"])


def remarks(trials: pd.DataFrame, columns: Columns) -> dict[str, bool]:
    """List remarks on the panels of these trials, and whether each applies."""
    frozen = (trials["attention"] != "trained") | (trials["value"] != "trained")
    return {
        "Frozen parts have no lines.": bool(frozen.any()),
        "A jump at the end of training is cut off.": any(is_cut(axes[1]) for axes in columns),
    }


def drawable(run: Run) -> pd.DataFrame:
    """Convert the trajectories to the units drawn; NaN where frozen or not finite."""
    run = aligned(run)
    trials, records, owner = run.trials, run.trajectories, owners(run)
    unit = np.where(trials["objective"] == "squared", theorem2_block(trials), 1.0)
    attends = (trials["attention"] == "trained").to_numpy()
    drawn = dict.fromkeys(("norm_k", "norm_q", "a_topic", "a_self"), attends)
    drawn |= {f"norm_{part[0]}": (trials[part] == "trained").to_numpy() for part in ("value", "embedding")}
    drawn[TURNING] = drawn["norm_v"]
    drawn["a_mask"] = attends & (trials["key_visibility"] == "all").to_numpy()  # else [MASK] is not a key
    frame = records[["trial_id", "step"]].copy()
    for name in (*NORMS, *ORDER, TURNING):
        values = column(records, name) if name in records else np.full(len(records), np.nan)
        values = values / (unit[owner] if name in ("v_block", "v_diag") else 1.0)
        is_drawn = np.isfinite(values) & (drawn[name][owner] if name in drawn else True)
        frame[name] = np.where(is_drawn, values, np.nan)
    return thinned(frame, (*NORMS, *ORDER, TURNING))


def norm_panel(frame: pd.DataFrame, ax: Axes) -> Axes:
    """Draw each trained norm as a share of its own maximum; write the maxima below."""
    maxima = {name: largest(frame, name) for name in NORMS if largest(frame, name) > 0}
    for name, unit in maxima.items():
        look: dict[str, Any] = dict(color=PART_COLOURS[name], linestyle=NORMS[name], label=label(name))
        start = column(frame, name)[0]
        draw(frame, ax, name, unit, **look | (FLAT if unit < GROWN * start else {}))
    if any(line.get_linewidth() == FLAT["linewidth"] for line in ax.lines):
        ax.plot([], [], color="0.4", label="faint: a norm that does not grow", **FLAT)
    text = ", ".join(f"{name[-1].upper()} {unit:.3g}" for name, unit in maxima.items())
    ax.set_xlabel(f"max {text}" if text else "no finite norm", fontsize=TITLE_SIZE)
    ax.set_ylim(0, min(max(ax.get_ylim()[1], 1.05), 1.5))
    return ax


def order_panel(frame: pd.DataFrame, ax: Axes) -> Axes:
    """Draw v_block and a_topic, and the others where they are not much smaller."""
    is_early = column(frame, "step") <= 0.95 * frame["step"].max()
    limits = [0.0, 0.1]
    for name, (text, colour, line, companion) in ORDER.items():
        if not companion or largest(frame, name) >= max(LEAST, WORTH * largest(frame, companion)):
            draw(frame, ax, name, 1.0, color=colour, linestyle=line, label=text)
            usual = 1.5 * largest(frame[is_early], name)  # a final jump must not flatten the rest
            limits += list(np.clip(np.nan_to_num(column(frame, name)), -usual, usual))
    low, high = min(limits), max(limits)
    ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    ax.axhline(0, color="#999999", linewidth=0.5, zorder=0)
    return ax


def largest(frame: Any, name: str) -> float:
    """Find the largest absolute value of a column; 0 if nothing is finite."""
    return float(np.nan_to_num(np.abs(column(frame, name))).max(initial=0))


def draw(frame: Any, ax: Axes, name: str, unit: float, **look: Any) -> None:
    """Draw a column in its unit, with its quartiles if the frame has them."""
    if np.isfinite(column(frame, name)).any():
        ax.plot(frame["step"], frame[name] / unit, **look)
        if f"{name}_low" in frame:
            low, high = frame[f"{name}_low"] / unit, frame[f"{name}_high"] / unit
            ax.fill_between(frame["step"], low, high, color=look["color"], alpha=0.2, linewidth=0)


def is_cut(ax: Axes) -> bool:
    """Tell whether an order parameter leaves the panel."""
    names = {text for text, *_ in ORDER.values()}
    curves = [np.nan_to_num(np.asarray(line.get_ydata())) for line in ax.lines if line.get_label() in names]
    low, high = ax.get_ylim()
    return any(curve.min() < low or curve.max() > high for curve in curves)


def progress_panel(stages: TrialStages, ax: Axes) -> Axes:
    """Draw the progress of V and of attention: thin as measured, thick as monotone fits."""
    curves = stages.progress
    for raw, fit, part, name in (("P", "F_V", "norm_v", "V"), ("Q", "F_A", "norm_k", "attention")):
        if np.isfinite(curves[fit]).any():
            ax.plot(curves["step"], curves[raw], color=PART_COLOURS[part], linewidth=0.6, alpha=0.5)
            ax.plot(curves["step"], curves[fit], color=PART_COLOURS[part], label=f"progress of {name}")
    if np.isfinite(stages.boundary):
        look: dict[str, Any] = dict(color="black", markersize=3.5, clip_on=False, zorder=4, label="Θ")
        ax.plot(stages.boundary, stages.scores["theta"], "o", **look)
    if not np.isfinite([curves["F_V"], curves["F_A"]]).any():
        reason = "diverged" if stages.scores["class"] == "diverged" else "no limit lines"
        ax.text(0.5, 0.5, f"{reason}: no score", transform=ax.transAxes, ha="center", va="center")
    ax.set_ylim(-0.08, 1.12)
    return ax


def mark(stages: TrialStages, ax: Axes) -> Axes:
    """Mark the stage boundary and the onsets of V and of attention."""
    marks = {
        "stage boundary": (stages.boundary, "black", "-"),
        "onset of V (half way)": (stages.scores["onset_v"], PART_COLOURS["norm_v"], ":"),
        "onset of attention (half way)": (stages.scores["onset_attention"], PART_COLOURS["norm_k"], ":"),
    }
    for text, (step, colour, line) in marks.items():
        if np.isfinite(step):
            ax.axvline(step, color=colour, linestyle=line, linewidth=0.9, zorder=1, label=text)
    return ax


@dataclass(frozen=True)
class Cells:
    """The cells that a figure shows, their total number, and the settings that distinguish them."""

    run: Run
    names: list[str]
    shown: list[pd.DataFrame]  # per cell: its trials
    classes: list[str]  # per cell: its most frequent class
    count: int

    @classmethod
    def of(cls, run: Run, scores: pd.DataFrame, by: Sequence[str] | None) -> "Cells":
        """Choose up to MOST_CELLS cells, those of the clearest trials.

        Trials of a cell have equal values of `by`, by default of every setting that varies except the seed.
        """
        run = aligned(run)
        names = varying(run.trials, cell_settings(run.trials)) if by is None else list(by)
        allowed = settings_in(run.trials)
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise UserError(f"unknown setting {unknown[0]!r} for cells; allowed: {', '.join(allowed)}")
        cell = cell_of_rows(run.trials, names)
        chosen = telling_cells(run, scores, cell)
        kinds = majority(cell, np.array(classes_of(scores, run.trials["trial_id"].tolist())), CLASSES)[0]
        shown = [run.trials.loc[cell == number] for number in chosen]
        return cls(run, names, shown, [kinds[number] for number in chosen], int(cell.max()) + 1)

    @property
    def titles(self) -> list[list[str]]:
        """The class and the settings of each cell, split into lines."""
        several = self.names or MAIN_SETTINGS
        texts = [title_lines(described(own.iloc[0], several), len(self.shown)) for own in self.shown]
        return [[kind, *lines] for kind, lines in zip(self.classes, texts, strict=True)]

    @property
    def marks(self) -> list[Patch]:
        """The legend entry of bands, if there are any."""
        return [QUARTILES] if max(map(len, self.shown)) > 1 else []

    def quartiles(self) -> list[pd.DataFrame]:
        """Compute for each cell the medians and quartiles of all drawn columns, by step."""
        ids = (own["trial_id"].tolist() for own in self.shown)
        return [quartiles(drawable(self.run.select(own))) for own in ids]

    def caption(self, frames: Sequence[pd.DataFrame], words: str, more: dict[str, bool]) -> str:
        """Say what is drawn, over which settings quartiles are taken, and what is left out."""
        several = varying(self.run.trials, SETTINGS)
        pooled = [label(name) for name in several if name not in self.names] or ["seed"]
        sizes, own = sorted({len(cell) for cell in self.shown}), pd.concat(self.shown)
        span = counted(sizes[0], "trial") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} trials"
        diverged = (own["status"] == "diverged").to_numpy().sum()
        parts = {
            f"Lines are medians and bands quartiles over {', '.join(pooled)}, {span} each.": sizes[-1] > 1,
            "Each line is one trial.": sizes[-1] == 1,
            f"Shown: {len(self.shown)} of {self.count} settings, those of the clearest trials of each"
            " class, two-stage first.": self.count > len(self.shown),
            words: True,
            f"Of these trials, {diverged} diverged; non-finite values are left out.": diverged,
            ENDS: any((frame["trials"] < HALF * frame["trials"].max()).any() for frame in frames),
            **more,
        }
        return sentences(parts)


def norm_bands(run: Run, scores: pd.DataFrame, by: Sequence[str] | None = None) -> Picture:
    """Draw norms and order parameters of some cells, median and quartiles over their trials."""
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
    """Draw the rotation of W^V above the norms in some cells, median and quartiles over their trials."""
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
    """Mask the trials for which the rotation of a trained W^V was recorded."""
    if TURNING not in run.trajectories:
        return np.zeros(len(run.trials), bool)
    known = run.trajectories.loc[run.trajectories[TURNING] > 0, "trial_id"].unique()
    return (run.trials["trial_id"].isin(known) & (run.trials["value"] == "trained")).to_numpy()


def rotation_panel(frame: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the rotation of W^V on a logarithmic axis, with guide lines at some angles."""
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
    """Give all panels the same range, that of all their curves."""
    curves = [np.asarray(ax.lines[0].get_ydata(), float) for ax in axes if ax.lines]
    values = np.concatenate(curves)
    values = values[np.isfinite(values) & (values > 0)]
    for ax in axes:
        ax.set_ylim(values.min() / 2, min(1.0, 2 * values.max()))


def settling_step(frame: pd.DataFrame) -> float:
    """Find the step after which the median rotation stays below STEADY of its maximum; NaN if never."""
    values, steps = column(frame, TURNING), column(frame, "step")
    known = np.isfinite(values)
    values, steps = values[known], steps[known]
    above = np.flatnonzero(values >= STEADY * values.max(initial=0))
    after = above[-1] + 1 if len(above) else 0
    return float(steps[after]) if after < len(values) else np.nan


def telling_cells(run: Run, scores: pd.DataFrame, cell: np.ndarray) -> list[int]:
    """Order the cells by their most representative trials; keep at most MOST_CELLS."""
    place = dict(zip(run.trials["trial_id"].tolist(), cell.tolist(), strict=True))
    found: dict[int, None] = {}
    for trial_id in ranked_trials(scores.loc[scores["trial_id"].isin(run.trials["trial_id"])]):
        found[place[trial_id]] = None
        if len(found) == MOST_CELLS:
            break
    return list(found)


def quartiles(frame: pd.DataFrame) -> pd.DataFrame:
    """Summarise each step: median of each column, quartiles as _low and _high, and number of trials.

    They are NaN where fewer than HALF of a column's trials still have records, as in `bands`.
    """
    names = [*NORMS, *ORDER, TURNING]
    values = frame[names].where(np.isfinite(frame[names])).groupby(frame["step"])  # all columns at once
    sizes = values.count()
    is_thin = sizes < HALF * sizes.max()
    ends = {"": 0.5, "_low": 0.25, "_high": 0.75}
    found = [values.quantile(share).mask(is_thin).add_suffix(end) for end, share in ends.items()]
    return pd.concat([*found, values.size().to_frame("trials")], axis=1).reset_index()
