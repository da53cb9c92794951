"""Compare pairs of words: embeddings and attention within and between topics, pairs that share windows.

Dimension letters: B windows, W words, V vocabulary, D width, T topics, L layers, K kinds of pairs,
N distances, R resamples, P pairs.  All pairs are of different words.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from topicjax.errors import UserError

Array = np.ndarray
TOPIC_RESAMPLES, WINDOW_RESAMPLES = 500, 200
SAME, OTHER = 1, 2  # kinds of pairs; 0: the pair does not count
FIRST_TRIED = 500  # the most frequent words, tried first when looking for pairs that share the most windows


class TopicSums(NamedTuple):
    """Sums of a similarity over pairs of words, and the number of pairs."""

    same_T: Array  # pairs within a topic
    same_pairs_T: Array
    other_TxT: Array  # pairs between two topics; the diagonal is 0
    other_pairs_TxT: Array


class PairSums(NamedTuple):
    """Sums of attention over the pairs of each kind and distance, and the number of pairs.

    They are kept by window and distance, so that windows can be resampled and distances matched.
    """

    sums_BxKxLxN: Array
    counts_BxKxN: Array


def resamples(units: int, count: int, seed: int = 0) -> Array:
    """Draw bootstrap resamples: how often each unit is drawn in each of them, count x units."""
    draw = np.random.default_rng(seed)
    return draw.multinomial(units, np.full(units, 1 / units), size=count).astype(np.float64)


def with_errors(values: Mapping[str, float], resampled: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Add the standard error of each value over resamples, as NAME_se."""
    found = {}
    for name, value in values.items():
        finite = [other[name] for other in resampled if np.isfinite(other[name])]
        error = float(np.std(finite, ddof=1)) if len(finite) > 1 else np.nan
        found |= {name: value, f"{name}_se": error}
    return found


def unit(vectors_WxD: Array) -> Array:
    """Scale vectors to length 1, so that their dot products are cosines."""
    return vectors_WxD / np.linalg.norm(vectors_WxD, axis=1, keepdims=True)


def topic_sums(vectors_WxD: Array, topic_W: Array) -> TopicSums:
    """Sum dot products over pairs of words by topic, from sums over words: no W x W matrix is needed."""
    topics, number_W = np.unique(topic_W, return_inverse=True)
    vectors_WxD = np.asarray(vectors_WxD, np.float64)
    member_WxT = number_W[:, None] == np.arange(len(topics))[None]
    total_TxD = member_WxT.T.astype(np.float64) @ vectors_WxD
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
    """Average over same-topic and different-topic pairs, with weighted topics, and compute the ratio."""
    weight_T = np.ones(len(sums.same_T)) if weight_T is None else weight_T
    same = (weight_T @ sums.same_T) / (weight_T @ sums.same_pairs_T)
    other = (weight_T @ sums.other_TxT @ weight_T) / (weight_T @ sums.other_pairs_TxT @ weight_T)
    found = {"same": same, "different": other, "ratio": same / other, "excess": same - other}
    return {name: float(value) for name, value in found.items()}


def embedding_averages(embedding_WxD: Array, topic_W: Array) -> dict[str, float]:
    """Average cosine and dot product within and between topics, with standard errors over topics."""
    found = {}
    for name, vectors in (("cosine", unit(embedding_WxD)), ("dot", embedding_WxD)):
        sums = topic_sums(vectors, topic_W)
        with np.errstate(divide="ignore", invalid="ignore"):  # a resample may have a single topic
            weight_RxT = resamples(len(sums.same_T), TOPIC_RESAMPLES)
            values = with_errors(averages(sums), [averages(sums, weight_T) for weight_T in weight_RxT])
        found |= {f"{name}_{column}": value for column, value in values.items()}
    return found


def pair_cosine(embedding_WxD: Array, pairs_Px2: Array) -> dict[str, float]:
    """Average the cosine over pairs of words, with its standard error over pairs."""
    vectors = unit(embedding_WxD)
    cosine_P = (vectors[pairs_Px2[:, 0]] * vectors[pairs_Px2[:, 1]]).sum(axis=1)
    if len(cosine_P) < 2:
        return {"cosine": np.nan, "cosine_se": np.nan}
    return {"cosine": float(cosine_P.mean()), "cosine_se": float(cosine_P.std(ddof=1) / len(cosine_P) ** 0.5)}


def topic_kinds(words_BxW: Array, topic_V: Array) -> Array:
    """Sort pairs of positions into kinds by the topics of their words; -1 means no topic."""
    topic_BxW = topic_V[words_BxW]
    has_topics = (topic_BxW[:, :, None] >= 0) & (topic_BxW[:, None] >= 0)
    differs = words_BxW[:, :, None] != words_BxW[:, None]
    kind = np.where(topic_BxW[:, :, None] == topic_BxW[:, None], SAME, OTHER)
    return np.where(has_topics & differs, kind, 0)


def listed_kinds(words_BxW: Array, is_content_V: Array, codes_P: Array) -> Array:
    """Sort pairs of positions with content words into kinds: SAME if their code is listed."""
    low = np.minimum(words_BxW[:, :, None], words_BxW[:, None])
    high = np.maximum(words_BxW[:, :, None], words_BxW[:, None])
    counts = is_content_V[words_BxW][:, :, None] & is_content_V[words_BxW][:, None] & (low != high)
    is_listed = np.isin(pair_code(low, high, len(is_content_V)), codes_P)
    return np.where(counts, np.where(is_listed, SAME, OTHER), 0)


def pair_code(low: Array, high: Array, V: int) -> Array:
    """Number the pairs of a vocabulary of V words, the lower id first."""
    return np.asarray(low, np.int64) * V + high


