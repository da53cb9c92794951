"""Encoders that were trained here on text: one of a run, and the same at its start."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from topicjax.corpora.corpus import Corpus, load_corpus
from topicjax.errors import UserError
from topicjax.experiments import load_experiment, trial_settings
from topicjax.probe.encoders import word_attention
from topicjax.probe.models import Model
from topicjax.store.reader import Run, load

EXPERIMENT = "text"
UNKNOWN = 1  # the number of [UNK]


def trained_encoder(folder: Path, trial_id: str | None) -> Iterator[Model]:
    """Yield an encoder of a run, as it was trained and as it began; without an id, that of least loss."""
    run = load(folder)
    if run.experiment != EXPERIMENT:
        raise UserError(f"{folder} holds trials of {run.experiment}; allowed: those of {EXPERIMENT}")
    found = run.find(trial_id) if trial_id is not None else best_trial(run)
    trials = trial_settings(EXPERIMENT)
    row = run.trials.set_index("trial_id").loc[found]
    settings = {name: value for name, value in row.to_dict().items() if name in trials.settings}
    corpus = as_read(load_corpus(settings["corpus"]), settings["vocabulary_size"], settings["unknown"])
    experiment, (spec, stream, hypers) = load_experiment(EXPERIMENT), trials.make_trial(settings)
    start = experiment.init(spec, trials.traced(stream), trials.traced(hypers))
    first = experiment.weights(spec, start)
    sizes = f"{settings['layers']} layers x {settings['heads']} heads, width {settings['width']}"
    what = (
        f"masked language model, trained here: {sizes}, {run.snapshot_step(found):,} steps on {corpus.name}"
    )
    yield encoder_model(f"encoder {found[:6]}", what, True, settings, run.restore(found), corpus)
    control = f"control: encoder {found[:6]} before its first step"
    yield encoder_model(f"encoder {found[:6]}, start", control, False, settings, first, corpus)


def best_trial(run: Run) -> str:
    """Return the finite trial of least held-out loss."""
    losses = run.trials.loc[run.trials["status"] == "ok"].set_index("trial_id")["final_eval_loss"]
    if losses.empty:
        raise UserError(f"{run.folder} has no finished trial that is finite")
    return str(losses.idxmin())


def as_read(corpus: Corpus, size: int, unknown: str) -> Corpus:
    """Return a corpus as a model of so many words reads it: rarer words are [UNK], or left out."""
    ids = np.where(np.asarray(corpus.ids) < size, corpus.ids, UNKNOWN)
    vocabulary = corpus.vocabulary[:size]
    if unknown == "shown":
        return corpus._replace(ids=ids, vocabulary=vocabulary)
    stays = ids != UNKNOWN
    before = np.concatenate([[0], np.cumsum(stays)])
    return corpus._replace(ids=ids[stays], ends=before[np.asarray(corpus.ends)], vocabulary=vocabulary)


def encoder_model(
    name: str,
    what: str,
    is_trained: bool,
    settings: Mapping[str, Any],
    weights: Mapping[str, Any],
    corpus: Corpus,
) -> Model:
    """Return one of our encoders, which reads words as they are."""
    if settings["embedding"] == "one_hot":
        raise UserError(f"{name} has one-hot embeddings; allowed: trained or random ones")
    on_device = jax.device_put(dict(weights))
    program = jax.jit(partial(word_attention, dict(settings)))
    most = weights["W_P"].shape[1] if "W_P" in weights else np.inf

    def attend(words_BxW: np.ndarray) -> np.ndarray:
        if words_BxW.shape[1] > most:
            raise UserError(f"{name} reads {most} words; allowed: --words {most} or fewer")
        return np.asarray(program(on_device, words_BxW))

    is_known_V = np.arange(len(corpus.vocabulary)) > UNKNOWN
    embedding_VxD, never = np.asarray(weights["W_E"]).T, np.zeros(len(is_known_V), bool)
    return Model(name, what, is_trained, corpus, is_known_V, embedding_VxD, attend, never)
