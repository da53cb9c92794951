"""Compare pairs of words: embeddings and attention within and between topics, pairs that share windows.

Dimension letters: B windows, W words, V vocabulary, D width, T topics, L layers, K kinds of pairs,
N distances, R resamples, P pairs, F topic fits.  All pairs are of different words.

Values that have errors are arrays F x R: a row per topic fit, its value and then those of its resamples.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from topicjax.errors import UserError

Array = np.ndarray
TOPIC_RESAMPLES, WINDOW_RESAMPLES = 500, 200
NEAR_ZERO = 4.0  # standard errors; a ratio to a smaller mean says nothing
SAME, OTHER = 1, 2  # kinds of pairs; 0: the pair does not count
FIRST_TRIED = 500  # the most frequent words, tried first when looking for pairs that share the most windows


class TopicSums(NamedTuple):
    """Sums of a similarity over pairs of words, and the number of pairs."""

    same_T: Array  # pairs within a topic
    other_TxT: Array  # pairs between two topics; the diagonal is 0
    same_pairs_T: Array
    other_pairs_TxT: Array


class PairSums(NamedTuple):
    """Sums of attention over the pairs of each kind and distance, and the number of pairs, in each resample.

    Distances are kept apart so that they can be matched.
    """

    sums_RxKxLxN: Array
    counts_RxKxN: Array


def resamples(units: int, count: int, seed: int = 0) -> Array:
    """Weigh units as they are, then in bootstrap resamples by how often each is drawn: 1 + count x units."""
    draw = np.random.default_rng(seed)
    drawn_RxU = draw.multinomial(units, np.full(units, 1 / units), size=count)
    return np.concatenate([np.ones((1, units)), drawn_RxU])


def mean_and_error(values_FxR: Array) -> tuple[float, float]:
    """Average a value over topic fits; its standard error includes the spread over fits.

    The squared error is the mean over fits of the variance over resamples, plus the variance over fits
    divided by their number.  Fits share words and windows, so the errors of resamples do not average out over
    fits and count in full; as far as fits differ in what is resampled (topics), the error is too large.
    """
    value_F, fits = values_FxR[:, 0], len(values_FxR)
    resampled_FxR = np.where(np.isfinite(values_FxR[:, 1:]), values_FxR[:, 1:], np.nan)
    if not np.isfinite(value_F).all() or (np.isfinite(resampled_FxR).sum(axis=1) < 2).any():
        return float(value_F.mean()), np.nan
    within = np.nanvar(resampled_FxR, axis=1, ddof=1).mean()
    between = value_F.var(ddof=1) / fits if fits > 1 else 0.0
    return float(value_F.mean()), float((within + between) ** 0.5)


def ratio_and_error(above_FxR: Array, below_FxR: Array) -> tuple[float, float]:
    """Divide one mean over fits by another, with the error of the ratio to first order.

    NaN where the denominator is within NEAR_ZERO standard errors of zero.
    """
    (above, _), (below, below_error) = mean_and_error(above_FxR), mean_and_error(below_FxR)
    if not abs(below) >= NEAR_ZERO * below_error:
        return np.nan, np.nan
    ratio = above / below
    return ratio, mean_and_error(above_FxR - ratio * below_FxR)[1] / abs(below)


def with_errors(found: Mapping[str, Array]) -> dict[str, float]:
    """Compute differences, means and ratios over fits, each with its standard error as NAME_se.

    `found` has the means `same` and `different`, and `matched_same` and `matched_different` if there are any:
    of each, a value F x R.
    """
    entries: dict[str, tuple[float, float]] = {}
    differences = {}
    for kind in ("", "matched_"):
        if f"{kind}same" in found:
            same, other = found[f"{kind}same"], found[f"{kind}different"]
            differences[kind] = same - other
            entries[f"{kind}difference"] = mean_and_error(differences[kind])
            entries[f"{kind}same"], entries[f"{kind}different"] = mean_and_error(same), mean_and_error(other)
            entries[f"{kind}ratio"] = ratio_and_error(same, other)
    if "matched_" in differences:
        by_distance = differences[""] - differences["matched_"]
        entries["distance_share"] = ratio_and_error(by_distance, differences[""])
    return {
        name + end: value
        for name, both in entries.items()
        for end, value in zip(("", "_se"), both, strict=True)
    }


def unit(vectors_WxD: Array) -> Array:
    """Scale vectors to length 1, so that their dot products are cosines."""
    return vectors_WxD / np.linalg.norm(vectors_WxD, axis=1, keepdims=True)


def topic_sums(vectors_WxD: Array, member_WxT: Array) -> TopicSums:
    """Sum dot products over pairs of words by topic; `member` says which topics a word belongs to.

    Two words are of the same topic if they share one.  Each pair counts once, whatever the number of its
    topics: a pair that shares several is divided equally among them, another among the pairs of topics that
    its words belong to.
    """
    same_T, other_TxT = by_topic(np.asarray(vectors_WxD, np.float64), member_WxT)
    return TopicSums(same_T, other_TxT, *by_topic(np.ones((len(member_WxT), 1)), member_WxT))


def by_topic(vectors_WxD: Array, member_WxT: Array) -> tuple[Array, Array]:
    """Sum dot products within and between topics, from sums over words: no W x W matrix is needed."""
    share_WxT = member_WxT / member_WxT.sum(axis=1, keepdims=True)
    total_TxD = share_WxT.T @ vectors_WxD
    other_TxT, same_T = total_TxD @ total_TxD.T, np.zeros(member_WxT.shape[1])
    for topic, is_member_W in enumerate(member_WxT.T):
        own_WxD, own_WxT = vectors_WxD[is_member_W], member_WxT[is_member_W].astype(np.float64)
        product_WxW = own_WxD @ own_WxD.T / (own_WxT @ own_WxT.T)  # divided among the topics they share
        same_T[topic] = (product_WxW.sum() - np.trace(product_WxW)) / 2
        other_TxT -= share_WxT[is_member_W].T @ product_WxW @ share_WxT[is_member_W]
    np.fill_diagonal(other_TxT, 0)
    return same_T, other_TxT


def averages(sums: TopicSums, weight_RxT: Array) -> dict[str, Array]:
    """Average over same-topic and different-topic pairs in each resample of the topics."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a resample may have a single topic
        same_R = (weight_RxT @ sums.same_T) / (weight_RxT @ sums.same_pairs_T)
        other_R, pairs_R = (
            ((weight_RxT @ each_TxT) * weight_RxT).sum(axis=1)
            for each_TxT in (sums.other_TxT, sums.other_pairs_TxT)
        )
        return {"same": same_R, "different": other_R / pairs_R}


