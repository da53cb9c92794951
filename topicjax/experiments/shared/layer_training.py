"""Training steps of any encoder: initial state, one step given its loss and gradients, cost of a step."""

from collections.abc import Callable
from typing import Any

import jax

from topicjax.experiments.shared import encoder, lda
from topicjax.experiments.shared.layer_records import Made
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.settings import LayerSpec
from topicjax.experiments.shared.state import State, add_l2, first_state, next_state, split


def init(spec: LayerSpec, stream: Any, hypers: Any) -> State:
    """Make the initial state of a trial."""
    params = encoder.init(spec, hypers, lda.weights_key(stream, hypers))
    return first_state(spec, hypers, params, encoder.trained_names(spec))


def stepped(
    spec: LayerSpec,
    hypers: Any,
    state: State,
    step: jax.Array,
    loss_and_gradients: Callable[[Params, Params], tuple[jax.Array, Params]],
) -> tuple[State, Made]:
    """Do one `update`, given the loss as a function of trained and frozen parameters."""
    loss, gradients = loss_and_gradients(*split(state.params, encoder.trained_names(spec)))
    gradients = add_l2(hypers, state.params, gradients)
    return next_state(spec, hypers, state, gradients, step), Made(step, loss, gradients)


def weights(spec: LayerSpec, state: State) -> Params:
    """Return the parameters; those of all layers are stacked."""
    return state.params


def layer_flops(spec: LayerSpec, batch: int, rows: int, predicting: int, outputs: int) -> float:
    """Estimate the floating-point operations of one trial-step: its matrix products.

    Each sequence of the batch has `rows` rows, `predicting` of which the last layer computes; `outputs` rows
    of the whole batch get outputs.
    """
    D = spec.size
    forward = 2.0 * outputs * D * spec.vocabulary
    for layer in range(spec.layers):
        queries = predicting if layer == spec.layers - 1 else rows
        by_query = D * D * (2 if spec.output_projection else 1) + 2 * D * spec.mlp
        forward += 2.0 * batch * (2 * rows * D * D + queries * by_query + 2 * queries * rows * D)
    return 3 * forward  # each product has two gradient products of its size
