"""Do all layers of a deeper model behave like the one?  Scores and classes of every trial and layer.

P is what the values of a layer add under uniform attention, Q what its attention adds to that, both in nats
of the held-out loss with the other layers as trained; layer 0 is all layers together.  F_V and F_A are
isotonic fits of P and Q on the way up (to the step of the lowest loss), each from 0 to 1: layers have no
limit lines of their own.  Names and cuts are those of the one-layer model.
"""

from typing import Any, NamedTuple

import numpy as np

from topicjax.store.reader import Run

from ..frames import column
from ..one_layer.curves import (
    Array,
    Records,
    log_lag,
    lowest_record,
    monotone,
    onset,
    recession,
    steady,
    steady_maximum,
    theta,
)
from ..one_layer.cuts import Cuts
from ..one_layer.rises import norm_rise
from ..one_layer.stages import CUTS, join_flags
from ..one_layer.trained_models import Frame
from .layer_curves import layer_curves, part_name
from .layer_gains import maxima, scales, topic_shift

LAYERS_FILE = "layers.parquet"
LEAVES_UNIFORM = 0.01  # nats of entropy below its start: attention then spreads over 1 % fewer keys
LAYER_CLASSES = (  # in the order in which they are tried; a tie between seeds goes to the earlier
    *("diverged", "no-learning", "unfinished", "silent", "V-only", "attention-only", "unscored"),
    *("two-stage", "stage 2 begun", "reversed", "simultaneous", "V leads", "attention leads"),
)
HAS_THETA = ("two-stage", "stage 2 begun", "reversed", "simultaneous", "V leads", "attention leads")
ENDS = ("entropy_deficit", "attn_same_topic", "attn_diff_topic", "P", "Q")


class Progress(NamedTuple):
    """F_V and F_A of one view, on the records that it scores."""

    records: Records
    value: Array
    attention: Array


