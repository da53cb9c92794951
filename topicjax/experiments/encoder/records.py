"""Measure an encoder on topic documents: every encoder's columns, and attention by kind of word pair.

Dimension letters: B documents, U rows, H heads, L layers.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.encoder import losses
from topicjax.experiments.encoder.rows import Rows, with_usual_rows
from topicjax.experiments.encoder.settings import Spec
from topicjax.experiments.shared.bags import padded
from topicjax.experiments.shared.layer_records import (
    GAINS_BY_LAYER,
    HEADS,
    HELD_OUT,
    WEIGHTS_BY_LAYER,
    Made,
    entropy_deficit,
    gain_columns,
    loss_columns,
    weight_columns,
)
from topicjax.experiments.shared.layers import uniform_states, watched_states
from topicjax.experiments.shared.model import Params, topic_block
from topicjax.experiments.shared.settings import LayerHypers
from topicjax.experiments.shared.state import State

COLUMNS = (
    "loss",  # eq. (1) on the batch of this step, before its update, without L2
    *HELD_OUT,
    "norm_e",  # Frobenius norm of W^E
    "e_block",  # W_E^T W_E: same topic, other word - other topic
    *WEIGHTS_BY_LAYER,
    "attn_same_word",  # mean attention between two positions: the same word
    "attn_same_topic",  # other words of one topic
    "attn_diff_topic",  # words of different topics
    "attn_mask_same_topic",  # from a position that shows [MASK] to words of the topic of its own word
    "attn_mask_diff_topic",  # ... to words of other topics; positions count as in the loss
    "entropy_deficit",  # log(number of keys) - entropy of attention, mean over positions and heads
    *HEADS,
)
Record: Any = collections.namedtuple("Record", COLUMNS)
Gains: Any = collections.namedtuple("Gains", GAINS_BY_LAYER)


class PairMeans(NamedTuple):
    """Mean attention of a layer by kind of word pair, and its entropy deficit."""

    attn_same_word: jax.Array
    attn_same_topic: jax.Array
    attn_diff_topic: jax.Array
    attn_mask_same_topic: jax.Array
    attn_mask_diff_topic: jax.Array
    entropy_deficit: jax.Array


def measure_model(spec: Spec, hypers: LayerHypers, held_out: Rows, state: State, made: Made) -> Any:
    """Measure a trial at a step."""
    embedding = state.params.get("W_E")
    return Record(
        **held_out_columns(spec, hypers, held_out, state.params),
        e_block=jnp.full((), jnp.nan) if embedding is None else embedding_block(spec, embedding),
        **weight_columns(spec, state, made),
    )


def embedding_block(spec: Spec, W_E: jax.Array) -> jax.Array:
    """Compute the mean inner product of words of one topic minus that of words of different topics."""
    extra = padded(spec.vocabulary) - spec.vocabulary
    return topic_block(spec, jnp.pad(W_E.T @ W_E, (0, extra)))


def held_out_columns(spec: Spec, hypers: LayerHypers, held_out: Rows, params: Params) -> dict[str, jax.Array]:
    """Compute the losses of the whole model on the held-out documents, and its attention there by layer."""

    def measured(rows: Rows) -> dict[str, jax.Array]:
        watch, Q = functools.partial(pair_means, spec, rows), rows.target_BxQxV.shape[1]
        X_BxQxD, means = watched_states(spec, hypers, params, rows, Q, watch)
        output = losses.outputs_of(spec, params, X_BxQxD)
        trained_B = losses.loss_of_documents(hypers.objective, output, rows.target_BxQxV)
        uniform_B, uniform = uniform_losses(spec, hypers, params, rows)
        silent_B = uniform(jnp.zeros((uniform_B.size, spec.layers)))
        return loss_columns(trained_B, uniform_B, silent_B, counted(rows)) | means._asdict()

    return with_usual_rows(spec, measured, held_out)


def measure_gains(spec: Spec, hypers: LayerHypers, held_out: Rows, params: Params) -> Any:
    """Measure what each layer adds to the held-out loss."""

    def measured(rows: Rows) -> dict[str, jax.Array]:
        def trained(gate_BxL: jax.Array) -> jax.Array:
            output = losses.outputs(spec, hypers, params, rows, gate_BxL)
            return losses.loss_of_documents(hypers.objective, output, rows.target_BxQxV)

        return gain_columns(spec, uniform_losses(spec, hypers, params, rows)[1], trained, counted(rows))

    return Gains(**with_usual_rows(spec, measured, held_out))


def uniform_losses(
    spec: Spec, hypers: LayerHypers, params: Params, rows: Rows
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Compute each document's loss with uniform attention, and the same as a function of gates.

    The gates B x L multiply the outputs of attention, and layer norms keep the scales that they have with
    open gates.
    """
    Q = rows.target_BxQxV.shape[1]

    def loss(X_BxQxD: jax.Array) -> jax.Array:
        output = losses.outputs_of(spec, params, X_BxQxD)
        return losses.loss_of_documents(hypers.objective, output, rows.target_BxQxV)

    X_BxQxD, scales = uniform_states(spec, hypers, params, rows, Q)
    return loss(X_BxQxD), lambda gate_BxL: loss(
        uniform_states(spec, hypers, params, rows, Q, gate_BxL, scales)[0]
    )


