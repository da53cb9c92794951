"""Costs of a program: shapes, floating-point operations, bytes in memory and on disk, compile time.

Sizes come from tracing an experiment's functions without running them; an experiment may provide cheaper or
better estimates (its `trial_bytes` and `step_flops`).
"""

import contextlib
import functools
import json
import math
import os
import re
import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

from topicjax.engine.origin import pinned
from topicjax.engine.plan import Group, shaped
from topicjax.errors import UserError
from topicjax.experiments.contract import Experiment, columns_of
from topicjax.pace import per_decade, record_count
from topicjax.store.files import StoreError, read_regular, write_whole

BLOCK_BYTES = 16_000_000  # of data drawn ahead
CPU_LANES = 64  # trials of a stream that a core trains in turn between two returns to Python
ACCELERATOR_LANES = 512
CACHES = {  # megabytes of fast memory that a device's units share, by words of its kind (data sheets)
    "V100": 6,
    "T4": 4,
    "A10": 6,
    "A10G": 6,
    "A30": 24,
    "A100": 40,
    "L4": 48,
    "L40": 96,
    "L40S": 96,
    "H100": 50,
    "H200": 50,
    "B200": 126,
    "TPU v5 lite": 128,
    "TPU v6 lite": 128,
}
OTHER_CACHE = 32  # megabytes, assumed for other kinds
TOGETHER_LANES = 64  # fewer trials together leave a device's vector units idle
CHUNK_SECONDS = 30.0  # of a chunk's steps; records take up to as long: something finishes every minute ...
CHUNK_OVERHEAD = 0.5  # ... and a chunk more costs this many seconds, to start and to write ...
MOST_SLOWER = 1.03  # ... which together may slow a run down by this factor
SEGMENT_STEPS = 200  # limit on the steps between two returns to Python ...
SEGMENT_SECONDS = 3.0  # ... and on the time, so that Ctrl-C stops soon
CPU_FLOP_RATE = 3.5e10  # useful FLOP/s of one core, before any measurement
ACCELERATOR_FLOP_RATE = 5.0e12  # the same for a GPU or TPU: assumed, never measured
LEAST_STEP_FLOPS = 5e5  # launching the operations of a step costs as much as this, however small the step
WORK_COPIES = 4  # of a trial's state and batch: gradients, work arrays, results before they replace the old
COMPILE_SECONDS = 10.0  # of a program, where a choice must not depend on measured times
FLOAT = 4
CONTAINER_LIMITS = [Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory/memory.limit_in_bytes")]
COMPILE_TIMES = "compile_seconds.json"
KEPT = 20  # compile times per experiment: some are cache hits


class Shapes(NamedTuple):
    """Trees of shapes and types."""

    state: Any
    weights: Any
    source: Any
    batch: Any
    record: dict[str, Any]  # by column, in the order of `measure`, then of `measure_rarely`
    rare: tuple[str, ...]  # the columns of `measure_rarely`


@functools.lru_cache(maxsize=64)
def traced_once(experiment: Experiment) -> Experiment:
    """Let jax remember how each function of an experiment was traced.

    Shapes, costs and every program trace the same functions, which takes seconds for large ones.  Inside a
    program a remembered function is inlined.  Measurements are not remembered: jit would sort their columns.
    """
    if isinstance(experiment.update, jax.stages.Wrapped):
        return experiment
    by_spec = functools.partial(jax.jit, static_argnums=0)
    names = ("init", "update", "batch", "source", "weights")
    return replace(experiment, **{name: by_spec(getattr(experiment, name)) for name in names})


def shapes(experiment: Experiment, spec: Any) -> Shapes:
    """Trace the shapes of a trial's state, weights, data and records."""
    return shapes_of(traced_once(experiment), spec)


@functools.lru_cache(maxsize=1024)
def shapes_of(experiment: Experiment, spec: Any) -> Shapes:
    """Trace the shapes of an experiment that is traced once."""
    order: list[list[str]] = [[], []]  # jax sorts the keys of a dict

    def make(stream: Any, hypers: Any, data: Any) -> Any:
        step = jnp.zeros((), jnp.int32)
        state, source = experiment.init(spec, stream, hypers), experiment.make_source(spec, stream, data)
        batch = experiment.batch(spec, stream, source, step)
        following, made = experiment.update(spec, stream, hypers, state, batch, step)
        check_same(experiment, state, following)
        measures = (experiment.measure, experiment.measure_rarely or (lambda *_: {}))
        given = (spec, stream, hypers, source, state, batch, made)
        columns = [columns_of(measure(*given)) for measure in measures]
        order[:] = [list(each) for each in columns]
        return state, experiment.weights(spec, state), source, batch, columns

    with pinned():  # as programs are traced
        found = jax.eval_shape(make, *example(experiment), experiment.data_shapes(spec))
    state, weights, source, batch, columns = found
    record = {name: each[name] for each, names in zip(columns, order, strict=True) for name in names}
    return Shapes(state, weights, source, batch, record, tuple(order[1]))


def check_same(experiment: Experiment, state: Any, following: Any) -> None:
    """Raise a UserError unless `update` returns a state with the structure, shapes and types of its input."""

    def described(leaf: Any) -> str:
        return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(jnp.shape(leaf))}"

    if jax.tree.structure(state) != jax.tree.structure(following):
        raise UserError(
            f"update of {experiment.name} returns a state of another structure than init; allowed: (state, "
            "by-products), the state as init makes it"
        )
    pairs = zip(jax.tree.leaves_with_path(state), jax.tree.leaves(following), strict=True)
    for (path, leaf), other in pairs:
        if described(leaf) != described(other):
            raise UserError(
                f"update of {experiment.name} returns {jax.tree_util.keystr(path) or 'the state'} as "
                f"{described(other)}, and init makes it {described(leaf)}; allowed: the same"
            )


