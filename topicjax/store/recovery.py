"""After an interruption: what a folder must have, and what of our own may be removed."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from topicjax.store import journal
from topicjax.store.checkpoints import UNFINISHED, tree_checksum
from topicjax.store.files import TEMPORARY, StoreError, explained, read_regular, scan
from topicjax.store.folder import (
    CHECKPOINTS,
    JOURNAL,
    MANIFEST,
    PARTIAL,
    PLANS,
    TABLES,
    TRIALS,
    chunk_of,
    part_files,
    part_name,
    part_path,
    state_path,
    tables_of,
)
from topicjax.store.journal import Commit, FileMark, Journal
from topicjax.store.parts import check_rows, read_part

UNFINISHED_PLAN = re.compile(rf"{re.escape(TEMPORARY)}plan-[0-9a-f]{{12}}\.parquet")
COLUMNS = ("trial_id", "chunk", "row", "status", "snapshot_steps")


def check_whole(folder: Path, found: Journal) -> None:
    """Raise a StoreError if files of finished chunks are missing or cut off: nothing may be built on that."""
    problems = list(missing_files(folder, found))
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        raise StoreError(
            f"{problems[0]}{more}, though its trials are finished; copy it again, or set the rest of such "
            f"trials aside with `topicjax repair {folder}`, then they are computed again"
        )


def missing_files(folder: Path, found: Journal) -> Iterator[str]:
    """Give a sentence for each file of a finished chunk that is missing or has another size: a quick look."""
    try:
        sizes = {name: file_sizes(folder / name) for name in TABLES}
        snapshots = {entry.name for entry in scan(folder / CHECKPOINTS)}
    except StoreError as error:
        yield str(error)
        return
    for chunk, commit in found.commits.items():  # thousands: paths are made for what is missing only
        for name, mark in commit.files.items():
            size = sizes[name].get(part_name(chunk))
            if size is None:
                yield f"{part_path(folder / name, chunk)} is missing"
            elif size != mark.size:
                yield f"{part_path(folder / name, chunk)} has {size:,} bytes instead of {mark.size:,}"
        is_there = commit.snapshots and chunk in snapshots
        kept = {entry.name for entry in scan(folder / CHECKPOINTS / chunk)} if is_there else set()
        for step in commit.snapshots:
            if str(step) not in kept:
                yield f"the snapshot {folder / CHECKPOINTS / chunk / str(step)} is missing"
    yield from (f"what {folder / JOURNAL} says of {path} is missing" for path in unknown_parts(folder, found))


def unknown_parts(folder: Path, found: Journal) -> list[Path]:
    """Return the parts of trials/ that the journal does not know: their checksums are lost."""
    known = found.commits.keys() | found.begun
    return [path for path in part_files(folder / TRIALS) if chunk_of(path) not in known]


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file of a folder by name."""
    return {entry.name: entry.stat().st_size for entry in scan(folder) if entry.is_file()}


def remove_unfinished(folder: Path, found: Journal) -> None:
    """Finish the journal of chunks that are whole, and remove what others of ours left that have no state.

    Only names that the journal calls begun or finished are touched, and our own temporary files.
    """
    with explained("clean", folder):
        for name in (MANIFEST, JOURNAL):
            (folder / f"{TEMPORARY}{name}").unlink(missing_ok=True)
        for entry in scan(folder / PLANS):
            if UNFINISHED_PLAN.fullmatch(entry.name):
                os.unlink(entry.path)
        for chunk in sorted(found.begun):
            if part_path(folder / TRIALS, chunk).exists():
                finish_commit(folder, found, chunk)
            else:
                remove_files(folder, found, chunk)
        for entry in scan(folder / PARTIAL):
            name, suffix = os.path.splitext(entry.name)
            if suffix == ".npz" and name in found.commits:  # killed after its commit
                os.unlink(entry.path)


def finish_commit(folder: Path, found: Journal, chunk: str) -> None:
    """Write the journal's line of a chunk whose process was killed between its last file and that line."""
    entry = journal.commit_entry(commit_of(folder, chunk))
    journal.append(folder, entry)
    found.apply(entry)


def commit_of(folder: Path, chunk: str) -> Commit:
    """Return what the journal must say of a chunk whose files are all there, or raise a StoreError."""
    parts = {name: part_path(folder / name, chunk) for name in tables_of(folder)}
    table = read_part(parts[TRIALS], COLUMNS)
    rows = table.to_pylist()
    check_rows(rows, parts[TRIALS])
    files = {}
    for name, path in parts.items():
        with explained("read", path):
            files[name] = FileMark.of(read_regular(path))
    snapshots = {}
    for step in sorted({int(step) for row in rows for step in row["snapshot_steps"].split()}):
        path = folder / CHECKPOINTS / chunk / str(step)
        with explained("read", path):
            snapshots[step] = tree_checksum(path)
    diverged = [row["status"] for row in rows].count("diverged")
    return Commit(chunk, tuple(row["trial_id"] for row in rows), diverged, snapshots, files)


def remove_files(folder: Path, found: Journal, chunk: str) -> None:
    """Remove what an unfinished chunk left, except its state, which holds its snapshots too."""
    parts = [part_path(folder / name, chunk) for name in TABLES]
    for path in [*(part.with_name(TEMPORARY + part.name) for part in parts), *parts[:-1]]:
        path.unlink(missing_ok=True)  # there is no part in trials, or the chunk would be finished
    state, end = folder / PARTIAL / f"{chunk}.npz", state_path(folder, chunk)
    for path in (state, end):
        path.with_name(TEMPORARY + path.name).unlink(missing_ok=True)
    end.unlink(missing_ok=True)
    snapshots = folder / CHECKPOINTS / chunk
    if snapshots.is_symlink():
        raise StoreError(f"{snapshots} is a link; no run of this folder made it: move it elsewhere")
    for entry in scan(snapshots):
        step, _, rest = entry.name.partition(".")
        if step.isdecimal() and (not rest or f".{rest}".startswith(UNFINISHED)):
            shutil.rmtree(entry.path)
    if snapshots.is_dir() and not scan(snapshots):
        snapshots.rmdir()
    if not state.exists() and not snapshots.exists():
        entry = {"event": "drop", "chunk": chunk}
        journal.append(folder, entry)
        found.apply(entry)
