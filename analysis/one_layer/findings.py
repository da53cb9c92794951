"""Findings of a run of the one-layer model, in sentences: the answer, caveats, gaps, and definitions."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from topicjax.errors import counted
from topicjax.theory.progress import CUTS

from ..frames import distinct, varying
from ..pictures import described
from ..topic_model import SETTINGS
from .cells import sensitivity
from .robustness import axes_of, survival
from .scores import is_topical, trains_attention, trains_both, trains_value

SWEPT = ("seed", "learning_rate", "init_scale")  # the replicates and the axes of a map
LISTED = 3  # combinations named in a sentence
ALWAYS = ("trial", "cell")  # the page uses these words even if the answer does not
TERMS = {  # pattern in the text: (word, meaning)
    r"two-stage": (
        "two-stage",
        f"W^V learns the topics first, while attention is still uniform; then attention learns them: Θ of at "
        f"least {CUTS.two_stage:g}, and a stage 2 that happened.",
    ),
    r"trials?": ("trial", "one training run of one model, fully described by its settings."),
    r"V(?![-\w])": ("V", "the value matrix W^V, which predicts words from the mean of what is attended to."),
    r"keys (?:all|unmasked)": (
        "keys",
        "the positions that attention can look at: all, as in the paper's equation, or only unmasked ones.",
    ),
    r"cells?": (
        "cell",
        "the trials that differ only in the seed; its class is the most frequent one.",
    ),
    r"seeds?": ("seed", "the number that draws initial weights and documents."),
    r"Θ": (
        "Θ (Theta)",
        "how far V had come when attention began: the maximum over the steps of min(progress of V, "
        "1 - progress of attention). 1: V was done first; 0.5: both together.",
    ),
    r"loss view": (
        "loss view",
        "progress measured by held-out losses: V by the loss with attention forced uniform, attention by how "
        "much it lowers that loss, in units of what the topics can give.",
    ),
    r"norms": ("norms", "progress measured by the norms of W^V and of W^K and W^Q, as in the paper."),
    r"topical|by topic": (
        "topical",
        f"attention scores within a topic are at least {CUTS.topical:g} above those between topics.",
    ),
    r"V-only": ("V-only", "V is learned, but attention has not moved within the steps of the run."),
    r"unfinished": ("unfinished", f"less than {CUTS.finished:.0%} of the way to the best loss of stage 1."),
    r"stage 2 begun": ("stage 2 begun", f"attention gained less than {CUTS.stage2:.0%} of what topics give."),
    r"compensated": ("compensated", "the loss reaches stage 1, but not with attention forced uniform."),
    r"simultaneous": ("simultaneous", "V and attention are learned together."),
    r"no-learning": (
        "no-learning",
        f"less than {CUTS.no_learning:.0%} of the way to the best loss of stage 1.",
    ),
    r"copying": ("copying", "at the end a word counts more for itself than for its topic."),
}


def findings(scores: pd.DataFrame, cells: pd.DataFrame, missing: Sequence[str] = ()) -> list[str]:
    """Write the sentences of a run's answer, the main one first."""
    sentences = [*answer(scores, cells), *views(scores), *budget(scores), *divergence(scores)]
    sentences += [*seeds(cells), *cuts(scores)]
    return sentences + [f"Not complete: {sentence}." for sentence in missing]


def answer(scores: pd.DataFrame, cells: pd.DataFrame) -> Iterable[str]:
    """Say how many trials are two-stage in the loss view, and where."""
    frozen = len(scores) - len(competing(scores))
    if frozen == len(scores):
        yield f"{frozen_parts(scores)} in every trial, so none can be two-stage: classes are by construction."
        return
    yield from where_it_holds(competing(scores), cells)
    if frozen:
        yield f"{counted(frozen, 'more trial')} with a frozen part: class by construction."


def where_it_holds(scores: pd.DataFrame, cells: pd.DataFrame) -> Iterable[str]:
    """Say how many of the trials that train both parts are two-stage, and where."""
    is_two_stage, theta = array(scores, "class") == "two-stage", array(scores, "theta")
    if not is_two_stage.any():
        name, count = most_frequent(array(scores, "class"))
        yield (
            f"No trial is two-stage in the loss view; most frequent is {name} "
            f"({share(count, len(scores))}). The largest Θ is {largest(theta)}."
        )
        return
    total, flat = count_of(is_two_stage), count_of(array(scores, "class") == "two-stage, non-topical")
    lost = count_of(is_two_stage & has_suffix(scores, "then lost"))
    copying = count_of(is_two_stage & has_suffix(scores, "then copying"))
    afterwards = ((lost, "then lost more than half of it"), (copying, "then turned to copying"))
    later = [f"{count} {what}" for count, what in afterwards if count]
    yield (
        f"{share(total, len(scores))} are two-stage in the loss view (median Θ "
        f"{np.median(theta[is_two_stage]):.2f}): V first, then topical attention"
        + (f"; of these {' and '.join(later)}." if later else ".")
        + (f" In {counted(flat, 'more trial')} the second stage is not topical." if flat else "")
    )
    y, axes = axes_of(cells)
    yield from survival(axes, y) if len(axes) > 1 else places(scores, is_two_stage)


