"""Files of a run folder: their names, atomic writes, the lock, and operating system errors.

manifest.json   the sweep, its runs and its reference losses
journal.log     which chunks were begun and finished, with the checksums of their files
trials/         parquet, a part per chunk; written last, so a chunk that has one is finished
trajectories/   parquet, a part per chunk: one row per record
details/        parquet, a part per chunk: one row per record and place, where an experiment has any
                each of the three has columns.parquet, without rows, once later parts have more columns
measured/       MEASURE/, parquet parts: one row per snapshot that was measured after training
checkpoints/    CHUNK/STEP, an orbax checkpoint each
partial/        CHUNK.npz, the state of a chunk that is still being trained
states/         CHUNK.npz, the states that finished trials ended in, to train them further
plans/          parquet, the ids of all trials that a run was asked for
set_aside/      damaged files, and files no longer needed
lock.json       exists while a process writes to the folder
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import socket
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

MANIFEST, LOCK, JOURNAL = "manifest.json", "lock.json", "journal.log"
TRIALS, TRAJECTORIES, DETAILS = "trials", "trajectories", "details"
CHECKPOINTS, PARTIAL, STATES, PLANS, SET_ASIDE = "checkpoints", "partial", "states", "plans", "set_aside"
MEASURED = "measured"
FOLDERS = (TRIALS, TRAJECTORIES, CHECKPOINTS, PARTIAL, PLANS, STATES)  # every run folder has these
TABLES = (DETAILS, TRAJECTORIES, TRIALS)  # in the order in which a chunk's parts are written
COLUMNS = "columns.parquet"  # sorted before the parts: pandas takes the columns of the first file
TEMPORARY = ".tmp-"  # pandas and pyarrow skip names that begin with a dot
NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
HEX_NAME = re.compile("[0-9a-f]{12}")
REASONS = {
    errno.ENOSPC: "the disk is full; finished trials are kept, make room and run it again",
    errno.EDQUOT: "the disk quota is used up; finished trials are kept, make room and run it again",
    errno.EIO: "the disk reports an input/output error; finished trials are kept",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ELOOP: "it is a link, and links are not followed",
}


OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # neither the user's mistake nor a defect


class StoreError(Exception):
    """A problem with a run folder, in one sentence that names the file."""


@contextlib.contextmanager
def explained(verb: str, path: Path, *passing: type[OSError]) -> Iterator[None]:
    """Turn operating system errors, except the given types, into a StoreError."""
    try:
        yield
    except passing:
        raise
    except OSError as error:
        raise StoreError(f"cannot {verb} {path}: {reason(error)}") from error


def reason(error: OSError) -> str:
    """Explain why the operating system refused."""
    return REASONS.get(error.errno or 0, error.strerror or first_line(error))


def reason_in(error: Exception) -> str:
    """Explain an error without an errno: by the system's own words, if its message has them."""
    found = [number for number in OF_THE_DISK if os.strerror(number) in str(error)]
    return REASONS[found[0]] if found else first_line(error)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class FileMark(NamedTuple):
    """The size of a file as it was written, and the CRC-32 of its bytes."""

    size: int
    crc: int

    @classmethod
    def of(cls, content: bytes) -> "FileMark":
        """Compute the mark of these bytes."""
        return cls(len(content), zlib.crc32(content))


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically: it always has its old or its new content, even after a power cut."""
    temporary = path.with_name(TEMPORARY + path.name)
    with explained("write", path):
        temporary.unlink(missing_ok=True)  # left by a killed process, or a link to a foreign file
        try:
            with open(os.open(temporary, NEW_FILE, 0o644), "w+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)  # a link of that name is replaced, not followed
            sync(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def sync(path: Path) -> None:
    """Call fsync on a file, or on a folder for the names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, and sync their names: a power cut must not take them away again.

    Parents that exist are synced too, as far as they may be opened: a killed process may have made them.
    """
    made = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for parent in path.parents:
        try:
            sync(parent)
        except OSError:
            if any(each.parent == parent for each in made):
                raise


def sync_names(folder: Path) -> None:
    """Sync the journal and every name of a run folder: a killed process may have left some unsynced."""
    folders = [folder / name for name in (*FOLDERS, DETAILS, MEASURED)]
    folders += [Path(entry.path) for entry in scan(folder / MEASURED)]
    for path in [folder / JOURNAL, *filter(Path.is_dir, folders), folder]:
        if path.exists():
            sync(path)


def read_regular(path: Path) -> bytes:
    """Read a regular file; anything else, such as an endless pipe, is an OSError."""
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read()


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file; a pipe or a device is an OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not an ordinary file")
    return descriptor


def scan(folder: Path) -> list[os.DirEntry[str]]:
    """List the entries of a folder; empty if it does not exist."""
    try:
        with explained("read", folder, FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def plain(value: Any) -> Any:
    """Convert a value to what JSON can hold: no arrays, no tuples, null for non-finite numbers."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if hasattr(value, "tolist"):  # NumPy and jax arrays
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | range):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def is_hex_name(name: object) -> bool:
    """Check whether this can name a trial, a chunk or a plan: 12 hexadecimal digits."""
    return isinstance(name, str) and HEX_NAME.fullmatch(name) is not None


def ids_name(trial_ids: Sequence[str]) -> str:
    """Name a chunk or plan by 12 hexadecimal digits of its trials and their order."""
    return hashlib.sha256("\n".join(trial_ids).encode()).hexdigest()[:12]


def part_path(folder: Path, chunk: str) -> Path:
    """Locate the file of a chunk in one of the folders of parts."""
    return folder / part_name(chunk)


def part_name(chunk: str) -> str:
    """Name a chunk's file in the folders of parts."""
    return f"part-{chunk}.parquet"


