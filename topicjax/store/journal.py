"""journal.log: which chunks were begun, finished or set aside, with the checksums of what was written.

One JSON object per line, after its own CRC-32:
    {"event": "plan", "plan": ..., "sweep": ..., "file": [...]}
    {"event": "begin", "chunk": ...}    from here on files of this chunk are ours to remove
    {"event": "commit", "chunk": ..., "trial_ids": [...], "diverged": 2, "snapshots": {...}, "files": {...}}
    {"event": "drop", "chunk": ...}     its files were removed or set aside: it counts as never begun
A kill may leave a last line that is not whole: it is as if it had not been written.
"""

import json
import os
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from topicjax.store.files import StoreError, explained, is_hex_name, plain, read_regular, sync, write_whole
from topicjax.store.folder import JOURNAL, TABLES

REPAIR = "`topicjax repair` sets its trials aside, and the next run computes them again"
NONSENSE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
APPENDING = threading.Lock()


class FileMark(NamedTuple):
    """How a file was written: its size and the CRC-32 of its bytes."""

    size: int
    crc: int

    @classmethod
    def of(cls, content: bytes) -> "FileMark":
        """Return the mark of these bytes."""
        return cls(len(content), zlib.crc32(content))


@dataclass(frozen=True)
class Commit:
    """What the journal says of a finished chunk."""

    chunk: str
    trial_ids: tuple[str, ...]
    diverged: int
    snapshots: dict[int, str]  # by step, the checksum of all its files
    files: dict[str, FileMark]  # by folder: trials, trajectories, details if it has any


@dataclass
class Journal:
    """What a folder's journal adds up to."""

    begun: set[str] = field(default_factory=set)  # and not finished
    commits: dict[str, Commit] = field(default_factory=dict)
    plans: dict[str, FileMark] = field(default_factory=dict)
    sweep: str = ""  # of the first plan
    is_torn: bool = False  # its last line is not whole

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Take one line into account; raises one of NONSENSE if it makes no sense."""
        event, name = entry["event"], entry["plan" if entry["event"] == "plan" else "chunk"]
        if not is_hex_name(name):
            raise ValueError(f"{name!r} names no chunk or plan")
        if event == "plan":
            size, crc = entry["file"]
            self.plans[name] = FileMark(int(size), int(crc))
            self.sweep = self.sweep or str(entry["sweep"])
        elif event == "begin":
            self.begun.add(name)
        elif event == "commit":
            self.commits[name] = read_commit(entry)
            self.begun.discard(name)
        elif event == "drop":
            self.commits.pop(name, None)
            self.begun.discard(name)
        else:
            raise ValueError(f"{event!r} is no event")


def read_commit(entry: Mapping[str, Any]) -> Commit:
    """Return the commit that a line describes."""
    trial_ids = tuple(entry["trial_ids"])
    if not all(map(is_hex_name, trial_ids)):
        raise ValueError("a trial id is not 12 hexadecimal digits")
    files = {str(name): FileMark(int(size), int(crc)) for name, (size, crc) in entry["files"].items()}
    if files.keys() not in ({*TABLES}, {*TABLES[1:]}):
        raise ValueError("a chunk has one part in trials, one in trajectories, and at most one in details")
    snapshots = {int(step): str(crc) for step, crc in entry["snapshots"].items()}
    return Commit(str(entry["chunk"]), trial_ids, int(entry["diverged"]), snapshots, files)


def plan_entry(plan: str, sweep: str, mark: FileMark) -> dict[str, Any]:
    """Return the line that describes the file of a plan."""
    return {"event": "plan", "plan": plan, "sweep": sweep, "file": list(mark)}


def commit_entry(commit: Commit) -> dict[str, Any]:
    """Return the line that describes a commit."""
    return {
        "event": "commit",
        "chunk": commit.chunk,
        "trial_ids": list(commit.trial_ids),
        "diverged": commit.diverged,
        "snapshots": {str(step): crc for step, crc in commit.snapshots.items()},
        "files": {name: list(mark) for name, mark in commit.files.items()},
    }


def read_journal(folder: Path) -> Journal | None:
    """Return what the journal says, or None if the folder has none; a damaged one is a StoreError."""
    path = folder / JOURNAL
    try:
        with explained("read", path, FileNotFoundError):
            *lines, rest = read_regular(path).split(b"\n")
    except FileNotFoundError:
        return None
    journal = Journal(is_torn=bool(rest))
    for number, line in enumerate(lines, start=1):
        try:
            journal.apply(decode(line))
        except NONSENSE as error:
            raise StoreError(
                f"{path} is damaged at line {number}; `topicjax repair` writes it anew"
            ) from error
    return journal


def salvage(folder: Path) -> Journal:
    """Return what the whole lines of a damaged journal say; nothing if there is none."""
    journal = Journal()
    try:
        with explained("read", folder / JOURNAL, FileNotFoundError):
            lines = read_regular(folder / JOURNAL).split(b"\n")
    except FileNotFoundError:
        return journal
    for line in lines:
        try:
            journal.apply(decode(line))
        except NONSENSE:
            continue
    return journal


def append(folder: Path, *entries: Mapping[str, Any]) -> None:
    """Add lines to the journal and fsync it."""
    path, content = folder / JOURNAL, b"".join(map(encode, entries))
    with APPENDING, explained("write", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        try:
            is_new = not cut_torn_line(descriptor)
            while content:
                content = content[os.write(descriptor, content) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync(folder)


def cut_torn_line(descriptor: int) -> int:
    """Remove what a killed process left of its last line; return how many bytes there are."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        size = os.pread(descriptor, size, 0).rfind(b"\n") + 1
        os.ftruncate(descriptor, size)
    return size


def replace(folder: Path, journal: Journal) -> None:
    """Write a journal anew that adds up to the same."""
    entries = [plan_entry(plan, journal.sweep, mark) for plan, mark in journal.plans.items()]
    entries += [commit_entry(commit) for commit in journal.commits.values()]
    entries += [{"event": "begin", "chunk": chunk} for chunk in sorted(journal.begun)]
    content = b"".join(map(encode, entries))
    write_whole(folder / JOURNAL, lambda file: file.write(content))


def encode(entry: Mapping[str, Any]) -> bytes:
    """Return a line with its checksum in front."""
    text = json.dumps(plain(entry), allow_nan=False, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> dict[str, Any]:
    """Return what a line says; raises ValueError if it is not what was written."""
    if line[:9] != b"%08x " % zlib.crc32(line[9:]):
        raise ValueError("the checksum does not match")
    entry = json.loads(line[9:])
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    return entry
