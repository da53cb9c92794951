"""Each layer of some models over the steps: its norms, how W^V turns, its attention, and what both add."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..figures.step_panels import (
    ACROSS,
    ENDS,
    HALF,
    QUARTILES,
    is_cut_short,
    panel_grid,
    shared_legend,
    step_axis,
    thinned,
    title_lines,
)
from ..frames import bands, varying
from ..one_layer.trained_models import Frame
from ..pictures import Picture, counted, described, evenly, sentences, style
from .layer_cells import cell_of_rows, layer_cells, models, telling_settings
from .layer_curves import ALL, layer_curves

KIND = ("residual", "layer_norm", "mlp", "output_projection")  # what tells kinds of layers apart
MOST_MODELS = 8
MOST_LAYERS = 6  # in a legend
ROWS = {  # panels from top to bottom: columns, label
    ("norm_v",): r"$\|W^V\|_F$",
    ("norm_k", "norm_q"): r"$\|W^K\|_F$, $\|W^Q\|_F$",
    ("rotation_v",): "rotation of $W^V$",
    ("entropy_deficit",): "entropy deficit",
    ("P",): "values add, $P$",
    ("Q",): "attention adds, $Q$",
}
LOGARITHMIC = {"rotation_v": 1e-7, "entropy_deficit": 1e-6}  # column: smaller values are rounding
SHADES = matplotlib.colormaps["viridis"]
DASHED = (0, (3, 2))
WHOLE_LINE = Line2D([], [], color="black", lw=1, ls=":", label="all layers together")
WORDS = (
    "Rotation: (1 - cos)/2 between W^V and itself ten steps before. Entropy deficit: log(number of keys) - "
    "entropy of attention, in nats. P and Q in nats of the held-out loss, the other layers as trained: P is "
    "what the layer adds with uniform attention beyond none at all, Q what its own attention adds to that."
)


def example_cells(table: Frame, names: Sequence[str], most: int) -> list[int]:
    """Return cells of the deepest models: one of each kind of layer, then a second one, the clearest first.

    Clear is a cell with more two-stage layers, then one whose seeds agree.
    """
    known = table.loc[(table["diverged"] < table["trials"]) & (table["depth"] > 0)]
    known = known.loc[known["depth"] == known["depth"].max()]
    order = known.sort_values(["two_stage_layers", "agreement", "max_q"], ascending=False, kind="stable")
    own = [name for name in KIND if name in names]
    kind = cell_of_rows(order, own)
    turn = order.groupby(kind).cumcount().to_numpy()
    return order["cell"].to_numpy()[np.argsort(turn, kind="stable")][:most].tolist()


def example_titles(table: Frame, names: Sequence[str], chosen: Sequence[int]) -> list[list[str]]:
    """Return the settings that tell the deepest models apart, for each chosen cell, on lines."""
    told = varying(table.loc[table["depth"] == table["depth"].max()], names) or list(names)
    rows = table.set_index("cell").loc[list(chosen)].to_dict("records")
    return [title_lines(described(row, told), ACROSS) for row in rows]


def layers(run: Run, scores: Frame) -> list[Picture]:
    """Return the layers of some models over the steps, two models to a picture."""
    names, table, cells = telling_settings(run), models(run, scores), layer_cells(run, scores)
    chosen = example_cells(table, names, MOST_MODELS)
    if not chosen:
        raise UserError("no model with records of its layers is left that did not diverge")
    titles = [
        [*lines, *title_lines(layer_words(cells, cell), ACROSS)]
        for cell, lines in zip(chosen, example_titles(table, names, chosen), strict=True)
    ]
    frames = [curves_of(run, scores, names, cell) for cell in chosen]
    remarks = {
        f"Shown are {len(chosen)} of {counted(len(table), 'cell')}: the deepest models, the clearest cell of "
        f"each kind of layer first.": len(table) > len(chosen),
        WORDS: True,
    }
    pictures = []
    for at in range(0, len(chosen), ACROSS):
        words = {"Further models, drawn in the same way.": True} if at else remarks
        pictures.append(layer_figure(titles[at : at + ACROSS], frames[at : at + ACROSS], words))
    return pictures


def layer_words(cells: Frame, cell: int) -> list[str]:
    """Return the class of each layer of a cell; those of neighbouring layers that agree are said once."""
    own = cells.loc[(cells["cell"] == cell) & (cells["layer"] != ALL)]
    kinds, texts, first = own["class"].tolist(), [], 0
    for place, kind in enumerate(kinds):
        if place + 1 == len(kinds) or kinds[place + 1] != kind:
            span = f"layer {first + 1}" if first == place else f"layers {first + 1}-{place + 1}"
            texts.append(f"{span}: {kind}")
            first = place + 1
    return texts


def curves_of(run: Run, scores: Frame, names: Sequence[str], cell: int) -> Frame:
    """Return the curves of the finite trials of a cell, thinned."""
    mine = (cell_of_rows(scores, names) == cell) & scores["is_finite"].to_numpy()
    curves = layer_curves(run.select(scores.loc[mine, "trial_id"].unique().tolist()))
    columns = [name for group in ROWS for name in group]
    number = curves.groupby(["trial", "layer"]).ngroup()
    layer = dict(zip(number, curves["layer"], strict=True))
    frame: Frame = thinned(curves.assign(trial_id=number), columns)
    return frame.assign(layer=frame["trial_id"].map(layer))


def layer_figure(titles: list[list[str]], frames: list[Frame], remarks: dict[str, Any]) -> Picture:
    """Return a column of panels per model, with a line per layer."""
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
        f"Norms, rotation, entropy deficit, and what values and attention add, against the step, with a line "
        f"per layer, for {counted(len(frames), 'model')}."
    )
    return Picture(figure, "Layers over the steps", sentences(parts), alt)


def layer_bands(frame: Frame, name: str) -> Frame:
    """Return one row per layer and step: quartiles over the trials of a column."""
    values = frame[["step", "layer"]].assign(value=frame[name])
    if name in LOGARITHMIC:
        values = values.assign(value=values["value"].where(values["value"] > LOGARITHMIC[name]))
    return bands(values, "value", "layer", least=HALF)


def draw_layers(ax: Axes, table: Frame, name: str, line: Any) -> None:
    """Draw median and quartiles of each layer; all layers together only of what the loss says."""
    depth = int(table["layer"].max())
    for layer, own in table.loc[table["q50"].notna()].groupby("layer"):
        number = int(str(layer))
        if number == ALL and name not in ("P", "Q"):
            continue
        look: dict[str, Any] = dict(color=shade(number, depth), lw=1.1, ls=line)
        look |= dict(color="black", lw=1.0, ls=":") if number == ALL else {}
        ax.plot(own["step"], own["q50"], **look)
        if number != ALL:
            ax.fill_between(own["step"], own["q25"], own["q75"], color=look["color"], alpha=0.18, lw=0)
    if name in LOGARITHMIC and ax.lines:
        drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
        ax.set_yscale("log")
        low, high = np.floor(np.log10(drawn.min())), np.ceil(np.log10(drawn.max()))
        ax.set_ylim(10**low, 10 ** max(high, low + 1))
        ax.yaxis.set_minor_locator(NullLocator())
    elif name in ("P", "Q"):
        ax.axhline(0, color="0.6", lw=0.5, zorder=0)


def shown_layers(depth: int) -> list[int]:
    """Return the layers that a legend names."""
    return (1 + evenly(depth, MOST_LAYERS)).tolist()


def shade(layer: int, depth: int) -> Any:
    """Return the colour of a layer: the first is dark, the last light."""
    return SHADES(0.85 * (layer - 1) / max(1, depth - 1))
