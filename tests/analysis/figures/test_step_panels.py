"""Axes of steps and thinned trajectories."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from topicjax.analysis.figures.step_panels import step_axis, thinned


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
