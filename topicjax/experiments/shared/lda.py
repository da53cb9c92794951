"""Draw documents of a topic model on the device: topic proportions, words, masking (the paper's section 3).

Dimension letters: B documents, N positions, T topics, J words of one topic, W = T J words, M = J / 2 pairs.
Token 0 is [MASK]; the words are 1..W; word i belongs to topic (i - 1) // J and, if words are paired, to pair
(i - 1) // 2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp

from topicjax.experiments.shared import threefry
from topicjax.theory.document_settings import DocumentSpec, KeyVisibility, Stream

PROPOSALS = 8  # per draw from a Gamma distribution
TINY = float(jnp.finfo(jnp.float32).tiny)
UNMASKED_KEYS = get_args(KeyVisibility).index("unmasked")
PAIRS = 2**31 - 1  # folded into the key of a document's words: no number is drawn at so large a place
EVAL_SEED = 20230723  # trials of one data setting share their held-out documents, whatever their seed


class Documents(NamedTuple):
    """A batch of masked documents, token by token."""

    word_BxN: jax.Array  # the original word of each position, 1..W
    shown_BxN: jax.Array  # what the model sees: the word, another word, or 0 for [MASK]
    masked_BxN: jax.Array  # positions to predict (the set M of the paper)
    present_BxN: jax.Array  # positions before the end of the document


class Keys(NamedTuple):
    """The independent random keys of one seed."""

    words: jax.Array  # word distributions of the topics
    weights: jax.Array  # initial weights
    documents: jax.Array  # fold_in(documents, t) draws the batch of step t


class Source(NamedTuple):
    """What a Stream fixes for the whole training."""

    phi_TxW: jax.Array
    documents_key: jax.Array
    held_out: Any  # the held-out documents, as the model takes them


def make_source(spec: DocumentSpec, stream: Stream, convert: Callable[[Any], Any]) -> Source:
    """Draw the topics and held-out documents of a Stream; `convert` puts them in the model's form."""
    phi_TxW = topic_words(spec, stream)
    key = threefry.raw(jax.random.key(EVAL_SEED))
    held_out = convert(draw_documents(spec, stream, phi_TxW, key, spec.eval_documents))
    return Source(phi_TxW, stream_keys(stream.seed).documents, held_out)


def draw_batch(
    spec: DocumentSpec, stream: Stream, source: Source, step: jax.Array, convert: Callable[[Any], Any]
) -> Any:
    """Draw the documents of a step; `convert` puts them in the model's form."""
    key = threefry.fold_in(threefry.raw(source.documents_key), step)
    documents = draw_documents(spec, stream, source.phi_TxW, key, spec.batch_size)
    return convert(jax.lax.optimization_barrier(documents))  # else the compiler draws them more than once


def draw_documents(
    spec: DocumentSpec, stream: Stream, phi_TxW: jax.Array, key: threefry.Key, num_documents: int
) -> Documents | jax.Array:
    """Draw documents: token by token, or the word distributions of infinite ones."""
    draw = word_distributions if spec.infinite_documents else sample_documents
    return draw(spec, stream, phi_TxW, key, num_documents)


def stream_keys(seed: jax.Array | int) -> Keys:
    """Derive the random keys of a seed."""
    return Keys(*jax.random.split(jax.random.key(seed), 3))


def weights_key(stream: Any, hypers: Any) -> jax.Array:
    """Derive the key of a trial's initial weights from init_seed, or from the stream's seed if that is -1."""
    return stream_keys(jnp.where(hypers.init_seed < 0, stream.seed, hypers.init_seed)).weights


