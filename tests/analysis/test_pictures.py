"""Values, settings and counts as a reader writes them."""

import numpy as np

from topicjax.analysis.pictures import described, distinct_texts, written
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
