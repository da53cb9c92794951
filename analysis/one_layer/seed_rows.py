"""Draw panels with a row per cell: a dot for each seed, a tick at their median, marks for theory."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from topicjax.errors import counted
from topicjax.settings import SEEDS
from topicjax.theory import document_settings
from topicjax.theory.document_settings import DATA_SETTINGS

from ..frames import Array, Frame, distinct, varying
from ..pictures import SMALL, setting_text
from ..topic_model import SETTINGS

MEASURED = "#0072B2"
LABEL_WIDTH = 25  # characters per line of a row's label
MOST_ROWS = 24
SHORT = {  # (setting, value): short text for a row
    ("documents", "lda"): "LDA",
    ("documents", "tau"): "tau topics",
    ("output_bias", "zero"): "no bias",
    ("output_bias", "theorem1"): "Theorem 1's bias",
    ("output_bias", "trained"): "bias trained",
}


def rows_of(frame: Frame, names: Sequence[str]) -> tuple[Array, list[dict[str, Any]]]:
    """Number the row of each trial, and list the settings of each row: the combinations that occur."""
    ordered = frame.sort_values(list(names), kind="stable") if names else frame
    number, kinds = distinct(ordered, names)
    places = np.empty(len(frame), int)
    places[frame.index.get_indexer(ordered.index)] = number
    return places, kinds.to_dict("records") if names else [{}]


def telling_apart(frame: Frame, without: Iterable[str] = ()) -> list[str]:
    """List the settings that vary, except the seed and `without`; those of the documents come first."""
    names = dict.fromkeys((*DATA_SETTINGS, *SETTINGS))
    return varying(frame, [name for name in names if name not in (*SEEDS, *without)])


def row_text(row: Mapping[str, Any], first: Sequence[str] = ()) -> str:
    """Label a row by its settings, in several short lines; keys `all` are left out."""
    names = [name for name in acting(row) if (name, row[name]) != ("key_visibility", "all")]
    parts = [*first, *(short_text(name, row[name]) for name in names)]
    unbroken = ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts)
    return textwrap.fill(unbroken, LABEL_WIDTH, break_long_words=False)


def acting(row: Mapping[str, Any]) -> list[str]:
    """List the settings of a row, without those that have no effect beside its others."""
    known = {
        name: document_settings.SETTINGS[name].only for name in row if name in document_settings.SETTINGS
    }
    return [
        name
        for name in row
        if (only := known.get(name)) is None or only.name not in row or row[only.name] in only.values
    ]


def short_text(name: str, value: Any) -> str:
    """Write a setting with its value, short enough for a row."""
    if name == "topics_per_document":
        return counted(int(value), "topic")
    if name == "infinite_documents":
        return "infinite" if value else "finite"
    return SHORT.get((name, value), setting_text(name, value).replace("embedding scale", "scale"))


def draw_seeds(ax: Axes, places: Array, values: Array, colour: str = MEASURED, lift: float = 0.0) -> None:
    """Draw each trial in its row, rows from the top, and a tick at the median of each row."""
    ax.plot(values, lift - places, "o", color=colour, ms=3.5, mfc="none", mew=0.8, zorder=3)
    for place in np.unique(places):
        middle = values[places == place]
        if np.isfinite(middle).any():
            ax.plot(np.nanmedian(middle), lift - place, "|", color=colour, ms=9, mew=1.6, zorder=4)


def label_rows(axes: Sequence[Axes], texts: Sequence[str]) -> None:
    """Label the rows at the left of the first panel, and draw a guide line for each row in all panels."""
    axes[0].set_yticks(-np.arange(len(texts)), texts, fontsize=SMALL)
    axes[0].set_ylim(0.5 - len(texts), 0.5)
    for ax in axes:
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", color="0.93", lw=0.8)


def log_axis(ax: Axes) -> None:
    """Make x logarithmic, with few plain numbers as tick labels."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    decades = np.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 2 else (1.0,)
    ax.xaxis.set_major_locator(LogLocator(subs=subs, numticks=5))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def dots(colour: str = MEASURED, text: str = "trained: a dot per seed, tick: median") -> Line2D:
    """Make the legend entry for trained models."""
    return Line2D([], [], color=colour, ls="", marker="o", ms=4, mfc="none", label=text)
