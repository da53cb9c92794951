"""Recover a run folder: finish or remove what an interrupted run left, before anything is added to it.

Everything it relies on is synced before, and everything it removes is synced before the journal forgets it: a
power cut may come at any time.
"""

import os
import re
import shutil
from pathlib import Path

from topicjax.store import journal
from topicjax.store.checkpoints import UNFINISHED
from topicjax.store.files import (
    CHECKPOINTS,
    MEASURED,
    PARTIAL,
    PLANS,
    STATES,
    TABLES,
    TEMPORARY,
    TRIALS,
    StoreError,
    explained,
    part_path,
    partial_path,
    scan,
    state_path,
    sync,
)
from topicjax.store.journal import Journal, commit_entry, commit_of, measure_entry
from topicjax.store.manifest import read_manifest
from topicjax.store.measured import describe, place_of
from topicjax.store.verify import Verdict, check_chunk

OUR_TEMPORARY = re.compile(
    re.escape(TEMPORARY)
    + r"(manifest\.json|journal\.log|columns\.parquet|(part|plan)-[0-9a-f]{12}\.parquet|[0-9a-f]{12}\.npz)"
)


def remove_unfinished(folder: Path, found: Journal) -> None:
    """Complete the journal for chunks whose files all exist; remove the files of other unfinished chunks.

    Saved states are kept: training resumes from them.  Only files of chunks that the journal lists as begun
    or finished are touched, and our own temporary files.
    """
    with explained("clean", folder):
        measures = [Path(entry.path) for entry in scan(folder / MEASURED) if entry.is_dir()]
        for parent in (folder, *(folder / name for name in (*TABLES, PLANS, PARTIAL, STATES)), *measures):
            for entry in scan(parent):
                if OUR_TEMPORARY.fullmatch(entry.name):
                    os.unlink(entry.path)
        for chunk in sorted(found.begun):
            if part_path(folder / TRIALS, chunk).exists():
                finish_commit(folder, found, chunk)
            else:
                remove_files(folder, found, chunk)
        for part in sorted(found.measuring):
            is_there = place_of(folder, part).exists()  # then it is whole: parts are written atomically
            own = describe(folder, part) if is_there else None
            entry = measure_entry("measured" if is_there else "unmeasured", part, own)
            journal.append(folder, entry)
            found.apply(entry)
        for entry in scan(folder / PARTIAL):
            name, suffix = os.path.splitext(entry.name)
            if suffix == ".npz" and name in found.commits:  # killed after its commit
                os.unlink(entry.path)


def finish_commit(folder: Path, found: Journal, chunk: str) -> None:
    """Write the journal line of a chunk whose process was killed just before it could.

    Its files are whole, unless the folder was copied at that moment.
    """
    for problem in check_chunk(folder, chunk, None, Verdict(), read_manifest(folder)):
        raise StoreError(
            f"{problem.sentence}; its chunk was being written when the folder was copied, and "
            f"`topicjax repair {folder}` sets it aside"
        )
    entry = commit_entry(commit_of(folder, chunk))
    journal.append(folder, entry)
    found.apply(entry)


def remove_files(folder: Path, found: Journal, chunk: str) -> None:
    """Remove the files of an unfinished chunk, except its saved state, which holds its snapshots too."""
    parts = [part_path(folder / name, chunk) for name in TABLES]
    state, end = partial_path(folder, chunk), state_path(folder, chunk)
    snapshots = folder / CHECKPOINTS / chunk
    for path in (*parts[:-1], end):  # with a part in trials the chunk would be finished
        path.unlink(missing_ok=True)
    if snapshots.is_symlink():
        raise StoreError(f"{snapshots} is a link; no run of this folder made it: move it elsewhere")
    for entry in scan(snapshots):
        step, _, rest = entry.name.partition(".")
        if step.isdecimal() and (not rest or f".{rest}".startswith(UNFINISHED)):
            shutil.rmtree(entry.path)
    if snapshots.is_dir() and not scan(snapshots):
        snapshots.rmdir()
    for parent in {path.parent for path in (*parts, state, end, snapshots)}:
        if parent.is_dir():
            sync(parent)  # what is removed must not come back, least of all once the journal has forgotten it
    if not state.exists() and not snapshots.exists():
        entry = {"event": "drop", "chunk": chunk}
        journal.append(folder, entry)
        found.apply(entry)
