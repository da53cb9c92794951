"""Measure an encoder on the language: losses by part, interventions, and what its weights know.

Interventions evaluate the same weights on the held-out documents with attention changed (uniform; positional:
scores by offset alone; content: scores by type alone) or with the visible words changed (see `language`).
Value maps and scores between types are those of embeddings; in the first layer they are exact.
Dimension letters: P masked positions, B documents, V vocabulary, L layers, H heads, D width, N positions,
A size of a head, C classes.
"""

import collections
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.experiments.shared import layers
from topicjax.experiments.shared.layer_records import Made, norm_by_layer, standard_error
from topicjax.experiments.shared.model import Params, masked_mean, norm
from topicjax.experiments.shared.settings import PRE_NORM
from topicjax.experiments.shared.state import State
from topicjax.experiments.syntax.language import CONTENT, blocks, cycle
from topicjax.experiments.syntax.masked import Masked, with_usual_number
from topicjax.experiments.syntax.model import outputs, parts
from topicjax.experiments.syntax.settings import Spec

PARTS = ("loss", "class", "topic", "word")
OFFSETS = {"left_2": -2, "left_1": -1, "right_1": 1, "right_2": 2}
BIASES = tuple(f"bias_{name}" for name in OFFSETS)
COLUMNS = (
    "loss",  # eq. (1) on the batch of this step, before its update, without L2
    *(f"eval_{part}" for part in PARTS),  # on the held-out documents; the parts add up to eval_loss
    "eval_loss_se",  # standard error over documents
    "norm_e",  # Frobenius norm of W^E
    "norm_k",  # Frobenius norms of a layer's W^K, W^Q, W^V
    "norm_q",
    "norm_v",
    "norm_bias",  # of the relative bias, kappa R
    "v_class",  # value map of each head: how much visible classes speak for the next or the previous one
    "v_topic",  # value map of a layer, content words: one topic, different words - different topics
    *BIASES,  # kappa R of each head at these offsets
    "content_score",  # of a [MASK] query: mean score of content words - that of function words
)
ATTENTION, INPUTS = ("uniform", "positional", "content"), ("shuffled", "redrawn")
RARE = (
    *(  # the same weights with attention uniform, positional or by content; with words shuffled or redrawn
        f"eval_{part}_{kind}" for kind in (*ATTENTION, *INPUTS) for part in PARTS[:3]
    ),
    *(f"attn_{name}" for name in OFFSETS),  # mean attention of masked positions to the key at this offset
)
Record: Any = collections.namedtuple("Record", COLUMNS)
Rare: Any = collections.namedtuple("Rare", RARE)


def measure_model(spec: Spec, stream: Any, hypers: Any, held_out: Masked, state: State, made: Made) -> Any:
    """Measure a state: losses on the held-out documents, norms, value maps, scores."""
    params = state.params
    found = with_usual_number(spec, lambda own: held_out_parts(spec, hypers, params, own), held_out)
    return Record(
        loss=made.loss,
        **found,
        norm_e=norm(params["W_E"]) if "W_E" in params else jnp.full((), jnp.nan),
        norm_k=norm_by_layer(params["W_K"]),
        norm_q=norm_by_layer(params["W_Q"]),
        norm_v=norm_by_layer(params["W_V"]),
        **bias_columns(spec, hypers, params),
        v_class=class_values(spec, stream, params),
        v_topic=topic_values(spec, params),
        content_score=content_scores(spec, hypers, params),
    )


def held_out_parts(spec: Spec, hypers: Any, params: Params, masked: Masked) -> dict[str, jax.Array]:
    """Compute the held-out loss, its parts, and its standard error over documents."""
    found = parts(spec, hypers.objective, outputs(spec, hypers, params, masked), masked.word_P)
    columns = {f"eval_{part}": (masked.weight_P * found[part]).sum() for part in PARTS}
    zeros_B = jnp.zeros(masked.rows.token_BxU.shape[0])
    loss_B = zeros_B.at[masked.document_P].add(masked.weight_P * found["loss"])
    counts_B = zeros_B.at[masked.document_P].add(masked.weight_P) > 0
    return columns | dict(eval_loss_se=standard_error(loss_B, counts_B))


