"""The softmax control: Theta in each view, escapes, drifts and verdicts of trials made to have them."""

from typing import Any

import numpy as np
import pytest
from support.small_models import TOKENS, blocks, settings
from support.synthetic_runs import STEP, TWO_STAGE, case, ramp, run_of, score, scored

from topicjax.analysis.one_layer import attention_kinds as kinds
from topicjax.analysis.one_layer import budget, gradients, landscape
from topicjax.analysis.one_layer.scores import score_trials
from topicjax.analysis.one_layer.trained_models import EffectiveModel

TOGETHER = ramp(300, 500)
ESCAPES = {  # step at which |W^K| passes LEVEL, by kind and init scale
    "softmax": lambda scale: 40 * np.log(1 / scale),
    "one_plus_centred": lambda scale: 40 * np.log(1 / scale),
    "one_plus_scores": lambda scale: 20 * np.log(1 / scale),
    "scores_only": lambda scale: 0.5 / scale,
}


def trained(kind: str, seed: int = 0, scale: float = 1e-3, together: Any = None, **changed: Any) -> Any:
    """Make a trial that is two-stage in every view, or whose norms and losses move together at `together`."""
    settings = dict(attention_weights=kind, seed=seed, init_scale=scale, optimizer="sgd", learning_rate=2.0)
    P, Q = TWO_STAGE if together is None else (together, together)
    row, frame = case(P, Q, **settings | changed)
    last = dict(grad_norm_v=6.0, grad_norm_k=2.0, grad_norm_q=2.0)
    frame = frame.assign(**last, eval_loss_mask_query=frame["eval_loss_uniform"])
    if together is not None:
        same = np.sqrt(0.01 + 900 * together)  # |W^V|^2 - |W^K|^2 = 0
        frame = frame.assign(norm_v=same, norm_k=same, norm_q=same)
        uniform = frame["eval_loss"] + 0.2 * TWO_STAGE[1]
        frame["eval_loss_mask_query"] = uniform  # two-stage against this baseline
    return row, frame


def control(**changed: Any) -> Any:
    """Make three seeds of every kind; by default as predicted."""
    together = dict(scores_only=TOGETHER, one_plus_scores=TOGETHER) | changed
    cases = [trained(kind, seed, together=together.get(kind)) for kind in kinds.KINDS for seed in range(3)]
    return scored(*cases)


def test_the_second_baseline_is_scored_like_the_first() -> None:
    """Theta against the scores of [MASK] is that of a trial whose uniform loss is that loss."""
    row, frame = trained("scores_only", together=TOGETHER)
    swapped = frame.assign(eval_loss_uniform=frame["eval_loss_mask_query"])
    expected = score((row, swapped.drop(columns="eval_loss_mask_query"))).iloc[0]
    other = row, frame.assign(eval_loss_mask_query=np.nan)
    found, without = (score_trials(run_of((row, frame), other)).iloc[place] for place in (0, 1))
    for name in ("theta", "class", "onset_v", "max_attention"):
        assert found[f"{name}_mask_query"] == expected[name]
    assert abs(found["theta_mask_query"] - found["theta"]) > 0.1
    assert without["theta"] == found["theta"] and np.isnan(without["theta_mask_query"])
    assert "theta_mask_query" not in score(other)  # nobody asked for it
    assert "theta_mask_query" not in score((row, frame.drop(columns="eval_loss_mask_query")))


def test_kinds_as_predicted_hold_and_are_drawn() -> None:
    run, scores = control()
    assert kinds.has_kinds(run, scores) and kinds.has_linear(scores)
    table = kinds.kinds_table(run, scores).set_index("attention_weights")
    assert table.index.tolist() == list(kinds.KINDS)
    assert table["theta_norm"].to_numpy() == pytest.approx([1, 0.5, 0.5, 1], abs=0.01)
    assert table["drift"]["scores_only"] < 1e-12 < 0.5 < table["drift"]["softmax"]
    assert table["first_ratio"].to_numpy() == pytest.approx(3)
    verdict = kinds.mass_makes_stages(run, scores)
    assert (verdict.verdict, verdict.numbers) == ("holds", dict(settings=1, right=3, wrong=0))
    assert "S only |W^V|^2 - |W^K|^2 changes until the escape by at most" in verdict.sentence
    verdict = kinds.baseline_matters(run, scores)
    assert verdict.verdict == "holds" and verdict.numbers["softmax"] == 0
    for picture in kinds.kinds_figures(run, scores):
        assert "Θ by norms: " in picture.caption
        picture.close()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (dict(one_plus_centred=TOGETHER), "partly"),
        (dict(one_plus_centred=TOGETHER, scores_only=None, one_plus_scores=None), "fails"),
        (dict(softmax=TOGETHER), "undecided"),
    ],
)
def test_the_mass_of_attention_can_be_wrong(changed: dict[str, Any], expected: str) -> None:
    assert kinds.mass_makes_stages(*control(**changed)).verdict == expected


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (dict(scores_only=None, one_plus_scores=None), "partly"),  # no baseline matters
        (dict(softmax=TOGETHER), "partly"),  # both matter, for softmax too
        (dict(softmax=TOGETHER, scores_only=None, one_plus_scores=None), "fails"),
    ],
)
def test_the_baseline_can_matter_elsewhere(changed: dict[str, Any], expected: str) -> None:
    verdict = kinds.baseline_matters(*control(**changed))
    assert verdict.verdict == expected
    assert verdict.numbers["softmax"] == ("softmax" in changed)


