"""`UserError`, raised for invalid input, and helpers that word messages and make text safe to show."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
MOST_SHOWN = 80  # characters of a value in a message
KEPT = (
    "\n\t\u00a0\u202f"  # printed as they are, though Python does not call them printable: breaks and spaces
)


class UserError(ValueError):
    """Invalid input.  The message is one sentence: what is wrong, and what is allowed.

    Raised where values enter: settings, sweep files, the command line, run folders.  Any other exception that
    reaches the command line is a defect of topicjax and is shown with its traceback.
    """


class ClusterLost(Exception):
    """The cluster ended during a run.  The message says what ended, what is kept and how to continue."""


def shown(value: Any) -> str:
    """Format the value as Python would, on one line of limited length."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # the repr of a user's class may raise
        text = f"an object of type {type(value).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 4]} ..."


def printable(text: str) -> str:
    """Write characters that control a terminal, or that XML cannot hold, as escapes; line breaks stay.

    Everything we print or draw passes through here: names and values may come from foreign files.
    """
    odd = [c for c in set(text) if not c.isprintable() and c not in KEPT]
    return text.translate({ord(c): c.encode("unicode_escape").decode() for c in odd}) if odd else text


def quoted_cell(value: Any) -> Any:
    """Put a quote before a text that a spreadsheet would compute, such as =1+1; numbers stay as they are."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return value
    return value if NUMBER.fullmatch(value) else f"'{value}"


def unknown_name(what: str, name: Any, allowed: Iterable[str]) -> str:
    """Word the message for an unknown name, with the nearest known name as a suggestion."""
    allowed = list(allowed)
    if not isinstance(name, str) or len(name) > MOST_SHOWN:
        return f"unknown {what} {shown(name)}; allowed: {', '.join(allowed)}"
    initials = {"".join(word[:1] for word in other.split("_")): other for other in allowed}
    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    near = [initials[name]] if name in initials else near
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {name!r}; {hint}allowed: {', '.join(allowed)}"


def duration(seconds: float) -> str:
    """Format seconds for people: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(count: int, what: str) -> str:
    """Format a count with its noun, in singular or plural."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def size(num_bytes: float) -> str:
    """Format bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"
