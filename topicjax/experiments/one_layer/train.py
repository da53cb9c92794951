"""Training of one trial: init, advance, record.  Only the engine knows that there are many.

The batch of step t is a function of the Stream and t alone, so under `vmap` over Hypers it is drawn once
for all trials that share a Stream: STATE_PER says which fields of the state such trials share.
"""

from enum import Enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from topicjax.experiments.one_layer import kernel, lda, model
from topicjax.experiments.one_layer.kernel import Bag
from topicjax.experiments.one_layer.model import Params
from topicjax.experiments.one_layer.optimizers import optimizer
from topicjax.experiments.one_layer.records import ROTATION_LAG, HeldOut, Record, measure
from topicjax.trial import Hypers, Spec, Stream


class TrainState(NamedTuple):
    """Everything a trial carries from step to step; data only."""

    step: Any
    queries_missing: Any  # above 0: a step had more kept and random words than queries, the trial is void
    params: Any  # padded
    opt_state: Any
    earlier_values: Any  # W_V ten steps before each of the coming records
    source: Any  # what the Stream fixes for the whole training


class Per(Enum):
    """How many copies of a part of the state there are when many trials train together."""

    PROGRAM = "one for all trials"
    STREAM = "one for the trials of a Stream"
    TRIAL = "one per trial"


STATE_PER = TrainState(
    step=Per.PROGRAM,
    queries_missing=Per.STREAM,
    params=Per.TRIAL,
    opt_state=Per.TRIAL,
    earlier_values=Per.TRIAL,
    source=Per.STREAM,
)


class Source(NamedTuple):
    """What a Stream fixes for the whole training: made once by init, not every step."""

    phi_TxW: jax.Array
    documents_key: jax.Array
    held_out: HeldOut


def check_queries(state: TrainState) -> None:
    """Raise if any step had more kept and random words than the kernel has room for."""
    missing = int(jnp.max(state.queries_missing))
    if missing > 0:
        raise RuntimeError(
            f"a batch has {missing} more kept and random words than the kernel has room for: its trials are "
            "void; word_query_probability must be at least p_mask (p_keep + p_random)"
        )


def init(spec: Spec, stream: Stream, hypers: Hypers) -> TrainState:
    """Return the state of a trial before its first step."""
    params = kernel.pad(model.init(spec, stream, hypers, lda.stream_keys(stream.seed).weights))
    trained, _ = split(spec, params)
    slots = -(-ROTATION_LAG // spec.record_every)
    source = make_source(spec, stream)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        queries_missing=source.held_out.attended.queries_missing,
        params=params,
        opt_state=optimizer(spec, hypers).init(trained),
        earlier_values=jnp.zeros((slots, *params["W_V"].shape), params["W_V"].dtype),
        source=source,
    )


def advance(
    spec: Spec, stream: Stream, hypers: Hypers, state: TrainState, num_records: int
) -> tuple[TrainState, Record]:
    """Train for num_records * spec.record_every steps; return the state and the records.

    A record is taken before the first step of each window of spec.record_every steps, from the gradients
    that step computes anyway.
    """
    source, tx = state.source, optimizer(spec, hypers)
    empty = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(lambda: record(spec, stream, hypers, state)),
    )

    def step(carry: tuple[TrainState, Record], offset: jax.Array):
        state, latest = carry
        batch = draw_batch(spec, stream, source, state.step)
        gradients = kernel.with_usual_queries(
            spec,
            lambda bag: loss_gradients(spec, hypers, state.params, bag),
            batch,
            spec.batch_size,
        )
        gradients = add_l2(hypers, state.params, gradients)
        latest = jax.lax.cond(
            offset == 0,
            lambda: take_record(spec, stream, hypers, source, state, batch, gradients),
            lambda: latest,
        )
        state = remember_value(spec, state)
        trained, frozen = split(spec, state.params)
        updates, opt_state = tx.update(gradients, state.opt_state, trained)
        stepped: Any = optax.apply_updates(trained, updates)
        state = state._replace(
            step=state.step + 1,
            queries_missing=jnp.maximum(state.queries_missing, batch.queries_missing),
            params=stepped | frozen,
            opt_state=opt_state,
        )
        return (state, latest), None

    def window(state: TrainState, _: None) -> tuple[TrainState, Record]:
        (state, latest), _ = jax.lax.scan(step, (state, empty), jnp.arange(spec.record_every))
        return state, latest

    state, records = jax.lax.scan(window, state._replace(source=None), None, num_records)
    return state._replace(source=source), records


