"""Maps over two settings: class, Theta and log lag of every cell, and where the views disagree.

A column of panels per objective and optimizer, a row per combination of whatever else varies.  The axes are
learning rate and init scale; one that does not vary within a column gives way to a setting that does.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from analysis.frames import SETTINGS
from analysis.pictures import CLASS_COLOURS, CLASS_HATCHES, WIDTH, Picture, label, style
from analysis.stages import CLASSES, CUTS, VIEWS, score_cells

Settings = dict[str, Any]
AXES = ("learning_rate", "init_scale")
MOST_COLUMNS, MOST_ROWS = 4, 6  # of panels
LARGEST_CELL, TALLEST_PANEL, LEAST_TO_WRITE = 0.42, 2.3, 0.24  # inches
ATTENDS = ("two-stage", "overlapping", "simultaneous", "reversed", "compensated", "attention-only")
VIEW_WORDS = {
    "loss": "the loss split (progress of V and gain by attention against the limit lines)",
    "order": "the order parameters (value blocks and topical attention scores)",
    "norm": "the norms of W^V and of W^K and W^Q",
}
SQUARE = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * 0.47
CORNER = np.array([(0.25, 1), (1, 1), (1, 0.25)]) * 0.47  # turned down: some trials diverged
TRIANGLE = np.array([(-1, 1), (1, 1), (1, -1)])  # the corner's mark in the legend
LOWER, UPPER = SQUARE[[0, 1, 3]], SQUARE[[1, 2, 3]]
AGREE, HALVES = "0.92", "lower left: class by the loss; upper right: class by the norms"
OTHERS = {"norm": "norms", "order": "order parameters"}
LEGEND = "class: number of cells; marks"
MEANINGS = {
    "theta": "Θ (1: V is done before attention begins, 0: attention is done before V begins)",
    "log_lag": "Log lag (how many times later attention rises than V, as a natural logarithm; 0: together)",
}
EMPTY: Settings = dict(ls="", marker=".", color="0.75")  # a place without a cell


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
        return 0.052 * max(map(len, texts(self.xs))) > self.every * self.cell

    @classmethod
    def of(cls, cells: pd.DataFrame, x: str = AXES[0], y: str = AXES[1]) -> "Grid":
        """Return the grid of all values that the cells have."""
        return cls(x, y, ordered(cells[x]), ordered(cells[y]))

    def places(self, cells: pd.DataFrame) -> np.ndarray:
        """Return column and row of each cell, or raise if two share a place."""
        pairs = [
            pd.Index(v).get_indexer(pd.Index(cells[n])) for n, v in ((self.x, self.xs), (self.y, self.ys))
        ]
        places = np.stack(pairs, axis=1)
        if len(np.unique(places, axis=0)) < len(places):
            raise ValueError(
                f"a panel has two cells of equal {self.x} and {self.y}; select those of one panel"
            )
        return places

    def prepare(self, cells: pd.DataFrame, ax: Axes) -> np.ndarray:
        """Set up the axes, mark the places without a cell, and return the places of the cells."""
        places, shape = self.places(cells), (len(self.xs), len(self.ys))
        is_empty = np.ones(shape, bool)
        is_empty[tuple(places.T)] = False
        ax.plot(*np.nonzero(is_empty), **EMPTY, ms=min(2.5, 20 * self.cell))
        every, names = self.every, (texts(self.xs), texts(self.ys))
        ax.set_xticks(range(0, shape[0], every), names[0][::every], rotation=self.turn, fontsize=6)
        ax.set_yticks(range(0, shape[1], every), names[1][::every], fontsize=6)
        ax.set(xlabel=label(self.x), ylabel=label(self.y), aspect="equal")
        ax.set(xlim=(-0.5, shape[0] - 0.5), ylim=(-0.5, shape[1] - 0.5))
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        return places


@dataclass(frozen=True)
class Layout:
    """Which panels a map has, and the cells they show."""

    cells: pd.DataFrame  # of the panels that are drawn
    columns: list[Settings]
    rows: list[Settings]
    grids: list[list[Grid]]  # per row and column
    titles: list[str]  # per column
    left_out: int  # rows of panels that are not drawn
    along: list[str]  # settings that differ too, but only together with an axis

    @property
    def height(self) -> float:
        """Inches of the figure without a legend."""
        grids = self.grids
        panels = sum(len(row[0].ys) * row[0].cell for row in grids) + 0.12 * len(grids)
        ticks = 0.05 * max(len(name) for grid in grids[-1] for name in texts(grid.xs))
        lines = 1 + max(title.count("\n") for title in self.titles)
        return panels + 0.16 * lines + (ticks if grids[0][0].turn else 0.12) + 0.35

    @property
    def empty(self) -> int:
        """Number of places without a cell."""
        return sum(len(grid.xs) * len(grid.ys) for row in self.grids for grid in row) - len(self.cells)

    @property
    def summary(self) -> str:
        """Sentences on the number of trials, and on what is not there."""
        trials, diverged = self.cells["trials"].to_numpy(), self.cells["diverged"].sum()
        span = f"{trials.min()}" if trials.min() == trials.max() else f"{trials.min()} to {trials.max()}"
        also = ", ".join(map(label, self.along))
        sentences = {
            f"{trials.sum()} trials in {len(trials)} cells, {span} a cell; {diverged} trials diverged.": True,
            f"A dot marks each of {self.empty} places that were not run or have not finished.": self.empty,
            f"Along the axes these settings change as well: {also}.": also,
            f"{self.left_out} more rows of panels are not drawn.": self.left_out,
        }
        return " ".join(sentence for sentence, holds in sentences.items() if holds)

    @property
    def alt(self) -> str:
        """What the panels are."""
        grid = self.grids[0][0]
        panels = len(self.rows) * len(self.columns)
        return f"Map of {label(grid.x)} against {label(grid.y)}, {panels} panel{'s' * (panels > 1)}"


def arrange(cells: pd.DataFrame, view: str, x: str | None, y: str | None, room: float = 0.0) -> Layout:
    """Return the panels of a map: what varies at a fixed place of both axes gets rows of its own."""
    check(cells, view, x, y)
    by = [name for name in ("objective", "optimizer") if name in cells and name not in (x, y)]
    by = by if len(cells[by].drop_duplicates()) <= MOST_COLUMNS else by[-1:]
    x, y = choose_axes(cells, by, x, y)
    beside = [name for name in varying(cells, [*by, x]) if name in varying(cells, [*by, y])]
    columns, rows = combinations(cells, by), combinations(cells, beside)
    drawn = pd.concat([select(cells, row) for row in rows[:MOST_ROWS]])
    xs = [ordered(select(drawn, column)[x]) for column in columns]
    ys = [ordered(select(drawn, row)[y]) for row in rows[:MOST_ROWS]]
    margin = 0.5 + room + 0.15 * len(beside) + 0.06 * max(len(name) for up in ys for name in texts(up))
    slot = (WIDTH - margin) / len(columns) - 0.1
    cell = min(LARGEST_CELL, slot / max(map(len, xs)), TALLEST_PANEL / max(map(len, ys)))
    turn = 90 * any(Grid(x, y, along, [], cell).is_crowded for along in xs)
    return Layout(
        drawn,
        columns,
        rows[:MOST_ROWS],
        grids=[[Grid(x, y, along, up, cell, turn) for along in xs] for up in ys],
        titles=[column_title(cells, column, (x, y)) for column in columns],
        left_out=max(0, len(rows) - MOST_ROWS),
        along=[name for name in varying(cells, by) if name not in (x, y, *beside)],
    )


def check(cells: pd.DataFrame, view: str, x: str | None, y: str | None) -> None:
    """Raise one sentence on what cannot be drawn."""
    if view not in VIEWS:
        raise ValueError(f"unknown view {view!r}; allowed: {', '.join(VIEWS)}")
    if cells.empty:
        raise ValueError("there is no cell to draw; a map needs at least one finished trial")
    allowed = [name for name in SETTINGS if name in cells]
    for name in (x or AXES[0], y or AXES[1]):
        if name not in allowed:
            raise ValueError(f"the cells have no setting {name!r}; allowed: {', '.join(allowed)}")
    if x and x == y:
        raise ValueError(f"x and y are both {x!r}; allowed: two different settings")


def choose_axes(cells: pd.DataFrame, by: list[str], x: str | None, y: str | None) -> tuple[str, str]:
    """Return the axes: learning rate and init scale where they vary, else what has the most values."""
    chosen, usual = dict(x=x, y=y), dict(y=AXES[1], x=AXES[0])
    for axis, name in usual.items():
        if name in varying(cells, by) and name not in chosen.values():
            chosen[axis] = chosen[axis] or name
    for axis, name in usual.items():
        taken = [other for other in chosen.values() if other]
        found = varying(cells, [*by, *taken])
        found.sort(key=lambda other: (other not in AXES, -cells[other].nunique()))
        spare = [other for other in (name, *AXES) if other not in taken]
        chosen[axis] = chosen[axis] or [*found, *spare][0]
    return str(chosen["x"]), str(chosen["y"])


def varying(cells: pd.DataFrame, keys: list[str]) -> list[str]:
    """Return the settings that take several values among cells of equal keys."""
    names = [name for name in SETTINGS if name in cells and name not in keys and len({*cells[name]}) > 1]
    group = cells.groupby(keys, dropna=False).ngroup() if keys else np.zeros(len(cells))
    return [name for name in names if cells[name].groupby(group).nunique(dropna=False).to_numpy().max() > 1]


def combinations(cells: pd.DataFrame, names: list[str]) -> list[Settings]:
    """Return the combinations of these settings that occur, in order; one without any if there are none."""
    if not names:
        return [{}]
    return [
        dict(zip(names, row, strict=True)) for row in sorted({*zip(*(cells[n] for n in names), strict=True)})
    ]


def select(cells: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Return the cells that have these settings."""
    for name, value in settings.items():
        cells = cells.loc[(cells[name] == value).to_numpy()]
    return cells


