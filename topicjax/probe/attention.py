"""How much do words attend to words of the same topic, and of different topics, at any and at equal distance?

Pairs of different words of a window are of kind SAME, OTHER or neither.  Sums over pairs are kept by window,
kind and distance, so that windows can be resampled and distances matched.
Dimension letters: B windows, W words of a window, L layers, K kinds, N distances, R resamples.
"""

from typing import NamedTuple

import numpy as np

from topicjax.probe.similarity import resamples, with_errors

Array = np.ndarray
SAME, OTHER = 1, 2
RESAMPLES = 200


class PairSums(NamedTuple):
    """Sums of attention over the pairs of each kind and distance, and how many pairs."""

    sums_BxKxLxN: Array
    counts_BxKxN: Array


def topic_kinds(words_BxW: Array, topic_V: Array) -> Array:
    """Return the kind of each pair of positions: words with a topic (not -1), identical words left out."""
    topic_BxW = topic_V[words_BxW]
    has = (topic_BxW[:, :, None] >= 0) & (topic_BxW[:, None] >= 0)
    differs = words_BxW[:, :, None] != words_BxW[:, None]
    kind = np.where(topic_BxW[:, :, None] == topic_BxW[:, None], SAME, OTHER)
    return np.where(has & differs, kind, 0)


def listed_kinds(words_BxW: Array, is_content_V: Array, codes_P: Array) -> Array:
    """Return SAME for pairs of words whose code is listed, OTHER for all other pairs of content words."""
    low = np.minimum(words_BxW[:, :, None], words_BxW[:, None])
    high = np.maximum(words_BxW[:, :, None], words_BxW[:, None])
    has = is_content_V[words_BxW][:, :, None] & is_content_V[words_BxW][:, None] & (low != high)
    listed = np.isin(pair_code(low, high, len(is_content_V)), codes_P)
    return np.where(has, np.where(listed, SAME, OTHER), 0)


def pair_code(low: Array, high: Array, V: int) -> Array:
    """Return one number for a pair of words of a vocabulary of V, the lower id first."""
    return np.asarray(low, np.int64) * V + high


def add_up(kind_BxWxW: Array, attention_BxLxWxW: Array) -> PairSums:
    """Return the sums of attention by kind and distance |i - j| of query and key."""
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


def joined(parts: list[PairSums]) -> PairSums:
    """Return the sums of several batches of windows."""
    return PairSums(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def compare(sums_KxN: Array, counts_KxN: Array) -> dict[str, float]:
    """Return the means of both kinds, plain and matched for distance.

    Matched: the mean over OTHER pairs at each distance, weighted by how many SAME pairs have that distance;
    distances at which either kind has no pair are left out of both matched means.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # not a number where there are no pairs
        same, other = sums_KxN.sum(axis=1) / counts_KxN.sum(axis=1)
        both = (counts_KxN > 0).all(axis=0)
        weight = counts_KxN[0, both]
        near_same = sums_KxN[0, both].sum() / weight.sum()
        near_other = (sums_KxN[1, both] / counts_KxN[1, both] * weight).sum() / weight.sum()
        return differences(same, other, near_same, near_other)


def differences(same: float, other: float, near_same: float, near_other: float) -> dict[str, float]:
    """Return both means with their ratio and difference, plain and at equal distance."""
    values = {
        "same": same,
        "different": other,
        "ratio": same / other,
        "excess": same - other,
        "matched_same": near_same,
        "matched_different": near_other,
        "matched_ratio": near_same / near_other,
        "matched_excess": near_same - near_other,
        "distance_share": 1 - (near_same - near_other) / (same - other),
    }
    return {name: float(value) for name, value in values.items()}


def by_layer(pairs: PairSums) -> list[dict[str, float]]:
    """Return a row for the mean over layers (layer 0) and for each layer, with errors over windows."""
    counts_KxN = pairs.counts_BxKxN.sum(axis=0)
    sums_KxLxN = pairs.sums_BxKxLxN.sum(axis=0)
    weight_RxB = resamples(len(pairs.counts_BxKxN), RESAMPLES)
    counts_RxKxN = np.tensordot(weight_RxB, pairs.counts_BxKxN, axes=1)
    sums_RxKxLxN = np.tensordot(weight_RxB, pairs.sums_BxKxLxN, axes=1)
    same, other = counts_KxN.sum(axis=1)
    about = {"pairs": int(same), "other_pairs": int(other), "windows": len(pairs.counts_BxKxN)}
    found = []
    for layer in range(sums_KxLxN.shape[1] + 1):
        own = slice(None) if layer == 0 else slice(layer - 1, layer)
        sums_RxKxN = sums_RxKxLxN[:, :, own].mean(axis=2)
        tries = [compare(*both) for both in zip(sums_RxKxN, counts_RxKxN, strict=True)]
        whole = compare(sums_KxLxN[:, own].mean(axis=1), counts_KxN)
        found.append({"layer": layer, **about, **with_errors(whole, tries)})
    return found
