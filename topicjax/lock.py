"""Writing to a folder safely: one process at a time, each file whole or not at all, clear errors.

The kernel releases the lock when its process ends, however it ends: none is ever stale.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

ATTEMPTS, PAUSE = 5, 0.05  # a reader that asks who runs holds the lock for an instant
TEMPORARY = ".tmp-"  # pandas and pyarrow pass over names that begin with a dot
REASONS = {
    errno.ENOSPC: "the disk is full; finished trials are kept, make room and run it again",
    errno.EDQUOT: "the disk quota is used up; finished trials are kept, make room and run it again",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
}


class StoreError(Exception):
    """What is wrong with a run folder, in one sentence that names the file."""


class HeldError(Exception):
    """Another process has the lock; `holder` has its pid, host and start, or is empty."""

    def __init__(self, holder: dict[str, Any]) -> None:
        super().__init__(holder)
        self.holder = holder


def acquire(path: Path) -> int:
    """Return a descriptor that holds the lock, or raise HeldError."""
    for _ in range(ATTEMPTS):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_file(descriptor, path):  # not one that its last holder removed meanwhile
                write_holder(descriptor)
                return descriptor
        except BlockingIOError:
            time.sleep(PAUSE)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise HeldError(holder(path) or {})


def release(path: Path, descriptor: int) -> None:
    """Remove the lock file if it is still ours, then let go."""
    with contextlib.suppress(OSError):
        if is_file(descriptor, path):
            path.unlink()
    os.close(descriptor)


def holder(path: Path) -> dict[str, Any] | None:
    """Return pid, host and start of the process that holds the lock; None if no process does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_holder(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


def is_file(descriptor: int, path: Path) -> bool:
    """Return whether the open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def write_holder(descriptor: int) -> None:
    """Write who we are, for the message that others print."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def read_holder(descriptor: int) -> dict[str, Any]:
    """Return what the holder wrote; empty if it has not written yet."""
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def who(holder: Mapping[str, Any]) -> str:
    """Return the holder of a lock in words."""
    if not holder:
        return "another process"
    return f"process {holder['pid']} on {holder['host']} since {holder['since']}"


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that, whatever happens, its name has the old content or all of the new."""
    temporary = path.with_name(TEMPORARY + path.name)
    with explained("write", path):
        try:
            with open(temporary, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def explained(verb: str, path: Path, *passed: type[OSError]) -> Iterator[None]:
    """Turn errors of the operating system, those passed on apart, into a StoreError."""
    try:
        yield
    except passed:
        raise
    except OSError as error:
        raise StoreError(f"cannot {verb} {path}: {reason(error)}") from error


def reason(error: OSError) -> str:
    """Return why the operating system refused, in words."""
    return REASONS.get(error.errno or 0, error.strerror or first_line(error))


def first_line(error: Exception) -> str:
    """Return what an error says, without the pages that follow."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
