"""Optimizers, rebuilt from Hypers wherever they are used: a state holds data only, no transformations.

A new optimizer is one entry here.  optax comes with jax, so it is imported when a transformation is made:
settings need the names alone.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optax

OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {  # (optax, hypers) -> transformation
    "sgd": lambda optax, h: optax.sgd(h.learning_rate),
    "momentum": lambda optax, h: optax.sgd(h.learning_rate, momentum=h.momentum),
    "adam": lambda optax, h: optax.adam(h.learning_rate, h.beta1, h.beta2, h.epsilon),
    "adamw": lambda optax, h: optax.adamw(
        h.learning_rate, h.beta1, h.beta2, h.epsilon, weight_decay=h.weight_decay
    ),
}


def optimizer(spec: Any, hypers: Any) -> "optax.GradientTransformation":
    """Return the optax transformation of spec.optimizer with the hyperparameters of the trial."""
    import optax

    return OPTIMIZERS[spec.optimizer](optax, hypers)
