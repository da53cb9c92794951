"""The thresholds that classes, suffixes and flags rest on."""

from dataclasses import dataclass

from topicjax.theory.progress import (
    ATTENTION,
    COLLAPSED,
    FINISHED,
    LINE_ERRORS,
    NO_LEARNING,
    STAGE2,
    TOPICAL,
    TWO_STAGE,
)


@dataclass(frozen=True)
class Cuts:
    """Every threshold of classes, suffixes and flags; Theta and log lag have none inside."""

    collapsed: float = COLLAPSED  # the loss ends above L(0) by more than this share of L(0) - L1*
    no_learning: float = NO_LEARNING  # max R below: no-learning
    finished: float = FINISHED  # max R below: unfinished; max P below: compensated
    attention: float = ATTENTION  # max Q beyond its noise and a_topic below: V-only; also of a_self
    stage2: float = STAGE2  # max Q below: stage 2 did not happen
    two_stage: float = TWO_STAGE  # Theta of two-stage, Theta reversed of reversed
    simultaneous: float = 0.7  # both below
    topical: float = TOPICAL  # a_topic on the way up
    lost: float = 0.5  # a trial that ends with less than this share of its best R has lost it
    noise: float = 3.0  # Q counts as moved if it is above by so many standard errors
    onset: float = 0.5  # of F_V or F_A
    last: float = 0.1  # share of the steps that is the end of a trial: an onset there is censored
    at_start: float = 0.05  # |Q| at step 0 above: attention was not uniform
    recedes: float = 0.1  # progress ends this far below its best: the isotonic fit lies between
    line_errors: float = LINE_ERRORS  # L1* - L2* within this many standard errors is no gap
    least_gain: float = 0.02  # of L(0) - L1*: least unit of Q where L1* - L2* is no gap
    v_block: float = 0.1  # of Theorem 2's block: smaller v_block and v_diag are none
