"""Training of one encoder on text: its windows, a batch, one update, one record."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.encoder.settings import Hypers
from topicjax.experiments.encoder.train import Made, moment, stepped
from topicjax.experiments.one_layer import lda, threefry
from topicjax.experiments.one_layer.lda import Documents
from topicjax.experiments.one_layer.model import Params
from topicjax.experiments.one_layer.state import State
from topicjax.experiments.text import rows, word_losses
from topicjax.experiments.text.records import measure_model
from topicjax.experiments.text.rows import Rows
from topicjax.experiments.text.settings import SPECIAL, Spec, Stream
from topicjax.experiments.text.windows import EVAL_SEED, Windows


class Source(NamedTuple):
    """What a Stream fixes for the whole training."""

    id_C: jax.Array
    start_W: jax.Array
    length_W: jax.Array
    number: jax.Array
    windows_key: jax.Array
    held_out: Rows
    unigram_KxB: jax.Array  # what each held-out window adds to the loss of the unigram model, by objective


def make_source(spec: Spec, stream: Stream, windows: Windows) -> Source:
    """Return the windows to train on, and the held-out ones, masked as the Stream says."""
    documents = held_out_documents(spec, stream, windows)
    predicted_BxN = documents.masked_BxN & (documents.shown_BxN == 0)
    held_out = rows.from_documents(spec, stream, documents, predicted_BxN, rows.held_out_room(spec))
    return Source(
        id_C=jnp.asarray(windows.id_C),
        start_W=jnp.asarray(windows.start_W),
        length_W=jnp.asarray(windows.length_W),
        number=jnp.asarray(windows.number),
        windows_key=lda.stream_keys(stream.seed).documents,
        held_out=held_out,
        unigram_KxB=word_losses.unigram_losses(jnp.asarray(windows.count_V), held_out),
    )


def held_out_documents(spec: Spec, stream: Stream, windows: Windows) -> Documents:
    """Return the held-out windows with their masks: the same for all seeds."""
    key = threefry.raw(jax.random.key(EVAL_SEED))
    words, lengths = jnp.asarray(windows.held_out_BxN), jnp.asarray(windows.held_out_B)
    return mask_windows(spec, stream, words, lengths, key)


def draw_batch(spec: Spec, stream: Stream, source: Source, step: jax.Array) -> Rows:
    """Return the windows of a step: each is any of those to train on, with equal probability."""
    documents = jax.lax.optimization_barrier(draw_windows(spec, stream, source, step))
    room = rows.room(spec, spec.batch_size)
    return rows.from_documents(spec, stream, documents, documents.masked_BxN, room)


def draw_windows(spec: Spec, stream: Stream, source: Source, step: jax.Array) -> Documents:
    """Return the masked windows of a step."""
    key = threefry.fold_in(threefry.raw(source.windows_key), step)
    window_key, mask_key = threefry.split(key, 2)
    window_B = threefry.integers(window_key, spec.batch_size, jnp.int32(0), source.number)
    place_BxN = source.start_W[window_B][:, None] + jnp.arange(spec.context)[None, :]
    word_BxN = source.id_C[jnp.minimum(place_BxN, source.id_C.size - 1)].astype(jnp.int32)
    return mask_windows(spec, stream, word_BxN, source.length_W[window_B], mask_key)


def mask_windows(
    spec: Spec, stream: Stream, word_BxN: jax.Array, length_B: jax.Array, key: threefry.Key
) -> Documents:
    """Return windows with some known words masked; places beyond a window's end show 0 and are not there."""
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
    """Return how many rows to predict there are beyond the room for them."""
    return jnp.maximum(source.held_out.missing, batch.missing)


def update(
    spec: Spec, stream: Stream, hypers: Hypers, state: State, batch: Rows, step: jax.Array
) -> tuple[State, Made]:
    """Return the state one step later, and the loss and gradients of that step."""
    room = rows.room(spec, spec.batch_size)

    def loss_and_gradients(trained: Params, frozen: Params) -> tuple[jax.Array, Params]:
        return word_losses.loss_and_gradients(spec, hypers, trained, frozen, batch, room)

    return stepped(spec, hypers, state, step, loss_and_gradients)


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
    return measure_model(spec, hypers, source.held_out, source.unigram_KxB, moment(spec, state, made))
