"""One record of an encoder: scalars of the whole model, and columns with a value for each layer.

Losses on the held-out documents are measured with attention as trained, forced uniform, and silenced (its
output zero), in all layers and in one layer alone: silenced - uniform is what the values of a layer add,
uniform - trained what its attention adds to that.  A column that has no meaning is NaN.
Dimension letters: B documents, U rows, H heads, L layers, G settings of the gates.
"""

import collections
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.experiments.encoder import layers
from topicjax.experiments.encoder.layers import Gates
from topicjax.experiments.encoder.rows import Rows, with_usual_rows
from topicjax.experiments.encoder.settings import MAX_HEADS, Hypers, LayerSpec, Spec
from topicjax.experiments.one_layer.bags import padded
from topicjax.experiments.one_layer.model import Params
from topicjax.experiments.one_layer.records import norm, rotation, topic_block

SCALARS = (
    "loss",  # eq. (1) on the batch of this step, before its update, without L2
    "eval_loss",  # on the held-out documents
    "eval_loss_uniform",  # attention of all layers forced uniform
    "eval_loss_silent",  # attention of all layers silenced
    "eval_loss_se",  # standard error of eval_loss over documents
    "eval_gain_se",  # of eval_loss_uniform - eval_loss, which are of the same documents
    "eval_value_se",  # of eval_loss_silent - eval_loss_uniform
    "norm_e",
    "e_block",  # W_E^T W_E: same topic, other word - other topic
)
HEADS = tuple(f"norm_{letter}_head{head}" for letter in "kqv" for head in range(1, MAX_HEADS + 1))
BY_LAYER = (
    "norm_k",  # Frobenius norms of a layer's W^K, W^Q, W^V
    "norm_q",
    "norm_v",
    "grad_norm_k",  # of the training objective, with L2, on the batch of this step
    "grad_norm_q",
    "grad_norm_v",
    "rotation_v",  # (1 - cos) / 2 between W^V and ten steps before
    "attn_same_word",  # mean attention between two positions: the same word
    "attn_same_topic",  # other words of one topic
    "attn_diff_topic",  # words of different topics
    "entropy_deficit",  # log(number of keys) - entropy of attention, mean over positions and heads
    "loss_uniform",  # eval_loss with this layer's attention forced uniform
    "loss_silent",  # eval_loss with this layer's attention silenced
    "gain_se",  # standard error of loss_uniform - eval_loss over documents
    "value_se",  # and of loss_silent - loss_uniform
    *HEADS,  # norms of the rows of one head; NaN where there is no such head
)
HEALTHY = ("loss", "eval_loss", "eval_loss_uniform", "norm_k", "norm_q", "norm_v")  # else it has diverged
Record: Any = collections.namedtuple("Record", (*SCALARS, *BY_LAYER))


class PairMeans(NamedTuple):
    """What the attention of a layer does, on average."""

    attn_same_word: jax.Array
    attn_same_topic: jax.Array
    attn_diff_topic: jax.Array
    entropy_deficit: jax.Array


class Moment(NamedTuple):
    """What a trial has at the step of a record."""

    params: Params
    earlier_value: jax.Array  # W^V ten steps before
    has_past: jax.Array  # whether there were ten
    loss: jax.Array  # of the batch of this step
    gradients: Params


def measure_model(spec: Spec, hypers: Hypers, held_out: Rows, now: Moment) -> Any:
    """Return the record of a trial at a step."""
    embedding = now.params.get("W_E")
    return Record(
        **gated_losses(spec, hypers, held_out, now.params),
        e_block=jnp.full((), jnp.nan) if embedding is None else embedding_block(spec, embedding),
        **columns_of_any(spec, now),
        **attention_means(spec, hypers, held_out, now.params)._asdict(),
    )


def columns_of_any(spec: LayerSpec, now: Moment) -> dict[str, jax.Array]:
    """Return what records of any encoder say but for the held-out data: loss, norms, gradients, rotation."""
    L, params = spec.layers, now.params
    names = {"k": "W_K", "q": "W_Q", "v": "W_V"}
    norms = {f"norm_{letter}": norm_by_layer(params[name]) for letter, name in names.items()}
    grad_norms = {
        f"grad_norm_{letter}": norm_by_layer(now.gradients[name])
        if name in now.gradients
        else jnp.full(L, jnp.nan)
        for letter, name in names.items()
    }
    rotation_L = jax.vmap(rotation)(params["W_V"], now.earlier_value)
    return dict(
        loss=now.loss,
        norm_e=norm(params["W_E"]) if "W_E" in params else jnp.full((), jnp.nan),
        **norms,
        **grad_norms,
        rotation_v=jnp.where(now.has_past, rotation_L, jnp.nan),
        **head_norms(spec, {letter: params[name] for letter, name in names.items()}),
    )


def norm_by_layer(matrix_LxDxD: jax.Array) -> jax.Array:
    """Return the Frobenius norm of each layer's matrix."""
    return jax.vmap(norm)(matrix_LxDxD)


