"""Topics or co-occurrence?  Models of documents whose words come in pairs within their topics (section 8.2).

The topic's part of a matrix (value, attention scores, W_E^T W_E) is the mean over words of one topic that
are not partners minus that over words of different topics; the pair's part is the mean over partners minus
that over other words of their topic.  The pair's share is its part of the sum, where parts below 0 count as
0: it is 0 if a partner is like any other word of the topic, and 1 if the other words of the topic are no
closer than words of different topics.  It is compared with the same share of what can be counted in the
documents.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from topicjax.errors import counted
from topicjax.stages import Records
from topicjax.store.reader import Run
from topicjax.theory.documents import Array, DataModel
from topicjax.theory.progress import CUTS

from ..frames import Frame, column, once_per_run
from ..page.contract import Claim, Verdict
from ..pictures import PALETTE, WIDTH, Picture, label, sentences, style, written
from ..topic_model import MAIN_SETTINGS, aligned, settings_in
from .scores import theorem2_block, trains_attention, trains_value
from .trained_models import optimum_of_documents, pair_kinds

PARTS = {
    "value": ("v_block", "v_pair"),
    "attention": ("a_topic", "a_pair"),
    "embeddings": ("e_block", "e_pair"),
}
NEEDED = [name for names in PARTS.values() for name in names]
LEAST_EMBEDDING = 0.05  # of the expected squared norm of an embedding: a smaller change of W_E^T W_E is noise
VANISHED = 0.99  # share in the documents above which there are no topics left to follow
KIND = ("embedding", *MAIN_SETTINGS)
SCALES: dict[str, dict[str, Any]] = {
    "covariance": dict(ls="-"),
    "log_pmi": dict(ls="--"),
    "best_value": dict(ls=":"),
}
SCALE_WORDS = {
    "covariance": "covariance of words",
    "log_pmi": "log PMI",
    "best_value": "best W^V of squared loss",
}
MEASURED = ("pair_part", "topic_part", "pair_share", "topic_kept", "step_topic", "step_pair")
LOST = 0.5  # of the topic's part at its maximum: a model that keeps less has given the topic up
PANELS = (
    *(("value", "one_hot"), ("value", "trained")),
    *(("attention", "one_hot"), ("attention", "trained")),
    ("embeddings", "trained"),
)
TITLES = {"one_hot": "one-hot embeddings", "trained": "trained embeddings", "random": "random embeddings"}


def is_paired(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether any finite trial has documents with pairs, and records of partners."""
    return {*NEEDED} <= {*run.trajectories} and len(paired(run.trials)) > 0


def paired(trials: Any) -> Any:
    """Select the finite trials with pairs, in topics of more than one pair."""
    with_pairs = (trials["pair_strength"] > 0) & (trials["words_per_topic"] > 2) & (trials["status"] == "ok")
    return trials[with_pairs.to_numpy()]


def split(matrix: Array, words_per_topic: int) -> tuple[float, float]:
    """Compute the pair's and the topic's part of a matrix over words."""
    own, same, other = pair_kinds(len(matrix), words_per_topic)
    pair = np.arange(len(matrix)) // 2
    partner = (pair[:, None] == pair) & ~own
    middle = matrix[same & ~partner].mean()
    return float(matrix[partner].mean() - middle), float(middle - matrix[other].mean())


@cache
def document_shares(data: DataModel) -> dict[str, float]:
    """Compute the pair's share in covariance and log PMI of two words, and in the best W^V (squared loss)."""
    second, mean = data.second_moment_words(), data.mean_words()
    matrices = {
        "covariance": second - np.outer(mean, mean),
        "log_pmi": np.log(second / np.outer(mean, mean)),
        "best_value": optimum_of_documents(data, 0.0)[1:, 1:],
    }
    parts = {name: split(matrix, data.words_per_topic) for name, matrix in matrices.items()}
    return {name: float(share_of(*own)) for name, own in parts.items()}


def share_of(pair: Any, topic: Any, least: Any = 0.0) -> Array:
    """Compute the pair's share; NaN where both parts together are not above `least`."""
    pair, topic = np.maximum(pair, 0.0), np.maximum(topic, 0.0)
    total = pair + topic
    return np.divide(pair, total, out=np.full(np.shape(total), np.nan), where=total > least)


