"""Measure when attention leaves the saddle W^K = W^Q = 0, and how this depends on the init scale.

The onset T_on is the step at which a_topic first reaches a fixed level (0.1), interpolated between records
on a logarithmic scale, since a_topic grows exponentially there.  Another level shifts all onsets equally.
Under SGD a_topic ~ init_scale^2 (1 + eta gamma)^(2 t), with gamma from onset_rate.  So eta T_on has the
slope eta / ln(1 + eta gamma) over ln(1 / init scale), which is 1 / gamma for small steps.  Under Adam it
should not depend on the init scale, as long as that is small.
"""

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from topicjax.errors import UserError, counted
from topicjax.experiments.one_layer.settings import MEMBER_SETTINGS
from topicjax.settings import SEEDS
from topicjax.stages import Array, Records, onset
from topicjax.store.reader import Run
from topicjax.theory.theorems import onset_rate

from ..frames import column, varying
from ..pictures import WIDTH, Picture, described, evenly, label, sentences, style
from ..topic_model import (
    CLASS_COLOURS,
    MAIN_SETTINGS,
    OPTIMIZERS,
    SETTINGS,
    aligned,
    settings_in,
    uses_softmax,
)

LEVEL = 0.1  # of a_topic, in units of attention scores
FLOOR = 1e-3  # of the level: a smaller a_topic counts as this much when interpolating
LEARNED = 0.1  # relative distance to Theorem 2's W^V below which a trained W^V counts as learned
OUTCOMES = {  # outcome: why a trial has no onset, in words
    "diverged": "diverged",
    "frozen": "with untrained attention",
    "zero": "with init scale 0",
    "at_start": "above the level at step 0",
    "censored": "below the level at every step",
}
ASSUMED = dict(  # assumptions of onset_rate
    **dict(optimizer="sgd", objective="squared", documents="tau", infinite_documents=True, l2=0.0),
    **dict(word_distribution="uniform", overlap=0.0, pair_strength=0.0, key_visibility="all"),
    **dict(embedding="one_hot", attention="trained", output_bias="zero", attention_biases="absent"),
)
SIZES = ("topics", "words_per_topic", "topics_per_document", "p_mask", "p_keep", "p_random")
POOLED = (  # may differ within one fit
    *(*SEEDS, "init_scale", "steps", "record_every", "records_per_decade", "eval_documents"),
)
MEANS = ("onset_time", "log_scale", "predicted", "predicted_steps")
FLAT = ("adam", "adamw")  # their onset should not depend on the init scale
PER_DECADE = 0.05  # relative change of an onset per tenfold init scale that counts as none
BELOW_AXIS = 24.0  # points from an axis to its legend: room for ticks and label, whatever the panel's height
LABEL_WIDTH = 38  # characters per line of a legend: longer lines would be cut off at the edge of the figure
COLOURS, MARKERS = tuple(CLASS_COLOURS.values())[:6], "os^Dv<"
MOST_SERIES = len(COLOURS)  # per panel; more could not be distinguished
MOST_POINTS = 1000  # per series
MOST_SLOPES = 40  # rows of the lower panel
LINES = {"-": "predicted slope", "--": "no slope: median", ":": "least-squares fit"}


def onset_times(run: Run, level: float = LEVEL) -> pd.DataFrame:
    """Tabulate for each trial its settings, outcome, onset_step, onset_time = eta T_on, predicted slopes.

    log_scale is ln(1 / init_scale).  predicted is 1 / gamma, and predicted_steps the slope for steps of this
    size; both are NaN where an assumption of onset_rate fails, such as W^V at Theorem 2's optimum.
    """
    if not 0 < level < np.inf:
        raise UserError(f"level is {level}; allowed: above 0")
    run = aligned(run)
    trials, frame = run.trials, run.trajectories
    records = Records.of(frame["step"].to_numpy())
    curve = np.log(np.fmax(column(frame, "a_topic"), FLOOR * level))
    eta, scale = column(trials, "learning_rate"), column(trials, "init_scale")
    with np.errstate(divide="ignore", invalid="ignore"):  # levels never reached, init scale 0
        step, log_scale = onset(records, curve, np.log(level)), -np.log(scale)
    rules = (trials["status"] == "diverged", trials["attention"] != "trained")
    rules = [*map(np.asarray, rules), scale == 0, step == 0, np.isnan(step)]
    outcome = np.select(rules, list(OUTCOMES), "onset")
    step = np.where(outcome == "onset", step, np.nan)
    rate = predicted_rate(trials, value_distance(records, frame, step))
    return trials[["trial_id", *settings_in(trials), "status"]].assign(
        **dict(outcome=outcome, level=level, onset_step=step, onset_time=eta * step, log_scale=log_scale),
        **dict(predicted=1 / rate, predicted_steps=eta / np.log1p(np.where(eta > 0, eta * rate, np.nan))),
    )


