"""Effective matrices of a trained model between token types, how topical they are, and how close to theory.

Everything is computed in float64 from the restored weights, independently of the engine's code.  Tokens are
[MASK] = 0 and the words 1..Tv; word i belongs to topic (i - 1) // v.  Letters: V = Tv + 1 tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from topicjax.errors import UserError
from topicjax.experiments.one_layer.settings import SOFTMAX, AttentionWeights
from topicjax.theory.documents import DataModel
from topicjax.theory.stage1 import ridge_path, uniform_attention_optimum
from topicjax.theory.theorems import theorem2_matrix

from ..frames import Array, Frame

Measured = tuple[str, float]  # ("error" or "blocks", value)


@dataclass(frozen=True)
class EffectiveModel:
    """A model as matrices between token types: V x V, [MASK] first."""

    U: Array  # value matrix E^T W^V E: row = predicted token, column = key token
    S: Array  # attention scores of eq. (5), with biases and 1/sqrt(d_a): row = key, column = query
    E: Array | None  # dot products of the embeddings W^E^T W^E; None: one-hot
    bias: Array  # of the output, V numbers: b^pred + E^T b^V


def effective_model(weights: Mapping[str, Array], settings: Mapping[str, Any]) -> EffectiveModel:
    """Compute the effective matrices of a trial; snapshots include its frozen arrays."""
    given = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    needed = ["W_K", "W_Q", "W_V", "b_pred", *([] if settings["embedding"] == "one_hot" else ["W_E"])]
    absent = [name for name in needed if name not in given]
    if absent:
        raise UserError(f"the weights have no {', '.join(absent)}; they have {', '.join(sorted(given))}")
    tokens = int(settings["topics"]) * int(settings["words_per_topic"]) + 1
    W_E = given.get("W_E", np.eye(tokens))
    if W_E.shape[1] != tokens or given["W_V"].shape != (len(W_E), len(W_E)):
        shapes = f"W_V {given['W_V'].shape} and W_E {W_E.shape}"
        raise UserError(f"the shapes of {shapes} do not belong to {tokens} tokens")
    S = np.zeros((tokens, tokens))
    if settings["attention"] == "trained":
        keys = given["W_K"] @ W_E + given.get("b_K", np.zeros(1))[:, None]
        queries = given["W_Q"] @ W_E + given.get("b_Q", np.zeros(1))[:, None]
        S = keys.T @ queries / np.sqrt(len(keys))  # eq. (5)
    return EffectiveModel(
        U=W_E.T @ given["W_V"] @ W_E,
        S=S,
        E=W_E.T @ W_E if "W_E" in given else None,
        bias=given["b_pred"] + W_E.T @ given.get("b_V", np.zeros(len(W_E))),
    )


def attention(
    S: Array,
    keys: Sequence[int] | Array,
    queries: Sequence[int] | Array,
    kind: AttentionWeights = SOFTMAX,
) -> Array:
    """Compute the attention in a document: row = position attended to, column = attending position.

    `keys` are the tokens of the visible positions, `queries` those of the attending ones; each
    column of a softmax sums to 1.  Without visible positions there are no rows.
    """
    score = S[np.ix_(np.asarray(keys, int), np.asarray(queries, int))]
    if kind != SOFTMAX:
        mean = score.mean(axis=0) if len(score) and kind == "one_plus_centred" else 0.0
        return (score - mean + (kind != "scores_only")) / max(len(score), 1)
    weight = np.exp(score - score.max(axis=0, initial=-np.inf, keepdims=True))
    return weight / weight.sum(axis=0, keepdims=True) if len(weight) else weight


def sizes_and_masking(settings: Mapping[str, Any]) -> tuple[int, int, float, float, float]:
    """Read (T, v, p_m, p_c, p_r) of a trial."""
    masking = float(settings["p_mask"]), float(settings["p_keep"]), float(settings["p_random"])
    return int(settings["topics"]), int(settings["words_per_topic"]), *masking


def data_model(settings: Mapping[str, Any]) -> DataModel | None:
    """Describe a trial's documents for the paper's theory; None unless has_data_model."""
    return DataModel.of(settings) if has_data_model(settings) else None


def has_data_model(settings: Any) -> Any:
    """Say whether topics are disjoint and their words alike, of a trial or of each trial of a table."""
    return has_disjoint_topics(settings) & (settings["pair_strength"] == 0)


def has_disjoint_topics(settings: Any) -> Any:
    """Say the same, whether or not words are in pairs: all moments of such documents are known."""
    return (settings["word_distribution"] == "uniform") & (settings["overlap"] == 0)


def pair_kinds(num_words: int, words_per_topic: int) -> tuple[Array, Array, Array]:
    """Mask the pairs of the same word, of different words of one topic, and of words of different topics."""
    topic = np.arange(num_words) // words_per_topic
    own, together = np.eye(num_words, dtype=bool), topic[:, None] == topic[None, :]
    return own, together & ~own, ~together


def pair_means(matrix: Array, words_per_topic: int) -> tuple[float, float, float]:
    """Average the entries of each kind of word pair; NaN where there is no such pair."""
    words = matrix[1:, 1:]
    kinds = pair_kinds(len(words), words_per_topic)
    own, same, other = (float(words[kind].mean()) if kind.any() else np.nan for kind in kinds)
    return own, same, other


def block_share(matrix: Array, words_per_topic: int) -> float:
    """Compute the share of the variance over pairs of different words that sharing a topic explains."""
    words = matrix[1:, 1:]
    _, same, other = pair_kinds(len(words), words_per_topic)
    total = words[same | other].var() * (same | other).sum()
    within = sum(words[kind].var() * kind.sum() for kind in (same, other) if kind.any())
    return float(1 - within / total) if total > 0 else np.nan


def colour_limit(matrices: Sequence[tuple[Array, int]]) -> float:
    """Compute 1.5 x the median over matrices of the 99th percentile of |entries|, off diagonal and [MASK].

    The percentile is the larger of those within and between topics, because pairs within a topic are few.
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
    """Compute |matrix - predicted| / |predicted| in Frobenius norms."""
    return float(np.linalg.norm(matrix - predicted) / np.linalg.norm(predicted))


