"""How similar are the embeddings of words of the same topic, and of different topics?

Dimension letters: W words, D width, T topics, R resamples.  All pairs are of different words; sums over pairs
come from sums over words, so that no W x W matrix is needed.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

Array = np.ndarray
RESAMPLES = 500


class TopicSums(NamedTuple):
    """Sums of a similarity over pairs of words, and how many pairs."""

    same_T: Array  # pairs within a topic
    same_pairs_T: Array
    other_TxT: Array  # pairs between two topics; the diagonal is 0
    other_pairs_TxT: Array


def unit(vectors_WxD: Array) -> Array:
    """Return vectors of length 1: their dot products are cosines."""
    return vectors_WxD / np.linalg.norm(vectors_WxD, axis=1, keepdims=True)


def topic_sums(vectors_WxD: Array, topic_W: Array) -> TopicSums:
    """Return the sums of dot products over pairs of different words, by the topics of both."""
    topics, number_W = np.unique(topic_W, return_inverse=True)
    vectors_WxD = np.asarray(vectors_WxD, np.float64)
    own_WxT = number_W[:, None] == np.arange(len(topics))[None]
    total_TxD = own_WxT.T.astype(np.float64) @ vectors_WxD
    squares_T = np.bincount(number_W, (vectors_WxD**2).sum(axis=1), len(topics))
    counts_T = np.bincount(number_W, minlength=len(topics)).astype(np.float64)
    product_TxT = total_TxD @ total_TxD.T
    off = 1.0 - np.eye(len(topics))
    return TopicSums(
        (np.diag(product_TxT) - squares_T) / 2,
        counts_T * (counts_T - 1) / 2,
        product_TxT * off,
        counts_T[:, None] * counts_T[None] * off,
    )


def averages(sums: TopicSums, weight_T: Array | None = None) -> dict[str, float]:
    """Return the means over same-topic and different-topic pairs and their ratio, topics so weighted."""
    weight_T = np.ones(len(sums.same_T)) if weight_T is None else weight_T
    same = (weight_T @ sums.same_T) / (weight_T @ sums.same_pairs_T)
    other = (weight_T @ sums.other_TxT @ weight_T) / (weight_T @ sums.other_pairs_TxT @ weight_T)
    found = {"same": same, "different": other, "ratio": same / other, "excess": same - other}
    return {name: float(value) for name, value in found.items()}


def resamples(units: int, count: int, seed: int = 0) -> Array:
    """Return how often each unit is drawn in so many resamples, count x units."""
    draw = np.random.default_rng(seed)
    return draw.multinomial(units, np.full(units, 1 / units), size=count).astype(np.float64)


def with_errors(whole: Mapping[str, float], tries: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the values, each with its standard error over resamples, as NAME_se."""
    found = {}
    for name, value in whole.items():
        finite = [other[name] for other in tries if np.isfinite(other[name])]
        error = float(np.std(finite, ddof=1)) if len(finite) > 1 else np.nan
        found |= {name: value, f"{name}_se": error}
    return found


def embedding_averages(embedding_WxD: Array, topic_W: Array) -> dict[str, float]:
    """Return the average cosine and dot product within and between topics, with errors over topics."""
    found = {}
    for name, vectors in (("cosine", unit(embedding_WxD)), ("dot", embedding_WxD)):
        sums = topic_sums(vectors, topic_W)
        with np.errstate(divide="ignore", invalid="ignore"):  # a resample may have one topic only
            tries = [averages(sums, weight_T) for weight_T in resamples(len(sums.same_T), RESAMPLES)]
            values = with_errors(averages(sums), tries)
        found |= {f"{name}_{column}": value for column, value in values.items()}
    return found


def pair_cosine(embedding_WxD: Array, pairs_Px2: Array) -> dict[str, float]:
    """Return the mean cosine over pairs of words, and its standard error over pairs."""
    vectors = unit(embedding_WxD)
    cosine_P = (vectors[pairs_Px2[:, 0]] * vectors[pairs_Px2[:, 1]]).sum(axis=1)
    if len(cosine_P) < 2:
        return {"cosine": np.nan, "cosine_se": np.nan}
    return {"cosine": float(cosine_P.mean()), "cosine_se": float(cosine_P.std(ddof=1) / len(cosine_P) ** 0.5)}
