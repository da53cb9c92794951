"""How much work something is, without a clock."""

import sys
from typing import Any


def count_calls(make: Any, *arguments: Any) -> int:
    """Return how many functions are called, in Python and in C, while something is made."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        make(*arguments)
    finally:
        sys.setprofile(None)
    return calls
