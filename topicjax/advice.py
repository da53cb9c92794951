"""Commands that messages advise, for users of make, of the command topicjax, or of `python -m topicjax`."""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

FROM_MAKE = "TOPICJAX_FROM_MAKE"  # set by the Makefile: its users type make, not topicjax
MAKE_TARGETS = {"cuda12": "gpu", "ray": "ray", "tpu": "tpu"}  # that install an extra


def is_from_make() -> bool:
    """Whether the command was called by make."""
    return FROM_MAKE in os.environ


def program() -> list[str]:
    """Return the command line as the user calls it, shortest where the PATH finds it."""
    called = sys.argv[0]
    if Path(called).name == "topicjax":
        return ["topicjax" if os.path.isabs(called) and shutil.which("topicjax") == called else called]
    return [python(), "-m", "topicjax"]


def python() -> str:
    """Return how to call this Python."""
    found = shutil.which("python")
    is_this = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)
    return "python" if is_this else sys.executable


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
    if not is_from_make():
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
    if is_from_make() and folder.parent == Path("results"):
        return f"make report {make_variable('SWEEP', [folder.name])}"
    return command("report", folder)


def corpus_command(is_standard: bool) -> str:
    """Format the command that makes the corpora of Wikipedia, or those of a text."""
    if is_from_make():
        return "make corpus" if is_standard else "make corpus TEXT=my.txt"
    return command("corpus", *(() if is_standard else ("--text", "my.txt")))


def guide(page: str) -> str:
    """Name a page of the documentation: its file in a checkout, which an installed copy does not have."""
    has_file = (Path(__file__).resolve().parents[1] / "docs" / f"{page}.md").exists()
    return f"docs/{page}.md" if has_file else f"page {page} of the documentation"


def install_command(extra: str) -> str:
    """Format the command that adds an extra to this installation.

    It names the packages of the extra: neither the checkout nor the wheel of topicjax is needed again.
    Environments made by uv have no pip.
    """
    if is_from_make():
        return f"make {MAKE_TARGETS[extra]}" if extra in MAKE_TARGETS else f"make extra EXTRA={extra}"
    has_pip = importlib.util.find_spec("pip") is not None
    pip = [python(), "-m", "pip", "install"] if has_pip else ["uv", "pip", "install", "--python", python()]
    return quoted([*pip, *requirements(extra)])


def requirements(extra: str) -> list[str]:
    """List the packages of an extra with their bounds."""
    try:
        known = metadata.requires("topicjax") or []
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        known = []
    is_asked = re.compile(rf"""extra == ["']{re.escape(extra)}["']""")
    parts = [line.partition(";") for line in known]
    return [package.strip() for package, _, marker in parts if is_asked.search(marker)] or [f".[{extra}]"]
