"""One-page picture of a trained model: matrices, attention on documents, trajectory, numbers."""

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from topicjax.errors import UserError
from topicjax.experiments.one_layer.settings import DEFAULTS, SOFTMAX, AttentionWeights, make_trial
from topicjax.stages import Array
from topicjax.store.reader import Run
from topicjax.theory.documents import DataModel, sample_queries

from ..pictures import Picture, described, style, written
from ..topic_model import SETTINGS, prepared
from .matrices import MEAN_MATTERS, attention_matrix, heat_map
from .scores import VIEWS, score_trials
from .tables import HEADERS
from .trained_models import (
    EffectiveModel,
    attention,
    colour_limit,
    effective_model,
    optimum_error,
    order_parameters,
)
from .trajectories import trajectory_panels, verdict

PAGE_WIDTH = 7.0  # inches: fits a printed page
DOCUMENTS = 3
DRAWN = 100  # sampled documents to choose from
SHARE = 0.2  # least share of words for a topic to count in a mixture
RANGE = 2.0  # log2: the colour scale of attention ends at 4 times and 1/4 of uniform
TITLE = ("optimizer", "objective", "key_visibility", "learning_rate", "init_scale", "seed")
SCORES = r"attention scores $S = (W^K)^\top W^Q / \sqrt{d_a}$"
NamedValue = tuple[str, str]


def inspect(run: Run, trial_id: str, step: int) -> Picture:
    """Draw one trial on one page, with its weights at this step."""
    return trial_page(run, trial_id, run.restore(trial_id, step), step, topic_words(run, trial_id))


def topic_words(run: Run, trial_id: str) -> Array | None:
    """Compute the word probabilities of each topic (T x Tv) for sampling documents; None if uniform."""
    row = run.trials.set_index("trial_id").loc[trial_id, list(DEFAULTS)]
    if row["word_distribution"] == "uniform" and row["overlap"] == 0:
        return None
    lines = import_module("topicjax.experiments.shared.lines")  # drawn with jax, as in training
    return lines.limits_of(lines.data_of(make_trial(row.to_dict()))).data.topic_word


def trial_page(
    run: Run,
    trial_id: str,
    weights: Mapping[str, Array],
    step: int,
    topic_word: Array | None = None,
) -> Picture:
    """Draw one trial on one page, with these weights."""
    one = prepared(run.select([trial_id]))
    settings = {str(name): value for name, value in one.trials.iloc[0].items()}
    model = effective_model(weights, settings)
    if not all(np.isfinite(matrix).all() for matrix in (model.U, model.S)):
        raise UserError(f"the weights of trial {trial_id} at step {step} are not finite: nothing to draw")
    scores = score_trials(one)
    score = scores.iloc[0]
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 9.6), layout="constrained")
        figure.suptitle(heading(settings, score, step), fontsize=9)
        top, middle, bottom = np.asarray(figure.subfigures(3, 1, height_ratios=[3.0, 2.9, 3.9]), object)
        draw_matrices(model, settings, top)
        documents = draw_documents(model, settings, topic_word, middle)
        left, right = np.asarray(bottom.subfigures(1, 2, width_ratios=[1.65, 1]), object)
        draw_trajectory(one, scores, step, left)
        write_values(listed_values(model, settings, score, one, step), right)
    return Picture(
        figure, f"Trial {trial_id} at step {step}", caption(settings, documents), alt(score, model)
    )


def heading(settings: Mapping[str, Any], score: pd.Series, step: int) -> str:
    """Write the id, step, class and every setting that is not the default."""
    others = [name for name in SETTINGS if name in settings and name not in TITLE]
    others = [name for name in others if settings[name] != DEFAULTS[name]]
    kind = ", ".join(filter(None, (str(score[name]) for name in ("class", "suffix"))))
    lines = [f"trial {settings['trial_id']} at step {step:,}: {kind}", ", ".join(described(settings, TITLE))]
    return "\n".join(lines + textwrap.wrap(", ".join(described(settings, others)), 100))


