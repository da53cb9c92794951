"""Masked positions of documents, as the model takes them: what each must predict, and what it sees.

In one layer without position embeddings a masked position sees only which words are at offsets within reach,
and how often each type occurs elsewhere: all of these positions show [MASK] and send the same query, so its
scores depend on the type of a key and, within reach, on its offset.  In other models a position is a row.
Dimension letters: B documents, N positions, P masked positions of all documents, O offsets within reach,
V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.shared.bags import binomial_capacity, largest, padded
from topicjax.experiments.shared.lda import Documents
from topicjax.experiments.syntax.settings import Spec

OVERFLOW = 1e-15  # probability of a batch with more masked positions than there is room for: an error
UNUSUAL = 1e-4  # probability of a batch with more than usual: it only takes longer


class Rows(NamedTuple):
    """The positions of documents, in their order, as encoders take them."""

    token_BxU: jax.Array
    place_BxU: jax.Array
    keys_BxU: jax.Array


class Masked(NamedTuple):
    """The masked positions of documents; places beyond `number` are empty and weigh nothing."""

    rows: Rows
    index_P: jax.Array  # place among all positions of all documents
    document_P: jax.Array
    word_P: jax.Array  # what to predict
    weight_P: jax.Array  # so that the loss is a sum
    near_OxPxV: jax.Array  # 1 for the type at an offset; nothing in models with rows
    far_PxV: jax.Array  # how often each type occurs elsewhere
    number: jax.Array
    missing: jax.Array  # masked positions beyond the room: above 0 is an error


def room(spec: Spec, documents: int) -> tuple[int, int]:
    """Compute the room for masked positions of this many documents, and what nearly all batches need."""
    positions = documents * spec.longest
    most, usual = (
        min(positions, padded(max(1, binomial_capacity(positions, spec.mask_probability, tail))))
        for tail in (OVERFLOW, UNUSUAL)
    )
    return most, usual


def by_type(spec: Spec) -> bool:
    """Tell whether attention can be computed between types instead of positions."""
    return spec.layers == 1 and not spec.places


def from_documents(spec: Spec, documents: Documents) -> Masked:
    """Collect the masked positions of documents; those without any do not count in the loss."""
    B, N = documents.word_BxN.shape
    masked_BxN, present_BxN = documents.masked_BxN, documents.present_BxN
    most, _ = room(spec, B)
    masked_B = masked_BxN.sum(axis=1)
    weight_B = 1.0 / (jnp.maximum(masked_B, 1) * jnp.maximum((masked_B > 0).sum(), 1))
    (index_P,) = jnp.nonzero(masked_BxN.reshape(-1), size=most, fill_value=B * N)
    is_real_P = index_P < B * N
    index_P = jnp.minimum(index_P, B * N - 1)
    document_P, place_P = index_P // N, index_P % N
    token_BxN = jnp.where(present_BxN, documents.shown_BxN, 0)
    rows = Rows(token_BxN, jnp.broadcast_to(jnp.arange(N), (B, N)), present_BxN.astype(jnp.float32))
    near_OxPxV, far_PxV = jnp.zeros((0, most, 0)), jnp.zeros((most, 0))
    if by_type(spec):
        near_OxPxV, far_PxV = what_is_seen(spec, token_BxN, present_BxN, document_P, place_P)
    total = masked_BxN.sum(dtype=jnp.int32)
    return Masked(
        rows=rows,
        index_P=index_P,
        document_P=document_P,
        word_P=jnp.where(is_real_P, documents.word_BxN[document_P, place_P], 1),
        weight_P=jnp.where(is_real_P, weight_B[document_P], 0.0),
        near_OxPxV=near_OxPxV,
        far_PxV=far_PxV,
        number=total,
        missing=total - most,
    )


def what_is_seen(
    spec: Spec, token_BxN: jax.Array, present_BxN: jax.Array, document_P: jax.Array, place_P: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mark the type at each offset within reach of a position, and count the types elsewhere."""
    N, V = token_BxN.shape[1], spec.vocabulary
    type_V = jnp.arange(V)
    is_type_BxNxV = (token_BxN[:, :, None] == type_V[None, None, :]) & present_BxN[:, :, None]
    count_BxV = is_type_BxNxV.sum(axis=1).astype(jnp.float32)
    near = []
    for offset in range(-spec.reach, spec.reach + 1):
        if offset:
            there_P = place_P + offset
            safe_P = jnp.clip(there_P, 0, N - 1)
            is_key_P = (there_P == safe_P) & present_BxN[document_P, safe_P]
            near.append((token_BxN[document_P, safe_P][:, None] == type_V[None, :]) & is_key_P[:, None])
    near_OxPxV = jnp.stack(near).astype(jnp.float32) if near else jnp.zeros((0, place_P.size, V))
    return near_OxPxV, count_BxV[document_P] - near_OxPxV.sum(axis=0)


def with_usual_number(spec: Spec, function: Callable[[Masked], Any], masked: Masked) -> Any:
    """Evaluate function(masked), to rounding, without the places that only unusual batches need.

    The result must not depend on the number of places.
    """
    most, usual = room(spec, masked.rows.token_BxU.shape[0])
    if usual >= most:
        return function(masked)
    fewer = masked._replace(
        **{name: getattr(masked, name)[:usual] for name in ("index_P", "document_P", "word_P", "weight_P")},
        near_OxPxV=masked.near_OxPxV[:, :usual],
        far_PxV=masked.far_PxV[:usual],
    )
    return jax.lax.cond(largest(masked.number) <= usual, lambda: function(fewer), lambda: function(masked))
