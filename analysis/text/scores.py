"""Score the norms of each layer of encoders on text: which rises first, and at what loss (Figure 5).

F_V and F_A are the monotone rises of |W^V| and of (|W^K| + |W^Q|) / 2 from 0 to 1, read off as in the paper's
figure.  The unigram line knows word frequencies but no context, so a loss below it is the first sign that
context is used.
"""

import numpy as np
import pandas as pd

from topicjax.stages import (
    Array,
    Records,
    growth,
    onset,
    share_of_rise,
    steady,
    steady_maximum,
    theta,
    value_at_onset,
    value_at_step,
)
from topicjax.store.reader import Run

from ..frames import Frame, cell_of_rows, check_columns, column
from ..layers import ALL, OF_TEXT, layer_curves, leaves_uniform, norm_progress, telling_settings
from ..maps.cells import majority

SCORES_FILE = "text_layers.parquet"
ERRORS = 2.0  # significance threshold, in standard errors
AROUND = 2.0  # "around" a step: from this factor earlier to this factor later
LITTLE = 0.1  # "V first": K and Q have made less than this share of their rise when V is at half
GROWTH = 2.0  # a norm that grows by a smaller factor "hardly moves"
FIGURE5, LEADS, TOGETHER, STILL = "V first", "V leads", "not V first", "hardly moves"
SHAPES = (FIGURE5, LEADS, TOGETHER, STILL, "diverged")
UNIFORM_FIRST, UNIFORM_NOT_FIRST = "uniform attention first", "uniform attention not first"
UNIFORM_ONLY, NO_CONTEXT = "uniform attention only", "no context"
FIRST_THETA = 0.9  # uniform attention comes first from this Theta on
MEDIANS = (
    *("onset_v", "onset_a", "onset_entropy", "attention_then", "growth_v", "growth_a", "passed"),
    *("passed_surely", "v_by_then", "a_by_then", "v_around", "a_around", "uniform_then", "trained_then"),
)
MEANS = ("below", "below_se", "uniform_below")


def score_text(run: Run) -> Frame:
    """Score every trial and layer: settings, onsets and growth of norms, their shape, the unigram line.

    onset_v and onset_a are the steps at half of a rise, and attention_then is F_A when V is at half.
    `passed` is the step at which the model's held-out loss falls below the unigram line, NaN if never, and
    `passed_surely` that at which it is below by ERRORS standard errors over windows.  At that step v_by_then
    and a_by_then are F_V and F_A, v_around and a_around how much they rise from half to twice of it; of the
    loss then below the line, uniform_then is there with uniform attention too, trained_then is not.
    `below` is how far it is below the line at the end, with its standard error, and uniform_below the same
    with uniform attention.  theta is that of |W^V| before |W^K| and |W^Q|; theta_context is that of what
    uniform attention has below the line before what trained attention adds there.
    """
    check_columns(run.trajectories, OF_TEXT, f"{run.folder}/trajectories")
    every = layer_curves(run)
    curves = every.loc[every["layer"] != ALL].reset_index(drop=True)
    measured = curves.loc[curves["is_measured"]].reset_index(drop=True)  # on the held-out windows
    records, rare = (Records.of(table["step"].to_numpy()) for table in (curves, measured))
    first = curves.iloc[records.start]
    trials = run.trials.take(first["trial"].to_numpy()).reset_index(drop=True)
    line = column(measured, "eval_loss_unigram")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        _, F_V, F_A = norm_progress(records, curves)
        attention = (column(curves, "norm_k") + column(curves, "norm_q")) / 2
        columns = dict(
            theta=theta(records, F_V, F_A),
            onset_v=onset(records, F_V),
            onset_a=onset(records, F_A),
            attention_then=value_at_onset(records, F_V, F_A),
            growth_v=growth(records, column(curves, "norm_v")),
            growth_a=growth(records, attention),
            onset_entropy=leaves_uniform(rare, measured),
            passed=onset(rare, line - steady(rare, column(measured, "on")), 0.0),
        )
        columns |= around_context(records, F_V, F_A, rare, measured)
    columns |= {f"end_{name}": column(measured, name)[rare.end] for name in ("on", "entropy_deficit")}
    below = line[rare.end] - columns["end_on"]
    columns |= dict(below=below, below_se=column(measured, "eval_context_se")[rare.end])
    columns |= dict(uniform_below=line[rare.end] - column(measured, "uniform")[rare.end])
    settings = trials[["trial_id", *run.setting_names, "status"]]
    scores = settings.assign(layer=first["layer"].to_numpy(int), unigram=line[rare.end], **columns)
    scores = scores.merge(context_order(run, every), on="trial_id", how="left", validate="many_to_one")
    return scores.assign(shape=shapes(scores))


