"""Entries and sentences of the probe's tables."""

import pytest

from topicjax.analysis.probe import findings
from topicjax.analysis.probe import tables as probe_tables


@pytest.mark.parametrize(("ratio", "text"), [(6.5, "6.50 ± 0.30"), (float("nan"), "-")])
def test_a_ratio_that_means_nothing_is_a_dash(ratio, text):
    """The probe gives no ratio to a mean near zero; both means and their difference stand all the same."""
    row = dict(
        cosine_ratio=ratio, cosine_ratio_se=0.3, cosine_different=0.00011, cosine_different_se=0.000034
    )
    assert probe_tables.entry(row, "cosine_ratio") == text
    assert probe_tables.entry(row, "cosine_different") == "0.000110 ± 0.000034"
    sentence = findings.times(row, "cosine_ratio")
    assert sentence == (", 6.50 ± 0.30 times" if ratio == 6.5 else "")
