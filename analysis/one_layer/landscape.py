"""Draw the exact loss over Assumption 2's (alpha, beta), with trained models as points.

A word query weighs its own token by beta, other words of its topic by alpha, everything else by 1.
A trained model has alpha = exp(a_topic) and beta = exp(a_topic + a_self).  These are differences of mean
scores over word queries, so the weights are geometric means of ratios.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topicjax.errors import UserError, counted
from topicjax.experiments.one_layer.settings import MEMBER_SETTINGS
from topicjax.store.reader import Run
from topicjax.theory.document_settings import DATA_SETTINGS
from topicjax.theory.documents import DataModel
from topicjax.theory.stage1 import uniform_attention_optimum
from topicjax.theory.stage2 import attention_landscape, optimal_attention
from topicjax.theory.theorems import lemma1_entries

from ..frames import Array, Frame, varying
from ..pictures import WIDTH, Picture, described, evenly, label, sentences, style
from ..topic_model import CLASS_COLOURS, uses_softmax
from .attention_theory import has_uniform_blocks, member, theorem3
from .scores import classes_of
from .trained_models import data_model, has_data_model

MARKERS = {"squared": "o", "cross_entropy": "^"}
BEST: dict[str, Any] = dict(color="black", ls="--", lw=0.9)
BOUND: dict[str, Any] = dict(color="black", ls=":", lw=1.1)
MINIMUM: dict[str, Any] = dict(color="black", ls="", marker="*", ms=9, mfc="white", zorder=3)
UNIFORM: dict[str, Any] = dict(color="black", ls="", marker="+", ms=13, mew=1.0, zorder=5)
Ranges = tuple[tuple[float, float], tuple[float, float]]  # of alpha and of beta
LEVELS = 10.0 ** np.arange(-5, 0.1, 0.5)
RESOLUTION = 201
MOST_LANDSCAPES = 4  # per run
MOST_POINTS = 2000  # per landscape; more would hide each other
WIDEST = (1e-3, 1e5)  # largest range of an axis, whatever the points


@dataclass(frozen=True)
class LandscapeDocuments:
    """The documents of a landscape, its minimum, and how these documents differ from those of the trials."""

    data: DataModel  # infinite documents of tau topics
    entries: tuple[float, float, float]  # (W_i0, W_diff, W_same) of the frozen value matrix
    average: float  # alpha' at the minimum
    least: float  # loss at the minimum
    sentence: str


def points(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Select trials with softmax attention; add weight_topic (alpha), weight_self (beta) and class."""
    trials: Frame = run.trials.assign(**{"class": classes_of(scores, run.trials["trial_id"].tolist())})
    trials = trials[(trials["attention"] == "trained") & uses_softmax(trials)]
    topic, own = (trials[f"final_{name}"].to_numpy(float) for name in ("a_topic", "a_self"))
    is_placed = (trials["status"] == "ok").to_numpy() & np.isfinite(topic + own)
    topic, own = np.where(is_placed, topic, np.nan), np.where(is_placed, own, np.nan)
    with np.errstate(over="ignore"):
        return trials.assign(weight_topic=np.exp(topic), weight_self=np.exp(topic + own))


def landscapes(run: Run, scores: pd.DataFrame) -> list[Picture]:
    """Draw landscapes of the data settings with the most trials, if their topics are disjoint and uniform."""
    placed: Frame = points(run, scores)
    if placed["weight_topic"].isna().all():
        raise UserError(f"none of {counted(len(run.trials), 'trial')} is finite and trains attention")
    names = [*DATA_SETTINGS, "value", *(name for name in MEMBER_SETTINGS if name in placed)]
    group = placed.groupby(names, dropna=False, sort=True).ngroup().to_numpy()
    is_known = has_data_model(placed).to_numpy() & has_uniform_blocks(placed)
    known = np.unique(group[is_known]) if is_known.any() else np.zeros(1, int)
    largest = known[np.argsort(-np.bincount(group)[known], kind="stable")][:MOST_LANDSCAPES]
    shown = [placed[group == number] for number in largest]
    titled = ["key_visibility", *(name for name in varying(placed, names) if name != "key_visibility")]
    pictures = [landscape(trials.iloc[0].to_dict(), trials, titled) for trials in shown]
    hidden = len(known) - len(shown)
    if hidden:
        more = f" Not drawn: {counted(hidden, 'landscape')} of data settings with as many or fewer trials."
        pictures[-1] = replace(pictures[-1], caption=pictures[-1].caption + more)
    return pictures


