"""The encoder on masked positions: outputs, losses, and the parts of a loss that are class, topic and word.

One layer is computed between types.  With c_x the number of keys of type x, s_x their score with [MASK] and
R_d what a head adds at offset d, a masked position i attends to type x with weight
    e^{s_x} (c_x - number within reach) + sum over offsets d with type x of e^{s_x + R_d},
all of whose terms are positive, so nothing cancels.  Scores and biases are shifted by the largest of all
types and offsets, so that one product serves all positions.  Where the keys of a position could be so far
below that float32 would leave 0 / 0 in losses or gradients, each is shifted by the largest of its own keys.
Dimension letters: P masked positions, V vocabulary, D width, H heads, A size of a head, O offsets within
reach, C classes, T topics.
"""

from typing import Any

import jax
import jax.numpy as jnp

from topicjax.experiments.shared import layers
from topicjax.experiments.shared.bags import largest
from topicjax.experiments.shared.losses import queries_loss
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.settings import POST_NORM, PRE_NORM
from topicjax.experiments.syntax.language import CONTENT, blocks
from topicjax.experiments.syntax.masked import Masked, by_type
from topicjax.experiments.syntax.settings import Spec

SAFE_SPREAD = 40.0  # of scores and biases: gradients divide by the square of a sum of weights from e^-40 on


def states(spec: Spec, hypers: Any, params: Params, masked: Masked) -> jax.Array:
    """Compute the last states X_PxD of masked positions."""
    if by_type(spec):
        return states_by_type(spec, hypers, params, masked)
    N = masked.rows.token_BxU.shape[1]
    return layers.states(spec, hypers, params, masked.rows, layers.Predicting(N, masked.index_P))


def states_by_type(spec: Spec, hypers: Any, params: Params, masked: Masked) -> jax.Array:
    """Compute the states of one layer, with attention between types."""
    own, X_VxD = layers.of_layer(params, 0), layers.embedding(spec, params).T
    norm_weights = own["gain_attention"], own["bias_attention"]
    inside_VxD = layers.normed(hypers, PRE_NORM, X_VxD, *norm_weights)
    K_VxHxA, V_VxHxA, Q_1xHxA = (
        layers.in_heads(spec, each)[0] for each in layers.projected(own, inside_VxD[None], 1)
    )
    score_HxV = jnp.einsum("vha,ha->hv", K_VxHxA, Q_1xHxA[0]) / spec.head_size**0.5
    bias_HxO = hypers.bias_gain * own["R"] if spec.reach else jnp.zeros((spec.heads, 0))
    ones_VxHx1 = jnp.ones((*V_VxHxA.shape[:2], 1))
    value_HxVxB = jnp.concatenate([V_VxHxA, ones_VxHx1], axis=2).swapaxes(0, 1)
    sum_HxPxB = attended(score_HxV, bias_HxO, value_HxVxB, masked)  # the last column: the normaliser
    joined_HxPxA = sum_HxPxB[:, :, :-1] / sum_HxPxB[:, :, -1:]
    joined_PxD = joined_HxPxA.swapaxes(0, 1).reshape(-1, spec.size)
    if spec.output_projection:
        joined_PxD = joined_PxD @ own["W_O"].T
    X_PxD = layers.normed(hypers, POST_NORM, layers.passed_on(hypers, X_VxD[:1]) + joined_PxD, *norm_weights)
    X_PxD = layers.transform(spec, hypers, own, X_PxD) if spec.mlp else X_PxD
    return layers.normed(hypers, PRE_NORM, X_PxD, params["gain_last"], params["bias_last"])


def attended(score_HxV: jax.Array, bias_HxO: jax.Array, value_HxVxB: jax.Array, masked: Masked) -> jax.Array:
    """Sum the values of a position's keys by their attention weights, up to a factor of each position."""
    low_H, high_H = bias_HxO.min(axis=1, initial=0.0), bias_HxO.max(axis=1, initial=0.0)
    spread_H = score_HxV.max(axis=1) - score_HxV.min(axis=1) + high_H - low_H
    # What is not finite has diverged: it must not slow down the other trials of a program.
    spread = jax.lax.stop_gradient(jnp.where(jnp.isfinite(spread_H), spread_H, 0.0).max())

    def together() -> jax.Array:
        weight_HxV = jnp.exp(score_HxV - jax.lax.stop_gradient(score_HxV.max(axis=1, keepdims=True)))
        count_HxPxV = weighted_counts(bias_HxO, masked)
        return jnp.einsum("hpv,hvb->hpb", count_HxPxV, weight_HxV[:, :, None] * value_HxVxB)

    def apart() -> jax.Array:
        return jnp.einsum("hpv,hvb->hpb", shifted_weights(score_HxV, bias_HxO, masked), value_HxVxB)

    # Without checkpoint the intermediates of `apart` are kept, as zeros, whichever branch runs.
    return jax.lax.cond(largest(spread) < SAFE_SPREAD, together, jax.checkpoint(apart))


