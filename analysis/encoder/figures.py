"""Draw layers: curves over the steps, onsets of each layer, and how topical the final attention is."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from topicjax.errors import UserError, counted
from topicjax.store.reader import Run

from ..figures.layer_lines import DASHED, cell_curves, draw_layers, layer_bands, shade, shown_layers
from ..figures.step_panels import (
    ACROSS,
    ENDS,
    QUARTILES,
    is_cut_short,
    panel_grid,
    shared_legend,
    step_axis,
    title_lines,
)
from ..frames import Frame, cell_of_rows, varying
from ..layers import ALL, LEAVES_UNIFORM, telling_settings
from ..pictures import SMALL, Picture, described, sentences, style, written
from ..topic_model import PART_COLOURS
from .scores import WHOLE_ONLY, layer_cells, models

KIND = ("residual", "layer_norm", "mlp", "output_projection")  # settings that define a kind of layer
MOST_MODELS = 8
ROWS = {  # panels from top to bottom: columns, label
    ("norm_v",): r"$\|W^V\|_F$",
    ("norm_k", "norm_q"): r"$\|W^K\|_F$, $\|W^Q\|_F$",
    ("rotation_v",): "rotation of $W^V$",
    ("entropy_deficit",): "entropy deficit",
    ("P",): "values add, $P$",
    ("Q",): "attention adds, $Q$",
}
WHOLE_LINE = Line2D([], [], color="black", lw=1, ls=":", label="all layers together")
WORDS = (
    "Rotation: (1 - cos)/2 between W^V now and ten steps earlier. Entropy deficit: log(number of keys) - "
    "entropy of attention, in nats. P and Q are gains in nats of held-out loss, of a layer its share of the "
    "whole model's: P from no attention to uniform attention, Q from uniform to trained attention."
)
MOST_PANELS = 8
MOST_RATIOS = 12  # a panel with more layers has no room for numbers
SERIES = {  # onset: (label, colour, marker)
    "onset_v": ("values: half of what they add", PART_COLOURS["norm_v"], "o"),
    "onset_entropy": ("attention leaves its start", PART_COLOURS["norm_k"], "s"),
    "onset_attention": ("attention: half of what it adds", PART_COLOURS["norm_q"], "^"),
}
TOPICS = {  # column: (label, colour, marker)
    "end_attn_same_topic": ("same topic, other word", "#0072B2", "o"),
    "end_attn_diff_topic": ("different topics", "#D55E00", "s"),
    "end_attn_mask_same_topic": ("[MASK] queries: topic of the hidden word", "#56B4E9", "^"),
    "end_attn_mask_diff_topic": ("[MASK] queries: other topics", "#E69F00", "v"),
}
BARS = Line2D([], [], color="0.4", marker="|", ls="", markersize=8, label="bar: quartiles of the seeds")
NEVER = Line2D(
    [], [], color="0.4", marker="o", mfc="white", ls="", markersize=4, label="hollow: not in all seeds"
)


def example_cells(table: Frame, names: Sequence[str], most: int) -> list[int]:
    """Choose cells of the deepest models: one of each kind of layer, then a second one, the clearest first.

    A cell is clearer if more of its layers are two-stage, then if its seeds agree.
    """
    known = table.loc[(table["diverged"] < table["trials"]) & (table["depth"] > 0)]
    known = known.loc[known["depth"] == known["depth"].max()]
    order = known.sort_values(["two_stage_layers", "agreement", "max_q"], ascending=False, kind="stable")
    own = [name for name in KIND if name in names]
    kind = cell_of_rows(order, own)
    turn = order.groupby(kind).cumcount().to_numpy()
    return order["cell"].to_numpy()[np.argsort(turn, kind="stable")][:most].tolist()


def example_titles(table: Frame, names: Sequence[str], chosen: Sequence[int]) -> list[list[str]]:
    """Write for each chosen cell the settings that distinguish the deepest models, split into lines."""
    told = varying(table.loc[table["depth"] == table["depth"].max()], names) or list(names)
    rows = table.set_index("cell").loc[list(chosen)].to_dict("records")
    return [title_lines(described(row, told), ACROSS) for row in rows]


def layers(run: Run, scores: Frame) -> list[Picture]:
    """Draw the layers of some models over the steps, two models per picture."""
    names, table, cells = telling_settings(run), models(run, scores), layer_cells(run, scores)
    chosen = example_cells(table, names, MOST_MODELS)
    if not chosen:
        raise UserError("every model with records of its layers diverged")
    titles = [
        [*lines, *title_lines(layer_words(cells, cell), ACROSS)]
        for cell, lines in zip(chosen, example_titles(table, names, chosen), strict=True)
    ]
    drawn, is_finite = [name for group in ROWS for name in group], scores["is_finite"].to_numpy()
    finite = scores.loc[is_finite, "trial_id"].groupby(cell_of_rows(scores, names)[is_finite]).unique()
    frames = [cell_curves(run, finite[cell].tolist(), drawn) for cell in chosen]
    unsplit = table.set_index("cell").loc[chosen, "holds"] == WHOLE_ONLY
    for frame in (frame for frame, is_whole in zip(frames, unsplit, strict=True) if is_whole):
        frame.loc[frame["layer"] != ALL, ["P", "Q"]] = np.nan
    remarks = {
        f"Shown: {len(chosen)} of {counted(len(table), 'cell')}, the deepest models, the clearest cell of "
        f"each kind of layer first.": len(table) > len(chosen),
        WORDS: True,
    }
    pictures = []
    for at in range(0, len(chosen), ACROSS):
        words = {"More models, drawn in the same way.": True} if at else remarks
        pictures.append(layer_figure(titles[at : at + ACROSS], frames[at : at + ACROSS], words))
    return pictures


def layer_words(cells: Frame, cell: int) -> list[str]:
    """Write the class of each layer of a cell; neighbouring layers of one class share a text."""
    own = cells.loc[(cells["cell"] == cell) & (cells["layer"] != ALL)]
    kinds, texts, first = own["class"].tolist(), [], 0
    for place, kind in enumerate(kinds):
        if place + 1 == len(kinds) or kinds[place + 1] != kind:
            span = f"layer {first + 1}" if first == place else f"layers {first + 1}-{place + 1}"
            texts.append(f"{span}: {kind}")
            first = place + 1
    return texts


def layer_figure(titles: list[list[str]], frames: list[Frame], remarks: dict[str, Any]) -> Picture:
    """Draw a column of panels per model, with a line per layer."""
    depth = max(int(frame["layer"].max()) for frame in frames)
    tables = [{name: layer_bands(frame, name) for group in ROWS for name in group} for frame in frames]
    counts = sorted({int(own["norm_v"]["trials"].max()) for own in tables})
    with style():
        figure, columns = panel_grid(titles, ACROSS, dict.fromkeys(ROWS.values(), 0.95))
        for frame, own, axes in zip(frames, tables, columns, strict=True):
            for ax, group in zip(axes, ROWS, strict=True):
                for name, line in zip(group, ("-", DASHED), strict=False):
                    draw_layers(ax, own[name], name, line)
                step_axis(ax, frame["step"])
        handles = [Line2D([], [], color=shade(n, depth), label=f"layer {n}") for n in shown_layers(depth)]
        handles += [WHOLE_LINE, Line2D([], [], color="0.4", ls=DASHED, label=r"dashed: $\|W^Q\|_F$")]
        shared_legend(figure, columns, more=[*handles, *([QUARTILES] if counts[-1] > 1 else [])])
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    parts = {
        f"Lines are medians and bands quartiles over seeds, {span} trials each.": counts[-1] > 1,
        "Each line is a layer of one trial.": counts[-1] == 1,
        **remarks,
        ENDS: any(is_cut_short(band) for own in tables for band in own.values()),
    }
    alt = (
        f"Norms, rotation, entropy deficit and the gains P and Q against the step, with a line "
        f"per layer, for {counted(len(frames), 'model')}."
    )
    return Picture(figure, "Layers over the steps", sentences(parts), alt)


def layer_onsets(run: Run, scores: Frame) -> Picture:
    """Draw the onset step of each layer's values and attention, a panel per cell."""

    def draw(own: Frame, ax: Axes) -> None:
        for column, (_, colour, marker) in SERIES.items():
            is_hollow = (own[f"{column}_reached"] < own["trials"] - own["diverged"]).to_numpy()
            draw_series(ax, own, column, colour, marker, is_hollow)
        ax.set_yscale("log")

    figure, columns, remarks = panels(run, scores, "step", draw, lambda row: [f"starts: {row['order']}"])
    with style():
        shared_legend(figure, columns, more=[*line_handles(SERIES), *seed_handles(scores, [NEVER, BARS])])
    parts = {
        "Onsets by layer, medians over seeds, interpolated between records.": True,
        f"Attention leaves its start when its entropy is {LEAVES_UNIFORM:g} nats lower than at step 0: a "
        "level that depends neither on the number of steps nor on how far a layer goes later. 'starts' lists "
        "the layers in that order; ≈ means within one record.": True,
        "Values and attention: half of the rise of P and Q on the way up; no mark where they add "
        "nothing.": True,
        **remarks,
    }
    alt = "Onset steps of values and attention against the layer, one panel per cell."
    return Picture(figure, "When each layer starts", sentences(parts), alt)


