"""Measure how the engine's rate depends on the size of its chunks: `topicjax bench --scaling`.

Adam, default model and documents, records on.  A chunk has several streams per device, with several hypers
each.  Every distinct size is compiled once; all are then timed in turns.
"""

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import pandas as pd

from topicjax.bench.timing import EngineChunks, bench_spec, seconds_of
from topicjax.engine import costs
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import TRIALS, Spec
from topicjax.sweep import expand, logspace, product
from topicjax.trial import Trial

CHUNKS = (1, 2, 3, 4)  # numbers of calls and of chunks; the cost should be proportional to them


@dataclass(frozen=True)
class Size:
    """What one call trains: streams per device, hypers per stream, documents, words."""

    devices: int
    streams: int = 1
    hypers: int = 16
    batch_size: int = Spec.batch_size
    topics: int = Spec.topics
    words_per_topic: int = Spec.words_per_topic

    @property
    def trials(self) -> int:
        """Number of trials of a chunk."""
        return self.devices * self.streams * self.hypers


def curves(devices: int) -> dict[str, list[Size]]:
    """List the sizes along each curve; each curve shares a size with another."""
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
    """Make trials that fill chunks of this size."""
    names = ("batch_size", "topics", "words_per_topic")
    changes = {name: getattr(size, name) for name in names}
    spec = bench_spec("adam", steps=2 * Spec().record_every, **changes)
    base = {name: getattr(spec, name) for name in (*names, "optimizer", "steps", "record_every")}
    rates = logspace(1e-4, 1e-2, size.hypers)
    seeds = range(chunks * size.devices * size.streams)
    return expand(TRIALS, base, product(seed=seeds, learning_rate=rates))


def build(size: Size, chunks: int = 1) -> EngineChunks:
    """Compile chunks of this size."""
    return EngineChunks(trials(size, chunks), jax.devices()[: size.devices], size.streams * size.hypers)


def row(
    curve: str, size: Size, engine: EngineChunks, seconds: Sequence[float], times: dict[str, int]
) -> dict[str, Any]:
    """Make the row of one point; `times` is the factor on the steps or trials of one call."""
    trials, steps = size.trials * times.get("trials", 1), engine.steps * times.get("steps", 1)
    rates = [trials * steps / each for each in seconds]
    rate, flop = statistics.median(rates), costs.step_flops(EXPERIMENT, engine.group.spec)
    shape = dict(devices=size.devices, streams_per_device=size.streams, hypers_per_stream=size.hypers)
    shape |= dict(trials_per_chunk=size.trials, batch_size=size.batch_size, topics=size.topics)
    shape |= dict(words_per_topic=size.words_per_topic, trials=trials, steps=steps)
    timing = dict(seconds=statistics.median(seconds), trial_steps_per_second=rate, lowest=min(rates))
    timing |= dict(highest=max(rates), useful_gflops=rate * flop / 1e9, repeats=len(rates))
    return dict(curve=curve) | shape | timing | dict(compile_seconds=engine.compile_seconds)


def run(repeats: int, report: Callable[[str], None]) -> pd.DataFrame:
    """Measure one row per point of every curve; `report` is called with progress messages."""
    along = curves(len(jax.devices()))
    default = Size(len(jax.devices()))
    sizes = list(dict.fromkeys([default, *(size for each in along.values() for size in each)]))
    engines: dict[Size, EngineChunks] = {}
    for number, size in enumerate(sizes, start=1):
        report(f"compiling {number} of {len(sizes)}: {size}")
        engines[size] = build(size, max(CHUNKS) if size == default else 1)
    report(f"timing {len(sizes)} sizes in turns, {repeats} times each")
    rows = []
    timed = dict(zip(sizes, seconds_of([engines[size].advance for size in sizes], repeats), strict=True))
    for curve, members in along.items():
        rows += [row(curve, size, engines[size], timed[size], {}) for size in members]
    engine = engines[default]
    for name, next_chunk in (("steps", 0), ("trials", 1)):
        calls = [functools.partial(engine.advance_each, [i * next_chunk for i in range(n)]) for n in CHUNKS]
        for n, seconds in zip(CHUNKS, seconds_of(calls, repeats), strict=True):
            rows.append(row(name, default, engine, seconds, {name: n}))
    return pd.DataFrame(rows)
