"""Plan programs: group trials by Spec, cut streams into stream rows, and form chunks of stream rows.

A stream row is one Stream with up to `lanes` of its trials: its data are drawn once for all of them.  A chunk
holds the stream rows that one program call trains together, a multiple of the number of devices.  Trials that
the folder has with fewer steps resume where they ended.  Nothing here compiles or imports jax.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from topicjax.errors import UserError, shown
from topicjax.experiments.contract import Experiment
from topicjax.store.reader import Run
from topicjax.trial import Trial

MAX_SNAPSHOTS = 1000  # per trial
ALL_STEPS = "steps"  # stop reason of a trial that ran all its steps and could be trained further


@dataclass(frozen=True, slots=True)  # a sweep may have a million of them
class StreamRow:
    """Trials of one Stream, which share their data."""

    stream: Any
    hypers: tuple[Any, ...]
    trial_ids: tuple[str, ...]

    def without(self, trial_ids: Collection[str]) -> "StreamRow":
        """Drop these trials."""
        left = [place for place, trial_id in enumerate(self.trial_ids) if trial_id not in trial_ids]
        if len(left) == len(self.trial_ids):
            return self
        return StreamRow(
            self.stream,
            tuple(self.hypers[place] for place in left),
            tuple(self.trial_ids[place] for place in left),
        )

    def cut(self, lanes: int) -> "list[StreamRow]":
        """Cut into pieces of at most `lanes` trials."""
        if len(self.trial_ids) <= lanes:
            return [self]
        places = [slice(start, start + lanes) for start in range(0, len(self.trial_ids), lanes)]
        return [StreamRow(self.stream, self.hypers[place], self.trial_ids[place]) for place in places]


class Earlier(NamedTuple):
    """A shorter training of a trial that a folder already has."""

    trial_id: str
    step: int  # where it ended
    decided: str  # why it stopped there as decided, so nothing is left to train; empty: it resumes


@dataclass(frozen=True)
class Group:
    """All trials of one program, in chunks of `rows_per_chunk` stream rows of at most `lanes` trials."""

    experiment: Experiment
    spec: Any
    label: str  # distinguishes its program from the others
    snapshots: tuple[int, ...]  # steps at which weights are kept
    streams: tuple[StreamRow, ...]  # each with all of its trials
    lanes: int
    rows_per_chunk: int
    order: str = ""  # of work over lanes; empty: not yet chosen
    sizes: tuple[
        int, ...
    ] = ()  # trials per device: the one it has, then others to time while `order` is empty
    round_products: str = ""  # the format to which factors of matrix products are rounded, if any
    earlier: Mapping[str, Earlier] = field(default_factory=dict, compare=False)  # by trial, if there is one

    @cached_property
    def chunks(self) -> list[tuple[StreamRow, ...]]:
        """The stream rows of each chunk; the last may be shorter.  Trials of a chunk start at one step."""
        size, chunks, starts = self.rows_per_chunk, [], {0}
        if self.earlier:
            starts = {self.start(trial_id) for trial_id in self.trial_ids}
        for start in sorted(starts):
            others = set()
            if len(starts) > 1:
                others = {trial_id for trial_id in self.trial_ids if self.start(trial_id) != start}
            streams = (stream.without(others) for stream in self.streams) if others else self.streams
            rows = [row for stream in streams if stream.trial_ids for row in stream.cut(self.lanes)]
            chunks += [tuple(rows[first : first + size]) for first in range(0, len(rows), size)]
        return chunks

    def start(self, trial_id: str) -> int:
        """Return the step from which a trial resumes; its last step if it is already decided."""
        earlier = self.earlier.get(trial_id)
        if earlier is None:
            return 0
        return self.spec.steps if earlier.decided else earlier.step

    @property
    def trial_ids(self) -> list[str]:
        """The trials of the group."""
        return [trial_id for stream in self.streams for trial_id in stream.trial_ids]

    @property
    def trial_steps(self) -> int:
        """Maximum number of steps of all its trials together."""
        spared = sum(self.start(trial_id) for trial_id in self.trial_ids) if self.earlier else 0
        return self.spec.steps * self.num_trials - spared

    @property
    def num_trials(self) -> int:
        """How many trials the group has."""
        return sum(len(stream.trial_ids) for stream in self.streams)

    @property
    def stream_sizes(self) -> Counter[int]:
        """How many of its streams have how many trials."""
        return Counter(len(stream.trial_ids) for stream in self.streams)

    @property
    def trials_per_chunk(self) -> int:
        """How many trials one program call trains, padding included."""
        return self.lanes * self.rows_per_chunk

    def without(self, trial_ids: Collection[str]) -> "Group":
        """Drop these trials from the group; its program and shapes stay the same."""
        if not trial_ids:
            return self
        left = (stream.without(trial_ids) for stream in self.streams)
        return replace(self, streams=tuple(stream for stream in left if stream.trial_ids))


def make_groups(
    experiment: Experiment,
    trials: Mapping[str, Trial],
    num_devices: int,
    lanes_per_device: int,
    snapshots: str = "none",
) -> list[Group]:
    """Group trials (given by id) by Spec, in the order of the sweep, and shape their chunks.

    Shapes follow from all trials of a sweep: for a resumed run remove the finished ones afterwards, so that
    it has the same programs as an uninterrupted one.
    """
    groups = group_trials(experiment, trials, snapshots)
    return [shaped(group, num_devices, lanes_per_device) for group in groups]


def group_trials(experiment: Experiment, trials: Mapping[str, Trial], snapshots: str = "none") -> list[Group]:
    """Group trials (given by id) by Spec, in the order of the sweep; a chunk has one trial until `shaped`."""
    by_spec: dict[Any, dict[Any, list[str]]] = {}
    for trial_id, (spec, stream, _) in trials.items():
        by_spec.setdefault(spec, {}).setdefault(stream, []).append(trial_id)
    labels = spec_labels(experiment, list(by_spec))
    groups = []
    for spec, members in by_spec.items():
        streams = tuple(
            StreamRow(stream, tuple([trials[trial_id].hypers for trial_id in own]), tuple(own))
            for stream, own in members.items()
        )
        fitted, steps = experiment.fit(spec, list(members)), parse_snapshots(snapshots, spec)
        groups.append(Group(experiment, fitted, labels[spec], steps, streams, lanes=1, rows_per_chunk=1))
    return groups


def shaped(group: Group, num_devices: int, lanes_per_device: int) -> Group:
    """Choose the shape of a group's chunks, with at most this many trials on a device."""
    lanes, rows = chunk_shape(group.stream_sizes, num_devices, lanes_per_device, group.experiment.draw_cost)
    return replace(group, lanes=lanes, rows_per_chunk=rows * num_devices)


