"""Draw maps with matplotlib: the panels of a layout, with cells coloured by class or by a number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..page.contract import Look, Page, Scores, View
from ..pictures import SMALL, WIDTH, Picture, label, sentences, style
from .cells import (
    DIVERGED,
    FINAL,
    STATUS,
    cell_table,
    class_column,
    class_views,
    first_panels,
    score_columns,
    scored_trials,
)
from .colours import shaded, weakest_shade
from .layouts import Grid, Layout, Refinement, Regions, arrange

Options = dict[str, Any]  # arguments of matplotlib
GAP = 0.94  # filled share of a place where there are gaps between neighbours
SQUARE = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * GAP / 2
CORNER = np.array([(0.25, 1), (1, 1), (1, 0.25)]) * GAP / 2
TRIANGLE = np.array([(-1, 1), (1, 1), (1, -1)])  # the corner's mark in the legend
SEAM = 0.3  # points by which neighbouring rectangles overlap; without it a light line shows between them
LEAST_TO_WRITE = 0.26  # inches
EMPTY: Options = dict(ls="", marker=".", color="0.75")  # a place without a cell
NO_VALUE: Options = dict(hatch="////", edgecolors="0.7")
ACROSS = 2  # columns of a legend


@dataclass(frozen=True)
class Blocks:
    """The cells of a panel as polygons."""

    regions: Regions
    place: float  # side of a place in inches
    is_seamless: bool = False  # neighbours touch, and cells are made of several rectangles
    filled: float = GAP  # filled share of a rectangle

    def is_large(self, inches: float = LEAST_TO_WRITE) -> np.ndarray:
        """Tell which cells have a square at least this wide."""
        return self.regions.sides * self.place >= inches

    def fill(self, ax: Axes, mask: np.ndarray, colours: Any, **options: Any) -> None:
        """Fill the cells of the mask with one colour, or with one per cell; `hatch` adds hatching."""
        chosen = mask[self.regions.whose]
        rank = np.cumsum(mask) - 1
        own = colours if isinstance(colours, str) else np.asarray(colours)[rank[self.regions.whose[chosen]]]
        boxes, look = self.regions.boxes[chosen], Options(lw=0) | options
        corners = boxes[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
        middles = corners.mean(axis=1, keepdims=True)
        shapes = list(middles + self.filled * (corners - middles))
        if self.is_seamless:
            ax.add_collection(PolyCollection(shapes, facecolors=own, edgecolors=own, lw=SEAM))
        if not self.is_seamless or options.get("hatch"):
            ground = "none" if self.is_seamless else own
            ax.add_collection(PolyCollection(shapes, facecolors=ground, **look))

    def inset(
        self, ax: Axes, mask: np.ndarray, shape: np.ndarray, colours: Any, lw: float = 0, **options: Any
    ) -> None:
        """Add the same polygon inside each cell of the mask, scaled to its square."""
        centres, sides = self.regions.centres[mask], self.regions.sides[mask]
        shapes = centres[:, None] + sides[:, None, None] * shape
        ax.add_collection(PolyCollection(list(shapes), facecolors=colours, lw=lw, **options))

    def write(self, ax: Axes, mask: np.ndarray, texts: list[str], colours: np.ndarray) -> None:
        """Write into the cells of the mask, in black or white for contrast."""
        for (x, y), text, colour in zip(self.regions.centres[mask], texts, colours, strict=True):
            ink = "black" if brightness(colour) > 0.5 else "white"
            size = SMALL if self.place < 0.36 or self.is_seamless else SMALL + 1
            ax.text(x, y, text, color=ink, fontsize=size, ha="center", va="center_baseline")


def prepare(grid: Grid, cells: pd.DataFrame, ax: Axes) -> Blocks:
    """Set up the axes, mark the places without a cell, and return the cells as polygons.

    There are gaps between neighbours unless places are small or refined.
    """
    blocks = Blocks(grid.regions(cells), grid.place, grid.refined is not None)
    ax.plot(*grid.empty(cells).T, **EMPTY, ms=min(2.5, 20 * grid.place))
    for axis, ticks, texts in zip("xy", grid.ticks, grid.texts, strict=True):
        turn, every = grid.turn if axis == "x" else 0, grid.every
        getattr(ax, f"set_{axis}ticks")(ticks[::every], texts[::every], rotation=turn, fontsize=SMALL)
    ax.set(xlabel=label(grid.x), ylabel=label(grid.y), aspect="equal")
    ax.set(xlim=(-0.5, grid.shape[0] - 0.5), ylim=(-0.5, grid.shape[1] - 0.5))
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    is_tight = blocks.is_seamless or grid.place < LEAST_TO_WRITE
    return Blocks(blocks.regions, grid.place, blocks.is_seamless, 1.0 if is_tight else GAP)


def class_panel(cells: pd.DataFrame, ax: Axes, grid: Grid, view: View, looks: Mapping[str, Look]) -> Axes:
    """Draw each cell in the colour of its class, shaded by the view's score, with its marks."""
    blocks, colours = prepare(grid, cells, ax), cell_colours(cells, view, looks)
    classes, is_large = cells[class_column(view)].to_numpy(), blocks.is_large()
    for name in np.unique(classes):
        mine = classes == name
        blocks.fill(
            ax, mine, colours[mine], hatch=looks[name].hatch or None, edgecolors=hatch_ink(looks[name])
        )
    mixed, failed, hollow = cell_marks(cells, view).T
    blocks.inset(ax, hollow & is_large, SQUARE * 0.68, "white")
    blocks.inset(ax, hollow & ~is_large, SQUARE * 0.5, "white")
    ink = np.where(classes == DIVERGED, "0.8", "black")
    line: Options = dict(edgecolors="white", lw=0.5 * is_large.any())
    blocks.inset(ax, mixed, CORNER, ink[mixed], **line)
    blocks.inset(ax, failed, CORNER * (1, -1), ink[failed], **line)
    scores = shown_scores(cells, view, looks)
    written = np.isfinite(scores) & is_large
    ground = np.where(hollow[:, None], 1.0, colours)
    blocks.write(ax, written, [f"{value:.2f}".lstrip("0") for value in scores[written]], ground[written])
    return ax


