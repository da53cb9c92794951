"""Measure an encoder on text: every encoder's columns, and the loss of the unigram model as a baseline.

Held-out losses count only positions that show [MASK], since kept words can be copied.  A model uses context
only if its loss is below that of the unigram model on the same words.
"""

import collections
from typing import Any

import jax
import jax.numpy as jnp

from topicjax.experiments.shared import layers
from topicjax.experiments.shared.layer_records import (
    ATTENTION_BY_LAYER,
    SCALARS,
    WEIGHTS_BY_LAYER,
    Made,
    entropy_deficit,
    gate_settings,
    loss_columns,
    standard_error,
    weight_columns,
)
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.settings import LayerHypers
from topicjax.experiments.shared.state import State
from topicjax.experiments.text import losses
from topicjax.experiments.text.rows import Rows, held_out_room
from topicjax.experiments.text.settings import Spec

OF_WORDS = (
    "eval_loss_unigram",  # of predicting words by their frequency
    "eval_context_se",  # standard error over windows of eval_loss_unigram - eval_loss
)
Record: Any = collections.namedtuple("Record", (*SCALARS, *OF_WORDS, *WEIGHTS_BY_LAYER, *ATTENTION_BY_LAYER))


def measure_model(
    spec: Spec, hypers: LayerHypers, held_out: Rows, unigram_KxB: jax.Array, state: State, made: Made
) -> Any:
    """Measure a trial at a step."""
    return Record(
        **gated_losses(spec, hypers, held_out, unigram_KxB, state.params),
        **weight_columns(spec, state, made),
        entropy_deficit=entropy_deficits(spec, hypers, held_out, state.params),
    )


def gated_losses(
    spec: Spec, hypers: LayerHypers, held_out: Rows, unigram_KxB: jax.Array, params: Params
) -> dict[str, jax.Array]:
    """Compute the held-out losses under all settings of the gates, and their errors."""
    settings_Gx2xL, which = gate_settings(spec.layers)

    def under(gate_2xL: jax.Array) -> jax.Array:
        gates = layers.Gates(gate_2xL[0], gate_2xL[1])
        output_FxV = losses.outputs(spec, hypers, params, held_out, held_out_room(spec), gates)
        return losses.losses_of_windows(hypers.objective, output_FxV, held_out)

    part_MxB = jax.lax.map(under, jnp.asarray(settings_Gx2xL))[which]
    counts_B, unigram_B = held_out.weight_BxN.sum(axis=1) > 0, unigram_KxB[hypers.objective]
    return loss_columns(spec, part_MxB, counts_B) | dict(
        eval_loss_unigram=unigram_B.sum(),
        eval_context_se=standard_error(unigram_B - part_MxB[0], counts_B),
    )


def entropy_deficits(spec: Spec, hypers: LayerHypers, held_out: Rows, params: Params) -> jax.Array:
    """Compute the entropy deficit of attention on the held-out windows, one value per layer."""
    found: list[jax.Array] = []

    def watch(attention_BxHxUxU: jax.Array) -> None:
        found.append(entropy_deficit(held_out, attention_BxHxUxU))

    layers.states(spec, hypers, params, held_out, 1, watch=watch)
    return jnp.stack(found)
