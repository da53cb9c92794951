"""Tables of runs of deeper models: where layers are two-stage, losses of cells, scores of layers."""

import numpy as np
import pandas as pd

from topicjax.store.reader import Run

from ..frames import Frame, cell_of_rows
from ..layers import ALL, telling_settings
from ..pictures import setting_text
from ..tables import ERROR
from ..topic_model import HELD_OUT_LINES, limit_lines
from .scores import EVERY, NONE, SOME, UNDECIDED, WHOLE_ONLY, layer_cells, models

LOSSES = {  # column of the table: (final value, final value to subtract)
    "loss": ("final_eval_loss", None),
    "loss_uniform": ("final_eval_loss_uniform", None),
    "loss_silent": ("final_eval_loss_silent", None),
    "attention_adds": ("final_eval_loss_uniform", "final_eval_loss"),
    "values_add": ("final_eval_loss_silent", "final_eval_loss_uniform"),
}
ERRORS_OF_ONE = {  # for a single seed: standard errors over documents
    "loss": "final_eval_loss_se",
    "attention_adds": "final_eval_gain_se",
    "values_add": "final_eval_value_se",
}
STAGE_LINES = {"line_stage1": "stage 1 line", "line_stage2": "stage 2 line", "line_bayes": "Bayes line"}
HELD_OUT = dict(zip(HELD_OUT_LINES, ("stage 1, held out", "stage 2, held out"), strict=True))
LAYER_COLUMNS = {  # column of the cells: title in the table
    **{"part": "layer", "trials": "trials", "diverged": "diverged", "class": "class"},
    **{"agreement": "share of seeds", "class_norm": "class by norms", "theta": "Θ"},
    **{"theta_q25": "Θ lower quartile", "theta_q75": "Θ upper quartile"},
    **{"theta_low": "Θ with P, Q ± 2 errors: from", "theta_high": "to", "theta_norm": "Θ by norms"},
    **{"onset_v": "V half way", "onset_entropy": "attention leaves its start"},
    **{"onset_attention": "attention half way", "max_p": "values add (P)", "max_q": "attention adds (Q)"},
    **{"end_attn_same_topic": "attention, same topic", "end_attn_diff_topic": "attention, different topics"},
    **{"topic_ratio": "same / different", "mask_topic_ratio": "same / different, [MASK] queries"},
}


def layer_answers(run: Run, scores: Frame) -> Frame:
    """Count for each value of each setting the cells in which every layer, some or none is two-stage.

    Cells whose layers are all two-stage or undecided are counted apart, and so are those whose layers have no
    class of their own.
    """
    names, table = telling_settings(run), models(run, scores)
    rows = []
    for name in names:
        for value, own in table.groupby(name, dropna=False):
            counts = own["holds"].value_counts()
            whole = [int((own["class"] == kind).sum()) for kind in ("two-stage", UNDECIDED)]
            found = [int(counts.get(kind, 0)) for kind in (EVERY, SOME, NONE, UNDECIDED, WHOLE_ONLY)]
            rows.append((name.replace("_", " "), setting_text(name, value), len(own), *found, *whole))
    columns = ["setting", "value", "cells", EVERY, SOME, NONE, UNDECIDED, WHOLE_ONLY]
    columns += ["all layers together", "all layers together undecided"]
    return pd.DataFrame(rows, columns=columns)


def layer_losses(run: Run, scores: Frame) -> Frame:
    """Tabulate each cell: final losses with their errors, limit lines, order of its layers.

    Errors are over seeds; for a single seed they are over its held-out documents, if recorded.
    """
    names, table = telling_settings(run), models(run, scores)
    trials: Frame = run.trials.reset_index(drop=True)
    ok = (trials["status"] == "ok").to_numpy()
    cell = cell_of_rows(trials, names)
    lines = {name: values for name, values in limit_lines(run).items() if has_values(values)}
    known: Frame = pd.DataFrame(
        {text: lines[name] for name, text in (STAGE_LINES | HELD_OUT).items() if name in lines}
    )
    columns: dict[str, pd.Series] = {}
    for name, (first, less) in LOSSES.items():
        values = trials[first] - (trials[less] if less else 0.0)
        groups = values.where(ok).groupby(cell)
        columns[name] = groups.mean()
        own = trials[ERRORS_OF_ONE[name]].where(ok).groupby(cell).mean() if name in ERRORS_OF_ONE else np.nan
        columns[name + ERROR] = groups.sem().where(groups.count() > 1, own)
    found = pd.DataFrame(columns)
    if len(known.columns):
        found = found.join(known.groupby(cell).mean())
    left = table.set_index("cell")
    words = dict(two_stage_in="holds", whole="class", attention_starts="order", V_starts="order_v")
    told = {name: left[column] for name, column in words.items()}
    return left[[*names, "trials", "diverged"]].join(found).assign(**told).reset_index(drop=True)


def layer_stages(run: Run, scores: Frame) -> Frame:
    """Tabulate each cell and layer: class in both views, Theta, onsets, gains, attention."""
    names, cells = telling_settings(run), layer_cells(run, scores)
    return cells[[*names, *LAYER_COLUMNS]].rename(columns=LAYER_COLUMNS)


def has_values(values: np.ndarray) -> bool:
    """Tell whether any value is known."""
    return bool(np.isfinite(values).any())


def has_cells(run: Run, scores: Frame) -> bool:
    """Tell whether any setting distinguishes cells."""
    return bool(telling_settings(run))


def has_layers(run: Run, scores: Frame) -> bool:
    """Tell whether any finite trial has records of its layers."""
    return bool(((scores["layer"] != ALL) & scores["is_finite"]).any())


def has_several_layers(run: Run, scores: Frame) -> bool:
    """Tell whether any finite trial has several layers."""
    return bool(((scores["layer"] > 1) & scores["is_finite"]).any())
