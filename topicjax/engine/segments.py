"""Train a chunk segment by segment until all its trials have ended, saving its state; then write it.

A chunk starts at step 0, at the saved state of an interrupted run, or where a shorter training of its trials
ended.  `prepare` reads what the folder has of it; `train_chunk` may then run on another machine.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from topicjax.engine.chunk import Callbacks, Chunk, Columns, Interrupted, Saved, Snapshot, Start
from topicjax.engine.costs import shapes, sizes
from topicjax.engine.origin import origin_name
from topicjax.engine.plan import ALL_STEPS, Earlier, Group
from topicjax.engine.programs import Programs, RowState
from topicjax.pace import due_steps, steps_of
from topicjax.store.files import StoreError
from topicjax.store.reader import Run
from topicjax.store.writer import Writer
from topicjax.trial import Trial

ORIGIN = "origin"  # in the meta of a saved state


def train_chunk(programs: Programs, chunk: Chunk, start: Start, run: Callbacks) -> None:
    """Train one chunk to its end, from where an interrupted run or a shorter training left it.

    If `on_segment` returns True, save the state and raise Interrupted, unless the training is over.
    """
    if not chunk.goes_on.any():  # all decided in shorter trainings
        return
    streams, hypers = programs.arguments(chunk.rows)
    step, state = begin(programs, chunk, start, streams, hypers, run.say)
    if step == 0 and 0 in programs.group.snapshots and not chunk.snapshots:
        chunk.add_snapshot(0, jax.tree.leaves(programs.weights(state)), chunk.goes_on)
    saved = time.monotonic()
    while chunk.goes_on.any():
        going, segment = chunk.goes_on, programs.segment_steps
        state, records = programs.advance(streams, hypers, state, lane_steps(programs, chunk, step))
        chunk.add_records(records, recorded_windows(programs, chunk, step, step + segment))
        step += segment
        end_trials(programs, chunk, run, step, state)
        left = programs.spec.steps - step
        stop = run.on_segment(segment * going.sum(), left * (going & ~chunk.goes_on).sum())
        is_over = not chunk.goes_on.any()
        if not is_over and (stop or time.monotonic() - saved > run.options.save_every):
            check_room(state)
            run.save(suspended(chunk, state, programs.layout | dict(step=step)))
            saved = time.monotonic()
        if stop and not is_over:
            raise Interrupted
    check_room(state)
    if (chunk.stopped == step).any():
        _, records = programs.advance(streams, hypers, state, lane_steps(programs, chunk, step))
        chunk.add_records(records, np.array([0]))


def lane_steps(programs: Programs, chunk: Chunk, step: int) -> np.ndarray:
    """Compute every lane's steps in the next segment: one, for its last record, if it just ended."""
    steps = np.where(chunk.goes_on, programs.segment_steps, chunk.stopped == step)
    return chunk.packed(steps, programs.shape)


def recorded_windows(programs: Programs, chunk: Chunk, begin: int, end: int) -> np.ndarray:
    """List the windows of a segment with a record: one that was due, or the last of a trial."""
    steps = steps_of(programs.spec, chunk.stopped, end)
    return (steps[steps >= begin] - begin) // programs.spec.record_every


def end_trials(programs: Programs, chunk: Chunk, run: Callbacks, step: int, state: RowState) -> None:
    """End the trials that are decided or have run all their steps, and keep the weights of this step."""
    spec, experiment, going = programs.spec, programs.group.experiment, chunk.goes_on
    is_due = experiment.may_stop(spec) and step % (experiment.decide_every * spec.record_every) == 0
    why = [""] * len(going)
    if is_due:
        columns, due = chunk.columns(), due_steps(spec, step)
        places = np.searchsorted(steps_of(spec, chunk.stopped, step), due)
        for place in np.flatnonzero(going):
            records = {"step": due} | {name: values[place, places] for name, values in columns.items()}
            why[place] = run.decide(chunk.trial_ids[place], records)
    if step == spec.steps:
        why = [reason or ALL_STEPS for reason in why]
    ending = going & np.array([bool(reason) for reason in why])
    chunk.end(ending, step, [why[place] for place in np.flatnonzero(ending)])
    has = going if step in programs.group.snapshots else ending & programs.keeps_end
    if has.any():
        chunk.add_snapshot(step, jax.tree.leaves(programs.weights(state)), has)
    if step == spec.steps and programs.keeps_end:
        further = np.array([reason == ALL_STEPS for reason in chunk.reasons])
        trained = state_leaves(state.trial_L)
        chunk.end_state = (
            [chunk.unpacked(to_host(leaf))[further] for leaf in trained] if further.any() else []
        )


