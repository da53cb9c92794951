"""Figure 4 of the paper for any trial: norms, the order parameters that explain them, and the stages.

Norms are drawn as shares of their own maxima, the unit of the norm view: those of W^V and W^K may
differ fortyfold.  The value's order parameters are drawn over Theorem 2's v_block for the squared
loss, which the theorem is about, and as logits for cross-entropy: so one axis fits them and a_topic.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..frames import MAIN_SETTINGS, SETTINGS, aligned, bands, settings_in, varying
from ..pictures import Picture, counted, described, label, sentences, style
from ..scoring.cells import cell_settings
from ..scoring.curves import Cuts
from ..scoring.example_trials import example_trials, ranked_trials
from ..scoring.stages import CUTS, VIEWS
from .norm_panels import NORMS, ORDER, drawable, is_cut, norm_panel, order_panel
from .stage_panels import mark, progress_panel, scores_of, stages_of
from .step_panels import TITLE_SIZE, Columns, panel_grid, shared_legend, step_axis, title_lines

TITLE_SETTINGS = (*MAIN_SETTINGS, "key_visibility", "learning_rate", "init_scale")
TITLE_LINES = 3  # of settings; more are in the caption
ROWS = {"norm / max": 1.1, "order parameter": 1.2, "progress": 1.0}  # of panels: label, height in inches
MOST_TRIALS, MOST_CELLS = 8, 6
UNITS = (
    "Norms are shares of their maxima, given below. Order parameters are differences of means: of the value"
    " matrix (in units of Theorem 2's for squared loss, logits for cross-entropy) and of attention scores;"
    " own words and [MASK] only where they reach a quarter of the topical ones."
)
PROGRESS = (
    "Progress: of V, the drop of the loss under uniform attention towards stage 1; of attention, its gain"
    " in units of stage 1 - stage 2; thick: monotone fits. Black: where the smaller of progress of V and"
    " 1 - progress of attention is first at its largest, Θ."
)
LEGEND = (
    *(label(name) for name in NORMS),
    *(text for text, *_ in ORDER.values()),
    *("progress of V", "progress of attention", "Θ", "stage boundary"),
)
RULE = " chosen by rule, one of each frequent class, where norms and loss disagree (two-stage: agree) if any"


def figure4(
    run: Run, scores: pd.DataFrame, trial_ids: Sequence[str] | None = None, cuts: Cuts = CUTS
) -> Picture:
    """Return norms, order parameters and progress of some trials, by default of `example_trials`."""
    chosen = example_trials(scores) if trial_ids is None else list(trial_ids)
    if not 0 < len(chosen) <= MOST_TRIALS:
        raise UserError(f"{len(chosen)} trials for one figure; allowed: 1 to {MOST_TRIALS}")
    drawn = aligned(run.select(chosen))
    names = list(dict.fromkeys([*TITLE_SETTINGS, *varying(run.trials, SETTINGS)]))
    own = [scores_of(scores, trial_id) for trial_id in chosen]
    texts = [title_lines(described(score, names), len(own)) for score in own]
    with style():
        titles = [[verdict(score), *lines[:TITLE_LINES]] for score, lines in zip(own, texts, strict=True)]
        figure, columns = panel_grid(titles, 4, ROWS)
        for axes, score in zip(columns, own, strict=True):
            draw_trial(drawn, scores, score["trial_id"], axes, cuts)
            below = f"by norms: {score['class_norm']}\n{axes[0].get_xlabel()}"
            axes[0].set_xlabel(below, fontsize=TITLE_SIZE)
        shared_legend(figure, columns, LEGEND)
    listed = [listed_trial(score, lines[TITLE_LINES:]) for score, lines in zip(own, texts, strict=True)]
    rule = RULE if trial_ids is None else ""
    parts = {
        f"Of {counted(len(run.trials), 'trial')}{rule}, from left to right: {', '.join(listed)}.": True,
        f"{UNITS} {PROGRESS}": True,
        **remarks(drawn.trials, columns),
    }
    return Picture(
        figure,
        "Norms, order parameters and stages of single trials",
        sentences(parts),
        f"Three panels for each trial, classed {', '.join(str(score['class']) for score in own)}: norms of"
        " the weights, order parameters, and progress of V and of attention against the step, with the"
        " stage boundary marked.",
    )


def listed_trial(score: Any, more: Sequence[str]) -> str:
    """Return the id of a trial, with its suffix and the settings that its title has no room for."""
    notes = ", ".join(filter(None, (score["suffix"], *more)))
    return f"{score['trial_id']} ({notes})" if notes else score["trial_id"]


def verdict(score: Any, view: str = "loss") -> str:
    """Return the class of a trial in a view, with its Theta, from its row of the scores."""
    theta = score["theta" + VIEWS[view]]
    return str(score["class" + VIEWS[view]]) + (f", Θ {theta:.2f}" if np.isfinite(theta) else "")


def trajectory_panels(
    run: Run, scores: pd.DataFrame, trial_id: str, axes: Sequence[Axes], cuts: Cuts = CUTS
) -> Sequence[Axes]:
    """Draw norms, order parameters and progress of one trial on three axes; return the axes.

    Every line has a label: `shared_legend(figure, [axes])` or `ax.legend()` explains them.
    """
    if len(axes) != len(ROWS):
        raise UserError(f"{len(axes)} axes for the panels of a trial; allowed: {len(ROWS)}")
    draw_trial(run, scores, trial_id, axes, cuts)
    for ax, name in zip(axes, ROWS, strict=True):
        ax.set_ylabel(name)
    axes[-1].set_xlabel("step")
    return axes


def draw_trial(run: Run, scores: pd.DataFrame, trial_id: str, axes: Sequence[Axes], cuts: Cuts) -> None:
    """Draw the three panels of a trial with the stage marks in each."""
    stages, frame = stages_of(run, scores, trial_id, cuts), drawable(run.select([trial_id]))
    norm_panel(frame, axes[0])
    order_panel(frame, axes[1])
    progress_panel(stages, axes[2])
    for ax in axes:
        step_axis(mark(stages, ax), frame["step"])


def norm_bands(run: Run, scores: pd.DataFrame, by: Sequence[str] | None = None) -> Picture:
    """Return norms and order parameters of up to six cells, median and quartiles over their trials.

    A cell has equal values of `by`, by default of every setting that varies but the seed.  Of more than
    six cells those are drawn that hold the first of `example_trials`.
    """
    run = aligned(run)
    names = varying(run.trials, cell_settings(run.trials)) if by is None else list(by)
    allowed = settings_in(run.trials)
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise UserError(f"unknown setting {unknown[0]!r} for cells; allowed: {', '.join(allowed)}")
    cell = cell_of(run, names)
    shown = [run.trials.loc[cell == number] for number in telling_cells(run, scores, cell)]
    with style():
        across = 2 if len(shown) == 4 else min(3, len(shown))
        titles = [title_lines(described(own.iloc[0], names or MAIN_SETTINGS), across) for own in shown]
        figure, columns = panel_grid(titles, across, dict(list(ROWS.items())[:2]))
        for trials, axes in zip(shown, columns, strict=True):
            frame = quartiles(drawable(run.select(trials["trial_id"].tolist())))
            for ax in (norm_panel(frame, axes[0]), order_panel(frame, axes[1])):
                step_axis(ax, frame["step"])
        shared_legend(figure, columns, LEGEND)
    return Picture(
        figure,
        "Norms and order parameters over seeds",
        bands_caption(run, names, shown, cell.max() + 1, columns),
        f"Norms of the weights and order parameters against the step for {counted(len(shown), 'setting')},"
        " medians with bands of quartiles.",
    )


def telling_cells(run: Run, scores: pd.DataFrame, cell: np.ndarray) -> list[int]:
    """Return the cells, or of more than MOST_CELLS those of the most telling trials, in their order."""
    if cell.max() < MOST_CELLS:
        return list(range(cell.max() + 1))
    place = dict(zip(run.trials["trial_id"].tolist(), cell.tolist(), strict=True))
    found: set[int] = set()
    for trial_id in ranked_trials(scores.loc[scores["trial_id"].isin(run.trials["trial_id"])]):
        found.add(place[trial_id])
        if len(found) == MOST_CELLS:
            break
    return sorted(found)


def cell_of(run: Run, names: Sequence[str]) -> np.ndarray:
    """Return the number of each trial's cell, in the order of their settings."""
    if not names:
        return np.zeros(len(run.trials), int)
    return run.trials.groupby(list(names), dropna=False).ngroup().to_numpy()


