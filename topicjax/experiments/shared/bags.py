"""Documents as the kernel takes them: counts of keys, and queries.

Without positions a document is described by its number of keys of each type, and its masked positions by
queries (document, query type, weighted words to predict): the positions of a document that show [MASK] are
one query, every kept or random word is a query of its own.
Dimension letters: B documents, N positions, R queries, C of them kept and random words, W words, V vocabulary
(padded with zeros to a multiple of the vector width).
"""

import functools
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from topicjax.experiments.shared.lda import UNMASKED_KEYS, Documents, key_positions
from topicjax.theory.document_settings import DocumentSpec, Stream

VECTOR_WIDTH = 8
OVERFLOW_PROBABILITY = 1e-12  # that a batch has more kept and random words than the capacity: an error
USUAL_SIGMAS = (0.0, 1.7)  # above the mean: a batch with more queries only takes longer


AnySpec = TypeVar("AnySpec", bound=DocumentSpec)


class Queries(NamedTuple):
    """Queries of documents; the target of each is a share of its document's words and one additional word."""

    document_R: jax.Array
    type_R: jax.Array
    share_S: jax.Array  # weight of its document's target_BxV in the query's target; 0 beyond the first S
    word_R: jax.Array
    word_weight_R: jax.Array


class Bag(NamedTuple):
    """Documents as the kernel takes them; the first B queries are the documents' [MASK] queries."""

    count_BxV: jax.Array  # keys of each type
    target_BxV: jax.Array  # histogram of words to predict, weighted so that the loss is a sum
    queries: Queries
    queries_missing: jax.Array  # kept and random words beyond the capacity: above 0 is an error


