"""Experiment: the paper's one-layer transformer on topic documents (data, training, costs).

The batch of a step depends only on the Stream and the step: trials that share a Stream see the same
documents, and the engine draws them once for all.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.contract import Experiment
from topicjax.experiments.one_layer import kernel, model, schedule
from topicjax.experiments.one_layer.decided import decided
from topicjax.experiments.one_layer.records import HEALTHY, HeldOut, Record, measure_model
from topicjax.experiments.one_layer.settings import TRIALS, Hypers, Spec, traced
from topicjax.experiments.shared import bags, lda, lines
from topicjax.experiments.shared.bags import Bag, fit_queries, to_bag
from topicjax.experiments.shared.lda import Source
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.optimizers import optimizer
from topicjax.experiments.shared.state import (
    ROTATION_LAG,
    State,
    add_l2,
    earlier_value,
    first_state,
    next_state,
    split,
)
from topicjax.theory.document_settings import Stream

FLOAT = 4  # bytes


class Made(NamedTuple):
    """By-products of an update for the record of its step."""

    step: jax.Array
    gradients: Params


def make_source(spec: Spec, stream: Stream) -> Source:
    """Draw the topics and the held-out documents of a Stream."""

    def held_out(documents: lda.Documents | jax.Array) -> HeldOut:
        uniform = to_bag(spec, stream, documents, uniform=True)
        attends = spec.attention == "trained"
        return HeldOut(to_bag(spec, stream, documents) if attends else uniform, uniform)

    return lda.make_source(spec, stream, held_out)


def draw_batch(spec: Spec, stream: Stream, source: Source, step: jax.Array) -> Bag:
    """Draw the documents of a step, as a bag for the kernel."""
    is_uniform = spec.attention == "uniform"
    return lda.draw_batch(spec, stream, source, step, lambda own: to_bag(spec, stream, own, is_uniform))


def queries_missing(source: Source, batch: Bag) -> jax.Array:
    """Count the kept and random words beyond the kernel's capacity."""
    return jnp.maximum(source.held_out.attended.queries_missing, batch.queries_missing)


def init(spec: Spec, stream: Stream, hypers: Hypers) -> State:
    """Make the initial state of a trial; its parameters are padded."""
    params = kernel.pad(model.init(spec, stream, hypers, lda.weights_key(stream, hypers)))
    first = schedule.first_state if spec.training == "by_part" else first_state
    return first(spec, hypers, params, model.trained_names(spec))


def update(
    spec: Spec, stream: Stream, hypers: Hypers, state: State, batch: Bag, step: jax.Array
) -> tuple[State, Made]:
    """Take one step; return the new state and the gradients of that step."""
    gradients = bags.with_usual_queries(
        spec,
        lambda bag: loss_gradients(spec, hypers, state.params, bag),
        batch,
        spec.batch_size,
        num_sizes=2,
    )
    gradients = add_l2(hypers, state.params, gradients)
    take = schedule.next_state if spec.training == "by_part" else next_state
    return take(spec, hypers, state, gradients, step), Made(step, gradients)


def measure(
    spec: Spec,
    stream: Stream,
    hypers: Hypers,
    source: Source,
    state: State,
    batch: Bag,
    made: Made,
) -> Record:
    """Measure a state before the step of this batch, with the gradients of that step.

    Steps need only gradients, so the loss is computed here, for records.
    """
    kernel_model, real_V = kernel.effective(spec, state.params), kernel.real_types(spec)
    return measure_model(
        spec=spec,
        stream=stream,
        hypers=hypers,
        held_out=source.held_out,
        params=state.params,
        earlier_value=earlier_value(spec, state, made.step),
        has_past=made.step >= ROTATION_LAG,
        loss=kernel.loss(kernel_model, batch, hypers.objective, real_V),
        gradients=made.gradients,
        phi_TxW=source.phi_TxW,
    )


def weights(spec: Spec, state: State) -> Params:
    """Return the parameters in their unpadded shapes, under the paper's names."""
    return kernel.unpad(spec, state.params)


