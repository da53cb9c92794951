"""What a run says, as sentences made from its numbers: the answer, its doubts, what is missing."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.frames import SETTINGS
from analysis.pictures import label
from analysis.scores import trains_value
from analysis.stages import CUTS, sensitivity, trains_attention

SWEPT = ("seed", "learning_rate", "init_scale")  # the axes of a map and its replicates
LISTED = 3  # so many combinations are named in a sentence


def findings(scores: pd.DataFrame, cells: pd.DataFrame, missing: Sequence[str] = ()) -> list[str]:
    """Return the sentences of a run's answer, the answer itself first."""
    sentences = [*answer(scores), *views(scores), *budget(scores), *divergence(scores)]
    sentences += [*seeds(cells), *cuts(scores)]
    return sentences + [f"Not complete: {sentence}." for sentence in missing]


def answer(scores: pd.DataFrame) -> Iterable[str]:
    """Say how many trials are two-stage in the loss view, and where."""
    both = trains_value(scores) & trains_attention(scores)
    if not both.any():
        yield f"{frozen_parts(scores)} in every trial, so none can be two-stage: classes are by construction."
        return
    is_two_stage = (scores["class"] == "two-stage").to_numpy()
    if not is_two_stage.any():
        name, count = most_frequent(scores["class"])
        yield (
            f"No trial is two-stage in the loss view; most frequent is {name} "
            f"({share(count, len(scores))}). The largest Θ is {largest(scores['theta'])}."
        )
        return
    found = scores[is_two_stage]
    topical = found["suffix"].str.startswith("topical").sum()
    lost = int((found["excess"] > -0.5).sum())  # the loss ended less than half way down
    yield (
        f"{share(len(found), len(scores))} are two-stage in the loss view (median Θ "
        f"{found['theta'].median():.2f}); {of_these(topical, len(found))} attention became topical"
        + (f", and {lost} lost more than half of their gain again by the end." if lost else ".")
    )
    yield from places(scores, is_two_stage)


def places(scores: pd.DataFrame, is_two_stage: np.ndarray) -> Iterable[str]:
    """Say for which combinations of the other settings it holds most often, and never."""
    names = combination_settings(scores)
    if not names:
        return
    groups = scores.assign(found=is_two_stage).groupby(names, sort=False, dropna=False)["found"]
    table = groups.agg(["sum", "size"]).sort_values("sum", ascending=False, kind="stable")
    texts = [combination(names, key) for key in table.index]
    counts = list(zip(texts, table["sum"], table["size"], strict=True))
    most = [f"{text} ({hits} of {size})" for text, hits, size in counts if hits][:LISTED]
    never = [text for text, hits, _ in counts if not hits]
    ending = ""
    if never:
        more = f" and {len(never) - LISTED} more" if len(never) > LISTED else ""
        ending = f"; never with {'; '.join(never[:LISTED])}{more}"
    yield f"It holds most often with {'; '.join(most)}{ending}."


def views(scores: pd.DataFrame) -> Iterable[str]:
    """Say where the paper's view, the norms, differs from the loss."""
    scored = scores[trains_value(scores) & trains_attention(scores)]
    if scored.empty:
        return
    loss, norm = scored["class"], scored["class_norm"]
    by_norm = norm == "two-stage"
    flat = by_norm & ~scored["suffix"].str.startswith("topical")
    agree = share(int((loss == norm).sum()), len(scored))
    text = f"By the norms alone, as in the paper's Figure 4, {share(int(by_norm.sum()), len(scored))} "
    text += f"would be two-stage, {int((by_norm & (loss != 'two-stage')).sum())} of them not in the loss view"
    text += f"; {int(flat.sum())} of them never attend by topic" if flat.any() else ""
    yield f"{text}. Both views give {agree} the same class."


