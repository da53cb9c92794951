"""How long programs take to compile on this machine: remembered between runs, for plans."""

import contextlib
import json
import os
from pathlib import Path

from topicjax.store.files import StoreError, read_regular, write_whole

FILE = "compile_seconds.json"
KEPT = 20  # figures per experiment: some are of programs that were in the cache


def cache_folder() -> Path:
    """Return where compiled programs and their times are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topicjax"


def remember(experiment: str, seconds: float) -> None:
    """Keep how long a program of an experiment took to compile, if the cache can be written."""
    known = read()
    known[experiment] = [*known.get(experiment, []), round(seconds, 2)][-KEPT:]
    with contextlib.suppress(OSError, StoreError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_whole(cache_folder() / FILE, lambda file: file.write(json.dumps(known).encode()))


def expected(experiment: str) -> float | None:
    """Return the longest of the last times, as if no program were in the cache; None if there are none."""
    return max(read().get(experiment, []), default=None)


def read() -> dict[str, list[float]]:
    """Return the times by experiment; none if the file is missing or is not ours."""
    try:
        found = json.loads(read_regular(cache_folder() / FILE))
        return {str(name): [float(each) for each in times] for name, times in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
