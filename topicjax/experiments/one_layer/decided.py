"""Decide during training whether a trial's class can still change, from its records so far.

The classes are those of the loss view: P is the progress of V, Q the gain by attention, R total progress, all
relative to the limit lines (theory.progress), with the same scores as after training (topicjax.stages).  A
saddle looks flat while W^K and W^Q grow exponentially, so a plateau of the loss decides nothing: before
attention has moved, a trial ends only if no part of its attention grows fast enough to matter by its last
step.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from topicjax.experiments.contract import References
from topicjax.experiments.one_layer.records import HEALTHY
from topicjax.experiments.one_layer.settings import Spec
from topicjax.stages import Array, Records, lowest_record, monotone, steady, steady_maximum, theta
from topicjax.theory.progress import CUTS, progress, units
from topicjax.trial import Trial

DIVERGED, LOST, COMPLETE, TOO_SLOW = "diverged", "collapsed", "stage 2 complete", "attention too slow"
THETA_CUTS = (1 - CUTS.two_stage, 1 - CUTS.simultaneous, CUTS.simultaneous, CUTS.two_stage)
NEAR = 0.02  # a Theta this close to a cut may still cross it
AFTER_GAIN = 1.25  # times the steps until attention had gained all that topics can give
AFTER_STAGE2 = 1.5  # times the steps until both stages had happened
LEAST_RECORDS = 30  # needed to measure growth ...
LEAST_GROWTH = 10  # ... and in the last third of the steps: three at either end are averaged
LEAST_COLLAPSED = 20  # records needed to call a collapse
VALUE_DONE = 0.9  # P above which the growth of attention hardly depends on V
SAFETY = 2.0  # factor on the measured growth rate
SCORES = ("a_topic", "a_self", "a_mask", "a_key")  # order parameters of attention whose growth is checked
Columns = Mapping[str, Any]  # the records of a trial so far


def decided(trial: Trial, columns: Columns, references: References) -> str:
    """State why the class of a trial can no longer change; empty if it still can."""
    if not all(np.isfinite(columns[name]).all() for name in HEALTHY):
        return DIVERGED
    loss, uniform = (np.asarray(columns[name], float) for name in ("eval_loss", "eval_loss_uniform"))
    drop, gain = units(loss[0], references)
    if not trains_both(trial.spec) or np.isnan(drop + gain):
        return ""
    P, Q, R = progress(loss, uniform, loss[0], drop, gain)
    records = Records.of(np.asarray(columns["step"]))
    if is_collapsed(records, R):
        return LOST
    if is_complete(records, loss, P, Q, np.asarray(columns["a_topic"], float)):
        return COMPLETE
    left, every = trial.spec.steps - records.step[-1], trial.spec.record_every
    return TOO_SLOW if is_too_slow(records, every, left, P, Q, columns) else ""


def trains_both(spec: Spec) -> bool:
    """Check whether V and attention are both trained: other trials are classed by construction."""
    return spec.attention == "trained" and "trained" in (spec.value, spec.embedding)


def is_collapsed(records: Records, R: Array) -> bool:
    """Check whether a trial never finished and was worse than its start in the last half of its steps."""
    if len(R) < LEAST_COLLAPSED or steady_maximum(records, R)[0] >= CUTS.finished:
        return False
    return bool((R[records.step >= records.step[-1] / 2] < -CUTS.collapsed).all())


def is_complete(records: Records, loss: Array, P: Array, Q: Array, a_topic: Array) -> bool:
    """Check whether both stages happened long enough ago and their order is clear."""
    p, q, step = steady(records, P), steady(records, Q), records.step
    gained = np.argmax(q >= 1)
    if q[gained] >= 1 and p[gained] >= CUTS.finished and step[-1] >= AFTER_GAIN * step[gained]:
        return True
    both = (p >= CUTS.finished) & (q >= CUTS.stage2)
    if not both.any() or step[-1] < AFTER_STAGE2 * step[np.argmax(both)]:
        return False
    kept, up = records.up_to(lowest_record(records, loss))
    F_V, F_A = monotone(up, P[kept]), monotone(up, Q[kept])
    score = theta(up, F_V, F_A)[0]
    has_crossed = F_V[-1] + F_A[-1] >= 1  # until then Theta still grows
    if not has_crossed or any(abs(score - cut) <= NEAR for cut in THETA_CUTS):
        return False
    return bool(score < CUTS.two_stage or steady(records, a_topic)[kept].max() >= CUTS.topical)


def is_too_slow(records: Records, every: int, left: float, P: Array, Q: Array, columns: Columns) -> bool:
    """Check whether V is done and attention, growing twice as fast as now, stays too small to the end.

    Growth is measured over the last third of the steps, `every` apart if all have records: earlier attention
    grows more slowly, since V is not done.  A score that hardly changes does not grow, even if it was large
    from the start.
    """
    step = records.step
    if len(step) < LEAST_RECORDS or left <= 0:
        return False
    if steady(records, P)[-1] < VALUE_DONE or steady_maximum(records, Q)[0] >= CUTS.attention:
        return False
    begin = np.searchsorted(step, 2 * (step[-1] // every + 1) // 3 * every)
    if len(step) - begin < LEAST_GROWTH:
        return False
    early = slice(begin, begin + 3)
    time = step[-2] - step[early][1]
    for name in SCORES:
        size = np.abs(np.asarray(columns[name], float)) + 1e-12
        now = size[-3:].mean()
        exponent = SAFETY * max(np.log(now / size[early].mean()), 0) / time * left
        if exponent > 2 * CUTS.attention and now * np.exp(min(exponent, 50)) > CUTS.attention:
            return False
    return True
