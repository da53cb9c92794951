"""Layout of maps: the panels, the place of each cell in its panel, and the rectangles that it fills.

A map has two columns of panels, and rows for everything else that varies.  Its axes are learning rate and
init scale.  An axis that does not vary, or that the experiment does not have, is replaced by the setting with
the most values.  Both matplotlib (`drawing`) and the page (`page.explorer`) draw what is computed here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from topicjax.errors import UserError, counted
from topicjax.settings import SEEDS

from ..frames import distinct, varying
from ..pictures import VALUE_ORDER, WIDTH, described, distinct_texts, label, sentences
from .cells import DIVERGED, Table

Array = np.ndarray
Combination = dict[str, Any]  # values of some settings, by name
AXES = ("learning_rate", "init_scale")  # default axes of a map, if they vary
MOST_VALUES = 40  # along an axis; with more, places would be thinner than a line
MOST_COLUMNS, MOST_ROWS = 2, 6  # of panels in a picture; with more, panels are too small on a phone
TALLEST_PANEL, TALLEST_MAP = 2.3, 9.0  # inches
LARGEST_PLACE = 0.45  # inches
TOLERANCE = 0.02  # share of the finest spacing; needed because settings are written with six digits
DEEPEST = 7  # halvings of a refined axis that are drawn; with more, a place is smaller than a dot


@dataclass(frozen=True)
class Refinement:
    """The refined settings of a run, how often their spacing was halved, and the values the sweep lists."""

    axes: tuple[str, ...]
    levels: int
    listed: Mapping[str, list[float]]

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> "Refinement | None":
        """Combine the refinements of all runs in a folder; None if no run was refined."""
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
        """Tell whether both axes of a map are refined and positive, and at least one has several values."""
        columns = [cells[name] for name in (x, y)]
        are_numbers = all(is_numeric_dtype(c) and not is_bool_dtype(c) and (c > 0).all() for c in columns)
        return {x, y} <= {*self.axes} and are_numbers and any(c.nunique() > 1 for c in columns)


@dataclass(frozen=True)
class LogAxis:
    """An axis of a refined panel: the values of the coarse grid, and how often each interval is halved.

    Places are numbered on the finest grid, which is even in the logarithm.
    """

    coarse: tuple[float, ...]
    levels: int

    @classmethod
    def of(cls, values: Iterable[float], listed: Iterable[float], levels: int) -> "LogAxis":
        """Build the axis from a panel's values; coarse values are those that the sweep lists.

        If the list does not separate coarse from refined values, coarse ones are inferred from even spacing.
        """
        found = np.unique(np.asarray(list(values), float))
        coarse = found[np.isin(found, list(listed))]
        if not len(coarse) or len(coarse) == len(found) or {found[0], found[-1]} - {*coarse}:
            coarse = evenly_spaced(found, levels)
        deepest = min(levels, DEEPEST)
        offsets = (position(found, coarse) * 2**depth for depth in range(deepest))
        fits = (bool((np.abs(places - np.rint(places)) < TOLERANCE).all()) for places in offsets)
        return cls(tuple(coarse), next((depth for depth, is_fine in enumerate(fits) if is_fine), deepest))

    @property
    def length(self) -> int:
        """Number of places."""
        return (len(self.coarse) - 1) * 2**self.levels + 1

    @property
    def ticks(self) -> list[int]:
        """The places of the coarse values."""
        return [place * 2**self.levels for place in range(len(self.coarse))]

    def places(self, values: Any) -> Array:
        """Find the place of each value."""
        return np.rint(position(values, self.coarse) * 2**self.levels).astype(int)


def position(values: Any, coarse: Sequence[float] | Array) -> Array:
    """Interpolate values between coarse ones, in logs: 1.5 is halfway from the second to the third."""
    return np.interp(np.log(np.asarray(values, float)), np.log(coarse), np.arange(len(coarse)))


def evenly_spaced(values: Array, levels: int) -> Array:
    """Return every 2^levels-th point of a lattice even in the logarithm, or all values if they fit none.

    The spacing of the lattice is that of the two nearest values.  If 2^levels does not divide its length, a
    smaller power of two is used.
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
    """Find the nearest point for each place of a raster; in a tie the coarser one, then the first."""
    divides = [(places % 2**depth == 0).all(axis=1) for depth in range(1, levels + 1)]
    rank = levels - np.sum(divides, axis=0, dtype=int) if divides else np.zeros(len(places), int)
    owner = np.empty(shape, int)
    across = (np.arange(shape[1])[:, None] - places[:, 1]) ** 2
    for x in range(shape[0]):
        distance = (x - places[:, 0]) ** 2 + across
        owner[x] = np.argmin(distance * (levels + 1) + rank, axis=1)
    return owner


