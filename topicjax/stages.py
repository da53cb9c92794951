"""Score how much earlier one progress curve rises than another: Theta, log lag and onsets (NumPy, SciPy).

A progress curve rises from about 0 to about 1 while a trial trains.  `monotone` turns it into F, which never
falls, lies in [0, 1] and is 0 at step 0.  Two such curves, linear between records, are compared by
    Theta    the maximum over steps of min(F_first, 1 - F_second); 1: one finishes before the other starts
    log lag  the integral of (F_first - F_second) d ln t; for two jumps ln(t_second / t_first)
    onset    the step at which a curve reaches a level, by default one half
Records need not be evenly spaced: a fit weighs each by the steps since the one before, and shares of a trial
are shares of its steps, so that the same curve has the same score whichever of its steps are recorded.

The records of all trials are concatenated in flat arrays, one value per record, and `Records` marks where
each trial begins and ends: trials may differ in their number of records.  The scores of a trial do not depend
on the other trials, down to the last bit, so a trial can be scored while it trains.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

Array = np.ndarray
HALF = 0.5  # level that defines an onset
TENTHS = 10
LEAST_FALL = 1e-3  # of a norm, relative to its start; a smaller fall is rounding


@dataclass(frozen=True)
class Records:
    """Index of the flat arrays: the steps of all records, and where each trial begins and ends."""

    step: Array  # per record, increasing within a trial
    start: Array  # per trial: index of its first record
    end: Array  # per trial: index of its last record
    owner: Array  # per record: index of its trial

    @classmethod
    def of(cls, step: Array) -> "Records":
        """Index records sorted by trial and step; each trial begins at step 0."""
        start = np.flatnonzero(step == 0)
        end = np.append(start[1:], len(step)) - 1
        return cls(step.astype(float), start, end, np.repeat(np.arange(len(start)), end - start + 1))

    @property
    def before(self) -> Array:
        """Index of the previous record of the same trial; the first record points to itself."""
        return np.maximum(np.arange(len(self.step)) - 1, self.spread(self.start))

    @property
    def gap(self) -> Array:
        """Steps since the previous record; the first record takes that of the second."""
        gap = self.step - self.step[self.before]
        is_alone = self.start == self.end
        gap[self.start] = np.where(is_alone, 1.0, gap[np.minimum(self.start + 1, len(gap) - 1)])
        return gap

    def spread(self, per_trial: Array) -> Array:
        """Repeat each trial's value for all its records."""
        return per_trial[self.owner]

    def up_to(self, last: Array) -> "tuple[Array, Records]":
        """Keep each trial's records up to `last`; return the mask and the Records of what is kept."""
        kept = np.arange(len(self.step)) <= self.spread(last)
        return kept, Records.of(self.step[kept])

    def first(self, mask: Array) -> Array:
        """Find each trial's first record in the mask; the total number of records if it has none."""
        return np.minimum.reduceat(np.where(mask, np.arange(len(mask)), len(mask)), self.start)

    def any(self, mask: Array) -> Array:
        """Check for each trial whether any of its records is in the mask."""
        return np.logical_or.reduceat(mask, self.start)

    def maximum(self, values: Array) -> Array:
        """Take the maximum of each trial."""
        return np.maximum.reduceat(values, self.start)

    def mean(self, values: Array, mask: Array) -> Array:
        """Average each trial over its records in the mask."""
        total = np.add.reduceat(np.where(mask, values, 0), self.start)
        return total / np.add.reduceat(mask.astype(float), self.start)

    def median(self, values: Array) -> Array:
        """Take the median of each trial, ignoring NaN; NaN if nothing is left."""
        ordered = values[np.lexsort((values, self.owner))]  # NaN sorts last within a trial
        count = np.add.reduceat((~np.isnan(values)).astype(int), self.start)
        middle = ordered[self.start + np.maximum(count - 1, 0) // 2] + ordered[self.start + count // 2]
        return np.where(count > 0, middle / 2, np.nan)

    def last(self, share: float) -> Array:
        """Mark the records in the last `share` of each trial's steps."""
        last_step = self.spread(self.step[self.end])
        return (self.step > (1 - share) * last_step) | (self.step == last_step)


def steady(records: Records, values: Array) -> Array:
    """Smooth by medians of three records, to remove single outliers.

    The first and last records are unchanged, and so is a monotone curve.
    """
    after = np.minimum(np.arange(len(values)) + 1, records.spread(records.end))
    before, after = values[records.before], values[after]
    return np.clip(values, np.minimum(before, after), np.maximum(before, after))


def steady_maximum(records: Records, values: Array) -> Array:
    """Take the maximum of each trial over medians of three records."""
    return records.maximum(steady(records, values))


def sure_maximum(records: Records, values: Array, errors: float) -> Array:
    """Bound each trial's maximum from below, against noise: the best mean of five records less its error.

    `errors` is the number of standard errors subtracted.  Means are over neighbouring records, three at the
    ends.  NaN counts as 0.
    """
    values, place = np.nan_to_num(values, posinf=0, neginf=0), np.arange(len(values))
    total, count = np.zeros(len(values)), np.zeros(len(values))
    for offset in range(-2, 3):  # no running sums: a huge value would blur later trials
        near = np.clip(place + offset, 0, len(values) - 1)
        is_own = records.owner[near] == records.owner
        is_own &= near == place + offset
        total += np.where(is_own, values[near], 0)
        count += is_own
    error = records.spread(record_noise(records, values)) / np.sqrt(count)
    return records.maximum(total / count - errors * error)


def record_noise(records: Records, values: Array) -> Array:
    """Estimate the standard deviation of each trial's records about their trend, from medians.

    The trend is the median difference of neighbouring records.
    """
    is_first = records.before == np.arange(len(values))
    change = np.where(is_first, np.nan, values - values[records.before])
    apart = np.abs(change - records.spread(records.median(change)))
    return 1.4826 / 2**0.5 * np.nan_to_num(records.median(apart), nan=0.0, posinf=np.inf)


def lowest_record(records: Records, loss: Array) -> Array:
    """Find the first record of each trial at which its finite loss is lowest."""
    finite = np.where(np.isfinite(loss), loss, np.inf)
    return records.first(finite == records.spread(np.minimum.reduceat(finite, records.start)))


def way_up(records: Records, loss: Array, first: Array, second: Array, finished: float) -> Array:
    """Find the last record that counts for each trial's score; later records must not change it.

    This is the first record at which the second progress reaches 1, if the first is at `finished` by then;
    otherwise the record with the lowest loss.
    """
    done = records.first(steady(records, second) >= 1)
    there = np.minimum(done, len(loss) - 1)
    is_done = (done < len(loss)) & (steady(records, first)[there] >= finished)
    return np.where(is_done, done, lowest_record(records, loss))


def rise(records: Records, values: Array, least: Array | float = 0.0) -> Array:
    """Divide the rise since step 0 by each trial's largest rise; 0 where that is not above `least`."""
    initial = values[records.start]
    height = steady_maximum(records, values) - initial
    height = np.where(height <= least, np.inf, height)
    return (values - records.spread(initial)) / records.spread(height)


def norm_rise(records: Records, norm: Array) -> Array:
    """Compute `rise`, or NaN where a norm only falls: that shows neither progress nor its absence."""
    falls = (steady_maximum(records, norm) <= norm[records.start]) & (
        norm[records.end] < (1 - LEAST_FALL) * norm[records.start]
    )
    return np.where(records.spread(falls), np.nan, rise(records, norm))


def growth(records: Records, norm: Array) -> Array:
    """Divide each trial's largest value by its first."""
    return records.maximum(norm) / norm[records.start]


def monotone(records: Records, progress: Array) -> Array:
    """Fit a non-decreasing curve to each trial's progress, clipped to [0, 1], and subtract its start.

    Records count by the steps that they stand for: equally if they are evenly spaced.
    Clipping comes before the fit: values below 0 count as 0, and a spike cannot pull its neighbours far.  A
    trial with any non-finite value is NaN throughout.
    """
    is_bad = records.any(~np.isfinite(progress))
    clipped, fit, gap = np.clip(progress, 0, 1), np.full(len(progress), np.nan), records.gap
    # One fit per trial: a joint fit, with each trial shifted above the one before, would lose digits.
    for start, end in zip(records.start[~is_bad], records.end[~is_bad] + 1, strict=True):
        weights = gap[start:end] / gap[start:end].max()
        own = isotonic_regression(clipped[start:end], weights=weights).x
        fit[start:end] = own - own[0]
    return np.clip(fit, 0, 1)


def share_of_rise(records: Records, values: Array) -> Array:
    """Fit each curve by a non-decreasing one, from 0 at its start to 1 at its end; NaN where it never rises.

    For curves without a natural unit.  Values are clipped to [0, the largest median of three records].  The
    unit is the end of the fit, so a curve that falls again late still counts as complete.
    """
    unit = steady_maximum(records, values)
    fit = monotone(records, values / records.spread(np.where(unit > 0, unit, np.inf)))
    height = fit[records.end]
    return fit / records.spread(np.where(height > 0, height, np.nan))


def theta(records: Records, first: Array, second: Array) -> Array:
    """Compute the maximum over steps of min(F_first, 1 - F_second), with curves linear between records.

    Both sides are monotone, so the maximum is where they cross, F_first + F_second = 1, or at the
    end if they never do.  At a crossing, swapping the two curves gives 1 minus this score.
    """
    total, before = first + second - 1, records.before
    right = np.flatnonzero((total >= 0) & (total[before] < 0))
    left = before[right]
    weight = total[left] / (total[left] - total[right])
    score = np.where(np.isnan(second[records.end]), np.nan, first[records.end])
    score[records.owner[right]] = first[left] + weight * (first[right] - first[left])
    return score


def boundary(records: Records, first: Array, second: Array) -> Array:
    """Find the step that attains Theta: where F_first + F_second reaches 1, or else where F_first ends."""
    reached = records.first(first >= records.spread(first[records.end]))
    step = np.where(reached < len(first), records.step[np.minimum(reached, len(first) - 1)], np.nan)
    total, before = first + second - 1, records.before
    right = np.flatnonzero((total >= 0) & (total[before] < 0))
    left = before[right]
    share = total[left] / (total[left] - total[right])
    step[records.owner[right]] = records.step[left] + share * (records.step[right] - records.step[left])
    return step


def log_lag(records: Records, first: Array, second: Array) -> Array:
    """Integrate (F_first - F_second) d ln t from the first record after step 0.

    For two jumps it is ln(t_second / t_first).  NaN with fewer than two records after step 0.
    """
    ahead, before = first - second, records.before
    log_step = np.log(np.where(records.step > 0, records.step, 1))
    counts = records.step[before] > 0
    area = (ahead + ahead[before]) / 2 * (log_step - log_step[before])
    total = np.add.reduceat(np.where(counts, area, 0), records.start)
    return np.where(records.any(counts), total, np.nan)


def onset(records: Records, curve: Array, level: float = HALF) -> Array:
    """Find the step where the curve first reaches the level, linear between records; NaN if never."""
    reached = records.first(curve >= level)
    right = np.minimum(reached, len(curve) - 1)
    left = records.before[right]
    height = curve[right] - curve[left]
    share = (level - curve[left]) / np.where(height > 0, height, 1)
    step = records.step[left] + share * (records.step[right] - records.step[left])
    return np.where(reached < len(curve), step, np.nan)


def value_at_onset(records: Records, first: Array, second: Array, level: float = HALF) -> Array:
    """Read the second curve where the first reaches the level, linear between records; NaN if never."""
    return value_at_step(records, second, onset(records, first, level))


def value_at_step(records: Records, curve: Array, step: Array) -> Array:
    """Read a curve at one step of each trial, linear between records; NaN where the step is NaN or later."""
    reached = records.first(records.step >= records.spread(step))
    right = np.minimum(reached, len(curve) - 1)
    left = records.before[right]
    share = (step - records.step[left]) / np.maximum(records.step[right] - records.step[left], 1)
    return np.where(reached < len(curve), curve[left] + share * (curve[right] - curve[left]), np.nan)


def recession(records: Records, progress: Array) -> Array:
    """Measure how far progress ends below its best, from means over tenths of a trial's steps."""
    unit = np.minimum.reduceat(records.gap, records.start)  # steps are counted in the smallest gap
    position = records.step / records.spread(unit)
    length = records.spread(records.step[records.end] / unit + 1)
    tenth = TENTHS * records.owner + (TENTHS * position / length).astype(int)
    size = TENTHS * len(records.start)
    count = np.bincount(tenth, minlength=size)
    total = np.bincount(tenth, np.clip(progress, 0, 1), size)
    mean = np.where(count > 0, total / np.maximum(count, 1), -1)
    return mean.reshape(-1, TENTHS).max(axis=1) - mean[tenth[records.end]]


def compare(records: Records, first: Array, second: Array, level: float = HALF) -> dict[str, Array]:
    """Score two curves from `monotone` or `share_of_rise`: Theta both ways, log lag, both onsets."""
    return dict(
        theta=theta(records, first, second),
        theta_reversed=theta(records, second, first),
        log_lag=log_lag(records, first, second),
        onset_first=onset(records, first, level),
        onset_second=onset(records, second, level),
    )
