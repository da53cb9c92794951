"""Loss functions; a traced number selects one.

Each is linear in the target, so the loss of a query whose target is a weighted histogram t of words is
cross-entropy (4):  |t| logsumexp(f) - t.f        squared (3):  |t| (f.f + 1) - 2 t.f with |t| the total
weight.  To add an objective, add an entry to OBJECTIVES: its loss, summed over queries, and the gradient of
that with respect to the outputs.  jax is imported when a loss is computed: settings need only the names.
Dimension letters: R queries, V outputs.
"""

from typing import Any

Array = Any


def cross_entropy(output_RxV: Array, target_RxV: Array, real_V: Array) -> tuple[Array, Array]:
    """Compute eq. (4) and its gradient."""
    import jax.numpy as jnp

    weight_Rx1 = target_RxV.sum(axis=1, keepdims=True)
    softmax_in_RxV = jnp.where(real_V[None, :], output_RxV, -jnp.inf)
    largest_Rx1 = softmax_in_RxV.max(axis=1, keepdims=True)
    exp_RxV = jnp.exp(softmax_in_RxV - largest_Rx1)
    sum_Rx1 = exp_RxV.sum(axis=1, keepdims=True)
    loss = (weight_Rx1 * (jnp.log(sum_Rx1) + largest_Rx1)).sum() - (target_RxV * output_RxV).sum()
    return loss, (weight_Rx1 / sum_Rx1) * exp_RxV - target_RxV


def squared(output_RxV: Array, target_RxV: Array, real_V: Array) -> tuple[Array, Array]:
    """Compute eq. (3) and its gradient."""
    weight_Rx1 = target_RxV.sum(axis=1, keepdims=True)
    norm_Rx1 = (output_RxV**2).sum(axis=1, keepdims=True)
    loss = (weight_Rx1 * (norm_Rx1 + 1)).sum() - 2 * (target_RxV * output_RxV).sum()
    return loss, 2 * (weight_Rx1 * output_RxV - target_RxV)


OBJECTIVES = {"cross_entropy": cross_entropy, "squared": squared}


def queries_loss(
    objective: Array, output_RxV: Array, target_RxV: Array, real_V: Array
) -> tuple[Array, Array]:
    """Compute the summed loss of all queries and its gradient with respect to the outputs.

    Outputs where real_V is False are padding: they hold zeros and are excluded from the softmax.
    """
    import jax

    losses = list(OBJECTIVES.values())
    return jax.lax.switch(objective, losses, output_RxV, target_RxV, real_V)
