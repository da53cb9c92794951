"""Maps of many values: neighbours along an axis share a place, and a cell holds all their trials."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..frames import distinct
from ..one_layer.cells import score_cells
from ..pictures import label

MOST_VALUES = 40  # along an axis of a map; more would be narrower than a line
PARTS = ("value", "embedding", "attention")


def pool_axes(
    cells: pd.DataFrame, scores: pd.DataFrame, columns: Sequence[str], rows: Sequence[str], x: str, y: str
) -> tuple[pd.DataFrame, list[str]]:
    """Return the cells of a map with at most MOST_VALUES values along each axis, and what was pooled.

    Each column of panels has its own values along x; those along y are shared.  If they are few the
    cells are returned as they are.  If not, values that follow each other stand in one place, under the
    middle one, and settings that belong to no axis, column or row of panels are pooled too.
    """
    middles = {x: middle_values(scores, x, columns), y: middle_values(scores, y, ())}
    pooled = [name for name, values in middles.items() if (values != scores[name]).any()]
    if not pooled:
        return cells, []
    keys = list(dict.fromkeys([*columns, *rows, x, y, *(name for name in PARTS if name in scores)]))
    sentences = [
        f"The {scores[name].nunique():,} values of {label(name)} share up to {MOST_VALUES} places per panel: "
        "a place holds neighbours, is named by the middle one, and its cell has all their trials."
        for name in pooled
    ]
    return score_cells(scores.assign(**{name: middles[name] for name in pooled}), keys), sentences


def middle_values(scores: pd.DataFrame, name: str, within: Sequence[str]) -> pd.Series:
    """Return the middle of the neighbouring values that each trial's value of a setting is pooled with.

    Neighbours are among trials of equal `within`; up to MOST_VALUES values are left as they are.
    """
    group = distinct(scores, within)[0]
    pooled: Any = scores[name].copy()
    for number in np.unique(group) if pooled.nunique() > MOST_VALUES else ():
        own = group == number
        values, place = np.unique(scores.loc[own, name].to_numpy(), return_inverse=True)
        if len(values) > MOST_VALUES:
            bins = np.arange(len(values)) * MOST_VALUES // len(values)
            edges = np.searchsorted(bins, np.arange(MOST_VALUES + 1))
            pooled[own] = values[(edges[:-1] + edges[1:] - 1) // 2][bins[place]]
    return pooled
