"""Theta, lag and onsets of two columns of any run."""

import numpy as np
import pandas as pd
import pytest
from support.synthetic_runs import STEP, make_run, ramp

from topicjax.analysis.scores import join_flags, stages
from topicjax.errors import UserError


def modes(*pairs, **columns):
    """Return a run of these trials, each with two curves; its records are not sorted."""
    names = [f"{place:03}" for place in range(len(pairs))]
    trials = pd.DataFrame(dict(trial_id=names, status="ok", depth=range(1, len(pairs) + 1), final_loss=0.0))
    tables = [
        pd.DataFrame(dict(trial_id=name, step=STEP, loss=1.0, mode_1=pair[0], mode_2=pair[1]))
        for name, pair in zip(names, pairs, strict=True)
    ]
    return make_run(trials.assign(**columns), pd.concat(tables).sample(frac=1, random_state=0))


def test_one_row_per_trial_with_its_settings_and_scores():
    run = modes((ramp(0, 100), ramp(400, 600)), (ramp(400, 600), ramp(0, 100)), (ramp(0, 100), ramp(50, 150)))
    scores = stages(run, first="mode_1", second="mode_2")
    assert scores.columns.tolist() == [
        *("trial_id", "depth", "theta", "theta_reversed", "log_lag"),
        *("onset_first", "onset_second", "max_first", "max_second"),
    ]
    assert scores["trial_id"].tolist() == ["000", "001", "002"] and scores["depth"].tolist() == [1, 2, 3]
    np.testing.assert_allclose(scores["theta"], [1, 0, 0.75], atol=1e-12)
    np.testing.assert_allclose(scores["onset_first"], [50, 500, 50])
    np.testing.assert_allclose(scores["onset_second"], [500, 50, 100])
    assert scores["log_lag"][0] == -scores["log_lag"][1] > 0
    assert (scores[["max_first", "max_second"]] == 1).all(axis=None)


def test_curves_without_a_unit_are_divided_by_their_own_rise():
    curve = 7 + 30 * ramp(0, 100)
    run = modes((curve, -2 + 0.1 * ramp(400, 600)), (np.where(STEP > 500, np.nan, curve), curve))
    scores = stages(run, "mode_1", "mode_2", unit="own maximum")
    assert scores["theta"][0] == pytest.approx(1) and scores["max_second"][0] == pytest.approx(1)
    assert scores["onset_second"][0] == pytest.approx(500)
    assert scores.loc[1, ["theta", "log_lag", "onset_first", "max_first"]].isna().all()
    assert scores["onset_second"][1] == pytest.approx(50)


def test_a_rare_column_is_scored_on_the_records_at_which_it_was_measured():
    rare = np.where(np.arange(len(STEP)) % 2 == 0, ramp(400, 600), np.nan)
    run = modes((ramp(0, 100), rare))
    trials = run.trials.assign(record_every=int(STEP[1]), rare_every=2)
    scores = stages(run.replace(trials=trials, setting_names=["record_every"]), "mode_1", "mode_2")
    assert scores["onset_second"][0] == pytest.approx(500) and scores["theta"][0] == pytest.approx(1)
    usual = stages(run.replace(trials=trials.assign(rare_every=1)), "mode_1", "mode_2")
    assert usual["theta"].isna().all()  # then a missing value is one


def test_the_level_of_an_onset_can_be_chosen():
    scores = stages(modes((ramp(0, 100), ramp(0, 200))), "mode_1", "mode_2", level=0.25)
    assert (scores["onset_first"][0], scores["onset_second"][0]) == pytest.approx((25, 50))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (dict(first="mode1", second="mode_2"), "unknown column 'mode1'; did you mean 'mode_1'"),
        (dict(first="mode_1", second="step"), "unknown column 'step'"),
        (dict(first="mode_1", second="mode_2", unit="max"), "unknown unit 'max'"),
        (dict(first="mode_1", second="mode_2", level=1.0), "level is 1.0; allowed: above 0 and below 1"),
    ],
)
def test_what_cannot_be_scored_is_refused(asked, words):
    with pytest.raises(UserError, match=words):
        stages(modes((ramp(0, 100), ramp(0, 100))), **asked)


def test_flags_are_joined_by_name():
    flags = dict(a=np.array([True, False, True]), b=np.array([True, False, True]))
    assert join_flags(flags, np.array([True, True, False])).tolist() == ["a,b", "", ""]
