"""Limit lines of topic documents, as reference losses of trials.

Stage lines are optima over the whole population of documents; held-out documents are a finite sample.  So
both optima are also evaluated on the same held-out documents as the trained model, and its losses are
compared with those values.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from topicjax.experiments.shared import bags, lda
from topicjax.theory.document_settings import DATA_SETTINGS, SETTINGS, DocumentSpec, Objective, Stream
from topicjax.theory.documents import DataModel
from topicjax.theory.limits import Limits
from topicjax.theory.stage_models import Examples, StageModel, model_losses
from topicjax.trial import Trial

ROOM = 150  # document capacity is a multiple of this number of words


class Data(NamedTuple):
    """The settings that limit lines depend on besides the objective; all others are at their defaults."""

    spec: DocumentSpec
    stream: Stream


def references(trial: Trial) -> dict[str, float]:
    """Compute the limit lines of a trial's documents under its objective, and their errors."""
    data, objective = data_of(trial), trial.hypers.objective
    return stage_lines(data, objective) | other_lines(data, objective)


def reference_settings(trial: Trial) -> tuple[str, ...]:
    """List the settings of limit lines, the objective last: both objectives share documents."""
    return (*line_settings(trial), "objective")


def line_settings(trial: Trial) -> dict[str, Any]:
    """Return the settings of a trial that its limit lines depend on, besides the objective."""
    is_drawn = trial.spec.word_distribution == "dirichlet"  # then the seed determines the words of the topics
    names = (*DATA_SETTINGS, "eval_documents", *(["seed"] if is_drawn else []))
    every = vars(trial.spec) | trial.stream._asdict()
    return {name: every[name] for name in names}


def data_of(trial: Trial) -> Data:
    """Return the data settings of a trial; trials with equal ones share limit lines."""
    settings = line_settings(trial)
    of_stream = {name: value for name, value in settings.items() if name in Stream._fields}
    of_spec = {name: value for name, value in settings.items() if name not in of_stream}
    return Data(DocumentSpec(**of_spec), Stream(**of_stream))


def stage_lines(data: Data, objective: Objective) -> dict[str, float]:
    """Compute the lines of stages 1 and 2, over all documents and on the held-out ones, and their errors.

    The names are stage1, stage2, held_out_stage1, held_out_stage2, and each of them with _se.  The error of a
    held-out line is the standard error of its distance from the line over all documents.
    """
    lines = limits_of(data).stages(objective)
    models = zip(("stage1", "stage2"), limits_of(data).models(objective), strict=True)
    for name, model in models:
        if model is None:  # theory has no optimum of this stage for these documents
            lines |= {f"held_out_{name}": np.nan, f"held_out_{name}_se": np.nan}
            continue
        losses_D = held_out_losses(data, model, objective)
        count = len(losses_D)
        error = losses_D.std(ddof=1) / count**0.5 if count > 1 else np.nan
        lines[f"held_out_{name}"] = float(losses_D.mean()) if count else np.nan
        lines[f"held_out_{name}_se"] = float(error)
    return lines


def other_lines(data: Data, objective: Objective) -> dict[str, float]:
    """Compute the lines of uniform and Bayes predictions over all documents, and their errors."""
    return limits_of(data).others(objective)


@lru_cache(maxsize=1)  # all lines of a data setting are computed together, for both objectives
def limits_of(data: Data) -> Limits:
    """Set up the limit lines of a data setting; they are computed on first use."""
    spec, stream = data
    words = None
    if spec.word_distribution != "uniform" or stream.overlap:
        words = np.asarray(lda.topic_words(spec, traced(stream)), np.float64)
        words /= words.sum(axis=1, keepdims=True)
    return Limits(DataModel.of(vars(spec) | stream._asdict(), words))


def held_out_losses(data: Data, model: StageModel, objective: Objective) -> np.ndarray:
    """Compute the loss of a model on each held-out document that has a masked position."""
    examples = held_out_examples(data)
    losses_D = model_losses(limits_of(data).data, examples, model, objective)
    words_D, document_R = examples.words.sum(axis=1), examples.document
    weight_R = examples.share * words_D[document_R] + examples.word_weight
    weight_D = np.bincount(document_R, weight_R, minlength=len(losses_D))
    return losses_D[weight_D > 0] / weight_D[weight_D > 0]


@lru_cache(maxsize=1)
def held_out_examples(data: Data) -> Examples:
    """Convert the held-out documents to theory's form, in double precision.

    Drawing them takes milliseconds, compiling seconds: the program can hold every query of documents of
    similar length, so many data settings share it.
    """
    longest = ROOM * -(-data.stream.length_max // ROOM)
    paired = data.stream.pair_strength > 0
    spec = replace(data.spec, word_query_probability=1.0, shortest=1, longest=longest, paired=paired)
    bag = held_out_bag(spec, traced(data.stream))
    document_R, token_R, share_S, word_R, weight_R = map(np.asarray, bag.queries)
    share_R = np.pad(share_S, (0, len(document_R) - len(share_S)))
    keys_DxV, words_DxV = (
        np.asarray(array, np.float64)[:, : spec.vocabulary] for array in (bag.count_BxV, bag.target_BxV)
    )
    used = (share_R > 0) | (weight_R > 0)
    return Examples(
        *(keys_DxV, words_DxV[:, 1:], document_R[used], token_R[used], share_R[used].astype(float)),
        *(np.maximum(word_R[used], 1), weight_R[used].astype(float)),
    )


@jax.jit(static_argnums=0)
def held_out_bag(spec: DocumentSpec, stream: Stream) -> bags.Bag:
    """Draw the held-out documents of a data setting."""
    return lda.make_source(spec, stream, lambda documents: bags.to_bag(spec, stream, documents)).held_out


def traced(stream: Stream) -> Stream:
    """Convert a Stream to the NumPy scalars that programs take."""
    values = stream._asdict().items()
    return stream._replace(**{name: SETTINGS[name].kind.traced(value) for name, value in values})