def shown_scores(cells: pd.DataFrame, view: View, looks: Mapping[str, Look]) -> np.ndarray:
    """Return the view's score of each cell; NaN for hatched classes, where it is meaningless."""
    if not view.score:
        return np.full(len(cells), np.nan)
    hatched = [name for name, look in looks.items() if look.hatch]
    return np.where(
        cells[class_column(view)].isin(hatched), np.nan, cells[view.score + view.suffix].to_numpy(float)
    )


def cell_colours(cells: pd.DataFrame, view: View, looks: Mapping[str, Look]) -> np.ndarray:
    """Return the colour of each cell's class, in its weakest shade where the view's score is 0."""
    scores = shown_scores(cells, view, looks)
    strength = np.where(np.isnan(scores), 1.0, np.clip(scores, 0, 1))
    colours = np.array([to_rgb(looks[name].colour) for name in cells[class_column(view)]]).reshape(-1, 3)
    weakest = weakest_shade(looks)
    return shaded(colours, weakest + (1 - weakest) * strength)


def cell_marks(cells: pd.DataFrame, view: View) -> np.ndarray:
    """Flag each cell: its trials disagree, a minority of them diverged, it is drawn hollow."""
    failed = (cells[DIVERGED] > 0) & (cells[class_column(view)] != DIVERGED)
    hollow = view.hollow(cells) if view.hollow else np.zeros(len(cells), bool)
    return np.stack([cells[f"agreement{view.suffix}"] < 1, failed, hollow], axis=1)


def hatch_ink(look: Look) -> str:
    """Choose the grey of a class's hatching and of its edge in the legend: lighter on dark colours."""
    bright = brightness(np.array(to_rgb(look.colour))) if look.hatch else 1.0
    return "0.6" if bright < 0.35 else "0.75" if bright < 0.5 else "0.45"


def brightness(colour: np.ndarray) -> float:
    """Compute the brightness of a colour, from 0 to 1."""
    return float(colour @ (0.3, 0.59, 0.11))


