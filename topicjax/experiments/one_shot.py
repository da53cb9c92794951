"""An adapter for training functions that do everything in one call: train(hypers, key) -> (state, metrics).

Such functions (purejaxrl and rejax have them) scan over their own steps and return what they measured as
arrays.  Wrapped, they are swept, recorded, restored and resumed like any experiment; a chunk of trials is
trained in one call, so that a run can stop between chunks only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.experiments import Experiment
from topicjax.settings import MAX_INT32, Whole
from topicjax.trial import TrialSettings

Train = Callable[[Any, jax.Array], tuple[Any, Mapping[str, jax.Array]]]


class Stream(NamedTuple):
    """What fixes the random numbers of a trial."""

    seed: Annotated[Any, Whole(0, MAX_INT32), "of the key that the training function is given"] = 0


class State(NamedTuple):
    """A trial that is trained already, and how many of its records were taken."""

    trained: Any
    metrics: Mapping[str, jax.Array]
    taken: jax.Array


def spec_of(num_entries: int) -> type:
    """Return the static settings of functions whose metrics have so many entries."""

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
    steps: int,
    weights: Callable[[Any], Mapping[str, jax.Array]] = lambda state: {},
    detail: str = "",
) -> Experiment:
    """Return the experiment that calls `train` once per trial.

    `metrics` names the arrays of length `steps` that `train` returns: entry i is the record of step i + 1,
    and step 0 repeats the first.  `weights` says what of the final state a snapshot keeps.  With `detail`
    metrics may have a second axis, one value per layer, say.
    """

    def init(spec: Any, stream: Any, hypers: Any) -> State:
        trained, measured = train(hypers, jax.random.key(stream.seed))
        kept = {metric: jnp.asarray(measured[metric], jnp.float32) for metric in metrics}
        return State(trained, kept, jnp.zeros((), jnp.int32))

    def update(spec: Any, stream: Any, hypers: Any, state: State, batch: Any) -> tuple[State, None]:
        return state._replace(taken=state.taken + 1), None

    def measure(
        spec: Any, stream: Any, hypers: Any, source: Any, state: State, batch: Any, made: None
    ) -> Any:
        return Record(*(state.metrics[metric][jnp.maximum(state.taken - 1, 0)] for metric in metrics))

    Record = NamedTuple("Record", [(metric, jax.Array) for metric in metrics])  # type: ignore[misc]
    return Experiment(
        settings=TrialSettings(name, spec_of(steps), Stream, Hypers),
        Record=Record,
        source=lambda spec, stream: (),
        batch=lambda spec, stream, source, step: (),
        init=init,
        update=update,
        measure=measure,
        weights=lambda spec, state: dict(weights(state.trained)),
        detail=detail,
    )
