"""Table 3 and distances by hand; uniform attention against drawn documents."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import tables
from analysis.frames import Run
from analysis.tables import distances, table3, to_csv, to_markdown, uniform_attention
from topicjax.config import DEFAULTS, IDENTITY
from topicjax.theory import DataModel, uniform_attention_optimum

SMALL = dict(topics=3, words_per_topic=4, length_min=20, length_max=30)


def trial(trial_id: str, attention=(0.02, 0.02, 0.01), **changed: Any) -> dict[str, Any]:
    settings = {name: DEFAULTS[name] for name in IDENTITY} | SMALL | changed
    measured = dict(zip((f"final_{name}" for name in tables.KINDS), attention, strict=True))
    row = dict(trial_id=trial_id, status="ok", snapshot_steps="10", final_theorem2_distance=0.5)
    return row | measured | settings


def make_run(*rows: dict[str, Any]) -> Run:
    return Run(Path("nowhere"), pd.DataFrame(rows), pd.DataFrame(), {}, ())


def seeds() -> list[dict[str, Any]]:
    return [
        trial("a", (0.05, 0.01, 0.005), seed=0, optimizer="sgd"),
        trial("b", (0.05, 0.02, 0.005), seed=1, optimizer="sgd"),
        trial("c", (0.05, 0.03, 0.005), seed=2, optimizer="sgd"),
        trial("d", (9.0, 9.0, 9.0), seed=3, optimizer="sgd") | dict(status="diverged"),
        trial("e", (0.04, 0.03, 0.02), seed=0, optimizer="adam", key_visibility="unmasked"),
    ]


def test_table3_by_hand():
    table = table3(make_run(*seeds()))
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
    table = table3(make_run(*rows))
    assert (table["n"].tolist(), table["diverged"].tolist()) == ([0], [2])
    assert table["ratio"].isna().all()
    assert "| 0 | 2 | - | - | - | - |" in to_markdown(table)


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
        trial("c", objective="squared", seed=2) | dict(snapshot_steps="", final_theorem2_distance=0.6),
        trial("d", objective="cross_entropy"),
    ]

    def restore(name: str) -> dict[str, np.ndarray]:
        return dict(W_K=np.zeros((13, 13)), W_Q=np.zeros((13, 13)), W_V=values[name], b_pred=np.zeros(13))

    entropy, squared = distances(make_run(*rows), restore).to_dict("records")
    assert squared["theorem2_distance"] == pytest.approx(0.6)
    assert squared["theorem2_distance_se"] == pytest.approx(0.1 / np.sqrt(3))
    assert squared["optimum_distance"] == pytest.approx(0.5)
    assert squared["optimum_distance_se"] == pytest.approx(0.25)
    assert np.isnan(entropy["optimum_distance"])
    assert "optimum_distance" not in distances(make_run(*rows))


def test_a_mask_that_is_never_a_key_is_no_error():
    row = trial("a", objective="squared", key_visibility="unmasked")
    value = 1.5 * uniform_attention_optimum(DataModel(**SMALL, key_visibility="unmasked"))
    value[:, 0] = 7.0
    assert tables.optimum_error(value, row) == pytest.approx(0.5)
    assert tables.optimum_error(value, row | dict(key_visibility="all")) > 1


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
    assert to_markdown(table, 3).splitlines() == [
        "| optimizer | learning rate | n | same word | same / different topic |",
        "| --- | --- | --- | --- | --- |",
        "| SGD | 30 | 3 | 0.0123 ± 0.0005 | 12.5 ± <0.1 |",
        "| Adam | 1e-5 | 1 | 2.00 | - |",
    ]


def test_csv_keeps_every_digit(tmp_path: Path):
    table = table3(make_run(*seeds()))
    again = pd.read_csv(to_csv(table, tmp_path / "new" / "table3.csv"))
    pd.testing.assert_frame_equal(again, table, check_dtype=False, rtol=1e-14)


def test_an_older_folder_without_the_columns_is_refused():
    row = {name: value for name, value in trial("a").items() if name != "final_attn_same_word"}
    with pytest.raises(ValueError, match="the trials have no column final_attn_same_word"):
        table3(make_run(row))
