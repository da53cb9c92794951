"""Score trials as if they had ended earlier, to see whether a class depends on the number of steps."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from topicjax.stages import Array, Records
from topicjax.store.reader import Run
from topicjax.theory.progress import CUTS, Cuts

from ..topic_model import aligned
from .scores import VIEWS, score_trials

LEAST_RECORDS = 20  # of a trial that can be cut: a quarter of them must still separate stages


def stability(run: Run, steps: Sequence[int], cuts: Cuts = CUTS) -> pd.DataFrame:
    """Count, per view and number of steps, the trials that are two-stage then and still at twice as many.

    Trials that were planned with fewer than twice as many steps are left out.  Those that were stopped early
    keep the class they ended with; `ended` counts those that have no records after this step.
    """
    run = aligned(run)
    last = last_steps(run)
    is_stopped = stopped_early(run)
    cut = {step for number in steps for step in (number, 2 * number)}
    scores = {step: score_trials(cut_at(run, step), cuts) for step in cut}
    rows = []
    for view, end in VIEWS.items():
        is_two_stage = {step: (own["class" + end] == "two-stage").to_numpy() for step, own in scores.items()}
        for number in steps:
            compared = (last >= 2 * number) | is_stopped
            then = compared & is_two_stage[number]
            still = then & is_two_stage[2 * number]
            share = still.sum() / then.sum() if then.any() else np.nan
            ended = then & (last <= number)
            rows.append((view, number, then.sum(), ended.sum(), still.sum(), share))
    return pd.DataFrame(
        rows, columns=["view", "steps", "two_stage", "ended", "still_two_stage", "still_share"]
    )


def cut_at(run: Run, step: int) -> Run:
    """Cut the run at this step: drop later records, and set trials that diverged later to ok."""
    run = aligned(run)
    trials, records = run.trials, run.trajectories
    if "diverged_step" in trials:
        later = trials["diverged_step"].to_numpy(float) > step
        trials = trials.assign(status=trials["status"].mask(later, "ok"))
    kept = records["step"].to_numpy() <= step
    return run.replace(trials=trials, trajectories=records.loc[kept].reset_index(drop=True))


def longest_steps(run: Run) -> int:
    """Find the most steps of any trial that has enough records and was not stopped early; 0 without one."""
    run = aligned(run)
    records = Records.of(run.trajectories["step"].to_numpy())
    is_long = (records.end - records.start + 1 > LEAST_RECORDS) & ~stopped_early(run)
    return int(last_steps(run)[is_long].max(initial=0))


def last_steps(run: Run) -> Array:
    """Read the step of each trial's last record."""
    records = Records.of(run.trajectories["step"].to_numpy())
    return records.step[records.end]


def stopped_early(run: Run) -> Array:
    """Mask the trials that ended before they had trained all their steps."""
    if "stop_reason" not in run.trials:
        return np.zeros(len(run.trials), bool)
    reason = run.trials["stop_reason"]
    return (reason.notna() & (reason != "steps") & (reason != "")).to_numpy(bool)
