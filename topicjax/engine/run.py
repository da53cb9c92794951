"""Run a sweep: plan it, train its chunks on devices or workers, and hand the results to the store.

Each group has one program, which trains all its chunks.  Trials do not interact inside it, so a diverged one
leaves its neighbours unchanged.
"""

import contextlib
import functools
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topicjax.engine.admission import new_settings, plan_groups, unfinished
from topicjax.engine.chunk import Interrupted
from topicjax.engine.cluster.connection import Cluster
from topicjax.engine.options import Options
from topicjax.engine.orders import as_entry, closed
from topicjax.engine.origin import origin
from topicjax.engine.plan import Group
from topicjax.engine.progress import Progress
from topicjax.engine.references import pending_references
from topicjax.engine.resources import Resources
from topicjax.engine.stopping import stop_requests
from topicjax.engine.training import Failure, RunManifest, Source, Training, now, train_here
from topicjax.errors import counted
from topicjax.experiments import load_experiment
from topicjax.experiments.contract import Experiment
from topicjax.store.writer import Writer
from topicjax.sweep import axes_of
from topicjax.sweep.files import NamedSweep
from topicjax.trial import Trial
from topicjax.version import git_commit

WAITING = 4  # chunks of a cluster that may wait for the writer
PACKAGES = "topicjax jax jaxlib flax optax numpy scipy orbax-checkpoint pandas pyarrow".split()


@dataclass
class Outcome:
    """Result of a run."""

    ok: int
    diverged: int
    left: int  # trials not trained: the run was interrupted
    references_left: int  # reference losses not computed
    trial_steps: float
    seconds: float
    compile_seconds: float
    programs: int
    experiment: str
    details: tuple[str, ...] = ()  # the indices of its details, if any
    stopped_by: int = 0  # the signal that asked to stop
    failures: Sequence[Failure] = ()  # trials that a cluster could not train

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to do."""
        return not self.left and not self.references_left

    def followed_by(self, other: "Outcome") -> "Outcome":
        """Combine the results of this run and the next."""
        summed = ("ok", "diverged", "trial_steps", "seconds", "compile_seconds", "programs")
        return replace(other, **{name: getattr(self, name) + getattr(other, name) for name in summed})


def run_sweep(
    named: NamedSweep,
    trials: Sequence[Trial],
    folder: Path,
    options: Options,
    resources: Resources,
    first: Sequence[Trial] = (),
) -> Outcome:
    """Train the trials that the folder lacks, showing progress; return the result.

    A round that refines names the `first` trials, those of the sweep: it trains with their programs.
    """
    experiment = load_experiment(named.experiment)
    by_id = {experiment.settings.trial_id(trial): trial for trial in trials}
    # First of all, before anything is written, refuse what is too large or wrong.
    first_ids = [*dict.fromkeys(experiment.settings.trial_id(trial) for trial in first)]
    groups, options = plan_groups(experiment, by_id, folder, options, resources.devices, first_ids)
    for group in groups:
        experiment.load_data(group.spec)  # missing data are reported now
    with Writer(folder, named.name, options.extend) as writer:
        groups = unfinished(groups, folder)  # another run may have just finished some
        if resources.cluster:
            groups = closed(groups, resources.devices)
        left = sum(group.num_trials for group in groups)
        total_steps = float(sum(group.trial_steps for group in groups))
        plan = writer.write_plan(list(by_id))
        entry = describe_run(named, experiment, folder, plan, len(by_id), left, options, resources)
        entry |= {"orders": as_entry(groups, resources.devices)}
        with Progress(left, total_steps) as progress, stop_requests() as is_stopping:
            progress.say(opening(entry, folder, resources, groups))
            wanted = pending_references(experiment, trials, writer.manifest["references"])
            manifest = RunManifest(writer, experiment, entry, wanted, progress.training)
            training = Training(groups, by_id, manifest, writer, progress, options)
            with contextlib.suppress(Interrupted, KeyboardInterrupt):
                waiting = WAITING if resources.cluster else 0
                training.run(source_of(resources), is_stopping, waiting)
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


def source_of(resources: Resources) -> Source:
    """Choose what trains chunks: the workers of a cluster, or the devices of this process."""
    if isinstance(resources.cluster, Cluster):
        return resources.cluster.train
    return functools.partial(train_here, devices=resources.devices)


def describe_run(
    named: NamedSweep,
    experiment: Experiment,
    folder: Path,
    plan: str,
    planned: int,
    left: int,
    options: Options,
    resources: Resources,
) -> dict[str, Any]:
    """Make the manifest's entry of a run: the sweep as data, and its resources and versions."""
    refinement = named.refinement
    refined = refinement and {"axes": list(refinement.axes), "levels": refinement.levels}
    return {
        "sweep": named.name,
        **({"file": named.file} if named.file else {}),
        "experiment": experiment.name,
        **({"details": list(experiment.details)} if experiment.details else {}),
        **origin(experiment, options.round_products),
        **({"added": added} if (added := new_settings(experiment, folder)) else {}),
        "description": named.description,
        "base": named.base,
        "axes": axes_of(named.settings, named.base, named.sweep),
        "overrides": list(named.overrides),
        **({"claims": list(named.claims)} if named.claims else {}),
        **({"refine": refined} if refined else {}),
        "plan": plan,
        "planned": planned,
        "left": left,
        **options.recorded(),
        **({"workers": resources.cluster.num_workers} if resources.cluster else {}),
        **provenance(resources.devices),
    }


def opening(entry: Mapping[str, Any], folder: Path, resources: Resources, groups: Sequence[Group]) -> str:
    """Word the first lines of a run."""
    workers = f"{counted(resources.cluster.num_workers, 'worker')} of " if resources.cluster else ""
    done, further = entry["planned"] - entry["left"], sum(len(group.earlier) for group in groups)
    resumed = f" ({done:,} already finished)" if done else ""
    lines = [
        f"{entry['sweep']}: {entry['left']:,} trials to train{resumed} on "
        f"{workers}{len(resources.devices)} x {entry['devices'][0]}",
        *([f"{further:,} of them go on from where shorter trainings ended"] if further else []),
        f"results go to {folder}; Ctrl-C stops, the same command continues",
    ]
    return "\n".join(lines)


def provenance(devices: Sequence[Any]) -> dict[str, Any]:
    """Record the versions and devices of a run, and when it started."""
    return {
        "started": now(),
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "git_commit": git_commit(),
        "devices": [device.device_kind for device in devices],
    }


def version(package: str) -> str:
    """Look up the installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