def landscape(
    settings: Mapping[Any, Any], placed: Frame, titled: Sequence[str] = ("key_visibility",)
) -> Picture:
    """Draw the loss over (alpha, beta) for one data setting, with trained models as points.

    `placed` has the columns weight_topic (alpha), weight_self (beta), class and objective; rows with
    NaN are counted as left out.  `titled` lists the settings named in the title.
    """
    documents = stand_in(settings)
    drawn = placed.dropna(subset=["weight_topic", "weight_self"])
    weights = drawn["weight_topic"], drawn["weight_self"]
    ranges = axis_range(weights[0], documents.average), axis_range(weights[1], documents.average)
    panels: dict[str, float | None] = {"": None}
    if documents.data.key_visibility == "all":
        panels = {
            r"[MASK] queries weigh [MASK] keys by $\beta$ too": None,
            "[MASK] queries attend uniformly": 1.0,
        }
    with style():
        figure = Figure(figsize=(WIDTH, 2.5 * len(panels) + 2.3))
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        for ax, (title, mask_pair) in zip(axes, panels.items(), strict=True):
            draw_loss(documents, ax, ranges, mask_pair)
            draw_theory(documents, ax)
            draw_points(drawn.iloc[evenly(len(drawn), MOST_POINTS)], ax, ranges)
            ax.set_title(title)
            ax.set_ylabel(r"$\beta$: weight of the own word")
        axes[-1].set_xlabel(r"$\alpha$: weight of other words of the topic")
        bar = figure.colorbar(axes[0].collections[0], ax=list(axes), shrink=0.9, pad=0.02)
        bar.set_label("squared loss above its minimum")
        figure.legend(handles=legend(documents, drawn, ranges), loc="outside lower center", ncols=2)
    models, best = counted(len(drawn), "trained model"), f"{documents.average:.3g}"
    alt = (
        f"Contours of the loss over alpha and beta with {models} as points; the minimum has alpha' = {best}."
    )
    where = ", ".join(described(settings, titled))
    title = f"Loss over the attention of Assumption 2 ({where})"
    return Picture(figure, title, caption(documents, placed, drawn, ranges), alt)


def stand_in(settings: Mapping[Any, Any]) -> LandscapeDocuments:
    """Choose infinite documents of tau topics to replace a trial's own, and explain the choice of tau."""
    data = data_model(settings)
    if data is None or data.topics < 2 or data.words_per_topic < 2:
        raise UserError("the landscape is known for two or more disjoint topics of two or more uniform words")
    tau, why = data.topics_per_document, ""
    if data.documents == "lda":
        collision = (data.alpha + 1) / (data.topics * data.alpha + 1)  # E[sum of squared topic shares]
        tau = max(2, round(1 / collision))  # with one topic per document attention has nothing to learn
        why = (
            f"; only a rough guide: the trials' documents have Dirichlet({data.alpha:g}) topic shares "
            f"(expected sum of squares {collision:.2f}, here 1/{tau})"
        )
    elif not data.infinite_documents:
        why = f"; the trials' documents have {data.length_min} to {data.length_max} words"
    infinite = replace(data, documents="tau", topics_per_document=tau, infinite_documents=True)
    shift, *others = member(settings)
    entries: Any = lemma1_entries(*data.sizes_and_masking, shift)[:3]
    value = (
        "that of Theorem 2" if shift == 0 else f"the member of Lemma 1's family with value_shift {shift:g}"
    )
    if settings["value"] == "blocks" and any(others):
        raise UserError("the landscape is known for a value matrix of uniform blocks")
    if settings["value"] != "blocks":
        best = uniform_attention_optimum(infinite)
        entries = float(best[1, 0]), float(best[1, data.words_per_topic + 1]), float(best[1, 2])
        value = "the best for uniform attention, not the trials' own"
    sentence = f"For infinite documents of {tau} topics and W^V frozen to {value}{why}."
    return LandscapeDocuments(infinite, entries, *optimal_attention(infinite, entries), sentence)


def axis_range(values: Frame, average: float) -> tuple[float, float]:
    """Choose limits that include 1, the optimum and all but the most extreme points, within WIDEST."""
    inner = np.exp(np.quantile(np.log(np.clip(values, *WIDEST)), [0.02, 0.98])) if len(values) else np.ones(2)
    low, high = min(0.2, inner[0] / 2), max(5 * average, 2 * inner[1])
    return max(float(low), WIDEST[0]), min(float(high), WIDEST[1])


def draw_loss(documents: LandscapeDocuments, ax: Axes, ranges: Ranges, mask_pair: float | None) -> None:
    """Fill the plane with the loss above its minimum, two shades of grey per factor of ten."""
    alpha, beta = (np.geomspace(low, high, RESOLUTION) for low, high in ranges)
    loss = attention_landscape(documents.data, alpha[None, :], beta[:, None], documents.entries, mask_pair)
    excess = np.clip(loss.total - documents.least, 1e-9, None)
    ax.contourf(alpha, beta, excess, LEVELS, cmap="Greys", norm="log", extend="both")
    ax.set(xscale="log", yscale="log", xlim=ranges[0], ylim=ranges[1])