def bias_columns(spec: Spec, hypers: Any, params: Params) -> dict[str, jax.Array]:
    """Compute the norm of each layer's relative bias, and the bias of each head at near offsets."""
    nothing_L, nothing_LxH = jnp.full(spec.layers, jnp.nan), jnp.full((spec.layers, spec.heads), jnp.nan)
    if not spec.reach:
        return dict(norm_bias=nothing_L, **dict.fromkeys(BIASES, nothing_LxH))
    bias_LxHxO = hypers.bias_gain * params["R"]
    offsets = [offset for offset in range(-spec.reach, spec.reach + 1) if offset]
    return dict(
        norm_bias=norm_by_layer(bias_LxHxO),
        **{
            f"bias_{name}": bias_LxHxO[:, :, offsets.index(offset)] if offset in offsets else nothing_LxH
            for name, offset in OFFSETS.items()
        },
    )


def class_values(spec: Spec, stream: Any, params: Params) -> jax.Array:
    """Compute how much the value map of each head says about the next or the previous class, L x H.

    M[c, l] is the mean of the map from visible words of class l to the logits of words of class c.  Its row
    and column means are removed: a preference for frequent classes, and what all logits share.  The ideal
    maps are likewise centred: of the next class, (P - 1 pi^T)^T with P the cycle of classes, and of the
    previous one, where P is that of the reversed chain.  If M is b times an ideal map, its coefficient
    <M, ideal> / <ideal, ideal> is b.  The larger one is taken: a head may look to the left or to the right.
    """
    size_C = jnp.asarray(blocks(spec).class_VxC.sum(axis=0))
    mean_VxC = jnp.asarray(blocks(spec).class_VxC) / size_C[None, :]
    E_DxC, head_DxC = layers.embedding(spec, params) @ mean_VxC, layers.head(spec, params) @ mean_VxC
    V_LxHxAxD = params["W_V"].reshape(spec.layers, spec.heads, spec.head_size, spec.size)
    if spec.output_projection:
        out_LxCxD = jnp.einsum("dc,lde->lce", head_DxC, params["W_O"])
    else:
        out_LxCxD = jnp.broadcast_to(head_DxC.T, (spec.layers, spec.classes, spec.size))
    out_LxCxHxA = out_LxCxD.reshape(*out_LxCxD.shape[:2], spec.heads, spec.head_size)
    map_LxHxCxC = centred(jnp.einsum("lcha,lhad,dk->lhck", out_LxCxHxA, V_LxHxAxD, E_DxC))
    cycle_CxC, pi_C = cycle(spec, stream)
    reversed_CxC = cycle_CxC.T * pi_C[None, :] / pi_C[:, None]
    ideal_2xCxC = centred(jnp.stack([cycle_CxC.T, reversed_CxC.T]))
    product_LxHx2 = jnp.einsum("lhck,ick->lhi", map_LxHxCxC, ideal_2xCxC)
    return (product_LxHx2 / (ideal_2xCxC**2).sum(axis=(1, 2))[None, None, :]).max(axis=2)


def centred(map_CxC: jax.Array) -> jax.Array:
    """Remove the means over each of the last two axes."""
    map_CxC = map_CxC - map_CxC.mean(axis=-1, keepdims=True)
    return map_CxC - map_CxC.mean(axis=-2, keepdims=True)


