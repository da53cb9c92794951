"""The panels of maps: a square per cell with its class, its Theta or the views that disagree on it."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from ..maps.blocks import SQUARE
from ..maps.grids import LEAST_TO_WRITE, Grid, Look
from ..topic_model import CLASS_COLOURS, CLASS_HATCHES
from .stages import CLASSES, VIEWS

ATTENDS = (
    *("two-stage", "two-stage, non-topical", "V leads", "simultaneous", "attention leads", "reversed"),
    *("compensated", "attention-only"),
)
CORNER = np.array([(0.25, 1), (1, 1), (1, 0.25)]) * 0.47  # turned down: some trials diverged
LOWER, UPPER = SQUARE[[0, 1, 3]], SQUARE[[1, 2, 3]]
AGREE = "0.92"
NO_VALUE: Look = dict(hatch="////", edgecolors="0.7")
OTHERS = {"norm": "norms", "order": "order parameters"}


def phase_panel(cells: pd.DataFrame, ax: Axes, view: str = "loss", grid: Grid | None = None) -> Axes:
    """Draw a square per cell: class as colour, Theta as shade, hollow if not topical, a corner if mixed."""
    grid, end = grid or Grid.of(cells), VIEWS[view]
    blocks = grid.prepare(cells, ax)
    colours, classes = shades(cells, view), cells["class" + end].to_numpy()
    for name in np.unique(classes):
        mine, hatch = classes == name, CLASS_HATCHES.get(name)
        blocks.fill(ax, mine, colours[mine], hatch=hatch, edgecolors=hatch_ink(name))
    hollow, is_large = is_not_topical(cells, view), blocks.is_large(LEAST_TO_WRITE)
    blocks.inset(ax, hollow & is_large, SQUARE * 0.68, "white")
    blocks.inset(ax, hollow & ~is_large, SQUARE * 0.5, "white")
    mixed, failed = is_mixed(cells, view)
    ink = np.where(classes == "diverged", "0.8", "black")
    line: Look = dict(edgecolors="white", lw=0.5 * is_large.any())
    blocks.inset(ax, mixed, CORNER, ink[mixed], **line)
    blocks.inset(ax, failed, CORNER * (1, -1), ink[failed], **line)
    theta = cells["theta" + end].to_numpy(float)
    is_written = np.isfinite(theta) & ~np.isin(classes, list(CLASS_HATCHES)) & is_large
    ground = np.where(hollow[:, None], 1.0, colours)
    texts = [f"{value:.2f}".lstrip("0") for value in theta[is_written]]
    blocks.write(ax, is_written, texts, ground[is_written])
    return ax


def hatch_ink(name: str) -> str:
    """Return the grey of a class's hatching: lighter on dark colours."""
    return {"diverged": "0.6", "collapsed": "0.75"}.get(name, "0.45")


def shades(cells: pd.DataFrame, view: str) -> np.ndarray:
    """Return the colour of each cell's class, half as strong where Theta is 0; no shade without Theta."""
    classes, theta = cells["class" + VIEWS[view]], cells["theta" + VIEWS[view]].to_numpy(float)
    theta = np.where(classes.isin(list(CLASS_HATCHES)) | np.isnan(theta), 1.0, np.clip(theta, 0, 1))
    colours = np.array([to_rgb(CLASS_COLOURS[name]) for name in classes]).reshape(-1, 3)
    return 1 - (0.5 + 0.5 * theta[:, None]) * (1 - colours)


def is_not_topical(cells: pd.DataFrame, view: str) -> np.ndarray:
    """Return True where attention moved, yet in most trials that did not diverge never to the topics."""
    moved = cells["class" + VIEWS[view]].isin(ATTENDS)
    return (moved & (2 * cells["topical"] < cells["trials"] - cells["diverged"])).to_numpy()


def is_mixed(cells: pd.DataFrame, view: str) -> tuple[np.ndarray, np.ndarray]:
    """Return where trials of a cell disagree, and where some diverged though most did not."""
    classes, mixed = cells["class" + VIEWS[view]], cells["agreement" + VIEWS[view]] < 1
    failed = mixed & (cells["diverged"] > 0) & (classes != "diverged")
    return mixed.to_numpy(), failed.to_numpy()


def heat_panel(
    cells: pd.DataFrame, ax: Axes, column: str, scale: ScalarMappable, grid: Grid | None = None
) -> Axes:
    """Draw a square per cell, its colour the value of the column; hatched where there is none."""
    grid = grid or Grid.of(cells)
    blocks, values = grid.prepare(cells, ax), cells[column].to_numpy(float)
    known = np.isfinite(values)
    blocks.fill(ax, ~known, "white", **NO_VALUE)
    colours = np.asarray(scale.to_rgba(values))[:, :3]
    blocks.fill(ax, known, colours[known])
    written = known & blocks.is_large(LEAST_TO_WRITE)
    digits = 2 if column.startswith("theta") else 1
    blocks.write(ax, written, [f"{value:.{digits}f}" for value in values[written]], colours[written])
    return ax


def disagreement_panel(cells: pd.DataFrame, ax: Axes, grid: Grid | None = None) -> Axes:
    """Draw the class by loss (lower left) and by norms (upper right) where they differ."""
    grid = grid or Grid.of(cells)
    blocks, differs = grid.prepare(cells, ax), (cells["class"] != cells["class_norm"]).to_numpy()
    blocks.fill(ax, ~differs, AGREE)
    if blocks.is_seamless and differs.any():  # under the halves: the region outside its square
        blocks.fill(ax, differs, [to_rgb(CLASS_COLOURS[kind]) for kind in cells["class"][differs]])
    for name, half in (("class", LOWER), ("class_norm", UPPER)):
        colours = [CLASS_COLOURS[kind] for kind in cells[name][differs]]
        blocks.inset(ax, differs, half, colours, edgecolors="0.8", lw=0.4)
    return ax


def cross_panel(scores: pd.DataFrame, ax: Axes, view: str) -> Axes:
    """Draw how many trials have each class in the loss view (rows) and in another view (columns)."""
    other = scores["class" + VIEWS[view]]
    found = [set(kinds.unique()) for kinds in (scores["class"], other)]
    used = [[name for name in CLASSES if name in kinds] for kinds in found]
    counts = pd.crosstab(scores["class"], other).reindex(index=used[0], columns=used[1]).to_numpy()
    ax.imshow(np.log1p(counts), cmap="Greys", vmin=0, vmax=1.6 * np.log1p(counts.max()), aspect="auto")
    for row, column in zip(*np.nonzero(counts), strict=True):
        ax.text(column, row, str(counts[row, column]), ha="center", va="center_baseline", fontsize=7)
    for name in (name for name in used[0] if name in used[1]):
        corner = used[1].index(name) - 0.5, used[0].index(name) - 0.5
        ax.add_patch(Rectangle(corner, 1, 1, fc="none", ec="#D55E00", lw=1.2, clip_on=False))
    share = (scores["class"] == other).mean()
    ax.set(xlabel=f"class by the {OTHERS[view]}", ylabel="class by the loss")
    ax.set_title(f"{share:.0%} of the trials agree")
    ax.set_xticks(range(len(used[1])), used[1], rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(used[0])), used[0])
    ax.tick_params(length=0)
    return ax
