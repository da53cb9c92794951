"""When attention leaves the saddle W^K = W^Q = 0: learning rate x onset step against ln(1 / init scale)."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..frames import MAIN_SETTINGS, column
from ..pictures import (
    CLASS_COLOURS,
    OPTIMIZERS,
    WIDTH,
    Picture,
    counted,
    described,
    label,
    sentences,
    style,
)
from ..scoring.onset_times import LEVEL, OUTCOMES, fit_settings, fits, onset_fit, onset_times

FLAT = ("adam", "adamw")  # their onset should not depend on the init scale
COLOURS, MARKERS = tuple(CLASS_COLOURS.values())[:6], "os^Dv<"
MOST_SERIES = len(COLOURS)  # in a panel; more cannot be told apart


def onset_by_init_scale(run: Run, scores: pd.DataFrame, level: float = LEVEL) -> Picture:
    """Return eta T_on against ln(1 / init scale) by optimizer, and the slopes against their prediction."""
    times = onset_times(run, level)
    used = times.loc[times["outcome"] == "onset"]
    if used.empty:
        raise UserError(f"no trial has an onset, a_topic = {level:g} reached after step 0; needed: one")
    fit = onset_fit(times)
    known = fit.loc[(fit["predicted"] > 0) & fit["slope"].notna()]
    optimizers = sorted(set(used["optimizer"]), key=OPTIMIZERS.index)
    heights = [3.6, 0.75 + 0.2 * len(known)][: 1 + (len(known) > 0)]
    with style():
        figure = Figure(figsize=(WIDTH, sum(heights)))
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        for ax, name in zip(parts[0].subplots(1, len(optimizers), squeeze=False)[0], optimizers, strict=True):
            onset_panel(times.loc[times["optimizer"] == name], ax)
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
    found = sorted((f for f in fits(times) if f[0]["onsets"]), key=lambda f: -f[0]["onsets"])[:MOST_SERIES]
    names = [name for name in fit_settings(times) if len({row[name] for row, _ in found}) > 1]
    found.sort(key=lambda f: [f[0][name] for name in reversed(names)])
    shown = pd.concat([used for _, used in found])
    x = np.array([shown["log_scale"].min() - 0.4, shown["log_scale"].max() + 0.4])
    for index, (row, used) in enumerate(found):
        colour = COLOURS[index]
        points = ax.plot(used["log_scale"], used["onset_time"], MARKERS[index], color=colour)
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
    for row, y in zip(rows, place, strict=True):
        text = f"{row['slope']:.5g} ± {row['slope_se']:.2g} ({row['predicted_steps']:.5g})"
        ax.annotate(text.replace(" ± nan", ""), (1.01, y), xycoords=("axes fraction", "data"), va="center")
    ends = np.concatenate([measured, steps, [1.0]])
    margin = max(0.005, 0.15 * np.ptp(ends))
    ax.set(xlim=(ends.min() - margin, ends.max() + margin), ylim=(-0.6, len(fit) - 0.4))
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
        f"Without an onset: {', '.join(left)}.": left,
    }
    return sentences(parts)
