"""Figure 4 of the paper for any trial: norms, the order parameters that explain them, and the stages.

Norms are drawn as shares of their own maxima, the unit of the norm view: those of W^V and W^K may
differ fortyfold.  The value's order parameters are drawn over Theorem 2's v_block for the squared
loss, which the theorem is about, and as logits for cross-entropy: so one axis fits them and a_topic.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.frames import SETTINGS, Run, bands
from analysis.losses import (
    TITLE_SIZE,
    describe,
    mark,
    panel_grid,
    progress_panel,
    select,
    stages_of,
    step_axis,
    thinned,
    varying,
)
from analysis.pictures import PART_COLOURS, Picture, label, style
from analysis.scores import Cuts, numbers, theorem2_block
from analysis.stages import CLASSES, CUTS, cell_settings, score_trials

TITLE_SETTINGS = ("optimizer", "objective", "key_visibility", "seed", "learning_rate", "init_scale")
KIND = ("objective", "optimizer", "key_visibility")
ROWS = {"norm / max": 1.1, "order parameter": 1.2, "progress": 1.0}  # label: height in inches
MOST_TRIALS, MOST_CELLS = 8, 6
TITLE_WIDTH = 104  # characters over the whole figure
VALUE, ATTENTION, MASK = PART_COLOURS["norm_v"], PART_COLOURS["norm_k"], "#CC79A7"
NORMS = {"norm_v": "-", "norm_k": "-", "norm_q": (0, (3, 2)), "norm_e": "-"}  # K and Q often coincide
ORDER = {  # column: label, colour, line, and the column it must come near to be worth drawing
    "v_block": ("V: same - other topic", VALUE, "-", ""),
    "a_topic": ("attention: same - other topic", ATTENTION, "-", ""),
    "v_diag": ("V: own word - same topic", VALUE, "--", "v_block"),
    "a_self": ("attention: own word - same topic", ATTENTION, "--", "a_topic"),
    "a_mask": ("attention of [MASK]: words - [MASK]", MASK, "-.", "a_topic"),
}
WORTH, LEAST = 0.25, 0.1  # of its companion's largest size, and in its own unit
UNITS = (
    "Norms are shares of their maxima, given in the titles. Order parameters are differences of means: of the"
    " value matrix (divided by Theorem 2's same - other topic for the squared loss, logits for cross-entropy)"
    " and of attention scores before the softmax; those of own words and [MASK] are drawn where they reach a"
    " quarter of the topical ones. A jump at the end of training may be cut off. Frozen parts are left out."
)
PROGRESS = (
    "Progress is the loss view that the class is read from: of V, the drop of the loss under uniform"
    " attention towards the stage-1 limit; of attention, its gain in units of stage 1 - stage 2; thin as"
    " measured, thick the monotone fit. Dotted: half of the progress. Black: the first step that attains"
    " Θ = max min(progress of V, 1 - progress of attention)."
)


def figure4(
    run: Run, scores: pd.DataFrame, trial_ids: Sequence[str] | None = None, cuts: Cuts = CUTS
) -> Picture:
    """Return norms, order parameters and progress of some trials, by default of `examples`."""
    chosen = examples(scores) if trial_ids is None else list(trial_ids)
    if not 0 < len(chosen) <= MOST_TRIALS:
        raise ValueError(f"{len(chosen)} trials for one figure; allowed: 1 to {MOST_TRIALS}")
    select(run, chosen)
    names = list(dict.fromkeys([*TITLE_SETTINGS, *varying(run.trials, SETTINGS)]))
    rows = [row for _, row in scores.set_index("trial_id").loc[chosen].iterrows()]
    with style():
        titles = [[*verdict(row), *joined(describe(row, names), len(rows)), ""] for row in rows]
        figure, columns = panel_grid(titles, 4, ROWS)
        for trial_id, axes in zip(chosen, columns, strict=True):
            draw_trial(run, trial_id, axes, cuts)
        shared_legend(figure, columns)
    rule = (
        "one of each frequent class, where norms and loss disagree if possible (two-stage: where they agree)"
    )
    choice = f" They are chosen by rule: {rule}." if trial_ids is None else ""
    order = f"Of {len(run.trials)} trials, from left to right: {', '.join(chosen)}."
    kinds = ", ".join(str(row["class"]) for row in rows)
    return Picture(
        figure,
        f"{run.name}: norms, order parameters and stages of single trials",
        f"{order}{choice} {UNITS} {PROGRESS}",
        f"Three panels for each trial, classed {kinds}: norms of the weights, order parameters, and"
        " progress of V and of attention against the step, with the stage boundary marked.",
    )


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


def examples(scores: pd.DataFrame, count: int = 4) -> list[str]:
    """Return the ids of up to `count` telling trials; the same scores give the same ids.

    One of each class of the loss view, the most frequent first, diverged and unscored ones last.
    Of a class, in this order: trials that keep what they learned before those that recede; those
    that the norm view classes otherwise (of two-stage, those that both views call so: the others
    are read against them); nearest the median Theta of the class; the smaller id.  If classes run
    out, further rounds begin with objectives, optimizers and keys that are not shown yet.
    """
    distance = (scores["theta"] - scores.groupby("class")["theta"].transform("median")).abs().fillna(0)
    agrees = (scores["class"] == scores["class_norm"]) ^ (scores["class"] == "two-stage")
    kind = scores[[*KIND]].astype(str).agg(" ".join, axis=1)
    recedes = scores["flags"].str.contains("recedes")
    rank = pd.DataFrame(
        dict(recedes=recedes, agrees=agrees, distance=distance, id=scores["trial_id"], kind=kind)
    )
    rank = rank.sort_values(["recedes", "agrees", "distance", "id"])
    left = {
        str(name): rows[["id", "kind"]].to_numpy().tolist() for name, rows in rank.groupby(scores["class"])
    }
    is_last = {name: name in ("diverged", "unscored") for name in left}
    order = sorted(left, key=lambda name: (is_last[name], -len(left[name]), CLASSES.index(name)))
    chosen: dict[str, str] = {}
    for turn, name in enumerate(cycle(order)):
        if len(chosen) >= min(count, len(scores)):
            break
        shown = set(chosen.values()) if turn >= len(order) else set()
        rows = sorted(left[name], key=lambda row: row[1] in shown)  # stable: keeps the rank
        chosen |= dict(rows[:1])
        left[name] = [row for row in left[name] if row[0] not in chosen]
    return list(chosen)


def drawable(run: Run) -> pd.DataFrame:
    """Return the trajectories with values in their units, NaN where frozen or not finite."""
    frame = run.trajectories.copy()
    trial = pd.Index(run.trials["trial_id"]).get_indexer(pd.Index(frame["trial_id"]))
    unit = np.where(frame["objective"] == "squared", theorem2_block(run.trials)[trial], 1.0)
    attends = frame["attention"] == "trained"
    drawn = dict.fromkeys(("norm_k", "norm_q", "a_topic", "a_self"), attends)
    drawn |= {"norm_v": frame["value"] == "trained", "norm_e": frame["embedding"] == "trained"}
    drawn["a_mask"] = attends & (frame["key_visibility"] == "all")  # otherwise [MASK] is no key
    for name in (*NORMS, *ORDER):
        values = frame[name].to_numpy(float) if name in frame else np.full(len(frame), np.nan)
        values = values / (unit if name in ("v_block", "v_diag") else 1.0)
        frame[name] = np.where(np.isfinite(values) & drawn.get(name, True), values, np.nan)
    return thinned(frame, (*NORMS, *ORDER))


def norm_panel(frame: pd.DataFrame, ax: Axes) -> Axes:
    """Draw each trained norm as a share of its own maximum; add the maxima to the title."""
    maxima = {name: largest(frame, name) for name in NORMS if largest(frame, name) > 0}
    for name, unit in maxima.items():
        draw(frame, ax, name, unit, color=PART_COLOURS[name], linestyle=NORMS[name], label=label(name))
    text = ", ".join(f"{name[-1].upper()} {unit:.3g}" for name, unit in maxima.items())
    ax.set_title(f"{ax.get_title()}{f'max: {text}' if text else 'no finite norm'}", fontsize=TITLE_SIZE)
    ax.set_ylim(0, min(max(ax.get_ylim()[1], 1.05), 1.5))
    return ax


def order_panel(frame: pd.DataFrame, ax: Axes) -> Axes:
    """Draw v_block and a_topic, and the others where they are a good part of these."""
    is_early = numbers(frame, "step") <= 0.95 * frame["step"].max()
    limits = [0.0, 0.1]
    for name, (text, colour, line, companion) in ORDER.items():
        if not companion or largest(frame, name) >= max(LEAST, WORTH * largest(frame, companion)):
            draw(frame, ax, name, 1.0, color=colour, linestyle=line, label=text)
            usual = 1.5 * largest(frame[is_early], name)  # a last jump must not flatten what was before
            limits += list(np.clip(np.nan_to_num(numbers(frame, name)), -usual, usual))
    low, high = min(limits), max(limits)
    ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    ax.axhline(0, color="#999999", linewidth=0.5, zorder=0)
    return ax


def largest(frame: Any, name: str) -> float:
    """Return the largest size of a column; 0 if nothing is finite."""
    return float(np.nan_to_num(np.abs(numbers(frame, name))).max(initial=0))


def draw(frame: Any, ax: Axes, name: str, unit: float, **look: Any) -> None:
    """Draw a column in its unit, with its quartiles if the frame has them."""
    if np.isfinite(numbers(frame, name)).any():
        ax.plot(frame["step"], frame[name] / unit, **look)
        if f"{name}_low" in frame:
            low, high = frame[f"{name}_low"] / unit, frame[f"{name}_high"] / unit
            ax.fill_between(frame["step"], low, high, color=look["color"], alpha=0.2, linewidth=0)


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
        texts = [[*describe(rows.iloc[0], names), f"trials: {len(rows)}"] for rows in groups]
        across = 2 if len(groups) == 4 else min(3, len(groups))
        titles = [[*joined(row, across), ""] for row in texts]
        figure, columns = panel_grid(titles, across, dict(list(ROWS.items())[:2]))
        for trials, axes in zip(groups, columns, strict=True):
            frame = quartiles(drawable(select(run, trials["trial_id"].tolist())))
            for ax in (norm_panel(frame, axes[0]), order_panel(frame, axes[1])):
                step_axis(ax, frame["step"])
        shared_legend(figure, columns)
    return Picture(
        figure,
        f"{run.name}: norms and order parameters over seeds",
        bands_caption(run, names, groups, len(cells)),
        f"Norms of the weights and order parameters against the step for {len(groups)} settings,"
        " medians with bands of quartiles.",
    )


def cells_of(run: Run, names: Sequence[str]) -> list[pd.DataFrame]:
    """Return the trials of each cell, in the order of their settings."""
    if not names:
        return [run.trials]
    return [pd.DataFrame(rows) for _, rows in run.trials.groupby(list(names), dropna=False)]


def bands_caption(run: Run, names: Sequence[str], groups: Sequence[pd.DataFrame], cells: int) -> str:
    """Return what is drawn, over what the quartiles are taken, and what is not drawn."""
    pooled = [label(name) for name in varying(run.trials, SETTINGS) if name not in names] or ["seed"]
    diverged = sum((rows["status"] == "diverged").to_numpy().sum() for rows in groups)
    is_partial = cells > len(groups)
    sentences = {
        f"Lines are medians and bands quartiles over {', '.join(pooled)}; titles count the trials.": True,
        f"Drawn are {len(groups)} of {cells} settings: those of telling trials of each class.": is_partial,
        UNITS: True,
        f"Of these trials {diverged} diverged; values that are not finite are left out.": diverged,
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds)


def quartiles(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per step: the median of each column, its quartiles as _low and _high."""
    columns = {}
    for name in (*NORMS, *ORDER):
        band = bands(frame, name)
        columns |= {"step": band["step"], name: band["q50"]}
        columns |= {f"{name}_low": band["q25"], f"{name}_high": band["q75"]}
    return pd.DataFrame(columns)


