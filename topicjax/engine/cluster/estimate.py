"""How long a run on a cluster would take, and what would limit it: the workers, compiling, or the driver."""

import heapq
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from topicjax.engine import costs
from topicjax.engine.cluster.jobs import Jobs
from topicjax.engine.plan import Group

# From `topicjax bench --cluster` on 2 cores; writing is set to what its 64 workers reached.  The driver does
# all of it, one chunk after another.
DISPATCH_SECONDS = 0.003  # to prepare and send one chunk
RETURN_RATE = 1.0e9  # bytes a second from a worker to the driver: assumed, a network may have less
WRITE_SECONDS = 0.02  # to write one chunk, however small ...
WRITE_RATE = 8.0e7  # ... and bytes a second besides
IDLE = 0.3  # so much of the workers' time without work is worth a word
MOSTLY = 0.5


class Estimate(NamedTuple):
    """Seconds of a run, of its parts, and which of them limits it."""

    seconds: float
    training: float  # of the busiest worker
    compiling: float  # of the same
    dispatch: float  # of the driver, beside the workers
    writing: float  # of the driver
    limit: str


def estimate(
    groups: Sequence[Group],
    num_workers: int,
    chunk_seconds: Callable[[Group, float], float],
    compile_seconds: float,
) -> Estimate:
    """Return how long so many workers need, given the seconds of a group's trial-steps on one of them."""
    jobs = Jobs(groups)
    count = len(jobs.waiting)
    dispatch, writing = driver_seconds(jobs)
    training, compiling = [0.0] * num_workers, [0.0] * num_workers
    programs: list[set[int]] = [set() for _ in range(num_workers)]
    free = [(0.0, worker) for worker in range(num_workers)]
    while jobs.waiting:
        now, worker = heapq.heappop(free)
        job = jobs.take(programs[worker], (own for own in programs if own is not programs[worker]))
        group = jobs.group(job)
        steps = sum(group.spec.steps - group.start(trial_id) for trial_id in job.trial_ids)
        own = chunk_seconds(group, steps)
        new = 0.0 if job.program in programs[worker] else compile_seconds
        programs[worker].add(job.program)
        training[worker], compiling[worker] = training[worker] + own, compiling[worker] + new
        heapq.heappush(free, (now + own + new, worker))
    busy = [a + b for a, b in zip(training, compiling, strict=True)]
    longest = max(busy)
    last = busy.index(longest)
    is_idle = sum(busy) < (1 - IDLE) * longest * num_workers
    limit = limiting(longest, compiling[last], dispatch, writing, count if is_idle else 0, num_workers)
    seconds = max(longest, dispatch + writing)
    return Estimate(seconds, training[last], compiling[last], dispatch, writing, limit)


def limiting(
    longest: float, compiling: float, dispatch: float, writing: float, too_few: int, num_workers: int
) -> str:
    """Return in words what a run on a cluster waits for most."""
    if dispatch + writing > longest > 0:
        return "dispatch of chunks" if dispatch > writing else "writing, by the one process that does it"
    if compiling > MOSTLY * longest:
        return "compiling, on every worker for itself"
    if too_few:
        return (
            f"too few chunks, {too_few:,} for {num_workers:,} workers: a smaller --lanes makes more of them"
        )
    return "training"


def driver_seconds(jobs: Jobs) -> tuple[float, float]:
    """Return how long the driver needs to dispatch all chunks and fetch their results, and to write them."""
    dispatch = writing = 0.0
    for job in jobs.waiting:
        size = len(job.trial_ids) * sum(costs.disk_bytes(jobs.group(job)).values())
        dispatch += DISPATCH_SECONDS + size / RETURN_RATE
        writing += WRITE_SECONDS + size / WRITE_RATE
    return dispatch, writing


def slowed(num_workers: int, num_devices: int, is_local: bool) -> float:
    """Return how much slower workers are that share the cores of this machine; 1 if there are enough."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1.0, num_workers * num_devices / cores) if is_local else 1.0
