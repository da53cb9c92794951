"""What a trained model is between token types, and which trials of a run stand for the others.

NumPy in double precision from the restored weights, apart from the engine's own code.  Tokens are
[MASK] = 0 and the words 1..Tv; word i belongs to topic (i - 1) // v.  Letters: V = Tv + 1 tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames import SETTINGS, Run
from analysis.pictures import OPTIMIZERS, label, number
from topicjax import store
from topicjax.config import DATA_SETTINGS
from topicjax.theory import DataModel, theorem2_matrix

Array = np.ndarray
Frame = Any  # a DataFrame: the annotations of pandas confuse its rows, columns and values
Restore = Callable[[str], Mapping[str, Array]]  # a trial id: its weights under the paper's names
OBJECTIVES = ("cross_entropy", "squared")
ROW_SETTINGS = (*DATA_SETTINGS, "l2", "attention", "value", "embedding", "output_bias", "attention_biases")
MAX_ROWS = 4


@dataclass(frozen=True)
class Inside:
    """All that a model does, between token types; V x V matrices with [MASK] first."""

    U: Array  # value matrix E^T W^V E: row = predicted token, column = key token
    S: Array  # attention scores of eq. (5), with biases and 1/sqrt(d_a): row = key, column = query
    E: Array | None  # dot products of the embeddings W^E^T W^E; None: one-hot
    bias: Array  # of the output, V numbers: b^pred + E^T b^V
    norms: dict[str, float]  # Frobenius norms of all arrays by name


def inside(weights: Mapping[str, Array], settings: Mapping[str, Any]) -> Inside:
    """Return the effective matrices of a trial; snapshots hold its frozen arrays too."""
    given = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    needed = ["W_K", "W_Q", "W_V", "b_pred", *([] if settings["embedding"] == "one_hot" else ["W_E"])]
    absent = [name for name in needed if name not in given]
    if absent:
        raise ValueError(f"the weights have no {', '.join(absent)}; they have {', '.join(sorted(given))}")
    tokens = int(settings["topics"]) * int(settings["words_per_topic"]) + 1
    W_E = given.get("W_E", np.eye(tokens))
    if W_E.shape[1] != tokens or given["W_V"].shape != (len(W_E), len(W_E)):
        shapes = f"W_V {given['W_V'].shape} and W_E {W_E.shape}"
        raise ValueError(f"the shapes of {shapes} do not belong to {tokens} tokens")
    S = np.zeros((tokens, tokens))
    if settings["attention"] == "trained":
        keys = given["W_K"] @ W_E + given.get("b_K", np.zeros(1))[:, None]
        queries = given["W_Q"] @ W_E + given.get("b_Q", np.zeros(1))[:, None]
        S = keys.T @ queries / np.sqrt(len(keys))  # eq. (5)
    return Inside(
        U=W_E.T @ given["W_V"] @ W_E,
        S=S,
        E=W_E.T @ W_E if "W_E" in given else None,
        bias=given["b_pred"] + W_E.T @ given.get("b_V", np.zeros(len(W_E))),
        norms={name: float(np.linalg.norm(array)) for name, array in given.items()},
    )


def attention(S: Array, keys: Sequence[int] | Array, queries: Sequence[int] | Array) -> Array:
    """Return the attention of a document: row = position that is seen, column = one that attends.

    `keys` are the tokens of the visible positions, `queries` those of the attending ones; each
    column sums to 1.  Without visible positions there are no rows.
    """
    score = S[np.ix_(np.asarray(keys, int), np.asarray(queries, int))]
    weight = np.exp(score - score.max(axis=0, initial=-np.inf, keepdims=True))
    return weight / weight.sum(axis=0, keepdims=True) if len(weight) else weight


def sizes_and_masking(settings: Mapping[str, Any]) -> tuple[int, int, float, float, float]:
    """Return (T, v, p_m, p_c, p_r) of a trial."""
    masking = float(settings["p_mask"]), float(settings["p_keep"]), float(settings["p_random"])
    return int(settings["topics"]), int(settings["words_per_topic"]), *masking


def data_model(settings: Mapping[str, Any]) -> DataModel | None:
    """Return a trial's documents as theory takes them; None unless topics are disjoint and uniform."""
    if settings["word_distribution"] != "uniform" or settings["overlap"] != 0:
        return None
    return DataModel.of(settings)


def pair_kinds(num_words: int, words_per_topic: int) -> tuple[Array, Array, Array]:
    """Return which pairs are the same word; other words of one topic; words of different topics."""
    topic = np.arange(num_words) // words_per_topic
    own, together = np.eye(num_words, dtype=bool), topic[:, None] == topic[None, :]
    return own, together & ~own, ~together


def pair_means(matrix: Array, words_per_topic: int) -> tuple[float, float, float]:
    """Return the mean entry of each kind of word pair; NaN where there is no such pair."""
    words = matrix[1:, 1:]
    kinds = pair_kinds(len(words), words_per_topic)
    own, same, other = (float(words[kind].mean()) if kind.any() else np.nan for kind in kinds)
    return own, same, other


def block_share(matrix: Array, words_per_topic: int) -> float:
    """Return the share of the variance over pairs of different words that sharing a topic explains."""
    words = matrix[1:, 1:]
    _, same, other = pair_kinds(len(words), words_per_topic)
    total = words[same | other].var() * (same | other).sum()
    within = sum(words[kind].var() * kind.sum() for kind in (same, other) if kind.any())
    return float(1 - within / total) if total > 0 else np.nan


