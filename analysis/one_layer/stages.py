"""Is a trial two-stage?  Scores, classes, suffixes and flags of every trial of a run.

Three views of a trial, side by side; the columns of the second and third end in _order and _norm:
- loss split (primary): P and Q against the lines L1* (stage 1) and L2* (stage 2) of the held-out documents;
- order parameters: the rise of v_block and of a_topic, each against its own maximum;
- norms: the rise of |W^V| and of (|W^K| + |W^Q|) / 2, as in the paper's Figure 4.
By the loss only the way up is scored, to step t_end (curves.way_up); what came after is the suffix.
Whether a trial diverged, collapsed, learned and finished is read from the loss in every view, so the views
differ only in what they say of V and attention.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from topicjax.errors import UserError
from topicjax.store.files import write_whole
from topicjax.store.reader import Run

from ..frames import column
from ..topic_model import aligned, settings_in
from .curves import (
    Array,
    Cuts,
    LossSplit,
    Records,
    log_lag,
    loss_split,
    monotone,
    onset,
    recession,
    steady,
    steady_maximum,
    theorem2_block,
    theta,
)
from .rises import norm_progress, order_progress
from .trained_parts import trains_attention, trains_both, trains_value

CLASSES = (  # in the order in which they are tried; a tie between seeds goes to the earlier
    *("diverged", "collapsed", "no-learning", "unfinished", "V-only", "compensated"),
    *("two-stage", "two-stage, non-topical", "stage 2 begun"),
    *("reversed", "simultaneous", "V leads", "attention leads"),
    "attention-only",  # by construction: neither W^V nor the embeddings are trained
    "unscored",  # no stage-1 line below the initial loss: progress has no unit
)
VIEWS = {"loss": "", "order": "_order", "norm": "_norm"}  # name: how its columns end
STAGES_FILE = "stages.parquet"
CUTS = Cuts()
SCORES = ("theta", "theta_reversed", "log_lag")
HAS_STAGE2 = (  # classes whose Theta and lag mean something, if attention got half way
    *("compensated", "two-stage", "two-stage, non-topical"),
    *("reversed", "simultaneous", "V leads", "attention leads"),
)


def score_trials(run: Run, cuts: Cuts = CUTS) -> pd.DataFrame:
    """Return one row per trial: its settings, and per view its scores, maxima, class and flags.

    theta, theta_reversed and log_lag are NaN where stage 2 did not happen or a part is frozen; under the same
    names with _any they are there wherever they can be computed.  A trial that is not finite has no scores
    and no flags.
    """
    run = aligned(run)
    trials, frame = run.trials, run.trajectories
    records = Records.of(frame["step"].to_numpy())
    if frame["trial_id"].iloc[records.start].tolist() != trials["trial_id"].tolist():
        raise UserError("the trajectories are not those of the trials, in their order")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        split = loss_split(records, frame, trials, cuts)
        kept, up = records.up_to(split.last)
        views = {
            "loss": (up, split.value[kept], split.attention[kept]),
            "order": (records, *order_progress(records, frame, trials, cuts)),
            "norm": (records, *norm_progress(records, frame, trials)),
        }
        is_scored = split.columns["is_finite"]
        columns = split.columns | reasons(records, frame, trials, split, cuts)
        for view, (scored, value, attention) in views.items():
            found, flags = score_view(scored, value, attention, trials, cuts)
            flags |= late_onsets(found, records, cuts)
            flags |= split.flags if view == "loss" else {}
            columns |= {
                name + VIEWS[view]: np.where(is_scored, values, np.nan) for name, values in found.items()
            }
            columns["flags" + VIEWS[view]] = join_flags(flags, is_scored)
    scores = trials[["trial_id", *settings_in(trials), "status"]].assign(**columns)
    for view, end in VIEWS.items():
        classes = classify(scores, view, cuts)
        happened = np.isin(classes, HAS_STAGE2) & (scores["max_attention" + end] >= cuts.stage2)
        known = {name + end: scores[f"{name}_any{end}"].where(happened) for name in SCORES}
        scores = scores.assign(**{"class" + end: classes}, **known)
    return scores.assign(suffix=suffixes(scores, cuts))


def score_view(
    records: Records, value: Array, attention: Array, trials: pd.DataFrame, cuts: Cuts
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the scores and the flags of each trial from the progress of V and of attention."""
    F_V, F_A = monotone(records, value), monotone(records, attention)
    both = trains_both(trials)
    found = {
        "theta_any": np.where(both, theta(records, F_V, F_A), np.nan),
        "theta_reversed_any": np.where(both, theta(records, F_A, F_V), np.nan),
        "log_lag_any": np.where(both, log_lag(records, F_V, F_A), np.nan),
        "onset_v": onset(records, F_V, cuts.onset),
        "onset_attention": onset(records, F_A, cuts.onset),
        "max_v": steady_maximum(records, value),
        "max_attention": steady_maximum(records, attention),
    }
    flags = {
        "frozen": ~both,
        "attention_incomplete": trains_attention(trials) & np.isnan(found["onset_attention"]),
        "v_recedes": recession(records, value) > cuts.recedes,
        "attention_recedes": recession(records, attention) > cuts.recedes,
    }
    return found, flags


