"""Set aside what is damaged, so that the next run computes just that again.  Nothing is deleted.

Files are moved before the journal forgets them: a repair that is killed can be repeated.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from topicjax.store import journal, lock
from topicjax.store.aside import copy, move, new_place
from topicjax.store.files import StoreError, explained, is_hex_name, scan, sync
from topicjax.store.folder import (
    CHECKPOINTS,
    JOURNAL,
    LOCK,
    MANIFEST,
    PARTIAL,
    TABLES,
    TRIALS,
    check_kind,
    chunk_of,
    files_of,
    part_files,
    part_path,
    plan_path,
    tables_of,
)
from topicjax.store.journal import Journal
from topicjax.store.manifest import FORMAT, new_manifest, read_manifest, write_manifest
from topicjax.store.recovery import commit_of
from topicjax.store.verify import Problem, Say, Verdict, verify


def repair(folder: Path, say: Say = lambda done, total: None) -> tuple[Verdict, list[Path]]:
    """Move what is damaged into set_aside/; return what was found, and where things are now."""
    check_kind(folder)
    with explained("write", folder):
        try:
            descriptor = lock.acquire(folder / LOCK)
        except lock.HeldError as error:
            raise StoreError(f"{folder} is being written by {lock.who(error.holder)}") from None
    try:
        verdict = verify(folder, say)
        check_ours(folder, verdict)
        with explained("write", folder):
            return verdict, set_aside(folder, verdict.problems) if verdict.problems else []
    finally:
        lock.release(folder / LOCK, descriptor)


def check_ours(folder: Path, verdict: Verdict) -> None:
    """Raise a StoreError if nothing but the name of a damaged manifest says that this is a run folder."""
    path = folder / MANIFEST
    is_damaged = path in {problem.path for problem in verdict.problems}
    if is_damaged and not (folder / JOURNAL).exists() and not part_files(folder / TRIALS):
        raise StoreError(f"{path} is damaged or not of a run, and there are no trials: nothing to repair")


def set_aside(folder: Path, problems: Iterable[Problem]) -> list[Path]:
    """Move the files of these problems, and all others of the same chunks; return where they are now."""
    problems, found = list(problems), journal.salvage(folder)
    place = new_place(folder)
    chunks = {problem.chunk for problem in problems if problem.chunk is not None}
    single = {problem.path for problem in problems if problem.chunk is None}
    replaced = single & {folder / MANIFEST, folder / JOURNAL}
    paths = sorted(single - replaced)
    paths += [
        path for chunk in sorted(chunks) for path in files_of(folder, chunk) if is_ours(path, found, chunk)
    ]
    if folder / JOURNAL in single:
        paths += orphans(folder, found)
    moved = [copy(path, folder, place) for path in sorted(replaced) if path.exists()]
    moved += [move(path, folder, place) for path in paths if os.path.lexists(path)]
    if folder / JOURNAL in single:
        rewrite_journal(folder, found, chunks)
    elif chunks:
        journal.append(folder, *({"event": "drop", "chunk": chunk} for chunk in sorted(chunks)))
    mend_manifest(folder, found.sweep)
    sync(folder)
    return moved


def is_ours(path: Path, found: Journal, chunk: str) -> bool:
    """Return whether a path of a chunk may be moved; beyond a link, only what the journal knows."""
    return chunk in found.commits or chunk in found.begun or not path.parent.is_symlink()


def orphans(folder: Path, found: Journal) -> list[Path]:
    """Return what chunks left of which a damaged journal no longer speaks, and which are not finished."""
    chunks = {entry.name for entry in scan(folder / CHECKPOINTS)}
    chunks |= {chunk_of(path) for name in TABLES for path in part_files(folder / name)}
    chunks |= {entry.name.removesuffix(".npz") for entry in scan(folder / PARTIAL)}
    finished = {chunk_of(path) for path in part_files(folder / TRIALS)} | found.commits.keys()
    lost = [chunk for chunk in chunks - finished - found.begun if is_hex_name(chunk)]
    return [path for chunk in sorted(lost) for path in files_of(folder, chunk) if is_ours(path, found, chunk)]


def rewrite_journal(folder: Path, found: Journal, damaged: set[str]) -> None:
    """Write the journal anew, from its whole lines and the parts that are whole."""
    for chunk in damaged:
        found.apply({"event": "drop", "chunk": chunk})
    for path in part_files(folder / TRIALS):
        chunk = chunk_of(path)
        is_whole = all(part_path(folder / name, chunk).exists() for name in tables_of(folder))
        if chunk not in found.commits and is_whole:
            found.apply(journal.commit_entry(commit_of(folder, chunk)))
    journal.replace(folder, found)


def mend_manifest(folder: Path, sweep: str) -> None:
    """Write the manifest anew if it cannot be read, and let it forget plans that are not there."""
    try:
        manifest = read_manifest(folder) or new_manifest(sweep)
    except StoreError:
        manifest = new_manifest(sweep)
    runs = [
        entry
        if "plan" not in entry or plan_path(folder, entry["plan"]).exists()
        else {name: value for name, value in entry.items() if name != "plan"}
        for entry in manifest["runs"]
    ]
    if manifest["format"] == FORMAT:
        write_manifest(folder, manifest | {"runs": runs})
