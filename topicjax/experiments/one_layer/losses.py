"""The two losses, as a traced choice.

Both are linear in the target, so the loss of a query whose target is a weighted histogram t of words is
cross-entropy (4):  |t| logsumexp(f) - t.f        squared (3):  |t| (f.f + 1) - 2 t.f
with |t| the total weight.  Dimension letters: R queries, V outputs.
"""

import jax
import jax.numpy as jnp

from topicjax.trial import code

CROSS_ENTROPY = code("objective", "cross_entropy")


def queries_loss(
    objective: jax.Array, output_RxV: jax.Array, target_RxV: jax.Array, real_V: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the summed loss of all queries and its gradient with respect to the outputs.

    Outputs where real_V is False are padding: they hold zeros and take no part in the softmax.
    """
    weight_Rx1 = target_RxV.sum(axis=1, keepdims=True)
    softmax_in_RxV = jnp.where(real_V[None, :], output_RxV, -jnp.inf)
    largest_Rx1 = jax.lax.stop_gradient(softmax_in_RxV.max(axis=1, keepdims=True))
    exp_RxV = jnp.exp(softmax_in_RxV - largest_Rx1)
    sum_Rx1 = exp_RxV.sum(axis=1, keepdims=True)

    is_cross_entropy = objective == CROSS_ENTROPY
    fit = (target_RxV * output_RxV).sum()
    entropy_loss = (weight_Rx1 * (jnp.log(sum_Rx1) + largest_Rx1)).sum() - fit
    squared_loss = (weight_Rx1 * ((output_RxV**2).sum(axis=1, keepdims=True) + 1)).sum() - 2 * fit
    loss = jnp.where(is_cross_entropy, entropy_loss, squared_loss)

    factor_Rx1 = jnp.where(is_cross_entropy, weight_Rx1 / sum_Rx1, 2 * weight_Rx1)
    gradient_RxV = factor_Rx1 * jnp.where(is_cross_entropy, exp_RxV, output_RxV)
    gradient_RxV -= jnp.where(is_cross_entropy, 1.0, 2.0) * target_RxV
    return loss, gradient_RxV
