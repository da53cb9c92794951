"""Score which of syntax and topics a training learns first, and whether V came before the scores that use it.

P_syntax = (L_class(unigram) - L_class) / (L_class(unigram) - L_class(best)) is the share of what word order
can give that the model has gained: L_class is the part of the held-out loss about the class of a word, from
predicting class frequencies (0) to knowing all visible classes (1).  P_topic is the same for the topic of
content words.  Both are compared by the platform's scores (topicjax.stages): syntax is the first curve.

Only the way up counts: each curve is fitted up to its best record and held there.  What is lost again later
is named in then_lost.

V is compared with the scores that use it inside the model: what the value map says about the next or the
previous class with the attention bias towards the neighbours, and what it says about the topic with the
attention score of content words.  Of several layers and heads the strongest counts: one head may look at
neighbours and another at content words, so a sum over heads would cancel, and would count twice what two
heads share.  The bias at +-1 is taken rather than the norm of the bias, because that also grows when a
position learns to ignore itself, which shows [MASK].  By losses, V is compared with attention: the progress
that is left with uniform attention, and what the trained attention adds to it.
"""

from typing import Any

import numpy as np
import pandas as pd

from topicjax.stages import (
    HALF,
    TENTHS,
    Array,
    Records,
    compare,
    monotone,
    onset,
    share_of_rise,
    steady,
    steady_maximum,
    value_at_step,
)
from topicjax.store.reader import Run

from ..frames import Frame, cell_of_rows, check_columns, column, once_per_run, sort_records
from ..layers import telling_settings
from ..maps.cells import UNSCORED, majority

SCORES_FILE = "syntax.parquet"
KEYS = ["trial_id", "step"]
PARTS = {"syntax": "class", "topic": "topic"}  # what is learned: the part of the loss that shows it
LINES = (
    "held_out_unigram",
    *(f"held_out_{part}_{end}" for part in PARTS.values() for end in ("unigram", "best")),
)
WITHIN = "held_out_class_within_1"
STAIRS = ("unigram", "within_1", "within_2", "both")  # lines of the loss, from the highest to the lowest
NEAR_LINE = 0.1  # of the way between two lines: so near a line the loss is at it
NEEDED = ("eval_loss", "eval_class", "eval_topic")
LEAST_GAIN = 1e-3  # of a loss: with less to gain, progress is undefined
RATIO, OTHER_RATIOS = 1.5, {"_125": 1.25, "_2": 2.0}  # of half-way steps, above which one of the two is first
LEVELS = {"20": 0.2, "50": HALF, "80": 0.8}
LITTLE = 0.1  # progress from which a part has begun
LEARNED = 0.95  # share of the way to the unigram line at which the frequencies of words are known
LOST = 0.5  # share of its best progress below which a part is lost again
V_FIRST_THETA = 0.9  # V came before the scores from this Theta on
LEAST_SCORE = 0.1  # a score of attention that rises by less changes no weight by more than a tenth
SYNTAX, TOPICS, TOGETHER = "syntax first", "topics first", "together"
SYNTAX_ONLY, TOPICS_ONLY, NEITHER, DIVERGED = "syntax only", "topics only", "neither", "diverged"
UNDECIDED = "undecided"  # one of the two is half way so late that the other may still follow within the ratio
CLASSES = (SYNTAX, SYNTAX_ONLY, TOGETHER, TOPICS_ONLY, TOPICS, UNDECIDED, NEITHER, UNSCORED, DIVERGED)
SIDES = {SYNTAX: "syntax", SYNTAX_ONLY: "syntax", TOPICS: "topics", TOPICS_ONLY: "topics", TOGETHER: TOGETHER}
V_FIRST, V_NOT_FIRST, V_ALONE = "V first", "V not first", "V alone"
V_CLASSES = (V_FIRST, V_NOT_FIRST, V_ALONE, UNSCORED, DIVERGED)
V_PAIRS = {"syntax": ("v_class", "neighbour"), "topic": ("v_topic", "content_score")}  # part: V, scores
NEIGHBOURS = ("bias_left_1", "bias_right_1")
HEADS = ("v_class", "v_topic", *NEIGHBOURS, "content_score")  # columns of the details that are scored
MEDIANS = (
    *("theta", "theta_reversed", "order", "log_lag", "ratio", "other_then"),
    *(f"{part}_{level}" for part in PARTS for level in LEVELS),
    *(f"{kind}_p_{part}" for kind in ("max", "final") for part in PARTS),
    *("unigram_step", "begun_step", "syntax_at_unigram", "topic_at_unigram", "within_1"),
    *(f"{name}_{part}" for part in PARTS for name in ("v_theta", "v_50", "scores_50", "scores_rise")),
    *("left_50", "right_50", "sides_ratio", "last_step"),
    *(f"loss_{name}_{part}" for part in PARTS for name in ("theta", "v_50", "gain_50", "gain", "value")),
    *(f"{kind}_{name}" for kind in ("passed", "wait") for name in STAIRS[:3]),
)
FIRST = (  # settings that titles and tables name first
    *("alpha", "bias_gain", "sharpness", "stay", "layers", "heads", "objective", "optimizer"),
    *("learning_rate", "init", "init_scale"),
)


