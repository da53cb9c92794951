"""Records of trials made small for a page: which are kept, and numbers of any size in two bytes each.

A number is coded by its sign and the logarithm of its size, on a scale from the smallest to the largest size
of its series (one column of one trial), so 1e-8 and 1 keep the same relative precision: half a step of
ln(largest / smallest) / LEVELS, 3e-4 for eight decades, at most 3e-3 for all of float32.
"""

import base64

import numpy as np

Array = np.ndarray
LEVELS = 32766  # from code 1 to code 32767
NEGATIVE = 0x8000  # added to the code of a negative number; alone it stands for what is not finite
SHARE_OF_MARKS = 12  # one in so many records lies at each mark


def kept_records(step: Array, marks: Array, most: int) -> Array:
    """Return the places of at most so many of a trial's records.

    These are the first and the last, others spread evenly and evenly in the logarithm, and those around
    each mark, a step at which something happens; up to three marks, NaN is none.
    """
    last = len(step) - 1
    if last < most:
        return np.arange(last + 1)
    around = max(1, most // SHARE_OF_MARKS)
    spread = most - around * len(marks)
    evenly = np.linspace(0, last, spread - spread // 2)
    places = np.concatenate([evenly, np.geomspace(1, last, spread // 2)]).round().astype(int)
    after = np.searchsorted(step, marks[np.isfinite(marks)])
    near = after[:, None] + np.arange(around) - around // 2
    return np.unique(np.clip(np.concatenate([places, near.ravel()]), 0, last))


def code_series(values: Array, start: Array) -> tuple[Array, Array, Array]:
    """Return the codes of series that lie end to end, and the logarithms of each one's extreme sizes.

    Codes are uint16: 0 is zero, 1 to 32767 a size, NEGATIVE alone is not finite.
    """
    size = np.abs(values.astype(float))
    is_sized = np.isfinite(size) & (size > 0)
    log_size = np.log(np.where(is_sized, size, 1))
    low = np.minimum.reduceat(np.where(is_sized, log_size, np.inf), start)
    high = np.maximum.reduceat(np.where(is_sized, log_size, -np.inf), start)
    low, high = (np.where(np.isfinite(end), end, 0).astype("<f4") for end in (low, high))
    counts = np.diff(np.append(start, len(values)))
    width = np.repeat(np.where(high > low, high - low, 1).astype(float), counts)
    level = (log_size - np.repeat(low.astype(float), counts)) / width * LEVELS
    codes = 1 + np.clip(level.round(), 0, LEVELS).astype(np.uint16)
    codes = np.where(is_sized, codes + np.where(values < 0, NEGATIVE, 0), 0)
    return np.where(np.isfinite(values), codes, NEGATIVE).astype("<u2"), low, high


def in_text(values: Array, kind: str) -> str:
    """Return numbers as text: their bytes, in the given little-endian type, in base 64."""
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode()
