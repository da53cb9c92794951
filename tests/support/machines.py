"""Simulated machines for the store: file operations that fail, are torn, or are the last before a kill."""

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from topicjax.store import files as files_module

OPERATIONS = (
    "open",
    "write",
    "pwrite",
    "ftruncate",
    "fsync",
    "replace",
    "rename",
    "mkdir",
    "unlink",
    "rmdir",
)
WRITES = ("write", "pwrite")


class Killed(BaseException):
    """The process is gone: from here on no operation has any effect."""


class Machine:
    """Counts file operations that change something; lets one of them fail, or be the last."""

    def __init__(
        self, last: int = -1, code: int = 0, part: float | None = None, for_good: bool = False
    ) -> None:
        """Fail at operation `last` with `code`, or die; if it writes, first write `part` of its bytes."""
        self.last, self.code, self.part, self.for_good = last, code, part, for_good
        self.is_dead = False
        self.names: list[str] = []  # of all operations so far

    def before(self, name: str) -> bool:
        """Count an operation; return whether it is to be torn, or raise what happens instead of it."""
        if self.is_dead:
            raise Killed
        number = len(self.names)
        self.names.append(name)
        is_struck = number == self.last or (self.for_good and 0 <= self.last < number and name != "unlink")
        if is_struck and self.code:
            raise OSError(self.code, os.strerror(self.code))
        if is_struck:
            self.is_dead = True
            if self.part is not None and name in WRITES:
                return True
            raise Killed
        return False

    def after(self, name: str, descriptor: int | None) -> None:
        """Note that an operation was done, on this open file or folder if it is a sync."""

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return an operation of the module os that this machine controls."""

        def operation(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                return function(*arguments, **options)
            if self.before(name):
                descriptor, data, *rest = arguments
                function(descriptor, data[: int(len(data) * (self.part or 0))], *rest)
                raise Killed
            if name == "fsync":
                self.after(name, arguments[0])  # the real one takes long, and nothing here outlives power
                return None
            result = function(*arguments, **options)
            self.after(name, None)
            return result

        return operation

    def open(self, descriptor: int, mode: str) -> Any:
        """Return a file whose writes this machine controls."""
        machine = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                if machine.before("write"):
                    super().write(bytes(data)[: int(len(data) * (machine.part or 0))])
                    raise Killed
                written = super().write(data)
                machine.after("write", None)
                return written

        raw = Raw(descriptor, mode.replace("b", ""))
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedReader(raw)


@contextlib.contextmanager
def running_on(machine: Machine) -> Iterator[Any]:
    """Let the store run on this machine."""
    unlock = files_module.unlock_folder

    def unlock_or_die(folder: Path, descriptor: int) -> None:
        try:
            unlock(folder, descriptor)
        except Killed:
            os.close(descriptor)  # as the kernel does
            raise

    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, machine.wrap(name, getattr(os, name)))
        patch.setattr(files_module, "open", machine.open, raising=False)
        patch.setattr(files_module, "unlock_folder", unlock_or_die)
        yield machine


MODES: dict[str, Callable[[int], Machine]] = {
    "fail": lambda number: Machine(number, code=(errno.ENOSPC, errno.EIO)[number % 2]),
    "fail for good": lambda number: Machine(number, code=errno.ENOSPC, for_good=True),
    "kill": Machine,
    "torn in the middle": lambda number: Machine(number, part=0.5),
    "torn before the last byte": lambda number: Machine(number, part=0.9999),
}
