"""Attention of trained models beside theory: how words weigh each kind of key, and the exact loss of that.

For the squared loss on infinite documents of tau disjoint uniform topics, one-hot embeddings, no biases.
"""

from collections.abc import Mapping
from functools import cache
from math import comb
from typing import Any

import numpy as np
import pandas as pd

from topicjax.experiments.one_layer.settings import MEMBER_SETTINGS
from topicjax.store.reader import Run
from topicjax.theory.documents import DataModel
from topicjax.theory.stage2 import attention_loss, best_symmetric_attention, optimal_attention
from topicjax.theory.theorems import lemma1_entries, lemma1_member, theorem3_interval

from .cells import lowest_seeds
from .trained_models import (
    Array,
    effective_model,
    has_data_model,
    pair_kinds,
    with_weights,
)

MOST_SUBSETS = 1000  # of topics: the loss is a sum over all of them
KNOWN = dict(
    attention="trained",
    embedding="one_hot",
    objective="squared",
    documents="tau",
    infinite_documents=True,
    output_bias="zero",
    attention_biases="absent",
)
OF_FROZEN_VALUES = (
    *("assumed", "assumed_missed", "best_average", "best_topic", "best_self", "best_mask"),
    *("best_loss", "uniform_loss"),
)


def with_exact_loss(trials: Any) -> Any:
    """Return the trials with stored weights whose loss over all documents is known."""
    known = with_weights(trials)
    for name, value in KNOWN.items():
        known = known[known[name] == value]
    known = known[has_data_model(known) & (known["topics"] > 1) & (known["words_per_topic"] > 1)]
    few = [
        comb(*sizes) <= MOST_SUBSETS
        for sizes in known[["topics", "topics_per_document"]].itertuples(index=False)
    ]
    return known[np.array(few, bool)]


def attention_rows(run: Run) -> pd.DataFrame:
    """Return one row per trial whose exact loss is known: its settings, measured weights, and theory's.

    weight_topic is alpha, weight_self beta and weight_average alpha' (names of theory: best_*, assumed).
    missed is the loss above the best attention's, in units of what that gains over uniform attention.
    """
    read = lowest_seeds(with_exact_loss(run.trials))
    rows = []
    for row in read.to_dict("records"):
        data = DataModel.of(row)
        model = effective_model(run.restore(row["trial_id"]), row)
        weight = np.exp(model.S - model.S.max(axis=0)).T  # query x key
        loss = attention_loss(data, model.U, weight)
        theory = theory_of(data, *member(row)) if row["value"] == "blocks" else without_theory(data)
        rows.append(
            measured_weights(weight, data.words_per_topic)
            | theory
            | dict(exact_loss=loss, missed=missed(loss, theory["best_loss"], theory["uniform_loss"]))
        )
    return read.reset_index(drop=True).join(pd.DataFrame(rows))


def missed(loss: float, least: float, uniform: float) -> float:
    """Return a loss above the least in units of what that gains; NaN if it gains nothing (one topic)."""
    return (loss - least) / (uniform - least) if uniform - least > 1e-12 else np.nan


def member(settings: Mapping[Any, Any]) -> tuple[float, float, float]:
    """Return which member of Lemma 1's family W^V is frozen at; runs of older versions have one only."""
    shift, own, random = (float(settings.get(name, 0.0)) for name in MEMBER_SETTINGS)
    return shift, own, random


def has_uniform_blocks(trials: Any) -> Array:
    """Return True where W^V, if it is frozen in Lemma 1's family, treats the words of a topic alike."""
    parts = trials.reindex(columns=list(MEMBER_SETTINGS[1:])).fillna(0.0).to_numpy(float)
    return (trials["value"] != "blocks").to_numpy() | (parts == 0).all(axis=1)


def measured_weights(weight_VxV: Array, words_per_topic: int) -> dict[str, float]:
    """Return how words weigh kinds of keys, beside the mean word of another topic: medians over the words."""
    words = weight_VxV[1:, 1:]
    own, same, other = pair_kinds(len(words), words_per_topic)
    unit = np.where(other, words, 0).sum(axis=1) / other.sum(axis=1)
    alpha = np.where(same, words, 0).sum(axis=1) / same.sum(axis=1) / unit
    beta = words[own] / unit
    average = ((words_per_topic - 1) * alpha + beta) / words_per_topic
    kinds = dict(average=average, topic=alpha, self=beta, mask=weight_VxV[1:, 0] / unit)
    return {f"weight_{name}": float(np.median(values)) for name, values in kinds.items()}


def theorem3(data: DataModel) -> tuple[float, ...]:
    """Return Theorem 3's bounds on alpha'; none if its conditions on masking, sizes or keys fail."""
    least_words = (1 / data.survival + 1) ** 2 + 1  # Assumption 3; Assumption 4 is the next line
    masking = data.p_mask < 0.5 and 0 < data.p_keep < 0.5 and np.isclose(data.p_keep, data.p_random)
    sizes = data.words_per_topic > least_words and data.topics_per_document > 1
    return theorem3_interval(data) if masking and sizes and data.key_visibility == "all" else ()


def without_theory(data: DataModel) -> dict[str, float]:
    """Return what theory says if W^V is not frozen at a known member: Theorem 3's bounds alone."""
    lower, upper = theorem3(data) or (np.nan, np.nan)
    return dict(lower=lower, upper=upper) | dict.fromkeys(OF_FROZEN_VALUES, np.nan)


@cache
def theory_of(data: DataModel, shift: float, own: float, random: float) -> dict[str, float]:
    """Return the best attention for a frozen W^V: of Assumption 2's kind, and with [MASK] free as well.

    Assumption 2's is known for uniform blocks, where alpha and beta alone do not matter.  Members with a
    random part treat words differently: of them only the loss of uniform attention is known, Lemma 1's.
    """
    found = without_theory(data)
    size = data.num_words + 1
    mask, different, same, word = lemma1_entries(*data.sizes_and_masking, shift, own)
    value = lemma1_member(data, np.r_[0.0, np.full(size - 1, different)], (word - same) * np.eye(size))
    uniform = attention_loss(data, value, np.ones((size, size)), alike=True)
    if random:
        return found | dict(uniform_loss=uniform)
    weights, least = best_symmetric_attention(data, value)
    found |= dict(
        best_average=weights.average(data.words_per_topic),
        best_mask=weights.mask if data.key_visibility == "all" else np.nan,
        best_loss=least,
        uniform_loss=uniform,
    )
    if own:
        return found | dict(best_topic=weights.alpha, best_self=weights.beta)
    average, assumed = optimal_attention(data, (mask, different, same))
    return found | dict(assumed=average, assumed_missed=missed(assumed, least, uniform))
