"""Is it Figure 5?  The norms of each layer of encoders on text: which rise first, and before which loss.

F_V and F_A are the monotone rises of |W^V| and of (|W^K| + |W^Q|) / 2 from 0 to 1, as one reads the paper's
figure.  A loss below the unigram line, which knows how often words occur and nothing of their context, is
the first sign that context is used.
"""

import numpy as np
import pandas as pd

from topicjax.store.reader import Run

from ..encoder.layer_cells import cell_of_rows, telling_settings
from ..encoder.layer_curves import ALL, OF_TEXT, layer_curves
from ..encoder.layers import leaves_uniform, norm_progress
from ..frames import check_columns, column
from ..maps.cells import majority
from ..one_layer.curves import Array, Records, onset, steady
from ..one_layer.trained_models import Frame

SCORES_FILE = "text_layers.parquet"
HALF = 0.5  # of a rise
LITTLE = 0.1  # of the rise of K and Q: more of it while V is at half is not V first
GROWTH = 2.0  # of a norm: what grows by less hardly moves beside its start
FIGURE5, LEADS, TOGETHER, STILL = "V first", "V leads", "not V first", "hardly moves"
SHAPES = (FIGURE5, LEADS, TOGETHER, STILL, "diverged")
MEDIANS = ("onset_v", "onset_a", "onset_entropy", "attention_then", "growth_v", "growth_a", "passed")
MEANS = ("below", "below_se")


def score_text(run: Run) -> Frame:
    """Return one row per trial and layer: settings, onsets and growth of norms, their shape, the lines.

    onset_v and onset_a are the steps at half of a rise, attention_then is F_A when V is at half; `passed` is
    the step at which the held-out loss of the model falls below the unigram line, NaN if it never does;
    `below` is by how much it is below the line at the end, with its standard error over windows.
    """
    check_columns(run.trajectories, OF_TEXT, f"{run.folder}/trajectories")
    curves = layer_curves(run)
    curves = curves.loc[curves["layer"] != ALL].reset_index(drop=True)
    records = Records.of(curves["step"].to_numpy())
    first = curves.iloc[records.start]
    trials = run.trials.take(first["trial"].to_numpy()).reset_index(drop=True)
    line = column(curves, "eval_loss_unigram")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        _, F_V, F_A = norm_progress(records, curves)
        attention = (column(curves, "norm_k") + column(curves, "norm_q")) / 2
        columns = dict(
            onset_v=onset(records, F_V, HALF),
            onset_a=onset(records, F_A, HALF),
            attention_then=other_at(records, F_V, F_A, HALF),
            growth_v=growth(records, column(curves, "norm_v")),
            growth_a=growth(records, attention),
            onset_entropy=leaves_uniform(records, curves),
            passed=onset(records, line - steady(records, column(curves, "on")), 0.0),
        )
    columns |= {f"end_{name}": column(curves, name)[records.end] for name in ("on", "entropy_deficit")}
    below = line[records.end] - columns["end_on"]
    columns |= dict(below=below, below_se=column(curves, "eval_context_se")[records.end])
    settings = trials[["trial_id", *run.setting_names, "status"]]
    scores = settings.assign(layer=first["layer"].to_numpy(int), unigram=line[records.end], **columns)
    return scores.assign(shape=shapes(scores))


def growth(records: Records, norm: Array) -> Array:
    """Return by which factor a norm grows, from its start to its largest value."""
    return np.maximum.reduceat(norm, records.start) / norm[records.start]


def other_at(records: Records, first: Array, second: Array, level: float) -> Array:
    """Return the second curve where the first reaches the level, linear between records, or NaN."""
    step, place = onset(records, first, level), np.arange(len(first))
    right = np.minimum.reduceat(np.where(first >= level, place, len(first)), records.start)
    right = np.minimum(right, len(first) - 1)
    left = records.before[right]
    share = (step - records.step[left]) / np.maximum(records.step[right] - records.step[left], 1)
    return second[left] + share * (second[right] - second[left])


def shapes(scores: Frame) -> Array:
    """Return what each layer's norms do, the first whose rule it meets."""
    moves = (scores["growth_v"] >= GROWTH) & (scores["growth_a"] >= GROWTH)
    rules = {
        "diverged": scores["status"] != "ok",
        STILL: ~moves,
        FIGURE5: scores["attention_then"] < LITTLE,
        LEADS: scores["onset_v"] < scores["onset_a"],
    }
    return np.select([holds.to_numpy(bool) for holds in rules.values()], list(rules), TOGETHER)


def text_cells(run: Run, scores: Frame) -> Frame:
    """Return one row per cell and layer: its settings, the shape of most seeds, medians over seeds."""
    names = telling_settings(run)
    place = 1000 * cell_of_rows(scores, names) + scores["layer"].to_numpy()  # more than there are layers
    keys, first, number = np.unique(place, return_index=True, return_inverse=True)
    table = scores[[*names, "layer"]].iloc[first].reset_index(drop=True)
    shape, agreement = majority(number, scores["shape"].to_numpy(), SHAPES)
    ok = scores["status"] == "ok"
    medians: Frame = scores[[*MEDIANS, "unigram"]].where(ok).groupby(number).median()
    means: Frame = scores[[*MEANS]].where(ok).groupby(number).mean()
    passed = np.bincount(number, scores["passed"].notna() & ok).astype(int)
    found = dict(cell=keys // 1000, trials=np.bincount(number), shape=shape, agreement=agreement)
    early = np.bincount(number, before_context(scores)).astype(int)
    return pd.concat([table.assign(**found, seeds_passed=passed, seeds_before=early), medians, means], axis=1)


def before_context(scores: Frame) -> Array:
    """Return whether K and Q are half way before the loss passes the unigram line, or it never does."""
    passed = scores["passed"].fillna(np.inf)
    return ((scores["status"] == "ok") & (scores["onset_a"] < passed)).to_numpy()
