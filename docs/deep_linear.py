"""When does a deep linear network learn each mode of its teacher?  An experiment of your own, in one file.

Command:  .venv/bin/topicjax run docs/deep_linear.py
Size:     192 trials, 3 programs, about 15 seconds on 2 cores, most of it compiling
Expect:   the product W = W_L ... W_1 learns the singular modes of its teacher one after another.  A mode of
          strength s is learned at a rate s; from depth 2 on it first waits, the longer the smaller the init.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax import Experiment, Real, TrialSettings, Whole
from topicjax.sweep import logspace, product

STRENGTHS = (4.0, 2.0, 1.0)  # singular values of the teacher


@dataclass(frozen=True)
class Spec:
    """Static settings: each distinct Spec is a program."""

    depth: Annotated[int, Whole(1, 8), "number of weight matrices"] = 2
    width: Annotated[int, Whole(3), "size of inputs, outputs and hidden layers"] = 16
    batch_size: Annotated[int, Whole(1), "examples per step"] = 64
    steps: Annotated[int, Whole(1), "training steps"] = 1000
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 20


class Stream(NamedTuple):
    """Traced numbers that fix the data: equal Streams see the same examples."""

    seed: Annotated[Any, Whole(0), "of the examples and the initial weights"] = 0
    noise: Annotated[Any, Real(low=0), "standard deviation of the label noise"] = 0.0


class Hypers(NamedTuple):
    """Traced numbers that act on a trial."""

    learning_rate: Annotated[Any, Real(low=0), "of gradient descent"] = 0.02
    init_scale: Annotated[Any, Real(low=0), "the product of the initial weights is about so large"] = 0.01


class Record(NamedTuple):
    """The columns of the trajectories."""

    loss: jax.Array  # on the batch of this step
    error: jax.Array  # Frobenius distance of the product to the teacher
    mode_1: jax.Array  # u^T W v / s of the teacher's modes: 0 before, 1 after they are learned
    mode_2: jax.Array
    mode_3: jax.Array
    gradient: jax.Array  # norm of the gradient


def teacher(width: int) -> jax.Array:
    """Return the teacher: its modes are the first coordinates."""
    return jnp.diag(jnp.array((*STRENGTHS, *[0.0] * (width - len(STRENGTHS)))))


def product_of(layers: list[jax.Array]) -> jax.Array:
    """Return W_L ... W_1."""
    whole = layers[0]
    for layer in layers[1:]:
        whole = layer @ whole
    return whole


def batch(spec: Spec, stream: Stream, source: tuple, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the inputs and noisy labels of a step."""
    key, noise_key = jax.random.split(jax.random.fold_in(jax.random.key(stream.seed), step))
    inputs = jax.random.normal(key, (spec.batch_size, spec.width))
    noise = stream.noise * jax.random.normal(noise_key, inputs.shape)
    return inputs, inputs @ teacher(spec.width).T + noise


def init(spec: Spec, stream: Stream, hypers: Hypers) -> list[jax.Array]:
    """Return balanced layers: scaled identities with a little noise."""
    scale = hypers.init_scale ** (1 / spec.depth)
    keys = jax.random.split(jax.random.key(stream.seed), spec.depth)
    noise = [jax.random.normal(key, (spec.width, spec.width)) / spec.width for key in keys]
    return [scale * (jnp.eye(spec.width) + 0.1 * each) for each in noise]


def loss(layers: list[jax.Array], data: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return half the mean squared error."""
    inputs, labels = data
    return 0.5 * jnp.mean(jnp.sum((inputs @ product_of(layers).T - labels) ** 2, axis=1))


def update(
    spec: Spec, stream: Stream, hypers: Hypers, layers: list[jax.Array], data: tuple
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return the layers after a step of gradient descent, and the gradients for the record."""
    gradients = jax.grad(loss)(layers, data)
    stepped = [layer - hypers.learning_rate * own for layer, own in zip(layers, gradients, strict=True)]
    return stepped, gradients


def measure(
    spec: Spec, stream: Stream, hypers: Hypers, source: tuple, layers: list, data: tuple, gradients: list
) -> Record:
    """Return the record of a state."""
    whole = product_of(layers)
    modes = [whole[i, i] / strength for i, strength in enumerate(STRENGTHS)]
    error = jnp.sqrt(jnp.sum((whole - teacher(spec.width)) ** 2))
    gradient = jnp.sqrt(sum((jnp.sum(each**2) for each in gradients), start=jnp.zeros(())))
    return Record(loss(layers, data), error, *modes, gradient)


EXPERIMENT = Experiment(
    settings=TrialSettings("deep_linear", Spec, Stream, Hypers),
    Record=Record,
    source=lambda spec, stream: (),
    batch=batch,
    init=init,
    update=update,
    measure=measure,
    weights=lambda spec, layers: {f"W_{i}": layer for i, layer in enumerate(layers, start=1)},
)
BASE = dict(steps=1000, record_every=20)
SWEEP = product(
    depth=(1, 2, 3), seed=range(4), learning_rate=logspace(0.003, 0.03, 4), init_scale=logspace(1e-4, 1e-1, 4)
)
