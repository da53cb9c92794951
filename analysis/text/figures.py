"""Draw the paper's Figure 5 on text: norms, rotation and entropy of each layer, with the losses below."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from topicjax.errors import UserError, counted
from topicjax.store.reader import Run

from ..figures.layer_lines import DASHED, cell_curves, draw_layers, layer_bands, shade, shown_layers
from ..figures.step_panels import (
    ACROSS,
    HALF,
    QUARTILES,
    panel_grid,
    shared_legend,
    step_axis,
    title_lines,
)
from ..frames import Frame, bands, cell_of_rows
from ..layers import ALL, telling_settings
from ..pictures import Picture, described, sentences, style
from .scores import SHAPES, text_cells

MOST_CELLS = 12
LONG = 1000  # steps; with more their axis is logarithmic, so that the first hundreds are seen
ABOVE = 1.0  # nats drawn above the unigram line; the initial losses would squash the rest
ROWS = {  # panels from top to bottom: columns, label
    ("norm_v",): r"$\|W^V\|_F$",
    ("norm_k", "norm_q"): r"$\|W^K\|_F$, $\|W^Q\|_F$",
    ("rotation_v",): "rotation of $W^V$",
    ("entropy_deficit",): "entropy deficit\n(nats)",
    ("on", "uniform", "silent"): "held-out loss\n(nats)",
}
HEIGHTS = (0.95, 0.95, 0.95, 0.95, 1.3)
LOSSES = {  # column: (colour, label)
    "on": ("black", "loss as trained"),
    "uniform": ("#E69F00", "attention uniform in all layers"),
    "silent": ("#CC79A7", "attention silenced in all layers"),
}
UNIGRAM = Line2D([], [], color="#009E73", lw=1.1, ls="--", label="unigram line")
PASSED = Line2D([], [], color="0.35", lw=0.9, ls=":", label="loss is below the unigram line by two errors")
WORDS = (
    "Rotation: (1 - cos)/2 between W^V now and ten steps earlier. Entropy deficit: log(number of keys) - "
    "entropy of attention. Losses are measured on held-out words that show [MASK]. The unigram line is the "
    "loss of predicting each word by its frequency: only a loss below it uses context. The loss panel ends "
    f"{ABOVE:g} nat above that line; the initial losses are higher."
)


def text_layers(run: Run, scores: Frame) -> list[Picture]:
    """Draw the layers of every cell over the steps with the loss below, two cells per picture."""
    names, cells = telling_settings(run), text_cells(run, scores)
    known = cells.loc[cells["shape"] != "diverged"]  # those closest to Figure 5's shape come first
    rank: Any = known["shape"].map(SHAPES.index).groupby(known["cell"]).mean()
    chosen = rank.sort_values(kind="stable").index.tolist()[:MOST_CELLS]
    if not chosen:
        raise UserError("all models diverged")
    is_ok = (scores["status"] == "ok").to_numpy()
    ok = scores.loc[is_ok, "trial_id"].groupby(cell_of_rows(scores, names)[is_ok]).unique()
    drawn = [name for group in ROWS for name in group]
    pictures = []
    for at in range(0, len(chosen), ACROSS):
        own = chosen[at : at + ACROSS]
        titles = [cell_title(cells, names, cell) for cell in own]
        frames = [cell_curves(run, ok[cell].tolist(), drawn) for cell in own]
        lines = [
            cells.loc[cells["cell"] == cell, ["unigram", "passed_surely"]].iloc[0].tolist() for cell in own
        ]
        left_out = cells["cell"].nunique() - len(chosen)
        remarks = {f"{counted(left_out, 'cell')} more are in the table.": left_out > 0, WORDS: True}
        pictures.append(text_figure(titles, frames, lines, {} if at else remarks))
    return pictures


def cell_title(cells: Frame, names: Sequence[str], cell: int) -> list[str]:
    """Write the settings of a cell and the shapes of its layers, split into lines."""
    own = cells.loc[cells["cell"] == cell]
    texts = [f"layer {layer}: {shape}" for layer, shape in zip(own["layer"], own["shape"], strict=True)]
    if own["shape"].nunique() == 1:
        texts = [f"all layers: {own['shape'].iloc[0]}"]
    settings = described(own.iloc[0].to_dict(), names) or ["all trials"]
    return [*title_lines(settings, ACROSS), *title_lines(texts, ACROSS)]


def text_figure(
    titles: list[list[str]], frames: list[Frame], lines: list[list[float]], remarks: dict[str, Any]
) -> Picture:
    """Draw a column of panels per cell, with a line per layer, and the losses of the model below."""
    depth = max(int(frame["layer"].max()) for frame in frames)
    seeds = sorted({int((frame["layer"] == 1).sum() // frame["step"].nunique()) for frame in frames})
    with style():
        figure, columns = panel_grid(titles, ACROSS, dict(zip(ROWS.values(), HEIGHTS, strict=True)))
        for frame, line, axes in zip(frames, lines, columns, strict=True):
            draw_column(axes, frame, *line)
        share_limits([axes[-1] for axes in columns], max(line[0] for line in lines) + ABOVE)
        handles = [Line2D([], [], color=shade(n, depth), label=f"layer {n}") for n in shown_layers(depth)]
        handles += [Line2D([], [], color="0.4", ls=DASHED, label=r"dashed: $\|W^Q\|_F$"), UNIGRAM]
        handles += [PASSED] if any(np.isfinite(line[1]) for line in lines) else []
        shared_legend(figure, columns, more=[*handles, *([QUARTILES] if seeds[-1] > 1 else [])])
    parts = {
        f"Lines are medians and bands quartiles over {seeds[-1]} seeds.": seeds[-1] > 1,
        "Each line is one trial.": seeds[-1] == 1,
        **remarks,
    }
    alt = (
        f"Norms, rotation and entropy deficit against the step with a line per layer, and below them the "
        f"held-out losses with the unigram line, for {counted(len(frames), 'cell')}."
    )
    return Picture(figure, "Figure 5 on text", sentences(parts), alt)


def draw_column(axes: Sequence[Axes], frame: Frame, unigram: float, passed: float) -> None:
    """Draw the panels of one cell."""
    for ax, group in zip(axes, ROWS, strict=True):
        if "on" in group:
            draw_losses(ax, frame, unigram)
        else:
            for name, line in zip(group, ("-", DASHED), strict=False):
                draw_layers(ax, layer_bands(frame, name), name, line)
        if np.isfinite(passed):
            ax.axvline(passed, color="0.35", lw=0.9, ls=":")
        if frame["step"].max() > LONG:
            step_axis(ax, frame["step"])
        else:
            ax.set_xlim(0, frame["step"].max())


def draw_losses(ax: Axes, frame: Frame, unigram: float) -> None:
    """Draw the losses of the whole model and the unigram line."""
    whole = frame.loc[frame["layer"] == ALL]
    for name, (colour, text) in LOSSES.items():
        table = bands(whole[["step", "layer"]].assign(value=whole[name]), "value", "layer", least=HALF)
        table = table.loc[table["q50"].notna()]  # losses are measured at some of the records
        ax.plot(table["step"], table["q50"], color=colour, lw=1.2, label=text)
        ax.fill_between(table["step"], table["q25"], table["q75"], color=colour, alpha=0.18, lw=0)
    ax.axhline(unigram, color=UNIGRAM.get_color(), lw=1.1, ls="--")


def share_limits(row: Sequence[Axes], highest: float) -> None:
    """Give the panels of a row the same vertical axis, cut off at `highest`."""
    low, high = (pick(ax.get_ylim()[place] for ax in row) for place, pick in ((0, min), (1, max)))
    for ax in row:
        ax.set_ylim(low, min(high, highest))
