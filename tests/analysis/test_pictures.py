"""Values, settings and counts as a reader writes them."""

from xml.etree import ElementTree

import numpy as np

import topicjax.analysis.topic_model  # noqa: F401 (it names values)
from topicjax.analysis.pictures import Picture, described, distinct_texts, label, style, written
from topicjax.errors import counted


def test_values_are_short_but_distinct():
    values = [
        31.0723,
        310.723,
        0.00310723,
        3.10723e-4,
        1e-5,
        0.0,
        120000.0,
        1500,
        "cross_entropy",
        True,
        np.nan,
    ]
    expected = ["31", "310", "0.0031", "3.1e-4", "1e-5", "0", "1.2e5", "1500", "cross-entropy", "yes", "-"]
    assert [written(value, 2) for value in values] == expected
    assert distinct_texts([0.1, 0.101]) == ["0.1", "0.101"]
    assert distinct_texts([31.0723, 96.5489]) == ["31", "97"]
    assert [counted(count, "cell") for count in (0, 1, 2, 1234)] == [
        "0 cells",
        "1 cell",
        "2 cells",
        "1,234 cells",
    ]
    row = dict(optimizer="sgd", learning_rate=0.00965489, key_visibility="all", l2=1e-5, value="trained")
    assert described(row, row) == ["SGD", "η 0.00965", "keys all", "L2 1e-5", "W^V trained"]


def test_words_keep_their_underscores_and_controls_are_escapes():
    assert written("left_out") == "left_out" and label("left_out") == "left out"
    assert written("_x_\x1b\x00") == r"_x_\x1b\x00" and label("a\x1b") == r"a\x1b"
    assert distinct_texts(["a_b", "a b"]) == ["a_b", "a b"]


def test_control_characters_in_labels_leave_an_svg_well_formed(tmp_path):
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(1, 1))
        ax = figure.subplots()
        ax.set_title("\x1b[2J\x00 -- <b> & \ufffe")
        ax.set_xticks([0], ["\x07tick"])
        files = Picture(figure, "t", "c").save(tmp_path / "odd")
    assert ElementTree.parse(files[1]).getroot().tag.endswith("svg")