def draw_theory(documents: LandscapeDocuments, ax: Axes) -> None:
    """Draw the best alpha', the minimum, uniform attention, and Theorem 3's bounds where it applies."""
    words = documents.data.words_per_topic
    alpha = np.geomspace(*ax.get_xlim(), 400)

    def curve(average: float, look: dict[str, Any]) -> None:
        beta = words * average - (words - 1) * alpha  # alpha' = ((v - 1) alpha + beta) / v
        ax.plot(alpha[beta > 0], beta[beta > 0], scalex=False, scaley=False, **look)

    for bound in theorem3(documents.data):
        curve(bound, BOUND)
    curve(documents.average, BEST)
    ax.plot((words * documents.average - 1) / (words - 1), 1, **MINIMUM)
    ax.plot(1, 1, **UNIFORM)


def draw_points(drawn: Frame, ax: Axes, ranges: Ranges) -> None:
    """Draw each trial as a point; those outside the range are hollow points at the border."""
    for (kind, objective), group in drawn.groupby(["class", "objective"], sort=False):
        colour = CLASS_COLOURS[str(kind)]
        far = is_outside(group, ranges)
        place = np.clip(group["weight_topic"], *ranges[0]), np.clip(group["weight_self"], *ranges[1])
        look: dict[str, Any] = dict(marker=MARKERS[str(objective)], s=18, clip_on=False, zorder=4)
        ax.scatter(place[0][~far], place[1][~far], color=colour, edgecolor="black", lw=0.3, **look)
        ax.scatter(place[0][far], place[1][far], facecolor="none", edgecolor=colour, lw=1.2, **look)


def is_outside(drawn: Frame, ranges: Ranges) -> Array:
    """Mask the points outside the drawn range."""
    inside = drawn["weight_topic"].between(*ranges[0]) & drawn["weight_self"].between(*ranges[1])
    return ~inside.to_numpy(bool)


def legend(documents: LandscapeDocuments, drawn: Frame, ranges: Ranges) -> list[Line2D]:
    """Make a legend entry for each class, objective and mark of theory that is drawn."""
    dots: dict[str, Any] = dict(ls="", marker="o", ms=4.5)
    classes = [name for name in CLASS_COLOURS if (drawn["class"] == name).any()]
    entries = [Line2D([], [], color=CLASS_COLOURS[name], label=name, **dots) for name in classes]
    for name in (name for name in MARKERS if (drawn["objective"] == name).any()):
        look: dict[str, Any] = {**dots, "marker": MARKERS[name]}
        entries.append(Line2D([], [], color="0.5", label=f"trained: {label(name)}", **look))
    if is_outside(drawn, ranges).any():
        entries.append(Line2D([], [], color="0.5", mfc="none", label="hollow: beyond the axes", **dots))
    best = f"{documents.average:.3g}"
    entries.append(Line2D([], [], label=rf"minimum, $\alpha' = {best}$", **MINIMUM))
    entries.append(Line2D([], [], label=rf"all with $\alpha' = {best}$", **BEST))
    entries.append(Line2D([], [], label="uniform attention", **UNIFORM))
    if theorem3(documents.data):
        low, high = theorem3(documents.data)
        entries.append(Line2D([], [], label=rf"Theorem 3: {low:.2g} < $\alpha'$ < {high:,.0f}", **BOUND))
    return entries


def caption(documents: LandscapeDocuments, placed: Frame, drawn: Frame, ranges: Ranges) -> str:
    """Say what is drawn, for which documents, and what was left out."""
    outside, lost = int(is_outside(drawn, ranges).sum()), len(placed) - len(drawn)
    near = int((np.log(drawn[["weight_topic", "weight_self"]]).abs() < np.log(1.05)).all(axis=1).sum())
    has_mask = documents.data.key_visibility == "all"
    parts = {
        "Exact squared loss if every word attends to itself with weight beta, to other words of its topic "
        "with weight alpha, to everything else with weight 1; alpha' = ((v - 1) alpha + beta)/v.": True,
        documents.sentence: True,
        "Above: [MASK] queries weigh [MASK] keys by beta, as Assumption 2 says; below: they attend uniformly,"
        " and only alpha' matters.": has_mask,
        "[MASK] is not a key here, so only alpha' matters.": not has_mask,
        "Theorem 3 is asymptotic in the number of topics.": theorem3(documents.data),
        f"Points: {counted(len(drawn), 'trained model')} at alpha = exp(a_topic), beta = exp(a_topic + "
        "a_self) of their word queries.": True,
        f"Shown: {MOST_POINTS:,} of these models, evenly spaced; counts include all.": (
            len(drawn) > MOST_POINTS
        ),
        "The landscape of cross-entropy is different.": (drawn["objective"] == "cross_entropy").any(),
        f"{near} of them lie within 5 % of uniform attention.": near > 1,
        f"Hollow at the border: {counted(outside, 'point')} beyond the axes.": outside,
        f"Left out: {counted(lost, 'diverged trial')}.": lost,
    }
    return sentences(parts)
