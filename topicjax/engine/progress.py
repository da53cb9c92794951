"""Progress of a run: a bar on a terminal, a plain line every ten seconds elsewhere.

Both move with every segment of a chunk, long before its trials are finished.
"""

import math
import os
import sys
import threading
import time
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from topicjax.errors import duration, printable

LINE_SECONDS = 10.0


class Progress:
    """Counts trials and trial-steps; compile time is excluded from the rate."""

    def __init__(self, total_trials: int, total_steps: float, out: TextIO | None = None) -> None:
        """Start the clock; total_steps is the sum of the steps of all trials."""
        self.total_trials, self.total_steps = total_trials, total_steps
        self.trials = self.ok = self.diverged = 0
        self.steps = 0.0
        self.training = threading.Event()  # set once training has begun
        self.group = self.workers = ""  # the program, and the workers of a cluster
        self.started = time.monotonic()
        self.compile_seconds = 0.0
        self.programs = self.compiled = 0  # all programs of the run, and those compiled
        self.last_line = -math.inf  # the first line comes as soon as there is something to say
        self.out = out or sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (a closed standard output)
        self.console = Console(file=self.out, highlight=False, soft_wrap=True)
        self.live: Live | None = None

    def __enter__(self) -> "Progress":
        """Show the bar, if the output is a terminal."""
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self.live:
            self.live.stop()

    @property
    def rate(self) -> float:
        """Trial-steps per second, without compile time."""
        seconds = time.monotonic() - self.started - self.compile_seconds
        return self.steps / seconds if seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float:
        """Estimate the time left, including the compilation of further programs."""
        training = (self.total_steps - self.steps) / self.rate if self.rate else 0.0
        each = self.compile_seconds / self.compiled if self.compiled else 0.0
        return training + each * (self.programs - self.compiled)

    def begin_program(self, label: str) -> None:
        """Report that the next program is being compiled, with its label."""
        self.compiled += 1
        self.group = f"program {self.compiled}/{self.programs}: {label}"
        self.say(f"compiling {self.compiled}/{self.programs}: {label}")

    def add_compile_time(self, seconds: float) -> None:
        """Exclude these seconds from the rate."""
        self.compile_seconds += seconds

    def say(self, text: str) -> None:
        """Print a separate line."""
        self.console.print(printable(text), markup=False, emoji=False)

    def update(self, steps: float = 0.0, ok: int = 0, diverged: int = 0, spared: float = 0.0) -> None:
        """Count what was done and show it; trials that ended early have spared some steps."""
        self.training.set()
        self.steps += steps
        self.total_steps -= spared
        self.ok, self.diverged = self.ok + ok, self.diverged + diverged
        self.trials = self.ok + self.diverged
        if self.live:
            self.live.update(self.bar())
        elif time.monotonic() - self.last_line >= LINE_SECONDS:
            self.last_line = time.monotonic()
            self.say(self.line())

    def line(self) -> str:
        """Describe the state in one line."""
        share = self.steps / self.total_steps if self.total_steps else 1.0
        parts = [
            f"{self.trials}/{self.total_trials} trials",
            f"{share:.0%} of the steps",
            f"{self.rate:,.0f} trial-steps/s",
            f"{duration(self.seconds_left)} left",
            f"{self.ok} ok, {self.diverged} diverged",
            *filter(None, (self.workers, self.group)),
        ]
        return (" · " if can_print("·", self.out) else " | ").join(parts)

    def bar(self) -> Table:
        """Draw the bar and the line under it."""
        grid = Table.grid()
        grid.add_row(ProgressBar(total=self.total_steps, completed=self.steps, width=60))
        grid.add_row(Text(printable(self.line()), no_wrap=True, overflow="ellipsis"))
        return grid


def can_print(text: str, out: TextIO) -> bool:
    """Whether the encoding of a terminal has these characters."""
    try:
        text.encode(getattr(out, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
