"""Train a table of trials: groups -> chunks -> devices -> segments, and hand the results to the store.

One program per group trains every chunk of it; trials never meet inside it, so a diverged one leaves its
neighbours untouched.
"""

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topicjax.engine import admission, costs
from topicjax.engine.chunk_loop import Failure, Source, Training, train_here
from topicjax.engine.cluster.connection import Cluster
from topicjax.engine.earlier import with_earlier
from topicjax.engine.options import Options
from topicjax.engine.plan import Group, fitted_specs, make_groups
from topicjax.engine.programs import default_order
from topicjax.engine.progress import Progress, counted
from topicjax.engine.provenance import provenance
from topicjax.engine.resources import Resources
from topicjax.engine.run_manifest import RunManifest
from topicjax.engine.stopping import stop_requests
from topicjax.engine.training import Interrupted
from topicjax.experiments import Experiment, load_experiment
from topicjax.store.reader import committed
from topicjax.store.writer import Writer
from topicjax.sweep import axes_of
from topicjax.sweep.files import NamedSweep
from topicjax.trial import Trial

WAITING = 4  # chunks of a cluster that may wait to be written


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


def plan_groups(
    experiment: Experiment,
    trials: Mapping[str, Trial],
    folder: Path,
    options: Options,
    devices: Sequence[Any],
) -> tuple[list[Group], Options]:
    """Return the groups of trials (given by id) that the folder lacks, and the options all chosen.

    Nothing is written: this is where a run that is too large, or for no folder, is refused.
    """
    specs = fitted_specs(experiment, trials.values())
    admission.check_folder(folder, experiment)
    admission.check_specs(experiment, specs, devices)
    lanes = options.lanes or costs.lanes_that_fit(experiment, specs, devices)
    options = replace(options, lanes=lanes, order=options.order or default_order(devices))
    groups = make_groups(experiment, trials, len(devices), lanes, options.snapshots)
    admission.check_groups(groups, devices)
    groups = with_earlier(unfinished(groups, folder), trials, folder)
    admission.check_disk(groups, folder)
    return groups, options


def unfinished(groups: Sequence[Group], folder: Path) -> list[Group]:
    """Return the groups without the trials that are finished in the folder."""
    done = committed(folder) if folder.exists() else set()
    return [group for group in (group.without(done) for group in groups) if group.streams]


def run_sweep(
    named: NamedSweep, trials: Sequence[Trial], folder: Path, options: Options, resources: Resources
) -> Outcome:
    """Train what the folder does not have yet, showing progress; return what was done."""
    experiment = load_experiment(named.experiment)
    by_id = {experiment.settings.trial_id(trial): trial for trial in trials}
    # Before anything is written: what is too large or wrong is refused here.
    groups, options = plan_groups(experiment, by_id, folder, options, resources.devices)
    for group in groups:
        experiment.load_data(group.spec)  # what is missing is missed now
    with Writer(folder, named.name, options.extend) as writer:
        groups = unfinished(groups, folder)  # another run may have finished some just now
        left = sum(group.num_trials for group in groups)
        total_steps = float(sum(group.trial_steps for group in groups))
        entry = describe_run(named, writer.write_plan(list(by_id)), len(by_id), left, options, resources)
        with Progress(left, total_steps) as progress, stop_requests() as is_stopping:
            progress.say(opening(entry, folder, resources, groups))
            lines = experiment.lines(trials, writer.manifest["limit_lines"])
            manifest = RunManifest(writer, entry, lines, progress.training)
            train = Training(groups, by_id, manifest, writer, progress, options.save_every)
            with contextlib.suppress(Interrupted, KeyboardInterrupt):
                train.run(source_of(options, resources), is_stopping, WAITING if resources.cluster else 0)
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


def source_of(options: Options, resources: Resources) -> Source:
    """Return what trains chunks: the workers of a cluster, or the devices of this process."""
    if isinstance(resources.cluster, Cluster):
        return functools.partial(resources.cluster.train, options=options)
    return functools.partial(train_here, devices=resources.devices, order=options.order)


def describe_run(
    named: NamedSweep, plan: str, planned: int, left: int, options: Options, resources: Resources
) -> dict[str, Any]:
    """Return the manifest's entry of a run: the sweep as data, and where and with what it runs."""
    refinement = named.refinement
    refined = refinement and {"axes": list(refinement.axes), "levels": refinement.levels}
    return {
        "sweep": named.name,
        "experiment": named.settings.experiment,
        "description": named.description,
        "base": named.base,
        "axes": axes_of(named.settings, named.base, named.sweep),
        "overrides": list(named.overrides),
        **({"refine": refined} if refined else {}),
        "plan": plan,
        "planned": planned,
        "left": left,
        **options.recorded(),
        **({"workers": resources.cluster.num_workers} if resources.cluster else {}),
        **provenance(resources.devices),
    }


def opening(entry: Mapping[str, Any], folder: Path, resources: Resources, groups: Sequence[Group]) -> str:
    """Return the first lines of a run."""
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
