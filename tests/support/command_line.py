"""Run the command line in a separate process, compiling quickly."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEEP = str(ROOT / "docs" / "deep_linear.py")  # a sweep whose programs compile in a second
STARTED: list[subprocess.Popen[str]] = []  # so that none outlives its test
FAST = (  # fast to compile, not to run
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)


def start(*arguments: str, cache: Path, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """Start the command line in a separate process, with these environment variables."""
    command = [sys.executable, "-m", "topicjax", *arguments]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(command, env=environment(cache) | variables, cwd=cwd, **pipes)
    STARTED.append(process)
    return process


def end_started() -> None:
    """Kill processes that a failed test left running."""
    while STARTED:
        with STARTED.pop() as process:
            process.kill()


def environment(cache: Path) -> dict[str, str]:
    """Return the environment variables of such a process."""
    return os.environ | {"XLA_FLAGS": FAST, "XDG_CACHE_HOME": str(cache)}