def example(experiment: Experiment) -> tuple[Any, Any]:
    """Make a default Stream and Hypers in the form that programs take."""
    _, Stream, Hypers = experiment.settings.classes
    return experiment.settings.traced(Stream()), experiment.settings.traced(Hypers())


class Sizes(NamedTuple):
    """Bytes of one trial's state and weights and of its stream's shared data; the shapes of a record."""

    state: int
    weights: int
    source: int
    batch: int
    record: dict[str, tuple[int, ...]]  # by column: empty for a scalar, one length per index for details


def sizes(experiment: Experiment, spec: Any) -> Sizes:
    """Compute the sizes of what an experiment's functions return, from their shapes."""
    found = shapes(experiment, spec)
    columns = {name: leaf.shape for name, leaf in found.record.items()}
    state, weights, source, batch = map(tree_bytes, found[:4])
    return Sizes(state, weights, source, batch, columns)


def tree_bytes(tree: Any) -> int:
    """Sum the bytes of all arrays of a tree."""
    leaves = jax.tree.leaves(tree)
    return sum(leaf.size * getattr(leaf.dtype, "itemsize", FLOAT) for leaf in leaves)


class Work(NamedTuple):
    """Floating-point operations of one trial, counted in its traced functions."""

    init: float
    draw: float  # a step's data, drawn once for all lanes of a stream row
    update: float
    record: float  # every record ...
    rare: float  # ... and the extra work of a rare one

    @property
    def step(self) -> float:
        """A step of a trial that has its data to itself."""
        return self.draw + self.update


@functools.lru_cache(maxsize=1024)
def work(experiment: Experiment, spec: Any) -> Work:
    """Count the operations of each function of an experiment; nothing is compiled."""
    experiment = traced_once(experiment)
    given = (*example(experiment), experiment.data_shapes(spec))

    def count(function: Callable[..., Any], *arguments: Any) -> float:
        return jaxpr_flops(jax.make_jaxpr(function)(*arguments).jaxpr)

    def init(stream: Any, hypers: Any, data: Any) -> Any:
        return experiment.init(spec, stream, hypers), experiment.make_source(spec, stream, data)

    def draw(stream: Any, source: Any) -> Any:
        return experiment.batch(spec, stream, source, jnp.int32(0))

    def update(stream: Any, hypers: Any, state: Any, batch: Any) -> Any:
        return experiment.update(spec, stream, hypers, state, batch, jnp.int32(0))

    # As `shapes_of` and programs trace them: what is traced at another precision is traced anew.
    with pinned():
        stream, hypers, _ = given
        state, source = jax.eval_shape(init, *given)
        batch = jax.eval_shape(draw, stream, source)
        _, made = jax.eval_shape(update, stream, hypers, state, batch)
        taken = (stream, hypers, source, state, batch, made)
        record = count(functools.partial(experiment.measure, spec), *taken)
        rarely = experiment.measure_rarely
        rare = 0.0 if rarely is None else count(functools.partial(rarely, spec), *taken)
        steps = count(draw, stream, source), count(update, stream, hypers, state, batch)
        return Work(count(init, *given), *steps, record, rare)


