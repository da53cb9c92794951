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
        return {name: leaf[0] for name, leaf in self.row.trial_L.params.items()}

    @property
    def missing(self) -> int:
        return int(self.row.missing)


def as_lane(hypers: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], hypers)


def only_lane(records: Any) -> Record:
    """Select the records of the only lane, by the names of the model's columns."""
    return Record(**{name: column[0] for name, column in records.items()})


@functools.lru_cache
def programs(spec: Any, num_records: int, order: str = "lane"):
    """Compile init, advance and record of one trial of a Spec, once for all tests: two programs."""
    start = jax.jit(functools.partial(orders.init_row, EXPERIMENT, spec))
    go_on = jax.jit(
        functools.partial(orders.ORDERS[order].advance, EXPERIMENT, spec, num_windows=num_records)
    )

    def init(stream: Any, hypers: Any) -> Trained:
        return Trained(start(stream, as_lane(hypers)))

    def steps(stream: Any, hypers: Any, trained: Trained, number: int) -> tuple[Trained, Any]:
        row, records = go_on(stream, as_lane(hypers), trained.row, np.full(1, number, np.int32))
        return Trained(row), only_lane(records)

    def advance(stream: Any, hypers: Any, trained: Trained) -> tuple[Trained, Any]:
        return steps(stream, hypers, trained, num_records * spec.record_every)

    def record(stream: Any, hypers: Any, trained: Trained) -> Any:
        _, records = steps(stream, hypers, trained, 1)  # the other windows are empty
        return jax.tree.map(lambda column: column[0], records)

    return init, advance, record
