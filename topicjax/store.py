"""The run folder: parquet parts, manifest and snapshots; what is in it counts once it is whole.

A chunk of trials is committed by its file in trials/, written last; everything else of a chunk
without that file is invisible to readers and removed by the next Writer.  Reading imports neither
jax nor orbax.
"""

import difflib
import errno
import functools
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from topicjax import checkpoints, lock
from topicjax.checkpoints import plain
from topicjax.lock import (
    REASONS,
    TEMPORARY,
    StoreError,
    explained,
    first_line,
    reason,
    who,
    write_whole,
)

MANIFEST, LOCK = "manifest.json", "lock.json"
TRIALS, TRAJECTORIES, CHECKPOINTS, PARTIAL = "trials", "trajectories", "checkpoints", "partial"
FOLDERS = (TRIALS, TRAJECTORIES, CHECKPOINTS, PARTIAL)
LOCATION = ("trial_id", "chunk", "row", "snapshot_steps")  # where a trial's weights are


class Writer:
    """The only process that writes to a run folder, from `with` to the end of its block."""

    def __init__(self, folder: str | Path, sweep: str, extend: bool = False) -> None:
        self.folder = Path(folder)
        self.sweep = sweep
        self.extend = extend
        self._lock = -1

    def __enter__(self) -> Self:
        """Take the folder, or raise a StoreError; remove what an interrupted run left."""
        check_kind(self.folder, may_be_new=True)
        with explained("write", self.folder):
            for name in FOLDERS:
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            try:
                self._lock = lock.acquire(self.folder / LOCK)
            except lock.HeldError as error:
                raise StoreError(f"{self.folder} is being written by {who(error.holder)}") from None
        try:
            self._check_sweep()
            check_foreign(self.folder)
            remove_unfinished(self.folder)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        lock.release(self.folder / LOCK, self._lock)

    def committed(self) -> set[str]:
        """Return the ids of all trials that are finished."""
        return committed(self.folder)

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

    def snapshot_steps(self, chunk: str) -> list[int]:
        """Return the steps of which a chunk has a snapshot, finished or not."""
        return checkpoints.steps(self.folder / CHECKPOINTS / chunk)

    def commit(self, chunk: str, trials: pd.DataFrame, trajectories: pd.DataFrame) -> None:
        """Write the two parts of a chunk, the trials last: from then on it is finished."""
        steps = [step_text(value) for value in trials["snapshot_steps"]]
        trials = trials.assign(  # types that do not depend on which values a part happens to have
            diverged_step=trials["diverged_step"].astype("float64"),
            snapshot_steps=pd.array(steps, dtype="str"),
        )
        for name, frame in ((TRAJECTORIES, trajectories), (TRIALS, trials)):
            table = pa.Table.from_pandas(frame, preserve_index=False)
            path = part_path(self.folder / name, chunk)
            write_whole(path, functools.partial(pq.write_table, table, compression="zstd"))
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

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest; numbers that are not finite become null."""
        content = plain({"sweep": self.sweep} | dict(manifest))
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
        write_whole(self.folder / MANIFEST, lambda file: file.write(text.encode()))

    def _partial(self, chunk: str) -> Path:
        return self.folder / PARTIAL / f"{chunk}.npz"

    def _check_sweep(self) -> None:
        """Raise if the folder has another sweep's trials and we were not asked to extend it."""
        manifest = read_manifest(self.folder)
        found = manifest.get("sweep", "an unknown sweep")
        if found == self.sweep or self.extend:
            return
        if manifest or part_files(self.folder / TRIALS):
            raise StoreError(
                f"{self.folder} holds trials of {found}, not of {self.sweep}; "
                "allowed: another folder, or to ask for extending this one"
            )


@dataclass(frozen=True)
class Run:
    """The finished trials of a run folder; tables are read when first asked for."""

    folder: Path

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """What the engine wrote about the sweep."""
        return read_manifest(self.folder)

    @functools.cached_property
    def trials(self) -> pd.DataFrame:
        """One row per finished trial."""
        return read_columns(self._parts).to_pandas()

    @functools.cached_property
    def trajectories(self) -> pd.DataFrame:
        """One row per record of the finished trials."""
        folder = self.folder / TRAJECTORIES
        return read_columns([folder / path.name for path in self._parts]).to_pandas()

    @functools.cached_property
    def _parts(self) -> list[Path]:
        parts = part_files(self.folder / TRIALS)
        if not parts:
            raise StoreError(f"no trial in {self.folder} is finished yet")
        return parts

    @functools.cached_property
    def _locations(self) -> pd.DataFrame:
        return read_columns(self._parts, LOCATION).to_pandas().set_index("trial_id")

    def find(self, trial_id: str) -> str:
        """Return the whole id of the trial that begins as given."""
        return find_id(trial_id, list(self._locations.index), self.folder)

    def snapshot_step(self, trial_id: str, step: int | None = None) -> int:
        """Return the step if the trial's weights were kept there, without one the last that was."""
        steps = [int(text) for text in str(self._locations.loc[trial_id, "snapshot_steps"]).split()]
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
        step = self.snapshot_step(trial_id, step)
        place = self._locations.loc[trial_id]
        path = self.folder / CHECKPOINTS / str(place["chunk"]) / str(step)
        try:
            return checkpoints.read_row(path, int(place["row"]))
        except FileNotFoundError:
            raise StoreError(f"the snapshot {path} of trial {trial_id} is missing") from None
        except (OSError, KeyError, ValueError, IndexError) as error:
            why = first_line(error).split(" [tensorstore")[0]
            raise StoreError(f"the snapshot {path} is damaged: {why}") from error