def head_norms(spec: LayerSpec, matrices: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return the norm of each head's rows in each layer; NaN for heads that the model has not."""
    found = {}
    for letter, matrix_LxDxD in matrices.items():
        split = matrix_LxDxD.reshape(spec.layers, spec.heads, -1)
        norm_LxH = jnp.sqrt((split**2).sum(axis=2))
        for head in range(MAX_HEADS):
            own_L = norm_LxH[:, head] if head < spec.heads else jnp.full(spec.layers, jnp.nan)
            found[f"norm_{letter}_head{head + 1}"] = own_L
    return found


def embedding_block(spec: Spec, W_E: jax.Array) -> jax.Array:
    """Return the mean inner product of words of one topic minus that of words of different topics."""
    extra = padded(spec.vocabulary) - spec.vocabulary
    return topic_block(spec, jnp.pad(W_E.T @ W_E, (0, extra)))


def gate_settings(num_layers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct settings of the gates, G x 2 x L, and which of them each measured loss has.

    Measured are: as trained, all uniform, all silent, each layer alone uniform, each layer alone silent.
    """
    ones, alone = np.ones((num_layers, num_layers)), 1 - np.eye(num_layers)
    every = [np.ones((2, num_layers)), np.outer([0, 1], ones[0]), np.outer([1, 0], ones[0])]
    every += [np.stack(pair) for pair in zip(alone, ones, strict=True)]
    every += [np.stack(pair) for pair in zip(ones, alone, strict=True)]
    distinct, which = np.unique(np.stack(every), axis=0, return_inverse=True)
    return distinct.astype(np.float32), which.reshape(-1)


def gated_losses(spec: Spec, hypers: Hypers, held_out: Rows, params: Params) -> dict[str, jax.Array]:
    """Return the losses on the held-out documents under all settings of the gates, and their errors."""
    settings_Gx2xL, which = gate_settings(spec.layers)

    def losses(rows: Rows) -> jax.Array:
        def under(gate_2xL: jax.Array) -> jax.Array:
            output = layers.outputs(spec, hypers, params, rows, Gates(gate_2xL[0], gate_2xL[1]))
            return layers.loss_of_documents(hypers.objective, output, rows.target_BxQxV)

        return jax.lax.map(under, jnp.asarray(settings_Gx2xL))

    part_MxB = with_usual_rows(spec, losses, held_out)[which]
    return loss_columns(spec, part_MxB, held_out.target_BxQxV.sum(axis=(1, 2)) > 0)


def loss_columns(spec: LayerSpec, part_MxB: jax.Array, counts_B: jax.Array) -> dict[str, jax.Array]:
    """Return the measured losses, given each document's part of them and which documents count."""
    loss_M = part_MxB.sum(axis=1)
    uniform, silent = slice(3, 3 + spec.layers), slice(3 + spec.layers, None)
    error = functools.partial(standard_error, counts_B=counts_B)
    return dict(
        eval_loss=loss_M[0],
        eval_loss_uniform=loss_M[1],
        eval_loss_silent=loss_M[2],
        eval_loss_se=error(part_MxB[0]),
        eval_gain_se=error(part_MxB[1] - part_MxB[0]),
        eval_value_se=error(part_MxB[2] - part_MxB[1]),
        loss_uniform=loss_M[uniform],
        loss_silent=loss_M[silent],
        gain_se=jax.vmap(error)(part_MxB[uniform] - part_MxB[:1]),
        value_se=jax.vmap(error)(part_MxB[silent] - part_MxB[uniform]),
    )


def standard_error(part_B: jax.Array, counts_B: jax.Array) -> jax.Array:
    """Return the standard error of a sum of the documents' parts of a loss; NaN for a single document."""
    number = counts_B.sum()
    deviation_B = jnp.where(counts_B, part_B - part_B.sum() / number, 0.0)
    return jnp.sqrt((deviation_B**2).sum() * number / (number - 1))


def attention_means(spec: Spec, hypers: Hypers, held_out: Rows, params: Params) -> PairMeans:
    """Return what attention does on the held-out documents, each column with one value per layer."""

    def means(rows: Rows) -> PairMeans:
        found: list[PairMeans] = []

        def watch(attention_BxHxUxU: jax.Array) -> None:
            found.append(pair_means(spec, rows, attention_BxHxUxU))

        layers.outputs(spec, hypers, params, rows, watch=watch)
        return PairMeans(*(jnp.stack(column) for column in zip(*found, strict=True)))

    return with_usual_rows(spec, means, held_out)


def pair_means(spec: Spec, rows: Rows, attention_BxHxUxU: jax.Array) -> PairMeans:
    """Return the mean attention between two positions by kind of word pair, and the entropy deficit.

    Pairs are of different positions that show words and are keys (the paper's Table 3).  Infinite documents
    have no positions: there it is the attention relative to uniform attention.
    """
    keys_BxU, token_BxU = rows.keys_BxU, rows.token_BxU
    mean_BxUxU = attention_BxHxUxU.mean(axis=1)
    word_BxU = jnp.where(token_BxU > 0, keys_BxU, 0.0)
    weight_BxUxU = word_BxU[:, :, None] * mean_BxUxU  # summed over query and key positions
    pairs_BxUxU = word_BxU[:, :, None] * word_BxU[:, None, :]
    if not spec.infinite_documents:  # a position forms no pair with itself
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


def entropy_deficit(rows: Any, attention_BxHxUxU: jax.Array) -> jax.Array:
    """Return log(number of keys) - entropy over key positions, mean over heads and shown positions."""
    keys_Bx1x1xU = rows.keys_BxU[:, None, None, :]
    number_Bx1x1x1 = keys_Bx1x1xU.sum(axis=3, keepdims=True)
    relative = attention_BxHxUxU * number_Bx1x1x1 / jnp.where(keys_Bx1x1xU == 0, 1.0, keys_Bx1x1xU)
    deficit_BxHxU = jax.scipy.special.xlogy(attention_BxHxUxU, relative).sum(axis=3)
    counted_BxU = jnp.where(number_Bx1x1x1[:, 0, 0] > 0, rows.shown_BxU, 0.0)
    return (deficit_BxHxU.mean(axis=1) * counted_BxU).sum() / counted_BxU.sum()
