"""Optimizers, rebuilt from Hypers wherever they are used: a state holds data only, no transformations."""

import optax

from topicjax.trial import Hypers, Spec


def optimizer(spec: Spec, hypers: Hypers) -> optax.GradientTransformation:
    """Return the optax transformation of spec.optimizer with the hyperparameters of the trial."""
    rate, adam = hypers.learning_rate, dict(b1=hypers.beta1, b2=hypers.beta2, eps=hypers.epsilon)
    match spec.optimizer:
        case "sgd":
            return optax.sgd(rate)
        case "momentum":
            return optax.sgd(rate, momentum=hypers.momentum)
        case "adam":
            return optax.adam(rate, **adam)
        case "adamw":
            return optax.adamw(rate, **adam, weight_decay=hypers.weight_decay)
