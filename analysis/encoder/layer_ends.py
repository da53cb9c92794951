"""Layers side by side: when each starts, and how far its attention follows the topics in the end."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..figures.step_panels import ACROSS, panel_grid, shared_legend
from ..one_layer.trained_models import Frame
from ..pictures import SMALL, Picture, counted, sentences, style, written
from ..topic_model import PART_COLOURS
from .layer_cells import layer_cells, models, telling_settings
from .layer_curves import ALL
from .layer_panels import example_cells, example_titles
from .layers import LEAVES_UNIFORM

MOST_PANELS = 8
MOST_RATIOS = 12  # layers of a panel that has room for its numbers
SERIES = {  # onset: label, colour, marker
    "onset_v": ("values: half of what they add", PART_COLOURS["norm_v"], "o"),
    "onset_entropy": ("attention leaves its start", PART_COLOURS["norm_k"], "s"),
    "onset_attention": ("attention: half of what it adds", PART_COLOURS["norm_q"], "^"),
}
TOPICS = {  # column: label, colour, marker
    "end_attn_same_topic": ("same topic, other word", "#0072B2", "o"),
    "end_attn_diff_topic": ("different topics", "#D55E00", "s"),
}
BARS = Line2D([], [], color="0.4", marker="|", ls="", markersize=8, label="bar: quartiles of the seeds")
NEVER = Line2D(
    [], [], color="0.4", marker="o", mfc="white", ls="", markersize=4, label="hollow: not in all seeds"
)


def layer_onsets(run: Run, scores: Frame) -> Picture:
    """Return the onset step of each layer's values and attention, a panel per cell."""

    def draw(own: Frame, ax: Axes) -> None:
        for column, (_, colour, marker) in SERIES.items():
            is_hollow = (own[f"{column}_reached"] < own["trials"] - own["diverged"]).to_numpy()
            draw_series(ax, own, column, colour, marker, is_hollow)
        ax.set_yscale("log")

    figure, columns, remarks = panels(run, scores, "step", draw, lambda row: [f"starts: {row['order']}"])
    with style():
        shared_legend(figure, columns, more=[*line_handles(SERIES), *seed_handles(scores, [NEVER, BARS])])
    parts = {
        "Onsets by layer, medians over seeds; between two records by interpolation.": True,
        f"Attention leaves its start where its entropy is {LEAVES_UNIFORM:g} nats lower than at step 0: a "
        "level that depends neither on the number of steps nor on how far a layer goes later. 'starts' has "
        "the layers in that order, ≈ within one record.": True,
        "Values and attention: half of the rise of P and Q on the way up; no mark where they add "
        "nothing.": True,
        **remarks,
    }
    alt = "Onset steps of values and attention against the layer, one panel per cell."
    return Picture(figure, "When each layer starts", sentences(parts), alt)


def layer_topics(run: Run, scores: Frame) -> Picture:
    """Return mean attention to the same and to different topics at the end by layer, a panel per cell."""

    def draw(own: Frame, ax: Axes) -> None:
        for column, (_, colour, marker) in TOPICS.items():
            draw_series(ax, own, column, colour, marker, np.zeros(len(own), bool))
        top = own[[f"{column}_q75" for column in TOPICS]].max(axis=1)
        for layer, height, ratio in zip(own["layer"], top, own["topic_ratio"], strict=True):
            if np.isfinite(height) and len(own) <= MOST_RATIOS:
                look: dict[str, Any] = dict(ha="center", va="bottom", fontsize=SMALL, color="0.25")
                ax.annotate(f"{ratio:.2g}", (layer, height), (0, 4), textcoords="offset points", **look)
        ax.set_yscale("log")
        ax.margins(y=0.25)

    def words(row: dict[str, Any]) -> list[str]:
        block = row.get("e_block", np.nan)
        return [f"E: same - other topic {written(float(block), 2)}"] if np.isfinite(block) else []

    figure, columns, remarks = panels(run, scores, "mean attention", draw, words)
    with style():
        shared_legend(figure, columns, more=[*line_handles(TOPICS), *seed_handles(scores, [BARS])])
    start = float(np.nanmedian(scores["topic_ratio"] * np.exp(-scores["topic_shift"])))
    parts = {
        "Mean attention between two positions at the end, by whether their words are of one topic, medians "
        "over seeds; the number is the ratio same / different (where 'different' is near 0 it says "
        "little).": True,
        f"At step 0 the ratio was {start:.2f} (median): uniform attention need not have 1, since documents "
        "of different lengths differ in their topics.": np.isfinite(start),
        "E: mean inner product of embeddings of one topic minus that of different topics.": True,
        **remarks,
    }
    alt = "Mean attention to words of the same and of different topics against the layer, one panel per cell."
    return Picture(figure, "Attention by topic in each layer", sentences(parts), alt)


