"""Loss curves and limit lines against values worked out by hand."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from support.synthetic_runs import INITIAL, STAGE1, STAGE2, STEP, case, ramp, run_of, scored

from topicjax.analysis.one_layer.loss_curves import line_ranges, loss_curves

FOUR = dict(line_uniform=4.7, line_bayes=2.9, line_uniform_se=0.0, line_bayes_se=0.01)


def panels(picture):
    return picture.figure.axes


def levels(ax):
    """The heights of the horizontal lines that cross the whole panel."""
    return [line.get_ydata()[0] for line in ax.lines if tuple(line.get_xdata()) == (0, 1)]


def segments(ax):
    found = [item for item in ax.collections if isinstance(item, LineCollection)]
    return [segment for item in found for segment in item.get_segments()]


def test_limit_lines_are_means_with_two_errors_and_the_spread_of_the_trials():
    frame = run_of(case(0, 0, lines=FOUR), case(0, 0, lines=FOUR)).trials.assign(line_bayes=np.nan)
    frame["line_stage1"], frame["line_stage1_se"] = [3.0, 3.2], [0.01, 0.05]
    lines = line_ranges(frame)
    assert list(lines) == ["uniform", "stage1", "stage2"]
    assert lines["stage1"] == pytest.approx((3.1, 2.98, 3.3))
    assert lines["stage2"] == pytest.approx((STAGE2, STAGE2, STAGE2))


def test_each_panel_has_the_lines_and_the_losses_of_its_own_setting():
    cases = [
        case(ramp(0, 100), 0, lines=FOUR),
        case(ramp(0, 300), 0, lines=FOUR | dict(line_stage1=3.3, line_stage2=3.1), p_keep=0.3),
    ]
    figure = panels(loss_curves(*scored(*cases)))
    assert len(figure) == 4  # two settings, each in full and enlarged
    titles = {ax.get_title(): ax for ax in figure if ax.get_title()}
    assert sorted(titles) == ["cross-entropy, Adam\np keep 0.1", "cross-entropy, Adam\np keep 0.3"]
    first, second = titles.values()
    assert levels(first) == [4.7, STAGE1, STAGE2, 2.9]
    assert levels(second) == [4.7, 3.3, 3.1, 2.9]
    loss = INITIAL - (INITIAL - STAGE1) * ramp(0, 300)
    for segment in segments(second):  # the loss, and the equal one with uniform attention
        np.testing.assert_allclose(segment, np.column_stack([STEP, loss]))
    assert len(segments(second)) == 2


def test_the_enlarged_panel_holds_both_stages_and_the_best_trial():
    run, scores = scored(case(ramp(0, 100), 1.5 * ramp(300, 500), lines=FOUR))
    full, near = panels(loss_curves(run, scores))
    best = STAGE1 - 1.5 * (STAGE1 - STAGE2)
    low, high = near.get_ylim()
    assert best - 0.1 < low < best < STAGE2 < STAGE1 < high < STAGE1 + 0.3
    assert full.get_ylim()[0] < 2.9 < 4.7 < full.get_ylim()[1]
    assert (near.get_ylim()[1] - low) < (full.get_ylim()[1] - full.get_ylim()[0]) / 3


def test_a_trial_far_below_stage_2_does_not_flatten_the_enlarged_panel():
    gap = STAGE1 - STAGE2
    _, near = panels(loss_curves(*scored(case(ramp(0, 100), 20 * ramp(300, 500), lines=FOUR))))
    low, high = near.get_ylim()
    assert STAGE1 - 5 * gap < low < STAGE2 < STAGE1 < high < STAGE1 + 4 * gap


def test_wild_and_lost_trials_are_counted_and_do_not_set_the_range():
    wild = case(ramp(0, 100), 0, lines=FOUR, eval_loss=np.where(STEP == 500, 1e6, 3.4))
    lost = case(ramp(0, 100), 0, lines=FOUR, status="diverged", eval_loss=np.where(STEP > 500, np.nan, 3.4))
    picture = loss_curves(*scored(*[case(ramp(0, 100), 0, lines=FOUR)] * 3, wild, lost))
    assert panels(picture)[0].get_ylim()[1] < 4.9
    assert "go above the range or become non-finite: 2." in picture.caption
    assert "Diverged (not finite at the end): 1." in picture.caption


def test_many_trials_become_a_median_and_quartiles_per_class():
    heights = np.linspace(0.8, 1, 61)
    ax = panels(loss_curves(*scored(*(case(height * ramp(0, 100), 0, lines=FOUR) for height in heights))))[0]
    median = INITIAL - (INITIAL - STAGE1) * 0.9 * ramp(0, 100)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), median)
    assert ax.lines[0].get_color() == "#009E73"  # V-only
    band = ax.collections[0].get_paths()[0].vertices
    at_end = band[band[:, 0] == STEP[-1], 1]
    assert at_end.min() == pytest.approx(INITIAL - (INITIAL - STAGE1) * 0.95)
    assert at_end.max() == pytest.approx(INITIAL - (INITIAL - STAGE1) * 0.85)


def test_a_median_of_many_trials_ends_where_fewer_than_half_are_left():
    ends = [500] * 40 + [1000] * 39
    made = [case(ramp(0, 100, STEP[end >= STEP]), 0, STEP[end >= STEP], FOUR) for end in ends]
    picture = loss_curves(*scored(*made))
    line = panels(picture)[0].lines[0]
    assert np.asarray(line.get_xdata()).max() == 500
    assert "A line ends where fewer than half" in picture.caption
    picture = loss_curves(*scored(*made[1:]))  # 39 of 78 are half
    assert np.asarray(panels(picture)[0].lines[0].get_xdata()).max() == 1000
    assert "A line ends" not in picture.caption


def test_limits_on_the_held_out_documents_are_dotted_and_their_error_is_in_the_band():
    held = dict(held_out_stage1=3.45, held_out_stage2=3.25, held_out_stage1_se=0.03, held_out_stage2_se=0.04)
    lines = FOUR | dict(line_stage1_se=0.04, line_stage2_se=0.03)
    run, scores = scored(case(ramp(0, 100), 0, lines=lines | held))
    picture = loss_curves(run, scores)
    for ax in panels(picture):
        assert levels(ax) == [4.7, STAGE1, STAGE2, 2.9, 3.45, 3.25]
    assert line_ranges(run.trials)["stage1"] == pytest.approx((STAGE1, STAGE1 - 0.1, STAGE1 + 0.1))
    assert "on the trials' own held-out documents" in picture.caption
    names = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert "limit on these held-out documents" in names
    old = loss_curves(*scored(case(ramp(0, 100), 0, lines=lines | dict.fromkeys(held, np.nan))))
    assert levels(panels(old)[0]) == [4.7, STAGE1, STAGE2, 2.9] and "held-out documents;" not in old.caption


def test_runs_without_lines_or_without_a_finite_loss_are_drawn():
    none = dict.fromkeys(("line_uniform", "line_stage1", "line_stage2", "line_bayes"), np.nan)
    none |= {f"{name}_se": np.nan for name in none}
    lost = case(0, 0, lines=none, eval_loss=np.nan, eval_loss_uniform=np.nan, status="diverged")
    picture = loss_curves(*scored(case(ramp(0, 100), 0, lines=none), lost))
    assert "Trials without limit lines: 2." in picture.caption
    assert "limits of the data" not in picture.caption
    assert levels(panels(picture)[0]) == []
    assert "become non-finite: 1." in loss_curves(*scored(lost)).caption


def test_more_settings_than_panels_are_drawn_evenly_and_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("topicjax.analysis.one_layer.loss_curves.MOST_PANELS", 3)
    run, scores = scored(
        *(case(ramp(0, 100), 0, lines=FOUR, p_keep=share) for share in np.linspace(0.1, 0.5, 5))
    )
    picture = loss_curves(run, scores)
    titles = [ax.get_title().splitlines()[-1] for ax in panels(picture) if ax.get_title()]
    assert titles == ["p keep 0.1", "p keep 0.3", "p keep 0.5"]
    assert "3 of 5 settings are drawn" in picture.caption
