"""Compiled programs of a group: the order of work over lanes, stream rows and devices.

The trials of a stream row go through their steps in one of two orders; both give the same numbers.
A lane at a time, for cores: the data of a window are drawn once for the stream, then each trial goes through
the window alone, so its weights and work arrays stay in the core's cache, and `cond` is a real branch.
Lanes together, for accelerators: all trials take every step at once, in wide operations.
In both, the first step of a window, which may have a record, stands before the loop over the others: a record
needs the state before its step, and a loop that may take one would copy that state at every step.

Dimension letters: R stream rows, L lanes, W windows, B blocks of a window.
"""

import functools
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from topicjax.engine import costs
from topicjax.engine.costs import BLOCK_BYTES, example, shapes, traced_once
from topicjax.engine.options import MANTISSA_BITS
from topicjax.engine.origin import arithmetic, pinned
from topicjax.engine.plan import Group, StreamRow
from topicjax.engine.rounding import with_rounded_products
from topicjax.errors import UserError
from topicjax.experiments.contract import Experiment, columns_of
from topicjax.pace import due_windows, per_decade

CPU_OPTIONS = {
    "xla_cpu_multi_thread_eigen": False,  # every core is a device and needs no helper threads
    "xla_backend_optimization_level": 1,  # runs as fast as 3, compiles faster
}
SEVERAL_MATRICES = re.compile(r"@(lapack_\w+)\(.*: \(tensor<(?:1x)*(?!1x)\d+x\d+x\d+x")


class RowState(NamedTuple):
    """A stream row between two segments."""

    step: Any  # the same for all rows
    missing: Any  # above 0: some data exceeded the program's capacity, and the trials are void
    source: Any
    trial_L: Any


SHARDED, REPLICATED = PartitionSpec("devices"), PartitionSpec()
STATE_SHARDS = RowState(step=REPLICATED, missing=SHARDED, source=SHARDED, trial_L=SHARDED)
Advance = Callable[..., tuple[RowState, Any]]
OverLanes = Callable[[Callable[..., Any]], Callable[..., Any]]


class Order(NamedTuple):
    """How to train stream rows, and how to apply a function of one trial to all lanes."""

    advance: Advance
    over_lanes: OverLanes


