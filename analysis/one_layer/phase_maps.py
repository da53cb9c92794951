"""Phase maps over two settings: class, Theta and log lag of every cell, and where the views disagree."""

import functools
from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from topicjax.errors import UserError, counted
from topicjax.settings import SEEDS
from topicjax.store.reader import Run
from topicjax.theory.progress import CUTS

from ..maps.drawing import (
    ACROSS,
    SQUARE,
    cell_marks,
    class_figure,
    draw,
    empty_legend,
    height,
    prepare,
    value_figure,
)
from ..maps.layouts import Grid, Layout, Refinement, arrange
from ..page.contract import Chart, Look, View
from ..pictures import WIDTH, Picture, label, sentences, style
from ..topic_model import CLASS_COLOURS, CLASS_HATCHES, MAIN_SETTINGS, settings_in
from .cells import score_cells
from .scores import CLASSES, VIEWS, class_counts, trains_both

ATTENDS = (
    *("two-stage", "two-stage, non-topical", "V leads", "simultaneous", "attention leads", "reversed"),
    *("compensated", "attention-only"),
)
VIEW_WORDS = {
    "loss": "the loss split (progress of V and gain by attention against the limit lines)",
    "order": "the order parameters (value blocks and topical attention scores)",
    "norm": "the norms of W^V and of W^K and W^Q",
}
OTHERS = {"norm": "norms", "order": "order parameters"}
LOWER, UPPER = SQUARE[[0, 1, 3]], SQUARE[[1, 2, 3]]
AGREE = "0.92"
HALVES = "lower left: class by the loss; upper right: class by the norms"
MEANINGS = {
    "theta": "Θ (1: V is done before attention begins, 0: attention is done before V begins)",
    "log_lag": "Log lag (logarithm of the ratio of the steps at which attention and V rise; 0: together)",
}


def is_not_topical(cells: pd.DataFrame, view: str) -> np.ndarray:
    """Mask the cells where attention moved, but in most trials that did not diverge is not topical."""
    moved = cells["class" + VIEWS[view]].isin(ATTENDS)
    return (moved & (2 * cells["topical"] < cells["trials"] - cells["diverged"])).to_numpy()


LOOKS = {name: Look(colour, CLASS_HATCHES.get(name, "")) for name, colour in CLASS_COLOURS.items()}
MAP_VIEWS = {
    name: View(
        name,
        suffix,
        VIEW_WORDS[name],
        score="theta",
        hollow=functools.partial(is_not_topical, view=name),
        hollow_words="attention not topical",
    )
    for name, suffix in VIEWS.items()
}
CHARTS = (
    Chart(
        "Loss",
        {"eval_loss": "held-out loss", "eval_loss_uniform": "same, attention forced uniform"},
        references=True,
    ),
    Chart(
        "Order parameters",
        {
            "v_block": "V: same - other topic",
            "a_topic": "attention: same - other topic",
            "v_diag": "V: own word - same topic",
            "a_self": "attention: own word - same topic",
        },
        scale="log",
    ),
    Chart("Norms", {"norm_v": "‖W^V‖", "norm_k": "‖W^K‖", "norm_q": "‖W^Q‖", "norm_e": "‖W^E‖"}),
)


def of_both_parts(cells: pd.DataFrame) -> pd.DataFrame:
    """Select the cells or trials that train both V and attention; all if there are none."""
    if not {"value", "embedding", "attention"} <= {*cells}:
        return cells
    found = cells.loc[trains_both(cells)]
    return found if len(found) else cells


def map_layout(
    run: Run, scores: pd.DataFrame, view: str, x: str | None, y: str | None, panel: Sequence[str]
) -> tuple[Layout, str]:
    """Lay out a map of the trials that train both parts; return the layout and sentences on what it shows."""
    if view not in VIEWS:
        raise UserError(f"unknown view {view!r}; allowed: {', '.join(VIEWS)}")
    settings, trials = settings_in(scores), of_both_parts(scores)
    main = [name for name in panel or MAIN_SETTINGS if panel or name in settings]
    layout = arrange(trials, settings, score_cells, Refinement.of(run.manifest), x, y, main)
    names = [name for name in settings if name not in SEEDS]
    frozen = len(scores.drop_duplicates(names)) - len(trials.drop_duplicates(names))
    words = f"Not drawn: {counted(frozen, 'cell')} that train only one part."
    return layout, sentences({layout.summary: True, words: frozen})


