"""The compiled programs of one group: a trial's functions over lanes, over stream rows, over devices."""

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from topicjax.engine import costs
from topicjax.engine.plan import Group, StreamRow
from topicjax.experiments.one_layer import train
from topicjax.experiments.one_layer.records import Record
from topicjax.experiments.one_layer.train import STATE_PER, Per, TrainState
from topicjax.trial import Hypers, traced

CPU_OPTIONS = {
    "xla_cpu_multi_thread_eigen": False,  # every core is a device: it needs no helpers
    "xla_backend_optimization_level": 1,  # runs as fast as 3, compiles sooner
}
SHARDED, REPLICATED = PartitionSpec("devices"), PartitionSpec()

Belongs = Literal["stream", "trial", "state"]  # what an argument or result of a trial's function belongs to
LANE_AXES: dict[Belongs, Any] = {
    "stream": None,
    "trial": 0,
    "state": TrainState(*(0 if per is Per.TRIAL else None for per in STATE_PER)),
}
STREAM_AXES: dict[Belongs, Any] = {
    "stream": 0,
    "trial": 0,
    "state": TrainState(*(None if per is Per.PROGRAM else 0 for per in STATE_PER)),
}
SHARDINGS: dict[Belongs, Any] = {
    "stream": SHARDED,
    "trial": SHARDED,
    "state": TrainState(*(REPLICATED if per is Per.PROGRAM else SHARDED for per in STATE_PER)),
}


class Programs:
    """The compiled init, advance and record of one group, for chunks of one shape."""

    def __init__(
        self, group: Group, mesh: Mesh, on_compile: Callable[[float], None] = lambda seconds: None
    ) -> None:
        """Wrap the functions of one trial; each is compiled when it is first called."""
        self.group, self.spec, self.mesh, self.on_compile = group, group.spec, mesh, on_compile
        rate = costs.flop_rate(mesh.devices.flat[0].platform) * mesh.size
        self.segment_windows = costs.segment_windows(group, rate)
        self.layout = {  # a state saved inside a chunk fits programs of the same layout only
            "segment_windows": self.segment_windows,
            "rows_per_chunk": group.rows_per_chunk,
            "lanes": group.lanes,
            "snapshots": list(group.snapshots),
            "devices": mesh.size,
            "records": list(Record._fields),
        }
        advance = functools.partial(train.advance, num_records=self.segment_windows)
        self._init = self._wrap(train.init, ("stream", "trial"), ("state",))
        self._advance = self._wrap(advance, ("stream", "trial", "state"), ("state", "trial"), donate=(2,))
        self._record = self._wrap(train.record, ("stream", "trial", "state"), ("trial",))
        self.compiled: dict[str, Any] = {}

    @property
    def segment_steps(self) -> int:
        """How many steps every trial of a chunk takes in one segment."""
        return self.segment_windows * self.spec.record_every

    def _wrap(
        self,
        function: Callable[..., Any],
        takes: Sequence[Belongs],
        gives: Sequence[Belongs],
        donate: tuple = (),
    ) -> Any:
        """Return a trial's function over lanes, then over stream rows, then over devices.

        A core takes one stream row after another: a second batch axis only costs it transposed copies.
        """
        for_spec = functools.partial(function, self.spec)
        lanes = jax.vmap(for_spec, select(LANE_AXES, takes), unwrap(select(LANE_AXES, gives)))
        stream_axes = select(STREAM_AXES, takes)
        if on_cores(self.mesh):
            rows = one_by_one(lanes, stream_axes)
        else:
            rows = jax.vmap(lanes, stream_axes, unwrap(select(STREAM_AXES, gives)))
        specs = dict(in_specs=select(SHARDINGS, takes), out_specs=unwrap(select(SHARDINGS, gives)))
        return jax.jit(jax.shard_map(rows, mesh=self.mesh, check_vma=False, **specs), donate_argnums=donate)

    def _call(self, name: str, *args: Any) -> Any:
        """Run a program, compiling it at its first call; compile time is counted apart."""
        if name not in self.compiled:
            start = time.monotonic()
            lowered = getattr(self, f"_{name}").lower(*args)
            self.compiled[name] = lowered.compile(compiler_options(self.mesh))
            self.on_compile(time.monotonic() - start)
        return self.compiled[name](*args)

    def arguments(self, rows: Sequence[StreamRow]) -> tuple[Any, Any]:
        """Return the Streams and Hypers of a chunk on the devices, padded to the group's shape."""
        padded = [*rows, *[rows[0]] * (self.group.rows_per_chunk - len(rows))]
        streams = [traced(row.stream) for row in padded]
        lanes = [fill(row.hypers, self.group.lanes) for row in padded]
        sharding = NamedSharding(self.mesh, SHARDED)
        stream_R = jax.tree.map(lambda *leaves: np.stack(leaves), *streams)
        hypers_RxH = jax.tree.map(
            lambda *leaves: np.stack(leaves).reshape(len(padded), self.group.lanes),
            *(traced(hypers) for row in lanes for hypers in row),
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


def device_mesh(devices: Sequence[Any]) -> Mesh:
    """Return the devices as the one axis that stream rows are spread over."""
    return Mesh(np.array(devices), ("devices",), axis_types=(AxisType.Auto,))


def select(table: dict[Belongs, Any], owners: Sequence[Belongs]) -> tuple:
    """Return the entries of these owners."""
    return tuple(table[owner] for owner in owners)


def unwrap(items: tuple) -> Any:
    """Return the only item, or all: a function of one result does not return a tuple."""
    return items[0] if len(items) == 1 else items


def compiler_options(mesh: Mesh) -> dict[str, Any] | None:
    """Return our options for these devices; those that the user has set in XLA_FLAGS are left alone."""
    flags = os.environ.get("XLA_FLAGS", "")
    ours = {name: value for name, value in CPU_OPTIONS.items() if name not in flags}
    return ours if on_cores(mesh) else None


def on_cores(mesh: Mesh) -> bool:
    """Return whether the devices are CPU cores."""
    return mesh.devices.flat[0].platform == "cpu"


def one_by_one(function: Callable[..., Any], in_axes: tuple) -> Callable[..., Any]:
    """Return what vmap over stream rows returns, computed in a loop over them; states share their step."""

    def share_step(leaf: Any) -> Any:
        return leaf._replace(step=leaf.step[0]) if isinstance(leaf, TrainState) else leaf

    @functools.wraps(function)
    def each_row(*args: Any) -> Any:
        every_arg_by_row = jax.vmap(lambda *row: row, in_axes)(*args)
        results = jax.lax.map(lambda row: function(*row), every_arg_by_row)
        return jax.tree.map(share_step, results, is_leaf=lambda leaf: isinstance(leaf, TrainState))

    return each_row


def fill(hypers: Sequence[Hypers], lanes: int) -> list[Hypers]:
    """Return the Hypers of a stream row, the first repeated in empty lanes."""
    return [*hypers, *[hypers[0]] * (lanes - len(hypers))]