def lane_by_lane(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do what vmap does, in a loop over the lanes."""
    return lambda *args_L: jax.lax.map(lambda args: function(*args), args_L)


def init_row(
    experiment: Experiment,
    spec: Any,
    stream: Any,
    hypers_L: Any,
    data: Any = (),
    over_lanes: OverLanes = jax.vmap,
) -> RowState:
    """Make the state of a stream row before the first step."""
    trial_L = over_lanes(lambda hypers: experiment.init(spec, stream, hypers))(hypers_L)
    zero = jnp.zeros((), jnp.int32)
    return RowState(zero, zero, experiment.make_source(spec, stream, data), trial_L)


def weights_row(experiment: Experiment, spec: Any, trial_L: Any, over_lanes: OverLanes = jax.vmap) -> Any:
    """Return what snapshots keep of the trials."""
    return over_lanes(lambda trial: experiment.weights(spec, trial))(trial_L)


def lanes_together(
    experiment: Experiment,
    spec: Any,
    stream: Any,
    hypers_L: Any,
    state: RowState,
    steps_L: Any = None,
    *,
    num_windows: int,
) -> tuple[RowState, Any]:
    """Train all lanes step by step; return the state and records, L x W.

    A record is taken at the first step of a window, if it is due.  With `steps_L`, a lane ends after its
    number of steps; its records of windows that it did not start are zeros.  A single step serves to take its
    last record, due or not.
    """
    source = state.source
    update = jax.vmap(
        lambda h, trial, batch, number: experiment.update(spec, stream, h, trial, batch, number),
        (0, 0, None, None),
    )
    measure = jax.vmap(
        lambda h, trial, batch, made, number: take_record(
            experiment, spec, stream, h, source, trial, batch, made, number
        ),
        (0, 0, None, 0, None),
    )
    empty_L = no_records(experiment, spec, hypers_L)

    def window(carry: Any, share: Any) -> tuple[Any, Any]:
        (number, missing, trial_L), (left_L, takes_L) = carry, share

        def step(offset: Any, missing: Any, trial_L: Any) -> tuple[Any, Any, Any, Any]:
            batch = experiment.batch(spec, stream, source, number + offset)
            following_L, made_L = update(hypers_L, trial_L, batch, number + offset)
            missing = jnp.maximum(missing, lacking(experiment, source, batch))
            return missing, lanes_where(offset < left_L, following_L, trial_L), batch, made_L

        def first_step(offset: Any, carry: Any) -> Any:
            missing, trial_L, latest_L = carry
            missing, following_L, batch, made_L = step(offset, missing, trial_L)
            latest_L = jax.lax.cond(
                takes_L.any(),
                lambda: measure(hypers_L, trial_L, batch, made_L, number),
                lambda: latest_L,
            )
            return missing, following_L, latest_L

        def further_step(offset: Any, carry: Any) -> Any:
            return step(offset, *carry)[:2]

        steps = left_L.max()
        first = jnp.minimum(steps, 1)
        *carry, latest_L = jax.lax.fori_loop(0, first, first_step, (missing, trial_L, empty_L))
        missing, trial_L = jax.lax.fori_loop(first, steps, further_step, tuple(carry))
        latest_L = lanes_where(left_L > 0, latest_L, empty_L)
        return (number + spec.record_every, missing, trial_L), latest_L

    return through_windows(window, spec, hypers_L, state, steps_L, num_windows)


def lane_at_a_time(
    experiment: Experiment,
    spec: Any,
    stream: Any,
    hypers_L: Any,
    state: RowState,
    steps_L: Any = None,
    *,
    num_windows: int,
) -> tuple[RowState, Any]:
    """Do what lanes_together does, one lane at a time through each window; an ended lane costs nothing."""
    source, block = state.source, block_steps(experiment, spec, stream, state)
    empty_L = no_records(experiment, spec, hypers_L)

    def draw(first: Any) -> Any:
        return jax.lax.map(
            lambda offset: experiment.batch(spec, stream, source, first + offset), jnp.arange(block)
        )

    def through_block(carry: Any, at: Any) -> tuple[Any, None]:
        number, missing, trial_L, latest_L = carry
        first_offset, steps_L, takes_L = at
        drawn = jax.eval_shape(draw, number)
        batches = jax.lax.cond(jnp.any(steps_L > 0), draw, lambda first: zeros(drawn), number)
        missing = jnp.maximum(missing, lacking(experiment, source, batches))

        def lane(lane: Any) -> Any:
            hypers, trial, latest, steps, takes = lane

            def step(place: Any, trial: Any) -> tuple[Any, Any, Any]:
                batch = jax.tree.map(lambda leaf: leaf[place], batches)
                following, made = experiment.update(spec, stream, hypers, trial, batch, number + place)
                return following, batch, made

            def first_step(place: Any, carry: Any) -> Any:
                trial, latest = carry
                following, batch, made = step(place, trial)
                latest = jax.lax.cond(
                    takes,
                    lambda: take_record(
                        experiment, spec, stream, hypers, source, trial, batch, made, number + place
                    ),
                    lambda: latest,
                )
                return following, latest

            first = jnp.where(first_offset == 0, jnp.minimum(steps, 1), 0)
            trial, latest = jax.lax.fori_loop(0, first, first_step, (trial, latest))
            trial = jax.lax.fori_loop(first, steps, lambda place, trial: step(place, trial)[0], trial)
            return trial, latest

        trial_L, latest_L = jax.lax.map(lane, (hypers_L, trial_L, latest_L, steps_L, takes_L))
        return (number + block, missing, trial_L, latest_L), None

    def window(carry: Any, share: Any) -> tuple[Any, Any]:
        (left_L, takes_L), starts = share, jnp.arange(0, spec.record_every, block)
        steps_BxL = jnp.clip(left_L[None, :] - starts[:, None], 0, block)
        takes_BxL = jnp.broadcast_to(takes_L, steps_BxL.shape)
        (*carry, latest_L), _ = jax.lax.scan(through_block, (*carry, empty_L), (starts, steps_BxL, takes_BxL))
        return tuple(carry), latest_L

    return through_windows(window, spec, hypers_L, state, steps_L, num_windows)


def take_record(
    experiment: Experiment,
    spec: Any,
    stream: Any,
    hypers: Any,
    source: Any,
    trial: Any,
    batch: Any,
    made: Any,
    number: Any,
) -> dict[str, Any]:
    """Take the record of a trial at a step; rare columns are NaN unless they are due."""
    given = (spec, stream, hypers, source, trial, batch, made)
    columns = columns_of(experiment.measure(*given))
    if experiment.measure_rarely is None:
        return columns
    rarely = experiment.measure_rarely

    def nothing() -> dict[str, Any]:
        shapes = jax.eval_shape(lambda: columns_of(rarely(*given)))
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), shapes)

    is_due = record_number(spec, number) % spec.rare_every == 0
    return columns | jax.lax.cond(is_due, lambda: columns_of(rarely(*given)), nothing)


def through_windows(
    window: Callable[[Any, Any], tuple[Any, Any]],
    spec: Any,
    hypers_L: Any,
    state: RowState,
    steps_L: Any,
    num_windows: int,
) -> tuple[RowState, Any]:
    """Run all windows, each with its share of every lane's steps; return the state and records, L x W.

    A window is given the steps of every lane and whether the lane takes a record at the first of them.
    """
    if steps_L is None:
        steps_L = jnp.full(jax.tree.leaves(hypers_L)[0].shape, num_windows * spec.record_every)
    begun_W = spec.record_every * jnp.arange(num_windows)
    steps_WxL = jnp.clip(steps_L[None, :] - begun_W[:, None], 0, spec.record_every)
    is_due_W = jax.vmap(lambda begun: is_due(spec, state.step + begun))(begun_W)
    takes_WxL = is_due_W[:, None] | (steps_L == 1)[None, :]
    first = (state.step, state.missing, state.trial_L)
    (number, missing, trial_L), record_WxL = jax.lax.scan(window, first, (steps_WxL, takes_WxL))
    record_LxW = jax.tree.map(lambda column: jnp.moveaxis(column, 0, 1), record_WxL)
    return RowState(number, missing, state.source, trial_L), record_LxW


def is_due(spec: Any, number: Any) -> Any:
    """Whether the window that begins at a step begins with a record."""
    window = number // spec.record_every
    return jnp.bool_(True) if not per_decade(spec) else jnp.any(jnp.asarray(due_of(spec)) == window)


def record_number(spec: Any, number: Any) -> Any:
    """Count the records of a trial before a step."""
    window = number // spec.record_every
    return window if not per_decade(spec) else jnp.sum(jnp.asarray(due_of(spec)) < window)


def due_of(spec: Any) -> np.ndarray:
    """List the windows of a training that begin with a record."""
    return due_windows(per_decade(spec), spec.steps // spec.record_every).astype(np.int32)


def lanes_where(is_first_L: Any, first_L: Any, second_L: Any) -> Any:
    """Select the lanes of the first tree where the mask is true, of the second elsewhere."""

    def choose(first: Any, second: Any) -> Any:
        return jnp.where(is_first_L.reshape(-1, *[1] * (first.ndim - 1)), first, second)

    return jax.tree.map(choose, first_L, second_L)


def zeros(tree: Any, axes: tuple[int, ...] = ()) -> Any:
    """Make a tree of zeros of these shapes, with `axes` in front."""
    return jax.tree.map(lambda leaf: jax.lax.full(axes + leaf.shape, 0, leaf.dtype), tree)


def block_steps(experiment: Experiment, spec: Any, stream: Any, state: RowState) -> int:
    """Choose how many steps' data to draw ahead: a divisor of the window, within BLOCK_BYTES."""
    batch = jax.eval_shape(lambda: experiment.batch(spec, stream, state.source, state.step))
    size = max(1, sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch)))
    most = max(1, min(spec.record_every, BLOCK_BYTES // size))
    return next(steps for steps in range(most, 0, -1) if spec.record_every % steps == 0)


def lacking(experiment: Experiment, source: Any, batch: Any) -> Any:
    """Count what a batch, or the worst of several, lacked capacity for; 0 if the experiment does not say."""
    if experiment.missing is None:
        return jnp.zeros((), jnp.int32)
    return jnp.max(experiment.missing(source, batch)).astype(jnp.int32)


def no_records(experiment: Experiment, spec: Any, hypers_L: Any) -> Any:
    """Make records of zeros, one per lane."""
    return zeros(shapes(experiment, spec).record, jax.tree.leaves(hypers_L)[0].shape)


ORDERS = {"lane": Order(lane_at_a_time, lane_by_lane), "together": Order(lanes_together, jax.vmap)}


class Kept:
    """What this process has compiled last: a program serves again for chunks of the same shape.

    The same sweep with other numbers has such chunks, and so have the rounds of a refinement.
    """

    def __init__(self, most: int) -> None:
        self.most, self.known = most, OrderedDict[Hashable, Any]()

    def get(self, identity: Hashable, make: Callable[[], Any]) -> Any:
        """Return the program of this identity, made if it is not known."""
        found = self.known.pop(identity, None) or make()
        self.known[identity] = found
        while len(self.known) > self.most:
            self.known.popitem(last=False)
        return found


KEPT = Kept(most=64)


class Programs:
    """The compiled init, advance and weights of one group, for chunks of one shape."""

    def __init__(
        self,
        group: Group,
        mesh: Mesh,
        on_compile: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """Wrap the functions of one stream row; each is compiled at its first call."""
        self.group, self.spec, self.mesh, self.on_compile = group, group.spec, mesh, on_compile
        self.order = group.order or costs.usual_order(group, list(mesh.devices.flat))
        rate = costs.flop_rate(mesh.devices.flat[0].platform) * mesh.size
        self.segment_windows = costs.segment_windows(group, rate)
        self.layout = {  # a saved state fits only programs of the same layout
            "segment_windows": self.segment_windows,
            "rows_per_chunk": group.rows_per_chunk,
            "lanes": group.lanes,
            "snapshots": list(group.snapshots),
            "devices": mesh.size,
            "order": self.order,
            "records": list(shapes(group.experiment, self.spec).record),
        }
        row = (SHARDED, SHARDED)
        advance, over_lanes = ORDERS[self.order]
        advance = functools.partial(advance, num_windows=self.segment_windows)
        init, weights = (functools.partial(each, over_lanes=over_lanes) for each in (init_row, weights_row))
        taken, given = (*row, STATE_SHARDS, SHARDED), (STATE_SHARDS, SHARDED)
        self.functions = {  # not yet compiled
            "init": self.wrap(init, (*row, REPLICATED), STATE_SHARDS),
            "advance": self.wrap(advance, taken, given, donate=(2,)),
            "weights": self.wrap(weights, (SHARDED,), SHARDED),
        }
        self.compiled: dict[str, Any] = {}
        self.compile_seconds = 0.0
        self._compiling = threading.Lock()

    @property
    def shape(self) -> tuple[int, int]:
        """Stream rows and lanes of a chunk."""
        return self.group.rows_per_chunk, self.group.lanes

    @property
    def keeps_end(self) -> bool:
        """Whether the final weights of trials are kept, and the states to train them further."""
        return self.spec.steps in self.group.snapshots

    @property
    def segment_steps(self) -> int:
        """How many steps every trial of a chunk takes in one segment."""
        return self.segment_windows * self.spec.record_every

    def wrap(self, function: Callable[..., Any], takes: Any, gives: Any, donate: tuple = ()) -> Any:
        """Map the function of one stream row over many rows, then over devices.

        A core takes one row after another: a second batch axis would only cost it transposed copies.
        """
        of_row = functools.partial(function, traced_once(self.group.experiment), self.spec)
        if self.group.round_products:
            of_row = with_rounded_products(of_row, MANTISSA_BITS[self.group.round_products])
        over_rows = one_by_one if on_cores(self.mesh) else all_rows
        rows = over_rows(of_row, *(axes(shards) for shards in (takes, gives)))
        mapped = jax.shard_map(rows, mesh=self.mesh, check_vma=False, in_specs=takes, out_specs=gives)
        return jax.jit(mapped, donate_argnums=donate)

    def _call(self, name: str, *args: Any) -> Any:
        """Run a program, compiling it at its first call; the time this takes is counted separately."""
        if name not in self.compiled:
            start = time.monotonic()
            self._compile(name, *args)
            self.on_compile(time.monotonic() - start)
        return self.compiled[name](*args)

    def _compile(self, name: str, *args: Any) -> None:
        """Compile a program for arguments of these shapes, unless it or another thread has done so."""
        with self._compiling:
            if name not in self.compiled:
                self.compiled[name] = KEPT.get(self._identity(name, args), lambda: self._new(name, args))

    def _identity(self, name: str, args: tuple[Any, ...]) -> Hashable:
        """Return all that a program depends on."""
        shapes_of_args = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(args))
        length = self.segment_windows if name == "advance" else 0
        how = (self.order, length, on_cores(self.mesh), self.group.round_products)
        options = (*arithmetic().items(), *(compiler_options(self.mesh) or {}).items())
        return name, self.group.experiment, self.spec, how, shapes_of_args, options, *self.mesh.devices.flat

    def _new(self, name: str, args: tuple[Any, ...]) -> Any:
        start = time.monotonic()
        with pinned():
            lowered = self.functions[name].lower(*args)
        refuse_what_hangs(lowered, self.mesh)
        compiled = lowered.compile(compiler_options(self.mesh))
        self.compile_seconds += time.monotonic() - start
        return compiled

    def compile(self) -> None:
        """Compile what every chunk needs, from shapes alone: other programs may run meanwhile."""
        for name, args in self.shapes().items():
            self._compile(name, *args)

    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """Return the arguments of init and advance as shapes with their sharding."""

        def with_axes(tree: Any, axes: tuple[int, ...]) -> Any:
            return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(axes, np.asarray(leaf).dtype), tree)

        def placed(tree: Any, shards: Any) -> Any:
            def of_leaf(leaf: Any) -> jax.ShapeDtypeStruct:
                own = shards if leaf.size else REPLICATED  # JAX returns empty arrays replicated
                return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(self.mesh, own))

            return jax.tree.map(of_leaf, tree)

        stream, hypers = example(self.group.experiment)
        streams, hypers = with_axes(stream, self.shape[:1]), with_axes(hypers, self.shape)
        row = placed(streams, SHARDED), placed(hypers, SHARDED)
        data = placed(self.group.experiment.data_shapes(self.spec), REPLICATED)
        state = jax.eval_shape(self.functions["init"], *row, data)
        state = RowState(*(placed(leaf, how) for leaf, how in zip(state, STATE_SHARDS, strict=True)))
        steps = placed(jax.ShapeDtypeStruct(self.shape, np.int32), SHARDED)
        return {"init": (*row, data), "advance": (*row, state, steps)}

    def arguments(self, rows: Sequence[StreamRow]) -> tuple[Any, Any]:
        """Place the Streams and Hypers of a chunk on the devices, padded to the group's shape."""
        traced = self.group.experiment.settings.traced
        padded = [*rows, *[rows[0]] * (self.group.rows_per_chunk - len(rows))]
        streams = [traced(row.stream) for row in padded]
        lanes = [fill(row.hypers, self.group.lanes) for row in padded]
        sharding = NamedSharding(self.mesh, SHARDED)
        stream_R = jax.tree.map(lambda *leaves: np.stack(leaves), *streams)
        hypers_RxL = jax.tree.map(
            lambda *leaves: np.stack(leaves).reshape(len(padded), self.group.lanes),
            *(traced(hypers) for row in lanes for hypers in row),
        )
        return jax.device_put(stream_R, sharding), jax.device_put(hypers_RxL, sharding)

    def init(self, streams: Any, hypers: Any) -> RowState:
        """Make the state before the first step."""
        return self._call("init", streams, hypers, self.data)

    @functools.cached_property
    def data(self) -> Any:
        """The experiment's external data, on every device."""
        loaded = self.group.experiment.load_data(self.spec)
        return jax.device_put(loaded, NamedSharding(self.mesh, REPLICATED))

    def advance(
        self, streams: Any, hypers: Any, state: RowState, steps_RxL: np.ndarray | None = None
    ) -> tuple[RowState, Any]:
        """Train one segment; return the state and its records.  The given state is donated.

        With `steps_RxL`, a lane ends after its number of steps; a single step serves to take its last record.
        """
        if steps_RxL is None:
            steps_RxL = np.full(self.shape, self.segment_steps)
        steps = jax.device_put(steps_RxL.astype(np.int32), NamedSharding(self.mesh, SHARDED))
        return self._call("advance", streams, hypers, state, steps)

    def weights(self, state: RowState) -> dict[str, Any]:
        """Return what snapshots keep of the state, R x L x ..."""
        return self._call("weights", state.trial_L)

    def weights_of_trial(self, trial_RxL: Any) -> Any:
        """Return what a snapshot keeps of the first trial."""
        first = jax.tree.map(lambda leaf: leaf[0, 0], trial_RxL)
        return self.group.experiment.weights(self.spec, first)