def topic_words(spec: DocumentSpec, stream: Stream) -> jax.Array:
    """Make phi_TxW, the word distribution of each topic; topics are disjoint unless overlap > 0."""
    T, J = spec.topics, spec.words_per_topic
    if spec.word_distribution == "uniform":
        weight_TxJ = jnp.ones((T, J))
    elif spec.word_distribution == "zipf":
        weight_TxJ = jnp.broadcast_to(jnp.arange(1.0, J + 1) ** -stream.zipf_exponent, (T, J))
    else:
        weight_TxJ = dirichlet(
            threefry.raw(stream_keys(stream.seed).words), stream.word_concentration, (T, J)
        )
    own_TxT = jnp.eye(T)
    borrowed_TxT = jnp.roll(own_TxT, 1, axis=1)  # each topic also uses the next one's first words
    shared_J = (jnp.arange(J) < jnp.round(stream.overlap * J)).astype(weight_TxJ.dtype)
    phi_TxTxJ = own_TxT[:, :, None] * weight_TxJ[None]
    phi_TxTxJ += borrowed_TxT[:, :, None] * (shared_J[None, :] * weight_TxJ)[None]
    phi_TxW = phi_TxTxJ.reshape(T, T * J)
    return phi_TxW / phi_TxW.sum(axis=1, keepdims=True)


def topic_proportions(spec: DocumentSpec, stream: Stream, key: threefry.Key, num_documents: int) -> jax.Array:
    """Draw theta_BxT: Dirichlet(alpha) for lda, tau equal topics for tau documents."""
    if spec.documents == "lda":
        return dirichlet(key, stream.alpha, (num_documents, spec.topics))
    (bits,) = threefry.random_bits((key, threefry.places(num_documents, spec.topics)))
    lottery_BxT = threefry.uniform(bits)
    rank_BxT = jnp.argsort(jnp.argsort(lottery_BxT, axis=1), axis=1)
    return (rank_BxT < stream.topics_per_document) / stream.topics_per_document


