"""Figures 1, 2 and 10 of the paper: trained matrices as heat maps, with what theory predicts beside them.

`matrix_cells` says which trials are drawn: rows and columns of panels are settings, a panel the lowest seed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from topicjax.errors import UserError
from topicjax.store.reader import Run
from topicjax.theory.theorems import theorem2_matrix

from ..pictures import Picture, counted, label, setting_text
from .matrix_cells import OBJECTIVES, ChosenCells, choose_cells
from .matrix_panels import Panel, Panels, heat_maps
from .optima import Measured, measured_text, measured_value, optimum, optimum_error
from .trained_models import (
    Array,
    EffectiveModel,
    Frame,
    block_share,
    sizes_and_masking,
)

READING = (
    "Tokens are sorted by topic; [MASK] comes first, beyond the black line, drawn wider than a word. Single "
    "entries may lie beyond the colours."
)
BLOCKS = "the share of the variance over pairs of different words that sharing a topic explains"
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
        kinds, values = zip(*(measure(model, cell.settings) for model in cell.models), strict=True)
        rate = setting_text("learning_rate", cell.settings["learning_rate"])
        lines = [", ".join(map(label, column)), f"{rate}, {measured_text(kinds[0], *values)}"]
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
        error = measured_text("error", optimum_error(blocks, cell.settings))
        panels[row, right] = Panel(best, sizes[1], "squared", "theory: optimum\n ")
        panels[row, right + 1] = Panel(blocks, sizes[1], "squared", f"theory: Theorem 2\n{error}")
    is_trained = any(cell.settings["attention"] == "trained" for cell in chosen.cells.values())
    sentences = [
        "Optimum: W^V of least squared loss under uniform attention for the row's documents, keys and L2; "
        "Theorem 2: infinite documents, all keys, no L2"
        + ("; both are for the first stage: here attention was trained too." if is_trained else "."),
        "Error: Frobenius distance to the optimum over its norm, without [MASK] where it is no key.",
    ]
    return panels, sentences if panels else []


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
