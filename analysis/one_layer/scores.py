"""Score and classify every trial of a run: Theta, lag, onsets, class, suffix and flags from its records.

There are three views of a trial; the columns of the second and third end in _order and _norm:
- loss split (primary): P and Q (theory.progress) relative to the lines L1* and L2* of the held-out documents;
- order parameters: the rise of v_block and of a_topic, each relative to its own maximum;
- norms: the rise of |W^V| and of (|W^K| + |W^Q|) / 2, as in the paper's Figure 4.
In the loss view only the way up is scored, to step t_end (topicjax.stages.way_up); what came after is the
suffix.  In every view the loss decides whether a trial diverged, collapsed, learned and finished, so the
views differ only in V and attention.  Runs with eval_loss_mask_query have a fourth, *_mask_query: the loss
view with another baseline than uniform attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from topicjax import stages
from topicjax.errors import UserError
from topicjax.stages import Records, norm_rise, rise, steady, steady_maximum
from topicjax.store.files import write_whole
from topicjax.store.reader import Run
from topicjax.theory.progress import CUTS, Cuts, progress, units

from ..frames import Array, column
from ..scores import join_flags
from ..topic_model import STAGE_LINES, aligned, settings_in
from .trained_models import has_data_model

CLASSES = (  # in the order of tables; in a tie between seeds the earlier one wins
    *("diverged", "collapsed", "no-learning", "unfinished", "V-only", "compensated"),
    *("two-stage", "two-stage, non-topical", "stage 2 begun"),
    *("reversed", "simultaneous", "V leads", "attention leads"),
    "attention-only",  # by construction: neither W^V nor the embeddings are trained
    "unscored",  # no stage-1 line below the initial loss: progress has no unit
)
VIEWS = {"loss": "", "order": "_order", "norm": "_norm"}  # name: suffix of its columns
STAGES_FILE = "stages.parquet"
SCORES = ("theta", "theta_reversed", "log_lag")
BASELINE = "eval_loss_mask_query"  # another baseline of the loss view; see with_baseline
Curves = tuple[Array, Array]  # progress of V and of attention, one value per record
HAS_STAGE2 = (  # classes with a meaningful Theta and lag, if attention got half way
    *("compensated", "two-stage", "two-stage, non-topical"),
    *("reversed", "simultaneous", "V leads", "attention leads"),
)


def score_trials(run: Run, cuts: Cuts = CUTS) -> pd.DataFrame:
    """Score every trial: a row with its settings, and for each view its scores, maxima, class and flags.

    theta, theta_reversed and log_lag are NaN where stage 2 did not happen or a part is frozen; the columns
    with _any have them wherever they can be computed.  A trial that is not finite has no scores and no flags.
    """
    run = aligned(run)
    trials, frame = run.trials, run.trajectories
    records = Records.of(frame["step"].to_numpy())
    if frame["trial_id"].iloc[records.start].tolist() != trials["trial_id"].tolist():
        raise UserError("the trajectories are not those of the trials, in their order")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        by_loss = loss_view(records, frame, trials, cuts)
        kept, up = records.up_to(by_loss.last)
        views = {
            "loss": (up, by_loss.value[kept], by_loss.attention[kept]),
            "order": (records, *order_progress(records, frame, trials, cuts)),
            "norm": (records, *norm_progress(records, frame, trials)),
        }
        is_scored = by_loss.columns["is_finite"]
        columns = by_loss.columns | reasons(records, frame, trials, by_loss, cuts)
        last_tenth = (1 - cuts.last) * records.step[records.end]
        for view, (scored, value, attention) in views.items():
            found, flags = score_view(scored, value, attention, trials, cuts)
            # longer training may move an onset in the last tenth
            flags["censored_v"] = found["onset_v"] > last_tenth
            flags["censored_attention"] = found["onset_attention"] > last_tenth
            flags |= by_loss.flags if view == "loss" else {}
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
    scores = scores.assign(suffix=suffixes(scores, cuts))
    return scores if BASELINE not in frame else with_baseline(run, scores, cuts)


def with_baseline(run: Run, scores: pd.DataFrame, cuts: Cuts) -> pd.DataFrame:
    """Add the loss view with the scores of [MASK] as baseline, *_mask_query, to trials that recorded it.

    Its P and Q are those of the loss view, with this loss in the place of that under uniform attention.
    Linear attention needs it: there the loss under uniform attention changes if a factor moves from the
    scores to the values, which changes no output of the model.
    """
    frame = run.trajectories
    is_first = (frame["step"] == 0).to_numpy()
    recorded = np.isfinite(column(frame, BASELINE)[is_first])
    if not recorded.any():
        return scores
    instead = frame.assign(eval_loss_uniform=frame[BASELINE]).drop(columns=BASELINE)
    by_mask = score_trials(run.replace(trajectories=instead), cuts)
    names = ("class", *SCORES, "onset_v", "onset_attention", "max_v", "max_attention")
    return scores.assign(**{f"{name}_mask_query": by_mask[name].where(recorded, None) for name in names})


def score_view(
    records: Records, value: Array, attention: Array, trials: pd.DataFrame, cuts: Cuts
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Score the progress of V and of attention in one view; return scores and flags of each trial."""
    F_V, F_A = stages.monotone(records, value), stages.monotone(records, attention)
    both, compared = trains_both(trials), stages.compare(records, F_V, F_A, cuts.onset)
    found = {f"{name}_any": np.where(both, compared[name], np.nan) for name in SCORES}
    found |= {
        "onset_v": compared["onset_first"],
        "onset_attention": compared["onset_second"],
        "max_v": steady_maximum(records, value),
        "max_attention": steady_maximum(records, attention),
    }
    flags = {
        "frozen": ~both,
        "attention_incomplete": trains_attention(trials) & np.isnan(found["onset_attention"]),
        "v_recedes": stages.recession(records, value) > cuts.recedes,
        "attention_recedes": stages.recession(records, attention) > cuts.recedes,
    }
    return found, flags


