"""What a program costs: floating-point operations, bytes in memory and on disk, and how long a segment is."""

import math
import os
from collections.abc import Iterable, Sequence
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


def lanes_that_fit(specs: Iterable[Spec], devices: Sequence[Any]) -> int:
    """Return how many trials of the largest Spec one device trains together."""
    most = CPU_LANES if devices[0].platform == "cpu" else ACCELERATOR_LANES
    memory = device_memory(devices)
    return max(1, min(most, *(int(0.5 * memory / lane_bytes(spec)) for spec in specs)))


def device_memory(devices: Sequence[Any]) -> int:
    """Return the memory of one device: its own, or its share of the host's."""
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    return stats["bytes_limit"] if stats else host_memory() // len(devices)


def host_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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


def lane_bytes(spec: Spec) -> int:
    """Return an upper estimate of the device memory one trial takes while it trains."""
    V = kernel.padded(spec.vocabulary)
    copies = {"sgd": 3, "momentum": 4, "adam": 6, "adamw": 6}[spec.optimizer]
    slots = math.ceil(ROTATION_LAG / spec.record_every)
    held_out = spec.eval_documents * 6 if not spec.infinite_documents else spec.eval_documents * V
    work = 4 * V * (num_queries(spec) + held_out) + 8 * V * V
    return copies * weight_bytes(spec) + FLOAT * (slots * V * V + work)


def record_bytes(spec: Spec) -> int:
    """Return about how many bytes one trial's records take on disk."""
    return int((spec.steps // spec.record_every + 1) * len(Record._fields) * FLOAT)


def segment_windows(group: Group, flops_per_second: float) -> int:
    """Return how many windows a segment has: it divides the training and meets every snapshot."""
    spec = group.spec
    affordable = SEGMENT_SECONDS * flops_per_second / (group.trials_per_chunk * step_flops(spec))
    most = max(1, int(min(SEGMENT_STEPS, affordable)) // spec.record_every)
    whole = math.gcd(spec.steps, *group.snapshots) // spec.record_every
    return max(n for n in range(1, whole + 1) if whole % n == 0 and n <= most)
