"""Compare embeddings trained alone with Theorem 1, and with models whose parts are all trained."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topicjax.errors import counted
from topicjax.store.reader import Run
from topicjax.theory.document_settings import DATA_SETTINGS
from topicjax.theory.documents import DataModel
from topicjax.theory.theorems import relative_residual

from ..frames import Array, Frame, column, once_per_run, varying
from ..pictures import WIDTH, Picture, label, sentences, style
from ..topic_model import aligned
from .cells import lowest_seeds
from .seed_rows import MEASURED, MOST_ROWS, dots, draw_seeds, label_rows, row_text, rows_of, telling_apart
from .trained_models import data_model, effective_model, with_weights

PREDICTED: dict[str, Any] = dict(color="black", ls="--", lw=0.9)
BAYES: dict[str, Any] = dict(color="black", ls="", marker="*", ms=6, mfc="white", zorder=2)
CASES = {"embeddings alone": MEASURED, "all parts trained": "#D55E00"}
HOW = ("optimizer", "learning_rate", "steps", "batch_size")  # settings that both cases should share
LIFT = 0.14  # vertical offset of a case from the middle of its row
ALONE = dict(embedding="trained", value="identity", attention="uniform", attention_biases="absent")
ALL = dict(embedding="trained", value="trained", attention="trained")
FAMILIES = {"theorem1": True, "zero": False}  # b^pred: True for Theorem 1's family, False for Lemma 1's


def theorem1_equations(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw residuals of Theorem 1's equations and blocks of W_E^T W_E, a row per cell; squared loss."""
    frame: Frame = embedding_rows(run)
    frame = frame[frame["residual"].notna()].reset_index(drop=True)
    names = telling_apart(frame)
    places, rows = rows_of(frame, names)
    frame, places, rows = frame[places < MOST_ROWS], places[places < MOST_ROWS], rows[:MOST_ROWS]
    heights = block_heights(frame)
    with style():
        figure = Figure(figsize=(WIDTH, 1.1 + 0.36 * len(rows)))
        left, right = figure.subplots(1, 2, sharey=True)
        draw_seeds(left, places, frame["residual"].to_numpy())
        left.set_xlabel("relative residual")
        left.axvline(1, color="0.6", lw=0.8)
        left.set_xscale("log")
        draw_seeds(right, places, frame["final_e_block"].to_numpy())
        for height in heights:
            right.axvline(height, **PREDICTED)
        right.set_xlim(0, 1.15 * max(*heights, frame["final_e_block"].max()))
        right.set_xlabel("$W_E^T W_E$: same topic - others")
        label_rows((left, right), [row_text(row) for row in rows])
        ends = [dots(), Line2D([], [], label="uniform blocks, from Theorem 1", **PREDICTED)]
        figure.legend(handles=ends, loc="outside lower center", ncols=2)
    return Picture(
        figure,
        "Embeddings trained alone, compared with Theorem 1",
        equations_caption(frame, heights),
        f"Residuals of Theorem 1's equations and blocks of {counted(len(rows), 'cell')}, each seed a dot.",
    )


def block_heights(frame: Frame) -> list[float]:
    """Compute the same-topic entries of uniform blocks in Theorem 1's family: 1 / ((1 - (1 - p_c) p_m) v)."""
    models = [DataModel.of(row) for row in frame.to_dict("records")]
    return sorted({1 / (data.survival * data.words_per_topic) for data in models})


def equations_caption(frame: Frame, heights: Sequence[float]) -> str:
    """Say what the axes mean, and the range of residuals on infinite and finite documents."""
    infinite = frame["infinite_documents"].to_numpy(bool)
    predicted = " or ".join(f"{height:.3f}" for height in heights)
    residuals = {kind: frame["residual"][kept] for kind, kept in ((True, infinite), (False, ~infinite))}
    parts = {
        "Left: the largest violation of Theorem 1's equations (without its bias: of Lemma 1's) by W_E^T W_E; "
        "0 is a member of the family, 1 (grey line) is as far from it as a matrix of zeros.": True,
        f"Infinite documents: {span(residuals[True])} over {counted(int(infinite.sum()), 'trial')}; the "
        "limit of float32 is near 1e-6.": infinite.any(),
        f"Finite documents: {span(residuals[False])} over {counted(int((~infinite).sum()), 'trial')}; steps "
        "are noisy there, and the theorem holds for infinite documents.": not infinite.all(),
        "Right: mean dot product of words of one topic minus that of words of different topics.  Theorem 1 "
        f"fixes the sum over a topic: {predicted} if all its words have the same share, less if the word "
        "itself has more, as after large initial embeddings.": True,
    }
    return sentences(parts)


def span(values: Any) -> str:
    """Write the smallest and the largest number."""
    return f"{values.min():.2g} to {values.max():.2g}"


