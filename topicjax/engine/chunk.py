"""The state of one chunk of trials on the host: records, snapshots, where and why each trial ended.

Nothing here imports jax: messages between a driver and its workers are built from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from topicjax.engine.options import Options
from topicjax.engine.plan import StreamRow
from topicjax.experiments.contract import Records
from topicjax.store.files import ids_name

Columns = dict[str, np.ndarray]  # per column: trials x records (x one axis per index for details)


class Interrupted(Exception):
    """The user asked to stop; all finished trials are on disk."""


class Snapshot(NamedTuple):
    """Weights at one step: which trials of the chunk have them, and the leaves of their trees."""

    has: np.ndarray
    leaves: list[np.ndarray]


@dataclass(frozen=True)
class Saved:
    """Saved state of a chunk during training, to resume from.

    Its arrays are read-only copies: training continues while it is written or sent to the driver.
    """

    payload: Mapping[str, np.ndarray]
    meta: Mapping[str, Any]

    def __post_init__(self) -> None:
        copies = {name: np.array(values) for name, values in self.payload.items()}
        for copied in copies.values():
            copied.setflags(write=False)
        object.__setattr__(self, "payload", copies)
        object.__setattr__(self, "meta", dict(self.meta))


@dataclass
class Start:
    """What a folder holds of an unfinished chunk."""

    folder: str = ""
    saved: Saved | None = None  # by an interrupted run
    states: list[np.ndarray] = field(default_factory=list)  # final states of shorter trainings, trials x ...


@dataclass
class Callbacks:
    """Callbacks from the training of a chunk to its run, which may be on another machine."""

    options: Options
    decide: Callable[[str, Records], str]  # (trial id, its records) -> why it ends, or empty
    on_segment: Callable[[float, float], bool]  # (trial-steps done, trial-steps spared) -> whether to stop
    save: Callable[[Saved], None]  # stores a state to resume from
    say: Callable[[str], None] = lambda text: None


@dataclass
class Chunk:
    """Trials trained together: records by segment, snapshots by step, where and why each trial ended."""

    rows: Sequence[StreamRow]
    records: list[Columns] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    end_state: list[np.ndarray] = field(default_factory=list)  # of the trials that ran all their steps
    stopped: np.ndarray = field(default_factory=lambda: np.zeros(0, int))  # per trial: step; -1: in training
    reasons: list[str] = field(default_factory=list)  # per trial: why it stopped; empty: still training

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
        """Which trials are still training."""
        return self.stopped < 0

    def unpacked(self, values: np.ndarray) -> np.ndarray:
        """Reshape stream rows x lanes x ... to trials x ..., without the padding."""
        return np.concatenate([values[i, : len(row.trial_ids)] for i, row in enumerate(self.rows)])

    def packed(self, values: np.ndarray, shape: tuple[int, int], empty: Any = 0) -> np.ndarray:
        """Reshape trials x ... to stream rows x lanes x ..., with `empty` in unused lanes."""
        result = np.empty((*shape, *values.shape[1:]), values.dtype)
        result[:] = empty
        start = 0
        for i, row in enumerate(self.rows):
            result[i, : len(row.trial_ids)] = values[start : start + len(row.trial_ids)]
            start += len(row.trial_ids)
        return result

    def add_records(self, records: Mapping[str, Any], windows: np.ndarray) -> None:
        """Store the records of a segment, those of these windows."""
        unpacked = {name: self.unpacked(np.asarray(values)) for name, values in records.items()}
        self.records.append({name: values[:, windows] for name, values in unpacked.items()})

    def columns(self) -> Columns:
        """Concatenate all records so far (at `pace.steps_of`); those after a trial's end are meaningless."""
        return {
            name: np.concatenate([part[name] for part in self.records], axis=1) for name in self.records[0]
        }

    def add_snapshot(self, step: int, leaves: Sequence[Any], has: np.ndarray) -> None:
        """Store the weights of some trials at a step, if the experiment keeps any."""
        if leaves:
            self.snapshots[step] = Snapshot(has, [self.unpacked(np.asarray(leaf))[has] for leaf in leaves])

    def end(self, which: np.ndarray, step: int, reasons: Sequence[str]) -> None:
        """End these trials at a step, with one reason each.

        Arrays are replaced, not changed in place: others may hold the old ones.
        """
        ended = dict(zip(np.flatnonzero(which).tolist(), reasons, strict=True))
        self.stopped = np.where(which, step, self.stopped)
        self.reasons = [ended.get(place, reason) for place, reason in enumerate(self.reasons)]