def chunk_of(part: Path) -> str:
    """Extract the chunk from the name of a part; it may be anything in a foreign folder."""
    return part.stem.removeprefix("part-")


def part_files(folder: Path) -> list[Path]:
    """List the complete parts of a folder; files with temporary names are still being written."""
    names = sorted(entry.name for entry in scan(folder))
    return [folder / name for name in names if name.startswith("part-") and name.endswith(".parquet")]


def partial_path(folder: Path, chunk: str) -> Path:
    """Locate the state from which an interrupted chunk resumes."""
    return folder / PARTIAL / f"{chunk}.npz"


def state_path(folder: Path, chunk: str) -> Path:
    """Locate the final states of a chunk's trials."""
    return folder / STATES / f"{chunk}.npz"


def plan_path(folder: Path, plan: str) -> Path:
    """Locate the trial ids of a plan."""
    return folder / PLANS / f"plan-{plan}.parquet"


def files_of(folder: Path, chunk: str) -> list[Path]:
    """List all files that a chunk may have, trials first: without them it is not finished."""
    return [
        *(part_path(folder / name, chunk) for name in reversed(TABLES)),
        folder / CHECKPOINTS / chunk,
        partial_path(folder, chunk),
        state_path(folder, chunk),
    ]


def check_kind(folder: Path, may_be_new: bool = False) -> None:
    """Raise a StoreError unless this is a run folder, or with `may_be_new` a folder that can become one.

    A folder with trials but without a manifest can be read but not written: its files may belong to others.
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
    if MANIFEST in names or (may_be_new and (not names or has_only_a_lock(folder, names))):
        return
    if may_be_new or TRIALS not in names:
        inside = [name for name in names if os.path.exists(folder / name / MANIFEST)]
        found = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
        hint = f"did you mean {folder / inside[0]}?" if inside else f"it holds {found}"
        if TRIALS in names and is_known(folder):
            hint = f"if it is a copy of one, `topicjax repair {folder}` writes that file again"
        raise StoreError(f"{folder} is not a run folder, it has no {MANIFEST}; {hint}")


def is_known(folder: Path) -> bool:
    """Whether more than the name of a manifest says that this is a run folder: its journal, or a part."""
    return (folder / JOURNAL).exists() or bool(part_files(folder / TRIALS))


def has_only_a_lock(folder: Path, names: Sequence[str]) -> bool:
    """Check whether the only content is the lock of a Writer killed before it wrote the manifest."""
    if list(names) != [LOCK]:
        return False
    with explained("read", folder / LOCK):
        descriptor = open_regular(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            found = os.pread(descriptor, len(LOCK_BEGINS), 0)
            return LOCK_BEGINS.startswith(found.rstrip(b"\0"))  # a power cut may leave zeros
        finally:
            os.close(descriptor)


def check_name(folder: Path) -> None:
    """Raise a StoreError if orbax and pyarrow cannot write into a folder of that name."""
    try:
        str(folder.absolute()).encode("utf-8")
    except UnicodeEncodeError:
        raise StoreError(
            f"the name of {str(folder)!r} is not valid UTF-8; allowed: another folder (--out)"
        ) from None


def check_foreign(folder: Path) -> None:
    """Raise a StoreError if a folder of parts has a file that pandas could not read with the parts."""
    for parent in (folder / name for name in TABLES):
        parts = set(part_files(parent))
        for path in sorted(parent / entry.name for entry in scan(parent)):
            if not path.name.startswith((".", "_")) and path not in parts and path.name != COLUMNS:
                raise StoreError(f"{path} is not part of a run; move it elsewhere")


# The kernel releases a lock when its process ends, in whatever way, so a lock is never stale.
LOCK_BEGINS = b'{"pid": '  # unless the process was killed before it wrote its pid
ATTEMPTS, PAUSE = 5, 0.05  # a reader that asks for the lock's holder takes it for an instant


def lock_folder(folder: Path) -> int:
    """Lock a run folder and return the descriptor; a StoreError if another process holds the lock."""
    path = folder / LOCK
    with explained("write", folder):
        for _ in range(ATTEMPTS):
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_file(descriptor, path):  # unless its last holder removed it meanwhile
                    write_holder(descriptor)
                    return descriptor
            except BlockingIOError:
                time.sleep(PAUSE)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise StoreError(f"{folder} is being written by {holder_in_words(lock_holder(folder) or {})}")


def unlock_folder(folder: Path, descriptor: int) -> None:
    """Remove the lock file if it is still ours, then release the lock."""
    with contextlib.suppress(OSError):
        if is_file(descriptor, folder / LOCK):
            (folder / LOCK).unlink()
    os.close(descriptor)


def is_file(descriptor: int, path: Path) -> bool:
    """Check whether the open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def write_holder(descriptor: int) -> None:
    """Write who holds the lock, for error messages of other processes."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def lock_holder(folder: Path) -> dict[str, Any] | None:
    """Return pid, host and start of the process that writes to a folder; None if there is none.

    The result is empty if the process has not written them yet.
    """
    with explained("read", folder / LOCK, FileNotFoundError):
        try:
            descriptor = open_regular(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(os.pread(descriptor, 4096, 0))
                return found if isinstance(found, dict) else {}
            return {}
        else:
            return None
        finally:
            os.close(descriptor)


def holder_in_words(holder: Mapping[str, Any]) -> str:
    """Describe the holder of a lock."""
    pid, host, since = (holder.get(name) for name in ("pid", "host", "since"))
    if not isinstance(pid, int) or not isinstance(host, str) or not isinstance(since, str):
        return "another process"
    return f"process {pid} on {host:.80} since {since:.40}"