def record(spec: Spec, stream: Stream, hypers: Hypers, state: TrainState) -> Record:
    """Return the record of the state as it is: the one after the last step."""
    batch = draw_batch(spec, stream, state.source, state.step)
    gradients = add_l2(hypers, state.params, loss_gradients(spec, hypers, state.params, batch))
    return take_record(spec, stream, hypers, state.source, state, batch, gradients)


def make_source(spec: Spec, stream: Stream) -> Source:
    """Return the topics and the held-out documents of a Stream."""
    phi_TxW = lda.topic_words(spec, stream)
    key = jax.random.key(lda.EVAL_SEED)
    documents = draw_documents(spec, stream, phi_TxW, key, spec.eval_documents)
    uniform = to_bag(spec, stream, documents, uniform=True)
    attends = spec.attention == "trained"
    attended = to_bag(spec, stream, documents, uniform=False) if attends else uniform
    return Source(phi_TxW, lda.stream_keys(stream.seed).documents, HeldOut(attended, uniform))


def draw_batch(spec: Spec, stream: Stream, source: Source, step: jax.Array) -> Bag:
    """Return the documents of a step, as the kernel takes them."""
    key = jax.random.fold_in(source.documents_key, step)
    documents = draw_documents(spec, stream, source.phi_TxW, key, spec.batch_size)
    documents = jax.lax.optimization_barrier(documents)  # else the compiler draws them more than once
    return to_bag(spec, stream, documents, uniform=spec.attention == "uniform")


def draw_documents(
    spec: Spec, stream: Stream, phi_TxW: jax.Array, key: jax.Array, num_documents: int
) -> lda.Documents | jax.Array:
    """Return new documents: token by token, or the word distributions of infinite ones."""
    draw = lda.word_distributions if spec.infinite_documents else lda.sample_documents
    return draw(spec, stream, phi_TxW, key, num_documents)


def to_bag(spec: Spec, stream: Stream, documents: lda.Documents | jax.Array, uniform: bool) -> Bag:
    """Return documents as the kernel takes them, for attending or uniform models."""
    if isinstance(documents, lda.Documents):
        return kernel.from_documents(spec, stream, documents, uniform)
    return kernel.from_distributions(spec, stream, documents, uniform)


def loss_gradients(spec: Spec, hypers: Hypers, params: Params, batch: Bag) -> Params:
    """Return the gradients of eq. (1) for the trained parameters."""
    trained, frozen = split(spec, params)

    def loss(trained: Params) -> jax.Array:
        kernel_model = kernel.effective(spec, trained | frozen)
        return kernel.loss(kernel_model, batch, hypers.objective, kernel.real_types(spec))

    return jax.grad(loss)(trained)


def add_l2(hypers: Hypers, params: Params, gradients: Params) -> Params:
    """Return the gradients of eq. (2): the penalty is l2 times the sum of squares, also smooth at zero."""
    return {name: gradient + 2 * hypers.l2 * params[name] for name, gradient in gradients.items()}


def split(spec: Spec, params: Params) -> tuple[Params, Params]:
    """Return the trained and the frozen parameters."""
    names = model.trained_names(spec)
    trained = {name: params[name] for name in names}
    return trained, {name: leaf for name, leaf in params.items() if name not in names}


def take_record(
    spec: Spec,
    stream: Stream,
    hypers: Hypers,
    source: Source,
    state: TrainState,
    batch: Bag,
    gradients: Params,
) -> Record:
    """Return the record of the state, with W_V of ten steps before from its memory.

    Steps need gradients alone: the loss is computed here, for records only.
    """
    kernel_model, real_V = kernel.effective(spec, state.params), kernel.real_types(spec)
    slot = (state.step // spec.record_every) % state.earlier_values.shape[0]
    return measure(
        spec=spec,
        stream=stream,
        hypers=hypers,
        held_out=source.held_out,
        params=state.params,
        earlier_value=state.earlier_values[slot],
        step=state.step,
        loss=kernel.loss(kernel_model, batch, hypers.objective, real_V),
        gradients=gradients,
    )


def remember_value(spec: Spec, state: TrainState) -> TrainState:
    """Return the state, keeping W_V in memory if a record is due in ten steps.

    There are as many slots as records can be pending; a slot is read before it is written again.
    """
    due = state.step + ROTATION_LAG
    slot = (due // spec.record_every) % state.earlier_values.shape[0]
    earlier_values = jax.lax.cond(
        due % spec.record_every == 0,
        lambda: state.earlier_values.at[slot].set(state.params["W_V"]),
        lambda: state.earlier_values,
    )
    return state._replace(earlier_values=earlier_values)