def layer_topics(run: Run, scores: Frame) -> Picture:
    """Draw final mean attention to the same topic and to different topics by layer, a panel per cell."""

    def draw(own: Frame, ax: Axes) -> None:
        for column, (_, colour, marker) in TOPICS.items():
            draw_series(ax, own, column, colour, marker, np.zeros(len(own), bool))
        top: Any = own[[f"{column}_q75" for column in TOPICS]].max(axis=1)
        ratios = zip(own["topic_ratio"], own["mask_topic_ratio"], strict=True)
        for layer, height, known in zip(own["layer"], top, ratios, strict=True):
            if np.isfinite(height) and len(own) <= MOST_RATIOS:
                look: dict[str, Any] = dict(ha="center", va="bottom", fontsize=SMALL, color="0.25")
                text = "\n".join(f"{ratio:.2g}" for ratio in known if np.isfinite(ratio))
                ax.annotate(text, (layer, height), (0, 4), textcoords="offset points", **look)
        ax.set_yscale("log")
        ax.margins(y=0.3)

    def words(row: dict[str, Any]) -> list[str]:
        block = row.get("e_block", np.nan)
        return [f"E: same - other topic {written(float(block), 2)}"] if np.isfinite(block) else []

    figure, columns, remarks = panels(run, scores, "mean attention", draw, words)
    with style():
        shared_legend(figure, columns, more=[*line_handles(TOPICS), *seed_handles(scores, [BARS])])
    start = float(np.nanmedian(scores["topic_ratio"] * np.exp(-scores["topic_shift"])))
    parts = {
        "Final mean attention between two positions with words of the same topic or of different topics, "
        "medians over seeds; the numbers are the ratios same / different of word queries and of [MASK] "
        "queries (not meaningful where 'different' is near 0).": True,
        "Nearly all predictions are made by [MASK] queries; word queries answer for kept and random words "
        "alone.": True,
        f"At step 0 the ratio was {start:.2f} (median): it need not be 1 for uniform attention, since "
        "documents of different lengths differ in their topics.": np.isfinite(start),
        "E: mean inner product of embeddings within a topic minus that between topics.": True,
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
    """Draw a panel over the layers for each of some cells; also return remarks for the caption."""
    names, table, cells = telling_settings(run), models(run, scores), layer_cells(run, scores)
    chosen = example_cells(table, names, MOST_PANELS)
    if not chosen:
        raise UserError("every model with records of its layers diverged")
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
        limits = np.array([ax.get_ylim() for (ax,) in columns if ax.has_data()])
        for (ax,) in columns:  # a common range makes panels comparable
            ax.set_ylim(limits[:, 0].min(), limits[:, 1].max())
    remarks = {
        f"Shown: {len(chosen)} of {counted(len(table), 'cell')}, the deepest models, one cell of each kind "
        "of layer first.": len(table) > len(chosen)
    }
    return figure, columns, remarks


def draw_series(ax: Axes, own: Frame, column: str, colour: str, marker: str, is_hollow: np.ndarray) -> None:
    """Draw a median per layer with its quartiles, joined by a line; markers are hollow where masked."""
    known = np.isfinite(own[column].to_numpy(float))
    own, is_hollow = own.loc[known], is_hollow[known]
    ax.plot(own["layer"], own[column], color=colour, lw=1)
    ax.vlines(own["layer"], own[f"{column}_q25"], own[f"{column}_q75"], color=colour, lw=1)
    for hollow in (False, True):
        mine = own.loc[is_hollow == hollow]
        ax.plot(mine["layer"], mine[column], marker, color=colour, mfc="white" if hollow else colour, ms=4)


def line_handles(series: dict[str, tuple[str, str, str]]) -> list[Line2D]:
    """Make the legend entries of the series."""
    return [
        Line2D([], [], color=colour, marker=marker, markersize=4, lw=1, label=text)
        for text, colour, marker in series.values()
    ]


def seed_handles(scores: Frame, handles: list[Line2D]) -> list[Line2D]:
    """Keep the legend entries about seeds if there are several."""
    return handles if scores["seed"].nunique() > 1 else []