def weighted_counts(bias_HxO: jax.Array, masked: Masked) -> jax.Array:
    """Count the keys of each type, those within reach e^{R_d} times; e^m divides all, to stay finite."""
    most_Hx1 = jax.lax.stop_gradient(bias_HxO.max(axis=1, keepdims=True, initial=0.0))
    near_HxPxV = jnp.tensordot(jnp.exp(bias_HxO - most_Hx1), masked.near_OxPxV, 1)
    return near_HxPxV + jnp.exp(-most_Hx1)[:, :, None] * masked.far_PxV[None]


def shifted_weights(score_HxV: jax.Array, bias_HxO: jax.Array, masked: Masked) -> jax.Array:
    """Compute the attention to each type, H x P x V; the largest weight of a position's keys is 1."""
    near_HxOxPxV = score_HxV[:, None, None, :] + bias_HxO[:, :, None, None]
    near_HxOxPxV = jnp.where(masked.near_OxPxV[None] > 0, near_HxOxPxV, -jnp.inf)
    far_HxPxV = jnp.where(masked.far_PxV[None] > 0, score_HxV[:, None, :], -jnp.inf)
    most_HxP = jnp.maximum(near_HxOxPxV.max(axis=(1, 3), initial=-jnp.inf), far_HxPxV.max(axis=2))
    most_HxPx1 = jax.lax.stop_gradient(most_HxP)[:, :, None]
    near_HxPxV = jnp.exp(near_HxOxPxV - most_HxPx1[:, None]).sum(axis=1)
    return near_HxPxV + masked.far_PxV[None] * jnp.exp(far_HxPxV - most_HxPx1)


def outputs(spec: Spec, hypers: Any, params: Params, masked: Masked) -> jax.Array:
    """Compute the outputs f_PxV of masked positions."""
    return states(spec, hypers, params, masked) @ layers.head(spec, params) + params["b_pred"][None, :]


def targets(spec: Spec, masked: Masked) -> jax.Array:
    """Make the targets: the weight of a position at its word."""
    is_word_PxV = masked.word_P[:, None] == jnp.arange(spec.vocabulary)[None, :]
    return jnp.where(is_word_PxV, masked.weight_P[:, None], 0.0)


def loss_and_gradients(
    spec: Spec, hypers: Any, trained: Params, frozen: Params, masked: Masked
) -> tuple[jax.Array, Params]:
    """Compute eq. (1) and its gradients for the trained parameters."""
    output_PxV, pull_back = jax.vjp(lambda own: outputs(spec, hypers, own | frozen, masked), trained)
    loss, d_output_PxV = queries_loss(hypers.objective, output_PxV, targets(spec, masked))
    return loss, pull_back(d_output_PxV)[0]


def parts(spec: Spec, objective: jax.Array, output_PxV: jax.Array, word_P: jax.Array) -> dict[str, jax.Array]:
    """Split the loss of each position into what its class, its topic and its word within them contribute.

    The parts add up to the loss.  Cross-entropy: minus the logarithms of the probability of the class, of the
    topic given content, and of the word given these.  Squared: sums over classes and topics are compared
    with those of the target, as the mean of a block of words and the rest are orthogonal.
    """
    words, number_V = blocks(spec), jnp.arange(spec.vocabulary)
    class_V, topic_V = jnp.asarray(words.class_V), jnp.asarray(words.topic_V)

    def cross_entropy() -> dict[str, jax.Array]:
        log_p_PxV = jax.nn.log_softmax(output_PxV, axis=1)
        of_word_P, of_class_P, of_topic_P = (
            -jax.nn.logsumexp(log_p_PxV, axis=1, where=kind_V[word_P][:, None] == kind_V[None, :])
            for kind_V in (number_V, class_V, topic_V)
        )
        is_content_P = class_V[word_P] == CONTENT
        topic_P = jnp.where(is_content_P, of_topic_P - of_class_P, 0.0)
        return {"loss": of_word_P, "class": of_class_P, "topic": topic_P}

    def squared() -> dict[str, jax.Array]:
        error_PxV = output_PxV - (word_P[:, None] == number_V[None, :])
        class_PxC, topic_PxT = (
            jnp.matmul(error_PxV, jnp.asarray(own), precision="highest")
            for own in (words.class_VxC, words.topic_VxT)
        )
        apart_PxT = topic_PxT - class_PxC[:, CONTENT][:, None] / spec.topics
        return {
            "loss": (error_PxV**2).sum(axis=1),
            "class": (class_PxC**2 / words.class_VxC.sum(axis=0)[None, :]).sum(axis=1),
            "topic": (apart_PxT**2 / spec.words_per_topic).sum(axis=1),
        }

    found = jax.lax.switch(objective, (cross_entropy, squared))
    return found | {"word": found["loss"] - found["class"] - found["topic"]}
