"""Train one trial of the one-layer model alone, through the engine's own programs."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.engine import programs as orders
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.records import Record
from topicjax.experiments.one_layer.settings import TRIALS, Spec
from topicjax.sweep import axes_of as axes_of_any
from topicjax.sweep import expand as expand_any

expand = functools.partial(expand_any, TRIALS)
axes_of = functools.partial(axes_of_any, TRIALS)
TINY = Spec(
    topics=3,
    words_per_topic=2,
    shortest=8,
    longest=12,
    batch_size=4,
    eval_documents=6,
    optimizer="sgd",
    steps=40,
    record_every=4,
    word_query_probability=1.0,
)


class Trained(NamedTuple):
    """A trial after some steps."""

    row: orders.RowState  # of one lane

    @property
    def params(self) -> dict[str, Any]:
        return {name: np.asarray(leaf)[0] for name, leaf in self.row.trial_L.params.items()}

    @property
    def missing(self) -> int:
        return int(self.row.missing)


def as_lane(hypers: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], hypers)


def only_lane(records: Any) -> Record:
    """Select the records of the only lane, by the names of the model's columns."""
    return Record(**{name: column[0] for name, column in records.items()})


class Programs(NamedTuple):
    """Compiled functions of a Spec, for tests that train one trial or look at lanes."""

    start: Any  # jitted: of a Stream and the Hypers of all lanes
    go_on: Any  # jitted: of these, the state of a row and the steps of each lane
    tracings: list[int]  # an item for each time that `go_on` was traced
    lanes: int
    steps: int  # that `go_on` takes at most

    def init(self, stream: Any, hypers: Any) -> Trained:
        """Begin the trial, in every lane."""
        return Trained(self.start(stream, self._in_lanes(hypers)))

    def advance(self, stream: Any, hypers: Any, trained: Trained, steps: int = 0) -> tuple[Trained, Any]:
        """Train for so many steps, by default all; the records of windows beyond are empty."""
        number = np.full(self.lanes, steps or self.steps, np.int32)
        row, records = self.go_on(stream, self._in_lanes(hypers), trained.row, number)
        return Trained(row), only_lane(jax.device_get(records))

    def record(self, stream: Any, hypers: Any, trained: Trained) -> Any:
        """Measure the trial now."""
        _, records = self.advance(stream, hypers, trained, 1)
        return jax.tree.map(lambda column: column[0], records)

    def _in_lanes(self, hypers: Any) -> Any:
        return jax.tree.map(lambda leaf: np.broadcast_to(leaf, self.lanes), hypers)


@functools.lru_cache
def programs(spec: Any, num_records: int, order: str = "lane", lanes: int = 1) -> Programs:
    """Make the functions of a Spec, once for all tests: two programs."""
    tracings: list[int] = []

    def advance(*arguments: Any) -> Any:
        tracings.append(1)
        return orders.ORDERS[order].advance(EXPERIMENT, spec, *arguments, num_windows=num_records)

    start = jax.jit(functools.partial(orders.init_row, EXPERIMENT, spec))
    return Programs(start, jax.jit(advance), tracings, lanes, num_records * spec.record_every)
