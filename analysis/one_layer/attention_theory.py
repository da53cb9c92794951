"""Compare trained attention with Theorem 3, Remark 6 and the optimal attention.

Measures how words weigh each kind of key, and the exact loss of these weights: for the squared loss on
infinite documents of tau disjoint uniform topics, one-hot embeddings, no biases.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from math import comb
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topicjax.errors import counted
from topicjax.experiments.one_layer.settings import MEMBER_SETTINGS
from topicjax.store.reader import Run
from topicjax.theory.documents import DataModel
from topicjax.theory.stage2 import attention_loss, best_symmetric_attention, optimal_attention
from topicjax.theory.theorems import lemma1_entries, lemma1_member, theorem3_interval

from ..frames import Array, Frame, once_per_run
from ..pictures import WIDTH, Picture, sentences, style
from ..topic_model import VALUES, uses_softmax
from .cells import lowest_seeds
from .seed_rows import MOST_ROWS, dots, draw_seeds, label_rows, log_axis, row_text, rows_of, telling_apart
from .trained_models import effective_model, has_data_model, pair_kinds, with_weights

PANELS = {  # measured column: (axis label, columns of theory marked in the panel)
    "weight_average": (r"$\alpha' = ((v-1)\,\alpha+\beta)\,/\,v$", ("best_average", "assumed", "lower")),
    "relative": (r"$\alpha'$ / best $\alpha'$", ("best_relative", "assumed_relative")),
    "missed": ("loss above the best, % of its gain", ("assumed_missed",)),
    "weight_mask": ("weight of [MASK]", ("best_mask",)),
    "weight_topic": (r"$\alpha$: other words of its topic", ("best_topic",)),
    "weight_self": (r"$\beta$: the word itself", ("best_self",)),
}
LINEAR = ("relative", "weight_mask")
BEST: dict[str, Any] = dict(color="#D55E00", ls="", marker="d", ms=7, mfc="none", mew=1.2, zorder=2)
ASSUMED: dict[str, Any] = dict(color="black", ls="", marker="x", ms=5, mew=1.1, zorder=2)
BOUND: dict[str, Any] = dict(color="0.45", ls="", marker=">", ms=5, zorder=2)
MOST_SUBSETS = 1000  # of topics; the loss is a sum over all subsets
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
COLUMNS = (  # what attention_rows adds to the settings of a trial
    *("weight_average", "weight_topic", "weight_self", "weight_mask", "lower", "upper"),
    *(*OF_FROZEN_VALUES, "exact_loss", "missed"),
)


def attention_theory(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw the attention weights of trained models, a row per cell, with the predictions of theory."""
    frame = with_ratios(attention_rows(run))
    names = telling_apart(frame, without=("value", *MEMBER_SETTINGS))
    frozen = [name for name in ("value", *MEMBER_SETTINGS) if name in frame and frame[name].nunique() > 1]
    places, rows = rows_of(frame, [*names, *frozen])
    frame, places, rows = frame[places < MOST_ROWS], places[places < MOST_ROWS], rows[:MOST_ROWS]
    first = frame.iloc[np.unique(places, return_index=True)[1]].to_dict("records")
    texts = [
        row_text({name: row[name] for name in names}, [value_text(row)] if frozen else []) for row in first
    ]
    with style():
        figure = Figure(figsize=(WIDTH, 3 * (0.6 + 0.3 * len(rows)) + 0.5))
        axes = figure.subplots(3, 2, sharey=True)
        for ax, (name, (text, theory)) in zip(axes.flat, PANELS.items(), strict=True):
            draw_seeds(ax, places, frame[name].to_numpy())
            draw_theory(ax, frame, places, theory)
            ax.set_xlabel(text)
            if name not in LINEAR:
                log_axis(ax)
            if name != "missed":
                ax.axvline(1, color="0.8", lw=0.8, zorder=1)
        for line in axes:
            label_rows(line, texts)
        figure.legend(handles=legend(frame), loc="outside lower center", ncols=2)
    return Picture(
        figure,
        "Trained attention compared with Theorem 3 and the best attention",
        caption(frame),
        f"Weights that words give to kinds of keys in {counted(len(rows), 'cell')}, each seed a dot, with "
        "the best attention of theory marked in its row.",
    )


