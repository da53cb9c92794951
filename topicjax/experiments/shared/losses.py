"""Loss functions; a traced number selects one.

The loss of predicting one word i from outputs f is n(f) + g(f)_i: n is the same whatever the word.
cross-entropy (4):  n = logsumexp(f), g = -f        squared (3):  n = f.f + 1, g = -2 f
So the loss of a query whose target is a histogram t of weighted words is |t| n + t.g, with |t| their total
weight.  To add an objective, add an entry to OBJECTIVES: a function of outputs that returns n and g; its
gradient follows.  jax is imported when a loss is computed: settings need only the names.
Dimension letters: R queries, V outputs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

Array = Any


class Terms(NamedTuple):
    """What the losses of single words consist of."""

    any_word_R: Array  # n, the same whatever the word
    word_RxV: Array  # g, what each word adds


def cross_entropy(output_RxV: Array, real_V: Array) -> Terms:
    """Compute the terms of eq. (4)."""
    import jax
    import jax.numpy as jnp

    softmax_in_RxV = jnp.where(real_V[None, :], output_RxV, -jnp.inf)
    largest_Rx1 = jax.lax.stop_gradient(softmax_in_RxV.max(axis=1, keepdims=True))
    sum_R = jnp.exp(softmax_in_RxV - largest_Rx1).sum(axis=1)
    return Terms(jnp.log(sum_R) + largest_Rx1[:, 0], -output_RxV)


def squared(output_RxV: Array, real_V: Array) -> Terms:
    """Compute the terms of eq. (3)."""
    return Terms((output_RxV**2).sum(axis=1) + 1, -2 * output_RxV)


OBJECTIVES: dict[str, Callable[[Array, Array], Terms]] = {
    "cross_entropy": cross_entropy,
    "squared": squared,
}


def for_objective(
    objective: Array,
    function: Callable[[Callable[[Array], Terms], Array], Any],
    output_RxV: Array,
    real_V: Array | None = None,
) -> Any:
    """Evaluate function(terms, outputs), with `terms` the function of outputs that belongs to the objective.

    Outputs where real_V is False are padding: they hold zeros and are excluded from the softmax.
    """
    import jax
    import jax.numpy as jnp

    real = jnp.ones(output_RxV.shape[1], bool) if real_V is None else real_V

    def branch(entry: Callable[[Array, Array], Terms]) -> Callable[[Array], Any]:
        return lambda output_RxV: function(lambda given_RxV: entry(given_RxV, real), output_RxV)

    return jax.lax.switch(objective, [branch(entry) for entry in OBJECTIVES.values()], output_RxV)


def queries_loss(
    objective: Array, output_RxV: Array, target_RxV: Array, real_V: Array | None = None
) -> tuple[Array, Array]:
    """Compute the summed loss of all queries and its gradient with respect to the outputs."""
    import jax

    weight_R = target_RxV.sum(axis=1)

    def of(terms: Callable[[Array], Terms], output_RxV: Array) -> tuple[Array, Array]:
        found, pull_back = jax.vjp(terms, output_RxV)
        loss = (weight_R * found.any_word_R).sum() + where_set(target_RxV, found.word_RxV).sum()
        return loss, pull_back(Terms(weight_R, target_RxV))[0]

    return for_objective(objective, of, output_RxV, real_V)


def where_set(factor: Array, values: Array) -> Array:
    """Multiply by factors, many of which are 0; there the product is 0.

    The selection keeps XLA from merging the product with a matrix product before it or a sum after it, which
    makes either slower on cores.
    """
    import jax.numpy as jnp

    return jnp.where(factor != 0, factor * values, 0.0)
