"""The run folder: the names of what is in it, and whether a folder is one."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from topicjax.store.files import StoreError, explained

MANIFEST, LOCK, JOURNAL = "manifest.json", "lock.json", "journal.log"
TRIALS, TRAJECTORIES, CHECKPOINTS, PARTIAL = "trials", "trajectories", "checkpoints", "partial"
PLANS = "plans"  # a table of trial ids for each plan that a run was asked for
FOLDERS = (TRIALS, TRAJECTORIES, CHECKPOINTS, PARTIAL, PLANS)
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
    if MANIFEST in names or (may_be_new and set(names) <= {LOCK}):
        return
    if may_be_new or TRIALS not in names:
        inside = [name for name in names if (folder / name / MANIFEST).exists()]
        found = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
        hint = f"did you mean {folder / inside[0]}?" if inside else f"it holds {found}"
        raise StoreError(f"{folder} is not a run folder, it has no {MANIFEST}; {hint}")


def part_path(folder: Path, chunk: str) -> Path:
    """Return the file of a chunk in trials/ or trajectories/."""
    return folder / f"part-{chunk}.parquet"


def part_files(folder: Path) -> list[Path]:
    """Return the whole parts of a folder; files with temporary names are still being written."""
    return sorted(folder.glob("part-*.parquet"))


def plan_path(folder: Path, plan: str) -> Path:
    """Return the file with the trial ids of a plan."""
    return folder / PLANS / f"plan-{plan}.parquet"


def ids_name(trial_ids: Sequence[str]) -> str:
    """Return the name of a chunk or plan: 12 hexadecimal digits of its trials and their order."""
    return hashlib.sha256("\n".join(trial_ids).encode()).hexdigest()[:12]