def places(scores: pd.DataFrame, is_two_stage: np.ndarray) -> Iterable[str]:
    """Say for which combinations of other settings it holds most often, and never."""
    names: list[str] = []
    for name in varying(scores, [name for name in SETTINGS if name not in SWEPT]):
        names += varying(scores, [name], names)  # without those that the others determine
    if not names:
        return
    number, kinds = distinct(scores, names)
    hits, sizes = np.bincount(number, is_two_stage).astype(int), np.bincount(number)
    order = np.argsort(-hits, kind="stable")
    first = [place for place in order[:LISTED] if hits[place]]
    most = [f"{', '.join(described(kinds.loc[k], names))} ({hits[k]} of {sizes[k]})" for k in first]
    never = order[hits[order] == 0]
    ending = ""
    if len(never):
        more = f" and {len(never) - LISTED} more" if len(never) > LISTED else ""
        listed = "; ".join(", ".join(described(kinds.loc[k], names)) for k in never[:LISTED])
        ending = f"; never with {listed}{more}"
    yield f"It holds most often with {'; '.join(most)}{ending}."


def views(scores: pd.DataFrame) -> Iterable[str]:
    """Say where the norms, the paper's view, differ from the loss."""
    scored = competing(scores)
    if scored.empty:
        return
    loss, norm = array(scored, "class"), array(scored, "class_norm")
    by_norm = norm == "two-stage"
    other, flat = count_of(by_norm & (loss != "two-stage")), count_of(by_norm & ~is_topical(scored))
    text = f"By the norms alone, as in the paper's Figure 4, {share(count_of(by_norm), len(scored))} "
    text += f"would be two-stage, {other} of them not in the loss view"
    text += f"; {flat} of them never attend by topic" if flat else ""
    yield f"{text}. Both views give {share(count_of(loss == norm), len(scored))} the same class."


def budget(scores: pd.DataFrame) -> Iterable[str]:
    """Say which classes may change with more steps."""
    kind, flags = array(scores, "class"), array(scores, "flags")
    is_late = np.array(["censored_attention" in x or "attention_incomplete" in x for x in flags])
    parts = {
        "unfinished": kind == "unfinished",
        "V-only (attention has not moved yet)": (kind == "V-only") & trains_attention(scores),
        "stage 2 begun": kind == "stage 2 begun",
        "two-stage or led by V with attention's onset in the last tenth or not reached": (
            is_late & np.isin(kind, ["two-stage", "V leads"])
        ),
    }
    named = [f"{count_of(which)} {text}" for text, which in parts.items() if which.any()]
    if named:
        yield f"More steps could change these classes: {'; '.join(named)}."


def divergence(scores: pd.DataFrame) -> Iterable[str]:
    """Say how many trials diverged or collapsed, and at which learning rates."""
    ways = dict(diverged="diverged (not finite)", collapsed="collapsed (the loss ended higher)")
    for name, text in ways.items():
        lost = array(scores, "learning_rate")[array(scores, "class") == name]
        if len(lost):
            low, high = lost.min(), lost.max()
            rates = (
                f"a learning rate of {low:.3g}" if low == high else f"learning rates {low:.3g} to {high:.3g}"
            )
            yield f"{share(len(lost), len(scores))} {text}, with {rates}; medians leave them out."


def seeds(cells: pd.DataFrame) -> Iterable[str]:
    """Say whether the seeds of a cell agree."""
    repeated = cells.loc[array(cells, "trials") > 1]
    if repeated.empty:
        yield "Every cell has one seed, so this run cannot say how much the seed matters."
        return
    split, most = count_of(array(repeated, "agreement") < 1), array(repeated, "trials").max()
    yield (
        f"The seeds disagree on the class in {split} of {len(repeated)} cells (up to {most} seeds per cell)."
    )


def cuts(scores: pd.DataFrame) -> Iterable[str]:
    """Say how much the cut of Theta matters."""
    if np.isnan(array(scores, "theta")).all():
        return
    table = sensitivity(scores).to_dict("records")
    changes = [
        f"at {row['cut']:g} {100 * row['trials_changed']:.0f} %"
        for row in table
        if row["view"] == "loss" and row["cut"] != CUTS.two_stage
    ]
    yield (
        f"The cut Θ ≥ {CUTS.two_stage:g} is a convention: {' and '.join(changes)} of the trials "
        "would be in another class."
    )


def frozen_parts(scores: pd.DataFrame) -> str:
    """Say which part is not trained in any trial."""
    if not trains_attention(scores).any():
        return "Attention is uniform by construction"
    return "The value matrix is frozen" if not trains_value(scores).any() else "V or attention is frozen"


def most_frequent(classes: np.ndarray) -> tuple[str, int]:
    """Find the most frequent class and its count."""
    return Counter(classes.tolist()).most_common(1)[0]


def largest(values: np.ndarray) -> str:
    """Write the largest number, or "undefined"."""
    return "undefined" if np.isnan(values).all() else f"{np.nanmax(values):.2f}"


def competing(scores: pd.DataFrame) -> pd.DataFrame:
    """Select the trials that train both V and attention."""
    return scores.loc[trains_both(scores)]


def has_suffix(scores: pd.DataFrame, suffix: str) -> np.ndarray:
    """Mask the trials with this suffix."""
    return np.array([suffix in found for found in array(scores, "suffix")], bool)


def array(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column as an array."""
    return np.asarray(frame[name])


def count_of(which: np.ndarray) -> int:
    """Count the true entries."""
    return int(np.count_nonzero(which))


def share(count: int, total: int) -> str:
    """Write '66 of 384 trials (17 %)'."""
    return f"{count:,} of {counted(total, 'trial')} ({100 * count / total:.0f} %)"


def definitions(sentences: Sequence[str]) -> dict[str, str]:
    """Define the words that these sentences use, in order of appearance."""
    text = " ".join(sentences)
    first = {pattern: re.search(rf"\b(?:{pattern})", text) for pattern in TERMS}
    places = {pattern: found.start() for pattern, found in first.items() if found}
    places |= {pattern: places.get(pattern, len(text)) for pattern in TERMS if TERMS[pattern][0] in ALWAYS}
    return dict(TERMS[pattern] for pattern in sorted(places, key=lambda pattern: places[pattern]))