def prepared(run: Run) -> Run:
    """Sort the records by trial and step, and add p_syntax and p_topic, clipped below at 0.

    They are NaN without reference losses, or where a part has nothing to gain.  A run that is already
    prepared is returned unchanged.
    """
    if {f"p_{part}" for part in PARTS} <= set(run.trajectories):
        return run
    check_columns(run.trajectories, NEEDED, f"{run.folder}/trajectories")
    records, owner = sort_records(run.trajectories, run.trials)
    curves = {f"p_{part}": np.maximum(progress(run, records, owner, part), 0) for part in PARTS}
    without = int(run.references.reindex(columns=LINES).isna().any(axis=1).sum())
    lacking = (f"{without} of {len(run.trials)} trials lack reference losses: they are not scored",)
    missing = (*run.missing, *(lacking if without else ()))
    return run.replace(trajectories=records.assign(**curves), missing=missing)


def progress(run: Run, records: Frame, owner: Array, part: str, end: str = "") -> Array:
    """Compute a part's share of what can be gained at each record; `end`: that of a changed model's column.

    `owner` has the row of each record's trial.  Below 0 the model is worse than class frequencies, or than
    topics that are equally likely.
    """
    loss = column(records, f"eval_{PARTS[part]}{end}")
    unigram, best = (line(run, f"held_out_{PARTS[part]}_{kind}")[owner] for kind in ("unigram", "best"))
    with np.errstate(divide="ignore", invalid="ignore"):
        known = (unigram - best > LEAST_GAIN) & np.isfinite(loss)
        return np.where(known, (unigram - loss) / (unigram - best), np.nan)


def line(run: Run, name: str) -> Array:
    """Return a reference loss of each trial, NaN where it has none."""
    return column(run.references.reindex(columns=[name]), name)


def score_syntax(run: Run) -> Frame:
    """Score every trial: Theta, lag, steps at 20, 50 and 80 %, class at three ratios, V before scores.

    theta is that of syntax before topics, order the larger of both directions, ratio the half-way step of
    topics divided by that of syntax, and other_then the progress of the later one when the earlier is half
    way.  *_at_unigram is progress when the loss has come to the unigram line, within_1 the P_syntax of the
    predictor that sees only the two neighbours.
    """
    run = prepared(run)
    frame, _ = sort_records(run.trajectories, run.trials)
    records = Records.of(frame["step"].to_numpy())
    P = {part: column(frame, f"p_{part}") for part in PARTS}
    with np.errstate(divide="ignore", invalid="ignore"):
        F = {part: way_up(records, curve) for part, curve in P.items()}
        columns: dict[str, Any] = compare(records, F["syntax"], F["topic"])
        del columns["onset_first"], columns["onset_second"]  # they are among the levels
        columns["order"] = np.fmax(columns["theta"], columns["theta_reversed"])
        for level, height in LEVELS.items():
            columns |= {f"{part}_{level}": onset(records, F[part], height) for part in PARTS}
        halves = columns["syntax_50"], columns["topic_50"]
        columns["ratio"] = halves[1] / halves[0]
        columns["other_then"] = other_then(records, F, *halves)
        for part, curve in P.items():
            is_known = np.isfinite(F[part][records.end])
            columns[f"max_p_{part}"] = np.where(is_known, steady_maximum(records, curve), np.nan)
            columns[f"final_p_{part}"] = curve[records.end]
        columns["then_lost"] = then_lost(records, P)
        columns |= at_unigram(records, column(frame, "eval_loss"), line(run, "held_out_unigram"), F)
        columns |= stairs(records, column(frame, "eval_loss"), [line(run, f"held_out_{n}") for n in STAIRS])
        unigram, best, near = (line(run, name) for name in (*LINES[1:3], WITHIN))
        columns["within_1"] = np.where(
            unigram - best > LEAST_GAIN, (unigram - near) / (unigram - best), np.nan
        )
    columns |= values_and_scores(run) | values_and_attention(run)
    columns["last_step"] = records.step[records.end]
    scores = run.trials[["trial_id", *run.setting_names, "status"]].reset_index(drop=True).assign(**columns)
    classes = {
        f"class{end}": which_first(scores, ratio) for end, ratio in {"": RATIO, **OTHER_RATIOS}.items()
    }
    classes |= {f"class_v_{part}": v_first(scores, part) for part in PARTS}
    classes |= {f"class_loss_{part}": v_first_by_loss(scores, part) for part in PARTS}
    return scores.assign(**classes)


