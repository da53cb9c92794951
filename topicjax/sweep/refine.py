"""Refine boundaries: add trials to a sweep's grid where neighbouring cells disagree.

Trials of a sweep that differ only in the refined settings and the seed form a panel: points of a lattice
whose spacing is halved `levels` times, on a log scale where all values are positive.  A square of points is
split in four while the known points in it disagree, so points gather at boundaries.  Trials are trained in
rounds until every square agrees or has the finest spacing.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from topicjax.errors import UserError, shown
from topicjax.settings import SEEDS, Real
from topicjax.trial import Trial, TrialSettings

MAX_LEVELS = 8
Point = tuple[int, ...]  # position on the finest lattice, along each refined setting
Box = tuple[tuple[int, int], ...]  # (low, high) along each refined setting


class Label(NamedTuple):
    """Class of a cell, and a score that may vary within a class (NaN: none)."""

    kind: str
    score: float


@dataclass(frozen=True)
class Refinement:
    """Which settings are refined, how often the spacing is halved, and when two cells disagree."""

    axes: tuple[str, ...]
    levels: int = 2
    score_cut: float = 0.25  # cells whose scores differ by more than this disagree, even within a class
    budget: int | None = None  # total number of trials; None: unlimited

    def check(self, settings: TrialSettings) -> None:
        """Raise a UserError unless these settings can be refined this often."""
        for name in self.axes:
            settings.convert(name, settings.defaults.get(name))  # raises if the setting is unknown
            if not isinstance(settings.settings[name].kind, Real) or name in SEEDS:
                raise UserError(f"--refine has {shown(name)}; allowed: settings that take any number")
        if not 1 <= len(set(self.axes)) == len(self.axes) <= 2:
            raise UserError(
                f"--refine has {', '.join(self.axes)}; allowed: one setting, or two different ones"
            )
        if not 1 <= self.levels <= MAX_LEVELS:
            raise UserError(f"--levels is {self.levels}; allowed: 1 to {MAX_LEVELS}")
        if self.budget is not None and self.budget < 1:
            raise UserError(f"--budget is {self.budget}; allowed: 1 or more trials")

    def disagree(self, labels: Iterable[Label]) -> bool:
        """Check whether cells differ in class, or in score by more than the cut."""
        labels = list(labels)
        scores = [label.score for label in labels if label.score == label.score]
        return len({label.kind for label in labels}) > 1 or (
            len(scores) > 1 and max(scores) - min(scores) > self.score_cut
        )


@dataclass(frozen=True)
class Panel:
    """Trials that differ only in the refined settings and the seeds."""

    base: Mapping[str, Any]  # all other settings
    replicates: tuple[Mapping[str, Any], ...]  # the seeds
    grids: tuple[tuple[float, ...], ...]  # the sweep's values along each refined setting, ascending
    points: frozenset[Point]  # lattice points of the sweep's own trials
    refinement: Refinement

    @property
    def side(self) -> int:
        """Number of finest lattice steps between two neighbours of the sweep's grid."""
        return 2**self.refinement.levels

    def value(self, axis: int, place: int) -> float:
        """Compute the value at a lattice position: on the grid, or between grid values, to 6 digits."""
        grid, (cell, inside) = self.grids[axis], divmod(place, self.side)
        if not inside:
            return grid[cell]
        low, high, share = grid[cell], grid[cell + 1], inside / self.side
        between = low * (high / low) ** share if grid[0] > 0 else low + share * (high - low)
        return float(f"{between:.6g}")

    @cached_property
    def places(self) -> list[dict[float, int]]:
        """Lattice position of each value, along each refined setting."""
        lengths = [self.side * (len(grid) - 1) + 1 for grid in self.grids]
        return [
            {self.value(axis, place): place for place in range(length)} for axis, length in enumerate(lengths)
        ]

    def dense_trials(self) -> int:
        """Count the trials of the whole lattice at its finest spacing."""
        return math.prod(map(len, self.places)) * len(self.replicates)

    def point(self, settings: Mapping[str, Any]) -> Point | None:
        """Find the lattice point of a trial with these settings; None if it is off the lattice."""
        pairs = zip(self.refinement.axes, self.places, strict=True)
        found = [places.get(settings[name]) for name, places in pairs]
        return None if None in found else tuple(place for place in found if place is not None)

    def trials(self, point: Point) -> Iterator[dict[str, Any]]:
        """Yield the settings of the trials at a point, one per seed."""
        at = {name: self.value(axis, point[axis]) for axis, name in enumerate(self.refinement.axes)}
        for replicate in self.replicates:
            yield {**self.base, **at, **replicate}

    def wanted(self, labels: Mapping[Point, Label]) -> list[Point]:
        """List the points to train next, coarse squares first; empty when the panel is done.

        A square whose known points disagree is split: its centre is trained, and the midpoints of edges whose
        ends disagree.  The midpoint of an edge that agrees is assumed to be like its ends.
        """
        found: dict[Point, int] = {}
        inferred = dict(labels)
        lows = itertools.product(
            *(range(0, max(1, self.side * (len(grid) - 1)), self.side) for grid in self.grids)
        )
        boxes = [box for low in lows if self.points.issuperset(corners(box := self._box(low, self.side)))]
        side = self.side
        while boxes and side > 1:
            children = []
            for box in boxes:
                if not self.refinement.disagree(inside(box, inferred)):
                    continue
                missing = []
                for point, edge in middles(box):
                    if point in inferred:
                        continue
                    if self.refinement.disagree(inside(edge, inferred)):
                        missing.append(point)
                    else:
                        inferred[point] = inferred[corners(edge)[0]]
                found |= dict.fromkeys(missing, side)
                children += [] if missing else [self._box(low, side // 2) for low in corners(halved(box))]
            boxes, side = children, side // 2
        return sorted(found, key=lambda point: (-found[point], point))

    def _box(self, low: Point, side: int) -> Box:
        """Make the square that starts at a point; an axis with a single value has no extent."""
        pairs = zip(low, self.grids, strict=True)
        return tuple((start, start + side if len(grid) > 1 else start) for start, grid in pairs)


def corners(box: Box) -> list[Point]:
    """Return the corners of a box."""
    return list(itertools.product(*(sorted({low, high}) for low, high in box)))


def halved(box: Box) -> Box:
    """Halve a box along every setting, keeping its low corner."""
    return tuple((low, (low + high) // 2) for low, high in box)


def middles(box: Box) -> Iterator[tuple[Point, Box]]:
    """Yield the midpoints of a box and of its edges, each with the box or edge itself."""
    choices = [((low, low), (low, high), (high, high)) if high > low else ((low, low),) for low, high in box]
    for edge in itertools.product(*choices):
        if any(high > low for low, high in edge):
            yield tuple((low + high) // 2 for low, high in edge), edge


def inside(box: Box, labels: Mapping[Point, Label]) -> Iterator[Label]:
    """Yield the known labels in a box and on its edges."""
    points = itertools.product(*(range(low, high + 1) for low, high in box))
    return (labels[point] for point in points if point in labels)


def make_panels(settings: TrialSettings, trials: Sequence[Trial], refinement: Refinement) -> list[Panel]:
    """Group a sweep's trials into panels, or raise a UserError if there is nothing to refine."""
    refinement.check(settings)
    by_panel: dict[tuple, list[dict[str, Any]]] = {}
    apart = {*refinement.axes, *SEEDS}
    for trial in trials:
        own = settings.settings_of(trial)
        by_panel.setdefault(tuple(own[name] for name in own if name not in apart), []).append(own)
    panels = [make_panel(members, refinement) for members in by_panel.values()]
    for name, grids in zip(
        refinement.axes, zip(*(panel.grids for panel in panels), strict=True), strict=True
    ):
        if max(map(len, grids)) < 2:
            raise UserError(
                f"--refine has {name}, which has one value; allowed: settings that the sweep varies"
            )
    return panels


def make_panel(members: Sequence[Mapping[str, Any]], refinement: Refinement) -> Panel:
    """Make the panel of trials that differ only in the refined settings and the seeds."""
    grids = tuple(tuple(sorted({own[name] for own in members})) for name in refinement.axes)
    base = {name: value for name, value in members[0].items() if name not in {*refinement.axes, *SEEDS}}
    seeds = tuple(dict.fromkeys(tuple((name, own[name]) for name in SEEDS if name in own) for own in members))
    replicates = tuple(map(dict, seeds))
    bare = Panel(base, replicates, grids, frozenset(), refinement)
    points = frozenset(point for own in members if (point := bare.point(own)) is not None)
    return Panel(base, replicates, grids, points, refinement)


def next_trials(
    panels: Sequence[Panel], cells: Iterable[tuple[Mapping[str, Any], Label]], known: int
) -> list[dict[str, Any]]:
    """Choose the settings of the trials to train next, given the cells so far; empty when all is done.

    `known` is the number of trials so far: a budget is spent on whole cells, the coarsest squares first.
    """
    names = [name for name in panels[0].base]
    labels: dict[tuple, dict[Point, Label]] = {tuple(panel.base.values()): {} for panel in panels}
    by_base = {tuple(panel.base.values()): panel for panel in panels}
    for settings, label in cells:
        key = tuple(settings[name] for name in names)
        point = by_base[key].point(settings) if key in by_base else None
        if point is not None:
            labels[key][point] = label
    wanted = [(panel, point) for key, panel in by_base.items() for point in panel.wanted(labels[key])]
    budget, found = panels[0].refinement.budget, []
    for panel, point in wanted:
        if budget is None or known + len(found) + len(panel.replicates) <= budget:
            found += panel.trials(point)
    return found
