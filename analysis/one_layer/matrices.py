"""Draw trained matrices as heat maps next to the predictions of theory (the paper's Figures 1, 2 and 10).

Cells that represent the sweep are chosen first: rows and columns of panels are settings, and a panel shows
the lowest seed of a cell.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from topicjax.errors import UserError, counted
from topicjax.experiments.one_layer.settings import SOFTMAX, AttentionWeights
from topicjax.store.reader import Run
from topicjax.theory.document_settings import DATA_SETTINGS
from topicjax.theory.theorems import theorem2_matrix

from ..frames import Array, Frame
from ..maps.layouts import having
from ..pictures import SMALL, WIDTH, Picture, label, setting_text, style
from ..topic_model import OPTIMIZERS
from .cells import MOST_SEEDS, cell_numbers
from .seed_rows import acting, short_text
from .trained_models import (
    EffectiveModel,
    Measured,
    block_share,
    colour_limit,
    effective_model,
    measured_text,
    measured_value,
    optimum,
    optimum_error,
    sizes_and_masking,
    with_weights,
)

READING = (
    "Tokens are sorted by topic; [MASK] comes first, before the black line, and is drawn wider than a word. "
    "Single entries may exceed the colour scale."
)
MEAN_MATTERS = ("scores_only", "one_plus_scores")  # attention weights that depend on a query's mean score
BLOCKS = "the share of the variance over pairs of different words that is explained by sharing a topic"
Measure = Callable[[EffectiveModel, Mapping[str, Any]], Measured]
Restore = Callable[[str], Mapping[str, Array]]  # trial id -> weights under the paper's names
OBJECTIVES = ("cross_entropy", "squared")
ROW_SETTINGS = (
    *(*DATA_SETTINGS, "l2", "attention", "value", "embedding", "output_bias", "attention_biases"),
    "attention_weights",
)
MOST_ROWS = 4  # of panels
MOST_ACROSS = 3  # panels per line
LONGEST = 28  # characters of a label at a panel's side; a longer one has one line per setting
COLOURS = 33  # of a heat map: as many as one can tell apart, since a page keeps every entry
MASK_WIDTH = 0.4  # [MASK] is drawn as wide as this share of a topic; a single row would be invisible


@dataclass(frozen=True)
class Cell:
    """All seeds of one setting, the lowest seed first."""

    settings: dict[str, Any]
    models: list[EffectiveModel]  # of the first MOST_SEEDS seeds
    trials: Frame


@dataclass(frozen=True)
class ChosenCells:
    """Cells by row and column of panels, and a sentence on each kind of trial left out."""

    rows: list[dict[str, Any]]  # per row of panels: the settings that differ between rows
    columns: list[tuple[str, str]]  # (objective, optimizer)
    cells: dict[tuple[int, tuple[str, str]], Cell]
    notes: list[str]


@dataclass(frozen=True)
class Panel:
    """One heat map of a figure."""

    matrix: Array
    words_per_topic: int
    objective: str  # panels of one objective share a colour scale
    title: str


Panels = dict[tuple[int, int], Panel]  # (row, column) of panels


def figure1(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw heat maps of W^E^T W^E, the dot products of the embeddings (Figure 1)."""
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
    """Draw heat maps of the value matrix and its predictions (Figure 2; Figure 10 if joint)."""
    trials: Frame = run.trials
    frozen = (trials["value"] != "trained") & (trials["embedding"] != "trained")
    if frozen.all():
        raise UserError("no trial trains its value matrix; allowed: value or embedding trained")
    chosen = choose_cells(trials[~frozen], run.restore)
    predictions, sentences = predicted_panels(chosen)
    panels = trained_panels(chosen, lambda model: model.U, measured_value) | predictions
    units = {"cross_entropy": "cross-entropy: logit per unit of attention"}
    units["squared"] = "squared loss: prediction per unit of attention"
    figure = heat_maps(panels, chosen, "key token (topic)", "predicted token", units)
    cells = list(chosen.cells.values())
    name = "W^V" if all(cell.models[0].E is None for cell in cells) else "W^E^T W^V W^E"
    caption = [
        f"Value matrix {name} at the end of training: how attention to the column's token changes the "
        "prediction of the row's token.",
        READING,
        *sentences,
    ]
    if any(optimum(cell.settings) is None for cell in cells):
        caption.append(f"Blocks, where no optimum is known: {BLOCKS}.")
    caption += [seeds(chosen), *chosen.notes]
    title = "Value matrices of the trained models" + (" and their predictions" if predictions else "")
    return Picture(figure, title, " ".join(caption), spoken("the value matrix", chosen, measured_value))


