"""Snapshot: what a measure is given, the weights of one trial at one step with its settings and data.

A measure is a pure function of one Snapshot that returns a dict of numbers by column.  Everything here is
traced: a measure is compiled once per Spec, and applied to many snapshots on all devices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from topicjax.errors import UserError
from topicjax.experiments.contract import Experiment

Loss = Callable[[Any, Any], jax.Array]  # (parameters as one vector, batch) -> scalar


@dataclass(frozen=True)
class Snapshot:
    """The weights of one trial at one step, the trial's settings, and its data."""

    experiment: Experiment
    spec: Any
    stream: Any
    hypers: Any
    weights: Any  # the tree that the experiment's `weights` returned
    step: Any  # after this many steps
    key: Any  # random key of this trial and step: the same whatever else is measured, and on which devices
    data: Any = ()  # external data of the experiment, if any

    @cached_property
    def source(self) -> Any:
        """What the stream fixes for the whole training, held-out data say."""
        return self.experiment.make_source(self.spec, self.stream, self.data)

    def batch(self, number: Any) -> Any:
        """Draw the data of a training step; those from `spec.steps` on were never trained on."""
        return self.experiment.batch(self.spec, self.stream, self.source, number)

    def fresh_batches(self, count: int) -> Any:
        """Draw batches that no step was trained on, the same for all snapshots of a stream: count x ..."""
        return jax.lax.map(self.batch, self.spec.steps + jnp.arange(count))

    def loss(self, weights: Any, batch: Any) -> jax.Array:
        """Compute the loss of weights on a batch, or raise a UserError if the experiment does not say how."""
        if self.experiment.loss is None:
            raise UserError(
                f"{self.experiment.name} has no loss; allowed: measures of the weights alone, or an "
                "Experiment(..., loss=function) that computes it from (spec, stream, hypers, weights, batch)"
            )
        return self.experiment.loss(self.spec, self.stream, self.hypers, weights, batch)

    def parameters(self) -> tuple[jax.Array, Loss]:
        """Return the trained weights as one vector, and the loss as a function of such a vector and a batch.

        Frozen weights keep their values.
        """
        leaves, structure = jax.tree.flatten(self.weights)
        is_trained = [True] * len(leaves)
        if self.experiment.trained is not None:
            is_trained = jax.tree.leaves(self.experiment.trained(self.spec, self.weights))
        vector, unravel = ravel_pytree([leaf for leaf, own in zip(leaves, is_trained, strict=True) if own])
        if not vector.size:
            raise UserError(
                f"nothing is trained in a program of {self.experiment.name}; allowed: some weights"
            )

        def loss(vector: jax.Array, batch: Any) -> jax.Array:
            trained = iter(unravel(vector))
            whole = [next(trained) if own else leaf for leaf, own in zip(leaves, is_trained, strict=True)]
            return self.loss(jax.tree.unflatten(structure, whole), batch)

        return vector, loss