def phase_map(
    run: Run,
    scores: pd.DataFrame,
    view: str = "loss",
    x: str | None = None,
    y: str | None = None,
    panel: Sequence[str] = (),
) -> Picture:
    """Draw the map of classes with Theta as shade; the caption says how many panels are not drawn."""
    layout, summary = map_layout(run, scores, view, x, y, panel)
    figure = class_figure(layout, MAP_VIEWS[view], LOOKS)
    counts = layout.cells["class" + VIEWS[view]].value_counts()
    mixed, _, hollow = cell_marks(layout.cells, MAP_VIEWS[view]).sum(axis=0)
    parts = {
        f"Class of each cell by {VIEW_WORDS[view]}: the most frequent one among its trials, which differ "
        "in the seed. Numbers and shades: Θ, the median over the trials (1: V is done before attention "
        "begins).": True,
        summary: True,
        f"Corner: trials disagree in {counted(mixed, 'cell')}.": mixed,
        f"Hollow: in {counted(hollow, 'cell')} attention moved but in most trials is not topical.": hollow,
        f"Unfinished: the loss came less than {CUTS.finished:.0%} of the way to the stage-1 line.": (
            "unfinished" in counts
        ),
    }
    found = ", ".join(f"{counts[name]} {name}" for name in CLASS_COLOURS if name in counts)
    alt = f"{layout.alt}. Cells by class: {found}."
    return Picture(figure, f"Classes in the {view} view", sentences(parts), alt)


def value_map(
    name: str,
    run: Run,
    scores: pd.DataFrame,
    view: str = "loss",
    x: str | None = None,
    y: str | None = None,
    panel: Sequence[str] = (),
) -> Picture:
    """Draw a map of theta or log_lag with its colour bar."""
    layout, summary = map_layout(run, scores, view, x, y, panel)
    values = layout.cells[name + VIEWS[view]].to_numpy(float)
    finite = values[np.isfinite(values)]
    hatched = len(values) - len(finite)
    largest = max(np.abs(finite).max(initial=0), 1e-3)
    limits = (0.0, 1.0) if name == "theta" else (-largest, largest)
    scale = ScalarMappable(Normalize(*limits), colormaps["cividis" if name == "theta" else "PuOr"])
    form = ".2f" if name == "theta" else "z.1f"  # z: never -0.0
    figure = value_figure(layout, name + VIEWS[view], scale, label(name), form)
    span = f"{finite.min():.2f} to {finite.max():.2f}" if len(finite) else "none"
    parts = {
        f"{MEANINGS[name]}, median over the trials of a cell that have it, by {VIEW_WORDS[view]}; values: "
        f"{span}.": True,
        summary: True,
        f"Hatched: {counted(hatched, 'cell')} without a value, where stage 2 did not happen, a part is "
        "frozen, or there is no limit line.": hatched,
    }
    title = f"{label(name)} in the {view} view"
    alt = f"{layout.alt}. {label(name)}: {span}."
    return Picture(figure, title[0].upper() + title[1:], sentences(parts), alt)


norm_phase_map = functools.partial(phase_map, view="norm")
theta_map = functools.partial(value_map, "theta")  # 1 where V is done before attention begins
log_lag_map = functools.partial(value_map, "log_lag")  # positive where V is ahead of attention


def view_disagreement(
    run: Run,
    scores: pd.DataFrame,
    x: str | None = None,
    y: str | None = None,
    panel: Sequence[str] = (),
) -> Picture:
    """Draw the classes of the loss view against the other two, and the cells where the norms disagree."""
    layout, summary = map_layout(run, scores, "loss", x, y, panel)
    cells, same = layout.cells, {view: scores["class"] == scores["class" + VIEWS[view]] for view in VIEWS}
    differs = cells["class"] != cells["class_norm"]
    seen = {*cells["class"][differs], *cells["class_norm"][differs]}
    handles = [Patch(fc=CLASS_COLOURS[name], ec="0.6", label=name) for name in CLASS_COLOURS if name in seen]
    above = 2 * (1.45 + 0.2 * class_counts(scores).any(axis=1).sum())
    below = height(layout) + 0.35 + 0.165 * ceil((len(handles) + 2) / ACROSS)
    with style():
        figure = Figure((WIDTH, above + below))
        parts: Any = figure.subfigures(2, 1, height_ratios=[above, below])
        tables, maps = parts
        for ax, view in zip(tables.subplots(2, 1), ("norm", "order"), strict=True):
            cross_panel(scores, ax, view)
        draw(maps, layout, disagreement_panel)
        handles += [Patch(fc=AGREE, label="loss and norms agree"), *empty_legend(layout, 0)]
        maps.legend(handles=handles, loc="outside lower center", ncols=ACROSS, title=HALVES)
    agree = " and ".join(f"{same[view].sum()} by the {words}" for view, words in OTHERS.items())
    caption = (
        "Above: trials by their class in the loss view (rows) and in another view (columns). Same class, of "
        f"{counted(len(scores), 'trial')}: {agree} (framed). In every view the loss decides whether a trial "
        f"diverged, learned and finished. Below: in {differs.sum()} of {counted(len(cells), 'cell')} the "
        f"most frequent class differs between loss (lower left) and norms (upper right). {summary}"
    )
    alt = f"Same class as in the loss view, of {counted(len(scores), 'trial')}: {agree}. {layout.alt}."
    return Picture(figure, "Where the views disagree", caption, alt)


def disagreement_panel(cells: pd.DataFrame, ax: Axes, grid: Grid) -> Axes:
    """Draw the class by loss (lower left) and by norms (upper right) where they differ."""
    blocks, differs = prepare(grid, cells, ax), (cells["class"] != cells["class_norm"]).to_numpy()
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
