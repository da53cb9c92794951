"""Draw documents of a language with syntax and topics, on the device.

Every position has a class, drawn by a Markov chain.  Class 0 is content, whose words are those of an LDA
topic model; each other class has function words of its own.  Token 0 is [MASK], the content words are 1..T v,
those of topic k being 1 + k v .. (k + 1) v, and the function words follow class by class.  A document depends
on the stream and the step alone, not on the room that a program has.
Dimension letters: B documents, N positions, C classes, T topics, V vocabulary, G blocks of words.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.experiments.shared import lda, threefry
from topicjax.experiments.shared.lda import EVAL_SEED, Documents
from topicjax.experiments.syntax.settings import LanguageSpec, Spec, Stream

CONTENT = 0  # the class of content words
INTERVENTIONS = 1  # folded into the key of the held-out documents
SHUFFLED, REDRAWN = "shuffled", "redrawn"  # ways to change the visible words of documents


class Blocks(NamedTuple):
    """The words of a language by class and topic, as static arrays."""

    class_V: np.ndarray  # of [MASK]: -1
    topic_V: np.ndarray  # of [MASK] and function words: -1
    class_VxC: np.ndarray  # 1 where a word is of a class
    topic_VxT: np.ndarray


def blocks(spec: Spec) -> Blocks:
    """List the class and topic of every word."""
    content, J = spec.content_words, spec.words_per_class
    number_V = np.arange(spec.vocabulary) - 1
    class_V = np.where(number_V < content, CONTENT, 1 + (number_V - content) // J)
    class_V[0] = -1
    topic_V = np.where(class_V == CONTENT, number_V // spec.words_per_topic, -1)
    return Blocks(
        class_V,
        topic_V,
        (class_V[:, None] == np.arange(spec.classes)).astype(np.float32),
        (topic_V[:, None] == np.arange(spec.topics)).astype(np.float32),
    )


def transitions(spec: LanguageSpec, stream: Stream) -> tuple[jax.Array, jax.Array]:
    """Compute A_CxC, the chance of a class given the one before, and pi_C, its stationary distribution.

    A = s P + (1 - s) 1 pi^T, where P is the cycle of classes: pi does not depend on s.
    """
    cycle_CxC, pi_C = cycle(spec, stream)
    return stream.sharpness * cycle_CxC + (1 - stream.sharpness) * pi_C[None, :], pi_C


def cycle(spec: LanguageSpec, stream: Stream) -> tuple[jax.Array, jax.Array]:
    """Compute P_CxC, the cycle of classes in which content may stay, and pi_C, stationary under it."""
    C, stay = spec.classes, stream.stay
    cycle_CxC = jnp.asarray(np.roll(np.eye(C, dtype=np.float32), 1, axis=1))
    cycle_CxC = cycle_CxC.at[0, 0].set(stay).at[0, 1].set(1 - stay)
    pi_C = jnp.full(C, 1 - stay).at[CONTENT].set(1.0)
    return cycle_CxC, pi_C / pi_C.sum()


def draw_documents(spec: Spec, stream: Stream, key: threefry.Key, num_documents: int) -> Documents:
    """Draw and mask documents."""
    B, N = num_documents, spec.longest
    topic_key, length_key, token_key = threefry.split(key, 3)
    theta_BxT = lda.dirichlet(topic_key, stream.alpha, (B, spec.topics))
    length_B = threefry.integers(length_key, B, stream.length_min, stream.length_max + 1)
    present_BxN = jnp.arange(N)[None, :] < length_B[:, None]
    u_class_BxN, u_topic_BxN, u_word_BxN, u_mask_BxN = lda.position_uniforms(
        token_key, 4, B, N, stream.length_max
    )
    class_BxN = draw_classes(spec, stream, u_class_BxN)
    word_BxN = draw_words(spec, class_BxN, draw_topics(theta_BxT, u_topic_BxN), u_word_BxN)
    masked_BxN = present_BxN & (u_mask_BxN < stream.p_mask)
    return Documents(word_BxN, jnp.where(masked_BxN, 0, word_BxN), masked_BxN, present_BxN)


def draw_classes(spec: Spec, stream: Stream, uniform_BxN: jax.Array) -> jax.Array:
    """Draw the chain of classes, which begins in its stationary distribution, by inversion."""
    A_CxC, pi_C = transitions(spec, stream)

    def follow(class_B: jax.Array, uniform_B: jax.Array) -> tuple[jax.Array, jax.Array]:
        is_own_BxC = class_B[:, None] == jnp.arange(spec.classes)[None, :]
        next_B = jnp.where(is_own_BxC, inverted(A_CxC[None], uniform_B[:, None]), 0).sum(axis=1)
        return next_B, next_B

    first_B = inverted(pi_C[None], uniform_BxN[:, 0])
    _, later_NxB = jax.lax.scan(follow, first_B, uniform_BxN[:, 1:].T, unroll=4)
    return jnp.concatenate([first_B[:, None], later_NxB.T], axis=1)


def draw_topics(theta_BxT: jax.Array, uniform_BxN: jax.Array) -> jax.Array:
    """Draw a topic for every position by inversion."""
    return inverted(theta_BxT[:, None, :], uniform_BxN)


def inverted(p_K: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draw from the distributions along the last axis: the first whose cumulative probability exceeds u.

    Sums are compared with u times the last one, so the last place is not drawn more often by rounding.
    """
    cdf_K = jnp.cumsum(p_K, axis=-1)
    return (cdf_K[..., :-1] <= uniform[..., None] * cdf_K[..., -1:]).sum(axis=-1)


