"""Matrices inside trained models, for the page: topic blocks of every trial, token matrices of some."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from topicjax.errors import UserError
from topicjax.store.files import StoreError
from topicjax.store.reader import Run

from ..frames import Array
from .trained_models import EffectiveModel, attention, effective_model, has_disjoint_topics, with_weights
from .trial_page import sample_documents

MASK = "[MASK]"
FLOOR = 2.0**-6  # attention below this share of uniform is drawn like it


def topic_blocks(
    run: Run, scores: pd.DataFrame, trial_ids: Sequence[str]
) -> dict[str, dict[str, pd.DataFrame]]:
    """Average the value matrix and the attention scores over pairs of topics, T x T."""
    return {
        trial_id: {
            "W^V by topic": block_means(model.U, words, "predicted topic", "key topic"),
            "scores by topic": block_means(centred(model.S), words, "seen topic", "attending topic"),
        }
        for trial_id, model, words, _ in models(run, trial_ids)
    }


def token_matrices(
    run: Run, scores: pd.DataFrame, trial_ids: Sequence[str]
) -> dict[str, dict[str, pd.DataFrame]]:
    """Return the value matrix and the scores between tokens, and the attention within one document."""
    found = {}
    for trial_id, model, words, settings in models(run, trial_ids):
        found[trial_id] = {
            "W^V": between_tokens(model.U, words, "predicted", "key"),
            "attention scores": between_tokens(centred(model.S), words, "seen", "attending"),
        }
        if has_disjoint_topics(settings):
            name = "log2(attention / uniform) on a document"
            found[trial_id][name] = on_document(model, settings, words)
    return found


def models(
    run: Run, trial_ids: Sequence[str]
) -> Iterator[tuple[str, EffectiveModel, int, Mapping[str, Any]]]:
    """Yield (trial id, model, words per topic, settings) of the trials with weights that can be read."""
    rows = with_weights(run.trials).set_index("trial_id", drop=False)
    for trial_id in trial_ids:
        if trial_id not in rows.index:
            continue
        settings = {str(name): value for name, value in rows.loc[trial_id].items()}
        try:
            model = effective_model(run.restore(trial_id), settings)
        except (StoreError, UserError):  # of one trial, say: its snapshot is damaged
            continue
        if np.isfinite(model.U).all() and np.isfinite(model.S).all():
            yield trial_id, model, int(settings["words_per_topic"]), settings


def centred(S: Array) -> Array:
    """Subtract each query's mean over word keys, on which the softmax does not depend."""
    return S - S[1:].mean(axis=0, keepdims=True)


def block_means(matrix: Array, words_per_topic: int, rows: str, columns: str) -> pd.DataFrame:
    """Average the entries between words over pairs of topics."""
    topics = (len(matrix) - 1) // words_per_topic
    blocks = matrix[1:, 1:].reshape(topics, words_per_topic, topics, words_per_topic).mean(axis=(1, 3))
    names = [str(topic + 1) for topic in range(topics)]
    return pd.DataFrame(blocks, pd.Index(names, name=rows), pd.Index(names, name=columns))


def between_tokens(matrix: Array, words_per_topic: int, rows: str, columns: str) -> pd.DataFrame:
    """Label a matrix between tokens with their topics; [MASK] comes first."""
    names = [topic_of(token, words_per_topic) for token in range(len(matrix))]
    return pd.DataFrame(matrix, pd.Index(names, name=rows), pd.Index(names, name=columns))


def on_document(model: EffectiveModel, settings: Mapping[str, Any], words_per_topic: int) -> pd.DataFrame:
    """Compute the attention that one position pays to another in a document, relative to uniform attention.

    The document is the first of a sample that mixes topics.  Rows and columns are its distinct tokens.
    """
    keys = sample_documents(settings, None)[0]
    tokens, first = np.unique(keys, return_index=True)
    queries = np.union1d([0], tokens)
    share = len(keys) * attention(model.S, keys, queries)[first]
    names = [pd.Index([topic_of(token, words_per_topic) for token in own]) for own in (tokens, queries)]
    seen, attending = names[0].rename("seen"), names[1].rename("attending")
    return pd.DataFrame(np.log2(np.maximum(share, FLOOR)), seen, attending)


def topic_of(token: int, words_per_topic: int) -> str:
    """Return the number of a word's topic, or [MASK]."""
    return str((token + words_per_topic - 1) // words_per_topic) if token else MASK
