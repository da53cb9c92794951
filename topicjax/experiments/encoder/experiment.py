"""An encoder of several layers on topic documents, as the engine takes it."""

from collections.abc import Iterable, Sequence
from typing import Any

from topicjax.experiments import Experiment, Line
from topicjax.experiments.encoder import costs, train
from topicjax.experiments.encoder.records import HEALTHY, Record
from topicjax.experiments.encoder.settings import TRIALS
from topicjax.experiments.one_layer import lines
from topicjax.experiments.one_layer.bags import fit_queries
from topicjax.experiments.one_layer.settings import DATA_SETTINGS, make_trial
from topicjax.trial import Trial


def wanted_lines(trials: Iterable[Trial], known: Sequence[dict[str, Any]]) -> list[Line]:
    """Return the limit lines of the trials' documents, which are those of the one-layer model."""
    names = {*DATA_SETTINGS, "eval_documents", "seed", "objective"}
    shared = ({name: value for name, value in TRIALS.settings_of(t).items() if name in names} for t in trials)
    return lines.wanted_lines(map(make_trial, shared), known)


EXPERIMENT = Experiment(
    settings=TRIALS,
    Record=Record,
    detail="layer",
    source=train.make_source,
    batch=train.draw_batch,
    init=train.init,
    update=train.update,
    measure=train.measure,
    weights=train.weights,
    healthy=HEALTHY,
    fit=fit_queries,
    missing=train.rows_missing,
    step_flops=costs.step_flops,
    draw_cost=0.25,
    lines=wanted_lines,
)