def draw_words(
    spec: LanguageSpec, class_BxN: jax.Array, topic_BxN: jax.Array, uniform_BxN: jax.Array
) -> jax.Array:
    """Draw a word of every position, uniformly in its topic or class."""
    v, J = spec.words_per_topic, spec.words_per_class
    content_BxN = 1 + topic_BxN * v + jnp.floor(uniform_BxN * v).astype(jnp.int32)
    first_BxN = 1 + spec.content_words + (class_BxN - 1) * J
    function_BxN = first_BxN + jnp.floor(uniform_BxN * J).astype(jnp.int32)
    return jnp.where(class_BxN == CONTENT, content_BxN, function_BxN)


def held_out_documents(spec: Spec, stream: Stream) -> Documents:
    """Draw the held-out documents, the same for all seeds."""
    return draw_documents(spec, stream, threefry.raw(jax.random.key(EVAL_SEED)), spec.eval_documents)


def changed_documents(spec: Spec, stream: Stream, documents: Documents) -> dict[str, Documents]:
    """Change the visible words of the held-out documents; what is masked stays.

    Shuffled: visible words change places with each other, which keeps topics and removes syntax.  Redrawn:
    visible content words are replaced by words of new topic shares, which keeps classes and removes topics.
    """
    B, N = documents.word_BxN.shape
    key = threefry.fold_in(threefry.raw(jax.random.key(EVAL_SEED)), INTERVENTIONS)
    order_key, topic_key, token_key = threefry.split(key, 3)
    visible_BxN = documents.present_BxN & ~documents.masked_BxN

    (u_order_BxN,) = lda.position_uniforms(order_key, 1, B, N, stream.length_max)
    place_BxN = jnp.argsort(jnp.where(visible_BxN, u_order_BxN, 2.0), axis=1)  # the visible ones come first
    rank_BxN = jnp.maximum(jnp.cumsum(visible_BxN, axis=1) - 1, 0)
    from_BxN = jnp.take_along_axis(place_BxN, rank_BxN, axis=1)
    shuffled_BxN = jnp.take_along_axis(documents.shown_BxN, from_BxN, axis=1)

    u_topic_BxN, u_word_BxN = lda.position_uniforms(token_key, 2, B, N, stream.length_max)
    theta_BxT = lda.dirichlet(topic_key, stream.alpha, (B, spec.topics))
    class_BxN = jnp.asarray(blocks(spec).class_V)[documents.shown_BxN]
    redrawn_BxN = draw_words(spec, class_BxN, draw_topics(theta_BxT, u_topic_BxN), u_word_BxN)
    return {
        SHUFFLED: documents._replace(shown_BxN=jnp.where(visible_BxN, shuffled_BxN, documents.shown_BxN)),
        REDRAWN: documents._replace(
            shown_BxN=jnp.where(visible_BxN & (class_BxN == CONTENT), redrawn_BxN, documents.shown_BxN)
        ),
    }


def documents_key(seed: Any) -> jax.Array:
    """Derive the key of a seed's documents."""
    return lda.stream_keys(seed).documents
