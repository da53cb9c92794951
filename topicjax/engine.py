"""Train a table of trials: groups -> chunks -> devices -> segments, and hand the results to the store.

One program a group trains every chunk of it; trials never meet inside it, so a diverged one leaves its
neighbours untouched.  Results are written by a second thread while the next chunk computes.
"""

import contextlib
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
from jax.sharding import AxisType, Mesh

from topicjax import bag, plan, store, train
from topicjax.config import Spec, Trial, settings_of
from topicjax.measure import Record
from topicjax.plan import Row
from topicjax.programs import Programs
from topicjax.progress import Progress
from topicjax.train import TrainState

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
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jax.config.update("jax_num_cpu_devices", allowed or 1)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(cache) / "topicjax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


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
