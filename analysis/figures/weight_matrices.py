"""Figures 1, 2 and 10 of the paper: trained matrices as heat maps, with what theory predicts beside them.

`matrix_cells` says which trials are drawn: rows and columns of panels are settings, a panel the lowest seed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from topicjax.errors import UserError
from topicjax.store.reader import Run
from topicjax.theory.theorems import theorem2_matrix

from ..optima import Measured, measured_text, measured_value, optimum, optimum_error
from ..pictures import WIDTH, Picture, counted, described, label, setting_text, style
from ..trained_models import Array, EffectiveModel, Frame, block_share, colour_limit, sizes_and_masking
from .matrix_cells import OBJECTIVES, ChosenCells, choose_cells

MASK_WIDTH = 0.4  # [MASK] is drawn as wide as this share of a topic: one line could not be seen
READING = (
    "Tokens are sorted by topic; [MASK] comes first, beyond the black line, drawn wider than a word. Single "
    "entries may lie beyond the colours."
)
BLOCKS = "the share of the variance over pairs of different words that sharing a topic explains"


@dataclass(frozen=True)
class Panel:
    """One heat map of a figure."""

    matrix: Array
    words_per_topic: int
    objective: str  # panels of one objective share their colours
    title: str


Panels = dict[tuple[int, int], Panel]  # by row and column of panels
Measure = Callable[[EffectiveModel, Mapping[str, Any]], Measured]


def figure1(run: Run, scores: pd.DataFrame) -> Picture:
    """Return the heat maps of W^E^T W^E, the dot products of the embeddings (Figure 1)."""
    trials: Frame = run.trials
    trials = trials[trials["embedding"] != "one_hot"]
    if trials.empty:
        raise UserError("no trial has embeddings to draw; allowed: embedding trained or random")
    chosen = choose_cells(trials, run.restore)
    panels = trained_panels(chosen, dot_products, embedding_blocks)
    units = {name: f"{label(name)}: dot product" for name in OBJECTIVES}
    figure = heat_maps(panels, chosen, "token (topic)", "token (topic)", units)
    sentences = ["Dot products of the token embeddings, W^E^T W^E, at the end of training.", READING]
    sentences.append(f"Blocks: {BLOCKS}.")
    caption = " ".join([*sentences, seeds(chosen), *chosen.notes])
    title = "Dot products of the trained embeddings"
    return Picture(figure, title, caption, spoken("embedding dot products", chosen, embedding_blocks))


def figure2(run: Run, scores: pd.DataFrame) -> Picture:
    """Return the heat maps of the value matrix beside its predictions (Figure 2; Figure 10 if joint)."""
    trials: Frame = run.trials
    frozen = (trials["value"] != "trained") & (trials["embedding"] != "trained")
    if frozen.all():
        raise UserError("no trial trains its value matrix; allowed: value or embedding trained")
    chosen = choose_cells(trials[~frozen], run.restore)
    predictions, sentences = predicted_panels(chosen)
    panels = trained_panels(chosen, value_matrix, measured_value) | predictions
    units = {"cross_entropy": "cross-entropy: logit per unit of attention"}
    units["squared"] = "squared loss: prediction per unit of attention"
    figure = heat_maps(panels, chosen, "key token (topic)", "predicted token", units)
    cells = list(chosen.cells.values())
    name = "W^V" if all(cell.models[0].E is None for cell in cells) else "W^E^T W^V W^E"
    caption = [
        f"Value matrix {name} at the end of training: what attention to the column's token adds to the "
        "prediction of the row's token.",
        READING,
        *sentences,
    ]
    if any(optimum(cell.settings) is None for cell in cells):
        caption.append(f"Blocks, where no optimum is known: {BLOCKS}.")
    caption += [seeds(chosen), *chosen.notes]
    title = "Value matrices of the trained models" + (" and their predictions" if predictions else "")
    return Picture(figure, title, " ".join(caption), spoken("the value matrix", chosen, measured_value))


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
    ax.set_xticks([(wide - 1) / 2, *centres], names, fontsize=6.5)
    ax.set_yticks([(wide - 1) / 2, *centres], names, fontsize=6.5)
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


def value_matrix(model: EffectiveModel) -> Array:
    """Return the value matrix between token types."""
    return model.U


def dot_products(model: EffectiveModel) -> Array:
    """Return W^E^T W^E; the identity for one-hot embeddings."""
    return np.eye(len(model.U)) if model.E is None else model.E


def embedding_blocks(model: EffectiveModel, settings: Mapping[str, Any]) -> Measured:
    """Return how much of the variance of the embeddings' dot products sharing a topic explains."""
    return "blocks", block_share(dot_products(model), int(settings["words_per_topic"]))


