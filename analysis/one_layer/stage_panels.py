"""Where one trial stands in the loss view: its progress, its stage boundary, and how both are drawn."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..topic_model import PART_COLOURS, aligned
from .curves import Array, Cuts, Records, loss_split, monotone
from .stages import CUTS
from .trained_parts import trains_attention, trains_value


@dataclass(frozen=True)
class Stages:
    """One trial in the loss view: its scores, its progress, and where its first stage ends."""

    scores: Any  # its row of score_trials
    progress: dict[str, Array]  # step, P, Q, their monotone fits F_V, F_A on the way up; else NaN
    boundary: float  # the first step that attains Theta; NaN without a Theta


def stages_of(run: Run, scores: pd.DataFrame, trial_id: str, cuts: Cuts = CUTS) -> Stages:
    """Return progress and stage boundary of one trial; `cuts` are those of its scores."""
    one = aligned(run.select([trial_id]))
    own: Any = scores_of(scores, trial_id)
    records = Records.of(one.trajectories["step"].to_numpy())
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        split = loss_split(records, one.trajectories, one.trials, cuts)
        kept, up = records.up_to(split.last)
        F_V, F_A = (monotone(up, curve[kept]) for curve in (split.value, split.attention))
    is_ok = own["class"] != "diverged"
    of_value = 1.0 if is_ok and trains_value(one.trials)[0] else np.nan
    of_attention = 1.0 if is_ok and trains_attention(one.trials)[0] else np.nan
    beyond = np.full(len(records.step) - len(up.step), np.nan)
    progress = dict(step=records.step, P=of_value * split.value, Q=of_attention * split.attention)
    progress |= dict(F_V=of_value * np.append(F_V, beyond), F_A=of_attention * np.append(F_A, beyond))
    has_theta = np.isfinite(own["theta"])
    return Stages(own, progress, boundary(up.step, F_V, F_A) if has_theta else np.nan)


def scores_of(scores: pd.DataFrame, trial_id: str) -> Any:
    """Return the row of one trial in the scores."""
    found = np.flatnonzero(scores["trial_id"] == trial_id)
    if not len(found):
        raise UserError(f"the scores have no trial {trial_id!r}; allowed: scores of the same run")
    return scores.iloc[found[0]]


def boundary(step: Array, F_V: Array, F_A: Array) -> float:
    """Return the first step where min(F_V, 1 - F_A) is Theta: F_V + F_A gets to 1, or F_V to its end."""
    total = F_V + F_A - 1
    reached = np.flatnonzero(total >= 0)
    if not len(reached):
        return float(step[np.searchsorted(F_V, F_V[-1])])
    right = reached[0]
    share = total[right - 1] / (total[right - 1] - total[right])
    return float(step[right - 1] + share * (step[right] - step[right - 1]))


def progress_panel(stages: Stages, ax: Axes) -> Axes:
    """Draw the progress of V and of attention: thin as measured, thick the monotone fits."""
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


def mark(stages: Stages, ax: Axes) -> Axes:
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
