"""Heat maps of matrices between token types, in lines of panels with shared colours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..pictures import SMALL, WIDTH, described, style
from .matrix_cells import ChosenCells
from .trained_models import Array, colour_limit

MOST_ACROSS = 3  # panels of a line
LONGEST = 28  # characters of a label beside a panel; more take a line per setting
MASK_WIDTH = 0.4  # [MASK] is drawn as wide as this share of a topic: one line could not be seen


@dataclass(frozen=True)
class Panel:
    """One heat map of a figure."""

    matrix: Array
    words_per_topic: int
    objective: str  # panels of one objective share their colours
    title: str


Panels = dict[tuple[int, int], Panel]  # by row and column of panels


def heat_map(matrix: Array, ax: Axes, words_per_topic: int, limit: float) -> Axes:
    """Draw a V x V matrix between -limit and limit, [MASK] first and wider, lines between topics."""
    wide = max(1, round(MASK_WIDTH * words_per_topic))
    index = np.r_[np.zeros(wide, int), np.arange(1, len(matrix))]
    ax.imshow(matrix[np.ix_(index, index)], cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    topics = (len(matrix) - 1) // words_per_topic
    edges, last = wide - 0.5 + words_per_topic * np.arange(topics), len(index) - 0.5
    for places, colour, width in ((edges[1:], "0.6", 0.25), (edges[:1], "black", 0.7)):
        ax.hlines(places, -0.5, last, color=colour, linewidth=width)
        ax.vlines(places, -0.5, last, color=colour, linewidth=width)
    named = np.array(sorted({(topics + 1) // 2, topics}))
    centres = wide + (named - 0.5) * words_per_topic - 0.5
    names = ["[MASK]", *map(str, named)]
    ax.set_xticks([(wide - 1) / 2, *centres], names, fontsize=SMALL)
    ax.set_yticks([(wide - 1) / 2, *centres], names, fontsize=SMALL)
    ax.get_xticklabels()[0].set_horizontalalignment("left")  # else it needs room beside the panel
    ax.tick_params(length=2, pad=1.5)
    ax.spines[:].set_visible(True)
    return ax


def attention_matrix(S: Array, ax: Axes, words_per_topic: int, limit: float | None = None) -> Axes:
    """Draw attention scores (row = key, column = query), each query's mean over word keys taken off.

    The softmax over keys does not see what is taken off.
    """
    centred = S - S[1:].mean(axis=0, keepdims=True)
    heat_map(centred, ax, words_per_topic, limit or colour_limit([(centred, words_per_topic)]))
    ax.set(xlabel="attending token (topic)", ylabel="seen token (topic)")
    return ax


def heat_maps(
    panels: Panels, chosen: ChosenCells, xlabel: str, ylabel: str, units: Mapping[str, str]
) -> Figure:
    """Return the figure with a colour bar below the panels for each objective."""
    placed, whose = fold(panels)
    across = 1 + max(column for _, column in placed)
    objectives = sorted({panel.objective for panel in placed.values()})
    with style():
        side = min(1.5, (WIDTH - 0.9) / across)
        height = len(whose) * (side + 0.62) + 0.55 * len(objectives) + 0.3
        figure = Figure(figsize=(WIDTH, height))
        room: dict[str, Any] = dict(pad=0.12 / height, fraction=0.25 / height, aspect=40)
        axes = figure.subplots(len(whose), across, squeeze=False)
        for objective in objectives:
            own = {place: panel for place, panel in placed.items() if panel.objective == objective}
            limit = colour_limit([(panel.matrix, panel.words_per_topic) for panel in own.values()])
            for place, panel in own.items():
                heat_map(panel.matrix, axes[place], panel.words_per_topic, limit)
                axes[place].set_title(panel.title, fontsize=SMALL)
            image = axes[next(iter(own))].images[0]
            bar = figure.colorbar(image, ax=list(axes.flat), location="bottom", extend="both", **room)
            bar.set_label(units[objective])
            bar.locator = MaxNLocator(6, symmetric=True)
        label_edges(axes, placed, [chosen.rows[row] for row in whose], xlabel, ylabel)
    return figure


def fold(panels: Panels) -> tuple[Panels, list[int]]:
    """Return the panels in lines of at most MOST_ACROSS, and the row that each line is of.

    A row of more has lines of two, those of each objective on lines of their own.
    """
    placed: Panels = {}
    whose: list[int] = []
    is_wide = len({column for _, column in panels}) > MOST_ACROSS
    for row in sorted({row for row, _ in panels}):
        own = [panels[place] for place in sorted(panels) if place[0] == row]
        kinds = dict.fromkeys(panel.objective for panel in own) if is_wide else {None: None}
        for kind in kinds:
            line = [panel for panel in own if kind in (None, panel.objective)]
            size = 2 if is_wide else MOST_ACROSS
            for first in range(0, len(line), size):
                placed |= {(len(whose), at): panel for at, panel in enumerate(line[first : first + size])}
                whose.append(row)
    return placed, whose


def label_edges(
    axes: Any, placed: Panels, rows: Sequence[Mapping[str, Any]], xlabel: str, ylabel: str
) -> None:
    """Label the left and the lower panels, and hide the places without a panel."""
    for line, column in np.ndindex(axes.shape):
        ax = axes[line, column]
        ax.set_visible((line, column) in placed)
        texts = described(rows[line], rows[line])
        names = (", " if len(", ".join(texts)) <= LONGEST else "\n").join(texts)
        if column == 0:
            ax.set_ylabel(f"{names}\n{ylabel}" if names else ylabel)
        else:
            ax.tick_params(labelleft=False)
        if (line + 1, column) in placed:
            ax.tick_params(labelbottom=False)
        else:
            ax.set_xlabel(xlabel, fontsize=SMALL)
