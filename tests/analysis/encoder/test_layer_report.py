"""The report of deeper models: sentences, tables and drawn numbers by construction, and poor runs."""

import re

import numpy as np
import pandas as pd
import pytest
from support.layer_runs import EARLY, LATE, folder_of, model, run_of
from support.synthetic_runs import STEP, ramp

from topicjax.analysis.encoder import figures, findings, layer_maps, tables
from topicjax.analysis.encoder import page as encoder
from topicjax.analysis.encoder.scores import score_layers
from topicjax.analysis.page import report
from topicjax.analysis.pictures import Picture

GOOD = (0.6 * EARLY, 0.1 * LATE)
VALUES_ONLY = (0.6 * EARLY, 0.0)
TOGETHER = (0.6 * ramp(0, 500), 0.1 * ramp(0, 500))
SAME = ([0.01 + 0 * STEP, 0.04 + 0 * STEP],)


def grid():
    """Return four cells of two layers with two seeds: two-stage in every layer, in one, in none, and broken.

    A fifth cell has one layer.  In the first the second layer starts first, in the second both together.
    """
    early, late = 0.1 * ramp(200, 300), 0.1 * ramp(600, 700)
    made = []
    for seed in range(2):
        cell = dict(seed=seed, attn_same_topic=SAME[0])
        made.append(model([GOOD, GOOD], entropy_deficit=[late, early], output_projection=True, **cell))
        made.append(model([GOOD, VALUES_ONLY], entropy_deficit=[late, late], output_projection=False, **cell))
        made.append(model([TOGETHER, TOGETHER], output_projection=True, layer_norm="pre", **cell))
        made.append(model([(0.0, 0.0)] * 2, output_projection=False, layer_norm="pre", **cell))
        made.append(model([(1.2 * EARLY, 0.1 * LATE)], output_projection=True, seed=seed))
    row, records, details = made[8]
    made[8] = (row | dict(status="diverged", diverged_step=10), records.assign(eval_loss=np.nan), details)
    return made


@pytest.fixture(scope="module")
def scored():
    run = run_of(*grid())
    return run, score_layers(run)


def said(run, scores):
    return " ".join(findings.findings(run, scores, None, None))


def test_the_answer_counts_the_cells_by_their_layers(scored):
    text = said(*scored)
    assert (
        "Not always: of 3 cells with several layers that learned, 1 is two-stage (V first, then attention) "
        "in every layer, 1 in some, 1 in none, 0 are undecided." in text
    )
    assert (
        "Scored as a whole, 2 of 3 such models are two-stage and 0 undecided; 1 of those that are two-stage "
        "are not so in every layer." in text
    )
    assert "Of 1 cell with one layer, 1 is two-stage." in text
    assert "no LN 1 (+1) of 2, pre-LN 0 (+0) of 1; no W^O 0 (+1) of 1, W^O 1 (+0) of 2." in text
    assert "layer 1: 2 two-stage, 1 simultaneous; layer 2: 1 V-only, 1 two-stage, 1 simultaneous." in text
    assert "Attention leaves its start: last layer first in 1, together in 2 of 3 cells." in text
    assert "Cells that are not scored: 1 diverged." in text  # one of its two trials: a tie


def test_the_sensitivity_counts_the_models_and_layers_whose_class_changes():
    """A layer with 4 % of Q, a model with Theta 0.92, and one whose Q of 0.1 is between 2 and 3 errors."""
    small = model([(0.6 * EARLY, 0.192 * LATE), (0.6 * EARLY, 0.008 * LATE)])
    near = model([(0.6 * ramp(0, 500), 0.1 * ramp(420, 920))] * 2, mlp=8)
    errors = dict(eval_gain_se=0.04, attention_gain_se=[0.02, 0.02])
    unsure = model([(0.6 * EARLY, 0.05 * LATE)] * 2, mlp=16, **errors)
    bare = model([GOOD, GOOD], residual=False)
    run = run_of(small, near, unsure, bare)
    assert (
        "the numbers of 4 whole models and of 6 single layers whose class changes: moved beyond 3 standard "
        "errors (with 2: 1 and 2, with 4: 0 and 0); moved beyond 5 % of the whole (with 2.5: 0 and 1, with "
        "10: 0 and 0); two-stage from Θ 0.9 on (with 0.85: 0 and 0, with 0.95: 1 and 2)."
        in said(run, score_layers(run))
    )


def test_controls_are_compared_with_the_same_models():
    """Each changed model is compared with the one of the same layer norms."""
    late = (0.6 * ramp(500, 900), 0.1 * ramp(500, 900))
    made = [
        model([GOOD, GOOD]),
        model([GOOD, GOOD], layer_norm="pre"),
        model([late, late], layer_norm="post"),
    ]
    made += [model([late, late], p_keep=0.0, p_random=0.0), model([GOOD, GOOD], width=16, layer_norm="post")]
    run = run_of(*made)
    assert (
        "One thing changed at a time, whole models: p keep 0: 0 two-stage, 0 undecided (median Θ 0.50) of 1, "
        "without the change 1 two-stage, 0 undecided (median Θ 1.00); width 16: 1 two-stage, 0 undecided "
        "(median Θ 1.00) of 1, without the change 0 two-stage, 0 undecided (median Θ 0.50)."
        in said(run, score_layers(run))
    )