def counted(rows: Rows) -> jax.Array:
    """Mark the documents with words to predict."""
    return rows.target_BxQxV.sum(axis=(1, 2)) > 0


def pair_means(spec: Spec, rows: Rows, attention_BxHxUxU: jax.Array) -> PairMeans:
    """Compute the mean attention between two positions by kind of word pair, and the entropy deficit.

    Pairs are two different positions that both show words and are keys (the paper's Table 3).  Infinite
    documents have no positions: there the means are relative to uniform attention.
    """
    keys_BxU, token_BxU = rows.keys_BxU, rows.token_BxU
    mean_BxUxU = attention_BxHxUxU.mean(axis=1)
    word_BxU = jnp.where(token_BxU > 0, keys_BxU, 0.0)
    weight_BxUxU = word_BxU[:, :, None] * mean_BxUxU  # summed over query and key positions
    pairs_BxUxU = word_BxU[:, :, None] * word_BxU[:, None, :]
    if not spec.infinite_documents:  # a position does not pair with itself
        itself_UxU = jnp.eye(token_BxU.shape[1])[None]
        weight_BxUxU = weight_BxUxU - itself_UxU * jnp.where(word_BxU > 0, 1.0, 0.0)[:, :, None] * mean_BxUxU
        pairs_BxUxU = pairs_BxUxU - itself_UxU * word_BxU[:, :, None]
    topic_BxU = (token_BxU - 1) // spec.words_per_topic
    is_words = (word_BxU[:, :, None] > 0) & (word_BxU[:, None, :] > 0)
    same_word = is_words & (token_BxU[:, :, None] == token_BxU[:, None, :])
    same_topic = is_words & (topic_BxU[:, :, None] == topic_BxU[:, None, :])
    kinds = (same_word, same_topic & ~same_word, is_words & ~same_topic)
    same, topic, other = (
        jnp.where(kind, weight_BxUxU, 0).sum() / jnp.where(kind, pairs_BxUxU, 0).sum() for kind in kinds
    )
    mask_topic, mask_other = mask_means(spec, rows, mean_BxUxU, word_BxU, topic_BxU)
    return PairMeans(same, topic, other, mask_topic, mask_other, entropy_deficit(rows, attention_BxHxUxU))


def mask_means(
    spec: Spec, rows: Rows, mean_BxUxU: jax.Array, word_BxU: jax.Array, topic_BxU: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Compute the mean attention of positions that show [MASK] to words of their word's topic, and to others.

    Word queries answer for few predictions (of kept and random words), [MASK] queries for most of them.
    """
    target_BxQxV = rows.target_BxQxV
    B, Q, _ = target_BxQxV.shape
    is_mask_BxQ = rows.token_BxU[:, :Q] == 0
    own_BxQxW = jnp.where(is_mask_BxQ[:, :, None], target_BxQxV[:, :, 1:], 0.0)
    own_BxQxT = own_BxQxW.reshape(B, Q, spec.topics, spec.words_per_topic).sum(axis=3)
    topic_BxQxU = jnp.broadcast_to(jnp.maximum(topic_BxU, 0)[:, None, :], (B, Q, topic_BxU.shape[1]))
    same_BxQxU = jnp.take_along_axis(own_BxQxT, topic_BxQxU, axis=2)
    other_BxQxU = own_BxQxT.sum(axis=2, keepdims=True) - same_BxQxU
    paid_BxQxU = jnp.where(word_BxU[:, None, :] > 0, mean_BxUxU[:, :Q], 0.0)
    same, other = (
        (weight * paid_BxQxU).sum() / (weight * word_BxU[:, None, :]).sum()
        for weight in (same_BxQxU, other_BxQxU)
    )
    return same, other
