"""Describe a plan: what a run of a sweep would do and cost, in words and as numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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


class Costs(NamedTuple):
    """What the trials that are left cost."""

    memory_bytes: float  # per device
    disk_bytes: float
    trial_steps: float
    seconds: float
    basis: str  # of the seconds
    compile_seconds: float | None  # None: never measured here
    cluster: Any = None  # the estimate for the workers of a cluster, if there is one


@dataclass(frozen=True)
class Plan:
    """A sweep, and the programs that train the trials which its folder lacks."""

    named: NamedSweep
    num_trials: int
    folder: Path
    resources: Resources
    groups: list[Group]

    @property
    def left(self) -> int:
        """Number of trials to train."""
        return sum(group.num_trials for group in self.groups)

    @property
    def resumed(self) -> int:
        """Number of these that continue a shorter training."""
        return sum(len(group.earlier) for group in self.groups)

    @property
    def may_stop(self) -> bool:
        """Whether trials end once they are decided."""
        return any(group.experiment.may_stop(group.spec) for group in self.groups)

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The values of every setting that varies."""
        return axes_of(self.named.settings, self.named.base, self.named.sweep)


def make_plan(
    named: NamedSweep, trials: Sequence[Trial], folder: Path, options: Options, resources: Resources
) -> Plan:
    """Plan a run; nothing is compiled or written."""
    experiment = load_experiment(named.experiment)
    by_id = {experiment.settings.trial_id(trial): trial for trial in trials}
    groups, _ = plan_groups(experiment, by_id, folder, options, resources.devices)
    return Plan(named, len(trials), folder, resources, groups)


def plan_numbers(plan: Plan) -> dict[str, Any]:
    """Give a plan as numbers, for programs."""
    found = plan_costs(plan)
    programs = [
        {
            "label": group.label,
            "trials": group.num_trials,
            "chunks": len(group.chunks),
            "streams_per_chunk": group.rows_per_chunk,
            "trials_per_stream": group.lanes,
            "record_share": costs.record_share(group.experiment, group.spec, group.lanes),
        }
        for group in plan.groups
    ]
    workers = plan.resources.cluster.num_workers if plan.resources.cluster else None
    return {
        "sweep": plan.named.name,
        "experiment": plan.named.settings.experiment,
        "folder": str(plan.folder),
        "trials": plan.num_trials,
        "finished": plan.num_trials - plan.left,
        "left": plan.left,
        "resumed": plan.resumed,
        "may_stop": plan.may_stop,
        "axes": plan.axes,
        "programs": programs,
        "devices": [device.device_kind for device in plan.resources.devices],
        "workers": workers,
        "memory_bytes": found.memory_bytes,
        "disk_bytes": found.disk_bytes,
        "trial_steps": found.trial_steps,
        "seconds": found.seconds,
        "seconds_from": found.basis,
        "compile_seconds": found.compile_seconds,
        "limited_by": found.cluster.limit if found.cluster else None,
    }


def plan_text(plan: Plan) -> str:
    """Describe a plan for people."""
    groups, resources = plan.groups, plan.resources
    static = plan.named.settings.spec_names
    lines = [f"{plan.named.name}: {plan.num_trials:,} trials"]
    for name, values in plan.axes.items():
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
    lines += cost_lines(plan)
    lines += record_lines(groups)
    lines.append(f"already in {plan.folder}: {plan.num_trials - plan.left:,} trials; left: {plan.left:,}")
    if plan.resumed:
        lines.append(f"{plan.resumed:,} of them go on from where shorter trainings ended")
    if plan.may_stop:
        lines.append("trials end once they are decided: the time is the most it takes")
    return "\n".join(lines)


def plan_costs(plan: Plan) -> Costs:
    """Estimate memory, disk and time."""
    groups, resources = plan.groups, plan.resources
    memory = disk = 0.0
    for group in groups:
        memory = max(memory, costs.device_bytes(group, len(resources.devices)))
        disk += group.num_trials * sum(costs.disk_bytes(group).values())
    rate, basis = step_rate(resources, plan.folder)
    steps = sum(group.trial_steps for group in groups)
    each = costs.expected_compile_time(groups[0].experiment.name) if groups else None
    if resources.cluster is not None and groups:
        found = cluster_estimate(groups, resources, rate, each)
        return Costs(memory, disk, steps, found.seconds, basis, found.compiling if each else None, found)
    seconds = sum(rate(group, group.trial_steps) for group in groups)
    return Costs(memory, disk, steps, seconds, basis, None if each is None else each * len(groups))


def cost_lines(plan: Plan) -> list[str]:
    """Describe memory, disk and time."""
    found = plan_costs(plan)
    what = f"for {found.trial_steps:,.0f} trial-steps (from {found.basis})"
    lines = [
        f"memory: about {size(found.memory_bytes)} per device    disk: about {size(found.disk_bytes)}",
        f"time: about {duration(found.seconds)} {what}",
    ]
    if found.cluster is not None:
        return [*lines, *cluster_lines(plan.resources, found)]
    return [*lines, *compile_lines(plan.groups, found.seconds)]


def record_lines(groups: Sequence[Group]) -> list[str]:
    """Describe the cost of records: their share, and a warning where they outweigh the steps."""
    if not groups:
        return []
    shares = [costs.record_share(group.experiment, group.spec, group.lanes) for group in groups]
    worst = groups[shares.index(max(shares))]
    lines = [f"records: about {costs.record_share_of_all(groups):.0%} of the work"]
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


def cluster_estimate(
    groups: Sequence[Group],
    resources: Resources,
    rate: Callable[[Group, float], float],
    each: float | None,
) -> Any:
    """Estimate how long the workers of a cluster take; `each` are the seconds of a compilation, if known."""
    from topicjax.engine.cluster.driver import estimate, slowed

    assert resources.cluster is not None
    workers = resources.cluster.num_workers
    slower = slowed(workers, len(resources.devices), resources.cluster.address.local > 0)
    return estimate(groups, workers, lambda group, steps: slower * rate(group, steps), slower * (each or 0.0))


def cluster_lines(resources: Resources, expected: Costs) -> list[str]:
    """Describe what limits the workers of a cluster."""
    from topicjax.engine.cluster.driver import slowed

    assert resources.cluster is not None
    found, workers = expected.cluster, resources.cluster.num_workers
    is_known = expected.compile_seconds is not None
    compiling = f"{duration(found.compiling)} compiling" if is_known else "compiling, never measured here"
    shared = slowed(workers, len(resources.devices), resources.cluster.address.local > 0) > 1
    return [
        f"  a worker: {duration(found.training)} training, {compiling}; the driver beside it: "
        f"{duration(found.dispatch)} dispatch, {duration(found.writing)} writing",
        f"  limited by {found.limit}",
        *([f"  {workers} workers share the cores of this machine"] if shared else []),
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