def compiled_ahead(every: Iterable[Programs]) -> Generator[Programs, None, None]:
    """Yield programs one after another; while one is in use, a second thread compiles the next.

    Compiling keeps one core busy while the others would wait for it.  Stopping does not wait for the thread.
    """
    following, thread = iter(every), ThreadPoolExecutor(1)
    current = next(following, None)
    try:
        while current is not None:
            upcoming = next(following, None)
            if upcoming is not None:
                thread.submit(upcoming.compile)  # if it fails, the program's first call raises again
            yield current
            current = upcoming
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


def device_mesh(devices: Sequence[Any]) -> Mesh:
    """Make a mesh with one axis, over which stream rows are distributed."""
    return Mesh(np.array(devices), ("devices",), axis_types=(AxisType.Auto,))


def axes(shards: Any) -> Any:
    """Return the vmap axes of stream rows for these shardings."""
    return jax.tree.map(
        lambda spec: 0 if spec == SHARDED else None,
        shards,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )


def compiler_options(mesh: Mesh) -> dict[str, Any] | None:
    """Return our compiler options for these devices, without those that the user has set in XLA_FLAGS."""
    flags = os.environ.get("XLA_FLAGS", "")
    ours = {name: value for name, value in CPU_OPTIONS.items() if name not in flags}
    return ours if on_cores(mesh) else None


