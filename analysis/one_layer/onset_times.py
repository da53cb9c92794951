"""When attention leaves the saddle W^K = W^Q = 0: the onset of each trial, and how it depends on init scale.

The onset T_on is the step at which a_topic first reaches a fixed level (0.1), interpolated between records
on a logarithmic scale, since a_topic grows exponentially there.  Another level only shifts all onsets alike.
Under SGD a_topic ~ init_scale^2 (1 + eta gamma)^(2 t), with gamma of theory.onset, so eta T_on has the
slope eta / ln(1 + eta gamma) over ln(1 / init scale), which is 1 / gamma for small steps.  Under Adam it
should not depend on the init scale, as long as that is small.
"""

from typing import Any

import numpy as np
import pandas as pd

from topicjax.errors import UserError
from topicjax.experiments.one_layer.settings import MEMBER_SETTINGS
from topicjax.store.reader import Run
from topicjax.theory.onset import onset_rate

from ..frames import column, varying
from ..topic_model import MAIN_SETTINGS, SETTINGS, aligned, settings_in
from .curves import Array, Records, onset

LEVEL = 0.1  # of a_topic, in units of attention scores
FLOOR = 1e-3  # of the level: a smaller a_topic counts as this much when interpolating
LEARNED = 0.1  # a trained W^V this near to Theorem 2's, relatively, counts as there
OUTCOMES = {  # why a trial has no onset, in a reader's words
    "diverged": "diverged",
    "frozen": "with untrained attention",
    "zero": "with init scale 0",
    "at_start": "above the level at step 0",
    "censored": "below the level at every step",
}
ASSUMED = dict(  # of onset_rate
    **dict(optimizer="sgd", objective="squared", documents="tau", infinite_documents=True, l2=0.0),
    **dict(word_distribution="uniform", overlap=0.0, key_visibility="all", embedding="one_hot"),
    **dict(attention="trained", output_bias="zero", attention_biases="absent"),
)
SIZES = ("topics", "words_per_topic", "topics_per_document", "p_mask", "p_keep", "p_random")
POOLED = ("seed", "init_scale", "steps", "record_every", "eval_documents")  # may differ within one fit
MEANS = ("onset_time", "log_scale", "predicted", "predicted_steps")


def onset_times(run: Run, level: float = LEVEL) -> pd.DataFrame:
    """Return one row per trial: settings, outcome, onset_step, onset_time = eta T_on, predicted slopes.

    log_scale is ln(1 / init_scale); predicted is 1 / gamma, predicted_steps the slope for steps of this
    size: NaN where an assumption of onset_rate fails, among them W^V at Theorem 2's optimum.
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
    """Return each trial's theorem2_distance at the last record before its onset; NaN without one."""
    before = np.add.reduceat((records.step < records.spread(step)).astype(int), records.start)
    distance = frame.reindex(columns=["theorem2_distance"]).to_numpy(float)[:, 0]
    return np.where(before > 0, distance[records.start + np.maximum(before - 1, 0)], np.nan)


def predicted_rate(trials: pd.DataFrame, distance: Array) -> Array:
    """Return gamma of each trial, NaN where an assumption of onset_rate does not hold."""
    holds = np.all([trials[name] == value for name, value in ASSUMED.items()], axis=0)
    is_learned = (trials["value"] == "trained") & (distance < LEARNED)
    is_theorem2 = (trials.reindex(columns=list(MEMBER_SETTINGS)).fillna(0.0) == 0).all(axis=1)
    holds &= ((trials["value"] == "blocks") & is_theorem2 | is_learned).to_numpy()
    holds &= (trials["topics_per_document"] < trials["topics"]).to_numpy()
    sizes: dict[str, Any] = {name: np.where(holds, column(trials, name), np.nan) for name in SIZES}
    head, width = column(trials, "attention_dim"), sizes["topics"] * sizes["words_per_topic"] + 1
    rate = np.asarray(onset_rate(**sizes, attention_size=np.where(head > 0, head, width)))
    return np.where(rate > 0, rate, np.nan)  # no kept words, or one topic per document: it never leaves


def fit_settings(times: pd.DataFrame) -> list[str]:
    """Return the settings that tell fits apart: objective, optimizer and all others that vary."""
    others = [name for name in SETTINGS if name not in (*MAIN_SETTINGS, *POOLED)]
    return [*MAIN_SETTINGS, *varying(times, others)]


def onset_fit(times: pd.DataFrame) -> pd.DataFrame:
    """Return one row per combination of the varying settings: the slope of onset_time over log_scale.

    A line is fitted to each seed by least squares; slope is their mean, slope_se its standard error over
    seeds (NaN for one).  Trials without an onset are counted by reason and left out; a seed with onsets
    at one init scale only has no line.
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
    """Return the row of onset_fit that each trial belongs to."""
    return times.groupby(fit_settings(times), dropna=False).ngroup().to_numpy()


def slopes_over_seeds(used: pd.DataFrame, count: int) -> dict[str, Array]:
    """Return for each of so many fits the number of seeds with a line, their mean slope and its error."""
    used = used.sort_values(["fit", "seed"], kind="stable")
    fit, seed = used["fit"].to_numpy(), used["seed"].to_numpy()
    starts = np.flatnonzero(np.r_[True, (np.diff(fit) != 0) | (np.diff(seed) != 0)][: len(fit)])
    ends = np.r_[starts[1:], len(fit)][: len(starts)]
    log_scale, time = column(used, "log_scale"), column(used, "onset_time")
    found: dict[int, list[float]] = {}
    for start, end in zip(starts, ends, strict=True):
        if end - start > 1:
            found.setdefault(fit[start], []).extend(line_slope(log_scale[start:end], time[start:end]))
    seeds, slope, error = np.zeros(count, int), np.full(count, np.nan), np.full(count, np.nan)
    for place, slopes in ((place, np.array(slopes)) for place, slopes in found.items() if slopes):
        seeds[place], slope[place] = len(slopes), slopes.mean()
        error[place] = slopes.std(ddof=1) / len(slopes) ** 0.5 if len(slopes) > 1 else np.nan
    return dict(seeds=seeds, slope=slope, slope_se=error)


def line_slope(log_scale: Array, time: Array) -> list[float]:
    """Return the slope of one seed's onsets in a list, empty if they are at one init scale only."""
    x = log_scale - log_scale.mean()
    return [float(x @ time / (x @ x))] if np.ptp(x) > 1e-9 else []
