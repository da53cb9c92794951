"""Set aside what is damaged, so that the next run computes just that again.  Nothing is deleted."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from topicjax.store import journal, lock
from topicjax.store.files import StoreError, explained, sync
from topicjax.store.folder import (
    CHECKPOINTS,
    JOURNAL,
    LOCK,
    MANIFEST,
    PARTIAL,
    SET_ASIDE,
    TRAJECTORIES,
    TRIALS,
    part_files,
    part_path,
)
from topicjax.store.manifest import new_manifest, write_manifest
from topicjax.store.recovery import finish_commit
from topicjax.store.verify import Problem, Say, Verdict, verify


def repair(folder: Path, say: Say = lambda done, total: None) -> tuple[Verdict, list[Path]]:
    """Move what is damaged into set_aside/; return what was found, and where things are now."""
    try:
        descriptor = lock.acquire(folder / LOCK)
    except lock.HeldError as error:
        raise StoreError(f"{folder} is being written by {lock.who(error.holder)}") from None
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror}") from error
    try:
        verdict = verify(folder, say)
        with explained("write", folder):
            return verdict, set_aside(folder, verdict.problems)
    finally:
        lock.release(folder / LOCK, descriptor)


def set_aside(folder: Path, problems: Iterable[Problem]) -> list[Path]:
    """Move the files of these problems, and all others of the same chunks; return where they are now."""
    problems = list(problems)
    if not problems:
        return []
    place = new_place(folder)
    chunks = {problem.chunk for problem in problems if problem.chunk is not None}
    single = {problem.path for problem in problems if problem.chunk is None}
    moved = [move(path, folder, place) for path in sorted(single) if path.exists()]
    if folder / MANIFEST in single:
        write_manifest(folder, new_manifest(folder.name))
    if folder / JOURNAL in single:
        write_journal(folder, chunks)
    for chunk in sorted(chunks):
        journal.append(folder, {"event": "drop", "chunk": chunk})
        moved += [move(path, folder, place) for path in files_of(folder, chunk) if path.exists()]
    sync(folder)
    return moved


def new_place(folder: Path) -> Path:
    """Return a new folder in set_aside/, named after the time."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for number in range(1000):
        place = folder / SET_ASIDE / (stamp if not number else f"{stamp}-{number}")
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        return place
    raise StoreError(f"{folder / SET_ASIDE} is full")


def move(path: Path, folder: Path, place: Path) -> Path:
    """Move a file or folder to the same place below `place`; return where it is now."""
    target = place / path.relative_to(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.rename(path, target)
    return target


def files_of(folder: Path, chunk: str) -> list[Path]:
    """Return all that may be there of a chunk, trials first: from then on it is not finished."""
    return [
        part_path(folder / TRIALS, chunk),
        part_path(folder / TRAJECTORIES, chunk),
        folder / CHECKPOINTS / chunk,
        folder / PARTIAL / f"{chunk}.npz",
    ]


def write_journal(folder: Path, damaged: set[str]) -> None:
    """Write the journal anew from the parts that are whole."""
    found = journal.Journal()
    for path in part_files(folder / TRIALS):
        chunk = path.stem.removeprefix("part-")
        if chunk not in damaged:
            finish_commit(folder, found, chunk)
