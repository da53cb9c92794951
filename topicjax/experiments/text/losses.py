"""Losses of rows whose targets are single words, given by index: no target array over the vocabulary.

Each objective is w (n(f) - c f_word) summed over positions, with n(f) a function of the outputs:
cross-entropy  n = logsumexp(f), c = 1        squared  n = f.f + 1, c = 2
Dimension letters: F rows that predict, V vocabulary, B windows, N positions, K objectives.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.shared import layers
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.settings import LayerHypers
from topicjax.experiments.text.rows import Room, Rows
from topicjax.experiments.text.settings import SPECIAL, Spec

FACTOR = (1.0, 2.0)  # c of each objective, in the order of OBJECTIVES


@jax.custom_vjp
def normalisers(objective: jax.Array, output_FxV: jax.Array) -> jax.Array:
    """Compute n of every row."""
    return jax.lax.switch(
        objective,
        (lambda f: jax.scipy.special.logsumexp(f, axis=1), lambda f: (f**2).sum(axis=1) + 1),
        output_FxV,
    )


def _normalisers_forward(objective: jax.Array, output_FxV: jax.Array) -> tuple[jax.Array, Any]:
    found_F = normalisers(objective, output_FxV)
    return found_F, (objective, output_FxV, found_F)


def _normalisers_backward(saved: Any, d_F: jax.Array) -> tuple[None, jax.Array]:
    objective, output_FxV, found_F = saved
    return None, jax.lax.switch(
        objective,
        (
            lambda: jnp.exp(output_FxV - found_F[:, None]) * d_F[:, None],
            lambda: 2 * output_FxV * d_F[:, None],
        ),
    )


normalisers.defvjp(_normalisers_forward, _normalisers_backward)


def last_states(
    spec: Spec,
    hypers: LayerHypers,
    params: Params,
    rows: Rows,
    room: Room,
    gate_BxL: jax.Array | None = None,
) -> jax.Array:
    """Compute the last states X_FxD of the rows that predict; gates as in `layers.states`."""
    predicting = layers.Predicting(room.Q, rows.predicting_F)
    return layers.states(spec, hypers, params, rows, predicting, gate_BxL)


def losses_of_windows(
    spec: Spec, hypers: LayerHypers, params: Params, X_FxD: jax.Array, rows: Rows
) -> jax.Array:
    """Compute each window's part of the loss, given the last states; eq. (1) is their sum."""
    output_FxV = X_FxD @ layers.head(spec, params) + params["b_pred"][None, :]
    factor = jnp.asarray(FACTOR)[hypers.objective]
    own_BxN = normalisers(hypers.objective, output_FxV)[rows.row_BxN]
    own_BxN = own_BxN - factor * output_FxV[rows.row_BxN, rows.word_BxN]
    return (rows.weight_BxN * own_BxN).sum(axis=1)


def loss_and_d_output(objective: jax.Array, output_FxV: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Compute eq. (1), and its gradient with respect to the outputs."""
    row_P, word_P, weight_P = (part.reshape(-1) for part in (rows.row_BxN, rows.word_BxN, rows.weight_BxN))
    weight_Fx1 = jnp.zeros(output_FxV.shape[0]).at[row_P].add(weight_P)[:, None]

    def cross_entropy() -> tuple[jax.Array, jax.Array]:
        largest_Fx1 = output_FxV.max(axis=1, keepdims=True)
        exp_FxV = jnp.exp(output_FxV - largest_Fx1)
        sum_Fx1 = exp_FxV.sum(axis=1, keepdims=True)
        return jnp.log(sum_Fx1) + largest_Fx1, (weight_Fx1 / sum_Fx1) * exp_FxV

    def squared() -> tuple[jax.Array, jax.Array]:
        return (output_FxV**2).sum(axis=1, keepdims=True) + 1, 2 * weight_Fx1 * output_FxV

    normaliser_Fx1, slope_FxV = jax.lax.switch(objective, (cross_entropy, squared))
    factor = jnp.asarray(FACTOR)[objective]
    loss = (weight_Fx1 * normaliser_Fx1).sum() - factor * (weight_P * output_FxV[row_P, word_P]).sum()
    return loss, slope_FxV.at[row_P, word_P].add(-factor * weight_P)


class HeadGradients(NamedTuple):
    """Eq. (1), and its gradients for what outputs are computed from."""

    loss: jax.Array
    X_FxD: jax.Array
    head_DxV: jax.Array
    bias_V: jax.Array


def head_gradients(
    objective: jax.Array, X_FxD: jax.Array, head_DxV: jax.Array, bias_V: jax.Array, rows: Rows
) -> HeadGradients:
    """Compute outputs, eq. (1) and its gradients."""
    loss, d_output_FxV = loss_and_d_output(objective, X_FxD @ head_DxV + bias_V[None, :], rows)
    X_DxF = jax.lax.optimization_barrier(X_FxD.T)  # transposed first, this product is faster on cores
    return HeadGradients(loss, d_output_FxV @ head_DxV.T, X_DxF @ d_output_FxV, d_output_FxV.sum(axis=0))


def usual_head_gradients(
    objective: jax.Array, X_FxD: jax.Array, head_DxV: jax.Array, bias_V: jax.Array, rows: Rows, usual: int
) -> HeadGradients:
    """Compute `head_gradients`, to rounding, without the rows that only unusual batches need."""
    F = X_FxD.shape[0]
    if usual >= F:
        return head_gradients(objective, X_FxD, head_DxV, bias_V, rows)

    def of_few() -> HeadGradients:
        found = head_gradients(objective, X_FxD[:usual], head_DxV, bias_V, rows)
        return found._replace(X_FxD=jnp.pad(found.X_FxD, ((0, F - usual), (0, 0))))

    return jax.lax.cond(
        rows.number <= usual, of_few, lambda: head_gradients(objective, X_FxD, head_DxV, bias_V, rows)
    )


def loss_and_gradients(
    spec: Spec, hypers: LayerHypers, trained: Params, frozen: Params, rows: Rows, room: Room
) -> tuple[jax.Array, Params]:
    """Compute eq. (1), and its gradients for the trained parameters."""
    params = trained | frozen
    X_FxD, pull_back = jax.vjp(lambda own: last_states(spec, hypers, own | frozen, rows, room), trained)
    head_DxV, bias_V = layers.head(spec, params), params["b_pred"]
    found = usual_head_gradients(hypers.objective, X_FxD, head_DxV, bias_V, rows, room.usual)
    (gradients,) = pull_back(found.X_FxD)
    name, of_head = ("W_E", found.head_DxV) if spec.head == "tied" else ("W_head", found.head_DxV.T)
    more = {name: of_head, "b_pred": found.bias_V}
    added = {name: gradients[name] + more[name] for name in more if name in trained}
    return found.loss, gradients | added


def unigram_losses(count_V: jax.Array, rows: Rows) -> jax.Array:
    """Compute each window's part of the unigram model's loss, for each objective.

    The model ignores context and predicts words by their frequency, with one added to the count of each known
    word.
    """
    more_V = jnp.where(jnp.arange(count_V.size) < SPECIAL, 0.0, count_V + 1.0)
    p_V = more_V / more_V.sum()
    loss_KxV = jnp.stack([-jnp.log(jnp.where(p_V > 0, p_V, 1.0)), (p_V**2).sum() + 1 - 2 * p_V])
    return (rows.weight_BxN[None] * loss_KxV[:, rows.word_BxN]).sum(axis=2)
