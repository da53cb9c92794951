"""Similarity, attention and co-occurrence of pairs of words against brute force."""

import itertools
import math

import numpy as np
import pytest

from topicjax.probe import pairs

DRAW = np.random.default_rng(3)


def loops(vectors, member, weight=None):
    """Average over pairs of words one by one; a pair is weighted by the topics it is divided among."""
    topics = [set(np.flatnonzero(row)) for row in member]
    weight = np.ones(member.shape[1]) if weight is None else weight
    same, other = [], []
    for i, j in itertools.combinations(range(len(vectors)), 2):
        common, value = topics[i] & topics[j], vectors[i] @ vectors[j]
        if common:
            same.append((np.mean([weight[t] for t in common]), value))
        else:
            own = [weight[t] * weight[u] for t in topics[i] for u in topics[j]]
            other.append((np.mean(own), value))
    return [sum(w * x for w, x in kind) / sum(w for w, _ in kind) for kind in (same, other)]


ONE_TOPIC = np.eye(4, dtype=bool)[DRAW.integers(0, 4, 17)]
MEMBERS = {"one": ONE_TOPIC, "several": ONE_TOPIC | (DRAW.random((17, 4)) < 0.25)}


@pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)
def test_similarities_are_those_of_loops_over_pairs(member):
    embedding = DRAW.normal(size=(17, 5)) + 0.3
    found = pairs.embedding_averages(embedding, np.pad(member, ((0, 0), (0, 1))))  # a topic without words
    lengths = np.linalg.norm(embedding, axis=1, keepdims=True)
    weights = pairs.resamples(4, pairs.TOPIC_RESAMPLES)
    for name, vectors in (("cosine", embedding / lengths), ("dot", embedding)):
        for resample in (0, 3, 4):
            same, other = loops(vectors, member, weights[resample])
            assert found[name]["same"][resample] == pytest.approx(same)
            assert found[name]["different"][resample] == pytest.approx(other)


def test_each_pair_counts_once_however_many_topics_its_words_have():
    member = MEMBERS["several"]
    sums = pairs.topic_sums(np.ones((17, 1)), member)
    shares = [(member[i] & member[j]).any() for i, j in itertools.combinations(range(17), 2)]
    assert sums.same_pairs_T.sum() == pytest.approx(sum(shares))
    assert sums.other_pairs_TxT.sum() == pytest.approx(2 * (len(shares) - sum(shares)))
    assert (member.sum(axis=1) > 1).any() and np.diag(sums.other_TxT).tolist() == [0] * 4


def test_errors_within_a_fit_are_those_over_resamples():
    values = DRAW.normal(size=400)
    means = pairs.resamples(400, 2000) @ values / 400
    mean, error = pairs.mean_and_error(means[None])
    assert mean == pytest.approx(values.mean()) and error == pytest.approx(values.std() / 20, rel=0.08)


def test_errors_over_fits_add_the_variance_of_their_mean():
    """Three fits, two resamples each: by hand."""
    found = np.array([[1.0, 0.0, 2.0], [4.0, 3.0, 3.0], [1.0, np.nan, 1.0]])
    within = (2 + 0) / 2  # variances over resamples of the first two fits
    mean, error = pairs.mean_and_error(found[:2])
    assert mean == 2.5 and error == pytest.approx(math.sqrt(within + 4.5 / 2))
    assert np.isnan(pairs.mean_and_error(found)[1])  # one resample of the third fit has no value


def test_errors_cover_the_truth_when_fits_differ_and_share_their_windows():
    """All fits have a common error of 1, each of 5 one of its own of 2; that of the mean: sqrt(1 + 4/5)."""
    draw = np.random.default_rng(5)
    found, misses = [], []
    for _ in range(400):
        truth_F = draw.normal() + draw.normal(0, 2, 5)
        values = np.concatenate([truth_F[:, None], truth_F[:, None] + draw.normal(size=(5, 60))], axis=1)
        mean, error = pairs.mean_and_error(values)
        found.append(error**2)
        misses.append(mean)
    assert np.mean(found) == pytest.approx(1.8, rel=0.06) and np.var(misses) == pytest.approx(1.8, rel=0.25)