@once_per_run
def pair_rows(run: Run) -> Frame:
    """Tabulate what trials with even topics learned: a row per trial and part.

    `pair_part`, `topic_part` and `pair_share` are final values (means over the last tenth of the steps) minus
    those of step 0; the share is NaN where next to nothing was learned.  `topic_kept` is the final part of
    the topic as a share of its maximum, NaN if that is next to nothing.  `step_topic` and `step_pair` are the
    first steps at which same topic - other topic, and partner - other word, reach half of their maximum.
    """
    run = aligned(run)
    frame, records = run.trajectories, Records.of(run.trajectories["step"].to_numpy())
    trials: Any = run.trials
    words, last = column(trials, "words_per_topic"), records.last(CUTS.last)
    least = {
        "value": CUTS.v_block * theorem2_block(trials),
        "attention": np.full(len(trials), CUTS.attention),
        "embeddings": LEAST_EMBEDDING * column(trials, "embedding_scale") ** 2,
    }
    is_used = (trials["status"] == "ok").to_numpy() & (words > 2) & (words % 2 == 0)
    trained = {
        "value": is_used & trains_value(trials),
        "attention": is_used & trains_attention(trials),
        "embeddings": is_used & (trials["embedding"] == "trained").to_numpy(),
    }
    tables = []
    for part, (block_name, pair_name) in PARTS.items():
        block, pair = (column(frame, name) for name in (block_name, pair_name))
        block, pair = (values - records.spread(values[records.start]) for values in (block, pair))
        topic = without_partner(block, pair, records.spread(words))
        end_pair, end_topic = records.mean(pair, last), records.mean(topic, last)
        share = share_of(end_pair, end_topic, least[part])
        with np.errstate(divide="ignore", invalid="ignore"):
            top = np.maximum.reduceat(topic, records.start)
            kept = np.where(top > least[part], end_topic / top, np.nan)
        found = dict(pair_part=end_pair, topic_part=end_topic, pair_share=share, topic_kept=kept)
        found |= dict(step_topic=half_way(records, block), step_pair=half_way(records, pair))
        names = ["trial_id", *settings_in(trials)]
        tables.append(trials[names].assign(part=part, **found)[trained[part]])
    rows = pd.concat(tables, ignore_index=True)
    shares = [
        document_shares(DataModel.of(row)) if row["pair_strength"] > 0 else {}
        for row in rows.to_dict("records")
    ]
    return rows.join(pd.DataFrame(shares, columns=list(SCALES), index=rows.index))


def without_partner(block: Array, pair: Array, words_per_topic: Array) -> Array:
    """Take the partner out of same topic - other topic: it is one of v - 1 other words of the topic."""
    return block - pair / (words_per_topic - 1)


def half_way(records: Records, values: Array) -> Array:
    """Find each trial's first step at which a column is at half of its maximum; NaN if it never rises."""
    found = []
    for start, end in zip(records.start, records.end, strict=True):
        own = values[start : end + 1]
        top = own.max()
        reached = np.flatnonzero(own >= top / 2) if top > 0 else []
        found.append(records.step[start + reached[0]] if len(reached) else np.nan)
    return np.array(found, float)


def pair_table(run: Run, scores: pd.DataFrame) -> Frame:
    """Tabulate parts and shares by kind of model and strength: medians over seeds."""
    rows = pair_rows(run)
    by_cell: Any = rows.groupby(["part", *KIND, "pair_strength"], sort=False)
    middle = by_cell[[*MEASURED, *SCALES]].median()
    ends = by_cell["pair_share"].agg(["min", "max"]).set_axis(["share_min", "share_max"], axis=1)
    return by_cell.size().rename("trials").to_frame().join(middle).join(ends).reset_index()


