"""Progress messages of a report, and live pages of a sweep that is still running.

A live page is rewritten whenever there are new trials; a browser that shows it reloads it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from topicjax.errors import counted
from topicjax.store.manifest import last_run, read_manifest
from topicjax.store.reader import Run, Status, status

AGAIN = 4.0  # seconds of silence after which the last line is repeated
PIECES = ("figure ", "table ")


class Announcer:
    """Pass on messages, number those of figures and tables, and repeat the last one during long work."""

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
        """Say what is being done next."""
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
        """Repeat the last line with the elapsed time after each silence."""
        while not self.ended.wait(self.again / 8):
            with self.lock:
                now = time.monotonic()
                if self.line and now - self.heard >= self.again:
                    self._tell(f"{self.line} {now - self.began:.0f} s")


@dataclass(frozen=True)
class Live:
    """How often a live page is made, how many trials are planned, and the time of day of this page."""

    seconds: float
    planned: int | None
    clock: str

    @property
    def reload_seconds(self) -> int:
        """Interval at which a browser reloads the page."""
        return max(1, round(self.seconds))

    def sentence(self, run: Run) -> str:
        """Say how far the run was when the page was made."""
        of = "" if self.planned is None else f" of {self.planned:,}"
        return f"Running: {len(run.trials):,}{of} trials, updated {self.clock}. This page reloads itself."


def is_finished(state: Status) -> bool:
    """Tell whether no process writes to the folder and all planned trials are finished."""
    return state.running is None and state.planned is not None and state.finished >= max(1, state.planned)


def is_between_rounds(folder: str | Path, seconds: float, sleep: Callable[[float], object]) -> bool:
    """Tell whether a run that looks finished is a refined one that continues with its next round."""
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
    """Make a live page whenever there are new trials, and the full page once the run is finished.

    `write` makes a page.  The folder is read every `seconds` and never locked.
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
            line += "" if state.running else "; no run is training; repeat `topicjax run` to continue"
            if line != told:
                say(line)
            told = line
        sleep(seconds)
    say(f"finished: {counted(state.finished, 'trial')}; making the full page")
    return write(None)
