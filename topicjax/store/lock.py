"""One process at a time writes to a folder.

The kernel releases the lock when its process ends, however it ends: none is ever stale.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OURS = b'{"pid": '  # how a lock file begins, unless its process was killed before it said who it is
ATTEMPTS, PAUSE = 5, 0.05  # a reader that asks who runs holds the lock for an instant


class HeldError(Exception):
    """Another process has the lock; `holder` has its pid, host and start, or is empty."""

    def __init__(self, holder: dict[str, Any]) -> None:
        super().__init__(holder)
        self.holder = holder


def acquire(path: Path) -> int:
    """Return a descriptor that holds the lock, or raise HeldError."""
    for _ in range(ATTEMPTS):
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
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
        descriptor = open_regular(path, os.O_RDONLY)
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


def open_regular(path: Path, flags: int) -> int:
    """Return a descriptor of an ordinary file; a link, a pipe or a device is an OSError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not an ordinary file")
    return descriptor


def is_ours(path: Path) -> bool:
    """Return whether a file begins as a lock file does, as far as it was written."""
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        return OURS.startswith(os.pread(descriptor, len(OURS), 0))
    finally:
        os.close(descriptor)


def is_file(descriptor: int, path: Path) -> bool:
    """Return whether the open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
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
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def who(holder: Mapping[str, Any]) -> str:
    """Return the holder of a lock in words."""
    pid, host, since = (holder.get(name) for name in ("pid", "host", "since"))
    if not isinstance(pid, int) or not isinstance(host, str) or not isinstance(since, str):
        return "another process"
    return f"process {pid} on {host:.80} since {since:.40}"
