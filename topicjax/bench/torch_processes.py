"""Eager PyTorch in processes of its own: one per core, or one with all threads, whichever is faster."""

import functools
import importlib.util
import os
import pickle
import subprocess
import sys
from typing import Any

import jax

from topicjax.advice import install_command
from topicjax.bench.timing import seconds_of
from topicjax.errors import UserError


class TorchProcesses:
    """PyTorch processes that train one trial each, side by side."""

    def __init__(self, given: dict[str, Any], processes: int, threads: int) -> None:
        # PyTorch stays on the CPU, also if the engine is timed on an accelerator.
        place = "" if jax.default_backend() == "cpu" else " on the CPU"
        self.label = f"{processes} x {threads} thread{'s' if threads > 1 else ''}{place}"
        command = [sys.executable, "-m", "topicjax.bench.torch_eager"]
        pipe = subprocess.PIPE
        self.members: list[Any] = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(processes)
        ]
        for member in self.members:
            pickle.dump(given | dict(threads=threads), member.stdin)
        self.train(1)

    def train(self, steps: int) -> None:
        """Take this many steps in every process, and wait for all."""
        for member in self.members:
            pickle.dump(steps, member.stdin)
            member.stdin.flush()
        for member in self.members:
            pickle.load(member.stdout)

    def close(self) -> None:
        """End the processes."""
        for member in self.members:
            member.communicate()


def best_torch(given: dict[str, Any], steps: int) -> TorchProcesses:
    """Start PyTorch in the faster of two ways: a process per core, or one process with all threads."""
    cores = os.cpu_count() or 1
    choices = [TorchProcesses(given, *shape) for shape in dict.fromkeys([(cores, 1), (1, cores)])]
    calls = [functools.partial(choice.train, steps) for choice in choices]
    seconds = [min(taken) for taken in seconds_of(calls, 3)]
    rates = [len(choice.members) / taken for choice, taken in zip(choices, seconds, strict=True)]
    best = choices[rates.index(max(rates))]
    for choice in choices:
        if choice is not best:
            choice.close()
    return best


def need_torch() -> None:
    """Raise a UserError if PyTorch is missing."""
    if importlib.util.find_spec("torch") is None:
        raise UserError(f"PyTorch is not installed; to install it: {install_command('bench')}")
