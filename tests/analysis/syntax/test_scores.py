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
        (NEVER, LATE, ["topics only", "topics only", "undecided"]),
        (NEVER, NEVER, ["neither"] * 3),
        (EARLY, 0.1 * NOISE, ["syntax only"] * 3),  # noise about 0 is not progress
        (LATE, np.where(STEP == 100, 0.9, EARLY * LATE), ["together"] * 3),  # one record is an outlier
        (LATE, EARLY - ramp(200, 250), ["topics first"] * 3),  # learned at once, and lost again
        # Half way at 600, or 750, of 1000 steps: the other may still follow within a factor 2, or 1.5.
        (LATE, NEVER, ["syntax only", "syntax only", "undecided"]),
        (NEVER, ramp(500, 1000), ["undecided", "topics only", "undecided"]),
        (ramp(880, 960), NEVER, ["undecided"] * 3),
        (EARLY - 3 * (STEP < 60), LATE, ["syntax first"] * 3),  # far worse than the unigram line at first
        (1.03 * EARLY, 1.05 * LATE, ["syntax first"] * 3),  # better than the line on these documents
    ],
)
def test_classes_at_ratios_of_one_and_a_half_of_one_and_a_quarter_and_of_two(syntax, topic, classes):
    (row,) = scores_of(trial(syntax, topic)).to_dict("records")
    assert [row["class"], row["class_125"], row["class_2"]] == classes


def test_only_the_way_up_is_scored_and_what_is_lost_later_is_named():
    lost = EARLY - ramp(250, 300)
    kept, both, half = scores_of(
        trial(LATE, lost), trial(lost, lost), trial(LATE, EARLY - 0.4 * ramp(500, 600))
    ).to_dict("records")
    names = ("theta", "theta_reversed", "log_lag", "topic_20", "topic_50", "topic_80", "ratio", "other_then")
    (never_lost,) = scores_of(trial(LATE, EARLY)).to_dict("records")
    for own in (kept, half):
        assert [own[name] for name in names] == pytest.approx([never_lost[name] for name in names])
    assert [row["then_lost"] for row in (never_lost, kept, both, half)] == ["", "topics", "both", ""]
    assert (kept["max_p_topic"], kept["final_p_topic"]) == pytest.approx((1, 0))
    run = run_of(trial(LATE, lost, seed=0), trial(LATE, EARLY, seed=1))
    assert syntax_cells(run, score_syntax(run))["then_lost"].tolist() == [1]


@pytest.mark.parametrize(
    ("uniform", "trained", "kind", "theta", "gain"),
    [
        (0.5 * EARLY, 0.5 * EARLY + 0.5 * LATE, "V first", 1.0, 0.5),
        (0.5 * EARLY, EARLY, "V not first", 0.5, 0.5),
        # What is left without attention falls once the model relies on attention.
        (0.5 * EARLY - 0.4 * LATE, 0.5 * EARLY + 0.5 * LATE, "V first", 1.0, 0.9),
        (0.05 * EARLY, LATE, "V not first", np.nan, 0.95),  # nothing is left with uniform attention
        (EARLY, EARLY + 0.05 * LATE, "V alone", None, 0.05),
        (-3 * LATE, LATE, "V not first", None, 1.0),  # far worse than the unigram line: not progress
        (0.5 * NEVER, NEVER, "unscored", None, None),
    ],
)
def test_v_before_attention_by_losses(uniform, trained, kind, theta, gain):
    row, records, details = trial(trained, trained, rare_every=5)
    is_rare = np.arange(len(STEP)) % 5 == 0
    records["eval_topic_uniform"] = np.where(is_rare, 1.0 - 0.6 * uniform, np.nan)
    records["eval_class_uniform"] = np.where(is_rare, 1.4 - uniform, np.nan)
    (row,) = scores_of((row, records, details)).to_dict("records")
    for part in ("syntax", "topic"):
        assert row[f"class_loss_{part}"] == kind
        if gain is not None:
            assert row[f"loss_gain_{part}"] == pytest.approx(gain, abs=1e-6)
        if theta is not None:
            assert row[f"loss_theta_{part}"] == pytest.approx(theta, abs=0.02, nan_ok=True)
    if kind == "V first":
        assert (row["loss_v_50_topic"], row["loss_gain_50_topic"]) == pytest.approx((100, 600), abs=5)


def test_the_loss_passes_lines_and_waits_at_them():
    """It falls to 4 and stays until 300, falls to 3.7 by 400 and stays until 800, and falls to 3.5 by 900."""
    lines = LINES | dict(
        held_out_unigram=4.0, held_out_within_1=3.7, held_out_within_2=3.6, held_out_both=3.5
    )
    row, records, details = trial(EARLY, EARLY)
    records["eval_loss"] = 5 - ramp(0, 100) - 0.3 * ramp(300, 400) - 0.2 * ramp(800, 900)
    (row,) = scores_of((row, records, details), lines=lines).to_dict("records")
    assert row["passed_within_2"] == pytest.approx(850, abs=1)
    assert row["wait_unigram"] == pytest.approx(310 / 90, rel=0.01)  # 4.1 at 90, 3.97 at 310
    assert row["wait_within_1"] == pytest.approx(805 / 390, rel=0.01)  # 3.73 at 390, 3.69 at 805
    assert row["wait_within_2"] == pytest.approx(855 / 845, rel=0.01)


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
