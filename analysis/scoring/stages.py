"""Is a trial two-stage?  Scores, classes, suffixes and flags of every trial of a run.

Three views of a trial, side by side; the columns of the second and third end in _order and _norm:
- loss split (primary): P and Q against the limit lines L1* (stage 1) and L2* (stage 2);
- order parameters: the rise of v_block and of a_topic, each against its own maximum;
- norms: the rise of |W^V| and of (|W^K| + |W^Q|) / 2, as in the paper's Figure 4.
Whether a trial diverged, learned and finished is read from the loss in every view, so the views
differ only in what they say of V and attention.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from topicjax.errors import UserError
from topicjax.store.files import write_whole
from topicjax.store.reader import Run

from ..frames import aligned, column, settings_in
from .curves import (
    Array,
    Cuts,
    Records,
    log_lag,
    loss_split,
    monotone,
    norm_progress,
    onset,
    order_progress,
    recession,
    steady_maximum,
    theorem2_block,
    theta,
)
from .trained_parts import trains_attention, trains_both, trains_value

CLASSES = (  # in the order in which they are tried; a tie between seeds goes to the earlier
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
    run = aligned(run)
    trials, frame = run.trials, run.trajectories
    records = Records.of(frame["step"].to_numpy())
    if frame["trial_id"].iloc[records.start].tolist() != trials["trial_id"].tolist():
        raise UserError("the trajectories are not those of the trials, in their order")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        split = loss_split(records, frame, trials, cuts)
        views = {
            "loss": (split.value, split.attention),
            "order": order_progress(records, frame, trials, cuts),
            "norm": norm_progress(records, frame, trials),
        }
        columns = split.columns | suffix_columns(records, frame, trials, cuts)
        is_scored = ~(columns["excess"] > cuts.diverged)
        for view, (value, attention) in views.items():
            found, flags = score_view(records, value, attention, trials, cuts)
            flags |= split.flags if view == "loss" else {}
            columns |= {
                name + VIEWS[view]: np.where(is_scored, values, np.nan) for name, values in found.items()
            }
            columns["flags" + VIEWS[view]] = join_flags(flags, is_scored)
    scores = trials[["trial_id", *settings_in(trials), "status"]].assign(**columns)
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


def suffix_columns(
    records: Records, frame: pd.DataFrame, trials: pd.DataFrame, cuts: Cuts
) -> dict[str, Array]:
    """Return the largest a_topic, and whether a trial ends copying: own word above same topic."""
    end = records.last(cuts.last)
    names = ("v_block", "v_diag", "a_topic", "a_self")
    mean = {name: records.mean(column(frame, name), end) for name in names}
    copies_v = mean["v_diag"] > np.maximum(mean["v_block"], cuts.v_block * theorem2_block(trials))
    copies_a = mean["a_self"] > np.maximum(mean["a_topic"], cuts.attention)
    largest = steady_maximum(records, column(frame, "a_topic"))
    return {"max_a_topic": largest, "copies": copies_v | copies_a}


def join_flags(flags: dict[str, Array], where: Array) -> Array:
    """Return for each trial the names of the flags that it has, with commas between them."""
    bits = sum((flag & where).astype(int) << place for place, flag in enumerate(flags.values()))
    found, kind = np.unique(bits, return_inverse=True)
    names = [",".join(name for place, name in enumerate(flags) if value >> place & 1) for value in found]
    return np.array(names)[kind]


def classify(scores: pd.DataFrame, view: str = "loss", cuts: Cuts = CUTS) -> Array:
    """Return the class of each trial in a view: the first whose rule it meets."""
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
    """Return (non-)topical and +copy for each trial; empty if it learned nothing or cannot attend."""
    kind = np.where(scores["max_a_topic"] >= cuts.topical, "topical", "non-topical")
    copy = np.where(scores["copies"], "+copy", "")
    is_empty = scores["class"].isin(["diverged", "no-learning"]) | ~trains_attention(scores)
    return np.where(is_empty, "", np.char.add(kind, copy))


def class_counts(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the number of trials per class (every class, in order) in each view."""
    counts = {view: scores["class" + end].value_counts() for view, end in VIEWS.items()}
    return pd.DataFrame(counts).reindex(CLASSES).fillna(0).astype(int).rename_axis("class")


def classes_of(scores: pd.DataFrame, trial_ids: Sequence[str]) -> list[str]:
    """Return the class of each of these trials in the loss view."""
    known = dict(zip(scores["trial_id"], scores["class"], strict=True))
    absent = sorted(set(trial_ids) - set(known))
    if absent:
        raise UserError(f"the scores have no trial {absent[0]!r}; allowed: scores of the same run")
    return [known[trial_id] for trial_id in trial_ids]


def write_stages(scores: pd.DataFrame, folder: str | Path) -> Path:
    """Write the scores to stages.parquet in the folder, all or nothing; return its path."""
    path = Path(folder) / STAGES_FILE
    write_whole(path, lambda file: scores.to_parquet(file, index=False))
    return path
