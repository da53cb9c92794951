"""Section 5.2 of the paper: final losses of joint training, of uniform attention, and the limit lines."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..frames import varying
from ..pictures import WIDTH, Picture, counted, described, evenly, label, sentences, style
from ..topic_model import MAIN_SETTINGS
from .endings import joint_gains, lines_in, pair_settings, quartiles
from .loss_curves import DOCUMENTS

COLOURS = {"uniform": "#E69F00", "joint": "#0072B2"}
MARKS = {"uniform": "D", "joint": "o"}
OFFSETS = {"uniform": 0.17, "joint": -0.17}  # places above the middle of a row
MOST_ROWS = 24
LIMITS = {"stage1": ("stage 1", "-"), "stage2": ("stage 2", (0, (3, 1.5))), "bayes": ("Bayes", (0, (1, 1)))}
ROW = 0.34  # inches


def joint_losses(run: Run, scores: pd.DataFrame) -> Picture:
    """Return the final losses of joint training and of uniform attention with the lines, in rows."""
    pairs = joint_gains(run)
    if pairs.empty:
        raise UserError("no two trials differ in attention alone; allowed: attention trained and uniform")
    names = [name for name in pair_settings(pairs) if name != "objective"]
    objectives = sorted(pairs["objective"].unique())
    own = [pairs.loc[pairs["objective"] == name] for name in objectives]
    tables = [quartiles(part, names, ["joint", "uniform"], lines_in(part)) for part in own]
    shown = [table.iloc[evenly(len(table), MOST_ROWS)] for table in tables]
    with style():
        figure = Figure((WIDTH, 0.85 + sum(0.6 + ROW * len(table) for table in shown)))
        ratios = [0.4 + ROW * len(table) for table in shown]
        axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=ratios)[:, 0]
        named = varying(pd.concat(shown), names) or names[:1]
        for ax, table, objective in zip(axes, shown, objectives, strict=True):
            loss_panel(table, ax, named)
            ax.set(title=label(objective), xlabel="held-out loss at the end")
        figure.legend(handles=handles(pairs), loc="outside lower center", ncols=2)
    hidden = sum(map(len, tables)) - sum(map(len, shown))
    return Picture(
        figure,
        "Joint training against uniform attention",
        caption(pairs, hidden),
        "Final held-out losses of joint training and of uniform attention, "
        f"{counted(sum(map(len, shown)), 'row')}. " + " ".join(gains(pairs)),
    )


def loss_panel(table: pd.DataFrame, ax: Axes, names: list[str]) -> Axes:
    """Draw a row per setting: both losses with their quartiles, and the lines as ticks."""
    places = np.arange(len(table))[::-1]
    for place, row in zip(places, table.to_dict("records"), strict=True):
        for limit, (_, line) in LIMITS.items():
            for name, colour in ((f"line_{limit}", "black"), (f"held_out_{limit}", DOCUMENTS)):
                value = row.get(name, np.nan)
                ax.plot([value, value], [place - 0.42, place + 0.42], color=colour, ls=line, lw=1.1)
    for kind, colour in COLOURS.items():
        middle, low, high = (table[kind + end].to_numpy(float) for end in ("", "_q25", "_q75"))
        spread = np.abs(np.stack([middle - low, high - middle]))
        ax.errorbar(
            middle, places + OFFSETS[kind], xerr=spread, fmt=MARKS[kind], color=colour, ms=4, elinewidth=1.4
        )
    texts = [", ".join(described(row, names)) for row in table.to_dict("records")]
    ax.set_yticks(places, [two_lines(text) for text in texts])
    ax.set_ylim(-0.6, len(table) - 0.4)
    return ax


def two_lines(text: str) -> str:
    """Return a text of several parts in two lines if it is long."""
    parts = text.split(", ")
    half = (len(parts) + 1) // 2
    return text if len(text) < 22 else f"{', '.join(parts[:half])}\n{', '.join(parts[half:])}"


def handles(pairs: Any) -> list[Any]:
    """Return the legend: marks of both ways to train, and of the lines."""
    words = {"uniform": "W^V alone, uniform attention", "joint": "W^K, W^Q, W^V jointly"}
    marks: list[Any] = [
        Line2D([], [], color=COLOURS[name], marker=MARKS[name], ls="", ms=4, label=text)
        for name, text in words.items()
    ]
    sources = {
        "line_": ("black", "all documents"),
        "held_out_": (DOCUMENTS, "held-out documents"),
    }
    for begin, (colour, where) in sources.items():
        for limit, (text, line) in LIMITS.items():
            if begin + limit in pairs and pairs[begin + limit].notna().any():
                marks.append(Line2D([], [], color=colour, ls=line, lw=1.1, label=f"{text}, {where}"))
    return [*marks, Line2D([], [], color="0.4", lw=1.4, label="bar: quartiles over seeds")]


def gains(pairs: Any) -> list[str]:
    """Return sentences on how much lower joint training ends, in units of what topical attention can gain.

    Of several settings the least and the largest of their medians over seeds.
    """
    table: Any = quartiles(pairs, pair_settings(pairs), ["saved", "share"])
    found = []
    for kind, own in table.groupby(list(MAIN_SETTINGS), sort=True):
        text = f"{', '.join(map(label, kind))}: lower by {span(own['saved'], 4)}"
        if own["share"].notna().any():
            text += f", {span(own['share'], 2)} of what topical attention can gain"
            if len(own) == 1:
                text += f" (quartiles {own['share_q25'].iloc[0]:.2f} to {own['share_q75'].iloc[0]:.2f})"
        found.append(f"{text}; {counted(own['n'].sum(), 'pair')} in {counted(len(own), 'setting')}.")
    return found


def span(values: Any, decimals: int) -> str:
    """Return the least and the largest of some numbers, or the one they are to so many decimals."""
    low, high = (f"{value:.{decimals}f}" for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def caption(pairs: Any, hidden: int) -> str:
    """Return how much lower joint training ends, what is drawn and what is not."""
    lost = pairs[["joint", "uniform"]].isna().any(axis=1).sum()
    parts = {
        "Held-out loss, the mean over the last tenth of the steps; median and quartiles over seeds. How much "
        "lower joint training ends than W^V alone, of equal seeds:": True,
        " ".join(gains(pairs)): True,
        "What topical attention can gain is stage 1 - stage 2 on these documents; stage 2 keeps the W^V of "
        "stage 1, so training both can go lower.": True,
        f"Not drawn: {counted(hidden, 'further row')}.": hidden,
        f"{counted(lost, 'pair')} without a number: a trial is not finite.": lost,
    }
    return sentences(parts)
