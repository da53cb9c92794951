"""Entries of the probe's tables."""

import pytest

from topicjax.analysis.probe import tables as probe_tables


@pytest.mark.parametrize(
    ("different", "error", "text"),
    [(0.02, 0.001, "6.50 ± 0.30"), (0.00011, 0.000034, "-"), (-0.00002, 0.00008, "-")],
)
def test_a_ratio_to_a_mean_near_zero_is_left_out(different, error, text):
    """Both means stand beside it; three standard errors from zero its own error means nothing."""
    row = dict(cosine_different=different, cosine_different_se=error, cosine_ratio=6.5, cosine_ratio_se=0.3)
    assert probe_tables.entry(row, "cosine_ratio") == text
    assert probe_tables.entry(row, "cosine_different") != "-"
