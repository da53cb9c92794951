"""Writing a run folder: what is in it counts once it is whole, and nothing but our own is ever removed.

A chunk of trials is finished once its file in trials/ is there, which is written last.  Before the first file
of a chunk is written the journal says so: only files of chunks that the journal calls begun and that are not
finished are removed by the next Writer.
"""

import errno
import io
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from topicjax.store import checkpoints, journal, lock
from topicjax.store.files import REASONS, StoreError, explained, first_line, write_whole
from topicjax.store.folder import (
    CHECKPOINTS,
    FOLDERS,
    LOCK,
    PARTIAL,
    TRAJECTORIES,
    TRIALS,
    check_kind,
    ids_name,
    part_files,
    part_path,
    plan_path,
)
from topicjax.store.journal import Commit, FileMark, Journal
from topicjax.store.manifest import FORMAT, Manifest, new_manifest, read_manifest, write_manifest
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
        self.manifest = self._check_manifest() or new_manifest(self.sweep)
        write_manifest(self.folder, self.manifest)  # first of all: it says whose folder this is
        with explained("write", self.folder):
            for name in FOLDERS:
                (self.folder / name).mkdir(exist_ok=True)
        check_foreign(self.folder)
        self.journal = journal.read_journal(self.folder) or Journal()
        check_whole(self.folder, self.journal)
        remove_unfinished(self.folder, self.journal)

    def __exit__(self, *_: object) -> None:
        lock.release(self.folder / LOCK, self._lock)

    def write_plan(self, trial_ids: Sequence[str]) -> str:
        """Keep the ids of the trials that a run was asked for; return the name of that plan."""
        name = ids_name(trial_ids)
        path = plan_path(self.folder, name)
        if not path.exists():
            write_table(path, pa.table({"trial_id": pa.array(trial_ids, pa.string())}))
        return name

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest."""
        write_manifest(self.folder, manifest)

    def save_snapshot(self, chunk: str, step: int, params: Mapping[str, np.ndarray]) -> None:
        """Write the weights of a chunk at a step; the leading axis of each array is the trial."""
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

    def commit(self, chunk: str, trials: pd.DataFrame, trajectories: pd.DataFrame) -> None:
        """Write the two parts of a chunk, the trials last: from then on it is finished."""
        self._begin(chunk)
        texts = [step_text(value) for value in trials["snapshot_steps"].tolist()]
        steps = [[int(step) for step in text.split()] for text in texts]
        sums = self._checksums.pop(chunk, {})
        checks = [" ".join(sums[at][row] for at in own if at in sums) for row, own in enumerate(steps)]
        trials = trials.assign(  # types that do not depend on which values a part happens to have
            diverged_step=trials["diverged_step"].astype("float64"),
            snapshot_steps=pd.array(texts, dtype="str"),
            snapshot_checksums=pd.array(checks, dtype="str"),
        )
        files = {}
        for name, frame in ((TRAJECTORIES, trajectories), (TRIALS, trials)):
            table = pa.Table.from_pandas(frame, preserve_index=False)
            self._check_schema(self.folder / name, table.schema)
            files[name] = write_table(part_path(self.folder / name, chunk), table)
        diverged = trials["status"].tolist().count("diverged")
        done = Commit(chunk, tuple(trials["trial_id"]), diverged, self._trees.pop(chunk, {}), files)
        entry = journal.commit_entry(done)
        journal.append(self.folder, entry)
        self.journal.apply(entry)
        self.drop_partial(chunk)

    def save_partial(self, chunk: str, payload: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Replace the state inside a chunk from which an interrupted run continues."""
        self._begin(chunk)
        checkpoints.save_state(self._partial(chunk), payload, meta)

    def load_partial(self, chunk: str) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Return the last (payload, meta) of a chunk; None if there is none or it is damaged."""
        return checkpoints.load_state(self._partial(chunk))

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
        found = [
            path
            for path in (self.folder / CHECKPOINTS / chunk, part_path(self.folder / TRAJECTORIES, chunk))
            if path.exists()
        ]
        if found:
            raise StoreError(f"{found[0]} is there, but no run of this folder wrote it; move it elsewhere")
        entry = {"event": "begin", "chunk": chunk}
        journal.append(self.folder, entry)
        self.journal.apply(entry)

    def _partial(self, chunk: str) -> Path:
        return self.folder / PARTIAL / f"{chunk}.npz"

    def _check_manifest(self) -> Manifest:
        """Return the manifest, or raise if this sweep's trials may not be added to the folder."""
        manifest = read_manifest(self.folder)
        found = manifest.get("sweep", self.sweep)
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


def write_table(path: Path, table: pa.Table) -> FileMark:
    """Write a parquet file with page checksums, whole or not at all; return its mark."""
    with io.BytesIO() as buffer:
        pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
        content = buffer.getvalue()
    write_whole(path, lambda file: file.write(content))
    return FileMark.of(content)


def check_name(folder: Path) -> None:
    """Raise a StoreError if the libraries that write into the folder cannot take its name."""
    try:
        str(folder.absolute()).encode("utf-8")
    except UnicodeEncodeError:
        raise StoreError(
            f"the name of {str(folder)!r} is not valid UTF-8; allowed: another folder (--out)"
        ) from None


def check_foreign(folder: Path) -> None:
    """Raise a StoreError if a folder of parts has a file that would spoil reading the folder."""
    for parent in (folder / TRIALS, folder / TRAJECTORIES):
        for path in sorted(parent.iterdir()):
            if not path.name.startswith((".", "_")) and not path.match("part-*.parquet"):
                raise StoreError(f"{path} is not part of a run; move it elsewhere")


def step_text(steps: str | Sequence[int]) -> str:
    """Return the steps of snapshots in ascending order with spaces between."""
    return steps if isinstance(steps, str) else " ".join(str(int(step)) for step in sorted(steps))
