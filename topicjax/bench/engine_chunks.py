"""Chunks of trials in the engine's own programs, without the store: what the benchmarks time."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax

from topicjax.bench.timing import Method, memory_bytes
from topicjax.engine import costs
from topicjax.engine.plan import make_groups
from topicjax.engine.programs import Programs, device_mesh
from topicjax.experiments import Experiment
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import Spec
from topicjax.trial import Trial


def bench_spec(optimizer: str, **changes: Any) -> Spec:
    """Return the default model and documents with this optimizer, for a few records."""
    return replace(Spec(), **dict(optimizer=optimizer, steps=20 * Spec().record_every) | changes)


class EngineChunks:
    """Chunks of trials that share one Spec, compiled and trained for one segment."""

    def __init__(
        self,
        trials: Sequence[Trial],
        devices: Sequence[Any],
        lanes_per_device: int,
        order: str = "",
        experiment: Experiment = EXPERIMENT,
    ) -> None:
        by_id = {experiment.settings.trial_id(trial): trial for trial in trials}
        (self.group,) = make_groups(experiment, by_id, len(devices), lanes_per_device)
        compiling: list[float] = []
        self.programs = Programs(self.group, device_mesh(devices), compiling.append, order)
        self.arguments = [self.programs.arguments(rows) for rows in self.group.chunks]
        self.states = [self.programs.init(*arguments) for arguments in self.arguments]
        self.advance()
        self.compile_seconds = sum(compiling)

    @property
    def steps(self) -> int:
        """Return how many steps every trial of a chunk takes in one segment."""
        return self.programs.segment_steps

    def advance(self, chunk: int = 0) -> None:
        """Train one chunk for one segment, records included."""
        self.states[chunk], records = self.programs.advance(*self.arguments[chunk], self.states[chunk])
        jax.block_until_ready((self.states[chunk], records))

    def advance_each(self, chunks: Iterable[int]) -> None:
        """Train these chunks one after the other, for one segment each."""
        for chunk in chunks:
            self.advance(chunk)

    def method(self, name: str) -> Method:
        """Return a segment of the first chunk as a method to time."""
        trial_steps = self.steps * self.group.trials_per_chunk
        flop = costs.step_flops(self.group.experiment, self.group.spec)
        memory = memory_bytes(self.programs.compiled["advance"], self.programs.mesh.size)
        return Method(name, self.advance, trial_steps, flop, self.compile_seconds, memory)
