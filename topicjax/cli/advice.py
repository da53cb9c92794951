"""What to type next, as the user would type it."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

FROM_MAKE = "TOPICJAX_FROM_MAKE"  # set by the Makefile: its user types make, not topicjax


def program() -> list[str]:
    """Return how the user calls the command line."""
    called = Path(sys.argv[0])
    return [str(called)] if called.name == "topicjax" else ["python", "-m", "topicjax"]


def command(*arguments: object) -> str:
    """Return a command of topicjax, quoted for the shell."""
    return shlex.join([*program(), *map(str, arguments)])


def same_again(arguments: Sequence[str]) -> str:
    """Return the command that was given, quoted for the shell: `make sweep ...` if make gave it."""
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
    """Return NAME=words for make's command line; make and then a shell will read the words."""
    return f"{name}={shlex.quote(shlex.join(words).replace('$', '$$'))}"


def report_command(folder: Path) -> str:
    """Return what to type for the report: make, for a sweep in its usual place."""
    if FROM_MAKE in os.environ and folder.parent == Path("results"):
        return f"make report {make_variable('SWEEP', [folder.name])}"
    return command("report", folder)
