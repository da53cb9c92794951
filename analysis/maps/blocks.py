"""Where the cells of a panel are drawn: the shapes that each fills, marks and words inside."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from ..pictures import SMALL

SQUARE = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * 0.47
SEAM = 0.3  # points: neighbouring rectangles overlap by so much, else a light line shows between them


@dataclass(frozen=True)
class Blocks:
    """Where cells are drawn."""

    centres: np.ndarray  # per cell: x and y
    sides: np.ndarray  # per cell: of the largest square around its centre, in places
    outlines: np.ndarray  # per shape: its corners
    whose: np.ndarray  # per shape: its cell
    place: float  # inches of a place
    is_seamless: bool = False  # neighbours touch

    def is_large(self, inches: float) -> np.ndarray:
        """Return for each cell whether its square has this side."""
        return self.sides * self.place >= inches

    def fill(self, ax: Axes, mask: np.ndarray, colours: Any, **options: Any) -> None:
        """Fill the cells of the mask: one colour, or one for each of them; hatched if `hatch` says so."""
        chosen = mask[self.whose]
        rank = np.cumsum(mask) - 1
        own = colours if isinstance(colours, str) else np.asarray(colours)[rank[self.whose[chosen]]]
        shapes = list(self.outlines[chosen])
        look: dict[str, Any] = dict(lw=0) | options
        if self.is_seamless:
            ax.add_collection(PolyCollection(shapes, facecolors=own, edgecolors=own, lw=SEAM))
        if not self.is_seamless or options.get("hatch"):
            ground = "none" if self.is_seamless else own
            ax.add_collection(PolyCollection(shapes, facecolors=ground, **look))

    def inset(
        self, ax: Axes, mask: np.ndarray, shape: np.ndarray, colours: Any, lw: float = 0, **options: Any
    ) -> None:
        """Add the same polygon inside each cell of the mask, as large as its square."""
        shapes = self.centres[mask][:, None] + self.sides[mask][:, None, None] * shape
        ax.add_collection(PolyCollection(list(shapes), facecolors=colours, lw=lw, **options))

    def write(self, ax: Axes, mask: np.ndarray, texts: list[str], colours: np.ndarray) -> None:
        """Write into the cells of the mask, black or white, whichever is easier to read."""
        for (x, y), text, colour in zip(self.centres[mask], texts, colours, strict=True):
            ink = "black" if colour @ (0.3, 0.59, 0.11) > 0.5 else "white"
            size = SMALL if self.place < 0.36 or self.is_seamless else SMALL + 1
            ax.text(x, y, text, color=ink, fontsize=size, ha="center", va="center_baseline")
