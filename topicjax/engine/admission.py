"""Plan a run, and check memory, disk, programs, time and the experiment itself before compiling or writing.

`plan` and `run` refuse with the same message: what is needed, what is available, which setting to change.
"""

import contextlib
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.engine import costs
from topicjax.engine.chunk import Chunk
from topicjax.engine.options import Options
from topicjax.engine.orders import with_orders
from topicjax.engine.origin import difference, origin
from topicjax.engine.plan import ALL_STEPS, Group, StreamRow, group_trials, shaped, with_earlier
from topicjax.engine.references import checked
from topicjax.engine.segments import tables
from topicjax.errors import UserError, duration, shown, size
from topicjax.experiments import load_experiment
from topicjax.experiments.contract import TAKEN, Experiment
from topicjax.settings import Setting, Whole, declared
from topicjax.store.checkpoints import describe_tree
from topicjax.store.files import MANIFEST, TRIALS, StoreError, check_kind, check_name, ids_name
from topicjax.store.manifest import added_settings, experiment_of, read_manifest
from topicjax.store.parts import Columns, check_columns, column_types, columns_of, make_tables
from topicjax.store.reader import Run, committed
from topicjax.sweep.files import NamedSweep
from topicjax.trial import NEEDED, Trial

MAX_PROGRAMS = 1000  # compiling one takes seconds to a minute
MAX_WINDOW_SECONDS = 3600.0  # within a window a run can neither stop nor save
HOST_COPIES = dict(records=6, snapshots=3, states=2)  # of a chunk: being built, written, read back
LESS = {
    "records": "raise record_every, or lower steps or --lanes",
    "snapshots": "keep fewer --snapshots, or lower --lanes",
    "states": "keep no --snapshots, or lower --lanes",
    "training": "lower --lanes or --devices",
    "settings": "run fewer trials at a time",
}


def plan_groups(
    experiment: Experiment,
    trials: Mapping[str, Trial],
    folder: Path,
    options: Options,
    devices: Sequence[Any],
    first: Collection[str] = (),
) -> tuple[list[Group], Options]:
    """Group the trials (given by id) that the folder lacks; return the groups and the completed options.

    Chunks have the shape of a run of the `first` trials, if given, so that its programs serve for all.
    Nothing is written: this is where a run that is too large, or whose folder is unusable, is refused.
    """
    groups = group_trials(experiment, trials, options.snapshots)
    specs = [group.spec for group in groups]
    check_folder(folder, experiment)
    alike = runs_of_this_origin(folder, experiment, options)
    check_specs(experiment, specs, devices)
    check_references(experiment, next(iter(trials.values())))
    columns = new_columns(experiment, specs[0], next(iter(trials.values())))
    check_columns(folder, columns)
    groups = with_orders(groups, options, folder, devices)
    later = {*trials}.difference(first) if first else set()
    basis = [group for group in (group.without(later) for group in groups) if group.streams]
    lanes = options.lanes or best_lanes(basis, first or trials, folder, devices)
    options = replace(options, lanes=lanes)
    rounding = options.round_products
    groups = [replace(group, round_products=rounding) for group in groups]
    groups = [shaped(group, len(devices), *group.sizes or [lanes]) for group in groups]
    if first:
        groups = [shaped_as_first(group, later, lanes, devices) for group in groups]
    check_groups(groups, devices)
    groups = [with_sizes(group, lanes, devices) for group in groups]
    measured = {name: own for name, own in columns.items() if name != TRIALS}
    groups = with_earlier(unfinished(groups, folder), trials, folder, alike, measured)
    check_disk(groups, folder)
    return groups, options


def shaped_as_first(group: Group, later: Collection[str], lanes: int, devices: Sequence[Any]) -> Group:
    """Give chunks the shape that they have without the later trials, unless those would take much longer.

    The choice follows from the trials and the devices alone: an interrupted round is resumed with it.
    """
    basis, added = group.without(later), group.without({*group.trial_ids}.difference(later))
    if not basis.streams or not added.streams:
        return group
    basis = shaped(basis, len(devices), *group.sizes or [lanes])
    as_first = replace(added, lanes=basis.lanes, rows_per_chunk=basis.rows_per_chunk)
    most = costs.group_seconds(added, devices) + costs.COMPILE_SECONDS
    if costs.group_seconds(as_first, devices) > most:
        return group
    return replace(group, lanes=basis.lanes, rows_per_chunk=basis.rows_per_chunk)


