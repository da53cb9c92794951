"""Reference losses of a sweep's trials, computed in the background, once for equal data."""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from topicjax.errors import UserError, shown
from topicjax.experiments.contract import Experiment, References
from topicjax.trial import Trial

POLL_SECONDS = 0.1
Entry = dict[str, Any]  # of the manifest: settings, and values or an error
ReferencesOf = Mapping[str, References]  # by trial


class Pending(NamedTuple):
    """Reference losses to compute: the settings they depend on, and a trial that has these settings."""

    settings: dict[str, Any]
    trial: Trial


def pending_references(
    experiment: Experiment, trials: Iterable[Trial], known: Sequence[Entry]
) -> list[Pending]:
    """List what is not known yet, once per distinct settings; similar settings are adjacent."""
    if experiment.references is None:
        return []
    have = {key_of(entry["settings"]) for entry in known}
    found: dict[tuple, Pending] = {}
    for trial in trials:
        settings = experiment.reference_key(trial)
        key = key_of(settings)
        if key not in have and key not in found:
            found[key] = Pending(settings, trial)
    return sorted(found.values(), key=lambda each: repr(list(each.settings.values())))


def key_of(settings: Mapping[str, Any]) -> tuple:
    """Turn settings into a hashable key."""
    return tuple(sorted(settings.items()))


class Known:
    """The reference losses of trials, as far as they are known."""

    def __init__(self, experiment: Experiment, entries: Sequence[Entry]) -> None:
        """Index the entries of a manifest."""
        self._experiment = experiment
        self._entries = {key_of(entry["settings"]): entry for entry in entries}

    def of(self, trial: Trial) -> References | None:
        """Look up the reference losses of a trial; empty if it has none, None if they are not known yet."""
        if self._experiment.references is None:
            return {}
        entry = self._entries.get(key_of(self._experiment.reference_key(trial)))
        return None if entry is None else entry.get("values", {})


def compute(experiment: Experiment, pending: Pending) -> Entry:
    """Compute the manifest's entry for some reference losses; an exception becomes its error message."""
    assert experiment.references is not None
    try:
        values = experiment.references(pending.trial)
        return {"settings": pending.settings, "values": checked(experiment, values)}
    except Exception as error:  # theory may not cover these data, or a user's function failed
        said = str(error) or ("out of memory" if isinstance(error, MemoryError) else type(error).__name__)
        return {"settings": pending.settings, "error": said}


def checked(experiment: Experiment, values: Any) -> dict[str, float | None]:
    """Convert reference losses to numbers by name, or raise a UserError that says what is allowed."""
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise UserError(
            f"references of {experiment.name} returns {shown(values)}; allowed: a dict of numbers by name"
        )
    found = {}
    for name, value in values.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise UserError(
                f"references of {experiment.name} has {name} = {shown(value)}; allowed: a number"
            ) from None
        found[name] = number if math.isfinite(number) else None
    return found


class Background:
    """Computes reference losses in a thread of low priority.

    During training they cost little.  During compilation, which uses every core, they would double its time,
    so the thread waits for `begin`.
    """

    def __init__(
        self,
        experiment: Experiment,
        wanted: Sequence[Pending],
        begin: threading.Event,
        on_end: Callable[[], None],
    ) -> None:
        """Start the thread; it calls `on_end` when all are computed, unless it was stopped."""
        self.entries: list[Entry] = []
        self._experiment, self._wanted, self._begin, self._on_end = experiment, wanted, begin, on_end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._compute, daemon=True)
        if wanted:
            self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether some are still being computed."""
        return self._thread.is_alive()

    @property
    def left(self) -> int:
        """How many are left to compute."""
        return len(self._wanted) - len(self.entries)

    def begin(self) -> None:
        """Start computing now: a chunk waits for the result."""
        self._begin.set()

    def wait(self, is_stopping: Callable[[], bool], is_enough: Callable[[], bool] = lambda: False) -> None:
        """Wait until all are computed, or enough of them, or the user asks to stop."""
        self.begin()
        while self.is_busy and not is_stopping() and not is_enough():
            self._thread.join(POLL_SECONDS)

    def stop(self) -> None:
        """Give up the remaining ones, without waiting for the one in progress."""
        self._stopped.set()
        self._begin.set()

    def _compute(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # training has priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        self._begin.wait()
        with threadpool_limits(1):  # NumPy's own threads would spin while waiting for work
            for pending in self._wanted:
                if self._stopped.is_set():
                    return
                self.entries = [*self.entries, compute(self._experiment, pending)]
        if not self._stopped.is_set():
            self._on_end()
