"""Claims about deeper encoders: verdicts of models that are made for them."""

import numpy as np
import pytest
from support.layer_runs import EARLY, LATE, model, run_of
from support.synthetic_runs import STEP, ramp

from topicjax.analysis.encoder.claims import attention_by_layer, every_layer, layer_norm, whole_model
from topicjax.analysis.encoder.scores import score_layers

GOOD, VALUES_ONLY = (0.6 * EARLY, 0.1 * LATE), (0.6 * EARLY, 0.0)
LATER = (0.6 * ramp(500, 900), 0.1 * ramp(500, 900))
UP, DOWN, SAME = 0.01 * (1 + ramp(500, 900)), 0.01 * (1 - ramp(500, 900) / 2), 0.01 + 0 * STEP


def verdict_of(check, *made):
    run = run_of(*made)
    return check(run, score_layers(run))


@pytest.mark.parametrize(
    ("second", "layers", "whole"),
    [(GOOD, "holds", "holds"), (VALUES_ONLY, "partly", "holds"), (LATER, "partly", "partly")],
    ids=["good", "values only", "both later"],
)
def test_layers_and_whole_models_are_counted_by_cells(second, layers, whole):
    cells = [model([GOOD, GOOD], residual=True), model([GOOD, second], residual=False)]
    assert verdict_of(every_layer, *cells).verdict == layers
    found = verdict_of(whole_model, *cells)
    assert found.verdict == whole and found.numbers["cells"] == 2


def test_models_of_one_layer_or_without_learning_decide_nothing():
    for made in ([model([(1.2 * EARLY, 0.1 * LATE)])], [model([(0.0, 0.0)] * 2)]):
        assert verdict_of(every_layer, *made).verdict == "undecided"
        assert verdict_of(whole_model, *made).verdict == "undecided"


def test_errors_over_documents_that_could_change_the_class_are_counted():
    """P rises to 1.2 by step 500, Q from 430 on: Theta is just above 0.9, within the error below it."""
    P, Q = 0.6 * ramp(0, 500), 0.1 * ramp(430, 930)
    doubtful = dict(eval_value_se=0.2 * ramp(0, 1000), eval_gain_se=0.02 * ramp(0, 500))
    sure = verdict_of(whole_model, model([(P, Q)] * 2))
    unsure = verdict_of(whole_model, model([(P, Q)] * 2, **doubtful))
    assert sure.sentence.endswith("across 0.9 in 0.") and unsure.sentence.endswith("across 0.9 in 1.")


@pytest.mark.parametrize(
    ("masks", "verdict"), [([UP, UP], "holds"), ([UP, SAME], "partly"), ([DOWN, DOWN], "fails")]
)
def test_queries_of_mask_decide_about_attention_to_the_topic(masks, verdict):
    """Word queries do the opposite here."""
    words = [DOWN, DOWN] if verdict == "holds" else [UP, UP]
    found = verdict_of(
        attention_by_layer, model([GOOD, GOOD], attn_same_topic=words, attn_mask_same_topic=masks)
    )
    assert found.verdict == verdict
    assert found.numbers["mask_more"] == sum(own is UP for own in masks)
    assert found.numbers["more"] == (0 if verdict == "holds" else 2)
    assert found.sentence.index("[MASK] queries") < found.sentence.index("Word queries")


def test_without_queries_of_mask_those_of_words_decide():
    row, records, details = model([GOOD, GOOD], attn_same_topic=[UP, UP])
    older = (row, records, details.drop(columns=["attn_mask_same_topic", "attn_mask_diff_topic"]))
    found = verdict_of(attention_by_layer, older)
    assert found.verdict == "holds" and "[MASK] queries:" not in found.sentence
    row, records, details = model([GOOD, GOOD])
    unknown = (row, records, details.assign(attn_same_topic=np.nan, attn_mask_same_topic=np.nan))
    assert verdict_of(attention_by_layer, unknown).verdict == "undecided"


@pytest.mark.parametrize(
    ("with_norm", "verdict"), [([GOOD, GOOD], "fails"), ([LATER, LATER], "holds"), (None, "undecided")]
)
def test_layer_norms_are_judged_where_the_model_without_them_has_stages(with_norm, verdict):
    never = model([LATER, LATER], residual=False)  # not two-stage without norms: it says nothing about them
    made = [model([GOOD, GOOD], residual=True), never]
    if with_norm:
        made += [model(with_norm, residual=residual, layer_norm="pre") for residual in (True, False)]
    found = verdict_of(layer_norm, *made)
    assert found.verdict == verdict
    if with_norm:
        assert found.numbers["cells"] == 1 and f"pre-LN {int(verdict == 'fails')} of 1" in found.sentence
