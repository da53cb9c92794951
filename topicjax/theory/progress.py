"""Progress of values and attention, in units of what each stage can gain, and the thresholds of the classes.

L is the loss, L_u that of the same weights with attention forced uniform, L(0) the loss at step 0; L1* and
L2* are the limit lines of stages 1 and 2.
P = (L(0) - L_u) / (L(0) - L1*)   progress of V
Q = (L_u - L) / (L1* - L2*)       gain of attention
R = (L(0) - L) / (L(0) - L1*)     total progress
Lines and losses must come from the same documents: the held-out ones, where their lines are known.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
MOST_APART = 2.0  # a held-out gap that differs by a larger factor from the gap over all documents is chance


@dataclass(frozen=True)
class Cuts:
    """All thresholds of classes, suffixes and flags; Theta and log lag themselves use none."""

    collapsed: float = 0.05  # the loss ends above L(0) by more than this share of L(0) - L1*
    no_learning: float = 0.1  # max R below: no-learning
    finished: float = 0.8  # max R below: unfinished; max P below: compensated
    attention: float = 0.1  # max Q (beyond its noise) and a_topic below: V-only; also of a_self
    stage2: float = 0.5  # max Q below: stage 2 did not happen
    two_stage: float = 0.9  # Theta of two-stage, Theta reversed of reversed
    simultaneous: float = 0.7  # both below
    topical: float = 0.5  # a_topic on the way up
    lost: float = 0.5  # a trial that ends with less than this share of its best R has lost it
    noise: float = 3.0  # standard errors by which Q must be above the threshold to count as moved
    onset: float = 0.5  # of F_V or F_A
    last: float = 0.1  # last share of the steps: an onset there is censored
    at_start: float = 0.05  # |Q| at step 0 above: attention was not uniform
    recedes: float = 0.1  # progress ends this far below its best, so the isotonic fit lies between
    line_errors: float = 2.0  # L1* - L2* within this many standard errors counts as no gap
    least_gain: float = 0.02  # of L(0) - L1*: smallest unit of Q where L1* - L2* is not a gap
    v_block: float = 0.1  # of Theorem 2's block: a smaller v_block or v_diag counts as none


CUTS = Cuts()


class Units(NamedTuple):
    """The loss differences that P, Q and R are measured in."""

    drop: Array  # L(0) - L1*; NaN where that is not positive
    gain: Array  # L1* - L2*; NaN where the lines have no gap


class LossSplit(NamedTuple):
    """P, Q and R."""

    value: Array
    attention: Array
    total: Array


def units(initial: Any, lines: Mapping[str, Any], line_errors: float = CUTS.line_errors) -> Units:
    """Compute the units of progress from L(0) and the limit lines under their names in manifest.json.

    The lines over all documents and their errors decide whether there is a gap between L1* and L2*; the
    held-out lines give its size.  Lines that are absent, None or NaN are unknown: the line over all documents
    then replaces the held-out one.  The gap over all documents also replaces a held-out gap of very different
    size, since a small held-out set gives a poor estimate.
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


def progress(loss: Any, uniform: Any, initial: Any, drop: Any, gain: Any) -> LossSplit:
    """Compute P, Q and R from the losses L and L_u, L(0) and the units."""
    return LossSplit((initial - uniform) / drop, (uniform - loss) / gain, (initial - loss) / drop)


def number(value: Any) -> Array:
    """Convert to double precision; None becomes NaN."""
    return np.asarray(np.nan if value is None else value, float)