def bands_caption(
    run: Run, names: Sequence[str], shown: Sequence[pd.DataFrame], cells: int, columns: Columns
) -> str:
    """Return what is drawn, over what the quartiles are taken, and what is not drawn."""
    pooled = [label(name) for name in varying(run.trials, SETTINGS) if name not in names] or ["seed"]
    sizes, own = sorted({len(cell) for cell in shown}), pd.concat(shown)
    span = counted(sizes[0], "trial") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} trials"
    diverged = (own["status"] == "diverged").to_numpy().sum()
    parts = {
        f"Lines are medians and bands quartiles over {', '.join(pooled)}, {span} each.": True,
        f"Drawn are {len(shown)} of {cells} settings: those of telling trials of each class.": (
            cells > len(shown)
        ),
        UNITS: True,
        f"Of these trials {diverged} diverged; values that are not finite are left out.": diverged,
        **remarks(own, columns),
    }
    return sentences(parts)


def remarks(trials: pd.DataFrame, columns: Columns) -> dict[str, bool]:
    """Return what a reader may miss in the panels of these trials, and whether they do."""
    frozen = (trials["attention"] != "trained") | (trials["value"] != "trained")
    return {
        "Frozen parts have no lines.": bool(frozen.any()),
        "A jump at the end of training is cut off.": any(is_cut(axes[1]) for axes in columns),
    }


def quartiles(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per step: the median of each column, its quartiles as _low and _high."""
    columns = {}
    for name in (*NORMS, *ORDER):
        band = bands(frame, name)
        columns |= {"step": band["step"], name: band["q50"]}
        columns |= {f"{name}_low": band["q25"], f"{name}_high": band["q75"]}
    return pd.DataFrame(columns)
