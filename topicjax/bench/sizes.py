"""The engine's own program at any size, and how its rate scales: `topicjax bench --scaling`.

Adam, default model and documents, records on.  A chunk is, on every device, some streams with some hypers
each.  Every distinct size is compiled once; all are then timed in turns.
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pandas as pd
from jax.sharding import AxisType, Mesh

from topicjax import sweep
from topicjax.engine import plan
from topicjax.engine.programs import Programs
from topicjax.trial import Spec, Trial, validate_spec

CHUNKS = (1, 2, 3, 4)  # calls and chunks over which cost must grow in proportion


@dataclass
class Program:
    """Something to time: `step()` runs `trial_steps` trial-steps to their end."""

    name: str
    step: Callable[[], Any]
    trial_steps: int
    flop: float  # useful work of one trial-step
    compile_seconds: float = 0.0
    memory_bytes: float = float("nan")  # arguments, results and temporaries, on all devices


def settings(optimizer: str, **changes: Any) -> Spec:
    """Return the default model and documents with this optimizer, for a few records."""
    spec = replace(Spec(), **dict(optimizer=optimizer, steps=20 * Spec().record_every) | changes)
    validate_spec(spec)
    return spec


def memory_bytes(compiled: Any, devices: int = 1) -> float:
    """Return what a compiled program holds while it runs; donated buffers count once."""
    sizes = compiled.memory_analysis()
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return devices * (held - sizes.alias_size_in_bytes)


class Engine:
    """The engine's own programs for trials of one group, without the store."""

    def __init__(self, trials: Sequence[Trial], devices: Sequence[Any], lanes: int) -> None:
        (self.group,) = plan.make_plan(trials, len(devices), lanes)
        mesh = Mesh(np.array(devices), ("devices",), axis_types=(AxisType.Auto,))
        compiling: list[float] = []
        self.programs = Programs(self.group, (), mesh, compiling.append)
        self.chunks = [self.programs.arguments(rows) for rows in self.group.chunks]
        self.states = [self.programs.init(*arguments) for arguments in self.chunks]
        self.advance()
        self.compile_seconds = sum(compiling)

    @property
    def steps(self) -> int:
        """How many steps every trial of a chunk takes in one call."""
        return self.programs.window * self.group.spec.record_every

    @property
    def trials(self) -> int:
        """How many trials a chunk has."""
        return self.group.rows_per_chunk * self.group.lanes

    def advance(self, chunk: int = 0) -> None:
        """Train one chunk for one segment, records included."""
        self.states[chunk], records = self.programs.advance(*self.chunks[chunk], self.states[chunk])
        jax.block_until_ready((self.states[chunk], records))

    def segments(self, chunks: Iterable[int]) -> None:
        """Train these chunks one after the other, a segment each."""
        for chunk in chunks:
            self.advance(chunk)

    def program(self, name: str) -> Program:
        """Return a segment of the first chunk as something to time."""
        flop = plan.step_flops(self.group.spec)
        memory = memory_bytes(self.programs.compiled["advance"], self.programs.mesh.size)
        return Program(name, self.advance, self.steps * self.trials, flop, self.compile_seconds, memory)


@dataclass(frozen=True)
class Size:
    """What one call trains: streams on each device, hypers that share each stream, documents, words."""

    devices: int
    streams: int = 1
    hypers: int = plan.CPU_LANES
    batch_size: int = 40
    topics: int = 10
    words_per_topic: int = 10

    @property
    def trials(self) -> int:
        """The trials of a chunk."""
        return self.devices * self.streams * self.hypers


