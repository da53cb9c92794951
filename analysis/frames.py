"""A run folder as data frames: `load(folder)` gives trials, trajectories and what is missing.

The contract with the engine is the constants below.  A trial counts once its row is in trials/:
trajectories of others are not finished and are left out, so a run that is still going or was
interrupted reads like a smaller one.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from topicjax.config import DATA_SETTINGS

MANIFEST = "manifest.json"
TRIALS, TRAJECTORIES = "trials", "trajectories"  # folders of part-*.parquet
SETTINGS = (  # every setting that identifies a trial: topicjax.config.IDENTITY, in another order
    *("seed", "objective", "optimizer", "learning_rate", "init", "init_scale", "l2"),
    *("attention", "value", "embedding", "embedding_dim", "embedding_scale", "attention_dim"),
    *("output_bias", "attention_biases", "momentum", "beta1", "beta2", "epsilon", "weight_decay"),
    *("batch_size", "steps", "record_every", "eval_documents", *DATA_SETTINGS),
)
LINES = ("uniform", "stage1", "stage2", "bayes")
LINE_COLUMNS = tuple(f"line_{name}" for name in LINES)
STATUSES = ("ok", "diverged")
NEEDED_TRIALS = (
    *("trial_id", "status", "seed", "objective", "attention", "value", "embedding"),
    *DATA_SETTINGS,
)
NEEDED_TRAJECTORIES = (
    *("trial_id", "step", "eval_loss", "eval_loss_uniform", "norm_k", "norm_q", "norm_v"),
    *("v_block", "v_diag", "a_topic", "a_self"),
)


@dataclass(frozen=True)
class Run:
    """The finished trials of a run folder."""

    folder: Path
    trials: pd.DataFrame  # one row a trial: trial_id, settings, status, final_*, line_*
    trajectories: pd.DataFrame  # one row a record, sorted by trial and step, joined with settings
    manifest: dict[str, Any]
    missing: tuple[str, ...]  # sentences on what is not there; empty for a complete run

    @property
    def name(self) -> str:
        """The name of the sweep."""
        return str(self.manifest.get("sweep", self.folder.name))

    @property
    def settings(self) -> list[str]:
        """The names of the settings that the trials have as columns."""
        return [name for name in SETTINGS if name in self.trials]


def load(folder: str | Path) -> Run:
    """Return the finished trials of a run folder, or raise an error of one sentence."""
    folder = Path(folder)
    check_kind(folder)
    manifest = read_manifest(folder)
    trials = read_trials(folder, manifest)  # before trajectories: a committed trial has all of its rows
    trials = trials.assign(**limit_lines(trials, manifest))
    records = read_parts(folder / TRAJECTORIES, NEEDED_TRAJECTORIES)
    trajectories, unfinished = join_settings(records, trials)
    return Run(folder, trials, trajectories, manifest, missing(trials, manifest, unfinished))


def bands(
    frame: pd.DataFrame,
    column: str,
    by: str | Sequence[str] = (),
    quantiles: Sequence[float] = (0.25, 0.5, 0.75),
) -> pd.DataFrame:
    """Return one row per group and step: quantiles (q25, q50, ...) over its trials.

    The quantiles are over the trials of a group, which are its seeds when `by` names every setting
    that varies.  Non-finite values are left out; `trials` says how many values remain.
    """
    keys = [by] if isinstance(by, str) else list(by)
    finite = frame[[*keys, "step"]].assign(value=frame[column].where(np.isfinite(frame[column])))
    values = finite.groupby([*keys, "step"], dropna=False)["value"]
    columns = {f"q{100 * quantile:g}": values.quantile(quantile) for quantile in quantiles}
    return pd.DataFrame(columns | {"trials": values.count()}).reset_index()


def check_kind(folder: Path) -> None:
    """Raise if this is not a run folder with at least one finished trial's file."""
    if not folder.exists():
        raise FileNotFoundError(f"there is no folder {folder}")
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file; allowed: a run folder with {MANIFEST} and {TRIALS}/")
    names = sorted(path.name for path in folder.iterdir())
    if not names:
        raise FileNotFoundError(f"{folder} is empty; allowed: a run folder with {MANIFEST} and {TRIALS}/")
    if MANIFEST not in names and TRIALS not in names:
        inside = [name for name in names if (folder / name / MANIFEST).exists()]
        hint = f"did you mean {folder / inside[0]}?" if inside else f"it holds {', '.join(names[:5])}"
        raise ValueError(f"{folder} is not a run folder, it has no {MANIFEST} and no {TRIALS}/; {hint}")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what the engine wrote about the sweep; empty if it is not there."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(manifest, dict) or "sweep" not in manifest:
        raise ValueError(f"{path} is not the manifest of a run: it does not name its sweep")
    return manifest


