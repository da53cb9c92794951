"""The panels of a map, the cells they show, what a caption says of them, and how they are drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from ..pictures import VALUE_ORDER, counted, distinct_texts, label, sentences
from .grids import Combination, Grid, Lattice
from .lattices import finest


@dataclass(frozen=True)
class Layout:
    """Which panels a map has, and the cells they show."""

    cells: pd.DataFrame  # of the panels that are drawn
    columns: list[Combination]
    rows: list[Combination]
    grids: list[list[Grid]]  # per row and column of panels
    titles: list[str]  # per column
    labels: list[str]  # per row
    left_out: int  # rows of panels that are not drawn
    one_part: int  # cells that are not drawn: with W^V or attention frozen their class is known
    along: list[str]  # settings that differ too, but only together with an axis
    pooled: list[str]  # a sentence per axis whose values share places

    @property
    def height(self) -> float:
        """Inches of the figure without a legend."""
        panels = sum(max(grid.shape[1] for grid in row) * row[0].cell + 0.14 for row in self.grids)
        texts = (name for row in self.grids for grid in row for name in distinct_texts(grid.xs))
        ticks = 0.06 * max(map(len, texts)) if self.grids[0][0].turn else 0.14
        columns = range(len(self.columns))
        below = sum(any(self.has_labels(row, column) for column in columns) for row in range(len(self.rows)))
        lines = 1 + max(title.count("\n") for title in self.titles)
        return panels + 0.16 * lines + below * (ticks + 0.26) + 0.2

    def has_labels(self, row: int, column: int) -> bool:
        """Return whether a panel has labels below: the next one with cells has other values, or is none."""
        filled = [place for place, parts in enumerate(self.parts) if len(parts[column])]
        below = next((place for place in filled if place > row), None)
        if row not in filled:
            return False
        return below is None or self.grids[below][column].xs != self.grids[row][column].xs

    @property
    def empty(self) -> int:
        """Number of places without a cell, in panels that have some."""
        pairs = zip(chain(*self.grids), chain(*self.parts), strict=True)
        return sum(len(grid.empty(grid.find(part))) for grid, part in pairs if len(part))

    @cached_property
    def parts(self) -> list[list[pd.DataFrame]]:
        """The cells of each panel, per row and column of panels."""
        return [[having(self.cells, row | column) for column in self.columns] for row in self.rows]

    @property
    def summary(self) -> str:
        """Sentences on the number of trials, and on what is not there."""
        trials, diverged = self.cells["trials"].to_numpy(), self.cells["diverged"].sum()
        span = f"{trials.min()}" if trials.min() == trials.max() else f"{trials.min()} to {trials.max()}"
        counts = f"{counted(trials.sum(), 'trial')} in {counted(len(trials), 'cell')}, {span} per cell"
        also = ", ".join(map(label, self.along))
        parts = {
            f"{counts}; {diverged or 'none'} diverged.": True,
            self.spacing: self.spacing,
            " ".join(self.pooled): self.pooled,
            f"Dots: {counted(self.empty, 'place')} not run or not finished.": self.empty,
            f"Along the axes these settings change as well: {also}.": also,
            f"Not drawn: {counted(self.left_out, 'further row')} of panels.": self.left_out,
            f"Not drawn: {counted(self.one_part, 'cell')} that train only one part.": self.one_part,
        }
        return sentences(parts)

    @property
    def spacing(self) -> str:
        """A sentence on the points of a refined map; empty for others."""
        fine = [grid for grid in chain(*self.grids) if isinstance(grid, Lattice)]
        if not fine:
            return ""
        spaced = [part for part in chain(*self.parts) if len(part)]
        least = {name: min(finest(part[name]) for part in spaced) for name in (fine[0].x, fine[0].y)}
        texts = [f"{factor:.3g} in {label(name)}" for name, factor in least.items() if factor > 1]
        return (
            "Refined: points are denser near boundaries, and each fills the region that is nearest to it; "
            f"the finest spacing is a factor of {' and '.join(texts)}."
        )

    @property
    def alt(self) -> str:
        """What the panels are."""
        grid = self.grids[0][0]
        panels = counted(len(self.rows) * len(self.columns), "panel")
        return f"Map of {label(grid.x)} against {label(grid.y)}, {panels}"


def combinations(cells: pd.DataFrame, names: list[str]) -> list[Combination]:
    """Return the combinations of these settings that occur, in order; one without any if there are none."""
    if not names:
        return [{}]
    several = cells[names].drop_duplicates()
    found = {*zip(*(several[name] for name in names), strict=True)}
    ordered_values = sorted(found, key=lambda values: [*map(rank, values)])
    return [dict(zip(names, values, strict=True)) for values in ordered_values]


def rank(value: Any) -> Any:
    """Return what sorts the values of a setting: optimizers have an order of their own."""
    return str(VALUE_ORDER.index(value)) if value in VALUE_ORDER else value


def having(cells: pd.DataFrame, settings: Combination) -> pd.DataFrame:
    """Return the cells that have these settings."""
    mask = np.ones(len(cells), bool)
    for name, value in settings.items():
        mask &= (cells[name] == value).to_numpy()
    return cells.loc[mask]


def draw(figure: Figure | SubFigure, layout: Layout, panel: Callable[..., Axes]) -> list[Axes]:
    """Draw each panel that has cells; labels at the left, and below where the next panel has other values."""
    axes = figure.subplots(len(layout.rows), len(layout.columns), squeeze=False)
    for column, title in enumerate(layout.titles):
        for row, ax in enumerate(axes[:, column]):
            panel(layout.parts[row][column], ax, grid=layout.grids[row][column])
            if layout.parts[row][column].empty:
                ax.clear()  # keeps its place and the label of its row
                ax.set(xticks=[], yticks=[])
                ax.spines[:].set_visible(False)
            if row == 0:
                ax.set_title(title)
            if not layout.has_labels(row, column):
                ax.set(xlabel="", xticklabels=[])
            if column > 0:
                ax.set(ylabel="", yticklabels=[])
    for row, text in zip(axes, layout.labels, strict=True):
        row[0].set_ylabel(text)
    return list(axes.flat)
