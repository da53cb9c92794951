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
from matplotlib.lines import Line2D

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..figures.step_panels import (
    ACROSS,
    TITLE_SIZE,
    Columns,
    panel_grid,
    shared_legend,
    step_axis,
    title_lines,
)
from ..frames import varying
from ..pictures import Picture, counted, described, label, sentences, style
from ..topic_model import MAIN_SETTINGS, SETTINGS, aligned
from .curves import Cuts
from .example_trials import example_trials
from .norm_panels import NORMS, ORDER, drawable, is_cut, norm_panel, order_panel
from .stage_panels import mark, progress_panel, scores_of, stages_of
from .stages import CUTS, VIEWS

TITLE_SETTINGS = (*MAIN_SETTINGS, "key_visibility", "learning_rate", "init_scale")
TITLE_LINES = 3  # of settings; more are in the caption
ROWS = {"norm / max": 1.1, "order parameter": 1.2, "progress": 1.0}  # of panels: label, height in inches
MOST_TRIALS = 8
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
AS_MEASURED = Line2D([], [], color="0.5", linewidth=0.6, label="thin: progress as measured")
LEGEND = (
    *(label(name) for name in NORMS),
    *(text for text, *_ in ORDER.values()),
    *("progress of V", "progress of attention", "Θ", "stage boundary"),
    *("onset of V (half way)", "onset of attention (half way)"),
)
RULE = (
    " chosen by rule, the clearest of each class, which no small change of a cut would class otherwise;"
    " two-stage first, then the most frequent classes"
)


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


def remarks(trials: pd.DataFrame, columns: Columns) -> dict[str, bool]:
    """Return what a reader may miss in the panels of these trials, and whether they do."""
    frozen = (trials["attention"] != "trained") | (trials["value"] != "trained")
    return {
        "Frozen parts have no lines.": bool(frozen.any()),
        "A jump at the end of training is cut off.": any(is_cut(axes[1]) for axes in columns),
    }
