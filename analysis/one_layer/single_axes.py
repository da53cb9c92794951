"""Find the settings that a sweep varies alone around one point, and the cells along each of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..frames import varying
from .cells import cell_settings

Point = dict[str, Any]  # values of settings, by name


@dataclass(frozen=True)
class Axis:
    """Settings that vary together while all others have their usual values."""

    settings: list[str]
    values: list[tuple]  # values of these settings, ascending
    usual: tuple  # the value that all other axes share
    cells: pd.DataFrame
    place: np.ndarray  # per cell: which of the values it has


def single_axes(cells: pd.DataFrame, across: str) -> list[Axis]:
    """Find the axes along which the cells lie; `across`, such as the learning rate, varies everywhere.

    The usual value of a setting is its most frequent one.  Settings that differ from it in the same cell
    belong to one axis: lengths that change together are one axis, and a full grid is a single axis.  If no
    cell has all usual values, there are no axes.
    """
    names = varying(cells, [name for name in cell_settings(cells) if name != across])
    usual = {name: cells[name].mode().iloc[0] for name in names}
    differs = np.stack([(cells[name] != usual[name]).to_numpy() for name in names], 1) if names else None
    if differs is None or differs.any(axis=1).all():
        return []
    groups = joined({name for name, is_other in zip(names, row, strict=True) if is_other} for row in differs)
    groups.sort(key=lambda group: min(map(names.index, group)))
    return [
        one_axis(cells.loc[~differs[:, [name not in group for name in names]].any(axis=1)], own, usual)
        for group in groups
        for own in [[name for name in names if name in group]]
    ]


def joined(sets: Iterable[set[str]]) -> list[set[str]]:
    """Unite the sets that have a member in common."""
    found: list[set[str]] = []
    for each in sets:
        touching = [group for group in found if group & each]
        found = [group for group in found if not group & each]
        found += [each.union(*touching)] if each else []
    return found


def one_axis(cells: pd.DataFrame, settings: list[str], usual: Point) -> Axis:
    """Make the axis of these settings from its cells."""
    rows = list(zip(*(cells[name].tolist() for name in settings), strict=True))
    values = sorted(set(rows))
    return Axis(
        settings,
        values,
        tuple(usual[name] for name in settings),
        cells,
        np.array([values.index(row) for row in rows]),
    )
