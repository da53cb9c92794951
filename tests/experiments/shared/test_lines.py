"""Limit lines on the held-out documents: against loops over their tokens, and in the units of progress."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from topicjax.engine.references import pending_references
from topicjax.experiments.one_layer import experiment, kernel, records
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import Hypers, make_trial, traced
from topicjax.experiments.shared import bags, lda, lines, threefry
from topicjax.theory.progress import progress, units
from topicjax.theory.stage_models import pair_weights

TINY = dict(topics=3, words_per_topic=2, length_min=1, length_max=9, eval_documents=25)
TINY |= dict(p_mask=0.4, p_keep=0.25, p_random=0.2, alpha=0.3)
OBJECTIVES = pytest.mark.parametrize("objective", ["cross_entropy", "squared"])
BOTH = pytest.mark.parametrize("visibility", ["all", "unmasked"])
CERTAIN = -100.0  # of the [MASK] output: its chance is exp(-100)


def held_out_documents(trial: Any) -> list[np.ndarray]:
    """word, shown, masked, present of the documents that make_source draws."""
    spec = bags.fit_queries(trial.spec, [trial.stream])
    key = threefry.raw(jax.random.key(lda.EVAL_SEED))
    phi = lda.topic_words(spec, traced(trial.stream))
    draw = partial(lda.draw_documents, spec, num_documents=spec.eval_documents)
    return [np.asarray(array) for array in jax.jit(draw)(traced(trial.stream), phi, key)]


def token_losses(trial: Any, model: Any, objective: str) -> np.ndarray:
    """The mean loss over the masked positions of each held-out document that has some, key by key."""
    per_topic, vocabulary = trial.spec.words_per_topic, trial.spec.vocabulary
    found = []
    for word, shown, masked, present in zip(*held_out_documents(trial), strict=True):
        losses = []
        for place in np.flatnonzero(masked):
            output, total = np.zeros(vocabulary), 0.0
            for other in np.flatnonzero(present):
                if trial.stream.key_visibility == "unmasked" and masked[other]:
                    continue
                query, key = shown[place], shown[other]
                weight = 1.0
                if query == key:
                    weight = model.beta
                elif query > 0 and key > 0 and (query - 1) // per_topic == (key - 1) // per_topic:
                    weight = model.alpha
                output, total = output + weight * model.value[:, key], total + weight
            output = output / total if total else output
            if objective == "squared":
                losses.append(np.sum((output - np.eye(vocabulary)[word[place]]) ** 2))
            else:  # the best [MASK] output is -infinity, unless there is no key to write it
                others = np.exp(output[1:]).sum() + (0 if total else 1)
                losses.append(np.log(others) - output[word[place]])
        if losses:
            found.append(np.mean(losses))
    return np.array(found)


@BOTH
@OBJECTIVES
def test_held_out_lines_are_the_losses_of_the_optimal_models_token_by_token(objective, visibility):
    trial = make_trial(TINY | dict(key_visibility=visibility, objective=objective, seed=3, steps=40))
    entry = EXPERIMENT.references(trial)
    models = lines.limits_of(lines.data_of(trial)).models(objective)
    for name, model in zip(("stage1", "stage2"), models, strict=True):
        losses = token_losses(trial, model, objective)
        assert 10 < len(losses) < 25  # some documents have no masked position
        assert entry[f"held_out_{name}"] == pytest.approx(losses.mean(), abs=1e-6)
        error = losses.std(ddof=1) / len(losses) ** 0.5
        assert entry[f"held_out_{name}_se"] == pytest.approx(error, abs=1e-6)
        assert abs(entry[f"held_out_{name}"] - entry[name]) < 5 * error
    assert abs(models[1].alpha - 1) > 0.1 and models[0].alpha == 1


def measured(trial: Any, model: Any, objective: str) -> tuple[float, float]:
    """The loss and the loss with uniform attention that a record has of this model."""
    spec, stream = bags.fit_queries(trial.spec, [trial.stream]), traced(trial.stream)
    held_out = jax.jit(experiment.make_source, static_argnums=0)(spec, stream).held_out
    value = model.value.copy()
    value[0] = CERTAIN if objective == "cross_entropy" else value[0]
    V = bags.padded(spec.vocabulary)
    pad = ((0, V - spec.vocabulary),) * 2
    scores = np.log(pair_weights(lines.limits_of(lines.data_of(trial)).data, model))
    effective = kernel.Effective(
        jnp.asarray(np.pad(scores, pad), jnp.float32),
        jnp.asarray(np.pad(value.T, pad), jnp.float32),
        jnp.zeros(V),
    )
    hypers = traced(Hypers(objective=objective))
    split, uniform = jax.jit(partial(records.held_out_losses, spec))(hypers, held_out, effective)
    return float(split.total), float(uniform)


@BOTH
@OBJECTIVES
@pytest.mark.parametrize("changed", [{}, dict(documents="tau", infinite_documents=True, topics=4)])
def test_the_optimum_of_each_stage_has_progress_one_on_the_held_out_documents(objective, visibility, changed):
    settings = dict(eval_documents=40, topics=5, words_per_topic=4, key_visibility=visibility) | changed
    trial = make_trial(settings)
    data = lines.data_of(trial)
    found = lines.stage_lines(data, objective)
    stage1, stage2 = lines.limits_of(data).models(objective)
    initial = np.log(trial.spec.vocabulary) if objective == "cross_entropy" else 1.0  # of weights that are 0
    drop, gain = units(initial, found)
    rounding = 1e-4 if trial.spec.infinite_documents else 2e-6  # W^V grows without bound there
    of_stage1 = progress(*measured(trial, stage1, objective), initial, drop, gain)
    np.testing.assert_allclose([of_stage1.value, of_stage1.total], 1, rtol=0, atol=rounding)
    assert abs(of_stage1.attention) < 1e-3
    loss, uniform = measured(trial, stage2, objective)
    of_stage2 = progress(loss, found["held_out_stage1"], initial, drop, gain)
    np.testing.assert_allclose(of_stage2, [1, 1, 1 + gain / drop], rtol=0, atol=1e-3)
    if np.array_equal(stage1.value, stage2.value):
        assert uniform == pytest.approx(found["held_out_stage1"], abs=rounding)
    population = units(initial, {name: value for name, value in found.items() if "held_out" not in name})
    if not trial.spec.infinite_documents:  # of these all are alike
        assert abs(1 - (initial - found["held_out_stage1"]) / population.drop) > 1e-3


def test_lines_are_wanted_once_per_documents_objective_and_held_out_documents():
    trials = [
        make_trial(TINY | dict(objective=objective, eval_documents=count, seed=seed, steps=steps))
        for objective in ("squared", "cross_entropy")
        for count, seed, steps in ((25, 0, 20), (25, 1, 40), (30, 0, 20))
    ]
    wanted = pending_references(EXPERIMENT, trials, [])
    found = [(each.settings["eval_documents"], each.settings["objective"]) for each in wanted]
    assert found == [(n, name) for n in (25, 30) for name in ("cross_entropy", "squared")]
    assert all("seed" not in each.settings for each in wanted)
    assert pending_references(EXPERIMENT, trials, [{"settings": each.settings} for each in wanted]) == []
    drawn = [make_trial(TINY | dict(word_distribution="dirichlet", seed=seed)) for seed in (4, 5)]
    assert [each.settings["seed"] for each in pending_references(EXPERIMENT, drawn, [])] == [4, 5]


def test_one_held_out_document_has_a_line_without_an_error():
    trial = make_trial(TINY | dict(eval_documents=1, length_min=30, length_max=30))
    found = lines.stage_lines(lines.data_of(trial), "squared")
    assert np.isfinite(found["held_out_stage1"]) and np.isnan(found["held_out_stage1_se"])


def test_documents_whose_words_are_drawn_have_their_own_held_out_lines():
    changed = TINY | dict(word_distribution="dirichlet", length_min=20, length_max=30, documents="tau")
    found = [
        lines.stage_lines(lines.data_of(make_trial(changed | dict(seed=seed))), "squared") for seed in (1, 2)
    ]
    for one in found:
        assert abs(one["held_out_stage1"] - one["stage1"]) < 5 * one["held_out_stage1_se"]
    assert found[0]["held_out_stage1"] != found[1]["held_out_stage1"]
