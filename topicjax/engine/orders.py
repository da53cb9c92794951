"""The two orders in which the trials of a stream row go through their steps; both give the same numbers.

A lane at a time, for cores: the data of a window are drawn once for the stream, then each trial goes through
the window alone, so that its weights and work arrays stay in the core's own cache, and a branch is a branch.
Lanes together, for accelerators: every step is taken by all trials at once, in wide operations.

Both are functions of one stream row.  Dimension letters: L lanes, W windows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments import Experiment

BLOCK_BYTES = 16_000_000  # of data that are drawn ahead


class RowState(NamedTuple):
    """A stream row between two segments."""

    step: Any  # the same for all rows
    missing: Any  # above 0: some data had no room in the program, and the trials are void
    source: Any
    trial_L: Any


Advance = Callable[..., tuple[RowState, Any]]
OverLanes = Callable[[Callable[..., Any]], Callable[..., Any]]


class Order(NamedTuple):
    """How stream rows are trained, and how a function of one trial is applied to all lanes besides."""

    advance: Advance
    over_lanes: OverLanes


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what vmap returns, computed in a loop over the lanes."""
    return lambda *args_L: jax.lax.map(lambda args: function(*args), args_L)


def init_row(
    experiment: Experiment, spec: Any, stream: Any, hypers_L: Any, over_lanes: OverLanes = jax.vmap
) -> RowState:
    """Return the state of a stream row before the first step."""
    trial_L = over_lanes(lambda hypers: experiment.init(spec, stream, hypers))(hypers_L)
    zero = jnp.zeros((), jnp.int32)
    return RowState(zero, zero, experiment.source(spec, stream), trial_L)


def record_row(
    experiment: Experiment,
    spec: Any,
    stream: Any,
    hypers_L: Any,
    state: RowState,
    over_lanes: OverLanes = jax.vmap,
) -> Any:
    """Return the records of the trials as they are: those after the last step."""
    batch = experiment.batch(spec, stream, state.source, state.step)

    def record(hypers: Any, trial: Any) -> Any:
        _, made = experiment.update(spec, stream, hypers, trial, batch)
        return experiment.measure(spec, stream, hypers, state.source, trial, batch, made)

    return over_lanes(record)(hypers_L, state.trial_L)


def weights_row(experiment: Experiment, spec: Any, trial_L: Any, over_lanes: OverLanes = jax.vmap) -> Any:
    """Return what snapshots keep of the trials."""
    return over_lanes(lambda trial: experiment.weights(spec, trial))(trial_L)


def lanes_together(
    experiment: Experiment, spec: Any, stream: Any, hypers_L: Any, state: RowState, num_windows: int
) -> tuple[RowState, Any]:
    """Train all lanes step by step; return the state and records, L x W."""
    source = state.source
    update = jax.vmap(lambda h, trial, batch: experiment.update(spec, stream, h, trial, batch), (0, 0, None))
    measure = jax.vmap(
        lambda h, trial, batch, made: experiment.measure(spec, stream, h, source, trial, batch, made),
        (0, 0, None, 0),
    )

    def step(carry: Any, offset: Any) -> tuple[Any, None]:
        number, missing, trial_L, latest_L = carry
        batch = experiment.batch(spec, stream, source, number)
        following_L, made_L = update(hypers_L, trial_L, batch)
        latest_L = jax.lax.cond(
            offset == 0, lambda: measure(hypers_L, trial_L, batch, made_L), lambda: latest_L
        )
        missing = jnp.maximum(missing, lacking(experiment, source, batch))
        return (number + 1, missing, following_L, latest_L), None

    empty_L = no_records(lambda: record_row(experiment, spec, stream, hypers_L, state))

    def window(carry: Any, _: None) -> tuple[Any, Any]:
        (*carry, latest_L), _ = jax.lax.scan(step, (*carry, empty_L), jnp.arange(spec.record_every))
        return tuple(carry), latest_L

    first = (state.step, state.missing, state.trial_L)
    (number, missing, trial_L), record_WxL = jax.lax.scan(window, first, None, num_windows)
    return RowState(number, missing, source, trial_L), lanes_first(record_WxL)


def lane_at_a_time(
    experiment: Experiment, spec: Any, stream: Any, hypers_L: Any, state: RowState, num_windows: int
) -> tuple[RowState, Any]:
    """Train each lane through a window alone; return the state and records, L x W."""
    source, block = state.source, block_steps(experiment, spec, stream, state)
    empty_L = no_records(lambda: record_row(experiment, spec, stream, hypers_L, state))

    def through_block(carry: Any, first_offset: Any) -> tuple[Any, None]:
        number, missing, trial_L, latest_L = carry
        offsets = jnp.arange(block)
        batches = jax.lax.map(lambda offset: experiment.batch(spec, stream, source, number + offset), offsets)
        missing = jnp.maximum(missing, lacking(experiment, source, batches))

        def lane(lane: Any) -> Any:
            hypers, trial, latest = lane

            def step(carry: Any, at: Any) -> tuple[Any, None]:
                trial, latest = carry
                offset, batch = at
                following, made = experiment.update(spec, stream, hypers, trial, batch)
                latest = jax.lax.cond(
                    offset == 0,
                    lambda: experiment.measure(spec, stream, hypers, source, trial, batch, made),
                    lambda: latest,
                )
                return (following, latest), None

            return jax.lax.scan(step, (trial, latest), (first_offset + offsets, batches))[0]

        trial_L, latest_L = jax.lax.map(lane, (hypers_L, trial_L, latest_L))
        return (number + block, missing, trial_L, latest_L), None

    def window(carry: Any, _: None) -> tuple[Any, Any]:
        starts = jnp.arange(0, spec.record_every, block)
        (*carry, latest_L), _ = jax.lax.scan(through_block, (*carry, empty_L), starts)
        return tuple(carry), latest_L

    first = (state.step, state.missing, state.trial_L)
    (number, missing, trial_L), record_WxL = jax.lax.scan(window, first, None, num_windows)
    return RowState(number, missing, source, trial_L), lanes_first(record_WxL)


def block_steps(experiment: Experiment, spec: Any, stream: Any, state: RowState) -> int:
    """Return how many steps' data are drawn ahead: a divisor of the window, and no more than BLOCK_BYTES."""
    batch = jax.eval_shape(lambda: experiment.batch(spec, stream, state.source, state.step))
    size = max(1, sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch)))
    most = max(1, min(spec.record_every, BLOCK_BYTES // size))
    return next(steps for steps in range(most, 0, -1) if spec.record_every % steps == 0)


def lacking(experiment: Experiment, source: Any, batch: Any) -> Any:
    """Return what a batch, or the worst of several, had no room for; 0 if the experiment does not say."""
    if experiment.missing is None:
        return jnp.zeros((), jnp.int32)
    return jnp.max(experiment.missing(source, batch)).astype(jnp.int32)


def no_records(make: Callable[[], Any]) -> Any:
    """Return zeros in the shape of these records."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(make))


def lanes_first(record_WxL: Any) -> Any:
    """Return records as L x W."""
    return jax.tree.map(lambda column: jnp.moveaxis(column, 0, 1), record_WxL)


ORDERS = {"lane": Order(lane_at_a_time, one_by_one), "together": Order(lanes_together, jax.vmap)}
