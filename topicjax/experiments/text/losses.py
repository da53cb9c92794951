"""Losses of rows whose targets are single words, given by index: no target array over the vocabulary.

Each objective is w (n(f) - c f_word) summed over positions, with n(f) a function of the outputs:
cross-entropy  n = logsumexp(f), c = 1        squared  n = f.f + 1, c = 2
Dimension letters: F rows that predict, V vocabulary, B windows, N positions, K objectives.
"""

import jax
import jax.numpy as jnp

from topicjax.experiments.shared import layers
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.settings import LayerHypers
from topicjax.experiments.text.rows import Room, Rows
from topicjax.experiments.text.settings import SPECIAL, Spec

FACTOR = (1.0, 2.0)  # c of each objective, in the order of OBJECTIVES


def cross_entropy(output_FxV: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute logsumexp of the outputs, and its gradient."""
    largest_Fx1 = output_FxV.max(axis=1, keepdims=True)
    exp_FxV = jnp.exp(output_FxV - largest_Fx1)
    sum_Fx1 = exp_FxV.sum(axis=1, keepdims=True)
    return (jnp.log(sum_Fx1) + largest_Fx1)[:, 0], exp_FxV / sum_Fx1


def squared(output_FxV: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute the squared norm of the outputs plus 1, and its gradient."""
    return (output_FxV**2).sum(axis=1) + 1, 2 * output_FxV


def normalisers(objective: jax.Array, output_FxV: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute n of every row, and its gradient."""
    return jax.lax.switch(objective, (cross_entropy, squared), output_FxV)


def outputs(
    spec: Spec,
    hypers: LayerHypers,
    params: Params,
    rows: Rows,
    room: Room,
    gates: layers.Gates | None = None,
) -> jax.Array:
    """Compute the outputs f_FxV of the rows that predict."""
    X_BxQxD = layers.states(spec, hypers, params, rows, room.Q, gates)
    X_FxD = X_BxQxD.reshape(-1, spec.size)[rows.predicting_F]
    return X_FxD @ layers.head(spec, params) + params["b_pred"][None, :]


def losses_of_windows(objective: jax.Array, output_FxV: jax.Array, rows: Rows) -> jax.Array:
    """Compute each window's part of the loss; eq. (1) is their sum."""
    normaliser_F, _ = normalisers(objective, output_FxV)
    factor = jnp.asarray(FACTOR)[objective]
    own_BxN = normaliser_F[rows.row_BxN] - factor * output_FxV[rows.row_BxN, rows.word_BxN]
    return (rows.weight_BxN * own_BxN).sum(axis=1)


def loss_and_d_output(objective: jax.Array, output_FxV: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Compute eq. (1), and its gradient with respect to the outputs."""
    row_P, word_P, weight_P = (part.reshape(-1) for part in (rows.row_BxN, rows.word_BxN, rows.weight_BxN))
    weight_F = jnp.zeros(output_FxV.shape[0]).at[row_P].add(weight_P)
    factor = jnp.asarray(FACTOR)[objective]
    normaliser_F, slope_FxV = normalisers(objective, output_FxV)
    loss = (weight_F * normaliser_F).sum() - factor * (weight_P * output_FxV[row_P, word_P]).sum()
    return loss, (weight_F[:, None] * slope_FxV).at[row_P, word_P].add(-factor * weight_P)


def loss_and_gradients(
    spec: Spec, hypers: LayerHypers, trained: Params, frozen: Params, rows: Rows, room: Room
) -> tuple[jax.Array, Params]:
    """Compute eq. (1), and its gradients for the trained parameters."""
    output_FxV, pull_back = jax.vjp(lambda own: outputs(spec, hypers, own | frozen, rows, room), trained)
    loss, d_output_FxV = loss_and_d_output(hypers.objective, output_FxV, rows)
    return loss, pull_back(d_output_FxV)[0]


def unigram_losses(count_V: jax.Array, rows: Rows) -> jax.Array:
    """Compute each window's part of the unigram model's loss, for each objective.

    The model ignores context and predicts words by their frequency, with one added to the count of each known
    word.
    """
    more_V = jnp.where(jnp.arange(count_V.size) < SPECIAL, 0.0, count_V + 1.0)
    p_V = more_V / more_V.sum()
    loss_KxV = jnp.stack([-jnp.log(jnp.where(p_V > 0, p_V, 1.0)), (p_V**2).sum() + 1 - 2 * p_V])
    return (rows.weight_BxN[None] * loss_KxV[:, rows.word_BxN]).sum(axis=2)
