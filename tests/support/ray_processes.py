"""Processes of Ray: found by what they descend from or by the session they belong to."""

import time
from pathlib import Path

GONE_SECONDS = 20.0
AGENT_SECONDS = 120.0  # helpers of Ray that compute nothing wait a minute for a driver that was killed
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def processes() -> dict[int, tuple[int, str]]:
    """Return parent and command of every process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if status[0] != "Z":
            found[int(folder.name)] = (int(status[1]), command)
    return found


def descendants(pid: int) -> set[int]:
    """Return the processes that a process has started, directly or not."""
    every, found, fresh = processes(), set[int](), {pid}
    while fresh:
        fresh = {child for child, (parent, _) in every.items() if parent in fresh} - found
        found |= fresh
    return found


def of_session(session: str) -> set[int]:
    """Return the processes whose command names a session of Ray."""
    return {pid for pid, (_, command) in processes().items() if session in command}


def agents(which: set[int]) -> set[int]:
    """Return those of the processes that are Ray's helpers."""
    return {pid for pid, (_, command) in processes().items() if pid in which and command.startswith(AGENTS)}


def all_gone(which, seconds: float = GONE_SECONDS) -> bool:
    """Return whether the processes that `which` returns, or the given ones, are gone before long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        left = which() if callable(which) else which & processes().keys()
        if not left:
            return True
        time.sleep(0.1)
    return False
