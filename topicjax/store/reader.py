"""Read a run folder: finished trials, their records and weights, and its status.

A trial is finished once its row is in trials/.  Reading imports neither jax nor orbax.
"""

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from topicjax.errors import UserError, unknown_name
from topicjax.store import checkpoints
from topicjax.store.files import (
    CHECKPOINTS,
    DETAILS,
    MANIFEST,
    TRAJECTORIES,
    TRIALS,
    FileMark,
    StoreError,
    check_kind,
    chunk_of,
    first_line,
    is_hex_name,
    lock_holder,
    part_files,
    part_path,
    plan_path,
    state_path,
)
from topicjax.store.journal import Journal, misplaced_files, read_journal
from topicjax.store.manifest import (
    Manifest,
    added_settings,
    arithmetic_in_words,
    code_name,
    distinct_plans,
    experiment_of,
    last_run,
    plan_in_words,
    read_manifest,
)
from topicjax.store.measured import counts, misplaced_measured, read_measured
from topicjax.store.parts import (
    SNAPSHOT_COLUMNS,
    check_rows,
    columns_of,
    is_extended,
    read_columns,
    read_part,
    read_plan,
    read_schema,
    snapshot_places,
)

RECORD_KEYS = ["trial_id", "step"]
LOCATION = ("trial_id", "chunk", "row", *SNAPSHOT_COLUMNS)  # locates a trial's weights
KEPT_OF_TRIALS = {*LOCATION, "status", "diverged_step", "run", "stopped_step", "stop_reason"}
STATUSES = ("ok", "diverged")