def check_room(state: RowState) -> None:
    """Raise if some data exceeded the program's capacity: its sizes are wrong, and its trials void."""
    missing = int(np.max(np.asarray(state.missing)))
    if missing > 0:
        raise RuntimeError(f"the program lacks room for {missing} items of its data: its trials are void")


def prepare(chunk: Chunk, group: Group, writer: Writer) -> Start:
    """Read what the folder has of a chunk; the chunk takes over the results of shorter trainings.

    If all its trials are already decided, nothing is left to train.
    """
    states = take_over(chunk, group, Run(writer.folder)) if group.start(chunk.trial_ids[0]) else []
    # A state of other code or arithmetic is set aside.
    expected = {ORIGIN: origin_name(group.experiment, group.round_products)}
    found = writer.load_partial(chunk.name, expected) if chunk.goes_on.any() else None
    return Start(str(writer.folder), None if found is None else Saved(*found), states)


def begin(
    programs: Programs, chunk: Chunk, start: Start, streams: Any, hypers: Any, say: Callable[[str], None]
) -> tuple[int, RowState]:
    """Return the step and state to start from; the chunk gets the records and snapshots up to there."""
    state = programs.init(streams, hypers)
    if start.saved is not None:
        why = misfit(start.saved, chunk, state, programs)
        if not why:
            return resume(chunk, start.saved, state, programs)
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
    """Collect what must be saved to resume a chunk; meta has its step and layout."""
    payload = {f"state/{i}": to_host(leaf) for i, leaf in enumerate(state_leaves(state))}
    payload |= {f"record/{name}": values for name, values in chunk.columns().items()}
    payload["stopped"] = chunk.stopped
    for at, snapshot in chunk.snapshots.items():
        payload[f"has/{at}"] = snapshot.has
        payload |= {f"snapshot/{at}/{i}": leaf for i, leaf in enumerate(snapshot.leaves)}
    return Saved(payload, meta | {"reasons": list(chunk.reasons)})


def resume(chunk: Chunk, saved: Saved, state: RowState, programs: Programs) -> tuple[int, RowState]:
    """Restore the step and state that an interrupted run saved for this chunk."""
    payload, meta = saved.payload, saved.meta
    chunk.records = [{name: payload[f"record/{name}"] for name in programs.layout["records"]}]
    chunk.stopped, chunk.reasons = payload["stopped"], list(meta["reasons"])
    chunk.snapshots = {}
    for step in snapshot_steps(payload):
        count = sum(key.startswith(f"snapshot/{step}/") for key in payload)
        leaves = [payload[f"snapshot/{step}/{i}"] for i in range(count)]
        chunk.snapshots[step] = Snapshot(payload[f"has/{step}"], leaves)
    leaves = [payload[f"state/{i}"] for i in range(len(state_leaves(state)))]
    return meta["step"], replaced(state, leaves)


def replaced(state: RowState, leaves: list[np.ndarray]) -> RowState:
    """Replace the leaves of the state, except its source."""
    bare = state._replace(source=None)
    placed = [to_device(new, old) for new, old in zip(leaves, jax.tree.leaves(bare), strict=True)]
    return jax.tree.unflatten(jax.tree.structure(bare), placed)._replace(source=state.source)


def misfit(saved: Saved, chunk: Chunk, state: RowState, programs: Programs) -> str:
    """Explain why a saved state does not fit these programs; empty if it is complete and fits."""
    payload, meta = saved.payload, saved.meta
    if any(meta.get(name) != value for name, value in programs.layout.items()):
        return "was saved under another layout"
    step, spec = meta.get("step"), programs.spec
    if type(step) is not int or not 0 < step < spec.steps or step % programs.segment_steps:
        return f"has step {step!r}"
    count, stopped = len(chunk.trial_ids), payload.get("stopped", np.zeros(0, int))
    records = len(steps_of(spec, stopped, step))
    known = shapes(programs.group.experiment, spec)
    wanted = {f"state/{i}": to_host(leaf).shape for i, leaf in enumerate(state_leaves(state))}
    wanted |= {f"record/{name}": (count, records, *leaf.shape) for name, leaf in known.record.items()}
    wanted["stopped"] = (count,)
    kept = jax.tree.leaves(known.weights)
    due = {at for at in programs.group.snapshots if at <= step}
    for at in {*snapshot_steps(payload), *due} if kept else ():
        wanted[f"has/{at}"] = (count,)
        own = int(np.sum(payload.get(f"has/{at}", 0)))
        wanted |= {f"snapshot/{at}/{i}": (own, *leaf.shape) for i, leaf in enumerate(kept)}
    if wanted != {name: np.shape(leaf) for name, leaf in payload.items()}:
        return "is not complete"
    reasons = meta.get("reasons", ())
    if [bool(reason) for reason in reasons] != (stopped >= 0).tolist():
        return "is not complete"
    is_beyond = stopped.max() > step
    return f"is of step {step} and has trials that ended at step {stopped.max()}" if is_beyond else ""


