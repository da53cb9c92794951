"""An encoder of several layers on topic documents, as the engine takes it."""

from topicjax.experiments.contract import Experiment
from topicjax.experiments.encoder import costs, train
from topicjax.experiments.encoder.records import HEALTHY
from topicjax.experiments.encoder.settings import TRIALS
from topicjax.experiments.one_layer import lines
from topicjax.experiments.one_layer.bags import fit_queries
from topicjax.experiments.one_layer.settings import DATA_SETTINGS, make_trial
from topicjax.trial import Trial


def one_layer_twin(trial: Trial) -> Trial:
    """Return a trial of the one-layer model with the same documents and objective."""
    names = {*DATA_SETTINGS, "eval_documents", "seed", "objective"}
    return make_trial({name: value for name, value in TRIALS.settings_of(trial).items() if name in names})


def references(trial: Trial) -> dict[str, float]:
    """Return the limit lines of a trial's documents, which are those of the one-layer model."""
    return lines.references(one_layer_twin(trial))


def reference_settings(trial: Trial) -> tuple[str, ...]:
    """Return what limit lines depend on."""
    return lines.reference_settings(one_layer_twin(trial))


EXPERIMENT = Experiment(
    settings=TRIALS,
    details=("layer",),
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
    references=references,
    reference_settings=reference_settings,
)