def pair_figure(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw the pair's share in models against the strength of pairs, beside that in the documents."""
    rows = pair_rows(run)
    rows = rows[rows["pair_strength"] > 0]
    panels = [kind for kind in PANELS if kind in set(zip(rows["part"], rows["embedding"], strict=True))]
    kinds = sorted(set(zip(*(rows[name] for name in MAIN_SETTINGS), strict=True)))
    colours = dict(zip(kinds, PALETTE, strict=False))
    with style():
        lines = -(-len(panels) // 2)
        figure = Figure(figsize=(WIDTH, 0.9 + 1.75 * lines))
        axes = figure.subplots(lines, 2, sharex=True, sharey=True, squeeze=False)
        for ax, (part, embedding) in zip(axes.flat, panels, strict=False):
            own = rows[(rows["part"] == part) & (rows["embedding"] == embedding)]
            draw_shares(ax, own, colours)
            ax.set_title(part if part == "embeddings" else f"{part}, {TITLES[embedding]}")
            ax.tick_params(labelbottom=True)
            ax.set_ylim(-0.05, 1.08)
        for ax in axes.flat[len(panels) :]:
            ax.set_axis_off()
        for ax in axes[:, 0]:
            ax.set_ylabel("pair's share")
        for ax in axes.flat[max(len(panels) - 2, 0) : len(panels)]:
            ax.set_xlabel("pair strength")
        handles = [
            Line2D(
                [], [], color=colour, marker="o", ms=4, mfc="none", lw=0.9, label=", ".join(map(label, kind))
            )
            for kind, colour in colours.items()
        ]
        handles += [
            Line2D([], [], color="black", lw=1.0, label=SCALE_WORDS[name].replace("W^V", "$W^V$"), **line)
            for name, line in SCALES.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
    control = untied(pair_rows(run))
    parts = {
        "Of the structure that a model learned, the share that sets partners apart from the other words of "
        "their topic: 0 if only topics count, 1 if only pairs do (parts below 0 count as 0). A ring per "
        "seed, lines join medians; models that learned next to nothing are left out.": True,
        "Black: the same share in the documents (covariance and log PMI of two words) and in the best value "
        "matrix under uniform attention.": True,
        f"Without ties partners stand apart by at most {control:.0%} of that at the weakest strength "
        "(medians over seeds).": np.isfinite(control),
    }
    alt = f"Pair's share against pair strength in {counted(len(panels), 'panel')}."
    return Picture(figure, "Topic or pair", sentences(parts), alt)


def draw_shares(ax: Axes, rows: Frame, colours: Mapping[tuple, str]) -> None:
    """Draw the shares of the models of one panel, a colour per kind, and those of the documents in black."""
    scale: Any = rows.groupby("pair_strength")[list(SCALES)].median()
    for name, line in SCALES.items():
        ax.plot(scale.index, scale[name], color="black", lw=1.0, zorder=2, **line)
    for kind, own in rows.groupby(list(MAIN_SETTINGS)):
        colour = colours[kind]
        ax.plot(
            own["pair_strength"], own["pair_share"], "o", color=colour, ms=3, mfc="none", mew=0.7, zorder=3
        )
        middle: Any = own.groupby("pair_strength")["pair_share"].median()
        ax.plot(middle.index, middle, color=colour, lw=0.9, zorder=3)
    ax.set_xscale("log")
    strengths = sorted(set(rows["pair_strength"]))
    ax.set_xticks(strengths, [written(value, 2) for value in strengths])
    ax.xaxis.set_minor_locator(NullLocator())


def pair_course(run: Run, scores: pd.DataFrame) -> list[Picture]:
    """Draw the topic's and the pair's part over the steps: a picture per kind of embedding."""
    run = aligned(run)
    chosen = paired(run.trials)
    frame = run.trajectories.merge(
        chosen[["trial_id", "pair_strength", "words_per_topic", *KIND]], on="trial_id", suffixes=("_", "")
    )
    return [course_of(own, str(embedding)) for embedding, own in frame.groupby("embedding", sort=False)]


def course_of(frame: Frame, embedding: str) -> Picture:
    """Draw the parts of models with one kind of embedding: a row of panels per optimizer and objective."""
    names = [name for name, (block, _) in PARTS.items() if frame[block].abs().max() > 0]
    strengths = sorted(set(frame["pair_strength"]))
    colours = dict(zip(strengths, PALETTE, strict=False))
    kinds: Any = list(frame.groupby(list(MAIN_SETTINGS), sort=True))
    with style():
        figure = Figure(figsize=(WIDTH, 0.9 + 1.25 * len(kinds)))
        axes = figure.subplots(len(kinds), len(names), sharex=True, squeeze=False)
        for line, (kind, own) in zip(axes, kinds, strict=True):
            line[0].set_ylabel("\n".join(map(label, kind)))
            for ax, part in zip(line, names, strict=True):
                block, pair = (column(own, name) for name in PARTS[part])
                parts = own.assign(
                    pair=pair, topic=without_partner(block, pair, column(own, "words_per_topic"))
                )
                middle: Any = parts.groupby(["pair_strength", "step"])[["pair", "topic"]].median()
                for strength, colour in colours.items():
                    over = middle.loc[strength].loc[1:]  # a logarithmic axis has no step 0
                    ax.plot(over.index, over["pair"], color=colour, lw=1.0)
                    ax.plot(over.index, over["topic"], color=colour, lw=1.0, ls="--")
                ax.axhline(0, color="0.8", lw=0.6, zorder=0)
                ax.set_xscale("log")
        for ax, part in zip(axes[0], names, strict=True):
            ax.set_title(part)
        for ax in axes[-1]:
            ax.set_xlabel("step")
        handles = [
            Line2D([], [], color=colour, lw=1.2, label=f"pair strength {written(strength, 2)}")
            for strength, colour in colours.items()
        ]
        handles += [
            Line2D([], [], color="0.3", lw=1.0, label="pair's part"),
            Line2D([], [], color="0.3", lw=1.0, ls="--", label="topic's part"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    text = (
        "The pair's part (partner - other word of the topic) and the topic's part (other word - word of "
        "another topic) over the steps, medians over seeds. Values are W_E^T W^V W_E, attention its scores."
    )
    title = f"Topics and pairs over the steps: {TITLES[embedding]}"
    return Picture(figure, title, text, "Both parts over the steps, a row per optimizer and objective.")


def follows(rows: Frame) -> str:
    """Say what the models of a cell follow: pair or topic beyond co-occurrence, or co-occurrence itself."""
    low, high = (getattr(rows[["covariance", "log_pmi"]], name)(axis=1) for name in ("min", "max"))
    if (rows["pair_share"] > high).all():
        return "pair"
    return "topic" if (rows["pair_share"] < low).all() else "counts"


def untied(rows: Frame) -> float:
    """Compare the pair's part of models without pairs to that at the weakest strength: the largest ratio."""
    by_cell: Any = rows.assign(size=rows["pair_part"].abs()).groupby(["part", *KIND, "pair_strength"])["size"]
    middle = by_cell.median().unstack()
    if 0.0 not in middle or middle.shape[1] < 2:
        return np.nan
    least = middle.drop(columns=0.0).bfill(axis=1).iloc[:, 0]
    return float((middle[0.0] / least).max())


def by_strength(rows: Frame, name: str = "pair_share") -> str:
    """Write the median of a share at each pair strength, with its range if it has one."""
    texts = []
    for strength, own in rows.groupby("pair_strength")[name]:
        spread = f" ({own.min():.2f} to {own.max():.2f})" if own.max() - own.min() >= 0.005 else ""
        texts.append(f"{own.median():.2f}{spread} at {written(float(strength), 2)}")
    return ", ".join(texts)


def topic_or_pair(run: Run, scores: pd.DataFrame) -> Verdict:
    """Compare the pair's share in models with its share in the covariance and the log PMI of words."""
    if not is_paired(run, scores):
        return Verdict("undecided", "No trial has documents with pairs of words.", "a run of pairs")
    rows = pair_rows(run)
    known = rows[(rows["pair_strength"] > 0) & rows["pair_share"].notna()]
    told = known[known["covariance"] < VANISHED]
    if told.empty:
        return Verdict("undecided", "No model with pairs has learned anything.", "more steps")
    cells: Any = told.groupby(["part", *KIND, "pair_strength"], sort=False)
    found = {name: follows(own) for name, own in cells}
    texts = []
    for (part, objective), own in known.groupby(["part", "objective"], sort=False):
        kinds = [what for name, what in found.items() if {part, objective} <= {*name}]
        texts.append(
            f"{part.capitalize()}, {label(objective)}: the pair beyond its counts in "
            f"{kinds.count('pair')} of {counted(len(kinds), 'cell')}, the topic in {kinds.count('topic')}; "
            f"pair's share {by_strength(own)}"
        )
    scales = ", ".join(f"{SCALE_WORDS[name]} {by_strength(told, name)}" for name in SCALES)
    control = untied(rows)
    later = (told["step_pair"] > told["step_topic"]).sum()
    parts = {
        f"{'. '.join(texts)}.": True,
        f"In the documents it is: {scales}.": True,
        f"Partners are half learned after topics in {later} of {counted(len(told), 'part')} of models; "
        f"{(told['topic_kept'] < LOST).sum()} keep less than half of the topic's part that they had.": True,
        f"Without ties they stand apart by at most {control:.0%} of that at the weakest strength "
        "(medians over seeds).": np.isfinite(control),
    }
    numbers = {what: list(found.values()).count(what) for what in ("topic", "counts", "pair")}
    verdict = "holds" if numbers["topic"] == len(found) else "partly" if numbers["topic"] else "fails"
    change = (
        "a pair's share below those of covariance and log PMI in every seed of a cell; more steps or seeds"
    )
    return Verdict(verdict, sentences(parts), change, **numbers)


CLAIM = Claim(
    "Section 8.2",
    "Embeddings and attention follow the topic, not just co-occurrence: words that co-occur more than other "
    "words of their topic stand apart from them by less than these counts say.",
    topic_or_pair,
    "section 8.2",
    shown_by="pairs",
)