def test_a_ratio_has_the_error_of_first_order_and_none_near_zero():
    draw = np.random.default_rng(2)
    below = draw.normal(2, 0.02, (1, 4001))
    above = 3 * below + draw.normal(0, 0.1, (1, 4001))  # correlated: only what is beside the line matters
    ratio, error = pairs.ratio_and_error(above, below)
    assert ratio == above[0, 0] / below[0, 0] and error == pytest.approx(0.05, rel=0.05)
    for factor, is_shown in ((4.5, True), (3.5, False)):
        near = np.concatenate([[[factor]], draw.normal(factor, 1, (1, 4000))], axis=1)
        assert np.isfinite(pairs.ratio_and_error(near, near)).all() == is_shown


def test_differences_come_first():
    found = {name: np.array([[value, value]]) for name, value in (("same", 3.0), ("different", 1.0))}
    row = pairs.with_errors({name: np.repeat(values, 2, axis=0) for name, values in found.items()})
    assert next(iter(row)) == "difference" and row["difference"] == 2


def test_pair_cosine():
    embedding = np.array([[1.0, 0], [0, 2], [3, 3]])
    found = pairs.pair_cosine(embedding, np.array([[0, 1], [0, 2], [1, 2]]))
    assert found["cosine"] == pytest.approx(np.mean([0, math.sqrt(0.5), math.sqrt(0.5)]))


def test_kinds_of_pairs():
    member = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [0, 1]], bool)
    kind = pairs.topic_kinds(np.array([[2, 3, 4, 1, 2]]), member)[0]
    assert kind.tolist() == [
        [0, 1, 2, 0, 0],
        [1, 0, 2, 0, 1],
        [2, 2, 0, 0, 2],
        [0, 0, 0, 0, 0],
        [0, 1, 2, 0, 0],
    ]
    codes = pairs.pair_code(np.array([2]), np.array([4]), 5)
    listed = pairs.listed_kinds(np.array([[4, 2, 3, 1, 4]]), member.any(axis=1), codes)[0]
    assert listed.tolist() == [
        [0, 1, 2, 0, 0],
        [1, 0, 2, 0, 1],
        [2, 2, 0, 0, 2],
        [0, 0, 0, 0, 0],
        [0, 1, 2, 0, 0],
    ]

    both = member | np.array([False, True]) & (np.arange(5) == 3)[:, None]  # word 3 has both topics
    kind = pairs.topic_kinds(np.array([[2, 3, 4]]), both)[0]
    assert kind.tolist() == [[0, 1, 2], [1, 0, 1], [2, 1, 0]]


def members(topic):
    return topic[:, None] == np.arange(topic.max() + 1)[None]


def rows_of(kinds, weights, fits=1):
    weight = pairs.resamples(len(kinds), pairs.WINDOW_RESAMPLES)
    return pairs.by_layer([pairs.add_up(kinds, weights, weight)] * fits)


def brute_force(kinds, weights, layer):
    """Return the plain means and the matched one, pair by pair."""
    by = {1: {}, 2: {}}
    for kind, weight in zip(kinds, weights, strict=True):
        for i, j in itertools.product(range(kind.shape[0]), repeat=2):
            if kind[i, j]:
                by[kind[i, j]].setdefault(abs(i - j), []).append(weight[layer, i, j])
    same, other = (np.mean([x for xs in by[k].values() for x in xs]) for k in (1, 2))
    common = [d for d in by[1] if d in by[2]]
    matched_same = np.mean([x for d in common for x in by[1][d]])
    matched = np.mean([np.mean(by[2][d]) for d in common for _ in by[1][d]])
    return same, other, matched_same, matched