def test_norms_that_mislead_are_counted():
    """The norms of the values-only layer draw two stages; those of the two-stage layer rise together."""
    norms = dict(norm_v=[0.1 + EARLY, 0.1 + EARLY], norm_k=[0.1 + EARLY, 0.1 + LATE])
    run = run_of(model([GOOD, VALUES_ONLY], **norms))
    assert (
        "they disagree with the loss on the class of 2 of 2 layers. They call 1 two-stage, 1 of them wrongly "
        "(1 V-only), and miss 1 of the 1 that are two-stage by the loss." in said(run, score_layers(run))
    )
    agree = run_of(model([GOOD, GOOD]))
    assert "Norms and loss give all 2 layers the same class." in said(agree, score_layers(agree))


def test_topics_are_counted_by_the_ratio_of_both_means(scored):
    """Same topic .01 and .04 in the two layers, other topics .01: ratios 1 and 4; none changes."""
    text = said(*scored)
    assert "and in 9 the ratio has changed by less than 10%" in text
    assert "in the deepest models layer 1 1.00, layer 2 4.00" in text


def test_the_table_of_losses_has_means_errors_and_lines(scored):
    table = tables.layer_losses(*scored)
    is_first = (table["layers"] == 2) & table["output_projection"] & (table["layer_norm"] == "none")
    first = table.loc[is_first].iloc[0]
    assert first["loss"] == pytest.approx(4.6 - 1.2 - 0.2)
    assert first["attention_adds"] == pytest.approx(0.2) and first["values_add"] == pytest.approx(1.2)
    assert first["loss_se"] == pytest.approx(0.0)  # both seeds are equal
    assert first[["stage 1 line", "stage 2 line", "Bayes line"]].tolist() == [3.4, 3.3, 2.9]
    assert first["attention_starts"] == "2 < 1" and first["two_stage_in"] == "every layer"
    alone = run_of(model([GOOD, GOOD], eval_gain_se=0.03, eval_value_se=0.02))
    one = tables.layer_losses(alone, score_layers(alone)).iloc[0]
    assert one[["loss_se", "attention_adds_se", "values_add_se"]].tolist() == [0.01, 0.03, 0.02]


def test_the_table_of_answers_counts_by_setting(scored):
    table = tables.layer_answers(*scored).set_index("value")
    columns = ["cells", "every layer", "some layers", "no layer", "all layers together"]
    assert table.loc["2 layers", columns].tolist() == [4, 1, 1, 2, 2]
    assert table.loc["no W^O", columns].tolist() == [2, 0, 1, 1, 1]
    assert (table[["undecided", "whole only", "all layers together undecided"]] == 0).all(axis=None)


def test_the_table_of_layers_has_a_row_per_cell_and_layer(scored):
    table = tables.layer_stages(*scored)
    assert len(table) == 4 * 3 + 2
    own = table.loc[~table["output_projection"] & (table["layer_norm"] == "none")]
    assert own["class"].tolist() == ["two-stage", "two-stage", "V-only"]
    assert own["Θ"].tolist() == pytest.approx([1, 1, np.nan], nan_ok=True)
    assert own["V half way"].tolist() == pytest.approx([50] * 3)
    assert own["attention half way"].tolist() == pytest.approx([500, 500, np.nan], nan_ok=True)


def test_panels_of_layers_draw_the_medians_of_their_seeds():
    gains = (0.1, 0.2, 0.4)
    run = run_of(*(model([GOOD, (0.6 * EARLY, gain * LATE)], seed=n) for n, gain in enumerate(gains)))
    (picture,) = figures.layers(run, score_layers(run))
    axes = picture.figure.axes
    assert len(axes) == len(figures.ROWS)
    whole, first, second, _ = axes[-1].lines  # Q: all layers, layer 1, layer 2, the line at 0
    assert np.asarray(first.get_ydata()) == pytest.approx(0.1 * LATE)
    assert np.asarray(second.get_ydata()) == pytest.approx(0.2 * LATE)
    assert np.asarray(whole.get_ydata()) == pytest.approx(0.3 * LATE)
    assert first.get_color() != second.get_color()
    assert "3 trials each" in picture.caption and "layers 1-2: two-stage" in axes[0].get_title()


def test_examples_are_one_of_each_kind_the_clearest_first(scored):
    run, scores = scored
    table = tables.models(run, scores)
    names = tables.telling_settings(run)
    chosen = figures.example_cells(table, names, 3)
    rows = table.set_index("cell").loc[chosen]
    assert rows["depth"].tolist() == [2, 2, 2]
    assert rows["two_stage_layers"].tolist() == [2, 1, 0]
    assert len(rows[["output_projection", "layer_norm"]].drop_duplicates()) == 3