def curves(devices: int) -> dict[str, list[Size]]:
    """Return the sizes along each curve; every one meets the default size or a neighbour's."""
    counts = sorted({min(2**power, devices) for power in range(devices.bit_length() + 1)})
    vocabularies = ((5, 5), (5, 10), (10, 10), (10, 20), (20, 10))
    return {
        "trials per chunk, one stream a device": [Size(devices, 1, n) for n in (1, 4, 16, 32)],
        "trials per chunk, 16 hypers a stream": [Size(devices, n, 16) for n in (1, 2, 4)],
        "hypers per stream": [Size(devices, 32 // n, n) for n in (1, 2, 4, 8, 16, 32)],
        "devices": [Size(n) for n in counts],
        "batch size": [Size(devices, batch_size=n) for n in (10, 20, 40, 80, 160)],
        "vocabulary": [Size(devices, topics=T, words_per_topic=v) for T, v in vocabularies],
    }


def trials(size: Size, chunks: int = 1) -> list[Trial]:
    """Return trials that fill chunks of this size."""
    names = ("batch_size", "topics", "words_per_topic")
    spec = settings("adam", steps=2 * Spec().record_every, **{name: getattr(size, name) for name in names})
    base = {name: getattr(spec, name) for name in (*names, "optimizer", "steps", "record_every")}
    rates = sweep.logspace(1e-4, 1e-2, size.hypers)
    seeds = range(chunks * size.devices * size.streams)
    return sweep.trials(base, sweep.product(seed=seeds, learning_rate=rates))


def build(size: Size, chunks: int = 1) -> Engine:
    """Return the engine for chunks of this size, compiled."""
    return Engine(trials(size, chunks), jax.devices()[: size.devices], size.streams * size.hypers)


def seconds_of(calls: Sequence[Callable[[], Any]], repeats: int) -> list[list[float]]:
    """Return the seconds of every call, `repeats` times in turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, own in zip(calls, seconds, strict=True):
            start = time.monotonic()
            call()
            own.append(time.monotonic() - start)
    return seconds


def row(curve: str, size: Size, engine: Engine, seconds: Sequence[float], times: dict[str, int]) -> dict:
    """Return one measured point; `times` says how often it took the steps or trials of one call."""
    trials, steps = size.trials * times.get("trials", 1), engine.steps * times.get("steps", 1)
    rates = [trials * steps / each for each in seconds]
    rate, flop = statistics.median(rates), plan.step_flops(engine.group.spec)
    shape = dict(devices=size.devices, streams_per_device=size.streams, hypers_per_stream=size.hypers)
    shape |= dict(trials_per_chunk=size.trials, batch_size=size.batch_size, topics=size.topics)
    shape |= dict(words_per_topic=size.words_per_topic, trials=trials, steps=steps)
    timing = dict(seconds=statistics.median(seconds), trial_steps_per_second=rate, lowest=min(rates))
    timing |= dict(highest=max(rates), useful_gflops=rate * flop / 1e9, repeats=len(rates))
    return dict(curve=curve) | shape | timing | dict(compile_seconds=engine.compile_seconds)


def run(repeats: int, report: Callable[[str], None]) -> pd.DataFrame:
    """Return one row a point of every curve; long enough for `report` to say how far it is."""
    along = curves(len(jax.devices()))
    default = Size(len(jax.devices()))
    sizes = list(dict.fromkeys([default, *(size for each in along.values() for size in each)]))
    engines: dict[Size, Engine] = {}
    for number, size in enumerate(sizes, start=1):
        report(f"compiling {number} of {len(sizes)}: {size}")
        engines[size] = build(size, max(CHUNKS) if size == default else 1)
    report(f"timing {len(sizes)} programs, {repeats} times in turns")
    rows = []
    timed = dict(zip(sizes, seconds_of([engines[size].advance for size in sizes], repeats), strict=True))
    for curve, members in along.items():
        rows += [row(curve, size, engines[size], timed[size], {}) for size in members]
    own = engines[default]
    for name, next_chunk in (("steps", 0), ("trials", 1)):
        calls = [functools.partial(own.segments, [i * next_chunk for i in range(n)]) for n in CHUNKS]
        for n, seconds in zip(CHUNKS, seconds_of(calls, repeats), strict=True):
            rows.append(row(name, default, own, seconds, {name: n}))
    return pd.DataFrame(rows)
