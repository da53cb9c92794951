"""What a program costs: floating-point operations, bytes in memory and on disk, and how long a segment is."""

import contextlib
import math
import os
import resource
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from topicjax.engine.plan import Group
from topicjax.experiments.one_layer import kernel
from topicjax.experiments.one_layer.records import ROTATION_LAG, Record
from topicjax.trial import Spec

CPU_LANES = 16  # trials a core trains together: their weights and queries stay near the cache
ACCELERATOR_LANES = 512
SEGMENT_STEPS = 200  # at most so many steps between two returns to Python ...
SEGMENT_SECONDS = 3.0  # ... and about so long, so that Ctrl-C stops soon
CPU_FLOP_RATE = 2.5e10  # useful FLOP/s of one core in this kernel, if nothing was measured yet
ACCELERATOR_FLOP_RATE = 5.0e12  # the same of a GPU or TPU: assumed, never measured
FLOAT = 4
CONTAINER_LIMITS = [Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory/memory.limit_in_bytes")]


def lanes_that_fit(specs: Iterable[Spec], devices: Sequence[Any]) -> int:
    """Return how many trials of the largest Spec one device trains together."""
    most = CPU_LANES if devices[0].platform == "cpu" else ACCELERATOR_LANES
    room = 0.5 * device_memory(devices)
    return max(1, min(most, *(int((room - stream_bytes(spec)) / lane_bytes(spec)) for spec in specs)))


def device_memory(devices: Sequence[Any]) -> int:
    """Return the memory of one device: its own, or its share of the host's."""
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    return stats["bytes_limit"] if stats else host_memory() // len(devices)


def host_memory() -> int:
    """Return the bytes of memory that this machine has and its container and shell allow."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or no limit
            limits.append(int(path.read_text()))
    shell, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min([*limits, *([] if shell == resource.RLIM_INFINITY else [shell])])


def flop_rate(platform: str) -> float:
    """Return the FLOP/s that is assumed of one device until a run has measured it."""
    return CPU_FLOP_RATE if platform == "cpu" else ACCELERATOR_FLOP_RATE


def num_queries(spec: Spec) -> int:
    """Return how many queries of a batch the kernel has room for."""
    if spec.attention == "uniform":
        return spec.batch_size
    if spec.infinite_documents:
        return spec.batch_size * spec.vocabulary
    return spec.batch_size + kernel.query_capacity(spec, spec.batch_size)


def mean_queries(spec: Spec) -> float:
    """Return how many queries of a batch have words to predict, on average."""
    if spec.attention == "uniform" or spec.infinite_documents:
        return num_queries(spec)
    mean_length = (spec.length_min + spec.length_max) / 2
    return spec.batch_size * (1 + spec.word_query_probability * mean_length)


def step_flops(spec: Spec) -> float:
    """Return the useful floating-point operations of one trial-step: matrix products, no padding."""
    V, D, A = spec.vocabulary, spec.width, spec.head_width
    products = 2 if spec.attention == "uniform" else 3  # output; gradients of value and attention
    flops = 2.0 * mean_queries(spec) * V * V * products
    if spec.attention == "trained":
        flops += 3 * 2.0 * A * V * V
    if spec.embedding != "one_hot":
        flops += 3 * 2.0 * (2 * A * D * V + D * D * V + D * V * V)
    return flops


def weight_bytes(spec: Spec) -> int:
    """Return the bytes of one trial's parameters, unpadded."""
    V, D, A = spec.vocabulary, spec.width, spec.head_width
    entries = 2 * A * D + D * D + V + (0 if spec.embedding == "one_hot" else D * V)
    return FLOAT * (entries + (2 * A + D if spec.attention_biases == "trained" else 0))


def lane_bytes(spec: Spec, queries: float | None = None) -> float:
    """Return an upper estimate of the device memory that one trial takes while it trains.

    Without a number of queries the kernel is asked for its own, which takes as long as documents are long.
    """
    V = kernel.padded(spec.vocabulary)
    queries = num_queries(spec) if queries is None else queries
    slots = math.ceil(ROTATION_LAG / spec.record_every)
    held_out = spec.eval_documents * 6 if not spec.infinite_documents else spec.eval_documents * V
    work = 4 * V * (queries + held_out) + 8 * V * V
    return state_bytes(spec) + FLOAT * (slots * V * V + work)


def state_bytes(spec: Spec) -> int:
    """Return the bytes of one trial's parameters, their gradients and what the optimizer keeps of them."""
    return {"sgd": 3, "momentum": 4, "adam": 6, "adamw": 6}[spec.optimizer] * weight_bytes(spec)


def stream_bytes(spec: Spec) -> int:
    """Return an upper estimate of the device memory that the documents of one stream row take."""
    T, V = spec.topics, spec.vocabulary
    drawn = max(spec.batch_size, spec.eval_documents)
    tokens = 0 if spec.infinite_documents else 10 * drawn * spec.length_max
    return FLOAT * (tokens + 20 * drawn * T + 2 * T * V + V * V)


def device_bytes(group: Group, num_devices: int) -> float:
    """Return an upper estimate of the memory that a group takes on each device."""
    rows = group.rows_per_chunk // num_devices
    return rows * (group.lanes * lane_bytes(group.spec) + stream_bytes(group.spec))


def record_bytes(spec: Spec) -> int:
    """Return about how many bytes one trial's records take on disk."""
    return (spec.steps // spec.record_every + 1) * len(Record._fields) * FLOAT


def trial_bytes(group: Group) -> dict[str, int]:
    """Return about how many bytes one trial takes on disk, by what takes them."""
    snapshots = len(group.snapshots) * weight_bytes(group.spec)
    return {"records": record_bytes(group.spec), "snapshots": snapshots, "settings": 500}


def window_seconds(group: Group, flops_per_second: float) -> float:
    """Return about how long a window takes: within it a run neither stops nor saves."""
    return group.spec.record_every * group.trials_per_chunk * step_flops(group.spec) / flops_per_second


def segment_windows(group: Group, flops_per_second: float) -> int:
    """Return how many windows a segment has: it divides the training and meets every snapshot."""
    spec = group.spec
    affordable = SEGMENT_SECONDS * flops_per_second / (group.trials_per_chunk * step_flops(spec))
    most = max(1, int(min(SEGMENT_STEPS, affordable)) // spec.record_every)
    whole = math.gcd(spec.steps, *group.snapshots) // spec.record_every
    return max(n for n in range(1, min(whole, most) + 1) if whole % n == 0)
