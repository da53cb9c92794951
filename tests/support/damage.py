"""Damage files on purpose, at every position or at a sample of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SOME_OR_ALL = pytest.mark.parametrize("share", [0.04, pytest.param(1.0, marks=pytest.mark.slow)])


def some(cases: Sequence[Any], share: float) -> list[Any]:
    """Sample a share of the cases with a fixed seed, at least ten, in their order."""
    count = max(round(share * len(cases)), min(10, len(cases)))
    chosen = np.random.default_rng(0).choice(len(cases), count, replace=False)
    return [cases[place] for place in sorted(chosen)]


def flip(path: Path, place: int, bit: int) -> None:
    """Flip one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))
