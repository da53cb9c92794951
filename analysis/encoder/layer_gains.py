"""What the values and the attention of a layer add at most: in which units, and beyond which noise."""

from typing import NamedTuple

import numpy as np

from topicjax.store.reader import Run
from topicjax.theory.progress import units

from ..frames import column
from ..one_layer.curves import Array, Records, lowest_record, steady_maximum, sure_maximum
from ..one_layer.cuts import Cuts
from ..one_layer.trained_models import Frame
from ..topic_model import HELD_OUT_LINES, LINES, limit_lines


class Scales(NamedTuple):
    """What losses of each curve are measured by."""

    drop: Array  # L(0) - L1*; NaN without a stage-1 line below L(0)
    gain: Array  # L1* - L2*, or a least share of what the model gained in all where there are no lines
    has_gap: Array  # whether the gain is that of the lines


def scales(records: Records, curves: Frame, trials: Frame, run: Run, cuts: Cuts) -> Scales:
    """Return the units of each curve's losses: those of its documents' limit lines where they are known."""
    found = limit_lines(trials, run.manifest)
    names = {**{name: f"line_{name}" for name in LINES}, **{name: name for name in HELD_OUT_LINES}}
    names |= {f"{name}_se": f"line_{name}_se" for name in LINES}
    initial = column(curves, "on")[records.start]
    unit = units(initial, {name: found[place] for name, place in names.items()})
    best = initial - column(curves, "on")[lowest_record(records, column(curves, "on"))]
    has_gap = np.isfinite(unit.gain)
    return Scales(unit.drop, np.where(has_gap, unit.gain, cuts.least_gain * best), has_gap)


def maxima(records: Records, curves: Frame, scale: Scales, cuts: Cuts) -> dict[str, Array]:
    """Return the largest of what was gained, in nats, on the way up, and as far as it is no noise.

    sure_* is what the noise of records among their neighbours cannot explain, beyond_* what the held-out
    documents cannot.  max_total is the share of L(0) - L1* that the model gained; without that line it is 1
    if the gain is beyond its error and 0 if not.
    """
    loss = column(curves, "on")
    gained = records.spread(loss[records.start]) - loss
    error = cuts.line_errors * np.nan_to_num(column(curves, "eval_loss_se"))
    shares = steady_maximum(records, gained / records.spread(scale.drop))
    total = np.where(np.isfinite(scale.drop), shares, steady_maximum(records, gained - error) > 0)
    kept, up = records.up_to(lowest_record(records, loss))
    own = curves.loc[kept]
    P, Q = column(own, "P"), column(own, "Q")
    columns = dict(max_total=total, max_p=steady_maximum(up, P), max_q=steady_maximum(up, Q))
    columns["max_q_all"] = steady_maximum(up, column(own, "Q_all"))
    error_P, error_Q = (np.nan_to_num(column(own, name)) for name in ("value_se", "gain_se"))
    either = error_P + error_Q  # at least the error of the sum, whatever their correlation
    for name, gain, error in (("p", P, error_P), ("q", Q, error_Q), ("added", P + Q, either)):
        columns[f"sure_{name}"] = sure_maximum(up, gain, cuts.noise)
        columns[f"beyond_{name}"] = steady_maximum(up, gain - cuts.line_errors * error)
    columns["topic_shift_max"] = steady_maximum(up, np.abs(topic_shift(records, curves)[kept]))
    return columns


def topic_shift(records: Records, curves: Frame) -> Array:
    """Return by how much ln(attention to the same topic / to other topics) differs from step 0.

    Uniform attention has a ratio other than 1: documents of different lengths differ in their topics.
    """
    ratio = np.log(column(curves, "attn_same_topic") / column(curves, "attn_diff_topic"))
    return ratio - records.spread(ratio[records.start])
