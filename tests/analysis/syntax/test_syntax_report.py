"""The page of runs on syntax and topics: curves of figures, numbers of tables, and claims that open it."""

import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from support.browsers import start_browser
from support.syntax_runs import EARLY, LATE, LINES, NEVER, folder_of, run_of, trial
from support.synthetic_runs import STEP

import topicjax
from topicjax.analysis.frames import reference_losses
from topicjax.analysis.page import report
from topicjax.analysis.page.html import MOST_ALSO
from topicjax.analysis.page.live import Live
from topicjax.analysis.syntax import figures, tables
from topicjax.analysis.syntax.page import LOOKS, PAGE
from topicjax.analysis.syntax.scores import CLASSES, V_CLASSES, score_syntax, syntax_cells
from topicjax.experiments.syntax.experiment import EXPERIMENT
from topicjax.sweep import product
from topicjax.sweeps.syntax import CLAIMS as ASKED

CLAIMS = ("Topics first", "One neighbour")


def grid():
    """Return four cells of one seed: topics first, together, syntax first, and syntax only."""
    kinds = {(0.1, 1.0): (LATE, EARLY), (0.1, 8.0): (EARLY, EARLY), (1.0, 1.0): (EARLY, LATE)}
    kinds[1.0, 8.0] = (EARLY, NEVER)
    return [trial(*pair, alpha=alpha, bias_gain=gain) for (alpha, gain), pair in kinds.items()]


@pytest.fixture(scope="module")
def scored():
    run = run_of(*grid())
    return run, score_syntax(run)


def lines_of(ax, label):
    return [line for line in ax.lines if line.get_label() == label]