def committed(folder: Path) -> set[str]:
    """Return the ids of all trials that are finished in a folder."""
    columns = read_columns(part_files(folder / TRIALS), ["trial_id"])
    return set(columns["trial_id"].to_pylist())


def load(folder: str | Path) -> Run:
    """Return the finished trials of a run folder, or raise a StoreError."""
    check_kind(Path(folder))
    return Run(Path(folder))


def status(folder: str | Path) -> dict[str, Any]:
    """Return sweep, planned, finished, ok, diverged and who is running it (None: nobody)."""
    folder = Path(folder)
    check_kind(folder)
    manifest = read_manifest(folder)
    counts = Counter(read_columns(part_files(folder / TRIALS), ["status"])["status"].to_pylist())
    return {
        "sweep": manifest.get("sweep"),
        "planned": manifest.get("trials_planned"),
        "finished": counts.total(),
        "ok": counts["ok"],
        "diverged": counts["diverged"],
        "running": lock.holder(folder / LOCK),
    }


def chunk_name(trial_ids: Sequence[str]) -> str:
    """Return 12 hexadecimal digits that depend on the trials of a chunk and their order."""
    return hashlib.sha256("\n".join(trial_ids).encode()).hexdigest()[:12]


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Return what the engine wrote about the sweep; empty if it has not written yet."""
    path = Path(folder) / MANIFEST
    try:
        with explained("read", path, FileNotFoundError):
            manifest = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(manifest, dict) or "sweep" not in manifest:
        raise StoreError(f"{path} is not the manifest of a run: it does not name its sweep")
    return manifest


def check_kind(folder: Path, may_be_new: bool = False) -> None:
    """Raise a StoreError unless this is a run folder, or there is nothing and that is allowed."""
    try:
        with explained("read", folder, NotADirectoryError, FileNotFoundError):
            names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except NotADirectoryError:
        raise StoreError(f"{folder} is not a folder; allowed: a run folder") from None
    except FileNotFoundError:
        if may_be_new:
            return
        raise StoreError(f"there is no folder {folder}") from None
    if not names and not may_be_new:
        raise StoreError(f"{folder} is empty; allowed: a run folder")
    if MANIFEST not in names and not set(names) <= {*FOLDERS, LOCK}:
        found = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
        raise StoreError(f"{folder} is not a run folder: it has no {MANIFEST} but {found}")


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


def part_path(folder: Path, chunk: str) -> Path:
    """Return the file of a chunk in trials/ or trajectories/."""
    return folder / f"part-{chunk}.parquet"


def part_files(folder: Path) -> list[Path]:
    """Return the whole parts of a folder; files with temporary names are still being written."""
    return sorted(folder.glob("part-*.parquet"))


def read_columns(parts: Sequence[Path], columns: Sequence[str] | None = None) -> pa.Table:
    """Return these columns (all by default) of all parts in one table."""
    tables = [read_part(path, columns) for path in parts]
    if not tables:
        return pa.table({name: pa.array([], pa.string()) for name in columns or ()})
    return pa.concat_tables(tables, promote_options="permissive")


def read_part(path: Path, columns: Sequence[str] | None) -> pa.Table:
    """Return these columns (all by default) of a part, or raise a StoreError that names it."""
    again = f"delete {TRIALS}/{path.name} to compute its trials again"
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(None if columns is None else list(columns))
    except FileNotFoundError:
        raise StoreError(f"{path} is missing, though its trials are finished; {again}") from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise StoreError(f"cannot read {path}: {reason(error)}") from error
        raise StoreError(f"{path} is damaged: {first_line(error)}; {again}") from error
    for name in columns or ():
        if name not in table.column_names:
            raise StoreError(f"{path} is not part of a run: it has no column {name}")
    return table


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


def step_text(steps: str | Sequence[int]) -> str:
    """Return the steps of snapshots in ascending order with spaces between."""
    return steps if isinstance(steps, str) else " ".join(str(int(step)) for step in sorted(steps))
