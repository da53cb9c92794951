"""Which order of work is faster on these cores: timed once per program, remembered, kept by its folder.

Accelerators train lanes together.  On cores it depends on the model: a lane at a time keeps a large one in
the cache, lanes together spare a tiny one the cost of many small operations.  A program's first run times
both, if that pays: the other order must be compiled for it.
"""

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from topicjax.engine import costs
from topicjax.engine.options import ORDERS
from topicjax.engine.plan import Group, StreamRow
from topicjax.engine.programs import Programs, default_order
from topicjax.store.files import StoreError, read_regular, write_whole
from topicjax.store.manifest import last_run, read_manifest

REMEMBERED = "orders.json"
MOST_REMEMBERED = 1000
PAYS = 8  # the training must take so many times as long as compiling and timing the other order
TIMED_SECONDS = 0.3  # shorter calls are too noisy to compare
REPEATS = 3


def program_name(group: Group, devices: Sequence[Any]) -> str:
    """Name a program by all that its speed depends on but the lanes."""
    text = f"{group.experiment.name} {group.spec!r} {len(devices)} {devices[0].device_kind}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def with_orders(groups: Sequence[Group], asked: str, folder: Path, devices: Sequence[Any]) -> list[Group]:
    """Give groups their order: as asked for, as the folder's runs had it, or as this machine remembers it.

    Without any of these it stays open on cores, until `faster` has timed both.
    """
    asked = asked or last_run(read_manifest(folder)).get("order", "")
    usual = "" if devices[0].platform == "cpu" else default_order(devices)
    known = remembered() | recorded(folder) if not usual else {}
    return [replace(group, order=asked or known.get(program_name(group, devices), usual)) for group in groups]


def recorded(folder: Path) -> dict[str, str]:
    """Read the order of each program from a folder's manifest; its last run counts."""
    return {
        name: order
        for entry in read_manifest(folder).get("runs", [])
        for name, order in entry.get("orders", {}).items()
        if order in ORDERS
    }


def closed(groups: Sequence[Group], devices: Sequence[Any]) -> list[Group]:
    """Give groups whose order is open the usual one: the workers of a cluster time nothing."""
    return [replace(group, order=group.order or default_order(devices)) for group in groups]


def remembered() -> dict[str, str]:
    """Read which order was faster on this machine, by program; empty if the file is missing or invalid."""
    try:
        found = json.loads(read_regular(costs.cache_folder() / REMEMBERED))
        return {str(name): order for name, order in found.items() if order in ORDERS}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def remember(name: str, order: str) -> None:
    """Store which order was faster, if the cache is writable."""
    known = {key: value for key, value in remembered().items() if key != name} | {name: order}
    kept = dict([*known.items()][-MOST_REMEMBERED:])
    with contextlib.suppress(OSError, StoreError):
        costs.cache_folder().mkdir(parents=True, exist_ok=True)
        path = costs.cache_folder() / REMEMBERED
        write_whole(path, lambda file: file.write(json.dumps(kept).encode()))


def faster(programs: Programs, rows: Sequence[StreamRow]) -> Programs:
    """Return the programs of the faster order for a group whose order is open; `rows` are a chunk to try."""
    group = programs.group
    if group.order:
        return programs
    started = time.monotonic()
    own = Timed(programs, rows)
    seconds = own.seconds(own.enough())
    windows = group.trial_steps / group.trials_per_chunk / group.spec.record_every
    compiling = costs.expected_compile_time(group.experiment.name) or programs.compile_seconds
    spent = compiling + time.monotonic() - started
    if windows * seconds / own.windows < PAYS * spent:
        return programs
    other_order = next(order for order in ORDERS if order != programs.order)
    other = Timed(Programs(replace(group, order=other_order), programs.mesh, programs.on_compile), rows)
    other.seconds(own.steps)
    times = [(own.seconds(own.steps), other.seconds(own.steps)) for _ in range(REPEATS)]
    mine, others = np.min(times, axis=0)
    chosen = other.programs if others < mine else programs
    remember(program_name(group, [*programs.mesh.devices.flat]), chosen.order)
    return chosen


class Timed:
    """A chunk that is trained for some steps again and again, only to see how long that takes."""

    def __init__(self, programs: Programs, rows: Sequence[StreamRow]) -> None:
        self.programs, self.steps = programs, 1
        self.arguments = programs.arguments(rows)
        self.state = programs.init(*self.arguments)

    @property
    def windows(self) -> float:
        """How many windows the steps are."""
        return self.steps / self.programs.spec.record_every

    def seconds(self, steps: int) -> float:
        """Train for so many steps; return the seconds."""
        self.steps = steps
        begun = time.monotonic()
        number = np.full(self.programs.shape, steps)
        self.state, records = self.programs.advance(*self.arguments, self.state, number)
        jax.block_until_ready((self.state, records))
        return time.monotonic() - begun

    def enough(self) -> int:
        """Find out how many steps take long enough to be compared."""
        self.seconds(1)  # the first call may compile
        most, steps = self.programs.segment_steps, 1
        while steps < most and (took := self.seconds(steps)) < TIMED_SECONDS:
            steps = min(most, steps * max(2, math.ceil(TIMED_SECONDS / took)))
        return steps


def as_entry(groups: Sequence[Group], devices: Sequence[Any]) -> Mapping[str, str]:
    """Describe the orders of groups for the manifest; those that are open are left out."""
    return {program_name(group, devices): group.order for group in groups if group.order}