def first_column(picture, rows):
    axes = picture.figure.axes
    assert len(axes) % rows == 0
    return axes[:: len(axes) // rows]


def test_the_square_has_a_curve_for_every_training(scored):
    picture = figures.square(*scored)
    panels = [ax for ax in picture.figure.axes if ax.get_xlabel() == figures.P_SYNTAX]
    assert [ax.get_title() for ax in panels] == ["alpha 0.1", "alpha 1"]
    curves = [line for line in panels[0].lines if len(line.get_xdata()) == len(STEP)]
    for line, (syntax, topic) in zip(curves, [(LATE, EARLY), (EARLY, EARLY)], strict=True):
        np.testing.assert_allclose(line.get_xdata(), syntax, atol=1e-9)
        np.testing.assert_allclose(line.get_ydata(), topic, atol=1e-9)
    dots = [line.get_xydata()[0] for line in panels[0].lines if line.get_marker() == "o"]
    np.testing.assert_allclose(
        dots[:3], [(0, 1), (0.25, 1), (1, 1)], atol=1e-9
    )  # at 20, 50 and 80 % of steps
    assert "Each line is one trial." in picture.caption


def test_ratios_are_drawn_with_bounds_where_one_is_never_half_way(scored):
    (against_alpha, against_gain) = figures.order_ratio(*scored)
    assert "against alpha" in against_alpha.title and "bias gain" in against_gain.title
    (ax,) = [ax for ax in against_alpha.figure.axes if ax.get_yscale() == "log"]
    drawn = {marker: [] for marker in "o^v"}
    for line in ax.lines:
        if line.get_marker() in drawn:
            drawn[line.get_marker()] += line.get_xydata().tolist()
    np.testing.assert_allclose(sorted(drawn["o"]), [(0.1, 1 / 6), (0.1, 1.0), (1.0, 6.0)], rtol=0.02)
    np.testing.assert_allclose(drawn["^"], [(1.0, 10.0)], rtol=0.02)  # the last step, 1000, by 100
    assert not drawn["v"] and "Triangles are bounds" in against_alpha.caption


def test_examples_have_lines_and_half_way_steps(scored):
    (picture, *_) = figures.examples(*scored)
    loss, progress, *_ = first_column(picture, len(figures.ROWS))
    heights = {line.get_ydata()[0] for line in loss.lines if len(set(np.atleast_1d(line.get_ydata()))) == 1}
    assert {4.0, 3.4, 3.0, 2.4, 3.06, 3.02} <= heights
    marks = [line.get_xdata()[0] for line in progress.lines if list(line.get_ydata()) == [0, 1]]
    assert marks == pytest.approx([100, 600], abs=1)  # syntax first: syntax, then topics
    (curve,) = lines_of(progress, figures.P_SYNTAX)
    assert np.interp(100, curve.get_xdata(), curve.get_ydata()) == pytest.approx(0.5, abs=0.01)


def test_changed_models_are_measured_by_the_same_progress(scored):
    """A class part of 1.9 is half of the gain above unigram, 1.4; a topic part of 0.7 is half way to best."""
    (picture, *_) = figures.changed(*scored)
    syntax, topic = first_column(picture, 2)
    for name in ("uniform", "redrawn"):
        (line,) = lines_of(syntax, name)
        assert set(np.round(line.get_ydata(), 9)) == {-0.5}
        (line,) = lines_of(topic, name)
        assert set(np.round(line.get_ydata(), 9)) == {0.5}
    table = tables.changed_models(*scored)
    assert table["syntax_uniform"].tolist() == pytest.approx([-0.5] * 4)
    assert table["syntax_trained"].tolist() == pytest.approx([1.0] * 4)


def test_tables_have_a_row_per_cell_with_steps_and_lines(scored):
    steps = tables.half_way_steps(*scored)
    assert steps["syntax_50"].tolist() == pytest.approx([600, 100, 100, 100], abs=1)
    assert steps["topic_20"].tolist() == pytest.approx([40, 40, 480, 400], abs=1)
    losses = tables.final_losses(*scored)
    assert losses["class_loss"].tolist() == pytest.approx([0.4] * 4)
    assert losses["topic_loss"].tolist() == pytest.approx([0.4, 0.4, 0.4, 0.76])
    assert losses["line_both"].tolist() == [2.4] * 4 and losses["line_class_best"].tolist() == [0.4] * 4
    assert tables.classes(*scored)["class"].tolist() == [
        *("topics first", "together", "syntax first", "syntax only")
    ]
    known = {*tables.HEADERS, *(name for name in scored[0].setting_names)}
    ends = tuple(f"_{name}" for name in ("se", "error"))
    for table in (steps, tables.classes(*scored), tables.v_before_scores(*scored)):
        plain = {name for name in table if not name.endswith(ends)}
        assert plain - known <= {"trials", "diverged", "last_step", "class"}, plain - known


def test_the_explorer_draws_the_lines_of_the_held_out_documents(scored):
    lines = reference_losses(scored[0], PAGE.references)
    assert lines.iloc[0].to_dict() == {name: LINES[name] for name in PAGE.references}
    assert len(PAGE.references) == 4 and all(name.startswith("held_out_") for name in PAGE.references)


def test_every_class_has_a_look():
    assert {*CLASSES, *V_CLASSES} == {*LOOKS}
    assert {claim.shown_by for claim in PAGE.claims} <= names_of(PAGE.lead, PAGE.figures, PAGE.tables)


def names_of(*groups):
    entries = [
        entry
        for own in groups
        for part in (own.values() if isinstance(own, dict) else [own])
        for entry in part
    ]
    return {entry.name for entry in entries}


def opening(folder, names):
    """Write the page and check that it opens with these claims; return its text."""
    page = report.write(folder).read_text()
    text = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
    places = [text.index(name) for name in names]
    assert places == sorted(places) and places[-1] < text.index("Which is learned first: syntax or topics")
    assert "defect" not in text and "Not drawn:" not in text.split("Map of classes")[0]
    return text


@pytest.mark.slow
def test_the_page_of_a_synthetic_run_opens_with_its_claims(tmp_path):
    folder = folder_of(tmp_path / "run", *grid(), claims=list(CLAIMS), description="Which is first?")
    text = opening(folder, CLAIMS)
    assert "Topics first: partly. Topics first in 1 of 4 cells" in text


def test_the_map_is_on_the_first_screen_of_a_phone(tmp_path):
    """The sweep asks twelve things; the answer names the first ones and folds the rest."""
    live = Live(1e6, 4, "12:00")  # without the figures
    question = "Which does a transformer learn first, syntax or topics?"
    asked = dict(claims=list(ASKED), description=question, planned=4)
    page = report.write(folder_of(tmp_path / "run", *grid(), **asked), live=live)
    phone = start_browser(390, 844)
    try:
        phone.get(page.as_uri())
        also = phone.find_element("css selector", ".also")
        shown = [link.text for link in also.find_elements("css selector", "a") if link.is_displayed()]
        assert [text.split(":")[0] for text in shown] == [*ASKED[1 : 1 + MOST_ALSO]]
        top = "return document.querySelector('#explorer .cell').getBoundingClientRect().top"
        folded = phone.execute_script(top)
        assert folded < 844 * 2 / 3
        also.find_element("css selector", "summary").click()
        assert phone.execute_script(top) > folded + 20
        shown = [link.text for link in also.find_elements("css selector", "a") if link.is_displayed()]
        assert [text.split(":")[0] for text in shown] == [*ASKED[1:]]
    finally:
        phone.quit()


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_the_page_of_a_trained_run_opens_with_its_claims(layers, tmp_path):
    """A few steps of a small model: nothing is learned, and the page says so."""
    base = dict(
        topics=3, words_per_topic=2, words_per_class=2, width=8, heads=2, batch_size=8, eval_documents=128
    )
    base |= dict(length_min=12, length_max=16, steps=40, record_every=2, rare_every=5, learning_rate=0.03)
    sweep = product(alpha=(0.1, 1.0), bias_gain=(1.0, 8.0), seed=(0, 1))
    run = topicjax.sweep(
        replace(EXPERIMENT), sweep, tmp_path / "run", base | dict(layers=layers), devices=jax.devices()[:1]
    )
    assert len(run.trials) == 8 and (run.trials["status"] == "ok").all()
    losses = run.trajectories.groupby("trial_id")["eval_loss"]
    assert (losses.last() < losses.first()).all()
    parts = run.trajectories[["eval_class", "eval_topic", "eval_word"]].sum(axis=1)
    np.testing.assert_allclose(parts, run.trajectories["eval_loss"], rtol=1e-5)
    scores = score_syntax(PAGE.prepare(run))
    assert (scores["class"] != "unscored").all()
    learned = (syntax_cells(PAGE.prepare(run), scores)["side"] != "").any()
    opening(run.folder, ["Which is learned first?" if learned else "In none of 4 cells"])
