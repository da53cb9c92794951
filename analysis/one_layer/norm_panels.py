"""Norms and order parameters of a trial or of the median of several, as panels over the step."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from topicjax.store.reader import Run

from ..figures.step_panels import TITLE_SIZE, thinned
from ..frames import column, owners
from ..pictures import label
from ..topic_model import PART_COLOURS, aligned
from .curves import theorem2_block

VALUE, ATTENTION, MASK = PART_COLOURS["norm_v"], PART_COLOURS["norm_k"], "#CC79A7"
NORMS = {"norm_v": "-", "norm_k": "-", "norm_q": (0, (3, 2)), "norm_e": "-"}  # K and Q often coincide
ORDER = {  # column: label, colour, line, and the column it must come near to be worth drawing
    "v_block": ("V: same - other topic", VALUE, "-", ""),
    "a_topic": ("attention: same - other topic", ATTENTION, "-", ""),
    "v_diag": ("V: own word - same topic", VALUE, "--", "v_block"),
    "a_self": ("attention: own word - same topic", ATTENTION, "--", "a_topic"),
    "a_mask": ("attention of [MASK]: words - [MASK]", MASK, "-.", "a_topic"),
}
TURNING = "rotation_v"  # of W^V, in ten steps
GROWN = 1.05  # a norm whose maximum is less than this times its start has not grown
FLAT: dict[str, Any] = dict(linewidth=0.6, alpha=0.4)
WORTH, LEAST = 0.25, 0.1  # of its companion's largest size, and in its own unit


def drawable(run: Run) -> pd.DataFrame:
    """Return the trajectories with values in their units, NaN where frozen or not finite."""
    run = aligned(run)
    trials, records, owner = run.trials, run.trajectories, owners(run)
    unit = np.where(trials["objective"] == "squared", theorem2_block(trials), 1.0)
    attends = (trials["attention"] == "trained").to_numpy()
    drawn = dict.fromkeys(("norm_k", "norm_q", "a_topic", "a_self"), attends)
    drawn |= {f"norm_{part[0]}": (trials[part] == "trained").to_numpy() for part in ("value", "embedding")}
    drawn[TURNING] = drawn["norm_v"]
    drawn["a_mask"] = attends & (trials["key_visibility"] == "all").to_numpy()  # otherwise [MASK] is no key
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
    """Draw v_block and a_topic, and the others where they are a good part of these."""
    is_early = column(frame, "step") <= 0.95 * frame["step"].max()
    limits = [0.0, 0.1]
    for name, (text, colour, line, companion) in ORDER.items():
        if not companion or largest(frame, name) >= max(LEAST, WORTH * largest(frame, companion)):
            draw(frame, ax, name, 1.0, color=colour, linestyle=line, label=text)
            usual = 1.5 * largest(frame[is_early], name)  # a last jump must not flatten what was before
            limits += list(np.clip(np.nan_to_num(column(frame, name)), -usual, usual))
    low, high = min(limits), max(limits)
    ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    ax.axhline(0, color="#999999", linewidth=0.5, zorder=0)
    return ax


def largest(frame: Any, name: str) -> float:
    """Return the largest size of a column; 0 if nothing is finite."""
    return float(np.nan_to_num(np.abs(column(frame, name))).max(initial=0))


def draw(frame: Any, ax: Axes, name: str, unit: float, **look: Any) -> None:
    """Draw a column in its unit, with its quartiles if the frame has them."""
    if np.isfinite(column(frame, name)).any():
        ax.plot(frame["step"], frame[name] / unit, **look)
        if f"{name}_low" in frame:
            low, high = frame[f"{name}_low"] / unit, frame[f"{name}_high"] / unit
            ax.fill_between(frame["step"], low, high, color=look["color"], alpha=0.2, linewidth=0)


def is_cut(ax: Axes) -> bool:
    """Return whether an order parameter leaves the panel."""
    names = {text for text, *_ in ORDER.values()}
    curves = [np.nan_to_num(np.asarray(line.get_ydata())) for line in ax.lines if line.get_label() in names]
    low, high = ax.get_ylim()
    return any(curve.min() < low or curve.max() > high for curve in curves)
