"""Columns that every encoder records: norms, gradients, rotations, gains of layers, attention entropy.

Held-out losses of the whole model are measured with attention as trained, forced uniform, and silenced
(output zero).  P = silenced - uniform is what values add, Q = uniform - trained what attention adds to that.
Silencing would make every later layer norm amplify the rest, so layer norms then keep the scales that they
have with uniform attention.  Gains of single layers are shares of P and Q along a path: the outputs of
uniform attention grow from 0 to 1 in all layers at once, then the scores do; a layer gets the integral of
minus its own derivative, by Gauss-Legendre quadrature.  So the gains of layers add up to P and Q, and cost as
many passes for deep models as for shallow ones.  Without residual connections P is shared equally.
A column that does not apply is NaN.  Dimension letters: B documents, U rows, H heads, L layers, K points of
the path.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.experiments.shared.model import Params, norm, rotation
from topicjax.experiments.shared.settings import MAX_HEADS, LayerSpec
from topicjax.experiments.shared.state import ROTATION_LAG, State, earlier_value

POINTS = 4  # of the path: P and Q add up to 0.2 % and 2 %
HELD_OUT = (
    "eval_loss",  # on the held-out data
    "eval_loss_uniform",  # attention of all layers forced uniform
    "eval_loss_silent",  # attention of all layers silenced, norm scales as with uniform attention
    "eval_loss_se",  # standard error of eval_loss over documents
    "eval_gain_se",  # of eval_loss_uniform - eval_loss, both on the same documents
    "eval_value_se",  # of eval_loss_silent - eval_loss_uniform
)
HEADS = tuple(  # Frobenius norms of the rows of W^K, W^Q, W^V that belong to one head of a layer
    f"norm_{letter}_head{head}" for letter in "kqv" for head in range(1, MAX_HEADS + 1)
)
WEIGHTS_BY_LAYER = (
    "norm_k",  # Frobenius norms of a layer's W^K, W^Q, W^V
    "norm_q",
    "norm_v",
    "grad_norm_k",  # of the training objective, with L2, on the batch of this step
    "grad_norm_q",
    "grad_norm_v",
    "rotation_v",  # (1 - cos) / 2 between W^V now and ten steps earlier
)
GAINS_BY_LAYER = (
    "value_gain",  # a layer's share of eval_loss_silent - eval_loss_uniform, in nats
    "attention_gain",  # its share of eval_loss_uniform - eval_loss
    "value_gain_se",  # standard errors over documents
    "attention_gain_se",
)
HEALTHY = ("loss", "norm_k", "norm_q", "norm_v")  # non-finite: diverged
LossOfGates = Callable[[jax.Array], jax.Array]  # gates B x L -> each document's part of the loss


class Made(NamedTuple):
    """By-products of an update for the record of its step."""

    step: jax.Array
    loss: jax.Array
    gradients: Params


def weight_columns(spec: LayerSpec, state: State, made: Made) -> dict[str, jax.Array]:
    """Compute the columns that need no held-out data: loss, norms, gradients, rotation."""
    L, params = spec.layers, state.params
    names = {"k": "W_K", "q": "W_Q", "v": "W_V"}
    norms = {f"norm_{letter}": norm_by_layer(params[name]) for letter, name in names.items()}
    grad_norms = {
        f"grad_norm_{letter}": norm_by_layer(made.gradients[name])
        if name in made.gradients
        else jnp.full(L, jnp.nan)
        for letter, name in names.items()
    }
    rotation_L = jax.vmap(rotation)(params["W_V"], earlier_value(spec, state, made.step))
    return dict(
        loss=made.loss,
        norm_e=norm(params["W_E"]) if "W_E" in params else jnp.full((), jnp.nan),
        **norms,
        **grad_norms,
        rotation_v=jnp.where(made.step >= ROTATION_LAG, rotation_L, jnp.nan),
        **head_norms(spec, {letter: params[name] for letter, name in names.items()}),
    )


def norm_by_layer(matrix_LxDxD: jax.Array) -> jax.Array:
    """Compute the Frobenius norm of each layer's matrix."""
    return jax.vmap(norm)(matrix_LxDxD)


