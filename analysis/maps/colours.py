"""Colours as readers see them: simulate the three common colour deficiencies, and compare classes.

The simulation is that of Machado, Oliveira and Fernandes (2009) at full severity, applied to linear RGB;
distances are Euclidean in CIELAB (white point D65).  10 is a clear difference between areas side by side.
"""

import functools
from collections.abc import Mapping
from itertools import combinations

import numpy as np
from matplotlib.colors import to_rgb

from ..page.contract import Look

Array = np.ndarray
VISIONS = {  # linear RGB seen by a reader: rows are red, green, blue
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
APART = 10.0  # distance in CIELAB that classes keep in every shade and for every reader
STRENGTHS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of the weakest shade of a class
SHADES = 6  # of each class that are compared


def seen(colours: Array, vision: str) -> Array:
    """Convert sRGB colours (0 to 1, last axis) to CIELAB as a reader with this vision sees them."""
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    share = np.clip(linear @ VISIONS[vision].T, 0, 1) @ TO_XYZ.T / TO_XYZ.sum(axis=1)
    x, y, z = np.moveaxis(np.where(share > (6 / 29) ** 3, np.cbrt(share), share * 841 / 108 + 4 / 29), -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def shaded(colours: Array, strength: Array | float) -> Array:
    """Mix colours with white; a strength of 1 leaves them as they are."""
    return 1 - np.asarray(strength)[..., None] * (1 - colours)


def least_distance(first: Look, second: Look, weakest: float = 1.0) -> float:
    """Compute the smallest distance of two classes over their shades and all visions; hatches tell apart."""
    if first.hatch != second.hatch:
        return np.inf
    strengths = np.linspace(weakest, 1, SHADES)
    shades = [shaded(np.array(to_rgb(look.colour)), strengths) for look in (first, second)]
    return min(
        float(np.linalg.norm(one[:, None] - other[None], axis=-1).min())
        for one, other in ([seen(shade, vision) for shade in shades] for vision in VISIONS)
    )


def weakest_shade(looks: Mapping[str, Look]) -> float:
    """Choose how far shading may go: no two classes may come to look alike."""
    return strength_of(tuple(looks.values()))


@functools.cache
def strength_of(looks: tuple[Look, ...]) -> float:
    """Find the first of STRENGTHS at which all classes stay apart; 1, no shading, if there is none."""
    pairs = [pair for pair in combinations(looks, 2) if pair[0].hatch == pair[1].hatch == ""]
    whole = (s for s in STRENGTHS if all(least_distance(*pair, s) >= APART for pair in pairs))
    return next(whole, 1.0)