class Run:
    """The finished trials of a run folder; tables are read on first use."""

    def __init__(self, folder: Path) -> None:
        """Wrap a run folder; use `load`, which checks that it is one."""
        self.folder = folder

    @functools.cached_property
    def manifest(self) -> Manifest:
        """The sweep, every run that added to the folder, and the references; empty if the file is missing."""
        return read_manifest(self.folder)

    @functools.cached_property
    def trials(self) -> pd.DataFrame:
        """One row per finished trial: trial_id, settings, status, final values, and where its weights are.

        The steps and checksums of its snapshots are tuples.  Final values of columns that were measured
        afterwards are those of the trial's last measured snapshot.
        """
        finals = {}
        for frame in self.measured.values():
            last = frame.sort_values("step").groupby("trial_id").last().drop(columns=["step", "weights"])
            finals |= {f"final_{name}": last[name].reindex(self.finished["trial_id"]) for name in last}
        new = {name: own.to_numpy() for name, own in finals.items() if name not in self.finished}
        return self.finished.assign(**new) if new else self.finished

    @functools.cached_property
    def measured(self) -> dict[str, pd.DataFrame]:
        """What was measured afterwards, by measure: a row per snapshot with trial_id, step and columns.

        `trials` and `trajectories` have these columns too; a snapshot between two records is only here.
        """
        if not self._journal.measured:
            return {}
        steps = self.finished[["trial_id", *SNAPSHOT_COLUMNS]].itertuples(index=False)
        sums = {(own, at): crc for own, ats, crcs in steps for at, crc in zip(ats, crcs, strict=True)}
        return read_measured(self.folder, self._journal, sums)

    def with_measured(self, records: pd.DataFrame) -> pd.DataFrame:
        """Add the columns that were measured afterwards to records; NaN where there was no snapshot."""
        for frame in self.measured.values():
            new = frame.drop(columns=["weights", *(name for name in frame if name in records.columns[2:])])
            new = new.astype({name: records[name].dtype for name in ("trial_id", "step")})
            records = records.merge(new, on=["trial_id", "step"], how="left")
        return records

    @functools.cached_property
    def finished(self) -> pd.DataFrame:
        """The rows of finished trials as training wrote them."""
        table = read_columns(self._parts, None, self._marks(TRIALS))
        trials = table.to_pandas()
        for name in SNAPSHOT_COLUMNS.keys() & set(table.column_names):
            trials[name] = [tuple(own or ()) for own in table[name].to_pylist()]
        check_trials(trials, self.folder / TRIALS)
        for name, default in added_settings(self.manifest).items():  # older trials have the default
            if name in trials:
                trials[name] = trials[name].astype(object).fillna(default).astype(type(default))
        order = [name for name in columns_of(self.folder).get(TRIALS, {}) if name in trials]
        return trials[order] if len(order) == len(trials.columns) else trials

    @functools.cached_property
    def trajectories(self) -> pd.DataFrame:
        """One row per record of the finished trials: trial_id, step and the measured columns."""
        return self.with_measured(self._read(TRAJECTORIES, self._parts))

    @functools.cached_property
    def details(self) -> pd.DataFrame:
        """One row per record and index: trial_id, step, indices (such as layer), columns; may be empty."""
        return self._read(DETAILS, part_files(self.folder / TRIALS))

    @property
    def detail_names(self) -> list[str]:
        """The indices of the details, such as layer and head; empty without details."""
        named = last_run(self.manifest).get("details") or self.details.columns[2:3]
        return [str(name) for name in named if name in self.details]

    @functools.cached_property
    def references(self) -> pd.DataFrame:
        """One row per trial, in the order of `trials`: its reference losses by name, NaN where it has none.

        An entry of the manifest applies to the trials that have all its settings.  If several entries have a
        value of one name, the one with more settings counts.  Settings are compared exactly: both JSON and
        parquet keep every digit.
        """
        entries = [entry for entry in self.manifest.get("references", []) if "values" in entry]
        columns = {name: np.full(len(self.trials), np.nan) for entry in entries for name in entry["values"]}
        by_fields: dict[tuple[str, ...], dict[tuple[Any, ...], dict[str, Any]]] = {}
        for entry in entries:
            fields = tuple(sorted(entry["settings"]))
            key = tuple(entry["settings"][name] for name in fields)
            by_fields.setdefault(fields, {}).setdefault(key, {}).update(entry["values"])
        for fields in sorted(by_fields, key=len):
            unknown = [name for name in fields if name not in self.trials]
            if unknown:
                raise StoreError(f"references in {MANIFEST} name {unknown[0]!r}, no setting of the trials")
            settings = [self.trials[name].tolist() for name in fields]
            keys = zip(*settings, strict=True) if fields else [()] * len(self.trials)
            for row, key in enumerate(keys):
                for name, value in by_fields[fields].get(key, {}).items():
                    columns[name][row] = np.nan if value is None else value
        return pd.DataFrame(columns, index=self.trials.index)

    @functools.cached_property
    def missing(self) -> tuple[str, ...]:
        """One sentence for each thing that this run lacks compared with a complete one."""
        if not self.manifest:
            return (f"{MANIFEST} is not there: planned trials and references are unknown",)
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
        """The experiment of the folder's trials; empty if it is not recorded."""
        return experiment_of(self.manifest)

    @functools.cached_property
    def setting_names(self) -> list[str]:
        """The columns of `trials` that are settings; `replace` keeps them for other trials."""
        return [name for name in self.trials.columns if name not in KEPT_OF_TRIALS and name[:6] != "final_"]

    def replace(self, **tables: Any) -> Self:
        """Return a copy of the run with other tables or missing.

        References follow the trials, unless they are given.
        """
        other = type(self)(self.folder)
        if "trials" in vars(self):
            _ = self.setting_names  # known from now on: other trials may have columns of an analysis too
        kept = {name: value for name, value in vars(self).items() if name != "references"}
        vars(other).update(kept | tables)
        return other

    def select(self, trial_ids: Sequence[str]) -> Self:
        """Keep only these trials, in the run's order."""
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

    def with_details(self, *names: str) -> Self:
        """Add columns of the details to the trajectories, one per place: `norm_1`, `norm_2` by layer.

        So they can be scored, drawn and explored like any other column.  Places that a trial does not have
        are NaN.
        """
        indices = self.detail_names
        known = [name for name in self.details if name not in (*RECORD_KEYS, *indices)]
        for name in names:
            if name not in known:
                raise UserError(unknown_name("column of the details", name, known))
        wide = self.details.pivot(index=RECORD_KEYS, columns=indices, values=list(names))
        wide.columns = ["_".join(map(str, place)) for place in wide.columns]
        new = wide[[name for name in wide if name not in self.trajectories]]
        return self.replace(trajectories=self.trajectories.join(new, on=RECORD_KEYS))

    def columns(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Read these columns of the finished trials, one row each; empty if the folder lacks one of them."""
        parts = part_files(self.folder / TRIALS)
        if not parts or not set(names) <= read_schema(parts[0]).keys():
            return []
        return read_columns(parts, names, self._marks(TRIALS)).to_pylist()

    def records_of(self, trial_ids: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Read records and details of these finished trials, from their parts only."""
        parts = sorted({self._part_of[trial_id] for trial_id in trial_ids})
        records, details = self._read(TRAJECTORIES, parts), self._read(DETAILS, parts)
        own = list(trial_ids)
        return records.loc[records["trial_id"].isin(own)], details.loc[details["trial_id"].isin(own)]

    def has_columns(self, chunk: str, tables: Mapping[str, Iterable[str]]) -> bool:
        """Return whether the parts of a chunk have these columns, by table."""
        paths = {name: part_path(self.folder / name, chunk) for name in tables}
        is_whole = not any(is_extended(self.folder, name) for name in tables)
        return is_whole or all({*tables[name]} <= read_schema(path).keys() for name, path in paths.items())

    def has_state(self, chunk: str) -> bool:
        """Whether the states to train a chunk's trials further exist and are from this version."""
        return checkpoints.is_of_use(state_path(self.folder, chunk))

    def end_states(self, trial_ids: Sequence[str]) -> list[np.ndarray]:
        """Read the final states of these trials, trials x ..., or raise a StoreError."""
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
        return read_journal(self.folder)

    def _marks(self, name: str) -> dict[Path, FileMark]:
        """Map the parts of a folder to their marks, as far as the journal knows them."""
        folder, commits = self.folder / name, self._journal.commits.items()
        return {part_path(folder, chunk): own.files[name] for chunk, own in commits if name in own.files}

    def _read(self, name: str, parts: Sequence[Path]) -> pd.DataFrame:
        """Read the records or details that belong to these parts of trials/."""
        marks, paths = self._marks(name), [self.folder / name / path.name for path in parts]
        if name == DETAILS:  # for a chunk that the journal does not know yet, look for the file
            known = self._journal.commits
            paths = [
                path for path in paths if path in marks or (chunk_of(path) not in known and path.exists())
            ]
        return read_columns(paths, None if paths else RECORD_KEYS, marks).to_pandas()

    @functools.cached_property
    def _part_of(self) -> dict[str, Path]:
        """The part of trials/ that holds each trial."""
        found, unknown = {}, []
        for path in self._parts:
            commit = self._journal.commits.get(chunk_of(path))
            found |= dict.fromkeys(commit.trial_ids, path) if commit else {}
            unknown += [] if commit else [path]
        for path in unknown:
            found |= dict.fromkeys(read_part(path, ["trial_id"])["trial_id"].to_pylist(), path)
        return found

    @functools.cached_property
    def _located(self) -> dict[Path, dict[str, tuple[dict[str, Any], dict[int, int]]]]:
        """By part and trial, the row that locates weights and the index in the snapshot of each step.

        `_snapshots` fills it: trials share parts, which are read once.
        """
        return {}

    def _snapshots(self, trial_id: str) -> tuple[str, dict[int, tuple[int, str]]]:
        """Find a trial's chunk, and by step its index in the snapshot and the checksum of its weights."""
        part = self._part_of[trial_id]
        if part not in self._located:
            rows = read_part(part, LOCATION, self._marks(TRIALS).get(part)).to_pylist()
            check_rows(rows, part)
            found = zip(rows, snapshot_places(row["snapshot_steps"] for row in rows), strict=True)
            self._located[part] = {row["trial_id"]: (row, places) for row, places in found}
        row, places = self._located[part][trial_id]
        pairs = zip(places.items(), row["snapshot_checksums"], strict=True)
        return row["chunk"], {step: (place, written) for (step, place), written in pairs}

    def find(self, trial_id: str) -> str:
        """Complete a trial id from its prefix."""
        return find_id(trial_id, list(self._part_of), self.folder)

    def snapshot_step(self, trial_id: str, step: int | None = None) -> int:
        """Return the step if the trial has a snapshot there; without a step, that of the last snapshot."""
        steps = list(self._snapshots(trial_id)[1])
        if not steps:
            raise StoreError(f"trial {trial_id} in {self.folder} was run without snapshots")
        if step is not None and step not in steps:
            raise StoreError(
                f"trial {trial_id} in {self.folder} has no snapshot at step {step}; "
                f"there are: {', '.join(map(str, steps))}"
            )
        return steps[-1] if step is None else step

    def restore(self, trial_id: str, step: int | None = None) -> Any:
        """Restore the weights of a trial, from its last snapshot unless a step is given.

        The result is the saved tree of arrays; named tuples keep their names and fields, not their class.
        """
        trial_id = self.find(trial_id)
        step = self.snapshot_step(trial_id, step)
        chunk, snapshots = self._snapshots(trial_id)
        place, written = snapshots[step]
        path = self.folder / CHECKPOINTS / chunk / str(step)
        try:
            structure, leaves = checkpoints.read_trials(path, place)
            if checkpoints.checksum(structure, leaves) != written:
                raise ValueError(f"these are not the weights of trial {trial_id}")
            return checkpoints.unflatten(structure, leaves)
        except FileNotFoundError:
            raise StoreError(f"the snapshot {path} of trial {trial_id} is missing") from None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            why = first_line(error).split(" [tensorstore")[0]
            raise StoreError(f"the snapshot {path} is damaged: {why}") from error


def load(folder: str | Path) -> Run:
    """Open a run folder, or raise a StoreError."""
    check_kind(Path(folder))
    return Run(Path(folder))


def check_trials(trials: pd.DataFrame, folder: Path) -> None:
    """Raise a StoreError if an id is invalid or repeated, or a status is unknown."""
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
    """Find the trial id with this prefix, or raise a StoreError that lists similar ones."""
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


@dataclass(frozen=True)
class PlanStatus:
    """Status of one plan: a sweep with its overrides, as requested."""

    words: str
    planned: int
    finished: int


@dataclass(frozen=True)
class Status:
    """Status of a folder."""

    sweep: str | None
    finished: int
    ok: int
    diverged: int
    planned: int | None  # distinct trials of all plans; None: unknown
    beyond: int  # finished trials that are in no plan
    plans: tuple[PlanStatus, ...]
    problems: tuple[str, ...]  # files that are missing, truncated or unknown
    versions: tuple[str, ...]  # of the code that trained them, if more than one
    running: Mapping[str, Any] | None  # the process that writes to the folder, if any
    arithmetic: tuple[str, ...] = ()  # of its runs, in words
    measured: Mapping[str, int] = field(default_factory=dict)  # snapshots by measure


def status(folder: str | Path) -> Status:
    """Summarize the status of a folder, or raise a StoreError."""
    folder = Path(folder)
    check_kind(folder)
    manifest, found = read_manifest(folder), read_journal(folder)
    finished, diverged = finished_trials(folder, found)
    problems = [*misplaced_files(folder, found), *misplaced_measured(folder, found)] if manifest else []
    plans, planned_ids = [], set()
    for entry in distinct_plans(manifest) if manifest else ():
        try:
            trial_ids = planned_trials(folder, entry, found)
        except StoreError as error:
            problems.append(str(error))
            continue
        planned_ids |= trial_ids
        plans.append(PlanStatus(plan_in_words(entry), len(trial_ids), len(trial_ids & finished)))
    planned = len(planned_ids) or last_run(manifest).get("planned")  # if no plan can be read
    return Status(
        sweep=manifest.get("sweep") or None,
        finished=len(finished),
        ok=len(finished) - diverged,
        diverged=diverged,
        planned=planned,
        beyond=len(finished - planned_ids) if planned_ids else 0,
        plans=tuple(plan for plan in plans if plan.planned),
        problems=tuple(problems),
        versions=code_versions(manifest),
        running=lock_holder(folder),
        measured=counts(found),
        arithmetic=tuple(dict.fromkeys(filter(None, map(arithmetic_in_words, manifest.get("runs", []))))),
    )


def finished_trials(folder: Path, found: Journal) -> tuple[set[str], int]:
    """Return the finished trials and how many of them diverged.

    The journal knows this without opening a table; parts that it does not know are read.
    """
    trial_ids: set[str] = set()
    diverged, unknown = 0, []
    for path in part_files(folder / TRIALS):
        commit = found.commits.get(chunk_of(path))
        if commit is None:
            unknown.append(path)
        else:
            trial_ids.update(commit.trial_ids)
            diverged += commit.diverged
    table = read_columns(unknown, ["trial_id", "status"])
    trial_ids.update(table["trial_id"].to_pylist())
    return trial_ids, diverged + table["status"].to_pylist().count("diverged")


def committed(folder: Path) -> set[str]:
    """Return the ids of all finished trials of a folder."""
    return finished_trials(folder, read_journal(folder))[0]


def code_versions(manifest: Manifest) -> tuple[str, ...]:
    """List the versions and commits of the code that trained the trials, if more than one."""
    found = {}
    for entry in manifest.get("runs", []):
        if entry.get("trials"):
            version = (
                f"topicjax {entry.get('versions', {}).get('topicjax')}, commit {entry.get('git_commit')}"
            )
            code = f"{entry.get('experiment')} {code_name(entry)}"
            found[f"{version}, {code}, jax {entry.get('versions', {}).get('jax')}"] = None
    return tuple(found) if len(found) > 1 else ()


def planned_trials(folder: Path, entry: Mapping[str, Any], found: Journal) -> set[str]:
    """Read the ids of the trials that a run was asked for; empty if its plan was lost."""
    if "plan" not in entry:
        return set()
    path = plan_path(folder, entry["plan"])
    return set(read_plan(path, found.plans.get(entry["plan"])))
