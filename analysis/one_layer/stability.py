"""Does a class depend on the budget?  Trials scored as if they had ended earlier."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from topicjax.store.reader import Run

from ..topic_model import aligned
from .curves import Array, Cuts, Records
from .stages import CUTS, VIEWS, score_trials

LEAST_RECORDS = 20  # of a trial that can be cut: a quarter of them must tell stages apart


def stability(run: Run, steps: Sequence[int], cuts: Cuts = CUTS) -> pd.DataFrame:
    """Return per view and number of steps how many trials are two-stage then, and still at twice as many.

    Trials that were planned with fewer than twice as many steps are left out; those that were stopped early
    keep the class that they ended with, and `ended` counts those of which nothing new can be seen.
    """
    run = aligned(run)
    last = last_steps(run)
    is_stopped = stopped_early(run)
    classes = {step: classes_at(run, step, cuts) for number in steps for step in (number, 2 * number)}
    rows = []
    for view in VIEWS:
        for number in steps:
            compared = (last >= 2 * number) | is_stopped
            then = compared & (classes[number][view] == "two-stage")
            still = then & (classes[2 * number][view] == "two-stage")
            share = still.sum() / then.sum() if then.any() else np.nan
            ended = then & (last <= number)
            rows.append((view, number, then.sum(), ended.sum(), still.sum(), share))
    return pd.DataFrame(rows, columns=["view", "steps", "two_stage", "ended", "still_two_stage", "share"])


def classes_at(run: Run, step: int, cuts: Cuts = CUTS) -> dict[str, Array]:
    """Return the class of each trial in each view, had training ended at this step."""
    scores = score_trials(cut_at(run, step), cuts)
    return {view: scores["class" + end].to_numpy() for view, end in VIEWS.items()}


def cut_at(run: Run, step: int) -> Run:
    """Return the run as it was at this step: without later records, and what diverged later is still ok."""
    run = aligned(run)
    trials, records = run.trials, run.trajectories
    if "diverged_step" in trials:
        later = trials["diverged_step"].to_numpy(float) > step
        trials = trials.assign(status=trials["status"].mask(later, "ok"))
    kept = records["step"].to_numpy() <= step
    return run.replace(trials=trials, trajectories=records.loc[kept].reset_index(drop=True))


def longest_steps(run: Run) -> int:
    """Return the most steps that a trial with enough records was trained for to its end; 0 without one."""
    run = aligned(run)
    records = Records.of(run.trajectories["step"].to_numpy())
    is_long = (records.end - records.start + 1 > LEAST_RECORDS) & ~stopped_early(run)
    return int(last_steps(run)[is_long].max(initial=0))


def last_steps(run: Run) -> Array:
    """Return the step of each trial's last record."""
    records = Records.of(run.trajectories["step"].to_numpy())
    return records.step[records.end]


def stopped_early(run: Run) -> Array:
    """Return which trials ended for another reason than having trained all their steps."""
    if "stop_reason" not in run.trials:
        return np.zeros(len(run.trials), bool)
    reason = run.trials["stop_reason"]
    return (reason.notna() & (reason != "steps") & (reason != "")).to_numpy(bool)
