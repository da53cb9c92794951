"""Find processes of Ray by their ancestors or by their session."""

import time
from pathlib import Path

GONE_SECONDS = 20.0
AGENT_SECONDS = 120.0  # Ray's agents, which compute nothing, wait a minute for a killed driver ...
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
STARTING = "/default_worker.py "  # ... and so does a worker that is just starting


def processes() -> dict[int, tuple[int, str]]:
    """List parent and command of every process."""
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
    """Find the processes that a process has started, directly or indirectly."""
    every, found, fresh = processes(), set[int](), {pid}
    while fresh:
        fresh = {child for child, (parent, _) in every.items() if parent in fresh} - found
        found |= fresh
    return found


def of_session(session: str) -> set[int]:
    """Find the processes whose command names a session of Ray."""
    return {pid for pid, (_, command) in processes().items() if session in command}


def named(program: str, which: set[int]) -> set[int]:
    """Select the processes that run a program, given its name without its folder."""
    every = processes()
    return {pid for pid in which & every.keys() if every[pid][1].split(" ")[0].endswith(program)}


def agents(which: set[int]) -> set[int]:
    """Select the processes that are Ray's agents, and workers that are not yet ready."""
    return {
        pid
        for pid, (_, command) in processes().items()
        if pid in which and (command.startswith(AGENTS) or STARTING in command)
    }


def all_gone(which, seconds: float = GONE_SECONDS) -> bool:
    """Wait until the processes (given, or returned by `which`) are gone; return False after `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        left = which() if callable(which) else which & processes().keys()
        if not left:
            return True
        time.sleep(0.1)
    return False


LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


def listening(which: set[int]) -> set[str]:
    """List the addresses on which processes accept connections, as hexadecimal digits of /proc/net."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":  # LISTEN
                sockets[f"socket:[{words[9]}]"] = words[1].partition(":")[0]
    files = [path for pid in which for path in Path("/proc", str(pid), "fd").glob("*")]
    return {sockets[name] for path in files if (name := str(path.readlink())) in sockets}
