"""The rule that picks the trials that stand for a run."""

from dataclasses import replace

import numpy as np
import pytest
from support.synthetic_runs import TWO_STAGE, case, ramp, score

from topicjax.analysis.one_layer.example_trials import MOVED, SHIFTS, clearness, example_trials
from topicjax.analysis.one_layer.scores import classify
from topicjax.theory.progress import CUTS

V_ONLY = ramp(0, 100), 0.0
NEARLY_MOVED = ramp(0, 100), 0.06 * ramp(400, 600)  # a_topic is 0.09: it counts from 0.1 on
LATE = ramp(0, 500), ramp(300, 900)  # V leads: Theta is 9/11
BARELY_TOPICAL = dict(a_topic=0.52 * ramp(400, 600))


def test_a_class_is_shown_by_the_trial_farthest_from_the_cuts_that_would_change_it():
    scores = score(case(*NEARLY_MOVED), case(*V_ONLY), case(*TWO_STAGE, **BARELY_TOPICAL), case(*TWO_STAGE))
    assert scores["class"].tolist() == ["V-only", "V-only", "two-stage", "two-stage"]
    assert example_trials(scores, 2) == ["003", "001"]
    assert example_trials(scores) == ["003", "001", "002", "000"]


def test_clearness_is_what_moving_each_cut_by_hand_gives():
    scores = score(case(*NEARLY_MOVED), case(*LATE), case(*TWO_STAGE, **BARELY_TOPICAL), case(*TWO_STAGE))
    margin, held = clearness(scores)
    for place, before in enumerate(scores["class"]):
        row, survived = scores.iloc[[place]], []
        for name in MOVED:
            for end in (0, 1):
                shift = 1
                while shift < SHIFTS:
                    cut = getattr(CUTS, name) * (1 - shift / SHIFTS) + end * shift / SHIFTS
                    if classify(row, "loss", replace(CUTS, **{name: cut}))[0] != before:
                        break
                    shift += 1
                survived.append(shift - 1)
        assert margin[place] == pytest.approx(min(survived) / SHIFTS)
        assert held[place] == sum(survived)
    assert margin[2] == 0  # 0.52 is topical, with a cut a tenth nearer to 1 (0.55) it is not
    assert margin[3] == 0.9


def test_suffixes_and_flags_come_before_clearness():
    scores = score(*[case(*TWO_STAGE)] * 2, case(*TWO_STAGE, **BARELY_TOPICAL))
    assert example_trials(scores, 3) == ["000", "001", "002"]
    assert example_trials(scores.assign(suffix=["then lost", "", ""]), 3) == ["001", "002", "000"]
    flags = ["censored_attention", "", ""]
    assert example_trials(scores.assign(flags=flags), 3) == ["001", "002", "000"]
    assert example_trials(scores.assign(flags=["a", "a,b", ""]), 3) == ["002", "000", "001"]


def test_two_stage_comes_first_then_the_most_frequent_and_failures_last():
    bad = dict(eval_loss=np.nan, status="diverged")
    scores = score(*[case(*V_ONLY, **bad)] * 3, *[case(*V_ONLY)] * 2, case(*LATE), case(*TWO_STAGE))
    assert scores["class"].iloc[example_order(scores)].tolist() == [
        *("two-stage", "V-only", "V leads", "diverged"),
        *("V-only", "diverged", "diverged"),
    ]


def example_order(scores):
    return [scores["trial_id"].tolist().index(trial_id) for trial_id in example_trials(scores, len(scores))]


def test_of_equally_clear_trials_those_are_shown_on_which_norms_disagree_but_of_two_stage_agree():
    scores = score(case(*V_ONLY), case(*V_ONLY), case(*TWO_STAGE), case(*TWO_STAGE))
    scores = scores.assign(class_norm=["V-only", "two-stage", "simultaneous", "two-stage"])
    assert example_trials(scores, 2) == ["003", "001"]


def test_further_rounds_of_examples_show_other_optimizers_first():
    scores = score(*(case(*V_ONLY, optimizer=name) for name in ("adam", "adam", "sgd", "adam")))
    assert example_trials(scores, 3) == ["000", "002", "001"]


def test_examples_do_not_depend_on_the_order_of_the_rows():
    scores = score(*[case(*TWO_STAGE), case(*LATE), case(*V_ONLY), case(*NEARLY_MOVED)] * 3)
    assert example_trials(scores) == example_trials(scores.sample(frac=1, random_state=1))