def embedding_averages(embedding_WxD: Array, member_WxT: Array) -> dict[str, dict[str, Array]]:
    """Average cosine and dot product within and between topics, in resamples of the topics."""
    member_WxT = member_WxT[:, member_WxT.any(axis=0)]
    weight_RxT = resamples(member_WxT.shape[1], TOPIC_RESAMPLES)
    vectors = {"cosine": unit(embedding_WxD), "dot": embedding_WxD}
    return {name: averages(topic_sums(own, member_WxT), weight_RxT) for name, own in vectors.items()}


def pair_cosine(embedding_WxD: Array, pairs_Px2: Array) -> dict[str, float]:
    """Average the cosine over pairs of words, with its standard error over pairs."""
    vectors = unit(embedding_WxD)
    cosine_P = (vectors[pairs_Px2[:, 0]] * vectors[pairs_Px2[:, 1]]).sum(axis=1)
    if len(cosine_P) < 2:
        return {"cosine": np.nan, "cosine_se": np.nan}
    return {"cosine": float(cosine_P.mean()), "cosine_se": float(cosine_P.std(ddof=1) / len(cosine_P) ** 0.5)}


def topic_kinds(words_BxW: Array, member_VxT: Array) -> Array:
    """Sort pairs of positions into kinds by whether their words share a topic."""
    member_BxWxT = member_VxT[words_BxW].astype(np.float32)
    has_BxW = np.asarray(member_BxWxT.any(axis=2))
    counts = has_BxW[:, :, None] & has_BxW[:, None] & (words_BxW[:, :, None] != words_BxW[:, None])
    kind = np.where(member_BxWxT @ member_BxWxT.swapaxes(1, 2) > 0, SAME, OTHER)
    return np.where(counts, kind, 0)


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


