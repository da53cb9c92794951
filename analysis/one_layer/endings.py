"""Where trainings end: held-out losses against the limit lines, joint training against uniform attention."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from topicjax.store.reader import Run
from topicjax.theory.progress import units

from ..frames import column, varying
from ..topic_model import MAIN_SETTINGS, SETTINGS, STAGE_LINES, aligned, settings_in
from .curves import Records
from .stages import CUTS
from .trained_parts import trains_both

QUARTILES = {"": 0.5, "_q25": 0.25, "_q75": 0.75}  # how the columns of a median and its quartiles end
CONVERGED = 0.95  # of the way to the stage-1 line
SETTLED = 0.01  # of that way: the most that the last tenth of the steps may take off
LINES = ("line_stage1", "held_out_stage1", "line_stage2", "held_out_stage2", "line_bayes")


def endings(run: Run) -> pd.DataFrame:
    """Return one row per trial: its settings and limit lines, its loss at the end, how far that is.

    loss is the mean over the last tenth of the steps, on the held-out documents; way is how much of the way
    from the uniform prediction to L1* it has gone, falls what of it since the tenth before; gain = L1* - L2*;
    all are NaN for trials that are not finite.  Uniform, not L(0): from a start that is worse than knowing
    nothing, as common defaults are, unlearning would look like learning.  L(0) stands for an unknown line.
    """
    run = aligned(run)
    trials, loss = run.trials, column(run.trajectories, "eval_loss")
    records = Records.of(run.trajectories["step"].to_numpy())
    last, last_fifth = records.last(CUTS.last), records.last(2 * CUTS.last)
    end, before = records.mean(loss, last), records.mean(loss, last_fifth & ~last | single(records))
    lines = {name: column(trials, place) for name, place in STAGE_LINES.items() if place in trials}
    uniform = column(trials, "line_uniform")
    start = np.where(np.isfinite(uniform), uniform, loss[records.start])
    drop, gain = units(start, lines, CUTS.line_errors)
    is_bad = np.logical_or.reduceat(~np.isfinite(loss), records.start)
    is_bad |= (trials["status"] == "diverged").to_numpy()
    found = dict(loss=end, way=(start - end) / drop, falls=(before - end) / drop, gain=gain)
    kept = trials[["trial_id", *settings_in(trials), *lines_in(trials)]]
    return kept.assign(**{name: np.where(is_bad, np.nan, values) for name, values in found.items()})


def lines_in(frame: pd.DataFrame) -> list[str]:
    """Return the limit lines that a table has as columns."""
    return [name for name in LINES if name in frame]


def single(records: Records) -> np.ndarray:
    """Return the mask of records of trials with fewer than two records in their last fifth."""
    count = np.add.reduceat((records.last(2 * CUTS.last)).astype(int), records.start)
    return records.spread(count < 2)


def joint_gains(run: Run) -> pd.DataFrame:
    """Return one row per pair of trials that differ in nothing but attention, trained or uniform.

    joint and uniform are their losses at the end, saved = uniform - joint, and share = saved in units of
    what topical attention can gain.
    """
    ends: Any = endings(run)
    keys = [name for name in settings_in(ends) if name != "attention"]
    both = ends.loc[trains_both(ends)].rename(columns={"loss": "joint"})
    uniform = ends.loc[ends["attention"] == "uniform", [*keys, "loss"]]
    pairs = both.merge(uniform.rename(columns={"loss": "uniform"}), on=keys)
    saved = pairs["uniform"] - pairs["joint"]
    return pairs.assign(saved=saved, share=saved / pairs["gain"])


def pair_settings(pairs: pd.DataFrame) -> list[str]:
    """Return the settings that tell pairs apart: objective, optimizer and all that vary but the seed."""
    others = [name for name in SETTINGS if name not in ("seed", *MAIN_SETTINGS)]
    return [*MAIN_SETTINGS, *varying(pairs, others)]


def quartiles(frame: Any, keys: list[str], names: Sequence[str], known: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row per combination of the keys: n, and the median and quartiles of each column over it.

    The `known` columns, which the keys decide on, are there as they are: their means.
    """
    groups = frame.groupby(keys, dropna=False, sort=True)
    columns = {"n": groups[names[0]].count()}
    for name in names:
        columns |= {name + end: groups[name].quantile(share) for end, share in QUARTILES.items()}
    return pd.DataFrame(columns | {name: groups[name].mean() for name in known}).reset_index()
