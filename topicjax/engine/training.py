"""The training loop of a run: chunks are trained here or on a cluster, and written while the next ones train.

Only this process writes the folder and its manifest, also on a cluster.
"""

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from topicjax.engine import costs
from topicjax.engine.chunk import Callbacks, Chunk, Interrupted, Saved
from topicjax.engine.options import Options
from topicjax.engine.orders import faster, program_name, way_of
from topicjax.engine.origin import origin_name
from topicjax.engine.plan import Group
from topicjax.engine.programs import Programs, compiled_ahead, device_mesh
from topicjax.engine.progress import Progress
from topicjax.engine.references import Background, Known, Pending, ReferencesOf
from topicjax.engine.segments import ORIGIN, prepare, train_chunk, write_chunk
from topicjax.experiments.contract import Experiment, Records
from topicjax.store.files import StoreError
from topicjax.store.manifest import FORMAT
from topicjax.store.writer import Writer
from topicjax.trial import Trial

IsStopping = Callable[[], bool]
Trained = Generator[tuple[Group, Chunk], None, None]


class Failure(NamedTuple):
    """Trials of a chunk that a cluster could not train, and why."""

    trial_ids: Sequence[str]
    reason: str


@dataclass
class Training:
    """What to train and where to write it; the only writer of the folder, also on a cluster."""

    groups: Sequence[Group]
    trials: Mapping[str, Trial]
    manifest: "RunManifest"
    writer: Writer
    progress: Progress
    options: Options
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._written: list[Future] = []

    def run(self, source: "Source", is_stopping: IsStopping, waiting: int = 0) -> None:
        """Write every chunk that `source` trains, or raise Interrupted if the user asks to stop.

        A second thread writes the chunks; up to `waiting` of them may be queued while others train.
        """
        self.writer.keep_partials([Chunk(rows).name for group in self.groups for rows in group.chunks])
        started = time.monotonic()
        try:
            with self._pool, contextlib.closing(source(self, is_stopping)) as trained:
                try:
                    for group, chunk in trained:
                        self.settle(waiting)
                        self.later(write_chunk, self.writer, chunk, group, self.trials, self.manifest.run)
                finally:
                    self.settle()
        finally:
            self.seconds = time.monotonic() - started

    def later(self, function: Callable[..., tuple[int, int] | None], *arguments: Any) -> None:
        """Queue a call to the store for the writing thread."""
        self._written.append(self._pool.submit(function, *arguments))

    def settle(self, waiting: float = 0) -> None:
        """Wait until at most `waiting` writes are pending; count the trials of the finished ones."""
        while self._written and (len(self._written) > waiting or self._written[0].done()):
            if counts := self._written.pop(0).result():
                self.progress.update(ok=counts[0], diverged=counts[1])

    def save(self, group: Group, chunk: str, saved: Saved) -> None:
        """Store a state to resume from, with the origin of what was trained so far."""
        meta = {**saved.meta, ORIGIN: origin_name(group.experiment, group.round_products)}
        self.writer.save_partial(chunk, saved.payload, meta)

    def references_of(self, chunk: Chunk) -> ReferencesOf | None:
        """Look up the reference losses of a chunk's trials; None if some are not known yet."""
        known = self.manifest.known_references
        found = {trial_id: known.of(self.trials[trial_id]) for trial_id in chunk.trial_ids}
        sure = {trial_id: values for trial_id, values in found.items() if values is not None}
        return sure if len(sure) == len(found) else None


Source = Callable[[Training, IsStopping], Trained]


def decider(
    experiment: Experiment, trials: Mapping[str, Trial], references: Callable[[], ReferencesOf]
) -> Callable[[str, Records], str]:
    """Make the function that states why a trial ends, given its id and records; references are lazy."""
    once = functools.cache(references)
    rule = experiment.decided
    if rule is None:
        return lambda trial_id, records: ""
    return lambda trial_id, records: rule(trials[trial_id], records, once()[trial_id])


