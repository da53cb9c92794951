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

from analysis.examples import examples
from analysis.frames import SETTINGS, Run, bands
from analysis.panels import TITLE_SIZE, Columns, panel_grid, shared_legend, step_axis, title_lines
from analysis.pictures import (
    SPOKEN_ALONE,
    Picture,
    described,
    label,
    number,
    sentences,
    style,
    varying,
)
from analysis.progress import mark, progress_panel, select, stages_of
from analysis.scores import Cuts
from analysis.stages import CUTS, VIEWS, cell_settings, score_trials
from analysis.traces import NORMS, ORDER, drawable, is_cut, norm_panel, order_panel

TITLE_SETTINGS = (*SPOKEN_ALONE, "key_visibility", "learning_rate", "init_scale")
TITLE_LINES = 3  # of settings; more are in the caption
ROWS = {"norm / max": 1.1, "order parameter": 1.2, "progress": 1.0}  # label: height in inches
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
    """Return norms, order parameters and progress of some trials, by default of `examples`."""
    chosen = examples(scores) if trial_ids is None else list(trial_ids)
    if not 0 < len(chosen) <= MOST_TRIALS:
        raise ValueError(f"{len(chosen)} trials for one figure; allowed: 1 to {MOST_TRIALS}")
    own = select(run, chosen).trials
    names = list(dict.fromkeys([*TITLE_SETTINGS, *varying(run.trials, SETTINGS)]))
    rows = [row for _, row in scores.set_index("trial_id").loc[chosen].iterrows()]
    with style():
        texts = [title_lines(described(row, names), len(rows)) for row in rows]
        titles = [[verdict(row), *lines[:TITLE_LINES]] for row, lines in zip(rows, texts, strict=True)]
        figure, columns = panel_grid(titles, 4, ROWS)
        for trial_id, axes, row in zip(chosen, columns, rows, strict=True):
            draw_trial(run, trial_id, axes, cuts)
            axes[0].set_xlabel(f"by norms: {row['class_norm']}\n{axes[0].get_xlabel()}", fontsize=TITLE_SIZE)
        shared_legend(figure, columns, LEGEND)
    notes = [
        ", ".join(filter(None, (row["suffix"], *lines[TITLE_LINES:])))
        for row, lines in zip(rows, texts, strict=True)
    ]
    listed = [f"{name} ({note})" if note else name for name, note in zip(chosen, notes, strict=True)]
    rule = RULE if trial_ids is None else ""
    parts = {
        f"Of {number(len(run.trials), 'trial')}{rule}, from left to right: {', '.join(listed)}.": True,
        f"{UNITS} {PROGRESS}": True,
        **remarks(own, columns),
    }
    return Picture(
        figure,
        "Norms, order parameters and stages of single trials",
        sentences(parts),
        f"Three panels for each trial, classed {', '.join(str(row['class']) for row in rows)}: norms of the"
        " weights, order parameters, and progress of V and of attention against the step, with the stage"
        " boundary marked.",
    )


def verdict(row: Any, view: str = "loss") -> str:
    """Return the class of a trial in a view, with its Theta."""
    theta = row["theta" + VIEWS[view]]
    return str(row["class" + VIEWS[view]]) + (f", Θ {theta:.2f}" if np.isfinite(theta) else "")


def trajectory_panels(run: Run, trial_id: str, axes: Sequence[Axes], cuts: Cuts = CUTS) -> Sequence[Axes]:
    """Draw norms, order parameters and progress of one trial on three axes; return the axes.

    Every line has a label: `shared_legend(figure, [axes])` or `ax.legend()` explains them.
    """
    if len(axes) != len(ROWS):
        raise ValueError(f"{len(axes)} axes for the panels of a trial; allowed: {len(ROWS)}")
    draw_trial(run, trial_id, axes, cuts)
    for ax, name in zip(axes, ROWS, strict=True):
        ax.set_ylabel(name)
    axes[-1].set_xlabel("step")
    return axes


def draw_trial(run: Run, trial_id: str, axes: Sequence[Axes], cuts: Cuts) -> None:
    """Draw the three panels of a trial with the stage marks in each."""
    stages, frame = stages_of(run, trial_id, cuts), drawable(select(run, [trial_id]))
    norm_panel(frame, axes[0])
    order_panel(frame, axes[1])
    progress_panel(stages, axes[2])
    for ax in axes:
        step_axis(mark(stages, ax), frame["step"])


def norm_bands(run: Run, by: Sequence[str] | None = None, scores: pd.DataFrame | None = None) -> Picture:
    """Return norms and order parameters of up to six cells, median and quartiles over their trials.

    A cell is a value of `by`, by default of every setting that varies but the seed.  Of more than
    six cells those are drawn that hold the first of `examples`.
    """
    names = varying(run.trials, cell_settings(run.trials)) if by is None else list(by)
    unknown = [name for name in names if name not in run.settings]
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r} for cells; allowed: {', '.join(run.settings)}")
    cells = cells_of(run, names)
    groups = cells
    if len(cells) > MOST_CELLS:
        ranked = examples(score_trials(run) if scores is None else scores, len(run.trials))
        owner = {name: number for number, cell in enumerate(cells) for name in cell["trial_id"]}
        first = list(dict.fromkeys(owner[name] for name in ranked))[:MOST_CELLS]
        groups = [cells[number] for number in sorted(first)]
    with style():
        across = 2 if len(groups) == 4 else min(3, len(groups))
        titles = [title_lines(described(rows.iloc[0], names or SPOKEN_ALONE), across) for rows in groups]
        figure, columns = panel_grid(titles, across, dict(list(ROWS.items())[:2]))
        for trials, axes in zip(groups, columns, strict=True):
            frame = quartiles(drawable(select(run, trials["trial_id"].tolist())))
            for ax in (norm_panel(frame, axes[0]), order_panel(frame, axes[1])):
                step_axis(ax, frame["step"])
        shared_legend(figure, columns, LEGEND)
    return Picture(
        figure,
        "Norms and order parameters over seeds",
        bands_caption(run, names, groups, len(cells), columns),
        f"Norms of the weights and order parameters against the step for {number(len(groups), 'setting')},"
        " medians with bands of quartiles.",
    )


def cells_of(run: Run, names: Sequence[str]) -> list[pd.DataFrame]:
    """Return the trials of each cell, in the order of their settings."""
    if not names:
        return [run.trials]
    return [pd.DataFrame(rows) for _, rows in run.trials.groupby(list(names), dropna=False)]


def bands_caption(
    run: Run, names: Sequence[str], groups: Sequence[pd.DataFrame], cells: int, columns: Columns
) -> str:
    """Return what is drawn, over what the quartiles are taken, and what is not drawn."""
    pooled = [label(name) for name in varying(run.trials, SETTINGS) if name not in names] or ["seed"]
    sizes, own = sorted({len(rows) for rows in groups}), pd.concat(groups)
    span = number(sizes[0], "trial") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} trials"
    diverged = (own["status"] == "diverged").to_numpy().sum()
    parts = {
        f"Lines are medians and bands quartiles over {', '.join(pooled)}, {span} each.": True,
        f"Drawn are {len(groups)} of {cells} settings: those of telling trials of each class.": (
            cells > len(groups)
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
