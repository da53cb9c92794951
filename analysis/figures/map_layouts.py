"""Where the panels of a map go: a column per objective and optimizer, a row of panels per value of the rest.

The axes are learning rate and init scale; one that does not vary within a column gives way to a setting
that does.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from topicjax.errors import UserError

from ..frames import MAIN_SETTINGS, SETTINGS, settings_in, varying
from ..pictures import OPTIMIZERS, WIDTH, counted, described, distinct_texts, label, sentences
from ..scoring.cells import score_cells
from ..scoring.stages import VIEWS
from ..scoring.trained_parts import trains_both
from .map_bins import pool_axes
from .map_grids import AXES, LARGEST_CELL, Combination, Grid, ordered

MOST_COLUMNS, MOST_ROWS = 4, 6  # of panels
TALLEST_PANEL, TALLEST_MAP = 2.3, 6.5  # inches


@dataclass(frozen=True)
class Layout:
    """Which panels a map has, and the cells they show."""

    cells: pd.DataFrame  # of the panels that are drawn
    columns: list[Combination]
    rows: list[Combination]
    grids: list[list[Grid]]  # per row and column of panels
    titles: list[str]  # per column
    left_out: int  # rows of panels that are not drawn
    one_part: int  # cells that are not drawn: with W^V or attention frozen their class is known
    along: list[str]  # settings that differ too, but only together with an axis
    pooled: list[str]  # a sentence per axis whose values share places

    @property
    def height(self) -> float:
        """Inches of the figure without a legend."""
        grids = self.grids
        panels = sum(len(row[0].ys) * row[0].cell for row in grids) + 0.12 * len(grids)
        ticks = 0.05 * max(len(name) for grid in grids[-1] for name in distinct_texts(grid.xs))
        lines = 1 + max(title.count("\n") for title in self.titles)
        return panels + 0.16 * lines + (ticks if grids[0][0].turn else 0.12) + 0.5

    @property
    def empty(self) -> int:
        """Number of places without a cell, in panels that have some."""
        pairs = zip(chain(*self.grids), chain(*self.parts), strict=True)
        return sum(len(grid.xs) * len(grid.ys) - len(part) for grid, part in pairs if len(part))

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
            " ".join(self.pooled): self.pooled,
            f"Dots: {counted(self.empty, 'place')} not run or not finished.": self.empty,
            f"Along the axes these settings change as well: {also}.": also,
            f"Not drawn: {counted(self.left_out, 'further row')} of panels.": self.left_out,
            f"Not drawn: {counted(self.one_part, 'cell')} that train only one part.": self.one_part,
        }
        return sentences(parts)

    @property
    def alt(self) -> str:
        """What the panels are."""
        grid = self.grids[0][0]
        panels = counted(len(self.rows) * len(self.columns), "panel")
        return f"Map of {label(grid.x)} against {label(grid.y)}, {panels}"


def arrange(scores: pd.DataFrame, view: str, x: str | None, y: str | None, room: float = 0.0) -> Layout:
    """Return the panels of a map: what varies at a fixed place of both axes gets rows of panels."""
    cells = score_cells(scores)
    check_arguments(cells, view, x, y)
    every, cells = len(cells), of_both_parts(cells)
    by = [name for name in MAIN_SETTINGS if name in cells and name not in (x, y)]
    by = by if len(cells[by].drop_duplicates()) <= MOST_COLUMNS else by[-1:]
    x, y = choose_axes(cells, by, x, y)
    beside = varying(cells, varying(cells, SETTINGS, [*by, x]), [*by, y])
    columns, rows = combinations(cells, by), combinations(cells, beside)
    scores = of_both_parts(scores)
    scores = pd.concat([having(scores, row) for row in rows[:MOST_ROWS]]) if beside else scores
    drawn = pd.concat([having(cells, row) for row in rows[:MOST_ROWS]])
    drawn, pooled = pool_axes(drawn, scores, by, beside, x, y)
    xs = [ordered(having(drawn, column)[x]) for column in columns]
    ys = [ordered(having(drawn, row)[y]) for row in rows[:MOST_ROWS]]
    margin = (
        0.5 + room + 0.15 * len(beside) + 0.06 * max(len(name) for up in ys for name in distinct_texts(up))
    )
    slot = (WIDTH - margin) / len(columns) - 0.1
    cell = min(LARGEST_CELL, slot / max(map(len, xs)), TALLEST_PANEL / max(map(len, ys)))
    cell = min(cell, TALLEST_MAP / sum(map(len, ys)))
    turn = 90 * any(Grid(x, y, along, [], cell).is_crowded for along in xs)
    return Layout(
        drawn,
        columns,
        rows[:MOST_ROWS],
        grids=[[Grid(x, y, along, up, cell, turn) for along in xs] for up in ys],
        titles=[column_title(cells, column, (x, y)) for column in columns],
        left_out=max(0, len(rows) - MOST_ROWS),
        one_part=every - len(cells),
        along=[name for name in varying(cells, SETTINGS, by) if name not in (x, y, *beside)],
        pooled=pooled,
    )


def of_both_parts(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that train both V and attention; all if there are none."""
    if not {"value", "embedding", "attention"} <= {*cells}:
        return cells
    found = cells.loc[trains_both(cells)]
    return found if len(found) else cells


