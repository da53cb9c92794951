"""Refined maps: places, regions and squares of points on a lattice, against plain loops."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.map_readings import colour_of, panels, scores_of, ticks, trial, words

from topicjax.analysis.maps.layouts import LogAxis, Refinement, inner_squares, nearest_points, rectangles
from topicjax.analysis.one_layer.phase_maps import log_lag_map, phase_map, theta_map, view_disagreement
from topicjax.store.reader import Run

COARSE = [1.0, 4.0, 16.0, 64.0]
MANIFEST = dict(
    runs=[
        dict(
            refine=dict(axes=["learning_rate", "init_scale"], levels=2),
            axes=dict(learning_rate=COARSE, init_scale=[0.1, 1.0]),
        )
    ]
)


def brute_force(places: np.ndarray, shape: tuple[int, int], levels: int) -> np.ndarray:
    """The owner of each place by loops over all points: nearest, then coarser, then first."""
    owner = np.zeros(shape, int)
    for x, y in np.ndindex(*shape):
        best: Any = None
        for number, (a, b) in enumerate(places.tolist()):
            coarse = 0
            while coarse < levels and a % 2 ** (coarse + 1) == 0 and b % 2 ** (coarse + 1) == 0:
                coarse += 1
            key = ((x - a) ** 2 + (y - b) ** 2, -coarse, number)
            best = min(best, key) if best else key
        owner[x, y] = best[2]
    return owner


def random_points(seed: int, shape: tuple[int, int], levels: int) -> np.ndarray:
    """The coarse grid, and some finer points."""
    rng, step = np.random.default_rng(seed), 2**levels
    coarse = list(product(range(0, shape[0], step), range(0, shape[1], step)))
    fine = [tuple(rng.integers(0, shape).tolist()) for _ in range(20)]
    return np.array(list(dict.fromkeys([*coarse, *fine])))


@pytest.mark.parametrize("seed", range(4))
def test_regions_are_those_of_a_plain_loop_and_leave_no_hole(seed: int):
    levels, shape = 2, (13, 9)
    places = random_points(seed, shape, levels)
    owner = nearest_points(places, shape, levels)
    np.testing.assert_array_equal(owner, brute_force(places, shape, levels))
    boxes, whose = rectangles(owner)
    covered = np.zeros(shape, int)
    for (left, bottom, right, top), number in zip(boxes, whose, strict=True):
        part = slice(round(left + 0.5), round(right + 0.5)), slice(round(bottom + 0.5), round(top + 0.5))
        covered[part] += 1
        assert (owner[part] == number).all()
    assert (covered == 1).all()


def test_a_tie_goes_to_the_coarser_point():
    places = np.array([(1, 0), (3, 0), (4, 0), (0, 0)])
    assert nearest_points(places, (5, 1), 2)[:, 0].tolist() == [3, 0, 0, 1, 2]
    places = np.array([(2, 0), (4, 0), (0, 0)])
    assert nearest_points(places, (5, 1), 2)[:, 0].tolist() == [2, 2, 0, 1, 1]


@pytest.mark.parametrize("seed", range(2))
def test_the_square_around_a_point_is_the_largest_inside_its_region(seed: int):
    shape = (17, 9)
    places = random_points(seed, shape, 3)
    owner = nearest_points(places, shape, 3)
    centres, sides = inner_squares(owner, places)
    for number, (x, y) in enumerate(places):
        own: list[tuple[int, int]] = []
        for size in range(max(shape)):
            inside = [(a, b) for a, b in np.ndindex(*shape) if max(abs(a - x), abs(b - y)) <= size]
            if any(owner[place] != number for place in inside):
                break
            own = inside
        wide, high = ({place[axis] for place in own} for axis in (0, 1))
        assert sides[number] == min(len(wide), len(high))
        assert tuple(centres[number]) == (np.mean([*wide]), np.mean([*high]))


def test_places_are_midpoints_of_the_logarithm():
    values = [*COARSE, 2.0, 8.0, 2**0.5, 2**1.5]
    axis = LogAxis.of(values, COARSE, 5)
    assert (axis.coarse, axis.levels, axis.length) == (tuple(COARSE), 2, 13)
    assert axis.places(values).tolist() == [0, 4, 8, 12, 2, 6, 1, 3]
    assert axis.ticks == [0, 4, 8, 12]


def test_coarse_values_need_not_be_evenly_spaced_nor_listed():
    uneven = [1.0, 10.0, 1000.0]
    axis = LogAxis.of([*uneven, 10**0.5, 100.0], uneven, 3)
    assert axis.places([1, 10**0.5, 10, 100, 1000]).tolist() == [0, 1, 2, 3, 4]
    everything = [*COARSE, 2.0]
    for listed in ([], everything):
        axis = LogAxis.of(everything, listed, 1)
        assert axis.coarse == pytest.approx(COARSE) and axis.levels == 1
    assert LogAxis.of([3.0], [3.0], 4).length == 1
    rounded = [31.0723, 96.5489, 54.7722]  # six digits, as sweeps write them
    assert LogAxis.of(rounded, rounded[:2], 3).places(rounded).tolist() == [0, 2, 1]


def refined_run(folder: str = "nowhere", **manifest: Any) -> Run:
    return Run(Path(folder)).replace(manifest=MANIFEST | manifest)


def refined_scores():
    """A boundary at learning rate 10: V-only below, two-stage above; finer between 4 and 16."""
    rates = [*COARSE, 8.0, 8 * 2**0.5]
    points = [(rate, scale) for rate in rates for scale in (0.1, 1.0)]
    points += [(8.0, 10**-0.5), (8 * 2**0.5, 10**-0.5)]
    kinds = ["two-stage" if rate > 10 else "V-only" for rate, _ in points]
    return scores_of(
        *(
            trial(kind, 1.0 if kind == "two-stage" else np.nan, learning_rate=r, init_scale=s)
            for (r, s), kind in zip(points, kinds, strict=True)
        )
    )


def test_a_refined_map_fills_the_panel_with_regions_and_has_ticks_at_the_coarse_values():
    picture = phase_map(refined_run(), refined_scores())
    (ax,) = panels(picture)
    area: dict[tuple[float, ...], float] = {}
    for collection in ax.collections:
        for path in collection.get_paths():
            low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
            colour = tuple(np.round(collection.get_facecolor()[0][:3], 6))
            area[colour] = area.get(colour, 0) + float(np.prod(high - low))
    assert sum(area.values()) == pytest.approx(13 * 5)  # every place of the lattice, once
    assert area[colour_of("V-only")] > area[colour_of("two-stage")]
    assert ticks(ax, "x") == ["1", "4", "16", "64"] and ticks(ax, "y") == ["0.1", "1"]
    assert "14 trials in 14 cells" in picture.caption and "Refined: " in picture.caption
    assert "factor of 1.41 in learning rate and 3.16 in init scale." in picture.caption
    assert {*words(ax).values()} == {"1.00"} and "Dots" not in picture.caption


@pytest.mark.parametrize("draw", [theta_map, log_lag_map, view_disagreement])
def test_the_other_maps_are_refined_too(draw: Any, tmp_path: Path):
    picture = draw(refined_run(), refined_scores())
    assert "Refined: " in picture.caption
    assert picture.save(tmp_path / "map")[0].stat().st_size


def test_axes_that_are_not_refined_positive_numbers_have_the_usual_map():
    run, scores = refined_run(), refined_scores()
    assert Refinement.of({}) is None and Refinement.of(dict(runs=[dict(axes={})])) is None
    assert "Refined" not in phase_map(Run(Path("nowhere")), scores).caption
    assert "Refined" not in phase_map(run, scores.assign(l2=[0.0, 1.0] * 7), y="l2").caption
    zero = scores.assign(init_scale=scores["init_scale"].replace(0.1, 0.0))
    assert "Refined" not in phase_map(run, zero).caption
