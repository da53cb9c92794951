"""journal.log: which chunks were begun, finished or set aside.

One JSON object per line, after its own CRC-32:
    {"event": "plan", "plan": ..., "sweep": ..., "file": [...]}
    {"event": "begin", "chunk": ...}    from here on files of this chunk are ours to remove
    {"event": "commit", "chunk": ..., "trial_ids": [...], "diverged": 2, "snapshots": {...}, "files": {...}}
    {"event": "drop", "chunk": ...}     its files were removed or set aside: it counts as never begun
    {"event": "measuring", "measure": ..., "part": ...}     it is about to be written, or moved
    {"event": "measured", "measure": ..., "part": ..., "rows": 6, "file": [...]}    a part of measured/
    {"event": "unmeasured", "measure": ..., "part": ...}    it was set aside, or never written
A killed process may leave an incomplete last line, and a power cut one with zeros in it: it is ignored.
"""

import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from topicjax.store.checkpoints import tree_checksum
from topicjax.store.files import (
    CHECKPOINTS,
    DETAILS,
    JOURNAL,
    PARTIAL,
    STATES,
    TABLES,
    TRAJECTORIES,
    TRIALS,
    FileMark,
    StoreError,
    chunk_of,
    explained,
    is_hex_name,
    part_files,
    part_name,
    part_path,
    plain,
    read_regular,
    scan,
    sync,
    write_whole,
)
from topicjax.store.parts import check_rows, read_part, tables_of

NONSENSE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
LINE_BYTES = 1 << 16  # more than most lines have
APPENDING = threading.Lock()
OF_MEASURES = ("measuring", "measured", "unmeasured")


@dataclass(frozen=True)
class Commit:
    """A finished chunk, as the journal describes it."""

    chunk: str
    trial_ids: tuple[str, ...]
    diverged: int
    snapshots: dict[int, str]  # by step, the checksum of all its files
    files: dict[str, FileMark]  # by folder: trials, trajectories, details if it has any


Part = tuple[str, str]  # of measured/: its measure, and its own name


class Measured(NamedTuple):
    """A part of measured/, as the journal describes it."""

    rows: int
    file: FileMark


