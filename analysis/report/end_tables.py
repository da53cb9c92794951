"""Tables of where trainings end: final losses and their lines, joint training and uniform attention."""

from typing import Any

import pandas as pd

from topicjax.store.reader import Run

from ..scoring.cells import majority
from ..scoring.endings import CONVERGED, SETTLED, endings, joint_gains, lines_in, pair_settings, quartiles
from .tables import row_settings


def final_losses(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting: its loss at the end, its line, how far it came, if it converged, its class.

    way is the share of the way from the uniform prediction to the stage-1 line that was gone.  Converged are
    the seeds that went CONVERGED of it or more, less than SETTLED of it in the last tenth of the steps.
    """
    ends: Any = endings(run)
    keys = row_settings(ends)
    is_there = (ends["way"] >= CONVERGED) & (ends["falls"].abs() < SETTLED)
    lines = [name for name in lines_in(ends) if name.endswith("stage1")]
    table = quartiles(ends, keys, ["loss", "way"], lines)
    cell = ends.groupby(keys, dropna=False, sort=True).ngroup().to_numpy()
    known = dict(zip(scores["trial_id"], scores["class"], strict=True))
    classes = ends["trial_id"].map(known).to_numpy()
    return table.assign(
        last_tenth=ends["falls"].groupby(cell).median().to_numpy(),
        converged=is_there.groupby(cell).sum().astype(int).to_numpy(),
        **{"class": majority(cell, classes)[0]},
    )


def joint_against_uniform(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting: losses of joint training and of uniform attention, and the limit lines."""
    pairs = joint_gains(run)
    return quartiles(pairs, pair_settings(pairs), ["joint", "uniform", "lower", "share"], lines_in(pairs))
