"""Limit lines of a data setting: the losses of uniform, stage-1, stage-2 and Bayes predictions.

Letters: D documents, R queries, T topics, W = Tv words, V = W + 1 tokens ([MASK] = 0), C control variates.
Every line is the mean over documents of the mean over masked positions, eq. (1), by Monte Carlo.  Two steps
shrink the standard error without changing the mean.  The expected loss over the hidden words, given a
document's words P and what its masked positions show, replaces the loss of drawn words; and the known means
of |P|^2 and of the entropy of P serve as control variates.
A line that theory does not know is NaN.  For words in pairs these are stage 2, since the best attention would
weigh partners apart from their topic, and Bayes where visible words may be random ones.
"""

from __future__ import annotations

from functools import cached_property
from typing import get_args

import numpy as np
from scipy.special import digamma, entr

from topicjax.errors import UserError
from topicjax.theory.document_settings import Objective
from topicjax.theory.documents import (
    Array,
    DataModel,
    Queries,
    first_documents,
    is_enumerated,
    kept_chances,
    sample_queries,
)
from topicjax.theory.posterior import GIBBS_DOCUMENTS, bayes_prediction, knows_pairs
from topicjax.theory.stage1 import has_diagonal, stage1_value, uniform_attention_loss
from topicjax.theory.stage2 import stage2_model
from topicjax.theory.stage_models import StageModel, examples_of, model_losses

Line = tuple[float, float]  # (value, standard error)
UNKNOWN: Line = (np.nan, np.nan)
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def document_losses(data: DataModel, queries: Queries, prediction_RxW: Array, objective: Objective) -> Array:
    """Compute the expected mean loss over the masked positions of each document (D numbers).

    `prediction_RxW` holds log probabilities (cross-entropy) or the prediction itself (squared).
    """
    kept_R = kept_chances(data, queries)
    own_R = prediction_RxW[np.arange(len(kept_R)), np.maximum(queries.token - 1, 0)]
    other_R = np.einsum("rw,rw->r", queries.words[queries.document], prediction_RxW)
    score_R = np.where(kept_R > 0, kept_R * own_R, 0.0) + (1 - kept_R) * other_R
    if objective == "cross_entropy":
        loss_R = -score_R
    else:
        loss_R = 1 - 2 * score_R + np.einsum("rw,rw->r", prediction_RxW, prediction_RxW)
    size = len(queries.words)
    return np.bincount(queries.document, queries.weight * loss_R, minlength=size)


def _controlled_mean(data: DataModel, queries: Queries, values_D: Array, *known: tuple) -> Line:
    """Estimate mean and standard error with control variates; `known` adds pairs (values, exact mean)."""
    if is_enumerated(data):
        return float(values_D.mean()), 0.0
    word_DxW, size = queries.words, len(queries.words)
    word_share = queries.weight * (queries.token > 0)
    kept_share = queries.weight * kept_chances(data, queries)
    controls = [
        (np.sum(word_DxW**2, axis=1), np.trace(data.second_moment_words())),
        (np.bincount(queries.document, word_share, size), data.p_keep + data.p_random),
        (np.bincount(queries.document, kept_share, size), data.p_keep),
        *known,
    ]
    if data.documents == "lda" and data.topic_word is None and data.pair_strength == 0:
        total = data.alpha * data.topics
        mean = np.log(data.words_per_topic) + digamma(total + 1) - digamma(data.alpha + 1)
        controls.append((entr(word_DxW).sum(axis=1), mean))
    shift_DxC = np.stack([values - mean for values, mean in controls], axis=1)
    design = np.concatenate([np.ones((len(values_D), 1)), shift_DxC], axis=1)
    coefficient = np.linalg.lstsq(design, values_D, rcond=1e-9)[0]
    residual = values_D - design @ coefficient
    error = residual.std(ddof=design.shape[1]) / np.sqrt(len(values_D))
    return float(coefficient[0]), float(error)


def uniform_line(data: DataModel, objective: Objective) -> Line:
    """Compute the exact loss of the uniform prediction over words: ln(Tv), or 1 - 1/(Tv) for squared loss.

    It puts no mass on [MASK], unlike a model with zero weights, whose losses are ln V and 1.
    """
    words = data.num_words
    return (float(np.log(words)) if objective == "cross_entropy" else 1 - 1 / words), 0.0


def stage1_line(data: DataModel, objective: Objective, value: Array, queries: Queries) -> Line:
    """Compute the loss of value = stage1_value(...) with uniform attention; exact for the squared loss."""
    if objective == "squared":
        return uniform_attention_loss(data, value), 0.0
    losses = model_losses(data, examples_of(data, queries), StageModel(value), objective)
    return _controlled_mean(data, queries, losses)


