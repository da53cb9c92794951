"""Progress of V and of attention by the order parameters and by the norms: each against its own maximum."""

import numpy as np
import pandas as pd

from ..frames import column
from .curves import Array, Records, steady_maximum, theorem2_block
from .cuts import Cuts

Progress = tuple[Array, Array]  # of V and of attention, one value per record
LEAST_FALL = 1e-3  # of a norm: less is rounding


def order_progress(records: Records, frame: pd.DataFrame, trials: pd.DataFrame, cuts: Cuts) -> Progress:
    """Return the rise of v_block and of a_topic; a rise too small to mean anything is none."""
    value = rise(records, column(frame, "v_block"), cuts.v_block * theorem2_block(trials))
    return value, rise(records, column(frame, "a_topic"), cuts.attention)


def norm_progress(records: Records, frame: pd.DataFrame, trials: pd.DataFrame) -> Progress:
    """Return the rise of |W^V|, or |W^E| if only that is trained, and of (|W^K| + |W^Q|) / 2."""
    value = column(frame, "norm_v")
    if "norm_e" in frame:
        is_frozen = (trials["value"] != "trained") & (trials["embedding"] == "trained")
        value = np.where(records.spread(is_frozen.to_numpy()), column(frame, "norm_e"), value)
    attention = (column(frame, "norm_k") + column(frame, "norm_q")) / 2
    return norm_rise(records, value), norm_rise(records, attention)


def norm_rise(records: Records, norm: Array) -> Array:
    """Return the rise of a norm; NaN where it only falls: that is no progress and no lack of it."""
    falls = (steady_maximum(records, norm) <= norm[records.start]) & (
        norm[records.end] < (1 - LEAST_FALL) * norm[records.start]
    )
    return np.where(records.spread(falls), np.nan, rise(records, norm, 0.0))


def rise(records: Records, values: Array, least: Array | float) -> Array:
    """Return (x(t) - x(0)) / (max - x(0)); 0 where max - x(0) is not above `least`."""
    initial = values[records.start]
    height = steady_maximum(records, values) - initial
    height = np.where(height <= least, np.inf, height)
    return (values - records.spread(initial)) / records.spread(height)
