"""What analysis adds to a run: limit lines, the order of records, settings at every record.

`aligned(run)` takes what `topicjax.load` returns and is all that scores and figures need; they call it
themselves, so a run may be handed to them as it was loaded.  `prepared(run)` joins the settings onto every
record as well: convenient to group records by, but several times the memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from topicjax.experiments.one_layer import settings as trial
from topicjax.experiments.one_layer.settings import DATA_SETTINGS
from topicjax.store.files import StoreError
from topicjax.store.reader import Run

FIRST = (  # settings that titles and tables name before all others
    *("seed", "objective", "optimizer", "learning_rate", "init", "init_scale", "l2"),
    *("attention", "value", *trial.MEMBER_SETTINGS),
    *("embedding", "embedding_dim", "embedding_scale", "attention_dim"),
    *("output_bias", "attention_biases", "momentum", "beta1", "beta2", "epsilon", "weight_decay"),
    *("batch_size", "steps", "until", "record_every", "eval_documents"),
)
SETTINGS = (*FIRST, *(name for name in trial.SETTINGS if name not in FIRST))
MAIN_SETTINGS = ("objective", "optimizer")  # figures and tables always tell these apart
LINES = ("uniform", "stage1", "stage2", "bayes")
LINE_COLUMNS = tuple(f"line_{name}" for name in LINES)
HELD_OUT_LINES = (
    "held_out_stage1",
    "held_out_stage2",
)  # of both optimal models on these documents
STAGE_LINES = {  # a limit line in manifest.json: its column among the trials
    **{name: f"line_{name}" for name in ("stage1", "stage2", "stage1_se", "stage2_se")},
    **{name: name for name in HELD_OUT_LINES},
}
NEEDED_TRIALS = (
    *("trial_id", "status", "seed", "objective", "attention", "value", "embedding"),
    *DATA_SETTINGS,
)
Array = np.ndarray
Frame = Any  # a DataFrame: the annotations of pandas confuse its rows, columns and values
NEEDED_TRAJECTORIES = (
    *("trial_id", "step", "eval_loss", "eval_loss_uniform", "norm_k", "norm_q", "norm_v"),
    *("v_block", "v_diag", "a_topic", "a_self"),
)


def aligned(run: Run) -> Run:
    """Return the run with limit lines in its trials, and its records sorted by trial and step.

    A run that is aligned already is returned as it is.
    """
    if set(LINE_COLUMNS) <= set(run.trials):
        return run
    check_columns(run.trials, NEEDED_TRIALS, f"{run.folder}/trials")
    check_columns(run.trajectories, NEEDED_TRAJECTORIES, f"{run.folder}/trajectories")
    trials = run.trials.assign(**limit_lines(run.trials, run.manifest))
    without = int(np.isnan(column(trials, "line_stage1")).sum())
    missing = run.missing
    if run.manifest and without:
        missing = (*missing, f"{without} of {len(trials)} trials have no limit lines")
    records, _ = sort_records(run.trajectories, trials)
    return run.replace(trials=trials, trajectories=records, missing=missing)


def prepared(run: Run) -> Run:
    """Return the aligned run with settings, status and limit lines at each of its records.

    A run that is prepared already is returned as it is.
    """
    if set(LINE_COLUMNS) <= set(run.trials) & set(run.trajectories):
        return run
    run = aligned(run)
    return run.replace(trajectories=join_settings(run.trajectories, run.trials))


def owners(run: Run) -> np.ndarray:
    """Return for each record of an aligned run the row of its trial."""
    return np.cumsum(run.trajectories["step"].to_numpy() == 0) - 1


def settings_in(frame: pd.DataFrame) -> list[str]:
    """Return the names of the settings that a table has as columns, in the order of SETTINGS."""
    return [name for name in SETTINGS if name in frame]


def varying(frame: pd.DataFrame, names: Iterable[str], within: Sequence[str] = ()) -> list[str]:
    """Return those of the settings that take several values among rows of equal `within`."""
    found = [name for name in names if name in frame and name not in within]
    found = [name for name in found if len(frame[name].unique()) > 1]
    if not within:
        return found
    group = frame.groupby(list(within), dropna=False).ngroup()
    return [name for name in found if frame[name].groupby(group).nunique(dropna=False).to_numpy().max() > 1]


def distinct(frame: pd.DataFrame, names: Sequence[str]) -> tuple[np.ndarray, pd.DataFrame]:
    """Return for each row the number of its combination of these columns, and the distinct combinations.

    They are numbered in order of appearance.
    """
    several = varying(frame, names)  # constant columns tell nothing apart
    if several:
        number = frame.groupby(several, dropna=False, sort=False).ngroup().to_numpy()
    else:
        number = np.zeros(len(frame), int)
    first = np.unique(number, return_index=True)[1]
    return number, frame[list(names)].iloc[first].reset_index(drop=True)


def cell_of_rows(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Number the cell of each row: the rows of equal values in these columns, in the order of the values."""
    if not names:
        return np.zeros(len(frame), int)
    return frame.groupby(list(names), dropna=False).ngroup().to_numpy()


