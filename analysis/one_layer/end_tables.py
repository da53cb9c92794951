"""Tables of where trainings end: final losses and their lines, joint training and uniform attention."""

from typing import Any

import pandas as pd

from topicjax.store.reader import Run

from ..frames import MAIN_SETTINGS
from ..maps.cells import majority
from ..pictures import counted, label
from .endings import (
    CONVERGED,
    SETTLED,
    endings,
    joint_gains,
    lines_in,
    pair_settings,
    quartiles,
)
from .scores import CLASSES
from .tables import row_settings


def final_losses(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting: its loss at the end, its line, how far it came, if it converged, its class.

    way is the share of the way from the uniform prediction to the stage-1 line that was gone.
    """
    ends: Any = endings(run)
    keys = row_settings(ends)
    lines = [name for name in lines_in(ends) if name.endswith("stage1")]
    table = quartiles(ends, keys, ["loss", "way"], lines)
    cell = ends.groupby(keys, dropna=False, sort=True).ngroup().to_numpy()
    known = dict(zip(scores["trial_id"], scores["class"], strict=True))
    classes = ends["trial_id"].map(known).to_numpy()
    return table.assign(
        last_tenth=ends["falls"].groupby(cell).median().to_numpy(),
        converged=is_converged(ends).groupby(cell).sum().astype(int).to_numpy(),
        **{"class": majority(cell, classes, CLASSES)[0]},
    )


def convergence(run: Run) -> list[str]:
    """Return a sentence on how many trials of each objective and optimizer ended at the stage-1 line."""
    ends: Any = endings(run)
    ends = ends.assign(is_there=is_converged(ends)).loc[ends["way"].notna()]
    parts = [
        f"{', '.join(map(label, kind))}: {own['is_there'].sum()} of {counted(len(own), 'trial')} "
        f"(median way {100 * own['way'].median():.0f} %)"
        for kind, own in ends.groupby(list(MAIN_SETTINGS), sort=True)
    ]
    start = f"Converged ({CONVERGED:.0%} or more of the way from the uniform prediction to the stage-1 line, "
    return [f"{start}settled) are {'; '.join(parts)}."] if parts else []


def is_converged(ends: Any) -> Any:
    """Return which trials went CONVERGED of the way, and less than SETTLED of it in the last tenth."""
    return (ends["way"] >= CONVERGED) & (ends["falls"].abs() < SETTLED)


def joint_against_uniform(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting: losses of joint training and of uniform attention, and the limit lines."""
    pairs = joint_gains(run)
    return quartiles(pairs, pair_settings(pairs), ["joint", "uniform", "saved", "share"], lines_in(pairs))
