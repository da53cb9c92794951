"""What a report is doing, said while it does it: pieces are numbered, and a long one is heard of again."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

AGAIN = 4.0  # seconds of silence after which the last line is said again
PIECES = ("figure ", "table ")


class Progress:
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
