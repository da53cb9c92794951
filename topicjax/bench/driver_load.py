"""Measure how many workers one driver can feed: the cost of a chunk, and a run with sleeping workers."""

import contextlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from topicjax.bench.sleepers import MODULE, STEPS, sleeping
from topicjax.engine.chunk import Chunk, Start
from topicjax.engine.cluster.connection import Cluster
from topicjax.engine.cluster.messages import Orders, Task
from topicjax.engine.options import Options, parse_address
from topicjax.engine.plan import Group, make_groups
from topicjax.engine.resources import Resources
from topicjax.engine.run import run_sweep
from topicjax.engine.segments import write_chunk
from topicjax.errors import size
from topicjax.store.writer import Writer
from topicjax.sweep import expand, product
from topicjax.sweep.files import NamedSweep

SLEEPER = (MODULE, "Sleeper")
TRIALS = 512  # of the measured chunk
CORE_RATE, CORES = (
    1600.0,
    8,
)  # trial-steps per second of a core that trains `two_stage`, and cores of a worker
NETWORK = 1.25e8  # bytes per second: 1 Gbit/s
WORKERS, SMALL = 64, 64  # in the simulation: workers, and trials per chunk
PATIENCE = 240.0  # seconds for all workers to start
LOADS = (0.5, 2.0)  # of the driver in the simulation: half its capacity, and twice


class Costs(NamedTuple):
    """What one chunk costs the driver, in seconds, and its size."""

    dispatch: float
    fetch: float
    write: float
    num_bytes: int

    @property
    def total(self) -> float:
        """Seconds of the driver per chunk."""
        return self.dispatch + self.fetch + self.write


def sleeping_group(trials: int, milliseconds: int = 0, seed: int = 0) -> tuple[Group, dict[str, Any]]:
    """Make a group of one chunk, and its trials by id."""
    experiment = sleeping()
    sweep = product(seed=seed, learning_rate=[float(i) for i in range(trials)])
    made = expand(experiment.settings, {"milliseconds": milliseconds}, sweep)
    by_id = {experiment.settings.trial_id(trial): trial for trial in made}
    (group,) = make_groups(experiment, by_id, 1, trials, "last")
    return group, by_id


def measure(cluster: Cluster, trials: int, repeats: int) -> Costs:
    """Measure the median cost of a chunk of `trials`, sent to a worker that returns it at once."""
    seconds: dict[str, list[float]] = {"dispatch": [], "fetch": [], "write": []}
    member, num_bytes = cluster.members.ready[0], 0
    with tempfile.TemporaryDirectory() as place, Writer(Path(place) / "run", "load") as writer:
        for repeat in range(repeats + 1):
            group, by_id = sleeping_group(trials, seed=repeat)
            chunk = Chunk(group.chunks[0])
            task = Task(repeat, repeat, 0, group, Options(order="lane"), {}, chunk, Start(), {}, {})
            times = [time.monotonic()]
            call = member.actor.exchange.remote(Orders([task]))
            times.append(time.monotonic())
            cluster.members.ray.wait([call])
            times.append(time.monotonic())
            trained = cluster.members.ray.get(call).events[-1].content
            trained.rows = chunk.rows
            times.append(time.monotonic())
            write_chunk(writer, trained, group, by_id, 1)
            times.append(time.monotonic())
            if repeat:  # the first includes imports
                for name, first in (("dispatch", 0), ("fetch", 2), ("write", 3)):
                    seconds[name].append(times[first + 1] - times[first])
            num_bytes = chunk_bytes(trained)
    typical = {name: statistics.median(taken) for name, taken in seconds.items()}
    return Costs(**typical, num_bytes=num_bytes)


def chunk_bytes(chunk: Chunk) -> int:
    """Sum the bytes of the arrays of a trained chunk."""
    arrays = [*chunk.end_state, *(values for part in chunk.records for values in part.values())]
    arrays += [leaf for snapshot in chunk.snapshots.values() for leaf in snapshot.leaves]
    return sum(array.nbytes for array in arrays)


def simulate(cluster: Cluster, trials: int, seconds: float, rounds: int) -> float:
    """Measure the chunks per second of a real run whose workers sleep `seconds` per chunk."""
    experiment = sleeping()
    count = rounds * cluster.num_workers
    rates = [float(i) for i in range(trials)]
    sweep = product(seed=range(count), learning_rate=rates)
    base = {"milliseconds": round(1000 * seconds)}
    named = NamedSweep("simulation", "", experiment, base, sweep)
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(sys.stderr):
        resources = Resources(cluster.devices, cluster)
        expanded = expand(experiment.settings, base, sweep)
        outcome = run_sweep(named, expanded, Path(place) / "run", Options(trials), resources)
    assert outcome.ok == count * trials
    return count / outcome.seconds


def measure_driver(repeats: int, say: Callable[[str], None]) -> tuple[dict[str, Any], str]:
    """Measure, derive and simulate; return the numbers, and a text about them."""
    say(f"starting {WORKERS} workers that sleep ...")
    with Cluster(parse_address(f"local:{WORKERS}"), maker=SLEEPER) as cluster:
        cluster.members.gather(PATIENCE)
        large, small = measure(cluster, TRIALS, repeats), measure(cluster, SMALL, repeats)
        runs = []
        for load in LOADS:
            sleep = WORKERS * small.total / load
            say(f"simulating {WORKERS} workers that sleep {sleep:.1f} s over a chunk ...")
            expected = min(WORKERS / sleep, 1 / small.total)
            rounds = max(3, math.ceil(45 / sleep))
            runs.append({"load": load, "sleep": sleep, "expected": expected, "rounds": rounds})
            runs[-1]["measured"] = simulate(cluster, SMALL, sleep, rounds)
    found = {"trials": TRIALS, **large._asdict(), "small": small._asdict(), "simulation": runs}
    return found, text(large, runs)


def text(costs: Costs, runs: Sequence[dict[str, float]]) -> str:
    """Describe what was measured and what follows from it."""
    needs = TRIALS * STEPS / (CORE_RATE * CORES)
    over_network = costs.num_bytes / NETWORK
    parts = {"sending chunks": costs.dispatch, "fetching results": costs.fetch, "writing": costs.write}
    slowest = max(parts, key=lambda name: parts[name])
    wide, limit = max((costs.total, slowest), (over_network, "the network"))
    lines = [
        f"one chunk of {TRIALS} trials x {STEPS:,} steps is {size(costs.num_bytes)} and costs the driver",
        f"  {1000 * costs.dispatch:7.1f} ms to send",
        f"  {1000 * costs.fetch:7.1f} ms to fetch from this machine ({over_network:.1f} s over 1 Gbit/s)",
        f"  {1000 * costs.write:7.1f} ms to write: records, weights, last states",
        f"a worker of {CORES} cores needs {needs:.0f} s for it at {CORE_RATE:,.0f} trial-steps/s per core: "
        f"one driver feeds {needs / costs.total:.0f} workers, then {slowest} is what limits "
        f"(over 1 Gbit/s: {needs / wide:.0f} workers, then {limit})",
        f"{WORKERS} workers that sleep, chunks of {SMALL} trials, chunks per second, from start to end:",
    ]
    for run in runs:
        rates = f"expected {run['expected']:.2f}, measured {run['measured']:.2f}"
        lines.append(f"  sleeping {run['sleep']:5.1f} s ({run['load']:.0%} of what it can do): {rates}")
    return "\n".join(lines)