def train_here(training: Training, is_stopping: IsStopping, devices: Sequence[Any]) -> Trained:
    """Yield the chunks of all groups one after another, trained on devices of this process."""
    mesh, progress = device_mesh(devices), training.progress
    progress.programs = len(training.groups)
    every = (Programs(group, mesh, progress.add_compile_time) for group in training.groups)
    with contextlib.closing(compiled_ahead(every)) as ahead:
        for programs in ahead:
            progress.begin_program(programs.group.label)
            programs = faster(programs)
            group = programs.group
            training.manifest.add_order(program_name(group, devices), str(way_of(programs)))
            for rows in group.chunks:
                if is_stopping():
                    raise Interrupted
                chunk = Chunk(rows)
                start = prepare(chunk, group, training.writer)
                train_chunk(programs, chunk, start, callbacks(training, group, chunk, is_stopping))
                yield group, chunk
            if programs.compile_seconds:  # else this process had compiled all of it before
                costs.remember_compile_time(group.experiment.name, programs.compile_seconds)


def callbacks(training: Training, group: Group, chunk: Chunk, is_stopping: IsStopping) -> Callbacks:
    """Make the callbacks for training a chunk in this process."""

    def references() -> ReferencesOf:
        computed = training.manifest.references
        computed.wait(is_stopping, lambda: training.references_of(chunk) is not None)
        known = training.references_of(chunk)
        if known is None:  # without them no trial can be decided
            raise Interrupted
        return known

    def on_segment(steps: float, spared: float) -> bool:
        training.settle(waiting=math.inf)  # the trials of the chunk before are shown once they are written
        training.progress.update(steps=steps, spared=spared)
        return is_stopping()

    return Callbacks(
        training.options,
        decider(group.experiment, training.trials, references),
        on_segment,
        lambda saved: training.save(group, chunk.name, saved),
        training.progress.say,
    )


class RunManifest:
    """This run's part of manifest.json, written at its start, when references are known, and at its end."""

    def __init__(
        self,
        writer: Writer,
        experiment: Experiment,
        entry: dict[str, Any],
        wanted: Sequence[Pending],
        begin: threading.Event,
    ) -> None:
        """Write the entry of this run; compute the reference losses in the background once `begin` is set."""
        before = writer.manifest
        self._writer, self._lock, self._experiment = writer, threading.Lock(), experiment
        self._sweep, self._entry = before.get("sweep", entry["sweep"]), entry
        self._runs, self._before = before.get("runs", []), before.get("references", [])
        self.is_new = bool(entry["left"]) or entry["plan"] not in [run.get("plan") for run in self._runs]
        self.run = len(self._runs) + 1  # the run's number, as stored with its trials
        self.references = Background(experiment, wanted, begin, self._write_in_background)
        self.write()

    @property
    def known_references(self) -> Known:
        """The reference losses known so far."""
        return Known(self._experiment, [*self._before, *self.references.entries])

    def write(self) -> None:
        """Write the file with what is known now."""
        with self._lock:
            runs = [*self._runs, *([self._entry] if self.is_new else [])]
            references = [*self._before, *self.references.entries]
            self._writer.write_manifest(
                {"format": FORMAT, "sweep": self._sweep, "runs": runs, "references": references}
            )

    def add(self, **values: Any) -> None:
        """Add values to the entry of this run, except empty ones and 0."""
        self._entry = self._entry | {name: value for name, value in values.items() if value}

    def add_order(self, program: str, order: str) -> None:
        """Write the way of work of a program before it trains: a resumed run keeps it."""
        orders = self._entry.get("orders", {})
        if orders.get(program) != order:
            self._entry = self._entry | {"orders": orders | {program: order}}
            self.write()

    def finish(self, progress: Progress) -> None:
        """Write the result of the run."""
        if progress.trials:
            self._entry = self._entry | {
                "finished": now(),
                "trials": progress.trials,
                "trial_steps": progress.steps,
                "wall_seconds": round(time.monotonic() - progress.started, 2),
                "compile_seconds": round(progress.compile_seconds, 2),
                "trial_steps_per_second": round(progress.rate, 1),
            }
        self.write()

    def _write_in_background(self) -> None:
        with contextlib.suppress(StoreError):  # the end of the run reports a full disk
            self.write()


def now() -> str:
    """Format the current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
