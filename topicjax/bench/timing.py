"""Timing in turns, so that other load on the machine affects all methods alike."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class Method:
    """A way to train that is timed: `step()` runs `trial_steps` trial-steps and waits for them to finish."""

    name: str
    step: Callable[[], Any]
    trial_steps: int
    flop: float  # useful work of one trial-step
    compile_seconds: float = 0.0
    memory_bytes: float = float("nan")  # arguments, results and temporaries, on all devices


def seconds_of(calls: Sequence[Callable[[], Any]], repeats: int) -> list[list[float]]:
    """Return the seconds that every call takes, `repeats` times each, in turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, own in zip(calls, seconds, strict=True):
            start = time.monotonic()
            call()
            own.append(time.monotonic() - start)
    return seconds


def memory_bytes(compiled: Any, devices: int = 1) -> float:
    """Return what a compiled program holds while it runs; donated buffers count once."""
    sizes = compiled.memory_analysis()
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return devices * (held - sizes.alias_size_in_bytes)
