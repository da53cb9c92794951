"""What a program costs: floating-point operations, bytes in memory and on disk, and how long a segment is.

Sizes come from the shapes of an experiment's own functions, which are traced, not run; an experiment may give
cheaper or better figures (its `trial_bytes` and `step_flops`).
"""

import contextlib
import functools
import math
import os
import resource
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from topicjax.engine.orders import BLOCK_BYTES
from topicjax.engine.plan import Group
from topicjax.engine.shapes import example, shapes
from topicjax.experiments import DECIDE_RECORDS, Experiment

CPU_LANES = 64  # trials of a stream that a core trains between two returns to Python, one after another
ACCELERATOR_LANES = 512
SEGMENT_STEPS = 200  # at most so many steps between two returns to Python ...
SEGMENT_SECONDS = 3.0  # ... and about so long, so that Ctrl-C stops soon
CPU_FLOP_RATE = 3.5e10  # useful FLOP/s of one core, if nothing was measured yet
ACCELERATOR_FLOP_RATE = 5.0e12  # the same of a GPU or TPU: assumed, never measured
LEAST_STEP_FLOPS = 5e5  # whatever a step computes, starting its operations takes as long as so much work
WORK_COPIES = 4  # of a trial's state and of its batch: gradients, work arrays, results before they replace
FLOAT = 4
CONTAINER_LIMITS = [Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory/memory.limit_in_bytes")]


class Sizes(NamedTuple):
    """Bytes of one trial's state and weights, and of what its stream shares; the shapes of a record."""

    state: int
    weights: int
    source: int
    batch: int
    record: dict[str, tuple[int, ...]]  # by column: empty for a scalar, (places,) for details


def sizes(experiment: Experiment, spec: Any) -> Sizes:
    """Return the bytes and records that the functions of an experiment make, from their shapes."""
    state, weights, source, batch, record = shapes(experiment, spec)
    columns = {name: leaf.shape for name, leaf in record._asdict().items()}
    return Sizes(tree_bytes(state), tree_bytes(weights), tree_bytes(source), tree_bytes(batch), columns)


def tree_bytes(tree: Any) -> int:
    """Return the bytes of all arrays of a tree."""
    leaves = jax.tree.leaves(tree)
    return sum(leaf.size * getattr(leaf.dtype, "itemsize", FLOAT) for leaf in leaves)


@functools.lru_cache(maxsize=1024)
def step_flops(experiment: Experiment, spec: Any) -> float:
    """Return the floating-point operations of one trial-step: the experiment's figure, or the compiler's."""
    if experiment.step_flops is not None:
        return max(LEAST_STEP_FLOPS, experiment.step_flops(spec))

    def step(stream: Any, hypers: Any, data: Any) -> Any:
        source = experiment.make_source(spec, stream, data)
        batch = experiment.batch(spec, stream, source, jax.numpy.int32(0))
        return experiment.update(spec, stream, hypers, experiment.init(spec, stream, hypers), batch)

    analysis = jax.jit(step).lower(*example(experiment), experiment.data_shapes(spec)).cost_analysis() or {}
    return max(LEAST_STEP_FLOPS, analysis.get("flops", 0.0))


def trial_bytes(experiment: Experiment, spec: Any) -> float:
    """Return about how much device memory one trial with its data takes while it trains."""
    if experiment.trial_bytes is not None:
        return experiment.trial_bytes(spec)
    return lane_bytes(experiment, spec) + stream_bytes(experiment, spec)


def lane_bytes(experiment: Experiment, spec: Any) -> float:
    """Return about how much device memory a trial adds to a stream row."""
    if experiment.trial_bytes is not None:
        return experiment.trial_bytes(spec)
    own = sizes(experiment, spec)
    return WORK_COPIES * (own.state + own.batch)


def stream_bytes(experiment: Experiment, spec: Any) -> float:
    """Return about how much device memory the data of a stream row take."""
    own = sizes(experiment, spec)
    return own.source + own.batch + min(BLOCK_BYTES, spec.record_every * own.batch)


def lanes_that_fit(experiment: Experiment, specs: Iterable[Any], devices: Sequence[Any]) -> int:
    """Return how many trials of the largest Spec one device trains together."""
    most = CPU_LANES if devices[0].platform == "cpu" else ACCELERATOR_LANES
    room = 0.5 * device_memory(devices)
    return max(1, min(most, *(int(room / trial_bytes(experiment, spec)) for spec in specs)))


def device_memory(devices: Sequence[Any]) -> int:
    """Return the memory of one device: its own, or its share of the host's."""
    stats = devices[0].memory_stats()  # None: a core of this machine
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


def device_bytes(group: Group, num_devices: int) -> float:
    """Return an estimate of the memory that a group takes on each device."""
    rows = group.rows_per_chunk // num_devices
    lane, stream = (f(group.experiment, group.spec) for f in (lane_bytes, stream_bytes))
    return rows * (group.lanes * lane + stream)


def disk_bytes(group: Group) -> dict[str, int]:
    """Return about how many bytes one trial takes on disk, by what takes them."""
    spec, own = group.spec, sizes(group.experiment, group.spec)
    records = (spec.steps // spec.record_every + 1) * sum(map(math.prod, own.record.values())) * FLOAT
    states = own.state if spec.steps in group.snapshots else 0
    return {
        "records": records,
        "snapshots": len(group.snapshots) * own.weights,
        "states": states,
        "settings": 500,
    }


def window_seconds(group: Group, flops_per_second: float) -> float:
    """Return about how long a window takes: within it a run neither stops nor saves."""
    flops = group.trials_per_chunk * step_flops(group.experiment, group.spec)
    return group.spec.record_every * flops / flops_per_second


def segment_windows(group: Group, flops_per_second: float) -> int:
    """Return how many windows a segment has: it divides the training, meets snapshots and decisions."""
    spec = group.spec
    meets = [spec.steps, *group.snapshots, *(group.start(trial_id) for trial_id in group.earlier)]
    if group.experiment.may_stop(spec):
        meets.append(DECIDE_RECORDS * spec.record_every)
    flops = group.trials_per_chunk * step_flops(group.experiment, spec)
    affordable = SEGMENT_SECONDS * flops_per_second / flops
    most = max(1, int(min(SEGMENT_STEPS, affordable)) // spec.record_every)
    whole = math.gcd(*meets) // spec.record_every
    return max(n for n in range(1, min(whole, most) + 1) if whole % n == 0)
