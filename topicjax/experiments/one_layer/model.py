"""Reference definition of the one-layer transformer of eq. (5)-(7), token by token.

It is slow and serves as the reference in tests; training uses the equivalent type-space `kernel`.
Dimension letters: B documents, N positions, V vocabulary, D embedding, A attention head.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from topicjax.experiments.one_layer.settings import SOFTMAX, AttentionWeights, Hypers, Spec, code
from topicjax.experiments.shared import threefry
from topicjax.experiments.shared.lda import Documents, key_positions
from topicjax.experiments.shared.model import DEFAULT, Initializer, Params, initializer, masked_softmax
from topicjax.theory.document_settings import Stream
from topicjax.theory.theorems import lemma1_entries, theorem1_bias


class Transformer(nn.Module):
    """f = W_E^T (W_V Z A + b_V) + b_pred with Z = W_E X and A the attention of eq. (5).

    A position without visible keys attends to nothing; its output is the biases.
    """

    spec: Spec
    stream: Stream  # its masking probabilities determine the constants of Theorems 1 and 2
    hypers: Hypers  # determine the initial weights, frozen ones included

    @nn.compact
    def __call__(self, shown_BxN: jax.Array, is_key_BxN: jax.Array) -> jax.Array:
        """Compute the outputs f_BxNxV of every position."""
        spec, hypers = self.spec, self.hypers
        V, D, A = spec.vocabulary, spec.width, spec.head_width
        near_zero = initializer(hypers)
        score_init = near_zero if spec.attention == "trained" else nn.initializers.zeros
        W_K = self.param("W_K", score_init, (A, D))
        W_Q = self.param("W_Q", score_init, (A, D))
        W_V = self.param("W_V", value_initializer(spec, self.stream, hypers), (D, D))
        b_pred = self.param("b_pred", output_bias_initializer(spec, self.stream), (V,))
        W_E = jnp.eye(V, dtype=W_V.dtype)
        if spec.embedding != "one_hot":
            W_E = self.param("W_E", nn.initializers.normal(hypers.embedding_scale / D**0.5), (D, V))
        b_K, b_Q, b_V = jnp.zeros(A), jnp.zeros(A), jnp.zeros(D)
        if spec.attention_biases == "trained":
            b_V = self.param("b_V", bias_initializer(hypers, D), (D,))
            if spec.attention == "trained":
                b_K = self.param("b_K", bias_initializer(hypers, D), (A,))
                b_Q = self.param("b_Q", bias_initializer(hypers, D), (A,))

        def document(shown_N: jax.Array, is_key_N: jax.Array) -> jax.Array:
            Z_DxN = W_E[:, shown_N]
            K_AxN = W_K @ Z_DxN + b_K[:, None]
            Q_AxN = W_Q @ Z_DxN + b_Q[:, None]
            score_NxN = K_AxN.T @ Q_AxN / A**0.5  # key, query
            A_NxN = attention_of(spec.attention_weights, score_NxN, is_key_N[:, None])  # eq. (5)
            attended_DxN = W_V @ Z_DxN @ A_NxN + b_V[:, None]
            return (W_E.T @ attended_DxN + b_pred[:, None]).T  # eq. (6)

        return jax.vmap(document)(shown_BxN, is_key_BxN)


def attention_of(kind: AttentionWeights, score_NxN: jax.Array, is_key_Nx1: jax.Array) -> jax.Array:
    """Compute the attention weights, one column per query; zeros where there are no keys."""
    if kind == SOFTMAX:
        return masked_softmax(score_NxN, is_key_Nx1)
    share_Nx1 = is_key_Nx1 / jnp.maximum(is_key_Nx1.sum(), 1)
    if kind == "one_plus_centred":
        score_NxN = score_NxN - (share_Nx1 * score_NxN).sum(axis=0, keepdims=True)
    return share_Nx1 * (score_NxN if kind == "scores_only" else 1 + score_NxN)


def bias_initializer(hypers: Hypers, fan_in: int) -> Initializer:
    """Make zeros or, with init=default, s times the usual default of linear layers."""

    def draw(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        default = jax.random.uniform(key, shape, dtype, -1, 1) / fan_in**0.5
        return jnp.where(hypers.init == DEFAULT, hypers.init_scale * default, 0.0)

    return draw


def value_initializer(spec: Spec, stream: Stream, hypers: Hypers) -> Initializer:
    """Make the initial W_V: near zero if it is trained, else the constant it is frozen at."""
    if spec.value == "trained":
        return initializer(hypers)
    if spec.value == "identity":
        return lambda key, shape: jnp.eye(shape[0])
    return lambda key, shape: lemma1_value(spec, stream, hypers) + lemma1_direction(spec, stream, hypers, key)


def lemma1_value(spec: Spec, stream: Stream, hypers: Hypers | None = None) -> jax.Array:
    """Make a W_V of Lemma 1's family that treats topics and words alike, V x V; by default Theorem 2's.

    Masking probabilities, value_shift and value_own may be traced.
    """
    word_V = jnp.arange(spec.vocabulary)
    topic_V = (word_V - 1) // spec.words_per_topic
    same_VxV = topic_V[:, None] == topic_V[None, :]
    member = () if hypers is None else (hypers.value_shift, hypers.value_own)
    masking = stream.p_mask, stream.p_keep, stream.p_random
    from_mask, different, same, own = lemma1_entries(spec.topics, spec.words_per_topic, *masking, *member)
    W_V = jnp.where(same_VxV, same, different)
    W_V = jnp.where(word_V[:, None] == word_V[None, :], own, W_V)
    W_V = jnp.where(word_V[None, :] == 0, from_mask, W_V)
    return jnp.where(word_V[:, None] == 0, 0.0, W_V)


def lemma1_direction(spec: Spec, stream: Stream, hypers: Hypers, key: jax.Array) -> jax.Array:
    """Draw a random V x V matrix that can be added to any W_V of Lemma 1's family: its topic sums are 0.

    Before the topic sums are removed, its entries are normal, with a standard deviation of value_random times
    the height of a block, 1 / ((1 - (1 - p_c) p_m) v).
    """
    T, v, W = spec.topics, spec.words_per_topic, spec.num_words
    height = 1 / ((1 - (1 - stream.p_keep) * stream.p_mask) * v)
    (bits,) = threefry.random_bits((threefry.raw(key), threefry.places(W, W)))
    free_WxTxv = threefry.normal(bits).reshape(W, T, v)
    free_WxW = (free_WxTxv - free_WxTxv.mean(axis=2, keepdims=True)).reshape(W, W)
    return hypers.value_random * height * jnp.pad(free_WxW, ((1, 0), (1, 0)))


def output_bias_initializer(spec: Spec, stream: Stream) -> Initializer:
    """Make zeros, or the constant of Theorem 1 for every word."""
    if spec.output_bias != "theorem1":
        return nn.initializers.zeros
    bias = theorem1_bias(spec.topics, spec.words_per_topic, stream.p_mask, stream.p_keep, stream.p_random)
    return lambda key, shape: jnp.where(jnp.arange(shape[0]) == 0, 0.0, bias)


def init(spec: Spec, stream: Stream, hypers: Hypers, key: jax.Array) -> Params:
    """Draw the initial parameters, frozen ones included, under the paper's names."""
    shown_1x1, is_key_1x1 = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool)
    params = Transformer(spec, stream, hypers).init(key, shown_1x1, is_key_1x1)["params"]
    return {name: jnp.asarray(leaf) for name, leaf in params.items()}


