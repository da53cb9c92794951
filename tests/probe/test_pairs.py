"""Similarity, attention and co-occurrence of pairs of words against brute force."""

import itertools
import math

import numpy as np
import pytest

from topicjax.probe import pairs

DRAW = np.random.default_rng(3)


def test_similarities_are_those_of_loops_over_pairs():
    embedding, topic = DRAW.normal(size=(17, 5)) + 0.3, DRAW.integers(0, 4, 17)
    found = pairs.embedding_averages(embedding, topic)
    for name, of in (
        ("cosine", lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
        ("dot", lambda a, b: a @ b),
    ):
        same, other = [], []
        for i, j in itertools.combinations(range(17), 2):
            (same if topic[i] == topic[j] else other).append(of(embedding[i], embedding[j]))
        assert found[f"{name}_same"] == pytest.approx(np.mean(same))
        assert found[f"{name}_different"] == pytest.approx(np.mean(other))
        assert found[f"{name}_ratio"] == pytest.approx(np.mean(same) / np.mean(other))


def test_a_resample_counts_topics_as_often_as_they_are_drawn():
    embedding, topic = DRAW.normal(size=(12, 4)), np.repeat([0, 1, 2], 4)
    sums = pairs.topic_sums(embedding, topic)
    found = pairs.averages(sums, np.array([2.0, 1.0, 0.0]))
    alike = [(i, j) for i, j in itertools.combinations(range(8), 2) if topic[i] == topic[j]]
    same = [(2 if topic[i] == 0 else 1, embedding[i] @ embedding[j]) for i, j in alike]
    other = [embedding[i] @ embedding[j] for i in range(4) for j in range(4, 8)]
    assert found["same"] == pytest.approx(sum(w * x for w, x in same) / sum(w for w, _ in same))
    assert found["different"] == pytest.approx(np.mean(other))


def test_errors_over_resamples_are_standard_errors():
    values = DRAW.normal(size=400)
    means = [{"mean": weight @ values / weight.sum()} for weight in pairs.resamples(400, 2000)]
    found = pairs.with_errors({"mean": values.mean()}, means)
    assert found["mean_se"] == pytest.approx(values.std() / 20, rel=0.08)


def test_pair_cosine():
    embedding = np.array([[1.0, 0], [0, 2], [3, 3]])
    found = pairs.pair_cosine(embedding, np.array([[0, 1], [0, 2], [1, 2]]))
    assert found["cosine"] == pytest.approx(np.mean([0, math.sqrt(0.5), math.sqrt(0.5)]))


def test_kinds_of_pairs():
    topic = np.array([-1, -1, 0, 0, 1])
    kind = pairs.topic_kinds(np.array([[2, 3, 4, 1, 2]]), topic)[0]
    assert kind.tolist() == [
        [0, 1, 2, 0, 0],
        [1, 0, 2, 0, 1],
        [2, 2, 0, 0, 2],
        [0, 0, 0, 0, 0],
        [0, 1, 2, 0, 0],
    ]
    codes = pairs.pair_code(np.array([2]), np.array([4]), 5)
    listed = pairs.listed_kinds(np.array([[4, 2, 3, 1, 4]]), topic >= 0, codes)[0]
    assert listed.tolist() == [
        [0, 1, 2, 0, 0],
        [1, 0, 2, 0, 1],
        [2, 2, 0, 0, 2],
        [0, 0, 0, 0, 0],
        [0, 1, 2, 0, 0],
    ]


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
    kinds = pairs.topic_kinds(words, np.array([-1, -1, 0, 0, 1, 1, 2, 2, 2]))
    weights = DRAW.random((6, 3, 11, 11))
    parts = [pairs.add_up(kinds[cut], weights[cut]) for cut in (slice(0, 4), slice(4, 6))]
    rows = pairs.by_layer(pairs.joined(parts))
    assert [row["layer"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["pairs"] == (kinds == 1).sum() and rows[0]["other_pairs"] == (kinds == 2).sum()
    with_mean = np.concatenate([weights.mean(axis=1, keepdims=True), weights], axis=1)
    for layer, row in enumerate(rows):
        same, other, matched_same, matched = brute_force(kinds, with_mean, layer)
        assert row["same"] == pytest.approx(same) and row["different"] == pytest.approx(other)
        assert row["ratio"] == pytest.approx(same / other)
        assert row["matched_same"] == pytest.approx(matched_same)
        assert row["matched_different"] == pytest.approx(matched)
        assert row["distance_share"] == pytest.approx(1 - (matched_same - matched) / (same - other))


def test_an_excess_that_is_only_due_to_distance_vanishes_when_matched():
    words = np.sort(DRAW.integers(2, 32, (300, 20)), axis=1)  # words of a topic stand together
    topic = np.concatenate([[-1, -1], np.repeat(np.arange(6), 5)])
    distance = np.abs(np.arange(20)[:, None] - np.arange(20)[None])
    weights = np.exp(-distance / 4.0)[None, None] * DRAW.uniform(0.9, 1.1, (300, 1, 20, 20))
    (row, _) = pairs.by_layer(pairs.add_up(pairs.topic_kinds(words, topic), weights))
    assert row["ratio"] > 2.5 and row["excess"] > 0.3
    assert abs(row["matched_excess"]) < 0.002 and abs(row["matched_excess"]) < 4 * row["matched_excess_se"]
    assert row["matched_ratio"] == pytest.approx(1, abs=0.01) and row["distance_share"] == pytest.approx(
        1, abs=0.01
    )


def test_a_topical_excess_at_every_distance_stays_when_matched():
    words = DRAW.integers(2, 32, (300, 20))
    topic = np.concatenate([[-1, -1], np.repeat(np.arange(6), 5)])
    kinds = pairs.topic_kinds(words, topic)
    distance = np.abs(np.arange(20)[:, None] - np.arange(20)[None])
    weights = (np.exp(-distance / 4.0)[None] + 0.5 * (kinds == 1))[:, None]
    (row, _) = pairs.by_layer(pairs.add_up(kinds, weights))
    assert row["matched_excess"] == pytest.approx(0.5)


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
