"""Cells of runs of deeper models: each layer over its seeds, which layers are two-stage, who starts first."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from topicjax.store.reader import Run

from ..frames import varying
from ..maps.cells import majority
from ..one_layer.curves import Array
from ..one_layer.trained_models import Frame
from .layer_curves import ALL
from .layers import HAS_THETA, LAYER_CLASSES

FIRST = (  # settings that tell models apart, in the order in which they are said
    *("layers", "heads", "residual", "layer_norm", "mlp", "output_projection"),
    *("init", "init_scale", "optimizer", "learning_rate"),
)
ONSETS = ("onset_v", "onset_attention", "onset_entropy")
MEDIANS = (
    *("theta", "theta_reversed", "log_lag", "theta_norm", "max_p", "max_q", *ONSETS),
    *("end_entropy_deficit", "end_attn_same_topic", "end_attn_diff_topic", "topic_ratio", "topic_shift"),
    "e_block",
)
QUARTILES = ("theta", *ONSETS, "end_attn_same_topic", "end_attn_diff_topic")
EVERY, SOME, NONE = "every layer", "some layers", "no layer"  # of a model is two-stage
DIRECTIONS = ("first layer first", "last layer first", "together", "mixed")


def telling_settings(run: Run) -> list[str]:
    """Return the settings that tell cells apart: all that vary but the seed and what others decide on."""
    known = [name for name in run.setting_names if name != "seed"]
    ordered = [*(name for name in FIRST if name in known), *(name for name in known if name not in FIRST)]
    names: list[str] = []
    for name in varying(run.trials, ordered):
        names += varying(run.trials, [name], names)
    return names


def cell_of_rows(scores: Frame, names: Sequence[str]) -> Array:
    """Return the number of the cell of each row, cells in the order of their settings."""
    if not names:
        return np.zeros(len(scores), int)
    return scores.groupby(list(names), dropna=False).ngroup().to_numpy()


def layer_cells(run: Run, scores: Frame) -> Frame:
    """Return one row per cell and layer: majority classes, medians and quartiles over the seeds.

    Trials that diverged are in no median, and a class without a Theta has none; *_reached counts the trials
    that have an onset.
    """
    names = telling_settings(run)
    cell = cell_of_rows(scores, names)
    place = 1000 * cell + scores["layer"].to_numpy()  # more than there are layers
    keys, number, size = np.unique(place, return_inverse=True, return_counts=True)
    first = np.unique(place, return_index=True)[1]
    table = scores[[*names, "layer", "part"]].iloc[first].reset_index(drop=True)
    columns: dict[str, Any] = dict(cell=keys // 1000, trials=size)
    columns["diverged"] = np.bincount(number, scores["class"] == "diverged").astype(int)
    for end in ("", "_norm"):
        kinds = majority(number, scores["class" + end].to_numpy(), LAYER_CLASSES)
        columns["class" + end], columns["agreement" + end] = kinds
    values = scores[[name for name in MEDIANS if name in scores]].where(scores["is_finite"])
    groups = values.groupby(number)
    columns |= {str(name): median.to_numpy() for name, median in groups.median().items()}
    for share, end in ((0.25, "_q25"), (0.75, "_q75")):
        found = groups[list(QUARTILES)].quantile(share)
        columns |= {f"{name}{end}": found[name].to_numpy() for name in QUARTILES}
    for name in (name for name in columns if name.startswith(("theta", "log_lag"))):
        own = columns["class_norm" if name.endswith("_norm") else "class"]
        columns[name] = np.where(np.isin(own, HAS_THETA), columns[name], np.nan)
    columns |= {f"{name}_reached": groups[name].count().to_numpy() for name in ONSETS}
    return table.assign(**columns)


def models(run: Run, scores: Frame) -> Frame:
    """Return one row per cell: which of its layers are two-stage, in which order they start.

    `holds` is of the majority class of each layer; `direction` of the median over seeds of `rank_order`, by
    when attention leaves uniform, `direction_v` by V; `order` has the layers by the median onset.
    """
    names, cells = telling_settings(run), layer_cells(run, scores)
    whole, single = cells.loc[cells["layer"] == ALL], cells.loc[cells["layer"] != ALL]
    two_stage = (single["class"] == "two-stage").groupby(single["cell"])
    table = whole.drop(columns=["layer", "part"]).set_index("cell")
    table = table.assign(depth=two_stage.size(), two_stage_layers=two_stage.sum())
    table = table.fillna({"depth": 0, "two_stage_layers": 0}).astype({"depth": int, "two_stage_layers": int})
    found, depth = table["two_stage_layers"], table["depth"]
    table["holds"] = np.select([(found == depth) & (depth > 0), found > 0], [EVERY, SOME], NONE)
    cell = pd.Series(cell_of_rows(scores, names), scores.index).groupby(scores["trial_id"]).first()
    interval = record_interval(run)
    for column, end in (("onset_entropy", ""), ("onset_v", "_v")):
        rank = rank_order(scores, column, interval)
        median = rank.groupby(cell.reindex(rank.index)).median()
        table["direction" + end] = [direction(value) for value in median.reindex(table.index)]
        onsets = single.pivot(index="cell", columns="layer", values=column).reindex(table.index)
        rows = zip(onsets.to_numpy(float), table["depth"], strict=True)
        table["order" + end] = [order_text(row[:layers], interval) for row, layers in rows]
    return table.reset_index()


def rank_order(scores: Frame, onset: str, interval: float) -> pd.Series:
    """Return for each trial of several layers, +1 if its layers start one after the other from the first on.

    -1: from the last on; the mean over pairs of layers, a pair counts 0 if both start within one record.  A
    layer that never starts comes after all others; NaN if none does, or there is one layer.
    """
    single = scores.loc[(scores["layer"] != ALL) & scores["is_finite"]]
    there = single.assign(start=single[onset].fillna(np.inf)).pivot(
        index="trial_id", columns="layer", values="start"
    )
    start = there.to_numpy(float)
    pairs = [pair_signs(one, other, interval) for one, other in combinations(start.T, 2)]
    signs = np.column_stack(pairs) if pairs else np.full((len(start), 1), np.nan)
    known = np.isfinite(signs).sum(axis=1)
    mean = np.nansum(signs, axis=1) / np.where(known > 0, known, np.nan)
    return pd.Series(np.where(np.isfinite(start).any(axis=1), mean, np.nan), there.index)


def pair_signs(one: Array, other: Array, interval: float) -> Array:
    """Return +1 where the first starts earlier, -1 where later, 0 within one record; inf is never."""
    with np.errstate(invalid="ignore"):
        apart = other - one  # NaN where both never start
    sign = np.where(np.abs(apart) > interval, np.sign(apart), 0.0)
    return np.where(np.isnan(one) | np.isnan(other), np.nan, sign)


def direction(rank: float) -> str:
    """Return a rank order in words; empty if there is none."""
    if not np.isfinite(rank):
        return ""
    if rank == 0:
        return "together"
    return "mixed" if abs(rank) < 0.5 else DIRECTIONS[0 if rank > 0 else 1]


def order_text(onsets: Sequence[float], interval: float) -> str:
    """Return the layers in the order of their onsets: "2 < 1 ≈ 3; never 4"; ≈ is within one record."""
    start = sorted((step, layer) for layer, step in enumerate(onsets, 1) if np.isfinite(step))
    text = "".join(
        str(layer) if not place else f" {'≈' if step - start[place - 1][0] <= interval else '<'} {layer}"
        for place, (step, layer) in enumerate(start)
    )
    never = [str(layer) for layer, step in enumerate(onsets, 1) if not np.isfinite(step)]
    return "; ".join([text] * bool(text) + [f"never {', '.join(never)}"] * bool(never)) or "-"


def record_interval(run: Run) -> float:
    """Return the steps from one record to the next, the largest of the run."""
    return float(run.trials["record_every"].to_numpy().max()) if "record_every" in run.trials else 0.0