def order_parameters(model: EffectiveModel, settings: Mapping[str, Any]) -> dict[str, float]:
    """Compute the order parameters of a model, under the names of their records."""
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


def with_weights(trials: Frame) -> Frame:
    """Select the trials that did not diverge and have stored weights."""
    if "snapshot_steps" not in trials:
        return trials.head(0)
    kept = trials["snapshot_steps"].map(len).to_numpy() > 0
    return trials[kept & (trials["status"] == "ok").to_numpy()]


def optimum(settings: Mapping[Any, Any]) -> Array | None:
    """Compute the W^V of least squared loss under uniform attention, for the trial's documents and L2.

    Return None where it is not known: cross-entropy, biases, topics that are not uniform and disjoint.
    """
    has_bias = settings["output_bias"] != "zero" or settings["attention_biases"] == "trained"
    if settings["objective"] != "squared" or has_bias or not has_disjoint_topics(settings):
        return None
    return optimum_of_documents(DataModel.of(settings), float(settings["l2"]))


@cache
def optimum_of_documents(data: DataModel, l2: float) -> Array:
    """Compute the optimum for one kind of documents; cached because many trials share it."""
    return ridge_path(data, l2) if l2 > 0 else uniform_attention_optimum(data)


def optimum_error(value: Array, settings: Mapping[Any, Any]) -> float:
    """Measure the relative distance of a value matrix to the optimum; NaN if that is not known.

    Where [MASK] is never a key, its column has no effect and is left out.
    """
    best = optimum(settings)
    if best is None:
        return np.nan
    first = 1 if settings["key_visibility"] == "unmasked" else 0
    return relative_error(value[:, first:], best[:, first:])


def measured_value(model: EffectiveModel, settings: Mapping[str, Any]) -> Measured:
    """Measure the error of a value matrix relative to its optimum or, without one, its blocks."""
    if optimum(settings) is None:
        return "blocks", block_share(model.U, int(settings["words_per_topic"]))
    return "error", optimum_error(model.U, settings)


def measured_text(kind: str, *values: float) -> str:
    """Write an error or a share of blocks, or the range of several."""
    texts = [f"{value:.2f}" if kind == "error" else f"{100 * value:.0f}" for value in sorted(values)]
    span = texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"
    return f"{kind} {span}" + (" %" if kind == "blocks" else "")