@dataclass
class Journal:
    """The state of a folder, replayed from its journal."""

    begun: set[str] = field(default_factory=set)  # but not finished
    commits: dict[str, Commit] = field(default_factory=dict)
    plans: dict[str, FileMark] = field(default_factory=dict)
    measured: dict[Part, Measured] = field(default_factory=dict)
    measuring: set[Part] = field(default_factory=set)  # not known whether they are written
    sweep: str = ""  # of the first plan
    is_torn: bool = False  # its last line is incomplete

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Apply one line; raise one of NONSENSE if it is invalid."""
        event = entry["event"]
        name = entry["plan" if event == "plan" else "part" if event in OF_MEASURES else "chunk"]
        if not is_hex_name(name):
            raise ValueError(f"{name!r} names no chunk, plan or part")
        if event in OF_MEASURES:
            part = (str(entry["measure"]), name)
            self.measured.pop(part, None)
            self.measuring.discard(part)
            if event == "measuring":
                self.measuring.add(part)
            elif event == "measured":
                self.measured[part] = Measured(int(entry["rows"]), FileMark(*map(int, entry["file"])))
            return
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
            raise ValueError(f"{event!r} is not an event")


def read_commit(entry: Mapping[str, Any]) -> Commit:
    """Read the commit that a line describes."""
    trial_ids = tuple(entry["trial_ids"])
    if not all(map(is_hex_name, trial_ids)):
        raise ValueError("a trial id is not 12 hexadecimal digits")
    files = {str(name): FileMark(int(size), int(crc)) for name, (size, crc) in entry["files"].items()}
    if files.keys() not in ({*TABLES}, {*TABLES[1:]}):
        raise ValueError("a chunk has one part in trials, one in trajectories, and at most one in details")
    snapshots = {int(step): str(crc) for step, crc in entry["snapshots"].items()}
    return Commit(str(entry["chunk"]), trial_ids, int(entry["diverged"]), snapshots, files)


def plan_entry(plan: str, sweep: str, mark: FileMark) -> dict[str, Any]:
    """Make the line that describes the file of a plan."""
    return {"event": "plan", "plan": plan, "sweep": sweep, "file": list(mark)}


def commit_entry(commit: Commit) -> dict[str, Any]:
    """Make the line that describes a commit."""
    return {
        "event": "commit",
        "chunk": commit.chunk,
        "trial_ids": list(commit.trial_ids),
        "diverged": commit.diverged,
        "snapshots": {str(step): crc for step, crc in commit.snapshots.items()},
        "files": {name: list(mark) for name, mark in commit.files.items()},
    }


def measure_entry(event: str, part: Part, own: Measured | None = None) -> dict[str, Any]:
    """Make the line of an event of a measured part."""
    described = {} if own is None else {"rows": own.rows, "file": list(own.file)}
    return {"event": event, "measure": part[0], "part": part[1], **described}


def read_journal(folder: Path, skip_damaged: bool = False) -> Journal:
    """Read the journal of a folder; an empty one if there is none.

    A damaged line is a StoreError, or is ignored with `skip_damaged`.
    """
    path = folder / JOURNAL
    try:
        with explained("read", path, FileNotFoundError):
            *lines, rest = read_regular(path).split(b"\n")
    except FileNotFoundError:
        return Journal()
    if not rest and lines and b"\0" in lines[-1]:
        rest = lines.pop()
    journal = Journal(is_torn=bool(rest))
    for number, line in enumerate(lines, start=1):
        try:
            journal.apply(decode(line))
        except NONSENSE as error:
            if not skip_damaged:
                raise StoreError(
                    f"{path} is damaged at line {number}; `topicjax repair` writes it anew"
                ) from error
    return journal


def append(folder: Path, *entries: Mapping[str, Any]) -> None:
    """Append lines to the journal and fsync it."""
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
    """Remove a last line that is incomplete or has zeros in it; return the size of the file."""
    size = os.fstat(descriptor).st_size
    start, tail = size, b""
    while start and b"\n" not in tail[:-1]:  # back to the end of the line before
        start = max(0, start - LINE_BYTES)
        tail = os.pread(descriptor, size - start, start)
    last = tail[tail.rfind(b"\n", 0, -1) + 1 :]
    if last and (not last.endswith(b"\n") or b"\0" in last):
        size -= len(last)
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)  # else a power cut could mix it with the next line
    return size


def replace(folder: Path, journal: Journal) -> None:
    """Replace the journal by a shorter one that describes the same state."""
    entries = [plan_entry(plan, journal.sweep, mark) for plan, mark in journal.plans.items()]
    entries += [commit_entry(commit) for commit in journal.commits.values()]
    entries += [{"event": "begin", "chunk": chunk} for chunk in sorted(journal.begun)]
    entries += [measure_entry("measured", part, own) for part, own in sorted(journal.measured.items())]
    entries += [measure_entry("measuring", part) for part in sorted(journal.measuring)]
    content = b"".join(map(encode, entries))
    write_whole(folder / JOURNAL, lambda file: file.write(content))


def encode(entry: Mapping[str, Any]) -> bytes:
    """Encode a line, with its checksum in front."""
    text = json.dumps(plain(entry), allow_nan=False, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> dict[str, Any]:
    """Decode a line; raise a ValueError if it is not what was written."""
    if line[:9] != b"%08x " % zlib.crc32(line[9:]):
        raise ValueError("the checksum does not match")
    entry = json.loads(line[9:])
    if not isinstance(entry, dict):
        raise ValueError("it is not an object")
    return entry


def check_whole(folder: Path, found: Journal, others: Iterable[str] = ()) -> None:
    """Raise a StoreError if files of finished chunks are missing or of unknown ones there; change nothing.

    `others` are further problems of the folder, in words.
    """
    problems = [*misplaced_files(folder, found), *others]
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        raise StoreError(
            f"{problems[0]}{more}; copy the folder again, or set such files aside with "
            f"`topicjax repair {folder}`, and the next run computes again what is missing"
        )


def misplaced_files(folder: Path, found: Journal) -> Iterator[str]:
    """Describe the files that are missing or truncated, and those that the journal does not know.

    Both are seen in a folder that was copied while a run wrote to it.  No file is read.
    """
    try:
        sizes = {name: file_sizes(folder / name) for name in TABLES}
        snapshots = {entry.name for entry in scan(folder / CHECKPOINTS)}
    except StoreError as error:
        yield str(error)
        return
    finished = "though its trials are finished"
    for chunk, commit in found.commits.items():  # thousands: paths are built only for missing files
        for name, mark in commit.files.items():
            size = sizes[name].get(part_name(chunk))
            if size is None:
                yield f"{part_path(folder / name, chunk)} is missing, {finished}"
            elif size != mark.size:
                path = part_path(folder / name, chunk)
                yield f"{path} has {size:,} bytes instead of {mark.size:,}, {finished}"
        is_there = commit.snapshots and chunk in snapshots
        kept = {entry.name for entry in scan(folder / CHECKPOINTS / chunk)} if is_there else set()
        for step in commit.snapshots:
            if str(step) not in kept:
                yield f"the snapshot {folder / CHECKPOINTS / chunk / str(step)} is missing, {finished}"
    for path in (*unknown_parts(folder, found), *unknown_files(folder, found)):
        yield unknown_in_words(folder, path)


def unknown_in_words(folder: Path, path: Path) -> str:
    """Describe a file that the journal does not know."""
    return f"{path} is there, and {folder / JOURNAL} does not know it"


def unknown_parts(folder: Path, found: Journal) -> list[Path]:
    """List the parts of trials/ that the journal does not know: their checksums are lost."""
    parts = {chunk_of(path): path for path in part_files(folder / TRIALS)}
    return [parts[chunk] for chunk in sorted(unknown_chunks(folder, found, parts))]


def unknown_files(folder: Path, found: Journal) -> list[Path]:
    """List the files of unfinished chunks that the journal does not know.

    What lies behind a link may belong to another folder and is left out.
    """
    chunks = {path: chunk_of(path) for name in (TRAJECTORIES, DETAILS) for path in part_files(folder / name)}
    others = [Path(entry.path) for name in (CHECKPOINTS, PARTIAL, STATES) for entry in scan(folder / name)]
    suffixes = {CHECKPOINTS: "", PARTIAL: ".npz", STATES: ".npz"}
    chunks |= {
        path: path.stem
        for path in others
        if is_hex_name(path.stem) and path.suffix == suffixes[path.parent.name]
    }
    finished = {chunk_of(path) for path in part_files(folder / TRIALS)}
    unknown = unknown_chunks(folder, found, chunks.values()) - finished
    paths = [path for path, chunk in sorted(chunks.items()) if chunk in unknown]
    return [path for path in paths if os.path.lexists(path) and not path.parent.is_symlink()]


def unknown_chunks(folder: Path, found: Journal, chunks: Iterable[str]) -> set[str]:
    """Return those of these chunks that the journal does not know, not even by now."""
    unknown = {*chunks} - found.commits.keys() - found.begun
    if unknown:  # a run that goes on may have begun some since the journal was read
        later = read_journal(folder, skip_damaged=True)
        unknown -= later.commits.keys() | later.begun
    return unknown


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file of a folder by name."""
    return {entry.name: entry.stat().st_size for entry in scan(folder) if entry.is_file()}


def commit_of(folder: Path, chunk: str) -> Commit:
    """Rebuild the commit of a chunk from its files, or raise a StoreError."""
    path = part_path(folder / TRIALS, chunk)
    trials = read_part(path, ("trial_id", "chunk", "row", "status", "snapshot_steps"))
    rows = trials.to_pylist()
    check_rows(rows, path)
    files = {}
    for name in tables_of(folder, trials):
        path = part_path(folder / name, chunk)
        with explained("read", path):
            files[name] = FileMark.of(read_regular(path))
    snapshots = {}
    for step in sorted({step for row in rows for step in row["snapshot_steps"]}):
        path = folder / CHECKPOINTS / chunk / str(step)
        with explained("read", path):
            snapshots[step] = tree_checksum(path)
    diverged = [row["status"] for row in rows].count("diverged")
    return Commit(chunk, tuple(row["trial_id"] for row in rows), diverged, snapshots, files)
