"""Workers that sleep instead of training, so that only the driver works.  They do not import jax."""

import functools
import time
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from topicjax.engine.chunk import Chunk, Snapshot
from topicjax.engine.cluster.messages import Event, Orders, Report, Task
from topicjax.engine.plan import ALL_STEPS
from topicjax.experiments import Experiment
from topicjax.settings import Real, Whole
from topicjax.trial import TrialSettings

MODULE = "topicjax.bench.sleepers"
TOKENS = 101  # of the default model: rows and columns of a weight matrix
MATRICES = ("W_K", "W_Q", "W_V")
COLUMNS = 20
STEPS, RECORD_EVERY = 1000, 10
REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class Spec:
    """The settings that every Spec needs, and how long a worker sleeps per chunk."""

    steps: Annotated[int, Whole(1), "training steps"] = STEPS
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = RECORD_EVERY
    milliseconds: Annotated[int, Whole(0), "that a worker sleeps over a chunk"] = 0


class Stream(NamedTuple):
    """What trials of a stream row share."""

    seed: Annotated[Any, Whole(0), "of nothing"] = 0


class Hypers(NamedTuple):
    """What distinguishes trials."""

    learning_rate: Annotated[Any, Real(low=0), "of nothing"] = 0.0


Record = NamedTuple("Record", [(f"column_{i}", Any) for i in range(COLUMNS)])  # type: ignore[misc]


def matrices(*_: Any) -> dict[str, Any]:
    """Make jax arrays with the shapes of the default model's weights."""
    import jax.numpy as jnp

    return {name: jnp.zeros((TOKENS, TOKENS)) for name in MATRICES}


def record(*_: Any) -> Any:
    """Make a record of zeros."""
    import jax.numpy as jnp

    return Record(*[jnp.zeros(())] * COLUMNS)


def sleeping(name: str = "sleeping") -> Experiment:
    """Make an experiment whose trials are never trained but have known sizes for planning."""
    return Experiment(
        settings=TrialSettings(name, Spec, Stream, Hypers),
        init=matrices,
        update=lambda spec, stream, hypers, state, batch, step: (state, None),
        measure=record,
    )


@functools.cache
def noise(*shape: int) -> np.ndarray:
    """Draw incompressible numbers, once per shape."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def filled(chunk: Chunk, spec: Any) -> Chunk:
    """Fill a chunk with records, weights and last states of the right sizes, all noise."""
    count, records = len(chunk.trial_ids), spec.steps // spec.record_every + 1
    columns = noise(COLUMNS, count, records)
    drawn = noise(len(MATRICES), count, TOKENS, TOKENS)
    weights = list(drawn)
    chunk.records = [{f"column_{i}": values for i, values in enumerate(columns)}]
    chunk.snapshots = {spec.steps: Snapshot(np.ones(count, bool), weights)}
    chunk.end_state = weights
    chunk.stopped, chunk.reasons = np.full(count, spec.steps), [ALL_STEPS] * count
    return chunk


class Sleeper:
    """A worker that sleeps over each chunk for the time in its Spec."""

    devices = [("cpu", "cpu", 10**12)]

    def __init__(self, num_devices: int, on_cores: bool) -> None:
        self.specs: dict[int, Any] = {}
        self.tasks: list[Task] = []
        self.until = 0.0

    def exchange(self, orders: Orders) -> Report:
        """Take orders; sleep up to a second or until the first chunk is due, and return that chunk."""
        for task in orders.tasks:
            if task.group is not None:
                self.specs[task.program] = task.group.spec
            self.tasks.append(task)
            if len(self.tasks) == 1:
                self._begin()
        if not self.tasks or orders.stop:
            return Report([Event(task.number, "stopped") for task in self.tasks])
        left = self.until - time.monotonic()
        time.sleep(max(0.0, min(REPORT_SECONDS, left)))
        if left > REPORT_SECONDS:
            return Report()
        task = self.tasks.pop(0)
        spec = self.specs[task.program]
        trained = filled(task.chunk, spec)
        steps = float(spec.steps * len(trained.trial_ids))
        trained.rows = ()
        if self.tasks:
            self._begin()
        events = [Event(task.number, "begun"), Event(task.number, "trained", trained)]
        return Report(events, {task.number: (steps, 0.0)})

    def _begin(self) -> None:
        self.until = time.monotonic() + self.specs[self.tasks[0].program].milliseconds / 1000
