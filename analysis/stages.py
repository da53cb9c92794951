"""Is a trial two-stage?  Scores, classes and cells of SCIENCE section 4, as functions of frames.

Three views of a trial, side by side; columns of the second and third end in _order and _norm:
- loss split (primary): P and Q against the limit lines L1* (stage 1) and L2* (stage 2);
- order parameters: the rise of v_block and of a_topic, each against its own maximum;
- norms: the rise of |W^V| and of (|W^K| + |W^Q|) / 2, as in the paper's Figure 4.
Whether a trial diverged, learned and finished is read from the loss in every view, so the views
differ only in what they say of V and attention.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.frames import SETTINGS, Run
from analysis.scores import (
    Array,
    Cuts,
    Records,
    log_lag,
    loss_split,
    monotone,
    norm_progress,
    numbers,
    onset,
    order_progress,
    recession,
    steady_maximum,
    theorem2_block,
    theta,
    trains_value,
)
from topicjax.lock import write_whole

CLASSES = (  # in the order of SCIENCE section 4; a tie between seeds goes to the earlier
    *("diverged", "no-learning", "unfinished", "V-only", "compensated"),
    *("two-stage", "reversed", "simultaneous", "overlapping"),
    "attention-only",  # by construction: neither W^V nor the embeddings are trained
    "unscored",  # no stage-1 line below the initial loss: progress has no unit
)
VIEWS = {"loss": "", "order": "_order", "norm": "_norm"}  # name: how its columns end
STAGES_FILE = "stages.parquet"
CUTS = Cuts()


def score_trials(run: Run, cuts: Cuts = CUTS) -> pd.DataFrame:
    """Return one row per trial: its settings, and per view its scores, maxima, class and flags.

    A diverged trial has no scores and no flags; theta and log_lag are NaN where a part is frozen.
    """
    trials, frame = run.trials, run.trajectories
    records = Records.of(frame["step"].to_numpy())
    if frame["trial_id"].iloc[records.start].tolist() != trials["trial_id"].tolist():
        raise ValueError("the trajectories are not those of the trials, in their order")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        split = loss_split(records, frame, trials, cuts)
        views = {
            "loss": (split.value, split.attention),
            "order": order_progress(records, frame, trials, cuts),
            "norm": norm_progress(records, frame, trials),
        }
        columns = split.columns | order_parameters(records, frame, trials, cuts)
        is_scored = ~(columns["excess"] > cuts.diverged)
        for view, (value, attention) in views.items():
            found, flags = score_view(records, value, attention, trials, cuts)
            flags |= split.flags if view == "loss" else {}
            found = {name: np.where(is_scored, x, np.nan) for name, x in found.items()}
            columns |= {name + VIEWS[view]: column for name, column in found.items()}
            columns["flags" + VIEWS[view]] = join_flags(flags, is_scored)
    scores = trials[["trial_id", *run.settings, "status"]].assign(**columns)
    classes = {"class" + VIEWS[view]: classify(scores, view, cuts) for view in VIEWS}
    return scores.assign(**classes, suffix=lambda frame: suffixes(frame, cuts))


def score_view(
    records: Records, value: Array, attention: Array, trials: pd.DataFrame, cuts: Cuts
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the scores and the flags of each trial from the progress of V and of attention."""
    F_V, F_A = monotone(records, value), monotone(records, attention)
    onset_v, onset_attention = (onset(records, curve, cuts.onset) for curve in (F_V, F_A))
    both = trains_both(trials)
    found = {
        "theta": np.where(both, theta(records, F_V, F_A), np.nan),
        "theta_reversed": np.where(both, theta(records, F_A, F_V), np.nan),
        "log_lag": np.where(both, log_lag(records, F_V, F_A), np.nan),
        "onset_v": onset_v,
        "onset_attention": onset_attention,
        "max_v": steady_maximum(records, value),
        "max_attention": steady_maximum(records, attention),
    }
    last_tenth = (1 - cuts.last) * records.step[records.end]
    flags = {
        "frozen": ~both,
        "censored_v": onset_v > last_tenth,
        "censored_attention": onset_attention > last_tenth,
        "attention_incomplete": trains_attention(trials) & np.isnan(onset_attention),
        "v_recedes": recession(records, value) > cuts.recedes,
        "attention_recedes": recession(records, attention) > cuts.recedes,
    }
    return found, flags


def order_parameters(
    records: Records, frame: pd.DataFrame, trials: pd.DataFrame, cuts: Cuts
) -> dict[str, Array]:
    """Return the largest a_topic, and whether a trial ends copying: own word above same topic."""
    end = records.last(cuts.last)
    names = ("v_block", "v_diag", "a_topic", "a_self")
    mean = {name: records.mean(numbers(frame, name), end) for name in names}
    copies_v = mean["v_diag"] > np.maximum(mean["v_block"], cuts.v_block * theorem2_block(trials))
    copies_a = mean["a_self"] > np.maximum(mean["a_topic"], cuts.attention)
    largest = steady_maximum(records, numbers(frame, "a_topic"))
    return {"max_a_topic": largest, "copies": copies_v | copies_a}


def trains_attention(trials: pd.DataFrame) -> Array:
    """Return True where W^K and W^Q are trained."""
    return (trials["attention"] == "trained").to_numpy()


def trains_both(trials: pd.DataFrame) -> Array:
    """Return True where V and attention are both trained: only these can be two-stage."""
    return trains_value(trials) & trains_attention(trials)