def read_trials(folder: Path, manifest: dict[str, Any]) -> pd.DataFrame:
    """Return one row per finished trial, in the order of the files."""
    if not part_files(folder / TRIALS):
        planned = f" of {manifest['trials_planned']}" if "trials_planned" in manifest else ""
        raise FileNotFoundError(f"no trial{planned} in {folder} is finished yet")
    trials = read_parts(folder / TRIALS, NEEDED_TRIALS)
    repeated = trials.loc[trials["trial_id"].duplicated(), "trial_id"].tolist()
    if repeated:
        raise ValueError(f"{folder / TRIALS} has trial {repeated[0]} more than once")
    unknown = trials.loc[~trials["status"].isin(STATUSES), "status"].tolist()
    if unknown:
        raise ValueError(f"{folder / TRIALS} has status {unknown[0]!r}; allowed: {', '.join(STATUSES)}")
    return trials


def part_files(folder: Path) -> list[Path]:
    """Return the committed parts; files with temporary names are still being written."""
    return sorted(folder.glob("part-*.parquet"))


def read_parts(folder: Path, needed: Sequence[str]) -> pd.DataFrame:
    """Return all parts of a folder as one frame that has the needed columns."""
    tables = []
    for path in part_files(folder):
        try:
            tables.append(pq.read_table(path))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    if not tables:
        raise FileNotFoundError(f"{folder} has no part-*.parquet, though trials are finished")
    try:
        frame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    except pa.ArrowException as error:
        raise ValueError(f"the parts of {folder} differ in their columns: {error}") from error
    absent = [name for name in needed if name not in frame]
    if absent:
        raise ValueError(f"{folder} has no column {', '.join(absent)}")
    return frame


def join_settings(records: pd.DataFrame, trials: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the trials' records with their settings, and how many other trials have records."""
    trial = pd.Index(trials["trial_id"]).get_indexer(pd.Index(records["trial_id"]))
    unfinished = len(pd.unique(records["trial_id"].to_numpy()[trial < 0]))
    step = records["step"].to_numpy()
    order = np.lexsort((step, trial))
    order = order[trial[order] >= 0]
    trial, step = trial[order], step[order]
    check_records(trials["trial_id"].to_numpy(), trial, step)
    columns = [*(name for name in SETTINGS if name in trials), "status", *LINE_COLUMNS]
    settings = trials[columns].take(trial)
    rows = records.take(order).reset_index(drop=True)
    return pd.concat([rows, settings.reset_index(drop=True)], axis=1), unfinished


def check_records(trial_ids: np.ndarray, trial: np.ndarray, step: np.ndarray) -> None:
    """Raise unless each trial has step 0 and no step twice; rows are sorted by trial and step."""
    is_first = np.diff(trial, prepend=-1) > 0
    twice = ~is_first & (np.diff(step, prepend=-1) == 0)
    if twice.any():
        row = np.flatnonzero(twice)[0]
        raise ValueError(f"trial {trial_ids[trial[row]]} has step {step[row]} more than once")
    started = np.zeros(len(trial_ids), bool)
    started[trial[is_first & (step == 0)]] = True
    if not started.all():
        raise ValueError(f"trial {trial_ids[~started][0]} has no record at step 0")


def limit_lines(trials: pd.DataFrame, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return line_* and line_*_se of each trial: its limit lines, NaN where there are none."""
    names = [*LINES, *(f"{name}_se" for name in LINES)]
    columns = {name: np.full(len(trials), np.nan) for name in names}
    tables: dict[tuple[str, ...], dict[tuple, dict]] = {}
    for entry in manifest.get("limit_lines", []):
        settings = entry["settings"] | {"objective": entry["objective"]}
        absent = [name for name in settings if name not in trials]
        if absent:
            raise ValueError(f"limit_lines in {MANIFEST} name {absent[0]!r}, no setting of the trials")
        fields = tuple(sorted(settings))
        tables.setdefault(fields, {})[tuple(comparable(settings[name]) for name in fields)] = entry
    for fields, table in tables.items():
        rows = zip(*(map(comparable, trials[name].tolist()) for name in fields), strict=True)
        for row, key in enumerate(rows):
            for name in names if key in table else ():
                value = table[key].get(name)
                columns[name][row] = np.nan if value is None else value
    return {f"line_{name}": column for name, column in columns.items()}


def comparable(value: Any) -> Any:
    """Return the setting as JSON and parquet agree on it: numbers to single precision."""
    return value if isinstance(value, str) else float(np.float32(value))


def missing(trials: pd.DataFrame, manifest: dict[str, Any], unfinished: int) -> tuple[str, ...]:
    """Return one sentence for each thing that a complete run would have and this one has not."""
    planned = manifest.get("trials_planned")
    without_lines = int(np.isnan(trials["line_stage1"].to_numpy()).sum())
    sentences = {
        f"{MANIFEST} is not there: planned trials and limit lines are unknown": not manifest,
        f"{len(trials)} of {planned} trials are finished": planned and len(trials) < planned,
        f"records of {unfinished} unfinished trials are left out": unfinished,
        f"{without_lines} of {len(trials)} trials have no limit lines": manifest and without_lines,
    }
    return tuple(sentence for sentence, holds in sentences.items() if holds)
