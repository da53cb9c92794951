"""An encoder of several layers on windows of text, as the engine takes it."""

from collections.abc import Collection
from dataclasses import replace

from topicjax.experiments.contract import Experiment
from topicjax.experiments.encoder.train import init, weights
from topicjax.experiments.text import costs, train, windows
from topicjax.experiments.text.records import HEALTHY
from topicjax.experiments.text.settings import TRIALS, Spec, Stream


def fit_masks(spec: Spec, streams: Collection[Stream]) -> Spec:
    """Return the Spec with room for the most masked words of these streams."""
    return replace(
        spec,
        mask_probability=max(each.p_mask for each in streams),
        word_query_probability=max(each.p_mask * (each.p_keep + each.p_random) for each in streams),
    )


EXPERIMENT = Experiment(
    settings=TRIALS,
    details=("layer",),
    source=train.make_source,
    batch=train.draw_batch,
    init=init,
    update=train.update,
    measure=train.measure,
    weights=weights,
    healthy=HEALTHY,
    fit=fit_masks,
    missing=train.rows_missing,
    step_flops=costs.step_flops,
    draw_cost=0.1,
    data=windows.data,
)