def rectangles(owner: Array) -> tuple[Array, Array]:
    """Split the regions of a raster into rectangles (left, bottom, right, top); return the owner of each."""
    done: list[tuple[int, int, int, int, int]] = []
    open_runs: dict[tuple[int, int, int], int] = {}  # owner, bottom, top: the column in which it begins
    for x in range(len(owner) + 1):
        runs = set()
        if x < len(owner):
            starts = np.flatnonzero(np.diff(owner[x], prepend=-1))
            ends = [*starts[1:].tolist(), owner.shape[1]]
            runs = {*zip(owner[x][starts].tolist(), starts.tolist(), ends, strict=True)}
        for run in [run for run in open_runs if run not in runs]:
            done.append((open_runs.pop(run), run[1], x, run[2], run[0]))
        open_runs = dict.fromkeys(runs, x) | open_runs
    found = np.array(sorted(done))
    return found[:, :4] - 0.5, found[:, 4]


def inner_squares(owner: Array, places: Array) -> tuple[Array, Array]:
    """Find centre and side, in places, of the largest square around each point inside its region.

    A square that crosses the border of the raster is clipped: its centre and shorter side are those inside.
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


@dataclass(frozen=True)
class Regions:
    """Where the cells of a panel lie, in places; a place reaches half a unit to each side."""

    centres: Array  # per cell: x and y of the largest square inside
    sides: Array  # per cell: side of that square
    boxes: Array  # per rectangle: left, bottom, right, top
    whose: Array  # per rectangle: its cell


def unit_regions(centres: Array) -> Regions:
    """Put a unit square around each centre."""
    boxes = np.hstack([centres - 0.5, centres + 0.5])
    return Regions(centres, np.ones(len(centres)), boxes, np.arange(len(centres)))


@dataclass(frozen=True)
class Grid:
    """The places of one panel: one per value along each axis; refined axes also have places in between."""

    x: str
    y: str
    xs: list[Any]
    ys: list[Any]
    place: float = LARGEST_PLACE  # inches
    turn: int = 0  # rotation in degrees of the tick labels along x
    refined: tuple[LogAxis, LogAxis] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of places along both axes."""
        if self.refined:
            return self.refined[0].length, self.refined[1].length
        return len(self.xs), len(self.ys)

    @property
    def ticks(self) -> tuple[list[int], list[int]]:
        """The places of the values along both axes."""
        if self.refined:
            return self.refined[0].ticks, self.refined[1].ticks
        return [*range(len(self.xs))], [*range(len(self.ys))]

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """The tick labels along both axes."""
        return distinct_texts(self.xs), distinct_texts(self.ys)

    @property
    def every(self) -> int:
        """Label every how many-th value."""
        between = min((np.diff(ticks).min() for ticks in self.ticks if len(ticks) > 1), default=1)
        return ceil(0.14 / (self.place * between))

    @property
    def is_crowded(self) -> bool:
        """Whether the labels along x are too wide for their space."""
        between = self.ticks[0][1] if len(self.xs) > 1 else 1
        return 0.06 * max(map(len, self.texts[0]), default=0) > self.every * self.place * between

    @classmethod
    def of(cls, cells: pd.DataFrame, x: str = AXES[0], y: str = AXES[1]) -> "Grid":
        """Build the grid from all values of the cells."""
        return cls(x, y, ordered(cells[x]), ordered(cells[y]))

    def find(self, cells: pd.DataFrame) -> Array:
        """Find the place of each cell along x and y."""
        if self.refined:
            pairs = [axis.places(cells[n]) for axis, n in zip(self.refined, (self.x, self.y), strict=True)]
        else:
            values = ((self.x, self.xs), (self.y, self.ys))
            pairs = [pd.Index(found).get_indexer(pd.Index(cells[name])) for name, found in values]
        return np.stack(pairs, axis=1)

    def empty(self, cells: pd.DataFrame) -> Array:
        """List the places along x and y that have no cell; none in a refined panel, which cells fill."""
        is_empty = np.full(self.shape, not self.refined)
        is_empty[tuple(self.find(cells).T)] = False
        return np.argwhere(is_empty)

    def regions(self, cells: pd.DataFrame) -> Regions:
        """Compute the region of each cell: its place or, if refined, all places for which it is the nearest.

        Raise a UserError if two cells share a place.
        """
        places = self.find(cells)
        if len(np.unique(places, axis=0)) < len(places):
            raise UserError(
                f"a panel has two cells of equal {self.x} and {self.y}; select those of one panel"
            )
        if not self.refined:
            return unit_regions(places)
        owner = nearest_points(places, self.shape, max(axis.levels for axis in self.refined))
        return Regions(*inner_squares(owner, places), *rectangles(owner))


