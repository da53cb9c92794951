"""Helpers for the tables of a run: sort records, find settings that vary, number cells, pool quantiles."""

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from topicjax.pace import PER_DECADE, record_number
from topicjax.store.files import StoreError
from topicjax.store.reader import Run

Array = np.ndarray
Frame = Any  # a DataFrame: pandas' type annotations confuse its rows, columns and values


def once_per_run(compute: Callable[[Run], Frame]) -> Callable[[Run], Frame]:
    """Compute a table of a run once, as long as the run exists: claims, figures and tables share it."""
    known: weakref.WeakKeyDictionary[Run, Frame] = weakref.WeakKeyDictionary()

    @functools.wraps(compute)
    def remembered(run: Run) -> Frame:
        if run not in known:
            known[run] = compute(run)
        return known[run]

    return remembered


def owners(run: Run) -> np.ndarray:
    """Return the trial's row number for each record of an aligned run."""
    return np.cumsum(run.trajectories["step"].to_numpy() == 0) - 1


def varying(frame: pd.DataFrame, names: Iterable[str], within: Sequence[str] = ()) -> list[str]:
    """List the settings that take several values among rows with equal `within`."""
    found = [name for name in names if name in frame and name not in within]
    found = [name for name in found if len(frame[name].unique()) > 1]
    if not within:
        return found
    group = frame.groupby(list(within), dropna=False).ngroup()
    return [name for name in found if frame[name].groupby(group).nunique(dropna=False).to_numpy().max() > 1]


def distinct(frame: pd.DataFrame, names: Sequence[str]) -> tuple[np.ndarray, pd.DataFrame]:
    """Number each row by its combination of these columns; return the numbers and the distinct combinations.

    Combinations are numbered in order of appearance.
    """
    several = varying(frame, names)  # constant columns distinguish nothing
    if several:
        number = frame.groupby(several, dropna=False, sort=False).ngroup().to_numpy()
    else:
        number = np.zeros(len(frame), int)
    first = np.unique(number, return_index=True)[1]
    return number, frame[list(names)].iloc[first].reset_index(drop=True)


def cell_of_rows(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Number the cell of each row: rows with equal values in these columns, in the order of the values."""
    if not names:
        return np.zeros(len(frame), int)
    return frame.groupby(list(names), dropna=False).ngroup().to_numpy()


def reference_losses(run: Run, drawn: Sequence[str] = ()) -> pd.DataFrame:
    """Select the reference losses of each trial that are drawn as lines: those named, or all but errors."""
    found = run.references.set_axis(run.trials.index)
    lines = [str(name) for name in found if not str(name).endswith("_se")]
    return found.loc[:, [name for name in drawn or lines if name in found]]


def column(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column as float64."""
    return frame[name].to_numpy(float)


def bands(
    frame: pd.DataFrame,
    name: str,
    by: str | Sequence[str] = (),
    quantiles: Sequence[float] = (0.25, 0.5, 0.75),
    least: float = 0.0,
) -> pd.DataFrame:
    """Compute quantiles (q25, q50, ...) of a column over the trials of a group: a row per group and step.

    If `by` names every setting that varies, the trials of a group are its seeds.  Non-finite values are left
    out; `trials` counts the rest.  Trials stop at different steps; once few are left, their quantiles no
    longer represent the group.  Quantiles are NaN where `trials` is below the share `least` of the group's
    largest count.
    """
    keys = [by] if isinstance(by, str) else list(by)
    finite = frame[[*keys, "step"]].assign(value=frame[name].where(np.isfinite(frame[name])))
    values: Any = finite.groupby([*keys, "step"], dropna=False)["value"]
    found = values.quantile(list(quantiles)).to_numpy().reshape(-1, len(quantiles))  # sorts only once
    columns = {f"q{100 * quantile:g}": found[:, place] for place, quantile in enumerate(quantiles)}
    table = values.count().rename("trials").to_frame().assign(**columns).reset_index()
    counts: Any = table.groupby(keys, dropna=False)["trials"] if keys else None
    most = table["trials"].max() if counts is None else counts.transform("max")
    is_thin = (table["trials"] < least * most).to_numpy()
    table.loc[is_thin, list(columns)] = np.nan
    return table[[*keys, "step", *columns, "trials"]]


def measured_columns(run: Run) -> list[str]:
    """List the columns that were measured after training."""
    return [str(name) for frame in run.measured.values() for name in frame.columns[3:]]


def due_records(records: pd.DataFrame, trials: pd.DataFrame) -> np.ndarray:
    """Mark the records at which rare columns are measured; `trials` has the row of each record's trial."""
    if "rare_every" not in trials:
        return np.ones(len(records), bool)
    every = trials["record_every"].to_numpy()
    rate = trials[PER_DECADE].to_numpy() if PER_DECADE in trials else np.zeros_like(every)
    number = record_number(records["step"].to_numpy(), every, rate)
    return number % trials["rare_every"].to_numpy() == 0


def check_columns(frame: pd.DataFrame, needed: Sequence[str], place: str) -> None:
    """Raise a StoreError unless the table has the needed columns."""
    absent = [name for name in needed if name not in frame]
    if absent:
        raise StoreError(f"{place} has no column {', '.join(absent)}")


def sort_records(records: pd.DataFrame, trials: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Sort the records of these trials by trial and step; return them and the trial's row of each record."""
    code, names = pd.factorize(records["trial_id"])
    owner = pd.Index(trials["trial_id"]).get_indexer(pd.Index(names))[code]
    step = records["step"].to_numpy()
    order = np.lexsort((step, owner))
    order = order[owner[order] >= 0]
    owner, step = owner[order], step[order]
    check_records(trials["trial_id"].to_numpy(), owner, step)
    if len(order) < len(records) or (np.diff(order) != 1).any():
        records = records.take(order)
    return records.reset_index(drop=True), owner


def check_records(trial_ids: np.ndarray, owner: np.ndarray, step: np.ndarray) -> None:
    """Raise a StoreError unless each trial has step 0 and no step twice; input sorted by trial and step."""
    is_first = np.diff(owner, prepend=-1) > 0
    twice = ~is_first & (np.diff(step, prepend=-1) == 0)
    if twice.any():
        place = np.flatnonzero(twice)[0]
        raise StoreError(f"trial {trial_ids[owner[place]]} has step {step[place]} more than once")
    started = np.zeros(len(trial_ids), bool)
    started[owner[is_first & (step == 0)]] = True
    if not started.all():
        raise StoreError(f"trial {trial_ids[~started][0]} has no record at step 0")