def class_legend(cells: pd.DataFrame, view: View, looks: Mapping[str, Look], empty: int) -> dict[str, Any]:
    """Make the legend handles: one per class that occurs, with its number of cells, and one per mark.

    `empty` is the number of places without a cell.
    """
    counts = cells[class_column(view)].value_counts()
    handles: dict[str, Any] = {
        f"{name}: {counts[name]}": Patch(fc=look.colour, hatch=look.hatch or None, ec=hatch_ink(look), lw=0.4)
        for name, look in looks.items()
        if name in counts
    }
    first = np.array(to_rgb(next(iter(looks.values())).colour))
    corner: Options = dict(ls="", color="black", mew=0, ms=5)
    mixed, failed, hollow = map(np.any, cell_marks(cells, view).T)
    lower = Line2D([], [], marker=(TRIANGLE * (1, -1)).tolist(), **corner)
    marks = {
        f"shade: {label(view.score)} 0, 0.5, 1": (
            tuple(Patch(fc=shaded(first, weight)) for weight in np.linspace(weakest_shade(looks), 1, 3)),
            view.score,
        ),
        view.hollow_words: (Patch(fc="white", ec="0.3", lw=2.5), hollow),
        "trials disagree": (Line2D([], [], marker=TRIANGLE.tolist(), **corner), mixed),
        "some trials diverged": (lower, failed),
        "not run or not finished": (Line2D([], [], ms=2.5, **EMPTY), empty),
    }
    return handles | {name: handle for name, (handle, occurs) in marks.items() if occurs}


def legend_below(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Explain classes and marks below the panels."""
    together = {tuple: HandlerTuple(ndivide=None, pad=0)}
    place: Options = dict(loc="outside lower center", ncols=ACROSS, title="class: number of cells; marks")
    figure.legend([*handles.values()], [*handles], handler_map=together, **place)


def value_panel(
    cells: pd.DataFrame, ax: Axes, grid: Grid, column: str, scale: ScalarMappable, form: str = ".2g"
) -> Axes:
    """Draw each cell in the colour of its value in a column; cells without a value are hatched."""
    blocks, values = prepare(grid, cells, ax), cells[column].to_numpy(float)
    known = np.isfinite(values)
    blocks.fill(ax, ~known, "white", **NO_VALUE)
    colours = np.asarray(scale.to_rgba(values))[:, :3]
    blocks.fill(ax, known, colours[known])
    written = known & blocks.is_large()
    blocks.write(ax, written, [f"{value:{form}}" for value in values[written]], colours[written])
    return ax


def colour_scale(values: np.ndarray) -> ScalarMappable:
    """Choose a colour scale: centred on zero for both signs, logarithmic for positive values over 20-fold."""
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    if low < 0 < high:
        largest = max(-low, high)
        return ScalarMappable(Normalize(-largest, largest), colormaps["PuOr"])
    if low > 0 and high > 20 * low:
        return ScalarMappable(LogNorm(low, high), colormaps["cividis"])
    return ScalarMappable(Normalize(low, high if high > low else low + 1), colormaps["cividis"])


def empty_legend(layout: Layout, hatched: int) -> list[Any]:
    """Make the legend handles for cells without a value and for places without a cell, if there are any."""
    marks = [Patch(fc="white", hatch="////", ec="0.7", lw=0.4, label="no value")] if hatched else []
    dot = Line2D([], [], ms=2.5, **EMPTY, label="not run or not finished")
    return [*marks, *([dot] if layout.empty else [])]


def class_figure(layout: Layout, view: View, looks: Mapping[str, Look]) -> Figure:
    """Draw the classes of a layout's cells, with a legend."""
    handles = class_legend(layout.cells, view, looks, layout.empty)
    with style():
        figure = Figure((WIDTH, height(layout) + 0.35 + 0.165 * ceil(len(handles) / ACROSS)))
        draw(figure, layout, lambda part, ax, grid: class_panel(part, ax, grid, view, looks))
        legend_below(figure, handles)
    return figure


def value_figure(layout: Layout, column: str, scale: ScalarMappable, name: str, form: str = ".2g") -> Figure:
    """Draw a column of a layout's cells in colours, with a colour bar of this name."""
    hatched = int((~np.isfinite(layout.cells[column].to_numpy(float))).sum())
    with style():
        handles = empty_legend(layout, hatched)
        figure = Figure((WIDTH, height(layout) + 0.65 + 0.2 * bool(handles)))
        axes = draw(figure, layout, lambda part, ax, grid: value_panel(part, ax, grid, column, scale, form))
        figure.colorbar(scale, ax=axes, label=name, location="bottom", aspect=30, pad=0.02, shrink=0.8)
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=ACROSS)
    return figure