def with_ratios(frame: Frame) -> Frame:
    """Add alpha' in units of the best, and the missed gain in percent."""
    best = frame["best_average"]
    ratios = dict(relative=frame["weight_average"] / best, assumed_relative=frame["assumed"] / best)
    percent = {name: 100 * frame[name] for name in ("missed", "assumed_missed")}
    return frame.assign(**ratios, **percent, best_relative=best / best)


def value_text(settings: Mapping[Any, Any]) -> str:
    """Describe the W^V of a trial: trained, Theorem 2's, or another member of Lemma 1's family."""
    shift, own, random = member(settings)
    if settings["value"] != "blocks" or not any((shift, own, random)):
        return VALUES[settings["value"]]
    shape = {0.0: "uniform blocks", 1.0: "diagonal"}.get(own, f"{own:.0%} on the diagonal")
    parts = [shape] if random == 0 or own else []
    parts += [{1.0: "u = 0"}.get(shift, f"u times {1 - shift:g}")] if shift else []
    return ", ".join([*parts, *([f"blocks + random part {random:g}"] if random else [])])


def draw_theory(ax: Axes, frame: Frame, places: Array, names: Sequence[str]) -> None:
    """Mark the predictions of theory in every row of a panel."""
    first = np.unique(places, return_index=True)[1]
    for name in names:
        values = frame[name].to_numpy(float)[first]
        look = BOUND if name == "lower" else BEST if name.startswith("best") else ASSUMED
        ax.plot(np.where(values > 0, values, np.nan), -places[first], **look)


def legend(frame: Frame) -> list[Line2D]:
    """Make a legend entry for each mark that is drawn."""
    marks = {
        "best_average": (BEST, "best attention, weight of [MASK] free"),
        "assumed": (ASSUMED, "best of Assumption 2's kind"),
        "lower": (BOUND, "Theorem 3's lower bound"),
    }
    drawn = [
        Line2D([], [], label=text, **look)
        for name, (look, text) in marks.items()
        if frame[name].notna().any()
    ]
    return [dots(), *drawn]


def caption(frame: Frame) -> str:
    """Say what is drawn, whether alpha' lies within its bounds, and how near to the best the loss is."""
    bounded = frame[frame["lower"].notna()]
    within = int(
        (
            (bounded["weight_average"] > bounded["lower"]) & (bounded["weight_average"] < bounded["upper"])
        ).sum()
    )
    uniform, known = frame[frame["assumed"].notna()], frame[frame["missed"].notna()]
    below = frame[frame["weight_topic"] < 1]
    parts = {
        "Weight that a word gives to each kind of key, relative to the mean word of another topic (1, grey "
        f"line): medians over the words of each of {counted(len(frame), 'trained model')}.": True,
        f"alpha' lies within Theorem 3's bounds in {within} of {len(bounded)} models; the upper bound, "
        f"{bounded['upper'].max():,.0f} at most, is beyond the axis; the theorem is asymptotic in the number "
        "of topics.": len(bounded),
        "Where W^V has uniform blocks, only alpha' matters; the best alpha and beta are marked where each "
        "matters (unless the best is 0).": len(uniform),
        "The loss, exact over all documents, exceeds that of the best attention by at most "
        f"{known['missed'].max():.2g} % of the gain of the best over uniform attention.": len(known),
        "The best of Assumption 2's kind, in which words weigh [MASK] like words of other topics, misses "
        f"{uniform['assumed_missed'].min():.2g} to {uniform['assumed_missed'].max():.2g} %.": len(uniform),
        f"In {len(below)} models, words weigh other words of their topic less than words of other topics: "
        "alpha is below 1.": len(below),
        "The best attention is not marked for a trained W^V and for members with a random part.": (
            frame["best_average"].isna().any()
        ),
    }
    return sentences(parts)


