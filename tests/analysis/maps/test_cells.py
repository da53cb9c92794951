"""Cells, maps and labels of an experiment that knows nothing of topics."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from support.synthetic_runs import make_run

from topicjax.analysis.maps.cells import cell_labels, cell_table, majority, scored_trials
from topicjax.analysis.maps.drawing import run_map
from topicjax.analysis.page.contract import Look, Page, View
from topicjax.errors import UserError

PAGE = Page(
    classes={"slow": "#0072B2", "fast": Look("#E69F00", "//")},
    views=(View("class", score="share"), View("other", "_other")),
    refine_by=lambda cells: zip(cells["class"], cells["share"], strict=True),
)


def own_run():
    """Three depths and two widths, three seeds; no learning rate, no init scale."""
    rows = [dict(depth=d, width=w, seed=s) for d, w, s in product((1, 2, 3), (8, 16), (0, 1, 2))]
    trials = pd.DataFrame(rows).assign(
        trial_id=[f"{number:012x}" for number in range(18)],
        status=["diverged"] + ["ok"] * 17,
        final_loss=np.r_[1e30, np.arange(17)],
        steps=10,
        record_every=1,
    )
    return make_run(trials)


def own_scores(run):
    """The first seed of a cell is fast, the second slow, the third has no class at depth 3, else fast."""
    trials = run.trials[["trial_id"]].assign(share=np.linspace(0, 1, 18))
    kinds = np.tile(["fast", "slow", "fast"], 6).astype(object)
    kinds[14::3] = None
    return trials.assign(**{"class": kinds, "class_other": "fast"})


def test_a_cell_has_counts_the_most_frequent_class_and_medians():
    run = own_run()
    trials, settings = scored_trials(run, own_scores(run), PAGE)
    assert settings == ["depth", "width", "seed", "steps", "record_every"]
    cells = cell_table(PAGE, settings)(trials, ["depth", "width"])
    assert cells["trials"].tolist() == [3] * 6 and cells["diverged"].tolist() == [1, 0, 0, 0, 0, 0]
    assert cells["class"].tolist() == ["fast"] * 4 + ["slow"] * 2  # ties go to the class that is listed first
    np.testing.assert_allclose(cells["agreement"], [2 / 3] * 4 + [1 / 3] * 2)
    assert cells["class_other"].tolist() == ["fast"] * 6 and cells["agreement_other"].tolist() == [1] * 6
    assert cells["final_loss"].tolist() == [0.5, 3, 6, 9, 12, 15]  # the first without the diverged trial
    np.testing.assert_allclose(cells["share"], np.linspace(0, 1, 18)[1::3])


def test_ties_go_to_the_earlier_class():
    kinds, share = majority(np.array([0, 0, 1, 1, 1]), np.array(list("abbca")), list("cba"))
    assert kinds.tolist() == ["b", "c"] and share.tolist() == [1 / 2, 1 / 3]


def test_refinement_compares_classes_and_scores_of_cells():
    run = own_run()
    labels = cell_labels(run, own_scores(run), PAGE)
    settings, kind, score = labels[1]
    assert settings == dict(depth=1, width=16, steps=10, record_every=1) and kind == "fast"
    assert score == pytest.approx(4 / 17)
    plain = Page(classes=PAGE.classes)
    assert np.isnan(cell_labels(run, own_scores(run), plain)[0][2])
    with pytest.raises(UserError, match="have no class; allowed: to refine an experiment whose page"):
        cell_labels(run, run.trials, plain)


def test_any_run_has_a_map_by_class_final_value_or_column():
    run = own_run()
    scores = own_scores(run)
    picture = run_map(run, scores, PAGE)
    assert picture.alt == "Map of width against depth, 1 panel. Cells by class: 2 slow, 4 fast."
    assert "18 trials in 6 cells, 3 per cell; 1 diverged." in picture.caption
    names = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert names == [
        "slow: 2",
        "fast: 4",
        "shade: share 0, 0.5, 1",
        "trials disagree",
        "some trials diverged",
    ]
    assert run_map(run, scores, PAGE, "other").title == "Map of classes (other)"
    assert run_map(run, scores, PAGE, "share").title == "Map of share"
    bare = run_map(run, run.trials, Page())
    assert bare.title == "Map of loss at the end" and bare.alt.startswith("Map of width against depth")
    assert run_map(run, run.trials, Page(), "status").title == "Map of classes (status)"
    with pytest.raises(UserError, match="a map by 'speed' is not known; allowed: class, other, "):
        run_map(run, scores, PAGE, "speed")