def late_onsets(found: dict[str, Array], records: Records, cuts: Cuts) -> dict[str, Array]:
    """Return flags of onsets inside the last tenth of a training: a longer one may move them."""
    last_tenth = (1 - cuts.last) * records.step[records.end]
    return {
        "censored_v": found["onset_v"] > last_tenth,
        "censored_attention": found["onset_attention"] > last_tenth,
    }


def reasons(
    records: Records, frame: pd.DataFrame, trials: pd.DataFrame, split: LossSplit, cuts: Cuts
) -> dict[str, Array]:
    """Return what classes and suffixes rest on: t_end, P, Q and a_topic there, and how the trial ends."""
    end = records.last(cuts.last)
    names = ("v_block", "v_diag", "a_topic", "a_self")
    mean = {name: records.mean(column(frame, name), end) for name in names}
    copies_v = mean["v_diag"] > np.maximum(mean["v_block"], cuts.v_block * theorem2_block(trials))
    copies_a = mean["a_self"] > np.maximum(mean["a_topic"], cuts.attention)
    kept, up = records.up_to(split.last)
    return {
        "t_end": records.step[split.last],
        "p_end": steady(up, split.value[kept])[up.end],
        "q_end": steady(up, split.attention[kept])[up.end],
        "a_topic_end": steady_maximum(up, column(frame, "a_topic")[kept]),
        "max_a_topic": steady_maximum(records, column(frame, "a_topic")),
        "copies": copies_v | copies_a,
    }


def join_flags(flags: dict[str, Array], where: Array) -> Array:
    """Return for each trial the names of the flags that it has, with commas between them."""
    bits = sum((flag & where).astype(int) << place for place, flag in enumerate(flags.values()))
    found, kind = np.unique(bits, return_inverse=True)
    names = [",".join(name for place, name in enumerate(flags) if value >> place & 1) for value in found]
    return np.array(names)[kind]


def classify(scores: pd.DataFrame, view: str = "loss", cuts: Cuts = CUTS) -> Array:
    """Return the class of each trial in a view: the first whose rule it meets.

    By the loss, stage 2 needs half of what topics can give and a topical attention.  By the order parameters
    it needs the latter; norms know neither.
    """
    end = VIEWS[view]
    total, gain = scores["max_total"], scores["max_attention"]  # of the loss, in every view
    value = scores["max_v" + end]
    moved = scores["sure_attention"] if view == "loss" else scores["max_attention" + end]
    score, swapped, lag = (scores[f"{name}_any{end}"] for name in SCORES)
    trains_v, trains_a = trains_value(scores), trains_attention(scores)
    no_topics, topical = ~(scores["max_a_topic"] >= cuts.attention), is_topical(scores, cuts)
    first = score >= cuts.two_stage
    begun = {"loss": gain < cuts.stage2, "order": ~topical, "norm": pd.Series(False, scores.index)}[view]
    rules = [
        ("diverged", ~scores["is_finite"]),
        ("collapsed", ~trains_v & (gain < cuts.no_learning) & (scores["excess"] > cuts.collapsed)),
        ("no-learning", ~trains_v & (gain < cuts.no_learning)),
        ("attention-only", ~trains_v),
        ("collapsed", (total < cuts.finished) & (scores["excess"] > cuts.collapsed)),
        ("no-learning", total < cuts.no_learning),
        ("unfinished", total < cuts.finished),
        ("V-only", ~trains_a),
        ("V-only", (value >= cuts.finished) & (moved < cuts.attention) & no_topics),
        ("unscored", score.isna()),
        ("compensated", value < cuts.finished),
        ("stage 2 begun", first & begun),
        ("two-stage, non-topical", first & ~topical & (view == "loss")),
        ("two-stage", first),
        ("reversed", swapped >= cuts.two_stage),
        ("simultaneous", (score < cuts.simultaneous) & (swapped < cuts.simultaneous)),
        ("V leads", lag.fillna(score - swapped) >= 0),  # no lag with one record on the way up
    ]
    names, conditions = zip(*rules, strict=True)
    return np.select([np.asarray(holds) for holds in conditions], names, "attention leads")


def is_topical(scores: pd.DataFrame, cuts: Cuts = CUTS) -> Array:
    """Return whether attention became topical on the way up."""
    return (scores["a_topic_end"] >= cuts.topical).to_numpy()


def suffixes(scores: pd.DataFrame, cuts: Cuts = CUTS) -> Array:
    """Return what a trial did after it was scored: "then lost", "then copying"; empty if nothing."""
    learned = ~scores["class"].isin(["diverged", "collapsed", "no-learning"]).to_numpy()
    lost = learned & (scores["end_total"] < cuts.lost * scores["max_total"]).to_numpy()
    copies = learned & trains_attention(scores) & scores["copies"].to_numpy(bool)
    names = ["then lost, then copying", "then lost", "then copying"]
    return np.select([lost & copies, lost, copies], names, "")


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
