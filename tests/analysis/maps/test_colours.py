"""Colours of classes: simulated vision against known values, and classes that no reader confuses."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from topicjax.analysis.maps.colours import APART, VISIONS, least_distance, seen, shaded, weakest_shade
from topicjax.analysis.page.contract import Look
from topicjax.analysis.page.lookup import page_of
from topicjax.experiments import SHIPPED

KNOWN = {  # CIELAB of sRGB colours under D65
    "#FFFFFF": (100, 0, 0),
    "#FF0000": (53.24, 80.09, 67.20),
    "#00FF00": (87.73, -86.18, 83.18),
    "#0000FF": (32.30, 79.19, -107.86),
    "#777777": (50.03, 0, 0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_colours_are_those_of_the_tables(name):
    np.testing.assert_allclose(seen(np.array(to_rgb(name)), "usual"), KNOWN[name], atol=0.03)


def test_grey_stays_grey_and_confusions_are_the_known_ones():
    grey = np.full((1, 3), 0.4)
    for vision in VISIONS:
        np.testing.assert_allclose(seen(grey, vision), seen(grey, "usual"), atol=1e-3)

    def distance(one: str, other: str, vision: str) -> float:
        return float(
            np.linalg.norm(seen(np.array(to_rgb(one)), vision) - seen(np.array(to_rgb(other)), vision))
        )

    assert distance("#C0392B", "#7A6A14", "deuteranopia") < 0.5 * distance("#C0392B", "#7A6A14", "usual")
    assert distance("#0072B2", "#009E73", "tritanopia") < 0.5 * distance("#0072B2", "#009E73", "usual")


@pytest.mark.parametrize("experiment", [name for name in SHIPPED if page_of(name).classes])
def test_no_reader_confuses_two_classes_in_any_shade(experiment):
    given = page_of(experiment).classes
    looks = {name: Look(look) if isinstance(look, str) else look for name, look in given.items()}
    weakest = weakest_shade(looks)
    for one, other in combinations(looks, 2):
        assert least_distance(looks[one], looks[other], weakest) >= APART, (one, other)


def test_shading_stops_before_classes_look_alike():
    alike = {"strong": Look("#009E73"), "pale": Look("#7FCEB9")}  # half as strong
    assert least_distance(*alike.values(), 0.5) < 1 and weakest_shade(alike) > 0.5
    assert least_distance(*alike.values(), weakest_shade(alike)) >= APART
    assert weakest_shade({"same": Look("#009E73"), "again": Look("#009E73")}) == 1
    assert weakest_shade({"one": Look("#0072B2"), "hatched": Look("#7FB8D8", "//")}) == 0.5
    np.testing.assert_allclose(shaded(np.array([[0.2, 0.4, 1.0]]), np.array([0.5])), [[0.6, 0.7, 1.0]])
