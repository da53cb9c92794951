"""After an interruption: what a folder must have, and what of our own may be removed."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from topicjax.store import journal
from topicjax.store.checkpoints import tree_checksum
from topicjax.store.files import TEMPORARY, StoreError, explained
from topicjax.store.folder import (
    CHECKPOINTS,
    MANIFEST,
    PARTIAL,
    TRAJECTORIES,
    TRIALS,
    part_path,
)
from topicjax.store.journal import Commit, FileMark, Journal
from topicjax.store.parts import read_part

UNFINISHED_SNAPSHOT = ".orbax-checkpoint-tmp"  # how orbax names what it has not finished


def check_whole(folder: Path, found: Journal) -> None:
    """Raise a StoreError if files of finished chunks are missing or cut off: nothing may be built on that."""
    problems = list(missing_files(folder, found))
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise StoreError(
            f"{problems[0]}{more}, though its trials are finished; copy it again, or set the rest of such "
            f"trials aside with `topicjax repair {folder}`, then they are computed again"
        )


def missing_files(folder: Path, found: Journal) -> Iterator[str]:
    """Give a sentence for each file of a finished chunk that is missing or has another size: a quick look."""
    sizes = {name: file_sizes(folder / name) for name in (TRIALS, TRAJECTORIES)}
    snapshots = {entry.name for entry in scan(folder / CHECKPOINTS)}
    for chunk, commit in found.commits.items():
        for name, mark in commit.files.items():
            path = part_path(folder / name, chunk)
            size = sizes[name].get(path.name)
            if size is None:
                yield f"{path} is missing"
            elif size != mark.size:
                yield f"{path} has {size:,} bytes instead of {mark.size:,}"
        kept = {entry.name for entry in scan(folder / CHECKPOINTS / chunk)} if chunk in snapshots else set()
        for step in commit.snapshots:
            if str(step) not in kept:
                yield f"the snapshot {folder / CHECKPOINTS / chunk / str(step)} is missing"


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file of a folder by name."""
    return {entry.name: entry.stat().st_size for entry in scan(folder)}


def scan(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing if it is not there."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_unfinished(folder: Path, found: Journal) -> None:
    """Finish the journal of chunks that are whole, and remove what others of ours left that have no state.

    Only names that the journal calls begun are touched, and our own temporary files.
    """
    with explained("clean", folder):
        (folder / f"{TEMPORARY}{MANIFEST}").unlink(missing_ok=True)
        for chunk in sorted(found.begun):
            if part_path(folder / TRIALS, chunk).exists():
                finish_commit(folder, found, chunk)
            else:
                remove_files(folder, chunk)


def finish_commit(folder: Path, found: Journal, chunk: str) -> None:
    """Write the journal's line of a chunk whose process was killed between its last file and that line."""
    files = {
        name: FileMark.of(part_path(folder / name, chunk).read_bytes()) for name in (TRAJECTORIES, TRIALS)
    }
    table = read_part(part_path(folder / TRIALS, chunk), ["trial_id", "status", "snapshot_steps"])
    steps = str(table["snapshot_steps"][0]).split() if len(table) else []
    snapshots = {int(step): tree_checksum(folder / CHECKPOINTS / chunk / step) for step in steps}
    diverged = table["status"].to_pylist().count("diverged")
    done = Commit(chunk, tuple(table["trial_id"].to_pylist()), diverged, snapshots, files)
    entry = journal.commit_entry(done)
    journal.append(folder, entry)
    found.apply(entry)


def remove_files(folder: Path, chunk: str) -> None:
    """Remove what an unfinished chunk left; its snapshots stay while there is a state to continue from."""
    for name in (TRIALS, TRAJECTORIES):
        part = part_path(folder / name, chunk)
        part.with_name(TEMPORARY + part.name).unlink(missing_ok=True)
    state = folder / PARTIAL / f"{chunk}.npz"
    state.with_name(TEMPORARY + state.name).unlink(missing_ok=True)
    part_path(folder / TRAJECTORIES, chunk).unlink(missing_ok=True)
    snapshots = folder / CHECKPOINTS / chunk
    for entry in scan(snapshots):
        step, _, rest = entry.name.partition(".")
        is_torn = step.isdecimal() and f".{rest}".startswith(UNFINISHED_SNAPSHOT)
        if is_torn or (step.isdecimal() and not rest and not state.exists()):
            shutil.rmtree(entry.path)
    if not scan(snapshots) and snapshots.is_dir() and not snapshots.is_symlink():
        snapshots.rmdir()