def stage2_line(
    data: DataModel, objective: Objective, model: StageModel, value: Array, queries: Queries
) -> Line:
    """Compute the loss of model = stage2_model(...), given the value matrix of stage 1."""
    examples = examples_of(data, queries)
    losses = model_losses(data, examples, model, objective)
    if objective == "cross_entropy":
        return _controlled_mean(data, queries, losses)
    stage1 = model_losses(data, examples, StageModel(value), objective)
    known = (stage1, uniform_attention_loss(data, value))
    return _controlled_mean(data, queries, losses, known)


def bayes_lines(data: DataModel, queries: Queries, seed: int = 0) -> dict[Objective, Line]:
    """Compute the losses of the posterior predictive (see bayes_prediction for when it is exact)."""
    if not knows_pairs(data):
        return dict.fromkeys(OBJECTIVES, UNKNOWN)
    if data.documents == "lda" and data.topic_word is not None and not data.infinite_documents:
        queries = first_documents(queries, GIBBS_DOCUMENTS)
    chance_RxW = bayes_prediction(data, queries, seed)
    predictions = {"squared": chance_RxW, "cross_entropy": np.log(np.maximum(chance_RxW, 1e-300))}
    losses = {name: document_losses(data, queries, predictions[name], name) for name in OBJECTIVES}
    return {name: _controlled_mean(data, queries, losses[name]) for name in OBJECTIVES}


class Limits:
    """The limit lines of a data setting; documents, models and lines are computed on first use."""

    def __init__(self, data: DataModel, num_documents: int = 6000, seed: int = 0) -> None:
        """Store what to draw; nothing is drawn yet."""
        self.data, self._num_documents, self._seed = data, num_documents, seed
        self._models: dict[Objective, tuple[StageModel, StageModel | None]] = {}

    def models(self, objective: Objective) -> tuple[StageModel, StageModel | None]:
        """Find the optimal models of stages 1 and 2; None if theory does not know that of stage 2."""
        if objective not in OBJECTIVES:
            raise UserError(
                f"theory has no limit lines for objective {objective}; it has for {', '.join(OBJECTIVES)}"
            )
        if objective not in self._models:
            has_pairs = self.data.pair_strength > 0
            fitted_to = self._fit_queries if objective == "cross_entropy" else None
            values = [
                stage1_value(self.data, objective, fitted_to, by_topic)
                for by_topic in ((False, True) if has_diagonal(self.data) and not has_pairs else (False,))
            ]
            stage2 = None if has_pairs else stage2_model(self.data, objective, values, self._queries)
            self._models[objective] = StageModel(values[0]), stage2
        return self._models[objective]

    def stages(self, objective: Objective) -> dict[str, float]:
        """Compute the stage1 and stage2 losses and their standard errors `<name>_se` (0 where exact)."""
        stage1, stage2 = self.models(objective)
        given = self.data, objective
        return numbers(
            stage1=stage1_line(*given, stage1.value, self._queries),
            stage2=UNKNOWN if stage2 is None else stage2_line(*given, stage2, stage1.value, self._queries),
        )

    def others(self, objective: Objective) -> dict[str, float]:
        """Compute the uniform and bayes losses and their standard errors, which takes longer."""
        return numbers(uniform=uniform_line(self.data, objective), bayes=self._bayes[objective])

    @cached_property
    def _queries(self) -> Queries:
        return sample_queries(self.data, self._num_documents, self._seed)

    @cached_property
    def _fit_queries(self) -> Queries:
        """Draw a fitting set, separate from the documents on which losses are evaluated."""
        return sample_queries(self.data, self._num_documents, self._seed + 1)

    @cached_property
    def _bayes(self) -> dict[Objective, Line]:
        return bayes_lines(self.data, self._queries, self._seed)


def numbers(**lines: Line) -> dict[str, float]:
    """Return the values of lines under their names, and their standard errors under `<name>_se`."""
    values = {name: line[0] for name, line in lines.items()}
    return values | {f"{name}_se": line[1] for name, line in lines.items()}


def stage_lines(
    data: DataModel, objective: Objective, num_documents: int = 6000, seed: int = 0
) -> dict[str, float]:
    """Compute the stage1 and stage2 losses and their standard errors `<name>_se` (0 where exact)."""
    return Limits(data, num_documents, seed).stages(objective)


def limit_lines(
    data: DataModel, objective: Objective, num_documents: int = 6000, seed: int = 0
) -> dict[str, float]:
    """Compute the uniform, stage1, stage2 and bayes losses, and their standard errors `<name>_se`."""
    limits = Limits(data, num_documents, seed)
    return limits.stages(objective) | limits.others(objective)
