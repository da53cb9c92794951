"""What a driver and its workers tell each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from topicjax.engine.chunk import Chunk, Start
from topicjax.engine.plan import Group
from topicjax.trial import Trial

Lines = Mapping[str, Mapping[str, float]]  # reference losses by trial
Kind = Literal["begun", "waits", "trained", "saved", "said", "stopped", "failed", "memory", "refused"]


class WorkerDevice(NamedTuple):
    """A device of a worker, as far as planning needs to know it."""

    platform: str
    device_kind: str
    memory: int

    def memory_stats(self) -> dict[str, int]:
        """Return its memory as jax devices do."""
        return {"bytes_limit": self.memory}


class Task(NamedTuple):
    """A chunk to train, with all that its training needs."""

    number: int
    program: int
    first_program: int  # of this run: a worker forgets those before
    group: Group | None  # without its streams; None: the worker has the program
    order: str
    chunk: Chunk
    start: Start
    trials: Mapping[str, Trial]  # of the chunk, if they may be decided; else none
    lines: Lines | None  # None: not known yet
    save_seconds: float


@dataclass
class Orders:
    """What a driver wants of a worker."""

    tasks: list[Task] = field(default_factory=list)
    lines: dict[int, Lines] = field(default_factory=dict)  # by task
    stop: bool = False  # save what is being trained, and end


class Event(NamedTuple):
    """Something that happened to a task on a worker."""

    task: int
    kind: Kind
    content: Any = None


@dataclass
class Report:
    """What has happened on a worker since it was last asked."""

    events: list[Event] = field(default_factory=list)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)  # by task: trial-steps done, spared
    compile_seconds: float = 0.0


class Lost(NamedTuple):
    """A worker that is gone."""

    reason: str
    had_no_memory: bool
    with_its_node: bool
