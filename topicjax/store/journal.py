"""journal.log: which chunks were begun, finished or set aside, with the checksums of what was written.

One JSON object per line, after its own CRC-32:
    {"event": "begin", "chunk": ...}    from here on files of this chunk are ours to remove
    {"event": "commit", "chunk": ..., "trial_ids": [...], "diverged": 2, "snapshots": {...}, "files": {...}}
    {"event": "drop", "chunk": ...}     its files were set aside: it counts as never begun
A kill may leave a last line that is not whole: it is as if it had not been written.
"""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from topicjax.store.files import StoreError, explained, is_hex_name, plain, read_regular
from topicjax.store.folder import JOURNAL

REPAIR = "`topicjax repair` sets its trials aside, and the next run computes them again"


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
    files: dict[str, FileMark]  # by folder: trials, trajectories


@dataclass
class Journal:
    """What a folder's journal adds up to."""

    begun: set[str] = field(default_factory=set)  # and not finished
    commits: dict[str, Commit] = field(default_factory=dict)

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Take one line into account; raises KeyError, TypeError or ValueError if it makes no sense."""
        chunk = entry["chunk"]
        if not is_hex_name(chunk):
            raise ValueError(f"{chunk!r} names no chunk")
        self.begun.discard(chunk)
        if entry["event"] == "begin":
            self.begun.add(chunk)
        elif entry["event"] == "commit":
            self.commits[chunk] = read_commit(entry)
        elif entry["event"] == "drop":
            self.commits.pop(chunk, None)
        else:
            raise ValueError(f"{entry['event']!r} is no event")


def read_commit(entry: Mapping[str, Any]) -> Commit:
    """Return the commit that a line describes."""
    trial_ids = tuple(entry["trial_ids"])
    if not all(map(is_hex_name, trial_ids)):
        raise ValueError("a trial id is not 12 hexadecimal digits")
    files = {str(name): FileMark(int(size), int(crc)) for name, (size, crc) in entry["files"].items()}
    snapshots = {int(step): str(crc) for step, crc in entry["snapshots"].items()}
    return Commit(str(entry["chunk"]), trial_ids, int(entry["diverged"]), snapshots, files)


def commit_entry(commit: Commit) -> dict[str, Any]:
    """Return the line that describes a commit."""
    files = {name: list(mark) for name, mark in commit.files.items()}
    return {
        "event": "commit",
        "chunk": commit.chunk,
        "trial_ids": list(commit.trial_ids),
        "diverged": commit.diverged,
        "snapshots": {str(step): crc for step, crc in commit.snapshots.items()},
        "files": files,
    }


def read_journal(folder: Path) -> Journal | None:
    """Return what the journal says, or None if the folder has none; a damaged one is a StoreError."""
    path = folder / JOURNAL
    try:
        with explained("read", path, FileNotFoundError):
            content = read_regular(path)
    except FileNotFoundError:
        return None
    journal, lines = Journal(), content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                journal.apply(decode(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if number == len(lines):  # a kill in the middle of its last line
                break
            raise StoreError(
                f"{path} is damaged at line {number}; `topicjax repair` writes it anew"
            ) from error
    return journal


def append(folder: Path, *entries: Mapping[str, Any]) -> None:
    """Add lines to the journal and fsync it."""
    path = folder / JOURNAL
    with explained("write", path):
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o644)
        try:
            cut_torn_line(descriptor)
            os.write(descriptor, b"".join(map(encode, entries)))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def cut_torn_line(descriptor: int) -> None:
    """Remove what a killed process left of its last line."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        content = os.pread(descriptor, size, 0)
        os.ftruncate(descriptor, content.rfind(b"\n") + 1)


def encode(entry: Mapping[str, Any]) -> bytes:
    """Return a line with its checksum in front."""
    text = json.dumps(plain(entry), allow_nan=False, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> dict[str, Any]:
    """Return what a line says; raises ValueError if it is not what was written."""
    crc, _, text = line.partition(b" ")
    if int(crc, 16) != zlib.crc32(text):
        raise ValueError("the checksum does not match")
    entry = json.loads(text)
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    return entry
