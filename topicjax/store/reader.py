"""What a run folder holds: finished trials, their records and weights.

A trial counts once its row is in trials/.  Reading imports neither jax nor orbax.
"""

import difflib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from topicjax.store import checkpoints
from topicjax.store.files import StoreError, first_line, is_hex_name
from topicjax.store.folder import (
    CHECKPOINTS,
    DETAILS,
    MANIFEST,
    TRAJECTORIES,
    TRIALS,
    check_kind,
    chunk_of,
    part_files,
    part_path,
    state_path,
)
from topicjax.store.journal import FileMark, Journal, read_journal
from topicjax.store.manifest import FIRST_EXPERIMENT, FORMAT, Manifest, experiment_of, read_manifest
from topicjax.store.parts import check_rows, read_columns, read_part, snapshot_places
from topicjax.store.status import PlanStatus as PlanStatus
from topicjax.store.status import Status as Status
from topicjax.store.status import committed as committed
from topicjax.store.status import status

LOCATION = ("trial_id", "chunk", "row", "snapshot_steps")  # where a trial's weights are
KEPT_OF_TRIALS = {*LOCATION, "snapshot_checksums", "status", "diverged_step", "run"}
KEPT_OF_TRIALS |= {"stopped_step", "stop_reason"}
STATUSES = ("ok", "diverged")


