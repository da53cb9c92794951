"""A tiny model for benchmarks: one layer of linear attention that learns linear regression in its context.

A prompt has N pairs of an input x and a label y = w.x, with its own w, and a query: an input whose label is
to be predicted.  A token is z = (x, y), the query's is (x, 0).  The prediction is the last coordinate of
W_V sum_i z_i (W_K z_i).(W_Q z_query) / N.

Dimension letters: B prompts, N pairs of a prompt, X coordinates of an input, D = X + 1 of a token.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from topicjax.experiments.contract import Experiment
from topicjax.settings import Real, Whole
from topicjax.trial import TrialSettings

EVALUATION_PROMPTS = 64


@dataclass(frozen=True)
class Spec:
    """Static settings; the model has 3 (dimension + 1)^2 parameters."""

    dimension: Annotated[int, Whole(1), "coordinates of an input"] = 10
    pairs: Annotated[int, Whole(1), "pairs of a prompt"] = 20
    batch_size: Annotated[int, Whole(1), "prompts per step"] = 16
    steps: Annotated[int, Whole(1), "training steps"] = 1000
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 20


class Stream(NamedTuple):
    """Traced settings of the prompts."""

    seed: Annotated[Any, Whole(0), "of the prompts and the initial weights"] = 0


class Hypers(NamedTuple):
    """Traced settings of a trial."""

    learning_rate: Annotated[Any, Real(low=0), "of Adam"] = 1e-2
    init_scale: Annotated[Any, Real(low=0), "standard deviation of the initial weights"] = 0.1


class Prompts(NamedTuple):
    """Prompts of a step."""

    pairs_BxNxD: Any
    query_BxD: Any
    label_B: Any


class State(NamedTuple):
    """Weights, and what Adam keeps."""

    weights: dict[str, Any]
    adam: Any


class Made(NamedTuple):
    """By-products of an update for the record of its step."""

    loss: Any
    gradients: dict[str, Any]


ADAM = optax.scale_by_adam()  # the learning rate is traced, and multiplied in `update`


def prompts(spec: Spec, key: Any, count: int) -> Prompts:
    """Draw prompts."""
    of_inputs, of_teachers = jax.random.split(key)
    input_BxMxX = jax.random.normal(of_inputs, (count, spec.pairs + 1, spec.dimension))
    teacher_BxX = jax.random.normal(of_teachers, (count, spec.dimension)) / spec.dimension**0.5
    label_BxM = jnp.einsum("bmx,bx->bm", input_BxMxX, teacher_BxX)
    token_BxMxD = jnp.concatenate([input_BxMxX, label_BxM[:, :, None]], axis=2)
    query_BxD = token_BxMxD[:, -1].at[:, -1].set(0.0)
    return Prompts(token_BxMxD[:, :-1], query_BxD, label_BxM[:, -1])


def key_of(stream: Stream, purpose: int) -> Any:
    """Make the key of a stream for one purpose."""
    return jax.random.fold_in(jax.random.key(stream.seed), purpose)


def source(spec: Spec, stream: Stream) -> Prompts:
    """Draw the prompts of evaluation."""
    return prompts(spec, key_of(stream, 0), EVALUATION_PROMPTS)


def batch(spec: Spec, stream: Stream, source: Prompts, step: Any) -> Prompts:
    """Draw the prompts of a step."""
    return prompts(spec, jax.random.fold_in(key_of(stream, 1), step), spec.batch_size)


def init(spec: Spec, stream: Stream, hypers: Hypers) -> State:
    """Draw the initial weights."""
    width = spec.dimension + 1
    drawn = jax.random.normal(key_of(stream, 2), (3, width, width))
    weights = {name: hypers.init_scale * drawn[i] for i, name in enumerate(("W_K", "W_Q", "W_V"))}
    return State(weights, ADAM.init(weights))


def loss(weights: dict[str, Any], given: Prompts) -> Any:
    """Compute the mean squared error of the predictions."""
    key_BxNxD = given.pairs_BxNxD @ weights["W_K"].T
    value_BxNxD = given.pairs_BxNxD @ weights["W_V"].T
    score_BxN = jnp.einsum("bnd,bd->bn", key_BxNxD, given.query_BxD @ weights["W_Q"].T)
    output_BxD = jnp.einsum("bn,bnd->bd", score_BxN, value_BxNxD) / score_BxN.shape[1]
    return jnp.mean((output_BxD[:, -1] - given.label_B) ** 2)


def update(
    spec: Spec, stream: Stream, hypers: Hypers, state: State, given: Prompts, step: Any
) -> tuple[State, Made]:
    """Take a step of Adam; keep loss and gradients for the record."""
    found, gradients = jax.value_and_grad(loss)(state.weights, given)
    directions, adam = ADAM.update(gradients, state.adam)
    weights = jax.tree.map(lambda old, by: old - hypers.learning_rate * by, state.weights, directions)
    return State(weights, adam), Made(found, gradients)


def measure(
    spec: Spec, stream: Stream, hypers: Hypers, source: Prompts, state: State, given: Prompts, made: Made
) -> dict[str, Any]:
    """Measure losses and norms."""
    norms = {f"norm_{name}": jnp.sqrt(jnp.sum(matrix**2)) for name, matrix in state.weights.items()}
    gradient = jnp.sqrt(sum(jnp.sum(matrix**2) for matrix in made.gradients.values()))
    return dict(loss=made.loss, eval_loss=loss(state.weights, source), gradient=gradient, **norms)


def step_flops(spec: Spec) -> float:
    """Count the floating-point operations of a step's products; prompts need no gradients."""
    B, N, D = spec.batch_size, spec.pairs, spec.dimension + 1
    by_weights, by_prompts = 2 * B * N * D * D + B * D * D, 2 * B * N * D
    return 2.0 * (2 * by_weights + 3 * by_prompts)


TRIALS = TrialSettings("linear_attention", Spec, Stream, Hypers)
EXPERIMENT = Experiment(
    settings=TRIALS,
    init=init,
    update=update,
    measure=measure,
    batch=batch,
    source=source,
    weights=lambda spec, state: state.weights,
    step_flops=step_flops,
    version=1,
)