def context_order(run: Run, every: Frame) -> Frame:
    """Score for each trial whether context is used through uniform attention first: theta_context, its class.

    The loss below the unigram line has two parts: what the model has there with uniform attention, and what
    trained attention adds.  Each counts if its maximum exceeds ERRORS standard errors over windows.
    """
    whole = every.loc[(every["layer"] == ALL) & every["is_measured"]].reset_index(drop=True)
    records = Records.of(whole["step"].to_numpy())
    loss, uniform, line, error = (
        column(whole, name) for name in ("on", "uniform", "eval_loss_unigram", "eval_context_se")
    )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        parts = np.maximum(line - uniform, 0), np.maximum(np.minimum(line, uniform) - loss, 0)
        by_uniform, by_trained = (share_of_rise(records, part) for part in parts)
        least = ERRORS * column(whole, "gain_se")
        adds = steady_maximum(records, parts[1] - least) > 0
        found = theta(records, by_uniform, by_trained)
        used = (line - loss > ERRORS * error)[records.end]
    trials: Frame = run.trials.iloc[whole["trial"].to_numpy()[records.start]]
    rules = {
        "diverged": (trials["status"] != "ok").to_numpy(),
        NO_CONTEXT: ~used,
        UNIFORM_ONLY: ~adds,
        UNIFORM_FIRST: found >= FIRST_THETA,
    }
    classes = np.select(list(rules.values()), list(rules), UNIFORM_NOT_FIRST)
    known = np.isin(classes, (UNIFORM_FIRST, UNIFORM_NOT_FIRST))
    return pd.DataFrame(
        dict(trial_id=trials["trial_id"].to_numpy(), theta_context=np.where(known, found, np.nan))
    ).assign(class_context=classes)


def around_context(
    records: Records, F_V: Array, F_A: Array, rare: Records, measured: Frame
) -> dict[str, Array]:
    """Find the step from which context is surely used, and read norms and losses there."""
    loss, uniform, line = (column(measured, name) for name in ("on", "uniform", "eval_loss_unigram"))
    sure = steady(rare, line - loss - ERRORS * column(measured, "eval_context_se"))
    step = onset(rare, sure, 0.0)
    last = records.step[records.end]
    found = dict(passed_surely=step)
    for name, curve in (("v", F_V), ("a", F_A)):
        early, then, late = (
            value_at_step(records, curve, np.minimum(factor * step, last))
            for factor in (1 / AROUND, 1.0, AROUND)
        )
        found |= {f"{name}_by_then": then, f"{name}_around": late - early}
    return found | dict(
        uniform_then=value_at_step(rare, line - uniform, step),
        trained_then=value_at_step(rare, uniform - loss, step),
    )


def shapes(scores: Frame) -> Array:
    """Classify the norms of each layer: the first shape whose rule they satisfy."""
    moves = (scores["growth_v"] >= GROWTH) & (scores["growth_a"] >= GROWTH)
    rules = {
        "diverged": scores["status"] != "ok",
        STILL: ~moves,
        FIGURE5: scores["attention_then"] < LITTLE,
        LEADS: scores["onset_v"] < scores["onset_a"],
    }
    return np.select([holds.to_numpy(bool) for holds in rules.values()], list(rules), TOGETHER)


def text_cells(run: Run, scores: Frame) -> Frame:
    """Summarise each cell and layer: its settings, the most frequent shape, medians over seeds."""
    names = telling_settings(run)
    place = 1000 * cell_of_rows(scores, names) + scores["layer"].to_numpy()  # no model has 1000 layers
    keys, first, number = np.unique(place, return_index=True, return_inverse=True)
    table = scores[[*names, "layer"]].iloc[first].reset_index(drop=True)
    shape, agreement = majority(number, scores["shape"].to_numpy(), SHAPES)
    ok = scores["status"] == "ok"
    medians: Frame = scores[[*MEDIANS, "unigram"]].where(ok).groupby(number).median()
    means: Frame = scores[[*MEANS]].where(ok).groupby(number).mean()
    passed = np.bincount(number, scores["passed"].notna() & ok).astype(int)
    found = dict(cell=keys // 1000, trials=np.bincount(number), shape=shape, agreement=agreement)
    found |= dict(steps=scores["steps"].to_numpy()[first])
    # K and Q are half way before the loss passes the unigram line, or it never passes it
    is_early = (ok & (scores["onset_a"] < scores["passed"].fillna(np.inf))).to_numpy()
    early = np.bincount(number, is_early).astype(int)
    return pd.concat([table.assign(**found, seeds_passed=passed, seeds_before=early), medians, means], axis=1)
