"""Maps over two settings: class, Theta and log lag of every cell, and where the views disagree.

`map_layouts` says which panels there are, `map_panels` draws one.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from topicjax.store.reader import Run

from ..maps.arrangements import arrange
from ..maps.grids import EMPTY, Look
from ..maps.layouts import Layout, draw
from ..pictures import WIDTH, Picture, counted, label, sentences, style
from ..topic_model import CLASS_COLOURS, CLASS_HATCHES
from .map_panels import (
    AGREE,
    OTHERS,
    cross_panel,
    disagreement_panel,
    hatch_ink,
    heat_panel,
    is_mixed,
    is_not_topical,
    phase_panel,
)
from .stages import CUTS, VIEWS, class_counts

ACROSS = 2  # entries of a legend
VIEW_WORDS = {
    "loss": "the loss split (progress of V and gain by attention against the limit lines)",
    "order": "the order parameters (value blocks and topical attention scores)",
    "norm": "the norms of W^V and of W^K and W^Q",
}
TRIANGLE = np.array([(-1, 1), (1, 1), (1, -1)])  # the corner's mark in the legend
HALVES = "lower left: class by the loss; upper right: class by the norms"
LEGEND = "class: number of cells; marks"
MEANINGS = {
    "theta": "Θ (1: V is done before attention begins, 0: attention is done before V begins)",
    "log_lag": "Log lag (logarithm of how many times later attention rises than V; 0: together)",
}


def phase_map(
    run: Run,
    scores: pd.DataFrame,
    view: str = "loss",
    x: str | None = None,
    y: str | None = None,
    panel: Sequence[str] = (),
) -> Picture:
    """Return the map of classes with Theta as shade; the caption says how many panels are not drawn."""
    layout, end = arrange(run, scores, view, x, y, panel), VIEWS.get(view, "")
    handles = phase_legend(layout.cells, view, layout.empty)
    with style():
        figure = Figure((WIDTH, layout.height + 0.35 + 0.165 * ceil(len(handles) / ACROSS)))
        draw(figure, layout, lambda part, ax, grid: phase_panel(part, ax, view, grid))
        legend_below(figure, handles)
    counts = layout.cells["class" + end].value_counts()
    hollow, mixed = is_not_topical(layout.cells, view).sum(), is_mixed(layout.cells, view)[0].sum()
    parts = {
        f"Class of each cell by {VIEW_WORDS[view]}: the most frequent one among its trials, which differ "
        "in the seed. Numbers and shades: Θ, the median over the trials (1: V is done before attention "
        "begins).": True,
        layout.summary: True,
        f"Corner: trials disagree in {counted(mixed, 'cell')}.": mixed,
        f"Hollow: in {counted(hollow, 'cell')} attention moved but in most trials not to the topics.": hollow,
        f"Unfinished: the loss came less than {CUTS.finished:.0%} of the way to the stage-1 line.": (
            "unfinished" in counts
        ),
    }
    caption = sentences(parts)
    found = ", ".join(f"{counts[name]} {name}" for name in CLASS_COLOURS if name in counts)
    return Picture(figure, f"Classes in the {view} view", caption, f"{layout.alt}. Cells by class: {found}.")


def norm_phase_map(
    run: Run,
    scores: pd.DataFrame,
    x: str | None = None,
    y: str | None = None,
    panel: Sequence[str] = (),
) -> Picture:
    """Return the map of classes in the view of the norms."""
    return phase_map(run, scores, "norm", x, y, panel)


def theta_map(
    run: Run,
    scores: pd.DataFrame,
    view: str = "loss",
    x: str | None = None,
    y: str | None = None,
    panel: Sequence[str] = (),
) -> Picture:
    """Return the map of Theta: 1 where V is done before attention begins."""
    return heat_map(arrange(run, scores, view, x, y, panel), "theta", view)


def log_lag_map(
    run: Run,
    scores: pd.DataFrame,
    view: str = "loss",
    x: str | None = None,
    y: str | None = None,
    panel: Sequence[str] = (),
) -> Picture:
    """Return the map of log lag: positive where V is ahead of attention."""
    return heat_map(arrange(run, scores, view, x, y, panel), "log_lag", view)


def heat_map(layout: Layout, name: str, view: str) -> Picture:
    """Return a map of theta or log_lag with its colour bar."""
    values = layout.cells[name + VIEWS[view]].to_numpy(float)
    finite = values[np.isfinite(values)]
    hatched = len(values) - len(finite)
    largest = max(np.abs(finite).max(initial=0), 1e-3)
    limits = (0.0, 1.0) if name == "theta" else (-largest, largest)
    scale = ScalarMappable(Normalize(*limits), colormaps["cividis" if name == "theta" else "PuOr"])
    with style():
        handles = heat_legend(layout, hatched)
        figure = Figure((WIDTH, layout.height + 0.65 + 0.2 * bool(handles)))
        axes = draw(
            figure, layout, lambda part, ax, grid: heat_panel(part, ax, name + VIEWS[view], scale, grid)
        )
        figure.colorbar(scale, ax=axes, label=label(name), location="bottom", aspect=30, pad=0.02, shrink=0.8)
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=ACROSS)
    span = f"{finite.min():.2f} to {finite.max():.2f}" if len(finite) else "none"
    parts = {
        f"{MEANINGS[name]}, median over the trials of a cell that have it, by {VIEW_WORDS[view]}; values: "
        f"{span}.": True,
        layout.summary: True,
        f"Hatched: {counted(hatched, 'cell')} without a value, where stage 2 did not happen, a part is "
        "frozen, or there is no limit line.": hatched,
    }
    title = f"{label(name)} in the {view} view"
    alt = f"{layout.alt}. {label(name)}: {span}."
    return Picture(figure, title[0].upper() + title[1:], sentences(parts), alt)


def view_disagreement(
    run: Run,
    scores: pd.DataFrame,
    x: str | None = None,
    y: str | None = None,
    panel: Sequence[str] = (),
) -> Picture:
    """Return the classes of the loss view against the other two, and the cells where the norms disagree."""
    layout = arrange(run, scores, "loss", x, y, panel)
    cells, same = layout.cells, {view: scores["class"] == scores["class" + VIEWS[view]] for view in VIEWS}
    differs = cells["class"] != cells["class_norm"]
    seen = {*cells["class"][differs], *cells["class_norm"][differs]}
    handles = [Patch(fc=CLASS_COLOURS[name], ec="0.6", label=name) for name in CLASS_COLOURS if name in seen]
    above = 2 * (1.45 + 0.2 * class_counts(scores).any(axis=1).sum())
    below = layout.height + 0.35 + 0.165 * ceil((len(handles) + 2) / ACROSS)
    with style():
        figure = Figure((WIDTH, above + below))
        parts: Any = figure.subfigures(2, 1, height_ratios=[above, below])
        tables, maps = parts
        for ax, view in zip(tables.subplots(2, 1), ("norm", "order"), strict=True):
            cross_panel(scores, ax, view)
        draw(maps, layout, disagreement_panel)
        handles += [Patch(fc=AGREE, label="loss and norms agree"), *heat_legend(layout, 0)]
        maps.legend(handles=handles, loc="outside lower center", ncols=ACROSS, title=HALVES)
    agree = " and ".join(f"{same[view].sum()} by the {words}" for view, words in OTHERS.items())
    caption = (
        "Above: trials by their class in the loss view (rows) and in another view (columns). Of "
        f"{counted(len(scores), 'trial')}, the same class have {agree} (framed). Whether a trial diverged, "
        "learned and finished is read from the loss in every view. Below: in "
        f"{differs.sum()} of {counted(len(cells), 'cell')} the most frequent class differs between loss "
        f"(lower left) and norms (upper right). {layout.summary}"
    )
    alt = (
        f"Of {counted(len(scores), 'trial')}, the same class as in the loss view have {agree}. {layout.alt}."
    )
    return Picture(figure, "Where the views disagree", caption, alt)


def heat_legend(layout: Layout, hatched: int) -> list[Any]:
    """Return a handle for cells without a value and one for places without a cell, as far as they occur."""
    marks = [Patch(fc="white", hatch="////", ec="0.7", lw=0.4, label="no value")] if hatched else []
    dot = Line2D([], [], ms=2.5, **EMPTY, label="not run or not finished")
    return [*marks, *([dot] if layout.empty else [])]


def legend_below(figure: Figure, handles: dict[str, Any]) -> None:
    """Explain classes and marks below the panels."""
    together = {tuple: HandlerTuple(ndivide=None, pad=0)}
    names, marks = list(handles), list(handles.values())
    figure.legend(marks, names, loc="outside lower center", ncols=ACROSS, handler_map=together, title=LEGEND)


def phase_legend(cells: pd.DataFrame, view: str, empty: int) -> dict[str, Any]:
    """Return a handle per class that occurs, with its number of cells, and per mark that occurs.

    `empty` is the number of places without a cell.
    """
    counts, (mixed, failed) = cells["class" + VIEWS[view]].value_counts(), is_mixed(cells, view)
    handles: dict[str, Any] = {}
    for name in CLASS_COLOURS:
        patch = Patch(fc=CLASS_COLOURS[name], hatch=CLASS_HATCHES.get(name), ec=hatch_ink(name), lw=0.4)
        handles |= {f"{name}: {counts[name]}": patch} if name in counts else {}
    tint = [Patch(fc=1 - w * (1 - np.array(to_rgb(CLASS_COLOURS["two-stage"])))) for w in (0.5, 0.75, 1)]
    corner: Look = dict(ls="", color="black", mew=0, ms=5)
    marks = {
        "shade: Θ 0, 0.5, 1": (tuple(tint), True),
        "attention not topical": (Patch(fc="white", ec="0.3", lw=2.5), is_not_topical(cells, view).any()),
        "trials disagree": (Line2D([], [], marker=TRIANGLE.tolist(), **corner), mixed.any()),
        "some trials diverged": (
            Line2D([], [], marker=(TRIANGLE * (1, -1)).tolist(), **corner),
            failed.any(),
        ),
        "not run or not finished": (Line2D([], [], ms=2.5, **EMPTY), empty),
    }
    return handles | {name: handle for name, (handle, occurs) in marks.items() if occurs}
