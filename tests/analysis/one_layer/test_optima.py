"""The optimum of the value matrix under uniform attention, and distances to it."""

import numpy as np
import pytest
from support.small_models import SMALL, TOKENS, settings

from topicjax.analysis.one_layer.optima import measured_text, optimum, optimum_error
from topicjax.theory.documents import DataModel
from topicjax.theory.stage1 import uniform_attention_optimum


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
