"""Parts trained in their own steps, against Adam written out with a counter of steps for each part."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from support.one_trial import TINY

from topicjax.experiments.one_layer import experiment, model
from topicjax.experiments.one_layer.schedule import PARTS
from topicjax.experiments.one_layer.settings import (
    SCHEDULE_SETTINGS,
    Hypers,
    Spec,
    make_trial,
    traced,
    trial_id,
)
from topicjax.theory.document_settings import Stream

SPEC = replace(  # nothing to draw: quick to compile
    TINY,
    documents="tau",
    infinite_documents=True,
    optimizer="adam",
    training="by_part",
    attention_biases="trained",
    output_bias="trained",
)
HYPERS = Hypers(learning_rate=0.05, init_scale=0.3, epsilon=1e-3, objective="squared", l2=0.02)
STEPS = 8
SCHEDULES = {  # settings: the steps that train W^V and b^V, and those that train W^K, W^Q, b^K and b^Q
    "joint": ({}, "VVVVVVVV", "AAAAAAAA"),
    "V then attention": (dict(value_until=4, attention_from=4), "VVVV....", "....AAAA"),
    "V then joint": (dict(attention_from=5), "VVVVVVVV", ".....AAA"),
    "equal steps": (
        dict(value_until=6, attention_from=2, attention_until=7, value_from=1),
        ".VVVVV..",
        "..AAAAA.",
    ),
    "turns": (dict(alternate=3), "VVV...VV", "...AAA.."),
    "turns from a step on": (dict(alternate=1, attention_from=4), "V.V.V.V.", ".....A.A"),
}


@pytest.fixture(scope="module")
def programs():
    """Batches and gradients of a step, and the training of all steps: each compiled once."""
    stream = traced(Stream(seed=3))

    @jax.jit
    def gradients(hypers, params, step):
        batch = experiment.draw_batch(SPEC, stream, experiment.make_source(SPEC, stream), step)
        return experiment.add_l2(hypers, params, experiment.loss_gradients(SPEC, hypers, params, batch))

    @jax.jit
    def train(hypers):
        source, first = experiment.make_source(SPEC, stream), experiment.init(SPEC, stream, hypers)

        def step(number, state):
            batch = experiment.draw_batch(SPEC, stream, source, number)
            return experiment.update(SPEC, stream, hypers, state, batch, number)[0]

        return first.params, jax.lax.fori_loop(0, STEPS, step, first).params

    return gradients, train


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_part_takes_adams_steps_in_its_own_turns(name, programs):
    changes, value, attention = SCHEDULES[name]
    hypers = traced(HYPERS._replace(**changes))
    gradients, train = programs
    start, found = train(hypers)
    params = {name: np.asarray(leaf, np.float64) for name, leaf in start.items()}
    mean, square, taken = ({name: 0.0 for name in params} for _ in range(3))
    for step in range(STEPS):
        active = {"b_pred"}
        active |= {"W_V", "b_V"} if value[step] == "V" else set()
        active |= {"W_K", "W_Q", "b_K", "b_Q"} if attention[step] == "A" else set()
        now = gradients(hypers, {each: leaf.astype(np.float32) for each, leaf in params.items()}, step)
        for each in active:
            gradient = np.asarray(now[each], np.float64)
            taken[each] += 1
            mean[each] = 0.9 * mean[each] + 0.1 * gradient
            square[each] = 0.999 * square[each] + 0.001 * gradient**2
            fair_mean = mean[each] / (1 - 0.9 ** taken[each])
            fair_square = square[each] / (1 - 0.999 ** taken[each])
            params[each] = params[each] - 0.05 * fair_mean / (np.sqrt(fair_square) + 1e-3)
    for each, leaf in found.items():
        np.testing.assert_allclose(leaf, params[each], rtol=2e-3, atol=2e-5, err_msg=each)


def test_without_a_schedule_parts_train_as_together(programs):
    together = replace(SPEC, training="together")
    stream, hypers = traced(Stream(seed=3)), traced(HYPERS)

    @jax.jit
    def train():
        source, first = experiment.make_source(together, stream), experiment.init(together, stream, hypers)

        def step(number, state):
            batch = experiment.draw_batch(together, stream, source, number)
            return experiment.update(together, stream, hypers, state, batch, number)[0]

        return jax.lax.fori_loop(0, STEPS, step, first).params

    for name, leaf in train().items():
        np.testing.assert_allclose(programs[1](hypers)[1][name], leaf, rtol=1e-4, atol=1e-6, err_msg=name)


def test_every_trained_parameter_belongs_to_a_part():
    every = Spec(embedding="trained", output_bias="trained", attention_biases="trained")
    parts = [name for names in PARTS.values() for name in names]
    assert sorted(parts) == sorted(model.trained_names(every))


def test_a_schedule_is_part_of_a_trial_only_where_it_acts():
    plain = trial_id(make_trial({}))
    assert trial_id(make_trial(dict(value_until=5, alternate=2))) == plain  # training is "together"
    ids = {trial_id(make_trial(dict(training="by_part", **{name: 7}))) for name in SCHEDULE_SETTINGS}
    assert len(ids | {plain, trial_id(make_trial(dict(training="by_part")))}) == 7
