"""The report of runs on text: shapes of norms by construction, the unigram line, sentences and figures."""

import numpy as np
import pytest
from support.layer_runs import folder_of, model, run_of
from support.synthetic_runs import STEP, ramp

from topicjax.analysis.page import report
from topicjax.analysis.text import claims, figures, findings, tables
from topicjax.analysis.text.scores import FIGURE5, LEADS, STILL, TOGETHER, score_text, text_cells

LINE = dict(eval_loss_unigram=4.0, eval_context_se=0.3)
FLAT = 5.0 + 0 * STEP
FALLING = 5.0 - 2.0 * ramp(0, 1000)  # passes the line at step 500


def norms(value, attention):
    return 0.1 + np.asarray(value), 0.1 + np.asarray(attention)


def layers(*pairs, loss=FLAT, **settings):
    """Return a model whose layers have these rises of V, and of K and Q."""
    value, attention = zip(*(norms(*pair) for pair in pairs), strict=True)
    changed = dict(norm_v=list(value), norm_k=list(attention), eval_loss=loss, **LINE)
    return model([(0.1, 0.0)] * len(pairs), **changed, **settings)


SHAPED = (ramp(0, 100), ramp(400, 600))
LEADING = (ramp(0, 400), ramp(100, 500))
SAME = (ramp(0, 400), ramp(0, 400))
SMALL = (0.05 * ramp(0, 100), ramp(400, 600))


def grid():
    """Return three cells of two seeds: V first without context, mixed with context, one that hardly moves."""
    made = []
    for seed in range(2):
        made.append(layers(SHAPED, SHAPED, seed=seed, learning_rate=1e-4))
        made.append(layers(SHAPED, LEADING, loss=FALLING, seed=seed, learning_rate=1e-3))
        made.append(layers(SAME, SMALL, loss=FALLING, seed=seed, learning_rate=1e-2))
    return made


@pytest.fixture(scope="module")
def scored():
    run = run_of(*grid())
    return run, score_text(run)


def test_shapes_are_those_of_the_norms(scored):
    cells = text_cells(*scored)
    assert cells["shape"].tolist() == [FIGURE5, FIGURE5, FIGURE5, LEADS, TOGETHER, STILL]
    first = cells.iloc[0]
    assert (first["onset_v"], first["onset_a"]) == pytest.approx((50, 500), abs=1)
    assert first["attention_then"] == pytest.approx(0, abs=1e-9) and first["growth_v"] == pytest.approx(11)
    assert cells["attention_then"].iloc[3] == pytest.approx(0.25, abs=0.01)


def test_the_step_at_which_the_loss_passes_the_line(scored):
    cells = text_cells(*scored)
    assert np.isnan(cells["passed"].iloc[0]) and cells["passed"].iloc[2] == pytest.approx(500, abs=1)
    assert cells["seeds_passed"].tolist() == [0, 0, 2, 2, 2, 2]
    assert cells["seeds_before"].tolist()[:2] == [2, 2]  # never passed: K and Q came before


def test_norms_and_losses_are_read_where_context_is_surely_used():
    """The error is 0.3, so the loss is below the line by two errors at step 800."""
    uniform = FALLING + 0.5 * ramp(600, 1000)  # at step 800 a quarter of a nat above the loss
    model = layers(LEADING, (ramp(600, 1000), ramp(700, 900)), loss=FALLING, eval_loss_uniform=uniform)
    cells = text_cells(*(run := run_of(model), score_text(run)))
    assert cells["passed_surely"].tolist() == pytest.approx([800, 800], abs=1)
    assert cells["v_by_then"].tolist() == pytest.approx([1, 0.5], abs=0.01)
    assert cells["a_by_then"].tolist() == pytest.approx([1, 0.5], abs=0.01)
    assert cells["v_around"].tolist() == pytest.approx([0, 1], abs=0.01)  # from step 400 to the end, 1,000
    assert cells["a_around"].tolist() == pytest.approx([0.25, 1], abs=0.01)
    assert cells["uniform_then"].tolist() == pytest.approx([0.35] * 2, abs=0.01)
    assert cells["trained_then"].tolist() == pytest.approx([0.25] * 2, abs=0.01)
    assert cells["uniform_below"].tolist() == pytest.approx([0.5] * 2, abs=0.01)
    (_, near) = tables.context_stages(run, score_text(run)).to_dict("records")
    assert near["K, Q's rise by then"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("uniform", "trained", "kind", "theta"),
    [
        (ramp(0, 400), ramp(600, 1000), "uniform attention first", 1.0),
        (ramp(0, 1000), ramp(0, 1000), "uniform attention not first", 0.5),
        (ramp(600, 1000), ramp(0, 400), "uniform attention not first", 0.0),
        (ramp(0, 400), 0.0, "uniform attention only", np.nan),
        (0.1 * ramp(0, 400), 0.1 * ramp(600, 1000), "no context", np.nan),
    ],
)
def test_context_comes_through_uniform_attention_first_or_not(uniform, trained, kind, theta):
    """Each gains up to a nat below the line, above which the loss starts; the error is 0.3."""
    above = 1 - ramp(0, 10)
    loss = LINE["eval_loss_unigram"] + above - uniform
    run = run_of(layers(SHAPED, SAME, loss=loss - trained, eval_loss_uniform=loss))
    scores = score_text(run)
    assert scores["class_context"].tolist() == [kind] * 2
    np.testing.assert_allclose(scores["theta_context"], theta, atol=0.02)
    np.testing.assert_allclose(scores["theta"], [1, 0.5], atol=0.02)  # of the norms of each layer


