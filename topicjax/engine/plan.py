"""From trials to programs: groups of one Spec, streams cut into stream rows, chunks of stream rows.

A stream row is one Stream with up to `lanes` of its trials: its documents are drawn once for all of them.  A
chunk is the stream rows that one program call trains together, a multiple of the number of devices.  Nothing
here compiles or imports jax.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from topicjax.errors import UserError, shown
from topicjax.trial import Hypers, Spec, Stream, Trial

MAX_SNAPSHOTS = 1000  # of a trial


@dataclass(frozen=True)
class StreamRow:
    """Trials of one Stream, which share their documents."""

    stream: Stream
    hypers: tuple[Hypers, ...]
    trial_ids: tuple[str, ...]

    def without(self, trial_ids: Collection[str]) -> "StreamRow":
        """Return the other trials."""
        left = [place for place, trial_id in enumerate(self.trial_ids) if trial_id not in trial_ids]
        return StreamRow(
            self.stream,
            tuple(self.hypers[place] for place in left),
            tuple(self.trial_ids[place] for place in left),
        )

    def cut(self, lanes: int) -> "list[StreamRow]":
        """Return pieces of at most so many trials."""
        places = [slice(start, start + lanes) for start in range(0, len(self.trial_ids), lanes)]
        return [StreamRow(self.stream, self.hypers[place], self.trial_ids[place]) for place in places]


@dataclass(frozen=True)
class Group:
    """All trials of one program, in chunks of `rows_per_chunk` stream rows of at most `lanes` trials."""

    spec: Spec
    snapshots: tuple[int, ...]  # steps at which weights are kept
    streams: tuple[StreamRow, ...]  # each with all of its trials
    lanes: int
    rows_per_chunk: int

    @cached_property
    def chunks(self) -> list[tuple[StreamRow, ...]]:
        """The stream rows of each chunk; the last chunk may be shorter."""
        rows = [row for stream in self.streams for row in stream.cut(self.lanes)]
        size = self.rows_per_chunk
        return [tuple(rows[start : start + size]) for start in range(0, len(rows), size)]

    @property
    def num_trials(self) -> int:
        """How many trials the group has."""
        return sum(len(stream.trial_ids) for stream in self.streams)

    @property
    def trials_per_chunk(self) -> int:
        """How many trials one program call trains, padding included."""
        return self.lanes * self.rows_per_chunk

    def without(self, trial_ids: Collection[str]) -> "Group":
        """Return the group without these trials; its program and its shapes stay the same."""
        left = (stream.without(trial_ids) for stream in self.streams)
        return replace(self, streams=tuple(stream for stream in left if stream.trial_ids))


def make_groups(
    trials: Mapping[str, Trial], num_devices: int, lanes_per_device: int, snapshots: str = "none"
) -> list[Group]:
    """Return the groups of trials (given by id), in the order of the sweep.

    Shapes follow from all trials of a sweep: for a resumed run take the finished ones out afterwards, so that
    it has the programs of an unbroken one.
    """
    by_spec: dict[Spec, dict[Stream, dict[str, Hypers]]] = {}
    for trial_id, trial in trials.items():
        by_spec.setdefault(trial.spec, {}).setdefault(trial.stream, {})[trial_id] = trial.hypers
    groups = []
    for spec, members in by_spec.items():
        streams = tuple(StreamRow(stream, tuple(own.values()), tuple(own)) for stream, own in members.items())
        lanes = lanes_per_row(max(len(stream.trial_ids) for stream in streams), lanes_per_device)
        num_rows = sum(math.ceil(len(stream.trial_ids) / lanes) for stream in streams)
        per_device = max(1, min(lanes_per_device // lanes, math.ceil(num_rows / num_devices)))
        fitted = fit_queries(spec, members)
        steps = parse_snapshots(snapshots, spec)
        groups.append(Group(fitted, steps, streams, lanes, per_device * num_devices))
    return groups


def fit_queries(spec: Spec, streams: Collection[Stream]) -> Spec:
    """Return the Spec with a kernel that has queries enough for all these streams."""
    shares = [stream.p_mask * (stream.p_keep + stream.p_random) for stream in streams]
    return replace(spec, word_query_probability=max(shares))


def lanes_per_row(largest: int, lanes_per_device: int) -> int:
    """Return how many trials a stream row has: the largest Stream cut into equal parts that fit."""
    return math.ceil(largest / math.ceil(largest / lanes_per_device))


def parse_snapshots(text: str, spec: Spec) -> tuple[int, ...]:
    """Return the steps at which weights are kept: 'last', 'none', 'log:N' or 'S1,S2,...'.

    Steps are rounded to the records, which are the only moments weights can be taken.
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


def log_steps(count: int, spec: Spec) -> list[float]:
    """Return so many steps of equal ratio, from the first record after the start to the last."""
    ratio = spec.steps / spec.record_every
    inner = [spec.record_every * ratio ** (i / max(count - 1, 1)) for i in range(count - 1)]
    return [*(min(step, spec.steps) for step in inner), spec.steps]
