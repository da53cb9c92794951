"""What a machine can take: memory, disk, programs and time, asked before anything is compiled or created.

`plan` and `run` refuse alike, in one sentence: what is needed, what is there, which setting to change.
"""

import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from topicjax.engine import costs
from topicjax.engine.plan import Group
from topicjax.engine.progress import duration, size
from topicjax.errors import UserError
from topicjax.experiments import Experiment
from topicjax.settings import Setting, Whole, declared
from topicjax.store.files import StoreError, check_kind, check_name
from topicjax.store.manifest import experiment_of, read_manifest
from topicjax.trial import NEEDED

MAX_PROGRAMS = 1000  # compiling one takes seconds to a minute
MAX_WINDOW_SECONDS = 3600.0  # within a window a run can neither stop nor save
HOST_COPIES = dict(records=6, snapshots=3, states=2)  # of a chunk: in the making, being written, read back
LESS = {
    "records": "raise record_every, or lower steps or --lanes",
    "snapshots": "keep fewer --snapshots, or lower --lanes",
    "states": "keep no --snapshots, or lower --lanes",
    "training": "lower --lanes or --devices",
    "settings": "run fewer trials at a time",
}


def check_specs(experiment: Experiment, specs: Collection[Any], devices: Sequence[Any]) -> None:
    """Raise a UserError if there are too many programs, or if one cannot train even a single trial."""
    if len(specs) > MAX_PROGRAMS:
        names = experiment.settings.spec_names
        names = [name for name in names if len({getattr(spec, name) for spec in specs}) > 1]
        raise UserError(
            f"the sweep needs {len(specs):,} programs, one for each combination of {', '.join(names)}; "
            f"allowed: up to {MAX_PROGRAMS:,}; give these settings fewer values"
        )
    there = costs.device_memory(devices)
    for spec in specs:
        if (needed := costs.trial_bytes(experiment, spec)) > there:
            raise UserError(
                f"a trial needs about {size(needed)} of memory on its device and {size(there)} are there; "
                f"lower {largest_setting(experiment, spec)}"
            )
    check_records(experiment, specs)


def check_records(experiment: Experiment, specs: Collection[Any]) -> None:
    """Raise a UserError unless records hold scalars, and details as many values as their index has places."""
    of, index, kinds = f"the Record of {experiment.name}", experiment.detail, set()
    for spec in specs:
        arrays = {name: shape for name, shape in costs.sizes(experiment, spec).record.items() if shape}
        kinds.add(tuple(arrays))
        for name, shape in arrays.items():
            if not index:
                raise UserError(
                    f"{name} of {of} has shape {shape}; allowed: a scalar, or one value per place of an "
                    'index that the experiment names, as detail="layer"'
                )
            if len(shape) > 1 or 0 in shape:
                raise UserError(
                    f"{name} of {of} has shape {shape}; allowed: a scalar, or one value per {index}"
                )
        if len({*arrays.values()}) > 1:
            lengths = ", ".join(f"{name} {shape[0]}" for name, shape in arrays.items())
            raise UserError(
                f"arrays of {of} have different numbers of values ({lengths}); allowed: one per {index}"
            )
    if index and (len(kinds) > 1 or () in kinds):
        raise UserError(
            f"{of} has detail={index!r}, and not the same arrays in every program; allowed: fields that "
            f"always have one value per {index}, at least one of them"
        )


def largest_setting(experiment: Experiment, spec: Any) -> str:
    """Return the size that costs most, beside its default or half of itself, as name = value."""
    sizes = {name: own for name, own in declared(type(spec)).items() if isinstance(own.kind, Whole)}
    cheaper = {name: smaller(spec, own) for name, own in sizes.items() if name not in NEEDED}
    if not cheaper:
        return "its sizes"
    name = min(cheaper, key=lambda name: costs.trial_bytes(experiment, cheaper[name]))
    is_setting = name in experiment.settings.settings
    return f"{name if is_setting else 'the ' + sizes[name].help} = {getattr(spec, name)}"


def smaller(spec: Any, setting: Setting) -> Any:
    """Return the Spec with one size at its default, or halved if it is no larger than that."""
    name, default = setting.name, setting.default
    value = getattr(spec, name)
    return replace(spec, **{name: default if value > default else max(min(1, value), value // 2)})


def check_groups(groups: Sequence[Group], devices: Sequence[Any]) -> None:
    """Raise a UserError if a group's chunks do not fit into memory, or if it could hardly be stopped."""
    there, host = costs.device_memory(devices), costs.host_memory()
    rate = costs.flop_rate(devices[0].platform) * len(devices)
    for group in groups:
        if (needed := costs.device_bytes(group, len(devices))) > there:
            raise UserError(
                f"training {group.trials_per_chunk // len(devices):,} at once needs about {size(needed)} of "
                f"memory on each device and {size(there)} are there; "
                f"lower --lanes, or {largest_setting(group.experiment, group.spec)}"
            )
        parts = host_bytes(group)
        if devices[0].memory_stats() is None:  # a core of this machine
            parts["training"] = needed * len(devices)
        if sum(parts.values()) > host:
            raise UserError(
                f"a chunk of {group.trials_per_chunk:,} trials needs about {size(sum(parts.values()))} of "
                f"memory and the machine has {size(host)}; {LESS[max(parts, key=lambda part: parts[part])]}"
            )
        if (seconds := costs.window_seconds(group, rate)) > MAX_WINDOW_SECONDS:
            raise UserError(
                f"{group.spec.record_every:,} steps from one record to the next take about "
                f"{duration(seconds)} and a run can neither stop nor save between them; allowed: about "
                f"{duration(MAX_WINDOW_SECONDS)}; lower record_every = {group.spec.record_every} or --lanes"
            )


def host_bytes(group: Group) -> dict[str, float]:
    """Return about how much of the host's memory a chunk takes, by what takes it."""
    parts = costs.disk_bytes(group) | {"states": costs.sizes(group.experiment, group.spec).state}
    return {name: copies * group.trials_per_chunk * parts[name] for name, copies in HOST_COPIES.items()}


def check_folder(folder: Path, experiment: Experiment) -> None:
    """Raise a UserError or StoreError if no run can write to this folder, before it is made."""
    check_name(folder)
    check_kind(folder, may_be_new=True)
    there = experiment_of(read_manifest(folder))
    if there not in ("", experiment.name):
        raise StoreError(
            f"{folder} holds trials of the experiment {there}, not of {experiment.name}; "
            "allowed: another folder (--out)"
        )
    parent = existing_parent(folder)
    if not parent.is_dir():
        raise UserError(f"{parent} is not a folder; allowed: a run folder (--out)")


def check_disk(groups: Sequence[Group], folder: Path) -> None:
    """Raise a UserError if the disk has no room for what is left to train."""
    needed: dict[str, int] = {}
    for group in groups:
        for name, count in costs.disk_bytes(group).items():
            needed[name] = needed.get(name, 0) + count * group.num_trials
    parent = existing_parent(folder)
    free = shutil.disk_usage(parent).free
    if (total := sum(needed.values())) > free:
        less = LESS[max(needed, key=lambda name: needed[name])]
        raise UserError(
            f"the run needs about {size(total)} on disk and {size(free)} are free in {parent}; "
            f"{less}, or name a folder elsewhere (--out)"
        )


def existing_parent(folder: Path) -> Path:
    """Return the folder, or the nearest of its parents that is there."""
    path = folder.absolute()
    while not os.path.lexists(path):
        path = path.parent
    return path
