"""Figure of how the engine's throughput scales, from the table of `topicjax bench --scaling`."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from topicjax.errors import UserError

from ..pictures import Picture, style

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"
CHUNK_CURVES = {  # name in the table: label
    "trials per chunk, one stream a device": "one stream per device",
    "trials per chunk, 16 hypers a stream": "16 hypers per stream",
}
CURVES = (*CHUNK_CURVES, "hypers per stream", "devices", "batch size", "vocabulary", "steps", "trials")
RATE = "1,000 trial-steps/s"
Columns = dict[str, np.ndarray]


def scaling_figure(frame: pd.DataFrame) -> Picture:
    """Draw throughput against every size, and cost against steps and trials."""
    found = set(frame["curve"]) if "curve" in frame else set()
    missing = [curve for curve in CURVES if curve not in found]
    if missing:
        raise UserError(
            f"the scaling table lacks {'; '.join(missing)}; allowed: a table written by `topicjax bench "
            "--scaling`"
        )
    with style():
        figure = Figure(figsize=(7.0, 4.4))
        axes = figure.subplots(2, 3).ravel()
        chunk_panel(frame, axes[0])
        rate_panel(frame, axes[1], "hypers per stream", "hypers_per_stream")
        devices_panel(frame, axes[2])
        rate_panel(frame, axes[3], "batch size", "batch_size", "documents in a batch")
        vocabulary_panel(frame, axes[4])
        linear_panel(frame, axes[5])
    return Picture(figure, "How the engine scales", caption(frame), alt_text(frame))


def along(frame: pd.DataFrame, curve: str) -> Columns:
    """Select the columns of one curve."""
    chosen = frame["curve"].to_numpy() == curve
    return {str(name): frame[name].to_numpy()[chosen] for name in frame.columns}


def draw(part: Columns, x: np.ndarray, ax: Axes, colour: str, name: str = "", marker: str = "o") -> None:
    """Draw median rates with bars from the slowest to the fastest repeat."""
    median = part["trial_steps_per_second"]
    below_above = np.array([median - part["lowest"], part["highest"] - median]) / 1000
    filled = marker == "o"  # other markers are open, so that points under them stay visible
    ax.errorbar(
        x,
        median / 1000,
        below_above,
        fmt=f"{marker}-",
        color=colour,
        markersize=3.5 if filled else 6.5,
        markerfacecolor=colour if filled else "none",
        label=name,
    )


def plain_ticks(ax: Axes, values: Iterable[float]) -> None:
    """Make the axis logarithmic, with ticks at the measured sizes."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted(set(values)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())


def chunk_panel(frame: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the rate against the trials per call, which grow in two ways."""
    sizes: list[float] = []
    for (curve, name), colour in zip(CHUNK_CURVES.items(), (BLUE, ORANGE), strict=True):
        part = along(frame, curve)
        draw(part, part["trials_per_chunk"], ax, colour, name)
        sizes += part["trials_per_chunk"].tolist()
    plain_ticks(ax, sizes)
    ax.set_ylim(bottom=0)  # after drawing: it switches autoscaling off
    ax.set(xlabel="trials per chunk", ylabel=RATE)
    ax.legend(loc="lower right")
    return ax


def rate_panel(frame: pd.DataFrame, ax: Axes, curve: str, column: str, xlabel: str = "") -> Axes:
    """Draw the rate along one curve."""
    part = along(frame, curve)
    draw(part, part[column], ax, BLUE)
    plain_ticks(ax, part[column])
    ax.set_ylim(bottom=0)
    ax.set(xlabel=xlabel or curve, ylabel=RATE)
    return ax


def devices_panel(frame: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the rate against the number of devices, with the line of perfect scaling."""
    part = along(frame, "devices")
    devices, rate = part["devices"], part["trial_steps_per_second"]
    ax.plot(devices, rate[0] * devices / devices[0] / 1000, "--", color=GREY, label="proportional")
    draw(part, devices, ax, BLUE, "measured")
    ax.set_xticks(devices)
    ax.margins(x=0.2)
    ax.set_ylim(bottom=0)
    ax.set(xlabel="devices", ylabel=RATE)
    ax.legend(loc="lower right")
    return ax


def vocabulary_panel(frame: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the rate against the number of words on log axes; the colour says which factor is larger."""
    part = along(frame, "vocabulary")
    words = part["topics"] * part["words_per_topic"]
    many_topics = part["topics"] > part["words_per_topic"]
    kinds = ((~many_topics, BLUE, "T ≤ v", "o"), (many_topics, ORANGE, "T > v", "s"))
    for chosen, colour, name, marker in kinds:
        if chosen.any():
            shown = {key: values[chosen] for key, values in part.items()}
            draw(shown, words[chosen], ax, colour, name, marker)
    plain_ticks(ax, words)
    ax.set_yscale("log")
    for place in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        place(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "125" else ""))
    ax.set(xlabel="words in the vocabulary, T v", ylabel=RATE)
    ax.legend(loc="lower left")
    return ax


def linear_panel(frame: pd.DataFrame, ax: Axes) -> Axes:
    """Draw seconds against steps and trials, each in units of its smallest value, with lines through zero."""
    for curve, colour, marker in (("steps", BLUE, "o"), ("trials", ORANGE, "s")):
        part = along(frame, curve)
        unit, seconds = part[curve].min(), part["seconds"]
        times = part[curve] / unit
        ax.plot(times, seconds, marker, color=colour, markersize=3.5, label=f"{curve}: units of {unit}")
        end = np.array([0, times.max()])
        ax.plot(end, slope(times, seconds) * end, "--", color=colour, linewidth=0.8)
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set(xlabel="steps or trials, in these units", ylabel="seconds")
    ax.legend(loc="lower right")
    return ax


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Fit the slope of a line through zero, with equal relative weight for all points."""
    return float(np.mean(y / x))


def departure(frame: pd.DataFrame, curve: str) -> float:
    """Compute the largest relative deviation of a curve's seconds from its line through zero."""
    part = along(frame, curve)
    fitted = slope(part[curve], part["seconds"]) * part[curve]
    return float(np.abs(part["seconds"] / fitted - 1).max())


def caption(frame: pd.DataFrame) -> str:
    """Say what is drawn, over how many repeats, and how straight the lines are."""
    part = along(frame, "devices")
    devices, rate = part["devices"], part["trial_steps_per_second"]
    sentences = [
        "Trial-steps per second of the engine (Adam, records on),",
        f"medians of {frame['repeats'].min()} interleaved repeats, bars from the slowest to the fastest.",
        "Unless the axis says otherwise, a device trains 16 trials on the same documents, batch size 40,",
        "T = v = 10; hypers per stream are compared at 32 trials per device.",
    ]
    if len(devices) > 1:
        sentences.append(f"{devices[-1]} devices do {rate[-1] / rate[0]:.2f} times the work of {devices[0]}.")
    sentences += [
        "Dashed in the last panel: proportional cost; the measured seconds are within",
        f"{departure(frame, 'steps'):.0%} (steps) and {departure(frame, 'trials'):.0%} (trials) of it.",
    ]
    return " ".join(sentences)


def alt_text(frame: pd.DataFrame) -> str:
    """Describe the panels and the range of rates."""
    rate = frame["trial_steps_per_second"].to_numpy()
    return (
        "Six panels: throughput against trials per chunk, hypers per stream, devices, batch size and "
        f"vocabulary, and seconds against steps and trials; rates go from {rate.min():,.0f} to "
        f"{rate.max():,.0f} trial-steps per second."
    )