def chunk_shape(
    sizes: Mapping[int, int], num_devices: int, lanes_per_device: int, draw_cost: float
) -> tuple[int, int]:
    """Choose lanes per stream row and stream rows per device; `sizes` counts the streams by their trials.

    The shape wastes the fewest lanes, with the data of a stream row counted as `draw_cost` trials; among
    equally good ones it is the largest.
    """

    def rows_needed(lanes: int) -> int:
        return math.ceil(sum(count * math.ceil(size / lanes) for size, count in sizes.items()) / num_devices)

    most = min(max(sizes), lanes_per_device)
    lanes = min(range(most, 0, -1), key=lambda lanes: rows_needed(lanes) * (lanes + draw_cost))
    needed = rows_needed(lanes)
    most = max(1, min(lanes_per_device // lanes, needed))
    return lanes, min(range(most, 0, -1), key=lambda rows: math.ceil(needed / rows) * rows)


def spec_labels(experiment: Experiment, specs: Sequence[Any]) -> dict[Any, str]:
    """Label each Spec by the settings in which they differ, or by the experiment's name."""
    names = [
        name for name in experiment.settings.spec_names if len({getattr(spec, name) for spec in specs}) > 1
    ]
    described = {spec: ", ".join(f"{name}={getattr(spec, name)}" for name in names) for spec in specs}
    return {spec: text or experiment.name for spec, text in described.items()}


def parse_snapshots(text: str, spec: Any) -> tuple[int, ...]:
    """Parse the steps at which weights are kept: 'last', 'none', 'log:N' or 'S1,S2,...'.

    Steps are rounded to records, since weights can be taken only there.
    """
    if text in ("none", "last"):
        return (spec.steps,) if text == "last" else ()
    is_log = text.startswith("log:")
    try:
        numbers = [int(part) for part in (text[4:] if is_log else text).split(",", MAX_SNAPSHOTS)]
    except ValueError:
        raise UserError(
            f"snapshots is {shown(text)}; allowed: last, none, log:N, or up to {MAX_SNAPSHOTS} steps "
            "separated by commas"
        ) from None
    if is_log and (len(numbers) > 1 or not 1 <= numbers[0] <= MAX_SNAPSHOTS):
        raise UserError(f"snapshots is {shown(text)}; allowed: log:1 to log:{MAX_SNAPSHOTS}")
    wanted = log_steps(numbers[0], spec) if is_log else numbers
    if not all(0 <= step <= spec.steps for step in wanted):
        raise UserError(f"snapshots is {shown(text)}; allowed: steps from 0 to steps = {spec.steps}")
    return tuple(sorted({spec.record_every * round(step / spec.record_every) for step in wanted}))


def log_steps(count: int, spec: Any) -> list[float]:
    """Space `count` steps evenly in the logarithm, from the first record after the start to the last."""
    ratio = spec.steps / spec.record_every
    inner = [spec.record_every * ratio ** (i / max(count - 1, 1)) for i in range(count - 1)]
    return [*(min(step, spec.steps) for step in inner), spec.steps]


def with_earlier(
    groups: Iterable[Group],
    trials: Mapping[str, Trial],
    folder: Path,
    runs: Collection[int],
    columns: Mapping[str, Iterable[str]],
) -> list[Group]:
    """Record for each group which of its trials the folder has with fewer steps.

    Only trials of these runs count, and only those whose records have these columns, by table.
    """
    known = {trial_id: row for trial_id, row in ended_trials(folder).items() if row["run"] in runs}
    if known:
        run = Run(folder)
        chunks = {row["chunk"] for row in known.values()}
        whole = {chunk for chunk in chunks if run.has_columns(chunk, columns)}
        known = {trial_id: row for trial_id, row in known.items() if row["chunk"] in whole}
    if not known:
        return list(groups)
    lengths = sorted({row["steps"] for row in known.values()}, reverse=True)
    return [replace(group, earlier=earlier_of(group, trials, known, lengths)) for group in groups]


def ended_trials(folder: Path) -> dict[str, dict[str, Any]]:
    """Read where and why each finished trial of a folder ended; empty if the folder does not say."""
    if not folder.exists():
        return {}
    names = ("trial_id", "steps", "stopped_step", "stop_reason", "snapshot_steps", "chunk", "run")
    run = Run(folder)
    rows = run.columns(names)
    return {
        row["trial_id"]: row for row in rows if row["stop_reason"] != ALL_STEPS or run.has_state(row["chunk"])
    }


def earlier_of(
    group: Group, trials: Mapping[str, Trial], known: Mapping[str, Mapping[str, Any]], lengths: Sequence[int]
) -> dict[str, Earlier]:
    """Find the longest shorter training of each trial of a group that has the same snapshots."""
    settings, found = group.experiment.settings, {}
    shorter = [steps for steps in lengths if steps < group.spec.steps]
    for trial_id in (trial_id for stream in group.streams for trial_id in stream.trial_ids):
        for steps in shorter:
            other = settings.trial_id(settings.changed(trials[trial_id], {"steps": steps}))
            if other in known and has_snapshots(group, known[other]):
                row = known[other]
                why = row["stop_reason"]
                found[trial_id] = Earlier(other, row["stopped_step"], "" if why == ALL_STEPS else why)
                break
    return found


def has_snapshots(group: Group, row: Mapping[str, Any]) -> bool:
    """Check whether a trial kept all weights that a longer training would have kept up to its end."""
    kept, end = set(row["snapshot_steps"]), row["stopped_step"]
    is_whole = end in kept or group.spec.steps not in group.snapshots or row["stop_reason"] == ALL_STEPS
    return is_whole and all(step in kept for step in group.snapshots if step < end)
