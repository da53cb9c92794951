"""Documents as the encoder takes them: equal positions merged into counted rows.

Without position embeddings all positions of a document that show the same token have the same state in every
layer.  So each distinct (document, token) is one row, computed once, whose count multiplies its weight as a
key: exactly the encoder over positions.  With position embeddings every position is its own row.
Rows with words to predict come first, then the others, then empty ones, so a smaller computation takes the
first rows.  Dimension letters: B documents, N positions, V vocabulary, U rows, Q rows with words to predict.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.encoder.settings import Spec
from topicjax.experiments.shared import bags
from topicjax.experiments.shared.bags import histogram, largest, padded, query_capacity
from topicjax.experiments.shared.lda import Documents, key_positions
from topicjax.theory.document_settings import Stream

OVERFLOW = 1e-15  # probability that a document has more rows to predict than fit: an error
UNUSUAL = 1e-4  # probability that a document exceeds the usual capacity: it only takes longer


class Rows(NamedTuple):
    """The rows of documents; a row with no positions is empty."""

    token_BxU: jax.Array
    place_BxU: jax.Array  # the position, with position embeddings
    shown_BxU: jax.Array  # number of positions that the row represents
    keys_BxU: jax.Array  # number of those that are keys
    target_BxQxV: jax.Array  # words to predict, weighted so that the loss is a sum
    most: jax.Array  # largest number of rows of a document
    most_predicted: jax.Array  # largest number of rows with words to predict; beyond capacity: an error


def room(spec: Spec) -> tuple[int, int]:
    """Compute the capacity per document: rows, and rows with words to predict."""
    if spec.infinite_documents:
        return spec.vocabulary, spec.vocabulary
    if spec.places:
        return padded(spec.longest), padded(spec.longest)
    rows = padded(min(spec.vocabulary, spec.longest))
    return rows, min(rows, padded(1 + query_capacity(spec, 1, OVERFLOW)))


def usual_room(spec: Spec) -> tuple[int, int]:
    """Compute a capacity that nearly all documents stay below: rows, and rows with words to predict.

    Documents have few topics, so half of all types is enough.
    """
    rows, predicted = room(spec)
    if spec.infinite_documents or spec.places:
        return rows, predicted
    usual_predicted = min(predicted, padded(1 + query_capacity(spec, 1, UNUSUAL)))
    return max(padded(-(-rows // 2)), usual_predicted), usual_predicted


def with_usual_rows(spec: Spec, function: Callable[[Rows], Any], rows: Rows) -> Any:
    """Evaluate function(rows), to rounding, without the rows that only unusual documents need."""
    U, Q = usual_room(spec)
    if room(spec) == (U, Q):
        return function(rows)
    fewer = rows._replace(**{name: getattr(rows, name)[:, :U] for name in Rows._fields[:4]})
    fewer = fewer._replace(target_BxQxV=rows.target_BxQxV[:, :Q])
    is_usual = (largest(rows.most) <= U) & (largest(rows.most_predicted) <= Q)
    return jax.lax.cond(is_usual, lambda: function(fewer), lambda: function(rows))


def missing(rows: Rows) -> jax.Array:
    """Count the rows with words to predict beyond capacity, in the worst document."""
    return rows.most_predicted - rows.target_BxQxV.shape[-2]


def from_documents(spec: Spec, stream: Stream, documents: Documents) -> Rows:
    """Make the rows of finite documents."""
    B, N = documents.word_BxN.shape
    (U, Q), shown_BxN = room(spec), documents.shown_BxN
    learned = bool(spec.places)
    kinds = N if learned else spec.vocabulary  # of rows, before empty ones are dropped
    kind_BxN = jnp.broadcast_to(jnp.arange(N), (B, N)) if learned else shown_BxN
    present_BxK = histogram(kind_BxN, documents.present_BxN, kinds)
    keys_BxK = histogram(kind_BxN, key_positions(stream, documents), kinds)
    masked_BxK = histogram(kind_BxN, documents.masked_BxN, kinds)
    rank_BxK = (present_BxK > 0).astype(jnp.int32) + (masked_BxK > 0)
    order_BxK = jnp.argsort(-rank_BxK, axis=1, stable=True)
    row_BxK = jnp.argsort(order_BxK, axis=1)

    def ordered(values_BxK: jax.Array) -> jax.Array:
        sorted_BxK = jnp.take_along_axis(values_BxK, order_BxK, axis=1)
        return jnp.pad(sorted_BxK, ((0, 0), (0, max(0, U - kinds))))[:, :U]

    kind_BxU = ordered(jnp.broadcast_to(jnp.arange(kinds), (B, kinds)))
    row_BxN = jnp.take_along_axis(row_BxK, kind_BxN, axis=1)
    return Rows(
        token_BxU=jnp.take_along_axis(shown_BxN, kind_BxU, axis=1) if learned else kind_BxU,
        place_BxU=kind_BxU if learned else jnp.zeros_like(kind_BxU),
        shown_BxU=ordered(present_BxK),
        keys_BxU=ordered(keys_BxK),
        target_BxQxV=targets(documents, row_BxN, Q, spec.vocabulary),
        most=(present_BxK > 0).sum(axis=1).max(),
        most_predicted=(masked_BxK > 0).sum(axis=1).max(),
    )


def targets(documents: Documents, row_BxN: jax.Array, Q: int, V: int) -> jax.Array:
    """Compute the words that each row must predict; documents without masked positions do not count."""
    masked_BxN = documents.masked_BxN
    masked_B = masked_BxN.sum(axis=1)
    weight_B = 1.0 / (jnp.maximum(masked_B, 1) * jnp.maximum((masked_B > 0).sum(), 1))
    weight_BxN = jnp.where(masked_BxN, weight_B[:, None], 0.0)
    document_Bx1 = jnp.arange(row_BxN.shape[0])[:, None]
    zeros_BxQxV = jnp.zeros((row_BxN.shape[0], Q, V))
    return zeros_BxQxV.at[document_Bx1, row_BxN, documents.word_BxN].add(weight_BxN, mode="drop")


def from_distributions(spec: Spec, stream: Stream, P_BxW: jax.Array) -> Rows:
    """Make the rows of infinite documents: one per token, with its expected count."""
    (B, W), V = P_BxW.shape, spec.vocabulary
    bag = bags.from_distributions(spec, stream, P_BxW)
    p_m, p_c, p_r = stream.p_mask, stream.p_keep, stream.p_random
    shown_BxV = jnp.pad((1 - (1 - p_c) * p_m) * P_BxW + p_m * p_r / W, ((0, 0), (1, 0)))
    word_BxV = jnp.pad(P_BxW / B, ((0, 0), (1, 0)))
    share_V = jnp.full(V, p_r / W).at[0].set(1 - p_c - p_r)
    kept_BxVxV = p_c * word_BxV[:, :, None] * jnp.eye(V)[None]
    return Rows(
        token_BxU=jnp.broadcast_to(jnp.arange(V), (B, V)),
        place_BxU=jnp.zeros((B, V), jnp.int32),
        shown_BxU=shown_BxV.at[:, 0].set(p_m * (1 - p_c - p_r)),
        keys_BxU=bag.count_BxV[:, :V],
        target_BxQxV=share_V[None, :, None] * word_BxV[:, None, :] + kept_BxVxV,
        most=jnp.full((), V),
        most_predicted=jnp.full((), V),
    )
