"""Training of one encoder: its source of documents, a batch, the first state, one update, one record."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.encoder import layers, model, rows
from topicjax.experiments.encoder.records import Moment, measure_model
from topicjax.experiments.encoder.rows import Rows
from topicjax.experiments.encoder.settings import Hypers, LayerSpec, Spec
from topicjax.experiments.one_layer import lda, threefry
from topicjax.experiments.one_layer.model import Params
from topicjax.experiments.one_layer.settings import Stream
from topicjax.experiments.one_layer.state import (
    ROTATION_LAG,
    State,
    add_l2,
    earlier_value,
    first_state,
    next_state,
    split,
)
from topicjax.experiments.one_layer.train import draw_documents


class Source(NamedTuple):
    """What a Stream fixes for the whole training."""

    phi_TxW: jax.Array
    documents_key: jax.Array
    held_out: Rows


class Made(NamedTuple):
    """What an update leaves for the record of its step."""

    step: jax.Array
    loss: jax.Array
    gradients: Params


def make_source(spec: Spec, stream: Stream) -> Source:
    """Return the topics and the held-out documents of a Stream: those of the one-layer model."""
    phi_TxW = lda.topic_words(spec, stream)
    key = threefry.raw(jax.random.key(lda.EVAL_SEED))
    held_out = to_rows(spec, stream, draw_documents(spec, stream, phi_TxW, key, spec.eval_documents))
    return Source(phi_TxW, lda.stream_keys(stream.seed).documents, held_out)


def draw_batch(spec: Spec, stream: Stream, source: Source, step: jax.Array) -> Rows:
    """Return the documents of a step."""
    key = threefry.fold_in(threefry.raw(source.documents_key), step)
    documents = draw_documents(spec, stream, source.phi_TxW, key, spec.batch_size)
    documents = jax.lax.optimization_barrier(documents)  # else the compiler draws them more than once
    return to_rows(spec, stream, documents)


def to_rows(spec: Spec, stream: Stream, documents: lda.Documents | jax.Array) -> Rows:
    """Return documents as the encoder takes them."""
    if isinstance(documents, lda.Documents):
        return rows.from_documents(spec, stream, documents)
    return rows.from_distributions(spec, stream, documents)


def rows_missing(source: Source, batch: Rows) -> jax.Array:
    """Return how many rows to predict there are beyond the room for them."""
    return jnp.maximum(rows.missing(source.held_out), rows.missing(batch))


def init(spec: LayerSpec, stream: Any, hypers: Hypers) -> State:
    """Return the state of a trial before its first step."""
    params = model.init(spec, hypers, lda.stream_keys(stream.seed).weights)
    return first_state(spec, hypers, params, model.trained_names(spec))


def update(
    spec: Spec, stream: Stream, hypers: Hypers, state: State, batch: Rows, step: jax.Array
) -> tuple[State, Made]:
    """Return the state one step later, and the loss and gradients of that step."""

    def loss_and_gradients(trained: Params, frozen: Params) -> tuple[jax.Array, Params]:
        return rows.with_usual_rows(
            spec, lambda own: layers.loss_and_gradients(spec, hypers, trained, frozen, own), batch
        )

    return stepped(spec, hypers, state, step, loss_and_gradients)


def stepped(
    spec: LayerSpec,
    hypers: Hypers,
    state: State,
    step: jax.Array,
    loss_and_gradients: Callable[[Params, Params], tuple[jax.Array, Params]],
) -> tuple[State, Made]:
    """Return what `update` does, given the loss as a function of trained and frozen parameters."""
    loss, gradients = loss_and_gradients(*split(state.params, model.trained_names(spec)))
    gradients = add_l2(hypers, state.params, gradients)
    return next_state(spec, hypers, state, gradients, step), Made(step, loss, gradients)


def measure(
    spec: Spec,
    stream: Stream,
    hypers: Hypers,
    source: Source,
    state: State,
    batch: Rows,
    made: Made,
) -> Any:
    """Return the record of a state, before the step of this batch; `made` is of that step."""
    return measure_model(spec, hypers, source.held_out, moment(spec, state, made))


def moment(spec: LayerSpec, state: State, made: Made) -> Moment:
    """Return what a record is made of, but for the held-out data."""
    earlier = earlier_value(spec, state, made.step)
    return Moment(state.params, earlier, made.step >= ROTATION_LAG, made.loss, made.gradients)


def weights(spec: LayerSpec, state: State) -> Params:
    """Return the parameters, those of all layers stacked."""
    return state.params