def snapshot_steps(payload: Mapping[str, np.ndarray]) -> list[int]:
    """List the steps whose weights a saved state has."""
    return [int(key.removeprefix("has/")) for key in payload if key.startswith("has/")]


def state_leaves(state: Any) -> list[Any]:
    """List the leaves that must be saved; the source is left out, since init makes it again."""
    return jax.tree.leaves(state._replace(source=None) if isinstance(state, RowState) else state)


def to_host(leaf: Any) -> np.ndarray:
    """Copy an array of the state to NumPy; random keys become their data."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def to_device(array: np.ndarray, like: Any) -> Any:
    """Place an array like another one, as random keys if that holds keys."""
    placed = jax.device_put(array, like.sharding)
    return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(like)) if is_key(like) else placed


def is_key(leaf: Any) -> bool:
    """Whether an array holds random keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def take_over(chunk: Chunk, group: Group, run: Run) -> list[np.ndarray]:
    """Give a chunk what the folder has of its trials; return the states to resume from, trials x ...

    All trials resume from the same step, or all are decided: then there are no states.
    """
    earlier = [group.earlier[trial_id] for trial_id in chunk.trial_ids]
    take_records(chunk, group, earlier, run)
    chunk.stopped = np.array([own.step if own.decided else -1 for own in earlier])
    chunk.reasons = [own.decided for own in earlier]
    wanted = {step for step in group.snapshots if step < group.spec.steps}
    take_snapshots(chunk, earlier, run, wanted, keeps_end=group.spec.steps in group.snapshots)
    return [] if earlier[0].decided else run.end_states([own.trial_id for own in earlier])


def take_records(chunk: Chunk, group: Group, earlier: Sequence[Earlier], run: Run) -> None:
    """Give a chunk the records of shorter trainings, up to the step from which each resumes."""
    ends = np.array([own.step for own in earlier])
    is_decided = bool(earlier[0].decided)  # then all are, and have the record of their last step
    steps = steps_of(group.spec, ends if is_decided else ends[:0], int(ends.max()) + is_decided)
    row_of = {own.trial_id: row for row, own in enumerate(earlier)}
    tables = []
    for frame in run.records_of([own.trial_id for own in earlier]):
        frame = frame.loc[np.isin(frame["step"].to_numpy(int), steps)]
        place = [
            frame["trial_id"].map(row_of).to_numpy(int),
            np.searchsorted(steps, frame["step"].to_numpy(int)),
        ]
        places = [frame[index].to_numpy(int) - 1 for index in group.experiment.details if index in frame]
        tables.append((frame, [*place, *places]))
    part = {}
    for name, shape in sizes(group.experiment, group.spec).record.items():
        frame, place = tables[bool(shape)]  # arrays are in the details
        values = frame[name].to_numpy()
        part[name] = np.zeros((len(earlier), len(steps), *shape), values.dtype)
        part[name][tuple(place[: 2 + len(shape)])] = values
    chunk.records = [part]


def take_snapshots(
    chunk: Chunk, earlier: Sequence[Earlier], run: Run, wanted: Collection[int], keeps_end: bool
) -> None:
    """Give a chunk the weights that shorter trainings kept at `wanted` steps, and where they were decided."""
    by_step: dict[int, list[int]] = {}
    for place, own in enumerate(earlier):
        ends = {own.step} if own.decided and keeps_end else set()
        for step in sorted({step for step in wanted if step <= own.step} | ends):
            by_step.setdefault(step, []).append(place)
    for step, places in by_step.items():
        trees = [jax.tree.leaves(run.restore(earlier[place].trial_id, step)) for place in places]
        has = np.isin(np.arange(len(earlier)), places)
        chunk.snapshots[step] = Snapshot(has, [np.stack(leaves) for leaves in zip(*trees, strict=True)])


