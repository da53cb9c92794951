"""Effective matrices against plain loops over tokens; order parameters, blocks and optima by hand."""

from typing import get_args

import numpy as np
import pytest
from support.small_models import SMALL, TOKENS, blocks, one_hot_weights, random_weights, settings

from topicjax.analysis.one_layer.trained_models import (
    EffectiveModel,
    attention,
    block_share,
    colour_limit,
    effective_model,
    measured_text,
    optimum,
    optimum_error,
    order_parameters,
)
from topicjax.errors import UserError
from topicjax.experiments.one_layer.settings import AttentionWeights
from topicjax.theory.documents import DataModel
from topicjax.theory.stage1 import uniform_attention_optimum


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
    model = effective_model(given, settings(embedding="trained", embedding_dim=5, attention_dim=3))
    keys, queries = [0, 3, 3, 12, 7], [0, 7, 1]
    weight = attention(model.S, keys, queries)
    np.testing.assert_allclose(weight.sum(axis=0), 1, rtol=1e-14)
    for column, query in enumerate(queries):
        prediction = model.U[:, keys] @ weight[:, column] + model.bias
        np.testing.assert_allclose(prediction, token_by_token(given, keys, query), rtol=1e-12)
    assert model.E is not None
    assert model.E[2, 9] == pytest.approx(given["W_E"][:, 2] @ given["W_E"][:, 9])


def test_attention_by_hand():
    score = np.log([[1.0, 1.0], [3.0, 1.0]])  # row = key, column = query
    np.testing.assert_allclose(
        attention(score, [0, 1, 1], [0, 1]), [[1 / 7, 1 / 3], [3 / 7, 1 / 3], [3 / 7, 1 / 3]]
    )
    assert attention(score, [], [0, 1]).shape == (0, 2)


def test_attention_without_softmax_by_hand():
    score = np.array([[1.0, 0.0], [4.0, -3.0]])  # row = key, column = query
    keys, queries = [0, 1, 1], [0, 1]
    of = {kind: attention(score, keys, queries, kind) for kind in get_args(AttentionWeights)[1:]}
    np.testing.assert_allclose(of["scores_only"], [[1 / 3, 0], [4 / 3, -1], [4 / 3, -1]])
    np.testing.assert_allclose(of["one_plus_scores"], [[2 / 3, 1 / 3], [5 / 3, -2 / 3], [5 / 3, -2 / 3]])
    np.testing.assert_allclose(of["one_plus_centred"], [[-1 / 3, 1], [2 / 3, 0], [2 / 3, 0]], atol=1e-15)
    assert attention(score, [], queries, "one_plus_centred").shape == (0, 2)


def test_uniform_attention_has_no_scores_whatever_the_weights():
    given = random_weights(biases=False)
    model = effective_model(given, settings(embedding="random", embedding_dim=5, attention="uniform"))
    assert not model.S.any()


def test_weights_of_another_model_are_refused():
    value = np.eye(TOKENS)
    with pytest.raises(UserError, match="the weights have no W_E; they have W_K, W_Q, W_V, b_pred"):
        effective_model(one_hot_weights(value), settings(embedding="trained"))
    with pytest.raises(UserError, match=r"W_V \(13, 13\) and W_E \(21, 21\) do not belong to 21 tokens"):
        effective_model(one_hot_weights(value), settings(topics=5))


def test_order_parameters_by_hand():
    score = blocks(2.0, 1.5, -0.5)
    score[:, 0] = np.r_[4.0, np.full(12, 1.0)]  # the [MASK] query
    model = EffectiveModel(blocks(5.0, 3.0, 1.0), score, blocks(9.0, 0.5, 0.25), np.zeros(TOKENS))
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


def test_with_l2_the_error_is_to_the_ridge_optimum():
    gram_free = settings(objective="squared", attention="uniform", l2=0.3, infinite_documents=True)
    found = optimum(gram_free)
    data = DataModel(**SMALL, infinite_documents=True)
    words = data.second_moment_words()  # q = a P + noise: the moments from P alone
    shown = data.shown_distribution(np.zeros(12))
    q_mean = data.shown_distribution(data.mean_words())
    spread = np.pad(data.survival**2 * (words - np.outer(data.mean_words(), data.mean_words())), (1, 0))
    gram = spread + np.outer(q_mean, q_mean)
    cross = np.pad(data.survival * words, (1, 0)) + np.outer(np.r_[0, data.mean_words()], shown)
    np.testing.assert_allclose(found @ (gram + 0.3 * np.eye(TOKENS)), cross, atol=1e-12)
    assert optimum(settings(objective="squared", output_bias="trained")) is None
    assert optimum(settings(objective="cross_entropy")) is None
    assert optimum(settings(objective="squared", word_distribution="zipf")) is None


def test_a_mask_that_is_never_a_key_is_no_error():
    row = settings(objective="squared", key_visibility="unmasked")
    value = 1.5 * uniform_attention_optimum(DataModel(**SMALL, key_visibility="unmasked"))
    value[:, 0] = 7.0
    assert optimum_error(value, row) == pytest.approx(0.5)
    assert optimum_error(value, row | dict(key_visibility="all")) > 1


def test_measured_values_in_words():
    assert measured_text("error", 0.254, 0.5) == "error 0.25 to 0.50"
    assert measured_text("error", 0.251, 0.252) == "error 0.25"
    assert measured_text("blocks", 0.998, 0.8) == "blocks 80 to 100 %"
