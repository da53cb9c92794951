"""Measure an encoder on topic documents: every encoder's columns, and attention by kind of word pair.

Dimension letters: B documents, U rows, H heads, L layers, G settings of the gates, M measured losses.
"""

import collections
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments.encoder import losses
from topicjax.experiments.encoder.rows import Rows, with_usual_rows
from topicjax.experiments.encoder.settings import Spec
from topicjax.experiments.shared.bags import padded
from topicjax.experiments.shared.layer_records import (
    ATTENTION_BY_LAYER,
    SCALARS,
    WEIGHTS_BY_LAYER,
    Made,
    entropy_deficit,
    gate_settings,
    loss_columns,
    weight_columns,
)
from topicjax.experiments.shared.layers import Gates
from topicjax.experiments.shared.model import Params, topic_block
from topicjax.experiments.shared.settings import LayerHypers
from topicjax.experiments.shared.state import State

TOPICS_BY_LAYER = (
    "attn_same_word",  # mean attention between two positions: the same word
    "attn_same_topic",  # other words of one topic
    "attn_diff_topic",  # words of different topics
)
COLUMNS = (
    *SCALARS,
    "e_block",  # W_E^T W_E: same topic, other word - other topic
    *WEIGHTS_BY_LAYER,
    *TOPICS_BY_LAYER,
    *ATTENTION_BY_LAYER,
)
Record: Any = collections.namedtuple("Record", COLUMNS)


class PairMeans(NamedTuple):
    """Mean attention of a layer by kind of word pair, and its entropy deficit."""

    attn_same_word: jax.Array
    attn_same_topic: jax.Array
    attn_diff_topic: jax.Array
    entropy_deficit: jax.Array


def measure_model(spec: Spec, hypers: LayerHypers, held_out: Rows, state: State, made: Made) -> Any:
    """Measure a trial at a step."""
    embedding = state.params.get("W_E")
    return Record(
        **gated_losses(spec, hypers, held_out, state.params),
        e_block=jnp.full((), jnp.nan) if embedding is None else embedding_block(spec, embedding),
        **weight_columns(spec, state, made),
        **attention_means(spec, hypers, held_out, state.params)._asdict(),
    )


def embedding_block(spec: Spec, W_E: jax.Array) -> jax.Array:
    """Compute the mean inner product of words of one topic minus that of words of different topics."""
    extra = padded(spec.vocabulary) - spec.vocabulary
    return topic_block(spec, jnp.pad(W_E.T @ W_E, (0, extra)))


def gated_losses(spec: Spec, hypers: LayerHypers, held_out: Rows, params: Params) -> dict[str, jax.Array]:
    """Compute the held-out losses under all settings of the gates, and their standard errors."""
    settings_Gx2xL, which = gate_settings(spec.layers)

    def under_gates(rows: Rows) -> jax.Array:
        def under(gate_2xL: jax.Array) -> jax.Array:
            output = losses.outputs(spec, hypers, params, rows, Gates(gate_2xL[0], gate_2xL[1]))
            return losses.loss_of_documents(hypers.objective, output, rows.target_BxQxV)

        return jax.lax.map(under, jnp.asarray(settings_Gx2xL))

    part_MxB = with_usual_rows(spec, under_gates, held_out)[which]
    return loss_columns(spec, part_MxB, held_out.target_BxQxV.sum(axis=(1, 2)) > 0)


def attention_means(spec: Spec, hypers: LayerHypers, held_out: Rows, params: Params) -> PairMeans:
    """Measure attention on the held-out documents, each column with one value per layer."""

    def means(rows: Rows) -> PairMeans:
        found: list[PairMeans] = []

        def watch(attention_BxHxUxU: jax.Array) -> None:
            found.append(pair_means(spec, rows, attention_BxHxUxU))

        losses.outputs(spec, hypers, params, rows, watch=watch)
        return PairMeans(*(jnp.stack(column) for column in zip(*found, strict=True)))

    return with_usual_rows(spec, means, held_out)


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
    means = [jnp.where(kind, weight_BxUxU, 0).sum() / jnp.where(kind, pairs_BxUxU, 0).sum() for kind in kinds]
    return PairMeans(means[0], means[1], means[2], entropy_deficit(rows, attention_BxHxUxU))
