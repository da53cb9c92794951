"""The paper's one-layer transformer on topic documents, as the engine takes it."""

from topicjax.experiments.contract import Experiment
from topicjax.experiments.one_layer import costs, decided, lines, train
from topicjax.experiments.one_layer.bags import fit_queries
from topicjax.experiments.one_layer.records import HEALTHY
from topicjax.experiments.one_layer.settings import TRIALS

EXPERIMENT = Experiment(
    settings=TRIALS,
    source=train.make_source,
    batch=train.draw_batch,
    init=train.init,
    update=train.update,
    measure=train.measure,
    weights=train.weights,
    healthy=HEALTHY,
    fit=fit_queries,
    missing=train.queries_missing,
    trial_bytes=costs.trial_bytes,
    step_flops=costs.step_flops,
    references=lines.references,
    reference_settings=lines.reference_settings,
    decided=decided.decided,
)
