"""One chunk of trials: trained segment by segment, saved inside if that takes long, written at its end."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pandas as pd

from topicjax.engine.plan import StreamRow
from topicjax.engine.programs import Programs
from topicjax.experiments.one_layer import kernel, train
from topicjax.experiments.one_layer.records import Record
from topicjax.experiments.one_layer.train import TrainState
from topicjax.store.folder import ids_name
from topicjax.store.writer import Writer
from topicjax.trial import Spec, Trial, settings_of

HEALTH = ("loss", "eval_loss", "norm_k", "norm_q", "norm_v")  # finite in every healthy record


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

    def add_records(self, records: Record) -> None:
        """Keep the records of a segment, trials x records."""
        self.records.append(
            {name: self.unpacked(np.asarray(values)) for name, values in records._asdict().items()}
        )

    def columns(self) -> dict[str, np.ndarray]:
        """Return all records so far, trials x records."""
        return {
            name: np.concatenate([part[name] for part in self.records], axis=1) for name in Record._fields
        }

    def add_snapshot(self, spec: Spec, step: int, params: Any) -> None:
        """Keep the weights of a step in their true shapes."""
        host = {name: self.unpacked(np.asarray(leaf)) for name, leaf in params.items()}
        self.snapshots[step] = unpad_trials(spec, host)


def unpad_trials(spec: Spec, params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return parameters of many trials without the padding of their own axes."""
    first = kernel.unpad(spec, {name: leaf[0] for name, leaf in params.items()})
    return {
        name: np.ascontiguousarray(leaf[(slice(None), *map(slice, first[name].shape))])
        for name, leaf in params.items()
    }


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
        chunk.add_snapshot(spec, 0, state.params)
    saved = time.monotonic()
    while step < spec.steps:
        state, records = programs.advance(streams, hypers, state)
        step += programs.segment_steps
        chunk.add_records(records)
        if step in snapshots:
            chunk.add_snapshot(spec, step, state.params)
        stop = on_segment(programs.segment_steps)
        if step < spec.steps and (stop or time.monotonic() - saved > save_seconds):
            train.check_queries(state)
            suspend(chunk, writer, state, programs.layout | dict(step=step))
            saved = time.monotonic()
        if stop and step < spec.steps:
            raise Interrupted
    train.check_queries(state)
    final = programs.record(streams, hypers, state)
    chunk.add_records(jax.tree.map(lambda column: column[..., None], final))


def suspend(chunk: Chunk, writer: Writer, state: TrainState, meta: dict[str, Any]) -> None:
    """Save the state inside a chunk, with its step and the layout it fits."""
    payload = {f"state/{i}": np.asarray(leaf) for i, leaf in enumerate(state_leaves(state))}
    payload |= {f"record/{name}": values for name, values in chunk.columns().items()}
    for at, params in chunk.snapshots.items():
        payload |= {f"snapshot/{at}/{name}": leaf for name, leaf in params.items()}
    writer.save_partial(chunk.name, payload, meta)


def resume(
    chunk: Chunk, writer: Writer, state: TrainState, programs: Programs, say: Callable[[str], None]
) -> tuple[int, TrainState]:
    """Return the step and state that an interrupted run saved for this chunk, or the given ones."""
    found = writer.load_partial(chunk.name)
    if found is None:
        return 0, state
    if why := misfit(*found, len(chunk.trial_ids), state, programs):
        say(f"the saved state of chunk {chunk.name} {why}: its trials start again")
        return 0, state
    payload, meta = found
    chunk.records = [{name: payload[f"record/{name}"] for name in Record._fields}]
    for key, leaf in payload.items():
        kind, *rest = key.split("/")
        if kind == "snapshot":
            chunk.snapshots.setdefault(int(rest[0]), {})[rest[1]] = leaf
    old = state_leaves(state)
    placed = [jax.device_put(payload[f"state/{i}"], leaf.sharding) for i, leaf in enumerate(old)]
    bare = jax.tree.unflatten(jax.tree.structure(state._replace(source=None)), placed)
    return meta["step"], bare._replace(source=state.source)


def misfit(
    payload: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    num_trials: int,
    state: TrainState,
    programs: Programs,
) -> str:
    """Return why a saved state is of no use to these programs; empty if it is whole and fits them."""
    if any(meta.get(name) != value for name, value in programs.layout.items()):
        return "was saved under another layout"
    step, spec = meta.get("step"), programs.spec
    if type(step) is not int or not 0 < step < spec.steps or step % programs.segment_steps:
        return f"has step {step!r}"
    shapes = {f"state/{i}": leaf.shape for i, leaf in enumerate(state_leaves(state))}
    shapes |= {f"record/{name}": (num_trials, step // spec.record_every) for name in Record._fields}
    weights = unpadded_shapes(spec, state.params)
    passed = [at for at in programs.group.snapshots if at <= step]
    shapes |= {f"snapshot/{at}/{name}": (num_trials, *weights[name]) for at in passed for name in weights}
    if shapes != {name: np.shape(leaf) for name, leaf in payload.items()}:
        return "is not complete"
    return ""


def unpadded_shapes(spec: Spec, params: Any) -> dict[str, tuple[int, ...]]:
    """Return the true shapes of one trial's parameters, given those of stream rows x lanes."""
    first: Any = {name: np.broadcast_to(np.float32(0), leaf.shape[2:]) for name, leaf in params.items()}
    return {name: leaf.shape for name, leaf in kernel.unpad(spec, first).items()}


def state_leaves(state: TrainState) -> list[Any]:
    """Return all that must be saved: the source is made anew by init."""
    return jax.tree.leaves(state._replace(source=None))


def write_chunk(
    writer: Writer, chunk: Chunk, spec: Spec, trials: Mapping[str, Trial], run: int
) -> tuple[int, int]:
    """Write a trained chunk; return how many of its trials are ok and how many diverged."""
    rows, trajectories = tables(chunk, spec, trials, run)
    for step, params in sorted(chunk.snapshots.items()):
        writer.save_snapshot(chunk.name, step, params)
    writer.commit(chunk.name, rows, trajectories)
    diverged = int(np.count_nonzero(rows["status"] == "diverged"))
    return len(rows) - diverged, diverged


def tables(
    chunk: Chunk, spec: Spec, trials: Mapping[str, Trial], run: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the chunk's parts of the trials and of the trajectories tables."""
    ids, columns = chunk.trial_ids, chunk.columns()
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
    where = {"run": run, "chunk": chunk.name, "row": np.arange(len(ids))}
    steps = [sorted(chunk.snapshots)] * len(ids)
    return frame.assign(**results, **finals, **where, snapshot_steps=steps), trajectories
