"""Scores of syntax and topics: every number by construction, and curves made to mislead."""

import numpy as np
import pandas as pd
import pytest
from support.syntax_runs import EARLY, LATE, LINES, NEVER, run_of, trial
from support.synthetic_runs import STEP, ramp

from topicjax.analysis.syntax.scores import score_syntax, syntax_cells

NOISE = np.random.default_rng(0).normal(size=len(STEP))


def scores_of(*trials, **options):
    return score_syntax(run_of(*trials, **options))


def test_half_way_steps_levels_and_theta_of_two_ramps():
    """P_syntax = t / 400 and P_topic = (t - 200) / 800 add up to 1 at t = 1000 / 3."""
    (row,) = scores_of(trial(ramp(0, 400), ramp(200, 1000))).to_dict("records")
    found = [row[f"{part}_{level}"] for part in ("syntax", "topic") for level in (20, 50, 80)]
    assert found == pytest.approx([80, 200, 320, 360, 600, 840], abs=1)
    assert row["ratio"] == pytest.approx(3, abs=0.02) and row["other_then"] == pytest.approx(0, abs=1e-3)
    assert row["theta"] == pytest.approx(5 / 6, abs=0.01)
    assert row["theta_reversed"] == pytest.approx(1 / 6, abs=0.01) and row["order"] == row["theta"]
    assert (row["max_p_syntax"], row["final_p_topic"]) == pytest.approx((1, 1))
    assert row["within_1"] == pytest.approx(0.94) and row["last_step"] == 1000


def test_the_unigram_line_is_reached_before_either_begins():
    """The loss falls by the start's excess in one record; topics are at 10 % at step 40, syntax at 20."""
    (row,) = scores_of(trial(EARLY, ramp(0, 400))).to_dict("records")
    assert row["unigram_step"] == pytest.approx(9, abs=0.6) and row["begun_step"] == pytest.approx(20, abs=1)
    assert row["topic_at_unigram"] == pytest.approx(row["unigram_step"] / 400, abs=1e-6)


@pytest.mark.parametrize(
    ("syntax", "topic", "classes"),
    [
        (EARLY, LATE, ["syntax first"] * 3),
        (LATE, EARLY, ["topics first"] * 3),
        (EARLY, EARLY, ["together"] * 3),
        (ramp(0, 400), ramp(0, 560), ["together", "syntax first", "together"]),  # ratio 1.4
        (ramp(0, 720), ramp(0, 400), ["topics first", "topics first", "together"]),  # ratio 1.8
        (EARLY, NEVER, ["syntax only"] * 3),
        (NEVER, LATE, ["topics only"] * 3),
        (NEVER, NEVER, ["neither"] * 3),
        (LATE, 0.1 * NOISE, ["syntax only"] * 3),  # noise about 0 is not progress
        (LATE, np.where(STEP == 100, 0.9, EARLY * LATE), ["together"] * 3),  # one record is an outlier
        (LATE, EARLY - ramp(200, 250), ["syntax only"] * 3),  # learned at once, and lost again
        (EARLY - 3 * (STEP < 60), LATE, ["syntax first"] * 3),  # far worse than the unigram line at first
        (1.03 * EARLY, 1.05 * LATE, ["syntax first"] * 3),  # better than the line on these documents
    ],
)
def test_classes_at_ratios_of_one_and_a_half_of_one_and_a_quarter_and_of_two(syntax, topic, classes):
    (row,) = scores_of(trial(syntax, topic)).to_dict("records")
    assert [row["class"], row["class_125"], row["class_2"]] == classes


