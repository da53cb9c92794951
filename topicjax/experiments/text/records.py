"""Measure an encoder on text: every encoder's columns, and the loss of the unigram model as a baseline.

Norms are measured at every record, everything on held-out windows rarely: many windows are needed.  Held-out
losses count only positions that show [MASK], since kept words can be copied.  A model uses context only if
its loss is below that of the unigram model on the same words.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from topicjax.experiments.shared.layer_records import (
    GAINS_BY_LAYER,
    HEADS,
    HELD_OUT,
    WEIGHTS_BY_LAYER,
    Made,
    entropy_deficit,
    gain_columns,
    loss_columns,
    standard_error,
    weight_columns,
)
from topicjax.experiments.shared.layers import Predicting, uniform_states, watched_states
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.settings import LayerHypers
from topicjax.experiments.shared.state import State
from topicjax.experiments.text import losses
from topicjax.experiments.text.rows import Room, Rows, first_windows, held_out_room
from topicjax.experiments.text.settings import Spec

OF_WORDS = (
    "eval_loss_unigram",  # of predicting words by their frequency
    "eval_context_se",  # standard error over windows of eval_loss_unigram - eval_loss
)
Record: Any = collections.namedtuple("Record", ("loss", "norm_e", *WEIGHTS_BY_LAYER, *HEADS))
Rare: Any = collections.namedtuple("Rare", (*HELD_OUT, *OF_WORDS, "entropy_deficit", *GAINS_BY_LAYER))


def measure_weights(spec: Spec, state: State, made: Made) -> Any:
    """Measure what needs no held-out windows."""
    return Record(**weight_columns(spec, state, made))


def measure_held_out(
    spec: Spec, hypers: LayerHypers, held_out: Rows, unigram_KxB: jax.Array, params: Params
) -> Any:
    """Measure losses, attention and the gains of layers on the held-out windows."""
    return Rare(
        **held_out_columns(spec, hypers, held_out, unigram_KxB, params),
        **held_out_gains(spec, hypers, held_out, params),
    )


def held_out_columns(
    spec: Spec, hypers: LayerHypers, held_out: Rows, unigram_KxB: jax.Array, params: Params
) -> dict[str, jax.Array]:
    """Compute the losses of the whole model, their errors, and the entropy deficit of each layer."""
    room, watch = held_out_room(spec, spec.eval_windows), functools.partial(entropy_deficit, held_out)
    predicting = Predicting(room.Q, held_out.predicting_F)
    X_FxD, deficit_L = watched_states(spec, hypers, params, held_out, predicting, watch)
    trained_B = losses.losses_of_windows(spec, hypers, params, X_FxD, held_out)
    uniform_B, uniform = uniform_losses(spec, hypers, params, held_out, room)
    silent_B = uniform(jnp.zeros((trained_B.size, spec.layers)))
    counts_B, unigram_B = counted(held_out), unigram_KxB[hypers.objective]
    return loss_columns(trained_B, uniform_B, silent_B, counts_B) | dict(
        eval_loss_unigram=unigram_B.sum(),
        eval_context_se=standard_error(unigram_B - trained_B, counts_B),
        entropy_deficit=deficit_L,
    )


def held_out_gains(spec: Spec, hypers: LayerHypers, held_out: Rows, params: Params) -> dict[str, jax.Array]:
    """Compute the gains of single layers, as means over the first `gain_windows` windows.

    They cost as much as many losses, so they are measured on fewer windows; their errors are of these.
    """
    windows = min(spec.gain_windows, spec.eval_windows)
    room = held_out_room(spec, windows)
    few = first_windows(held_out, windows, room)
    more = counted(held_out).sum() / jnp.maximum(counted(few).sum(), 1)  # weights were of a mean over all
    few = few._replace(weight_BxN=few.weight_BxN * more)

    def trained(gate_BxL: jax.Array) -> jax.Array:
        X_FxD = losses.last_states(spec, hypers, params, few, room, gate_BxL)
        return losses.losses_of_windows(spec, hypers, params, X_FxD, few)

    return gain_columns(spec, uniform_losses(spec, hypers, params, few, room)[1], trained, counted(few))


def uniform_losses(
    spec: Spec, hypers: LayerHypers, params: Params, rows: Rows, room: Room
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Compute each window's loss with uniform attention, and the same as a function of gates.

    The gates B x L multiply the outputs of attention, and layer norms keep the scales that they have with
    open gates.
    """
    predicting = Predicting(room.Q, rows.predicting_F)

    def loss(X_FxD: jax.Array) -> jax.Array:
        return losses.losses_of_windows(spec, hypers, params, X_FxD, rows)

    X_FxD, scales = uniform_states(spec, hypers, params, rows, predicting)
    return loss(X_FxD), lambda gate_BxL: loss(
        uniform_states(spec, hypers, params, rows, predicting, gate_BxL, scales)[0]
    )


def counted(rows: Rows) -> jax.Array:
    """Mark the windows with words to predict."""
    return rows.weight_BxN.sum(axis=1) > 0
