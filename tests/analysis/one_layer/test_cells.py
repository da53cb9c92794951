"""Cells by hand: majorities, quartiles over seeds, and what other cuts change."""

from dataclasses import replace
from typing import Any

import numpy as np
from support.synthetic_runs import TWO_STAGE, Case, case, lag_for, ramp, saturating, score

from topicjax.analysis.one_layer.cells import count_cells, score_cells, sensitivity
from topicjax.theory.progress import Cuts


def seeds(*cases: Case, **changed: Any) -> list[Case]:
    return [(row | changed | dict(seed=seed), frame) for seed, (row, frame) in enumerate(cases)]


def test_cells_are_majorities_and_quartiles_over_seeds():
    lags = [case(saturating(0, 99), saturating(99 * lag_for(x), 99)) for x in (0.95, 0.93, 0.91, 0.8)]
    lost = case(np.nan, 0)
    cells = score_cells(score(*seeds(*lags, lost), *seeds(lost, lost, learning_rate=9.0)))
    assert cells["learning_rate"].tolist() == [0.01, 9.0]
    assert cells["trials"].tolist() == [5, 2] and cells["diverged"].tolist() == [1, 2]
    assert cells["topical"].tolist() == [4, 0]
    assert cells["class"].tolist() == ["two-stage", "diverged"]
    np.testing.assert_allclose(cells["agreement"], [3 / 5, 1])
    expected = np.quantile([0.95, 0.93, 0.91, 0.8], [0.25, 0.5, 0.75])
    found = cells.loc[0, ["theta_q25", "theta", "theta_q75"]].to_numpy(float)
    np.testing.assert_allclose(found, expected, atol=0.002)
    assert np.isnan(cells.loc[1, "theta"])
    assert "seed" not in cells and "trial_id" not in cells


def test_cells_by_chosen_settings_and_ties_to_the_earlier_class():
    scores = score(*seeds(case(*TWO_STAGE), case(ramp(0, 100), 0)), *seeds(case(0, 0), l2=1.0))
    cells = score_cells(scores, by=["optimizer", "l2"])
    assert cells.columns[:2].tolist() == ["optimizer", "l2"]
    assert cells["class"].tolist() == ["V-only", "no-learning"]
    assert cells["agreement"].tolist() == [0.5, 1]
    assert cells["theta"].isna().all()  # that of one trial does not stand for a cell without a stage 2


def test_one_seed_is_a_cell_and_no_trial_is_none():
    scores = score(case(*TWO_STAGE))
    cells = score_cells(scores)
    assert (count_cells(scores), len(score_cells(scores.iloc[:0]))) == (1, 0)
    assert cells.loc[0, ["theta", "theta_q25", "theta_q75", "agreement"]].tolist() == [1, 1, 1, 1]


def test_sensitivity_counts_what_leaves_its_class():
    values = (0.97, 0.92, 0.92, 0.85, 0.75)  # of one cell; another one never changes
    lags = [case(saturating(0, 99), saturating(99 * lag_for(x), 99)) for x in values]
    scores = score(*seeds(*lags), *seeds(*[case(0, 0)] * 5, l2=1.0))
    table = sensitivity(scores).set_index(["view", "cut"])
    assert len(table) == 9
    assert table.loc[("loss", 0.9)].tolist() == [0, 0]
    assert table.loc[("loss", 0.8)].tolist() == [0.1, 0]  # .85 joins a majority of three
    assert table.loc[("loss", 0.95)].tolist() == [0.2, 0.5]  # two leave: four of five overlap
    moved = sensitivity(scores, cuts=(0.9,), base=replace(Cuts(), two_stage=0.95))
    assert moved["trials_changed"].tolist()[0] == 0.2
