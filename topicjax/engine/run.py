"""Train a table of trials: groups -> chunks -> devices -> segments, and hand the results to the store.

One program per group trains every chunk of it; trials never meet inside it, so a diverged one leaves its
neighbours untouched.  Results are written by a second thread while the next chunk computes.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from topicjax.engine import costs
from topicjax.engine.chunk import Chunk, Interrupted, train_chunk, write_chunk
from topicjax.engine.plan import Group, make_groups
from topicjax.engine.programs import Programs, device_mesh
from topicjax.engine.progress import Progress
from topicjax.engine.provenance import provenance
from topicjax.engine.run_manifest import RunManifest
from topicjax.store.reader import committed
from topicjax.store.writer import Writer
from topicjax.sweep import axes_of
from topicjax.sweep_files import NamedSweep
from topicjax.trial import Spec, Trial, trial_id


@dataclass
class Options:
    """How to run, as opposed to what.

    Results agree to rounding whatever these are, and bit for bit under the same lanes and devices.
    """

    lanes: int = 0  # trials a device trains together; 0: chosen
    snapshots: str = "last"
    save_seconds: float = 60.0  # how often the state inside a chunk is saved
    extend: bool = False  # add to a folder of another sweep
    overrides: Sequence[str] = ()  # the changes to the sweep as they were typed, for the manifest
    devices: Sequence[Any] = field(default_factory=jax.local_devices)


@dataclass
class Outcome:
    """What a run did."""

    ok: int
    diverged: int
    left: int  # trials that are still to be trained: the run was interrupted
    lines_left: int  # limit lines are still to be computed
    trial_steps: float
    seconds: float
    compile_seconds: float
    programs: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to do."""
        return not self.left and not self.lines_left


def use_all_cores() -> None:
    """Make every CPU core a device and keep compiled programs between runs; before jax starts."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jax.config.update("jax_num_cpu_devices", allowed or 1)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(cache) / "topicjax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def plan_groups(trials: Mapping[str, Trial], options: Options) -> list[Group]:
    """Return the groups of trials (given by id) on the devices of a run."""
    specs = {trial.spec for trial in trials.values()}
    lanes = options.lanes or costs.lanes_that_fit(specs, options.devices)
    return make_groups(trials, len(options.devices), lanes, options.snapshots)


def run_sweep(named: NamedSweep, trials: Sequence[Trial], folder: Path, options: Options) -> Outcome:
    """Train what the folder does not have yet, showing progress; return what was done."""
    by_id = {trial_id(trial): trial for trial in trials}
    groups = plan_groups(by_id, options)  # before anything is written: it finds the user's mistakes
    with Writer(folder, named.name, options.extend) as writer:
        done = committed(folder)
        groups = [group for group in (group.without(done) for group in groups) if group.streams]
        left = sum(group.num_trials for group in groups)
        total_steps = float(sum(group.num_trials * group.spec.steps for group in groups))
        entry = describe_run(named, writer.write_plan(list(by_id)), len(by_id), left, options)
        with Progress(left, total_steps) as progress:
            progress.say(opening(entry, folder, len(options.devices)))
            manifest = RunManifest(writer, entry, trials, progress.training)
            train = Training(groups, by_id, manifest.run, writer, progress, options)
            with contextlib.suppress(Interrupted, KeyboardInterrupt), stop_requests() as is_stopping:
                train.run(is_stopping)
                if manifest.lines.is_busy:
                    progress.say("computing limit lines ...")
                manifest.lines.wait(is_stopping)
            manifest.lines.stop()
            manifest.finish(progress)
    return Outcome(
        ok=progress.ok,
        diverged=progress.diverged,
        left=left - progress.trials,
        lines_left=manifest.lines.left,
        trial_steps=progress.steps,
        seconds=train.seconds,
        compile_seconds=progress.compile_seconds,
        programs=len(groups),
    )


def describe_run(named: NamedSweep, plan: str, planned: int, left: int, options: Options) -> dict[str, Any]:
    """Return the manifest's entry of a run: the sweep as data, and where and with what it runs."""
    return {
        "sweep": named.name,
        "description": named.description,
        "base": named.base,
        "axes": axes_of(named.base, named.sweep),
        "overrides": list(options.overrides),
        "plan": plan,
        "planned": planned,
        "left": left,
        "snapshots": options.snapshots,
        "lanes": options.lanes,
        **provenance(options.devices),
    }


def opening(entry: Mapping[str, Any], folder: Path, num_devices: int) -> str:
    """Return the first lines of a run."""
    done = entry["planned"] - entry["left"]
    resumed = f" ({done:,} already finished)" if done else ""
    return (
        f"{entry['sweep']}: {entry['left']:,} trials to train{resumed} on "
        f"{num_devices} x {entry['devices'][0]}\n"
        f"results go to {folder}; Ctrl-C stops, the same command continues"
    )


class Training:
    """The loop over groups and chunks; finished chunks are written while the next one trains."""

    def __init__(
        self,
        groups: Sequence[Group],
        trials: Mapping[str, Trial],
        run: int,
        writer: Writer,
        progress: Progress,
        options: Options,
    ) -> None:
        self.groups, self.trials, self.run_number = groups, trials, run
        self.writer, self.progress, self.options = writer, progress, options
        self.seconds = 0.0
        self._written: list[Future] = []  # the chunk that is being written: at most one

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Train every group, or raise Interrupted if the user asks to stop before the last chunk is done."""
        chunks = [Chunk(rows) for group in self.groups for rows in group.chunks]
        self.writer.keep_partials([chunk.name for chunk in chunks])
        started = time.monotonic()
        try:
            with ThreadPoolExecutor(1) as pool:
                try:
                    self._train_groups(pool, is_stopping)
                finally:
                    self._settle()
        finally:
            self.seconds = time.monotonic() - started

    def _train_groups(self, pool: ThreadPoolExecutor, is_stopping: Callable[[], bool]) -> None:
        mesh = device_mesh(self.options.devices)
        for number, group in enumerate(self.groups, start=1):
            self.progress.group = f"program {number}/{len(self.groups)}: {describe(group.spec)}"
            programs = Programs(group, mesh, self.progress.add_compile_time)
            for rows in group.chunks:
                if is_stopping():
                    raise Interrupted
                chunk = Chunk(rows)

                def on_segment(steps: int, count: int = len(chunk.trial_ids)) -> bool:
                    self.progress.update(steps=steps * count)
                    return is_stopping()

                train_chunk(programs, chunk, self.writer, self.options.save_seconds, on_segment)
                self._settle()
                args = (self.writer, chunk, group.spec, self.trials, self.run_number)
                self._written.append(pool.submit(write_chunk, *args))

    def _settle(self) -> None:
        """Wait for the chunk that is being written."""
        while self._written:
            ok, diverged = self._written.pop().result()
            self.progress.update(ok=ok, diverged=diverged)


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


def describe(spec: Spec) -> str:
    """Return the few words that tell programs of a sweep apart."""
    return f"{spec.optimizer}, {spec.embedding} embeddings, {spec.attention} attention, {spec.steps} steps"