def jaxpr_flops(jaxpr: Any) -> float:
    """Count the operations of a traced function: products by their sizes, all else one per result.

    Loops count as often as they are known to run; of several branches, the longest counts.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        inner = [jaxpr_flops(each) for each in jaxprs_in_params(equation.params)]
        name, outputs = equation.primitive.name, sum(math.prod(out.aval.shape) for out in equation.outvars)
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2.0 * outputs * math.prod(left[axis] for axis in contracted)
        elif name == "scan":
            total += equation.params["length"] * sum(inner)
        elif name == "cond":
            total += max(inner, default=0.0)
        else:
            total += sum(inner) if inner else outputs
    return total


@functools.lru_cache(maxsize=1024)
def step_flops(experiment: Experiment, spec: Any) -> float:
    """Compute the floating-point operations of one trial-step: the experiment's figure, or counted ones.

    If a function trains in `init`, its work is spread over the steps.
    """
    if experiment.step_flops is not None:
        return max(LEAST_STEP_FLOPS, experiment.step_flops(spec))
    counted = work(experiment, spec)
    return max(LEAST_STEP_FLOPS, counted.step + counted.init / spec.steps)


def record_share(experiment: Experiment, spec: Any, lanes: int = 1) -> float:
    """Compute the share of a trial's work that goes into its records, if so many share their data."""
    counted, step = work(experiment, spec), shared_step(experiment, spec, lanes)
    each = counted.record + counted.rare / getattr(spec, "rare_every", 1)
    return each / max(1.0, each + steps_per_record(spec) * step)


def record_share_of_all(groups: Sequence[Group]) -> float:
    """Compute the share of the work of several programs that goes into records."""
    steps, works = [], []
    for group in groups:
        share = record_share(group.experiment, group.spec, group.lanes)
        steps.append(group.trial_steps * shared_step(group.experiment, group.spec, group.lanes))
        works.append(steps[-1] / max(1 - share, 1e-9))
    return 1 - sum(steps) / max(sum(works), 1.0)


def shared_step(experiment: Experiment, spec: Any, lanes: int) -> float:
    """Count the operations of a trial's step if so many trials share its data."""
    counted = work(experiment, spec)
    return counted.update + counted.draw / lanes


def steps_per_record(spec: Any) -> float:
    """Average the steps from one record of a whole training to the next."""
    return spec.steps / (record_count(spec.record_every, per_decade(spec), spec.steps) - 1)


def trial_bytes(experiment: Experiment, spec: Any) -> float:
    """Estimate the device memory of one trial and its data during training."""
    if experiment.trial_bytes is not None:
        return experiment.trial_bytes(spec)
    return lane_bytes(experiment, spec) + stream_bytes(experiment, spec)


def lane_bytes(experiment: Experiment, spec: Any) -> float:
    """Estimate the device memory that one more trial adds to a stream row."""
    if experiment.trial_bytes is not None:
        return experiment.trial_bytes(spec)
    own = sizes(experiment, spec)
    return WORK_COPIES * (own.state + own.batch)


def stream_bytes(experiment: Experiment, spec: Any) -> float:
    """Estimate the device memory of a stream row's data."""
    own = sizes(experiment, spec)
    return own.source + own.batch + min(BLOCK_BYTES, spec.record_every * own.batch)


def lanes_that_fit(experiment: Experiment, specs: Iterable[Any], devices: Sequence[Any]) -> int:
    """Compute how many trials of the largest Spec one device can train together."""
    most = CPU_LANES if devices[0].platform == "cpu" else ACCELERATOR_LANES
    room = 0.5 * device_memory(devices)
    return max(1, min(most, *(int(room / trial_bytes(experiment, spec)) for spec in specs)))


