"""Tables of runs on text: losses compared with the unigram line, and the shapes of the layers' norms."""

import pandas as pd

from topicjax.store.reader import Run

from ..encoder.tables import LOSSES
from ..frames import Frame, cell_of_rows
from ..layers import telling_settings
from ..tables import ERROR
from .scores import text_cells

LAYER_COLUMNS = {  # column of the cells: title in the table
    **{"layer": "layer", "trials": "trials", "shape": "shape of norms", "agreement": "share of seeds"},
    **{"onset_v": "V half way", "onset_a": "K, Q half way", "attention_then": "K, Q when V is half way"},
    **{"growth_v": "V grows by", "growth_a": "K, Q grow by"},
    **{"onset_entropy": "attention leaves its start", "passed": "loss passes unigram line"},
}

CONTEXT_COLUMNS = {
    **{"layer": "layer", "trials": "trials", "passed": "loss passes unigram line"},
    **{"passed_surely": "by two standard errors", "onset_v": "V half way", "onset_a": "K, Q half way"},
    **{"v_by_then": "V's rise by then", "a_by_then": "K, Q's rise by then"},
    **{"v_around": "V rises around it by", "a_around": "K, Q rise around it by"},
    **{"uniform_then": "below the line with uniform attention", "trained_then": "attention adds"},
    **{"uniform_below": "at the end: with uniform attention", "below": "with trained attention"},
}


def context_stages(run: Run, scores: Frame) -> Frame:
    """Tabulate each layer of cells that use context: norms and losses around the step from which they do."""
    cells = text_cells(run, scores)
    cells = cells.loc[cells["passed_surely"].notna()]
    names = [*telling_settings(run), *CONTEXT_COLUMNS]
    return cells[names].rename(columns=CONTEXT_COLUMNS).reset_index(drop=True)


def layer_shapes(run: Run, scores: Frame) -> Frame:
    """Tabulate each cell and layer: the shape of its norms, and the steps from which it follows."""
    cells = text_cells(run, scores)
    return cells[[*telling_settings(run), *LAYER_COLUMNS]].rename(columns=LAYER_COLUMNS)


def text_losses(run: Run, scores: Frame) -> Frame:
    """Tabulate each cell: final losses with their errors, and the unigram line."""
    names = telling_settings(run)
    trials: Frame = run.trials.reset_index(drop=True)
    cell, ok = cell_of_rows(trials, names), (trials["status"] == "ok").to_numpy()
    columns: dict[str, Frame] = {}
    for name, (first, less) in LOSSES.items():
        values = trials[first] - (trials[less] if less else 0.0)
        groups = values.where(ok).groupby(cell)
        columns[name], columns[name + ERROR] = groups.mean(), groups.sem()
    lines = trials.loc[ok, ["final_eval_loss_unigram", "final_eval_context_se"]].groupby(cell[ok]).mean()
    columns["unigram_line"], error = (lines[name] for name in lines)
    below = {"below_unigram": columns["unigram_line"] - columns["loss"], "below_unigram" + ERROR: error}
    found = pd.DataFrame(columns | below)
    settings = trials.groupby(cell)[names].first() if names else pd.DataFrame(index=found.index)
    return settings.join(trials.groupby(cell).size().rename("trials")).join(found).reset_index(drop=True)