def panels(
    run: Run,
    scores: Frame,
    label: str,
    draw: Callable[[pd.DataFrame, Axes], None],
    words: Callable[[dict[str, Any]], list[str]],
) -> tuple[Any, Any, dict[str, Any]]:
    """Return a figure with a panel over the layers for each of some cells, and what its caption must add."""
    names, table, cells = telling_settings(run), models(run, scores), layer_cells(run, scores)
    chosen = example_cells(table, names, MOST_PANELS)
    if not chosen:
        raise UserError("no model with records of its layers is left that did not diverge")
    rows = table.set_index("cell").loc[chosen].to_dict("records")
    settings = example_titles(table, names, chosen)
    titles = [[*lines, *words(row)] for lines, row in zip(settings, rows, strict=True)]
    with style():
        figure, columns = panel_grid(titles, ACROSS, {label: 1.25})
        for cell, (ax,) in zip(chosen, columns, strict=True):
            draw(cells.loc[(cells["cell"] == cell) & (cells["layer"] != ALL)], ax)
            ax.set_xlabel("layer")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ax.yaxis.set_minor_locator(NullLocator())
            ax.set_xlim(0.6, table["depth"].max() + 0.4)
        share_range([ax for (ax,) in columns])
    remarks = {
        f"Shown are {len(chosen)} of {counted(len(table), 'cell')}: the deepest models, a cell of each kind "
        "of layer first.": len(table) > len(chosen)
    }
    return figure, columns, remarks


def draw_series(ax: Axes, own: Frame, column: str, colour: str, marker: str, is_hollow: np.ndarray) -> None:
    """Draw a median per layer with its quartiles, joined by a line; hollow marks where the mask says so."""
    known = np.isfinite(own[column].to_numpy(float))
    own, is_hollow = own.loc[known], is_hollow[known]
    ax.plot(own["layer"], own[column], color=colour, lw=1)
    ax.vlines(own["layer"], own[f"{column}_q25"], own[f"{column}_q75"], color=colour, lw=1)
    for hollow in (False, True):
        mine = own.loc[is_hollow == hollow]
        ax.plot(mine["layer"], mine[column], marker, color=colour, mfc="white" if hollow else colour, ms=4)


def share_range(axes: Sequence[Axes]) -> None:
    """Give all panels one range, so that they can be compared."""
    limits = np.array([ax.get_ylim() for ax in axes if ax.has_data()])
    for ax in axes:
        ax.set_ylim(limits[:, 0].min(), limits[:, 1].max())


def line_handles(series: dict[str, tuple[str, str, str]]) -> list[Line2D]:
    """Return what a legend says of the series."""
    return [
        Line2D([], [], color=colour, marker=marker, markersize=4, lw=1, label=text)
        for text, colour, marker in series.values()
    ]


def seed_handles(scores: Frame, handles: list[Line2D]) -> list[Line2D]:
    """Return what a legend says of seeds, if there are several."""
    return handles if scores["seed"].nunique() > 1 else []