def value_distance(records: Records, frame: pd.DataFrame, step: Array) -> Array:
    """Read each trial's theorem2_distance at the last record before its onset; NaN without one."""
    before = np.add.reduceat((records.step < records.spread(step)).astype(int), records.start)
    distance = frame.reindex(columns=["theorem2_distance"]).to_numpy(float)[:, 0]
    return np.where(before > 0, distance[records.start + np.maximum(before - 1, 0)], np.nan)


def predicted_rate(trials: pd.DataFrame, distance: Array) -> Array:
    """Compute gamma of each trial, NaN where an assumption of onset_rate does not hold."""
    holds = np.all([trials[name] == value for name, value in ASSUMED.items()], axis=0)
    holds &= uses_softmax(trials)
    is_learned = (trials["value"] == "trained") & (distance < LEARNED)
    is_theorem2 = (trials.reindex(columns=list(MEMBER_SETTINGS)).fillna(0.0) == 0).all(axis=1)
    holds &= ((trials["value"] == "blocks") & is_theorem2 | is_learned).to_numpy()
    holds &= (trials["topics_per_document"] < trials["topics"]).to_numpy()
    sizes: dict[str, Any] = {name: np.where(holds, column(trials, name), np.nan) for name in SIZES}
    head, width = column(trials, "attention_dim"), sizes["topics"] * sizes["words_per_topic"] + 1
    rate = np.asarray(onset_rate(**sizes, attention_size=np.where(head > 0, head, width)))
    return np.where(rate > 0, rate, np.nan)  # no kept words, or one topic per document: it never leaves


def fit_settings(times: pd.DataFrame) -> list[str]:
    """List the settings that distinguish fits: objective, optimizer and all others that vary."""
    others = [name for name in SETTINGS if name not in (*MAIN_SETTINGS, *POOLED)]
    return [*MAIN_SETTINGS, *varying(times, others)]


def onset_fit(times: pd.DataFrame) -> pd.DataFrame:
    """Fit the slope of onset_time over log_scale: one row per combination of the varying settings.

    A line is fitted to each seed by least squares; slope is their mean, slope_se its standard error over
    seeds (NaN for one).  Trials without an onset are counted by reason and left out.  A seed with onsets
    at only one init scale has no line.
    """
    keys, number = fit_settings(times), fit_numbers(times)
    first = np.unique(number, return_index=True)[1]
    used = times.assign(fit=number).loc[times["outcome"] == "onset"]
    count = len(first)
    onsets = np.bincount(used["fit"], minlength=count)
    columns = dict(trials=np.bincount(number, minlength=count), onsets=onsets)
    for name in OUTCOMES:
        columns[name] = np.bincount(number, times["outcome"] == name, count).astype(int)
    columns |= slopes_over_seeds(used, count)
    with np.errstate(invalid="ignore"):  # without onsets there is no mean
        columns |= {name: np.bincount(used["fit"], used[name], count) / onsets for name in MEANS}
    return times[keys].iloc[first].reset_index(drop=True).assign(**columns)


def fit_numbers(times: pd.DataFrame) -> Array:
    """Number the row of onset_fit that each trial belongs to."""
    return times.groupby(fit_settings(times), dropna=False).ngroup().to_numpy()


def slopes_over_seeds(used: pd.DataFrame, count: int) -> dict[str, Array]:
    """Fit a line per seed; return for each of `count` fits the number of lines, mean slope and its error."""
    used = used.sort_values(["fit", "seed"], kind="stable")
    fit, seed = used["fit"].to_numpy(), used["seed"].to_numpy()
    starts = np.flatnonzero(np.r_[True, (np.diff(fit) != 0) | (np.diff(seed) != 0)][: len(fit)])
    ends = np.r_[starts[1:], len(fit)][: len(starts)]
    log_scale, time = column(used, "log_scale"), column(used, "onset_time")
    found: dict[int, list[float]] = {}
    for start, end in zip(starts, ends, strict=True):
        x = log_scale[start:end] - log_scale[start:end].mean()
        if np.ptp(x) > 1e-9:  # onsets at a single init scale have no slope
            found.setdefault(fit[start], []).append(float(x @ time[start:end] / (x @ x)))
    seeds, slope, error = np.zeros(count, int), np.full(count, np.nan), np.full(count, np.nan)
    for place, slopes in ((place, np.array(slopes)) for place, slopes in found.items()):
        seeds[place], slope[place] = len(slopes), slopes.mean()
        error[place] = slopes.std(ddof=1) / len(slopes) ** 0.5 if len(slopes) > 1 else np.nan
    return dict(seeds=seeds, slope=slope, slope_se=error)


