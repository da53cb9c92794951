"""What one run writes into manifest.json: at its start, when the limit lines are known, and at its end."""

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

from topicjax.engine.background import Background
from topicjax.engine.progress import Progress
from topicjax.engine.provenance import now
from topicjax.experiments import Line
from topicjax.store.files import StoreError
from topicjax.store.manifest import FORMAT
from topicjax.store.writer import Writer


class RunManifest:
    """The manifest of a folder while a run adds to it."""

    def __init__(
        self, writer: Writer, entry: dict[str, Any], lines: Sequence[Line], begin: threading.Event
    ) -> None:
        """Write the entry of this run; compute these limit lines in the background from `begin` on."""
        before = writer.manifest
        self._writer, self._lock = writer, threading.Lock()
        self._sweep, self._entry = before.get("sweep", entry["sweep"]), entry
        self._runs, self._lines = before.get("runs", []), before.get("references", [])
        self.is_new = bool(entry["left"]) or entry["plan"] not in [run.get("plan") for run in self._runs]
        self.run = len(self._runs) + 1  # its number, as trials carry it
        self.lines = Background(lines, begin, self._write_in_background)
        self.write()

    @property
    def known_lines(self) -> list[dict[str, Any]]:
        """The limit lines that are known by now."""
        return [*self._lines, *self.lines.entries]

    def write(self) -> None:
        """Write the file as it is known now."""
        with self._lock:
            runs = [*self._runs, *([self._entry] if self.is_new else [])]
            self._writer.write_manifest(
                {"format": FORMAT, "sweep": self._sweep, "runs": runs, "references": self.known_lines}
            )

    def add(self, **values: Any) -> None:
        """Add to the entry of this run what is neither empty nor 0."""
        self._entry = self._entry | {name: value for name, value in values.items() if value}

    def finish(self, progress: Progress) -> None:
        """Write what the run did."""
        if progress.trials:
            self._entry = self._entry | {
                "finished": now(),
                "trials": progress.trials,
                "trial_steps": progress.steps,
                "wall_seconds": round(time.monotonic() - progress.started, 2),
                "compile_seconds": round(progress.compile_seconds, 2),
                "trial_steps_per_second": round(progress.rate, 1),
            }
        self.write()

    def _write_in_background(self) -> None:
        with contextlib.suppress(StoreError):  # the end of the run tells of a full disk
            self.write()