def test_what_cannot_be_scored_has_no_class():
    broken = trial(EARLY, np.where(STEP > 500, np.nan, LATE), status="diverged")
    assert scores_of(broken)["class"].tolist() == ["diverged"]
    assert scores_of(trial(EARLY, LATE), lines=None)["class"].tolist() == ["unscored"]
    nothing = LINES | dict(held_out_topic_best=LINES["held_out_topic_unigram"] - 1e-4)
    (row,) = scores_of(trial(EARLY, LATE), lines=nothing).to_dict("records")
    assert row["class"] == "unscored" and np.isnan(row["ratio"]) and row["syntax_50"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("value", "score", "kind", "theta"),
    [
        (EARLY, LATE, "V first", 1.0),
        (LATE, EARLY, "V not first", 0.0),
        (EARLY, EARLY, "V not first", 0.5),
        (EARLY, 0.09 * LATE, "V alone", np.nan),
    ],
)
def test_v_before_scores_is_by_their_own_rises(value, score, kind, theta):
    """The unit of each curve is its own rise; what it starts with does not count."""
    head = dict(v_class=2 + 7 * value, bias_left_1=-1 + score, bias_right_1=-9.0)
    head |= dict(v_topic=0.3 * value, content_score=score)
    (row,) = scores_of(trial(LATE, LATE, [head])).to_dict("records")
    for part in ("syntax", "topic"):
        assert row[f"class_v_{part}"] == kind
        assert row[f"v_theta_{part}"] == pytest.approx(theta, abs=0.02, nan_ok=True)
        assert row[f"scores_rise_{part}"] == pytest.approx(score.max())
    half = {id(EARLY): 100, id(LATE): 600}
    assert row["v_50_syntax"] == pytest.approx(half[id(value)], abs=1)
    later = half.get(id(score), np.nan)
    assert row["scores_50_topic"] == pytest.approx(later, abs=1, nan_ok=True)


def test_v_is_not_judged_where_its_part_is_not_half_learned():
    (row,) = scores_of(trial(NEVER, LATE)).to_dict("records")
    assert row["class_v_syntax"] == "unscored" and row["class_v_topic"] == "V not first"


def test_of_several_heads_the_strongest_counts():
    """One head looks left early, another one right late, a third at content words; sums would cancel."""
    nothing = dict.fromkeys(("bias_left_1", "bias_right_1", "content_score"), -LATE)
    heads = [
        nothing | dict(bias_left_1=2 * EARLY),
        nothing | dict(bias_right_1=3 * LATE),
        nothing | dict(content_score=EARLY),
    ]
    (row,) = scores_of(trial(LATE, LATE, heads)).to_dict("records")
    assert (row["left_50"], row["right_50"]) == pytest.approx((100, 600), abs=1)
    assert row["sides_ratio"] == pytest.approx(6, abs=0.05)
    assert row["scores_rise_syntax"] == pytest.approx(3) and row["scores_rise_topic"] == pytest.approx(1)


def test_a_run_without_details_is_scored_by_its_losses():
    run = run_of(trial(EARLY, LATE))
    scores = score_syntax(run.replace(details=pd.DataFrame(columns=["trial_id", "step"])))
    assert scores["class"].tolist() == ["syntax first"]
    assert scores["class_v_syntax"].tolist() == ["unscored"]


def test_records_may_come_in_any_order_and_trials_may_end_at_different_steps():
    short = trial(ramp(0, 200, STEP[:50]), ramp(0, 400, STEP[:50]), step=STEP[:50])
    run = run_of(trial(EARLY, LATE), short)
    shuffled = run.replace(trajectories=run.trajectories.sample(frac=1, random_state=0))
    for own in (run, shuffled):
        assert score_syntax(own)["ratio"].tolist() == pytest.approx([6, 2], abs=0.05)
        assert score_syntax(own)["last_step"].tolist() == [1000, 490]


def test_cells_have_the_majority_and_the_extremes_of_their_seeds():
    made = [trial(EARLY, other, alpha=0.1, seed=n) for n, other in enumerate((LATE, EARLY, ramp(0, 600)))]
    run = run_of(*made, trial(NEVER, LATE, alpha=1.0))
    cells = syntax_cells(run, score_syntax(run))
    assert cells["class"].tolist() == ["syntax first", "topics only"]
    assert cells["side"].tolist() == ["syntax", "topics"] and cells["trials"].tolist() == [3, 1]
    assert cells["agreement"].tolist() == pytest.approx([2 / 3, 1])
    first = cells.iloc[0]
    assert [first[f"ratio{end}"] for end in ("_low", "", "_high")] == pytest.approx([1, 3, 6], abs=0.05)
