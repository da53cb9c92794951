"""How many two-stage trials still are with twice as many steps, where that is known by construction."""

from typing import Any

import numpy as np
import pytest
from support.synthetic_runs import STEP, TWO_STAGE, case, ramp, run_of

from topicjax.analysis.one_layer.page import TABLES
from topicjax.analysis.one_layer.scores import score_trials
from topicjax.analysis.one_layer.stability import cut_at, longest_steps, stability

EARLY = (ramp(0, 60), ramp(120, 200))
LOST = np.where(STEP > 600, np.nan, case(*EARLY)[1]["eval_loss"])
# V gives back most of what it had, and attention more than makes up for it: V is no longer first
UNDONE = (0.95 * ramp(0, 60) - 0.65 * ramp(260, 300), 0.6 * ramp(120, 200) + 7.4 * ramp(260, 300))


def short(end: int, **changed: Any):
    step = STEP[end >= STEP]
    return case(ramp(0, 60, step), ramp(120, 200, step), step, **changed)


CASES = [
    case(*EARLY, stop_reason="steps"),
    case(*EARLY, stop_reason="steps"),
    case(ramp(0, 60), ramp(300, 400), stop_reason="steps"),  # V-only at 250
    case(*EARLY, eval_loss=LOST, status="diverged", diverged_step=610, stop_reason="steps"),
    case(*UNDONE, stop_reason="steps"),
    short(300, stop_reason="decided", stopped_step=300),
    short(300, stop_reason="steps"),  # all it was asked for: nothing is known of 500
    case(0, 0, stop_reason="steps"),
]


def test_the_share_that_stays_two_stage_is_known_by_construction():
    table = stability(run_of(*CASES), (250, 500)).set_index(["view", "steps"])
    columns = ["two_stage", "ended", "still_two_stage", "still_share"]
    assert table.loc[("loss", 250), columns].tolist() == [5, 0, 4, 0.8]  # one is undone by 500
    assert table.loc[("loss", 500), columns].tolist() == [5, 1, 4, 0.8]  # one diverges at 610
    assert sorted(set(table.index.get_level_values("view"))) == ["loss", "norm", "order"]
    assert table.loc[("norm", 500), "still_two_stage"] == 4


def test_a_run_cut_at_a_step_is_scored_as_if_it_had_ended_there():
    run = run_of(*CASES)
    classes = score_trials(cut_at(run, 250))["class"].tolist()
    assert classes == [*["two-stage"] * 2, "V-only", *["two-stage"] * 4, "no-learning"]
    assert score_trials(run)["class"].tolist()[3] == "diverged"
    whole = score_trials(cut_at(run, 1000))
    assert whole["class"].tolist() == score_trials(run)["class"].tolist()
    assert run.trials["status"].tolist()[3] == "diverged"  # the run itself is left alone


def test_no_two_stage_trial_has_no_share():
    table = stability(run_of(case(0, 0)), (250,))
    assert table["two_stage"].tolist() == [0, 0, 0] and table["still_share"].isna().all()


@pytest.mark.parametrize(
    ("made", "longest"),
    [
        ([case(*TWO_STAGE), short(300)], 1000),
        ([short(300), short(700, stop_reason="decided")], 300),
        ([case(0, 0, STEP[::10])], 0),  # eleven records
    ],
)
def test_the_table_is_shown_if_trials_can_be_cut(made: list, longest: int):
    run = run_of(*made)
    scores = score_trials(run)
    assert longest_steps(run) == longest
    (entry,) = (entry for entry in TABLES if entry.name == "stability")
    assert entry.fits(run, scores) == (longest > 0)
    if longest:
        table = entry.make(run, scores)
        assert table["steps"].tolist() == [longest // 4, longest // 2] * 3
