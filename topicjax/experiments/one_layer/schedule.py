"""Train the parts of a model in their own steps: W^V, and W^K with W^Q (the paper's sections 5.1 and 8.1).

The steps are traced, so that one program trains every schedule.  Each part has its own optimizer state, which
rests while the part is frozen: Adam's bias correction counts the steps that trained the part.
"""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import optax

from topicjax.experiments.one_layer.settings import Hypers, Spec
from topicjax.experiments.shared import state as shared
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.optimizers import optimizer
from topicjax.experiments.shared.state import State

PARTS = {"value": ("W_V", "b_V"), "attention": ("W_K", "W_Q", "b_K", "b_Q"), "rest": ("W_E", "b_pred")}


def trained_parts(hypers: Hypers, step: jax.Array) -> dict[str, jax.Array]:
    """Tell which parts a step trains."""
    takes_turns = hypers.alternate > 0
    is_first_turn = (step // jnp.maximum(hypers.alternate, 1)) % 2 == 0

    def within(first: jax.Array, end: jax.Array) -> jax.Array:
        return (step >= first) & ((end == 0) | (step < end))

    return dict(
        value=within(hypers.value_from, hypers.value_until) & (~takes_turns | is_first_turn),
        attention=within(hypers.attention_from, hypers.attention_until) & (~takes_turns | ~is_first_turn),
        rest=jnp.ones((), bool),
    )


def first_state(spec: Spec, hypers: Hypers, params: Params, trained_names: Collection[str]) -> State:
    """Make the state before the first step."""
    transformation = optimizer(spec, hypers)
    states = {part: transformation.init(own) for part, own in by_part(params, trained_names).items()}
    return shared.first_state(spec, hypers, params, trained_names)._replace(opt_state=states)


def next_state(spec: Spec, hypers: Hypers, state: State, gradients: Params, step: jax.Array) -> State:
    """Apply one optimizer step to the parts that this step trains."""
    transformation, is_trained = optimizer(spec, hypers), trained_parts(hypers, step)
    params, states = state.params, {}
    for part, own in by_part(params, gradients).items():
        before: Any = (own, state.opt_state[part])
        updates, states_after = transformation.update(
            {name: gradients[name] for name in own}, state.opt_state[part], own
        )
        after: Any = (optax.apply_updates(own, updates), states_after)
        stepped, states[part] = jax.tree.map(
            lambda new, old, use=is_trained[part]: jnp.where(use, new, old), after, before
        )
        params = params | stepped
    return State(params, states, shared.remember_value(spec, state, step))


def by_part(params: Params, trained_names: Collection[str]) -> dict[str, Params]:
    """Sort the trained parameters by part; parts without any are left out."""
    sorted_ = {
        part: {name: params[name] for name in names if name in trained_names} for part, names in PARTS.items()
    }
    return {part: own for part, own in sorted_.items() if own}
