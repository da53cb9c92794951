"""Weights and trials of a model of 13 tokens, small enough to compute by hand."""

from typing import Any

import numpy as np

from topicjax.experiments.one_layer.settings import DEFAULTS

SMALL = dict(topics=3, words_per_topic=4, length_min=20, length_max=30)
TOKENS = 13


def settings(**changed: Any) -> dict[str, Any]:
    return DEFAULTS | SMALL | changed


def trial(trial_id: str, **changed: Any) -> dict[str, Any]:
    row = dict(trial_id=trial_id, status="ok", snapshot_steps=(100,), final_eval_loss=1.0)
    return row | settings(**changed)


def one_hot_weights(value: np.ndarray) -> dict[str, np.ndarray]:
    zero = np.zeros_like(value)
    return dict(W_K=zero, W_Q=zero, W_V=value, b_pred=np.zeros(len(value)))


def random_weights(biases: bool) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).normal
    given = dict(W_K=draw(size=(3, 5)), W_Q=draw(size=(3, 5)), W_V=draw(size=(5, 5)))
    given |= dict(W_E=draw(size=(5, TOKENS)), b_pred=draw(size=TOKENS))
    if biases:
        given |= dict(b_K=draw(size=3), b_Q=draw(size=3), b_V=draw(size=5))
    return given


def blocks(own: float, same: float, other: float) -> np.ndarray:
    topic = np.arange(12) // 4
    words = np.where(topic[:, None] == topic[None, :], same, other)
    np.fill_diagonal(words, own)
    matrix = np.full((TOKENS, TOKENS), 99.0)
    matrix[1:, 1:] = words
    return matrix
