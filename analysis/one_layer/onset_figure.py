"""When attention leaves the saddle W^K = W^Q = 0: learning rate x onset step against ln(1 / init scale)."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..frames import column
from ..pictures import WIDTH, Picture, counted, described, evenly, label, sentences, style
from ..topic_model import CLASS_COLOURS, MAIN_SETTINGS, OPTIMIZERS
from .onset_times import (
    LEVEL,
    OUTCOMES,
    fit_numbers,
    fit_settings,
    onset_fit,
    onset_times,
)

FLAT = ("adam", "adamw")  # their onset should not depend on the init scale
COLOURS, MARKERS = tuple(CLASS_COLOURS.values())[:6], "os^Dv<"
MOST_SERIES = len(COLOURS)  # in a panel; more cannot be told apart
MOST_POINTS = 1000  # of a series
MOST_SLOPES = 40  # lines of the lower panel
LINES = {"-": "predicted slope", "--": "no slope: median", ":": "least-squares fit"}


def onset_by_init_scale(run: Run, scores: pd.DataFrame, level: float = LEVEL) -> Picture:
    """Return eta T_on against ln(1 / init scale) by optimizer, and the slopes against their prediction."""
    times = onset_times(run, level)
    used = times.loc[times["outcome"] == "onset"]
    if used.empty:
        raise UserError(f"no trial has an onset, a_topic = {level:g} reached after step 0; needed: one")
    fit = onset_fit(times)
    known = with_prediction(fit)
    known = known.iloc[evenly(len(known), MOST_SLOPES)]
    optimizers = sorted(set(used["optimizer"]), key=OPTIMIZERS.index)
    heights = [3.9, 0.75 + 0.34 * len(known)][: 1 + (len(known) > 0)]
    styles = {expected(row)[1] for row in fit.to_dict("records") if row["seeds"] and row["onsets"]}
    with style():
        figure = Figure(figsize=(WIDTH, sum(heights)))
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        for ax, name in zip(parts[0].subplots(1, len(optimizers), squeeze=False)[0], optimizers, strict=True):
            onset_panel(times.loc[times["optimizer"] == name], ax)
        lines = [Line2D([], [], color="0.4", lw=0.9, ls=ls, label=text) for ls, text in LINES.items()]
        lines = [line for line in lines if line.get_linestyle() in styles]
        if lines:
            parts[0].legend(handles=lines, loc="outside lower center", ncols=len(lines))
        if len(known):
            slope_panel(known, parts[1].subplots())
    return Picture(
        figure,
        "When attention becomes topical, by init scale",
        caption(times, fit),
        "Learning rate times onset step against the logarithm of one over the init scale, for "
        + ", ".join(map(label, optimizers))
        + ("; below, measured and predicted slopes." if len(known) else "."),
    )


def onset_panel(times: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the onsets of one optimizer, a point per trial, and the line of `expected` for each fit."""
    fit, number = onset_fit(times), np.where(times["outcome"] == "onset", fit_numbers(times), -1)
    most = fit.loc[fit["onsets"] > 0].sort_values("onsets", ascending=False, kind="stable").head(MOST_SERIES)
    names = [name for name in fit_settings(times) if most[name].nunique() > 1]
    most = most.sort_values(names[::-1], kind="stable") if names else most
    found = [(most.loc[place].to_dict(), times.loc[number == place]) for place in most.index]
    shown = pd.concat([used for _, used in found])
    x = np.array([shown["log_scale"].min() - 0.4, shown["log_scale"].max() + 0.4])
    for index, (row, used) in enumerate(found):
        colour = COLOURS[index]
        drawn = used.iloc[evenly(len(used), MOST_POINTS)]
        points = ax.plot(drawn["log_scale"], drawn["onset_time"], MARKERS[index], color=colour)
        points[0].set(markersize=4, markerfacecolor="none", label=", ".join(described(row, names)))
        slope, dashes = expected(row)
        height = used["onset_time"].median() if dashes == "--" else row["onset_time"]
        if row["seeds"]:  # onsets at one init scale only have no line
            ax.plot(x, height + slope * (x - row["log_scale"]), dashes, color=colour, linewidth=0.9)
    ax.set(xlim=x, ylim=(0, 1.08 * shown["onset_time"].max()), title=label(shown["optimizer"].iloc[0]))
    ax.set(xlabel="ln(1 / init scale)", ylabel=r"$\eta\,T_{\mathrm{on}}$ (learning rate $\times$ steps)")
    if names:
        ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.18), handletextpad=0.2, labelspacing=0.3)
    return ax


