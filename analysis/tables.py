"""Table 3 and distances to theory, as frames: mean and standard error over seeds at the end of training."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames import SETTINGS, Run
from analysis.pictures import SPOKEN_ALONE, label, varying, written
from analysis.weights import (
    Array,
    Frame,
    Inside,
    Restore,
    block_share,
    data_model,
    inside,
    relative_error,
    with_weights,
)
from topicjax.theory import DataModel, ridge_path, uniform_attention_optimum

Number = tuple[str, float]  # "error" or "blocks", and how much
KINDS = ("attn_same_word", "attn_same_topic", "attn_diff_topic")
HEADERS = {
    "attn_same_word": "same word",
    "attn_same_topic": "same topic",
    "attn_diff_topic": "different topic",
    "ratio": "same / different topic",
    "uniform": "uniform attention",
    "theorem2_distance": "distance to Theorem 2",
    "optimum_distance": "distance to the optimum",
}
ERROR = "_se"  # the standard error of column x is in column x_se


def table3(run: Run) -> pd.DataFrame:
    """Return the attention between two positions by kind of word pair, one row a setting (Table 3).

    Of each kind the mean over seeds and its standard error; ratio = same topic / different topic,
    its mean over seeds; uniform = what uniform attention would pay; n = seeds, without the
    diverged ones.  Infinite documents: relative to uniform.
    """
    trials = run.trials
    columns = {name: final(trials, name) for name in KINDS}
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["ratio"] = columns["attn_same_topic"] / columns["attn_diff_topic"]
    columns["uniform"] = np.array([uniform_attention(row) for row in trials.to_dict("records")])
    table = over_seeds(trials, columns)
    return table.assign(**{"uniform" + ERROR: np.nan})  # known, not measured


def distances(run: Run, restore: Restore | None = None) -> pd.DataFrame:
    """Return the relative distance of the value matrix to Theorem 2, one row a setting.

    With `restore` (weights.restorer) also to the optimum of uniform attention for the trial's own
    documents, keys and L2, where that is known: squared loss without biases.
    """
    columns = {"theorem2_distance": final(run.trials, "theorem2_distance")}
    if restore is not None:
        stored = set(with_weights(run.trials)["trial_id"])
        rows = run.trials.to_dict("records")
        columns["optimum_distance"] = np.array(
            [
                optimum_error(inside(restore(row["trial_id"]), row).U, row)
                if row["trial_id"] in stored and optimum(row) is not None
                else np.nan
                for row in rows
            ]
        )
    return over_seeds(run.trials, columns)


def optimum(settings: Mapping[Any, Any]) -> Array | None:
    """Return the W^V of least squared loss under uniform attention, with the trial's documents and L2.

    None where it is not known: cross-entropy, biases, topics that are not uniform and disjoint.
    """
    data = data_model(settings)
    has_bias = settings["output_bias"] != "zero" or settings["attention_biases"] == "trained"
    if settings["objective"] != "squared" or has_bias or data is None:
        return None
    return solve(data, float(settings["l2"]))


@cache
def solve(data: DataModel, l2: float) -> Array:
    """Return the optimum of one data setting; many trials ask for the same."""
    return ridge_path(data, l2) if l2 > 0 else uniform_attention_optimum(data)


def optimum_error(value: Array, settings: Mapping[Any, Any]) -> float:
    """Return the relative distance of a value matrix to the optimum; NaN if that is not known.

    Where [MASK] is never a key its column has no effect and does not count.
    """
    best = optimum(settings)
    if best is None:
        return np.nan
    first = 1 if settings["key_visibility"] == "unmasked" else 0
    return relative_error(value[:, first:], best[:, first:])


def uniform_attention(settings: Mapping[Any, Any]) -> float:
    """Return the mean attention over pairs of positions that both show words, if it is uniform.

    A document with K keys has K (K - 1) pairs of weight 1/K.  Hiding or masking takes positions out
    at random with chance 1 - q, so E[K (K - 1)] = q^2 E[N (N - 1)]; 1 for infinite documents.
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
        raise ValueError(f"the trials have no column final_{name}")
    values = trials[f"final_{name}"].to_numpy(float)
    return np.where((trials["status"] == "ok") & np.isfinite(values), values, np.nan)


def over_seeds(trials: Frame, columns: Mapping[str, Array]) -> pd.DataFrame:
    """Return a row per setting: mean and standard error of each column, n and diverged."""
    keys = [
        *SPOKEN_ALONE,
        *varying(trials, (name for name in SETTINGS if name not in ("seed", *SPOKEN_ALONE))),
    ]
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


def to_csv(table: pd.DataFrame, path: str | Path) -> Path:
    """Write the table with all its digits; return the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False)
    return path


def to_text(table: pd.DataFrame, digits: int = 3) -> pd.DataFrame:
    """Return the table as it is read: cells "mean ± standard error", means to so many significant digits."""
    errors = {name for name in table if str(name).endswith(ERROR)}
    names = [str(name) for name in table if name not in errors]
    rows = [
        [cell_text(row[name], row.get(name + ERROR), digits) for name in names]
        for row in table.to_dict("records")
    ]
    return pd.DataFrame(rows, columns=[HEADERS.get(name, label(name)) for name in names], dtype=object)


def to_markdown(table: pd.DataFrame, digits: int = 3) -> str:
    """Return the table of `to_text` in Markdown."""
    read = to_text(table, digits)
    lines = [list(read.columns), ["---"] * len(read.columns), *read.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell_text(value: Any, error: float | None, digits: int) -> str:
    """Return a mean with its error, both to the decimals of the mean, or a setting or count as it is."""
    if error is None:
        return written(value, 4)
    if not np.isfinite(value):
        return "-"
    decimals = 0 if value == 0 else max(0, digits - 1 - int(np.floor(np.log10(abs(value)))))
    text = f"{value:.{decimals}f}"
    if not np.isfinite(error):
        return text
    is_tiny = error > 0 and round(error, decimals) == 0
    return f"{text} ± <{10**-decimals:.{decimals}f}" if is_tiny else f"{text} ± {error:.{decimals}f}"


def value_number(model: Inside, settings: Mapping[str, Any]) -> Number:
    """Return the error of a value matrix to its optimum or, where there is none, its blocks."""
    if optimum(settings) is None:
        return "blocks", block_share(model.U, int(settings["words_per_topic"]))
    return "error", optimum_error(model.U, settings)


def text(kind: str, *values: float) -> str:
    """Return an error or a share of blocks in words, or the range of several."""
    spoken = [f"{value:.2f}" if kind == "error" else f"{100 * value:.0f}" for value in sorted(values)]
    between = spoken[0] if spoken[0] == spoken[-1] else f"{spoken[0]} to {spoken[-1]}"
    return f"{kind} {between}" + (" %" if kind == "blocks" else "")