def add_up(kind_BxWxW: Array, attention_BxLxWxW: Array) -> PairSums:
    """Sum attention by kind and distance |i - j| of query and key."""
    B, L, W, _ = attention_BxLxWxW.shape
    distance = np.abs(np.arange(W)[:, None] - np.arange(W)[None])
    sums, counts = np.zeros((B, 2, L, W)), np.zeros((B, 2, W))
    for window in range(B):
        place = (kind_BxWxW[window] * W + distance).ravel()
        counts[window] = np.bincount(place, minlength=3 * W).reshape(3, W)[1:]
        for layer in range(L):
            weights = attention_BxLxWxW[window, layer].ravel()
            sums[window, :, layer] = np.bincount(place, weights, 3 * W).reshape(3, W)[1:]
    return PairSums(sums, counts)


def joined(batches: list[PairSums]) -> PairSums:
    """Join the sums of several batches of windows."""
    return PairSums(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))


def compare(sums_KxN: Array, counts_KxN: Array) -> dict[str, float]:
    """Compare the means of both kinds, plain and matched for distance.

    Matched: the mean over OTHER pairs at each distance, weighted by how many SAME pairs have that distance;
    distances at which either kind has no pair are left out of both matched means.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN where there are no pairs
        same, other = sums_KxN.sum(axis=1) / counts_KxN.sum(axis=1)
        both = (counts_KxN > 0).all(axis=0)
        weight = counts_KxN[0, both]
        matched_same = sums_KxN[0, both].sum() / weight.sum()
        matched_other = (sums_KxN[1, both] / counts_KxN[1, both] * weight).sum() / weight.sum()
        values = {
            "same": same,
            "different": other,
            "ratio": same / other,
            "excess": same - other,
            "matched_same": matched_same,
            "matched_different": matched_other,
            "matched_ratio": matched_same / matched_other,
            "matched_excess": matched_same - matched_other,
            "distance_share": 1 - (matched_same - matched_other) / (same - other),
        }
    return {name: float(value) for name, value in values.items()}


def by_layer(pairs: PairSums) -> list[dict[str, float]]:
    """Compare kinds in the mean over layers (layer 0) and in each layer, with errors over windows."""
    counts_KxN = pairs.counts_BxKxN.sum(axis=0)
    sums_KxLxN = pairs.sums_BxKxLxN.sum(axis=0)
    weight_RxB = resamples(len(pairs.counts_BxKxN), WINDOW_RESAMPLES)
    counts_RxKxN = np.tensordot(weight_RxB, pairs.counts_BxKxN, axes=1)
    sums_RxKxLxN = np.tensordot(weight_RxB, pairs.sums_BxKxLxN, axes=1)
    same, other = counts_KxN.sum(axis=1)
    about = {"pairs": int(same), "other_pairs": int(other), "windows": len(pairs.counts_BxKxN)}
    rows = []
    for layer in range(sums_KxLxN.shape[1] + 1):
        chosen = slice(None) if layer == 0 else slice(layer - 1, layer)
        sums_RxKxN = sums_RxKxLxN[:, :, chosen].mean(axis=2)
        resampled = [compare(*both) for both in zip(sums_RxKxN, counts_RxKxN, strict=True)]
        values = compare(sums_KxLxN[:, chosen].mean(axis=1), counts_KxN)
        rows.append({"layer": layer, **about, **with_errors(values, resampled)})
    return rows


def cut_windows(ids: Array, ends: Array, length: int) -> Array:
    """Cut documents into full windows, in order: windows x length."""
    starts = np.concatenate([[0], ends[:-1]])
    windows = [
        ids[start : start + (end - start) // length * length].reshape(-1, length)
        for start, end in zip(starts, ends, strict=True)
    ]
    return np.concatenate(windows)


def pick_windows(ids: Array, ends: Array, length: int, most: int, seed: int) -> Array:
    """Draw one window at a random position from each of at most `most` documents that are long enough."""
    draw = np.random.default_rng(seed)
    starts = np.concatenate([[0], ends[:-1]])
    long = np.flatnonzero(ends - starts >= length)
    if len(long) < 2:
        raise UserError(f"no 2 documents of the corpus have {length} words; allowed: fewer --words")
    chosen = np.sort(draw.permutation(long)[:most])
    places = starts[chosen] + draw.integers(0, ends[chosen] - starts[chosen] - length + 1)
    return ids[places[:, None] + np.arange(length)[None]]


def occurrences(rows: Array, words: Array, shape: tuple[int, int]) -> Any:
    """Make a sparse matrix that is 1 where the row (a window or a document) contains the word."""
    counts: Any = sparse.csc_array((np.ones(len(rows), np.int32), (rows, words)), shape)
    return (counts > 0).astype(np.int32)


def shared_windows(windows: Array, is_content_V: Array, count: int) -> Array:
    """Find the pairs of content words that share the most windows, in descending order, the lower id first.

    Frequent words are tried first: no pair shares more windows than its rarer word occurs in.
    """
    rows = np.repeat(np.arange(len(windows)), windows.shape[1])
    contains = occurrences(rows, windows.ravel(), (len(windows), len(is_content_V)))
    found_in = np.where(is_content_V, np.asarray(contains.sum(axis=0)), 0)
    order = np.argsort(-found_in, kind="stable")[: np.count_nonzero(found_in)]
    tried = FIRST_TRIED
    while True:
        words = np.sort(order[:tried])
        shared: Any = sparse.triu(contains[:, words].T @ contains[:, words], k=1).tocoo()
        best = np.lexsort((shared.col, shared.row, -shared.data))[:count]
        rest = found_in[order[tried]] if tried < len(order) else 0
        if not rest or (len(best) == count and shared.data[best[-1]] >= rest):
            return np.stack([words[shared.row[best]], words[shared.col[best]]], axis=1)
        tried *= 2
