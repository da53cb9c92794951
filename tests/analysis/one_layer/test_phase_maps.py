"""Maps: what is drawn at which place, counted from the drawing, against tables made by hand."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from support.map_readings import colour_of, panels, scores_of, ticks, trial, words

from topicjax.analysis.maps.drawing import class_panel
from topicjax.analysis.maps.layouts import MOST_VALUES, Grid, middle_values
from topicjax.analysis.one_layer.cells import score_cells
from topicjax.analysis.one_layer.phase_maps import (
    AGREE,
    LOOKS,
    MAP_VIEWS,
    log_lag_map,
    norm_phase_map,
    phase_map,
    theta_map,
    view_disagreement,
)
from topicjax.errors import UserError
from topicjax.store.reader import Run

RUN = Run(Path("nowhere"))  # maps need the scores only


def polygons(ax: Axes, corners: int = 4) -> dict[tuple[float, float], list[tuple[float, ...]]]:
    """Return the colours of the polygons with so many corners at each place, in drawing order."""
    found: dict[tuple[float, float], list[tuple[float, ...]]] = {}
    for collection in ax.collections:
        assert isinstance(collection, PolyCollection)
        colours = collection.get_facecolor()
        for index, path in enumerate(collection.get_paths()):
            points = np.unique(path.vertices, axis=0)
            if len(points) == corners:
                x, y = np.round(points.mean(axis=0))
                colour = colours[index % len(colours)][:3]
                found.setdefault((x, y), []).append(tuple(np.round(colour, 6)))
    return found


def dots(ax: Axes) -> set[tuple[float, float]]:
    return {(x, y) for line in ax.lines for x, y in zip(*line.get_data(), strict=True)}


def test_each_cell_has_the_colour_of_its_class_at_its_place():
    kinds = {(1e-3, 10.0): "two-stage", (1e-3, 2.0): "V-only", (1e-4, 10.0): "simultaneous"}
    rows = [trial(kind, init_scale=s, learning_rate=r) for (s, r), kind in kinds.items()]
    (ax,) = panels(phase_map(RUN, scores_of(*rows)))
    expected = {(1, 1): "two-stage", (0, 1): "V-only", (1, 0): "simultaneous"}
    assert polygons(ax) == {place: [colour_of(kind)] for place, kind in expected.items()}
    assert dots(ax) == {(0, 0)}  # learning rate 2, init scale 1e-4 was not run
    assert (ticks(ax, "x"), ticks(ax, "y")) == (["2", "10"], ["1e-4", "0.001"])


def test_theta_is_the_median_as_number_and_as_shade():
    rows = [trial("simultaneous", theta, seed=seed) for seed, theta in enumerate((0.1, 0.4, 0.6))]
    (ax,) = panels(phase_map(RUN, scores_of(*rows)))
    assert words(ax) == {(0, 0): ".40"}
    white = 1 - np.array(polygons(ax)[0, 0][0])
    np.testing.assert_allclose(white, 0.88 * (1 - np.array(colour_of("simultaneous"))), atol=1e-5)


def test_no_shade_and_no_number_without_theta():
    rows = [
        trial("diverged"),
        trial("unfinished", 0.3, learning_rate=2.0),
        trial("V-only", np.nan, init_scale=1.0),
    ]
    (ax,) = panels(phase_map(RUN, scores_of(*rows)))
    expected = {(0, 0): "diverged", (1, 0): "unfinished", (0, 1): "V-only"}
    assert polygons(ax) == {place: [colour_of(kind)] for place, kind in expected.items()}
    assert words(ax) == {}


def test_hollow_marks_attention_that_is_not_topical_and_leaves_v_only_whole():
    rows = [
        *(trial(seed=seed, topical=seed == 0) for seed in range(3)),
        *(trial(seed=seed, topical=seed > 0, learning_rate=2.0) for seed in range(3)),
        trial("V-only", topical=False, learning_rate=3.0),
        *(trial("diverged" if seed else "two-stage", seed=seed, learning_rate=4.0) for seed in range(2)),
    ]
    picture = phase_map(RUN, scores_of(*rows))
    drawn = polygons(panels(picture)[0])
    assert {place: len(colours) for place, colours in drawn.items()} == {
        (0, 0): 2,
        (1, 0): 1,
        (2, 0): 1,
        (3, 0): 1,
    }
    assert drawn[0, 0][1] == (1, 1, 1)
    assert "Hollow: in 1 cell attention moved" in picture.caption


def test_corners_mark_cells_whose_trials_disagree_and_those_where_some_diverged():
    mixes = [
        ("two-stage",) * 3,
        ("two-stage", "two-stage", "V leads"),
        ("two-stage", "two-stage", "diverged"),
    ]
    mixes += [("diverged", "diverged", "two-stage")]
    rows = [
        trial(kind, seed=seed, learning_rate=1.0 + number)
        for number, mix in enumerate(mixes)
        for seed, kind in enumerate(mix)
    ]
    picture = phase_map(RUN, scores_of(*rows))
    corners = polygons(panels(picture)[0], corners=3)
    heights = {place: len(colours) for place, colours in corners.items()}
    assert heights == {(1, 0): 1, (2, 0): 2, (3, 0): 1}
    assert "12 trials in 4 cells, 3 per cell; 3 diverged." in picture.caption
    assert "Corner: trials disagree in 3 cells." in picture.caption


def test_legend_counts_the_cells_of_each_class_that_occurs():
    kinds = ["two-stage", "two-stage", "V-only", "diverged"]
    rows = [trial(kind, learning_rate=10.0**number) for number, kind in enumerate(kinds)]
    names = [entry.get_text() for entry in phase_map(RUN, scores_of(*rows)).figure.legends[0].get_texts()]
    assert names == ["two-stage: 2", "V-only: 1", "diverged: 1", "shade: Θ 0, 0.5, 1"]


def test_columns_have_their_own_learning_rates_and_rows_what_else_varies():
    rates = {("adam", "squared"): (1e-3, 1e-2), ("sgd", "squared"): (3.0, 10.0, 30.0)}
    rows = [
        trial(optimizer=o, objective=b, learning_rate=rate, init_scale=s, key_visibility=k)
        for (o, b), own in rates.items()
        for rate, s, k in product(own, (0.1, 0.2), ("all", "unmasked"))
    ]
    axes = panels(phase_map(RUN, scores_of(*rows)))
    assert [len(polygons(ax)) for ax in axes] == [6, 4, 6, 4]
    assert [ax.get_title() for ax in axes[:2]] == ["squared, SGD", "squared, Adam"]
    assert [ticks(ax, "x") for ax in axes[2:]] == [["3", "10", "30"], ["0.001", "0.01"]]
    assert [ax.get_ylabel() for ax in axes[::2]] == ["keys all\ninit scale", "keys unmasked\ninit scale"]
    assert not any(dots(ax) for ax in axes)


@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        (dict(p_keep=(0.1, 0.2), alpha=(1.0, 2.0, 3.0)), {}, ("p keep", "alpha")),
        (dict(p_keep=(0.1, 0.2), alpha=(1.0, 2.0)), dict(x="alpha", y="p_keep"), ("alpha", "p keep")),
        (dict(init=("normal", "uniform"), init_scale=(0.1, 1.0)), {}, ("init", "init scale")),
        (dict(learning_rate=(1.0, 2.0), l2=(0.0, 1e-5)), {}, ("learning rate", "L2")),
        (
            dict(learning_rate=(1.0, 2.0), init_scale=(0.1, 1.0)),
            dict(x="init_scale"),
            ("init scale", "learning rate"),
        ),
        (dict(seed=(1, 2)), {}, ("learning rate", "init scale")),
    ],
)
def test_axes_are_those_that_vary(settings: dict, given: dict, expected: tuple[str, str]):
    rows = [trial(**dict(zip(settings, values, strict=True))) for values in product(*settings.values())]
    (ax,) = panels(theta_map(RUN, scores_of(*rows), **given))
    assert (ax.get_xlabel(), ax.get_ylabel()) == expected


def test_a_setting_tied_to_an_axis_makes_no_rows_and_is_told():
    rows = [
        trial(learning_rate=rate, init_scale=s, steps=int(1000 / rate))
        for rate, s in product((1.0, 2.0), (1.0, 2.0))
    ]
    picture = phase_map(RUN, scores_of(*rows))
    assert [len(polygons(ax)) for ax in panels(picture)] == [4]
    assert "these settings change as well: steps." in picture.caption


def test_only_six_rows_are_drawn_and_the_caption_counts_the_rest():
    grid = product((1.0, 2.0), (0.1, 0.2), np.arange(8) / 10)
    picture = phase_map(RUN, scores_of(*(trial(learning_rate=r, init_scale=s, l2=l2) for r, s, l2 in grid)))
    assert [len(polygons(ax)) for ax in panels(picture)] == [4] * 6
    assert "Not drawn: 2 further rows of panels." in picture.caption
    assert "24 trials in 24 cells" in picture.caption
    assert picture.alt.startswith("Map of learning rate against init scale, 6 panels")


def test_more_than_two_columns_become_rows():
    kinds = product(("sgd", "momentum", "adam"), ("squared", "cross_entropy"), (1.0, 2.0), (0.1, 0.2))
    rows = [trial(optimizer=o, objective=b, learning_rate=r, init_scale=s) for o, b, r, s in kinds]
    axes = panels(phase_map(RUN, scores_of(*rows[:-1])))  # the last: cross-entropy, Adam
    assert [ax.get_title() for ax in axes[:2]] == ["cross-entropy", "squared"]
    assert [ax.get_ylabel() for ax in axes[::2]] == [f"{o}\ninit scale" for o in ("SGD", "Adam", "momentum")]
    assert [len(polygons(ax)) for ax in axes] == [4, 4, 3, 4, 4, 4]


def test_panels_have_labels_where_the_next_one_below_has_other_values():
    rates = {("sgd", "squared"): (3.0, 10.0), ("adam", "squared"): (0.1, 0.2)}
    rates |= {("sgd", "cross_entropy"): (1.0, 2.0), ("adam", "cross_entropy"): (1.0, 2.0)}
    rows = [
        trial(optimizer=o, objective=b, learning_rate=rate, init_scale=s)
        for (o, b), own in rates.items()
        for rate, s in product(own, (0.1, 0.2))
    ]
    axes = panels(phase_map(RUN, scores_of(*rows)))
    assert [ticks(ax, "x") for ax in axes] == [["", ""], ["3", "10"], ["1", "2"], ["0.1", "0.2"]]


def test_panels_can_be_chosen():
    values = product(("sgd", "adam"), ("all", "unmasked"), (1.0, 2.0), (0.1, 0.2))
    rows = [trial(optimizer=o, key_visibility=k, learning_rate=r, init_scale=s) for o, k, r, s in values]
    axes = panels(phase_map(RUN, scores_of(*rows), panel=("key_visibility",)))
    assert [ax.get_title() for ax in axes[:2]] == ["keys all", "keys unmasked"]
    assert [ax.get_ylabel() for ax in axes[::2]] == ["SGD\ninit scale", "Adam\ninit scale"]
    with pytest.raises(UserError, match="no setting 'keys'; allowed: "):
        phase_map(RUN, scores_of(*rows), panel=("keys",))


def test_heat_maps_show_the_median_and_hatch_what_has_none():
    rows = [
        trial(seed=seed, theta_norm=v, log_lag=lag)
        for seed, v, lag in ((0, 0.2, -3), (1, 0.5, -2), (2, 0.6, 9))
    ]
    rows += [trial("diverged", learning_rate=2.0), trial(init_scale=1.0, log_lag=3.0)]
    (ax,) = panels(theta_map(RUN, scores_of(*rows), "norm"))
    assert words(ax) == {(0, 0): "0.50", (0, 1): "1.00"}
    picture = log_lag_map(RUN, scores_of(*rows))
    (ax,) = panels(picture)
    assert words(ax) == {(0, 0): "-2.0", (0, 1): "3.0"}
    assert [c.get_hatch() for c in ax.collections] == ["////", None]
    (bar,) = [axes for axes in picture.figure.axes if axes.get_label() == "<colorbar>"]
    assert bar.get_xlim() == (-3, 3)  # centred on 0
    assert "values: -2.00 to 3.00" in picture.caption
    assert "Hatched: 1 cell without a value" in picture.caption


def test_a_lag_that_rounds_to_zero_has_no_sign():
    rows = [trial(log_lag=-0.04), trial(log_lag=-0.06, learning_rate=2.0), trial(log_lag=3.0, init_scale=1.0)]
    (ax,) = panels(log_lag_map(RUN, scores_of(*rows)))
    assert words(ax) == {(0, 0): "0.0", (1, 0): "-0.1", (0, 1): "3.0"}


def test_a_large_map_has_no_text_in_its_cells_and_few_ticks():
    rows = [trial(learning_rate=1.1**i, init_scale=1.2**j) for i, j in product(range(30), range(20))]
    (ax,) = panels(phase_map(RUN, scores_of(*rows)))
    assert len(polygons(ax)) == 600
    assert words(ax) == {}
    assert ticks(ax, "x")[0] == "1"
    assert len(ticks(ax, "y")) < 20


def test_disagreement_counts_trials_and_marks_cells():
    rows = [trial(seed=seed, class_norm=kind) for seed, kind in enumerate(("V-only", "V-only", "two-stage"))]
    rows += [trial("V-only", learning_rate=2.0, class_order="V leads")]
    picture = view_disagreement(RUN, scores_of(*rows))
    norm, order, ax = picture.figure.axes
    assert words(norm) == {(0, 0): "1", (0, 1): "2", (1, 1): "1"}  # columns: V-only, two-stage by norms
    assert words(order) == {(0, 1): "3", (1, 0): "1"}
    assert (norm.get_title(), order.get_title()) == ("50% of the trials agree", "75% of the trials agree")
    assert polygons(ax) == {(1, 0): [tuple(np.round(to_rgb(AGREE), 6))]}
    halves = [colour_of(kind) for kind in ("two-stage", "V-only")]
    assert polygons(ax, corners=3) == {(0, 0): halves}
    assert "Same class, of 4 trials: 2 by the norms and 3 by the order parameters" in picture.caption
    assert "in 1 of 2 cells" in picture.caption


@pytest.mark.parametrize("draw", [phase_map, theta_map, log_lag_map])
def test_all_trials_diverged_and_one_trial_can_be_drawn(draw: Any):
    picture = draw(RUN, scores_of(trial("diverged")))
    picture.figure.draw_without_rendering()
    assert "1 trial in 1 cell, 1 per cell; 1 diverged." in picture.caption


@pytest.mark.parametrize("names", [("learning_rate", "key_visibility"), ("learning_rate", "init_scale")])
@pytest.mark.parametrize("draw", [phase_map, log_lag_map])
@pytest.mark.usefixtures("laid_out")
def test_no_text_is_cut(draw: Any, names: tuple[str, str], tmp_path: Path):
    values = {"learning_rate": (1.0, 2.0), "init_scale": (0.1,), "key_visibility": ("all", "unmasked")}
    kinds = product(("squared", "cross_entropy"), ("sgd", "adam"), *(values[name] for name in names))
    settings = ("objective", "optimizer", *names)
    figure = (
        picture := draw(RUN, scores_of(*(trial(**dict(zip(settings, row, strict=True))) for row in kinds)))
    ).figure
    picture.save(tmp_path / "map")
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.01


def test_cells_with_a_frozen_part_are_not_drawn_if_others_train_both():
    parts = dict(value="trained", attention="trained", embedding="one_hot")
    rows = [trial(**parts, learning_rate=1.0), trial(**parts, learning_rate=2.0)]
    rows += [trial("attention-only", **parts | dict(value="blocks"), learning_rate=3.0)]
    rows += [trial("V-only", **parts | dict(attention="uniform"), learning_rate=4.0)]
    picture = phase_map(RUN, scores_of(*rows))
    assert set(polygons(panels(picture)[0])) == {(0, 0), (1, 0)}
    assert "Not drawn: 2 cells that train only one part." in picture.caption
    assert len(polygons(panels(phase_map(RUN, scores_of(rows[2])))[0])) == 1


@pytest.mark.parametrize(("of_adam", "lowest"), [((0.0, 2.0), 2), ((0.0,), 0)])
def test_a_panel_without_cells_is_left_empty_and_the_lowest_other_one_has_the_ticks(
    of_adam: tuple, lowest: int
):
    kinds = [*(("sgd", l2) for l2 in (0.0, 1.0, 2.0)), *(("adam", l2) for l2 in of_adam)]
    rows = [
        trial(optimizer=optimizer, l2=l2, learning_rate=rate, init_scale=scale)
        for (optimizer, l2), rate, scale in product(kinds, (1.0, 2.0), (0.1, 0.2))
    ]
    picture = phase_map(RUN, scores_of(*rows))
    adam = panels(picture)[1::2]
    assert [len(polygons(ax)) for ax in adam] == [4 * (l2 in of_adam) for l2 in (0.0, 1.0, 2.0)]
    assert [ticks(ax, "x") == ["1", "2"] for ax in adam] == [row == lowest for row in range(3)]
    assert not any(dots(ax) for ax in adam) and "not run" not in picture.caption


def test_a_panel_refuses_two_cells_at_one_place():
    cells = score_cells(scores_of(trial(l2=0.0), trial(l2=1.0)))
    with pytest.raises(UserError, match="two cells of equal learning_rate and init_scale"):
        class_panel(cells, Figure().subplots(), Grid.of(cells), MAP_VIEWS["loss"], LOOKS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(view="lost"), "unknown view 'lost'; allowed: loss, order, norm"),
        (dict(x="lr"), "no setting 'lr'; allowed: objective"),
        (dict(x="init_scale", y="init_scale"), "x and y are both 'init_scale'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments: dict, message: str):
    with pytest.raises(UserError, match=message):
        phase_map(RUN, scores_of(trial()), **arguments)


def test_no_cells_are_an_error():
    with pytest.raises(UserError, match="no cell to draw"):
        phase_map(RUN, scores_of(trial()).iloc[:0])


def test_the_norms_have_a_map_of_their_own():
    rows = [trial(class_norm="V-only", theta_norm=0.9), trial(learning_rate=2.0)]
    picture = norm_phase_map(RUN, scores_of(*rows))
    assert picture.title == "Classes in the norm view"
    names = [entry.get_text() for entry in picture.figure.legends[0].get_texts()]
    assert names[:2] == ["two-stage: 1", "V-only: 1"]


def test_neighbours_share_a_place_where_an_axis_has_too_many_values():
    """A hundred rates in 40 places: two or three each; those of SGD are not those of Adam."""
    rates = {"sgd": np.geomspace(1, 10, 100), "adam": np.geomspace(1e-3, 1e-2, 100)}
    rows = [
        trial("two-stage" if place < 50 else "V-only", optimizer=name, learning_rate=rate, l2=1e-9 * place)
        for name, values in rates.items()
        for place, rate in enumerate(values)
    ]
    picture = phase_map(RUN, scores_of(*rows))
    for ax in panels(picture):
        found = polygons(ax)
        assert sorted(found) == [(x, 0) for x in range(MOST_VALUES)]
        assert [colours[0] for _, colours in sorted(found.items())] == (
            [colour_of("two-stage")] * 20 + [colour_of("V-only")] * 20
        )
    assert "200 trials in 80 cells, 2 to 3 per cell" in picture.caption
    assert "The 200 values of learning rate share up to 40 places per panel" in picture.caption
    assert "Along the axes these settings change as well: L2." in picture.caption
    few = phase_map(RUN, scores_of(*rows[::5]))
    assert "share" not in few.caption and "40 trials in 40 cells" in few.caption


def test_the_middle_of_neighbouring_values_stands_for_them():
    values = np.arange(3 * MOST_VALUES, dtype=float)
    frame = pd.DataFrame(dict(x=np.r_[values, 7.0], column=["a"] * len(values) + ["b"]))
    found = middle_values(frame.sample(frac=1, random_state=0), "x", ["column"]).sort_index()
    assert found.tolist() == [*(1 + values // 3 * 3), 7.0]
    pd.testing.assert_series_equal(middle_values(frame[:40], "x", []), frame["x"][:40])


def test_a_run_of_random_settings_has_a_map_of_bounded_size():
    draw = np.random.default_rng(0).uniform
    rows = [
        trial(learning_rate=draw(), init_scale=draw(), batch_size=draw(), seed=seed) for seed in range(3000)
    ]
    (ax,) = panels(theta_map(RUN, scores_of(*rows)))
    assert len(polygons(ax)) + len(dots(ax)) == MOST_VALUES**2
