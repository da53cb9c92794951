"""Experiment: an encoder on a language with syntax and topics (data, training, costs, reference losses)."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.experiments.contract import Experiment
from topicjax.experiments.shared import threefry
from topicjax.experiments.shared.layer_records import Made
from topicjax.experiments.shared.layer_training import init, layer_flops, stepped, weights
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.state import State
from topicjax.experiments.syntax import language, masked, model
from topicjax.experiments.syntax.masked import Masked
from topicjax.experiments.syntax.records import measure_interventions, measure_model
from topicjax.experiments.syntax.settings import TRIALS, Hypers, LanguageSpec, Spec, Stream
from topicjax.settings import declared
from topicjax.theory.syntax import Language, reference_losses
from topicjax.trial import Trial


class Source(NamedTuple):
    """What a Stream fixes for the whole training."""

    documents_key: jax.Array
    held_out: Masked
    changed: dict[str, Masked]  # the held-out documents with their visible words changed


def make_source(spec: Spec, stream: Stream) -> Source:
    """Draw the held-out documents, and change their visible words."""
    documents = language.held_out_documents(spec, stream)
    changed = language.changed_documents(spec, stream, documents)
    return Source(
        language.documents_key(stream.seed),
        masked.from_documents(spec, documents),
        {name: masked.from_documents(spec, each) for name, each in changed.items()},
    )


def draw_batch(spec: Spec, stream: Stream, source: Source, step: jax.Array) -> Masked:
    """Draw the documents of a step."""
    key = threefry.fold_in(threefry.raw(source.documents_key), step)
    documents = language.draw_documents(spec, stream, key, spec.batch_size)
    return masked.from_documents(spec, jax.lax.optimization_barrier(documents))  # else they are drawn twice


def positions_missing(source: Source, batch: Masked) -> jax.Array:
    """Count the masked positions beyond the room."""
    return jnp.maximum(source.held_out.missing, batch.missing)


def update(
    spec: Spec, stream: Stream, hypers: Hypers, state: State, batch: Masked, step: jax.Array
) -> tuple[State, Made]:
    """Take one step; return the new state and the loss and gradients of that step."""

    def loss_and_gradients(trained: Params, frozen: Params) -> tuple[jax.Array, Params]:
        return masked.with_usual_number(
            spec, lambda own: model.loss_and_gradients(spec, hypers, trained, frozen, own), batch
        )

    return stepped(spec, hypers, state, step, loss_and_gradients)


def measure(
    spec: Spec, stream: Stream, hypers: Hypers, source: Source, state: State, batch: Masked, made: Made
) -> Any:
    """Measure a state before the step of this batch; `made` belongs to that step."""
    return measure_model(spec, stream, hypers, source.held_out, state, made)


def measure_rarely(
    spec: Spec, stream: Stream, hypers: Hypers, source: Source, state: State, batch: Masked, made: Made
) -> Any:
    """Measure interventions, and attention to near positions."""
    return measure_interventions(spec, hypers, source.held_out, source.changed, state.params)


def fit_documents(spec: Spec, streams: Collection[Stream]) -> Spec:
    """Size the Spec for the longest documents and the most masked positions of these streams."""
    return replace(
        spec,
        longest=max(each.length_max for each in streams),
        mask_probability=max(each.p_mask for each in streams),
    )


def step_flops(spec: Spec) -> float:
    """Estimate the floating-point operations of one trial-step: its matrix products."""
    _, usual = masked.room(spec, spec.batch_size)
    if not masked.by_type(spec):
        return layer_flops(spec, spec.batch_size, spec.longest, spec.longest, usual)
    D, V, H = spec.size, spec.vocabulary, spec.heads
    by_position = D * V + 2 * D * spec.mlp + D * D * spec.output_projection
    by_position += H * V * (2 * spec.reach + spec.head_size + 1)
    return 3 * 2.0 * (usual * by_position + 2 * V * D * D)


def language_of(trial: Trial) -> Language:
    """Return the language of a trial, for theory."""
    every = vars(trial.spec) | trial.stream._asdict()
    return Language(**{name: every[name] for name in Language.__dataclass_fields__})


def references(trial: Trial) -> dict[str, float]:
    """Compute the exact losses of the language, also on the trial's held-out documents."""
    spec, stream = fit_documents(trial.spec, [trial.stream]), TRIALS.traced(trial.stream)
    drawn = jax.jit(lambda: language.held_out_documents(spec, stream))()
    word_BxN, shown_BxN, masked_BxN, present_BxN = map(np.asarray, drawn)
    own, objective = language_of(trial), trial.hypers.objective
    return reference_losses(own, word_BxN, shown_BxN, masked_BxN, present_BxN, objective)


def reference_settings(trial: Trial) -> tuple[str, ...]:
    """List the settings that reference losses depend on: the held-out documents are those of all seeds."""
    of_training = ("batch_size", "positions")
    names = [*declared(LanguageSpec), *Stream._fields, "objective"]
    return tuple(name for name in names if name in TRIALS.settings and name not in (*of_training, "seed"))


EXPERIMENT = Experiment(
    settings=TRIALS,
    details=("layer", "attention_head"),
    source=make_source,
    batch=draw_batch,
    init=init,
    update=update,
    measure=measure,
    measure_rarely=measure_rarely,
    weights=weights,
    healthy=("loss", "eval_loss", "norm_k", "norm_q", "norm_v"),
    fit=fit_documents,
    missing=positions_missing,
    step_flops=step_flops,
    draw_cost=1.0,
    references=references,
    reference_settings=reference_settings,
)
