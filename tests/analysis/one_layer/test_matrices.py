"""Which matrices are drawn, every entry once, titled with their distance to theory."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from support.small_models import SMALL, TOKENS, blocks, one_hot_weights, random_weights, trial
from support.synthetic_runs import make_run

from topicjax.analysis.one_layer import matrices
from topicjax.analysis.one_layer.cells import MOST_SEEDS
from topicjax.analysis.one_layer.matrices import Panel, attention_matrix, choose_cells, fold, heat_map
from topicjax.analysis.one_layer.trained_models import block_share
from topicjax.errors import UserError
from topicjax.store.reader import Run
from topicjax.theory.documents import DataModel
from topicjax.theory.stage1 import uniform_attention_optimum
from topicjax.theory.theorems import theorem2_matrix


def drawn(rows: list[dict[str, Any]], weights: dict[str, dict]) -> tuple[Run, pd.DataFrame]:
    """Return a run of these trials with these weights; the figures need no scores."""
    return make_run(pd.DataFrame(rows), restore=weights.__getitem__), pd.DataFrame()


def test_a_heat_map_shows_every_word_once_and_the_mask_wider():
    matrix = np.arange(TOKENS**2, dtype=float).reshape(TOKENS, TOKENS)
    ax = Figure().subplots()
    heat_map(matrix, ax, 4, 5.0)
    shown = np.asarray(ax.images[0].get_array())
    assert shown.shape == (14, 14)  # 0.4 of four words, rounded: two lines for [MASK]
    np.testing.assert_array_equal(shown[2:, 2:], matrix[1:, 1:])
    np.testing.assert_array_equal(shown[0, 2:], matrix[0, 1:])
    np.testing.assert_array_equal(shown[0], shown[1])
    for axis in (0, 1):
        drawn = [ends for lines in ax.collections for ends in lines.get_segments()]
        edges = sorted(ends[0, axis] for ends in drawn if ends[0, axis] == ends[1, axis])
        assert edges == [1.5, 5.5, 9.5]
    assert ax.images[0].get_clim() == (-5.0, 5.0)


def test_attention_scores_are_drawn_without_what_the_softmax_ignores():
    score = blocks(2.0, 1.5, -0.5)
    axes = Figure().subplots(1, 2)
    shown = [
        np.asarray(attention_matrix(s, ax, 4).images[0].get_array())
        for s, ax in zip((score, score + np.arange(TOKENS)), axes, strict=True)
    ]
    np.testing.assert_allclose(shown[0], shown[1], atol=1e-12)
    np.testing.assert_allclose(shown[0][2:].mean(axis=0), 0, atol=1e-12)


def test_the_best_setting_and_its_lowest_seed_are_chosen():
    rows = [
        trial("poor", optimizer="sgd", learning_rate=0.1, seed=0, final_eval_loss=0.5),
        trial("b", optimizer="sgd", learning_rate=1.0, seed=2, final_eval_loss=0.6),
        trial("a", optimizer="sgd", learning_rate=1.0, seed=1, final_eval_loss=0.2),
        trial("c", optimizer="sgd", learning_rate=1.0, seed=3, final_eval_loss=0.2),
        trial("lost", optimizer="sgd", learning_rate=9.0) | dict(status="diverged", final_eval_loss=0.0),
        trial("bare", optimizer="adam") | dict(snapshot_steps=()),
        trial("m", optimizer="momentum", key_visibility="unmasked"),
        trial("w", optimizer="adamw", l2=0.5),
    ]
    chosen = choose_cells(pd.DataFrame(rows), lambda name: one_hot_weights(np.eye(TOKENS)))
    column = "cross_entropy", "sgd"
    assert chosen.rows == [
        dict(key_visibility="all", l2=0.0),
        dict(key_visibility="all", l2=0.5),
        dict(key_visibility="unmasked", l2=0.0),
    ]
    assert chosen.columns == [column, ("cross_entropy", "momentum")]
    assert chosen.cells[0, column].trials["trial_id"].tolist() == ["a", "b", "c"]
    assert set(chosen.cells) == {(0, column), (2, ("cross_entropy", "momentum"))}
    assert chosen.notes[:3] == [
        "Of 8 trials, 1 diverged.",
        "Of 8 trials, 1 have no stored weights.",
        "Not drawn: optimizers adamw.",
    ]


def test_of_many_seeds_the_weights_of_the_lowest_are_read():
    read = []

    def restore(name: str) -> dict[str, np.ndarray]:
        read.append(name)
        return one_hot_weights(np.eye(TOKENS))

    rows = [trial(f"{seed}", optimizer="sgd", seed=seed) for seed in reversed(range(MOST_SEEDS + 9))]
    chosen = choose_cells(pd.DataFrame(rows), restore)
    assert read == [f"{seed}" for seed in range(MOST_SEEDS)]
    assert chosen.notes == ["Weights are read for the 32 lowest seeds, not for 9 others."]


def test_nothing_to_draw_is_one_sentence():
    lost = [trial("a") | dict(status="diverged"), trial("b") | dict(status="diverged")]
    with pytest.raises(UserError, match="none of 2 trials is finite and has stored weights"):
        matrices.figure2(*drawn(lost, {}))
    with pytest.raises(UserError, match="no trial has embeddings"):
        matrices.figure1(*drawn([trial("a")], {}))
    with pytest.raises(UserError, match="no trial trains its value matrix"):
        matrices.figure2(*drawn([trial("a", value="blocks")], {}))


def titles(picture) -> list[str]:
    return [ax.get_title() for ax in picture.figure.axes if ax.images and ax.get_visible()]


def test_value_matrices_are_titled_with_their_distance_to_theory():
    data = DataModel(**SMALL)
    best, theorem = uniform_attention_optimum(data), theorem2_matrix(*data.sizes_and_masking)
    values = {"s0": 1.25 * best, "s1": 1.5 * best, "c0": blocks(9.0, 3.0, 1.0)}
    rows = [
        trial("s1", objective="squared", optimizer="sgd", attention="uniform", seed=1),
        trial("s0", objective="squared", optimizer="sgd", attention="uniform", seed=0),
        trial("c0", objective="cross_entropy", optimizer="sgd", attention="uniform"),
    ]
    weights = {name: one_hot_weights(value) for name, value in values.items()}
    picture = matrices.figure2(*drawn(rows, weights))
    apart = np.linalg.norm(theorem - best) / np.linalg.norm(best)
    assert [title.split("\n")[-1].split(", ")[-1] for title in titles(picture)] == [
        "blocks 100 %",
        "error 0.25 to 0.50",
        " ",
        f"error {apart:.2f}",
    ]
    assert titles(picture)[1].split("\n")[0] == "squared, SGD"
    assert "numbers are ranges over 1 to 2 seeds" in picture.caption
    assert "first stage" not in picture.caption


def test_wide_rows_are_folded_with_each_objective_on_lines_of_its_own():
    def panel(objective: str, name: str) -> Panel:
        return Panel(np.zeros((TOKENS, TOKENS)), 4, objective, name)

    kinds = ["cross_entropy", "cross_entropy", "squared", "squared", "squared"]
    panels = {(row, at): panel(kind, f"{row}{at}") for row in (0, 1) for at, kind in enumerate(kinds)}
    placed, whose = fold(panels)
    assert whose == [0, 0, 0, 1, 1, 1]
    lines = [[placed[line, at].title for at in (0, 1) if (line, at) in placed] for line in range(6)]
    assert lines == [["00", "01"], ["02", "03"], ["04"], ["10", "11"], ["12", "13"], ["14"]]
    placed, whose = fold({place: panel for place, panel in panels.items() if place[1] < 3})
    assert whose == [0, 1] and len(placed) == 6


def test_embedding_dot_products_are_drawn():
    given = random_weights(biases=False)
    rows = [trial("a", embedding="trained", embedding_dim=5, attention_dim=3, optimizer="adam")]
    picture = matrices.figure1(*drawn(rows, {"a": given}))
    (ax,) = [ax for ax in picture.figure.axes if ax.images]
    expected = given["W_E"].T @ given["W_E"]
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array())[2:, 2:], expected[1:, 1:])
    share = block_share(expected, 4)
    assert ax.get_title() == f"cross-entropy, Adam\nη 0.01, blocks {100 * share:.0f} %"
    assert "Every panel is a single seed." in picture.caption
