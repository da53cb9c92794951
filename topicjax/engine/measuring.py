"""Measure snapshots of a finished run: apply a function of one snapshot to many, on all devices.

Snapshots do not interact.  What is finished is written every FLUSH_SECONDS as a part of its own, so that an
interrupted call has lost little, and the same call goes on.  On cores each device takes one snapshot after
another; on accelerators, several at once.
"""

import math
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.sharding import NamedSharding

from topicjax.engine import costs
from topicjax.engine.origin import arithmetic, difference, pinned
from topicjax.engine.plan import Group, group_trials
from topicjax.engine.programs import (
    KEPT,
    REPLICATED,
    SHARDED,
    compiler_options,
    device_mesh,
    lane_by_lane,
    on_cores,
    refuse_what_hangs,
)
from topicjax.engine.stopping import stop_requests
from topicjax.errors import UserError, counted, duration, shown
from topicjax.experiments.contract import TAKEN, Experiment
from topicjax.experiments.fingerprint import measure_code
from topicjax.measures import Measure
from topicjax.measures.snapshot import Snapshot
from topicjax.store import checkpoints
from topicjax.store.files import CHECKPOINTS, StoreError, first_line
from topicjax.store.measured import KEYS, origin_of
from topicjax.store.parts import SNAPSHOT_COLUMNS, columns_of
from topicjax.store.reader import Run
from topicjax.store.writer import Writer
from topicjax.sweep.files import failing_line, failure_sentence

FLUSH_SECONDS = 30.0  # from one part to the next
SAY_SECONDS = 10.0
CPU_LANES, ACCELERATOR_LANES = 4, 64  # snapshots that a device takes in one call
Say = Callable[[str], object]


class Task(NamedTuple):
    """A snapshot to measure: its trial, step, checksum, and where its weights are."""

    trial_id: str
    step: int
    checksum: str
    chunk: str
    place: int


@dataclass
class Outcome:
    """Result of measuring."""

    measured: int = 0
    before: int = 0  # snapshots that had been measured already
    left: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    columns: tuple[str, ...] = ()
    stopped_by: int = 0  # the signal that asked to stop


def measure_run(
    folder: Path,
    experiment: Experiment,
    measure: Measure,
    trial_ids: Collection[str] | None = None,
    steps: Collection[int] | None = None,
    again: bool = False,
    devices: Sequence[Any] = (),
    say: Say = lambda text: None,
) -> Outcome:
    """Measure those snapshots (default: all) of a run that have not been measured yet.

    Everything wrong is refused before anything is computed.  With `again`, what this measure has written is
    set aside first.
    """
    run = Run(folder)
    trials = trials_of(run, experiment)
    groups = group_trials(experiment, trials)
    tasks = chosen_tasks(run, trial_ids, steps)
    columns = checked_columns(run, experiment, measure, groups, {task.trial_id for task in tasks})
    origin = {"code": measure_code(measure.function, experiment), "arithmetic": arithmetic()}
    with Writer(folder, str(run.manifest.get("sweep", "")), extend=True) as writer:
        if again:
            writer.set_measure_aside(measure.name)
        check_origin(writer, measure, origin)
        run = Run(folder)
        known = run.measured.get(measure.name, pd.DataFrame(columns=list(KEYS)))
        done = set(zip(known["trial_id"], known["step"], strict=True))
        todo = [task for task in tasks if (task.trial_id, task.step) not in done]
        outcome = Outcome(before=len(tasks) - len(todo), left=len(todo), columns=tuple(columns))
        with stop_requests() as is_stopping:
            work = Work(run, measure, groups, trials, writer, origin, devices or jax.devices(), say, outcome)
            work.run(todo, is_stopping)
            outcome.stopped_by = is_stopping.first
    return outcome


