"""Plan programs: group trials by Spec, cut streams into stream rows, and form chunks of stream rows.

A stream row is one Stream with up to `lanes` of its trials: its data are drawn once for all of them.  A chunk
holds the stream rows that one program call trains together, a multiple of the number of devices.  Trials that
the folder has with fewer steps resume where they ended.  Nothing here compiles or imports jax.
"""

import math
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


@dataclass(frozen=True)
class StreamRow:
    """Trials of one Stream, which share their data."""

    stream: Any
    hypers: tuple[Any, ...]
    trial_ids: tuple[str, ...]

    def without(self, trial_ids: Collection[str]) -> "StreamRow":
        """Drop these trials."""
        left = [place for place, trial_id in enumerate(self.trial_ids) if trial_id not in trial_ids]
        return StreamRow(
            self.stream,
            tuple(self.hypers[place] for place in left),
            tuple(self.trial_ids[place] for place in left),
        )

    def cut(self, lanes: int) -> "list[StreamRow]":
        """Cut into pieces of at most `lanes` trials."""
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
    earlier: Mapping[str, Earlier] = field(default_factory=dict, compare=False)  # by trial, if there is one

    @cached_property
    def chunks(self) -> list[tuple[StreamRow, ...]]:
        """The stream rows of each chunk; the last may be shorter.  Trials of a chunk start at one step."""
        size, chunks = self.rows_per_chunk, []
        for start in sorted({self.start(trial_id) for trial_id in self.trial_ids}):
            others = {trial_id for trial_id in self.trial_ids if self.start(trial_id) != start}
            streams = (stream.without(others) for stream in self.streams) if others else self.streams
            rows = [row for stream in streams for row in stream.cut(self.lanes)]
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
        return sum(self.spec.steps - self.start(trial_id) for trial_id in self.trial_ids)

    @property
    def num_trials(self) -> int:
        """How many trials the group has."""
        return sum(len(stream.trial_ids) for stream in self.streams)

    @property
    def trials_per_chunk(self) -> int:
        """How many trials one program call trains, padding included."""
        return self.lanes * self.rows_per_chunk

    def without(self, trial_ids: Collection[str]) -> "Group":
        """Drop these trials from the group; its program and shapes stay the same."""
        left = (stream.without(trial_ids) for stream in self.streams)
        return replace(self, streams=tuple(stream for stream in left if stream.trial_ids))


def make_groups(
    experiment: Experiment,
    trials: Mapping[str, Trial],
    num_devices: int,
    lanes_per_device: int,
    snapshots: str = "none",
) -> list[Group]:
    """Group trials (given by id) by Spec, in the order of the sweep.

    Shapes follow from all trials of a sweep: for a resumed run remove the finished ones afterwards, so that
    it has the same programs as an uninterrupted one.
    """
    by_spec: dict[Any, dict[Any, dict[str, Any]]] = {}
    for trial_id, trial in trials.items():
        by_spec.setdefault(trial.spec, {}).setdefault(trial.stream, {})[trial_id] = trial.hypers
    labels = spec_labels(experiment, list(by_spec))
    groups = []
    for spec, members in by_spec.items():
        streams = tuple(StreamRow(stream, tuple(own.values()), tuple(own)) for stream, own in members.items())
        sizes = [len(stream.trial_ids) for stream in streams]
        lanes, rows = chunk_shape(sizes, num_devices, lanes_per_device, experiment.draw_cost)
        fitted, steps = experiment.fit(spec, list(members)), parse_snapshots(snapshots, spec)
        groups.append(Group(experiment, fitted, labels[spec], steps, streams, lanes, rows * num_devices))
    return groups


def fitted_specs(experiment: Experiment, trials: Iterable[Trial]) -> list[Any]:
    """Make the Spec of each program, with its execution settings."""
    streams: dict[Any, dict[Any, None]] = {}
    for trial in trials:
        streams.setdefault(trial.spec, {})[trial.stream] = None
    return [experiment.fit(spec, list(own)) for spec, own in streams.items()]


def chunk_shape(
    sizes: Sequence[int], num_devices: int, lanes_per_device: int, draw_cost: float
) -> tuple[int, int]:
    """Choose lanes per stream row and stream rows per device, for streams with `sizes` trials each.

    The shape wastes the fewest lanes, with the data of a stream row counted as `draw_cost` trials; among
    equally good ones it is the largest.
    """

    def cost(lanes: int) -> float:
        rows = sum(math.ceil(size / lanes) for size in sizes)
        return math.ceil(rows / num_devices) * (lanes + draw_cost)

    lanes = min(range(min(max(sizes), lanes_per_device), 0, -1), key=cost)
    needed = math.ceil(sum(math.ceil(size / lanes) for size in sizes) / num_devices)
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
    columns: Mapping[str, Iterable[str]] | None = None,
) -> list[Group]:
    """Record for each group which of its trials the folder has with fewer steps.

    Given the columns of the tables to write, trials whose records lack some of them do not count.
    """
    known = ended_trials(folder)
    if columns and known:
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
    names = ("trial_id", "steps", "stopped_step", "stop_reason", "snapshot_steps", "chunk")
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
