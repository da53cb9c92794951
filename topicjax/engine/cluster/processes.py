"""Processes of a cluster that we started: notice when Ray itself ends, and leave none behind.

Ray waits a minute for a head that has ended, inside calls that never return to Python, and then ends this
process with lines of its own.  A thread looks at the processes instead.
"""

import contextlib
import ctypes
import os
import sys
import threading
import time
from typing import Any

from topicjax.errors import ClusterLost

LOOK_SECONDS = 0.1  # between two looks at the processes while the cluster starts ...
SELDOM_SECONDS = 2.0  # ... and later
START_SECONDS = 3.0  # for a call of Ray to notice that a process has ended, while the cluster starts ...
CALL_SECONDS = 45.0  # ... and later: results may have to be written first, and Ray itself ends after 60
END_SECONDS = 3.0  # for processes to end by themselves
SET_CHILD_SUBREAPER = 36  # of prctl(2), Linux
NAMES = {"gcs_server": "the head of the Ray cluster", "raylet": "Ray on this machine"}


class Processes:
    """The processes that Ray starts for us, from before `ray.init` until after `ray.shutdown`."""

    def __init__(self, ray: Any, cluster: str) -> None:
        """Begin to watch; `cluster` is the address that the user gave."""
        import psutil  # comes with Ray

        self._psutil, self._cluster = psutil, cluster
        self._folder = os.path.dirname(ray.__file__)
        self._found: dict[Any, str] = {}  # psutil.Process: the name of its program
        self._is_started = False
        self._looking = threading.Lock()
        self._over = threading.Event()
        adopt_orphans(True)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def started(self) -> None:
        """Note that the cluster is complete: from now on a lost one is noticed between calls of Ray."""
        self._is_started = True

    def ended(self) -> str:
        """Look at the processes; name the part of Ray that has ended, empty if all of it runs."""
        with self._looking:
            self._look()
            ended = [
                NAMES[name] for own, name in self._found.items() if name in NAMES and not self._runs(own)
            ]
        return ended[0] if ended else ""

    def lost(self, name: str) -> ClusterLost:
        """Say that a part of Ray has ended."""
        if self._is_started:
            return ClusterLost(
                f"{name} cannot be reached any more; finished trials are kept, the same command continues"
            )
        return ClusterLost(
            f"--cluster is {self._cluster} and cannot be used: {name} ended while it was starting; the same "
            "command starts it again"
        )

    def leave(self) -> None:
        """Look once more, before `ray.shutdown` ends the processes.

        If one has ended already, go on watching: without it `ray.shutdown` may not return either.
        """
        if not self.ended():
            self._over.set()

    def end(self) -> None:
        """Wait for the processes to end, after `ray.shutdown`; kill those that do not."""
        self._over.set()
        self._thread.join()
        _, left = self._psutil.wait_procs(list(self._found), END_SECONDS)
        self._kill(left)
        self._kill_orphans()
        adopt_orphans(False)

    def _look(self) -> None:
        """Note what was started meanwhile: children of an ended process cannot be found any more."""
        roots = [own for own in self._psutil.Process().children() if self._name(own)]
        for own in roots:
            self._found.setdefault(own, self._name(own))
        for own in list(self._found):
            with contextlib.suppress(self._psutil.Error):
                self._found |= {
                    child: "" for child in own.children(recursive=True) if child not in self._found
                }

    def _name(self, own: Any) -> str:
        """Name the program of a child of ours if it belongs to Ray; empty if not."""
        try:
            if own.status() == self._psutil.STATUS_ZOMBIE:  # ended before we saw it: only its name is left
                return own.name() if own.name() in NAMES else ""
            command = own.cmdline()
        except self._psutil.Error:
            return ""
        if not any(self._folder in word for word in command) and not "".join(command[:1]).startswith("ray::"):
            return ""  # something that our own caller started, or that has not become its program yet
        return os.path.basename(command[0])

    def _runs(self, own: Any) -> bool:
        try:
            return own.is_running() and own.status() != self._psutil.STATUS_ZOMBIE
        except self._psutil.Error:
            return False

    def _watch(self) -> None:
        """End this process if a part of Ray has ended and the call that waits for it does not return."""
        since = None
        while not self._over.wait(SELDOM_SECONDS if self._is_started else LOOK_SECONDS):
            name = self.ended()
            since = None if not name else since or time.monotonic()
            limit = CALL_SECONDS if self._is_started else START_SECONDS
            if since is not None and time.monotonic() - since > limit:
                print(f"topicjax: {self.lost(name)}", file=sys.stderr, flush=True)
                self._kill(list(self._found))
                self._kill_orphans()
                os._exit(1)  # the main thread is inside Ray and cannot be reached

    def _kill_orphans(self) -> None:
        """Kill what ended processes have left to us: what a node starts in its last moment was not seen."""
        with self._looking:
            for _ in range(2):  # the second look finds what those of the first have left
                self._look()
                left = [own for own in self._found if self._runs(own)]
                self._kill(left)
                self._psutil.wait_procs(left, END_SECONDS)

    def _kill(self, which: list[Any]) -> None:
        for own in which:
            with contextlib.suppress(self._psutil.Error):
                own.kill()


def adopt_orphans(is_wanted: bool) -> None:
    """Become the parent of processes whose parents end, on Linux; else they belong to the system's first one.

    A process that Ray starts and then leaves is found among our children.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0)
