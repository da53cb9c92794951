"""Matrices of the page: block means, labels and attention on a document against plain loops."""

import numpy as np
import pandas as pd
import pytest
from support.small_models import one_hot_weights, settings
from support.synthetic_runs import make_run

from topicjax.analysis.one_layer import inside
from topicjax.analysis.one_layer.trained_models import effective_model
from topicjax.store.files import StoreError

TOPICS, WORDS = 3, 4


def run_with(weights: dict) -> tuple:
    """A run of one readable trial, one whose snapshot is damaged and one without weights."""
    row = settings(attention="trained", attention_dim=13) | dict(status="ok")
    rows = [
        row | dict(trial_id=name, snapshot_steps=(5,) * (name != "none")) for name in ("good", "bad", "none")
    ]

    def restore(trial_id: str) -> dict:
        if trial_id == "bad":
            raise StoreError("the snapshot is damaged")
        return weights

    run = make_run(pd.DataFrame(rows))
    run.restore = restore
    return run, row


@pytest.fixture
def made() -> tuple:
    rng = np.random.default_rng(0)
    weights = one_hot_weights(rng.normal(size=(13, 13)))
    weights |= {name: rng.normal(size=(13, 13)) for name in ("W_K", "W_Q")}
    run, row = run_with(weights)
    return run, row, effective_model(weights, row)


def test_blocks_are_means_over_pairs_of_words(made):
    run, _, model = made
    found = inside.topic_blocks(run, run.trials, ["good", "bad", "none"])
    assert list(found) == ["good"]
    S = model.S - model.S[1:].mean(axis=0)
    for name, matrix in (("W^V by topic", model.U), ("scores by topic", S)):
        frame = found["good"][name]
        for one in range(TOPICS):
            for other in range(TOPICS):
                pairs = [
                    matrix[1 + one * WORDS + i, 1 + other * WORDS + j]
                    for i in range(WORDS)
                    for j in range(WORDS)
                ]
                assert frame.iloc[one, other] == pytest.approx(np.mean(pairs), rel=1e-12)
    assert list(found["good"]["W^V by topic"].index) == ["1", "2", "3"]


def test_attention_on_a_document_is_that_of_its_positions(made):
    run, row, model = made
    found = inside.token_matrices(run, run.trials, ["good"])["good"]
    assert found["W^V"].index[:5].tolist() == ["[MASK]", "1", "1", "1", "1"]
    np.testing.assert_array_equal(found["W^V"].to_numpy(), model.U)
    keys = inside.sample_documents(row, None)[0]
    frame = found["log2(attention / uniform) on a document"]
    tokens, queries = sorted({*keys.tolist()}), sorted({0, *keys.tolist()})
    assert frame.shape == (len(tokens), len(queries)) and len(tokens) > 2
    for column, query in enumerate(queries):
        weight = {key: np.exp(model.S[key, query]) for key in tokens}
        total = sum(weight[key] for key in keys.tolist())
        expected = [np.log2(max(len(keys) * weight[key] / total, 2.0**-6)) for key in tokens]
        np.testing.assert_allclose(frame.iloc[:, column], expected, rtol=1e-9)
