"""State of a trial, and the update of one step, for any model with value matrices W_V."""

from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.optimizers import optimizer

ROTATION_LAG = 10  # steps between the two W_V that the paper's Figure 5 compares


class State(NamedTuple):
    """Everything a trial carries from step to step; only data."""

    params: Params
    opt_state: Any
    earlier_values: jax.Array  # W_V ten steps before each upcoming record


def first_state(spec: Any, hypers: Any, params: Params, trained_names: Collection[str]) -> State:
    """Make the state before the first step."""
    trained, _ = split(params, trained_names)
    slots = -(-ROTATION_LAG // spec.record_every)
    earlier_values = jnp.zeros((slots, *params["W_V"].shape), params["W_V"].dtype)
    return State(params, optimizer(spec, hypers).init(trained), earlier_values)


def next_state(spec: Any, hypers: Any, state: State, gradients: Params, step: jax.Array) -> State:
    """Apply one optimizer step with the gradients of all trained parameters."""
    trained, frozen = split(state.params, gradients)
    updates, opt_state = optimizer(spec, hypers).update(gradients, state.opt_state, trained)
    stepped: Any = optax.apply_updates(trained, updates)
    return State(stepped | frozen, opt_state, remember_value(spec, state, step))


def split(params: Params, trained_names: Collection[str]) -> tuple[Params, Params]:
    """Split the parameters into trained and frozen ones."""
    trained = {name: params[name] for name in trained_names}
    return trained, {name: leaf for name, leaf in params.items() if name not in trained}


def add_l2(hypers: Any, params: Params, gradients: Params) -> Params:
    """Add the gradient of eq. (2)'s penalty, l2 times the sum of squares, which is smooth at zero."""
    return {name: gradient + 2 * hypers.l2 * params[name] for name, gradient in gradients.items()}


def remember_value(spec: Any, state: State, step: jax.Array) -> jax.Array:
    """Store W_V if a record is due in ten steps.

    There are as many slots as records can be pending; a slot is read before it is overwritten.
    """
    due = step + ROTATION_LAG
    slot = (due // spec.record_every) % state.earlier_values.shape[0]
    return jax.lax.cond(
        due % spec.record_every == 0,
        lambda: state.earlier_values.at[slot].set(state.params["W_V"]),
        lambda: state.earlier_values,
    )


def earlier_value(spec: Any, state: State, step: jax.Array) -> jax.Array:
    """Look up W_V ten steps before the record of this step; meaningless before step ten."""
    return state.earlier_values[(step // spec.record_every) % state.earlier_values.shape[0]]