def with_exact_loss(trials: Any) -> Any:
    """Select the trials with stored weights whose loss over all documents is known."""
    known = with_weights(trials)
    for name, value in KNOWN.items():
        known = known[known[name] == value]
    known = known[uses_softmax(known)]
    known = known[has_data_model(known) & (known["topics"] > 1) & (known["words_per_topic"] > 1)]
    few = [
        comb(*sizes) <= MOST_SUBSETS
        for sizes in known[["topics", "topics_per_document"]].itertuples(index=False)
    ]
    return known[np.array(few, bool)]


@once_per_run
def attention_rows(run: Run) -> pd.DataFrame:
    """Tabulate the trials whose exact loss is known: settings, measured weights, and predicted weights.

    weight_topic is alpha, weight_self beta and weight_average alpha'; the predictions are best_* and assumed.
    missed is the loss above that of the best attention, as a share of the best's gain over uniform attention.
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
    return read.reset_index(drop=True).join(pd.DataFrame(rows, columns=list(COLUMNS)))


def missed(loss: float, least: float, uniform: float) -> float:
    """Measure the excess over the least loss as a share of its gain; NaN without a gain (one topic)."""
    return (loss - least) / (uniform - least) if uniform - least > 1e-12 else np.nan


def member(settings: Mapping[Any, Any]) -> tuple[float, float, float]:
    """Read at which member of Lemma 1's family W^V is frozen."""
    shift, own, random = (float(settings.get(name, 0.0)) for name in MEMBER_SETTINGS)
    return shift, own, random


def has_uniform_blocks(trials: Any) -> Array:
    """Mask the trials whose W^V, if frozen in Lemma 1's family, treats the words of a topic alike."""
    parts = trials.reindex(columns=list(MEMBER_SETTINGS[1:])).fillna(0.0).to_numpy(float)
    return (trials["value"] != "blocks").to_numpy() | (parts == 0).all(axis=1)


def measured_weights(weight_VxV: Array, words_per_topic: int) -> dict[str, float]:
    """Measure how words weigh each kind of key, relative to the mean word of another topic (medians)."""
    words = weight_VxV[1:, 1:]
    own, same, other = pair_kinds(len(words), words_per_topic)
    unit = np.where(other, words, 0).sum(axis=1) / other.sum(axis=1)
    alpha = np.where(same, words, 0).sum(axis=1) / same.sum(axis=1) / unit
    beta = words[own] / unit
    average = ((words_per_topic - 1) * alpha + beta) / words_per_topic
    kinds = dict(average=average, topic=alpha, self=beta, mask=weight_VxV[1:, 0] / unit)
    return {f"weight_{name}": float(np.median(values)) for name, values in kinds.items()}


def theorem3(data: DataModel) -> tuple[float, ...]:
    """Compute Theorem 3's bounds on alpha'; empty if its conditions on masking, sizes or keys fail."""
    least_words = (1 / data.survival + 1) ** 2 + 1  # Assumption 3; Assumption 4 is the next line
    masking = data.p_mask < 0.5 and 0 < data.p_keep < 0.5 and np.isclose(data.p_keep, data.p_random)
    sizes = data.words_per_topic > least_words and data.topics_per_document > 1
    return theorem3_interval(data) if masking and sizes and data.key_visibility == "all" else ()


def without_theory(data: DataModel) -> dict[str, float]:
    """Return the predictions if W^V is not frozen at a known member: only Theorem 3's bounds."""
    lower, upper = theorem3(data) or (np.nan, np.nan)
    return dict(lower=lower, upper=upper) | dict.fromkeys(OF_FROZEN_VALUES, np.nan)


@cache
def theory_of(data: DataModel, shift: float, own: float, random: float) -> dict[str, float]:
    """Compute the best attention for a frozen W^V: of Assumption 2's kind, and with [MASK]'s weight free.

    The first is known for uniform blocks, where alpha and beta matter only through alpha'.  Members with a
    random part treat words differently; for them only the loss of uniform attention is known (Lemma 1).
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
