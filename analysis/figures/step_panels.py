"""Lay out columns of panels over the steps, with titles and one legend."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, NullLocator

from ..frames import column
from ..pictures import SMALL, WIDTH

MOST_POINTS = 250  # per line; more records are drawn as medians over bins of steps
LABEL_RATIO = 2.5  # smallest ratio of two steps whose labels do not touch on a logarithmic axis
INTERVALS = 15  # with more record intervals than this, steps are on a logarithmic axis
TITLE_SIZE, TITLE_LINE = SMALL, 0.125  # points, and inches per line
LEGEND_LINE = 0.16  # inches
TITLE_WIDTH = 80  # characters over the whole figure
ACROSS = 2  # panels side by side; more would be too small on a phone
HALF = 0.5  # a band ends where less than this share of its trials still have records
ENDS = "A line ends where fewer than half of its trials still have records."
QUARTILES = Patch(fc="0.5", alpha=0.3, lw=0, label="band: quartiles of the trials")
Columns = list[list[Axes]]


def panel_grid(
    titles: Sequence[Sequence[str]], across: int, rows: Mapping[str, float]
) -> tuple[Figure, Columns]:
    """Make a figure with a column of panels under each title; a row of panels has a label and a height."""
    across = min(across, len(titles), ACROSS)
    lines, heights = -(-len(titles) // across), list(rows.values())
    height = sum(heights) + 0.4 + TITLE_LINE * max(map(len, titles))
    figure = Figure(figsize=(WIDTH, lines * height + 0.9))
    grid = figure.subplots(lines * len(rows), across, squeeze=False, height_ratios=heights * lines)
    columns = [list(part) for line in np.split(grid, lines) for part in line.T]
    for ax in (ax for axes in columns[len(titles) :] for ax in axes):
        ax.remove()
    for index, (title, axes) in enumerate(zip(titles, columns, strict=False)):
        for ax, name in zip(axes, rows, strict=True):
            ax.set_ylabel("" if index % across else name)
            ax.tick_params(labelbottom=ax is axes[-1])
        axes[0].set_title("\n".join(title), fontsize=TITLE_SIZE)
        axes[-1].set_xlabel("step")
    figure.align_ylabels(grid[:, 0])
    return figure, columns[: len(titles)]


def title_lines(texts: Sequence[str], across: int) -> list[str]:
    """Join the texts with commas, breaking lines to fit the width of one of `across` panels."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + 2 + len(text) <= TITLE_WIDTH // min(across, ACROSS):
            lines[-1] += f", {text}"
        else:
            lines.append(text)
    return lines


def step_axis(ax: Axes, step: Any) -> Axes:
    """Scale an axis of steps: logarithmic from the first record on if there are many records."""
    steps = np.unique(pd.unique(np.asarray(step, float)))  # pd.unique first: less to sort
    first, last = steps[steps > 0].min(initial=np.inf), steps.max()
    ax.set_xlim(0, max(last, 1))
    if last > INTERVALS * first:
        ax.set_xscale("symlog", linthresh=first, linscale=0.4)
        ax.set_xlim(0, last)
        decades = 10.0 ** np.arange(np.ceil(np.log10(1.5 * first)), np.log10(last) + 1e-9)
        is_apart = last > LABEL_RATIO * decades.max(initial=first)
        ax.set_xticks([0, *decades, *([last] if is_apart else [])])
        ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    return ax


def thinned(frame: Any, names: Sequence[str], steps: Any = None) -> pd.DataFrame:
    """Thin these columns to at most MOST_POINTS records per trial: medians over bins of log step.

    `steps` are those of the whole run, if the frame is one part and all parts must share bins.
    """
    step = column(frame, "step")
    steps = pd.unique(step if steps is None else np.asarray(steps, float))
    if len(steps) > MOST_POINTS:
        first, last = steps[steps > 0].min(), steps.max()
        place = np.log(np.maximum(step, first) / first) / np.log(last / first)
        bins = np.where(step > 0, 1 + np.floor((MOST_POINTS - 2) * place), 0)
        groups = frame.assign(bin=bins).groupby(["trial_id", "bin"], sort=False)
        frame = groups[["step", *names]].median().reset_index()
    return frame[["trial_id", "step", *names]].copy()


def is_cut_short(band: pd.DataFrame) -> bool:
    """Tell whether `bands` left out quantiles at steps that too few of the trials reach."""
    return bool((band["q50"].isna() & (band["trials"] > 0)).any())


def shared_legend(
    figure: Figure, columns: Sequence[Sequence[Axes]], order: Iterable[str] = (), more: Iterable[Any] = ()
) -> None:
    """Add one legend below the panels, with every line once, in this order, then the handles of `more`."""
    rank = {text: place for place, text in enumerate(order)}
    axes = [ax for row in zip(*columns, strict=True) for ax in row]
    found = [entry for ax in axes for entry in zip(*ax.get_legend_handles_labels(), strict=True)]
    found.sort(key=lambda entry: rank.get(entry[1], len(rank)))
    entries = {text: handle for handle, text in found} | {handle.get_label(): handle for handle in more}
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * max(0, -(-len(entries) // ACROSS) - 4))
    figure.legend([*entries.values()], [*entries], loc="outside lower center", ncols=ACROSS)
