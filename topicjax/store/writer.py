"""Writing a run folder: what is in it counts once it is whole, and nothing but our own is ever removed.

A chunk of trials is finished once its file in trials/ is there, which is written last.  Before the first file
of a chunk is written the journal says so: only files of chunks that the journal calls begun and that are not
finished are removed by the next Writer.
"""

import errno
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from topicjax.store import checkpoints, journal, lock
from topicjax.store.aside import move, new_place
from topicjax.store.files import REASONS, StoreError, explained, first_line, sync
from topicjax.store.folder import (
    CHECKPOINTS,
    DETAILS,
    FOLDERS,
    LOCK,
    PARTIAL,
    TRAJECTORIES,
    TRIALS,
    check_foreign,
    check_kind,
    check_name,
    files_of,
    ids_name,
    part_files,
    part_path,
    plan_path,
    state_path,
)
from topicjax.store.journal import Commit, Journal
from topicjax.store.manifest import FORMAT, Manifest, new_manifest, read_manifest, write_manifest
from topicjax.store.parts import incomplete_trials, is_as_written, snapshot_places, write_table
from topicjax.store.recovery import check_whole, remove_unfinished


class Writer:
    """The only process that writes to a run folder, from `with` to the end of its block."""

    def __init__(self, folder: str | Path, sweep: str, extend: bool = False) -> None:
        self.folder = Path(folder)
        self.sweep = sweep
        self.extend = extend
        self.manifest: Manifest = {}
        self.journal = Journal()
        self._lock = -1
        self._schemas: dict[Path, pa.Schema] = {}
        self._checksums: dict[str, dict[int, list[str]]] = {}  # by chunk and step, one per trial
        self._trees: dict[str, dict[int, str]] = {}  # by chunk and step

    def __enter__(self) -> Self:
        """Take the folder, or raise a StoreError; remove what an interrupted run of ours left."""
        check_name(self.folder)
        check_kind(self.folder, may_be_new=True)
        self._check_manifest()  # before anything is created in a folder that is not for us
        with explained("write", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = lock.acquire(self.folder / LOCK)
            except lock.HeldError as error:
                raise StoreError(f"{self.folder} is being written by {lock.who(error.holder)}") from None
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        """Read what is there, with the lock held; clean up after an interrupted run."""
        manifest = self._check_manifest()
        self.journal = journal.read_journal(self.folder) or Journal()
        check_foreign(self.folder)
        check_whole(self.folder, self.journal)
        self.manifest = manifest or new_manifest(self.sweep)
        self.manifest["sweep"] = self.manifest["sweep"] or self.sweep
        if not manifest:
            write_manifest(self.folder, self.manifest)  # first of all: it says whose folder this is
        for name in FOLDERS:
            self._make_folder(name)
        remove_unfinished(self.folder, self.journal)

    def __exit__(self, *_: object) -> None:
        lock.release(self.folder / LOCK, self._lock)

    def write_plan(self, trial_ids: Sequence[str]) -> str:
        """Keep the ids of the trials that a run was asked for; return the name of that plan."""
        name = ids_name(trial_ids)
        path, mark = plan_path(self.folder, name), self.journal.plans.get(name)
        if mark is None or not is_as_written(path, mark):
            mark = write_table(path, pa.table({"trial_id": pa.array(trial_ids, pa.string())}))
            self._log(journal.plan_entry(name, self.manifest["sweep"], mark))
        return name

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest."""
        write_manifest(self.folder, manifest)

    def save_snapshot(self, chunk: str, step: int, params: Mapping[str, np.ndarray]) -> None:
        """Write weights of a chunk at a step: the leading axis is the trial, of those that have any then."""
        self._begin(chunk)
        path = self.folder / CHECKPOINTS / chunk / str(step)
        count = len(next(iter(params.values())))
        sums = [checkpoints.checksum({n: array[i] for n, array in params.items()}) for i in range(count)]
        with explained("write", path):
            try:
                checkpoints.save(path, params)
                read_back = checkpoints.checksum(checkpoints.read_trials(path, count - 1))
            except (ValueError, RuntimeError) as error:  # tensorstore has no errno
                full = os.strerror(errno.ENOSPC) in str(error)
                why = REASONS[errno.ENOSPC] if full else first_line(error)
                raise StoreError(f"cannot write {path}: {why}") from error
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
        """Write the parts of a chunk, the trials last: from then on it is finished.

        A chunk whose trials lack records, or with `keeps_end` the weights they ended with, is never written.
        """
        self._check_details(details is not None)
        self._begin(chunk)
        texts = [step_text(value) for value in trials["snapshot_steps"].tolist()]
        steps = [[int(step) for step in text.split()] for text in texts]
        sums = self._checksums.get(chunk, {})
        checks = [" ".join(sums[at][place] for at, place in own.items()) for own in snapshot_places(steps)]
        trials = trials.assign(  # types that do not depend on which values a part happens to have
            diverged_step=trials["diverged_step"].astype("float64"),
            snapshot_steps=pd.array(texts, dtype="str"),
            snapshot_checksums=pd.array(checks, dtype="str"),
        )
        parts, files = {TRAJECTORIES: trajectories, TRIALS: trials}, {}
        if details is not None:
            self._make_folder(DETAILS)
            parts = {DETAILS: details, **parts}
        tables = {name: pa.Table.from_pandas(frame, preserve_index=False) for name, frame in parts.items()}
        for name in parts.keys() - {TRIALS}:
            for problem in incomplete_trials(tables[TRIALS], tables[name], keeps_end):
                raise RuntimeError(f"chunk {chunk} is not whole and is not kept: {problem}")
        for name, table in tables.items():
            self._check_schema(self.folder / name, table.schema)
            files[name] = write_table(part_path(self.folder / name, chunk), table)
        diverged = trials["status"].tolist().count("diverged")
        done = Commit(chunk, tuple(trials["trial_id"]), diverged, self._trees.get(chunk, {}), files)
        self._log(journal.commit_entry(done))
        self._checksums.pop(chunk, None)
        self._trees.pop(chunk, None)
        self.drop_partial(chunk)

    def save_end(self, chunk: str, payload: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Write the states that trials of a chunk ended in, from which they can be trained further."""
        self._begin(chunk)
        checkpoints.save_state(state_path(self.folder, chunk), payload, meta)

    def save_partial(self, chunk: str, payload: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Replace the state inside a chunk from which an interrupted run continues."""
        self._begin(chunk)
        checkpoints.save_state(self._partial(chunk), payload, meta)

    def load_partial(
        self, chunk: str, expected: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Return the last (payload, meta) of a chunk, or None if there is none that is of use.

        A state that is damaged, of another version, or without the expected values in meta is set aside.
        """
        path = self._partial(chunk)
        try:
            return checkpoints.load_state(path, expected)
        except checkpoints.StateError as error:
            with explained("write", self.folder):
                now = move(path, self.folder, new_place(self.folder))
            logging.getLogger(__name__).warning(
                "%s %s; moved to %s, its trials start again", path, error, now
            )
            return None

    def drop_partial(self, chunk: str) -> None:
        """Remove the state inside a chunk, if there is one."""
        path = self._partial(chunk)
        with explained("write", path):
            path.unlink(missing_ok=True)

    def keep_partials(self, chunks: Collection[str]) -> None:
        """Remove the states and snapshots of begun chunks other than these."""
        for chunk in self.journal.begun - set(chunks):
            self.drop_partial(chunk)
        remove_unfinished(self.folder, self.journal)

    def _begin(self, chunk: str) -> None:
        """Say in the journal that files of this chunk are about to be written."""
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
        """Make a folder of the run folder, if it is not there yet."""
        with explained("write", self.folder / name):
            if not (self.folder / name).is_dir():
                (self.folder / name).mkdir()
                sync(self.folder)

    def _check_details(self, has_details: bool) -> None:
        """Raise a StoreError unless all chunks have details or none has: else a lost part is not missed."""
        if any((DETAILS in done.files) != has_details for done in self.journal.commits.values()):
            raise StoreError(
                f"{self.folder} holds trials {'without' if has_details else 'with'} {DETAILS}, unlike these; "
                "allowed: another folder (--out)"
            )

    def _partial(self, chunk: str) -> Path:
        return self.folder / PARTIAL / f"{chunk}.npz"

    def _check_manifest(self) -> Manifest:
        """Return the manifest, or raise if this sweep's trials may not be added to the folder."""
        manifest = read_manifest(self.folder)
        found = manifest.get("sweep") or self.sweep  # empty: repair could not find out
        if found != self.sweep and not self.extend:
            raise StoreError(
                f"{self.folder} holds trials of {found}, not of {self.sweep}; "
                "allowed: another folder (--out), or --extend to add to this one"
            )
        if manifest.get("format", FORMAT) != FORMAT:
            raise StoreError(
                f"{self.folder} was written by an older topicjax (format {manifest['format']}, now {FORMAT}) "
                "and can be read, but not added to; allowed: another folder (--out)"
            )
        return manifest

    def _check_schema(self, folder: Path, schema: pa.Schema) -> None:
        """Raise unless a new part has the columns of those there: readers would drop what the first lacks."""
        if folder not in self._schemas:
            parts = part_files(folder)
            self._schemas[folder] = pq.read_schema(parts[0]) if parts else schema
        there = self._schemas[folder]
        if not there.equals(schema):
            new, old = set(schema.names) - set(there.names), set(there.names) - set(schema.names)
            differ = ", ".join(sorted(new | old)) or "their types"
            raise StoreError(
                f"the parts of {folder} have other columns than this version writes ({differ}); "
                "allowed: another folder (--out)"
            )


def step_text(steps: str | Sequence[int]) -> str:
    """Return the steps of snapshots in ascending order with spaces between."""
    return steps if isinstance(steps, str) else " ".join(str(int(step)) for step in sorted(steps))