def verdict(row: Any) -> list[str]:
    """Return the class with Theta, its suffix, and what the norms alone would say."""
    score = f", Θ = {row['theta']:.2f}" if np.isfinite(row["theta"]) else ""
    first = [f"{row['class']}{score}", *([str(row["suffix"])] if row["suffix"] else [])]
    return [*first, f"(norms: {row['class_norm']})"]


def joined(texts: Sequence[str], across: int) -> list[str]:
    """Return the texts with commas, as many on a line as fit with so many panels across."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + 2 + len(text) <= TITLE_WIDTH // min(across, 4):
            lines[-1] += f", {text}"
        else:
            lines.append(text)
    return lines


def shared_legend(figure: Figure, columns: Sequence[Sequence[Axes]]) -> None:
    """Explain every line once, below the panels: one column of the legend per row of panels."""
    rank = {text: number for number, (text, *_) in enumerate(ORDER.values())}
    parts: list[dict[str, Any]] = [{} for _ in columns[0]]
    for part, row in zip(parts, zip(*columns, strict=True), strict=True):
        found = [entry for ax in row for entry in zip(*ax.get_legend_handles_labels(), strict=True)]
        part |= {text: handle for handle, text in sorted(found, key=lambda entry: rank.get(entry[1], 0))}
    for part in parts[:-1]:
        for text in set(part) & set(parts[-1]):
            del part[text]
    longest = max(map(len, parts))
    filled = [[*part.items(), *[("", Line2D([], [], alpha=0))] * (longest - len(part))] for part in parts]
    texts, handles = zip(*(entry for part in filled for entry in part), strict=True)
    figure.legend(handles, texts, loc="outside lower center", ncols=len(parts))