def dirichlet(key: threefry.Key, concentration: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Draw from the symmetric Dirichlet, one draw per row, also for tiny concentrations.

    Gamma(c + 1) is drawn by Marsaglia and Tsang (2000), which accepts more than 95 % of proposals: eight
    proposals replace the rejection loop except in one draw of 10^10.  Then Gamma(c) = Gamma(c + 1) U^(1/c),
    in logarithms.  The sampler of jax.random is exact but takes seconds to compile.
    """
    normal_key, uniform_key = threefry.split(key, 2)
    bits, more_bits = threefry.random_bits(
        (normal_key, threefry.places(PROPOSALS, *shape)),
        (uniform_key, threefry.places(PROPOSALS + 1, *shape)),
    )
    normal, uniform = threefry.normal(bits), jnp.maximum(threefry.uniform(more_bits), TINY)
    d = concentration + 1 - 1 / 3
    cubed = (1 + normal / jnp.sqrt(9 * d)) ** 3
    safe = jnp.where(cubed > 0, cubed, 1.0)
    log_bound = 0.5 * normal**2 + d * (1 - safe + jnp.log(safe))
    accepted = (cubed > 0) & (jnp.log(uniform[:PROPOSALS]) < log_bound)
    first = jnp.argmax(accepted, axis=0, keepdims=True)
    log_gamma = jnp.log(jnp.take_along_axis(safe, first, axis=0)[0])  # d cancels in the shares
    log_gamma += jnp.log(uniform[PROPOSALS]) / concentration
    return jax.nn.softmax(log_gamma, axis=-1)


def word_distributions(
    spec: DocumentSpec, stream: Stream, phi_TxW: jax.Array, key: threefry.Key, num_documents: int
) -> jax.Array:
    """Draw P_BxW, the word distribution of each document: theta phi, its words in pairs or not."""
    theta_BxT = topic_proportions(spec, stream, key, num_documents)
    P_BxW = jnp.matmul(theta_BxT, phi_TxW, precision="highest")
    if not spec.paired:
        return P_BxW
    factor_BxW = pair_factors(spec, stream, threefry.fold_in(key, PAIRS), num_documents)
    return jnp.where(stream.pair_strength > 0, P_BxW * factor_BxW, P_BxW)


def pair_factors(spec: DocumentSpec, stream: Stream, key: threefry.Key, num_documents: int) -> jax.Array:
    """Draw how much more likely each word is than in its topic: M times the share of its pair, mean 1.

    Shares of the M pairs of a topic are Dirichlet(c), M c + 1 = 1 / pair_strength: the chance that two words
    of a topic are of one pair is then pair_strength + (1 - pair_strength) / M.
    """
    B, T, M = num_documents, spec.topics, spec.words_per_topic // 2
    strength = jnp.where(stream.pair_strength > 0, stream.pair_strength, 0.5)  # of 0 nothing is used
    share_BTxM = dirichlet(key, (1 / strength - 1) / M, (B * T, M))
    return M * jnp.repeat(share_BTxM.reshape(B, T * M), 2, axis=1)


def draw_words(P_BxW: jax.Array, uniform_BxN: jax.Array) -> jax.Array:
    """Draw words 1..W by inversion: the first whose cumulative probability exceeds u.

    One product with a triangular matrix gives the sums and adds in the same order for every word: the
    cumulative probability never decreases and does not grow at a word of probability zero, which is therefore
    never drawn.
    """
    W = P_BxW.shape[1]
    cdf_BxW = jnp.matmul(P_BxW, jnp.triu(jnp.ones((W, W), P_BxW.dtype)), precision="highest")
    scaled_BxN = uniform_BxN * cdf_BxW[:, -1:]

    def pass_word(word: jax.Array, passed_BxN: jax.Array) -> jax.Array:
        return passed_BxN + (cdf_BxW[:, word][:, None] <= scaled_BxN)

    none_BxN = jnp.zeros(uniform_BxN.shape, jnp.int32)
    passed_BxN = jax.lax.fori_loop(0, W, pass_word, none_BxN, unroll=10)  # B x W x N at once is slower
    return 1 + jnp.minimum(passed_BxN, W - 1)


def position_uniforms(key: threefry.Key, K: int, B: int, N: int, length_max: jax.Array) -> jax.Array:
    """Draw K x B x N uniform numbers: jax.random.uniform of shape (K, B, length_max), with more positions.

    The capacity N is set by a program's longest documents, and a trial's numbers must not depend on the other
    trials of its program.  So every number is drawn by its place in (K, B, length_max).
    """
    number, position = jnp.arange(K * B)[:, None], jnp.arange(N)[None, :]
    (bits,) = threefry.random_bits((key, number * length_max + position))
    return threefry.uniform(bits).reshape(K, B, N)


def sample_documents(
    spec: DocumentSpec, stream: Stream, phi_TxW: jax.Array, key: threefry.Key, num_documents: int
) -> Documents:
    """Draw and mask documents (the paper's sections 3.1, 3.2 and 6.1)."""
    B, N = num_documents, spec.longest
    topic_key, length_key, token_key = threefry.split(key, 3)
    P_BxW = word_distributions(spec, stream, phi_TxW, topic_key, B)
    length_B = threefry.integers(length_key, B, stream.length_min, stream.length_max + 1)
    present_BxN = jnp.arange(N)[None, :] < length_B[:, None]
    u_word_BxN, u_mask_BxN, u_kind_BxN, u_random_BxN = position_uniforms(
        token_key, 4, B, N, stream.length_max
    )

    word_BxN = draw_words(P_BxW, u_word_BxN)
    masked_BxN = present_BxN & (u_mask_BxN < stream.p_mask)
    random_BxN = 1 + jnp.floor(u_random_BxN * spec.num_words).astype(jnp.int32)
    shown_BxN = shown_words(stream, word_BxN, masked_BxN, random_BxN, u_kind_BxN)
    return Documents(word_BxN, shown_BxN, masked_BxN, present_BxN)


def shown_words(
    stream: Any, word_BxN: jax.Array, masked_BxN: jax.Array, random_BxN: jax.Array, u_kind_BxN: jax.Array
) -> jax.Array:
    """Compute what the model sees: at masked positions [MASK], the word itself, or a random word."""
    replaced_BxN = jnp.where(u_kind_BxN < stream.p_keep + stream.p_random, random_BxN, 0)
    replaced_BxN = jnp.where(u_kind_BxN < stream.p_keep, word_BxN, replaced_BxN)
    return jnp.where(masked_BxN, replaced_BxN, word_BxN)


def key_positions(stream: Any, documents: Documents) -> jax.Array:
    """Mark the positions that are keys: all present ones, or only those outside M."""
    hides_masked = stream.key_visibility == UNMASKED_KEYS
    return documents.present_BxN & ~(hides_masked & documents.masked_BxN)
