"""Limit lines of a sweep's data, computed in the background while it trains."""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from threadpoolctl import threadpool_limits

from topicjax.experiments import Line

POLL_SECONDS = 0.1


class Background:
    """Computes limit lines in a thread of low priority.

    Beside training they cost little; beside compiling, which uses every core, they double its time: the
    thread waits for `begin`.
    """

    def __init__(self, wanted: Sequence[Line], begin: threading.Event, on_end: Callable[[], None]) -> None:
        """Start the thread; `on_end` is called in it once all lines are there, unless it was stopped."""
        self.entries: list[dict[str, Any]] = []
        self._wanted, self._begin, self._on_end = wanted, begin, on_end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._compute, daemon=True)
        if wanted:
            self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether lines are still being computed."""
        return self._thread.is_alive()

    @property
    def left(self) -> int:
        """How many lines are still to be computed."""
        return len(self._wanted) - len(self.entries)

    def begin(self) -> None:
        """Begin now, if not before: somebody waits for lines."""
        self._begin.set()

    def wait(self, is_stopping: Callable[[], bool], is_enough: Callable[[], bool] = lambda: False) -> None:
        """Wait until all lines are there, or those that are enough, or the user asks to stop."""
        self.begin()
        while self.is_busy and not is_stopping() and not is_enough():
            self._thread.join(POLL_SECONDS)

    def stop(self) -> None:
        """Give up the lines that are not there yet, without waiting for the one under way."""
        self._stopped.set()
        self._begin.set()

    def _compute(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # training comes first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        self._begin.wait()
        with threadpool_limits(1):  # threads of NumPy's own would wait for work in busy loops
            self._compute_lines()

    def _compute_lines(self) -> None:
        for line in self._wanted:
            if self._stopped.is_set():
                return
            try:
                found = {"values": line.compute()}
            except (ValueError, MemoryError) as error:  # theory has no lines for these data
                found = {"error": str(error) or "out of memory"}
            self.entries = [*self.entries, line.entry | found]
        if not self._stopped.is_set():
            self._on_end()
