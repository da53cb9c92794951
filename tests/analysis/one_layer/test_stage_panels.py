"""Stage boundaries against values worked out by hand, and the axes of steps."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from support.synthetic_runs import STEP, case, ramp, saturating, scored

from topicjax.analysis.figures.step_panels import step_axis, thinned
from topicjax.analysis.one_layer.stage_panels import boundary, mark, stages_of


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


def test_without_a_crossing_the_boundary_is_where_v_gets_to_its_end():
    assert boundary(STEP, 0.85 * ramp(0, 200), 0.1 * ramp(500, 600)) == 200


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


def test_long_trajectories_are_drawn_as_medians_of_bins():
    step = np.arange(0, 40_001, 10)
    spiky = np.where(np.arange(len(step)) % 7, 5.0, 100.0)
    frame = pd.DataFrame(dict(trial_id="a", step=step, x=spiky, y=np.log(np.maximum(step, 1.0))))
    thin = thinned(frame, ("x", "y"))
    assert len(thin) <= 250
    assert thin["step"].iloc[0] == 0
    late = thin[thin["step"] > 5000]
    assert (late["x"] == 5).all()
    np.testing.assert_allclose(late["y"], np.log(late["step"]), atol=1e-3)
    pd.testing.assert_frame_equal(thinned(frame[:100], ("x",)), frame[["trial_id", "step", "x"]][:100])


def test_steps_are_logarithmic_for_many_records_only():
    axes = Figure().subplots(3)
    assert step_axis(axes[0], np.arange(0, 1001, 10)).get_xscale() == "symlog"
    assert list(axes[0].get_xticks()) == [0, 100, 1000]
    assert list(step_axis(axes[0], np.arange(0, 601, 25)).get_xticks()) == [0, 100, 600]
    assert list(step_axis(axes[0], np.arange(0, 1201, 10)).get_xticks()) == [0, 100, 1000]  # 1,200 is near
    assert step_axis(axes[1], np.arange(0, 101, 10)).get_xscale() == "linear"
    assert step_axis(axes[2], np.array([0])).get_xlim() == (0, 1)
