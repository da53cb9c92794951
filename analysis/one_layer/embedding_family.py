"""Embeddings trained alone beside Theorem 1: the distance of W_E^T W_E to its family, and the loss."""

from typing import Any

import numpy as np
import pandas as pd

from topicjax.store.reader import Run
from topicjax.theory.theorems import relative_residual

from ..frames import column
from ..topic_model import aligned
from .cells import lowest_seeds
from .trained_models import Array, data_model, effective_model, with_weights

ALONE = dict(embedding="trained", value="identity", attention="uniform", attention_biases="absent")
ALL = dict(embedding="trained", value="trained", attention="trained")
FAMILIES = {"theorem1": True, "zero": False}  # b^pred: whether it is Theorem 1's, not Lemma 1's


def embeddings_alone(trials: Any) -> Any:
    """Return the trials of case (ii) of the paper's section 4: nothing is trained but embeddings."""
    return trials[having_all(trials, ALONE)]


def trains_all(trials: Any) -> Array:
    """Return which trials are case (i): embeddings, values and attention are all trained."""
    return having_all(trials, ALL)


def having_all(trials: Any, wanted: dict[str, str]) -> Array:
    """Return which trials have all of these settings."""
    return np.all([trials[name] == value for name, value in wanted.items()], axis=0)


def with_gains(run: Run) -> Any:
    """Return the trials that did not diverge, with `gain` and `bayes_gain`, of the loss that is possible.

    The final held-out loss counts 0 at uniform predictions over all words, and 1 at the best value matrix
    under uniform attention, on the same documents where that is known.
    """
    every: Any = aligned(run).trials
    trials = every[(every["status"] == "ok").to_numpy()]
    uniform, best = column(trials, "line_uniform"), column(trials, "line_stage1")
    own = trials.reindex(columns=["held_out_stage1"]).to_numpy(float)[:, 0]
    best = np.where(np.isfinite(own), own, best)
    gains = {
        name: (uniform - column(trials, source)) / (uniform - best)
        for name, source in (("gain", "final_eval_loss"), ("bayes_gain", "line_bayes"))
    }
    return trials.assign(**gains)


def embedding_rows(run: Run) -> pd.DataFrame:
    """Return one row per trial that trained embeddings alone: settings, residual, gain and final values.

    The residual is relative (see relative_residual), of the family that belongs to the trial's b^pred; NaN
    under cross-entropy and where masked positions are no keys: the theorem is of neither.
    """
    read = lowest_seeds(with_weights(embeddings_alone(with_gains(run))))
    residuals = [residual(run, row) for row in read.to_dict("records")]
    return read.assign(residual=residuals).reset_index(drop=True)


def residual(run: Run, settings: dict[str, Any]) -> float:
    """Return the relative residual of a trial's W_E^T W_E; NaN where no theorem speaks of it."""
    data, bias = data_model(settings), settings["output_bias"]
    is_known = settings["objective"] == "squared" and settings["key_visibility"] == "all"
    if not is_known or data is None or bias not in FAMILIES:
        return np.nan
    matrix = effective_model(run.restore(settings["trial_id"]), settings).E
    return np.nan if matrix is None else relative_residual(data, matrix, FAMILIES[bias])
