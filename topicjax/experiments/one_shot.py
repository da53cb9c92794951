"""Wrap a training function that does everything in one call: train(hypers, key) -> (state, metrics).

Such functions (as in purejaxrl and rejax) scan over their own steps and return their metrics as arrays.
Wrapped, they are swept, recorded, restored and resumed like any experiment; a chunk of trials is trained in
one call, so a run can stop only between chunks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.errors import UserError
from topicjax.experiments.contract import Experiment
from topicjax.settings import MAX_INT32, RecordsPerDecade, Whole
from topicjax.trial import TrialSettings

Train = Callable[..., tuple[Any, Mapping[str, jax.Array]]]


class Stream(NamedTuple):
    """The seed of a trial's random numbers."""

    seed: Annotated[Any, Whole(0, MAX_INT32), "of the key that the training function is given"] = 0


class State(NamedTuple):
    """A fully trained trial, and how many of its records have been read."""

    trained: Any
    metrics: Mapping[str, jax.Array]
    taken: jax.Array


def static_settings(num_entries: int) -> type:
    """Make the Spec of functions without static settings."""

    @dataclass(frozen=True)
    class Spec:
        """The settings that every Spec needs."""

        steps: Annotated[int, Whole(num_entries, num_entries), "entries of every metric"] = num_entries
        record_every: Annotated[int, Whole(1), "entries from one record to the next"] = 1
        records_per_decade: RecordsPerDecade = 0

    return Spec


def one_shot(
    name: str,
    train: Train,
    Hypers: type,
    metrics: tuple[str, ...],
    steps: int = 1,
    weights: Callable[[Any], Any] = lambda state: {},
    Spec: type | None = None,
    details: tuple[str, ...] = (),
    **others: Any,
) -> Experiment:
    """Make the experiment that calls `train` once per trial.

    `metrics` names the arrays of `steps` entries that `train` returns: entry i is the record of step i + 1,
    and step 0 repeats the first.  With your own Spec, whose `steps` may be swept like any static setting, the
    call is `train(spec, hypers, key)`.  `weights` selects what a snapshot keeps of the final state; with
    `details`, metrics may have further axes, such as one value per layer; `others` are further fields of an
    Experiment.
    """

    def init(spec: Any, stream: Any, hypers: Any) -> State:
        key = jax.random.key(stream.seed)
        trained, measured = train(hypers, key) if Spec is None else train(spec, hypers, key)
        kept = {}
        for metric in metrics:
            if metric not in measured:
                raise UserError(
                    f"train of {name} returns no metric {metric!r}; there are: {', '.join(measured)}"
                )
            kept[metric] = jnp.asarray(measured[metric], jnp.float32)
            if kept[metric].shape[:1] != (spec.steps,):
                raise UserError(
                    f"metric {metric} of {name} has shape {kept[metric].shape}; allowed: "
                    f"{spec.steps} entries (steps) along its first axis"
                )
        return State(trained, kept, jnp.zeros((), jnp.int32))

    def update(
        spec: Any, stream: Any, hypers: Any, state: State, batch: Any, step: Any
    ) -> tuple[State, None]:
        return state._replace(taken=state.taken + 1), None

    def measure(
        spec: Any, stream: Any, hypers: Any, source: Any, state: State, batch: Any, made: None
    ) -> dict[str, Any]:
        return {metric: state.metrics[metric][jnp.maximum(state.taken - 1, 0)] for metric in metrics}

    return Experiment(
        settings=TrialSettings(name, Spec or static_settings(steps), Stream, Hypers),
        init=init,
        update=update,
        measure=measure,
        weights=lambda spec, state: weights(state.trained),
        details=details,
        **others,
    )
