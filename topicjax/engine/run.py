"""Train a table of trials: groups -> chunks -> devices -> segments, and hand the results to the store.

One program per group trains every chunk of it; trials never meet inside it, so a diverged one leaves its
neighbours untouched.
"""

import contextlib
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import jax

from topicjax.engine import admission, compile_times, costs
from topicjax.engine.chunk_loop import Failure, IsStopping, Source, Trained, Training, train_here
from topicjax.engine.cluster.address import Address
from topicjax.engine.earlier import with_earlier
from topicjax.engine.layout import requested_cpu_devices
from topicjax.engine.plan import Group, fitted_specs, make_groups
from topicjax.engine.programs import default_order
from topicjax.engine.progress import Progress, counted
from topicjax.engine.provenance import provenance
from topicjax.engine.run_manifest import RunManifest
from topicjax.engine.stopping import stop_requests
from topicjax.engine.training import Interrupted
from topicjax.errors import UserError
from topicjax.experiments import Experiment, load_experiment
from topicjax.store.files import first_line
from topicjax.store.reader import committed
from topicjax.store.writer import Writer
from topicjax.sweep import axes_of
from topicjax.sweep.files import NamedSweep
from topicjax.trial import Trial

WAITING = 4  # chunks of a cluster that may wait to be written


class Cluster(Protocol):
    """Workers that train chunks elsewhere (engine/cluster)."""

    address: Address

    @property
    def num_workers(self) -> int:
        """How many there are now."""
        ...

    def train(self, training: Training, is_stopping: IsStopping, order: str) -> Trained:
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
    lines_left: int  # limit lines are still to be computed
    trial_steps: float
    seconds: float
    compile_seconds: float
    programs: int
    experiment: str
    detail: str = ""  # what details are counted by, if there are any
    stopped_by: int = 0  # the signal that asked to stop
    failures: Sequence[Failure] = ()  # what a cluster could not train

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to do."""
        return not self.left and not self.lines_left

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
    jax.config.update("jax_compilation_cache_dir", str(compile_times.cache_folder()))
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


def plan_groups(
    experiment: Experiment, trials: Mapping[str, Trial], folder: Path, options: Options
) -> tuple[list[Group], Options]:
    """Return the groups of trials (given by id) that the folder lacks, and the options with lanes chosen.

    Nothing is written: this is where a run that is too large, or for no folder, is refused.
    """
    specs = fitted_specs(experiment, trials.values())
    admission.check_folder(folder, experiment)
    admission.check_specs(experiment, specs, options.devices)
    lanes = options.lanes or costs.lanes_that_fit(experiment, specs, options.devices)
    options = replace(options, lanes=lanes, order=options.order or default_order(options.devices))
    groups = make_groups(experiment, trials, len(options.devices), lanes, options.snapshots)
    admission.check_groups(groups, options.devices)
    groups = with_earlier(unfinished(groups, folder), trials, folder)
    admission.check_disk(groups, folder)
    return groups, options


def unfinished(groups: Sequence[Group], folder: Path) -> list[Group]:
    """Return the groups without the trials that are finished in the folder."""
    done = committed(folder) if folder.exists() else set()
    return [group for group in (group.without(done) for group in groups) if group.streams]


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
        entry = describe_run(named, writer.write_plan(list(by_id)), len(by_id), left, options)
        with Progress(left, total_steps) as progress, stop_requests() as is_stopping:
            progress.say(opening(entry, folder, options, groups))
            lines = experiment.lines(trials, writer.manifest["limit_lines"])
            manifest = RunManifest(writer, entry, lines, progress.training)
            train = Training(groups, by_id, manifest, writer, progress, options.save_seconds)
            with contextlib.suppress(Interrupted, KeyboardInterrupt):
                train.run(source_of(options), is_stopping, WAITING if options.cluster else 0)
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
        experiment=experiment.name,
        detail=experiment.detail,
        stopped_by=is_stopping.first,
        failures=train.failures,
    )


def source_of(options: Options) -> Source:
    """Return what trains chunks: the workers of a cluster, or the devices of this process."""
    if options.cluster is not None:
        return functools.partial(options.cluster.train, order=options.order)
    return functools.partial(train_here, devices=options.devices, order=options.order)


def describe_run(named: NamedSweep, plan: str, planned: int, left: int, options: Options) -> dict[str, Any]:
    """Return the manifest's entry of a run: the sweep as data, and where and with what it runs."""
    refinement = named.refinement
    refined = refinement and {"axes": list(refinement.axes), "levels": refinement.levels}
    return {
        "sweep": named.name,
        "experiment": named.settings.experiment,
        **({"file": named.file} if named.file else {}),
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