@pytest.mark.parametrize(
    ("pairs", "used", "stages"),
    [
        (((ramp(0, 100), ramp(600, 1000)),) * 2, "holds", "holds"),
        ((LEADING, (ramp(0, 100), ramp(600, 1000))), "holds", "partly"),
        ((LEADING, LEADING), "holds", "fails"),
        (None, "fails", "undecided"),
    ],
    ids=["with it", "one of two", "before it", "never"],
)
def test_claims_about_context(pairs, used, stages):
    made = [layers(*pairs, loss=FALLING) if pairs else layers(SHAPED, LEADING)]
    run = run_of(*made)
    scores = score_text(run)
    first, second = claims.context(run, scores), claims.context_stages(run, scores)
    assert (first.verdict, second.verdict) == (used, stages)
    if pairs:
        said = "at step 800 in 1 of 1 seed, in the end by 1.000 nats, of which uniform attention has 1.00."
        assert said in first.sentence
        near = {"holds": 2, "partly": 1, "fails": 0}[stages]
        assert second.numbers == dict(layers=2, near=near)
        assert f"is passed in {near} of 2 layers, earlier in {2 - near}, later in 0" in second.sentence


FALLEN = {"below": FALLING, "above": FLAT, "near": 5.0 - 1.1 * ramp(0, 1000)}  # the error is 0.3


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        (("below", "below"), "holds"),
        (("above", "above"), "fails"),
        (("below", "above"), "partly"),
        (("below", "near"), "partly"),
        (("near", "near"), "undecided"),
        (("above", "near"), "undecided"),
    ],
)
def test_context_is_judged_after_the_most_steps(cells, verdict):
    """Each cell has its own rate; trials of fewer steps would all say the opposite."""
    made = [
        layers(SHAPED, loss=FALLEN[kind], learning_rate=rate, steps=1000)
        for kind, rate in zip(cells, (1e-3, 1e-2), strict=True)
    ]
    opposite = FLAT if verdict == "holds" else FALLING
    made += [layers(SHAPED, loss=opposite, learning_rate=1e-4, seed=seed, steps=500) for seed in range(2)]
    run = run_of(*made)
    found = claims.context(run, score_text(run))
    assert found.verdict == verdict
    assert found.numbers == dict(cells=2, below=cells.count("below"), above=cells.count("above"))
    assert "After 1,000 steps" in found.sentence and "2 trials of fewer steps do not count" in found.sentence


def test_the_passing_step_and_the_share_of_uniform_attention_have_their_range_over_seeds():
    """Falling by 2, 2.5 and 4 nats from 5, it is 0.6 below 4 at 0.8, 0.64 and 0.4 of the steps."""
    made = [
        layers(SHAPED, loss=(loss := 5.0 - fall * ramp(0, 1000)), eval_loss_uniform=loss + added, seed=seed)
        for seed, (fall, added) in enumerate([(2.0, 0.5), (2.5, 0.3), (4.0, 0.3)])
    ]
    run = run_of(*made)
    sentence = claims.context(run, score_text(run)).sentence
    assert "at step 640 (400 to 800) in 3 of 3 seeds, in the end by 1.500 (1.000 to 3.000) nats" in sentence
    assert "of which uniform attention has 0.80 (0.50 to 0.90)." in sentence


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ((SHAPED, SHAPED), "holds"),
        ((SHAPED, SAME), "partly"),
        ((LEADING, LEADING), "partly"),
        ((SAME, SAME), "fails"),
        ((SMALL, SMALL), "undecided"),
    ],
)
def test_the_shape_of_figure_5_is_judged_by_its_layers(pairs, verdict):
    run = run_of(*(layers(*pairs, seed=seed, steps=steps) for seed in range(2) for steps in (400, 1000)))
    found = claims.figure5(run, score_text(run))
    assert found.verdict == verdict
    if verdict == "holds":
        for steps in ("400", "1,000"):
            assert f"After {steps} steps V is first in 2 of 2 layers" in found.sentence
        assert "V is half way at step 50 (50 to 50), K and Q at 500 (500 to 500)" in found.sentence


