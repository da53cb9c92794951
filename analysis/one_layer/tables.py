"""Tables of the one-layer model: classes, the paper's Table 3, final losses, theory, onsets, sensitivity.

Each is a function of (run, scores).  Means and standard errors are over seeds, at the end of training.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from topicjax.errors import UserError, counted
from topicjax.settings import SEEDS
from topicjax.stages import Array
from topicjax.store.reader import Run

from ..frames import Frame, distinct, varying
from ..maps.cells import majority
from ..pictures import label
from ..tables import ERROR
from ..topic_model import MAIN_SETTINGS, SETTINGS
from . import cells
from .attention_theory import attention_rows
from .embedding_theory import embedding_rows
from .endings import CONVERGED, SETTLED, endings, joint_gains, lines_in, pair_settings, quartiles
from .onsets import onset_fit, onset_times
from .scores import CLASSES, class_counts, is_topical
from .stability import longest_steps
from .stability import stability as still_two_stage
from .trained_models import effective_model, optimum, optimum_error, with_weights

KINDS = ("attn_same_word", "attn_same_topic", "attn_diff_topic")
HEADERS = {  # columns in words
    "attn_same_word": "same word",
    "attn_same_topic": "same topic",
    "attn_diff_topic": "different topic",
    "ratio": "same / different topic",
    "uniform": "uniform attention",
    "theorem2_distance": "distance to Theorem 2",
    "optimum_distance": "distance to the optimum",
    "weights_read": "weights read (lowest seeds)",
    "weight_average": "alpha'",
    "lower": "Theorem 3: above",
    "upper": "below",
    "assumed": "Assumption 2: best alpha'",
    "best_average": "best alpha'",
    "weight_mask": "[MASK]",
    "best_mask": "best [MASK]",
    "weight_topic": "alpha",
    "best_topic": "best alpha",
    "weight_self": "beta",
    "best_self": "best beta",
    "exact_loss": "loss",
    "missed": "missed (%)",
    "assumed_missed": "Assumption 2 misses (%)",
    "final_e_block": "blocks",
    "final_eval_loss": "held-out loss",
    "two_stage": "two-stage then",
    "ended": "of these, ended by then",
    "still_two_stage": "still at twice as many steps",
    "still_share": "share of those that still are",
    "saved": "uniform - joint",
    "share": "in units of stage 1 - stage 2",
    "way": "share of the way from uniform words to stage 1",
    "last_tenth": "of this, in the last tenth of the steps",
    "converged": "seeds converged",
    "pair_part": "pair's part",
    "topic_part": "topic's part",
    "pair_share": "pair's share",
    "topic_kept": "topic's part, final / largest",
    "step_topic": "topics half learned at step",
    "step_pair": "pairs half learned at step",
    "covariance": "share in the covariance",
    "log_pmi": "in log PMI",
    "best_value": "in the best W^V",
    "share_min": "pair's share, least",
    "share_max": "most",
    "class_mask_query": "class against the scores of [MASK]",
    "class_norm": "class by norms",
    "theta_mask_query": "Θ against the scores of [MASK]",
    "theta_norm": "Θ by norms",
    "escape_time": "learning rate x escape",
    "line_stage1": "stage 1",
    "line_stage2": "stage 2",
    "line_bayes": "Bayes",
    "held_out_stage1": "stage 1, these documents",
    "held_out_stage2": "stage 2, these documents",
    "document_seeds": "seeds of documents",
    "weight_seeds": "of weights",
    "without": "trials without the score",
    **{f"sd_{cause}": f"standard deviation: {cause}" for cause in ("documents", "weights", "remainder")},
    **{f"share_{cause}": f"share: {cause}" for cause in ("documents", "weights", "remainder")},
    "rising": "curves that rise at the end",
    "peak": "first peak",
    "peak_step": "at step",
    "end": "at the end",
    "rank_k_least": "participation ratio of W^K: least",
    "rank_k_most": "most",
    "rank_k_end": "at the end",
}
WEIGHTS = ("average", "mask", "topic", "self")  # of kinds of keys
UNIFORM = ("infinite_documents", "length_min", "length_max", "key_visibility", "p_mask")  # its settings


def classes(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the classes that occur with their counts and their median Theta in the loss view."""
    counts = class_counts(scores)
    counts = counts[counts.sum(axis=1) > 0]
    theta = scores.groupby("class")["theta"].median()
    topical = scores.loc[is_topical(scores), "class"].value_counts()
    medians = theta.reindex(counts.index).to_numpy()
    hits = topical.reindex(counts.index).fillna(0).astype(int).to_numpy()
    return counts.assign(median_theta=medians, topical=hits).reset_index()


