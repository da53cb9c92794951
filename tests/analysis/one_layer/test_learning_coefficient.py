"""The claim about the local learning coefficient, on synthetic runs."""

import numpy as np
import pytest
from support.synthetic_runs import STEP, TWO_STAGE, case, run_of

from topicjax.analysis.one_layer.learning_coefficient import CLAIM, coefficient_table
from topicjax.analysis.one_layer.page import PAGE
from topicjax.analysis.page.claims import evidence

AT = (0, 10, 250, 300, 700, 1000)  # before stage 1, on the plateau, after stage 2: steps of snapshots


def judged(*heights: tuple[float, float, float], virial: float = 0.9, **columns: float):
    """Judge two-stage trials with these coefficients at the three places."""
    run = run_of(*(case(*TWO_STAGE, seed=seed) for seed in range(len(heights))))
    llc = np.full((len(heights), len(STEP)), np.nan)
    llc[:, np.isin(STEP, AT)] = np.repeat(heights, 2, axis=1)
    columns = dict(llc_se=1.0, llc_below=0.1, llc_virial=virial) | columns
    run = run.replace(trajectories=run.trajectories.assign(llc=llc.ravel(), **columns))
    scores = PAGE.score(run)
    return run, scores, CLAIM.check(run, scores)


@pytest.mark.parametrize(
    ("heights", "verdict", "said"),
    [
        (
            [(0, 50, 60), (0, 52, 70)],
            "holds",
            "51.0 on the plateau and 65.0 after stage 2 (medians over trials); it",
        ),
        ([(0, 50, 60), (0, 52, 53)], "partly", "in 1 of 2 trials"),
        ([(0, 50, 40), (0, 52, 53)], "fails", "in 0 of 2 trials"),
    ],
)
def test_the_verdict_follows_the_rise_of_each_trial(heights, verdict, said):
    run, scores, found = judged(*heights)
    assert found.verdict == verdict and said in found.sentence
    table = coefficient_table(run, scores)
    assert table["place"].tolist() == ["before stage 1", "plateau", "after stage 2"]
    assert table["snapshots"].tolist() == [4, 4, 4] and table["trials"].tolist() == [2, 2, 2]
    assert table["llc"].tolist() == np.median(heights, axis=0).tolist()


def test_snapshots_that_are_no_minimum_are_left_out():
    below = np.where(STEP == 250, 0.9, 0.1)
    run, scores, found = judged((0, 50, 60), llc_below=below)
    assert coefficient_table(run, scores)["snapshots"].tolist() == [2, 1, 2]
    assert found.verdict == "holds"


def test_chains_that_have_not_spread_decide_nothing():
    assert judged((0, 50, 60), virial=0.5)[-1].verdict == "undecided"


def test_without_measured_snapshots_it_says_what_to_type():
    run = run_of(case(*TWO_STAGE))
    scores = PAGE.score(run)
    found = CLAIM.check(run, scores)
    assert found.verdict == "undecided" and "topicjax measure" in found.change
    assert evidence(CLAIM, PAGE) == ("table", "coefficients")
    early = run.replace(trajectories=run.trajectories.assign(llc=np.where(STEP < 300, 1.0, np.nan)))
    early.trajectories[["llc_se", "llc_below", "llc_virial"]] = 0.5
    assert CLAIM.check(early, scores).sentence == "No trial has snapshots on the plateau and after stage 2."