def trained_panels(
    chosen: ChosenCells, matrix: Callable[[EffectiveModel], Array], measure: Measure
) -> Panels:
    """Return a panel for each cell: its lowest seed, titled with the range over seeds of what is measured."""
    panels = {}
    for (row, column), cell in chosen.cells.items():
        is_first = not any((above, column) in chosen.cells for above in range(row))
        kinds, values = zip(*(measure(model, cell.settings) for model in cell.models), strict=True)
        lines = [*map(label, column)] if is_first else []
        lines += [
            setting_text("learning_rate", cell.settings["learning_rate"]),
            measured_text(kinds[0], *values),
        ]
        words = int(cell.settings["words_per_topic"])
        place = row, chosen.columns.index(column)
        panels[place] = Panel(matrix(cell.models[0]), words, column[0], "\n".join(lines))
    return panels


def predicted_panels(chosen: ChosenCells) -> tuple[Panels, list[str]]:
    """Return two more columns, the optimum of each row and Theorem 2's matrix, and what they are."""
    panels: Panels = {}
    right = len(chosen.columns)
    for (row, _), cell in chosen.cells.items():
        best = optimum(cell.settings)
        if best is None or (row, right) in panels:
            continue
        sizes = sizes_and_masking(cell.settings)
        blocks = theorem2_matrix(*sizes)
        names = ("", "") if panels else ("theory:\noptimum\n\n", "theory:\nTheorem 2\n\n")
        titles = names[0] + " ", names[1] + measured_text("error", optimum_error(blocks, cell.settings))
        panels[row, right] = Panel(best, sizes[1], "squared", titles[0])
        panels[row, right + 1] = Panel(blocks, sizes[1], "squared", titles[1])
    is_trained = any(cell.settings["attention"] == "trained" for cell in chosen.cells.values())
    sentences = [
        "Optimum: W^V of least squared loss under uniform attention for the row's documents, keys and L2; "
        "Theorem 2: infinite documents, all keys, no L2"
        + ("; both are for the first stage: here attention was trained too." if is_trained else "."),
        "Error: Frobenius distance to the optimum over its norm, without [MASK] where it is no key.",
    ]
    return panels, sentences if panels else []


def heat_maps(
    panels: Panels, chosen: ChosenCells, xlabel: str, ylabel: str, units: Mapping[str, str]
) -> Figure:
    """Return the figure with a colour bar below the panels of each objective."""
    rows, columns = (1 + max(place[axis] for place in panels) for axis in (0, 1))
    with style():
        side = min(1.7, (WIDTH - 0.8) / columns)
        lines = [
            max(panel.title.count("\n") for (line, _), panel in panels.items() if line == row)
            for row in {place[0] for place in panels}
        ]
        figure = Figure(figsize=(WIDTH, rows * (side + 0.1) + 0.12 * sum(lines) + 1.22))
        axes = figure.subplots(rows, columns, squeeze=False)
        for objective in sorted({panel.objective for panel in panels.values()}):
            own = {place: panel for place, panel in panels.items() if panel.objective == objective}
            limit = colour_limit([(panel.matrix, panel.words_per_topic) for panel in own.values()])
            for place, panel in own.items():
                heat_map(panel.matrix, axes[place], panel.words_per_topic, limit)
                axes[place].set_title(panel.title, fontsize=7)
            under = sorted({place[1] for place in own})
            image, above = axes[next(iter(own))].images[0], axes[:, under].ravel()
            bar = figure.colorbar(image, ax=above, location="bottom", extend="both", aspect=11 * len(under))
            bar.set_label(units[objective])
            bar.locator = MaxNLocator(4 + len(under) // 3, symmetric=True)
        label_edges(axes, panels, chosen, xlabel, ylabel)
    return figure


def label_edges(axes: Any, panels: Panels, chosen: ChosenCells, xlabel: str, ylabel: str) -> None:
    """Label the left and the lower panels, and hide the places without a panel."""
    for row, column in np.ndindex(axes.shape):
        ax = axes[row, column]
        ax.set_visible((row, column) in panels)
        names = ", ".join(described(chosen.rows[row], chosen.rows[row]))
        if column == 0:
            ax.set_ylabel(f"{names}\n{ylabel}" if names else ylabel)
        else:
            ax.tick_params(labelleft=False)
        if (row + 1, column) in panels:
            ax.tick_params(labelbottom=False)
        else:
            ax.set_xlabel(xlabel, fontsize=7)


def seeds(chosen: ChosenCells) -> str:
    """Return which seed is drawn, and over how many seeds the values above the panels range."""
    counts = sorted({len(cell.models) for cell in chosen.cells.values()})
    if counts[-1] == 1:
        return "Every panel is a single seed."
    span = counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Panels show the lowest seed, numbers the range over {span} seeds."


def spoken(matrix: str, chosen: ChosenCells, measure: Measure) -> str:
    """Return the figure in a sentence, for readers who cannot see it."""
    first = min(row for row, _ in chosen.cells)
    drawn = [
        f"{label(column[0])}, {label(column[1])}: {measured_text(*measure(cell.models[0], cell.settings))}"
        for (row, column), cell in chosen.cells.items()
        if row == first
    ]
    maps = counted(len(chosen.cells), "heat map")
    return f"{maps} of {matrix}, tokens sorted by topic; first row: {'; '.join(drawn)}."
