"""Model parts shared by several experiments: initializers, masked softmax, norms, topic blocks.

Dimension letters: N positions, V vocabulary (padded).
"""

from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.experiments.shared import bags, threefry
from topicjax.experiments.shared.settings import InitLaw
from topicjax.theory.document_settings import DocumentSpec

Params = dict[str, jax.Array]
Initializer = Callable[..., jax.Array]
UNIFORM, DEFAULT = (get_args(InitLaw).index(name) for name in ("uniform", "default"))


def initializer(hypers: Any) -> Initializer:
    """Make the initializer of weight matrices; hypers' init and init_scale may be traced.

    It draws from normal(0, s), uniform on [0, s), or s times the usual default of linear layers, which is
    uniform between -1/sqrt(fan_in) and 1/sqrt(fan_in).
    """

    def draw(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        (bits,) = threefry.random_bits((threefry.raw(key), threefry.places(*shape)))
        normal, uniform = threefry.normal(bits).astype(dtype), threefry.uniform(bits).astype(dtype)
        default = (2 * uniform - 1) / shape[1] ** 0.5
        chosen = jnp.where(hypers.init == UNIFORM, uniform, normal)
        chosen = jnp.where(hypers.init == DEFAULT, default, chosen)
        return hypers.init_scale * chosen

    return draw


def masked_softmax(score_NxN: jax.Array, is_key_Nx1: jax.Array) -> jax.Array:
    """Compute the softmax over keys, one column per query; zeros where there are no keys."""
    weight_NxN = jax.nn.softmax(jnp.where(is_key_Nx1, score_NxN, -1e30), axis=0)
    return jnp.where(is_key_Nx1, weight_NxN, 0.0)


def norm(matrix: jax.Array) -> jax.Array:
    """Compute the Frobenius norm."""
    return jnp.sqrt(jnp.sum(jnp.square(matrix)))


def participation(matrix: jax.Array) -> jax.Array:
    """Compute (tr G)^2 / tr G^2 with G = W W^T, the number of directions a matrix uses; NaN if it is zero.

    It is 1 for rank one and n for n equal singular values, and needs no decomposition.
    """
    gram, trace = matrix @ matrix.T, jnp.sum(jnp.square(matrix))
    return 1 / jnp.sum(jnp.square(gram / trace))  # divided first: fourth powers of small weights underflow


def rotation(matrix: jax.Array, earlier: jax.Array) -> jax.Array:
    """Compute the cosine distance (1 - cos) / 2 between two matrices; NaN if one of them is zero."""
    cosine = jnp.sum(matrix * earlier) / (norm(matrix) * norm(earlier))
    return (1 - cosine) / 2


def pair_masks(spec: DocumentSpec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mark the word pairs of each kind, V x V: same word; same topic, other word; other topic."""
    token_V = np.arange(bags.padded(spec.vocabulary))
    is_word_V = (token_V >= 1) & (token_V < spec.vocabulary)
    topic_V = (token_V - 1) // spec.words_per_topic
    word_pair = is_word_V[:, None] & is_word_V[None, :]
    same_word = word_pair & (token_V[:, None] == token_V[None, :])
    same_topic = word_pair & (topic_V[:, None] == topic_V[None, :])
    return same_word, same_topic & ~same_word, word_pair & ~same_topic


def partner_masks(spec: DocumentSpec) -> tuple[np.ndarray, np.ndarray]:
    """Mark the pairs of partners and of other words of one topic, V x V; none if a topic's words are odd."""
    pair_V = (np.arange(bags.padded(spec.vocabulary)) - 1) // 2
    _, same_topic, _ = pair_masks(spec)
    partner = same_topic & (pair_V[:, None] == pair_V[None, :]) & (spec.words_per_topic % 2 == 0)
    return partner, same_topic & ~partner


def masked_mean(matrix: jax.Array, mask: np.ndarray) -> jax.Array:
    """Average the entries in the mask; NaN for an empty mask."""
    if not mask.any():
        return jnp.full((), jnp.nan, matrix.dtype)
    return jnp.where(mask, matrix, 0).sum() / mask.sum()


def block_differences(
    spec: DocumentSpec, matrix: jax.Array, block: str, diagonal: str
) -> dict[str, jax.Array]:
    """Compute same topic - other topic and own word - same topic, under the two given names."""
    own, same, other = (masked_mean(matrix, mask) for mask in pair_masks(spec))
    return {block: same - other, diagonal: own - same}


def pair_difference(spec: DocumentSpec, matrix: jax.Array) -> jax.Array:
    """Compute the mean over partners minus the mean over other words of one topic; NaN without either."""
    partner, other = (masked_mean(matrix, mask) for mask in partner_masks(spec))
    return partner - other


def topic_block(spec: DocumentSpec, matrix: jax.Array) -> jax.Array:
    """Compute the mean over pairs of one topic minus the mean over pairs of different topics."""
    return block_differences(spec, matrix, "block", "diagonal")["block"]
