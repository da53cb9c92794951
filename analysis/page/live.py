"""A report while it is made: what is being done now, and pages of a sweep that still runs.

A live page is made again whenever there are new trials; the browser that shows it loads it again.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from topicjax.store.manifest import last_run, read_manifest
from topicjax.store.reader import Run, Status, status

from ..pictures import counted

AGAIN = 4.0  # seconds of silence after which the last line is said again
PIECES = ("figure ", "table ")


class Announcer:
    """Passes on lines, numbers those of figures and tables, and repeats the last one while it takes long."""

    def __init__(self, say: Callable[[str], object], total: int = 0, again: float = AGAIN) -> None:
        self.say, self.total, self.again = say, total, again
        self.done, self.line = 0, ""
        self.began = self.heard = time.monotonic()
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self.thread.join()

    def __call__(self, message: str) -> None:
        """Say what is done next."""
        with self.lock:
            if self.total and message.startswith(PIECES):
                self.done += 1
                message = f"{message.removesuffix(' ...')} ({self.done} of {self.total}) ..."
            self.line, self.began = message, time.monotonic()
            self._tell(message)

    def _tell(self, line: str) -> None:
        self.heard = time.monotonic()
        self.say(line)

    def _repeat(self) -> None:
        """Say the last line again, with the time that it has taken, after each silence."""
        while not self.ended.wait(self.again / 8):
            with self.lock:
                now = time.monotonic()
                if self.line and now - self.heard >= self.again:
                    self._tell(f"{self.line} {now - self.began:.0f} s")


@dataclass(frozen=True)
class Live:
    """How often a page is made, how many trials are planned, and the time of day that it is of."""

    seconds: float
    planned: int | None
    clock: str

    @property
    def reload_seconds(self) -> int:
        """After how long a browser loads the page again."""
        return max(1, round(self.seconds))

    def sentence(self, run: Run) -> str:
        """Return how far the run was when the page was made."""
        of = "" if self.planned is None else f" of {self.planned:,}"
        return f"Running: {len(run.trials):,}{of} trials, updated {self.clock}. This page loads itself again."


def is_finished(state: Status) -> bool:
    """Return whether nobody writes to the folder and all planned trials are there."""
    return state.running is None and state.planned is not None and state.finished >= max(1, state.planned)


def is_between_rounds(folder: str | Path, seconds: float, sleep: Callable[[float], object]) -> bool:
    """Return whether a finished run is a refined one that goes on after a pause, in its next round."""
    if "refine" not in last_run(read_manifest(folder)):
        return False
    sleep(seconds)
    return not is_finished(status(folder))


def watch(
    folder: str | Path,
    seconds: float,
    write: Callable[[Live | None], Path],
    say: Callable[[str], object],
    sleep: Callable[[float], object] = time.sleep,
) -> Path:
    """Make a live page whenever there are new trials, and the whole page once the run is finished.

    `write` makes a page.  The folder is only looked at, every so many seconds, never locked.
    """
    shown, told = -1, ""
    while not is_finished(state := status(folder)) or is_between_rounds(folder, seconds, sleep):
        of = "" if state.planned is None else f" of {state.planned:,}"
        if state.finished > max(shown, 0):
            shown = state.finished
            clock = time.strftime("%H:%M:%S")
            path = write(Live(seconds, state.planned, clock))
            say(f"{path}: {shown:,}{of} trials, updated {clock}")
        else:
            line = f"waiting: {state.finished:,}{of} trials are finished"
            line += "" if state.running else "; nobody is training, the same `topicjax run` continues"
            if line != told:
                say(line)
            told = line
        sleep(seconds)
    say(f"finished: {counted(state.finished, 'trial')}; making the whole page")
    return write(None)