def way_up(records: Records, curve: Array) -> Array:
    """Fit progress by a curve that never falls, up to the first record at 1 or else the highest."""
    return monotone(records, held(records, curve, 1.0))


def held(records: Records, curve: Array, top: float = np.inf) -> Array:
    """Hold a curve at its best record, the first at `top` or else the highest, by medians of three."""
    smooth = steady(records, curve)
    best = records.first((smooth >= top) | (smooth == records.spread(records.maximum(smooth))))
    best = np.minimum(best, records.end)  # a curve with NaN has no best record
    is_later = np.arange(len(curve)) > records.spread(best)
    return np.where(is_later & np.isfinite(curve), records.spread(smooth[best]), curve)


def then_lost(records: Records, P: dict[str, Array]) -> Array:
    """Name what was half way and is below half of its best in the last tenth of the steps, else ""."""
    lost = {}
    for part, curve in P.items():
        best, end = steady_maximum(records, curve), records.mean(curve, records.last(1 / TENTHS))
        lost[part] = (best >= HALF) & (end < LOST * np.minimum(best, 1))
    both = lost["syntax"] & lost["topic"]
    return np.select([both, lost["syntax"], lost["topic"]], ["both", "syntax", "topics"], "")


def stairs(records: Records, loss: Array, lines: list[Array]) -> dict[str, Array]:
    """Find when the loss passes each line, and how long it waits there.

    passed_* is the step, wait_* the factor in steps from a tenth of the way before the line to a tenth of the
    way beyond it, measured between the line and its neighbours.  NaN if it does not come so far, or if two
    lines are less than LEAST_GAIN apart.
    """
    heights, found = [loss[records.start], *lines], {}
    for name, above, own, below in zip(STAIRS[:3], heights, heights[1:], heights[2:], strict=False):
        levels = own, own + NEAR_LINE * (above - own), own - NEAR_LINE * (own - below)
        levels = [
            np.where((above - own > LEAST_GAIN) & (own - below > LEAST_GAIN), at, np.nan) for at in levels
        ]
        passed, before, beyond = (passing_step(records, loss, at) for at in levels)
        found |= {f"passed_{name}": passed, f"wait_{name}": beyond / before}
    return found


def passing_step(records: Records, loss: Array, level: Array) -> Array:
    """Find the step at which the loss first falls to a level; NaN if it never does."""
    start = records.spread(loss[records.start])
    drop = start - records.spread(level)
    return onset(records, (start - steady(records, loss)) / np.where(drop > 0, drop, np.nan), 1.0)


def other_then(records: Records, F: dict[str, Array], syntax: Array, topic: Array) -> Array:
    """Read the later curve at the step at which the earlier one is half way; NaN if neither is."""
    step = np.fmin(syntax, topic)
    read = {part: value_at_step(records, curve, step) for part, curve in F.items()}
    return np.where(step == syntax, read["topic"], read["syntax"])


def at_unigram(records: Records, loss: Array, unigram: Array, F: dict[str, Array]) -> dict[str, Array]:
    """Find when the loss is at the unigram line, how far both parts are then, and when either begins."""
    start = loss[records.start]
    drop = np.where(start - unigram > LEAST_GAIN, start - unigram, np.nan)
    step = onset(records, way_up(records, (records.spread(start) - loss) / records.spread(drop)), LEARNED)
    begun = np.fmin(*(onset(records, curve, LITTLE) for curve in F.values()))
    found = {f"{part}_at_unigram": value_at_step(records, curve, step) for part, curve in F.items()}
    return dict(unigram_step=step, begun_step=begun) | found


