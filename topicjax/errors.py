"""The one exception that is the user's to mend, and the words of its sentence."""

import difflib
from collections.abc import Iterable
from typing import Any

MOST_SHOWN = 80  # characters of a value


class UserError(ValueError):
    """A mistake of the user, in one sentence: what is wrong, and what is allowed.

    Raised where values enter: settings, sweep files, the command line, run folders.  Any other exception that
    reaches the command line is a defect of topicjax and is shown with its traceback.
    """


def shown(value: Any) -> str:
    """Return the value as Python writes it, on one line that is not too long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a class in a user's file
        text = f"an object of type {type(value).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 4]} ..."


def unknown_name(what: str, name: Any, allowed: Iterable[str]) -> str:
    """Return the sentence that says a name does not exist, and suggests the nearest that does."""
    allowed = list(allowed)
    if not isinstance(name, str) or len(name) > MOST_SHOWN:
        return f"unknown {what} {shown(name)}; allowed: {', '.join(allowed)}"
    initials = {"".join(word[:1] for word in other.split("_")): other for other in allowed}
    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    near = [initials[name]] if name in initials else near
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {name!r}; {hint}allowed: {', '.join(allowed)}"
