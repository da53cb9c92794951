"""Train a table of trials: groups -> chunks -> devices -> segments, and hand the results to the store.

One program a group trains every chunk of it; trials never meet inside it, so a diverged one leaves its
neighbours untouched.  Results are written by a second thread while the next chunk computes.
"""

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from topicjax import bag, plan, store, train
from topicjax.config import Hypers, Spec, Trial, numbers, settings_of
from topicjax.measure import Record
from topicjax.plan import Group, Row
from topicjax.progress import Progress
from topicjax.train import TrainState

ROWS = PartitionSpec("devices")
EVERYWHERE = PartitionSpec()
STATE_ROWS = TrainState(step=None, rows_missing=0, params=0, opt_state=0, earlier_values=0, source=0)
STATE_SPECS = TrainState(*(EVERYWHERE if axis is None else ROWS for axis in STATE_ROWS))
HEALTH = ("loss", "eval_loss", "norm_k", "norm_q", "norm_v")  # finite in every healthy record


class Interrupted(Exception):
    """The user asked to stop; everything finished is on disk."""


@dataclass
class Options:
    """How to run, as opposed to what: none of it changes a result."""

    lanes_per_device: int = 0  # 0: chosen
    snapshots: str = "last"
    save_seconds: float = 60.0  # how often the state inside a chunk is saved
    devices: Sequence[Any] = field(default_factory=jax.local_devices)


def use_all_cores() -> None:
    """Make every CPU core a device and keep compiled programs between runs; before jax starts."""
    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(cache) / "topicjax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


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
        self._compiled: dict[str, Any] = {}

    @staticmethod
    def _over_rows(function: Callable[..., Any], in_axes: tuple, out_axes: Any) -> Callable[..., Any]:
        """Return the function over Hypers that share a Stream, then over rows of Streams."""

        def by_row(axis: Any) -> Any:
            return STATE_ROWS if axis is train.STATE_AXES else 0

        lanes = jax.vmap(function, in_axes, out_axes)
        rows_out = tuple(map(by_row, out_axes)) if type(out_axes) is tuple else by_row(out_axes)
        return jax.vmap(lanes, tuple(map(by_row, in_axes)), rows_out)

    def _sharded(self, function: Callable[..., Any], arity: int, out: Any, donate: tuple = ()) -> Any:
        specs = (ROWS, ROWS, STATE_SPECS)[:arity]
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)
        return jax.jit(mapped, donate_argnums=donate)

    def _call(self, name: str, *args: Any) -> Any:
        """Run a program, compiling it at its first call; compile time is counted apart."""
        if name not in self._compiled:
            start = time.monotonic()
            self._compiled[name] = getattr(self, f"_{name}").lower(*args).compile()
            self.on_compile(time.monotonic() - start)
        return self._compiled[name](*args)

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


def fill(hypers: Sequence[Hypers], lanes: int) -> list[Hypers]:
    """Return the Hypers of a row, the first repeated in empty lanes."""
    return [*hypers, *[hypers[0]] * (lanes - len(hypers))]


@dataclass
class Chunk:
    """What is known of a chunk so far: records by segment, snapshots by step, all on the host."""

    name: str
    rows: Sequence[Row]
    records: list[dict[str, np.ndarray]] = field(default_factory=list)
    snapshots: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)

    @property
    def trial_ids(self) -> list[str]:
        """The trials of the chunk, in the order of its tables and checkpoints."""
        return [trial_id for row in self.rows for trial_id in row.trial_ids]

    def keep(self, values: np.ndarray) -> np.ndarray:
        """Return rows x lanes x ... as trials x ..., without the padding."""
        return np.concatenate([values[i, : len(row.trial_ids)] for i, row in enumerate(self.rows)])

    def add_records(self, records: Record) -> None:
        """Keep the records of a segment, trials x records."""
        self.records.append(
            {name: self.keep(np.asarray(values)) for name, values in records._asdict().items()}
        )

    def columns(self) -> dict[str, np.ndarray]:
        """Return all records so far, trials x records."""
        return {
            name: np.concatenate([part[name] for part in self.records], axis=1) for name in Record._fields
        }

    def add_snapshot(self, spec: Spec, step: int, params: Any) -> None:
        """Keep the weights of a step in their true shapes."""
        host = {name: self.keep(np.asarray(leaf)) for name, leaf in params.items()}
        self.snapshots[step] = unpad_trials(spec, host)