@dataclass(frozen=True)
class LossView:
    """The loss view, and the columns that all views share."""

    value: Array  # P, per record; NaN without a stage-1 line below L(0)
    attention: Array  # Q, per record
    last: Array  # per trial: the record up to which it is scored
    columns: dict[str, Array]  # per trial: final and best values
    flags: dict[str, Array]  # per trial


def loss_view(records: Records, frame: pd.DataFrame, trials: pd.DataFrame, cuts: Cuts) -> LossView:
    """Compute P and Q, the maximum and the final value of R, and how far the loss ends above L(0).

    Without a gap between L1* and L2* the unit of Q is the gain that the trial attains, at least
    cuts.least_gain of L(0) - L1*, and the trial has the flag gain_attained.
    """
    loss, uniform = column(frame, "eval_loss"), column(frame, "eval_loss_uniform")
    initial = loss[records.start]
    lines = {name: column(trials, place) for name, place in STAGE_LINES.items() if place in trials}
    drop, gap = units(initial, lines, cuts.line_errors)
    has_gap = np.isfinite(gap)
    attained = np.fmax(steady_maximum(records, uniform - loss), cuts.least_gain * drop)
    gain = np.where(has_gap, gap, attained)
    gain = np.where(gain > 0, gain, np.inf)  # if nothing was attained, Q is 0
    P, Q, R = progress(loss, uniform, *map(records.spread, (initial, drop, gain)))
    is_bad = records.any(~np.isfinite(loss + uniform)) | (trials["status"] == "diverged").to_numpy()
    unit = np.where(trains_value(trials), drop, np.fmax(drop, gain))  # W^V frozen: L(0) may be L1*
    at_end = records.last(cuts.last)
    columns = dict(
        excess=(records.mean(loss, at_end) - initial) / unit,
        max_total=steady_maximum(records, R),
        end_total=records.mean(R, at_end),
        sure_attention=stages.sure_maximum(records, Q, cuts.noise),
    )
    return LossView(
        value=P,
        attention=Q,
        last=stages.way_up(records, loss, P, Q, cuts.finished),
        columns={name: np.where(is_bad, np.nan, values) for name, values in columns.items()}
        | dict(is_finite=~is_bad),
        flags=dict(
            no_stage1_drop=np.isnan(drop),
            gain_attained=~has_gap,
            attention_at_start=np.abs(Q[records.start]) > cuts.at_start,
            copies_kept_words=copies_kept_words(records, frame, trials, cuts),
        ),
    )


