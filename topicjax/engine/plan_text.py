"""A plan in words: what a run of a sweep would do and cost."""

from collections.abc import Sequence
from pathlib import Path

from topicjax.engine import compile_times, costs
from topicjax.engine.plan import Group
from topicjax.engine.progress import duration, size
from topicjax.engine.run import Options, plan_groups
from topicjax.experiments import load_experiment
from topicjax.store.manifest import read_manifest
from topicjax.sweep import axes_of
from topicjax.sweep_files import NamedSweep
from topicjax.trial import Trial

MOST_VALUES = 8  # of an axis


def plan_text(named: NamedSweep, trials: Sequence[Trial], folder: Path, options: Options) -> str:
    """Return what a run would do and cost; nothing is compiled or written."""
    experiment = load_experiment(named.experiment)
    by_id = {experiment.settings.trial_id(trial): trial for trial in trials}
    groups, options = plan_groups(experiment, by_id, folder, options)
    left = sum(group.num_trials for group in groups)
    lines = [f"{named.name}: {len(trials):,} trials"]
    for name, values in axes_of(named.settings, named.base, named.sweep).items():
        shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values[:MOST_VALUES]]
        more = ", ..." if len(values) > MOST_VALUES else ""
        lines.append(f"  {name:16} {len(values):4} values: {', '.join(shown)}{more}")
    lines.append(f"{len(groups)} programs on {len(options.devices)} x {options.devices[0].device_kind}")
    for group in groups:
        lines.append(
            f"  {group.label}: {group.num_trials:,} trials in {len(group.chunks):,} chunks "
            f"of {group.rows_per_chunk} streams x {group.lanes} trials"
        )
    lines += cost_lines(groups, options, folder)
    lines.append(f"already in {folder}: {len(trials) - left:,} trials; left: {left:,}")
    if further := sum(len(group.earlier) for group in groups):
        lines.append(f"{further:,} of them go on from where shorter trainings ended")
    if any(experiment.may_stop(group.spec) for group in groups):
        lines.append("trials end once they are decided: the time is the most it takes")
    return "\n".join(lines)


def cost_lines(groups: Sequence[Group], options: Options, folder: Path) -> list[str]:
    """Return the lines on memory, disk and time."""
    memory = disk = flops = steps = 0.0
    for group in groups:
        spec, count = group.spec, group.num_trials
        memory = max(memory, costs.device_bytes(group, len(options.devices)))
        disk += count * sum(costs.disk_bytes(group).values())
        steps += group.trial_steps
        flops += group.trial_steps * costs.step_flops(group.experiment, spec)
    runs = read_manifest(folder).get("runs", [])
    rates = [run["trial_steps_per_second"] for run in runs if "trial_steps_per_second" in run]
    if rates:
        seconds, basis = steps / rates[-1], f"the {rates[-1]:,.0f} trial-steps/s of its last run"
    else:
        rate = costs.flop_rate(options.devices[0].platform)
        seconds = flops / rate / len(options.devices)
        basis = f"an assumed {rate / 1e9:,.0f} GFLOP/s per device; a real run tells better"
    return [
        f"memory: about {size(memory)} per device    disk: about {size(disk)}",
        f"time: about {duration(seconds)} for {steps:,.0f} trial-steps (from {basis})",
        *compile_lines(groups),
    ]


def compile_lines(groups: Sequence[Group]) -> list[str]:
    """Return the line on compiling; none if nothing is left to compile or this machine never did."""
    each = compile_times.expected(groups[0].experiment.name) if groups else None
    if each is None:
        return []
    total = duration(each * len(groups))
    return [
        f"compiling: about {total} more, {len(groups)} programs at up to {duration(each)} each as measured "
        "here; less if they are in the cache"
    ]
