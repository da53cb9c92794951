"""Refined maps: points on a lattice in the logarithm, denser near boundaries, each with the region around it.

Between neighbouring values of the coarse grid lie midpoints (of the logarithm), midpoints of these, and so
on: places count the finest of them.  The raster has an entry per place: which point is nearest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

Array = np.ndarray
TOLERANCE = 0.02  # of the finest spacing: settings are written with six digits
DEEPEST = 7  # halvings that are drawn: beyond, a place is smaller than a dot


@dataclass(frozen=True)
class Refinement:
    """What a run says of its refined axes: their names, how often they were halved, values that it lists."""

    axes: tuple[str, ...]
    levels: int
    listed: Mapping[str, list[float]]

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> "Refinement | None":
        """Return the refinement of all runs of a folder together; None if none was refined."""
        runs = [run for run in manifest.get("runs", []) if run.get("refine")]
        if not runs:
            return None
        axes = tuple(dict.fromkeys(str(name) for run in runs for name in run["refine"]["axes"]))
        listed = {
            name: [float(value) for run in runs for value in run.get("axes", {}).get(name, [])]
            for name in axes
        }
        return cls(axes, max(int(run["refine"]["levels"]) for run in runs), listed)

    def fits(self, cells: pd.DataFrame, x: str, y: str) -> bool:
        """Return whether both axes of a map are refined and have positive numbers, several along one."""
        columns = [cells[name] for name in (x, y)]
        are_numbers = all(is_numeric_dtype(c) and not is_bool_dtype(c) and (c > 0).all() for c in columns)
        return {x, y} <= {*self.axes} and are_numbers and any(c.nunique() > 1 for c in columns)


@dataclass(frozen=True)
class LogAxis:
    """An axis of a panel: the values of the coarse grid, and how often each interval is halved."""

    coarse: tuple[float, ...]
    levels: int

    @classmethod
    def of(cls, values: Iterable[float], listed: Iterable[float], levels: int) -> "LogAxis":
        """Return the axis of a panel's values; the coarse ones are among those that the run lists.

        Where the list does not tell them apart, they are taken from even spacing.
        """
        found = np.unique(np.asarray(list(values), float))
        coarse = found[np.isin(found, list(listed))]
        if not len(coarse) or len(coarse) == len(found) or {found[0], found[-1]} - {*coarse}:
            coarse = evenly_spaced(found, levels)
        needed = (depth for depth in range(min(levels, DEEPEST)) if is_on_lattice(found, coarse, depth))
        return cls(tuple(coarse), next(needed, min(levels, DEEPEST)))

    @property
    def length(self) -> int:
        """Number of places."""
        return (len(self.coarse) - 1) * 2**self.levels + 1

    @property
    def ticks(self) -> list[int]:
        """The places of the coarse values."""
        return [place * 2**self.levels for place in range(len(self.coarse))]

    def places(self, values: Any) -> Array:
        """Return the place of each value."""
        return np.rint(position(values, self.coarse) * 2**self.levels).astype(int)


def finest(values: Any) -> float:
    """Return the least factor between two of the values; 1 if there is only one."""
    gaps = np.diff(np.log(np.unique(np.asarray(values, float))))
    return float(np.exp(gaps.min())) if len(gaps) else 1.0


def position(values: Any, coarse: Sequence[float] | Array) -> Array:
    """Return where values lie between coarse ones: 1.5 is half way, in the logarithm, from the second on."""
    return np.interp(np.log(np.asarray(values, float)), np.log(coarse), np.arange(len(coarse)))


def is_on_lattice(values: Array, coarse: Array, depth: int) -> bool:
    """Return whether all values are at places after so many halvings."""
    scaled = position(values, coarse) * 2**depth
    return bool((np.abs(scaled - np.rint(scaled)) < TOLERANCE).all())


def evenly_spaced(values: Array, levels: int) -> Array:
    """Return every 2^levels-th place of an even lattice in the logarithm, or all values if they are on none.

    The lattice is as fine as the nearest two values; where 2^levels does not divide its length a smaller
    power of two is taken.
    """
    if len(values) < 3:
        return values
    logs = np.log(values)
    steps = (logs - logs[0]) / np.diff(logs).min()
    length = round(steps[-1])
    if (np.abs(steps - np.rint(steps)) > TOLERANCE * np.maximum(1, steps)).any():
        return values
    depth = next(depth for depth in range(levels, -1, -1) if length % 2**depth == 0)
    return np.exp(np.linspace(logs[0], logs[-1], length // 2**depth + 1))


def nearest_points(places: Array, shape: tuple[int, int], levels: int) -> Array:
    """Return for each place of a raster the nearest point; in a tie the coarser one, then the first."""
    rank = levels - coarseness(places, levels)
    owner = np.empty(shape, int)
    across = (np.arange(shape[1])[:, None] - places[:, 1]) ** 2
    for x in range(shape[0]):
        distance = (x - places[:, 0]) ** 2 + across
        owner[x] = np.argmin(distance * (levels + 1) + rank, axis=1)
    return owner


def coarseness(places: Array, levels: int) -> Array:
    """Return how often the places of each point can be halved, at most `levels` times."""
    divides = [(places % 2**depth == 0).all(axis=1) for depth in range(1, levels + 1)]
    return np.sum(divides, axis=0, dtype=int) if divides else np.zeros(len(places), int)


def rectangles(owner: Array) -> tuple[Array, Array]:
    """Return the regions of a raster as rectangles (left, bottom, right, top), and whose each is."""
    found, whose = [], []
    for x, column in enumerate(owner):
        starts = np.flatnonzero(np.diff(column, prepend=-1))
        ends = np.append(starts[1:], len(column))
        found += [(x - 0.5, start - 0.5, x + 0.5, end - 0.5) for start, end in zip(starts, ends, strict=True)]
        whose += column[starts].tolist()
    return np.array(found), np.array(whose)


def inner_squares(owner: Array, places: Array) -> tuple[Array, Array]:
    """Return centre and side of the largest square around each point that lies inside its region, in places.

    At the border of the raster the part inside counts: its centre, and its shorter side.
    """
    centres, sides = np.empty((len(places), 2)), np.empty(len(places))
    last = np.array(owner.shape) - 1
    for number, place in enumerate(places):
        reach = 0
        while reach < last.max():
            low, high = np.maximum(0, place - reach - 1), np.minimum(last, place + reach + 1)
            if (owner[low[0] : high[0] + 1, low[1] : high[1] + 1] != number).any():
                break
            reach += 1
        low, high = np.maximum(0, place - reach), np.minimum(last, place + reach)
        centres[number], sides[number] = (low + high) / 2, (high - low + 1).min()
    return centres, sides
