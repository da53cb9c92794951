"""The rule that picks the trials that stand for a run."""

import numpy as np
import pandas as pd

from topicjax.analysis.scoring.example_trials import example_trials


def scores_of(*rows):
    """Scores of trials named a, b, c ... from (class, class of the norms, Theta)."""
    columns = ["class", "class_norm", "theta"]
    frame = pd.DataFrame([row[:3] for row in rows], columns=columns)
    frame["suffix"] = ""
    frame["flags"] = [row[3] if len(row) > 3 else "" for row in rows]
    frame["optimizer"] = [row[4] if len(row) > 4 else "adam" for row in rows]
    names = list("abcdefghijklmnop")[: len(rows)]
    return frame.assign(trial_id=names, objective="squared", key_visibility="all")


def test_examples_take_each_class_by_frequency_at_its_median_theta():
    rows = [("V-only", "V-only", 0.9), ("V-only", "V-only", 0.94), ("V-only", "V-only", 0.99)]
    rows += [("simultaneous", "simultaneous", 0.4), ("diverged", "diverged", np.nan)] + [
        ("diverged", "diverged", np.nan)
    ]
    assert example_trials(scores_of(*rows), 2) == ["b", "d"]
    assert example_trials(scores_of(*rows), 3) == ["b", "d", "e"]  # diverged last, though there are two
    assert sorted(example_trials(scores_of(*rows), 10)) == list("abcdef")


def test_examples_prefer_views_that_disagree_but_a_two_stage_trial_that_both_call_so():
    rows = [("V-only", "V-only", 0.95), ("V-only", "two-stage", 0.99), ("V-only", "V-only", 0.95)]
    rows += [("two-stage", "simultaneous", 0.95), ("two-stage", "two-stage", 0.99)]
    assert example_trials(scores_of(*rows), 2) == [
        "e",
        "b",
    ]  # not the most frequent first
    rows[1] += ("attention_recedes",)
    assert example_trials(scores_of(*rows), 2) == ["e", "a"]


def test_further_rounds_of_examples_show_other_optimizers_first():
    rows = [("V-only", "V-only", 0.95, "", name) for name in ("adam", "adam", "sgd", "adam")]
    assert example_trials(scores_of(*rows), 3) == ["a", "c", "b"]


def test_examples_do_not_depend_on_the_order_of_the_rows():
    rng = np.random.default_rng(0)
    kinds = ("two-stage", "V-only", "V leads")
    rows = [(*rng.choice(kinds, 2), score) for score in rng.uniform(size=16)]
    frame = scores_of(*rows)
    assert example_trials(frame) == example_trials(frame.sample(frac=1, random_state=1))