def check_arguments(cells: pd.DataFrame, view: str, x: str | None, y: str | None) -> None:
    """Raise a UserError that says what cannot be drawn."""
    if view not in VIEWS:
        raise UserError(f"unknown view {view!r}; allowed: {', '.join(VIEWS)}")
    if cells.empty:
        raise UserError("there is no cell to draw; a map needs at least one finished trial")
    allowed = settings_in(cells)
    for name in (x or AXES[0], y or AXES[1]):
        if name not in allowed:
            raise UserError(f"the cells have no setting {name!r}; allowed: {', '.join(allowed)}")
    if x and x == y:
        raise UserError(f"x and y are both {x!r}; allowed: two different settings")


def choose_axes(cells: pd.DataFrame, by: list[str], x: str | None, y: str | None) -> tuple[str, str]:
    """Return the axes: learning rate and init scale where they vary, else what has the most values."""
    chosen, usual = dict(x=x, y=y), dict(y=AXES[1], x=AXES[0])
    for axis, name in usual.items():
        if name in varying(cells, SETTINGS, by) and name not in chosen.values():
            chosen[axis] = chosen[axis] or name
    for axis, name in usual.items():
        taken = [other for other in chosen.values() if other]
        found = varying(cells, SETTINGS, [*by, *taken])
        found.sort(key=lambda other: (other not in AXES, -cells[other].nunique()))
        spare = [other for other in (name, *AXES) if other not in taken]
        chosen[axis] = chosen[axis] or [*found, *spare][0]
    return str(chosen["x"]), str(chosen["y"])


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
    return str(OPTIMIZERS.index(value)) if value in OPTIMIZERS else value


def having(cells: pd.DataFrame, settings: Combination) -> pd.DataFrame:
    """Return the cells that have these settings."""
    mask = np.ones(len(cells), bool)
    for name, value in settings.items():
        mask &= (cells[name] == value).to_numpy()
    return cells.loc[mask]


def column_title(cells: pd.DataFrame, column: Combination, shown: Iterable[str]) -> str:
    """Return the settings of a column, and a line for each other one that only columns differ in."""
    by = list(column)
    known = {*by, *varying(cells, SETTINGS, by), *shown}
    own = [name for name in varying(cells, SETTINGS) if name not in known]
    values = having(cells, column).iloc[0]
    return "\n".join([", ".join(described(column, column)), *described(values, own)])


def draw(figure: Figure | SubFigure, layout: Layout, panel: Callable[..., Axes]) -> list[Axes]:
    """Draw each panel that has cells; ticks and labels at the left and at the bottom only."""
    axes = figure.subplots(len(layout.rows), len(layout.columns), squeeze=False)
    for column, title in enumerate(layout.titles):
        filled = [row for row, parts in enumerate(layout.parts) if len(parts[column])]
        for row, ax in enumerate(axes[:, column]):
            panel(layout.parts[row][column], ax, grid=layout.grids[row][column])
            if row not in filled:
                ax.clear()  # keeps its place and the label of its row
                ax.set(xticks=[], yticks=[])
                ax.spines[:].set_visible(False)
            if row == 0:
                ax.set_title(title)
            if row != filled[-1]:
                ax.set(xlabel="", xticklabels=[])
            if column > 0:
                ax.set(ylabel="", yticklabels=[])
    for row, settings in zip(axes, layout.rows, strict=True):
        row[0].set_ylabel("\n".join([*described(settings, settings), row[0].get_ylabel()]))
    return list(axes.flat)
