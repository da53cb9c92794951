"""Figure 4 and its bands against values worked out by hand."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.synthetic_runs import STEP, case, ramp, run_of, saturating, scored

from topicjax.analysis.one_layer.scores import stages_of
from topicjax.analysis.one_layer.trajectories import (
    drawable,
    figure4,
    mark,
    norm_bands,
    rotation,
    trajectory_panels,
)
from topicjax.errors import UserError
from topicjax.store.files import StoreError
from topicjax.theory.theorems import theorem2_entries


def lines_of(ax):
    """The curves of a panel by their label."""
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def draw_one(*arguments, **changed):
    axes = list(Figure().subplots(3))
    return trajectory_panels(*scored(case(*arguments, **changed)), "000", axes)


def test_norms_are_shares_of_their_own_maxima_which_are_written_below():
    norms, _, _ = draw_one(ramp(0, 100), ramp(400, 600))  # norm_v = .1 + 150 P, norm_k = .1 + 30 Q
    lines = lines_of(norms)
    np.testing.assert_allclose(lines[r"$\|W^V\|_F$"].get_ydata(), (0.1 + 150 * ramp(0, 100)) / 150.1)
    np.testing.assert_allclose(lines[r"$\|W^K\|_F$"].get_ydata(), (0.1 + 30 * ramp(400, 600)) / 30.1)
    assert norms.get_xlabel() == "max V 150, K 30.1, Q 30.1"
    assert r"$\|W^E\|_F$" not in lines


def test_v_block_is_one_where_the_squared_loss_has_theorem_2s_values():
    _, different, same = theorem2_entries(10, 10, 0.15, 0.1, 0.1)
    changed = dict(v_block=(same - different) * ramp(0, 100), objective="squared")
    _, order, _ = draw_one(ramp(0, 100), 0, **changed)
    np.testing.assert_allclose(lines_of(order)["V: same - other topic"].get_ydata(), ramp(0, 100))
    _, order, _ = draw_one(ramp(0, 100), 0)  # cross-entropy: as measured, 5 P
    np.testing.assert_allclose(lines_of(order)["V: same - other topic"].get_ydata(), 5 * ramp(0, 100))


def test_own_word_and_mask_are_drawn_only_where_they_matter():
    small = dict(v_diag=1.0 * ramp(0, 100), a_self=0.2 * ramp(0, 100))  # of 5 and of 1.5
    large = dict(v_diag=1.5 * ramp(0, 100), a_self=0.5 * ramp(0, 100))
    topical = ["V: same - other topic", "attention: same - other topic"]
    marks = ["stage boundary", "onset of V (half way)", "onset of attention (half way)"]
    own = ["V: own word - same topic", "attention: own word - same topic"]
    assert list(lines_of(draw_one(ramp(0, 100), ramp(400, 600), **small)[1])) == topical + marks
    assert list(lines_of(draw_one(ramp(0, 100), ramp(400, 600), **large)[1])) == topical + own + marks
    run = run_of(case(1, 0, key_visibility="all"), case(1, 0, key_visibility="unmasked"))
    run.trajectories["a_mask"] = 7.0
    found = drawable(run).groupby("trial_id")["a_mask"].max()
    assert found["000"] == 7
    assert np.isnan(found["001"])  # [MASK] is no key there


def test_stage_marks_are_at_the_same_steps_in_all_panels():
    for ax in draw_one(ramp(0, 100), ramp(50, 150)):
        lines = lines_of(ax)
        assert lines["stage boundary"].get_xdata()[0] == pytest.approx(75)
        assert lines["onset of V (half way)"].get_xdata()[0] == pytest.approx(50)
        assert lines["onset of attention (half way)"].get_xdata()[0] == pytest.approx(100)
    assert lines["Θ"].get_ydata() == pytest.approx([0.75])
    drawn = lines["progress of V"].get_ydata()[STEP <= 150]  # attention has gained all
    np.testing.assert_allclose(drawn, ramp(0, 100)[STEP <= 150], atol=1e-12)
    assert np.isnan(lines["progress of V"].get_ydata()[STEP > 150]).all()


def test_frozen_parts_are_not_drawn():
    norms, order, progress = draw_one(ramp(0, 100), 0, attention="uniform")
    assert list(lines_of(norms)) == [r"$\|W^V\|_F$", "onset of V (half way)"]
    assert list(lines_of(order)) == ["V: same - other topic", "onset of V (half way)"]
    assert list(lines_of(progress)) == ["progress of V", "onset of V (half way)"]


def test_a_last_jump_does_not_flatten_the_order_parameters():
    jump = np.where(STEP > 990, 500.0, 1.0)
    _, order, _ = draw_one(ramp(0, 100), ramp(400, 600), a_self=jump)
    assert 5 < order.get_ylim()[1] < 6  # v_block ends at 5


def test_a_diverged_trial_says_so_instead_of_progress():
    lost = np.where(STEP > 300, np.inf, 4.0)
    *_, progress = draw_one(ramp(0, 100), 0, eval_loss=lost, norm_v=lost, status="diverged")
    assert [text.get_text() for text in progress.texts] == ["diverged: no score"]


def test_figure_4_gives_class_settings_and_trials():
    cases = [case(ramp(0, 100), ramp(400, 600), learning_rate=3.0, seed=7), case(ramp(0, 100), 0.0)]
    picture = figure4(*scored(*cases), ["000"])
    first = picture.figure.axes[0]
    lines = first.get_title().splitlines()
    assert lines[0] == "two-stage, Θ 1.00"
    assert ", ".join(lines[1:]).split(", ")[-3:] == ["η 3", "init scale 0.001", "seed 7"]
    assert first.get_xlabel().startswith("by norms: two-stage\nmax V 150")
    assert "Of 2 trials, row by row: 000." in picture.caption
    assert "chosen by rule" not in picture.caption
    assert "chosen by rule" in figure4(*scored(*cases)).caption


def test_what_has_no_room_in_the_title_is_in_the_caption():
    changed = dict(p_keep=0.2, p_random=0.3, l2=0.5, alpha=0.7, topics=9, words_per_topic=8, seed=3)
    cases = [case(ramp(0, 100), 0.0), case(ramp(0, 100), 0.0, **changed), *[case(ramp(0, 100), 0.0)] * 2]
    picture = figure4(*scored(*cases), ["001", "000", "002", "003"])
    title = picture.figure.axes[0].get_title()
    assert title.count("\n") == 3
    for text in ("p keep 0.2", "p random 0.3", "L2 0.5", "alpha 0.7", "topics 9", "seed 3"):
        assert (text in title) != (text in picture.caption.split("000")[0]), text


def test_the_caption_tells_frozen_parts_and_jumps_that_are_cut():
    def caption(**changed):
        return figure4(*scored(case(ramp(0, 100), ramp(400, 600), **changed))).caption

    assert "Frozen parts" not in caption() and "cut off" not in caption()
    assert "Frozen parts have no lines." in caption(attention="uniform")
    assert "is cut off" in caption(a_self=np.where(STEP > 990, 500.0, 1.0))


def test_bands_are_medians_and_quartiles_over_the_seeds_of_a_cell():
    heights = [1.0, 2.0, 4.0, 8.0]
    cases = [case(1, 0, v_block=x * ramp(0, 100), seed=seed) for seed, x in enumerate(heights)]
    cases += [case(1, 0, v_block=0.0, learning_rate=5.0)]
    picture = norm_bands(*scored(*cases))
    assert [ax.get_title() for ax in picture.figure.axes[:2]] == ["unscored\nη 0.01", "unscored\nη 5"]
    order = picture.figure.axes[2]  # axes run along rows: two norms, then two order panels
    np.testing.assert_allclose(lines_of(order)["V: same - other topic"].get_ydata(), 3 * ramp(0, 100))
    band = order.collections[0].get_paths()[0].vertices
    at_end = band[band[:, 0] == STEP[-1], 1]
    assert (at_end.min(), at_end.max()) == pytest.approx(tuple(np.quantile(heights, [0.25, 0.75])))
    assert "quartiles over seed, 1 to 4 trials each." in picture.caption


def test_of_many_cells_six_are_drawn_and_pooled_settings_are_named():
    cases = [case(ramp(0, 100), ramp(0, 50 * n), learning_rate=n, seed=n % 2) for n in range(1, 9)]
    run, scores = scored(*cases)
    picture = norm_bands(run, scores)
    assert "Shown: 6 of 8 settings" in picture.caption
    assert len(picture.figure.axes) == 12
    pooled = norm_bands(run, scores, by=[])
    assert "quartiles over seed, learning rate, 8 trials each." in pooled.caption
    assert pooled.figure.axes[0].get_title() == "simultaneous\ncross-entropy, Adam"


def ending(*ends: int, **changed):
    """Trials of one cell that end at these steps; the k-th has V blocks of height k + 1 throughout."""
    cases = []
    for place, end in enumerate(ends):
        step = STEP[end >= STEP]
        one = case(ramp(0, 100, step), ramp(400, 600, step), step, seed=place, **changed)
        columns = dict(v_block=place + 1.0, rotation_v=np.where(step > 0, 0.01 * (place + 1), np.nan))
        cases.append((one[0], one[1].assign(**columns)))
    return cases


def test_a_band_ends_where_fewer_than_half_of_its_trials_still_have_records():
    """Of five, three are left to step 700 and two to the end; the median of the three is theirs."""
    picture = norm_bands(*scored(*ending(500, 500, 700, 1000, 1000)))
    drawn = np.asarray(lines_of(picture.figure.axes[1])["V: same - other topic"].get_ydata())
    assert (drawn[STEP <= 500] == 3).all()
    assert (drawn[(STEP > 500) & (STEP <= 700)] == 4).all()
    assert np.isnan(drawn[STEP > 700]).all()
    assert "A line ends where fewer than half of its trials still have records." in picture.caption
    assert "A line ends" not in norm_bands(*scored(*ending(800, 800))).caption
    assert "A line ends" not in norm_bands(*scored(*ending(400, 800))).caption  # one of two is half


def test_the_rotation_is_a_median_over_seeds_on_a_logarithmic_axis_and_ends_with_them():
    picture = rotation(*scored(*ending(500, 500, 700, 1000, 1000)))
    turning, norms = picture.figure.axes
    line = lines_of(turning)["rotation of $W^V$ in ten steps"]
    drawn = np.asarray(line.get_ydata())
    assert turning.get_yscale() == "log" and np.isnan(drawn[0])
    np.testing.assert_allclose(drawn[(STEP > 0) & (STEP <= 500)], 0.03)
    np.testing.assert_allclose(drawn[(STEP > 500) & (STEP <= 700)], 0.04)
    assert np.isnan(drawn[STEP > 700]).all()
    band = turning.collections[0].get_paths()[0].vertices
    at = band[band[:, 0] == 300, 1]
    assert (at.min(), at.max()) == pytest.approx((0.02, 0.04))
    assert r"$\|W^V\|_F$" in lines_of(norms)
    assert "A line ends" in picture.caption and "W^V does not settle" in picture.caption


def test_v_has_settled_where_its_rotation_stays_below_a_tenth_of_its_largest():
    turns = np.where(STEP < 200, 0.1, np.where((STEP > 300) & (STEP < 400), 0.02, 0.009))
    row, frame = case(ramp(0, 100), 0.0)
    picture = rotation(*scored((row, frame.assign(rotation_v=turns))))
    for ax in picture.figure.axes:
        mark = lines_of(ax)["rotation below a tenth of its maximum from here on"]
        assert mark.get_xdata() == pytest.approx([400, 400])
    assert "does not settle" not in picture.caption


def test_a_frozen_value_and_a_run_without_the_column_have_no_rotation():
    row, frame = case(ramp(0, 100), 0.0, value="blocks")
    with pytest.raises(UserError, match="no trial has a rotation"):
        rotation(*scored((row, frame.assign(rotation_v=0.1))))
    with pytest.raises(UserError, match=r"needed: a trained W\^V and the column rotation_v"):
        rotation(*scored(case(ramp(0, 100), 0.0)))


def test_a_norm_that_does_not_grow_is_faint():
    norms, *_ = draw_one(ramp(0, 100), 0.0)
    widths = {name: line.get_linewidth() for name, line in lines_of(norms).items()}
    assert widths[r"$\|W^K\|_F$"] == widths["faint: a norm that does not grow"] < widths[r"$\|W^V\|_F$"]


def test_mistakes_are_one_sentence():
    run, scores = scored(case(0, 0))
    with pytest.raises(StoreError, match="no finished trial 'x'"):
        figure4(run, scores, ["x"])
    with pytest.raises(UserError, match="0 trials for one figure; allowed: 1 to 8"):
        figure4(run, scores, [])
    with pytest.raises(UserError, match="the scores have no trial '000'; allowed: scores of the same run"):
        figure4(run, scores.assign(trial_id="other"), ["000"])
    with pytest.raises(UserError, match="2 axes for the panels of a trial; allowed: 3"):
        trajectory_panels(run, scores, "000", list(Figure().subplots(2)))
    with pytest.raises(
        UserError, match="unknown setting 'lr' for cells; allowed: seed, init_seed, objective"
    ):
        norm_bands(run, scores, by=["lr"])


def test_a_run_of_diverged_trials_without_limit_lines_is_drawn():
    none = dict(line_stage1=np.nan, line_stage2=np.nan)
    lost = case(0, 0, lines=none, status="diverged", eval_loss=np.nan, v_block=np.nan, norm_v=np.inf)
    run, scores = scored(lost)
    picture = figure4(run, scores)
    assert picture.figure.axes[0].get_title().startswith("diverged\n")
    assert picture.figure.axes[0].get_xlabel() == "by norms: diverged\nmax K 0.1, Q 0.1"
    assert "Of these trials, 1 diverged" in norm_bands(run, scores).caption


def test_the_boundary_of_two_ramps_is_where_they_add_up_to_one():
    stages = stages_of(*scored(case(ramp(0, 100), ramp(50, 150))), "000")  # t/100 + (t - 50)/100 = 1
    assert stages.boundary == pytest.approx(75)
    assert stages.scores["theta"] == pytest.approx(0.75)
    assert stages.scores["onset_v"] == pytest.approx(50)
    assert stages.scores["onset_attention"] == pytest.approx(100)


@pytest.mark.parametrize("delay", [0, 35, 180, 700])
@pytest.mark.parametrize("height", [0.6, 0.98])
def test_the_boundary_attains_theta_and_no_step_before_it_does(delay: float, height: float):
    stages = stages_of(*scored(case(0.97 * saturating(0, 60), height * saturating(delay, 90))), "000")
    F_V, F_A = stages.progress["F_V"], stages.progress["F_A"]
    fine = np.linspace(0, STEP[-1], 200_001)
    scored_part = np.isfinite(F_V)
    step, F_V, F_A = STEP[scored_part], F_V[scored_part], F_A[scored_part]
    least = np.minimum(np.interp(fine, step, F_V), 1 - np.interp(fine, step, F_A))
    assert least.max() == pytest.approx(stages.scores["theta"], abs=1e-4)
    assert fine[least.argmax()] == pytest.approx(stages.boundary, abs=0.01)


def test_a_frozen_or_diverged_trial_has_no_boundary_and_nothing_drawn_of_what_it_lacks():
    frozen = case(ramp(0, 100), 0.0, attention="uniform")
    lost = case(ramp(0, 100), 0.0, eval_loss=np.where(STEP < 500, 4.0, np.nan), status="diverged")
    run, scores = scored(frozen, lost)
    stages, diverged = (stages_of(run, scores, name) for name in ("000", "001"))
    assert np.isnan(stages.boundary)
    assert np.isnan(stages.progress["F_A"]).all()
    assert np.nanmax(stages.progress["F_V"]) == pytest.approx(1)
    assert np.isnan(diverged.boundary)
    assert all(np.isnan(diverged.progress[name]).all() for name in ("P", "Q", "F_V", "F_A"))
    assert [line.get_xdata()[0] for line in mark(stages, Figure().subplots()).lines] == pytest.approx([50])
