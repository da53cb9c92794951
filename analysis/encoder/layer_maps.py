"""Maps of classes by layer: a row per cell, a column per layer, and one for all layers together."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from topicjax.errors import counted
from topicjax.store.reader import Run

from ..figures.step_panels import title_lines
from ..frames import Frame
from ..layers import ALL, telling_settings
from ..maps.drawing import CORNER, GAP, Blocks, hatch_ink
from ..maps.layouts import unit_regions
from ..page.contract import Look
from ..pictures import SMALL, WIDTH, Picture, described, evenly, sentences, style
from ..topic_model import CLASS_COLOURS, CLASS_HATCHES
from .scores import LAYER_CLASSES, LAYER_CUTS, UNDECIDED, WHOLE_ONLY, layer_cells

LOOKS = {name: Look(colour, CLASS_HATCHES.get(name, "")) for name, colour in CLASS_COLOURS.items()}
LOOKS |= {"silent": Look("#F2F2F2", "----"), UNDECIDED: Look("#CC79A7"), WHOLE_ONLY: Look("#FFFFFF", "||||")}
STRIP = np.array([(-1, -1), (-0.62, -1), (-0.62, 1), (-1, 1)]) * GAP / 2  # at the left: class by the norms
ROW, LINE = 0.24, 0.12  # height in inches of a row, and of each extra line of its label
MOST_ROWS, MOST_MAPS = 36, 6
MOST_COLUMNS = 12  # layers of a map; deeper models show some, evenly spaced


def layer_map(run: Run, scores: Frame) -> list[Picture]:
    """Draw the map of classes by layer, the deepest models first; a long map is split into pictures."""
    names, cells = telling_settings(run), layer_cells(run, scores)
    depth = cells.groupby("cell")["layer"].transform("max")
    parts = []
    for layers in sorted(depth.unique(), reverse=True):
        own = cells.loc[depth == layers]
        numbers = own["cell"].unique()
        groups = np.array_split(numbers, -(-len(numbers) // MOST_ROWS))
        parts += [own.loc[own["cell"].isin(group)] for group in groups]
    shown = parts if len(parts) <= MOST_MAPS else [parts[place] for place in evenly(len(parts), MOST_MAPS)]
    drawn = sum(own["cell"].nunique() for own in shown)
    words = f"Shown: {drawn:,} of {depth.groupby(cells['cell']).first().size:,} cells; the tables have all."
    return [map_picture(own, names, words * (len(shown) < len(parts))) for own in shown]


def map_picture(cells: Frame, names: list[str], words: str) -> Picture:
    """Draw one map: cells whose models have the same number of layers."""
    told = [name for name in names if len(cells[name].unique()) > 1]
    shared = described(cells.iloc[0], [name for name in names if name not in told])
    depth = int(cells["layer"].max())
    single = [] if depth < 2 else (1 + evenly(depth, MOST_COLUMNS)).tolist()
    kept = [ALL, *single]  # a model of one layer has only the column of the whole
    rows = cells.groupby("cell", sort=False).first()
    texts = [title_lines(described(row, told) or ["all trials"], 2) for row in rows.to_dict("records")]
    height = ROW + LINE * max(0, max(map(len, texts)) - 2)
    with style():
        figure = Figure(figsize=(WIDTH, height * len(rows) + 1.9))
        ax = figure.subplots()
        draw_map(ax, cells.loc[cells["layer"].isin(kept)], kept, ["\n".join(lines) for lines in texts])
        add_legend(figure, cells.loc[cells["layer"].isin(kept)])
    judged = cells.loc[cells["layer"] != ALL] if single else cells.loc[cells["layer"] == ALL]
    judged = judged.loc[judged["class"] != WHOLE_ONLY]
    hits, unsure = ((judged["class"] == kind).sum() for kind in ("two-stage", UNDECIDED))
    counts = f"{hits} are two-stage and {unsure} undecided."
    judged_cells = counted(judged["cell"].nunique(), "cell")
    parts = {
        f"Of {counted(len(judged), 'layer')} in {judged_cells}, {counts}": len(single),
        f"Of {judged_cells}, {counts}": not single,
        f"The class by the norms differs in {is_apart(judged).sum()} of the others.": True,
        "Layers of models without residual connections have no class of their own.": (
            cells["class"] == WHOLE_ONLY
        ).any(),
        f"All have {', '.join(shared)}.": shared,
        "Colour: the most frequent class of the seeds by the loss split. Number: Θ, median over seeds "
        f"(two-stage from {LAYER_CUTS.two_stage:g} on).": True,
        f"Shown: {len(single)} of {depth} layers.": 0 < len(single) < depth,
        words: words,
    }
    alt = f"Classes of {counted(len(rows), 'cell')} by layer: {hits} of {len(judged)} are two-stage."
    title = f"Classes by layer, {counted(depth, 'layer')}" if depth else "Classes of the models"
    return Picture(figure, title, sentences(parts), alt)


def draw_map(ax: Axes, cells: Frame, kept: list[int], texts: list[str]) -> None:
    """Draw a square per cell and layer, with its marks."""
    column = {layer: place + 0.4 * (place > 0) for place, layer in enumerate(kept)}
    row = {cell: -place for place, cell in enumerate(cells["cell"].unique())}  # the first is on top
    centres = np.column_stack([cells["layer"].map(column), cells["cell"].map(row)]).astype(float)
    blocks = Blocks(unit_regions(centres), ROW)
    classes = cells["class"].to_numpy()
    for name in np.unique(classes):
        look: Any = LOOKS[name]
        blocks.fill(ax, classes == name, look.colour, hatch=look.hatch or None, edgecolors=hatch_ink(look))
    apart = is_apart(cells)
    others = [LOOKS[name].colour for name in cells["class_norm"][apart]]
    blocks.inset(ax, apart, STRIP, others, edgecolors="white", lw=0.5)
    mixed = (cells["agreement"] < 1).to_numpy()
    failed = has_failed(cells)
    blocks.inset(ax, mixed, CORNER, "black", edgecolors="white", lw=0.4)
    blocks.inset(ax, failed, CORNER * (1, -1), "black", edgecolors="white", lw=0.4)
    theta = cells["theta"].to_numpy(float)
    known = np.isfinite(theta) & ~np.isin(classes, [name for name, look in LOOKS.items() if look.hatch])
    grounds = np.array([to_rgb(LOOKS[name].colour) for name in classes])
    blocks.write(ax, known, [f"{value:.2f}".lstrip("0") for value in theta[known]], grounds[known])
    ax.set_xlim(-0.5, max(column.values()) + 0.5)
    ax.set_ylim(0.5 - len(row), 0.5)
    ax.set_xticks(list(column.values()), ["all" if len(kept) > 1 else "1", *map(str, kept[1:])])
    ax.set_yticks(list(row.values()), texts, fontsize=SMALL)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("layer")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def is_apart(cells: Frame) -> np.ndarray:
    """Mask the rows whose class by the norms differs from that by the loss, where the loss decides one."""
    is_known = ~cells["class"].isin([UNDECIDED, WHOLE_ONLY])
    return (is_known & (cells["class"] != cells["class_norm"])).to_numpy()


def has_failed(cells: Frame) -> Any:
    """Mask the squares some of whose trials diverged, though most did not."""
    some = (cells["agreement"] < 1) & (cells["diverged"] > 0) & (cells["class"] != "diverged")
    return some.to_numpy()


def add_legend(figure: Figure, cells: Frame) -> None:
    """Explain colours and marks below the map."""
    classes = set(cells["class"]) | set(cells["class_norm"][is_apart(cells)])
    counts = cells["class"].value_counts()
    handles: list[Any] = [
        Patch(fc=LOOKS[name].colour, hatch=LOOKS[name].hatch or None, ec=hatch_ink(LOOKS[name]), lw=0.3)
        for name in LAYER_CLASSES
        if name in classes
    ]
    texts = [f"{name}: {counts.get(name, 0)}" for name in LAYER_CLASSES if name in classes]
    marks = {
        "strip on the left: class by the norms, where it differs": (STRIP, is_apart(cells).any()),
        "corner: seeds disagree": (CORNER, (cells["agreement"] < 1).any()),
        "lower corner: some diverged": (CORNER * (1, -1), has_failed(cells).any()),
    }
    for text, (shape, is_there) in marks.items():
        if is_there:
            handles.append(Line2D([], [], marker=shape, ls="", color="black", markersize=8))
            texts.append(text)
    figure.legend(
        handles,
        texts,
        loc="outside lower center",
        ncols=2,
        title="class by the loss split: number of squares",
    )