def padded(size: int) -> int:
    """Round the size up to the vector width."""
    return -(-size // VECTOR_WIDTH) * VECTOR_WIDTH


def fit_queries(spec: AnySpec, streams: Collection[Stream]) -> AnySpec:
    """Size the Spec for the longest documents and the most queries of these streams, and for their pairs."""
    return replace(
        spec,
        word_query_probability=max(each.p_mask * (each.p_keep + each.p_random) for each in streams),
        shortest=max(each.length_min for each in streams),
        longest=max(each.length_max for each in streams),
        paired=any(each.pair_strength > 0 for each in streams),
    )


@functools.lru_cache(maxsize=1024)
def query_capacity(spec: DocumentSpec, num_documents: int, overflow: float = OVERFLOW_PROBABILITY) -> int:
    """Compute how many queries suffice for the kept and random words of this many documents.

    The probability of more than k of them is at most exp(-s k) E[exp(s number)] for every s (Chernoff); the
    number is binomial with random length.  The returned k makes that bound smaller than `overflow`.
    """
    positions, probability = num_documents * spec.longest, spec.word_query_probability
    if probability <= 0 or probability >= 1:
        return positions if probability > 0 else 0
    slope_S = np.linspace(0.0, 10.0, 2001)[1:]
    length_N = np.arange(spec.shortest, spec.longest + 1)
    log_factor_S = np.log1p(probability * np.expm1(slope_S))
    log_sum_S = np.asarray(scipy.special.logsumexp(np.outer(log_factor_S, length_N), axis=1))
    log_document_S = log_sum_S - math.log(len(length_N))
    log_tail_S = num_documents * log_document_S - math.log(overflow)
    enough = math.ceil(np.min(log_tail_S / slope_S))  # smallest k whose bound is low enough
    return min(padded(enough), positions)


@functools.lru_cache(maxsize=1024)
def binomial_capacity(trials: int, probability: float, tail: float) -> int:
    """Compute a number that a binomial exceeds with a probability below `tail`."""
    if probability <= 0 or probability >= 1:
        return trials if probability > 0 else 0
    beyond = scipy.special.bdtrc(np.arange(trials), trials, probability)
    enough = np.flatnonzero(beyond < tail)
    return int(enough[0]) if len(enough) else trials


def from_documents(spec: DocumentSpec, stream: Stream, documents: Documents, uniform: bool = False) -> Bag:
    """Make the bag of finite documents, with a fixed number of queries for kept and random words.

    Under uniform attention all positions of a document predict the same: one query per document.
    """
    B, V = documents.word_BxN.shape[0], padded(spec.vocabulary)
    masked_BxN = documents.masked_BxN
    masked_B = masked_BxN.sum(axis=1)
    num_counted = jnp.maximum((masked_B > 0).sum(), 1)
    weight_B = 1.0 / (jnp.maximum(masked_B, 1) * num_counted)
    count_BxV = histogram(documents.shown_BxN, key_positions(stream, documents), V)
    is_own_BxN = masked_BxN if uniform else masked_BxN & (documents.shown_BxN == 0)
    target_BxV = histogram(documents.word_BxN, is_own_BxN, V) * weight_B[:, None]
    if uniform:
        return Bag(count_BxV, target_BxV, own_queries(B), jnp.zeros((), jnp.int32))

    capacity = query_capacity(spec, B)
    is_word_query = (masked_BxN & (documents.shown_BxN != 0)).reshape(-1)
    (position_C,) = jnp.nonzero(is_word_query, size=capacity, fill_value=is_word_query.size)
    taken_C = position_C < is_word_query.size
    safe_C = jnp.minimum(position_C, is_word_query.size - 1)
    document_C = safe_C // documents.word_BxN.shape[1]
    word_queries = Queries(
        document_R=document_C,
        type_R=documents.shown_BxN.reshape(-1)[safe_C],
        share_S=jnp.zeros(0),
        word_R=documents.word_BxN.reshape(-1)[safe_C],
        word_weight_R=jnp.where(taken_C, weight_B[document_C], 0.0),
    )
    missing = is_word_query.sum(dtype=jnp.int32) - capacity
    return Bag(count_BxV, target_BxV, joined(own_queries(B), word_queries), missing)


def to_bag(
    spec: DocumentSpec, stream: Stream, documents: Documents | jax.Array, uniform: bool = False
) -> Bag:
    """Convert drawn documents to a bag, for trained or uniform attention."""
    if isinstance(documents, Documents):
        return from_documents(spec, stream, documents, uniform)
    return from_distributions(spec, stream, documents, uniform)


def own_queries(B: int) -> Queries:
    """Make one [MASK] query per document, which must predict all of its document's targets."""
    none_B = jnp.zeros(B, jnp.int32)
    return Queries(jnp.arange(B), none_B, jnp.ones(B), none_B, jnp.zeros(B))


def joined(first: Queries, second: Queries) -> Queries:
    """Concatenate queries."""
    return jax.tree.map(lambda *ends: jnp.concatenate(ends), first, second)


def with_usual_queries(
    spec: DocumentSpec, function: Callable[[Bag], Any], batch: Bag, num_documents: int, num_sizes: int = 1
) -> Any:
    """Evaluate function(batch), to rounding, without the queries that only unusual batches need.

    The function is compiled for all queries and for this many smaller sizes.
    """
    most = batch.queries.type_R.size - num_documents
    sizes = [size for size in usual_capacities(spec, num_documents)[-num_sizes:] if size < most]
    if spec.infinite_documents or not sizes or most == 0:
        return function(batch)

    def with_first(size: int) -> Callable[[], Any]:
        def evaluate() -> Any:  # cuts within the branch: only the branch that is taken pays for it
            fewer = jax.tree.map(lambda leaf_R: leaf_R[: num_documents + size], batch.queries)
            return function(batch._replace(queries=fewer))

        return evaluate

    needed = largest(batch.queries_missing) + most
    place = sum((needed > size).astype(jnp.int32) for size in sizes)
    return jax.lax.switch(place, [*map(with_first, sizes), lambda: function(batch)])


def usual_capacities(spec: DocumentSpec, num_documents: int) -> list[int]:
    """Compute numbers of kept and random words that about half of the batches, and nearly all, stay below."""
    probability, lengths = spec.word_query_probability, spec.longest - spec.shortest + 1
    mean_length = (spec.shortest + spec.longest) / 2
    mean = num_documents * probability * mean_length
    variance = mean * (1 - probability) + num_documents * probability**2 * (lengths**2 - 1) / 12
    return sorted({padded(math.ceil(mean + sigmas * variance**0.5)) for sigmas in USUAL_SIGMAS})


@jax.custom_batching.custom_vmap
def largest(number: jax.Array) -> jax.Array:
    """Return the number; under `vmap` the largest, unbatched, so that `cond` on it runs only one branch."""
    return number


@largest.def_vmap
def _largest_of_many(axis_size: int, in_batched: list[bool], number_B: jax.Array) -> tuple[jax.Array, bool]:
    return number_B.max(axis=0), False


def histogram(token_BxN: jax.Array, counted_BxN: jax.Array, size: int) -> jax.Array:
    """Count how often each token occurs at the counted positions of each document, B x size."""
    document_Bx1 = jnp.arange(token_BxN.shape[0])[:, None]
    zeros_BxV = jnp.zeros((token_BxN.shape[0], size))
    return zeros_BxV.at[document_Bx1, token_BxN].add(counted_BxN.astype(zeros_BxV.dtype))


def from_distributions(spec: DocumentSpec, stream: Stream, P_BxW: jax.Array, uniform: bool = False) -> Bag:
    """Make the bag of infinite documents: counts are expectations, and every type is a query.

    Keys: p_m (1 - p_c - p_r) for [MASK], (1 - (1 - p_c) p_m) P_i + p_m p_r / Tv for word i; only (1 - p_m)
    P_i for word i if masked positions are hidden.  Targets: [MASK] has P, word i was kept (weight p_c P_i,
    target i) or drawn at random (weight p_r / Tv, target P).
    """
    B, W = P_BxW.shape
    V = padded(spec.vocabulary)
    p_m, p_c, p_r = stream.p_mask, stream.p_keep, stream.p_random
    P_BxV = jnp.pad(P_BxW, ((0, 0), (1, V - W - 1)))
    is_word_V = (jnp.arange(V) >= 1) & (jnp.arange(V) <= W)
    noise_V = jnp.where(is_word_V, p_m * p_r / W, 0.0).at[0].set(p_m * (1 - p_c - p_r))
    all_BxV = (1 - (1 - p_c) * p_m) * P_BxV + noise_V[None, :]
    hides_masked = stream.key_visibility == UNMASKED_KEYS
    count_BxV = jnp.where(hides_masked, (1 - p_m) * P_BxV, all_BxV)
    none_missing = jnp.zeros((), jnp.int32)
    if uniform:
        return Bag(count_BxV, P_BxV / B, own_queries(B), none_missing)

    own = own_queries(B)
    words = Queries(
        document_R=jnp.repeat(jnp.arange(B), W),
        type_R=jnp.tile(jnp.arange(1, W + 1), B),
        share_S=jnp.broadcast_to(p_r / W, (B * W,)),
        word_R=jnp.tile(jnp.arange(1, W + 1), B),
        word_weight_R=(p_c * P_BxW / B).reshape(-1),
    )
    masked = own._replace(share_S=jnp.broadcast_to(1 - p_c - p_r, (B,)))
    return Bag(count_BxV, P_BxV / B, joined(masked, words), none_missing)


def targets(bag: Bag) -> jax.Array:
    """Expand to the weighted words that each query must predict, R x V."""
    queries, shared_SxV = bag.queries, shared_targets(bag)
    S, type_V = len(shared_SxV), jnp.arange(bag.count_BxV.shape[1])
    one_word_RxV = jnp.where(queries.word_R[:, None] == type_V[None, :], queries.word_weight_R[:, None], 0.0)
    return jnp.concatenate([one_word_RxV[:S] + shared_SxV, one_word_RxV[S:]])


def shared_targets(bag: Bag) -> jax.Array:
    """Expand to what queries must predict besides their one word, S x V, for those that have such targets."""
    share_S = bag.queries.share_S
    return share_S[:, None] * bag.target_BxV[bag.queries.document_R[: share_S.size]]