def has_shared_cache(devices: Sequence[Any]) -> bool:
    """Whether the trials of a device share a cache while they train together: on accelerators."""
    return devices[0].platform != "cpu"


def usual_order(group: Group, devices: Sequence[Any]) -> str:
    """Choose the order of work to begin with, before any is timed.

    A core trains a lane at a time, unless a step is so small that launching its operations takes longer and
    no trial ends early: together, an ended one takes as long as before.
    """
    is_small = step_flops(group.experiment, group.spec) <= LEAST_STEP_FLOPS
    is_tiny = is_small and not group.experiment.may_stop(group.spec)
    return "together" if has_shared_cache(devices) or is_tiny else "lane"


def cache_bytes(kind: str) -> int:
    """Return the fast memory of a kind of accelerator."""
    found = [size for name, size in CACHES.items() if re.search(rf"\b{name}\b", kind)]
    return 2**20 * (found[0] if found else OTHER_CACHE)


def lanes_in_cache(groups: Sequence[Group], devices: Sequence[Any]) -> int:
    """Compute how many trials of the largest Spec keep their states in a device's cache."""
    state = max(sizes(group.experiment, group.spec).state for group in groups)
    return max(1, cache_bytes(devices[0].device_kind) // max(1, state))


def chosen_lanes(groups: Sequence[Group], devices: Sequence[Any], most: int) -> int:
    """Choose how many trials a device trains together: at most as fit, and chunks shall end soon.

    On accelerators their states shall fit into the cache.  Fewer trials make shorter chunks, until the data
    of a stream are drawn too often.  The choice follows from the sweep and the devices alone, never from a
    measured rate: it is the same in a resumed run, which finds its unfinished chunks by it.
    """
    are_together = any((group.order or usual_order(group, devices)) == "together" for group in groups)
    if has_shared_cache(devices):
        most = min(most, lanes_in_cache(groups, devices))
    least = min(most, TOGETHER_LANES) if are_together else 1
    candidates = [most, *(2**power for power in range(most.bit_length() - 1, -1, -1) if 2**power < most)]
    seconds = {lanes: training_seconds(groups, devices, lanes) for lanes in candidates if lanes >= least}
    quickest = min(total for _, total in seconds.values())
    quick = [lanes for lanes, (_, total) in seconds.items() if total <= MOST_SLOWER * quickest]
    return next((lanes for lanes in quick if seconds[lanes][0] <= CHUNK_SECONDS), quick[-1])


def sizes_to_try(group: Group, num_devices: int, lanes: int, most: int) -> tuple[int, ...]:
    """List numbers of trials per device to time: the planned one, larger ones, then smaller ones.

    They double up to what fits and what the group has trials for, and halve twice.
    """
    enough = min(most, 2 * math.ceil(group.num_trials / num_devices) - 1)
    larger = [lanes << power for power in range(1, 32) if lanes << power <= enough]
    return (lanes, *larger, *(lanes >> power for power in (1, 2) if lanes >> power))


def training_seconds(groups: Iterable[Group], devices: Sequence[Any], lanes: int) -> tuple[float, float]:
    """Estimate the duration of the longest chunk and of all chunks, with so many trials on a device."""
    rate, longest, total = flop_rate(devices[0].platform), 0.0, 0.0
    for group in groups:
        made = shaped(group, len(devices), lanes)
        rows = sum(count * math.ceil(size / made.lanes) for size, count in made.stream_sizes.items())
        each = (made.lanes + group.experiment.draw_cost) * step_flops(group.experiment, group.spec) / rate
        per_chunk = group.spec.steps * each * (made.rows_per_chunk // len(devices))
        longest = max(longest, per_chunk)
        total += math.ceil(rows / made.rows_per_chunk) * (per_chunk + CHUNK_OVERHEAD)
    return longest, total


def group_seconds(group: Group, devices: Sequence[Any]) -> float:
    """Estimate the duration of a group's chunks as they are; in turns, an empty lane takes no time."""
    spec, experiment = group.spec, group.experiment
    in_turns = (group.order or usual_order(group, devices)) == "lane"
    share = group.rows_per_chunk // len(devices)  # stream rows of a device
    lanes = 0.0
    for rows in group.chunks:
        widths = [len(row.trial_ids) if in_turns else group.lanes for row in rows]
        if not in_turns:
            widths += [group.lanes] * (group.rows_per_chunk - len(rows))
        parts = [widths[start : start + share] for start in range(0, len(widths), share)]
        lanes += max(sum(part) + experiment.draw_cost * len(part) for part in parts)
    each = step_flops(experiment, spec) / flop_rate(devices[0].platform)
    return lanes * spec.steps * each + len(group.chunks) * CHUNK_OVERHEAD


def device_memory(devices: Sequence[Any]) -> int:
    """Return the memory of one device: its own, or its share of the host's."""
    stats = devices[0].memory_stats()  # None: a core of this machine
    return stats["bytes_limit"] if stats else host_memory() // len(devices)


def host_memory() -> int:
    """Return the bytes of memory that the machine, its container and the shell's limits allow."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # file missing, or no limit
            limits.append(int(path.read_text()))
    shell, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min([*limits, *([] if shell == resource.RLIM_INFINITY else [shell])])


def flop_rate(platform: str) -> float:
    """Return the FLOP/s assumed for one device until a run has measured it."""
    return CPU_FLOP_RATE if platform == "cpu" else ACCELERATOR_FLOP_RATE


def device_bytes(group: Group, num_devices: int) -> float:
    """Estimate the memory of a group on each device."""
    rows = group.rows_per_chunk // num_devices
    lane, stream = (f(group.experiment, group.spec) for f in (lane_bytes, stream_bytes))
    return rows * (group.lanes * lane + stream)


def disk_bytes(group: Group) -> dict[str, int]:
    """Estimate the disk space of one trial in bytes, by purpose."""
    spec, own = group.spec, sizes(group.experiment, group.spec)
    records = (
        record_count(spec.record_every, per_decade(spec), spec.steps)
        * sum(map(math.prod, own.record.values()))
        * FLOAT
    )
    states = own.state if spec.steps in group.snapshots else 0
    return {
        "records": records,
        "snapshots": len(group.snapshots) * own.weights,
        "states": states,
        "settings": 500,
    }


def window_seconds(group: Group, flops_per_second: float) -> float:
    """Estimate the duration of a window, within which a run can neither stop nor save."""
    flops = group.trials_per_chunk * step_flops(group.experiment, group.spec)
    return group.spec.record_every * flops / flops_per_second


def segment_windows(group: Group, flops_per_second: float) -> int:
    """Choose the windows per segment: segments must end at snapshots, decisions and the last step."""
    spec = group.spec
    meets = [spec.steps, *group.snapshots, *(group.start(trial_id) for trial_id in group.earlier)]
    if group.experiment.may_stop(spec):
        meets.append(group.experiment.decide_every * spec.record_every)
    flops = group.trials_per_chunk * step_flops(group.experiment, spec)
    affordable = SEGMENT_SECONDS * flops_per_second / flops
    most = max(1, int(min(SEGMENT_STEPS, affordable)) // spec.record_every)
    whole = math.gcd(*meets) // spec.record_every
    return max(n for n in range(1, min(whole, most) + 1) if whole % n == 0)


def cache_folder() -> Path:
    """Locate the folder where compiled programs and their compile times are cached between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topicjax"


def remember_compile_time(experiment: str, seconds: float) -> None:
    """Store how long a program of an experiment took to compile, if the cache is writable."""
    known = compile_times()
    known[experiment] = [*known.get(experiment, []), round(seconds, 2)][-KEPT:]
    with contextlib.suppress(OSError, StoreError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_whole(cache_folder() / COMPILE_TIMES, lambda file: file.write(json.dumps(known).encode()))


def expected_compile_time(experiment: str) -> float | None:
    """Return the longest recent compile time, since shorter ones may be cache hits; None if unknown."""
    return max(compile_times().get(experiment, []), default=None)


def compile_times() -> dict[str, list[float]]:
    """Read the compile times by experiment; empty if the file is missing or invalid."""
    try:
        found = json.loads(read_regular(cache_folder() / COMPILE_TIMES))
        return {str(name): [float(each) for each in times] for name, times in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
