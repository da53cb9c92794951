"""Training of one trial: its source of documents, a batch, the first state, one update.

The batch of a step is a function of the Stream and the step alone: trials that share a Stream see the same
documents, and the engine draws them once for all.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.one_layer import bags, kernel, lda, model, threefry
from topicjax.experiments.one_layer.bags import Bag
from topicjax.experiments.one_layer.model import Params
from topicjax.experiments.one_layer.records import HeldOut, Record, measure_model
from topicjax.experiments.one_layer.settings import DocumentSpec, Hypers, Spec, Stream
from topicjax.experiments.one_layer.state import (
    ROTATION_LAG,
    State,
    add_l2,
    earlier_value,
    first_state,
    next_state,
    split,
)


class Source(NamedTuple):
    """What a Stream fixes for the whole training."""

    phi_TxW: jax.Array
    documents_key: jax.Array
    held_out: HeldOut


class Made(NamedTuple):
    """What an update leaves for the record of its step."""

    step: jax.Array
    gradients: Params


def make_source(spec: Spec, stream: Stream) -> Source:
    """Return the topics and the held-out documents of a Stream."""
    phi_TxW = lda.topic_words(spec, stream)
    key = threefry.raw(jax.random.key(lda.EVAL_SEED))
    documents = draw_documents(spec, stream, phi_TxW, key, spec.eval_documents)
    uniform = to_bag(spec, stream, documents, uniform=True)
    attends = spec.attention == "trained"
    attended = to_bag(spec, stream, documents, uniform=False) if attends else uniform
    return Source(phi_TxW, lda.stream_keys(stream.seed).documents, HeldOut(attended, uniform))


def draw_batch(spec: Spec, stream: Stream, source: Source, step: jax.Array) -> Bag:
    """Return the documents of a step, as the kernel takes them."""
    key = threefry.fold_in(threefry.raw(source.documents_key), step)
    documents = draw_documents(spec, stream, source.phi_TxW, key, spec.batch_size)
    documents = jax.lax.optimization_barrier(documents)  # else the compiler draws them more than once
    return to_bag(spec, stream, documents, uniform=spec.attention == "uniform")


def queries_missing(source: Source, batch: Bag) -> jax.Array:
    """Return how many kept and random words there are beyond the kernel's room for them."""
    return jnp.maximum(source.held_out.attended.queries_missing, batch.queries_missing)


def init(spec: Spec, stream: Stream, hypers: Hypers) -> State:
    """Return the state of a trial before its first step; its parameters are padded."""
    params = kernel.pad(model.init(spec, stream, hypers, lda.stream_keys(stream.seed).weights))
    return first_state(spec, hypers, params, model.trained_names(spec))


def update(
    spec: Spec, stream: Stream, hypers: Hypers, state: State, batch: Bag, step: jax.Array
) -> tuple[State, Made]:
    """Return the state one step later, and the gradients of that step."""
    gradients = bags.with_usual_queries(
        spec,
        lambda bag: loss_gradients(spec, hypers, state.params, bag),
        batch,
        spec.batch_size,
        num_sizes=2,
    )
    gradients = add_l2(hypers, state.params, gradients)
    return next_state(spec, hypers, state, gradients, step), Made(step, gradients)


def measure(
    spec: Spec,
    stream: Stream,
    hypers: Hypers,
    source: Source,
    state: State,
    batch: Bag,
    made: Made,
) -> Record:
    """Return the record of a state, before the step of this batch, with the gradients of that step.

    Steps need gradients alone: the loss is computed here, for records only.
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
    )


def weights(spec: Spec, state: State) -> Params:
    """Return the parameters in their true shapes, under the paper's names."""
    return kernel.unpad(spec, state.params)


def draw_documents(
    spec: DocumentSpec, stream: Stream, phi_TxW: jax.Array, key: threefry.Key, num_documents: int
) -> lda.Documents | jax.Array:
    """Return new documents: token by token, or the word distributions of infinite ones."""
    draw = lda.word_distributions if spec.infinite_documents else lda.sample_documents
    return draw(spec, stream, phi_TxW, key, num_documents)


def to_bag(spec: Spec, stream: Stream, documents: lda.Documents | jax.Array, uniform: bool) -> Bag:
    """Return documents as the kernel takes them, for attending or uniform models."""
    if isinstance(documents, lda.Documents):
        return bags.from_documents(spec, stream, documents, uniform)
    return bags.from_distributions(spec, stream, documents, uniform)


def loss_gradients(spec: Spec, hypers: Hypers, params: Params, batch: Bag) -> Params:
    """Return the gradients of eq. (1) for the trained parameters."""
    trained, frozen = split(params, model.trained_names(spec))

    def loss(trained: Params) -> jax.Array:
        kernel_model = kernel.effective(spec, trained | frozen)
        return kernel.loss(kernel_model, batch, hypers.objective, kernel.real_types(spec))

    return jax.grad(loss)(trained)
