"""Refinement: points gather where a map's classes change, and the map they make is that of the dense grid."""

import itertools
import os

import numpy as np
import pytest
from support.one_trial import expand

import topicjax
from topicjax.cli import main
from topicjax.errors import UserError
from topicjax.experiments.one_layer.settings import TRIALS
from topicjax.store.reader import status
from topicjax.sweep import chain, linspace, logspace, product
from topicjax.sweep.refine import Label, Refinement, make_panels, next_trials

AXES = ("learning_rate", "init_scale")
GRID = product(learning_rate=logspace(1e-3, 1, 4), init_scale=logspace(1e-4, 1e-1, 4), seed=(0, 1))
nan = float("nan")


def refined(sweep, label, axes=AXES, **options):
    """Refine a map that is known as a function of the settings; return panels, labelled cells, and rounds."""
    refinement, trials = Refinement(axes, **options), expand({}, sweep)
    panels = make_panels(TRIALS, trials, refinement)
    cells = {tuple(sorted(own.items())): own for own in map(TRIALS.settings_of, trials)}
    for rounds in itertools.count():
        known = [(own, label(own)) for own in cells.values()]
        found = next_trials(panels, known, len(cells))
        assert len({tuple(sorted(own.items())) for own in found} - cells.keys()) == len(found)  # all are new
        if not found:
            return panels, cells.values(), rounds
        cells |= {tuple(sorted(own.items())): own for own in found}


def circle(own) -> Label:
    """A class boundary that no line of the grid follows."""
    x, y = np.log10(own["learning_rate"]) + 1.4, np.log10(own["init_scale"]) + 2.6
    return Label("inside" if x * x + y * y < 1.1 else "outside", nan)


def points_of(panel, cells) -> dict:
    return {panel.point(own): circle(own) for own in cells}


@pytest.mark.parametrize("levels", [2, 3])
def test_the_boundary_is_that_of_the_dense_grid_with_a_third_of_its_trials(levels):
    """Away from the boundary by more than a fine cell, the nearest point has the class of the dense map."""
    (panel,), cells, _ = refined(GRID, circle, levels=levels)
    found = points_of(panel, cells)
    size = 3 * 2**levels + 1
    assert len(found) <= {2: 80, 3: 165}[levels], len(found)
    dense = {}
    for point in itertools.product(range(size), repeat=2):
        dense[point] = circle({name: panel.value(axis, point[axis]) for axis, name in enumerate(AXES)}).kind
    wrong = total = 0
    for (i, j), kind in dense.items():
        near = [dense.get((i + a, j + b), kind) for a, b in itertools.product((-1, 0, 1), repeat=2)]
        if len(set(near)) == 1:
            nearest = min(found, key=lambda p: (max(abs(p[0] - i), abs(p[1] - j)), p))
            wrong, total = wrong + (found[nearest].kind != kind), total + 1
    assert total > 50 and wrong <= 0.02 * total


def test_an_even_map_is_left_as_it_is():
    _, cells, rounds = refined(GRID, lambda own: Label("same", 0.95))
    assert len(cells) == 32 and rounds == 0


def test_scores_that_differ_by_more_than_the_cut_are_a_boundary_too():
    def label(own):
        return Label("same", 0.3 if own["learning_rate"] > 0.05 else 0.6)

    _, cells, _ = refined(GRID, label, levels=1)
    values = sorted({own["learning_rate"] for own in cells})
    assert values == [0.001, 0.01, 0.0316228, 0.1, 1.0]  # one value between those that disagree
    assert len(refined(GRID, lambda own: Label("same", 0.3 + 0.2 * (own["learning_rate"] > 0.05)))[1]) == 32


def test_every_point_has_all_seeds_of_its_panel_and_other_settings_are_kept():
    sweep = chain(
        GRID * product(optimizer="sgd", steps=3000),
        product(learning_rate=logspace(1e-3, 1, 4), init_scale=logspace(1e-4, 1e-1, 4), seed=(5, 6, 7))
        * product(optimizer="adam", objective="squared"),
    )
    panels, cells, _ = refined(sweep, circle, levels=1)
    assert len(panels) == 2
    by_point: dict[tuple, set] = {}
    for own in cells:
        by_point.setdefault((own["optimizer"], *(own[name] for name in AXES)), set()).add(own["seed"])
        assert (own["steps"], own["objective"]) == (
            (3000, "cross_entropy") if own["optimizer"] == "sgd" else (1000, "squared")
        )
    assert {key[0]: seeds for key, seeds in by_point.items()} == {"sgd": {0, 1}, "adam": {5, 6, 7}}
    assert len({frozenset(seeds) for seeds in by_point.values()}) == 2


