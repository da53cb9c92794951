"""The shapes of all that an experiment's functions make of one trial: they are traced once, not run."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments import Experiment


class Shapes(NamedTuple):
    """Trees of shapes and types."""

    state: Any
    weights: Any
    source: Any
    batch: Any
    record: Any


@functools.lru_cache(maxsize=1024)
def shapes(experiment: Experiment, spec: Any) -> Shapes:
    """Return the shapes of what one trial with this Spec has and shares."""

    def make(stream: Any, hypers: Any, data: Any) -> Shapes:
        state, source = experiment.init(spec, stream, hypers), experiment.make_source(spec, stream, data)
        batch = experiment.batch(spec, stream, source, jnp.zeros((), jnp.int32))
        _, made = experiment.update(spec, stream, hypers, state, batch)
        record = experiment.measure(spec, stream, hypers, source, state, batch, made)
        return Shapes(state, experiment.weights(spec, state), source, batch, record)

    return jax.eval_shape(make, *example(experiment), experiment.data_shapes(spec))


def example(experiment: Experiment) -> tuple[Any, Any]:
    """Return a Stream and Hypers as programs take them."""
    _, Stream, Hypers = experiment.settings.classes
    return experiment.settings.traced(Stream()), experiment.settings.traced(Hypers())