def join_flags(flags: dict[str, Array], where: Array) -> Array:
    """Return for each trial the names of the flags that it has, with commas between them."""
    rows = np.stack([flag & where for flag in flags.values()], axis=1)
    names = np.array(list(flags))
    return np.array([",".join(names[row]) for row in rows])


def classify(scores: pd.DataFrame, view: str = "loss", cuts: Cuts = CUTS) -> Array:
    """Return the class of each trial in a view: the first that matches (SCIENCE section 4)."""
    end = VIEWS[view]
    total, gain = scores["max_total"], scores["max_attention"]  # of the loss, in every view
    value, attention = scores["max_v" + end], scores["max_attention" + end]
    score, swapped = scores["theta" + end], scores["theta_reversed" + end]
    trains_v, trains_a = trains_value(scores), trains_attention(scores)
    no_topics = ~(scores["max_a_topic"] >= cuts.attention)
    rules = [
        ("diverged", scores["excess"] > cuts.diverged),
        ("no-learning", ~trains_v & (gain < cuts.no_learning)),
        ("attention-only", ~trains_v),
        ("no-learning", total < cuts.no_learning),
        ("unfinished", total < cuts.finished),
        ("V-only", ~trains_a),
        ("V-only", (value >= cuts.finished) & (attention < cuts.attention) & no_topics),
        ("compensated", value < cuts.finished),
        ("unscored", score.isna()),
        ("two-stage", score >= cuts.two_stage),
        ("reversed", swapped >= cuts.two_stage),
        ("simultaneous", (score < cuts.simultaneous) & (swapped < cuts.simultaneous)),
    ]
    names, conditions = zip(*rules, strict=True)
    return np.select([np.asarray(holds) for holds in conditions], names, "overlapping")


def suffixes(scores: pd.DataFrame, cuts: Cuts = CUTS) -> Array:
    """Return (non-)topical and +copy per trial; empty if it learned nothing or cannot attend."""
    kind = np.where(scores["max_a_topic"] >= cuts.topical, "topical", "non-topical")
    copy = np.where(scores["copies"], "+copy", "")
    is_empty = scores["class"].isin(["diverged", "no-learning"]) | ~trains_attention(scores)
    return np.where(is_empty, "", np.char.add(kind, copy))


def score_cells(scores: pd.DataFrame, by: Sequence[str] | None = None) -> pd.DataFrame:
    """Return one row per cell, a value of `by`: all settings but the seed by default.

    trials, diverged and topical are counts; per view: theta, theta_q25, theta_q75 (over the trials
    that have one), medians of the other scores, the majority class, and agreement, its share.
    """
    keys = cell_settings(scores) if by is None else list(by)
    cell = scores.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    cells = scores[keys].iloc[np.unique(cell, return_index=True)[1]].reset_index(drop=True)
    columns: dict[str, Array] = {
        "trials": np.bincount(cell),
        "diverged": np.bincount(cell, scores["class"] == "diverged").astype(int),
        "topical": np.bincount(cell, scores["suffix"].str.startswith("topical")).astype(int),
    }
    for end in VIEWS.values():
        names = ["theta", "theta_reversed", "log_lag", "onset_v", "onset_attention"]
        medians = scores[[name + end for name in names]].groupby(cell).median()
        columns |= {str(name): column.to_numpy() for name, column in medians.items()}
        for share, name in ((0.25, "q25"), (0.75, "q75")):
            quantile = scores["theta" + end].groupby(cell).quantile(share)
            columns[f"theta{end}_{name}"] = quantile.to_numpy()
        classes = scores["class" + end].to_numpy()
        columns["class" + end], columns["agreement" + end] = majority(cell, classes)
    return cells.assign(**columns)


def cell_settings(scores: pd.DataFrame) -> list[str]:
    """Return the settings that make a cell: all but the seed."""
    return [name for name in SETTINGS if name in scores and name != "seed"]


def majority(cell: Array, classes: Array) -> tuple[Array, Array]:
    """Return the most frequent class of each cell, in a tie the first of CLASSES, and its share."""
    code = pd.Index(CLASSES).get_indexer(pd.Index(classes))
    kinds = len(CLASSES)
    counts = np.bincount(kinds * cell + code, minlength=kinds * (cell.max() + 1))
    counts = counts.reshape(-1, kinds)
    return np.array(CLASSES)[counts.argmax(axis=1)], counts.max(axis=1) / counts.sum(axis=1)


def sensitivity(
    scores: pd.DataFrame,
    cuts: Sequence[float] = (0.8, 0.9, 0.95),
    by: Sequence[str] | None = None,
    base: Cuts = CUTS,
) -> pd.DataFrame:
    """Return per view and cut of Theta the share of trials and of cells that leave their class."""
    keys = cell_settings(scores) if by is None else list(by)
    cell = scores.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    rows = []
    for view in VIEWS:
        before = classify(scores, view, base)
        for cut in cuts:
            after = classify(scores, view, replace(base, two_stage=cut))
            cells_change = majority(cell, before)[0] != majority(cell, after)[0]
            rows.append((view, cut, (before != after).mean(), cells_change.mean()))
    return pd.DataFrame(rows, columns=["view", "cut", "trials_changed", "cells_changed"])


def write_stages(scores: pd.DataFrame, folder: str | Path) -> Path:
    """Write one row per trial to stages.parquet in the folder, all or nothing; return the path."""
    path = Path(folder) / STAGES_FILE
    write_whole(path, lambda file: scores.to_parquet(file, index=False))
    return path