def budget(scores: pd.DataFrame) -> Iterable[str]:
    """Say which classes may change with more steps."""
    unfinished = int((scores["class"] == "unfinished").sum())
    still = scores["class"].eq("V-only") & trains_attention(scores)
    late = scores["flags"].str.contains("censored_attention|attention_incomplete") & scores["class"].isin(
        ["two-stage", "overlapping"]
    )
    parts = {
        "unfinished": unfinished,
        "V-only (attention has not moved yet)": int(still.sum()),
        "two-stage or overlapping with attention's onset in the last tenth or not reached": int(late.sum()),
    }
    named = [f"{count} {text}" for text, count in parts.items() if count]
    if named:
        yield f"Statements about the budget of steps, not about the limit: {'; '.join(named)}."


def divergence(scores: pd.DataFrame) -> Iterable[str]:
    """Say how many trials diverged and at which learning rates."""
    diverged = scores[scores["class"] == "diverged"]
    if len(diverged):
        low, high = diverged["learning_rate"].min(), diverged["learning_rate"].max()
        rates = f"a learning rate of {low:.3g}" if low == high else f"learning rates {low:.3g} to {high:.3g}"
        yield f"{share(len(diverged), len(scores))} diverged, with {rates}; they are in no median."


def seeds(cells: pd.DataFrame) -> Iterable[str]:
    """Say whether the seeds of a cell agree."""
    repeated = cells[cells["trials"] > 1]
    if repeated.empty:
        yield "Every cell has one seed: nothing here tells how much the seed matters."
        return
    split = int((repeated["agreement"] < 1).sum())
    most = repeated["trials"].max()
    yield f"The seeds disagree on the class in {split} of {len(repeated)} cells (up to {most} seeds a cell)."


def cuts(scores: pd.DataFrame) -> Iterable[str]:
    """Say how much the cut of Theta matters."""
    if not scores["theta"].notna().any():
        return
    table = sensitivity(scores)
    table = table[(table["view"] == "loss") & (table["cut"] != CUTS.two_stage)]
    changes = [f"at {row.cut:g} {100 * row.trials_changed:.0f} %" for row in table.itertuples()]
    yield (
        f"The cut Θ ≥ {CUTS.two_stage:g} is a convention: {' and '.join(changes)} of the trials "
        "would be in another class."
    )


def combination_settings(scores: pd.DataFrame) -> list[str]:
    """Return the settings that vary besides learning rate, init scale and seed."""
    names = [name for name in SETTINGS if name in scores and name not in SWEPT]
    return [name for name in names if scores[name].nunique(dropna=False) > 1]


def combination(names: Sequence[str], values: object) -> str:
    """Return values of settings as a reader says them: SGD, cross-entropy, keys: all."""
    spoken = ("optimizer", "objective")
    row = values if isinstance(values, tuple) else (values,)
    parts = [
        label(value) if name in spoken else f"{label(name)} {label(value)}"
        for name, value in zip(names, row, strict=True)
    ]
    return ", ".join(parts)


def frozen_parts(scores: pd.DataFrame) -> str:
    """Return which part is not trained anywhere."""
    if not trains_attention(scores).any():
        return "Attention is uniform by construction"
    return "The value matrix is frozen" if not trains_value(scores).any() else "V or attention is frozen"


def most_frequent(classes: pd.Series) -> tuple[str, int]:
    """Return the most frequent class and how often it is."""
    counts = classes.value_counts()
    return str(counts.index[0]), int(counts.iloc[0])


def largest(values: pd.Series) -> str:
    """Return the largest number, or a dash."""
    return f"{values.max():.2f}" if values.notna().any() else "undefined"


def share(count: int, total: int) -> str:
    """Return '66 of 384 trials (17 %)'."""
    return f"{count:,} of {number(total, 'trial')} ({100 * count / total:.0f} %)"


def number(count: int, thing: str) -> str:
    """Return '1 trial', '1,234 trials'."""
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def of_these(count: int, total: int) -> str:
    """Return how many of the trials just named."""
    return "in all of these" if count == total else f"in {count} of these"
