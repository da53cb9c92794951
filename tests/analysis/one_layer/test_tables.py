"""Table 3 and distances by hand; uniform attention against drawn documents."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import small_models
from support.small_models import SMALL, one_hot_weights
from support.synthetic_runs import TWO_STAGE, case, make_run, ramp, scored

from topicjax.analysis.one_layer import tables
from topicjax.analysis.one_layer.tables import (
    HEADERS,
    distances,
    table3,
    uniform_attention,
)
from topicjax.analysis.page.report import settings_to_pool
from topicjax.analysis.tables import to_csv, to_markdown
from topicjax.errors import UserError
from topicjax.theory.documents import DataModel
from topicjax.theory.stage1 import uniform_attention_optimum

NO_SCORES = pd.DataFrame()  # tables of the trials need none


def test_shares_of_trials_are_not_headed_as_losses():
    """The share of the stability table once had the header of another table's share of a loss."""
    stability = tables.stability(*scored(case(*TWO_STAGE)))
    headers = {name: HEADERS[name] for name in stability if name in HEADERS}
    assert headers["still_share"] == "share of those that still are"
    assert not any("stage 1" in text for text in headers.values())
    assert stability["still_share"].dropna().between(0, 1).all()


def trial(trial_id: str, attention=(0.02, 0.02, 0.01), **changed: Any) -> dict[str, Any]:
    measured = dict(zip((f"final_{name}" for name in tables.KINDS), attention, strict=True))
    return small_models.trial(trial_id, **changed) | measured | dict(final_theorem2_distance=0.5)


def seeds() -> list[dict[str, Any]]:
    return [
        trial("a", (0.05, 0.01, 0.005), seed=0, optimizer="sgd"),
        trial("b", (0.05, 0.02, 0.005), seed=1, optimizer="sgd"),
        trial("c", (0.05, 0.03, 0.005), seed=2, optimizer="sgd"),
        trial("d", (9.0, 9.0, 9.0), seed=3, optimizer="sgd") | dict(status="diverged"),
        trial("e", (0.04, 0.03, 0.02), seed=0, optimizer="adam", key_visibility="unmasked"),
    ]


def test_table3_by_hand():
    table = table3(make_run(pd.DataFrame(seeds())), NO_SCORES)
    assert table.columns.tolist()[:5] == ["objective", "optimizer", "key_visibility", "n", "diverged"]
    adam, sgd = table.to_dict("records")
    assert (sgd["optimizer"], sgd["key_visibility"], sgd["n"], sgd["diverged"]) == ("sgd", "all", 3, 1)
    assert sgd["attn_same_topic"] == pytest.approx(0.02)
    assert sgd["attn_same_topic_se"] == pytest.approx(0.01 / np.sqrt(3))
    assert sgd["attn_same_word_se"] == pytest.approx(0)
    assert sgd["ratio"] == pytest.approx((2 + 4 + 6) / 3)
    assert sgd["ratio_se"] == pytest.approx(2 / np.sqrt(3))
    assert (adam["n"], adam["diverged"], adam["attn_diff_topic"]) == (1, 0, 0.02)
    assert np.isnan(adam["attn_diff_topic_se"])


def test_a_setting_without_a_finite_trial_stays_in_the_table():
    rows = [trial("a", seed=seed) | dict(status="diverged") for seed in range(2)]
    table = table3(make_run(pd.DataFrame(rows)), NO_SCORES)
    assert (table["n"].tolist(), table["diverged"].tolist()) == ([0], [2])
    assert table["ratio"].isna().all()
    assert "| 0 | 2 | - | - | - | - |" in to_markdown(table, HEADERS)


@pytest.mark.parametrize("visibility", ["all", "unmasked"])
def test_uniform_attention_is_that_of_drawn_documents(visibility: str):
    settings = trial("a", length_min=3, length_max=6, p_mask=0.4, key_visibility=visibility)
    rng = np.random.default_rng(0)
    length = rng.integers(3, 7, size=400_000)
    share = 1 - settings["p_mask"] * (1 if visibility == "unmasked" else 0.8)  # else [MASK] is no word
    words = rng.binomial(length, share)
    keys = words if visibility == "unmasked" else length
    pairs = words * (words - 1)
    drawn = (pairs / np.maximum(keys, 1)).sum() / pairs.sum()
    assert uniform_attention(settings) == pytest.approx(drawn, rel=3e-3)
    assert uniform_attention(settings | dict(infinite_documents=True)) == 1


def test_uniform_attention_of_documents_of_one_length_is_one_over_it():
    assert uniform_attention(trial("a", length_min=50, length_max=50)) == pytest.approx(1 / 50)