class Run:
    """The finished trials of a run folder; tables are read when first asked for."""

    def __init__(self, folder: Path) -> None:
        """Take a run folder; use `load`, which checks that it is one."""
        self.folder = folder

    @functools.cached_property
    def manifest(self) -> Manifest:
        """The sweep, every run that added to the folder, and the limit lines; empty without the file."""
        return read_manifest(self.folder)

    @functools.cached_property
    def trials(self) -> pd.DataFrame:
        """One row per finished trial: trial_id, settings, status, final values, where its weights are."""
        trials = read_columns(self._parts, None, self._marks(TRIALS)).to_pandas()
        check_trials(trials, self.folder / TRIALS)
        return trials

    @functools.cached_property
    def trajectories(self) -> pd.DataFrame:
        """One row per record of the finished trials: trial_id, step and the measured columns."""
        return self._read(TRAJECTORIES, self._parts)

    @functools.cached_property
    def details(self) -> pd.DataFrame:
        """One row per record and place: trial_id, step, the index (a layer, say), its columns; or no rows."""
        return self._read(DETAILS, part_files(self.folder / TRIALS))

    @property
    def detail(self) -> str:
        """The name of the index that details are counted by; empty if there are none."""
        return str(self.details.columns[2]) if len(self.details.columns) > 2 else ""

    @functools.cached_property
    def missing(self) -> tuple[str, ...]:
        """A sentence for each thing that a complete run would have and this one has not."""
        if not self.manifest:
            return (f"{MANIFEST} is not there: planned trials and limit lines are unknown",)
        state = status(self.folder)
        if state.planned is None or state.finished >= state.planned:
            return ()
        return (f"{state.finished} of {state.planned} trials are finished",)

    @property
    def name(self) -> str:
        """The name of the sweep."""
        return str(self.manifest.get("sweep") or self.folder.name)

    @property
    def experiment(self) -> str:
        """The experiment that the folder's trials are of."""
        return experiment_of(self.manifest) or FIRST_EXPERIMENT

    @property
    def setting_names(self) -> list[str]:
        """The columns of `trials` that are settings."""
        return [name for name in self.trials.columns if name not in KEPT_OF_TRIALS and name[:6] != "final_"]

    def replace(self, **tables: Any) -> Self:
        """Return the run with other trials, trajectories, details or missing; all else is read as before."""
        other = type(self)(self.folder)
        vars(other).update(vars(self) | tables)
        return other

    def select(self, trial_ids: Sequence[str]) -> Self:
        """Return the run with these trials only, in its own order."""
        known = set(self.trials["trial_id"])
        unknown = [trial_id for trial_id in trial_ids if trial_id not in known]
        if unknown:
            raise StoreError(
                f"{self.folder} has no finished trial {unknown[0]!r}; allowed: ids in its trials"
            )
        tables = dict(trials=self.trials, trajectories=self.trajectories, details=self.details)
        kept = {
            name: frame[frame["trial_id"].isin(list(trial_ids))].reset_index(drop=True)
            for name, frame in tables.items()
        }
        return self.replace(**kept)

    def columns(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return these columns of the finished trials, a row each; nothing if the folder lacks one."""
        parts = part_files(self.folder / TRIALS)
        if not parts or not set(names) <= set(pq.read_schema(parts[0]).names):
            return []
        return read_columns(parts, names, self._marks(TRIALS)).to_pylist()

    def records_of(self, trial_ids: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return records and details of these finished trials; no other parts are read than theirs."""
        parts = sorted({self._part_of[trial_id] for trial_id in trial_ids})
        records, details = self._read(TRAJECTORIES, parts), self._read(DETAILS, parts)
        own = list(trial_ids)
        return records.loc[records["trial_id"].isin(own)], details.loc[details["trial_id"].isin(own)]

    def has_state(self, chunk: str) -> bool:
        """Return whether the states to train trials of a chunk further are there, and of this version."""
        return checkpoints.is_of_use(state_path(self.folder, chunk))

    def end_states(self, trial_ids: Sequence[str]) -> list[np.ndarray]:
        """Return the states that these trials ended in, trials x ..., or raise a StoreError."""
        found: dict[str, list[np.ndarray]] = {}
        for chunk in sorted({chunk_of(self._part_of[trial_id]) for trial_id in trial_ids}):
            path = state_path(self.folder, chunk)
            try:
                loaded = checkpoints.load_state(path)
            except checkpoints.StateError as error:
                raise StoreError(f"{path} {error}; `topicjax repair` sets it aside") from error
            if loaded is None:
                raise StoreError(f"{path} is missing")
            payload, meta = loaded
            leaves = [payload[str(place)] for place in range(len(payload))]
            for place, trial_id in enumerate(meta["trial_ids"]):
                found[trial_id] = [leaf[place] for leaf in leaves]
        return [np.stack(own) for own in zip(*(found[trial_id] for trial_id in trial_ids), strict=True)]

    @functools.cached_property
    def _parts(self) -> list[Path]:
        parts = part_files(self.folder / TRIALS)
        if not parts:
            planned = status(self.folder).planned
            of = f" of {planned:,}" if planned else ""
            raise StoreError(f"no trial{of} in {self.folder} is finished yet")
        return parts

    @functools.cached_property
    def _journal(self) -> Journal:
        return read_journal(self.folder) or Journal()

    def _marks(self, name: str) -> dict[Path, FileMark]:
        """Return how the parts of a folder were written, as far as the journal knows."""
        folder, commits = self.folder / name, self._journal.commits.items()
        return {part_path(folder, chunk): own.files[name] for chunk, own in commits if name in own.files}

    def _read(self, name: str, parts: Sequence[Path]) -> pd.DataFrame:
        """Return the table of records or of details that belongs to these parts of trials/."""
        marks, paths = self._marks(name), [self.folder / name / path.name for path in parts]
        if name == DETAILS:  # a chunk that the journal does not know yet has them if they are there
            known = self._journal.commits
            paths = [
                path for path in paths if path in marks or (chunk_of(path) not in known and path.exists())
            ]
        return read_columns(paths, None if paths else ("trial_id", "step"), marks).to_pandas()

    @functools.cached_property
    def _part_of(self) -> dict[str, Path]:
        """The part of trials/ that each trial is in."""
        found, unknown = {}, []
        for path in self._parts:
            commit = self._journal.commits.get(chunk_of(path))
            found |= dict.fromkeys(commit.trial_ids, path) if commit else {}
            unknown += [] if commit else [path]
        for path in unknown:
            found |= dict.fromkeys(read_part(path, ["trial_id"])["trial_id"].to_pylist(), path)
        return found

    def _location(self, trial_id: str) -> dict[str, Any]:
        """Return where a trial's weights are, and their checksums if the folder has them."""
        part = self._part_of[trial_id]
        columns = [*LOCATION, *(["snapshot_checksums"] if self.manifest.get("format") == FORMAT else [])]
        rows = read_part(part, columns, self._marks(TRIALS).get(part)).to_pylist()
        check_rows(rows, part)
        places = snapshot_places([[int(step) for step in row["snapshot_steps"].split()] for row in rows])
        found = zip(rows, places, strict=True)
        return next(row | {"places": own} for row, own in found if row["trial_id"] == trial_id)

    def find(self, trial_id: str) -> str:
        """Return the whole id of the trial that begins as given."""
        return find_id(trial_id, list(self._part_of), self.folder)

    def snapshot_step(self, trial_id: str, step: int | None = None) -> int:
        """Return the step if the trial's weights were kept there; without one, the last that was."""
        steps = [int(text) for text in self._location(trial_id)["snapshot_steps"].split()]
        if not steps:
            raise StoreError(f"trial {trial_id} in {self.folder} was run without snapshots")
        if step is not None and step not in steps:
            raise StoreError(
                f"trial {trial_id} in {self.folder} has no snapshot at step {step}; "
                f"there are: {', '.join(map(str, steps))}"
            )
        return steps[-1] if step is None else step

    def restore(self, trial_id: str, step: int | None = None) -> dict[str, np.ndarray]:
        """Return the weights of a trial, at its last snapshot unless a step is named."""
        trial_id = self.find(trial_id)
        step, place = self.snapshot_step(trial_id, step), self._location(trial_id)
        path = self.folder / CHECKPOINTS / place["chunk"] / str(step)
        try:
            weights = checkpoints.read_trials(path, place["places"][step])
        except FileNotFoundError:
            raise StoreError(f"the snapshot {path} of trial {trial_id} is missing") from None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            why = first_line(error).split(" [tensorstore")[0]
            raise StoreError(f"the snapshot {path} is damaged: {why}") from error
        written = snapshot_checksums(place).get(step)
        if written is not None and checkpoints.checksum(weights) != written:
            raise StoreError(f"the snapshot {path} is damaged: these are not the weights of trial {trial_id}")
        return weights


def snapshot_checksums(place: Mapping[str, Any]) -> dict[int, str]:
    """Return the checksum of a trial's weights at each of its snapshots, as far as they are known."""
    steps, sums = place["snapshot_steps"].split(), place.get("snapshot_checksums", "").split()
    return {int(step): own for step, own in zip(steps, sums, strict=False)}


def load(folder: str | Path) -> Run:
    """Return the finished trials of a run folder, or raise a StoreError."""
    check_kind(Path(folder))
    return Run(Path(folder))


def check_trials(trials: pd.DataFrame, folder: Path) -> None:
    """Raise a StoreError if an id is none or is there twice, or a status does not exist."""
    odd = [trial_id for trial_id in trials["trial_id"].tolist() if not is_hex_name(trial_id)]
    if odd:
        raise StoreError(f"{folder} has trial {odd[0]!r:.40}; allowed: ids of 12 hexadecimal digits")
    repeated = trials.loc[trials["trial_id"].duplicated(), "trial_id"].tolist()
    if repeated:
        raise StoreError(f"{folder} has trial {repeated[0]} more than once")
    unknown = trials.loc[~trials["status"].isin(STATUSES), "status"].tolist()
    if unknown:
        raise StoreError(f"{folder} has status {unknown[0]!r}; allowed: {', '.join(STATUSES)}")


def find_id(given: str, trial_ids: Sequence[str], folder: Path) -> str:
    """Return the trial id that begins as given, or raise a StoreError with those that are near."""
    found = [trial_id for trial_id in trial_ids if trial_id.startswith(given)] if given else []
    if len(found) == 1 or given in found:
        return given if given in found else found[0]
    if found:
        more = " ..." if len(found) > 5 else ""
        raise StoreError(
            f"{len(found)} trials in {folder} begin with {given!r}: {', '.join(found[:5])}{more}"
        )
    near = difflib.get_close_matches(given, trial_ids, n=3, cutoff=0.3) or trial_ids[:3]
    raise StoreError(f"no trial in {folder} begins with {given!r}; the nearest: {', '.join(near)}")
