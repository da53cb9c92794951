"""Limit lines of topic documents: which a sweep needs, and their values on the documents that losses are of.

Stage lines are optima over all documents there could be; the held-out documents are a few of them.  So the
optimal models are also evaluated on a trial's own held-out documents: these values are what its losses are
compared with.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from topicjax.experiments import Line
from topicjax.experiments.one_layer import lda, train
from topicjax.experiments.one_layer.settings import (
    DATA_SETTINGS,
    Objective,
    Spec,
    make_trial,
    settings_of,
    traced,
)
from topicjax.theory.documents import DataModel
from topicjax.theory.limits import Limits
from topicjax.theory.stage_models import Examples, StageModel, model_losses
from topicjax.trial import Trial

ROOM = 150  # documents have room for a multiple of so many words
SOURCE = jax.jit(train.make_source, static_argnums=0)


def wanted_lines(trials: Iterable[Trial], known: Sequence[dict[str, Any]]) -> list[Line]:
    """Return the lines of each data setting and objective of the trials that are not known yet, once.

    Those of one data setting follow each other: they share its documents.
    """
    found: dict[str, dict[str, Line]] = {}
    seen: set[tuple] = set()
    have = [entry["settings"] for entry in known]
    for trial in trials:
        stream = trial.stream if is_drawn(trial.spec) else trial.stream._replace(seed=0)
        quick = (trial.spec, stream, trial.hypers.objective)
        if quick in seen:
            continue
        seen.add(quick)
        settings, objective = line_settings(trial), trial.hypers.objective
        if settings | {"objective": objective} not in have:
            found.setdefault(f"{sorted(settings.items())}", {})[objective] = line(settings, objective)
    return [line for lines in found.values() for line in lines.values()]


def line(settings: dict[str, Any], objective: Objective) -> Line:
    """Return the lines of documents with these settings under an objective, to be computed."""
    entry = {"settings": settings | {"objective": objective}}
    return Line(entry, lambda: stage_lines(settings, objective) | other_lines(settings, objective))


def stage_lines(settings: Mapping[str, Any], objective: Objective) -> dict[str, float]:
    """Return the lines of stages 1 and 2, over all documents and on the held-out ones, and their errors.

    The names are stage1, stage2, held_out_stage1, held_out_stage2, and each of them with _se.  The error of a
    held-out line is its distance, by chance, from the line over all documents.
    """
    trial = make_trial(settings)
    lines = limits_of(trial).stages(objective)
    models = zip(("stage1", "stage2"), limits_of(trial).models(objective), strict=True)
    for name, model in models:
        losses_D = held_out_losses(trial, model, objective)
        count = len(losses_D)
        error = losses_D.std(ddof=1) / count**0.5 if count > 1 else np.nan
        lines[f"held_out_{name}"] = float(losses_D.mean()) if count else np.nan
        lines[f"held_out_{name}_se"] = float(error)
    return lines


def other_lines(settings: Mapping[str, Any], objective: Objective) -> dict[str, float]:
    """Return the lines of uniform and Bayes predictions over all documents, and their errors."""
    return limits_of(make_trial(settings)).others(objective)


@lru_cache(maxsize=1)  # both objectives and all lines of a data setting, one after the other
def limits_of(trial: Trial) -> Limits:
    """Return the limit lines of a trial's documents, to be asked for."""
    return Limits(data_model(trial))


def line_settings(trial: Trial) -> dict[str, Any]:
    """Return the settings that the lines of a trial depend on, besides its objective."""
    names = (*DATA_SETTINGS, "eval_documents", *(["seed"] if is_drawn(trial.spec) else []))
    every = settings_of(trial)
    return {name: every[name] for name in names}


def is_drawn(spec: Spec) -> bool:
    """Return whether the seed decides on the words of the topics."""
    return spec.word_distribution == "dirichlet"


def line_finder(entries: Sequence[dict[str, Any]]) -> Callable[[Trial], dict[str, Any]]:
    """Return a function from a trial to its limit lines by name; none if the entries have none for it."""
    known = {tuple(sorted(entry["settings"].items())): entry.get("values", {}) for entry in entries}

    def find(trial: Trial) -> dict[str, Any]:
        settings = line_settings(trial) | {"objective": trial.hypers.objective}
        return known.get(tuple(sorted(settings.items())), {})

    return find


def data_model(trial: Trial) -> DataModel:
    """Return the trial's documents as theory takes them."""
    is_plain = trial.spec.word_distribution == "uniform" and trial.stream.overlap == 0
    words = None
    if not is_plain:
        words = np.asarray(lda.topic_words(trial.spec, traced(trial.stream)), np.float64)
        words /= words.sum(axis=1, keepdims=True)
    return DataModel.of(settings_of(trial), words)


def held_out_losses(trial: Trial, model: StageModel, objective: Objective) -> np.ndarray:
    """Return the loss of a model on each held-out document of a trial that has a masked position."""
    examples = held_out_examples(trial)
    losses_D = model_losses(limits_of(trial).data, examples, model, objective)
    words_D, document_R = examples.words.sum(axis=1), examples.document
    weight_R = examples.share * words_D[document_R] + examples.word_weight
    weight_D = np.bincount(document_R, weight_R, minlength=len(losses_D))
    return losses_D[weight_D > 0] / weight_D[weight_D > 0]


def held_out_spec(trial: Trial) -> Spec:
    """Return a Spec with room for every query of a trial's documents, shared by as many trials as possible.

    Drawing the documents takes milliseconds, compiling a program for it seconds.
    """
    longest = ROOM * -(-trial.stream.length_max // ROOM)
    return replace(trial.spec, attention="trained", word_query_probability=1.0, shortest=1, longest=longest)


@lru_cache(maxsize=1)
def held_out_examples(trial: Trial) -> Examples:
    """Return the held-out documents of a trial as theory takes them, in double precision."""
    spec = held_out_spec(trial)
    bag = SOURCE(spec, traced(trial.stream)).held_out.attended
    document_R, token_R, share_R, word_R, weight_R = map(np.asarray, bag.queries)
    keys_DxV, words_DxV = (
        np.asarray(array, np.float64)[:, : spec.vocabulary] for array in (bag.count_BxV, bag.target_BxV)
    )
    used = (share_R > 0) | (weight_R > 0)
    return Examples(
        *(keys_DxV, words_DxV[:, 1:], document_R[used], token_R[used], share_R[used].astype(float)),
        *(np.maximum(word_R[used], 1), weight_R[used].astype(float)),
    )
