"""Which does a transformer learn first, syntax or topics?

Command:  topicjax run syntax
Size:     228 trials, 2 programs, about 7 minutes on 2 cores
Expect:   (written before the run, after one seed at four points and from an independent program on other
          seeds) topics first where topics help most and the bias is slow (alpha 0.1 or less, bias gain 1 to
          2), syntax first at bias gain 8, syntax only at alpha 1 (topics are not half way in 3,000 steps).
          So the order reverses with alpha and with bias gain, and neither the language nor the model decides
          it alone.  At alpha 0.1 and bias gain 2 it does not reverse with start, learning rate, sharpness or
          the length of documents, but moves between topics first and together.  Topics: V first near zero
          with SGD; not from the usual start with Adam.  Syntax: V is never first, since uniform attention
          says nothing about the class of a word.  Syntax comes suddenly, one neighbour at a time.
Seen:     topics at alpha 0.03 and bias gain 1 are half way in a quarter of the steps of syntax, at 0.3 and 8
          they take ten times as long: the ratio grows with both, and with alpha 1 topics are never half way.
          At the base it is 0.7 to 1.4, so "together" as often as "topics first".  Start, rate and sharpness
          reverse nothing.  Topics are V first in 35 of 36 trials of SGD from near zero (also in half of
          those from the usual start), and in none of Adam.  V is never first for syntax, as expected.  Not as
          expected: both neighbours are learned together.  Seeds 3 to 5 give the same borders.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "syntax"
CLAIMS = (
    *("Syntax first", "Topics first", "Order and language", "Order and model", "Order and training"),
    *("V before scores, topics", "V before scores, syntax", "In parallel", "Unigram first"),
    *("V before attention, topics", "V before attention, syntax"),
    *("Sudden syntax", "Syntax in steps", "One neighbour", "Level by level"),
)
BASE = dict(steps=3000, record_every=10, records_per_decade=60, alpha=0.1, bias_gain=2.0, sharpness=0.9)
SGD, ADAM = product(optimizer="sgd", learning_rate=1.0), product(optimizer="adam", learning_rate=3e-3)
NEAR_ZERO, USUAL = product(init="normal", init_scale=1e-3), product(init="default", init_scale=1.0)
GRID = (
    product(alpha=(0.03, 0.1, 0.3, 1.0), bias_gain=(1.0, 2.0, 4.0, 8.0))
    * chain(SGD, ADAM)
    * chain(NEAR_ZERO, USUAL)
)
# One thing changed at a time at the base, from the usual start.
CHANGED = chain(
    chain(SGD, ADAM) * product(sharpness=(0.5, 0.7, 0.99)),
    chain(SGD, ADAM) * product(length_min=32, length_max=32),
    product(optimizer="sgd", learning_rate=(0.3, 3.0)),
    product(optimizer="adam", learning_rate=(1e-3, 1e-2)),
)
SWEEP = product(seed=range(3)) * chain(GRID, USUAL * CHANGED)