@once_per_run
def strongest(run: Run) -> Frame:
    """Take the largest value over layers and heads of each column of the details that is scored.

    One row per trial and step; `neighbour` is the larger of the biases at -1 and +1.
    """
    details: Any = run.details.reindex(columns=[*KEYS, *HEADS])
    table = details.groupby(KEYS, sort=False)[[*HEADS]].max().reset_index()
    return table.assign(neighbour=table[[*NEIGHBOURS]].max(axis=1))


def values_and_scores(run: Run) -> dict[str, Array]:
    """Compare V with the scores that use it: Theta, half-way steps of their own rises, rise of the scores.

    NaN for trials without details.  left_50 and right_50 are the half-way steps of the biases at -1 and +1,
    sides_ratio the later divided by the earlier.  Rises of scores below LEAST_SCORE have no half-way step.
    """
    table = strongest(run)
    known = run.trials["trial_id"].isin(table["trial_id"]).to_numpy()
    frame, _ = sort_records(table, run.trials.loc[known])
    columns: dict[str, Array] = {}
    if known.any():
        records = Records.of(frame["step"].to_numpy())
        with np.errstate(divide="ignore", invalid="ignore"):
            curves = {name: column(frame, name) for name in (*HEADS, "neighbour")}
            curves = {name: curve - records.spread(curve[records.start]) for name, curve in curves.items()}
            height = {name: steady_maximum(records, curve) for name, curve in curves.items()}
            F = {name: share_of_rise(records, held(records, curve)) for name, curve in curves.items()}
            half = {
                name: np.where((height[name] >= LEAST_SCORE) | (name in ("v_class", "v_topic")), own, np.nan)
                for name, own in ((name, onset(records, curve)) for name, curve in F.items())
            }
            for part, (value, score) in V_PAIRS.items():
                theta = compare(records, F[value], F[score])["theta"]
                columns[f"v_theta_{part}"] = np.where(height[score] >= LEAST_SCORE, theta, np.nan)
                columns |= {f"v_50_{part}": half[value], f"scores_50_{part}": half[score]}
                columns[f"scores_rise_{part}"] = height[score]
            left, right = (half[name] for name in NEIGHBOURS)
            columns |= dict(left_50=left, right_50=right)
            columns["sides_ratio"] = np.maximum(left, right) / np.minimum(left, right)
    names = [
        *(f"{name}_{part}" for part in PARTS for name in ("v_theta", "v_50", "scores_50", "scores_rise"))
    ]
    every = {name: np.full(len(known), np.nan) for name in (*names, "left_50", "right_50", "sides_ratio")}
    for name, values in columns.items():
        every[name][known] = values
    return every


def values_and_attention(run: Run) -> dict[str, Array]:
    """Compare by losses: progress with uniform attention, and what the trained attention adds to it.

    Both are measured at rare records.  loss_theta_* is that of V before attention, by their own rises;
    loss_gain_* the largest gain by attention, as a share of what can be gained, loss_value_* that by V; theta
    means nothing where V gains less than LITTLE.
    """
    names = ("theta", "v_50", "gain_50", "gain", "value")
    every = {f"loss_{name}_{part}": np.full(len(run.trials), np.nan) for part in PARTS for name in names}
    frame, owner = sort_records(run.trajectories, run.trials)
    for part, own in PARTS.items():
        if f"eval_{own}_uniform" not in frame:
            continue
        uniform = progress(run, frame, owner, part, "_uniform")
        is_rare = np.isfinite(column(frame, f"eval_{own}_uniform"))
        trials = np.unique(owner[is_rare & (column(frame, "step") == 0)])  # measured from step 0 on
        if not len(trials):
            continue
        kept = is_rare & np.isin(owner, trials)
        records = Records.of(column(frame, "step")[kept])
        value, trained = np.maximum(uniform[kept], 0), column(frame, f"p_{part}")[kept]
        gain = trained - value
        gain = gain - records.spread(gain[records.start])
        value = value - records.spread(value[records.start])
        with np.errstate(divide="ignore", invalid="ignore"):
            first, second = (share_of_rise(records, held(records, curve)) for curve in (value, gain))
            scored = compare(records, first, second)
        found = dict(theta=scored["theta"], v_50=scored["onset_first"], gain_50=scored["onset_second"])
        found |= dict(gain=steady_maximum(records, gain), value=steady_maximum(records, value))
        found["theta"] = np.where(found["value"] < LITTLE, np.nan, found["theta"])
        for name, values in found.items():
            every[f"loss_{name}_{part}"][trials] = values
    return every


