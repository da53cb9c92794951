"""The places of one panel of a map: a value of one setting along x, of another along y."""

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from topicjax.errors import UserError

from ..pictures import distinct_texts, label

Combination = dict[str, Any]  # values of some settings, by name
Look = dict[str, Any]  # arguments of matplotlib
AXES = ("learning_rate", "init_scale")
LARGEST_CELL, LEAST_TO_WRITE = 0.42, 0.24  # inches
SQUARE = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * 0.47
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
    def every(self) -> int:
        """How many values share a tick label."""
        return ceil(0.13 / self.cell)

    @property
    def square(self) -> np.ndarray:
        """The shape of a cell: with a gap between cells unless they are small."""
        return SQUARE if self.cell >= LEAST_TO_WRITE else SQUARE / 0.94

    @property
    def is_crowded(self) -> bool:
        """Whether the labels of x need more room than there is."""
        return 0.052 * max(map(len, distinct_texts(self.xs))) > self.every * self.cell

    @classmethod
    def of(cls, cells: pd.DataFrame, x: str = AXES[0], y: str = AXES[1]) -> "Grid":
        """Return the grid of all values that the cells have."""
        return cls(x, y, ordered(cells[x]), ordered(cells[y]))

    def places(self, cells: pd.DataFrame) -> np.ndarray:
        """Return the place of each cell along x and y, or raise a UserError if two share one."""
        pairs = [
            pd.Index(v).get_indexer(pd.Index(cells[n])) for n, v in ((self.x, self.xs), (self.y, self.ys))
        ]
        places = np.stack(pairs, axis=1)
        if len(np.unique(places, axis=0)) < len(places):
            raise UserError(
                f"a panel has two cells of equal {self.x} and {self.y}; select those of one panel"
            )
        return places

    def prepare(self, cells: pd.DataFrame, ax: Axes) -> np.ndarray:
        """Set up the axes, mark the places without a cell, and return the places of the cells."""
        places, shape = self.places(cells), (len(self.xs), len(self.ys))
        is_empty = np.ones(shape, bool)
        is_empty[tuple(places.T)] = False
        ax.plot(*np.nonzero(is_empty), **EMPTY, ms=min(2.5, 20 * self.cell))
        every, names = self.every, (distinct_texts(self.xs), distinct_texts(self.ys))
        ax.set_xticks(range(0, shape[0], every), names[0][::every], rotation=self.turn, fontsize=6)
        ax.set_yticks(range(0, shape[1], every), names[1][::every], fontsize=6)
        ax.set(xlabel=label(self.x), ylabel=label(self.y), aspect="equal")
        ax.set(xlim=(-0.5, shape[0] - 0.5), ylim=(-0.5, shape[1] - 0.5))
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        return places


def ordered(values: Any) -> list[Any]:
    """Return the distinct values, ascending."""
    return sorted(values.unique().tolist())
