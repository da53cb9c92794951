"""Theorem 3 and Remark 6: how trained attention weighs keys, beside its bounds and the best there is."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topicjax.experiments.one_layer.settings import MEMBER_SETTINGS
from topicjax.store.reader import Run

from ..pictures import WIDTH, Picture, counted, sentences, style
from ..topic_model import VALUES
from .attention_weights import attention_rows, member
from .seed_rows import (
    MOST_ROWS,
    dots,
    draw_seeds,
    label_rows,
    log_axis,
    row_text,
    rows_of,
    telling_apart,
)
from .trained_models import Array, Frame

PANELS = {  # a measured column, what its axis says, and what of theory is in it
    "weight_average": (r"$\alpha' = ((v-1)\,\alpha+\beta)\,/\,v$", ("best_average", "assumed", "lower")),
    "relative": (r"$\alpha'$ / best $\alpha'$", ("best_relative", "assumed_relative")),
    "missed": ("loss above the best, % of its gain", ("assumed_missed",)),
    "weight_mask": ("weight of [MASK]", ("best_mask",)),
    "weight_topic": (r"$\alpha$: other words of its topic", ("best_topic",)),
    "weight_self": (r"$\beta$: the word itself", ("best_self",)),
}
LINEAR = ("relative", "weight_mask")
BEST: dict[str, Any] = dict(color="#D55E00", ls="", marker="d", ms=7, mfc="none", mew=1.2, zorder=2)
ASSUMED: dict[str, Any] = dict(color="black", ls="", marker="x", ms=5, mew=1.1, zorder=2)
BOUND: dict[str, Any] = dict(color="0.45", ls="", marker=">", ms=5, zorder=2)


def attention_theory(run: Run, scores: pd.DataFrame) -> Picture:
    """Return the attention weights of trained models, a row per cell, beside what theory says of them."""
    frame = with_ratios(attention_rows(run))
    names = telling_apart(frame, without=("value", *MEMBER_SETTINGS))
    frozen = [name for name in ("value", *MEMBER_SETTINGS) if name in frame and frame[name].nunique() > 1]
    places, rows = rows_of(frame, [*names, *frozen])
    frame, places, rows = frame[places < MOST_ROWS], places[places < MOST_ROWS], rows[:MOST_ROWS]
    first = frame.iloc[np.unique(places, return_index=True)[1]].to_dict("records")
    texts = [
        row_text({name: row[name] for name in names}, [value_text(row)] if frozen else []) for row in first
    ]
    with style():
        figure = Figure(figsize=(WIDTH, 3 * (0.6 + 0.3 * len(rows)) + 0.5))
        axes = figure.subplots(3, 2, sharey=True)
        for ax, (name, (text, theory)) in zip(axes.flat, PANELS.items(), strict=True):
            draw_seeds(ax, places, frame[name].to_numpy())
            draw_theory(ax, frame, places, theory)
            ax.set_xlabel(text)
            if name not in LINEAR:
                log_axis(ax)
            if name != "missed":
                ax.axvline(1, color="0.8", lw=0.8, zorder=1)
        for line in axes:
            label_rows(line, texts)
        figure.legend(handles=legend(frame), loc="outside lower center", ncols=2)
    return Picture(
        figure,
        "Trained attention beside Theorem 3 and the best attention",
        caption(frame),
        f"Weights that words give to kinds of keys in {counted(len(rows), 'cell')}, each seed a dot, with "
        "the best attention of theory marked in its row.",
    )


def with_ratios(frame: Frame) -> Frame:
    """Return the rows with alpha' in units of the best, and what is missed in percent."""
    best = frame["best_average"]
    ratios = dict(relative=frame["weight_average"] / best, assumed_relative=frame["assumed"] / best)
    percent = {name: 100 * frame[name] for name in ("missed", "assumed_missed")}
    return frame.assign(**ratios, **percent, best_relative=best / best)


def value_text(settings: Mapping[Any, Any]) -> str:
    """Return which W^V a trial had: trained, Theorem 2's, or another member of Lemma 1's family in words."""
    shift, own, random = member(settings)
    if settings["value"] != "blocks" or not any((shift, own, random)):
        return VALUES[settings["value"]]
    shape = {0.0: "uniform blocks", 1.0: "diagonal"}.get(own, f"{own:.0%} on the diagonal")
    parts = [shape] if random == 0 or own else []
    parts += [{1.0: "u = 0"}.get(shift, f"u times {1 - shift:g}")] if shift else []
    return ", ".join([*parts, *([f"blocks + random part {random:g}"] if random else [])])


def draw_theory(ax: Axes, frame: Frame, places: Array, names: Sequence[str]) -> None:
    """Mark in every row what theory says of a panel's weight."""
    first = np.unique(places, return_index=True)[1]
    for name in names:
        values = frame[name].to_numpy(float)[first]
        look = BOUND if name == "lower" else BEST if name.startswith("best") else ASSUMED
        ax.plot(np.where(values > 0, values, np.nan), -places[first], **look)


def legend(frame: Frame) -> list[Line2D]:
    """Return an entry for each mark that is drawn."""
    marks = {
        "best_average": (BEST, "best attention, weight of [MASK] free"),
        "assumed": (ASSUMED, "best of Assumption 2's kind"),
        "lower": (BOUND, "Theorem 3's lower bound"),
    }
    drawn = [
        Line2D([], [], label=text, **look) for name, (look, text) in marks.items() if any_finite(frame, name)
    ]
    return [dots(), *drawn]


def any_finite(frame: Frame, name: str) -> bool:
    """Return whether a column has a number."""
    return bool(frame[name].notna().any())


def caption(frame: Frame) -> str:
    """Return what is drawn, whether alpha' lies within its bounds, and how near to the best the loss is."""
    bounded = frame[frame["lower"].notna()]
    within = int(
        (
            (bounded["weight_average"] > bounded["lower"]) & (bounded["weight_average"] < bounded["upper"])
        ).sum()
    )
    uniform, known = frame[frame["assumed"].notna()], frame[frame["missed"].notna()]
    below = frame[frame["weight_topic"] < 1]
    parts = {
        "How much a word weighs a kind of key, beside the mean word of another topic (1, grey line): medians "
        f"over the words of each of {counted(len(frame), 'trained model')}.": True,
        f"alpha' lies within Theorem 3's bounds in {within} of {len(bounded)} models; the upper bound, "
        f"{bounded['upper'].max():,.0f} at most, is beyond the axis; the theorem is asymptotic in the number "
        "of topics.": len(bounded),
        "Where W^V has uniform blocks only alpha' matters; the best alpha and beta are marked where each "
        "matters (unless the best is 0).": len(uniform),
        "The loss, exact over all documents, is above that of the best attention by at most "
        f"{known['missed'].max():.2g} % of what that gains over uniform attention.": len(known),
        "The best of Assumption 2's kind, in which words weigh [MASK] as words of other topics, misses "
        f"{uniform['assumed_missed'].min():.2g} to {uniform['assumed_missed'].max():.2g} %.": len(uniform),
        f"In {len(below)} models words weigh other words of their topic less than words of other topics: "
        "alpha is below 1.": len(below),
        "Members with a random part and a trained W^V have no marks of the best attention.": (
            frame["best_average"].isna().any()
        ),
    }
    return sentences(parts)