def height(layout: Layout) -> float:
    """Compute the height in inches of a layout's panels with titles and ticks."""
    panels = sum(max(grid.shape[1] for grid in row) * row[0].place + 0.14 for row in layout.grids)
    texts = (name for row in layout.grids for grid in row for name in grid.texts[0])
    ticks = 0.06 * max(map(len, texts)) if layout.grids[0][0].turn else 0.14
    columns, rows = range(len(layout.columns)), range(len(layout.rows))
    below = sum(any(has_labels(layout, row, column) for column in columns) for row in rows)
    lines = 1 + max(title.count("\n") for title in layout.titles)
    return panels + 0.16 * lines + below * (ticks + 0.26) + 0.2


def has_labels(layout: Layout, row: int, column: int) -> bool:
    """Tell whether a panel has labels below: the next panel with cells has other values, or there is none."""
    filled = [place for place, parts in enumerate(layout.parts) if len(parts[column])]
    if row not in filled:
        return False
    below = next((place for place in filled if place > row), None)
    return below is None or layout.grids[below][column].xs != layout.grids[row][column].xs


def draw(figure: Figure | SubFigure, layout: Layout, panel: Callable[..., Axes]) -> list[Axes]:
    """Draw each panel that has cells; labels at the left, and below where the next panel has other values."""
    axes = figure.subplots(len(layout.rows), len(layout.columns), squeeze=False)
    for column, title in enumerate(layout.titles):
        for row, ax in enumerate(axes[:, column]):
            if layout.parts[row][column].empty:  # an empty panel keeps its place and the label of its row
                ax.set(xticks=[], yticks=[])
                ax.spines[:].set_visible(False)
            else:
                panel(layout.parts[row][column], ax, grid=layout.grids[row][column])
            if row == 0:
                ax.set_title(title)
            if not has_labels(layout, row, column):
                ax.set(xlabel="", xticklabels=[])
            if column > 0:
                ax.set(ylabel="", yticklabels=[])
    for row, text in zip(axes, layout.labels, strict=True):
        row[0].set_ylabel(text)
    return list(axes.flat)


def run_map(
    run: Run,
    scores: Scores,
    page: Page,
    by: str = "",
    x: str | None = None,
    y: str | None = None,
    panel: Sequence[str] = (),
) -> Picture:
    """Draw the map of any run, coloured `by` the classes of a view or by a numeric column.

    By default the map shows the classes of the first view or, if trials have none, the first final value.
    """
    trials, settings = scored_trials(run, scores, page)
    table, refined = cell_table(page, settings), Refinement.of(run.manifest)
    layout = arrange(trials, settings, table, refined, x, y, panel or first_panels(trials, settings, page))
    views, looks = class_views(trials, page)
    columns = score_columns(trials, settings)
    names = {view.name: view for view in views}
    finals = [name for name in columns if name.startswith(FINAL)]
    chosen = by or (finals[0] if views[0].name == STATUS and finals else views[0].name)
    if chosen in names:
        view = names[chosen]
        figure = class_figure(layout, view, looks)
        counts = layout.cells[class_column(view)].value_counts()
        found = ", ".join(f"{counts[name]} {name}" for name in looks if name in counts)
        title, said = f"Map of classes ({view.name})", f"Cells by class: {found}."
        words = f"Class of each cell by {view.words or view.name}: the most frequent one among its trials."
    elif chosen in columns:
        name = label(chosen.removeprefix(FINAL)) + " at the end" * chosen.startswith(FINAL)
        values = layout.cells[chosen].to_numpy(float)
        figure = value_figure(layout, chosen, colour_scale(values), name)
        title, said = f"Map of {name}", f"Colour: {name}."
        words = f"The median of {name} over the trials of a cell that have a value."
    else:
        raise UserError(f"a map by {chosen!r} is not known; allowed: {', '.join([*names, *columns])}")
    caption = sentences({f"{words} Trials of a cell differ only in the seed.": True, layout.summary: True})
    return Picture(figure, title, caption, f"{layout.alt}. {said}")
