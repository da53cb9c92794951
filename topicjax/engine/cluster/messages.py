"""Messages between the driver of a run and the workers of its cluster.  Nothing here imports jax."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from topicjax.engine.chunk import Chunk, Start
from topicjax.engine.options import Options
from topicjax.engine.plan import Group
from topicjax.engine.references import ReferencesOf
from topicjax.trial import Trial

Kind = Literal["begun", "waits", "trained", "saved", "said", "stopped", "failed", "memory", "refused"]


class WorkerDevice(NamedTuple):
    """A device of a worker, described for planning."""

    platform: str
    device_kind: str
    memory: int

    def memory_stats(self) -> dict[str, int]:
        """Report its memory as jax devices do."""
        return {"bytes_limit": self.memory}


class Task(NamedTuple):
    """A chunk to train, with everything that its training needs."""

    number: int
    program: int
    first_program: int  # of this run: a worker drops programs of earlier runs
    group: Group | None  # without its streams; None: the worker has the program
    options: Options
    arithmetic: Mapping[str, Any]  # options of jax that the driver has
    chunk: Chunk
    start: Start
    trials: Mapping[str, Trial]  # of the chunk, if they may stop early; else empty
    references: ReferencesOf | None  # None: not computed yet


@dataclass
class Orders:
    """What the driver sends to a worker."""

    tasks: list[Task] = field(default_factory=list)
    references: dict[int, ReferencesOf] = field(default_factory=dict)  # by task
    stop: bool = False  # save the chunk being trained, and stop


class Event(NamedTuple):
    """Something that happened to a task on a worker."""

    task: int
    kind: Kind
    content: Any = None


@dataclass
class Report:
    """What happened on a worker since its last report."""

    events: list[Event] = field(default_factory=list)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)  # by task: trial-steps done, spared
    compile_seconds: float = 0.0


class Lost(NamedTuple):
    """A worker that died."""

    reason: str
    had_no_memory: bool
    with_its_node: bool