def best_lanes(groups: Sequence[Group], trials: Collection[str], folder: Path, devices: Sequence[Any]) -> int:
    """Return the lanes of the folder's last run of these trials on such devices; without one, choose.

    A chunk is named after its trials: with other lanes a run would not find the states of unfinished chunks.
    """
    most = costs.lanes_that_fit(groups[0].experiment, [group.spec for group in groups], devices)
    same = {
        "plan": ids_name(list(trials)),
        "devices": [device.device_kind for device in devices],
    }
    for entry in reversed(read_manifest(folder).get("runs", [])):
        lanes = entry.get("lanes", 0)
        if 1 <= lanes <= most and {name: entry.get(name) for name in same} == same:
            return lanes
    return costs.chosen_lanes(groups, devices, most)


def with_sizes(group: Group, lanes: int, devices: Sequence[Any]) -> Group:
    """List the sizes of chunks that a group's first run times, if devices have a cache and room for them."""
    if group.order or not costs.has_shared_cache(devices):
        return group
    most = costs.lanes_that_fit(group.experiment, [group.spec], devices)
    found = []
    for number in costs.sizes_to_try(group, len(devices), lanes, most):
        with contextlib.suppress(UserError):
            check_groups([shaped(group, len(devices), number)], devices)
            found.append(number)
    return replace(group, sizes=tuple(found))


def unfinished(groups: Sequence[Group], folder: Path) -> list[Group]:
    """Drop the trials that the folder already has."""
    done = committed(folder) if folder.exists() else set()
    return [group for group in (group.without(done) for group in groups) if group.streams]


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
    for spec in specs:
        weights = costs.shapes(experiment, spec).weights
        try:
            if jax.tree.leaves(weights):  # an experiment may keep none
                describe_tree(weights)
        except UserError as error:
            raise UserError(f"weights of {experiment.name}: {error}") from error


def fitted_to_folder(named: NamedSweep, folder: Path) -> NamedSweep:
    """Return the sweep with the ids that its trials have in a folder.

    Settings that came after the folder's first trials leave the ids of trials at their defaults unchanged, so
    that these are found.
    """
    experiment = load_experiment(named.experiment)
    later = {**added_settings(read_manifest(folder)), **new_settings(experiment, folder)}
    if later:
        experiment = replace(experiment, settings=experiment.settings.extended_by(list(later)))
    return replace(named, experiment=experiment)


