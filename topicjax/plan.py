"""From trials to programs: groups of one Spec, rows of one Stream, chunks of rows, and what they cost.

A row is one Stream with up to `lanes` Hypers: its documents are drawn once for all of them.  A chunk is
the rows one program call trains together, a multiple of the number of devices.  Nothing here compiles.
"""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from topicjax import bag, config
from topicjax.config import Hypers, Spec, Stream, Trial
from topicjax.measure import ROTATION_LAG, Record

CPU_LANES = 16  # trials a core trains together: their weights and rows stay near the cache
ACCELERATOR_LANES = 512
SEGMENT_STEPS = 200  # at most so many steps between two returns to Python ...
SEGMENT_SECONDS = 3.0  # ... and about so long, so that Ctrl-C stops soon
CPU_FLOP_RATE = 2.5e10  # useful FLOP/s of one core in this kernel, if nothing was measured yet
ACCELERATOR_FLOP_RATE = 5.0e12  # the same of a GPU or TPU: assumed, never measured
FLOAT = 4


@dataclass(frozen=True)
class Row:
    """Trials of one Stream that share a device's documents."""

    stream: Stream
    hypers: tuple[Hypers, ...]
    trial_ids: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """All trials of one program, as rows of at most `lanes`, in chunks of `rows_per_chunk`."""

    spec: Spec
    rows: tuple[Row, ...]
    lanes: int
    rows_per_chunk: int

    @property
    def chunks(self) -> list[tuple[Row, ...]]:
        """The rows of each chunk; the last may be shorter."""
        size = self.rows_per_chunk
        return [self.rows[i : i + size] for i in range(0, len(self.rows), size)]

    @property
    def num_trials(self) -> int:
        """How many trials the group still has to train."""
        return sum(len(row.trial_ids) for row in self.rows)