def loss(spec: Spec, stream: Stream, hypers: Hypers, weights: Params, batch: Bag) -> jax.Array:
    """Compute the loss of eq. (1) of snapshot weights on a batch, without L2."""
    kernel_model = kernel.effective(spec, kernel.pad(weights))
    return kernel.loss(kernel_model, batch, hypers.objective, kernel.real_types(spec))


def trained(spec: Spec, weights: Params) -> dict[str, bool]:
    """Mark the weights that are trained."""
    return {name: name in model.trained_names(spec) for name in weights}


def loss_gradients(spec: Spec, hypers: Hypers, params: Params, batch: Bag) -> Params:
    """Compute the gradients of eq. (1) for the trained parameters."""
    trained, frozen = split(params, model.trained_names(spec))

    def of_trained(trained: Params) -> jax.Array:
        kernel_model = kernel.effective(spec, trained | frozen)
        return kernel.loss(kernel_model, batch, hypers.objective, kernel.real_types(spec))

    return jax.grad(of_trained)(trained)


def mean_queries(spec: Spec) -> float:
    """Compute the mean number of queries of a batch that have words to predict."""
    if spec.attention == "uniform":
        return spec.batch_size
    if spec.infinite_documents:
        return spec.batch_size * spec.vocabulary
    return spec.batch_size * (1 + spec.word_query_probability * (spec.shortest + spec.longest) / 2)


def step_flops(spec: Spec) -> float:
    """Compute the useful floating-point operations of one trial-step: matrix products without padding."""
    V, D, A = spec.vocabulary, spec.width, spec.head_width
    products = 2 if spec.attention == "uniform" else 3  # output; gradients of value and attention
    flops = 2.0 * mean_queries(spec) * V * V * products
    if spec.attention == "trained":
        flops += 3 * 2.0 * A * V * V
    if spec.embedding != "one_hot":
        flops += 3 * 2.0 * (2 * A * D * V + D * D * V + D * V * V)
    return flops


def weight_entries(spec: Spec) -> int:
    """Count one trial's parameters, unpadded."""
    V, D, A = spec.vocabulary, spec.width, spec.head_width
    entries = 2 * A * D + D * D + V + (0 if spec.embedding == "one_hot" else D * V)
    return entries + (2 * A + D if spec.attention_biases == "trained" else 0)


@functools.cache
def optimizer_copies(name: str) -> int:
    """Count the numbers that an optimizer keeps per parameter."""
    number = jnp.zeros((1024,))
    state = jax.eval_shape(lambda: optimizer(Spec(optimizer=name), traced(Hypers())).init(number))
    return sum(leaf.size for leaf in jax.tree.leaves(state)) // number.size


def trial_bytes(spec: Spec) -> float:
    """Estimate the memory of one trial and its documents during training."""
    T, V = spec.topics, bags.padded(spec.vocabulary)
    states = (2 + optimizer_copies(spec.optimizer)) * weight_entries(spec)  # parameters, gradients, optimizer
    slots = math.ceil(ROTATION_LAG / spec.record_every)
    held_out = spec.eval_documents * (V if spec.infinite_documents else 6)
    work = 4 * V * (mean_queries(spec) + held_out) + 8 * V * V
    drawn = max(spec.batch_size, spec.eval_documents)
    tokens = 0 if spec.infinite_documents else 10 * drawn * spec.longest
    return FLOAT * (states + slots * V * V + work + tokens + 20 * drawn * T + 2 * T * V + V * V)


EXPERIMENT = Experiment(
    settings=TRIALS,
    source=make_source,
    batch=draw_batch,
    init=init,
    update=update,
    measure=measure,
    weights=weights,
    loss=loss,
    trained=trained,
    healthy=HEALTHY,
    fit=fit_queries,
    missing=queries_missing,
    trial_bytes=trial_bytes,
    step_flops=step_flops,
    references=lines.references,
    reference_settings=lines.reference_settings,
    decided=decided,
)
