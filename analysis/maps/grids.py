"""The places of one panel of a map: a value of one setting along x, of another along y."""

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from topicjax.errors import UserError

from ..pictures import SMALL, distinct_texts, label
from .blocks import SQUARE, Blocks
from .lattices import LogAxis, inner_squares, nearest_points, rectangles

Combination = dict[str, Any]  # values of some settings, by name
Look = dict[str, Any]  # arguments of matplotlib
AXES = ("learning_rate", "init_scale")
LARGEST_CELL, LEAST_TO_WRITE = 0.45, 0.26  # inches
EMPTY: Look = dict(ls="", marker=".", color="0.75")  # a place without a cell


@dataclass(frozen=True)
class Grid:
    """The places of one panel: the values along both axes, the size of a cell, how ticks are turned."""

    x: str
    y: str
    xs: list[Any]
    ys: list[Any]
    cell: float = LARGEST_CELL  # inches
    turn: int = 0  # degrees

    @property
    def shape(self) -> tuple[int, int]:
        """Number of places along both axes."""
        return len(self.xs), len(self.ys)

    @property
    def ticks(self) -> tuple[list[int], list[int]]:
        """The places of the values along both axes."""
        return [*range(len(self.xs))], [*range(len(self.ys))]

    @property
    def every(self) -> int:
        """How many values share a tick label."""
        between = min((np.diff(ticks).min() for ticks in self.ticks if len(ticks) > 1), default=1)
        return ceil(0.14 / (self.cell * between))

    @property
    def is_crowded(self) -> bool:
        """Whether the labels of x need more room than there is."""
        between = self.ticks[0][1] if len(self.xs) > 1 else 1
        return 0.06 * max(map(len, distinct_texts(self.xs))) > self.every * self.cell * between

    @classmethod
    def of(cls, cells: pd.DataFrame, x: str = AXES[0], y: str = AXES[1]) -> "Grid":
        """Return the grid of all values that the cells have."""
        return cls(x, y, ordered(cells[x]), ordered(cells[y]))

    def places(self, cells: pd.DataFrame) -> np.ndarray:
        """Return the place of each cell along x and y, or raise a UserError if two share one."""
        places = self.find(cells)
        if len(np.unique(places, axis=0)) < len(places):
            raise UserError(
                f"a panel has two cells of equal {self.x} and {self.y}; select those of one panel"
            )
        return places

    def find(self, cells: pd.DataFrame) -> np.ndarray:
        """Return the place of each cell along x and y."""
        pairs = [
            pd.Index(v).get_indexer(pd.Index(cells[n])) for n, v in ((self.x, self.xs), (self.y, self.ys))
        ]
        return np.stack(pairs, axis=1)

    def empty(self, places: np.ndarray) -> np.ndarray:
        """Return the places along x and y that have no cell."""
        is_empty = np.ones(self.shape, bool)
        is_empty[tuple(places.T)] = False
        return np.argwhere(is_empty)

    def prepare(self, cells: pd.DataFrame, ax: Axes) -> Blocks:
        """Set up the axes, mark the places without a cell, and return where the cells are drawn."""
        places = self.places(cells)
        ax.plot(*self.empty(places).T, **EMPTY, ms=min(2.5, 20 * self.cell))
        every, names = self.every, (distinct_texts(self.xs), distinct_texts(self.ys))
        for axis, ticks, texts in zip("xy", self.ticks, names, strict=True):
            turn = self.turn if axis == "x" else 0
            getattr(ax, f"set_{axis}ticks")(ticks[::every], texts[::every], rotation=turn, fontsize=SMALL)
        ax.set(xlabel=label(self.x), ylabel=label(self.y), aspect="equal")
        ax.set(xlim=(-0.5, self.shape[0] - 0.5), ylim=(-0.5, self.shape[1] - 0.5))
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        return self.blocks(places)

    def blocks(self, places: np.ndarray) -> Blocks:
        """Return a square for each cell: with a gap between cells unless they are small."""
        square = SQUARE if self.cell >= LEAST_TO_WRITE else SQUARE / 0.94
        return Blocks(
            places, np.ones(len(places)), places[:, None] + square, np.arange(len(places)), self.cell
        )


@dataclass(frozen=True)
class Lattice(Grid):
    """The places of a refined panel: cells fill the region that is nearest to them."""

    axes: tuple[LogAxis, LogAxis] = (LogAxis((1.0,), 0), LogAxis((1.0,), 0))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of places along both axes."""
        return self.axes[0].length, self.axes[1].length

    @property
    def ticks(self) -> tuple[list[int], list[int]]:
        """The places of the coarse values along both axes."""
        return self.axes[0].ticks, self.axes[1].ticks

    def find(self, cells: pd.DataFrame) -> np.ndarray:
        """Return the place of each cell along x and y."""
        return np.stack(
            [axis.places(cells[n]) for axis, n in zip(self.axes, (self.x, self.y), strict=True)], 1
        )

    def empty(self, places: np.ndarray) -> np.ndarray:
        """Return no places: every one belongs to the nearest cell."""
        return np.empty((0, 2), int)

    def blocks(self, places: np.ndarray) -> Blocks:
        """Return the region of each cell as rectangles."""
        owner = nearest_points(places, self.shape, max(axis.levels for axis in self.axes))
        boxes, whose = rectangles(owner)
        outlines = boxes[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
        return Blocks(*inner_squares(owner, places), outlines, whose, self.cell, is_seamless=True)


def ordered(values: Any) -> list[Any]:
    """Return the distinct values, ascending."""
    return sorted(values.unique().tolist())
