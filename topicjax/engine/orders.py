"""Which way of work is fastest on these devices: timed once per program, remembered, kept by its folder.

On cores the order of work depends on the model: a lane at a time keeps a large one in the cache, lanes
together spare a tiny one the cost of many small operations.  Accelerators train lanes together; there the
number of trials matters: more of them fill its units, until their states leave the cache.  A program's first
run times these, if that pays: each must be compiled for it.
"""

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from topicjax.engine import costs
from topicjax.engine.options import ORDERS, Options
from topicjax.engine.plan import Group, shaped
from topicjax.engine.programs import Programs
from topicjax.store.files import StoreError, read_regular, write_whole
from topicjax.store.manifest import last_run, read_manifest

REMEMBERED = "orders.json"
MOST_REMEMBERED = 1000
PAYS = 8  # the training must take so many times as long as compiling and timing another way
SEARCH_SECONDS = 60.0  # after which no other way is begun
TIMED_SECONDS = 0.3  # shorter calls are too noisy to compare
REPEATS = 3
NO_ROOM = "RESOURCE_EXHAUSTED"  # how jax says that memory does not suffice


class Way(NamedTuple):
    """How a program works: the order of its lanes and, if that was timed too, the trials per device."""

    order: str
    size: int = 0

    def __str__(self) -> str:
        """Write the way as manifests store it."""
        return f"{self.order}:{self.size}" if self.size else self.order


def parse_way(text: Any) -> Way | None:
    """Parse a way as it is stored; None if it is invalid."""
    order, _, size = str(text).partition(":")
    if order not in ORDERS or (size and not size.isdecimal()):
        return None
    return Way(order, int(size or 0))


def program_name(group: Group, devices: Sequence[Any]) -> str:
    """Name a program by all that its speed depends on but the lanes."""
    text = f"{group.experiment.name} {group.spec!r} {len(devices)} {devices[0].device_kind}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def with_orders(
    groups: Sequence[Group], options: Options, folder: Path, devices: Sequence[Any]
) -> list[Group]:
    """Give groups their way of work: as asked for, as the folder's runs had it, or as this machine remembers.

    Without any of these it stays open until `faster` has timed the ways there are; the number of trials that
    was asked for is not timed.
    """
    source = options.layout or folder
    asked = options.order or last_run(read_manifest(source)).get("order", "")
    is_sized = options.lanes and options.layout is None
    is_open = not (costs.has_shared_cache(devices) and is_sized)
    known = {} if asked or not is_open else remembered() | recorded(source)
    found = []
    for group in groups:
        usual = "" if is_open else costs.usual_order(group, devices)
        way = known.get(program_name(group, devices), Way(asked or usual))
        own = (way.size,) if way.size and not is_sized else ()
        found.append(replace(group, order=way.order, sizes=own))
    return found


def recorded(folder: Path) -> dict[str, Way]:
    """Read the way of work of each program from a folder's manifest; its last run counts."""
    return parsed(
        {
            name: text
            for entry in read_manifest(folder).get("runs", [])
            for name, text in entry.get("orders", {}).items()
        }
    )


def parsed(texts: Mapping[Any, Any]) -> dict[str, Way]:
    """Parse ways by program; invalid ones are left out."""
    ways = {str(name): parse_way(text) for name, text in texts.items()}
    return {name: way for name, way in ways.items() if way is not None}


def closed(groups: Sequence[Group], devices: Sequence[Any]) -> list[Group]:
    """Give groups whose way is open the usual one: the workers of a cluster time nothing."""
    return [
        group if group.order else replace(group, order=costs.usual_order(group, devices), sizes=())
        for group in groups
    ]


def remembered() -> dict[str, Way]:
    """Read which way was fastest on this machine, by program; empty if the file is missing or invalid."""
    try:
        return parsed(json.loads(read_regular(costs.cache_folder() / REMEMBERED)))
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def remember(name: str, way: Way) -> None:
    """Store which way was fastest, if the cache is writable."""
    known = {key: str(value) for key, value in remembered().items() if key != name} | {name: str(way)}
    kept = dict([*known.items()][-MOST_REMEMBERED:])
    with contextlib.suppress(OSError, StoreError):
        costs.cache_folder().mkdir(parents=True, exist_ok=True)
        path = costs.cache_folder() / REMEMBERED
        write_whole(path, lambda file: file.write(json.dumps(kept).encode()))


def way_of(programs: Programs) -> Way:
    """Return how programs work."""
    return Way(programs.order, *programs.group.sizes[:1])


def faster(programs: Programs) -> Programs:
    """Return the programs of the fastest way for a group whose way is open."""
    group, started = programs.group, time.monotonic()
    if group.order:
        return programs
    first = best = Timed(programs)
    windows = group.trial_steps / group.trials_per_chunk / group.spec.record_every
    training = windows * first.seconds(first.enough()) / first.windows
    compiling = costs.expected_compile_time(group.experiment.name) or programs.compile_seconds
    tried = False
    for direction in other_ways(programs):
        for other_group in direction:
            spent = time.monotonic() - started
            if training < PAYS * (compiling + spent) or (tried and spent > SEARCH_SECONDS):
                break
            other, tried = timed(Programs(other_group, programs.mesh, programs.on_compile)), True
            if other is None or not is_faster(other, best):
                break
            best = other
        if best is not first:
            break  # what is faster one way is not faster the other way
    if tried:
        remember(program_name(group, [*programs.mesh.devices.flat]), way_of(best.programs))
    return best.programs


def other_ways(programs: Programs) -> list[list[Group]]:
    """List what to try besides these programs, as directions: each goes on while it gets faster."""
    group, devices = programs.group, programs.mesh.size
    if not group.sizes:
        return [[replace(group, order=order) for order in ORDERS if order != programs.order]]
    own, *others = group.sizes
    larger, smaller = (sorted(size for size in others if (size > own) == up) for up in (True, False))
    return [
        [replace(shaped(group, devices, size), order=programs.order, sizes=(size,)) for size in direction]
        for direction in (larger, smaller[::-1])
    ]


def timed(programs: Programs) -> "Timed | None":
    """Prepare programs to be timed; None if the device has no room for them."""
    try:
        found = Timed(programs)
        found.seconds(1)  # the first call may compile
        return found
    except jax.errors.JaxRuntimeError as error:
        if NO_ROOM not in str(error):
            raise
        return None


def is_faster(other: "Timed", best: "Timed") -> bool:
    """Compare two ways in turns, over as many steps, by the time that all their chunks would take."""
    steps = min(best.steps, other.programs.segment_steps)
    times = [(best.seconds(steps), other.seconds(steps)) for _ in range(REPEATS)]
    chunks = [len(each.programs.group.chunks) for each in (best, other)]
    mine, others = np.min(times, axis=0) * chunks
    return bool(others < mine)


class Timed:
    """A chunk that is trained for some steps again and again, only to see how long that takes."""

    def __init__(self, programs: Programs) -> None:
        self.programs, self.steps = programs, 1
        self.arguments = programs.arguments(programs.group.chunks[0])
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
    """Describe the ways of groups for the manifest; those that are open are left out."""
    return {
        program_name(group, devices): str(Way(group.order, *group.sizes[:1]))
        for group in groups
        if group.order
    }
