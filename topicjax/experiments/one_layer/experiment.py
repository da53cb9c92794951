"""The paper's one-layer transformer on topic documents, as the engine takes it."""

from collections.abc import Collection
from dataclasses import replace

from topicjax.experiments import Experiment
from topicjax.experiments.one_layer import costs, decided, lines, train
from topicjax.experiments.one_layer.records import HEALTHY, Record
from topicjax.experiments.one_layer.settings import TRIALS, Spec, Stream


def fit_queries(spec: Spec, streams: Collection[Stream]) -> Spec:
    """Return the Spec with room for the longest documents and the most queries of these streams."""
    return replace(
        spec,
        word_query_probability=max(each.p_mask * (each.p_keep + each.p_random) for each in streams),
        shortest=max(each.length_min for each in streams),
        longest=max(each.length_max for each in streams),
    )


EXPERIMENT = Experiment(
    settings=TRIALS,
    Record=Record,
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
    lines=lines.wanted_lines,
    decider=decided.decider,
)