def test_distances_by_hand():
    best = uniform_attention_optimum(DataModel(**SMALL))
    values = {"a": 1.25 * best, "b": 1.75 * best}
    rows = [
        trial("a", objective="squared", seed=0),
        trial("b", objective="squared", seed=1) | dict(final_theorem2_distance=0.7),
        trial("c", objective="squared", seed=2) | dict(snapshot_steps=(), final_theorem2_distance=0.6),
        trial("d", objective="cross_entropy"),
    ]

    weights = {name: one_hot_weights(value) for name, value in values.items()}
    run = make_run(pd.DataFrame(rows), restore=weights.__getitem__)
    entropy, squared = distances(run, NO_SCORES).to_dict("records")
    assert squared["theorem2_distance"] == pytest.approx(0.6)
    assert squared["theorem2_distance_se"] == pytest.approx(0.1 / np.sqrt(3))
    assert squared["optimum_distance"] == pytest.approx(0.5)
    assert squared["optimum_distance_se"] == pytest.approx(0.25)
    assert np.isnan(entropy["optimum_distance"])


def test_distances_of_many_seeds_are_those_of_the_lowest():
    best = uniform_attention_optimum(DataModel(**SMALL))
    rows = [trial(f"{seed}", objective="squared", seed=seed) for seed in reversed(range(40))]
    weights = {f"{seed}": one_hot_weights(1.5 * best) for seed in range(32)}
    run = make_run(pd.DataFrame(rows), restore=weights.__getitem__)
    (row,) = distances(run, NO_SCORES).to_dict("records")
    assert (row["n"], row["weights_read"]) == (40, 32)
    assert row["optimum_distance"] == pytest.approx(0.5)


def test_settings_are_pooled_from_the_one_with_most_values_on():
    kinds = itertools.product(range(3), (1e-3, 1e-2), ("all", "unmasked"), range(2))
    rows = [
        trial(f"{place}", (0.05, 0.01 * (rate + 1), 0.01), learning_rate=0.1 + rate, seed=seed)
        | dict(init_scale=scale, key_visibility=keys)
        for place, (rate, scale, keys, seed) in enumerate(kinds)
    ]
    run = make_run(pd.DataFrame(rows))
    assert settings_to_pool(run, 12) == []
    assert settings_to_pool(run, 4) == ["learning_rate"]
    assert settings_to_pool(run, 1) == ["learning_rate", "key_visibility", "init_scale"]
    table = table3(run, NO_SCORES, ["learning_rate", "init_scale"])
    assert table["key_visibility"].tolist() == ["all", "unmasked"] and table["n"].tolist() == [12, 12]
    np.testing.assert_allclose(table["attn_same_topic"], 0.02)
    spread = np.std([0.01, 0.02, 0.03] * 4, ddof=1) / 12**0.5
    np.testing.assert_allclose(table["attn_same_topic_se"], spread)


def test_markdown_by_hand():
    table = pd.DataFrame(
        dict(
            optimizer=["sgd", "adam"],
            learning_rate=[30.0, 1e-5],
            n=[3, 1],
            attn_same_word=[0.012345, 2.0],
            attn_same_word_se=[0.000456, np.nan],
            ratio=[12.5, np.nan],
            ratio_se=[0.0001, np.nan],
        )
    )
    assert to_markdown(table, HEADERS, 3).splitlines() == [
        "| optimizer | learning rate | n | same word | same / different topic |",
        "| --- | --- | --- | --- | --- |",
        "| SGD | 30 | 3 | 0.0123 ± 0.0005 | 12.5 ± <0.1 |",
        "| Adam | 1e-5 | 1 | 2.00 | - |",
    ]


def test_csv_keeps_every_digit(tmp_path: Path):
    table = table3(make_run(pd.DataFrame(seeds())), NO_SCORES)
    again = pd.read_csv(to_csv(table, tmp_path / "new" / "table3.csv"))
    pd.testing.assert_frame_equal(again, table, check_dtype=False, rtol=1e-14)


def test_an_older_folder_without_the_columns_is_refused():
    row = {name: value for name, value in trial("a").items() if name != "final_attn_same_word"}
    with pytest.raises(UserError, match="the trials have no column final_attn_same_word"):
        table3(make_run(pd.DataFrame([row])), NO_SCORES)


def test_the_classes_that_occur_are_counted_in_every_view():
    run, scores = scored(
        case(*TWO_STAGE), case(*TWO_STAGE, seed=1), case(ramp(0, 100), 0, norm_k=ramp(400, 900))
    )
    table = tables.classes(run, scores).set_index("class")
    assert table.index.tolist() == ["V-only", "two-stage"]
    assert table[["loss", "order", "norm"]].to_numpy().tolist() == [[1, 1, 0], [2, 2, 3]]
    assert table["topical"].tolist() == [0, 2]
    assert table.loc["two-stage", "median_theta"] == pytest.approx(1)


def test_the_cuts_of_theta_are_a_table():
    assert len(tables.sensitivity(*scored(case(*TWO_STAGE)))) == 9