def add_up(kind_BxWxW: Array, attention_BxLxWxW: Array, weight_RxB: Array) -> PairSums:
    """Sum attention by kind and distance |i - j| of query and key, in each resample of the windows."""
    B, L, W, _ = attention_BxLxWxW.shape
    distance = np.abs(np.arange(W)[:, None] - np.arange(W)[None])
    sums, counts = np.zeros((B, 2, L, W)), np.zeros((B, 2, W))
    for window in range(B):
        chosen = np.flatnonzero(kind_BxWxW[window])
        place = ((kind_BxWxW[window] - 1) * W + distance).ravel()[chosen]
        counts[window] = np.bincount(place, minlength=2 * W).reshape(2, W)
        for layer in range(L):
            weights = attention_BxLxWxW[window, layer].ravel()[chosen]
            sums[window, :, layer] = np.bincount(place, weights, 2 * W).reshape(2, W)
    return PairSums(np.tensordot(weight_RxB, sums, axes=1), np.tensordot(weight_RxB, counts, axes=1))


def joined(one: PairSums, other: PairSums) -> PairSums:
    """Add the sums of two batches of windows."""
    return PairSums(one.sums_RxKxLxN + other.sums_RxKxLxN, one.counts_RxKxN + other.counts_RxKxN)


def compare(sums_RxKxN: Array, counts_RxKxN: Array) -> dict[str, Array]:
    """Compute the means of both kinds in each resample, plain and matched for distance.

    Matched: the mean over OTHER pairs at each distance, weighted by how many SAME pairs have that distance;
    distances at which either kind has no pair are left out of both matched means.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN where there are no pairs
        same_R, other_R = (sums_RxKxN.sum(axis=2) / counts_RxKxN.sum(axis=2)).T
        has_both_RxN = (counts_RxKxN > 0).all(axis=1)
        weight_RxN = np.where(has_both_RxN, counts_RxKxN[:, 0], 0)
        at_distance_RxN = np.where(has_both_RxN, sums_RxKxN[:, 1] / counts_RxKxN[:, 1], 0)
        total_R = weight_RxN.sum(axis=1)
        return {
            "same": same_R,
            "different": other_R,
            "matched_same": np.where(has_both_RxN, sums_RxKxN[:, 0], 0).sum(axis=1) / total_R,
            "matched_different": (at_distance_RxN * weight_RxN).sum(axis=1) / total_R,
        }


def compared(fits: Sequence[PairSums], layer: int) -> dict[str, Array]:
    """Compare kinds in the mean over layers (layer 0) or in one layer; a row of each value per topic fit."""
    chosen = slice(None) if layer == 0 else slice(layer - 1, layer)
    rows = [compare(fit.sums_RxKxLxN[:, :, chosen].mean(axis=2), fit.counts_RxKxN) for fit in fits]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def by_layer(fits: Sequence[PairSums]) -> list[dict[str, float]]:
    """Compare kinds in the mean over layers (layer 0) and in each; with errors over windows and fits."""
    same, other = np.mean([fit.counts_RxKxN[0].sum(axis=1) for fit in fits], axis=0)
    about = {"pairs": round(same), "other_pairs": round(other)}
    layers = fits[0].sums_RxKxLxN.shape[2]
    return [{"layer": layer, **about, **with_errors(compared(fits, layer))} for layer in range(layers + 1)]


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