def draw_matrices(model: EffectiveModel, settings: Mapping[str, Any], figure: SubFigure) -> None:
    """Draw the value matrix, the attention scores and, if there are any, the embeddings."""
    words = int(settings["words_per_topic"])
    axes = figure.subplots(1, 2 if model.E is None else 3)
    name = r"$W^V$" if model.E is None else r"$(W^E)^\top W^V W^E$"
    heat_map(model.U, axes[0], words, colour_limit([(model.U, words)]))
    axes[0].set(title=f"value {name}", xlabel="key token (topic)", ylabel="predicted token (topic)")
    attention_matrix(model.S, axes[1], words, kind=kind_of(settings))
    axes[1].set_title(r"attention scores $S$, eq. (5)" if model.E is not None else SCORES)
    if model.E is not None:
        heat_map(model.E, axes[2], words, colour_limit([(model.E, words)]))
        axes[2].set(title=r"embeddings $(W^E)^\top W^E$", xlabel="token (topic)", ylabel="token (topic)")
    for ax in axes:
        figure.colorbar(ax.images[0], ax=ax, extend="both", location="bottom", aspect=25)


def draw_documents(
    model: EffectiveModel, settings: Mapping[str, Any], topic_word: Array | None, figure: SubFigure
) -> str:
    """Draw attention on three documents; return a sentence on how they were sampled."""
    documents = sample_documents(settings, topic_word)
    axes = np.atleast_1d(figure.subplots(1, len(documents)))
    for place, (keys, ax) in enumerate(zip(documents, axes, strict=True), 1):
        attention_panel(model.S, keys, ax, int(settings["words_per_topic"]), kind_of(settings))
        ax.set_title(f"attention, document {place} ({len(keys)} keys)")
    axes[0].set_ylabel("seen position (by topic)")
    image = axes[0].images[0]
    bar = figure.colorbar(image, ax=axes, extend="both", shrink=0.85, pad=0.01)
    bar.set_ticks([-2, -1, 0, 1, 2], labels=["¼", "½", "1", "2", "4"])
    bar.set_label("times uniform")
    is_uniform = settings["word_distribution"] == "uniform" and settings["overlap"] == 0
    words = "" if is_uniform or topic_word is not None else ", words uniform in their topic"
    return f"Documents: the first {len(documents)} of {DRAWN} samples with a mixture of topics{words}."


def sample_documents(settings: Mapping[str, Any], topic_word: Array | None) -> list[Array]:
    """Sample three documents, preferably with mixed topics; return their visible tokens sorted by topic."""
    data = replace(DataModel.of(settings), infinite_documents=False, topic_word=topic_word)
    drawn = sample_queries(data, DRAWN, seed=0)
    mixed = (drawn.topics >= SHARE).sum(axis=1) > 1
    chosen = np.argsort(~mixed, kind="stable")[:DOCUMENTS]
    counts = drawn.keys[chosen].astype(int)
    return [np.repeat(np.arange(counts.shape[1]), document) for document in counts]


def kind_of(settings: Mapping[str, Any]) -> AttentionWeights:
    """Read how scores become attention weights."""
    return settings.get("attention_weights", SOFTMAX)


