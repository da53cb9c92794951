"""Time methods in turns, so that other load affects all alike, and wrap the engine as one of them."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from topicjax.engine import costs
from topicjax.engine.plan import make_groups
from topicjax.engine.programs import Programs, device_mesh
from topicjax.experiments import Experiment
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import Spec
from topicjax.trial import Trial


@dataclass
class Method:
    """A timed way to train: `step()` runs `trial_steps` trial-steps and waits for them to finish."""

    name: str
    step: Callable[[], Any]
    trial_steps: int
    flop: float  # useful work of one trial-step
    compile_seconds: float = 0.0
    memory_bytes: float = float("nan")  # arguments, results and temporaries, on all devices


def seconds_of(calls: Sequence[Callable[[], Any]], repeats: int) -> list[list[float]]:
    """Time each call `repeats` times, in turns; return the seconds."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, taken in zip(calls, seconds, strict=True):
            start = time.monotonic()
            call()
            taken.append(time.monotonic() - start)
    return seconds


def memory_bytes(compiled: Any, devices: int = 1) -> float:
    """Compute the memory of a compiled program while it runs; donated buffers count once."""
    sizes = compiled.memory_analysis()
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return devices * (held - sizes.alias_size_in_bytes)


def bench_spec(optimizer: str, **changes: Any) -> Spec:
    """Make the default model and documents with this optimizer, for a few records."""
    return replace(Spec(), **dict(optimizer=optimizer, steps=20 * Spec().record_every) | changes)


class EngineChunks:
    """Chunks of one program, compiled and trained for a segment, without the store."""

    def __init__(
        self,
        trials: Sequence[Trial],
        devices: Sequence[Any],
        lanes_per_device: int,
        order: str = "",
        experiment: Experiment = EXPERIMENT,
    ) -> None:
        by_id = {experiment.settings.trial_id(trial): trial for trial in trials}
        (group,) = make_groups(experiment, by_id, len(devices), lanes_per_device)
        self.group = replace(group, order=order)
        compiling: list[float] = []
        self.programs = Programs(self.group, device_mesh(devices), compiling.append)
        self.arguments = [self.programs.arguments(rows) for rows in self.group.chunks]
        self.states = [self.programs.init(*arguments) for arguments in self.arguments]
        self.advance()
        self.compile_seconds = sum(compiling)

    @property
    def steps(self) -> int:
        """How many steps every trial of a chunk takes in one segment."""
        return self.programs.segment_steps

    def advance(self, chunk: int = 0) -> None:
        """Train one chunk for one segment, records included."""
        self.states[chunk], records = self.programs.advance(*self.arguments[chunk], self.states[chunk])
        jax.block_until_ready((self.states[chunk], records))

    def advance_each(self, chunks: Iterable[int]) -> None:
        """Train these chunks in order, for one segment each."""
        for chunk in chunks:
            self.advance(chunk)

    def method(self, name: str) -> Method:
        """Wrap a segment of the first chunk as a method to time."""
        trial_steps = self.steps * self.group.trials_per_chunk
        flop = costs.step_flops(self.group.experiment, self.group.spec)
        memory = memory_bytes(self.programs.compiled["advance"], self.programs.mesh.size)
        return Method(name, self.advance, trial_steps, flop, self.compile_seconds, memory)


def without_records(experiment: Experiment) -> Experiment:
    """Return the experiment with a single column that costs nothing."""

    def measure(
        spec: Any, stream: Any, hypers: Any, source: Any, state: Any, batch: Any, made: Any
    ) -> dict[str, Any]:
        return dict(nothing=jnp.zeros(()))

    return replace(experiment, measure=measure, measure_rarely=None, healthy=())


def planned_record_share(chunks: EngineChunks) -> float:
    """Compute the share of the work that `topicjax plan` expects records to take."""
    return costs.record_share(chunks.group.experiment, chunks.group.spec, chunks.group.lanes)


def drawing_seconds(chunks: EngineChunks, repeats: int) -> float:
    """Time how long a device draws the data of one step."""
    experiment, spec = chunks.group.experiment, chunks.group.spec
    settings = experiment.settings
    stream = settings.traced(chunks.group.chunks[0][0].stream)
    given = () if experiment.data is None else (experiment.data(spec).load(),)
    source = jax.jit(lambda: experiment.source(spec, stream, *given))()
    steps = jnp.arange(spec.record_every)
    draw = jax.jit(lambda source: jax.lax.map(lambda at: experiment.batch(spec, stream, source, at), steps))
    jax.block_until_ready(draw(source))
    (seconds,) = seconds_of([lambda: jax.block_until_ready(draw(source))], repeats)
    return min(seconds) / spec.record_every


def drawing_share(chunks: EngineChunks, rate: float, repeats: int) -> float:
    """Compute the share of time that drawing takes at this rate, in trial-steps per second.

    The lanes of a stream row share their data.
    """
    steps_of_row = rate / chunks.group.lanes / chunks.programs.mesh.size
    return drawing_seconds(chunks, repeats) * steps_of_row