def table3(run: Run, scores: pd.DataFrame, pooled: Sequence[str] = ()) -> pd.DataFrame:
    """Tabulate the attention between two positions by kind of word pair, one row per setting (Table 3).

    Each kind has its mean over seeds and the standard error.  ratio is the mean of same topic / different
    topic, uniform the value for uniform attention, and n the number of seeds that did not diverge.  For
    infinite documents attention is relative to uniform.  Settings in `pooled` are averaged like the seed.
    """
    trials = run.trials
    columns = {name: final(trials, name) for name in KINDS}
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["ratio"] = columns["attn_same_topic"] / columns["attn_diff_topic"]
    kind, kinds = distinct(trials, UNIFORM)
    columns["uniform"] = np.array([uniform_attention(row) for row in kinds.to_dict("records")])[kind]
    table = over_seeds(trials, columns, pooled)
    return table.assign(**{"uniform" + ERROR: np.nan})  # exact, not measured


def distances(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the relative distance of the value matrix to theory, one row per setting.

    The distances are to Theorem 2, and to the optimum of uniform attention for the trial's own documents,
    keys and L2.  The optimum is known for squared loss without biases, and needs stored weights.  For
    settings with more than MOST_SEEDS seeds only the lowest seeds are read; weights_read counts them.
    """
    trials = run.trials
    distance = np.full(len(trials), np.nan)
    stored: Frame = with_weights(trials)
    read = cells.lowest_seeds(stored)
    places = trials.index.get_indexer(read.index)
    for place, row in zip(places, read.to_dict("records"), strict=True):
        if optimum(row) is not None:
            value = effective_model(run.restore(row["trial_id"]), row).U
            distance[place] = optimum_error(value, row)
    columns = {"theorem2_distance": final(trials, "theorem2_distance"), "optimum_distance": distance}
    table = over_seeds(trials, columns)
    if len(read) < len(stored):
        table["weights_read"] = over_seeds(trials, {"optimum_distance": distance})["n"]
    return table


def final_losses(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Tabulate each setting: final loss, stage-1 line, how far it came, whether it converged, class.

    way is the share of the way from the uniform prediction to the stage-1 line.
    """
    ends: Any = endings(run)
    keys = row_settings(ends)
    lines = [name for name in lines_in(ends) if name.endswith("stage1")]
    table = quartiles(ends, keys, ["loss", "way"], lines)
    cell = ends.groupby(keys, dropna=False, sort=True).ngroup().to_numpy()
    known = dict(zip(scores["trial_id"], scores["class"], strict=True))
    classes = ends["trial_id"].map(known).to_numpy()
    return table.assign(
        last_tenth=ends["falls"].groupby(cell).median().to_numpy(),
        converged=is_converged(ends).groupby(cell).sum().astype(int).to_numpy(),
        **{"class": majority(cell, classes, CLASSES)[0]},
    )


def convergence(run: Run) -> list[str]:
    """Say how many trials of each objective and optimizer converged to the stage-1 line."""
    ends: Any = endings(run)
    ends = ends.assign(is_there=is_converged(ends)).loc[ends["way"].notna()]
    parts = [
        f"{', '.join(map(label, kind))}: {own['is_there'].sum()} of {counted(len(own), 'trial')} "
        f"(median way {100 * own['way'].median():.0f} %)"
        for kind, own in ends.groupby(list(MAIN_SETTINGS), sort=True)
    ]
    start = f"Converged ({CONVERGED:.0%} or more of the way from the uniform prediction to the stage-1 line, "
    return [f"{start}settled): {'; '.join(parts)}."] if parts else []


def is_converged(ends: Any) -> Any:
    """Mask the trials that went CONVERGED of the way, and less than SETTLED of it in the last tenth."""
    return (ends["way"] >= CONVERGED) & (ends["falls"].abs() < SETTLED)


def joint_against_uniform(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Tabulate each setting: losses of joint training and of uniform attention, and the limit lines."""
    pairs = joint_gains(run)
    return quartiles(pairs, pair_settings(pairs), ["joint", "uniform", "saved", "share"], lines_in(pairs))


def theorem1(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Tabulate residuals of Theorem 1's equations, blocks, losses and gains of embeddings trained alone."""
    rows: Frame = embedding_rows(run)
    names = ("residual", "final_e_block", "final_eval_loss", "gain")
    return over_seeds(rows, {name: rows[name].to_numpy(float) for name in names})


def attention_theory(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Tabulate how trained attention weighs keys, with the predictions of theory, one row per setting."""
    rows: Frame = attention_rows(run)
    known = (
        *("lower", "upper", "assumed", "assumed_missed"),
        *(f"best_{name}" for name in WEIGHTS),
        "best_loss",
    )
    pairs = ((f"weight_{name}", f"best_{name}") for name in WEIGHTS)
    names = [
        "weight_average",
        "lower",
        "upper",
        "assumed",
        *dict.fromkeys(name for pair in pairs for name in pair),
    ]
    names += ["exact_loss", "best_loss", "missed", "assumed_missed"]
    columns = {name: rows[name].to_numpy(float) for name in dict.fromkeys(names)}
    columns |= {name: 100 * columns[name] for name in ("missed", "assumed_missed")}
    return over_seeds(rows, columns).assign(**{name + ERROR: np.nan for name in known})  # not measured


def onsets(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Tabulate measured and predicted slopes of the onset of attention, one row per fit."""
    return onset_fit(onset_times(run))


def sensitivity(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the share of trials and of cells that change class with the cut of Theta."""
    return cells.sensitivity(scores)


def stability(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Count the trials that are two-stage after 1/4 and 1/2 of the steps, and still at twice as many."""
    longest = longest_steps(run)
    return still_two_stage(run, (longest // 4, longest // 2))


def uniform_attention(settings: Mapping[Any, Any]) -> float:
    """Compute the mean of uniform attention over pairs of positions that both show words.

    A document with K keys has K (K - 1) pairs of weight 1/K.  Hiding or masking removes positions at
    random with probability 1 - q, so E[K (K - 1)] = q^2 E[N (N - 1)]; 1 for infinite documents.
    """
    if settings["infinite_documents"]:
        return 1.0
    length = np.arange(settings["length_min"], settings["length_max"] + 1)
    pairs = np.mean(length * (length - 1.0))
    if settings["key_visibility"] == "all":  # weight 1/N, whatever the positions show
        return float(np.mean(length - 1.0) / pairs)
    seen = 1 - settings["p_mask"]
    others = np.mean(seen * length - 1 + (1 - seen) ** length)  # E[max(K - 1, 0)]
    return float(others / (seen**2 * pairs))


def final(trials: Frame, name: str) -> Array:
    """Return a column at the end of training; NaN for diverged trials."""
    if f"final_{name}" not in trials:
        raise UserError(f"the trials have no column final_{name}")
    values = trials[f"final_{name}"].to_numpy(float)
    return np.where((trials["status"] == "ok") & np.isfinite(values), values, np.nan)


def row_settings(trials: Frame) -> list[str]:
    """List the settings that distinguish the rows of a table: objective, optimizer and all that vary."""
    return [
        *MAIN_SETTINGS,
        *varying(trials, (name for name in SETTINGS if name not in (*SEEDS, *MAIN_SETTINGS))),
    ]


def over_seeds(trials: Frame, columns: Mapping[str, Array], pooled: Sequence[str] = ()) -> pd.DataFrame:
    """Average over seeds and `pooled` settings: mean and error of each column, n and diverged."""
    keys = [name for name in row_settings(trials) if name not in pooled]
    cell = trials.groupby(keys, dropna=False, sort=True).ngroup().to_numpy()
    table = trials[keys].iloc[np.unique(cell, return_index=True)[1]].reset_index(drop=True)
    first = next(iter(columns.values()))
    table["n"] = np.bincount(cell, np.isfinite(first)).astype(int)
    table["diverged"] = np.bincount(cell, trials["status"] == "diverged").astype(int)
    for name, values in columns.items():
        groups: Frame = pd.Series(values).groupby(cell)
        table[name] = groups.mean().to_numpy()
        table[name + ERROR] = groups.sem().to_numpy()  # NaN for a single seed
    return table