def onset_by_init_scale(run: Run, scores: pd.DataFrame, level: float = LEVEL) -> Picture:
    """Draw eta T_on against ln(1 / init scale) by optimizer, and the slopes against their prediction."""
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
        text = textwrap.fill(", ".join(described(row, names)), LABEL_WIDTH)
        points[0].set(markersize=4, markerfacecolor="none", label=text)
        slope, dashes = expected(row)
        height = used["onset_time"].median() if dashes == "--" else row["onset_time"]
        if row["seeds"]:  # onsets at a single init scale have no line
            ax.plot(x, height + slope * (x - row["log_scale"]), dashes, color=colour, linewidth=0.9)
    ax.set(xlim=x, ylim=(0, 1.08 * shown["onset_time"].max()), title=label(shown["optimizer"].iloc[0]))
    ax.set(xlabel="ln(1 / init scale)", ylabel=r"$\eta\,T_{\mathrm{on}}$ (learning rate $\times$ steps)")
    if names:
        below = ax.transAxes + ScaledTranslation(0, -BELOW_AXIS / 72, ax.figure.dpi_scale_trans)
        place: dict[str, Any] = dict(loc="upper center", bbox_to_anchor=(0.45, 0), bbox_transform=below)
        ax.legend(**place, handletextpad=0.2, labelspacing=0.3)
    return ax


def with_prediction(fit: pd.DataFrame) -> pd.DataFrame:
    """Select the fits that have both a measured and a predicted slope."""
    return fit.loc[(fit["predicted"] > 0) & fit["slope"].notna()]


def expected(row: dict[str, Any]) -> tuple[float, str]:
    """Choose the slope of the line to draw and its style: predicted, flat for Adam if it is, "
    "else measured."""
    if row["predicted"] > 0:
        return row["predicted_steps"], "-"
    is_flat = abs(np.log(10) * row["slope"]) <= PER_DECADE * row["onset_time"]
    return (0.0, "--") if row["optimizer"] in FLAT and is_flat else (row["slope"], ":")


def slope_panel(fit: pd.DataFrame, ax: Axes) -> Axes:
    """Draw measured and predicted slopes in units of 1 / gamma, one row per fit, with their values."""
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
    """Say what is drawn, over how many trials and seeds, and what was left out."""
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
        f"the same topic minus other topics, first reaches {times['level'].iloc[0]:g}, against init scale; "
        f"{len(used)} of {counted(len(times), 'trial')} ({seeds}) have one.": True,
        "Solid lines have the predicted slope, eta / ln(1 + eta gamma), where gamma is the rate at which "
        "topical attention leaves the saddle W^K = W^Q = 0; their height is fitted.": "-" in kinds,
        "Below: measured slopes, mean and standard error over seeds, and predicted ones (in brackets), in "
        "units of 1 / gamma, the slope for small eta.": "-" in kinds,
        f"Dashed lines are flat, at the median of their points: Adam, where a 10x smaller init scale changes "
        f"eta T_on by at most {PER_DECADE:.0%}.": "--" in kinds,
        f"For these it changes by {change.min():z.1f} to {change.max():z.1f} % (least squares).": (
            change.notna().any()
        ),
        "Dotted lines are least-squares fits: there is no prediction for these settings, or, with Adam, the "
        "onset does depend on the init scale.": ":" in kinds,
        f"Not drawn: {counted(hidden, 'combination')} of settings with fewer onsets.": hidden,
        f"Not drawn below: {counted(below, 'more slope')}; those drawn are evenly spaced.": below > 0,
        f"Shown: at most {MOST_POINTS:,} onsets per combination, evenly spaced.": (
            fit["onsets"].max() > MOST_POINTS
        ),
        f"Without an onset: {', '.join(left)}.": left,
    }
    return sentences(parts)