def score_layers(run: Run, cuts: Cuts = CUTS) -> Frame:
    """Return one row per trial and layer (0: all layers together): settings, scores, class, onsets, ends.

    Columns of the view by norms end in _norm.  theta, theta_reversed and log_lag are NaN where the class says
    that V or attention does nothing; onsets are NaN where they were not reached.
    """
    curves = layer_curves(run)
    records = Records.of(curves["step"].to_numpy())
    first = curves.iloc[records.start]
    trials: Any = run.trials.take(first["trial"].to_numpy()).reset_index(drop=True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = scales(records, curves, trials, run, cuts)
        columns = maxima(records, curves, scale, cuts) | ends(records, curves)
        columns["is_finite"] = ~is_broken(records, curves) & (trials["status"] == "ok").to_numpy()
        up = loss_progress(records, curves)
        for end, view in (("", up), ("_norm", norm_progress(records, curves))):
            columns |= {name + end: values for name, values in view_scores(view, cuts).items()}
        columns["onset_entropy"] = leaves_uniform(records, curves)
        columns["flags"] = join_flags(flags(records, curves, up, columns, cuts), columns["is_finite"])
    columns |= {"e_block": last_finite(records, curves, "e_block")} if "e_block" in curves else {}
    settings = trials[["trial_id", *run.setting_names, "status"]]
    layer = first["layer"].to_numpy(int)
    names = dict(layer=layer, part=[part_name(number) for number in layer])
    scores = settings.assign(**names, **columns, has_gap=scale.has_gap, gain_unit=scale.gain)
    scores = scores.assign(
        **{"class": classify(scores, "", cuts), "class_norm": classify(scores, "_norm", cuts)}
    )
    return with_blanks(scores)


def with_blanks(scores: Frame) -> Frame:
    """Return the scores without those that mean nothing: of a class without a Theta, of a broken trial."""
    scored = ("theta", "theta_reversed", "log_lag")
    blank = {
        name + end: scores[name + end].where(scores["class" + end].isin(HAS_THETA))
        for end in ("", "_norm")
        for name in scored
    }
    onsets = ("onset_v", "onset_attention", "onset_entropy", "onset_v_norm", "onset_attention_norm")
    known = {name: scores["is_finite"] for name in onsets}
    known["onset_v"] = known["onset_v"] & ~scores["class"].isin(["silent", "attention-only"])
    known["onset_attention"] = known["onset_attention"] & ~scores["class"].isin(["silent", "V-only"])
    return scores.assign(**blank, **{name: scores[name].where(known[name]) for name in onsets})


def loss_progress(records: Records, curves: Frame) -> Progress:
    """Return F_V and F_A by the loss, on the way up."""
    kept, up = records.up_to(lowest_record(records, column(curves, "on")))
    return Progress(up, *(share_of_rise(up, column(curves, name)[kept]) for name in ("P", "Q")))


def share_of_rise(records: Records, values: Array) -> Array:
    """Return the isotonic fit of each curve from 0 at its start to 1 at its end; NaN where it does not rise.

    Below 0 counts 0; what is above the largest median of three records counts as that.  The end of the fit is
    the unit: what a layer adds may fall when other layers take it over, and that is no lack of progress.
    """
    unit = steady_maximum(records, values)
    fit = monotone(records, values / records.spread(np.where(unit > 0, unit, np.inf)))
    height = fit[records.end]
    return fit / records.spread(np.where(height > 0, height, np.nan))


def norm_progress(records: Records, curves: Frame) -> Progress:
    """Return F_V and F_A by the norms, of the whole training; NaN where a norm only falls."""
    attention = (column(curves, "norm_k") + column(curves, "norm_q")) / 2
    parts = (norm_rise(records, norm) for norm in (column(curves, "norm_v"), attention))
    return Progress(records, *(monotone(records, part) for part in parts))


def view_scores(view: Progress, cuts: Cuts) -> dict[str, Array]:
    """Return Theta, the same with the roles swapped, the log lag and both onsets of each curve."""
    records, F_V, F_A = view
    return {
        "theta": theta(records, F_V, F_A),
        "theta_reversed": theta(records, F_A, F_V),
        "log_lag": log_lag(records, F_V, F_A),
        "onset_v": onset(records, F_V, cuts.onset),
        "onset_attention": onset(records, F_A, cuts.onset),
        "rise_v": F_V[records.end],
        "rise_attention": F_A[records.end],
    }


def leaves_uniform(records: Records, curves: Frame) -> Array:
    """Return the step at which attention has left where it began: its entropy is LEAVES_UNIFORM lower.

    An absolute level, the same for every layer and cell: it depends neither on the number of steps nor on how
    far a layer goes later, as a share of the final value would.
    """
    deficit = steady(records, column(curves, "entropy_deficit"))
    return onset(records, deficit - records.spread(deficit[records.start]), LEAVES_UNIFORM)


def ends(records: Records, curves: Frame) -> dict[str, Array]:
    """Return what attention does at the end, and what it and the values add there."""
    found = {f"end_{name.lower()}": last_finite(records, curves, name) for name in ENDS}
    ratio = found["end_attn_same_topic"] / found["end_attn_diff_topic"]
    shift = topic_shift(records, curves)[records.end]
    return {**found, "topic_ratio": ratio, "topic_shift": shift, "last_step": records.step[records.end]}


def last_finite(records: Records, curves: Frame, name: str) -> Array:
    """Return a column at the last record; NaN if it is not finite there."""
    values = column(curves, name)[records.end]
    return np.where(np.isfinite(values), values, np.nan)


def is_broken(records: Records, curves: Frame) -> Array:
    """Return whether a loss of the curve is not finite somewhere."""
    losses = column(curves, "on") + column(curves, "uniform") + column(curves, "silent")
    return np.logical_or.reduceat(~np.isfinite(losses), records.start)


def flags(
    records: Records, curves: Frame, up: Progress, columns: dict[str, Array], cuts: Cuts
) -> dict[str, Array]:
    """Return doubts about each curve: gains at step 0, P that falls again, an onset in the last tenth."""
    P, Q = column(curves, "P"), column(curves, "Q")
    largest = steady_maximum(records, np.maximum(P, 0))
    late = (1 - cuts.last) * records.step[records.end]
    return {
        "v_at_start": P[records.start] > cuts.at_start * columns["max_p"],
        "attention_at_start": Q[records.start] > np.maximum(cuts.at_start * columns["max_q"], 1e-6),
        "v_recedes": recession(records, P / records.spread(np.where(largest > 0, largest, 1))) > cuts.recedes,
        "censored_attention": columns["onset_attention"] > late,
    }


def classify(scores: Frame, end: str = "", cuts: Cuts = CUTS) -> Array:
    """Return the class of each row in a view ("": loss, "_norm": norms): the first whose rule it meets.

    A gain counts if noise cannot explain it and it is a tenth of what topics can give a one-layer model; that
    of attention which follows the topics, or avoids them, also if it is within the error of the documents.
    """
    theta_, swapped, lag = (scores[name + end] for name in ("theta", "theta_reversed", "log_lag"))
    least = cuts.attention * scores["gain_unit"]
    if end:  # norms know no gain: a part has moved if its norm rose
        silent = scores["is_finite"] & False
        V_moved, A_moved = (scores[f"rise_{part}{end}"] > 0 for part in ("v", "attention"))
        begun, unscored = silent, scores[f"rise_v{end}"].isna() | scores[f"rise_attention{end}"].isna()
    else:
        sure = {part: scores[f"sure_{part}"] >= least for part in ("p", "q", "added")}
        beyond = {part: scores[f"beyond_{part}"] >= least for part in sure}
        silent, V_moved = ~(sure["added"] & beyond["added"]), sure["p"] & beyond["p"]
        A_moved = sure["q"] & (beyond["q"] | (scores["topic_shift_max"] >= cuts.attention))
        begun = scores["has_gap"] & (scores["max_q_all"] < cuts.stage2 * scores["gain_unit"])
        unscored = V_moved & A_moved & theta_.isna()
    rules = [
        ("diverged", ~scores["is_finite"]),
        ("no-learning", scores["max_total"] < cuts.no_learning),
        ("unfinished", scores["max_total"] < cuts.finished),
        ("unscored", unscored),
        ("silent", silent),
        ("V-only", ~A_moved),
        ("attention-only", ~V_moved),
        ("stage 2 begun", (theta_ >= cuts.two_stage) & begun),
        ("two-stage", theta_ >= cuts.two_stage),
        ("reversed", swapped >= cuts.two_stage),
        ("simultaneous", (theta_ < cuts.simultaneous) & (swapped < cuts.simultaneous)),
        ("V leads", lag.fillna(theta_ - swapped) >= 0),
    ]
    names, conditions = zip(*rules, strict=True)
    return np.select([np.asarray(holds, bool) for holds in conditions], names, "attention leads")
