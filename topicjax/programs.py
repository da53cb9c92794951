"""The compiled programs of one group: a trial's functions under vmap over Hypers, over rows, over devices."""

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from topicjax import plan, train
from topicjax.config import Hypers, numbers
from topicjax.measure import Record
from topicjax.plan import Group, Row
from topicjax.train import TrainState

ROWS = PartitionSpec("devices")
EVERYWHERE = PartitionSpec()
CPU_OPTIONS = {
    "xla_cpu_multi_thread_eigen": False,  # every core is a device: it needs no helpers
    "xla_backend_optimization_level": 1,  # runs as fast as 3, compiles sooner
}
STATE_ROWS = TrainState(step=None, rows_missing=0, params=0, opt_state=0, earlier_values=0, source=0)
STATE_SPECS = TrainState(*(EVERYWHERE if axis is None else ROWS for axis in STATE_ROWS))


class Programs:
    """The compiled init, advance and record of one group, for chunks of one shape."""

    def __init__(
        self,
        group: Group,
        snapshots: Sequence[int],
        mesh: Mesh,
        on_compile: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """Wrap the functions for one trial in vmap over Hypers, rows and devices; compile later."""
        self.group, self.spec, self.mesh, self.on_compile = group, group.spec, mesh, on_compile
        self.compiler_options = compiler_options(mesh)
        rate = plan.flop_rate(mesh.devices.flat[0].platform) * mesh.size
        self.window = plan.segment_records(group, snapshots, rate)
        self.layout = dict(window=self.window, rows=group.rows_per_chunk, lanes=group.lanes)
        self.layout |= dict(snapshots=list(snapshots))
        axes = train.STATE_AXES
        init = self._over_rows(functools.partial(train.init, self.spec), (None, 0), axes)
        advance = functools.partial(train.advance, self.spec, num_records=self.window)
        advance = self._over_rows(advance, (None, 0, axes), (axes, 0))
        record = self._over_rows(functools.partial(train.record, self.spec), (None, 0, axes), 0)
        self._init = self._sharded(init, 2, STATE_SPECS)
        self._advance = self._sharded(advance, 3, (STATE_SPECS, ROWS), donate=(2,))
        self._record = self._sharded(record, 3, ROWS)
        self.compiled: dict[str, Any] = {}

    def _over_rows(self, function: Callable[..., Any], in_axes: tuple, out_axes: Any) -> Callable[..., Any]:
        """Return the function over Hypers that share a Stream, then over rows of Streams.

        A core takes one row after another: a second batch axis only costs it transposed copies.
        """

        def by_row(axis: Any) -> Any:
            return STATE_ROWS if axis is train.STATE_AXES else 0

        lanes = jax.vmap(function, in_axes, out_axes)
        rows_in = tuple(map(by_row, in_axes))
        if on_cores(self.mesh):
            return one_by_one(lanes, rows_in)
        rows_out = tuple(map(by_row, out_axes)) if type(out_axes) is tuple else by_row(out_axes)
        return jax.vmap(lanes, rows_in, rows_out)

    def _sharded(self, function: Callable[..., Any], arity: int, out: Any, donate: tuple = ()) -> Any:
        specs = (ROWS, ROWS, STATE_SPECS)[:arity]
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)
        return jax.jit(mapped, donate_argnums=donate)

    def _call(self, name: str, *args: Any) -> Any:
        """Run a program, compiling it at its first call; compile time is counted apart."""
        if name not in self.compiled:
            start = time.monotonic()
            self.compiled[name] = getattr(self, f"_{name}").lower(*args).compile(self.compiler_options)
            self.on_compile(time.monotonic() - start)
        return self.compiled[name](*args)

    def arguments(self, rows: Sequence[Row]) -> tuple[Any, Any]:
        """Return the Streams and Hypers of a chunk on the devices, padded to the group's shape."""
        padded = [*rows, *[rows[0]] * (self.group.rows_per_chunk - len(rows))]
        streams = [numbers(row.stream) for row in padded]
        lanes = [fill(row.hypers, self.group.lanes) for row in padded]
        sharding = NamedSharding(self.mesh, ROWS)
        stream_R = jax.tree.map(lambda *leaves: np.stack(leaves), *streams)
        hypers_RxH = jax.tree.map(
            lambda *leaves: np.stack(leaves).reshape(len(padded), self.group.lanes),
            *(numbers(hypers) for row in lanes for hypers in row),
        )
        return jax.device_put(stream_R, sharding), jax.device_put(hypers_RxH, sharding)

    def init(self, streams: Any, hypers: Any) -> TrainState:
        """Return the state before the first step."""
        return self._call("init", streams, hypers)

    def advance(self, streams: Any, hypers: Any, state: TrainState) -> tuple[TrainState, Record]:
        """Return the state one segment later and its records; the given state is used up."""
        return self._call("advance", streams, hypers, state)

    def record(self, streams: Any, hypers: Any, state: TrainState) -> Record:
        """Return the record of the state as it is."""
        return self._call("record", streams, hypers, state)


def compiler_options(mesh: Mesh) -> dict[str, Any] | None:
    """Return our options for these devices; those that the user has set in XLA_FLAGS are left alone."""
    flags = os.environ.get("XLA_FLAGS", "")
    ours = {name: value for name, value in CPU_OPTIONS.items() if name not in flags}
    return ours if on_cores(mesh) else None


def on_cores(mesh: Mesh) -> bool:
    """Return whether the devices are CPU cores."""
    return mesh.devices.flat[0].platform == "cpu"


def one_by_one(function: Callable[..., Any], in_axes: tuple) -> Callable[..., Any]:
    """Return what vmap over rows returns, computed in a loop over them; states share their step."""

    def share_step(leaf: Any) -> Any:
        return leaf._replace(step=leaf.step[0]) if isinstance(leaf, TrainState) else leaf

    @functools.wraps(function)
    def each_row(*args: Any) -> Any:
        every_arg_by_row = jax.vmap(lambda *row: row, in_axes)(*args)
        results = jax.lax.map(lambda row: function(*row), every_arg_by_row)
        return jax.tree.map(share_step, results, is_leaf=lambda leaf: isinstance(leaf, TrainState))

    return each_row


def fill(hypers: Sequence[Hypers], lanes: int) -> list[Hypers]:
    """Return the Hypers of a row, the first repeated in empty lanes."""
    return [*hypers, *[hypers[0]] * (lanes - len(hypers))]
