"""Which trained matrices are drawn: cells that stand for a sweep, in rows and columns of panels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from topicjax.errors import UserError
from topicjax.experiments.one_layer.settings import DATA_SETTINGS

from ..maps.layouts import having
from ..pictures import counted, label
from ..topic_model import OPTIMIZERS
from .cells import MOST_SEEDS, cell_numbers
from .trained_models import (
    Array,
    EffectiveModel,
    Frame,
    effective_model,
    with_weights,
)

Restore = Callable[[str], Mapping[str, Array]]  # a trial id: its weights under the paper's names
OBJECTIVES = ("cross_entropy", "squared")
ROW_SETTINGS = (*DATA_SETTINGS, "l2", "attention", "value", "embedding", "output_bias", "attention_biases")
MOST_ROWS = 4  # of panels


@dataclass(frozen=True)
class Cell:
    """All seeds of one setting, the lowest seed first."""

    settings: dict[str, Any]
    models: list[EffectiveModel]  # of the first MOST_SEEDS
    trials: Frame


@dataclass(frozen=True)
class ChosenCells:
    """Cells by row and column of panels, and a sentence on each kind of trial that is in none."""

    rows: list[dict[str, Any]]  # of panels: the settings that differ between them
    columns: list[tuple[str, str]]  # objective, optimizer
    cells: dict[tuple[int, tuple[str, str]], Cell]
    notes: list[str]


def choose_cells(trials: Frame, restore: Restore) -> ChosenCells:
    """Return the cells that stand for a sweep, with the weights of all their seeds.

    Columns are objective x optimizer (the first two of OPTIMIZERS that occur), rows the values of
    those ROW_SETTINGS that vary (at most MOST_ROWS, evenly picked).  Of the cells that remain for a
    panel the one of least median final eval_loss over its seeds is taken.
    """
    usable = with_weights(trials)
    if usable.empty:
        raise UserError(f"none of {len(trials)} trials is finite and has stored weights to draw")
    found = [name for name in OPTIMIZERS if (usable["optimizer"] == name).any()]
    pairs = [(objective, optimizer) for objective in OBJECTIVES for optimizer in found[:2]]
    names = [name for name in ROW_SETTINGS if usable[name].nunique() > 1]
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
    """Return the cell of least median final eval_loss over its seeds, with their weights."""
    group = cell_numbers(frame)[1]
    median = frame["final_eval_loss"].groupby(group).median().fillna(np.inf)
    chosen = frame[group == median.idxmin()].sort_values("seed")
    settings = {str(name): value for name, value in chosen.iloc[0].items()}
    read = chosen["trial_id"].head(MOST_SEEDS)
    return Cell(settings, [effective_model(restore(name), settings) for name in read], chosen)


def left_out(trials: Frame, usable: Frame, optimizers: list[str], rows: int, cells: list[Cell]) -> list[str]:
    """Return a sentence for each kind of trial that is in no cell."""
    diverged = int((trials["status"] == "diverged").sum())
    without = len(trials) - diverged - len(usable)
    others = len(usable) - sum(len(cell.trials) for cell in cells)
    unread = sum(len(cell.trials) - len(cell.models) for cell in cells)
    parts = {
        f"Of {counted(len(trials), 'trial')} {diverged} diverged.": diverged,
        f"Of {counted(len(trials), 'trial')} {without} have no stored weights.": without,
        f"Not drawn: optimizers {', '.join(map(label, optimizers))}.": optimizers,
        f"Not drawn: {counted(rows, 'further value')} of the settings that differ between rows.": rows,
        "Of several settings for a panel the one of least median held-out loss is drawn; "
        f"{counted(others, 'other trial')} not.": others,
        f"Weights are read of the {MOST_SEEDS} lowest seeds of a panel, not of {counted(unread, 'other')}.": (
            unread
        ),
    }
    return [sentence for sentence, holds in parts.items() if holds]
