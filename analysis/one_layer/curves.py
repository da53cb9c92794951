"""Progress of V and of attention by the loss, and what progress adds up to: Theta, log lag, onsets.

All trials lie end to end in flat arrays, one value per record, so trials may differ in their number
of records and nothing loops over trials.  F_V and F_A are monotone, in [0, 1] and 0 at step 0.
The loss split is that of topicjax.theory.progress: P, Q and R, with L = eval_loss, L_u = eval_loss_uniform.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from topicjax.theory.progress import progress, units

from ..frames import column
from ..topic_model import STAGE_LINES
from .cuts import Cuts
from .trained_parts import trains_value

Array = np.ndarray
TENTHS = 10


@dataclass(frozen=True)
class Records:
    """Where each trial lies in the flat arrays, and the steps of its records."""

    step: Array  # per record, increasing within a trial
    start: Array  # per trial: its first record
    end: Array  # per trial: its last record
    owner: Array  # per record: its trial

    @classmethod
    def of(cls, step: Array) -> "Records":
        """Return the layout of records sorted by trial and step, each trial beginning at step 0."""
        start = np.flatnonzero(step == 0)
        end = np.append(start[1:], len(step)) - 1
        return cls(step.astype(float), start, end, np.repeat(np.arange(len(start)), end - start + 1))

    @property
    def before(self) -> Array:
        """The record before each one in its trial; the first has itself."""
        return np.maximum(np.arange(len(self.step)) - 1, self.spread(self.start))

    def spread(self, per_trial: Array) -> Array:
        """Return a value per trial at each of its records."""
        return per_trial[self.owner]

    def up_to(self, last: Array) -> "tuple[Array, Records]":
        """Return which records lie up to the given record of each trial, and the layout of those alone."""
        kept = np.arange(len(self.step)) <= self.spread(last)
        return kept, Records.of(self.step[kept])

    def mean(self, values: Array, mask: Array) -> Array:
        """Return the mean of each trial over the records in the mask."""
        total = np.add.reduceat(np.where(mask, values, 0), self.start)
        return total / np.add.reduceat(mask.astype(float), self.start)

    def last(self, share: float) -> Array:
        """Return the mask of the records in the last share of each trial's steps."""
        last_step = self.spread(self.step[self.end])
        return (self.step > (1 - share) * last_step) | (self.step == last_step)


def steady(records: Records, values: Array) -> Array:
    """Return medians of three records: an outlier is no value.

    The first and the last record count as they are, so a monotone curve stays as it is.
    """
    after = np.minimum(np.arange(len(values)) + 1, records.spread(records.end))
    before, after = values[records.before], values[after]
    return np.clip(values, np.minimum(before, after), np.maximum(before, after))


def steady_maximum(records: Records, values: Array) -> Array:
    """Return the maximum of each trial over medians of three records."""
    return np.maximum.reduceat(steady(records, values), records.start)


def sure_maximum(records: Records, values: Array, errors: float) -> Array:
    """Return the maximum of each trial that its noise cannot explain: a mean of five records less its error.

    Means are over neighbouring records, three at the ends.  The noise of a record is estimated from the
    differences of neighbours, whose median is the trend.  NaN counts 0.
    """
    values, place = np.nan_to_num(values, posinf=0, neginf=0), np.arange(len(values))
    total, count = np.zeros(len(values)), np.zeros(len(values))
    for offset in range(-2, 3):  # no running sums: a huge value must not blur the trials after it
        near = np.clip(place + offset, 0, len(values) - 1)
        is_own = records.owner[near] == records.owner
        is_own &= near == place + offset
        total += np.where(is_own, values[near], 0)
        count += is_own
    error = records.spread(record_noise(records, values)) / np.sqrt(count)
    return np.maximum.reduceat(total / count - errors * error, records.start)


def record_noise(records: Records, values: Array) -> Array:
    """Return the standard deviation of each trial's records about their trend, by medians."""
    is_first = records.before == np.arange(len(values))
    change = pd.Series(np.where(is_first, np.nan, values - values[records.before]))
    apart = (change - change.groupby(records.owner).transform("median")).abs()
    return 1.4826 / 2**0.5 * apart.groupby(records.owner).median().fillna(0).to_numpy()


def way_up(records: Records, loss: Array, value: Array, attention: Array, cuts: Cuts) -> Array:
    """Return the record up to which each trial is scored: what comes later must not change its score.

    It is the first at which attention has gained all that topics can give, Q = 1, if V is finished by then;
    else that of the lowest loss.
    """
    place, none = np.arange(len(loss)), len(loss)
    gained = np.minimum.reduceat(np.where(steady(records, attention) >= 1, place, none), records.start)
    is_done = (gained < none) & (steady(records, value)[np.minimum(gained, none - 1)] >= cuts.finished)
    return np.where(is_done, gained, lowest_record(records, loss))


def lowest_record(records: Records, loss: Array) -> Array:
    """Return the first record of each trial at which its loss is lowest; what is not finite is none."""
    place, finite = np.arange(len(loss)), np.where(np.isfinite(loss), loss, np.inf)
    is_lowest = finite == records.spread(np.minimum.reduceat(finite, records.start))
    return np.minimum.reduceat(np.where(is_lowest, place, len(loss)), records.start)


def monotone(records: Records, progress: Array) -> Array:
    """Return the isotonic fit of each trial's progress clipped to [0, 1], less its start.

    Clipped before the fit: below 0 counts 0, and a spike cannot pull its neighbours far.  One fit
    serves all trials: lifted by 2 each, values of different trials never have to be pooled.
    A trial with a non-finite value has NaN throughout.
    """
    is_bad = records.spread(np.logical_or.reduceat(~np.isfinite(progress), records.start))
    lift = 2.0 * records.owner
    fit = isotonic_regression(np.clip(np.where(is_bad, 0, progress), 0, 1) + lift).x - lift
    fit = np.clip(fit - records.spread(fit[records.start]), 0, 1)
    return np.where(is_bad, np.nan, fit)


