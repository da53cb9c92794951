"""One chunk of trials: trained segment by segment, saved inside if that takes long, written at its end."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from topicjax.engine.orders import RowState
from topicjax.engine.plan import Group, StreamRow
from topicjax.engine.programs import Programs
from topicjax.store.folder import ids_name
from topicjax.store.writer import Writer
from topicjax.trial import Trial


class Interrupted(Exception):
    """The user asked to stop; everything finished is on disk."""


@dataclass
class Chunk:
    """What is known of a chunk so far: records by segment, snapshots by step, all on the host."""

    rows: Sequence[StreamRow]
    records: list[dict[str, np.ndarray]] = field(default_factory=list)
    snapshots: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)

    @property
    def trial_ids(self) -> list[str]:
        """The trials of the chunk, in the order of its tables and checkpoints."""
        return [trial_id for row in self.rows for trial_id in row.trial_ids]

    @property
    def name(self) -> str:
        """The name of the chunk's files."""
        return ids_name(self.trial_ids)

    def unpacked(self, values: np.ndarray) -> np.ndarray:
        """Return stream rows x lanes x ... as trials x ..., without the padding."""
        return np.concatenate([values[i, : len(row.trial_ids)] for i, row in enumerate(self.rows)])

    def add_records(self, records: Any) -> None:
        """Keep the records of a segment, trials x records."""
        self.records.append(
            {name: self.unpacked(np.asarray(values)) for name, values in records._asdict().items()}
        )

    def columns(self) -> dict[str, np.ndarray]:
        """Return all records so far, trials x records."""
        return {
            name: np.concatenate([part[name] for part in self.records], axis=1) for name in self.records[0]
        }

    def add_snapshot(self, step: int, weights: Mapping[str, Any]) -> None:
        """Keep the weights of a step, if the experiment has any to keep."""
        if weights:
            self.snapshots[step] = {name: self.unpacked(np.asarray(leaf)) for name, leaf in weights.items()}


def train_chunk(
    programs: Programs,
    chunk: Chunk,
    writer: Writer,
    save_seconds: float,
    on_segment: Callable[[int], bool],
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Train one chunk to its end, from where an interrupted run left it.

    `on_segment` is called with the steps of each segment; if it returns True, the state is saved and
    Interrupted raised, unless the training is over.  `say` is told if a saved state is of no use.
    """
    spec, snapshots = programs.spec, programs.group.snapshots
    streams, hypers = programs.arguments(chunk.rows)
    state = programs.init(streams, hypers)
    step, state = resume(chunk, writer, state, programs, say)
    if step == 0 and 0 in snapshots:
        chunk.add_snapshot(0, programs.weights(state))
    saved = time.monotonic()
    while step < spec.steps:
        state, records = programs.advance(streams, hypers, state)
        step += programs.segment_steps
        chunk.add_records(records)
        if step in snapshots:
            chunk.add_snapshot(step, programs.weights(state))
        stop = on_segment(programs.segment_steps)
        if step < spec.steps and (stop or time.monotonic() - saved > save_seconds):
            check_room(state)
            suspend(chunk, writer, state, programs.layout | dict(step=step))
            saved = time.monotonic()
        if stop and step < spec.steps:
            raise Interrupted
    check_room(state)
    final = programs.record(streams, hypers, state)
    chunk.add_records(jax.tree.map(lambda column: column[..., None], final))


def check_room(state: RowState) -> None:
    """Raise if some data had no room in the program: its sizes are wrong, and its trials void."""
    missing = int(np.max(np.asarray(state.missing)))
    if missing > 0:
        raise RuntimeError(f"the program lacks room for {missing} items of its data: its trials are void")


def suspend(chunk: Chunk, writer: Writer, state: RowState, meta: dict[str, Any]) -> None:
    """Save the state inside a chunk, with its step and the layout it fits."""
    payload = {f"state/{i}": to_host(leaf) for i, leaf in enumerate(state_leaves(state))}
    payload |= {f"record/{name}": values for name, values in chunk.columns().items()}
    for at, params in chunk.snapshots.items():
        payload |= {f"snapshot/{at}/{name}": leaf for name, leaf in params.items()}
    writer.save_partial(chunk.name, payload, meta)


def resume(
    chunk: Chunk, writer: Writer, state: RowState, programs: Programs, say: Callable[[str], None]
) -> tuple[int, RowState]:
    """Return the step and state that an interrupted run saved for this chunk, or the given ones."""
    found = writer.load_partial(chunk.name)
    if found is None:
        return 0, state
    if why := misfit(*found, chunk, state, programs):
        say(f"the saved state of chunk {chunk.name} {why}: its trials start again")
        return 0, state
    payload, meta = found
    names = programs.layout["records"]
    chunk.records = [{name: payload[f"record/{name}"] for name in names}]
    for key, leaf in payload.items():
        kind, *rest = key.split("/")
        if kind == "snapshot":
            chunk.snapshots.setdefault(int(rest[0]), {})[rest[1]] = leaf
    old = state_leaves(state)
    placed = [to_device(payload[f"state/{i}"], leaf) for i, leaf in enumerate(old)]
    bare = jax.tree.unflatten(jax.tree.structure(state._replace(source=None)), placed)
    return meta["step"], bare._replace(source=state.source)


def misfit(
    payload: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    chunk: Chunk,
    state: RowState,
    programs: Programs,
) -> str:
    """Return why a saved state is of no use to these programs; empty if it is whole and fits them."""
    if any(meta.get(name) != value for name, value in programs.layout.items()):
        return "was saved under another layout"
    step, spec = meta.get("step"), programs.spec
    if type(step) is not int or not 0 < step < spec.steps or step % programs.segment_steps:
        return f"has step {step!r}"
    count, names = len(chunk.trial_ids), programs.layout["records"]
    shapes = {f"state/{i}": to_host(leaf).shape for i, leaf in enumerate(state_leaves(state))}
    shapes |= {f"record/{name}": (count, step // spec.record_every) for name in names}
    passed = [at for at in programs.group.snapshots if at <= step]
    kept = jax.eval_shape(programs.weights_of_trial, state.trial_L) if passed else {}
    shapes |= {f"snapshot/{at}/{name}": (count, *kept[name].shape) for at in passed for name in kept}
    if shapes != {name: np.shape(leaf) for name, leaf in payload.items()}:
        return "is not complete"
    return ""


def state_leaves(state: RowState) -> list[Any]:
    """Return all that must be saved: the source is made anew by init."""
    return jax.tree.leaves(state._replace(source=None))


def to_host(leaf: Any) -> np.ndarray:
    """Return an array of the state as NumPy has it; random keys as their data."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def to_device(array: np.ndarray, like: Any) -> Any:
    """Return an array where and as another is."""
    placed = jax.device_put(array, like.sharding)
    return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(like)) if is_key(like) else placed