@dataclass(frozen=True)
class Layout:
    """The panels of a map, and the cells in them."""

    x: str
    y: str
    cells: pd.DataFrame  # those in the panels that are drawn
    owner: Array  # per trial: its cell; -1 if that is not drawn
    columns: list[Combination]
    rows: list[Combination]
    grids: list[list[Grid]]  # per row and column of panels
    titles: list[str]  # per column
    labels: list[str]  # per row
    left_out: int  # rows of panels that are not drawn
    along: list[str]  # settings that vary only together with an axis
    pooled: list[str]  # a sentence per axis whose values share places

    @cached_property
    def parts(self) -> list[list[pd.DataFrame]]:
        """The cells of each panel, per row and column of panels."""
        return [[having(self.cells, row | column) for column in self.columns] for row in self.rows]

    @property
    def empty(self) -> int:
        """Number of places without a cell, in panels that have cells."""
        pairs = zip(chain(*self.grids), chain(*self.parts), strict=True)
        return sum(len(grid.empty(part)) for grid, part in pairs if len(part))

    @property
    def remarks(self) -> dict[str, Any]:
        """Sentences on how to read the map, and whether each applies."""
        also = ", ".join(map(label, self.along))
        return {
            self.spacing: self.spacing,
            " ".join(self.pooled): self.pooled,
            f"Dots: {counted(self.empty, 'place')} not run or not finished.": self.empty,
            f"Along the axes these settings change as well: {also}.": also,
            f"Not drawn: {counted(self.left_out, 'further row')} of panels.": self.left_out,
        }

    @property
    def summary(self) -> str:
        """Sentences on the number of trials, and on what is missing."""
        trials, diverged = self.cells["trials"].to_numpy(), self.cells[DIVERGED].sum()
        span = f"{trials.min()}" if trials.min() == trials.max() else f"{trials.min()} to {trials.max()}"
        counts = f"{counted(trials.sum(), 'trial')} in {counted(len(trials), 'cell')}, {span} per cell"
        return sentences({f"{counts}; {diverged or 'none'} diverged.": True} | self.remarks)

    @property
    def spacing(self) -> str:
        """A sentence on the points of a refined map; empty for other maps."""
        if not self.grids[0][0].refined:
            return ""
        logs = [np.log(part[[self.x, self.y]].to_numpy(float)) for part in chain(*self.parts) if len(part)]
        least = {}
        for place, name in enumerate((self.x, self.y)):
            gaps = np.concatenate([np.diff(np.unique(points[:, place])) for points in logs])
            least |= {name: np.exp(gaps.min())} if len(gaps) else {}
        texts = [f"{factor:.3g} in {label(name)}" for name, factor in least.items()]
        return (
            "Refined: points are denser near boundaries, and each one colours the region nearest to it; "
            f"the finest spacing is a factor of {' and '.join(texts)}."
        )

    @property
    def alt(self) -> str:
        """Alt text: the axes and the number of panels."""
        panels = counted(len(self.rows) * len(self.columns), "panel")
        return f"Map of {label(self.x)} against {label(self.y)}, {panels}"