def test_norms_that_do_not_move_have_no_theta() -> None:
    """Rises of a few per cent are noise: a stage that did not happen cannot be two-stage."""
    row, frame = trained("softmax")
    still = row, frame.assign(norm_k=1 + 0.1 * TWO_STAGE[1], norm_q=1 + 0.1 * TWO_STAGE[1])
    table = kinds.of_kinds(*scored(still, trained("scores_only", together=TOGETHER)))
    assert np.isnan(table["theta_norm"]).tolist() == [True, False]


def test_the_topical_contrast_does_not_depend_on_factors_and_signs_of_keys() -> None:
    """Weights 3 within topics and 1 between them; then a factor per key moves to the values."""
    weight, value, size = blocks(3.0, 3.0, 1.0), np.random.default_rng(0).normal(size=(TOKENS, TOKENS)), 12
    scores = dict(softmax=np.log(weight), one_plus_scores=weight - 1, scores_only=weight)
    scores["one_plus_centred"] = weight - 1 + np.arange(TOKENS)  # a number per query does not matter
    for kind, score_ in scores.items():
        model = EffectiveModel(value, score_, None, np.zeros(TOKENS))
        mean = (4 * 3 + 8) / size  # of the weights of a query: 1 + S centred has them minus this plus 1
        expected = 1 - (2 - mean) / (4 - mean) if kind == "one_plus_centred" else 2 / 3
        assert kinds.topical_contrast(model, settings(attention_weights=kind)) == pytest.approx(expected), (
            kind
        )
    factor = np.random.default_rng(1).normal(size=TOKENS)
    moved = EffectiveModel(value / factor, weight * factor[:, None], None, np.zeros(TOKENS))
    assert kinds.topical_contrast(moved, settings(attention_weights="scores_only")) == pytest.approx(2 / 3)


def test_one_kind_decides_nothing() -> None:
    run, scores = scored(trained("softmax"), trained("softmax", 1))
    assert not kinds.has_kinds(run, scores) and not kinds.has_escape(run, scores)
    for claim in kinds.CLAIMS:
        assert claim.check(run, scores).verdict == "undecided"


def escaping(kind: str, scale: float, law: Any = None) -> Any:
    """Make a trial whose |W^K| grows exponentially past LEVEL at a known step."""
    row, frame = trained(kind, scale=scale)
    return row, frame.assign(norm_k=np.minimum(np.exp((STEP - (law or ESCAPES[kind])(scale)) / 30), 5))


def test_escapes_are_read_and_their_laws_told_apart() -> None:
    scales = (1e-3, 3e-3, 1e-2)
    run, scores = scored(*(escaping(kind, scale) for kind in kinds.KINDS for scale in scales))
    table = kinds.of_kinds(run, scores)
    expected = [ESCAPES[kind](scale) for kind in kinds.KINDS for scale in scales]
    assert table["escape"].to_numpy() == pytest.approx(expected)
    assert table["escape_time"].to_numpy() == pytest.approx(2 * np.array(expected))
    laws = kinds.escape_laws(table).set_index("kind")
    assert laws["power"]["scores_only"] == pytest.approx(1)
    assert laws["times_scale"]["scores_only"] == pytest.approx(1)
    assert laws["per_decade"]["softmax"] == pytest.approx(2 * 40 * np.log(10))
    gains = laws[["least", "most"]].loc["softmax"].to_numpy()
    assert gains == pytest.approx(2 * 40 * np.log(10))
    assert laws["most"]["scores_only"] > 3 * laws["least"]["scores_only"]
    assert laws["power"]["softmax"] == pytest.approx(np.log(3 / 2) / np.log(10), rel=0.05)
    verdict = kinds.escapes_differ(run, scores)
    assert verdict.verdict == "holds" and verdict.numbers["power"] == pytest.approx(1)
    assert kinds.has_escape(run, scores)
    kinds.escape_figure(run, scores).close()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (dict(softmax=lambda scale: 30 * scale**-0.3), "partly"),  # a small power gains more in each decade
        (dict(softmax=lambda scale: 100 + 0 * scale), "partly"),  # no delay at all is not a logarithm
        (dict(scores_only=ESCAPES["softmax"], softmax=lambda scale: 30 * scale**-0.3), "fails"),
    ],
)
def test_laws_of_escape_can_be_wrong(changed: dict[str, Any], expected: str) -> None:
    laws = dict(softmax=ESCAPES["softmax"], scores_only=lambda scale: 0.08 / scale) | changed
    cases = [escaping(kind, scale, law) for kind, law in laws.items() for scale in (1e-4, 1e-3, 1e-2)]
    run, scores = scored(*cases)
    assert kinds.escapes_differ(run, scores).verdict == expected
    two = scored(*(case for case in cases if case[0]["init_scale"] > 1e-4))
    assert kinds.escapes_differ(*two).verdict == "undecided"  # two scales cannot tell a logarithm


def test_theory_of_softmax_leaves_the_others_out() -> None:
    run, scores = scored(*(escaping(kind, scale) for kind in kinds.KINDS for scale in (1e-3, 1e-2, 0.1)))
    assert {*budget.sgd_onsets(run)["attention_weights"]} == {"softmax"}
    assert {*gradients.first_gradients(run)["attention_weights"]} == {"softmax"}
    final = run.replace(trials=run.trials.assign(final_a_topic=1.0, final_a_self=0.0))
    assert {*landscape.points(final, scores)["attention_weights"]} == {"softmax"}
