"""Make scored trials for maps, and read panels, colours, texts and ticks back from a picture."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from topicjax.analysis.one_layer.scores import VIEWS
from topicjax.analysis.pictures import Picture
from topicjax.analysis.topic_model import CLASS_COLOURS

SCORES = ("theta", "theta_reversed", "log_lag", "onset_v", "onset_attention")


def trial(
    kind: str = "two-stage", theta: float = 1.0, topical: bool = True, **changed: Any
) -> dict[str, Any]:
    """Make a scored trial of this class in every view."""
    settings = dict(seed=0, objective="squared", optimizer="sgd", learning_rate=1.0, init_scale=0.1)
    row: dict[str, Any] = settings | dict(a_topic_end=1.0 if topical else 0.0)
    for end in VIEWS.values():
        row |= {name + end: np.nan if kind == "diverged" else theta for name in SCORES}
        row["class" + end] = kind
    return row | changed


def scores_of(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(list(rows))


def panels(picture: Picture) -> list[Axes]:
    """List the panels of a picture, without colour bars."""
    return [ax for ax in picture.figure.axes if ax.get_label() != "<colorbar>"]


def colour_of(kind: str) -> tuple[float, ...]:
    return tuple(np.round(to_rgb(CLASS_COLOURS[kind]), 6))


def words(ax: Axes) -> dict[tuple[float, float], str]:
    return {text.get_position(): text.get_text() for text in ax.texts}


def ticks(ax: Axes, axis: str) -> list[str]:
    return [tick.get_text() for tick in getattr(ax, f"get_{axis}ticklabels")()]