def embedding_cases(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw gains and blocks of embeddings trained alone and of fully trained models, by objective."""
    frame: Frame = with_gains(run)
    is_alone = np.isin(frame["trial_id"], embeddings_alone(frame)["trial_id"])
    frame = frame.assign(case=np.where(is_alone, "embeddings alone", "all parts trained"))
    frame = frame[is_alone | trains_all(frame)].reset_index(drop=True)
    names = varying(frame, (*DATA_SETTINGS, "embedding_scale"))
    places, rows = rows_of(frame, names)
    objectives = sorted(set(frame["objective"]), reverse=True)
    with style():
        figure = Figure(figsize=(WIDTH, 2 * (0.7 + 0.4 * len(rows)) + 0.4))
        axes = figure.subplots(2, len(objectives), sharey=True, squeeze=False)
        for column, objective in enumerate(objectives):
            chosen = (frame["objective"] == objective).to_numpy()
            draw_cases(axes[:, column], frame[chosen], places[chosen])
            axes[0, column].set_title(label(objective))
        for line in axes:
            label_rows(line, [row_text(row) for row in rows])
        ends = [dots(colour, case) for case, colour in CASES.items()]
        figure.legend(
            handles=[*ends, Line2D([], [], label="Bayes", **BAYES)], loc="outside lower center", ncols=3
        )
    return Picture(
        figure,
        "Embeddings alone, or all parts trained",
        cases_caption(frame, places, objectives),
        f"Gains in loss and blocks of embeddings in {counted(len(rows), 'row')}, both cases in each.",
    )


def draw_cases(axes: Sequence[Axes] | Array, frame: Frame, places: Array) -> None:
    """Draw the gains and, below, the blocks of both cases in the rows of one objective."""
    for (case, colour), lift in zip(CASES.items(), (LIFT, -LIFT), strict=True):
        own = (frame["case"] == case).to_numpy()
        draw_seeds(axes[0], places[own], frame["gain"].to_numpy()[own], colour, lift)
        draw_seeds(axes[1], places[own], frame["final_e_block"].to_numpy()[own], colour, lift)
    first = np.unique(places, return_index=True)[1]
    axes[0].plot(frame["bayes_gain"].to_numpy()[first], -places[first], **BAYES)
    axes[0].axvline(1, color="0.6", lw=0.8)
    axes[0].set_xlabel("gain in loss\n(1: best uniform attention)")
    axes[1].axvline(0, color="0.6", lw=0.8)
    axes[1].set_xlabel("$W_E^T W_E$: same topic - others")


def cases_caption(frame: Frame, places: Array, objectives: Sequence[str]) -> str:
    """Say what a gain is, and which share of the full gain embeddings alone reach, by objective."""
    sides = {case: (frame["case"] == case).to_numpy() for case in CASES}
    shares = []
    for objective in objectives:
        chosen = (frame["objective"] == objective).to_numpy()
        medians = [
            pd.Series(frame["gain"].to_numpy()[chosen & own]).groupby(places[chosen & own]).median()
            for own in sides.values()
        ]
        share = (100 * medians[0] / medians[1]).dropna()
        ends = sorted({f"{end:.0f}" for end in (share.min(), share.max())}, key=float) if len(share) else []
        shares += [f"{label(objective)} {' to '.join(ends)} %"] if ends else []
    lowest = float(frame["final_e_block"].min())
    others = int((frame["final_e_block"] <= 0).sum())
    apart = [
        label(name) for name in HOW if not set.intersection(*({*frame[name][own]} for own in sides.values()))
    ]
    parts = {
        "Gain in final held-out loss: 0 for uniform predictions over all words, 1 (grey line) for the best "
        f"value matrix under uniform attention; {counted(len(frame), 'trial')}, a dot each, tick: median.": 1,
        "Gain of embeddings alone as a share of the gain of all parts on the same documents: "
        f"{', '.join(shares)} (medians, over rows with both).": shares,
        f"The cases also differ in {' and '.join(apart)}.": apart,
        f"Same-topic dot products are larger in every trial, by at least {lowest:.2g}.": not others,
        f"In {counted(others, 'trial')} same-topic dot products are not larger.": others,
    }
    return sentences(parts)


def embeddings_alone(trials: Any) -> Any:
    """Select the trials of case (ii) of the paper's section 4: only embeddings are trained."""
    return trials[having_all(trials, ALONE)]


def trains_all(trials: Any) -> Array:
    """Mask the trials of case (i): embeddings, values and attention are all trained."""
    return having_all(trials, ALL)


def having_all(trials: Any, wanted: dict[str, str]) -> Array:
    """Mask the trials that have all of these settings."""
    return np.all([trials[name] == value for name, value in wanted.items()], axis=0)


def with_gains(run: Run) -> Any:
    """Add `gain` and `bayes_gain` to the trials that did not diverge.

    A gain is 0 at uniform predictions over all words, and 1 at the best value matrix under uniform attention,
    on the same held-out documents where that is known.
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


@once_per_run
def embedding_rows(run: Run) -> pd.DataFrame:
    """Tabulate the trials that trained embeddings alone: settings, residual, gain and final values.

    The residual is relative (see relative_residual), for the family of the trial's b^pred.  It is NaN under
    cross-entropy and where masked positions are not keys, because the theorem covers neither.
    """
    read = lowest_seeds(with_weights(embeddings_alone(with_gains(run))))
    residuals = [residual(run, row) for row in read.to_dict("records")]
    return read.assign(residual=residuals).reset_index(drop=True)


def residual(run: Run, settings: dict[str, Any]) -> float:
    """Compute the relative residual of a trial's W_E^T W_E; NaN where no theorem covers it."""
    data, bias = data_model(settings), settings["output_bias"]
    is_known = settings["objective"] == "squared" and settings["key_visibility"] == "all"
    if not is_known or data is None or bias not in FAMILIES:
        return np.nan
    matrix = effective_model(run.restore(settings["trial_id"]), settings).E
    return np.nan if matrix is None else relative_residual(data, matrix, FAMILIES[bias])
