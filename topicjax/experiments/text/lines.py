"""The unigram line: the loss of predicting every word by how often it occurs, whatever stands around it.

A model whose held-out loss is below this line uses the context of a word.  Frequencies are those of the
windows to train on, every known word counted once more; the loss is that of the held-out masked words.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from topicjax.experiments import Line
from topicjax.experiments.text import train, windows
from topicjax.experiments.text.settings import SPECIAL, make_trial, settings_of, traced
from topicjax.trial import Trial

NAMES = (
    *("corpus", "vocabulary_size", "unknown", "context", "eval_windows"),
    *("p_mask", "p_keep", "p_random"),
)
HELD_OUT = jax.jit(train.held_out_documents, static_argnums=0)


def wanted_lines(trials: Iterable[Trial], known: Sequence[dict[str, Any]]) -> list[Line]:
    """Return the unigram lines of the trials' windows that are not known yet, once each."""
    have = [(entry["settings"], entry["objective"]) for entry in known]
    found: list[Line] = []
    for trial in trials:
        every = settings_of(trial)
        settings, objective = {name: every[name] for name in NAMES}, every["objective"]
        if (settings, objective) not in have:
            have.append((settings, objective))
            found.append(line(settings, objective))
    return found


def line(settings: dict[str, Any], objective: str) -> Line:
    """Return the unigram line of windows with these settings, to be computed."""
    entry = {"settings": settings, "objective": objective}
    return Line(entry, lambda: unigram_line(make_trial(settings), objective))


def unigram_line(trial: Trial, objective: str) -> dict[str, float]:
    """Return the loss of the unigram model on the held-out masked words, and its standard error."""
    spec, own = trial.spec, windows.data(trial.spec).load()
    documents = HELD_OUT(spec, traced(trial.stream), own)
    word_BxN, shown_BxN, masked_BxN, _ = map(np.asarray, documents)
    p_V = unigram(windows.word_counts(own, spec.vocabulary))
    loss_V = (
        -np.log(np.where(p_V > 0, p_V, 1)) if objective == "cross_entropy" else (p_V**2).sum() + 1 - 2 * p_V
    )
    predicted_BxN = masked_BxN & (shown_BxN == 0)
    counts_B = predicted_BxN.sum(axis=1)
    losses_B = np.where(predicted_BxN, loss_V[word_BxN], 0).sum(axis=1)[counts_B > 0] / counts_B[counts_B > 0]
    number = len(losses_B)
    error = losses_B.std(ddof=1) / number**0.5 if number > 1 else np.nan
    return {"unigram": float(losses_B.mean()) if number else np.nan, "unigram_se": float(error)}


def unigram(count_V: np.ndarray) -> np.ndarray:
    """Return the probability of each word by its count, every known word counted once more."""
    more_V = count_V.astype(float) + 1
    more_V[:SPECIAL] = 0
    return more_V / more_V.sum()