def column_title(cells: pd.DataFrame, column: Settings, shown: Iterable[str]) -> str:
    """Return the settings of a column, and a line for each other one that only columns differ in."""
    by = list(column)
    known = {*by, *varying(cells, by), *shown}
    own = [name for name in varying(cells, []) if name not in known]
    values = select(cells, column).iloc[0]
    lines = [f"{label(name)} {text(values[name], 4)}" for name in own]
    return "\n".join([", ".join(text(value) for value in column.values()), *lines])


def ordered(values: Any) -> list[Any]:
    """Return the distinct values, ascending."""
    return sorted(values.unique().tolist())


def texts(values: list[Any]) -> list[str]:
    """Return the values with two digits, or as many as tell them apart."""
    tries = ([text(value, digits) for value in values] for digits in range(2, 18))
    return next(names for names in tries if len({*names}) == len(names))


def text(value: Any, digits: int = 2) -> str:
    """Return a setting as a reader writes it."""
    if not isinstance(value, float):
        return label(value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return np.format_float_positional(value, digits, unique=False, fractional=False, trim="-")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def draw(figure: Figure | SubFigure, layout: Layout, panel: Callable[..., Axes]) -> list[Axes]:
    """Draw each panel; ticks and labels at the left and at the bottom only."""
    axes = figure.subplots(len(layout.rows), len(layout.columns), squeeze=False)
    for row, settings in enumerate(layout.rows):
        for column, ax in enumerate(axes[row]):
            part = select(select(layout.cells, settings), layout.columns[column])
            panel(part, ax, grid=layout.grids[row][column])
            if row == 0:
                ax.set_title(layout.titles[column])
            if row < len(layout.rows) - 1:
                ax.set(xlabel="", xticklabels=[])
            if column > 0:
                ax.set(ylabel="", yticklabels=[])
        lines = [f"{label(name)}: {text(value, 4)}" for name, value in settings.items()]
        axes[row][0].set_ylabel("\n".join([*lines, axes[row][0].get_ylabel()]))
    return list(axes.flat)


def phase_map(cells: pd.DataFrame, view: str = "loss", x: str | None = None, y: str | None = None) -> Picture:
    """Return the map of classes with Theta as shade; the caption says if more than six rows are cut."""
    layout, end = arrange(cells, view, x, y), VIEWS.get(view, "")
    handles = phase_legend(layout, view)
    with style():
        figure = Figure((WIDTH, layout.height + 0.35 + 0.16 * ceil(len(handles) / 4)), layout="constrained")
        draw(figure, layout, lambda part, ax, grid: phase_panel(part, ax, view, grid))
        together = {tuple: HandlerTuple(ndivide=None, pad=0)}
        names, marks = list(handles), list(handles.values())
        figure.legend(marks, names, loc="outside lower center", ncols=4, handler_map=together, title=LEGEND)
    counts = layout.cells["class" + end].value_counts()
    hollow, mixed = is_not_topical(layout.cells, view).sum(), is_mixed(layout.cells, view)[0].sum()
    caption = (
        f"Class of each cell by {VIEW_WORDS[view]}: the most frequent one among its trials, which differ "
        f"in the seed. Paler means a lower Θ (median over the trials; 1: V is done before attention begins). "
        f"{layout.summary} Trials disagree in {mixed} cells (corner). In {hollow} cells attention moved but "
        f"in most trials never became topical (hollow). {counts.get('unfinished', 0)} cells are unfinished: "
        f"the loss came less than {CUTS.finished:.0%} of the way to the stage-1 line."
    )
    found = ", ".join(f"{counts[name]} {name}" for name in CLASS_COLOURS if name in counts)
    return Picture(figure, f"Classes in the {view} view", caption, f"{layout.alt}. Cells by class: {found}.")


def theta_map(cells: pd.DataFrame, view: str = "loss", x: str | None = None, y: str | None = None) -> Picture:
    """Return the map of Theta: 1 where V is done before attention begins."""
    return heat_map(arrange(cells, view, x, y, 0.55), "theta", view)


def log_lag_map(
    cells: pd.DataFrame, view: str = "loss", x: str | None = None, y: str | None = None
) -> Picture:
    """Return the map of log lag: positive where V is ahead of attention."""
    return heat_map(arrange(cells, view, x, y, 0.55), "log_lag", view)


def heat_map(layout: Layout, name: str, view: str) -> Picture:
    """Return a map of theta or log_lag with its colour bar."""
    values = layout.cells[name + VIEWS[view]].to_numpy(float)
    finite = values[np.isfinite(values)]
    largest = max(np.abs(finite).max(initial=0), 1e-3)
    limits = (0.0, 1.0) if name == "theta" else (-largest, largest)
    scale = ScalarMappable(Normalize(*limits), colormaps["cividis" if name == "theta" else "PuOr"])
    with style():
        figure = Figure((WIDTH, layout.height), layout="constrained")
        axes = draw(
            figure, layout, lambda part, ax, grid: heat_panel(part, ax, name + VIEWS[view], scale, grid)
        )
        figure.colorbar(scale, ax=axes, label=label(name), aspect=25, pad=0.04)
    span = f"{finite.min():.2f} to {finite.max():.2f}" if len(finite) else "none"
    caption = (
        f"{MEANINGS[name]}, median over the trials of a cell, by {VIEW_WORDS[view]}; values: {span}. "
        f"{layout.summary} {len(values) - len(finite)} cells have no value (hatched): all trials diverged, "
        f"a part is frozen, or there is no limit line."
    )
    title = f"{label(name)} in the {view} view"
    return Picture(figure, title[0].upper() + title[1:], caption, f"{layout.alt}. {label(name)}: {span}.")


def view_disagreement(scores: pd.DataFrame, x: str | None = None, y: str | None = None) -> Picture:
    """Return the classes of the loss view against the other two, and the cells where the norms disagree."""
    layout = arrange(score_cells(scores) if len(scores) else scores, "loss", x, y)
    cells, same = layout.cells, {view: scores["class"] == scores["class" + VIEWS[view]] for view in VIEWS}
    differs = cells["class"] != cells["class_norm"]
    seen = {*cells["class"][differs], *cells["class_norm"][differs]}
    handles = [Patch(fc=CLASS_COLOURS[name], ec="0.6", label=name) for name in CLASS_COLOURS if name in seen]
    above, below = 1.25 + 0.2 * class_counts(scores).any(axis=1).sum(), layout.height + 0.5
    with style():
        figure = Figure((WIDTH, above + below), layout="constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=[above, below])
        tables, maps = parts
        for ax, view in zip(tables.subplots(1, 2), ("norm", "order"), strict=True):
            cross_panel(scores, ax, view)
        draw(maps, layout, disagreement_panel)
        handles += [Patch(fc=AGREE, label="loss and norms agree")]
        maps.legend(handles=handles, loc="outside lower center", ncols=5, title=HALVES)
    agree = " and ".join(f"{same[view].sum()} by the {words}" for view, words in OTHERS.items())
    caption = (
        f"Above: trials by their class in the loss view (rows) and in another view (columns). "
        f"Of {len(scores)} trials, the same class have {agree} (framed). Whether a trial diverged, learned "
        f"and finished is read from the loss in every view. Below: in {differs.sum()} of {len(cells)} cells "
        f"the most frequent class differs between loss (lower left) and norms (upper right). {layout.summary}"
    )
    alt = f"Of {len(scores)} trials, the same class as in the loss view have {agree}. {layout.alt}."
    return Picture(figure, "Where the views disagree", caption, alt)


def class_counts(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the number of trials per class (every class, in order) in each view."""
    counts = {view: scores["class" + end].value_counts() for view, end in VIEWS.items()}
    return pd.DataFrame(counts).reindex(CLASSES).fillna(0).astype(int).rename_axis("class")


def shapes(
    ax: Axes, places: np.ndarray, shape: np.ndarray, colours: Any, lw: float = 0, **options: Any
) -> None:
    """Add the same polygon at each place."""
    ax.add_collection(PolyCollection(list(places[:, None] + shape), facecolors=colours, lw=lw, **options))


def write(ax: Axes, places: np.ndarray, words: list[str], colours: np.ndarray) -> None:
    """Write into cells, black or white, whichever is easier to read."""
    for (x, y), word, colour in zip(places, words, colours, strict=True):
        ink = "black" if colour @ (0.3, 0.59, 0.11) > 0.5 else "white"
        ax.text(x, y, word, color=ink, fontsize=6, ha="center", va="center_baseline")


def phase_panel(cells: pd.DataFrame, ax: Axes, view: str = "loss", grid: Grid | None = None) -> Axes:
    """Draw a square per cell: class as colour, Theta as shade, hollow if not topical, a corner if mixed."""
    grid, end = grid or Grid.of(cells), VIEWS[view]
    places = grid.prepare(cells, ax)
    colours, classes = shades(cells, view), cells["class" + end].to_numpy()
    for name in np.unique(classes):
        mine, hatch = classes == name, CLASS_HATCHES.get(name)
        edge = "0.6" if name == "diverged" else "0.45"
        shapes(ax, places[mine], grid.square, colours[mine], hatch=hatch, edgecolors=edge)
    hollow = is_not_topical(cells, view)
    is_large = grid.cell >= LEAST_TO_WRITE
    shapes(ax, places[hollow], SQUARE * (0.68 if is_large else 0.5), "white")
    mixed, failed = is_mixed(cells, view)
    ink = np.where(classes == "diverged", "0.8", "black")
    line: Settings = dict(edgecolors="white", lw=0.5 * is_large)
    shapes(ax, places[mixed], CORNER, ink[mixed], **line)
    shapes(ax, places[failed], CORNER * (1, -1), ink[failed], **line)
    theta = cells["theta" + end].to_numpy(float)
    told = np.isfinite(theta) & ~np.isin(classes, list(CLASS_HATCHES)) & is_large
    ground = np.where(hollow[:, None], 1.0, colours)
    write(ax, places[told], [f"{value:.2f}".lstrip("0") for value in theta[told]], ground[told])
    return ax


def shades(cells: pd.DataFrame, view: str) -> np.ndarray:
    """Return the colour of each cell's class, half as strong where Theta is 0; no shade without Theta."""
    classes, theta = cells["class" + VIEWS[view]], cells["theta" + VIEWS[view]].to_numpy(float)
    theta = np.where(classes.isin(list(CLASS_HATCHES)) | np.isnan(theta), 1.0, np.clip(theta, 0, 1))
    colours = np.array([to_rgb(CLASS_COLOURS[name]) for name in classes]).reshape(-1, 3)
    return 1 - (0.5 + 0.5 * theta[:, None]) * (1 - colours)


def is_not_topical(cells: pd.DataFrame, view: str) -> np.ndarray:
    """Return True where attention moved, yet in most trials that did not diverge never to the topics."""
    moved = cells["class" + VIEWS[view]].isin(ATTENDS)
    return (moved & (2 * cells["topical"] < cells["trials"] - cells["diverged"])).to_numpy()


def is_mixed(cells: pd.DataFrame, view: str) -> tuple[np.ndarray, np.ndarray]:
    """Return where trials of a cell disagree, and where some diverged though most did not."""
    classes, mixed = cells["class" + VIEWS[view]], cells["agreement" + VIEWS[view]] < 1
    failed = mixed & (cells["diverged"] > 0) & (classes != "diverged")
    return mixed.to_numpy(), failed.to_numpy()


def phase_legend(layout: Layout, view: str) -> dict[str, Any]:
    """Return a handle per class that occurs, with its number of cells, and per mark that occurs."""
    cells, end = layout.cells, VIEWS[view]
    counts, (mixed, failed) = cells["class" + end].value_counts(), is_mixed(cells, view)
    handles: dict[str, Any] = {}
    for name in CLASS_COLOURS:
        patch = Patch(fc=CLASS_COLOURS[name], hatch=CLASS_HATCHES.get(name), ec="0.45", lw=0.4)
        handles |= {f"{name}: {counts[name]}": patch} if name in counts else {}
    tint = [Patch(fc=1 - w * (1 - np.array(to_rgb(CLASS_COLOURS["two-stage"])))) for w in (0.5, 0.75, 1)]
    corner: Settings = dict(ls="", color="black", mew=0, ms=5)
    marks = {
        "shade: Θ 0, 0.5, 1": (tuple(tint), True),
        "attention not topical": (Patch(fc="white", ec="0.3", lw=2.5), is_not_topical(cells, view).any()),
        "trials disagree": (Line2D([], [], marker=TRIANGLE.tolist(), **corner), mixed.any()),
        "some trials diverged": (
            Line2D([], [], marker=(TRIANGLE * (1, -1)).tolist(), **corner),
            failed.any(),
        ),
        "not run or not finished": (Line2D([], [], ms=2.5, **EMPTY), layout.empty),
    }
    return handles | {name: handle for name, (handle, occurs) in marks.items() if occurs}


def heat_panel(
    cells: pd.DataFrame, ax: Axes, column: str, scale: ScalarMappable, grid: Grid | None = None
) -> Axes:
    """Draw a square per cell, its colour the value of the column; hatched where there is none."""
    grid = grid or Grid.of(cells)
    places, values = grid.prepare(cells, ax), cells[column].to_numpy(float)
    known = np.isfinite(values)
    shapes(ax, places[~known], grid.square, "white", hatch="////", edgecolors="0.7")
    colours = np.asarray(scale.to_rgba(values[known]))[:, :3]
    shapes(ax, places[known], grid.square, colours)
    if grid.cell >= LEAST_TO_WRITE:
        digits = 2 if column.startswith("theta") else 1
        write(ax, places[known], [f"{value:.{digits}f}" for value in values[known]], colours)
    return ax


def disagreement_panel(cells: pd.DataFrame, ax: Axes, grid: Grid | None = None) -> Axes:
    """Draw the class by loss (lower left) and by norms (upper right) where they differ."""
    grid = grid or Grid.of(cells)
    places, differs = grid.prepare(cells, ax), (cells["class"] != cells["class_norm"]).to_numpy()
    shapes(ax, places[~differs], grid.square, AGREE)
    for name, half in (("class", LOWER), ("class_norm", UPPER)):
        colours = [CLASS_COLOURS[kind] for kind in cells[name][differs]]
        shapes(ax, places[differs], half, colours, edgecolors="white", lw=0.4)
    return ax


def cross_panel(scores: pd.DataFrame, ax: Axes, view: str) -> Axes:
    """Draw how many trials have each class in the loss view (rows) and in another view (columns)."""
    other = scores["class" + VIEWS[view]]
    used = [[name for name in CLASSES if name in {*kinds}] for kinds in (scores["class"], other)]
    counts = pd.crosstab(scores["class"], other).reindex(index=used[0], columns=used[1]).to_numpy()
    ax.imshow(np.log1p(counts), cmap="Greys", vmin=0, vmax=1.6 * np.log1p(counts.max()), aspect="auto")
    for row, column in zip(*np.nonzero(counts), strict=True):
        ax.text(column, row, str(counts[row, column]), ha="center", va="center_baseline", fontsize=7)
    for name in {*used[0]} & {*used[1]}:
        corner = used[1].index(name) - 0.5, used[0].index(name) - 0.5
        ax.add_patch(Rectangle(corner, 1, 1, fc="none", ec="#D55E00", lw=1.2, clip_on=False))
    share = (scores["class"] == other).mean()
    ax.set(xlabel=f"class by the {OTHERS[view]}", ylabel="class by the loss split")
    ax.set_title(f"{share:.0%} of the trials agree")
    ax.set_xticks(range(len(used[1])), used[1], rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(used[0])), used[0])
    ax.tick_params(length=0)
    return ax