def arrange(
    trials: pd.DataFrame,
    settings: Sequence[str],
    table: Table,
    refined: Refinement | None = None,
    x: str | None = None,
    y: str | None = None,
    panel: Sequence[str] = (),
    most_rows: int = MOST_ROWS,
) -> Layout:
    """Lay out the panels of a map; settings that vary at a fixed place of both axes become rows of panels.

    `panel` names the settings that separate panels first; `table` pools trials to cells.
    """
    names = [name for name in settings if name not in SEEDS]
    check_arguments(trials, names, x, y, panel)
    cells = distinct(trials, names)[1]
    by = [name for name in panel if name not in (x, y)]
    several = varying(cells, names)
    x, y = choose_axes(cells, several, names, by, x, y)
    across, down = split_panels(cells, by)
    free = varying(cells, several, by)
    tied = [name for name in several if name not in {*by, *free, x, y}]  # they vary only together with `by`
    beside = [*down, *varying(cells, varying(cells, free, [*by, x]), [*by, y])]
    columns, rows = combinations(cells, across), combinations(cells, beside)
    most = min(most_rows * len(combinations(cells, down)), 2 * most_rows)
    left_out, rows = max(0, len(rows) - most), rows[:most]
    is_drawn = np.any([has(trials, row) for row in rows], axis=0)
    kept, by_cell = trials.loc[is_drawn], names
    if refined and not refined.fits(kept, x, y):
        refined = None
    kept, pooled = (kept, []) if refined else pool_axes(kept, by, x, y)
    if pooled:
        by_cell = list(dict.fromkeys([*by, *beside, x, y]))
    drawn, owner = table(kept, by_cell), np.full(len(trials), -1)
    owner[is_drawn] = distinct(kept, by_cell)[0]
    labels = row_labels(cells, rows, columns, tied, y)
    grids = [[one_grid(drawn, row, column, by, (x, y), refined) for column in columns] for row in rows]
    return Layout(
        x,
        y,
        drawn,
        owner,
        columns,
        rows,
        grids=sized(grids, labels),
        titles=[
            "\n".join(filter(None, [", ".join(described(column, column)), *only_here(cells, column, tied)]))
            for column in columns
        ],
        labels=labels,
        left_out=left_out,
        along=[name for name in free if name not in (x, y, *beside)],
        pooled=pooled,
    )


def check_arguments(
    trials: pd.DataFrame, names: Sequence[str], x: str | None, y: str | None, panel: Sequence[str]
) -> None:
    """Raise a UserError if there is nothing to draw or a setting is not known."""
    if trials.empty:
        raise UserError("there is no cell to draw; a map needs at least one finished trial")
    for name in filter(None, (x, y, *panel)):
        if name not in names:
            raise UserError(f"the cells have no setting {name!r}; allowed: {', '.join(names)}")
    if x and x == y:
        raise UserError(f"x and y are both {x!r}; allowed: two different settings")


def choose_axes(
    cells: pd.DataFrame,
    several: Sequence[str],
    names: Sequence[str],
    by: Sequence[str],
    x: str | None,
    y: str | None,
) -> tuple[str, str]:
    """Choose the axes: learning rate and init scale where they vary, else the settings with the most values.

    `several` lists the settings that vary; if there are too few, a constant setting is used.
    """
    chosen, usual = dict(x=x, y=y), dict(y=AXES[1], x=AXES[0])
    free = varying(cells, several, by)
    for axis, name in usual.items():
        if name in free and name not in chosen.values():
            chosen[axis] = chosen[axis] or name
    for axis, name in usual.items():
        taken = [other for other in chosen.values() if other]
        found = varying(cells, several, [*by, *taken])
        found.sort(key=lambda other: (other not in AXES, -cells[other].nunique()))
        spare = [other for other in (name, *AXES, *names) if other in names and other not in taken]
        chosen[axis] = chosen[axis] or next(iter([*found, *spare]), taken[0] if taken else name)
    return str(chosen["x"]), str(chosen["y"])


def split_panels(cells: pd.DataFrame, by: list[str]) -> tuple[list[str], list[str]]:
    """Split the settings into those of columns and those of rows of panels; two columns fit the width."""
    if not by or len(cells[by].drop_duplicates()) <= MOST_COLUMNS:
        return by, []
    sizes = {name: len(cells[name].unique()) for name in by}
    several = [name for name in by if sizes[name] > 1]
    across = [name for name in several if sizes[name] <= MOST_COLUMNS][:1]
    return across, [name for name in several if name not in across]


def pool_axes(trials: pd.DataFrame, columns: Sequence[str], x: str, y: str) -> tuple[pd.DataFrame, list[str]]:
    """Pool neighbouring values to at most MOST_VALUES per axis; return a sentence per axis that had more.

    Neighbouring values are replaced by the middle one.  Each column of panels has its own values along x; all
    share those along y.
    """
    middles = {x: middle_values(trials, x, columns), y: middle_values(trials, y, ())}
    pooled = {name: values for name, values in middles.items() if (values != trials[name]).any()}
    words = [
        f"The {trials[name].nunique():,} values of {label(name)} share up to {MOST_VALUES} places per panel: "
        "neighbouring values are pooled in one cell, which is labelled with the middle value."
        for name in pooled
    ]
    return trials.assign(**pooled), words


