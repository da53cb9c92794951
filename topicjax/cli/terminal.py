"""Terminal: output that never stops a command, messages, and commands to type next."""

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from topicjax.errors import printable

FROM_MAKE = "TOPICJAX_FROM_MAKE"  # set by the Makefile: its users type make, not topicjax


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
    print(printable(str(text)))


def say(text: str) -> None:
    """Print progress to standard error, apart from the results."""
    print(printable(text), file=sys.stderr, flush=True)


def program() -> list[str]:
    """Return the command line as the user calls it."""
    called = Path(sys.argv[0])
    return [str(called)] if called.name == "topicjax" else ["python", "-m", "topicjax"]


def command(*arguments: object) -> str:
    """Format a topicjax command, quoted for the shell; a path that begins with - is not an option."""
    is_odd = [isinstance(each, Path) and str(each).startswith("-") for each in arguments]
    words = [f"./{each}" if odd else str(each) for each, odd in zip(arguments, is_odd, strict=True)]
    return quoted([*program(), *words])


def quoted(words: Sequence[str]) -> str:
    """Quote words for the shell; control characters and bytes that are no text as bash and zsh write them."""

    def quote(word: str) -> str:
        if word.isprintable():
            return shlex.quote(word)
        plain = [byte for byte in range(32, 127) if byte not in b"\\'"]
        return "$'" + "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in os.fsencode(word)) + "'"

    return " ".join(map(quote, words))


def same_again(arguments: Sequence[str]) -> str:
    """Format the command that was given, quoted for the shell: `make sweep ...` if it came from make."""
    if FROM_MAKE not in os.environ:
        return command(*arguments)
    sweep, *rest = arguments[1:]
    words = [
        "make",
        "sweep",
        make_variable("SWEEP", [sweep]),
        *([make_variable("ARGS", rest)] if rest else []),
    ]
    return " ".join(words)


def make_variable(name: str, words: Sequence[str]) -> str:
    """Format NAME=words for make's command line; the words are read by make and then by a shell."""
    return f"{name}={shlex.quote(shlex.join(words).replace('$', '$$'))}"


def report_command(folder: Path) -> str:
    """Format the command for the report: make, for a sweep in its usual place."""
    if FROM_MAKE in os.environ and folder.parent == Path("results"):
        return f"make report {make_variable('SWEEP', [folder.name])}"
    return command("report", folder)