def apply(spec: Spec, params: Params, shown_BxN: jax.Array, is_key_BxN: jax.Array) -> jax.Array:
    """Compute the outputs f_BxNxV of the model with these parameters."""
    module = Transformer(spec, Stream(), Hypers(init=0))  # both matter only for init
    return jnp.asarray(module.apply({"params": params}, shown_BxN, is_key_BxN))


def trained_names(spec: Spec) -> tuple[str, ...]:
    """List the parameters that are trained; all others are frozen."""
    names: list[str] = []
    names += ["W_K", "W_Q"] if spec.attention == "trained" else []
    names += ["W_V"] if spec.value == "trained" else []
    names += ["W_E"] if spec.embedding == "trained" else []
    names += ["b_pred"] if spec.output_bias == "trained" else []
    if spec.attention_biases == "trained":
        names += ["b_K", "b_Q", "b_V"] if spec.attention == "trained" else ["b_V"]
    return tuple(names)


def token_loss(
    spec: Spec, stream: Stream, objective: jax.Array, params: Params, documents: Documents
) -> jax.Array:
    """Compute eq. (1): the mean over documents of the mean over their masked positions.

    Documents without masked positions are left out of the mean.
    """
    output_BxNxV = apply(spec, params, documents.shown_BxN, key_positions(stream, documents))
    target_BxNxV = jax.nn.one_hot(documents.word_BxN, spec.vocabulary, dtype=output_BxNxV.dtype)
    entropy_BxN = -(jax.nn.log_softmax(output_BxNxV) * target_BxNxV).sum(axis=2)  # eq. (4)
    squared_BxN = ((output_BxNxV - target_BxNxV) ** 2).sum(axis=2)  # eq. (3)
    loss_BxN = jnp.where(objective == code("objective", "cross_entropy"), entropy_BxN, squared_BxN)
    masked_B = documents.masked_BxN.sum(axis=1)
    mean_B = jnp.where(documents.masked_BxN, loss_BxN, 0).sum(axis=1) / jnp.maximum(masked_B, 1)
    return mean_B.sum() / jnp.maximum((masked_B > 0).sum(), 1)
