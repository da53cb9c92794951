"""Optimizers, rebuilt from Hypers wherever they are used: a state holds only data, no transformations.

To add an optimizer, add an entry: its constructor, and the settings that it uses besides the learning rate.
To add a setting, declare it below the entries and add it to the Hypers of the experiments that should have
it.  optax imports jax, so it is imported only when a transformation is made: settings need only the names.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from topicjax.settings import BelowOne, NotNegative, Only

if TYPE_CHECKING:
    import optax


class Optimizer(NamedTuple):
    """Constructor of an optax transformation, and the settings it uses."""

    make: Callable[[Any, Any], Any]  # (optax, hypers) -> transformation
    uses: tuple[str, ...] = ()


OPTIMIZERS = {
    "sgd": Optimizer(lambda optax, h: optax.sgd(h.learning_rate)),
    "momentum": Optimizer(lambda optax, h: optax.sgd(h.learning_rate, momentum=h.momentum), ("momentum",)),
    "adam": Optimizer(
        lambda optax, h: optax.adam(h.learning_rate, h.beta1, h.beta2, h.epsilon),
        ("beta1", "beta2", "epsilon"),
    ),
    "adamw": Optimizer(
        lambda optax, h: optax.adamw(
            h.learning_rate, h.beta1, h.beta2, h.epsilon, weight_decay=h.weight_decay
        ),
        ("beta1", "beta2", "epsilon", "weight_decay"),
    ),
}


def used(setting: str) -> Only:
    """Mark a setting as used only by the optimizers that list it."""
    return Only("optimizer", tuple(name for name, entry in OPTIMIZERS.items() if setting in entry.uses))


Momentum = Annotated[BelowOne, "decay of the velocity", used("momentum")]
Beta1 = Annotated[BelowOne, "decay of the mean gradient", used("beta1")]
Beta2 = Annotated[BelowOne, "decay of the mean squared gradient", used("beta2")]
Epsilon = Annotated[NotNegative, "added to the root of the mean square", used("epsilon")]
WeightDecay = Annotated[NotNegative, "decoupled weight decay", used("weight_decay")]


def optimizer(spec: Any, hypers: Any) -> "optax.GradientTransformation":
    """Make the optax transformation of spec.optimizer with the trial's hyperparameters."""
    import optax

    return OPTIMIZERS[spec.optimizer].make(optax, hypers)