def which_first(scores: Frame, ratio: float) -> Array:
    """Classify each trial: the first rule that it satisfies.

    Where one of the two is not half way, the other is first only if more than `ratio` times its own half-way
    step was trained.
    """
    syntax, topic = column(scores, "syntax_50"), column(scores, "topic_50")
    last = column(scores, "last_step")
    rules = {
        DIVERGED: (scores["status"] == DIVERGED).to_numpy(),
        UNSCORED: np.isnan(column(scores, "theta")),
        NEITHER: np.isnan(syntax) & np.isnan(topic),
        SYNTAX_ONLY: np.isnan(topic) & (last > ratio * syntax),
        TOPICS_ONLY: np.isnan(syntax) & (last > ratio * topic),
        UNDECIDED: np.isnan(topic) | np.isnan(syntax),
        SYNTAX: topic > ratio * syntax,
        TOPICS: syntax > ratio * topic,
    }
    return np.select(list(rules.values()), list(rules), TOGETHER)


def v_first(scores: Frame, part: str) -> Array:
    """Classify each trial that learned a part half way: whether V came before the scores that use it."""
    theta, rise = column(scores, f"v_theta_{part}"), column(scores, f"scores_rise_{part}")
    rules = {
        DIVERGED: (scores["status"] == DIVERGED).to_numpy(),
        UNSCORED: np.isnan(column(scores, f"{part}_50")) | np.isnan(rise),
        V_ALONE: rise < LEAST_SCORE,
        V_FIRST: theta >= V_FIRST_THETA,
        V_NOT_FIRST: theta < V_FIRST_THETA,
    }
    return np.select(list(rules.values()), list(rules), UNSCORED)


def v_first_by_loss(scores: Frame, part: str) -> Array:
    """Classify each trial that learned a part half way: whether V came before attention, by losses."""
    theta, gain, value = (column(scores, f"loss_{name}_{part}") for name in ("theta", "gain", "value"))
    rules = {
        DIVERGED: (scores["status"] == DIVERGED).to_numpy(),
        UNSCORED: np.isnan(column(scores, f"{part}_50")) | np.isnan(gain),
        V_ALONE: gain < LITTLE,
        V_NOT_FIRST: (value < LITTLE) | (theta < V_FIRST_THETA),
        V_FIRST: theta >= V_FIRST_THETA,
    }
    return np.select(list(rules.values()), list(rules), UNSCORED)


def cell_settings(run: Run) -> list[str]:
    """List the settings that distinguish cells; those of the language and the model come first."""
    names = telling_settings(run)
    return sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def syntax_cells(run: Run, scores: Frame) -> Frame:
    """Summarise each cell: its settings, the most frequent class of each kind, medians over seeds.

    agreement is the share of seeds with the class, side which of the two that class puts first ("": neither
    can be said), then_lost the number of seeds that lost a part again, and *_low, *_high are the extremes
    over seeds.
    """
    names = cell_settings(run)
    number = cell_of_rows(scores, names)
    cells = scores[names].iloc[np.unique(number, return_index=True)[1]].reset_index(drop=True)
    is_ok = (scores["status"] == "ok").to_numpy()
    found: dict[str, Any] = dict(cell=np.arange(len(cells)), trials=np.bincount(number))
    found["diverged"] = np.bincount(number, ~is_ok).astype(int)
    of_v = [f"_{view}_{part}" for view in ("v", "loss") for part in PARTS]
    for end in ("", *OTHER_RATIOS, *of_v):
        kinds = V_CLASSES if end in of_v else CLASSES
        found[f"class{end}"], found[f"agreement{end}"] = majority(
            number, scores[f"class{end}"].to_numpy(), kinds
        )
    found["then_lost"] = np.bincount(number, (scores["then_lost"] != "") & is_ok).astype(int)
    found["side"] = [SIDES.get(kind, "") for kind in found["class"]]
    groups: Any = scores[[*MEDIANS]].where(scores["status"] == "ok").groupby(number)
    spread = {"": groups.median(), "_low": groups.min(), "_high": groups.max()}
    medians = [table.add_suffix(end) for end, table in spread.items()]
    return pd.concat([cells.assign(**found), *medians], axis=1)
