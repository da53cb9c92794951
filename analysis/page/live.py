"""A page that is watched: made again while a sweep runs, and loaded again by the browser that shows it."""

import html
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from topicjax.store.manifest import last_run, read_manifest
from topicjax.store.reader import Run, Status, status

from ..pictures import counted

LOADER = """<script>
(function () {
  var place = "topicjax " + location.pathname;
  try {
    addEventListener("load", function () { scrollTo(0, +sessionStorage.getItem(place) || 0); });
    addEventListener("pagehide", function () { sessionStorage.setItem(place, scrollY); });
  } catch (error) {}
  setTimeout(function () {
    try { sessionStorage.setItem(place, scrollY); } catch (error) {}
    location.reload();
  }, SECONDS * 1000);
})();
</script>
<noscript><meta http-equiv="refresh" content="SECONDS"></noscript>
"""


@dataclass(frozen=True)
class Live:
    """How often a page is made, how many trials are planned, and the time of day that it is of."""

    seconds: float
    planned: int | None
    clock: str

    @property
    def head(self) -> str:
        """What makes a browser load the page again, at the place where the reader is."""
        return LOADER.replace("SECONDS", f"{max(1, round(self.seconds))}")

    def sentence(self, run: Run) -> str:
        """Return how far the run was when the page was made."""
        of = "" if self.planned is None else f" of {self.planned:,}"
        text = f"Running: {len(run.trials):,}{of} trials, updated {self.clock}. This page loads itself again."
        return f'<p class="live">{html.escape(text)}</p>\n'


def is_finished(state: Status) -> bool:
    """Return whether nobody writes to the folder and all planned trials are there."""
    return state.running is None and state.planned is not None and state.finished >= max(1, state.planned)


def is_between_rounds(folder: str | Path, seconds: float, sleep: Callable[[float], object]) -> bool:
    """Return whether a finished run is a refined one that goes on after a pause, in its next round."""
    if "refine" not in last_run(read_manifest(folder)):
        return False
    sleep(seconds)
    return not is_finished(status(folder))


def watch(
    folder: str | Path,
    seconds: float,
    write: Callable[[Live | None], Path],
    say: Callable[[str], object],
    sleep: Callable[[float], object] = time.sleep,
) -> Path:
    """Make a live page whenever there are new trials, and the whole page once the run is finished.

    `write` makes a page.  The folder is only looked at, every so many seconds, never locked.
    """
    shown, told = -1, ""
    while not is_finished(state := status(folder)) or is_between_rounds(folder, seconds, sleep):
        of = "" if state.planned is None else f" of {state.planned:,}"
        if state.finished > max(shown, 0):
            shown = state.finished
            clock = time.strftime("%H:%M:%S")
            path = write(Live(seconds, state.planned, clock))
            say(f"{path}: {shown:,}{of} trials, updated {clock}")
        else:
            line = f"waiting: {state.finished:,}{of} trials are finished"
            line += "" if state.running else "; nobody is training, the same `topicjax run` continues"
            if line != told:
                say(line)
            told = line
        sleep(seconds)
    say(f"finished: {counted(state.finished, 'trial')}; making the whole page")
    return write(None)