def dot_products(model: EffectiveModel) -> Array:
    """Compute W^E^T W^E; the identity for one-hot embeddings."""
    return np.eye(len(model.U)) if model.E is None else model.E


def embedding_blocks(model: EffectiveModel, settings: Mapping[str, Any]) -> Measured:
    """Measure the share of the variance of the embeddings' dot products that sharing a topic explains."""
    return "blocks", block_share(dot_products(model), int(settings["words_per_topic"]))


def trained_panels(
    chosen: ChosenCells, matrix: Callable[[EffectiveModel], Array], measure: Measure
) -> Panels:
    """Make a panel for each cell: its lowest seed, with the range of the measured value in the title."""
    panels = {}
    for (row, column), cell in chosen.cells.items():
        kinds, values = zip(*(measure(model, cell.settings) for model in cell.models), strict=True)
        rate = setting_text("learning_rate", cell.settings["learning_rate"])
        lines = [", ".join(map(label, column)), f"{rate}, {measured_text(kinds[0], *values)}"]
        words = int(cell.settings["words_per_topic"])
        place = row, chosen.columns.index(column)
        panels[place] = Panel(matrix(cell.models[0]), words, column[0], "\n".join(lines))
    return panels


def predicted_panels(chosen: ChosenCells) -> tuple[Panels, list[str]]:
    """Make two more columns, the optimum of each row and Theorem 2's matrix, and sentences on them."""
    panels: Panels = {}
    right = len(chosen.columns)
    for (row, _), cell in chosen.cells.items():
        best = optimum(cell.settings)
        if best is None or (row, right) in panels:
            continue
        sizes = sizes_and_masking(cell.settings)
        blocks = theorem2_matrix(*sizes)
        error = measured_text("error", optimum_error(blocks, cell.settings))
        panels[row, right] = Panel(best, sizes[1], "squared", "theory: optimum\n ")
        panels[row, right + 1] = Panel(blocks, sizes[1], "squared", f"theory: Theorem 2\n{error}")
    is_trained = any(cell.settings["attention"] == "trained" for cell in chosen.cells.values())
    sentences = [
        "Optimum: W^V of least squared loss under uniform attention for the row's documents, keys and L2; "
        "Theorem 2: infinite documents, all keys, no L2"
        + ("; both describe the first stage: here attention was trained too." if is_trained else "."),
        "Error: Frobenius distance to the optimum over its norm, without [MASK] where it is not a key.",
    ]
    return panels, sentences if panels else []


def seeds(chosen: ChosenCells) -> str:
    """Say which seed is drawn, and how many seeds the ranges in the titles cover."""
    counts = sorted({len(cell.models) for cell in chosen.cells.values()})
    if counts[-1] == 1:
        return "Every panel is a single seed."
    span = counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Panels show the lowest seed; numbers are ranges over {span} seeds."


def spoken(matrix: str, chosen: ChosenCells, measure: Measure) -> str:
    """Write the alt text of the figure."""
    first = min(row for row, _ in chosen.cells)
    drawn = [
        f"{label(column[0])}, {label(column[1])}: {measured_text(*measure(cell.models[0], cell.settings))}"
        for (row, column), cell in chosen.cells.items()
        if row == first
    ]
    maps = counted(len(chosen.cells), "heat map")
    return f"{maps} of {matrix}, tokens sorted by topic; first row: {'; '.join(drawn)}."


def choose_cells(trials: Frame, restore: Restore) -> ChosenCells:
    """Choose the cells that represent a sweep, with the weights of their seeds.

    Columns are objective x optimizer (the first two of OPTIMIZERS that occur), rows the values of
    those ROW_SETTINGS that vary (at most MOST_ROWS, evenly spaced).  If several cells remain for a
    panel, the one with the lowest median final eval_loss over its seeds is used.
    """
    usable = with_weights(trials)
    if usable.empty:
        raise UserError(f"none of {len(trials)} trials is finite and has stored weights to draw")
    found = [name for name in OPTIMIZERS if (usable["optimizer"] == name).any()]
    pairs = [(objective, optimizer) for objective in OBJECTIVES for optimizer in found[:2]]
    names = [name for name in ROW_SETTINGS if name in usable and usable[name].nunique() > 1]
    distinct = usable[names].drop_duplicates().sort_values(names) if names else usable[[]].head(1)
    picked = np.linspace(0, len(distinct) - 1, min(MOST_ROWS, len(distinct))).round().astype(int)
    rows = [
        {str(name): value for name, value in row.items()} for row in distinct.iloc[picked].to_dict("records")
    ]
    cells = {}
    for place, row in enumerate(rows):
        for pair in pairs:
            wanted = row | {"objective": pair[0], "optimizer": pair[1]}
            frame = having(usable, wanted)
            if len(frame):
                cells[place, pair] = best_cell(frame, restore)
    columns = [pair for pair in pairs if any(pair == column for _, column in cells)]
    missing = left_out(trials, usable, found[2:], len(distinct) - len(rows), list(cells.values()))
    return ChosenCells(rows, columns, cells, missing)


