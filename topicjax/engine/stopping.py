"""Signals that stop a run: cleanly at first, at once when Ctrl-C is repeated.

    Ctrl-C (SIGINT), SIGTERM, SIGHUP   finish the segment and save the state
    a second Ctrl-C                    stop immediately and close the folder
    a third Ctrl-C                     end the process, even inside compiled code

A killed process loses only the segments since its last saved state, so the third is safe.  SIGHUP and
SIGTERM may arrive twice for one request (from the kernel and from the shell), so only repeated Ctrl-C
escalates.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AT_ONCE, THE_END = 2, 3  # the Ctrl-C that stops at once, the one that ends the process
SHOW_CURSOR = b"\x1b[?25h"


class StopRequests:
    """Stop requests received so far; calling it tells whether the run should stop."""

    def __init__(self) -> None:
        self.first = 0  # the signal that came first
        self._interrupts = 0

    def __call__(self) -> bool:
        """Whether the run should stop."""
        return bool(self.first)

    def receive(self, number: int, frame: Any) -> None:
        """Handle a signal in the main thread, once compiled code returns to Python."""
        self.first = self.first or number
        self._interrupts += number == signal.SIGINT
        if self._interrupts == AT_ONCE:
            raise KeyboardInterrupt


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Yield the stop requests from now on; none outside the main thread, which alone can receive signals."""
    requests = StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    kept = {number for number in (signal.SIGHUP,) if signal.getsignal(number) is signal.SIG_IGN}  # nohup
    before = {number: signal.signal(number, requests.receive) for number in SIGNALS if number not in kept}
    try:
        with ends_when_insisted():
            yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ends_when_insisted() -> Iterator[None]:
    """End the process at the third Ctrl-C, even while the main thread is in compiled code.

    Signal handlers have to wait for the main thread.  So every signal is also written to a pipe, where a
    separate thread counts.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=count_interrupts, args=(reader,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def count_interrupts(reader: int) -> None:
    """Read signal numbers until the pipe is closed; end the process at the third Ctrl-C."""
    count = 0
    while number := os.read(reader, 1):
        count += number[0] == signal.SIGINT
        if count == THE_END:
            end_process()


def end_process() -> NoReturn:
    """End the process immediately, leaving the terminal in order."""
    with contextlib.suppress(OSError):
        if os.isatty(sys.__stdout__.fileno() if sys.__stdout__ else -1):
            os.write(1, SHOW_CURSOR)
        os.write(2, b"topicjax: stopped\n")
    os._exit(128 + signal.SIGINT)