def colour_limit(matrices: Sequence[tuple[Array, int]]) -> float:
    """Return 1.5 times the median over matrices of the 99th percentile of |entries| off diagonal and [MASK].

    The larger of two percentiles, of one topic and of different topics: pairs of one topic are few.
    """
    limits = []
    for matrix, words_per_topic in matrices:
        _, same, other = pair_kinds(len(matrix) - 1, words_per_topic)
        sizes = np.abs(matrix[1:, 1:])
        limits.append(
            max((np.quantile(sizes[kind], 0.99) for kind in (same, other) if kind.any()), default=0)
        )
    return 1.5 * float(np.median(limits)) or 1.0


def relative_error(matrix: Array, predicted: Array) -> float:
    """Return |matrix - predicted| / |predicted|, Frobenius norms."""
    return float(np.linalg.norm(matrix - predicted) / np.linalg.norm(predicted))


def order_parameters(model: Inside, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the order parameters that the engine records, from the matrices."""
    words = int(settings["words_per_topic"])
    value, score = pair_means(model.U, words), pair_means(model.S, words)
    embedding = (np.nan,) * 3 if model.E is None else pair_means(model.E, words)
    return {
        "v_block": value[1] - value[2],
        "v_diag": value[0] - value[1],
        "e_block": embedding[1] - embedding[2],
        "a_topic": score[1] - score[2],
        "a_self": score[0] - score[1],
        "a_mask": float(model.S[1:, 0].mean() - model.S[0, 0]),
        "a_key": float(model.S.mean(axis=1).std()),
        "theorem2_distance": relative_error(model.U, theorem2_matrix(*sizes_and_masking(settings))),
    }


def restorer(run: Run) -> Restore:
    """Return the function that reads the last weights of a trial from the run's folder, once."""
    return cache(store.load(run.folder).restore)


def with_weights(trials: Frame) -> Frame:
    """Return the trials that did not diverge and whose weights were kept."""
    kept = trials["snapshot_steps"].astype("string").fillna("").str.strip() != ""
    return trials[kept.to_numpy(bool) & (trials["status"] == "ok").to_numpy()]


@dataclass(frozen=True)
class Cell:
    """All seeds of one setting, the lowest seed first."""

    settings: dict[str, Any]
    models: list[Inside]
    trials: Frame


@dataclass(frozen=True)
class Choice:
    """Cells by row number and column, and a sentence on each kind of trial that has none."""

    rows: list[dict[str, Any]]  # the settings that differ between rows
    columns: list[tuple[str, str]]  # objective, optimizer
    cells: dict[tuple[int, tuple[str, str]], Cell]
    notes: list[str]


def choose(trials: Frame, restore: Restore) -> Choice:
    """Return the cells that stand for a sweep, with the weights of all their seeds.

    Columns are objective x optimizer (the first two of OPTIMIZERS that occur), rows the values of
    those ROW_SETTINGS that vary (at most MAX_ROWS, evenly picked).  Of all other settings the one
    of least median final eval_loss over seeds is taken.
    """
    usable = with_weights(trials)
    if usable.empty:
        raise ValueError(f"none of {len(trials)} trials is finite and has stored weights to draw")
    found = [name for name in OPTIMIZERS if (usable["optimizer"] == name).any()]
    pairs = [(objective, optimizer) for objective in OBJECTIVES for optimizer in found[:2]]
    names = [name for name in ROW_SETTINGS if usable[name].nunique() > 1]
    distinct = usable[names].drop_duplicates().sort_values(names).to_dict("records") if names else [{}]
    picked = np.linspace(0, len(distinct) - 1, min(MAX_ROWS, len(distinct))).round().astype(int)
    rows = [{str(name): value for name, value in distinct[index].items()} for index in picked]
    cells = {}
    for place, row in enumerate(rows):
        for pair in pairs:
            wanted = row | {"objective": pair[0], "optimizer": pair[1]}
            frame = usable[(usable[list(wanted)] == pd.Series(wanted)).all(axis=1)]
            if len(frame):
                cells[place, pair] = best_cell(frame, restore)
    columns = [pair for pair in pairs if any(pair == column for _, column in cells)]
    missing = left_out(trials, usable, found[2:], len(distinct) - len(rows), list(cells.values()))
    return Choice(rows, columns, cells, missing)


def best_cell(frame: Frame, restore: Restore) -> Cell:
    """Return the setting of least median final eval_loss over its seeds, with their weights."""
    names = [name for name in SETTINGS if name in frame and name != "seed"]
    group = frame.groupby(names, dropna=False, sort=False).ngroup()
    median = frame["final_eval_loss"].groupby(group).median().fillna(np.inf)
    chosen = frame[(group == median.idxmin()).to_numpy()].sort_values("seed")
    settings = {str(name): value for name, value in chosen.iloc[0].items()}
    return Cell(settings, [inside(restore(name), settings) for name in chosen["trial_id"]], chosen)


def left_out(trials: Frame, usable: Frame, optimizers: list[str], rows: int, cells: list[Cell]) -> list[str]:
    """Return a sentence for each kind of trial that is in no cell."""
    diverged = int((trials["status"] == "diverged").sum())
    without = len(trials) - diverged - len(usable)
    others = len(usable) - sum(len(cell.trials) for cell in cells)
    parts = {
        f"Of {number(len(trials), 'trial')} {diverged} diverged.": diverged,
        f"Of {number(len(trials), 'trial')} {without} have no stored weights.": without,
        f"Not drawn: optimizers {', '.join(map(label, optimizers))}.": optimizers,
        f"Not drawn: {number(rows, 'further value')} of the settings that differ between rows.": rows,
        "Of several settings for a panel the one of least median held-out loss is drawn; "
        f"{number(others, 'other trial')} not.": others,
    }
    return [sentence for sentence, holds in parts.items() if holds]