def copies_kept_words(records: Records, frame: pd.DataFrame, trials: pd.DataFrame, cuts: Cuts) -> Array:
    """Mask the trials that end by predicting kept words better than knowing their topic allows.

    Order parameters miss such copying: v_diag and a_self can be negative.  Runs without losses by kind of
    query have no such trials.
    """
    if "eval_loss_kept" not in frame:
        return np.zeros(len(trials), bool)
    return records.mean(column(frame, "eval_loss_kept"), records.last(cuts.last)) < topic_bound(trials)


def topic_bound(trials: pd.DataFrame) -> Array:
    """Compute the least loss of a word if only its topic is known (NaN: topics overlap, words differ)."""
    words = column(trials, "words_per_topic")
    least = np.where(trials["objective"] == "cross_entropy", np.log(words), 1 - 1 / words)
    return np.where(has_data_model(trials), least, np.nan)


def order_progress(records: Records, frame: pd.DataFrame, trials: pd.DataFrame, cuts: Cuts) -> Curves:
    """Compute the rise of v_block and of a_topic; a negligible rise counts as none."""
    value = rise(records, column(frame, "v_block"), cuts.v_block * theorem2_block(trials))
    return value, rise(records, column(frame, "a_topic"), cuts.attention)


def norm_progress(records: Records, frame: pd.DataFrame, trials: pd.DataFrame) -> Curves:
    """Compute the rise of |W^V|, or |W^E| if only that is trained, and of (|W^K| + |W^Q|) / 2."""
    value = column(frame, "norm_v")
    if "norm_e" in frame:
        is_frozen = (trials["value"] != "trained") & (trials["embedding"] == "trained")
        value = np.where(records.spread(is_frozen.to_numpy()), column(frame, "norm_e"), value)
    attention = (column(frame, "norm_k") + column(frame, "norm_q")) / 2
    return norm_rise(records, value), norm_rise(records, attention)


def theorem2_block(trials: pd.DataFrame) -> Array:
    """Compute W_same - W_diff = c3 / v of Theorem 2: the natural unit of v_block."""
    a = 1 - (1 - column(trials, "p_keep")) * column(trials, "p_mask")
    return 1 / (a * column(trials, "words_per_topic"))


def reasons(
    records: Records, frame: pd.DataFrame, trials: pd.DataFrame, by_loss: LossView, cuts: Cuts
) -> dict[str, Array]:
    """Compute the inputs of classes and suffixes: t_end, P, Q and a_topic there, and how the trial ends."""
    end = records.last(cuts.last)
    names = ("v_block", "v_diag", "a_topic", "a_self")
    mean = {name: records.mean(column(frame, name), end) for name in names}
    copies_v = mean["v_diag"] > np.maximum(mean["v_block"], cuts.v_block * theorem2_block(trials))
    copies_a = mean["a_self"] > np.maximum(mean["a_topic"], cuts.attention)
    kept, up = records.up_to(by_loss.last)
    return {
        "t_end": records.step[by_loss.last],
        "p_end": steady(up, by_loss.value[kept])[up.end],
        "q_end": steady(up, by_loss.attention[kept])[up.end],
        "a_topic_end": steady_maximum(up, column(frame, "a_topic")[kept]),
        "max_a_topic": steady_maximum(records, column(frame, "a_topic")),
        "copies": copies_v | copies_a,
    }


