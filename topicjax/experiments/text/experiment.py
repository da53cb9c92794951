"""Experiment: an encoder of several layers on windows of text (data, training, costs)."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.contract import Experiment
from topicjax.experiments.shared import lda, threefry
from topicjax.experiments.shared.layer_records import HEALTHY, Made
from topicjax.experiments.shared.layer_training import init, layer_flops, stepped, weights
from topicjax.experiments.shared.lda import Documents
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.settings import LayerHypers
from topicjax.experiments.shared.state import State
from topicjax.experiments.text import losses, rows, windows
from topicjax.experiments.text.records import measure_held_out, measure_weights
from topicjax.experiments.text.rows import Rows
from topicjax.experiments.text.settings import SPECIAL, TRIALS, Spec, Stream
from topicjax.experiments.text.windows import EVAL_SEED, Windows


class Source(NamedTuple):
    """What a Stream fixes for the whole training."""

    id_C: jax.Array
    start_W: jax.Array
    length_W: jax.Array
    number: jax.Array
    windows_key: jax.Array
    held_out: Rows
    unigram_KxB: jax.Array  # each held-out window's part of the unigram loss, by objective


def make_source(spec: Spec, stream: Stream, corpus: Windows) -> Source:
    """Take the training windows, and the held-out ones masked by the Stream."""
    documents = held_out_documents(spec, stream, corpus)
    predicted_BxN = documents.masked_BxN & (documents.shown_BxN == 0)
    room = rows.held_out_room(spec, spec.eval_windows)
    held_out = rows.from_documents(spec, stream, documents, predicted_BxN, room)
    return Source(
        id_C=jnp.asarray(corpus.id_C),
        start_W=jnp.asarray(corpus.start_W),
        length_W=jnp.asarray(corpus.length_W),
        number=jnp.asarray(corpus.number),
        windows_key=lda.stream_keys(stream.seed).documents,
        held_out=held_out,
        unigram_KxB=losses.unigram_losses(jnp.asarray(corpus.count_V), held_out),
    )


def held_out_documents(spec: Spec, stream: Stream, corpus: Windows) -> Documents:
    """Mask the held-out windows, in the same way for all seeds."""
    key = threefry.raw(jax.random.key(EVAL_SEED))
    words, lengths = jnp.asarray(corpus.held_out_BxN), jnp.asarray(corpus.held_out_B)
    return mask_windows(spec, stream, words, lengths, key)


def draw_batch(spec: Spec, stream: Stream, source: Source, step: jax.Array) -> Rows:
    """Draw the windows of a step, uniformly from the training windows."""
    documents = jax.lax.optimization_barrier(draw_windows(spec, stream, source, step))
    room = rows.room(spec, spec.batch_size)
    return rows.from_documents(spec, stream, documents, documents.masked_BxN, room)


def draw_windows(spec: Spec, stream: Stream, source: Source, step: jax.Array) -> Documents:
    """Draw and mask the windows of a step."""
    key = threefry.fold_in(threefry.raw(source.windows_key), step)
    window_key, mask_key = threefry.split(key, 2)
    window_B = threefry.integers(window_key, spec.batch_size, jnp.int32(0), source.number)
    place_BxN = source.start_W[window_B][:, None] + jnp.arange(spec.context)[None, :]
    word_BxN = source.id_C[jnp.minimum(place_BxN, source.id_C.size - 1)].astype(jnp.int32)
    return mask_windows(spec, stream, word_BxN, source.length_W[window_B], mask_key)


def mask_windows(
    spec: Spec, stream: Stream, word_BxN: jax.Array, length_B: jax.Array, key: threefry.Key
) -> Documents:
    """Mask some known words of windows; places beyond a window's end show 0 and are absent."""
    B, N = word_BxN.shape
    (bits,) = threefry.random_bits((key, threefry.places(3, B, N)))
    u_mask_BxN, u_kind_BxN, u_random_BxN = threefry.uniform(bits)
    present_BxN = jnp.arange(N)[None, :] < length_B[:, None]
    word_BxN = jnp.where(present_BxN, word_BxN, 0)
    masked_BxN = (word_BxN >= SPECIAL) & (u_mask_BxN < stream.p_mask)
    words = spec.vocabulary - SPECIAL
    random_BxN = SPECIAL + jnp.floor(u_random_BxN * words).astype(jnp.int32)
    shown_BxN = lda.shown_words(stream, word_BxN, masked_BxN, random_BxN, u_kind_BxN)
    return Documents(word_BxN, shown_BxN, masked_BxN, present_BxN)


def rows_missing(source: Source, batch: Rows) -> jax.Array:
    """Count the rows to predict beyond capacity."""
    return jnp.maximum(source.held_out.missing, batch.missing)


def update(
    spec: Spec, stream: Stream, hypers: LayerHypers, state: State, batch: Rows, step: jax.Array
) -> tuple[State, Made]:
    """Take one step; return the new state and the loss and gradients of that step."""
    room = rows.room(spec, spec.batch_size)

    def loss_and_gradients(trained: Params, frozen: Params) -> tuple[jax.Array, Params]:
        return losses.loss_and_gradients(spec, hypers, trained, frozen, batch, room)

    return stepped(spec, hypers, state, step, loss_and_gradients)


def measure(
    spec: Spec, stream: Stream, hypers: LayerHypers, source: Source, state: State, batch: Rows, made: Made
) -> Any:
    """Measure a state before the step of this batch; `made` belongs to that step."""
    return measure_weights(spec, state, made)


def measure_rarely(
    spec: Spec, stream: Stream, hypers: LayerHypers, source: Source, state: State, batch: Rows, made: Made
) -> Any:
    """Measure a state on the held-out windows."""
    return measure_held_out(spec, hypers, source.held_out, source.unigram_KxB, state.params)


def fit_masks(spec: Spec, streams: Collection[Stream]) -> Spec:
    """Size the Spec for the most masked words of these streams."""
    return replace(
        spec,
        mask_probability=max(each.p_mask for each in streams),
        word_query_probability=max(each.p_mask * (each.p_keep + each.p_random) for each in streams),
        mask_query_probability=max(each.p_mask * (1 - each.p_keep - each.p_random) for each in streams),
    )


def step_flops(spec: Spec) -> float:
    """Estimate the floating-point operations of one trial-step."""
    room = rows.room(spec, spec.batch_size)
    return layer_flops(spec, spec.batch_size, spec.context, room.Q, room.usual)


EXPERIMENT = Experiment(
    settings=TRIALS,
    details=("layer",),
    source=make_source,
    batch=draw_batch,
    init=init,
    update=update,
    measure=measure,
    measure_rarely=measure_rarely,
    weights=weights,
    healthy=HEALTHY,
    fit=fit_masks,
    missing=rows_missing,
    step_flops=step_flops,
    draw_cost=0.1,
    data=windows.data,
)
