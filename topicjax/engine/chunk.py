"""One chunk of trials as it is known so far, all on the host.

Nothing here imports jax: what a driver and its workers send each other is made of this.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from topicjax.engine.options import Options
from topicjax.engine.plan import StreamRow
from topicjax.experiments.contract import Records
from topicjax.store.files import ids_name

Columns = dict[str, np.ndarray]  # per column of a record: trials x records, x an axis per index for details


class Interrupted(Exception):
    """The user asked to stop; everything finished is on disk."""


class Snapshot(NamedTuple):
    """Weights at one step: which trials of the chunk have any, and the leaves of their trees, trials x ..."""

    has: np.ndarray
    leaves: list[np.ndarray]


@dataclass(frozen=True)
class Saved:
    """A chunk in the middle of its training, to go on from later.

    Its arrays are read-only copies: training goes on while a state is written or on its way to the driver.
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
    """What a folder has of a chunk that is not finished."""

    folder: str = ""
    saved: Saved | None = None  # by a run that was interrupted
    states: list[np.ndarray] = field(default_factory=list)  # that shorter trainings ended in, trials x ...


@dataclass
class Callbacks:
    """What the training of a chunk asks of its run, which may be on another machine."""

    options: Options
    decide: Callable[[str, Records], str]  # (trial id, its records) -> why it ends, or nothing
    on_segment: Callable[[float, float], bool]  # (trial-steps done, trial-steps spared) -> asked to stop?
    save: Callable[[Saved], None]  # keeps a state to go on from
    say: Callable[[str], None] = lambda text: None


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

    def add_records(self, records: Mapping[str, Any], count: int | None = None) -> None:
        """Keep the records of a segment, or the first few of them."""
        unpacked = {name: self.unpacked(np.asarray(values)) for name, values in records.items()}
        self.records.append({name: values[:, :count] for name, values in unpacked.items()})

    def columns(self) -> Columns:
        """Return all records so far; those after a trial's end mean nothing."""
        return {
            name: np.concatenate([part[name] for part in self.records], axis=1) for name in self.records[0]
        }

    def add_snapshot(self, step: int, leaves: Sequence[Any], has: np.ndarray) -> None:
        """Keep the weights of some trials at a step, if the experiment has any to keep."""
        if leaves:
            self.snapshots[step] = Snapshot(has, [self.unpacked(np.asarray(leaf))[has] for leaf in leaves])

    def end(self, which: np.ndarray, step: int, reasons: Sequence[str]) -> None:
        """End these trials at a step; one reason for each of them.

        Arrays are replaced, never changed: others may hold the old ones.
        """
        ended = dict(zip(np.flatnonzero(which).tolist(), reasons, strict=True))
        self.stopped = np.where(which, step, self.stopped)
        self.reasons = [ended.get(place, reason) for place, reason in enumerate(self.reasons)]
