"""Describe a plan: what a run of a sweep would do and cost."""

from collections.abc import Callable, Sequence
from pathlib import Path

from topicjax.engine import costs
from topicjax.engine.admission import plan_groups
from topicjax.engine.options import Options
from topicjax.engine.plan import Group
from topicjax.engine.resources import Resources
from topicjax.errors import counted, duration, size
from topicjax.experiments import load_experiment
from topicjax.store.manifest import read_manifest
from topicjax.sweep import axes_of
from topicjax.sweep.files import NamedSweep
from topicjax.trial import Trial

MOST_VALUES = 8  # values of an axis that are listed
MUCH_COMPILING = 0.2  # of the time; above it the plan says what to do


def plan_text(
    named: NamedSweep, trials: Sequence[Trial], folder: Path, options: Options, resources: Resources
) -> str:
    """Describe what a run would do and cost; nothing is compiled or written."""
    experiment = load_experiment(named.experiment)
    by_id = {experiment.settings.trial_id(trial): trial for trial in trials}
    groups, _ = plan_groups(experiment, by_id, folder, options, resources.devices)
    left = sum(group.num_trials for group in groups)
    static = experiment.settings.spec_names
    lines = [f"{named.name}: {len(trials):,} trials"]
    for name, values in axes_of(named.settings, named.base, named.sweep).items():
        shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values[:MOST_VALUES]]
        more = ", ..." if len(values) > MOST_VALUES else ""
        own = " (each value has its own program)" if name in static and len(values) > 1 else ""
        lines.append(f"  {name:16} {len(values):4} values: {', '.join(shown)}{more}{own}")
    workers = f"{counted(resources.cluster.num_workers, 'worker')} of " if resources.cluster else ""
    kind = resources.devices[0].device_kind
    lines.append(f"{len(groups)} programs on {workers}{len(resources.devices)} x {kind}")
    for group in groups:
        lines.append(
            f"  {group.label}: {group.num_trials:,} trials in {len(group.chunks):,} chunks "
            f"of {group.rows_per_chunk} streams x {group.lanes} trials"
        )
    lines += cost_lines(groups, resources, folder)
    lines += record_lines(groups)
    lines.append(f"already in {folder}: {len(trials) - left:,} trials; left: {left:,}")
    if further := sum(len(group.earlier) for group in groups):
        lines.append(f"{further:,} of them go on from where shorter trainings ended")
    if any(experiment.may_stop(group.spec) for group in groups):
        lines.append("trials end once they are decided: the time is the most it takes")
    return "\n".join(lines)


def cost_lines(groups: Sequence[Group], resources: Resources, folder: Path) -> list[str]:
    """Describe memory, disk and time."""
    memory = disk = 0.0
    for group in groups:
        memory = max(memory, costs.device_bytes(group, len(resources.devices)))
        disk += group.num_trials * sum(costs.disk_bytes(group).values())
    rate, basis = step_rate(resources, folder)
    steps = sum(group.trial_steps for group in groups)
    what = f"for {steps:,.0f} trial-steps (from {basis})"
    first = f"memory: about {size(memory)} per device    disk: about {size(disk)}"
    if resources.cluster is not None and groups:
        return [first, *cluster_lines(groups, resources, rate, what)]
    seconds = sum(rate(group, group.trial_steps) for group in groups)
    return [first, f"time: about {duration(seconds)} {what}", *compile_lines(groups, seconds)]


def record_lines(groups: Sequence[Group]) -> list[str]:
    """Describe the cost of records: their share, and a warning where they outweigh the steps."""
    if not groups:
        return []
    shares = [costs.record_share(group.experiment, group.spec, group.lanes) for group in groups]
    steps = [
        group.trial_steps * costs.shared_step(group.experiment, group.spec, group.lanes) for group in groups
    ]
    works = [step / max(1 - share, 1e-9) for step, share in zip(steps, shares, strict=True)]
    worst = groups[shares.index(max(shares))]
    lines = [f"records: about {1 - sum(steps) / max(sum(works), 1.0):.0%} of the work"]
    if len(groups) > 1:
        lines[0] += f", at most {max(shares):.0%} in one program"
    if max(shares) > 0.5:
        work = costs.work(worst.experiment, worst.spec)
        lines.append(
            f"  a record of {worst.label} costs {(work.record + work.rare) / work.step:,.0f} steps "
            f"and comes every {costs.steps_per_record(worst.spec):,.0f}: raise record_every, or measure some "
            "columns rarely"
        )
    return lines


def step_rate(resources: Resources, folder: Path) -> tuple[Callable[[Group, float], float], str]:
    """Return a function for the seconds of a group's trial-steps on one process, and what it is based on."""
    runs = [run for run in read_manifest(folder).get("runs", []) if "trial_steps_per_second" in run]
    devices = len(resources.devices)
    if runs:
        rate = runs[-1]["trial_steps_per_second"]
        of_device = rate / (runs[-1].get("workers", 1) * len(runs[-1].get("devices", [1])))
        rate_here = of_device * devices if resources.cluster else rate
        return lambda group, steps: steps / rate_here, f"the {rate:,.0f} trial-steps/s of its last run"
    rate = costs.flop_rate(resources.devices[0].platform)

    def seconds(group: Group, steps: float) -> float:
        return steps * costs.step_flops(group.experiment, group.spec) / rate / devices

    return seconds, f"an assumed {rate / 1e9:,.0f} GFLOP/s per device; a real run tells better"


def cluster_lines(
    groups: Sequence[Group], resources: Resources, rate: Callable[[Group, float], float], what: str
) -> list[str]:
    """Describe how long the workers of a cluster take, and what limits them."""
    from topicjax.engine.cluster.driver import estimate, slowed

    assert resources.cluster is not None
    workers = resources.cluster.num_workers
    slower = slowed(workers, len(resources.devices), resources.cluster.address.local > 0)
    each = costs.expected_compile_time(groups[0].experiment.name) or 0.0
    found = estimate(groups, workers, lambda group, steps: slower * rate(group, steps), slower * each)
    compiling = f"{duration(found.compiling)} compiling" if each else "compiling, never measured here"
    return [
        f"time: about {duration(found.seconds)} {what}",
        f"  a worker: {duration(found.training)} training, {compiling}; the driver beside it: "
        f"{duration(found.dispatch)} dispatch, {duration(found.writing)} writing",
        f"  limited by {found.limit}",
        *([f"  {workers} workers share the cores of this machine"] if slower > 1 else []),
    ]


def compile_lines(groups: Sequence[Group], training: float) -> list[str]:
    """Describe compile time; empty if nothing is left to compile or no compilation was ever timed here.

    `training` are the expected seconds of everything else.
    """
    each = costs.expected_compile_time(groups[0].experiment.name) if groups else None
    if each is None:
        return []
    total = each * len(groups)
    lines = [
        f"compiling: about {duration(total)} more, {len(groups)} programs at up to {duration(each)} each as "
        "measured here; less if they are in the cache"
    ]
    if len(groups) > 1 and total > MUCH_COMPILING * (total + training):
        lines.append(
            f"  up to {total / (total + training):.0%} of the time: fewer values of the settings with "
            "programs of their own, or longer trainings, make it less"
        )
    return lines