def best_cell(frame: Frame, restore: Restore) -> Cell:
    """Find the cell with the lowest median final eval_loss over its seeds, and read its weights."""
    group = cell_numbers(frame)[1]
    median = frame["final_eval_loss"].groupby(group).median().fillna(np.inf)
    chosen = frame[group == median.idxmin()].sort_values("seed")
    settings = {str(name): value for name, value in chosen.iloc[0].items()}
    read = chosen["trial_id"].head(MOST_SEEDS)
    return Cell(settings, [effective_model(restore(name), settings) for name in read], chosen)


def left_out(trials: Frame, usable: Frame, optimizers: list[str], rows: int, cells: list[Cell]) -> list[str]:
    """Write a sentence for each kind of trial left out."""
    diverged = int((trials["status"] == "diverged").sum())
    without = len(trials) - diverged - len(usable)
    others = len(usable) - sum(len(cell.trials) for cell in cells)
    unread = sum(len(cell.trials) - len(cell.models) for cell in cells)
    parts = {
        f"Of {counted(len(trials), 'trial')}, {diverged} diverged.": diverged,
        f"Of {counted(len(trials), 'trial')}, {without} have no stored weights.": without,
        f"Not drawn: optimizers {', '.join(map(label, optimizers))}.": optimizers,
        f"Not drawn: {counted(rows, 'more value')} of the settings that differ between rows.": rows,
        "If several settings share a panel, the one with the lowest median held-out loss is drawn; "
        f"{counted(others, 'other trial')} not.": others,
        f"Weights are read for the {MOST_SEEDS} lowest seeds, not for {counted(unread, 'other')}.": unread,
    }
    return [sentence for sentence, holds in parts.items() if holds]


def heat_map(matrix: Array, ax: Axes, words_per_topic: int, limit: float) -> Axes:
    """Draw a V x V matrix between -limit and limit, [MASK] first and wider, lines between topics."""
    wide = max(1, round(MASK_WIDTH * words_per_topic))
    index = np.r_[np.zeros(wide, int), np.arange(1, len(matrix))]
    colours = colormaps["RdBu_r"].resampled(COLOURS)
    ax.imshow(matrix[np.ix_(index, index)], cmap=colours, vmin=-limit, vmax=limit, interpolation="none")
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
    ax.get_xticklabels()[0].set_horizontalalignment("left")  # else it would widen the margin
    ax.tick_params(length=2, pad=1.5)
    ax.spines[:].set_visible(True)
    return ax


def attention_matrix(
    S: Array, ax: Axes, words_per_topic: int, limit: float | None = None, kind: AttentionWeights = SOFTMAX
) -> Axes:
    """Draw attention scores (row = key, column = query), minus each query's mean over word keys.

    Softmax over keys does not depend on this mean; S and 1 + S do, and are drawn as they are.
    """
    centred = S if kind in MEAN_MATTERS else S - S[1:].mean(axis=0, keepdims=True)
    heat_map(centred, ax, words_per_topic, limit or colour_limit([(centred, words_per_topic)]))
    ax.set(xlabel="attending token (topic)", ylabel="seen token (topic)")
    return ax


def heat_maps(
    panels: Panels, chosen: ChosenCells, xlabel: str, ylabel: str, units: Mapping[str, str]
) -> Figure:
    """Draw the panels, with a colour bar below for each objective."""
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
    """Fold the panels into lines of at most MOST_ACROSS; return them and the row of each line.

    Wider rows are folded into lines of two, with each objective on lines of its own.
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
    """Label the left and the lower panels, and hide empty places."""
    for line, column in np.ndindex(axes.shape):
        ax = axes[line, column]
        ax.set_visible((line, column) in placed)
        texts = [short_text(name, rows[line][name]) for name in acting(rows[line])]
        names = (", " if len(", ".join(texts)) <= LONGEST else "\n").join(texts)
        if column == 0:
            ax.set_ylabel(f"{names}\n{ylabel}" if names else ylabel)
        else:
            ax.tick_params(labelleft=False)
        if (line + 1, column) in placed:
            ax.tick_params(labelbottom=False)
        else:
            ax.set_xlabel(xlabel, fontsize=SMALL)