def test_attention_tables_are_those_of_loops_over_pairs():
    words = DRAW.integers(0, 9, (6, 11))
    kinds = pairs.topic_kinds(words, members(np.array([-1, -1, 0, 0, 1, 1, 2, 2, 2])))
    weights = DRAW.random((6, 3, 11, 11))
    weight = pairs.resamples(6, 7)
    cuts = slice(0, 4), slice(4, 6)
    sums = pairs.joined(*(pairs.add_up(kinds[cut], weights[cut], weight[:, cut]) for cut in cuts))
    rows = pairs.by_layer([sums, sums])
    drawn = np.repeat(np.arange(6), weight[3].astype(int))  # a resample repeats windows
    other = pairs.compare(sums.sums_RxKxLxN[:, :, 1], sums.counts_RxKxN)
    values = [other[name][3] for name in ("same", "different", "matched_same", "matched_different")]
    assert values == pytest.approx(brute_force(kinds[drawn], weights[drawn], 1))
    assert [row["layer"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["pairs"] == (kinds == 1).sum() and rows[0]["other_pairs"] == (kinds == 2).sum()
    with_mean = np.concatenate([weights.mean(axis=1, keepdims=True), weights], axis=1)
    for layer, row in enumerate(rows):
        same, other, matched_same, matched = brute_force(kinds, with_mean, layer)
        assert row["same"] == pytest.approx(same) and row["different"] == pytest.approx(other)
        assert row["ratio"] == pytest.approx(same / other)
        assert row["matched_same"] == pytest.approx(matched_same)
        assert row["matched_different"] == pytest.approx(matched)
        assert row["difference"] == pytest.approx(same - other)
        assert row["matched_difference"] == pytest.approx(matched_same - matched)


def test_an_excess_that_is_only_due_to_distance_vanishes_when_matched():
    words = np.sort(DRAW.integers(2, 32, (300, 20)), axis=1)  # words of a topic stand together
    topic = np.concatenate([[-1, -1], np.repeat(np.arange(6), 5)])
    distance = np.abs(np.arange(20)[:, None] - np.arange(20)[None])
    weights = np.exp(-distance / 4.0)[None, None] * DRAW.uniform(0.9, 1.1, (300, 1, 20, 20))
    (row, _) = rows_of(pairs.topic_kinds(words, members(topic)), weights)
    assert row["ratio"] > 2.5 and row["difference"] > 0.3
    assert (
        abs(row["matched_difference"]) < 0.002
        and abs(row["matched_difference"]) < 4 * row["matched_difference_se"]
    )
    assert row["matched_ratio"] == pytest.approx(1, abs=0.01) and row["distance_share"] == pytest.approx(
        1, abs=0.01
    )


def test_a_topical_excess_at_every_distance_stays_when_matched():
    words = DRAW.integers(2, 32, (300, 20))
    topic = np.concatenate([[-1, -1], np.repeat(np.arange(6), 5)])
    kinds = pairs.topic_kinds(words, members(topic))
    distance = np.abs(np.arange(20)[:, None] - np.arange(20)[None])
    weights = (np.exp(-distance / 4.0)[None] + 0.5 * (kinds == 1))[:, None]
    (row, _) = rows_of(kinds, weights)
    assert row["matched_difference"] == pytest.approx(0.5)


def test_windows_stay_inside_documents():
    ids, ends = np.arange(23), np.array([7, 9, 23])
    assert pairs.cut_windows(ids, ends, 3)[:, 0].tolist() == [0, 3, 9, 12, 15, 18]
    for seed in range(20):
        found = pairs.pick_windows(ids, ends, 3, 5, seed)
        assert len(found) == 2 and (np.diff(found) == 1).all()
        assert 0 <= found[0, 0] <= 4 and 9 <= found[1, 0] <= 20


@pytest.mark.parametrize("first", [3, 500])
def test_the_pairs_that_share_most_windows_are_those_of_counting(first, monkeypatch):
    monkeypatch.setattr(pairs, "FIRST_TRIED", first)
    weights = 1 / np.arange(1, 31)
    windows = np.random.default_rng(1).choice(30, (80, 6), p=weights / weights.sum())
    is_content = np.arange(30) >= 2
    counts = {
        (a, b): sum(a in w and b in w for w in windows.tolist())
        for a, b in itertools.combinations(range(2, 30), 2)
    }
    found = pairs.shared_windows(windows, is_content, 12)
    assert len(set(map(tuple, found.tolist()))) == 12
    best = sorted(counts.values(), reverse=True)[:12]
    assert [counts[a, b] for a, b in found.tolist()] == best
