"""The pace of records: which steps of a trial have one.

Records are due at multiples of `record_every`: at all of them, or, with `records_per_decade` N above 0, at
those nearest to record_every * 10^(j / N), j = 0, 1, ..., so that every tenfold of the steps has N.  The last
step of a trial has a record in any case.  What is due does not depend on where a trial ends: a longer
training of a trial has the records of a shorter one, except that of its last step if it was not due.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

PER_DECADE = "records_per_decade"  # the setting of a Spec, if it has one
Array = np.ndarray


def per_decade(spec: Any) -> int:
    """Return how many records a tenfold of the steps has; 0: they are evenly spaced."""
    return getattr(spec, PER_DECADE, 0)


def due_steps(spec: Any, end: int) -> Array:
    """List the steps before `end` at which the trials of a Spec have a record."""
    return spec.record_every * due_windows(per_decade(spec), -(-end // spec.record_every))


def steps_of(spec: Any, stopped: Array, end: int) -> Array:
    """List the steps before `end` at which some of several trials have a record, given where they stopped.

    A trial that is still training has -1 there.
    """
    return np.union1d(due_steps(spec, end), stopped[(stopped >= 0) & (stopped < end)])


def record_count(record_every: int, per_decade: int, stopped: int) -> int:
    """Count the records of a trial that stopped at this step, its last one included."""
    windows = stopped // record_every
    return (len(due_windows(per_decade, windows)) if per_decade else windows) + 1  # windows may be many


def record_number(step: Array, record_every: Array, per_decade: Array) -> Array:
    """Count the records of its trial before each of these, given the settings of their trials."""
    window = np.asarray(step) // record_every
    number = window.copy()
    for rate in np.unique(per_decade[per_decade > 0]):
        own = per_decade == rate
        number[own] = np.searchsorted(due_windows(int(rate), int(window[own].max())), window[own])
    return number


class Gap(NamedTuple):
    """Steps from one record to the next: `least`, or `growth` times the step if that is more."""

    least: float
    growth: float = 0.0

    @classmethod
    def of(cls, record_every: float, per_decade: float, records: float = 1.0) -> "Gap":
        """Return the gap over this number of records."""
        return cls(record_every * records, 10 ** (records / per_decade) - 1 if per_decade else 0.0)

    def at(self, step: Any) -> Any:
        """Return the gap after a step."""
        return np.fmax(self.least, self.growth * np.asarray(step))


@functools.lru_cache(maxsize=1024)
def due_windows(per_decade: int, end: int) -> Array:
    """List the windows before `end`, counted from 0 in units of `record_every`, that begin with a record."""
    if not per_decade:
        due = np.arange(end)
    else:
        decades = np.log10(max(end, 1))
        powers = 10.0 ** (np.arange(int(per_decade * decades) + 2) / per_decade)
        due = np.unique(np.append(0, np.rint(powers).astype(int)))
        due = due[due < end]
    due.setflags(write=False)
    return due
