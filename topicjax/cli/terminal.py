"""Standard output and error that never stop a command: when nobody can read them any more, they go quiet."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO


class Steady(io.TextIOBase):
    """A text stream that goes quiet, instead of failing, once its reader is gone or its disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.error: Exception | None = None  # why it is quiet

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The encoding of the stream."""
        return getattr(self.stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write the text, or what the encoding has of it."""
        if self.error is None:
            try:
                self.stream.write(self._printable(text))
            except (OSError, ValueError) as error:
                self._silence(error)
        return len(text)

    def flush(self) -> None:
        """Write what is still kept back."""
        if self.error is None:
            try:
                self.stream.flush()
            except (OSError, ValueError) as error:
                self._silence(error)

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
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
        """Go quiet; Python flushes the stream once more when it ends, into nothing."""
        self.error = error
        if self.stream in (sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(OSError, ValueError):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, self.stream.fileno())
                os.close(nothing)


@contextlib.contextmanager
def steady_output() -> Iterator[Steady]:
    """Make standard output and error steady for a while; give the output."""
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nothing:
        out, err = (Steady(stream or nothing) for stream in before)  # None: the shell has closed it
        sys.stdout, sys.stderr = out, err
        try:
            yield out
        finally:
            out.flush()
            err.flush()
            sys.stdout, sys.stderr = before


def open_standard_files() -> None:
    """Open what a shell has closed: else the next file we open is standard output, and logs go into it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def one_line(text: str) -> str:
    """Return the text on one line, without characters that control a terminal."""
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