def test_the_map_has_a_square_per_cell_and_layer(scored, tmp_path):
    pictures = layer_maps.layer_map(*scored)
    assert all(file.stat().st_size > 1000 for file in pictures[1].save(tmp_path / "map"))
    assert [picture.title for picture in pictures] == [
        "Classes by layer, 2 layers",
        "Classes by layer, 1 layer",
    ]
    (ax,) = pictures[0].figure.axes
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["all", "1", "2"]
    assert {text.get_text() for text in ax.texts} == {"1.00", ".50"}
    assert "Of 8 layers in 4 cells, 3 are two-stage and 0 undecided." in pictures[0].caption
    (legend,) = pictures[0].figure.legends
    texts = [entry.get_text() for entry in legend.get_texts()]
    assert "two-stage: 5" in texts and "simultaneous: 3" in texts and "corner: seeds disagree" in texts


def test_onsets_and_topics_are_drawn_by_layer(scored):
    picture = figures.layer_onsets(*scored)
    ax = picture.figure.axes[0]  # two-stage in every layer: the first example
    lines = [np.asarray(line.get_ydata()) for line in ax.lines if line.get_linestyle() == "-"]
    assert lines[0] == pytest.approx([50, 50])  # V
    assert lines[1] == pytest.approx([610, 210])  # 0.01 of 0.1 is a tenth of the ramp
    assert lines[2] == pytest.approx([500, 500])
    assert "starts: 2 < 1" in ax.get_title()
    picture = figures.layer_topics(*scored)
    ax = picture.figure.axes[0]
    lines = [np.asarray(line.get_ydata()) for line in ax.lines if line.get_linestyle() == "-"]
    assert lines[0] == pytest.approx([0.01, 0.04]) and lines[1] == pytest.approx([0.01, 0.01])
    assert lines[2] == pytest.approx([0.02, 0.02]) and lines[3] == pytest.approx([0.01, 0.01])
    assert [text.get_text() for text in ax.texts] == ["1\n2", "4\n2"]  # of words, of [MASK]
    assert "E: same - other topic 0.5" in ax.get_title()


def save_blank(picture, path):
    """Write files without drawing: layout and drawing take seconds per picture."""
    files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    path.parent.mkdir(exist_ok=True)
    for file in files:
        file.write_bytes(b"")
    return files


def test_a_run_has_its_page(tmp_path, monkeypatch):
    monkeypatch.setattr(Picture, "save", save_blank)
    folder = folder_of(tmp_path / "run", *grid())
    said: list[str] = []
    text = re.sub(r'src="data:[^"]*"', "", report.write(folder, said.append).read_text())
    assert "defect" not in text and "Not drawn" not in text and "No table" not in text
    assert text.index("Do all layers behave like") < text.index("10 of 10 planned trials finished")
    assert text.index("<nav>") < text.index("Classes by layer") < text.index("Layers over the steps")
    pieces = [line for line in said if line.startswith(("figure ", "table ")) and line.endswith("...")]
    assert len(pieces) == 11 and "(11 of 11)" in pieces[-1]
    for name in ("layer_map", "layers", "layer_onsets", "layer_topics", "records", "finals"):
        assert (folder / "figures" / f"{name}.svg").exists()
    for name in ("layer_answers", "layer_losses", "layer_stages", "cells"):
        assert (
            len(pd.read_csv(folder / "tables" / f"{name}.csv"))
            and (folder / "tables" / f"{name}.md").exists()
        )
    assert len(pd.read_parquet(folder / "layers.parquet")) == 8 * 3 + 2 * 2


POOR = {
    "one layer, one seed": [model([(1.2 * EARLY, 0.1 * LATE)])],
    "one record": [model([(0.0, 0.0)] * 2, step=STEP[:1])],
    "all diverged": [model([GOOD, GOOD], status="diverged", diverged_step=10)],
    "silent": [model([(1.2 * EARLY, 0.1 * LATE), (0.0, 0.0)], entropy_deficit=[0 * STEP] * 2)],
}


@pytest.mark.parametrize("name", POOR)
def test_poor_runs_have_sentences_tables_and_figures_or_a_reason(name):
    run = run_of(*POOR[name])
    scores = score_layers(run)
    assert all(text.endswith(".") for text in findings.findings(run, scores, None, None))
    listed = {"lead": encoder.PAGE.lead, **encoder.PAGE.figures, **encoder.PAGE.tables}
    for entry in (entry for entries in listed.values() for entry in entries):
        if entry.fits(run, scores):
            made = entry.make(run, scores)
            assert made is not None
    if name == "all diverged":
        assert not tables.has_layers(run, scores)


def test_scores_that_cannot_be_made_leave_the_page_of_any_experiment(tmp_path, monkeypatch):
    monkeypatch.setattr(Picture, "save", save_blank)
    row, records, details = model([GOOD])
    broken = (row, records.drop(columns="eval_loss_silent"), details)
    text = report.write(folder_of(tmp_path / "run", broken)).read_text()
    assert "Not scored (score_layers)" in text and "has no column eval_loss_silent" in text
    assert "1 of 1 planned trial finished" in text and "Records" in text