def trials_of(run: Run, experiment: Experiment) -> dict[str, Any]:
    """Make the finished trials of a run from their settings; settings that came later have their defaults."""
    known = [name for name in experiment.settings.settings if name in run.finished]
    rows = zip(*(run.finished[name].tolist() for name in known), strict=True)
    trials = (experiment.settings.make_trial(dict(zip(known, row, strict=True))) for row in rows)
    return dict(zip(run.finished["trial_id"].tolist(), trials, strict=True))


def chosen_tasks(run: Run, trial_ids: Collection[str] | None, steps: Collection[int] | None) -> list[Task]:
    """List the snapshots of these trials at these steps, or raise a UserError if there are none."""
    tasks, there = [], set()
    counts: dict[tuple[str, int], int] = {}
    rows = run.finished.sort_values(["chunk", "row"])[["trial_id", "chunk", *SNAPSHOT_COLUMNS]]
    for trial_id, chunk, own, sums in rows.itertuples(index=False):
        for step, checksum in zip(own, sums, strict=True):
            place = counts.get((chunk, step), 0)
            counts[chunk, step] = place + 1
            if trial_ids is None or trial_id in trial_ids:
                there.add(step)
                tasks.append(Task(trial_id, step, checksum, chunk, place))
    if not tasks:
        raise UserError(f"the trials in {run.folder} have no snapshots; allowed: a run with --snapshots")
    if steps is not None and (unknown := sorted({*steps} - there)):
        raise UserError(
            f"no snapshot in {run.folder} is of step {unknown[0]}; "
            f"there are: {', '.join(map(str, sorted(there)))}"
        )
    return [task for task in tasks if steps is None or task.step in steps]


def checked_columns(
    run: Run, experiment: Experiment, measure: Measure, groups: Sequence[Group], trial_ids: set[str]
) -> list[str]:
    """Trace the measure for every program; return its columns, or raise a UserError if one cannot be kept."""
    there = {name for columns in columns_of(run.folder).values() for name in columns} | {*TAKEN, *KEYS}
    others = {
        str(name): other
        for other, frame in run.measured.items()
        for name in frame
        if other != measure.name and name not in KEYS
    }
    names: dict[str, None] = {}
    for group in groups:
        if trial_ids.isdisjoint(group.trial_ids):
            continue
        for name, leaf in traced_columns(experiment, group.spec, measure).items():
            taken = f"the measure {others[name]}" if name in others else f"the tables of {run.folder}"
            if name in there or name in others or f"final_{name}" in there:
                raise UserError(f"{measure.name} has a column {name}, which {taken} has; allowed: a new name")
            is_number = jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool
            if leaf.shape or not is_number:
                kind = f"shape {leaf.shape}" if is_number else f"type {leaf.dtype}"
                raise UserError(f"{name} of {measure.name} has {kind}; allowed: a number")
            names[name] = None
    return list(names)


def traced_columns(experiment: Experiment, spec: Any, measure: Measure) -> dict[str, Any]:
    """Trace what a measure returns for snapshots of a Spec: shapes and types by column, in its order."""
    order: list[str] = []

    def one(*given: Any) -> Any:
        columns = applied(experiment, spec, measure, *given)
        order.extend(columns)
        return columns

    weights = costs.shapes(experiment, spec).weights
    stream, hypers = costs.example(experiment)
    number = np.zeros((), np.uint32)
    try:
        with pinned():
            given = (stream, hypers, number, number, weights, experiment.data_shapes(spec))
            found = jax.eval_shape(one, *given)
    except UserError:
        raise
    except Exception as error:
        path = Path(measure.file) if measure.file else None
        place = path and failing_line(error, path)
        if not (path and place):
            raise
        raise UserError(failure_sentence(error, path, place, "file")) from error
    return {name: found[name] for name in order}


