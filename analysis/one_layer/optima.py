"""How near a trained value matrix is to what theory predicts."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from topicjax.theory.documents import DataModel
from topicjax.theory.stage1 import ridge_path, uniform_attention_optimum

from .trained_models import (
    Array,
    EffectiveModel,
    block_share,
    data_model,
    relative_error,
)

Measured = tuple[str, float]  # "error" or "blocks", and how much


def optimum(settings: Mapping[Any, Any]) -> Array | None:
    """Return the W^V of least squared loss under uniform attention, for the trial's documents and L2.

    None where it is not known: cross-entropy, biases, topics that are not uniform and disjoint.
    """
    data = data_model(settings)
    has_bias = settings["output_bias"] != "zero" or settings["attention_biases"] == "trained"
    if settings["objective"] != "squared" or has_bias or data is None:
        return None
    return optimum_of_documents(data, float(settings["l2"]))


@cache
def optimum_of_documents(data: DataModel, l2: float) -> Array:
    """Return the optimum for documents of one kind; many trials ask for the same."""
    return ridge_path(data, l2) if l2 > 0 else uniform_attention_optimum(data)


def optimum_error(value: Array, settings: Mapping[Any, Any]) -> float:
    """Return the relative distance of a value matrix to the optimum; NaN if that is not known.

    Where [MASK] is never a key its column has no effect and does not count.
    """
    best = optimum(settings)
    if best is None:
        return np.nan
    first = 1 if settings["key_visibility"] == "unmasked" else 0
    return relative_error(value[:, first:], best[:, first:])


def measured_value(model: EffectiveModel, settings: Mapping[str, Any]) -> Measured:
    """Return the error of a value matrix against its optimum or, where there is none, its blocks."""
    if optimum(settings) is None:
        return "blocks", block_share(model.U, int(settings["words_per_topic"]))
    return "error", optimum_error(model.U, settings)


def measured_text(kind: str, *values: float) -> str:
    """Return an error or a share of blocks in words, or the range of several."""
    texts = [f"{value:.2f}" if kind == "error" else f"{100 * value:.0f}" for value in sorted(values)]
    span = texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"
    return f"{kind} {span}" + (" %" if kind == "blocks" else "")
