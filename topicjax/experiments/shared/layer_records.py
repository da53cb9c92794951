"""Columns that every encoder records: norms, gradients, rotations, losses under gates, attention entropy.

Held-out losses are measured with attention as trained, forced uniform, and silenced (output zero), in all
layers and in one layer alone: silenced - uniform is what the values of a layer add, uniform - trained what
its attention adds to that.  A column that does not apply is NaN.  Dimension letters: B documents, U rows, H
heads, L layers, G settings of the gates, M measured losses.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.experiments.shared.model import Params, norm, rotation
from topicjax.experiments.shared.settings import MAX_HEADS, LayerSpec
from topicjax.experiments.shared.state import ROTATION_LAG, State, earlier_value

SCALARS = (
    "loss",  # eq. (1) on the batch of this step, before its update, without L2
    "eval_loss",  # on the held-out data
    "eval_loss_uniform",  # attention of all layers forced uniform
    "eval_loss_silent",  # attention of all layers silenced
    "eval_loss_se",  # standard error of eval_loss over documents
    "eval_gain_se",  # of eval_loss_uniform - eval_loss, both on the same documents
    "eval_value_se",  # of eval_loss_silent - eval_loss_uniform
    "norm_e",
)
HEADS = tuple(f"norm_{letter}_head{head}" for letter in "kqv" for head in range(1, MAX_HEADS + 1))
WEIGHTS_BY_LAYER = (
    "norm_k",  # Frobenius norms of a layer's W^K, W^Q, W^V
    "norm_q",
    "norm_v",
    "grad_norm_k",  # of the training objective, with L2, on the batch of this step
    "grad_norm_q",
    "grad_norm_v",
    "rotation_v",  # (1 - cos) / 2 between W^V now and ten steps earlier
)
ATTENTION_BY_LAYER = (
    "entropy_deficit",  # log(number of keys) - entropy of attention, mean over positions and heads
    "loss_uniform",  # eval_loss with this layer's attention forced uniform
    "loss_silent",  # eval_loss with this layer's attention silenced
    "gain_se",  # standard error of loss_uniform - eval_loss over documents
    "value_se",  # and of loss_silent - loss_uniform
    *HEADS,  # norms of the rows of one head; NaN if the model has fewer heads
)
HEALTHY = ("loss", "eval_loss", "eval_loss_uniform", "norm_k", "norm_q", "norm_v")  # non-finite: diverged


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


def gate_settings(num_layers: int) -> tuple[np.ndarray, np.ndarray]:
    """List the distinct settings of the gates, G x 2 x L, and which of them each measured loss uses.

    The losses are: as trained, all uniform, all silent, each layer alone uniform, each layer alone silent.
    """
    ones, alone = np.ones((num_layers, num_layers)), 1 - np.eye(num_layers)
    every = [np.ones((2, num_layers)), np.outer([0, 1], ones[0]), np.outer([1, 0], ones[0])]
    every += [np.stack(pair) for pair in zip(alone, ones, strict=True)]
    every += [np.stack(pair) for pair in zip(ones, alone, strict=True)]
    distinct, which = np.unique(np.stack(every), axis=0, return_inverse=True)
    return distinct.astype(np.float32), which.reshape(-1)


def loss_columns(spec: LayerSpec, part_MxB: jax.Array, counts_B: jax.Array) -> dict[str, jax.Array]:
    """Compute the measured losses from each document's part; `counts_B` marks the documents that count."""
    loss_M = part_MxB.sum(axis=1)
    uniform, silent = slice(3, 3 + spec.layers), slice(3 + spec.layers, None)
    error = functools.partial(standard_error, counts_B=counts_B)
    return dict(
        eval_loss=loss_M[0],
        eval_loss_uniform=loss_M[1],
        eval_loss_silent=loss_M[2],
        eval_loss_se=error(part_MxB[0]),
        eval_gain_se=error(part_MxB[1] - part_MxB[0]),
        eval_value_se=error(part_MxB[2] - part_MxB[1]),
        loss_uniform=loss_M[uniform],
        loss_silent=loss_M[silent],
        gain_se=jax.vmap(error)(part_MxB[uniform] - part_MxB[:1]),
        value_se=jax.vmap(error)(part_MxB[silent] - part_MxB[uniform]),
    )


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
