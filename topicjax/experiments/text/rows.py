"""Windows as the encoder takes them: equal positions merged into counted rows, and their targets.

Without position embeddings all positions of a window that show the same token have the same state in every
layer and are one row; with them every position is its own row.  Rows that predict come first.  Only they get
outputs, gathered over all windows: a vocabulary of text is too large for more.
Dimension letters: B windows, N positions, U rows (as many), Q rows of a window that predict, F rows of all
windows that predict.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.shared.bags import binomial_capacity, padded
from topicjax.experiments.shared.lda import Documents, key_positions
from topicjax.experiments.text.settings import Spec, Stream

OVERFLOW = (
    1e-15  # probability of a window, or a batch, with more rows to predict than there is room: an error
)
UNUSUAL = 1e-4  # probability of a batch with more rows to predict than usual: it only takes longer


class Rows(NamedTuple):
    """The rows of windows; a row with no positions is empty."""

    token_BxU: jax.Array
    place_BxU: jax.Array  # the position, with position embeddings
    shown_BxU: jax.Array  # number of positions that the row represents
    keys_BxU: jax.Array  # number of those that are keys
    predicting_F: jax.Array  # the rows that predict, by index among the first Q of each window
    row_BxN: jax.Array  # index of the row that predicts a position
    word_BxN: jax.Array  # its target
    weight_BxN: jax.Array  # 0: no target; weighted so that the loss is a sum
    number: jax.Array  # of rows that predict
    missing: jax.Array  # rows to predict beyond capacity: above 0 is an error


class Room(NamedTuple):
    """Capacity for rows that predict: per window, per batch, and what nearly all batches stay below."""

    Q: int
    F: int
    usual: int


def room(spec: Spec, windows: int) -> Room:
    """Compute the capacity for batches of this many windows."""
    probability = spec.mask_probability if spec.places else spec.word_query_probability
    return room_for(windows, spec.context, probability, 0 if spec.places else 1)


def held_out_room(spec: Spec, windows: int) -> Room:
    """Compute the capacity for so many held-out windows, where only [MASK] predicts."""
    probability = spec.mask_query_probability if spec.places else 0.0
    return room_for(windows, spec.context, probability, 0 if spec.places else 1)


def room_for(windows: int, context: int, probability: float, surely: int) -> Room:
    """Compute the capacity for rows that predict with this probability, plus `surely` that always do."""
    Q = min(context, surely + binomial_capacity(context, probability, OVERFLOW))
    F, usual = (
        windows * surely + binomial_capacity(windows * context, probability, tail)
        for tail in (OVERFLOW, UNUSUAL)
    )
    F = padded(max(1, min(F, windows * Q)))
    return Room(max(1, Q), F, min(F, padded(max(1, usual))))


def from_documents(
    spec: Spec, stream: Stream, documents: Documents, predicted_BxN: jax.Array, room: Room
) -> Rows:
    """Make the rows of masked windows; `predicted_BxN` marks the positions to predict."""
    B, N = documents.word_BxN.shape
    same_BxNxN = same_rows(spec, documents)
    first_BxN = jnp.argmax(same_BxNxN, axis=2)
    is_row_BxN = documents.present_BxN & (first_BxN == jnp.arange(N)[None, :])

    def counted(which_BxN: jax.Array) -> jax.Array:
        return jnp.where(is_row_BxN, (same_BxNxN & which_BxN[:, None, :]).sum(axis=2), 0)

    predicts_BxN = counted(predicted_BxN) > 0
    order_BxU = jnp.argsort(-(is_row_BxN.astype(jnp.int32) + predicts_BxN), axis=1, stable=True)

    def ordered(values_BxN: jax.Array) -> jax.Array:
        return jnp.take_along_axis(values_BxN, order_BxU, axis=1)

    row_of_BxN = jnp.take_along_axis(jnp.argsort(order_BxU, axis=1), first_BxN, axis=1)
    among_BxQ = ordered(predicts_BxN)[:, : room.Q]
    number_BxQ = jnp.cumsum(among_BxQ.reshape(-1)).reshape(B, room.Q) - 1
    row_BxN = jnp.take_along_axis(number_BxQ, jnp.minimum(row_of_BxN, room.Q - 1), axis=1)
    (predicting_F,) = jnp.nonzero(among_BxQ.reshape(-1), size=room.F, fill_value=0)
    most, total = predicts_BxN.sum(axis=1).max(), predicts_BxN.sum()
    return Rows(
        token_BxU=ordered(documents.shown_BxN),
        place_BxU=order_BxU,
        shown_BxU=ordered(counted(documents.present_BxN)).astype(jnp.float32),
        keys_BxU=ordered(counted(key_positions(stream, documents))).astype(jnp.float32),
        predicting_F=predicting_F,
        row_BxN=jnp.where(predicted_BxN, row_BxN, 0),
        word_BxN=jnp.where(predicted_BxN, documents.word_BxN, 0),
        weight_BxN=weights(predicted_BxN),
        number=total,
        missing=jnp.maximum(most - room.Q, total - room.F).astype(jnp.int32),
    )


def first_windows(rows: Rows, windows: int, room: Room) -> Rows:
    """Take the first windows of `rows`, with a capacity of their own.

    Rows that predict are numbered window by window, so those of the first windows come first.
    """
    first = Rows(*(part[:windows] if part.ndim > 1 else part for part in rows))
    number = (jnp.arange(rows.predicting_F.size) < rows.number) & (rows.predicting_F < windows * room.Q)
    return first._replace(
        predicting_F=jnp.where(number, rows.predicting_F, 0)[: room.F],
        number=number.sum(),
        missing=jnp.maximum(rows.missing, number.sum() - room.F),
    )


def same_rows(spec: Spec, documents: Documents) -> jax.Array:
    """Mark which positions of a window belong to one row, B x N x N."""
    shown_BxN, present_BxN = documents.shown_BxN, documents.present_BxN
    both_BxNxN = present_BxN[:, :, None] & present_BxN[:, None, :]
    if spec.places:
        return both_BxNxN & jnp.eye(shown_BxN.shape[1], dtype=bool)[None]
    return both_BxNxN & (shown_BxN[:, :, None] == shown_BxN[:, None, :])


def weights(predicted_BxN: jax.Array) -> jax.Array:
    """Compute the weight of each position in the loss: windows with targets count equally."""
    number_B = predicted_BxN.sum(axis=1)
    weight_B = 1.0 / (jnp.maximum(number_B, 1) * jnp.maximum((number_B > 0).sum(), 1))
    return jnp.where(predicted_BxN, weight_B[:, None], 0.0)