def applied(
    experiment: Experiment,
    spec: Any,
    measure: Measure,
    stream: Any,
    hypers: Any,
    step: Any,
    number: Any,
    weights: Any,
    data: Any,
) -> dict[str, Any]:
    """Apply a measure to one snapshot; `number` is that of its trial, whatever else is measured."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), number), step)
    columns = measure.function(Snapshot(experiment, spec, stream, hypers, weights, step, key, data))
    if not isinstance(columns, Mapping) or not columns or not all(isinstance(name, str) for name in columns):
        raise UserError(f"{measure.name} returns {shown(columns)}; allowed: a dict of numbers by column")
    odd = [name for name in columns if not name.isidentifier()]
    if odd:
        raise UserError(f"{measure.name} has a column {shown(odd[0])}; allowed: letters, digits and _")
    return {name: jnp.asarray(value) for name, value in columns.items()}


def check_origin(writer: Writer, measure: Measure, origin: Mapping[str, Any]) -> None:
    """Raise a StoreError if the folder has columns of this measure that other code has measured."""
    for part in writer.journal.measured:
        if part[0] == measure.name and (words := difference(origin_of(writer.folder, part), origin)):
            raise StoreError(
                f"{writer.folder} has {measure.name} of other code ({words}), and its values may differ; "
                "allowed: --again to set it aside and measure all again, or another name"
            )


@dataclass
class Work:
    """What measures snapshots, and writes them part by part."""

    source: Run
    measure: Measure
    groups: Sequence[Group]
    trials: Mapping[str, Any]
    writer: Writer
    origin: Mapping[str, Any]
    devices: Sequence[Any]
    say: Say
    outcome: Outcome

    def run(self, tasks: Sequence[Task], is_stopping: Callable[[], bool]) -> None:
        """Measure these snapshots, program by program, until all are done or the user asks to stop."""
        started = self.said = self.flushed = time.monotonic()
        self.started, self.rows = started, []
        try:
            for group in self.groups:
                members = {*group.trial_ids}
                own = [task for task in tasks if task.trial_id in members]
                own.sort(key=lambda task: (task.chunk, task.step, task.place))
                for finished in self.through(group, own):
                    self.rows += finished
                    if time.monotonic() - self.flushed > FLUSH_SECONDS:
                        self.flush()
                    if is_stopping():
                        return
                self.flush()
        finally:
            self.flush()
            self.outcome.seconds = time.monotonic() - started

    def flush(self) -> None:
        """Write what was measured since the last part."""
        rows, self.rows, self.flushed = self.rows, [], time.monotonic()
        if rows:
            frame = pd.DataFrame(rows).astype({"step": "int32"})  # as trajectories have it
            self.writer.write_measured(self.measure.name, frame, self.origin)
            self.outcome.measured += len(rows)
            self.outcome.left -= len(rows)

    def through(self, group: Group, tasks: Sequence[Task]) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of a group's snapshots, as many as the devices take in one call."""
        if not tasks:
            return
        mesh = device_mesh(self.devices)
        most = CPU_LANES if on_cores(mesh) else ACCELERATOR_LANES
        lanes = min(most, math.ceil(len(tasks) / mesh.size))
        shapes, settings = costs.shapes(group.experiment, group.spec).weights, group.experiment.settings
        names = list(traced_columns(group.experiment, group.spec, self.measure))
        data = jax.device_put(group.experiment.load_data(group.spec), NamedSharding(mesh, REPLICATED))
        program = None
        size = lanes * mesh.size
        for first in range(0, len(tasks), size):
            own = tasks[first : first + size]
            leaves = self.weights(own, [leaf.dtype for leaf in jax.tree.leaves(shapes)])
            padded = [*own, *[own[0]] * (size - len(own))]
            leaves = [np.concatenate([leaf, np.repeat(leaf[:1], size - len(own), 0)]) for leaf in leaves]
            traced = [self.trials[task.trial_id] for task in padded]
            streams, hypers = (
                jax.tree.map(lambda *each: np.stack(each), *map(settings.traced, parts))
                for parts in zip(*((trial.stream, trial.hypers) for trial in traced), strict=True)
            )
            numbers = np.array([zlib.crc32(task.trial_id.encode()) for task in padded], np.uint32)
            steps = np.array([task.step for task in padded], np.uint32)
            weights = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
            given = jax.device_put((streams, hypers, steps, numbers, weights), NamedSharding(mesh, SHARDED))
            if program is None:
                program = self.compiled(group, mesh, (*given, data))
            found = {name: np.asarray(values)[: len(own)] for name, values in program(*given, data).items()}
            yield [
                {"trial_id": task.trial_id, "step": task.step, "weights": task.checksum}
                | {name: found[name][row] for name in names}
                for row, task in enumerate(own)
            ]
            self.report(len(own))

    def compiled(self, group: Group, mesh: Any, arguments: tuple[Any, ...]) -> Any:
        """Compile the measure of one snapshot, mapped over lanes and devices."""

        def one(data: Any, *given: Any) -> dict[str, Any]:
            stream, hypers, step, number, weights = given
            taken = (stream, hypers, step, number, weights, data)
            return applied(group.experiment, group.spec, self.measure, *taken)

        def all_lanes(*given: Any) -> dict[str, Any]:
            *lanes, data = given
            over_lanes = lane_by_lane if on_cores(mesh) else jax.vmap
            return over_lanes(lambda *lane: one(data, *lane))(*lanes)

        takes = (*[SHARDED] * 5, REPLICATED)
        mapped = jax.shard_map(all_lanes, mesh=mesh, check_vma=False, in_specs=takes, out_specs=SHARDED)

        def compile_it() -> Any:
            start = time.monotonic()
            self.say(f"compiling {self.measure.name}: {group.label}")
            with pinned():
                lowered = jax.jit(mapped).lower(*arguments)
            refuse_what_hangs(lowered, mesh)
            compiled = lowered.compile(compiler_options(mesh))
            self.outcome.compile_seconds += time.monotonic() - start
            return compiled

        lanes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(arguments))
        identity = (self.measure.function, group.experiment, group.spec, lanes, *mesh.devices.flat)
        options = (*arithmetic().items(), *(compiler_options(mesh) or {}).items())
        return KEPT.get(("measure", *identity, *options), compile_it)

    def weights(self, tasks: Sequence[Task], dtypes: Sequence[Any]) -> list[np.ndarray]:
        """Read the weights of snapshots, leaf by leaf, and compare them with their checksums."""
        by_file: dict[tuple[str, int], list[Task]] = {}
        for task in tasks:
            by_file.setdefault((task.chunk, task.step), []).append(task)
        found: dict[Task, list[np.ndarray]] = {}
        for (chunk, step), own in by_file.items():
            path = self.source.folder / CHECKPOINTS / chunk / str(step)
            low, high = min(task.place for task in own), max(task.place for task in own) + 1
            try:
                structure, leaves = checkpoints.read_trials(path, slice(low, high))
                for task in own:
                    mine = {name: leaf[task.place - low] for name, leaf in leaves.items()}
                    if checkpoints.checksum(structure, mine) != task.checksum:
                        raise ValueError(f"these are not the weights of trial {task.trial_id}")
                    found[task] = jax.tree.leaves(checkpoints.unflatten(structure, mine))
            except Exception as error:  # damaged checkpoints may raise any exception
                why = "it is missing" if isinstance(error, FileNotFoundError) else first_line(error)
                raise StoreError(
                    f"the snapshot {path} is damaged: {why.split(' [tensorstore')[0]}"
                ) from error
        stacked = [np.stack(own) for own in zip(*(found[task] for task in tasks), strict=True)]
        return [leaf.astype(dtype) for leaf, dtype in zip(stacked, dtypes, strict=True)]

    def report(self, count: int) -> None:
        """Say how far the work is, every few seconds."""
        now, done = time.monotonic(), self.outcome.measured + len(self.rows)
        if now - self.said >= SAY_SECONDS and done:
            self.said = now
            left = self.outcome.left + self.outcome.measured - done
            pace = (now - self.started - self.outcome.compile_seconds) / done
            self.say(f"{counted(done, 'snapshot')} measured, {left:,} left, about {duration(left * pace)}")
