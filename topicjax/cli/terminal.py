"""Terminal: output that never stops a command, and messages."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from topicjax.errors import printable


class Steady(io.TextIOBase):
    """A text stream that goes silent instead of failing, once its reader is gone or its disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.error: Exception | None = None  # why it is silent

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The encoding of the stream."""
        return getattr(self.stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write the text, with escapes for characters that the encoding lacks."""
        if self.error is None:
            try:
                self.stream.write(self._printable(text))
            except (OSError, ValueError) as error:
                self._silence(error)
        return len(text)

    def flush(self) -> None:
        """Write what is still in the buffer."""
        if self.error is None:
            try:
                self.stream.flush()
            except (OSError, ValueError) as error:
                self._silence(error)

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        with contextlib.suppress(ValueError):
            return self.stream.isatty()
        return False

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self.stream.fileno()

    def _printable(self, text: str) -> str:
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            return text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        return text

    def _silence(self, error: Exception) -> None:
        """Go silent; Python's last flush of the stream goes to the null device."""
        self.error = error
        if self.stream in (sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(OSError, ValueError):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, self.stream.fileno())
                os.close(nothing)


@contextlib.contextmanager
def steady_output() -> Iterator[Steady]:
    """Make standard output and error steady inside a block; yield the output."""
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nothing:
        out, err = (Steady(stream or nothing) for stream in before)  # None: closed by the shell
        sys.stdout, sys.stderr = out, err
        try:
            yield out
        finally:
            out.flush()
            err.flush()
            sys.stdout, sys.stderr = before


def open_standard_files() -> None:
    """Open standard files that the shell has closed; else the next file we open would become one of them."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def one_line(text: str) -> str:
    """Put the text on one line, without characters that control a terminal."""
    return printable(" ".join(text.split()))


def show(text: object) -> None:
    """Print a result."""
    print(printable(str(text)), flush=True)


def say(text: str) -> None:
    """Print progress to standard error, apart from the results."""
    print(printable(text), file=sys.stderr, flush=True)
