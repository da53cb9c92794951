"""Limit lines of a sweep's documents, computed in the background while it trains."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from topicjax.experiments.one_layer import lda
from topicjax.theory.documents import DataModel
from topicjax.theory.limits import limit_lines
from topicjax.trial import DATA_SETTINGS, Objective, Trial, settings_of, traced

POLL_SECONDS = 0.1
Entry = dict[str, Any]  # of the manifest: settings, objective, and the lines with their standard errors


class Wanted(NamedTuple):
    """A data setting and objective whose lines are not known yet, with a trial that has it."""

    settings: dict[str, Any]
    objective: Objective
    trial: Trial


class Background:
    """Computes limit lines in a thread of low priority.

    Beside training they cost little; beside compiling, which uses every core, they double its time: the
    thread waits for `begin`.
    """

    def __init__(self, wanted: Sequence[Wanted], begin: threading.Event, on_end: Callable[[], None]) -> None:
        """Start the thread; `on_end` is called in it once all lines are there, unless it was stopped."""
        self.entries: list[Entry] = []
        self._wanted, self._begin, self._on_end = wanted, begin, on_end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._compute, daemon=True)
        if wanted:
            self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether lines are still being computed."""
        return self._thread.is_alive()

    @property
    def left(self) -> int:
        """How many lines are still to be computed."""
        return len(self._wanted) - len(self.entries)

    def wait(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until all lines are there, or the user asks to stop."""
        self._begin.set()
        while self.is_busy and not is_stopping():
            self._thread.join(POLL_SECONDS)

    def stop(self) -> None:
        """Give up the lines that are not there yet, without waiting for the one under way."""
        self._stopped.set()
        self._begin.set()

    def _compute(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # training comes first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        self._begin.wait()
        for wanted in self._wanted:
            if self._stopped.is_set():
                return
            entry: Entry = {"settings": wanted.settings, "objective": wanted.objective}
            try:
                entry |= limit_lines(data_model(wanted.trial), wanted.objective)
            except (ValueError, MemoryError) as error:  # theory has no lines for these documents
                entry["error"] = str(error) or "out of memory"
            self.entries = [*self.entries, entry]
        if not self._stopped.is_set():
            self._on_end()


def wanted_lines(trials: Iterable[Trial], known: Sequence[Entry]) -> list[Wanted]:
    """Return each data setting and objective of the trials whose lines are not known yet, once."""
    found: dict[str, Wanted] = {}
    seen: set[tuple] = set()
    have = [(entry["settings"], entry["objective"]) for entry in known]
    for trial in trials:
        is_drawn = trial.spec.word_distribution == "dirichlet"  # then the seed decides on the words
        stream = trial.stream if is_drawn else trial.stream._replace(seed=0)
        quick = (trial.spec, stream, trial.hypers.objective)
        if quick in seen:
            continue
        seen.add(quick)
        every, objective = settings_of(trial), trial.hypers.objective
        data = {name: every[name] for name in (*DATA_SETTINGS, *(["seed"] if is_drawn else []))}
        if (data, objective) not in have:
            found.setdefault(f"{sorted(data.items())}{objective}", Wanted(data, objective, trial))
    return list(found.values())


def data_model(trial: Trial) -> DataModel:
    """Return the trial's documents as theory takes them."""
    is_plain = trial.spec.word_distribution == "uniform" and trial.stream.overlap == 0
    words = None
    if not is_plain:
        words = np.asarray(lda.topic_words(trial.spec, traced(trial.stream)), np.float64)
        words /= words.sum(axis=1, keepdims=True)
    return DataModel.of(settings_of(trial), words)
