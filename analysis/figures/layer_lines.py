"""Draw one line per layer over the steps, from dark (first layer) to light (last layer)."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from topicjax.store.reader import Run

from ..frames import Frame, bands
from ..layers import ALL, layer_curves
from ..pictures import evenly
from .step_panels import HALF, thinned

MOST_LAYERS = 6  # in a legend
LOGARITHMIC = {"rotation_v": 1e-7, "entropy_deficit": 1e-6}  # column: smaller values are rounding errors
SHADES = matplotlib.colormaps["viridis"]
DASHED = (0, (3, 2))


def cell_curves(run: Run, trial_ids: list[str], columns: list[str]) -> Frame:
    """Read columns of every layer's curves of these trials, thinned; layer 0 is the whole model."""
    curves = layer_curves(run.select(trial_ids))
    number = curves.groupby(["trial", "layer"]).ngroup()
    layer = dict(zip(number, curves["layer"], strict=True))
    frame: Frame = thinned(curves.assign(trial_id=number), columns)
    return frame.assign(layer=frame["trial_id"].map(layer))


def layer_bands(frame: Frame, name: str) -> Frame:
    """Compute quartiles of a column over the trials at each layer and step."""
    values = frame[["step", "layer"]].assign(value=frame[name])
    if name in LOGARITHMIC:
        values = values.assign(value=values["value"].where(values["value"] > LOGARITHMIC[name]))
    return bands(values, "value", "layer", least=HALF)


def draw_layers(ax: Axes, table: Frame, name: str, line: Any) -> None:
    """Draw median and quartiles of each layer; the whole model only for P and Q."""
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
    """Choose the layers that a legend names."""
    return (1 + evenly(depth, MOST_LAYERS)).tolist()


def shade(layer: int, depth: int) -> Any:
    """Choose the colour of a layer: the first is dark, the last light."""
    return SHADES(0.85 * (layer - 1) / max(1, depth - 1))
