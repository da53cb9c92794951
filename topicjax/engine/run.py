"""Run a sweep: groups -> chunks -> devices or workers -> segments, and hand the results to the store.

One program per group trains every chunk of it; trials never meet inside it, so a diverged one leaves its
neighbours untouched.  Chunks are written by a second thread while the next ones train.
"""

import contextlib
import functools
import importlib.metadata
import os
import platform
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax

from topicjax.engine import costs
from topicjax.engine.admission import plan_groups, unfinished
from topicjax.engine.chunk import Callbacks, Chunk, Interrupted, prepare, train_chunk, write_chunk
from topicjax.engine.cluster.address import Address
from topicjax.engine.layout import requested_cpu_devices
from topicjax.engine.plan import Group
from topicjax.engine.programs import Programs, compiled_ahead, device_mesh
from topicjax.engine.progress import Progress, counted
from topicjax.engine.references import Background, Known, Pending, pending_references
from topicjax.engine.stopping import stop_requests
from topicjax.errors import UserError
from topicjax.experiments import load_experiment
from topicjax.experiments.contract import Experiment, Records, References
from topicjax.store.files import StoreError, first_line
from topicjax.store.manifest import FORMAT
from topicjax.store.writer import Writer
from topicjax.sweep import axes_of
from topicjax.sweep.files import NamedSweep
from topicjax.trial import Trial

WAITING = 4  # chunks of a cluster that may wait to be written
PACKAGES = "topicjax jax jaxlib flax optax numpy scipy orbax-checkpoint pandas pyarrow".split()
IsStopping = Callable[[], bool]
Trained = Generator[tuple[Group, Chunk], None, None]
ReferencesOf = Mapping[str, References]  # by trial


class Failure(NamedTuple):
    """Trials of a chunk that a cluster could not train, and why."""

    trial_ids: Sequence[str]
    reason: str


class Cluster(Protocol):
    """Workers that train chunks elsewhere (engine/cluster)."""

    address: Address

    @property
    def num_workers(self) -> int:
        """How many there are now."""
        ...

    def train(self, training: "Training", is_stopping: IsStopping, order: str) -> Trained:
        """Give the chunks of all groups as they are trained, in any order."""
        ...


@dataclass
class Options:
    """How to run, as opposed to what.

    Results agree to rounding whatever these are, and bit for bit under the same lanes and devices.
    """

    lanes: int = 0  # trials that a device trains together; 0: chosen
    order: str = ""  # of the work, see engine/orders.py; empty: the one that suits the devices
    snapshots: str = "last"
    save_seconds: float = 60.0  # how often the state inside a chunk is saved
    extend: bool = False  # add to a folder of another sweep
    overrides: Sequence[str] = ()  # the changes to the sweep as they were typed, for the manifest
    devices: Sequence[Any] = field(default_factory=jax.local_devices)  # of each worker, on a cluster
    cluster: Cluster | None = None  # None: train in this process


