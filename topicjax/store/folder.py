"""The run folder: the names of what is in it, and whether a folder is one."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from topicjax.store import lock
from topicjax.store.files import StoreError, explained, scan

MANIFEST, LOCK, JOURNAL = "manifest.json", "lock.json", "journal.log"
TRIALS, TRAJECTORIES, CHECKPOINTS, PARTIAL = "trials", "trajectories", "checkpoints", "partial"
PLANS = "plans"  # a table of trial ids for each plan that a run was asked for
DETAILS = "details"  # only of experiments that measure something per layer, say
STATES = "states"  # from which finished trials are trained further
FOLDERS = (TRIALS, TRAJECTORIES, CHECKPOINTS, PARTIAL, PLANS, STATES)
TABLES = (DETAILS, TRAJECTORIES, TRIALS)  # in the order in which a chunk's parts are written
SET_ASIDE = "set_aside"  # what was damaged or of no more use, never deleted


def check_kind(folder: Path, may_be_new: bool = False) -> None:
    """Raise a StoreError unless this is a run folder, or there is nothing and that is allowed.

    Without a manifest a folder can be read, if it has trials, but not written: its files may be anyone's.
    """
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
    if MANIFEST in names or (may_be_new and (not names or is_just_begun(folder, names))):
        return
    if may_be_new or TRIALS not in names:
        inside = [name for name in names if os.path.exists(folder / name / MANIFEST)]
        found = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
        hint = f"did you mean {folder / inside[0]}?" if inside else f"it holds {found}"
        raise StoreError(f"{folder} is not a run folder, it has no {MANIFEST}; {hint}")


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
    for parent in (folder / name for name in TABLES):
        parts = set(part_files(parent))
        for path in sorted(parent / entry.name for entry in scan(parent)):
            if not path.name.startswith((".", "_")) and path not in parts:
                raise StoreError(f"{path} is not part of a run; move it elsewhere")


def is_just_begun(folder: Path, names: Sequence[str]) -> bool:
    """Return whether all there is was left by a Writer that was killed before it wrote the manifest."""
    with explained("read", folder / LOCK):
        return list(names) == [LOCK] and lock.is_ours(folder / LOCK)


def part_path(folder: Path, chunk: str) -> Path:
    """Return the file of a chunk in one of the folders of parts."""
    return folder / part_name(chunk)


def part_name(chunk: str) -> str:
    """Return the name of a chunk's files in the folders of parts."""
    return f"part-{chunk}.parquet"


def part_files(folder: Path) -> list[Path]:
    """Return the whole parts of a folder; files with temporary names are still being written."""
    names = sorted(entry.name for entry in scan(folder))
    return [folder / name for name in names if name.startswith("part-") and name.endswith(".parquet")]


def tables_of(folder: Path) -> tuple[str, ...]:
    """Return the folders in which every chunk has a part: details are of all chunks or of none."""
    return TABLES if part_files(folder / DETAILS) else TABLES[1:]


def chunk_of(part: Path) -> str:
    """Return the chunk that a part is named after; it may be anything in a folder from elsewhere."""
    return part.stem.removeprefix("part-")


def files_of(folder: Path, chunk: str) -> list[Path]:
    """Return all that may be there of a chunk, trials first: without them it is not finished."""
    return [
        *(part_path(folder / name, chunk) for name in reversed(TABLES)),
        folder / CHECKPOINTS / chunk,
        folder / PARTIAL / f"{chunk}.npz",
        state_path(folder, chunk),
    ]


def state_path(folder: Path, chunk: str) -> Path:
    """Return the file with the states that the trials of a chunk ended in."""
    return folder / STATES / f"{chunk}.npz"


def plan_path(folder: Path, plan: str) -> Path:
    """Return the file with the trial ids of a plan."""
    return folder / PLANS / f"plan-{plan}.parquet"


def ids_name(trial_ids: Sequence[str]) -> str:
    """Return the name of a chunk or plan: 12 hexadecimal digits of its trials and their order."""
    return hashlib.sha256("\n".join(trial_ids).encode()).hexdigest()[:12]
