"""What a run says, as sentences made from its numbers: the answer, its doubts, what is missing."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.frames import SETTINGS
from analysis.pictures import described, number, varying
from analysis.scores import trains_value
from analysis.stages import CUTS, sensitivity, trains_attention, trains_both

SWEPT = ("seed", "learning_rate", "init_scale")  # the axes of a map and its replicates
LISTED = 3  # so many combinations are named in a sentence


def findings(scores: pd.DataFrame, cells: pd.DataFrame, missing: Sequence[str] = ()) -> list[str]:
    """Return the sentences of a run's answer, the answer itself first."""
    sentences = [*answer(scores), *views(scores), *budget(scores), *divergence(scores)]
    sentences += [*seeds(cells), *cuts(scores)]
    return sentences + [f"Not complete: {sentence}." for sentence in missing]


def answer(scores: pd.DataFrame) -> Iterable[str]:
    """Say how many trials are two-stage in the loss view, and where."""
    frozen = len(scores) - len(competing(scores))
    if frozen == len(scores):
        yield f"{frozen_parts(scores)} in every trial, so none can be two-stage: classes are by construction."
        return
    yield from where_it_holds(competing(scores))
    if frozen:
        yield f"{number(frozen, 'further trial')} with a frozen part: classed by construction."


def where_it_holds(scores: pd.DataFrame) -> Iterable[str]:
    """Say how many of the trials that train both parts are two-stage, and where."""
    is_two_stage, theta = column(scores, "class") == "two-stage", column(scores, "theta")
    if not is_two_stage.any():
        name, count = most_frequent(column(scores, "class"))
        yield (
            f"No trial is two-stage in the loss view; most frequent is {name} "
            f"({share(count, len(scores))}). The largest Θ is {largest(theta)}."
        )
        return
    total, topical = count_of(is_two_stage), count_of(is_two_stage & is_topical(scores))
    lost = count_of(is_two_stage & (column(scores, "excess") > -0.5))  # the loss ended not half way down
    yield (
        f"{share(total, len(scores))} are two-stage in the loss view (median Θ "
        f"{np.median(theta[is_two_stage]):.2f}); {of_these(topical, total)} attention became topical"
        + (f", and {lost} lost more than half of their gain again by the end." if lost else ".")
    )
    yield from places(scores, is_two_stage)


def places(scores: pd.DataFrame, is_two_stage: np.ndarray) -> Iterable[str]:
    """Say for which combinations of the other settings it holds most often, and never."""
    names = varying(scores, [name for name in SETTINGS if name not in SWEPT])
    if not names:
        return
    counts = []
    for key, rows in scores.groupby(names, sort=False, dropna=False).indices.items():
        counts.append((combination(names, key), count_of(is_two_stage[rows]), len(rows)))
    counts.sort(key=lambda row: -row[1])
    most = [f"{text} ({hits} of {size})" for text, hits, size in counts if hits][:LISTED]
    never = [text for text, hits, _ in counts if not hits]
    ending = ""
    if never:
        more = f" and {len(never) - LISTED} more" if len(never) > LISTED else ""
        ending = f"; never with {'; '.join(never[:LISTED])}{more}"
    yield f"It holds most often with {'; '.join(most)}{ending}."


def views(scores: pd.DataFrame) -> Iterable[str]:
    """Say where the paper's view, the norms, differs from the loss."""
    scored = competing(scores)
    if scored.empty:
        return
    loss, norm = column(scored, "class"), column(scored, "class_norm")
    by_norm = norm == "two-stage"
    other, flat = count_of(by_norm & (loss != "two-stage")), count_of(by_norm & ~is_topical(scored))
    text = f"By the norms alone, as in the paper's Figure 4, {share(count_of(by_norm), len(scored))} "
    text += f"would be two-stage, {other} of them not in the loss view"
    text += f"; {flat} of them never attend by topic" if flat else ""
    yield f"{text}. Both views give {share(count_of(loss == norm), len(scored))} the same class."


def budget(scores: pd.DataFrame) -> Iterable[str]:
    """Say which classes may change with more steps."""
    kind, flags = column(scores, "class"), column(scores, "flags")
    is_late = np.array(["censored_attention" in x or "attention_incomplete" in x for x in flags])
    parts = {
        "unfinished": kind == "unfinished",
        "V-only (attention has not moved yet)": (kind == "V-only") & trains_attention(scores),
        "two-stage or overlapping with attention's onset in the last tenth or not reached": (
            is_late & np.isin(kind, ["two-stage", "overlapping"])
        ),
    }
    named = [f"{count_of(which)} {text}" for text, which in parts.items() if which.any()]
    if named:
        yield f"Statements about the budget of steps, not about the limit: {'; '.join(named)}."


def divergence(scores: pd.DataFrame) -> Iterable[str]:
    """Say how many trials diverged and at which learning rates."""
    diverged = column(scores, "learning_rate")[column(scores, "class") == "diverged"]
    if len(diverged):
        low, high = diverged.min(), diverged.max()
        rates = f"a learning rate of {low:.3g}" if low == high else f"learning rates {low:.3g} to {high:.3g}"
        yield f"{share(len(diverged), len(scores))} diverged, with {rates}; they are in no median."


def seeds(cells: pd.DataFrame) -> Iterable[str]:
    """Say whether the seeds of a cell agree."""
    repeated = cells.loc[column(cells, "trials") > 1]
    if repeated.empty:
        yield "Every cell has one seed: nothing here tells how much the seed matters."
        return
    split, most = count_of(column(repeated, "agreement") < 1), column(repeated, "trials").max()
    yield f"The seeds disagree on the class in {split} of {len(repeated)} cells (up to {most} seeds a cell)."


def cuts(scores: pd.DataFrame) -> Iterable[str]:
    """Say how much the cut of Theta matters."""
    if np.isnan(column(scores, "theta")).all():
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


def combination(names: Sequence[str], values: object) -> str:
    """Return values of settings as a reader says them: squared, SGD, keys all."""
    row = values if isinstance(values, tuple) else (values,)
    return ", ".join(described(dict(zip(names, row, strict=True)), names))


def frozen_parts(scores: pd.DataFrame) -> str:
    """Return which part is not trained anywhere."""
    if not trains_attention(scores).any():
        return "Attention is uniform by construction"
    return "The value matrix is frozen" if not trains_value(scores).any() else "V or attention is frozen"


def most_frequent(classes: np.ndarray) -> tuple[str, int]:
    """Return the most frequent class and how often it is."""
    return Counter(classes.tolist()).most_common(1)[0]


def largest(values: np.ndarray) -> str:
    """Return the largest number, if there is any."""
    return "undefined" if np.isnan(values).all() else f"{np.nanmax(values):.2f}"


def competing(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the trials that train both V and attention."""
    return scores.loc[trains_both(scores)]


def is_topical(scores: pd.DataFrame) -> np.ndarray:
    """Return whether attention became topical."""
    return np.array([suffix.startswith("topical") for suffix in column(scores, "suffix")], bool)


def column(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column as an array."""
    return np.asarray(frame[name])


def count_of(which: np.ndarray) -> int:
    """Return how many are so."""
    return int(np.count_nonzero(which))


def share(count: int, total: int) -> str:
    """Return '66 of 384 trials (17 %)'."""
    return f"{count:,} of {number(total, 'trial')} ({100 * count / total:.0f} %)"


def of_these(count: int, total: int) -> str:
    """Return how many of the trials just named."""
    return "in all of these" if count == total else f"in {count} of these"
