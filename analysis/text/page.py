"""The page of runs on text: the paper's Figure 5, with what the loss says beneath."""

import pandas as pd

from topicjax.store.reader import Run

from ..encoder.layer_tables import LOSSES
from ..frames import Frame, cell_of_rows
from ..layers import telling_settings
from ..one_layer.catalogue import Catalogue, Entry, any_run
from ..one_layer.tables import ERROR
from .figures import text_layers
from .scores import SCORES_FILE, score_text, text_cells
from .text_findings import WORDS, findings

LAYER_COLUMNS = {  # a column of the cells, and what the table calls it
    **{"layer": "layer", "trials": "trials", "shape": "shape of norms", "agreement": "share of seeds"},
    **{"onset_v": "V half way", "onset_a": "K, Q half way", "attention_then": "K, Q when V is half way"},
    **{"growth_v": "V grows by", "growth_a": "K, Q grow by"},
    **{"onset_entropy": "attention leaves its start", "passed": "loss passes unigram line"},
}


def score(run: Run, x: str | None = None, y: str | None = None) -> Frame:
    """Return the scores of all layers; they need no axes."""
    return score_text(run)


def layer_shapes(run: Run, scores: Frame) -> Frame:
    """Return one row per cell and layer: the shape of its norms, and the steps that it follows from."""
    cells = text_cells(run, scores)
    return cells[[*telling_settings(run), *LAYER_COLUMNS]].rename(columns=LAYER_COLUMNS)


def text_losses(run: Run, scores: Frame) -> Frame:
    """Return one row per cell: losses at the end with their errors, beside the unigram line."""
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


CATALOGUE = Catalogue(
    score=score,
    findings=findings,
    figures={"Figure 5 on text": (Entry("figure5", any_run, text_layers),)},
    tables={
        "Tables": (
            Entry(
                "text_losses",
                any_run,
                text_losses,
                "Held-out losses at the end with attention as trained, forced uniform and silenced in all "
                "layers, mean and standard error over seeds; the unigram line, and how far below it the loss "
                "is, with the standard error over held-out windows, which are the same for all seeds",
            ),
            Entry(
                "layer_shapes",
                any_run,
                layer_shapes,
                "Layers: shape of the norms of most seeds, and medians over seeds of the steps at which V, "
                "and K and Q, have made half of their rise",
            ),
        )
    },
    words=WORDS,
    live=False,
    replaces=("details",),  # over trials of all settings
    file=SCORES_FILE,
)