def is_key(leaf: Any) -> bool:
    """Return whether an array holds random keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def write_chunk(
    writer: Writer, chunk: Chunk, group: Group, trials: Mapping[str, Trial], run: int
) -> tuple[int, int]:
    """Write a trained chunk; return how many of its trials are ok and how many diverged."""
    rows, trajectories = tables(chunk, group, trials, run)
    for step, params in sorted(chunk.snapshots.items()):
        writer.save_snapshot(chunk.name, step, params)
    writer.commit(chunk.name, rows, trajectories)
    diverged = int(np.count_nonzero(rows["status"] == "diverged"))
    return len(rows) - diverged, diverged


def tables(
    chunk: Chunk, group: Group, trials: Mapping[str, Trial], run: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the chunk's parts of the trials and of the trajectories tables."""
    ids, columns, experiment = chunk.trial_ids, chunk.columns(), group.experiment
    shape = next(iter(columns.values())).shape
    step = np.broadcast_to(np.arange(shape[1], dtype=np.int32) * group.spec.record_every, shape)
    trajectories = pd.DataFrame({"trial_id": np.repeat(ids, shape[1]), "step": step.ravel()}).assign(
        **{name: values.ravel() for name, values in columns.items()}
    )
    sick = ~np.all([np.isfinite(columns[name]) for name in experiment.healthy_columns], axis=0)
    diverged = sick.any(axis=1)
    frame = pd.DataFrame([experiment.settings.settings_of(trials[trial_id]) for trial_id in ids])
    frame.insert(0, "trial_id", ids)
    results = {
        "status": np.where(diverged, "diverged", "ok"),
        "diverged_step": np.where(diverged, step[0][sick.argmax(axis=1)], np.nan),
    }
    finals = {f"final_{name}": values[:, -1] for name, values in columns.items()}
    where = {"run": run, "chunk": chunk.name, "row": np.arange(len(ids))}
    steps = [sorted(chunk.snapshots)] * len(ids)
    return frame.assign(**results, **finals, **where, snapshot_steps=steps), trajectories
