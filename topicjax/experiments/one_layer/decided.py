"""When can the class of a trial no longer change?  Asked while it trains, of its records so far.

The classes are those of analysis/scoring in the loss view: P is the progress of V, Q the gain by attention,
R their sum, all against the limit lines.  A saddle looks flat while W^K and W^Q grow exponentially, so a
plateau of the loss decides nothing: before attention has moved, a trial ends only if nothing in its attention
grows fast enough to matter before its last step.
"""

import numpy as np
from scipy.optimize import isotonic_regression

from topicjax.experiments.contract import Records, References
from topicjax.experiments.one_layer.records import HEALTHY
from topicjax.experiments.one_layer.settings import Spec
from topicjax.theory.progress import (
    ATTENTION,
    COLLAPSED,
    FINISHED,
    STAGE2,
    TOPICAL,
    TWO_STAGE,
    progress,
    units,
)
from topicjax.trial import Trial

Array = np.ndarray
DIVERGED, LOST, COMPLETE, TOO_SLOW = "diverged", "collapsed", "stage 2 complete", "attention too slow"
THETA_CUTS, NEAR = (1 - TWO_STAGE, 0.3, 0.7, TWO_STAGE), 0.02  # a Theta so near to a cut may still pass it
AFTER_GAIN = 1.25  # times the steps it took until attention had gained all that topics can give
AFTER_STAGE2 = 1.5  # times the steps it took until both stages had happened
LEAST_RECORDS = 30  # before a growth can be measured, and 20 before a collapse is believed
VALUE_DONE = 0.9  # P from which on the growth of attention hardly depends on V
SAFETY = 2.0  # times the measured growth rate
SCORES = ("a_topic", "a_self", "a_mask", "a_key")  # what grows in attention


def decided(trial: Trial, records: Records, references: References) -> str:
    """Return why the class of a trial can no longer change; empty if it still can."""
    if not all(np.isfinite(records[name]).all() for name in HEALTHY):
        return DIVERGED
    loss, uniform = (np.asarray(records[name], float) for name in ("eval_loss", "eval_loss_uniform"))
    drop, gain = units(loss[0], references)
    if not trains_both(trial.spec) or np.isnan(drop + gain):
        return ""
    P, Q, R = progress(loss, uniform, loss[0], drop, gain)
    step = trial.spec.record_every * np.arange(len(loss))
    if is_collapsed(step, R):
        return LOST
    if is_complete(step, loss, P, Q, np.asarray(records["a_topic"], float)):
        return COMPLETE
    left = trial.spec.steps - step[-1]
    return TOO_SLOW if is_too_slow(step, left, P, Q, records) else ""


def trains_both(spec: Spec) -> bool:
    """Return whether V and attention are both trained: other trials are classed by construction."""
    return spec.attention == "trained" and "trained" in (spec.value, spec.embedding)


def is_collapsed(step: Array, R: Array) -> bool:
    """Return whether a trial never finished and has been worse than its start for half of its steps."""
    late = step >= step[-1] / 2
    return len(R) >= 20 and steady(R).max() < FINISHED and bool((R[late] < -COLLAPSED).all())


def is_complete(step: Array, loss: Array, P: Array, Q: Array, a_topic: Array) -> bool:
    """Return whether both stages have happened, long enough ago, and their order is beyond doubt."""
    p, q, end = steady(P), steady(Q), step[-1]
    gained = np.argmax(q >= 1)
    if q[gained] >= 1 and p[gained] >= FINISHED and end >= AFTER_GAIN * step[gained]:
        return True
    both = (p >= FINISHED) & (q >= STAGE2)
    if not both.any() or end < AFTER_STAGE2 * step[np.argmax(both)]:
        return False
    up = slice(np.argmin(loss) + 1)
    theta = crossing(monotone(P[up]), monotone(Q[up]))
    is_clear = all(abs(theta - cut) > NEAR for cut in THETA_CUTS)
    return is_clear and (theta < TWO_STAGE or steady(a_topic)[up].max() >= TOPICAL)


def is_too_slow(step: Array, left: int, P: Array, Q: Array, records: Records) -> bool:
    """Return whether V is done and attention, growing twice as fast as now, stays too small to the end.

    Growth is measured over the last third of the records.  A score that hardly changes is no growth, however
    large it was from the start.
    """
    if len(step) < LEAST_RECORDS or left <= 0 or steady(P)[-1] < VALUE_DONE or steady(Q).max() >= ATTENTION:
        return False
    early = slice(2 * len(step) // 3, 2 * len(step) // 3 + 3)
    time = step[-2] - step[early][1]
    for name in SCORES:
        size = np.abs(np.asarray(records[name], float)) + 1e-12
        now = size[-3:].mean()
        growth = SAFETY * max(np.log(now / size[early].mean()), 0) / time * left
        if growth > 2 * ATTENTION and now * np.exp(min(growth, 50)) > ATTENTION:
            return False
    return True


def steady(values: Array) -> Array:
    """Return medians of three records; the first and the last as they are."""
    before, after = np.append(values[:1], values[:-1]), np.append(values[1:], values[-1:])
    return np.clip(values, np.minimum(before, after), np.maximum(before, after))


def monotone(progress: Array) -> Array:
    """Return the isotonic fit of progress, clipped to [0, 1], less its start."""
    fit = isotonic_regression(np.clip(progress, 0, 1)).x
    return np.clip(fit - fit[0], 0, 1)


def crossing(first: Array, second: Array) -> float:
    """Return Theta, the first curve where both add up to 1; NaN, clear of no cut, if they never do."""
    total = first + second - 1
    right = int(np.argmax(total >= 0))
    if total[right] < 0 or right == 0:
        return float("nan")
    weight = total[right - 1] / (total[right - 1] - total[right])
    return float(first[right - 1] + weight * (first[right] - first[right - 1]))
