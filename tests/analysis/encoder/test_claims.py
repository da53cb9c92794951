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


def doubtful():
    """Return a layer whose Theta is just above 0.9, and errors over documents that could move it below."""
    layer = (0.6 * ramp(0, 500), 0.1 * ramp(430, 930))
    errors = 0.01 * ramp(0, 500)
    return layer, dict(eval_gain_se=2 * errors, attention_gain_se=[errors, errors])


@pytest.mark.parametrize(
    ("first", "second", "layers", "whole"),
    [
        (GOOD, GOOD, "holds", "holds"),
        (GOOD, VALUES_ONLY, "partly", "holds"),
        (GOOD, LATER, "partly", "partly"),
        (LATER, LATER, "fails", "fails"),
        (VALUES_ONLY, GOOD, "fails", "partly"),
        (GOOD, None, "undecided", "undecided"),
        (LATER, None, "fails", "fails"),
    ],
)
def test_layers_and_whole_models_are_counted_by_cells(first, second, layers, whole):
    layer, errors = doubtful()
    other = model([first if second else layer, second or layer], output_projection=True)
    if second is None:
        other = model([layer, layer], output_projection=True, **errors)
    cells = [model([first, first]), other]
    found = verdict_of(every_layer, *cells)
    assert (found.verdict, found.numbers["undecided"]) == (layers, int(second is None))
    found = verdict_of(whole_model, *cells)
    assert found.verdict == whole and found.numbers["cells"] == 2
    assert found.numbers["undecided"] == (second is None)


def test_models_without_residual_connections_count_as_a_whole_only():
    bare = model([GOOD, GOOD], residual=False)
    assert verdict_of(every_layer, bare).verdict == "undecided"
    assert verdict_of(every_layer, bare, model([GOOD, VALUES_ONLY])).numbers == dict(
        cells=1, every=0, some=1, undecided=0
    )
    assert verdict_of(whole_model, bare).verdict == "holds"


def test_models_of_one_layer_or_without_learning_decide_nothing():
    for made in ([model([(1.2 * EARLY, 0.1 * LATE)])], [model([(0.0, 0.0)] * 2)]):
        assert verdict_of(every_layer, *made).verdict == "undecided"
        assert verdict_of(whole_model, *made).verdict == "undecided"


def test_cells_whose_class_documents_could_change_are_counted_apart():
    layer, errors = doubtful()
    sure = verdict_of(whole_model, model([layer, layer]))
    unsure = verdict_of(whole_model, model([layer, layer], **errors))
    assert "two-stage in 1 of 1 cell" in sure.sentence and "undecided in 0" in sure.sentence
    assert "two-stage in 0 of 1 cell" in unsure.sentence and "undecided in 1" in unsure.sentence
    assert (sure.verdict, unsure.verdict) == ("holds", "undecided")


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


@pytest.mark.parametrize("masks", [UP, DOWN], ids=["up", "down"])
def test_documents_without_kept_words_are_a_control_that_does_not_decide(masks):
    """With kept words the same model attends less to its topic, and without them more or less."""

    def made(layer, **settings):
        return model([GOOD, GOOD], attn_mask_same_topic=[layer, layer], **settings)

    usual = [made(DOWN), made(SAME, output_projection=True)]
    alone, both = usual, [*usual, made(masks, p_keep=0.0, p_random=0.0)]
    without, found = (verdict_of(attention_by_layer, *own) for own in (alone, both))
    assert found.verdict == without.verdict == "fails"
    assert found.numbers["mask_layers"] == without.numbers["mask_layers"] == 4
    control = {name: value for name, value in found.numbers.items() if name.startswith("control")}
    assert control == dict(
        control_layers=2,
        control_more=2 if masks is UP else 0,
        control_less=2 if masks is DOWN else 0,
        control_usual_layers=2,
        control_usual_less=2,
    )
    rises, falls = (2, 0) if masks is UP else (0, 2)
    assert (
        "Control without kept and random words, [MASK] queries: rises by at least 10% in "
        f"{rises} of 2 layers, falls by as much in {falls} and stays in 0" in found.sentence
    )
    assert "p_keep" in without.change and "p_keep" not in found.change


@pytest.mark.parametrize(
    ("with_norm", "verdict"), [([GOOD, GOOD], "fails"), ([LATER, LATER], "holds"), (None, "undecided")]
)
def test_layer_norms_are_judged_where_the_model_without_them_has_stages(with_norm, verdict):
    never = model([LATER, LATER], mlp=8)  # not two-stage without norms: it says nothing about them
    made = [model([GOOD, GOOD]), never]
    if with_norm:
        made += [model(with_norm, mlp=mlp, layer_norm="pre") for mlp in (0, 8)]
    found = verdict_of(layer_norm, *made)
    assert found.verdict == verdict
    if with_norm:
        assert found.numbers["cells"] == 1 and f"pre-LN {int(verdict == 'fails')} of 1" in found.sentence


def test_a_model_with_norms_whose_class_is_undecided_decides_nothing_about_them():
    layer, errors = doubtful()
    found = verdict_of(layer_norm, model([GOOD, GOOD]), model([layer, layer], layer_norm="pre", **errors))
    assert found.verdict == "undecided" and "pre-LN 0 of 1, 1 undecided" in found.sentence
