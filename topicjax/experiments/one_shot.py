"""Wrap a training function that does everything in one call: train(hypers, key) -> (state, metrics).

Such functions (purejaxrl and rejax have them) scan over their own steps and return what they measured as
arrays.  Wrapped, they are swept, recorded, restored and resumed like any experiment; a chunk of trials is
trained in one call, so that a run can stop between chunks only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.errors import UserError
from topicjax.experiments.contract import Experiment
from topicjax.settings import MAX_INT32, Whole
from topicjax.trial import TrialSettings

Train = Callable[..., tuple[Any, Mapping[str, jax.Array]]]


class Stream(NamedTuple):
    """What fixes the random numbers of a trial."""

    seed: Annotated[Any, Whole(0, MAX_INT32), "of the key that the training function is given"] = 0


class State(NamedTuple):
    """A trial that is trained already, and how many of its records were taken."""

    trained: Any
    metrics: Mapping[str, jax.Array]
    taken: jax.Array


def static_settings(num_entries: int) -> type:
    """Return the Spec of functions without static settings of their own."""

    @dataclass(frozen=True)
    class Spec:
        """What the engine counts by."""

        steps: Annotated[int, Whole(num_entries, num_entries), "entries of every metric"] = num_entries
        record_every: Annotated[int, Whole(1), "entries from one record to the next"] = 1

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
    """Return the experiment that calls `train` once per trial.

    `metrics` names the arrays of `steps` entries that `train` returns: entry i is the record of step i + 1,
    and step 0 repeats the first.  With a Spec of your own, whose `steps` may be swept like any of its static
    settings, `train(spec, hypers, key)` is given it.  `weights` says what of the final state a snapshot
    keeps; with `details` metrics may have further axes, one value per layer, say; `others` are further fields
    of an Experiment.
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
