"""How a chunk is written once it is trained: its parts of the tables, its weights and its last states."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from topicjax.engine import costs
from topicjax.engine.chunk import ALL_STEPS, Chunk, Columns
from topicjax.engine.plan import Group
from topicjax.store.writer import Writer
from topicjax.trial import Trial


def write_chunk(
    writer: Writer, chunk: Chunk, group: Group, trials: Mapping[str, Trial], run: int
) -> tuple[int, int]:
    """Write a trained chunk; return how many of its trials are ok and how many diverged."""
    rows, trajectories, details = tables(chunk, group, trials, run)
    for step, snapshot in sorted(chunk.snapshots.items()):
        writer.save_snapshot(chunk.name, step, snapshot.weights)
    if chunk.end_state:
        leaves = {str(place): leaf for place, leaf in enumerate(chunk.end_state)}
        ended = [i for i, r in zip(chunk.trial_ids, chunk.reasons, strict=True) if r == ALL_STEPS]
        writer.save_end(chunk.name, leaves, {"step": group.spec.steps, "trial_ids": ended})
    has_weights = costs.sizes(group.experiment, group.spec).weights > 0
    keeps_end = has_weights and group.spec.steps in group.snapshots
    writer.commit(chunk.name, rows, trajectories, details, keeps_end)
    diverged = int(np.count_nonzero(rows["status"] == "diverged"))
    return len(rows) - diverged, diverged


def tables(
    chunk: Chunk, group: Group, trials: Mapping[str, Trial], run: int
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame | None]:
    """Return the chunk's parts of the trials, trajectories and details tables; None without details."""
    ids, columns, experiment = chunk.trial_ids, chunk.columns(), group.experiment
    shape = next(iter(columns.values())).shape[:2]
    step = np.broadcast_to(np.arange(shape[1], dtype=np.int32) * group.spec.record_every, shape)
    is_own = step <= chunk.stopped[:, None]
    counts = is_own.sum(axis=1)
    own = {name: values[is_own] for name, values in columns.items()}  # records, x places for details
    scalars = {name: values for name, values in own.items() if values.ndim == 1}
    trajectories = pd.DataFrame({"trial_id": np.repeat(ids, counts), "step": step[is_own], **scalars})
    arrays = {name: values for name, values in own.items() if name not in scalars}
    details = detail_table(trajectories, experiment.detail, arrays) if arrays else None
    healthy = [np.isfinite(columns[name]).reshape(*shape, -1) for name in experiment.healthy_columns]
    sick = ~np.all([values.all(axis=2) for values in healthy], axis=0) & is_own
    diverged = sick.any(axis=1)
    frame = pd.DataFrame([experiment.settings.settings_of(trials[trial_id]) for trial_id in ids])
    frame.insert(0, "trial_id", ids)
    results = {
        "status": np.where(diverged, "diverged", "ok"),
        "diverged_step": np.where(diverged, step[0][sick.argmax(axis=1)], np.nan),
        "stopped_step": chunk.stopped,
        "stop_reason": chunk.reasons,
    }
    last = np.cumsum(counts) - 1  # the row of each trial's last record
    finals = {f"final_{name}": values[last] for name, values in scalars.items()}
    where = {"run": run, "chunk": chunk.name, "row": np.arange(len(ids))}
    kept = sorted(chunk.snapshots.items())
    steps = [[at for at, snapshot in kept if snapshot.has[place]] for place in range(len(ids))]
    return frame.assign(**results, **finals, **where, snapshot_steps=steps), trajectories, details


def detail_table(records: pd.DataFrame, index: str, arrays: Columns) -> pd.DataFrame:
    """Return one row per record and place: whose and when, the place counted from 1, a column per array."""
    places = next(iter(arrays.values())).shape[1]
    table = {name: np.repeat(records[name].to_numpy(), places) for name in ("trial_id", "step")}
    table[index] = np.tile(np.arange(1, places + 1, dtype=np.int32), len(records))
    return pd.DataFrame(table | {name: values.ravel() for name, values in arrays.items()})