def test_losses_may_be_measured_at_some_records_only(scored):
    rare = [*LINE, "eval_loss", "eval_loss_uniform", "eval_loss_silent"]
    run = run_of(*grid())
    between = run.trajectories["step"] % 50 > 0
    run = run.replace(
        trials=run.trials.assign(rare_every=5),
        trajectories=run.trajectories.assign(**{name: run.trajectories[name].mask(between) for name in rare}),
    )
    cells, usual = text_cells(run, score_text(run)), text_cells(*scored)
    for name in ("shape", "onset_v", "onset_a", "passed", "passed_surely", "below", "unigram"):
        assert cells[name].equals(usual[name]), name
    (picture, *_) = figures.text_layers(run, score_text(run))
    drawn = [line for line in picture.figure.axes[-1].lines if len(line.get_xdata()) > 2]
    assert drawn and all(np.isfinite(np.asarray(line.get_ydata(), float)).all() for line in drawn)


def test_the_answer_comes_first(scored):
    said = list(findings.findings(*scored, None, None))
    assert "In part: in every layer of 1 of 3 cells, in some layers of 1, in none of 1." in said[0]
    assert "these have begun by then, in 1 of 6 layers." in said[0]
    assert "the loss passes the unigram line (2 of them in cells that never pass it)" in said[1]
    joined = " ".join(said)
    assert "η 1e-4 2 of 2, η 0.001 1 of 2, η 0.01 0 of 2" in joined
    assert "layer 2: 1 V first, 1 V leads, 1 hardly moves" in joined
    assert "The loss passes the unigram line in 2 of 3 cells, at step 500 to 500" in joined
    assert "at the end it is below it in 2, in 2 by more than 2 standard errors" in joined
    assert "held-out windows (0.300 nats)" in joined
    assert "The seeds disagree on the shape of 0 of 6 layers." in joined
    assert "1.000 nats below the unigram line of 4.000" in joined


def test_figures_have_the_line_and_the_step(scored):
    pictures = figures.text_layers(*scored)
    assert len(pictures) == 2
    first = pictures[0].figure.axes
    assert len(first) == 10
    assert any(list(line.get_ydata()) == [4.0, 4.0] for line in first[8].lines)
    assert not any(list(line.get_ydata()) == [0, 1] for line in first[0].lines)  # never passed
    marked = [line for line in first[1].lines if list(line.get_ydata()) == [0, 1]]
    assert [line.get_xdata()[0] for line in marked] == [pytest.approx(800, abs=1)]


def test_tables_have_a_row_per_cell_and_layer(scored):
    losses = tables.text_losses(*scored)
    assert losses["unigram_line"].tolist() == [4.0] * 3
    assert losses["loss"].tolist() == pytest.approx([5, 3, 3], abs=1e-6)
    assert losses["below_unigram"].tolist() == pytest.approx([-1, 1, 1], abs=1e-6)
    assert losses["below_unigram_se"].tolist() == pytest.approx([0.3] * 3)
    assert len(tables.layer_shapes(*scored)) == 6


def test_a_difference_within_its_error_is_no_use_of_context():
    run = run_of(*(layers(SAME, loss=5.0 - 1.1 * ramp(0, 1000), seed=seed) for seed in range(2)))
    joined = " ".join(findings.findings(run, score_text(run), None, None))
    assert "at the end it is below it in 1, in 0 by more than 2 standard errors" in joined


def test_a_page_is_written(tmp_path):
    runs = [dict(experiment="text", description="Is it Figure 5?")]
    folder = folder_of(tmp_path / "run", *grid(), runs=runs, references=[])
    page = report.write(folder).read_text()
    assert "Does the shape of the paper" in page and "defect" not in page and "Not drawn" not in page
