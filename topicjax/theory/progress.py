"""Progress through the two stages, in units of what each stage can gain; NumPy alone.

L is the loss, L_u that of the same weights with attention forced uniform, L(0) the loss at step 0; L1* and
L2* are the limit lines of stages 1 and 2.
P = (L(0) - L_u) / (L(0) - L1*)   progress of V
Q = (L_u - L) / (L1* - L2*)       gain of attention
R = (L(0) - L) / (L(0) - L1*)     progress in all
The lines must be of the documents that the losses are of: the held-out ones, where their lines are known.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray

COLLAPSED = 0.05  # the loss ends above L(0) by more than this share of L(0) - L1*
NO_LEARNING = 0.1  # max R below: no-learning
FINISHED = 0.8  # max R below: unfinished; max P below: compensated
ATTENTION = 0.1  # max Q and a_topic below: attention has not moved
STAGE2 = 0.5  # max Q below: stage 2 did not happen
TOPICAL = 0.5  # a_topic from here on: attention is topical
TWO_STAGE = 0.9  # Theta from here on: one stage after the other
LINE_ERRORS = 2.0  # L1* - L2* within this many standard errors is no gap
MOST_APART = 2.0  # times the gap over all documents: a held-out gap beyond is chance


class Units(NamedTuple):
    """What one is, in losses, of P and R, and of Q."""

    drop: Array  # L(0) - L1*; NaN where that is not positive
    gain: Array  # L1* - L2*; NaN where there is no gap between the lines


class Progress(NamedTuple):
    """P, Q and R."""

    value: Array
    attention: Array
    total: Array


def units(initial: Any, lines: Mapping[str, Any], line_errors: float = LINE_ERRORS) -> Units:
    """Return the units of progress, given L(0) and limit lines under their names in manifest.json.

    Whether there is a gap between L1* and L2* is asked of the lines over all documents and their errors; how
    large it is on the held-out documents, of the lines on these.  Lines that are absent, None or NaN are
    unknown: the line over all documents then stands for that on the held-out ones, and their gap also where
    that on the held-out documents is of another size: there are too few of them to tell.
    """
    stage1, stage2, held_out1, held_out2 = (
        number(lines.get(name)) for name in ("stage1", "stage2", "held_out_stage1", "held_out_stage2")
    )
    errors = (np.nan_to_num(number(lines.get(name))) for name in ("stage1_se", "stage2_se"))
    drop = initial - np.where(np.isfinite(held_out1), held_out1, stage1)
    gap, held_out_gap = stage1 - stage2, held_out1 - held_out2
    is_alike = (held_out_gap > gap / MOST_APART) & (held_out_gap < MOST_APART * gap)
    gain = np.where(is_alike, held_out_gap, gap)
    has_gap = gap > line_errors * np.hypot(*errors)
    return Units(np.where(drop > 0, drop, np.nan), np.where(has_gap, gain, np.nan))


def progress(loss: Any, uniform: Any, initial: Any, drop: Any, gain: Any) -> Progress:
    """Return P, Q and R of losses L and L_u, given L(0) and the units."""
    return Progress((initial - uniform) / drop, (uniform - loss) / gain, (initial - loss) / drop)


def number(value: Any) -> Array:
    """Return numbers in double precision; None is NaN."""
    return np.asarray(np.nan if value is None else value, float)
