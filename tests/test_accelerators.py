"""Programs for accelerators that are not here: every shipped one is lowered for them, none is run."""

import functools

import jax
import numpy as np
import pytest
from one_trial import expand

from topicjax.engine import orders
from topicjax.engine.plan import fitted_specs
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import Hypers, Stream, traced
from topicjax.sweep_files import load_sweep, sweep_names

STREAMS, LANES = 2, 3


def shapes(part, *lengths: int):
    """Return traced settings with leading axes, as shapes alone."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(lengths, np.asarray(leaf).dtype), traced(part))


@functools.cache
def lowered_for(spec) -> tuple[str, ...]:
    """Return the platforms that a window of this program, from its start, can be lowered for."""

    def window(stream, hypers):
        state = orders.init_row(EXPERIMENT, spec, stream, hypers)
        state, records = orders.lanes_together(EXPERIMENT, spec, stream, hypers, state, 1)
        return EXPERIMENT.weights(spec, jax.tree.map(lambda leaf: leaf[0], state.trial_L)), records

    export = jax.export.export(jax.jit(jax.vmap(window)), platforms=("cuda", "tpu"))
    return export(shapes(Stream(), STREAMS), shapes(Hypers(), STREAMS, LANES)).platforms


QUICK = ("two_stage",)
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in sweep_names()]


@pytest.mark.parametrize("name", NAMES)
def test_shipped_programs_can_be_lowered_for_gpu_and_tpu(name):
    named = load_sweep(name)
    for spec in fitted_specs(EXPERIMENT, expand(named.base, named.sweep)):
        assert lowered_for(spec) == ("cuda", "tpu")