def middle_values(trials: pd.DataFrame, name: str, within: Sequence[str]) -> pd.Series:
    """Replace each trial's value of a setting by the middle of the neighbouring values it is pooled with.

    Values are pooled among trials with equal `within`; up to MOST_VALUES values are left unchanged.
    """
    group = distinct(trials, within)[0]
    pooled: Any = trials[name].copy()
    for number in np.unique(group) if pooled.nunique() > MOST_VALUES else ():
        own = group == number
        values, place = np.unique(trials.loc[own, name].to_numpy(), return_inverse=True)
        if len(values) > MOST_VALUES:
            bins = np.arange(len(values)) * MOST_VALUES // len(values)
            edges = np.searchsorted(bins, np.arange(MOST_VALUES + 1))
            pooled[own] = values[(edges[:-1] + edges[1:] - 1) // 2][bins[place]]
    return pooled


def one_grid(
    cells: pd.DataFrame,
    row: Combination,
    column: Combination,
    by: list[str],
    axes: tuple[str, str],
    refined: Refinement | None,
) -> Grid:
    """Build the grid of one panel: its own values along x, those of its row along y."""
    own = {name: value for name, value in (row | column).items() if name in by}
    values = [ordered(having(cells, own)[axes[0]]), ordered(having(cells, row)[axes[1]])]
    if refined is None or not all(values):
        return Grid(*axes, values[0], values[1])
    logs = [
        LogAxis.of(found, refined.listed[name], refined.levels)
        for name, found in zip(axes, values, strict=True)
    ]
    deepest = max(axis.levels for axis in logs)
    both = LogAxis(logs[0].coarse, deepest), LogAxis(logs[1].coarse, deepest)
    return Grid(*axes, list(both[0].coarse), list(both[1].coarse), refined=both)


def sized(grids: list[list[Grid]], labels: list[str]) -> list[list[Grid]]:
    """Make places as large as a picture has room for, and rotate tick labels if they are crowded."""
    every = [grid for row in grids for grid in row]
    lines = 1 + max(text.count("\n") for text in labels)
    texts = max((len(text) for grid in every for text in grid.texts[1]), default=0)
    slot = (WIDTH - 0.35 - 0.15 * lines - 0.06 * texts) / len(grids[0]) - 0.1
    wide, high = (max(grid.shape[axis] for grid in every) for axis in (0, 1))
    tall = sum(max(grid.shape[1] for grid in row) for row in grids)
    place = min(LARGEST_PLACE, slot / wide, TALLEST_PANEL / high, TALLEST_MAP / tall)
    turn = 90 * any(replace(grid, place=place).is_crowded for grid in every)
    return [[replace(grid, place=place, turn=turn) for grid in row] for row in grids]


def row_labels(
    cells: pd.DataFrame, rows: list[Combination], columns: list[Combination], tied: list[str], y: str
) -> list[str]:
    """Label each row of panels: its settings, those that vary together with them, and the setting along y."""
    named = {text for column in columns for text in only_here(cells, column, tied)}
    labels = []
    for row in rows:
        own = only_here(cells, row, [name for name in tied if name not in row]) if row else []
        labels.append("\n".join([*described(row, row), *(t for t in own if t not in named), label(y)]))
    return labels


def only_here(cells: pd.DataFrame, here: Combination, tied: Sequence[str]) -> list[str]:
    """Describe those of the settings `tied` that are constant in a row or column of panels."""
    own = having(cells, here)
    return described(own.iloc[0], [name for name in tied if len(own[name].unique()) == 1])


def combinations(cells: pd.DataFrame, names: list[str]) -> list[Combination]:
    """List the combinations of these settings that occur, in order; without settings, one that is empty."""
    if not names:
        return [{}]
    several = cells[names].drop_duplicates()
    found = {*zip(*(several[name] for name in names), strict=True)}
    ordered_values = sorted(found, key=lambda values: [*map(rank, values)])
    return [dict(zip(names, values, strict=True)) for values in ordered_values]


def rank(value: Any) -> Any:
    """Return the sort key of a setting's value; values in VALUE_ORDER have an order of their own."""
    return f"{VALUE_ORDER.index(value):04d}" if value in VALUE_ORDER else value


def ordered(values: Any) -> list[Any]:
    """Return the distinct values, ascending."""
    return sorted(values.unique().tolist())


def has(cells: pd.DataFrame, settings: Combination) -> Array:
    """Mask the cells with these settings."""
    mask = np.ones(len(cells), bool)
    for name, value in settings.items():
        mask &= (cells[name] == value).to_numpy()
    return mask


def having(cells: pd.DataFrame, settings: Combination) -> pd.DataFrame:
    """Select the cells with these settings."""
    return cells.loc[has(cells, settings)]
