"""Writing a run folder: what is in it counts once it is whole.

A chunk of trials is committed by its file in trials/, written last; everything else of a chunk
without that file is invisible to readers and removed by the next Writer.
"""

import errno
import functools
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from topicjax.store import checkpoints, lock
from topicjax.store.files import REASONS, TEMPORARY, StoreError, explained, first_line, write_whole
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
from topicjax.store.manifest import FORMAT, Manifest, read_manifest, write_manifest


class Writer:
    """The only process that writes to a run folder, from `with` to the end of its block."""

    def __init__(self, folder: str | Path, sweep: str, extend: bool = False) -> None:
        self.folder = Path(folder)
        self.sweep = sweep
        self.extend = extend
        self.manifest: Manifest = {}
        self._lock = -1
        self._schemas: dict[Path, pa.Schema] = {}

    def __enter__(self) -> Self:
        """Take the folder, or raise a StoreError; remove what an interrupted run left."""
        check_kind(self.folder, may_be_new=True)
        self._check_manifest()  # before anything is created in a folder that is not for us
        with explained("write", self.folder):
            for name in FOLDERS:
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            try:
                self._lock = lock.acquire(self.folder / LOCK)
            except lock.HeldError as error:
                raise StoreError(f"{self.folder} is being written by {lock.who(error.holder)}") from None
        try:
            self.manifest = self._check_manifest()
            check_foreign(self.folder)
            remove_unfinished(self.folder)
        except BaseException:
            self.__exit__()
            raise
        return self

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
        path = self.folder / CHECKPOINTS / chunk / str(step)
        with explained("write", path):
            try:
                checkpoints.save(path, params)
            except (ValueError, RuntimeError) as error:  # tensorstore has no errno
                full = os.strerror(errno.ENOSPC) in str(error)
                why = REASONS[errno.ENOSPC] if full else first_line(error)
                raise StoreError(f"cannot write {path}: {why}") from error

    def commit(self, chunk: str, trials: pd.DataFrame, trajectories: pd.DataFrame) -> None:
        """Write the two parts of a chunk, the trials last: from then on it is finished."""
        steps = [step_text(value) for value in trials["snapshot_steps"]]
        trials = trials.assign(  # types that do not depend on which values a part happens to have
            diverged_step=trials["diverged_step"].astype("float64"),
            snapshot_steps=pd.array(steps, dtype="str"),
        )
        for name, frame in ((TRAJECTORIES, trajectories), (TRIALS, trials)):
            table = pa.Table.from_pandas(frame, preserve_index=False)
            self._check_schema(self.folder / name, table.schema)
            write_table(part_path(self.folder / name, chunk), table)
        self.drop_partial(chunk)

    def save_partial(self, chunk: str, payload: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Replace the state inside a chunk from which an interrupted run continues."""
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
        """Remove the states and snapshots of unfinished chunks other than these."""
        for path in (self.folder / PARTIAL).glob("*.npz"):
            if path.stem not in chunks:
                self.drop_partial(path.stem)
        remove_unfinished(self.folder)

    def _partial(self, chunk: str) -> Path:
        return self.folder / PARTIAL / f"{chunk}.npz"

    def _check_manifest(self) -> Manifest:
        """Return the manifest, or raise if this sweep's trials may not be added to the folder."""
        manifest = read_manifest(self.folder)
        has_trials = bool(part_files(self.folder / TRIALS))
        found = manifest.get("sweep", "an unknown sweep")
        if found != self.sweep and not self.extend and (manifest or has_trials):
            raise StoreError(
                f"{self.folder} holds trials of {found}, not of {self.sweep}; "
                "allowed: another folder (--out), or --extend to add to this one"
            )
        if has_trials and manifest.get("format", FORMAT) != FORMAT:
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


def write_table(path: Path, table: pa.Table) -> None:
    """Write a parquet file, whole or not at all."""
    write_whole(path, functools.partial(pq.write_table, table, compression="zstd"))


def check_foreign(folder: Path) -> None:
    """Raise a StoreError if a folder of parts has a file that would spoil reading the folder."""
    for parent in (folder / TRIALS, folder / TRAJECTORIES):
        for path in sorted(parent.iterdir()):
            if not path.name.startswith((".", "_")) and not path.match("part-*.parquet"):
                raise StoreError(f"{path} is not part of a run; move it elsewhere")


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files, and what belongs to chunks that are neither committed nor partial."""
    committed = {path.name for path in part_files(folder / TRIALS)}
    partial = {path.stem for path in (folder / PARTIAL).glob("*.npz")}
    with explained("clean", folder):
        for parent in (folder, *(folder / name for name in FOLDERS)):
            for path in parent.glob(f"{TEMPORARY}*"):
                path.unlink()
        for path in part_files(folder / TRAJECTORIES):
            if path.name not in committed:
                path.unlink()
        for chunk in (folder / CHECKPOINTS).iterdir():
            if part_path(folder, chunk.name).name in committed:
                continue
            for path in chunk.iterdir() if chunk.name in partial else [chunk]:
                if path == chunk or not path.name.isdecimal():
                    shutil.rmtree(path)


def step_text(steps: str | Sequence[int]) -> str:
    """Return the steps of snapshots in ascending order with spaces between."""
    return steps if isinstance(steps, str) else " ".join(str(int(step)) for step in sorted(steps))
