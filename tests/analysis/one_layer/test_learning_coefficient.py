"""The claim about the local learning coefficient, on synthetic runs."""

import numpy as np
import pytest
from support.synthetic_runs import STEP, TWO_STAGE, case, run_of

from topicjax.analysis.one_layer.learning_coefficient import CLAIM, coefficient_table, compared
from topicjax.analysis.one_layer.page import PAGE
from topicjax.analysis.page.claims import evidence

AT = (0, 10, 250, 300, 700, 1000)  # before stage 1, on the plateau, end of stage 2, later
LOW = 0.01  # share of draws below the loss of a minimum


def judged(
    *heights: tuple[float, float, float, float],
    control: float | None = 40.0,
    below: float = LOW,
    virial: float = 0.9,
    shift: int = 0,
):
    """Judge two-stage trials with these coefficients at the four places, and a control for each.

    `below` is that of the plateau.  The seeds of the controls are moved by `shift`.
    """
    seeds = range(len(heights))
    cases = [case(*TWO_STAGE, seed=seed) for seed in seeds]
    if control is not None:
        cases += [case(TWO_STAGE[0], 0.0, seed=seed + shift, attention="uniform") for seed in seeds]
    at = np.isin(STEP, AT)
    llc, share = np.full((2, len(cases), len(STEP)), np.nan)
    for row, own in enumerate(heights):
        llc[row, at] = np.repeat(own, (2, 2, 1, 1))
    if control is not None:  # it goes on rising: only the same step is compared
        llc[len(heights) :, at] = control + 50.0 * (np.array(AT) - 700) / 300
    share[:, at] = LOW
    share[: len(heights), np.isin(STEP, AT[2:4])] = below
    run = run_of(*cases)
    columns = dict(llc=llc.ravel(), llc_below=share.ravel(), llc_se=1.0, llc_virial=virial)
    run = run.replace(trajectories=run.trajectories.assign(**columns))
    scores = PAGE.score(run)
    return run, scores, CLAIM.check(run, scores)


@pytest.mark.parametrize(
    ("heights", "control", "verdict", "said"),
    [
        (
            [(0, 50, 60, 90), (0, 52, 70, 100)],
            40,
            "holds",
            "51.0 on the plateau and 65.0 at the end of stage 2 (medians over trials); it rises by more than "
            "3 standard errors in 2 of 2 trials.",
        ),
        ([(0, 50, 60, 90), (0, 52, 53, 90)], 40, "partly", "in 1 of 2 trials"),
        ([(0, 50, 40, 90), (0, 52, 53, 90)], 40, "fails", "in 0 of 2 trials"),  # the later rise is no step
        (
            [(0, 50, 60, 90), (0, 52, 70, 100)],
            58,
            "partly",
            "is 58.0 at the same step; the end of stage 2 is",
        ),
        ([(0, 50, 60, 90), (0, 52, 70, 100)], 68, "undecided", "in 0 of 2 trials. On the plateau 1% of"),
    ],
)
def test_the_verdict_follows_the_rise_of_each_trial_and_its_control(heights, control, verdict, said):
    run, scores, found = judged(*heights, control=control)
    assert found.verdict == verdict and said in found.sentence
    assert f"Later the coefficient goes to {np.median([own[3] for own in heights]):.1f}." in found.sentence
    table = coefficient_table(run, scores)
    own = table[table["attention"] == "trained"]
    assert own["place"].tolist() == ["before stage 1", "plateau", "end of stage 2", "later"]
    assert own["snapshots"].tolist() == [4, 4, 2, 2] and own["trials"].tolist() == [2] * 4
    assert own["llc"].tolist() == np.median(heights, axis=0).tolist()
    assert table.loc[table["attention"] == "uniform", "place"].tolist() == ["before stage 1", "plateau"]


def test_differences_are_in_standard_errors():
    """Two snapshots on the plateau halve its variance; errors are 1 each."""
    table = compared(*judged((0, 50, 60, 90), control=57)[:2])
    assert table["rise"].tolist() == pytest.approx([10 / 1.5**0.5])
    assert table["above"].tolist() == pytest.approx([3 / 2**0.5])


def test_a_plateau_that_is_a_saddle_decides_nothing():
    found = judged((0, 50, 60, 90), below=0.25)[-1]
    assert found.verdict == "undecided"
    assert "25% of the draws lie below the snapshot's loss (1% in the control): it is a" in found.sentence
    assert judged((0, 50, 60, 90), below=0.04)[-1].verdict == "holds"


@pytest.mark.parametrize("changed", [dict(control=None), dict(shift=5)], ids=["none", "of other seeds"])
def test_without_a_control_a_rise_decides_nothing(changed):
    found = judged((0, 50, 60, 90), (0, 50, 60, 90), **changed)[-1]
    assert found.verdict == "undecided" and "There is no control" in found.sentence


def test_snapshots_far_from_a_minimum_are_left_out():
    run, scores, _ = judged((0, 50, 60, 90), below=0.9)
    table = coefficient_table(run, scores)
    assert table.loc[table["attention"] == "trained", "place"].tolist() == [
        "before stage 1",
        "end of stage 2",
        "later",
    ]
    assert CLAIM.check(run, scores).sentence == "No trial has snapshots on the plateau and after stage 2."


def test_chains_that_have_not_spread_decide_nothing():
    assert judged((0, 50, 60, 90), virial=0.5)[-1].verdict == "undecided"


def test_without_measured_snapshots_it_says_what_to_type():
    run = run_of(case(*TWO_STAGE))
    scores = PAGE.score(run)
    found = CLAIM.check(run, scores)
    assert found.verdict == "undecided" and "topicjax measure" in found.change
    assert evidence(CLAIM, PAGE) == ("table", "coefficients")
    early = run.replace(trajectories=run.trajectories.assign(llc=np.where(STEP < 300, 1.0, np.nan)))
    early.trajectories[["llc_se", "llc_below", "llc_virial"]] = 0.5
    assert CLAIM.check(early, scores).sentence == "No trial has snapshots on the plateau and after stage 2."