def classify(scores: pd.DataFrame, view: str = "loss", cuts: Cuts = CUTS) -> Array:
    """Classify each trial in a view by the first rule that it satisfies.

    By the loss, stage 2 needs half of what topics can give and topical attention.  By the order parameters
    it needs the latter; norms measure neither.
    """
    return np.array(CLASSES)[class_numbers(class_inputs(scores, view), view, cuts)]


def class_inputs(scores: pd.DataFrame, view: str) -> dict[str, Array]:
    """Collect what the classes of a view depend on: the same for all cuts."""
    end = VIEWS[view]
    moved = "sure_attention" if view == "loss" else "max_attention" + end
    names = dict(
        total="max_total",  # from the loss, in every view, as is the gain
        gain="max_attention",
        value="max_v" + end,
        moved=moved,
        score=f"theta_any{end}",
        swapped=f"theta_reversed_any{end}",
        lag=f"log_lag_any{end}",
        excess="excess",
        max_a_topic="max_a_topic",
        a_topic_end="a_topic_end",
    )
    found = {name: column(scores, source) for name, source in names.items()}
    found["is_finite"] = scores["is_finite"].to_numpy(bool)
    return found | dict(trains_v=trains_value(scores), trains_a=trains_attention(scores))


def class_numbers(inputs: Mapping[str, Array], view: str = "loss", cuts: Cuts = CUTS) -> Array:
    """Classify trials by the inputs of a view; return for each the index of its class in CLASSES."""
    total, gain, value, excess = (inputs[name] for name in ("total", "gain", "value", "excess"))
    score, swapped, lag = (inputs[name] for name in ("score", "swapped", "lag"))
    fixed_v, topical = ~inputs["trains_v"], inputs["a_topic_end"] >= cuts.topical
    no_topics = ~(inputs["max_a_topic"] >= cuts.attention)
    first, nobody = score >= cuts.two_stage, np.zeros(len(score), bool)
    begun = {"loss": gain < cuts.stage2, "order": ~topical, "norm": nobody}[view]
    rules = [
        ("diverged", ~inputs["is_finite"]),
        ("collapsed", fixed_v & (gain < cuts.no_learning) & (excess > cuts.collapsed)),
        ("no-learning", fixed_v & (gain < cuts.no_learning)),
        ("attention-only", fixed_v),
        ("collapsed", (total < cuts.finished) & (excess > cuts.collapsed)),
        ("no-learning", total < cuts.no_learning),
        ("unfinished", total < cuts.finished),
        ("V-only", ~inputs["trains_a"]),
        ("V-only", (value >= cuts.finished) & (inputs["moved"] < cuts.attention) & no_topics),
        ("unscored", np.isnan(score)),
        ("compensated", value < cuts.finished),
        ("stage 2 begun", first & begun),
        ("two-stage, non-topical", first & ~topical if view == "loss" else nobody),
        ("two-stage", first),
        ("reversed", swapped >= cuts.two_stage),
        ("simultaneous", (score < cuts.simultaneous) & (swapped < cuts.simultaneous)),
        # a single record on the way up has no lag
        ("V leads", np.where(np.isnan(lag), score - swapped, lag) >= 0),
        ("attention leads", ~nobody),
    ]
    rule = np.argmax([holds for _, holds in rules], axis=0)  # the first that holds
    return np.array([CLASSES.index(name) for name, _ in rules])[rule]


def is_topical(scores: pd.DataFrame, cuts: Cuts = CUTS) -> Array:
    """Mask the trials whose attention became topical on the way up."""
    return (scores["a_topic_end"] >= cuts.topical).to_numpy()


