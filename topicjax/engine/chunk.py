"""One chunk of trials as it is known so far, all on the host, and how it is written once it is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from topicjax.engine.plan import Group, StreamRow
from topicjax.store.folder import ids_name
from topicjax.store.writer import Writer
from topicjax.trial import Trial

Columns = dict[str, np.ndarray]  # per column of a record: trials x records, x places for details
ALL_STEPS = "steps"  # why a trial ended that was trained to the end and could be trained further


class Snapshot(NamedTuple):
    """Weights at one step: which trials of the chunk have any, and the arrays of those."""

    has: np.ndarray
    weights: dict[str, np.ndarray]


@dataclass
class Chunk:
    """Trials that are trained together: records by segment, snapshots by step, where and why each ended."""

    rows: Sequence[StreamRow]
    records: list[Columns] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    end_state: list[np.ndarray] = field(default_factory=list)  # of the trials that ended with their steps
    stopped: np.ndarray = field(default_factory=lambda: np.zeros(0, int))  # step per trial; -1: it goes on
    reasons: list[str] = field(default_factory=list)  # why, per trial; empty: it goes on

    def __post_init__(self) -> None:
        self.stopped = np.full(len(self.trial_ids), -1)
        self.reasons = [""] * len(self.trial_ids)

    @property
    def trial_ids(self) -> list[str]:
        """The trials of the chunk, in the order of its tables and checkpoints."""
        return [trial_id for row in self.rows for trial_id in row.trial_ids]

    @property
    def name(self) -> str:
        """The name of the chunk's files."""
        return ids_name(self.trial_ids)

    @property
    def goes_on(self) -> np.ndarray:
        """Which trials are still being trained."""
        return self.stopped < 0

    def unpacked(self, values: np.ndarray) -> np.ndarray:
        """Return stream rows x lanes x ... as trials x ..., without the padding."""
        return np.concatenate([values[i, : len(row.trial_ids)] for i, row in enumerate(self.rows)])

    def packed(self, values: np.ndarray, shape: tuple[int, int], empty: Any = 0) -> np.ndarray:
        """Return trials x ... as stream rows x lanes x ..., with `empty` in the places without a trial."""
        result = np.empty((*shape, *values.shape[1:]), values.dtype)
        result[:] = empty
        start = 0
        for i, row in enumerate(self.rows):
            result[i, : len(row.trial_ids)] = values[start : start + len(row.trial_ids)]
            start += len(row.trial_ids)
        return result

    def add_records(self, records: Any, count: int | None = None) -> None:
        """Keep the records of a segment, or the first few of them, trials x records (x places)."""
        columns = records._asdict().items()
        self.records.append({name: self.unpacked(np.asarray(values))[:, :count] for name, values in columns})

    def columns(self) -> Columns:
        """Return all records so far, trials x records (x places); those after a trial's end mean nothing."""
        return {
            name: np.concatenate([part[name] for part in self.records], axis=1) for name in self.records[0]
        }

    def add_snapshot(self, step: int, weights: Mapping[str, Any], has: np.ndarray) -> None:
        """Keep the weights of some trials at a step, if the experiment has any to keep."""
        if weights:
            own = {name: self.unpacked(np.asarray(leaf))[has] for name, leaf in weights.items()}
            self.snapshots[step] = Snapshot(has, own)

    def end(self, which: np.ndarray, step: int, reasons: Sequence[str]) -> None:
        """End these trials at a step; one reason for each of them."""
        self.stopped[which] = step
        for place, reason in zip(np.flatnonzero(which), reasons, strict=True):
            self.reasons[place] = reason


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
    writer.commit(chunk.name, rows, trajectories, details)
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
