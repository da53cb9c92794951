"""Topics or co-occurrence: shares in models and in documents, known by construction."""

from typing import Any

import numpy as np
import pytest
from support.synthetic_runs import TWO_STAGE, Case, case, ramp, scored

from topicjax.analysis.one_layer import co_occurrence
from topicjax.theory.documents import DataModel

SIZES = dict(topics=6, words_per_topic=6, key_visibility="unmasked")


def model(value: float, attention: float, strength: float, seed: int = 0, **changed: Any) -> Case:
    """Make a trial with these pair's shares; topics are learned by step 100, pairs 200 steps later."""
    row, frame = case(*TWO_STAGE, pair_strength=strength, seed=seed, **SIZES, **changed)
    columns = {}
    for share, names in ((value, ("v_block", "v_pair")), (attention, ("a_topic", "a_pair"))):
        pair, topic = share * ramp(200, 300), ramp(0, 100) - share * ramp(200, 300)
        columns |= dict(zip(names, (topic + pair / 5, pair), strict=True))
    return row, frame.assign(**columns, e_block=np.nan, e_pair=np.nan, attn_partner=0.1)


def test_shares_of_documents_are_those_of_their_moments() -> None:
    """By hand, for topic shares of Dirichlet(alpha): the second moments of partners, topics and others."""
    alpha, rho, T, v = 0.1, 0.3, 6, 6
    same, different = (alpha + 1) / (T * (T * alpha + 1)), alpha / (T * (T * alpha + 1))
    partner, topic, other = same * (1 - rho + 3 * rho) / v**2, same * (1 - rho) / v**2, different / v**2
    found = co_occurrence.document_shares(DataModel(pair_strength=rho, **SIZES))
    assert found["covariance"] == pytest.approx((partner - topic) / (partner - other))
    assert found["log_pmi"] == pytest.approx(np.log(partner / topic) / np.log(partner / other))
    assert found["log_pmi"] < found["covariance"] < found["best_value"] < 1
    vanished = co_occurrence.document_shares(DataModel(pair_strength=1 / 1.1, **SIZES))
    assert list(vanished.values()) == pytest.approx([1, 1, 1])


def test_parts_are_measured_from_step_0_and_at_half_of_their_rise() -> None:
    run, scores = scored(model(0.8, 0.4, 0.1), model(0.0, 0.0, 0.0))
    assert co_occurrence.is_paired(run, scores)
    rows = co_occurrence.pair_rows(run)
    own = rows[rows["pair_strength"] > 0].set_index("part")
    assert own["pair_share"].to_dict() == pytest.approx(dict(value=0.8, attention=0.4))
    assert own["step_topic"].tolist() == [50, 50] and own["step_pair"].tolist() == [250, 250]
    assert own["topic_kept"].tolist() == pytest.approx([0.2, 0.6])
    assert own.loc["value", "pair_part"] + own.loc["value", "topic_part"] == pytest.approx(1)
    assert not co_occurrence.is_paired(*scored(model(0.0, 0.0, 0.0)))


@pytest.mark.parametrize(
    ("shares", "verdict", "numbers"),
    [
        ([(0.05, 0.05), (0.06, 0.02)], "holds", dict(topic=2, counts=0, pair=0)),
        ([(0.9, 0.9), (0.8, 1.2)], "fails", dict(topic=0, counts=0, pair=2)),
        ([(0.2, 0.2), (0.9, 0.2)], "fails", dict(topic=0, counts=2, pair=0)),  # between, or seeds disagree
        ([(0.9, 0.05), (0.8, 0.05)], "partly", dict(topic=1, counts=0, pair=1)),
    ],
)
def test_models_follow_the_pair_or_the_topic_beyond_what_the_documents_count(
    shares: list, verdict: str, numbers: dict[str, int]
) -> None:
    """At strength 0.1 the covariance has a share of 0.27, log PMI of 0.11."""
    run, scores = scored(*(model(*own, 0.1, seed) for seed, own in enumerate(shares)), model(0.0, 0.0, 0.0))
    found = co_occurrence.topic_or_pair(run, scores)
    assert (found.verdict, found.numbers) == (verdict, numbers)
    assert "covariance of words 0.27 at 0.1" in found.sentence
    assert "Without ties they stand apart by at most 0%" in found.sentence


def test_the_claim_is_undecided_without_pairs_or_where_nothing_was_learned() -> None:
    assert co_occurrence.topic_or_pair(*scored(model(0.0, 0.0, 0.0))).verdict == "undecided"
    row, frame = model(0.0, 0.0, 0.3)
    still = row, frame.assign(v_block=0.0, v_pair=0.0, a_topic=0.0, a_pair=0.0)
    assert co_occurrence.topic_or_pair(*scored(still)).verdict == "undecided"
    vanished = model(1.0, 1.0, 1 / 1.1)
    assert co_occurrence.topic_or_pair(*scored(vanished)).verdict == "undecided"


def test_figures_and_table_cover_every_strength() -> None:
    cases = [model(0.8, 0.4, strength) for strength in (0.03, 0.1)]
    run, scores = scored(*cases, model(0.0, 0.0, 0.0), model(0.5, 0.5, 0.1, embedding="trained"))
    table = co_occurrence.pair_table(run, scores)
    assert table["pair_strength"].value_counts().to_dict() == {0.1: 5, 0.03: 2, 0.0: 2}
    courses = co_occurrence.pair_course(run, scores)
    assert [picture.title.split(": ")[1] for picture in courses] == [
        "one-hot embeddings",
        "trained embeddings",
    ]
    for picture in (co_occurrence.pair_figure(run, scores), *courses):
        picture.close()