def new_settings(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """List the settings that no trial of a folder has, with their defaults."""
    there = columns_of(folder).get(TRIALS, {}) if folder.is_dir() else {}
    defaults = experiment.settings.defaults
    return {name: value for name, value in defaults.items() if there and name not in there}


def new_columns(experiment: Experiment, spec: Any, trial: Trial) -> dict[str, Columns]:
    """Return the tables that a run of this experiment writes, by name, with the type of each column.

    They are the tables of a chunk whose only trial ended at its first record.
    """
    trial_id = experiment.settings.trial_id(trial)
    row = StreamRow(trial.stream, (trial.hypers,), (trial_id,))
    group = Group(experiment, spec, "", (), (row,), 1, 1)
    chunk = Chunk([row])
    record = costs.shapes(experiment, spec).record
    chunk.records = [{name: np.zeros((1, 1, *leaf.shape), leaf.dtype) for name, leaf in record.items()}]
    chunk.end(np.ones(1, bool), 0, [ALL_STEPS])
    made = make_tables(*tables(chunk, group, {trial_id: trial}, run=1), checksums=[[]])
    return {name: column_types(table.schema) for name, table in made.items()}


def check_records(experiment: Experiment, specs: Collection[Any]) -> None:
    """Raise a UserError unless all programs measure the same, valid columns.

    A column is a number, or an array with one axis for each of the first indices in `details`.
    """
    of, taken = f"of {experiment.name}", {*TAKEN, *experiment.settings.settings, *experiment.details}
    kinds: dict[tuple, Any] = {}
    for spec in specs:
        found = costs.shapes(experiment, spec)
        for name, leaf in found.record.items():
            if not name.isidentifier() or name in taken:
                raise UserError(
                    f"measure {of} has a column {shown(name)}; allowed: letters, digits and _, and no name "
                    "of a setting or an index of details"
                )
            check_column(experiment, name, leaf)
            if name in found.rare and not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise UserError(
                    f"measure_rarely {of} has {name} of type {leaf.dtype}; allowed: float, NaN between"
                )
        lengths: dict[str, tuple[int, str]] = {}
        for name, leaf in found.record.items():
            for index, length in zip(experiment.details, leaf.shape, strict=False):
                known, other = lengths.setdefault(index, (length, name))
                if known != length:
                    raise UserError(
                        f"{other} and {name} {of} have {known} and {length} values per {index}; allowed: as "
                        "many for all columns of a program"
                    )
        kinds.setdefault(tuple((name, leaf.ndim) for name, leaf in found.record.items()), spec)
    if len(kinds) > 1:
        first, second, *_ = kinds
        differ = sorted({name for name, _ in {*first} ^ {*second}}) or ["their order"]
        raise UserError(
            f"programs {of} measure different columns ({', '.join(differ)}); allowed: the same columns with "
            "the same number of indices whatever the Spec; NaN where a column has no meaning"
        )
    if experiment.details and all(len(kind) == 0 or not any(ndim for _, ndim in kind) for kind in kinds):
        raise UserError(
            f"details {of} is {shown(experiment.details)} and no column is an array; allowed: measure "
            f"returns an array with a value per {experiment.details[0]}, or no details"
        )


def check_column(experiment: Experiment, name: str, leaf: Any) -> None:
    """Raise a UserError unless a column is a number or an array over the indices of details."""
    names = experiment.details
    allowed = "a number"
    allowed += (
        f", or an array with an axis per index: {', '.join(names)}"
        if names
        else (', or one value per place of an index that the experiment names, as details=("layer",)')
    )
    is_number = jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool
    if not is_number or len(leaf.shape) > len(names) or 0 in leaf.shape:
        kind = f"shape {leaf.shape}" if is_number else f"type {leaf.dtype}"
        raise UserError(f"{name} of {experiment.name} has {kind}; allowed: {allowed}")


def check_references(experiment: Experiment, trial: Trial) -> None:
    """Raise a UserError unless a user's `references` returns numbers by name; the shipped ones are tested."""
    references = experiment.references
    if references is not None and not str(getattr(references, "__module__", "")).startswith("topicjax."):
        checked(experiment, references(trial))


def largest_setting(experiment: Experiment, spec: Any) -> str:
    """Name the most expensive size, relative to its default or to half of it, as name = value."""
    sizes = {name: own for name, own in declared(type(spec)).items() if isinstance(own.kind, Whole)}
    cheaper = {name: smaller(spec, own) for name, own in sizes.items() if name not in NEEDED}
    if not cheaper:
        return "its sizes"
    name = min(cheaper, key=lambda name: costs.trial_bytes(experiment, cheaper[name]))
    is_setting = name in experiment.settings.settings
    return f"{name if is_setting else 'the ' + sizes[name].help} = {getattr(spec, name)}"


def smaller(spec: Any, setting: Setting) -> Any:
    """Set one size of the Spec to its default, or halve it if it is not larger than that."""
    name, default = setting.name, setting.default
    value = getattr(spec, name)
    return replace(spec, **{name: default if value > default else max(min(1, value), value // 2)})


def check_groups(groups: Sequence[Group], devices: Sequence[Any]) -> None:
    """Raise a UserError if a group's chunks do not fit into memory, or if its windows take too long."""
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
    """Estimate the host memory of a chunk, by purpose."""
    parts = costs.disk_bytes(group) | {"states": costs.sizes(group.experiment, group.spec).state}
    return {name: copies * group.trials_per_chunk * parts[name] for name, copies in HOST_COPIES.items()}


def check_folder(folder: Path, experiment: Experiment) -> None:
    """Raise a UserError or StoreError if no run can write to this folder, before it is created."""
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


def runs_of_this_origin(folder: Path, experiment: Experiment, options: Options) -> set[int]:
    """Find the runs of a folder whose results are of the same code and arithmetic as those of a run now.

    Raises a StoreError if trials of others are there, unless the options allow it.
    """
    runs, now = read_manifest(folder).get("runs", []), origin(experiment, options.round_products)
    differ = {number: difference(entry, now) for number, entry in enumerate(runs, 1)}
    trained = {row["run"] for row in Run(folder).columns(["run"])} if folder.exists() else set()
    if trained - differ.keys():
        raise StoreError(
            f"{folder} holds trials of run {max(trained)}, which its {MANIFEST} does not know; "
            f"`topicjax repair {folder}` counts it in"
        )
    for number in sorted(trained):
        if differ[number] and not options.other_code:
            raise StoreError(
                f"{folder} holds trials of other code ({differ[number]}), and their results may differ; "
                "allowed: another folder (--out), or --other-code to add to this one"
            )
    return {number for number, words in differ.items() if not words}


def check_disk(groups: Sequence[Group], folder: Path) -> None:
    """Raise a UserError if the disk has too little space for the trials left to train."""
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
    """Find the folder, or the nearest parent that exists."""
    path = folder.absolute()
    while not os.path.lexists(path):
        path = path.parent
    return path
