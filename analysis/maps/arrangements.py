"""Which panels a map has: two columns, by the objective if it varies, and rows for what else varies.

The axes are learning rate and init scale; one that does not vary within a column gives way to a setting
that does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..frames import varying
from ..one_layer.cells import score_cells
from ..one_layer.stages import VIEWS
from ..one_layer.trained_parts import trains_both
from ..pictures import WIDTH, described, distinct_texts, label
from ..topic_model import MAIN_SETTINGS, SETTINGS, settings_in
from .bins import pool_axes
from .grids import AXES, LARGEST_CELL, Combination, Grid, Lattice, ordered
from .lattices import LogAxis, Refinement
from .layouts import Layout, combinations, having

MOST_COLUMNS, MOST_ROWS = 2, 6  # of panels: more are too small for a phone
TALLEST_PANEL, TALLEST_MAP = 2.3, 9.0  # inches


def arrange(
    run: Run,
    scores: pd.DataFrame,
    view: str,
    x: str | None = None,
    y: str | None = None,
    panel: Sequence[str] = (),
) -> Layout:
    """Return the panels of a map: what varies at a fixed place of both axes gets rows of panels.

    `panel` names the settings that tell panels apart first, by default objective and optimizer.
    """
    cells = score_cells(scores)
    check_arguments(cells, view, x, y, panel)
    every, cells = len(cells), of_both_parts(cells)
    by = [name for name in panel or MAIN_SETTINGS if name in cells and name not in (x, y)]
    x, y = choose_axes(cells, by, x, y)
    across, down = split_panels(cells, by)
    beside = [*down, *varying(cells, varying(cells, SETTINGS, [*by, x]), [*by, y])]
    columns, rows = combinations(cells, across), combinations(cells, beside)
    left_out, rows = max(0, len(rows) - most_rows(cells, down)), rows[: most_rows(cells, down)]
    scores, drawn = (
        pd.concat([having(frame, row) for row in rows]) for frame in (of_both_parts(scores), cells)
    )
    refined = Refinement.of(run.manifest)
    if refined and not refined.fits(drawn, x, y):
        refined = None
    drawn, pooled = (drawn, []) if refined else pool_axes(drawn, scores, by, beside, x, y)
    labels = [row_label(cells, row, columns, by, (x, y)) for row in rows]
    grids = [[one_grid(drawn, row, column, by, (x, y), refined) for column in columns] for row in rows]
    return Layout(
        drawn,
        columns,
        rows,
        grids=sized(grids, labels),
        titles=[column_title(cells, column, by, (x, y)) for column in columns],
        labels=labels,
        left_out=left_out,
        one_part=every - len(cells),
        along=[name for name in varying(cells, SETTINGS, by) if name not in (x, y, *beside)],
        pooled=pooled,
    )


def split_panels(cells: pd.DataFrame, by: list[str]) -> tuple[list[str], list[str]]:
    """Return the settings of the columns of panels, and those that go to rows: two columns have room."""
    if not by or len(cells[by].drop_duplicates()) <= MOST_COLUMNS:
        return by, []
    sizes = {name: len(cells[name].unique()) for name in by}
    several = [name for name in by if sizes[name] > 1]
    across = [name for name in several if sizes[name] <= MOST_COLUMNS][:1]
    return across, [name for name in several if name not in across]


def most_rows(cells: pd.DataFrame, down: list[str]) -> int:
    """Return how many rows of panels are drawn."""
    return min(MOST_ROWS * len(combinations(cells, down)), 2 * MOST_ROWS)


def one_grid(
    cells: pd.DataFrame,
    row: Combination,
    column: Combination,
    by: list[str],
    axes: tuple[str, str],
    refined: Refinement | None,
) -> Grid:
    """Return the places of one panel: its own values along x, those of its row along y."""
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
    return Lattice(*axes, list(both[0].coarse), list(both[1].coarse), axes=both)


def sized(grids: list[list[Grid]], labels: list[str]) -> list[list[Grid]]:
    """Return the grids with cells as large as the figure has room for, and labels turned if they need it."""
    every = [grid for row in grids for grid in row]
    lines = 1 + max(label.count("\n") for label in labels)
    texts = max(len(text) for grid in every for text in distinct_texts(grid.ys))
    slot = (WIDTH - 0.35 - 0.15 * lines - 0.06 * texts) / len(grids[0]) - 0.1
    wide, high = (max(grid.shape[axis] for grid in every) for axis in (0, 1))
    tall = sum(max(grid.shape[1] for grid in row) for row in grids)
    cell = min(LARGEST_CELL, slot / wide, TALLEST_PANEL / high, TALLEST_MAP / tall)
    turn = 90 * any(replace(grid, cell=cell).is_crowded for grid in every)
    return [[replace(grid, cell=cell, turn=turn) for grid in row] for row in grids]


def of_both_parts(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that train both V and attention; all if there are none."""
    if not {"value", "embedding", "attention"} <= {*cells}:
        return cells
    found = cells.loc[trains_both(cells)]
    return found if len(found) else cells


def check_arguments(
    cells: pd.DataFrame, view: str, x: str | None, y: str | None, panel: Sequence[str] = ()
) -> None:
    """Raise a UserError that says what cannot be drawn."""
    if view not in VIEWS:
        raise UserError(f"unknown view {view!r}; allowed: {', '.join(VIEWS)}")
    if cells.empty:
        raise UserError("there is no cell to draw; a map needs at least one finished trial")
    allowed = settings_in(cells)
    for name in (x or AXES[0], y or AXES[1], *panel):
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


def column_title(cells: pd.DataFrame, column: Combination, by: list[str], shown: Iterable[str]) -> str:
    """Return the settings of a column, and a line for each other one that only columns differ in."""
    own = only_here(cells, column, by, shown)
    values = having(cells, column).iloc[0]
    return "\n".join(filter(None, [", ".join(described(column, column)), *described(values, own)]))


def row_label(
    cells: pd.DataFrame, row: Combination, columns: list[Combination], by: list[str], shown: tuple[str, str]
) -> str:
    """Return the settings of a row of panels, those that differ with them, and the setting along y."""
    named = {name for column in columns for name in only_here(cells, column, by, shown)}
    own = [name for name in only_here(cells, row, by, shown) if name not in {*row, *named}] if row else []
    values = having(cells, row).iloc[0]
    return "\n".join([*described(row, row), *described(values, own), label(shown[1])])


def only_here(cells: pd.DataFrame, here: Combination, by: list[str], shown: Iterable[str]) -> list[str]:
    """Return the settings that vary with those of `by` only, and have one value here."""
    known = {*by, *varying(cells, SETTINGS, by), *shown}
    own = having(cells, here)
    return [name for name in varying(cells, SETTINGS) if name not in known and len(own[name].unique()) == 1]