def suffixes(scores: pd.DataFrame, cuts: Cuts = CUTS) -> Array:
    """Say what each trial did after it was scored: "then lost", "then copying"; empty if nothing."""
    learned = ~scores["class"].isin(["diverged", "collapsed", "no-learning"]).to_numpy()
    lost = learned & (scores["end_total"] < cuts.lost * scores["max_total"]).to_numpy()
    copies = learned & trains_attention(scores) & scores["copies"].to_numpy(bool)
    names = ["then lost, then copying", "then lost", "then copying"]
    return np.select([lost & copies, lost, copies], names, "")


def class_counts(scores: pd.DataFrame) -> pd.DataFrame:
    """Count the trials of every class, in order, in each view."""
    counts = {view: scores["class" + end].value_counts() for view, end in VIEWS.items()}
    return pd.DataFrame(counts).reindex(CLASSES).fillna(0).astype(int).rename_axis("class")


def classes_of(scores: pd.DataFrame, trial_ids: Sequence[str]) -> list[str]:
    """Look up the class of each of these trials in the loss view."""
    known = dict(zip(scores["trial_id"], scores["class"], strict=True))
    absent = sorted(set(trial_ids) - set(known))
    if absent:
        raise UserError(f"the scores have no trial {absent[0]!r}; allowed: scores of the same run")
    return [known[trial_id] for trial_id in trial_ids]


@dataclass(frozen=True)
class TrialStages:
    """One trial in the loss view: its scores, its progress, and where its first stage ends."""

    scores: Any  # its row of score_trials
    progress: dict[str, Array]  # step, P, Q, their monotone fits F_V, F_A on the way up; else NaN
    boundary: float  # the first step that attains Theta; NaN without a Theta


def stages_of(run: Run, scores: pd.DataFrame, trial_id: str, cuts: Cuts = CUTS) -> TrialStages:
    """Compute progress and stage boundary of one trial; `cuts` are those of its scores."""
    one = aligned(run.select([trial_id]))
    own = scores_of(scores, trial_id)
    records = Records.of(one.trajectories["step"].to_numpy())
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        by_loss = loss_view(records, one.trajectories, one.trials, cuts)
        kept, up = records.up_to(by_loss.last)
        F_V, F_A = (stages.monotone(up, curve[kept]) for curve in (by_loss.value, by_loss.attention))
    is_ok = own["class"] != "diverged"
    of_value = 1.0 if is_ok and trains_value(one.trials)[0] else np.nan
    of_attention = 1.0 if is_ok and trains_attention(one.trials)[0] else np.nan
    beyond = np.full(len(records.step) - len(up.step), np.nan)
    curves = dict(step=records.step, P=of_value * by_loss.value, Q=of_attention * by_loss.attention)
    curves |= dict(F_V=of_value * np.append(F_V, beyond), F_A=of_attention * np.append(F_A, beyond))
    boundary = stages.boundary(up, F_V, F_A)[0] if np.isfinite(own["theta"]) else np.nan
    return TrialStages(own, curves, float(boundary))


def scores_of(scores: pd.DataFrame, trial_id: str) -> Any:
    """Look up the row of one trial in the scores."""
    found = np.flatnonzero(scores["trial_id"] == trial_id)
    if not len(found):
        raise UserError(f"the scores have no trial {trial_id!r}; allowed: scores of the same run")
    return scores.iloc[found[0]]


def trains_value(trials: pd.DataFrame) -> Array:
    """Mask the trials that train W^V or the embeddings around it."""
    return ((trials["value"] == "trained") | (trials["embedding"] == "trained")).to_numpy()


def trains_attention(trials: pd.DataFrame) -> Array:
    """Mask the trials that train W^K and W^Q."""
    return (trials["attention"] == "trained").to_numpy()


def trains_both(trials: pd.DataFrame) -> Array:
    """Mask the trials that train V and attention: only these can be two-stage."""
    return trains_value(trials) & trains_attention(trials)


def write_stages(scores: pd.DataFrame, folder: str | Path) -> Path:
    """Write the scores atomically to stages.parquet in the folder; return its path."""
    path = Path(folder) / STAGES_FILE
    write_whole(path, lambda file: scores.to_parquet(file, index=False))
    return path
