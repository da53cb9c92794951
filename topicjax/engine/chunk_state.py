"""Where the training of a chunk begins: at step 0, or where an interrupted run or a shorter one left it.

`prepare` reads the folder; `begin` goes on from what it found, maybe on another machine.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.engine import costs
from topicjax.engine.chunk import Chunk, Saved, Snapshot, Start
from topicjax.engine.earlier import take_over
from topicjax.engine.orders import RowState
from topicjax.engine.plan import Group
from topicjax.engine.programs import Programs
from topicjax.store.files import StoreError
from topicjax.store.reader import Run
from topicjax.store.writer import Writer

Say = Callable[[str], None]


def prepare(chunk: Chunk, group: Group, writer: Writer) -> Start:
    """Return what the folder has of a chunk, which gets what shorter trainings of its trials left.

    If they were decided already, nothing goes on in the chunk.
    """
    states = take_over(chunk, group, Run(writer.folder)) if group.start(chunk.trial_ids[0]) else []
    found = writer.load_partial(chunk.name) if chunk.goes_on.any() else None
    return Start(str(writer.folder), None if found is None else Saved(*found), states)


def begin(
    programs: Programs, chunk: Chunk, start: Start, streams: Any, hypers: Any, say: Say
) -> tuple[int, RowState]:
    """Return the step and state to begin with; the chunk gets the records and snapshots up to there."""
    state = programs.init(streams, hypers)
    if start.saved is not None:
        payload, meta = start.saved.payload, start.saved.meta
        why = misfit(payload, meta, chunk, state, programs)
        if not why:
            return resume(chunk, payload, meta, state, programs)
        say(f"the saved state of chunk {chunk.name} {why}: its trials start again")
    step = programs.group.start(chunk.trial_ids[0])
    if step == 0:
        return 0, state
    trained = jax.tree.leaves(state.trial_L)
    if [leaf.shape[1:] for leaf in start.states] != [to_host(leaf).shape[2:] for leaf in trained]:
        raise StoreError(
            f"the states in {start.folder} are not those of such trials; allowed: another folder"
        )
    packed = [chunk.packed(leaf, programs.shape, empty=leaf[0]) for leaf in start.states]
    number = np.asarray(step, state.step.dtype)
    return step, replaced(state, [number, to_host(state.missing), *packed])


def suspended(chunk: Chunk, state: RowState, meta: dict[str, Any]) -> Saved:
    """Return what must be saved of a chunk to go on with it later: meta has its step and layout."""
    payload = {f"state/{i}": to_host(leaf) for i, leaf in enumerate(state_leaves(state))}
    payload |= {f"record/{name}": values for name, values in chunk.columns().items()}
    payload["stopped"] = chunk.stopped
    for at, snapshot in chunk.snapshots.items():
        payload[f"has/{at}"] = snapshot.has
        payload |= {f"snapshot/{at}/{name}": leaf for name, leaf in snapshot.weights.items()}
    return Saved(payload, meta | {"reasons": list(chunk.reasons)})


def resume(
    chunk: Chunk,
    payload: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    state: RowState,
    programs: Programs,
) -> tuple[int, RowState]:
    """Return the step and state that an interrupted run saved for this chunk."""
    names = programs.layout["records"]
    chunk.records = [{name: payload[f"record/{name}"] for name in names}]
    chunk.stopped, chunk.reasons = payload["stopped"], list(meta["reasons"])
    chunk.snapshots = {}
    for step in snapshot_steps(payload):
        begins = f"snapshot/{step}/"
        own = {key.removeprefix(begins): leaf for key, leaf in payload.items() if key.startswith(begins)}
        chunk.snapshots[step] = Snapshot(payload[f"has/{step}"], own)
    saved = [payload[f"state/{i}"] for i in range(len(state_leaves(state)))]
    return meta["step"], replaced(state, saved)


def replaced(state: RowState, leaves: list[np.ndarray]) -> RowState:
    """Return the state with other leaves, its source as it is."""
    bare = state._replace(source=None)
    placed = [to_device(new, old) for new, old in zip(leaves, jax.tree.leaves(bare), strict=True)]
    return jax.tree.unflatten(jax.tree.structure(bare), placed)._replace(source=state.source)


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
    count, records = len(chunk.trial_ids), step // spec.record_every
    fields = costs.sizes(programs.group.experiment, spec).record
    shapes = {f"state/{i}": to_host(leaf).shape for i, leaf in enumerate(state_leaves(state))}
    shapes |= {f"record/{name}": (count, records, *shape) for name, shape in fields.items()}
    shapes["stopped"] = (count,)
    there = snapshot_steps(payload)
    kept = jax.eval_shape(programs.weights_of_trial, state.trial_L)
    for at in sorted({*there, *(at for at in programs.group.snapshots if at <= step)} if kept else ()):
        own = int(np.sum(payload.get(f"has/{at}", 0)))
        shapes[f"has/{at}"] = (count,)
        shapes |= {f"snapshot/{at}/{name}": (own, *kept[name].shape) for name in kept}
    if shapes != {name: np.shape(leaf) for name, leaf in payload.items()}:
        return "is not complete"
    stopped, reasons = payload["stopped"], meta.get("reasons", ())
    if [bool(reason) for reason in reasons] != (stopped >= 0).tolist():
        return "is not complete"
    return (
        f"is of step {step} and has trials that ended at step {stopped.max()}" if stopped.max() > step else ""
    )


def snapshot_steps(payload: Mapping[str, np.ndarray]) -> list[int]:
    """Return the steps whose weights a saved state has."""
    return [int(key.removeprefix("has/")) for key in payload if key.startswith("has/")]


def state_leaves(state: Any) -> list[Any]:
    """Return all that must be saved of a row's or trials' state: the source is made anew by init."""
    return jax.tree.leaves(state._replace(source=None) if isinstance(state, RowState) else state)


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
