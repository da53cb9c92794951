"""Files written whole or not at all, and the operating system's refusals in one sentence."""

import contextlib
import errno
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

TEMPORARY = ".tmp-"  # pandas and pyarrow pass over names that begin with a dot
NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
HEX_NAME = re.compile("[0-9a-f]{12}")
REASONS = {
    errno.ENOSPC: "the disk is full; finished trials are kept, make room and run it again",
    errno.EDQUOT: "the disk quota is used up; finished trials are kept, make room and run it again",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ELOOP: "it is a link, and links are not followed",
}


class StoreError(Exception):
    """What is wrong with a run folder, in one sentence that names the file."""


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that, whatever happens, its name has the old content or all of the new."""
    temporary = path.with_name(TEMPORARY + path.name)
    with explained("write", path):
        temporary.unlink(missing_ok=True)  # of a killed process, or a link to someone else's file
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


def read_regular(path: Path) -> bytes:
    """Return the bytes of an ordinary file; a pipe, which might never end, is an OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not an ordinary file")
        return file.read()


def scan(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing if there is no such folder."""
    try:
        with explained("read", folder, FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_hex_name(name: object) -> bool:
    """Return whether this is a name as trials, chunks and plans have it: 12 hexadecimal digits."""
    return isinstance(name, str) and HEX_NAME.fullmatch(name) is not None


@contextlib.contextmanager
def explained(verb: str, path: Path, *passing: type[OSError]) -> Iterator[None]:
    """Turn errors of the operating system, except the given types, into a StoreError."""
    try:
        yield
    except passing:
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
    """Call fsync on a file, or on a folder for the names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(value: Any) -> Any:
    """Return the value as JSON has it: no NumPy, no tuples, null for what is not finite."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | range):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