def make_plan(
    trials: Sequence[Trial],
    num_devices: int,
    lanes_per_device: int,
    committed: set[str] | frozenset[str] = frozenset(),
) -> list[Group]:
    """Return the groups of the trials that are not committed, in the order of the sweep.

    Shapes follow from all trials, so a resumed run has the programs and rows of an unbroken one.
    """
    by_spec: dict[Spec, dict[Stream, list[tuple[str, Hypers]]]] = {}
    for trial in trials:
        streams = by_spec.setdefault(trial.spec, {})
        streams.setdefault(trial.stream, []).append((config.trial_id(trial), trial.hypers))
    groups = []
    for spec, streams in by_spec.items():
        lanes = row_lanes(max(map(len, streams.values())), lanes_per_device)
        rows = [row for item in streams.items() for row in make_rows(*item, lanes, frozenset())]
        left = rows
        if committed:
            left = [row for item in streams.items() for row in make_rows(*item, lanes, committed)]
        shares = [s.p_mask * (s.p_keep + s.p_random) for s in streams]
        per_device = max(1, min(lanes_per_device // lanes, math.ceil(len(rows) / num_devices)))
        fitted = replace(spec, row_probability=max(shares))
        if left:
            groups.append(Group(fitted, tuple(left), lanes, per_device * num_devices))
    return groups


def row_lanes(largest: int, lanes_per_device: int) -> int:
    """Return how many trials a row has: the largest Stream cut into equal parts that fit."""
    return math.ceil(largest / math.ceil(largest / lanes_per_device))


def make_rows(
    stream: Stream, members: list[tuple[str, Hypers]], lanes: int, committed: Iterable[str]
) -> list[Row]:
    """Return the rows of one Stream, without the committed trials."""
    left = [(trial_id, hypers) for trial_id, hypers in members if trial_id not in committed]
    rows = []
    for start in range(0, len(left), lanes):
        trial_ids, hypers = zip(*left[start : start + lanes], strict=True)
        rows.append(Row(stream, hypers, trial_ids))
    return rows


def lanes_that_fit(specs: Iterable[Spec], platform: str, memory: int) -> int:
    """Return how many trials of the largest Spec one device trains together."""
    most = CPU_LANES if platform == "cpu" else ACCELERATOR_LANES
    return max(1, min(most, *(int(0.5 * memory / lane_bytes(spec)) for spec in specs)))


def num_rows(spec: Spec) -> int:
    """Return how many rows of a batch the kernel has room for."""
    if spec.attention == "uniform":
        return spec.batch_size
    if spec.infinite_documents:
        return spec.batch_size * spec.vocabulary
    return spec.batch_size + bag.row_capacity(spec, spec.batch_size)


def mean_rows(spec: Spec) -> float:
    """Return how many rows of a batch hold words to predict, on average."""
    if spec.attention == "uniform" or spec.infinite_documents:
        return num_rows(spec)
    mean_length = (spec.length_min + spec.length_max) / 2
    return spec.batch_size * (1 + spec.row_probability * mean_length)


def step_flops(spec: Spec) -> float:
    """Return the useful floating-point operations of one trial-step: matrix products, no padding."""
    V, D, A = spec.vocabulary, spec.width, spec.head_width
    products = 2 if spec.attention == "uniform" else 3  # output; gradients of value and attention
    flops = 2.0 * mean_rows(spec) * V * V * products
    if spec.attention == "trained":
        flops += 3 * 2.0 * A * V * V
    if spec.embedding != "one_hot":
        flops += 3 * 2.0 * (2 * A * D * V + D * D * V + D * V * V)
    return flops


def weight_bytes(spec: Spec) -> int:
    """Return the bytes of one trial's parameters, unpadded."""
    V, D, A = spec.vocabulary, spec.width, spec.head_width
    entries = 2 * A * D + D * D + V + (0 if spec.embedding == "one_hot" else D * V)
    return FLOAT * (entries + (2 * A + D if spec.attention_biases == "trained" else 0))


def lane_bytes(spec: Spec) -> int:
    """Return an upper estimate of the device memory one trial takes while it trains."""
    V = bag.padded(spec.vocabulary)
    copies = {"sgd": 3, "momentum": 4, "adam": 6, "adamw": 6}[spec.optimizer]
    slots = math.ceil(ROTATION_LAG / spec.record_every)
    held_out = spec.eval_documents * 6 if not spec.infinite_documents else spec.eval_documents * V
    work = 4 * V * (num_rows(spec) + held_out) + 8 * V * V
    return copies * weight_bytes(spec) + FLOAT * (slots * V * V + work)


def record_bytes(spec: Spec) -> int:
    """Return about how many bytes one trial's records take on disk."""
    return int((spec.steps // spec.record_every + 1) * len(Record._fields) * FLOAT)


def parse_snapshots(text: str, spec: Spec) -> tuple[int, ...]:
    """Return the steps at which weights are kept: 'last', 'none', 'log:N' or 'S1,S2,...'.

    Steps are rounded to the records, which are the only moments weights can be taken.
    """
    if text == "none":
        return ()
    try:
        if text == "last":
            wanted: list[float] = [spec.steps]
        elif text.startswith("log:"):
            count, first = int(text[4:]), math.log(spec.record_every)
            span = math.log(spec.steps) - first
            wanted = [math.exp(first + span * i / max(count - 1, 1)) for i in range(count)]
            wanted.append(spec.steps)
        else:
            wanted = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"snapshots is {text!r}; allowed: last, none, log:N, or steps separated by commas"
        ) from None
    rounded = {spec.record_every * round(step / spec.record_every) for step in wanted}
    if not all(0 <= step <= spec.steps for step in rounded):
        raise ValueError(f"snapshots is {text!r}; allowed: steps from 0 to steps = {spec.steps}")
    return tuple(sorted(rounded))


def segment_records(group: Group, snapshots: Sequence[int], rate: float) -> int:
    """Return how many records a segment takes: it divides the training and meets every snapshot."""
    spec = group.spec
    lanes = group.lanes * group.rows_per_chunk
    affordable = SEGMENT_SECONDS * rate / (lanes * step_flops(spec))
    most = max(1, int(min(SEGMENT_STEPS, affordable)) // spec.record_every)
    whole = math.gcd(spec.steps, *snapshots) // spec.record_every
    return max(n for n in range(1, whole + 1) if whole % n == 0 and n <= most)


def flop_rate(platform: str) -> float:
    """Return the FLOP/s that is assumed of one device until a run has measured it."""
    return CPU_FLOP_RATE if platform == "cpu" else ACCELERATOR_FLOP_RATE


def host_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
