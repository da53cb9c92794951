"""What a run folder holds: finished trials, their records and weights.

A trial counts once its row is in trials/.  Reading imports neither jax nor orbax.
"""

import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from topicjax.store import checkpoints, lock
from topicjax.store.files import StoreError, first_line, is_hex_name
from topicjax.store.folder import (
    CHECKPOINTS,
    LOCK,
    MANIFEST,
    TRAJECTORIES,
    TRIALS,
    check_kind,
    part_files,
    part_path,
    plan_path,
)
from topicjax.store.journal import FileMark, Journal, read_journal
from topicjax.store.manifest import FORMAT, Manifest, distinct_plans, plan_in_words, read_manifest
from topicjax.store.parts import read_columns, read_part
from topicjax.store.recovery import missing_files

LOCATION = ("trial_id", "chunk", "row", "snapshot_steps")  # where a trial's weights are
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
        folder = self.folder / TRAJECTORIES
        parts = [folder / path.name for path in self._parts]
        return read_columns(parts, None, self._marks(TRAJECTORIES)).to_pandas()

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
        return str(self.manifest.get("sweep", self.folder.name))

    def replace(self, **tables: Any) -> Self:
        """Return the run with other `trials`, `trajectories` or `missing`; all else is read as before."""
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
        kept = {
            name: frame[frame["trial_id"].isin(list(trial_ids))].reset_index(drop=True)
            for name, frame in (("trials", self.trials), ("trajectories", self.trajectories))
        }
        return self.replace(**kept)

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
        commits = self._journal.commits.items()
        return {part_path(self.folder / name, chunk): commit.files[name] for chunk, commit in commits}

    @functools.cached_property
    def _part_of(self) -> dict[str, Path]:
        """The part of trials/ that each trial is in."""
        found, unknown = {}, []
        for path in self._parts:
            commit = self._journal.commits.get(path.stem.removeprefix("part-"))
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
        (place,) = [row for row in rows if row["trial_id"] == trial_id]
        if not is_hex_name(place["chunk"]) or not isinstance(place["row"], int):
            raise StoreError(f"{part} does not say where the weights of trial {trial_id} are")
        return place

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
            weights = checkpoints.read_trials(path, place["row"])
        except FileNotFoundError:
            raise StoreError(f"the snapshot {path} of trial {trial_id} is missing") from None
        except (OSError, KeyError, ValueError, IndexError, TypeError) as error:
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
    """Raise a StoreError if a trial is there twice or has a status that does not exist."""
    repeated = trials.loc[trials["trial_id"].duplicated(), "trial_id"].tolist()
    if repeated:
        raise StoreError(f"{folder} has trial {repeated[0]} more than once")
    unknown = trials.loc[~trials["status"].isin(STATUSES), "status"].tolist()
    if unknown:
        raise StoreError(f"{folder} has status {unknown[0]!r}; allowed: {', '.join(STATUSES)}")


def committed(folder: Path) -> set[str]:
    """Return the ids of all trials that are finished in a folder."""
    return finished_trials(folder, read_journal(folder) or Journal())[0]


@dataclass(frozen=True)
class PlanStatus:
    """How far one plan is: a sweep with its overrides, as it was asked for."""

    words: str
    planned: int
    finished: int


@dataclass(frozen=True)
class Status:
    """How far a folder is."""

    sweep: str | None
    finished: int
    ok: int
    diverged: int
    planned: int | None  # distinct trials of all plans; None: unknown
    beyond: int  # finished trials that no plan names
    plans: tuple[PlanStatus, ...]
    problems: tuple[str, ...]  # files of finished trials that are missing or cut off
    versions: tuple[str, ...]  # of the code that trained them, if there are several
    running: Mapping[str, Any] | None  # who is writing to the folder; None: nobody


def status(folder: str | Path) -> Status:
    """Return how far a folder is, or raise a StoreError."""
    folder = Path(folder)
    check_kind(folder)
    manifest, found = read_manifest(folder), read_journal(folder)
    finished, diverged = finished_trials(folder, found or Journal())
    plans, planned_ids = [], set()
    for entry in distinct_plans(manifest) if manifest else ():
        trial_ids = planned_trials(folder, entry)
        planned_ids |= trial_ids
        plans.append(PlanStatus(plan_in_words(entry), len(trial_ids), len(trial_ids & finished)))
    planned = len(planned_ids) or last_planned(manifest)
    return Status(
        sweep=manifest.get("sweep"),
        finished=len(finished),
        ok=len(finished) - diverged,
        diverged=diverged,
        planned=planned,
        beyond=len(finished - planned_ids) if planned_ids else 0,
        plans=tuple(plan for plan in plans if plan.planned),
        problems=tuple(missing_files(folder, found)) if found else (),
        versions=code_versions(manifest),
        running=lock.holder(folder / LOCK),
    )


def finished_trials(folder: Path, found: Journal) -> tuple[set[str], int]:
    """Return the finished trials and how many of them diverged.

    The journal knows without opening a table; parts that it does not know are read.
    """
    trial_ids: set[str] = set()
    diverged, unknown = 0, []
    for path in part_files(folder / TRIALS):
        commit = found.commits.get(path.stem.removeprefix("part-"))
        if commit is None:
            unknown.append(path)
        else:
            trial_ids.update(commit.trial_ids)
            diverged += commit.diverged
    table = read_columns(unknown, ["trial_id", "status"])
    trial_ids.update(table["trial_id"].to_pylist())
    return trial_ids, diverged + table["status"].to_pylist().count("diverged")


def code_versions(manifest: Manifest) -> tuple[str, ...]:
    """Return the versions and commits of the code that trained the trials, if there are several."""
    found = {}
    for entry in manifest.get("runs", []):
        if entry.get("trials"):
            version = (
                f"topicjax {entry.get('versions', {}).get('topicjax')}, commit {entry.get('git_commit')}"
            )
            found[f"{version}, jax {entry.get('versions', {}).get('jax')}"] = None
    return tuple(found) if len(found) > 1 else ()


def planned_trials(folder: Path, entry: Mapping[str, Any]) -> set[str]:
    """Return the ids of the trials that a run was asked for; empty if the folder does not say."""
    if "plan" not in entry:
        return set()
    table = read_columns([plan_path(folder, entry["plan"])], ["trial_id"])
    return set(table["trial_id"].to_pylist())


def last_planned(manifest: Manifest) -> int | None:
    """Return how many trials a folder of format 1 was to hold."""
    runs = manifest.get("runs", [])
    return runs[-1].get("planned") if runs else None


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
