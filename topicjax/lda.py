"""Documents of a topic model, drawn on device: topic proportions, words, masking (SCIENCE section 1).

Dimension letters: B documents, N positions, T topics, J words of one topic, W = T J words.
Token 0 is [MASK]; the words are 1..W and word i belongs to topic (i - 1) // J.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from topicjax.config import Spec, Stream

EVAL_SEED = 20230723  # one held-out set for all trials of a data setting, whatever their seed


class Documents(NamedTuple):
    """A batch of masked documents, token by token."""

    word_BxN: jax.Array  # the original word of each position, 1..W
    shown_BxN: jax.Array  # what the model sees: the word, another word, or 0 for [MASK]
    masked_BxN: jax.Array  # positions to predict (the set M of the paper)
    present_BxN: jax.Array  # positions before the end of the document


class Keys(NamedTuple):
    """The independent random sources of one seed."""

    words: jax.Array  # word distributions of the topics
    weights: jax.Array  # initial weights
    documents: jax.Array  # fold_in(documents, t) draws the batch of step t


def stream_keys(seed: jax.Array | int) -> Keys:
    """Return the random sources of a seed."""
    return Keys(*jax.random.split(jax.random.key(seed), 3))


def topic_words(spec: Spec, stream: Stream) -> jax.Array:
    """Return phi_TxW, the word distribution of each topic; disjoint topics unless overlap > 0."""
    T, J = spec.topics, spec.words_per_topic
    if spec.word_distribution == "uniform":
        weight_TxJ = jnp.ones((T, J))
    elif spec.word_distribution == "zipf":
        weight_TxJ = jnp.broadcast_to(jnp.arange(1.0, J + 1) ** -stream.zipf_exponent, (T, J))
    else:
        concentration_J = jnp.full(J, stream.word_concentration)
        weight_TxJ = jax.random.dirichlet(stream_keys(stream.seed).words, concentration_J, (T,))
    own_TxT = jnp.eye(T)
    borrowed_TxT = jnp.roll(own_TxT, 1, axis=1)  # each topic also uses the next one's first words
    shared_J = (jnp.arange(J) < jnp.round(stream.overlap * J)).astype(weight_TxJ.dtype)
    phi_TxTxJ = own_TxT[:, :, None] * weight_TxJ[None]
    phi_TxTxJ += borrowed_TxT[:, :, None] * (shared_J[None, :] * weight_TxJ)[None]
    phi_TxW = phi_TxTxJ.reshape(T, T * J)
    return phi_TxW / phi_TxW.sum(axis=1, keepdims=True)


def topic_proportions(spec: Spec, stream: Stream, key: jax.Array, num_documents: int) -> jax.Array:
    """Return theta_BxT: Dirichlet(alpha) for lda, tau equal topics for tau documents."""
    if spec.documents == "lda":
        return jax.random.dirichlet(key, jnp.full(spec.topics, stream.alpha), (num_documents,))
    lottery_BxT = jax.random.uniform(key, (num_documents, spec.topics))
    rank_BxT = jnp.argsort(jnp.argsort(lottery_BxT, axis=1), axis=1)
    return (rank_BxT < stream.topics_per_document) / stream.topics_per_document


def word_distributions(
    spec: Spec, stream: Stream, phi_TxW: jax.Array, key: jax.Array, num_documents: int
) -> jax.Array:
    """Return P_BxW, the distribution of the words of each document: theta phi."""
    theta_BxT = topic_proportions(spec, stream, key, num_documents)
    return jnp.matmul(theta_BxT, phi_TxW, precision="highest")


def draw_words(P_BxW: jax.Array, uniform_BxN: jax.Array) -> jax.Array:
    """Return words 1..W by inversion: the first word of positive probability whose cdf passes u."""
    cdf_BxW = jnp.cumsum(P_BxW, axis=1)
    reached_BxNxW = cdf_BxW[:, None, :] > (uniform_BxN * cdf_BxW[:, -1:])[:, :, None]
    word_W = jnp.arange(1, P_BxW.shape[1] + 1)
    candidate_BxNxW = jnp.where(reached_BxNxW & (P_BxW > 0)[:, None, :], word_W[None, None, :], P_BxW.shape[1])
    return candidate_BxNxW.min(axis=2)


def sample_documents(
    spec: Spec, stream: Stream, phi_TxW: jax.Array, key: jax.Array, num_documents: int
) -> Documents:
    """Return freshly drawn and freshly masked documents (sections 3.1, 3.2 and 6.1)."""
    B, N = num_documents, spec.length_max
    topic_key, length_key, word_key, mask_key, kind_key, random_key = jax.random.split(key, 6)
    P_BxW = word_distributions(spec, stream, phi_TxW, topic_key, B)
    word_BxN = draw_words(P_BxW, jax.random.uniform(word_key, (B, N)))
    length_B = jax.random.randint(length_key, (B,), spec.length_min, spec.length_max + 1)
    present_BxN = jnp.arange(N)[None, :] < length_B[:, None]

    masked_BxN = present_BxN & (jax.random.uniform(mask_key, (B, N)) < stream.p_mask)
    kind_BxN = jax.random.uniform(kind_key, (B, N))  # kept below p_c, random below p_c + p_r
    random_BxN = jax.random.randint(random_key, (B, N), 1, spec.num_words + 1)
    replaced_BxN = jnp.where(kind_BxN < stream.p_keep + stream.p_random, random_BxN, 0)
    replaced_BxN = jnp.where(kind_BxN < stream.p_keep, word_BxN, replaced_BxN)
    shown_BxN = jnp.where(masked_BxN, replaced_BxN, word_BxN)
    return Documents(word_BxN, shown_BxN, masked_BxN, present_BxN)


def key_positions(stream: Stream, documents: Documents) -> jax.Array:
    """Return which positions are keys: all present ones, or only those outside M."""
    hides_masked = stream.key_visibility == 1
    return documents.present_BxN & ~(hides_masked & documents.masked_BxN)