def topic_values(spec: Spec, params: Params) -> jax.Array:
    """Compute how much more a value speaks for other words of its topic than for other topics, L."""
    E_DxV, map_LxDxD = layers.embedding(spec, params), params["W_V"]
    if spec.output_projection:
        map_LxDxD = params["W_O"] @ map_LxDxD
    topic_V = blocks(spec).topic_V
    is_pair_VxV = (topic_V >= 0)[:, None] & (topic_V >= 0)[None, :] & ~np.eye(spec.vocabulary, dtype=bool)
    same_VxV = topic_V[:, None] == topic_V[None, :]

    def of_layer(map_DxD: jax.Array) -> jax.Array:
        U_VxV = layers.head(spec, params).T @ map_DxD @ E_DxV
        return masked_mean(U_VxV, is_pair_VxV & same_VxV) - masked_mean(U_VxV, is_pair_VxV & ~same_VxV)

    return jax.vmap(of_layer)(map_LxDxD)


def content_scores(spec: Spec, hypers: Any, params: Params) -> jax.Array:
    """Compute a [MASK] query's mean score of content words minus that of function words, L x H."""
    X_VxD, class_V = layers.embedding(spec, params).T, blocks(spec).class_V
    content_V, function_V = jnp.asarray(class_V == CONTENT), jnp.asarray(class_V > CONTENT)

    def of_layer(own: Params) -> jax.Array:
        gain, bias = own["gain_attention"], own["bias_attention"]
        inside_VxD = layers.normed(hypers, PRE_NORM, X_VxD, gain, bias)
        K_VxHxA, _, Q_1xHxA = (
            layers.in_heads(spec, each)[0] for each in layers.projected(own, inside_VxD[None], 1)
        )
        score_VxH = jnp.einsum("vha,ha->vh", K_VxHxA, Q_1xHxA[0]) / spec.head_size**0.5
        means = (
            jnp.where(kind_V[:, None], score_VxH, 0).sum(axis=0) / kind_V.sum()
            for kind_V in (content_V, function_V)
        )
        return next(means) - next(means)

    return jnp.stack([of_layer(layers.of_layer(params, layer)) for layer in range(spec.layers)])


def measure_interventions(
    spec: Spec, hypers: Any, held_out: Masked, changed: Mapping[str, Masked], params: Params
) -> Any:
    """Measure the losses of interventions, and the attention to near offsets."""
    no_scores = dict(W_K=jnp.zeros_like(params["W_K"]))
    no_bias = dict(R=jnp.zeros_like(params["R"])) if spec.reach else {}
    weights = dict(uniform=no_scores | no_bias, positional=no_scores, content=no_bias)
    cases = {kind: (params | weights[kind], held_out) for kind in ATTENTION}
    cases |= {kind: (params, changed[kind]) for kind in INPUTS}
    columns = {}
    for kind, (own, documents) in cases.items():
        found = with_usual_number(
            spec, lambda masked, own=own: held_out_parts(spec, hypers, own, masked), documents
        )
        columns |= {f"eval_{part}_{kind}": found[f"eval_{part}"] for part in PARTS[:3]}
    return Rare(**columns, **offset_attention(spec, hypers, held_out, params))


def offset_attention(spec: Spec, hypers: Any, held_out: Masked, params: Params) -> dict[str, jax.Array]:
    """Compute the mean attention of masked positions to the keys at near offsets, by layer and head."""
    rows = held_out.rows
    B, N = rows.token_BxU.shape
    is_masked_BxN = jnp.zeros(B * N).at[held_out.index_P].max((held_out.weight_P > 0).astype(jnp.float32))
    is_masked_BxN = is_masked_BxN.reshape(B, N)
    place = np.arange(N)

    def watch(attention_BxHxNxN: jax.Array) -> jax.Array:
        means = []
        for offset in OFFSETS.values():
            is_at_NxN = place[None, :] - place[:, None] == offset
            pairs_BxNxN = is_masked_BxN[:, :, None] * rows.keys_BxU[:, None, :] * is_at_NxN[None]
            means.append(jnp.einsum("bhqk,bqk->h", attention_BxHxNxN, pairs_BxNxN) / pairs_BxNxN.sum())
        return jnp.stack(means)

    _, mean_LxOxH = layers.watched_states(spec, hypers, params, rows, N, watch)
    return {f"attn_{name}": mean_LxOxH[:, number] for number, name in enumerate(OFFSETS)}