def test_seeds_of_documents_and_of_weights_are_seeds_of_one_panel():
    sweep = GRID * product(init_seed=(3, 4))
    panels, cells, _ = refined(sweep, circle, levels=1)
    assert len(panels) == 1
    by_point: dict[tuple, set] = {}
    for own in cells:
        by_point.setdefault(tuple(own[name] for name in AXES), set()).add((own["seed"], own["init_seed"]))
    assert {frozenset(seeds) for seeds in by_point.values()} == {frozenset({(0, 3), (0, 4), (1, 3), (1, 4)})}
    assert len(by_point) > 16


def test_squares_that_the_sweep_leaves_out_stay_out():
    """An L-shaped grid: no trials in the corner that the sweep does not have."""
    low, high = logspace(1e-3, 1e-2, 2), logspace(1e-2, 1, 3)
    shape = chain(
        product(learning_rate=low, init_scale=logspace(1e-3, 1e-1, 3)),
        product(learning_rate=high, init_scale=logspace(1e-3, 1e-2, 2)),
    )
    _, cells, _ = refined(shape, lambda own: Label(str(own["learning_rate"]), nan), levels=2)
    assert not [own for own in cells if own["learning_rate"] > 0.01 and own["init_scale"] > 0.01]
    assert [own for own in cells if own["learning_rate"] > 0.1 and 1e-3 < own["init_scale"] < 1e-2]


def test_one_setting_can_be_refined_alone_in_even_steps():
    """l2 is 0 somewhere: midpoints are halfway, not at equal ratios."""
    sweep = product(l2=linspace(0, 0.4, 3), seed=0)
    _, cells, rounds = refined(sweep, lambda own: Label(str(own["l2"] > 0.26), nan), ("l2",), levels=3)
    assert sorted(own["l2"] for own in cells) == [0, 0.2, 0.25, 0.275, 0.3, 0.4] and rounds == 3


def test_a_budget_is_spent_on_whole_cells_and_coarse_squares_first():
    _, cells, _ = refined(GRID, circle, levels=3, budget=45)
    assert len(cells) == 44  # two seeds each
    coarse = {*logspace(1e-3, 1, 7)}
    assert all(own["learning_rate"] in coarse for own in cells)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (dict(axes=("seed",)), "--refine has 'seed'; allowed: settings that take any number"),
        (dict(axes=("optimizer",)), "--refine has 'optimizer'; allowed: settings that take any number"),
        (dict(axes=("rate",)), "unknown setting 'rate'"),
        (dict(axes=("l2",)), "--refine has l2, which has one value"),
        (dict(axes=("l2", "l2")), "allowed: one setting, or two different ones"),
        (dict(axes=AXES, levels=0), "--levels is 0; allowed: 1 to 8"),
        (dict(axes=AXES, budget=0), "--budget is 0; allowed: 1 or more trials"),
    ],
)
def test_what_cannot_be_refined_is_said(options, sentence):
    with pytest.raises(UserError) as caught:
        make_panels(TRIALS, expand({}, GRID), Refinement(**options))
    assert sentence in str(caught.value)


FILE = '''"""Learning rates from nothing to something."""
from topicjax.sweep import product
EXPERIMENT = "one_layer"
BASE = dict(topics=3, words_per_topic=2, length_min=8, length_max=12, batch_size=4, eval_documents=6,
            optimizer="sgd", steps=40, record_every=10)
REFINE = dict(axes="learning_rate", levels=2)
SWEEP = product(seed=(0, 1), learning_rate=(1e-6, 1.0))
'''


@pytest.mark.slow
def test_a_sweep_is_refined_and_resumed(tmp_path, monkeypatch, capsys):
    """Its first trials learn nothing or something; two rounds halve the gap between them twice."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "JAX_NUM_CPU_DEVICES", "4")
    (tmp_path / "mine.py").write_text(FILE)
    assert main(["run", "mine.py", "--budget", "6"]) == 0
    run = topicjax.load("results/mine")
    assert sorted(set(run.trials["learning_rate"])) == [1e-6, 1e-3, 1.0] and len(run.trials) == 6
    assert main(["run", "mine.py"]) == 0
    assert "refining, round 2: 2 more trials, 8 in all" in capsys.readouterr().out
    run = topicjax.load("results/mine")
    rates = sorted(set(run.trials["learning_rate"]))
    assert rates[:2] == [1e-6, 1e-3] and rates[2:] == [0.0316228, 1.0]  # halves in the logarithm
    assert run.manifest["runs"][-1]["refine"] == {"axes": ["learning_rate"], "levels": 2}
    assert run.missing == ()
    found = status("results/mine")
    assert (found.finished, found.planned, found.beyond, len(found.plans)) == (8, 8, 0, 1)
    assert main(["run", "mine.py"]) == 0
    assert "Nothing left to train" in capsys.readouterr().out
