"""Score two columns of any run: one row per trial with Theta, lag and onsets (see topicjax.stages)."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import pandas as pd

from topicjax.errors import UserError, unknown_name
from topicjax.stages import HALF, Array, Records, compare, monotone, rise, steady_maximum
from topicjax.store.reader import Run

from .frames import Frame, column, due_records, sort_records

Unit = Literal["one", "own maximum"]


def stages(run: Run, first: str, second: str, unit: Unit = "one", level: float = HALF) -> pd.DataFrame:
    """Score whether the column `first` rises before the column `second`, one row per trial.

    With unit "one" both columns of the trajectories are progress from 0 to 1.  With "own maximum" they are
    any curves: the rise since step 0 is divided by the trial's largest rise.  A row has trial_id, settings,
        theta                      1: the first is done before the second begins; 0.5: both rise together
        theta_reversed             the same with the roles swapped
        log_lag                    ln(t_second / t_first) for two jumps; positive: the first leads
        onset_first, onset_second  the step at which a curve reaches `level`; NaN if never
        max_first, max_second      the largest progress, after medians of three records
    Trials with a non-finite value have NaN.  If a column is measured rarely, the records between are left
    out.
    """
    if unit not in get_args(Unit):
        raise UserError(unknown_name("unit", unit, get_args(Unit)))
    if not 0 < level < 1:
        raise UserError(f"level is {level}; allowed: above 0 and below 1")
    known = [name for name in run.trajectories if name not in ("trial_id", "step")]
    for name in (first, second):
        if name not in known:
            raise UserError(unknown_name("column", name, known))
    frame, owner = sort_records(run.trajectories, run.trials)
    frame = measured_records(frame, run.trials.iloc[owner], (first, second))
    records = Records.of(frame["step"].to_numpy())
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        curves = {"first": column(frame, first), "second": column(frame, second)}
        if unit == "own maximum":
            curves = {name: rise(records, curve) for name, curve in curves.items()}
        F = {name: monotone(records, curve) for name, curve in curves.items()}
        scores = compare(records, F["first"], F["second"], level)
        for name, curve in curves.items():
            is_bad = records.any(~np.isfinite(curve))
            scores[f"max_{name}"] = np.where(is_bad, np.nan, steady_maximum(records, curve))
    return run.trials[["trial_id", *run.setting_names]].reset_index(drop=True).assign(**scores)


def measured_records(frame: Frame, trials: Frame, names: Sequence[str]) -> Frame:
    """Keep the records at which these columns were measured; `trials` has the row of each record's trial.

    A rare column is NaN at all records but every `rare_every`-th one.
    """
    is_due = due_records(frame, trials)
    if is_due.all():
        return frame
    is_rare = any(np.isnan(column(frame, name)[~is_due]).all() for name in names)
    return frame.loc[is_due].reset_index(drop=True) if is_rare else frame


def join_flags(flags: dict[str, Array], where: Array) -> Array:
    """Join the names of each trial's flags with commas, for the trials in the mask `where`."""
    bits = sum((flag & where).astype(int) << place for place, flag in enumerate(flags.values()))
    found, kind = np.unique(bits, return_inverse=True)
    names = [",".join(name for place, name in enumerate(flags) if value >> place & 1) for value in found]
    return np.array(names)[kind]