def head_norms(spec: LayerSpec, matrices: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Compute the norm of each head's rows in each layer; NaN for heads that the model does not have."""
    found = {}
    for letter, matrix_LxDxD in matrices.items():
        split = matrix_LxDxD.reshape(spec.layers, spec.heads, -1)
        norm_LxH = jnp.sqrt((split**2).sum(axis=2))
        for head in range(MAX_HEADS):
            own_L = norm_LxH[:, head] if head < spec.heads else jnp.full(spec.layers, jnp.nan)
            found[f"norm_{letter}_head{head + 1}"] = own_L
    return found


def loss_columns(
    trained_B: jax.Array, uniform_B: jax.Array, silent_B: jax.Array, counts_B: jax.Array
) -> dict[str, jax.Array]:
    """Compute the losses of the whole model from documents' parts; `counts_B` marks those that count."""
    error = functools.partial(standard_error, counts_B=counts_B)
    return dict(
        eval_loss=trained_B.sum(),
        eval_loss_uniform=uniform_B.sum(),
        eval_loss_silent=silent_B.sum(),
        eval_loss_se=error(trained_B),
        eval_gain_se=error(uniform_B - trained_B),
        eval_value_se=error(silent_B - uniform_B),
    )


def gain_columns(
    spec: LayerSpec, uniform: LossOfGates, trained: LossOfGates, counts_B: jax.Array
) -> dict[str, jax.Array]:
    """Compute each layer's gains from values and attention.

    `uniform` is the loss with gates on the outputs of uniform attention and fixed norm scales, `trained` the
    loss with gates on the scores.
    """
    found = {}
    for name, loss in (("value_gain", uniform), ("attention_gain", trained)):
        part_BxL = path_shares(loss, counts_B.shape[0], spec.layers)
        errors = jax.vmap(functools.partial(standard_error, counts_B=counts_B), 1)
        found |= {name: part_BxL.sum(axis=0), f"{name}_se": errors(part_BxL)}
    return {name: found[name] for name in GAINS_BY_LAYER}


def path_shares(loss: LossOfGates, B: int, L: int) -> jax.Array:
    """Compute by how much each layer lowers each document's part of the loss while all gates open together.

    This is the integral of -d loss / d gate along gates (t, ..., t), t from 0 to 1.  A single layer lowers it
    by the difference of the ends.
    """
    if L == 1:
        return (loss(jnp.zeros((B, 1))) - loss(jnp.ones((B, 1))))[:, None]
    place_K, weight_K = np.polynomial.legendre.leggauss(POINTS)  # on [-1, 1]
    slope = jax.grad(lambda gate_BxL: loss(gate_BxL).sum())  # a document's part depends on its own gates only

    def weighted(point: tuple[jax.Array, jax.Array]) -> jax.Array:
        place, weight = point
        return weight * slope(jnp.full((B, L), place))

    path_K = jnp.asarray((place_K + 1) / 2, jnp.float32), jnp.asarray(weight_K / 2, jnp.float32)
    return -jax.lax.map(weighted, path_K).sum(axis=0)


def standard_error(part_B: jax.Array, counts_B: jax.Array) -> jax.Array:
    """Compute the standard error of a sum of document contributions to a loss; NaN for a single document."""
    number = counts_B.sum()
    deviation_B = jnp.where(counts_B, part_B - part_B.sum() / number, 0.0)
    return jnp.sqrt((deviation_B**2).sum() * number / (number - 1))


def entropy_deficit(rows: Any, attention_BxHxUxU: jax.Array) -> jax.Array:
    """Compute log(number of keys) - entropy over key positions, mean over heads and shown positions."""
    keys_Bx1x1xU = rows.keys_BxU[:, None, None, :]
    number_Bx1x1x1 = keys_Bx1x1xU.sum(axis=3, keepdims=True)
    relative = attention_BxHxUxU * number_Bx1x1x1 / jnp.where(keys_Bx1x1xU == 0, 1.0, keys_Bx1x1xU)
    deficit_BxHxU = jax.scipy.special.xlogy(attention_BxHxUxU, relative).sum(axis=3)
    counted_BxU = jnp.where(number_Bx1x1x1[:, 0, 0] > 0, rows.shown_BxU, 0.0)
    return (deficit_BxHxU.mean(axis=1) * counted_BxU).sum() / counted_BxU.sum()