def attention_panel(
    S: Array, keys: Array, ax: Axes, words_per_topic: int, kind: AttentionWeights = SOFTMAX
) -> Axes:
    """Draw log2 of the attention between the visible positions, relative to uniform attention.

    Without softmax weights can be negative: these are drawn like zero.
    """
    queries = np.r_[0, keys[keys > 0]]  # a single [MASK]: all of them attend alike
    relative = np.log2(np.maximum(len(keys) * attention(S, keys, queries, kind), 1e-9))
    ax.imshow(relative, cmap="PuOr_r", vmin=-RANGE, vmax=RANGE, interpolation="nearest", aspect="auto")
    for tokens, line, axis in ((keys, ax.axhline, ax.yaxis), (queries, ax.axvline, ax.xaxis)):
        topic = np.where(tokens > 0, (tokens + words_per_topic - 1) // words_per_topic, 0)
        edges = np.flatnonzero(np.diff(topic)) + 1
        for edge in edges:
            line(edge - 0.5, color="0.4", lw=0.4)
        label_topics(topic, edges, axis)
    ax.set_xlabel("attending position (by topic)")
    ax.spines[:].set_visible(True)
    return ax


def label_topics(topic: Array, edges: Array, axis: Any) -> None:
    """Label the topics that have room for their number."""
    bounds = np.r_[0, edges, len(topic)]
    wide = [(a, b) for a, b in pairwise(bounds) if topic[a] and b - a > len(topic) / 15]
    axis.set_ticks([(a + b - 1) / 2 for a, b in wide], [str(topic[a]) for a, _ in wide])
    axis.set_tick_params(length=0)


def draw_trajectory(run: Run, scores: pd.DataFrame, step: int, figure: SubFigure) -> None:
    """Draw norms, order parameters and progress of a run's only trial, and mark the step of the weights."""
    axes = list(figure.subplots(3, 1, sharex=True))
    trajectory_panels(run, scores, scores["trial_id"].iloc[0], axes)
    is_earlier = step < run.trajectories["step"].to_numpy().max()
    marks: set[str] = set()  # labels that earlier panels already explain
    for ax in axes:
        if is_earlier:
            ax.axvline(step, color="0.6", lw=4, alpha=0.4, zorder=0, label="these weights")
        lines, names = ax.get_legend_handles_labels()
        shown = [(line, name) for line, name in zip(lines, names, strict=True) if name not in marks]
        if shown:
            ax.legend(*zip(*shown, strict=True), fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))
        marks |= set(names)


def listed_values(
    model: EffectiveModel, settings: Mapping[str, Any], score: pd.Series, run: Run, step: int
) -> list[NamedValue]:
    """List names and values: classes in three views, losses and lines, order parameters, distances."""
    end = run.trajectories.set_index("step").reindex([step], method="ffill").iloc[0]
    classes = [(f"class ({view})", verdict(score, view)) for view in VIEWS]
    losses = [("held-out loss", "eval_loss"), ("  attention forced uniform", "eval_loss_uniform")]
    lines = [(f"  limit: {name}", f"line_{name}") for name in ("uniform", "stage1", "stage2", "bayes")]
    measured = {name: float(end[column]) for name, column in losses + lines}
    measured |= order_parameters(model, settings) | {"optimum_distance": optimum_error(model.U, settings)}
    known = {name: value for name, value in measured.items() if np.isfinite(value)}
    return [*classes, *((HEADERS.get(name, name), written(value, 4)) for name, value in known.items())]


def write_values(values: list[NamedValue], figure: SubFigure) -> None:
    """Write names and values in two columns."""
    ax = figure.subplots()
    ax.axis("off")
    height = 1 / max(len(values), 22)
    for line, (name, value) in enumerate(values):
        y = 1 - (line + 0.5) * height
        ax.text(0.0, y, name, fontsize=6.5, va="center", transform=ax.transAxes)
        ax.text(1.0, y, value, fontsize=6.5, va="center", ha="right", transform=ax.transAxes)


def caption(settings: Mapping[str, Any], documents: str) -> str:
    """Say what is drawn."""
    kind = kind_of(settings)
    mean = " minus each query's mean over words, which does not change the attention"
    below_zero = "" if kind == SOFTMAX else " Weights below zero are drawn like zero."
    return (
        "Top: trained matrices between token types sorted by topic, [MASK] first and wider; attention scores "
        f"are drawn{'' if kind in MEAN_MATTERS else mean}. Middle: attention "
        f"between the visible positions of documents, sorted by topic, the first column [MASK].{below_zero} "
        f"{documents} "
        "Bottom: the trial's trajectory with its stages marked, and its numbers; distances are relative "
        f"Frobenius distances of the value matrix. Keys: {settings['key_visibility']}."
    )


def alt(score: pd.Series, model: EffectiveModel) -> str:
    """Write the alt text of the page."""
    parts = "value matrix and attention scores" + ("" if model.E is None else " and embeddings")
    return f"Heat maps of {parts}, attention on documents and the trajectory of a {score['class']} trial."