@dataclass
class Outcome:
    """What a run did."""

    ok: int
    diverged: int
    left: int  # trials that are still to be trained: the run was interrupted
    references_left: int  # reference losses are still to be computed
    trial_steps: float
    seconds: float
    compile_seconds: float
    programs: int
    experiment: str
    details: tuple[str, ...] = ()  # the indices of its details, if there are any
    stopped_by: int = 0  # the signal that asked to stop
    failures: Sequence[Failure] = ()  # what a cluster could not train

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to do."""
        return not self.left and not self.references_left

    def followed_by(self, other: "Outcome") -> "Outcome":
        """Return what this run and the next did together."""
        summed = ("ok", "diverged", "trial_steps", "seconds", "compile_seconds", "programs")
        return replace(other, **{name: getattr(self, name) + getattr(other, name) for name in summed})


def use_all_cores(count: int = 0) -> None:
    """Make every CPU core a device, or so many, or as the environment says; keep programs between runs.

    Call it before jax starts.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    devices = count or requested_cpu_devices() or allowed or 1
    jax.config.update("jax_num_cpu_devices", devices)
    if "NPROC" not in os.environ:  # XLA reads PJRT_NPROC, else NPROC, when it starts its thread pool
        # A thread beyond the devices takes parts of their work, out of the cache of the core that has it.
        os.environ.setdefault("PJRT_NPROC", str(devices))
    jax.config.update("jax_compilation_cache_dir", str(costs.cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def use_one_core() -> None:
    """Leave accelerators and other cores to workers; call it before jax starts."""
    jax.config.update("jax_platforms", "cpu")
    use_all_cores(1)


def available_devices() -> Sequence[Any]:
    """Return the devices that jax has here, or raise a UserError if it cannot have those it is asked for."""
    try:
        return jax.local_devices()
    except RuntimeError as error:
        raise UserError(f"jax has no devices: {first_line(error)}") from error


def run_sweep(named: NamedSweep, trials: Sequence[Trial], folder: Path, options: Options) -> Outcome:
    """Train what the folder does not have yet, showing progress; return what was done."""
    experiment = load_experiment(named.experiment)
    by_id = {experiment.settings.trial_id(trial): trial for trial in trials}
    groups, options = plan_groups(experiment, by_id, folder, options)  # before anything is written
    for group in groups:
        experiment.load_data(group.spec)  # what is missing is missed now
    with Writer(folder, named.name, options.extend) as writer:
        groups = unfinished(groups, folder)  # another run may have finished some just now
        left = sum(group.num_trials for group in groups)
        total_steps = float(sum(group.trial_steps for group in groups))
        entry = describe_run(named, experiment, writer.write_plan(list(by_id)), len(by_id), left, options)
        with Progress(left, total_steps) as progress, stop_requests() as is_stopping:
            progress.say(opening(entry, folder, options, groups))
            wanted = pending_references(experiment, trials, writer.manifest["references"])
            manifest = RunManifest(writer, experiment, entry, wanted, progress.training)
            training = Training(groups, by_id, manifest, writer, progress, options.save_seconds)
            with contextlib.suppress(Interrupted, KeyboardInterrupt):
                training.run(source_of(options), is_stopping, WAITING if options.cluster else 0)
                if manifest.references.is_busy:
                    progress.say("computing reference losses ...")
                manifest.references.wait(is_stopping)
            manifest.references.stop()
            manifest.finish(progress)
    return Outcome(
        ok=progress.ok,
        diverged=progress.diverged,
        left=left - progress.trials,
        references_left=manifest.references.left,
        trial_steps=progress.steps,
        seconds=training.seconds,
        compile_seconds=progress.compile_seconds,
        programs=len(groups),
        experiment=experiment.name,
        details=experiment.details,
        stopped_by=is_stopping.first,
        failures=training.failures,
    )


@dataclass
class Training:
    """What is to be trained and where it goes: the one writer of the folder, whoever trains."""

    groups: Sequence[Group]
    trials: Mapping[str, Trial]
    manifest: "RunManifest"
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

        Chunks are written by a second thread; up to `waiting` of them wait for it while others train.
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
        """Wait until at most `waiting` things are still to be written; count the trials of the others."""
        while self._written and (len(self._written) > waiting or self._written[0].done()):
            if counts := self._written.pop(0).result():
                self.progress.update(ok=counts[0], diverged=counts[1])

    def references_of(self, chunk: Chunk) -> ReferencesOf | None:
        """Return the reference losses of a chunk's trials; None if some are not known yet."""
        known = self.manifest.known_references
        found = {trial_id: known.of(self.trials[trial_id]) for trial_id in chunk.trial_ids}
        sure = {trial_id: values for trial_id, values in found.items() if values is not None}
        return sure if len(sure) == len(found) else None


Source = Callable[[Training, IsStopping], Trained]


def decider(
    experiment: Experiment, trials: Mapping[str, Trial], references: Callable[[], ReferencesOf]
) -> Callable[[str, Records], str]:
    """Return why a trial ends, given its id and records; `references` is called when it is first asked."""
    once = functools.cache(references)
    rule = experiment.decided
    if rule is None:
        return lambda trial_id, records: ""
    return lambda trial_id, records: rule(trials[trial_id], records, once()[trial_id])


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
                train_chunk(programs, chunk, start, callbacks(training, group, chunk, is_stopping))
                yield group, chunk
            costs.remember_compile_time(group.experiment.name, programs.compile_seconds)


def callbacks(training: Training, group: Group, chunk: Chunk, is_stopping: IsStopping) -> Callbacks:
    """Return what the training of a chunk in this process asks of its run."""

    def references() -> ReferencesOf:
        computed = training.manifest.references
        computed.wait(is_stopping, lambda: training.references_of(chunk) is not None)
        known = training.references_of(chunk)
        if known is None:  # without them nothing can be decided, and later is too late
            raise Interrupted
        return known

    def on_segment(steps: float, spared: float) -> bool:
        training.progress.update(steps=steps, spared=spared)
        return is_stopping()

    return Callbacks(
        training.save_seconds,
        decider(group.experiment, training.trials, references),
        on_segment,
        lambda saved: training.writer.save_partial(chunk.name, saved.payload, saved.meta),
        training.progress.say,
    )


class RunManifest:
    """What one run writes into manifest.json: at its start, when references are known, and at its end."""

    def __init__(
        self,
        writer: Writer,
        experiment: Experiment,
        entry: dict[str, Any],
        wanted: Sequence[Pending],
        begin: threading.Event,
    ) -> None:
        """Write the entry of this run; compute the reference losses in the background from `begin` on."""
        before = writer.manifest
        self._writer, self._lock, self._experiment = writer, threading.Lock(), experiment
        self._sweep, self._entry = before.get("sweep", entry["sweep"]), entry
        self._runs, self._before = before.get("runs", []), before.get("references", [])
        self.is_new = bool(entry["left"]) or entry["plan"] not in [run.get("plan") for run in self._runs]
        self.run = len(self._runs) + 1  # its number, as trials carry it
        self.references = Background(experiment, wanted, begin, self._write_in_background)
        self.write()

    @property
    def known_references(self) -> Known:
        """The reference losses that are known by now."""
        return Known(self._experiment, [*self._before, *self.references.entries])

    def write(self) -> None:
        """Write the file as it is known now."""
        with self._lock:
            runs = [*self._runs, *([self._entry] if self.is_new else [])]
            references = [*self._before, *self.references.entries]
            self._writer.write_manifest(
                {"format": FORMAT, "sweep": self._sweep, "runs": runs, "references": references}
            )

    def add(self, **values: Any) -> None:
        """Add to the entry of this run what is neither empty nor 0."""
        self._entry = self._entry | {name: value for name, value in values.items() if value}

    def finish(self, progress: Progress) -> None:
        """Write what the run did."""
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
        with contextlib.suppress(StoreError):  # the end of the run tells of a full disk
            self.write()


def source_of(options: Options) -> Source:
    """Return what trains chunks: the workers of a cluster, or the devices of this process."""
    if options.cluster is not None:
        return functools.partial(options.cluster.train, order=options.order)
    return functools.partial(train_here, devices=options.devices, order=options.order)


def describe_run(
    named: NamedSweep, experiment: Experiment, plan: str, planned: int, left: int, options: Options
) -> dict[str, Any]:
    """Return the manifest's entry of a run: the sweep as data, and where and with what it runs."""
    refinement = named.refinement
    refined = refinement and {"axes": list(refinement.axes), "levels": refinement.levels}
    return {
        "sweep": named.name,
        "experiment": experiment.name,
        **({"details": list(experiment.details)} if experiment.details else {}),
        "description": named.description,
        "base": named.base,
        "axes": axes_of(named.settings, named.base, named.sweep),
        "overrides": list(options.overrides),
        **({"refine": refined} if refined else {}),
        "plan": plan,
        "planned": planned,
        "left": left,
        "snapshots": options.snapshots,
        "lanes": options.lanes,
        "order": options.order,
        **({"workers": options.cluster.num_workers} if options.cluster else {}),  # each has the devices below
        **provenance(options.devices),
    }


def opening(entry: Mapping[str, Any], folder: Path, options: Options, groups: Sequence[Group]) -> str:
    """Return the first lines of a run."""
    workers = f"{counted(options.cluster.num_workers, 'worker')} of " if options.cluster else ""
    done, further = entry["planned"] - entry["left"], sum(len(group.earlier) for group in groups)
    resumed = f" ({done:,} already finished)" if done else ""
    lines = [
        f"{entry['sweep']}: {entry['left']:,} trials to train{resumed} on "
        f"{workers}{len(options.devices)} x {entry['devices'][0]}",
        *([f"{further:,} of them go on from where shorter trainings ended"] if further else []),
        f"results go to {folder}; Ctrl-C stops, the same command continues",
    ]
    return "\n".join(lines)


def provenance(devices: Sequence[Any]) -> dict[str, Any]:
    """Return with what and on what a run computes, and when it started."""
    return {
        "started": now(),
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "git_commit": git_commit(),
        "devices": [device.device_kind for device in devices],
    }


def version(package: str) -> str:
    """Return the installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def git_commit() -> str | None:
    """Return the commit of the code, with + if it was changed since; None outside a checkout."""
    if not shutil.which("git"):
        return None
    here = Path(__file__).parent
    ask = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12"]
    found = subprocess.run(ask, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
