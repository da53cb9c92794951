"""Cells (trials that differ only in the seed): medians, majority class, and sensitivity to the cuts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from topicjax.errors import counted
from topicjax.settings import SEEDS
from topicjax.stages import Array
from topicjax.theory.progress import CUTS, Cuts

from ..frames import distinct, varying
from ..maps.cells import majority
from ..pictures import MOST_VALUES, described, first_of, setting_text, written
from ..topic_model import settings_in
from .scores import CLASSES, HAS_STAGE2, VIEWS, classify, is_topical

RANGED = ("learning_rate", "init_scale")  # the axes of a map: sentences give their ranges
STEPS = ("steps", "until", "record_every")  # how long, and how often measured: left out of sentences
MOST_SEEDS = 32  # per cell whose weights are read
SCORES = ("theta", "theta_reversed", "log_lag", "onset_v", "onset_attention")


def score_cells(scores: pd.DataFrame, by: Sequence[str] | None = None) -> pd.DataFrame:
    """Summarise cells: trials with equal `by`, by default with equal settings except the seed.

    trials, diverged and topical are counts.  Each view has theta, theta_q25 and theta_q75 (over the trials
    that have one; NaN where the class says that stage 2 did not happen), medians of the other scores, the
    majority class, and its share, agreement.
    """
    keys, cell = cell_numbers(scores, by)
    cells = scores[keys].iloc[np.unique(cell, return_index=True)[1]].reset_index(drop=True)
    columns: dict[str, Array] = {
        "trials": np.bincount(cell),
        "diverged": np.bincount(cell, scores["class"] == "diverged").astype(int),
        "topical": np.bincount(cell, is_topical(scores)).astype(int),
    }
    for end in VIEWS.values():
        classes = scores["class" + end].to_numpy()
        columns["class" + end], columns["agreement" + end] = majority(cell, classes, CLASSES)
        medians = scores[[name + end for name in SCORES]].groupby(cell).median()
        found = {str(name): values.to_numpy() for name, values in medians.items()}
        for share, name in ((0.25, "q25"), (0.75, "q75")):
            found[f"theta{end}_{name}"] = scores["theta" + end].groupby(cell).quantile(share).to_numpy()
        happened = np.isin(columns["class" + end], HAS_STAGE2)
        columns |= {
            name: values if name.startswith("onset") else np.where(happened, values, np.nan)
            for name, values in found.items()
        }
    return cells.assign(**columns)


def lowest_seeds(trials: Any) -> Any:
    """Select the trials whose weights are read: the MOST_SEEDS lowest seeds of each cell, in order."""
    ordered = trials.sort_values("seed", kind="stable")
    return ordered.groupby(cell_numbers(ordered)[1]).head(MOST_SEEDS) if len(trials) else trials


def cell_settings(scores: pd.DataFrame) -> list[str]:
    """List the settings that define a cell: all except the seed."""
    return [name for name in settings_in(scores) if name not in SEEDS]


def cell_numbers(scores: pd.DataFrame, by: Sequence[str] | None = None) -> tuple[list[str], Array]:
    """Return the settings that define a cell, and each trial's cell number in order of appearance."""
    keys = cell_settings(scores) if by is None else list(by)
    return keys, distinct(scores, keys)[0]


def count_cells(scores: pd.DataFrame) -> int:
    """Count the cells of the trials."""
    return len(np.unique(cell_numbers(scores)[1]))


def sensitivity(
    scores: pd.DataFrame,
    cuts: Sequence[float] = (0.8, 0.9, 0.95),
    by: Sequence[str] | None = None,
    base: Cuts = CUTS,
) -> pd.DataFrame:
    """Compute for each view and cut of Theta the share of trials and of cells that change class."""
    _, cell = cell_numbers(scores, by)
    rows = []
    for view in VIEWS:
        before = classify(scores, view, base)
        for cut in cuts:
            after = classify(scores, view, replace(base, two_stage=cut))
            cells_change = majority(cell, before, CLASSES)[0] != majority(cell, after, CLASSES)[0]
            rows.append((view, cut, (before != after).mean(), cells_change.mean()))
    return pd.DataFrame(rows, columns=["view", "cut", "trials_changed", "cells_changed"])


def where(cells: pd.DataFrame, chosen: Array) -> str:
    """Say where the chosen cells lie: how many of each combination of settings, and in which ranges.

    Learning rates and init scales are given as ranges, all other settings that vary by value; combinations
    with the most chosen cells come first.
    """
    names: list[str] = []
    for name in varying(cells, [name for name in cell_settings(cells) if name not in (*RANGED, *STEPS)]):
        names += varying(cells, [name], names)  # without those that the others determine
    number, kinds = distinct(cells, names)
    hits, sizes = np.bincount(number, chosen).astype(int), np.bincount(number)
    ranged = varying(cells, RANGED)
    parts = []
    for place in np.argsort(-hits, kind="stable")[: MOST_VALUES + 1]:  # the last one becomes '...'
        if hits[place]:
            own = cells.loc[chosen & (number == place)]
            words = [*described(kinds.loc[place], names), *(range_text(own, name) for name in ranged)]
            parts.append(f"{', '.join(words)} ({hits[place]} of {counted(int(sizes[place]), 'cell')})")
    return first_of(parts, "; ")


def range_text(cells: pd.DataFrame, name: str) -> str:
    """Write a setting with the smallest and the largest of its values."""
    values = cells[name].to_numpy(float)
    low, high = written(float(values.min())), written(float(values.max()))
    return setting_text(name, low if low == high else f"{low} to {high}")