def write_chunk(
    writer: Writer, chunk: Chunk, group: Group, trials: Mapping[str, Trial], run: int
) -> tuple[int, int]:
    """Write a trained chunk; return how many of its trials are ok and how many diverged."""
    rows, trajectories, details = tables(chunk, group, trials, run)
    weights = shapes(group.experiment, group.spec).weights
    for step, snapshot in sorted(chunk.snapshots.items()):
        writer.save_snapshot(
            chunk.name, step, jax.tree.unflatten(jax.tree.structure(weights), snapshot.leaves)
        )
    if chunk.end_state:
        leaves = {str(place): leaf for place, leaf in enumerate(chunk.end_state)}
        ended = [i for i, r in zip(chunk.trial_ids, chunk.reasons, strict=True) if r == ALL_STEPS]
        writer.save_end(chunk.name, leaves, {"step": group.spec.steps, "trial_ids": ended})
    keeps_end = bool(jax.tree.leaves(weights)) and group.spec.steps in group.snapshots
    writer.commit(chunk.name, rows, trajectories, details, keeps_end)
    diverged = int(np.count_nonzero(rows["status"] == "diverged"))
    return len(rows) - diverged, diverged


def tables(
    chunk: Chunk, group: Group, trials: Mapping[str, Trial], run: int
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame | None]:
    """Make the chunk's parts of the trials, trajectories and details tables; None without details."""
    ids, experiment, spec = chunk.trial_ids, group.experiment, group.spec
    known, found = shapes(experiment, spec), chunk.columns()
    columns = {name: found[name] for name in known.record}  # in the order of measurement
    shape = next(iter(columns.values())).shape[:2]
    end = int(chunk.stopped.max()) + 1
    step = np.broadcast_to(steps_of(spec, chunk.stopped, end).astype(np.int32), shape)
    is_due = np.isin(step[0], due_steps(spec, end))
    is_own = (is_due & (step < chunk.stopped[:, None])) | (step == chunk.stopped[:, None])
    counts = is_own.sum(axis=1)
    own = {name: values[is_own] for name, values in columns.items()}  # records, x indices for details
    scalars = {name: values for name, values in own.items() if values.ndim == 1}
    trajectories = pd.DataFrame({"trial_id": np.repeat(ids, counts), "step": step[is_own], **scalars})
    arrays = {name: values for name, values in own.items() if name not in scalars}
    details = detail_table(trajectories, experiment.details, arrays) if arrays else None
    healthy = experiment.healthy or [name for name in columns if name not in known.rare]
    finite = [np.isfinite(columns[name]).reshape(*shape, -1).all(axis=2) for name in healthy]
    sick = ~np.all(finite, axis=0) & is_own
    diverged = sick.any(axis=1)
    frame = pd.DataFrame([experiment.settings.settings_of(trials[trial_id]) for trial_id in ids])
    frame.insert(0, "trial_id", ids)
    results = {
        "status": np.where(diverged, "diverged", "ok"),
        "diverged_step": np.where(diverged, step[0][sick.argmax(axis=1)], np.nan),
        "stopped_step": chunk.stopped,
        "stop_reason": chunk.reasons,
    }
    first, last = np.cumsum(counts) - counts, counts - 1  # a trial's first record; its last, relative
    latest = {name: last // spec.rare_every * spec.rare_every for name in known.rare}  # the last that was due
    finals = {f"final_{name}": values[first + latest.get(name, last)] for name, values in scalars.items()}
    where = {"run": run, "chunk": chunk.name, "row": np.arange(len(ids))}
    kept = sorted(chunk.snapshots.items())
    steps = [[at for at, snapshot in kept if snapshot.has[place]] for place in range(len(ids))]
    return frame.assign(**results, **finals, **where, snapshot_steps=steps), trajectories, details


def detail_table(records: pd.DataFrame, names: Sequence[str], arrays: Columns) -> pd.DataFrame:
    """Make one row per record and index: trial and step, a column per index, counted from 1, and per array.

    An array with fewer indices than another repeats its values along the missing ones.
    """
    grid = max((values.shape[1:] for values in arrays.values()), key=len)
    table = {name: np.repeat(records[name].to_numpy(), np.prod(grid)) for name in ("trial_id", "step")}
    for axis, name in enumerate(names[: len(grid)]):
        table[name] = np.tile(1 + np.indices(grid, np.int32)[axis].ravel(), len(records))
    for name, values in arrays.items():
        whole = values.reshape(values.shape + (1,) * (1 + len(grid) - values.ndim))
        table[name] = np.broadcast_to(whole, (len(records), *grid)).ravel()
    return pd.DataFrame(table)