def chunk_of(rows: Sequence[Row]) -> str:
    """Return the name of the chunk with these rows."""
    return store.chunk_name([trial_id for row in rows for trial_id in row.trial_ids])


def unpad_trials(spec: Spec, params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return parameters of many trials without the padding of their own axes."""
    first = bag.unpad(spec, {name: leaf[0] for name, leaf in params.items()})
    return {
        name: np.ascontiguousarray(leaf[(slice(None), *map(slice, first[name].shape))])
        for name, leaf in params.items()
    }


def train_chunk(
    programs: Programs,
    chunk: Chunk,
    snapshots: Sequence[int],
    writer: store.Writer,
    options: Options,
    on_segment: Callable[[int], bool],
) -> None:
    """Train one chunk to its end, from where an interrupted run left it."""
    spec = programs.spec
    streams, hypers = programs.arguments(chunk.rows)
    state = programs.init(streams, hypers)
    step, state = resume(chunk, writer, state, programs.layout)
    if step == 0 and 0 in snapshots:
        chunk.add_snapshot(spec, 0, state.params)
    saved = time.monotonic()
    while step < spec.steps:
        state, records = programs.advance(streams, hypers, state)
        step += programs.window * spec.record_every
        chunk.add_records(records)
        if step in snapshots:
            chunk.add_snapshot(spec, step, state.params)
        stop = on_segment(programs.window * spec.record_every)
        if step < spec.steps and (stop or time.monotonic() - saved > options.save_seconds):
            train.check_rows(state)
            suspend(chunk, writer, state, programs.layout | dict(step=step))
            saved = time.monotonic()
        if stop and step < spec.steps:
            raise Interrupted
    train.check_rows(state)
    final = programs.record(streams, hypers, state)
    chunk.add_records(jax.tree.map(lambda column: column[..., None], final))


def suspend(chunk: Chunk, writer: store.Writer, state: TrainState, meta: dict[str, Any]) -> None:
    """Save the state inside a chunk, with its step and the layout it fits."""
    payload = {f"state/{i}": np.asarray(leaf) for i, leaf in enumerate(state_leaves(state))}
    payload |= {f"record/{name}": values for name, values in chunk.columns().items()}
    for at, params in chunk.snapshots.items():
        payload |= {f"snapshot/{at}/{name}": leaf for name, leaf in params.items()}
    writer.save_partial(chunk.name, payload, meta)


def resume(
    chunk: Chunk, writer: store.Writer, state: TrainState, layout: dict[str, Any]
) -> tuple[int, TrainState]:
    """Return the step and state an interrupted run saved for this chunk, or the given ones.

    What was saved under another layout (other segments, lanes or snapshots) is of no use here.
    """
    found = writer.load_partial(chunk.name)
    if found is None or any(found[1].get(name) != value for name, value in layout.items()):
        return 0, state
    payload, meta = found
    leaves = [payload[f"state/{i}"] for i in range(len(state_leaves(state)))]
    chunk.records = [{name: payload[f"record/{name}"] for name in Record._fields}]
    for key, leaf in payload.items():
        kind, *rest = key.split("/")
        if kind == "snapshot":
            chunk.snapshots.setdefault(int(rest[0]), {})[rest[1]] = leaf
    placed = [jax.device_put(new, old.sharding) for new, old in zip(leaves, state_leaves(state), strict=True)]
    bare = jax.tree.unflatten(jax.tree.structure(state._replace(source=None)), placed)
    return int(meta["step"]), bare._replace(source=state.source)


def state_leaves(state: TrainState) -> list[Any]:
    """Return all that must be saved: the source is made anew by init."""
    return jax.tree.leaves(state._replace(source=None))


def tables(chunk: Chunk, spec: Spec, trials: dict[str, Trial]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of the trials and of the trajectories files."""
    ids = chunk.trial_ids
    columns = chunk.columns()
    num_records = columns["loss"].shape[1]
    columns["step"] = np.broadcast_to(
        np.arange(num_records, dtype=np.int32) * spec.record_every, columns["loss"].shape
    )
    trajectories = pd.DataFrame({"trial_id": np.repeat(ids, num_records)}).assign(
        **{name: values.ravel() for name, values in columns.items()}
    )
    sick = ~np.all([np.isfinite(columns[name]) for name in HEALTH], axis=0)
    diverged = sick.any(axis=1)
    frame = pd.DataFrame([settings_of(trials[trial_id]) for trial_id in ids])
    frame.insert(0, "trial_id", ids)
    first_sick = columns["step"][0][sick.argmax(axis=1)]
    results = {
        "status": np.where(diverged, "diverged", "ok"),
        "diverged_step": np.where(diverged, first_sick, np.nan),
    }
    finals = {f"final_{name}": columns[name][:, -1] for name in Record._fields if name != "step"}
    where = {"chunk": chunk.name, "row": np.arange(len(ids))}
    steps = [sorted(chunk.snapshots)] * len(ids)
    return frame.assign(**results, **finals, **where, snapshot_steps=steps), trajectories


def write_chunk(writer: store.Writer, chunk: Chunk, spec: Spec, trials: dict[str, Trial]) -> tuple[int, int]:
    """Write a trained chunk; return how many of its trials are ok and how many diverged."""
    rows, trajectories = tables(chunk, spec, trials)
    for step, params in sorted(chunk.snapshots.items()):
        writer.save_snapshot(chunk.name, step, params)
    writer.commit(chunk.name, rows, trajectories)
    diverged = int(np.count_nonzero(rows["status"] == "diverged"))
    return len(rows) - diverged, diverged


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether the user asked to stop; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def device_memory(devices: Sequence[Any]) -> int:
    """Return the memory of one device: its own, or its share of the host's."""
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    return stats["bytes_limit"] if stats else plan.host_memory() // len(devices)


def choose_lanes(trials: Sequence[Trial], options: Options) -> int:
    """Return how many trials a device trains together: asked for, or what fits."""
    if options.lanes_per_device:
        return options.lanes_per_device
    specs = {trial.spec for trial in trials}
    return plan.lanes_that_fit(specs, options.devices[0].platform, device_memory(options.devices))


@dataclass
class Outcome:
    """What a run did."""

    ok: int
    diverged: int
    trial_steps: float
    seconds: float
    compile_seconds: float
    programs: int


def run(trials: Sequence[Trial], writer: store.Writer, progress: Progress, options: Options) -> Outcome:
    """Train every trial that the folder does not have yet."""
    lanes = choose_lanes(trials, options)
    groups = plan.make_plan(trials, len(options.devices), lanes, writer.committed())
    writer.keep_partials([chunk_of(rows) for group in groups for rows in group.chunks])
    by_id = {plan.config.trial_id(trial): trial for trial in trials}
    mesh = Mesh(np.array(options.devices), ("devices",), axis_types=(AxisType.Auto,))
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool, stop_requests() as stopping:
        pending: list[Future] = []

        def settle() -> None:
            """Wait for the chunk that is being written; at most one is."""
            while pending:
                progress.update(**dict(zip(("ok", "diverged"), pending.pop().result(), strict=True)))

        try:
            for number, group in enumerate(groups, start=1):
                progress.group = f"program {number}/{len(groups)}: {describe(group.spec)}"
                snapshots = plan.parse_snapshots(options.snapshots, group.spec)
                programs = Programs(group, snapshots, mesh, progress.add_compile_time)
                for rows in group.chunks:
                    chunk = Chunk(chunk_of(rows), rows)

                    def on_segment(steps: int, count: int = len(chunk.trial_ids)) -> bool:
                        progress.update(steps=steps * count)
                        return stopping()

                    train_chunk(programs, chunk, snapshots, writer, options, on_segment)
                    settle()
                    pending.append(pool.submit(write_chunk, writer, chunk, group.spec, by_id))
                    if stopping():
                        raise Interrupted
        finally:
            settle()
    return Outcome(
        progress.ok,
        progress.diverged,
        progress.steps,
        time.monotonic() - started,
        progress.compile_seconds,
        len(groups),
    )


def describe(spec: Spec) -> str:
    """Return the few words that tell programs of a sweep apart."""
    return f"{spec.optimizer}, {spec.embedding} embeddings, {spec.attention} attention, {spec.steps} steps"
