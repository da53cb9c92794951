"""The two orders in which the trials of a stream row go through their steps; both give the same numbers.

A lane at a time, for cores: the data of a window are drawn once for the stream, then each trial goes through
the window alone, so that its weights and work arrays stay in the core's own cache, and a branch is a branch.
Lanes together, for accelerators: every step is taken by all trials at once, in wide operations.

Both are functions of one stream row.  Dimension letters: L lanes, W windows, B blocks of a window.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.engine.shapes import shapes
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
    experiment: Experiment,
    spec: Any,
    stream: Any,
    hypers_L: Any,
    data: Any = (),
    over_lanes: OverLanes = jax.vmap,
) -> RowState:
    """Return the state of a stream row before the first step."""
    trial_L = over_lanes(lambda hypers: experiment.init(spec, stream, hypers))(hypers_L)
    zero = jnp.zeros((), jnp.int32)
    return RowState(zero, zero, experiment.make_source(spec, stream, data), trial_L)


def weights_row(experiment: Experiment, spec: Any, trial_L: Any, over_lanes: OverLanes = jax.vmap) -> Any:
    """Return what snapshots keep of the trials."""
    return over_lanes(lambda trial: experiment.weights(spec, trial))(trial_L)


def lanes_together(
    experiment: Experiment,
    spec: Any,
    stream: Any,
    hypers_L: Any,
    state: RowState,
    steps_L: Any = None,
    *,
    num_windows: int,
) -> tuple[RowState, Any]:
    """Train all lanes step by step; return the state and records, L x W.

    A record is taken at the first step of a window.  A lane ends after its number of steps, if these are
    given; its records of windows that it did not begin are zeros.
    """
    source = state.source
    update = jax.vmap(lambda h, trial, batch: experiment.update(spec, stream, h, trial, batch), (0, 0, None))
    measure = jax.vmap(
        lambda h, trial, batch, made: experiment.measure(spec, stream, h, source, trial, batch, made),
        (0, 0, None, 0),
    )
    empty_L = no_records(experiment, spec, hypers_L)

    def window(carry: Any, left_L: Any) -> tuple[Any, Any]:
        number, missing, trial_L = carry

        def step(offset: Any, carry: Any) -> Any:
            missing, trial_L, latest_L = carry
            batch = experiment.batch(spec, stream, source, number + offset)
            following_L, made_L = update(hypers_L, trial_L, batch)
            latest_L = jax.lax.cond(
                offset == 0, lambda: measure(hypers_L, trial_L, batch, made_L), lambda: latest_L
            )
            missing = jnp.maximum(missing, lacking(experiment, source, batch))
            return missing, lanes_where(offset < left_L, following_L, trial_L), latest_L

        missing, trial_L, latest_L = jax.lax.fori_loop(0, left_L.max(), step, (missing, trial_L, empty_L))
        latest_L = lanes_where(left_L > 0, latest_L, empty_L)
        return (number + spec.record_every, missing, trial_L), latest_L

    return through_windows(window, spec, hypers_L, state, steps_L, num_windows)


def lane_at_a_time(
    experiment: Experiment,
    spec: Any,
    stream: Any,
    hypers_L: Any,
    state: RowState,
    steps_L: Any = None,
    *,
    num_windows: int,
) -> tuple[RowState, Any]:
    """Do what lanes_together does, each lane through a window alone; one that has ended costs nothing."""
    source, block = state.source, block_steps(experiment, spec, stream, state)
    empty_L = no_records(experiment, spec, hypers_L)

    def draw(first: Any) -> Any:
        return jax.lax.map(
            lambda offset: experiment.batch(spec, stream, source, first + offset), jnp.arange(block)
        )

    def through_block(carry: Any, at: Any) -> tuple[Any, None]:
        number, missing, trial_L, latest_L = carry
        first_offset, steps_L = at
        drawn = jax.eval_shape(draw, number)
        batches = jax.lax.cond(jnp.any(steps_L > 0), draw, lambda first: zeros(drawn), number)
        missing = jnp.maximum(missing, lacking(experiment, source, batches))

        def lane(lane: Any) -> Any:
            hypers, trial, latest, steps = lane

            def step(place: Any, carry: Any) -> Any:
                trial, latest = carry
                batch = jax.tree.map(lambda leaf: leaf[place], batches)
                following, made = experiment.update(spec, stream, hypers, trial, batch)
                latest = jax.lax.cond(
                    first_offset + place == 0,
                    lambda: experiment.measure(spec, stream, hypers, source, trial, batch, made),
                    lambda: latest,
                )
                return following, latest

            return jax.lax.fori_loop(0, steps, step, (trial, latest))

        trial_L, latest_L = jax.lax.map(lane, (hypers_L, trial_L, latest_L, steps_L))
        return (number + block, missing, trial_L, latest_L), None

    def window(carry: Any, left_L: Any) -> tuple[Any, Any]:
        starts = jnp.arange(0, spec.record_every, block)
        steps_BxL = jnp.clip(left_L[None, :] - starts[:, None], 0, block)
        (*carry, latest_L), _ = jax.lax.scan(through_block, (*carry, empty_L), (starts, steps_BxL))
        return tuple(carry), latest_L

    return through_windows(window, spec, hypers_L, state, steps_L, num_windows)


def through_windows(
    window: Callable[[Any, Any], tuple[Any, Any]],
    spec: Any,
    hypers_L: Any,
    state: RowState,
    steps_L: Any,
    num_windows: int,
) -> tuple[RowState, Any]:
    """Return the state after all windows, each with its share of every lane's steps, and records, L x W."""
    if steps_L is None:
        steps_L = jnp.full(jax.tree.leaves(hypers_L)[0].shape, num_windows * spec.record_every)
    begun_W = spec.record_every * jnp.arange(num_windows)
    steps_WxL = jnp.clip(steps_L[None, :] - begun_W[:, None], 0, spec.record_every)
    first = (state.step, state.missing, state.trial_L)
    (number, missing, trial_L), record_WxL = jax.lax.scan(window, first, steps_WxL)
    record_LxW = jax.tree.map(lambda column: jnp.moveaxis(column, 0, 1), record_WxL)
    return RowState(number, missing, state.source, trial_L), record_LxW


def lanes_where(is_first_L: Any, first_L: Any, second_L: Any) -> Any:
    """Return the values of some lanes from the first tree, of the others from the second."""

    def choose(first: Any, second: Any) -> Any:
        return jnp.where(is_first_L.reshape(-1, *[1] * (first.ndim - 1)), first, second)

    return jax.tree.map(choose, first_L, second_L)


def zeros(tree: Any, axes: tuple[int, ...] = ()) -> Any:
    """Return a tree of zeros of these shapes, each with more axes in front."""
    return jax.tree.map(lambda leaf: jax.lax.full(axes + leaf.shape, 0, leaf.dtype), tree)


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


def no_records(experiment: Experiment, spec: Any, hypers_L: Any) -> Any:
    """Return records of zeros, one for each lane."""
    return zeros(shapes(experiment, spec).record, jax.tree.leaves(hypers_L)[0].shape)


ORDERS = {"lane": Order(lane_at_a_time, one_by_one), "together": Order(lanes_together, jax.vmap)}