def reference_losses(run: Run) -> pd.DataFrame:
    """Return the reference losses of each trial, a column per name; no columns if there are none."""
    found = getattr(run, "references", None)
    return pd.DataFrame(index=run.trials.index) if found is None else found.set_axis(run.trials.index)


def column(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column in double precision."""
    return frame[name].to_numpy(float)


def bands(
    frame: pd.DataFrame,
    name: str,
    by: str | Sequence[str] = (),
    quantiles: Sequence[float] = (0.25, 0.5, 0.75),
    least: float = 0.0,
) -> pd.DataFrame:
    """Return one row per group and step: quantiles (q25, q50, ...) of a column over the group's trials.

    These trials are the seeds of a group when `by` names every setting that varies.  Non-finite values
    are left out; `trials` says how many values remain.  Quantiles are NaN where this is less than the share
    `least` of the most that the group has at any step: trials may end at different steps, and whoever is
    still training does not stand for the others.
    """
    keys = [by] if isinstance(by, str) else list(by)
    finite = frame[[*keys, "step"]].assign(value=frame[name].where(np.isfinite(frame[name])))
    values: Any = finite.groupby([*keys, "step"], dropna=False)["value"]
    found = values.quantile(list(quantiles)).to_numpy().reshape(-1, len(quantiles))  # sorts once for all
    columns = {f"q{100 * quantile:g}": found[:, place] for place, quantile in enumerate(quantiles)}
    table = values.count().rename("trials").to_frame().assign(**columns).reset_index()
    counts: Any = table.groupby(keys, dropna=False)["trials"] if keys else None
    most = table["trials"].max() if counts is None else counts.transform("max")
    is_thin = (table["trials"] < least * most).to_numpy()
    table.loc[is_thin, list(columns)] = np.nan
    return table[[*keys, "step", *columns, "trials"]]


def check_columns(frame: pd.DataFrame, needed: Sequence[str], place: str) -> None:
    """Raise a StoreError unless the table has the needed columns."""
    absent = [name for name in needed if name not in frame]
    if absent:
        raise StoreError(f"{place} has no column {', '.join(absent)}")


def join_settings(records: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the records of the trials, sorted by trial and step, with settings, status and limit lines."""
    own, owner = sort_records(records, trials)
    joined = trials[[*settings_in(trials), "status", *LINE_COLUMNS]].take(owner)
    return pd.concat([own, joined.reset_index(drop=True)], axis=1)


def sort_records(records: pd.DataFrame, trials: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the records of the trials, sorted by trial and step, and the row of each one's trial."""
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
    """Raise a StoreError unless each trial has step 0 and no step twice; sorted by trial and step."""
    is_first = np.diff(owner, prepend=-1) > 0
    twice = ~is_first & (np.diff(step, prepend=-1) == 0)
    if twice.any():
        place = np.flatnonzero(twice)[0]
        raise StoreError(f"trial {trial_ids[owner[place]]} has step {step[place]} more than once")
    started = np.zeros(len(trial_ids), bool)
    started[owner[is_first & (step == 0)]] = True
    if not started.all():
        raise StoreError(f"trial {trial_ids[~started][0]} has no record at step 0")


def limit_lines(trials: pd.DataFrame, manifest: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the limit lines of each trial, NaN where there are none, and their standard errors, *_se.

    line_* are those over all documents, held_out_* those on the trial's held-out documents.  Settings are
    compared exactly: both JSON and parquet keep every digit.
    """
    names = [f"{name}{end}" for end in ("", "_se") for name in (*LINES, *HELD_OUT_LINES)]
    columns = line_values(trials, manifest, names)
    return {name if name.startswith("held_out") else f"line_{name}": columns[name] for name in names}


def line_values(
    trials: pd.DataFrame, manifest: Mapping[str, Any], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return what the manifest's limit lines of these names are for each trial, NaN where there are none."""
    columns = {name: np.full(len(trials), np.nan) for name in names}
    tables: dict[tuple[str, ...], dict[tuple, dict]] = {}
    for entry in manifest.get("limit_lines", []):
        known = entry["settings"] | {"objective": entry["objective"]}
        absent = [name for name in known if name not in trials]
        if absent:
            raise StoreError(f"limit_lines in manifest.json name {absent[0]!r}, no setting of the trials")
        fields = tuple(sorted(known))
        tables.setdefault(fields, {})[tuple(known[name] for name in fields)] = entry
    for fields in sorted(tables, key=len):  # lines for more settings are closer to the trial
        table = tables[fields]
        kind, kinds = distinct(trials, fields)
        keys = list(zip(*(kinds[name].tolist() for name in fields), strict=True))
        is_known = np.array([key in table for key in keys], bool)
        for name in names:
            found = [table[key].get(name) if key in table else None for key in keys]
            values = np.array([np.nan if value is None else value for value in found], float)
            columns[name] = np.where(is_known[kind], values[kind], columns[name])
    return columns
