"""Write a run folder atomically.

A chunk counts once all its files are on disk: its part in trials/ is written last and commits it.  Before the
first file of a chunk is written, the journal records it.  The next Writer removes the files of chunks that
were begun but not finished; files that we did not create are never deleted.
"""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa

from topicjax.store import checkpoints, files, journal
from topicjax.store.files import (
    CHECKPOINTS,
    DETAILS,
    FOLDERS,
    TRIALS,
    StoreError,
    check_foreign,
    check_kind,
    check_name,
    explained,
    files_of,
    ids_name,
    part_path,
    partial_path,
    plan_path,
    reason_in,
    state_path,
    sync,
)
from topicjax.store.journal import Commit, Journal, Measured, check_whole
from topicjax.store.manifest import Manifest, new_manifest, read_manifest, write_manifest
from topicjax.store.measured import make_table, misplaced_measured, part_of, place_of
from topicjax.store.parts import (
    Columns,
    check_columns,
    column_types,
    columns_of,
    incomplete_trials,
    is_as_written,
    make_tables,
    snapshot_places,
    write_columns,
    write_table,
)
from topicjax.store.recovery import remove_unfinished
from topicjax.store.verify import move, new_place


class Writer:
    """The only process that writes to a run folder, within its `with` block."""

    def __init__(self, folder: str | Path, sweep: str, extend: bool = False) -> None:
        self.folder = Path(folder)
        self.sweep = sweep
        self.extend = extend
        self.manifest: Manifest = {}
        self.journal = Journal()
        self._lock = -1
        self._columns: dict[str, Columns] = {}  # of the tables; empty until a chunk is finished
        self._checksums: dict[str, dict[int, list[str]]] = {}  # by chunk and step, one per trial
        self._trees: dict[str, dict[int, str]] = {}  # by chunk and step

    def __enter__(self) -> Self:
        """Lock the folder, or raise a StoreError; remove what an interrupted run left."""
        check_name(self.folder)
        check_kind(self.folder, may_be_new=True)
        manifest = self._check_manifest()  # before anything is created in a foreign folder
        if not manifest:
            with explained("write", self.folder):
                files.make_folder(self.folder)
        self._lock = files.lock_folder(self.folder)
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        """Read the folder while holding the lock; clean up after an interrupted run."""
        manifest = self._check_manifest()
        self.journal = journal.read_journal(self.folder)
        check_foreign(self.folder)
        check_whole(self.folder, self.journal, misplaced_measured(self.folder, self.journal))
        self.manifest = manifest or new_manifest(self.sweep)
        self.manifest["sweep"] = self.manifest["sweep"] or self.sweep
        if not manifest:
            write_manifest(self.folder, self.manifest)  # first of all: it marks the folder as ours
        for name in FOLDERS:
            self._make_folder(name)
        with explained("write", self.folder):
            files.sync_names(self.folder)
        remove_unfinished(self.folder, self.journal)

    def __exit__(self, *_: object) -> None:
        files.unlock_folder(self.folder, self._lock)

    def write_plan(self, trial_ids: Sequence[str]) -> str:
        """Store the ids of the trials that a run was asked for; return the name of that plan."""
        name = ids_name(trial_ids)
        path, mark = plan_path(self.folder, name), self.journal.plans.get(name)
        if mark is None or not is_as_written(path, mark):
            mark = write_table(path, pa.table({"trial_id": pa.array(trial_ids, pa.string())}))
            self._log(journal.plan_entry(name, self.manifest["sweep"], mark))
        return name

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest."""
        write_manifest(self.folder, manifest)

    def save_snapshot(self, chunk: str, step: int, tree: Any) -> None:
        """Write the weights of a chunk at a step: a tree of arrays whose first axis is the trial.

        It holds the trials of the chunk that have weights at this step, in the order of the chunk.
        """
        leaves, structure = checkpoints.flatten(tree)
        leaves = {name: np.asarray(leaf) for name, leaf in leaves.items()}
        count = len(next(iter(leaves.values())))
        trials = ({name: array[row] for name, array in leaves.items()} for row in range(count))
        sums = [checkpoints.checksum(structure, own) for own in trials]
        self._begin(chunk)
        path = self.folder / CHECKPOINTS / chunk / str(step)
        with explained("write", path):
            try:
                checkpoints.save(path, structure, leaves)
                read_back = checkpoints.checksum(*checkpoints.read_trials(path, count - 1))
            except (ValueError, RuntimeError) as error:  # tensorstore errors have no errno
                raise StoreError(f"cannot write {path}: {reason_in(error)}") from error
        if read_back != sums[-1]:
            raise StoreError(f"cannot write {path}: other weights are read back than were written")
        self._checksums.setdefault(chunk, {})[step] = sums
        self._trees.setdefault(chunk, {})[step] = checkpoints.tree_checksum(path)

    def commit(
        self,
        chunk: str,
        trials: pd.DataFrame,
        trajectories: pd.DataFrame,
        details: pd.DataFrame | None = None,
        keeps_end: bool = False,
    ) -> None:
        """Write the parts of a chunk, the trials last, which finishes it.

        `snapshot_steps` of each trial are the steps at which it has weights.  A chunk whose trials lack
        records, or with `keeps_end` their final weights, is never written.
        """
        steps = [sorted(map(int, own)) for own in trials["snapshot_steps"]]
        known = self._checksums.get(chunk, {})
        sums = [[known[at][place] for at, place in own.items()] for own in snapshot_places(steps)]
        tables = make_tables(trials.assign(snapshot_steps=steps), trajectories, details, sums)
        for name in tables.keys() - {TRIALS}:
            for problem in incomplete_trials(tables[TRIALS], tables[name], keeps_end):
                raise RuntimeError(f"chunk {chunk} is not whole and is not kept: {problem}")
        columns = {name: column_types(table.schema) for name, table in tables.items()}
        self._columns = self._columns or columns_of(self.folder)
        check_columns(self.folder, columns, self._columns)
        self._begin(chunk)
        if details is not None:
            self._make_folder(DETAILS)
        for name in (name for name, known in self._columns.items() if known.keys() < columns[name].keys()):
            write_columns(self.folder, name, tables[name].schema)
        marks = {
            name: write_table(part_path(self.folder / name, chunk), table) for name, table in tables.items()
        }
        diverged = trials["status"].tolist().count("diverged")
        done = Commit(chunk, tuple(trials["trial_id"]), diverged, self._trees.get(chunk, {}), marks)
        self._log(journal.commit_entry(done))
        self._columns = columns
        self._checksums.pop(chunk, None)
        self._trees.pop(chunk, None)
        self.drop_partial(chunk)

    def save_end(self, chunk: str, payload: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Write the final states of a chunk's trials, from which they can be trained further."""
        self._begin(chunk)
        checkpoints.save_state(state_path(self.folder, chunk), payload, meta)

    def save_partial(self, chunk: str, payload: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Write or replace the state of a chunk from which an interrupted run resumes."""
        self._begin(chunk)
        checkpoints.save_state(partial_path(self.folder, chunk), payload, meta)

    def load_partial(
        self, chunk: str, expected: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Read the last (payload, meta) of a chunk; None if there is none that can be used.

        A state that is damaged, from another version, or without the expected values in meta is set aside.
        """
        path = partial_path(self.folder, chunk)
        try:
            return checkpoints.load_state(path, expected)
        except checkpoints.StateError as error:
            with explained("write", self.folder):
                now = move(path, self.folder, new_place(self.folder))
                sync(now.parent)
                sync(path.parent)
            logging.getLogger(__name__).warning(
                "%s %s; moved to %s, its trials start again", path, error, now
            )
            return None

    def write_measured(self, measure: str, frame: pd.DataFrame, origin: Mapping[str, Any]) -> None:
        """Write a part of measured/: columns of snapshots, with the checksum of the weights of each."""
        part = part_of(frame, measure)
        path, known = place_of(self.folder, part), {*self.journal.measured, *self.journal.measuring}
        if part not in known and os.path.lexists(path):
            raise StoreError(f"{path} is there, but no run of this folder wrote it; move it elsewhere")
        with explained("write", path):
            files.make_folder(path.parent)
        self._log(journal.measure_entry("measuring", part))
        table = make_table(frame, origin)
        own = Measured(len(frame), write_table(path, table))
        self._log(journal.measure_entry("measured", part, own))

    def set_measure_aside(self, measure: str) -> None:
        """Move all parts of a measure into set_aside/: nothing is deleted."""
        parts = [part for part in self.journal.measured if part[0] == measure]
        place = new_place(self.folder) if parts else self.folder
        for part in parts:
            path = place_of(self.folder, part)
            self._log(journal.measure_entry("measuring", part))  # if we are killed here, it counts again
            with explained("write", path):
                sync(move(path, self.folder, place).parent)
                sync(path.parent)
            self._log(journal.measure_entry("unmeasured", part))

    def drop_partial(self, chunk: str) -> None:
        """Remove the saved state of a chunk, if there is one."""
        path = partial_path(self.folder, chunk)
        with explained("write", path):
            path.unlink(missing_ok=True)

    def keep_partials(self, chunks: Collection[str]) -> None:
        """Remove the saved states and snapshots of all begun chunks except these."""
        for chunk in self.journal.begun - set(chunks):
            self.drop_partial(chunk)
        remove_unfinished(self.folder, self.journal)

    def _begin(self, chunk: str) -> None:
        """Record in the journal that files of this chunk are about to be written."""
        if chunk in self.journal.begun:
            return
        for path in files_of(self.folder, chunk):
            if os.path.lexists(path):
                raise StoreError(f"{path} is there, but no run of this folder wrote it; move it elsewhere")
        self._log({"event": "begin", "chunk": chunk})

    def _log(self, entry: Mapping[str, Any]) -> None:
        journal.append(self.folder, entry)
        self.journal.apply(entry)

    def _make_folder(self, name: str) -> None:
        """Create a subfolder, if it does not exist yet."""
        with explained("write", self.folder / name):
            if not (self.folder / name).is_dir():
                (self.folder / name).mkdir()
                sync(self.folder)

    def _check_manifest(self) -> Manifest:
        """Read the manifest, or raise if this sweep's trials may not be added to the folder."""
        manifest = read_manifest(self.folder)
        found = manifest.get("sweep") or self.sweep  # empty if repair could not determine it
        if found != self.sweep and not self.extend:
            raise StoreError(
                f"{self.folder} holds trials of {found}, not of {self.sweep}; "
                "allowed: another folder (--out), or --extend to add to this one"
            )
        return manifest
