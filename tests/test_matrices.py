"""Effective matrices against plain loops over tokens; which trials are drawn; titles against theory."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import matrices, weights
from analysis.frames import Run
from analysis.weights import attention, block_share, choose, colour_limit, inside, order_parameters
from topicjax.config import DEFAULTS, IDENTITY
from topicjax.theory import DataModel, theorem2_matrix, uniform_attention_optimum

SMALL = dict(topics=3, words_per_topic=4, length_min=20, length_max=30)
TOKENS = 13


def settings(**changed: Any) -> dict[str, Any]:
    return {name: DEFAULTS[name] for name in IDENTITY} | SMALL | changed


def trial(trial_id: str, **changed: Any) -> dict[str, Any]:
    row = dict(trial_id=trial_id, status="ok", snapshot_steps="100", final_eval_loss=1.0)
    return row | settings(**changed)


def one_hot_weights(value: np.ndarray) -> dict[str, np.ndarray]:
    zero = np.zeros_like(value)
    return dict(W_K=zero, W_Q=zero, W_V=value, b_pred=np.zeros(len(value)))


def make_run(rows: list[dict[str, Any]]) -> Run:
    return Run(Path("nowhere"), pd.DataFrame(rows), pd.DataFrame(), {}, ())


def random_weights(biases: bool) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).normal
    given = dict(W_K=draw(size=(3, 5)), W_Q=draw(size=(3, 5)), W_V=draw(size=(5, 5)))
    given |= dict(W_E=draw(size=(5, TOKENS)), b_pred=draw(size=TOKENS))
    if biases:
        given |= dict(b_K=draw(size=3), b_Q=draw(size=3), b_V=draw(size=5))
    return given


def token_by_token(given: dict[str, np.ndarray], keys: list[int], query: int) -> np.ndarray:
    """Eq. (5) and (6) for one position, one key after the other."""
    zero = np.zeros(5)
    embed = [given["W_E"][:, token] for token in range(TOKENS)]
    asked = given["W_Q"] @ embed[query] + given.get("b_Q", np.zeros(3))
    exponent = [
        np.exp((given["W_K"] @ embed[key] + given.get("b_K", np.zeros(3))) @ asked / 3**0.5) for key in keys
    ]
    mixed = sum(e * (given["W_V"] @ embed[key]) for e, key in zip(exponent, keys, strict=True)) / sum(
        exponent
    )
    hidden = mixed + given.get("b_V", zero)
    return np.array([embed[token] @ hidden + given["b_pred"][token] for token in range(TOKENS)])


@pytest.mark.parametrize("biases", [False, True])
def test_the_matrices_predict_what_the_tokens_do(biases: bool):
    given = random_weights(biases)
    model = inside(given, settings(embedding="trained", embedding_dim=5, attention_dim=3))
    keys, queries = [0, 3, 3, 12, 7], [0, 7, 1]
    weight = attention(model.S, keys, queries)
    np.testing.assert_allclose(weight.sum(axis=0), 1, rtol=1e-14)
    for column, query in enumerate(queries):
        prediction = model.U[:, keys] @ weight[:, column] + model.bias
        np.testing.assert_allclose(prediction, token_by_token(given, keys, query), rtol=1e-12)
    assert model.E is not None
    assert model.E[2, 9] == pytest.approx(given["W_E"][:, 2] @ given["W_E"][:, 9])
    assert model.norms["W_V"] == pytest.approx(np.sqrt((given["W_V"] ** 2).sum()))


def test_attention_by_hand():
    score = np.log([[1.0, 1.0], [3.0, 1.0]])  # row = key, column = query
    np.testing.assert_allclose(
        attention(score, [0, 1, 1], [0, 1]), [[1 / 7, 1 / 3], [3 / 7, 1 / 3], [3 / 7, 1 / 3]]
    )
    assert attention(score, [], [0, 1]).shape == (0, 2)


def test_uniform_attention_has_no_scores_whatever_the_weights():
    given = random_weights(biases=False)
    model = inside(given, settings(embedding="random", embedding_dim=5, attention="uniform"))
    assert not model.S.any()


def test_weights_of_another_model_are_refused():
    value = np.eye(TOKENS)
    with pytest.raises(ValueError, match="the weights have no W_E; they have W_K, W_Q, W_V, b_pred"):
        inside(one_hot_weights(value), settings(embedding="trained"))
    with pytest.raises(ValueError, match=r"W_V \(13, 13\) and W_E \(21, 21\) do not belong to 21 tokens"):
        inside(one_hot_weights(value), settings(topics=5))


def blocks(own: float, same: float, other: float) -> np.ndarray:
    topic = np.arange(12) // 4
    words = np.where(topic[:, None] == topic[None, :], same, other)
    np.fill_diagonal(words, own)
    matrix = np.full((TOKENS, TOKENS), 99.0)
    matrix[1:, 1:] = words
    return matrix


def test_order_parameters_by_hand():
    score = blocks(2.0, 1.5, -0.5)
    score[:, 0] = np.r_[4.0, np.full(12, 1.0)]  # the [MASK] query
    model = weights.Inside(blocks(5.0, 3.0, 1.0), score, blocks(9.0, 0.5, 0.25), np.zeros(TOKENS), {})
    found = order_parameters(model, settings())
    assert found["v_block"] == 2.0 and found["v_diag"] == 2.0
    assert found["e_block"] == 0.25
    assert found["a_topic"] == 2.0 and found["a_self"] == 0.5
    assert found["a_mask"] == -3.0
    word_key = (1.0 + 2.0 + 3 * 1.5 - 8 * 0.5) / 13
    mask_key = (4.0 + 12 * 99) / 13
    assert found["a_key"] == pytest.approx((mask_key - word_key) * np.sqrt(12) / 13)


def test_blocks_explain_their_share_of_the_variance():
    clean = blocks(7.0, 3.0, 1.0)
    assert block_share(clean, 4) == pytest.approx(1)
    assert np.isnan(block_share(np.ones((TOKENS, TOKENS)), 4))
    noise = np.where((np.add.outer(np.arange(13), np.arange(13)) % 2) == 0, 1.0, -1.0)
    mixed = clean + 0.5 * noise  # in a topic of four: 4 pairs +, 8 pairs -; outside as many + as -
    within = (36 * 0.25 * (1 - (1 / 3) ** 2) + 96 * 0.25) / 132
    means = (36 * (3 - 0.5 / 3) + 96 * 1.0) / 132
    between = (36 * (3 - 0.5 / 3 - means) ** 2 + 96 * (1 - means) ** 2) / 132
    assert block_share(mixed, 4) == pytest.approx(between / (between + within))


def test_the_diagonal_and_the_mask_do_not_stretch_the_colours():
    assert colour_limit([(blocks(50.0, 2.0, -1.0), 4)]) == 3.0
    several = [(blocks(50.0, size, -1.0), 4) for size in (2.0, 4.0, 800.0)]
    assert colour_limit(several) == 6.0  # the median matrix
    assert colour_limit([(np.zeros((TOKENS, TOKENS)), 4)]) == 1.0


def test_a_heat_map_shows_every_word_once_and_the_mask_wider():
    matrix = np.arange(TOKENS**2, dtype=float).reshape(TOKENS, TOKENS)
    ax = matrices.Figure().subplots()
    matrices.heat_map(matrix, ax, 4, 5.0)
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
    axes = matrices.Figure().subplots(1, 2)
    shown = [
        np.asarray(matrices.attention_matrix(s, ax, 4).images[0].get_array())
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
        trial("bare", optimizer="adam") | dict(snapshot_steps=None),
        trial("m", optimizer="momentum", key_visibility="unmasked"),
        trial("w", optimizer="adamw", l2=0.5),
    ]
    choice = choose(pd.DataFrame(rows), lambda name: one_hot_weights(np.eye(TOKENS)))
    column = "cross_entropy", "sgd"
    assert choice.rows == [
        dict(key_visibility="all", l2=0.0),
        dict(key_visibility="all", l2=0.5),
        dict(key_visibility="unmasked", l2=0.0),
    ]
    assert choice.columns == [column, ("cross_entropy", "momentum")]
    assert choice.cells[0, column].trials["trial_id"].tolist() == ["a", "b", "c"]
    assert set(choice.cells) == {(0, column), (2, ("cross_entropy", "momentum"))}
    assert choice.notes[:3] == [
        "Of 8 trials 1 diverged.",
        "Of 8 trials 1 have no stored weights.",
        "Not drawn: optimizers adamw.",
    ]


def test_nothing_to_draw_is_one_sentence():
    lost = [trial("a") | dict(status="diverged"), trial("b") | dict(status="diverged")]
    with pytest.raises(ValueError, match="none of 2 trials is finite and has stored weights"):
        matrices.figure2(make_run(lost), lambda name: {})
    with pytest.raises(ValueError, match="no trial has embeddings"):
        matrices.figure1(make_run([trial("a")]), lambda name: {})
    with pytest.raises(ValueError, match="no trial trains its value matrix"):
        matrices.figure2(make_run([trial("a", value="blocks")]), lambda name: {})


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
    picture = matrices.figure2(make_run(rows), lambda name: one_hot_weights(values[name]))
    apart = np.linalg.norm(theorem - best) / np.linalg.norm(best)
    assert [title.split("\n")[-1] for title in titles(picture)] == [
        "blocks 100 %",
        "error 0.25 to 0.50",
        " ",
        f"error {apart:.2f}",
    ]
    assert titles(picture)[1].split("\n")[:3] == ["squared", "SGD", "η 0.01"]
    assert "numbers the range over 1 to 2 seeds" in picture.caption
    assert "first stage" not in picture.caption


def test_with_l2_the_error_is_to_the_ridge_optimum():
    gram_free = settings(objective="squared", attention="uniform", l2=0.3, infinite_documents=True)
    found = matrices.optimum(gram_free)
    data = DataModel(**SMALL, infinite_documents=True)
    words = data.second_moment_words()  # q = a P + noise: the moments from P alone
    shown = data.shown_distribution(np.zeros(12))
    q_mean = data.shown_distribution(data.mean_words())
    spread = np.pad(data.survival**2 * (words - np.outer(data.mean_words(), data.mean_words())), (1, 0))
    gram = spread + np.outer(q_mean, q_mean)
    cross = np.pad(data.survival * words, (1, 0)) + np.outer(np.r_[0, data.mean_words()], shown)
    np.testing.assert_allclose(found @ (gram + 0.3 * np.eye(TOKENS)), cross, atol=1e-12)
    assert matrices.optimum(settings(objective="squared", output_bias="trained")) is None
    assert matrices.optimum(settings(objective="cross_entropy")) is None
    assert matrices.optimum(settings(objective="squared", word_distribution="zipf")) is None


def test_embedding_dot_products_are_drawn():
    given = random_weights(biases=False)
    rows = [trial("a", embedding="trained", embedding_dim=5, attention_dim=3, optimizer="adam")]
    picture = matrices.figure1(make_run(rows), lambda name: given)
    (ax,) = [ax for ax in picture.figure.axes if ax.images]
    expected = given["W_E"].T @ given["W_E"]
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array())[2:, 2:], expected[1:, 1:])
    share = block_share(expected, 4)
    assert ax.get_title() == f"cross-entropy\nAdam\nη 0.01\nblocks {100 * share:.0f} %"
    assert "Every panel is a single seed." in picture.caption