def on_cores(mesh: Mesh) -> bool:
    """Whether the devices are CPU cores."""
    return mesh.devices.flat[0].platform == "cpu"


def refuse_what_hangs(lowered: Any, mesh: Mesh) -> None:
    """Raise a UserError if the program passes LAPACK several matrices at once on more than one CPU device.

    Such a call holds one of XLA's threads and waits for another.  There are as many threads as devices (more
    would make every program a quarter slower), so all of them can end up waiting.
    """
    if on_cores(mesh) and mesh.size > 1 and (called := SEVERAL_MATRICES.search(lowered.as_text())):
        raise UserError(
            f"the experiment calls LAPACK ({called[1]}) on several matrices at once, which can hang on "
            f"{mesh.size} CPU devices; decompose them one by one with jax.lax.map, or set "
            "JAX_NUM_CPU_DEVICES=1"
        )


def all_rows(function: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Map the function over stream rows, all at once."""
    return jax.vmap(function, in_axes, out_axes)


def one_by_one(function: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Do what vmap over stream rows does, in a loop over them; states share their step."""

    def share_step(leaf: Any) -> Any:
        return leaf._replace(step=leaf.step[0]) if isinstance(leaf, RowState) else leaf

    @functools.wraps(function)
    def each_row(*args: Any) -> Any:
        every_arg_by_row = jax.vmap(lambda *row: row, in_axes)(*args)
        results = jax.lax.map(lambda row: function(*row), every_arg_by_row)
        return jax.tree.map(share_step, results, is_leaf=lambda leaf: isinstance(leaf, RowState))

    return each_row


def fill(hypers: Sequence[Any], lanes: int) -> list[Any]:
    """Fill the empty lanes of a stream row by repeating the first Hypers."""
    return [*hypers, *[hypers[0]] * (lanes - len(hypers))]