def with_prediction(fit: pd.DataFrame) -> pd.DataFrame:
    """Return the fits that have both a measured and a predicted slope."""
    return fit.loc[(fit["predicted"] > 0) & fit["slope"].notna()]


def expected(row: dict[str, Any]) -> tuple[float, str]:
    """Return the slope of the line to draw and its style: predicted, flat for Adam, else as measured."""
    if row["predicted"] > 0:
        return row["predicted_steps"], "-"
    return (0.0, "--") if row["optimizer"] in FLAT else (row["slope"], ":")


def slope_panel(fit: pd.DataFrame, ax: Axes) -> Axes:
    """Draw measured and predicted slopes in units of 1 / gamma, one line per fit, values beside them."""
    columns, rows, unit = list(fit.columns), fit.to_dict("records"), column(fit, "predicted")
    names = [name for name in columns[: columns.index("trials")] if len(set(fit[name])) > 1]
    measured, error, steps = fit[["slope", "slope_se", "predicted_steps"]].to_numpy(float).T / unit
    place = np.arange(len(fit))[::-1]
    ax.axvline(1, color="#999999", linewidth=0.8)
    ax.plot(steps, place, "|", color="#D55E00", markersize=10, markeredgewidth=1.6, label="predicted")
    ax.errorbar(measured, place, xerr=np.nan_to_num(error), fmt="o", ms=3.5, c="#0072B2", label="measured")
    place_of: Any = ("axes fraction", "data")
    for row, y in zip(rows, place, strict=True):
        text = f"{row['slope']:.5g} ± {row['slope_se']:.2g} ({row['predicted_steps']:.5g})"
        ax.annotate(text.replace(" ± nan", ""), (0.99, y + 0.18), xycoords=place_of, ha="right", va="bottom")
    ends = np.concatenate([measured, steps, [1.0]])
    margin = max(0.005, 0.15 * np.ptp(ends))
    ax.set(xlim=(ends.min() - margin, ends.max() + margin), ylim=(-0.6, len(fit) - 0.1))
    ax.set_xlabel(r"slope of $\eta\,T_{\mathrm{on}}$ in units of $1/\gamma$")
    ax.set_yticks(place, [", ".join(described(row, names or MAIN_SETTINGS)) for row in rows])
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return ax


def caption(times: pd.DataFrame, fit: pd.DataFrame) -> str:
    """Return what is drawn, over how many trials and seeds, and what was left out."""
    fit, used = fit.loc[fit["onsets"] > 0], times.loc[times["outcome"] == "onset"]
    kinds = np.array([expected(row)[1] if row["seeds"] else "" for row in fit.to_dict("records")])
    change = 100 * np.log(10) * (fit["slope"] / fit["onset_time"])[kinds == "--"]
    hidden = sum(max(0, count - MOST_SERIES) for count in fit["optimizer"].value_counts())
    below = len(with_prediction(fit)) - MOST_SLOPES
    counts = times["outcome"].value_counts()
    left = [f"{counts[name]} {text}" for name, text in OUTCOMES.items() if name in counts]
    seeds = counted(used["seed"].nunique(), "seed")
    parts = {
        "Each point is a trial: learning rate eta times the step at which a_topic, the attention score of "
        f"the same topic minus other topics, first reaches {times['level'].iloc[0]:g}, over init scales; "
        f"{len(used)} of {counted(len(times), 'trial')} ({seeds}) have one.": True,
        "Solid lines have the predicted slope, eta / ln(1 + eta gamma), gamma being the rate at which "
        "topical attention leaves the saddle W^K = W^Q = 0; their height is fitted.": "-" in kinds,
        "Below: measured slopes, mean and standard error over seeds, and predicted ones (in brackets), in "
        "units of 1 / gamma, the slope for small eta.": "-" in kinds,
        "Dashed lines are flat, at the median of their points.": "--" in kinds,
        f"There a tenfold smaller init scale changes eta T_on by {change.min():.1f} to {change.max():.1f} % "
        "(least squares).": change.notna().any(),
        "Dotted lines are least-squares fits; there is no prediction for these settings.": ":" in kinds,
        f"Not drawn: {counted(hidden, 'combination')} of settings with fewer onsets.": hidden,
        f"Not drawn below: {counted(below, 'further slope')}; those drawn are evenly picked.": below > 0,
        f"Of a combination with more than {MOST_POINTS:,} onsets as many are drawn, evenly picked.": (
            fit["onsets"].max() > MOST_POINTS
        ),
        f"Without an onset: {', '.join(left)}.": left,
    }
    return sentences(parts)
