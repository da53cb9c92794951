"""The comparison of two runs counts cells and trials of another class, and measures how far onsets move."""

import runpy

import numpy as np
import pandas as pd
import pytest
from support.command_line import ROOT
from support.synthetic_runs import case, ramp, score

COMPARE = runpy.run_path(str(ROOT / "docs" / "compare_runs.py"))
CELLS = (0.1, 0.2)  # learning rates


def run_with(*attention: float) -> pd.DataFrame:
    """Score two cells of three seeds; attention begins at these steps, 1,000 for never."""
    begins = iter(attention)
    cases = [
        case(ramp(0, 100), ramp(begin, begin + 200) if (begin := next(begins)) < 1000 else 0.0, **own)
        for own in (dict(learning_rate=rate, seed=seed) for rate in CELLS for seed in range(3))
    ]
    return score(*cases)


@pytest.fixture(scope="module")
def runs() -> tuple[pd.DataFrame, pd.DataFrame]:
    """In the second run one trial of the first cell and two of the second have no stage 2."""
    return run_with(400, 400, 400, 400, 400, 400), run_with(500, 400, 1000, 400, 1000, 1000)


def test_cells_change_by_the_majority_of_their_trials(runs):
    counts = COMPARE["compare_classes"](*runs)
    assert counts["trials"] == 6 and counts["trials of another class"] == 3
    assert counts["two-stage trials, first run"] == 6 and counts["two-stage trials"] == 3
    assert counts["cells"] == 2 and counts["cells of another class"] == 1
    (changed,) = COMPARE["changed_cells"](*runs).to_dict("records")
    assert changed["learning_rate"] == 0.2
    assert (changed["before"], changed["after"]) == ("two-stage", "V-only")


def test_only_trials_that_both_have_are_compared(runs):
    counts = COMPARE["compare_classes"](runs[0], runs[1].iloc[:3])
    assert counts["trials"] == 3 and counts["cells"] == 1 and counts["cells of another class"] == 0


def test_onsets_move_in_percent_of_the_first_run(runs):
    """Half of stage 2 is at step 500, and at 600 in the trial that begins later."""
    onsets = pd.DataFrame(COMPARE["compare_onsets"](*runs)).set_index(["stage", "trials"])
    attention = onsets.loc[("attention", "all")]
    assert (attention["both have"], attention["lost"], attention["new"]) == (3, 3, 0)
    assert attention["largest %"] == 20.0 and attention["median %"] == 0.0
    assert attention["largest steps"] == 100.0 and attention["median steps"] == 0.0
    value = onsets.loc[("W^V", "all")]
    assert value["both have"] == 6 and np.isclose(value["largest %"], 0)
