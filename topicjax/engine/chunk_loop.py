"""The loop of a run: chunks are trained, here or on a cluster, and written while the next ones train."""

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from topicjax.engine import compile_times
from topicjax.engine.chunk import Chunk
from topicjax.engine.chunk_state import prepare
from topicjax.engine.chunk_tables import write_chunk
from topicjax.engine.plan import Group
from topicjax.engine.programs import Programs, compiled_ahead, device_mesh
from topicjax.engine.progress import Progress
from topicjax.engine.run_manifest import RunManifest
from topicjax.engine.training import Interrupted, Surroundings, decider, train_chunk
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
    """What is to be trained and where it goes: the one writer of the folder, whoever trains."""

    groups: Sequence[Group]
    trials: Mapping[str, Trial]
    manifest: RunManifest
    writer: Writer
    progress: Progress
    save_seconds: float
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._written: list[Future] = []

    def run(self, source: "Source", is_stopping: IsStopping, waiting: int = 0) -> None:
        """Write every chunk that `source` trains, or raise Interrupted if the user asks to stop before.

        Chunks are written by a second thread; so many may wait for it while others train.
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
        """Call a function of the store in the thread that writes, after what it has to do already."""
        self._written.append(self._pool.submit(function, *arguments))

    def settle(self, waiting: int = 0) -> None:
        """Wait until no more than so many things are still to be written; count the trials of the others."""
        while self._written and (len(self._written) > waiting or self._written[0].done()):
            if counts := self._written.pop(0).result():
                self.progress.update(ok=counts[0], diverged=counts[1])

    def lines_of(self, group: Group, chunk: Chunk) -> list[dict[str, Any]] | None:
        """Return the limit lines that are known by now; None if some that a chunk needs are not."""
        own = [self.trials[trial_id] for trial_id in chunk.trial_ids]
        known = self.manifest.known_lines
        return None if group.experiment.lines(own, known) else known


Source = Callable[[Training, IsStopping], Trained]


def train_here(training: Training, is_stopping: IsStopping, devices: Sequence[Any], order: str) -> Trained:
    """Give the chunks of all groups one after another, trained on devices of this process."""
    mesh, progress = device_mesh(devices), training.progress
    progress.programs = len(training.groups)
    every = (Programs(group, mesh, progress.add_compile_time, order) for group in training.groups)
    with contextlib.closing(compiled_ahead(every)) as ahead:
        for programs in ahead:
            group = programs.group
            progress.begin_program(group.label)
            for rows in group.chunks:
                if is_stopping():
                    raise Interrupted
                chunk = Chunk(rows)
                start = prepare(chunk, group, training.writer)
                train_chunk(programs, chunk, start, surroundings(training, group, chunk, is_stopping))
                yield group, chunk
            compile_times.remember(group.experiment.name, programs.compile_seconds)


def surroundings(training: Training, group: Group, chunk: Chunk, is_stopping: IsStopping) -> Surroundings:
    """Return what the training of a chunk in this process needs from its run."""

    def lines() -> list[dict[str, Any]]:
        manifest = training.manifest
        manifest.lines.wait(is_stopping, lambda: training.lines_of(group, chunk) is not None)
        known = training.lines_of(group, chunk)
        if known is None:  # without them nothing can be decided, and later is too late
            raise Interrupted
        return known

    def on_segment(steps: float, spared: float) -> bool:
        training.progress.update(steps=steps, spared=spared)
        return is_stopping()

    return Surroundings(
        training.save_seconds,
        decider(group.experiment, training.trials, lines),
        on_segment,
        lambda saved: training.writer.save_partial(chunk.name, saved.payload, saved.meta),
        training.progress.say,
    )
