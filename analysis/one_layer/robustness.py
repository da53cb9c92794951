"""Map of robustness: where classes survive in sweeps around one point, a panel per setting varied alone."""

from math import ceil

import pandas as pd
from matplotlib.figure import Figure

from topicjax.errors import UserError, counted
from topicjax.store.reader import Run

from ..frames import varying
from ..maps.drawing import ACROSS, cell_marks, class_legend, class_panel, legend_below
from ..maps.layouts import AXES, Grid, ordered
from ..pictures import WIDTH, Picture, distinct_texts, label, sentences, style, written
from .cells import score_cells
from .phase_maps import LOOKS, MAP_VIEWS, of_both_parts
from .single_axes import Axis, single_axes

PLACE_SIZE = 0.42  # inches
PLACE = "place"  # column of the cells of a panel: the text of the value along x
TWO_STAGE = "two-stage"
VIEW = MAP_VIEWS["loss"]


def axes_of(cells: pd.DataFrame) -> tuple[str, list[Axis]]:
    """Find the setting along y (the learning rate if it varies) and the axes that were varied alone."""
    cells = of_both_parts(cells)
    y = [*varying(cells, AXES), AXES[0]][0]
    return y, single_axes(cells, y)


def robustness(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw a map of classes per setting varied alone, with its values along x and learning rates along y."""
    y, axes = axes_of(score_cells(scores))
    if not axes:
        raise UserError("no setting is varied alone; allowed: sweeps around one point")
    cells = pd.concat([axis.cells for axis in axes]).drop_duplicates([*axes[0].cells])
    panels = [panel_grid(axis, y) for axis in axes]
    empty = sum(len(grid.empty(part)) for part, grid in panels)
    handles = class_legend(cells, VIEW, LOOKS, empty)
    rows = [panels[place : place + ACROSS] for place in range(0, len(panels), ACROSS)]
    heights = [max(grid.shape[1] for _, grid in row) * PLACE_SIZE + 0.62 for row in rows]
    with style():
        figure = Figure((WIDTH, sum(heights) + 0.35 + 0.165 * ceil(len(handles) / ACROSS)))
        slots = figure.subplots(len(rows), ACROSS, squeeze=False).ravel()
        for ax, axis, (part, grid) in zip(slots, axes, panels, strict=False):
            class_panel(part, ax, grid, VIEW, LOOKS)
            ax.set(title=", ".join(map(label, axis.settings)), xlabel="")
            ax.get_xticklabels()[axis.values.index(axis.usual)].set_fontweight("bold")
        for ax in slots[len(axes) :]:
            ax.remove()
        legend_below(figure, handles)
    return Picture(
        figure,
        f"Where the classes survive: one setting at a time, {label(y)} along y",
        caption(cells, axes, y, empty),
        f"{counted(len(axes), 'map')} of classes, one per setting varied alone, {label(y)} along y. "
        + " ".join(survival(axes, y)),
    )


def panel_grid(axis: Axis, y: str) -> tuple[pd.DataFrame, Grid]:
    """Return the cells of a panel and its grid."""
    names = value_texts(axis)
    part = axis.cells.assign(**{PLACE: [names[place] for place in axis.place]})
    return part, Grid(PLACE, y, names, ordered(part[y]), place=PLACE_SIZE)


def value_texts(axis: Axis) -> list[str]:
    """Write the values along an axis."""
    columns = [
        distinct_texts(column) if len({*column}) == len(column) else [*map(written, column)]
        for column in zip(*axis.values, strict=True)
    ]
    return ["\n".join(texts) for texts in zip(*columns, strict=True)]


def survival(axes: list[Axis], y: str) -> list[str]:
    """Say where most seeds of a cell are two-stage: with usual values; then everywhere, in part, nowhere."""
    kinds: dict[str, list[str]] = {"all": [], "some": [], "none": []}
    usual = ""
    for axis in axes:
        holds = (axis.cells["class"] == TWO_STAGE).to_numpy()
        for place, (value, text) in enumerate(zip(axis.values, value_texts(axis), strict=True)):
            own = axis.place == place
            found = sorted(axis.cells[y][own & holds].tolist())
            rates = ", ".join(map(written, found))
            if value == axis.usual:
                usual = f"With the usual values most seeds are two-stage at {label(y)} {rates or 'none'}."
                continue
            name = f"{', '.join(map(label, axis.settings))} {text.replace(chr(10), ', ')}"
            kind = "all" if len(found) == own.sum() else "some" if found else "none"
            kinds[kind].append(f"{name} (at {rates})" if kind == "some" else name)
    words = {"all": "It survives at all of them with", "some": "At some with", "none": "At none with"}
    return [usual, *(f"{words[kind]} {'; '.join(names)}." for kind, names in kinds.items() if names)]


def caption(cells: pd.DataFrame, axes: list[Axis], y: str, empty: int) -> str:
    """Say what is drawn, where the class survives, and how far seeds agree."""
    trials, (mixed, _, hollow) = cells["trials"].to_numpy(), cell_marks(cells, VIEW).sum(axis=0)
    span = sorted({trials.min(), trials.max()})
    parts = {
        f"Each panel varies one setting, or those that change together, along x and {label(y)} along y; all "
        "others have their usual values, which are bold. Colour: the most frequent class over seeds by the "
        "loss; numbers and shades: median Θ.": True,
        " ".join(survival(axes, y)): True,
        f"{counted(trials.sum(), 'trial')} in {counted(len(cells), 'cell')}, "
        f"{' to '.join(map(str, span))} per cell; {cells['diverged'].sum() or 'none'} diverged.": True,
        f"Corner: trials disagree in {counted(mixed, 'cell')}.": mixed,
        f"Hollow: in {counted(hollow, 'cell')} attention moved but in most trials is not topical.": hollow,
        f"Dots: {counted(empty, 'place')} not run or not finished.": empty,
    }
    return sentences(parts)