def theta(records: Records, first: Array, second: Array) -> Array:
    """Return max over t of min(F_first, 1 - F_second), the curves being linear between records.

    Both sides are monotone, so the maximum is where they cross, F_first + F_second = 1, or at the
    end if they never do.  At a crossing the score with the roles swapped is 1 minus this one.
    """
    total, before = first + second - 1, records.before
    right = np.flatnonzero((total >= 0) & (total[before] < 0))
    left = before[right]
    weight = total[left] / (total[left] - total[right])
    score = np.where(np.isnan(second[records.end]), np.nan, first[records.end])
    score[records.owner[right]] = first[left] + weight * (first[right] - first[left])
    return score


def log_lag(records: Records, first: Array, second: Array) -> Array:
    """Return the integral of (F_first - F_second) d ln t from the first record after step 0.

    For two jumps it is ln(t_second / t_first).  NaN with fewer than two records after step 0.
    """
    ahead, before = first - second, records.before
    log_step = np.log(np.where(records.step > 0, records.step, 1))
    counts = records.step[before] > 0
    area = (ahead + ahead[before]) / 2 * (log_step - log_step[before])
    total = np.add.reduceat(np.where(counts, area, 0), records.start)
    return np.where(np.logical_or.reduceat(counts, records.start), total, np.nan)


def onset(records: Records, curve: Array, level: float) -> Array:
    """Return the step where the curve first reaches the level, linear between records, or NaN."""
    above = np.where(curve >= level, np.arange(len(curve)), len(curve))
    reached = np.minimum.reduceat(above, records.start)
    right = np.minimum(reached, len(curve) - 1)
    left = records.before[right]
    share = (level - curve[left]) / np.where(right > left, curve[right] - curve[left], 1)
    step = records.step[left] + share * (records.step[right] - records.step[left])
    return np.where(reached < len(curve), step, np.nan)


def recession(records: Records, progress: Array) -> Array:
    """Return how far progress ends below its best, by means over tenths of a trial's records."""
    position = np.arange(len(progress)) - records.spread(records.start)
    length = records.spread(records.end - records.start + 1)
    tenth = TENTHS * records.owner + TENTHS * position // length
    size = TENTHS * len(records.start)
    count = np.bincount(tenth, minlength=size)
    total = np.bincount(tenth, np.clip(progress, 0, 1), size)
    mean = np.where(count > 0, total / np.maximum(count, 1), -1)
    return mean.reshape(-1, TENTHS).max(axis=1) - mean[tenth[records.end]]


@dataclass(frozen=True)
class LossSplit:
    """The loss view, and what all views share."""

    value: Array  # P, per record; NaN without a stage-1 line below L(0)
    attention: Array  # Q, per record
    last: Array  # per trial: the record up to which it is scored
    columns: dict[str, Array]  # per trial: its end and its best
    flags: dict[str, Array]  # per trial


def loss_split(records: Records, frame: pd.DataFrame, trials: pd.DataFrame, cuts: Cuts) -> LossSplit:
    """Return P, Q, the maximum of R, its value at the end, and by how much the loss ends above L(0).

    Without a gap between L1* and L2* the unit of Q is the gain that the trial attains, at least
    cuts.least_gain of L(0) - L1*, and the trial has the flag gain_attained.
    """
    loss, uniform = column(frame, "eval_loss"), column(frame, "eval_loss_uniform")
    initial = loss[records.start]
    lines = {name: column(trials, place) for name, place in STAGE_LINES.items() if place in trials}
    drop, gap = units(initial, lines, cuts.line_errors)
    has_gap = np.isfinite(gap)
    attained = np.fmax(steady_maximum(records, uniform - loss), cuts.least_gain * drop)
    gain = np.where(has_gap, gap, attained)
    gain = np.where(gain > 0, gain, np.inf)  # attained nothing: Q is 0
    P, Q, R = progress(loss, uniform, *map(records.spread, (initial, drop, gain)))
    is_bad = np.logical_or.reduceat(~np.isfinite(loss + uniform), records.start)
    is_bad |= (trials["status"] == "diverged").to_numpy()
    unit = np.where(trains_value(trials), drop, np.fmax(drop, gain))  # W^V frozen: L(0) may be L1*
    at_end = records.last(cuts.last)
    excess = (records.mean(loss, at_end) - initial) / unit
    best = steady_maximum(records, R)
    columns = dict(excess=excess, max_total=best, end_total=records.mean(R, at_end))
    columns |= dict(sure_attention=sure_maximum(records, Q, cuts.noise))
    return LossSplit(
        value=P,
        attention=Q,
        last=way_up(records, loss, P, Q, cuts),
        columns={name: np.where(is_bad, np.nan, values) for name, values in columns.items()}
        | dict(is_finite=~is_bad),
        flags=dict(
            no_stage1_drop=np.isnan(drop),
            gain_attained=~has_gap,
            attention_at_start=np.abs(Q[records.start]) > cuts.at_start,
        ),
    )


def theorem2_block(trials: pd.DataFrame) -> Array:
    """Return W_same - W_diff = c3 / v of Theorem 2: the natural unit of v_block."""
    a = 1 - (1 - column(trials, "p_keep")) * column(trials, "p_mask")
    return 1 / (a * column(trials, "words_per_topic"))
