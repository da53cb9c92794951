"""Findings of a run of the one-layer model, in sentences: the answer, caveats, gaps, and definitions."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from topicjax.errors import counted
from topicjax.store.reader import Run
from topicjax.theory.progress import CUTS

from ..maps.cells import majority
from ..pictures import written
from ..topic_model import HELD_OUT_LINES
from .cells import cell_numbers, count_cells, sensitivity, where
from .claims import ABOUT_STAGES, BUDGET
from .robustness import axes_of, survival
from .scores import CLASSES, score_trials, trains_attention, trains_both, trains_value

MOST_RESCORED = 2000  # trials: larger runs are not scored a second time
WORDS = {  # word: (meaning, pattern of its uses)
    "trial": ("one training run of one model, fully described by its settings", r"trials?"),
    "cell": ("the trials that differ only in the seed; its class is the most frequent one", r"cells?"),
    "seed": ("the number that draws initial weights and documents", r"seeds?"),
    "V": ("the value matrix W^V, which predicts words from the mean of what is attended to", r"V|W\^V"),
    "keys": (
        "the positions that attention can look at: all, as in the paper's equation, or only unmasked ones",
        r"keys (?:all|unmasked)",
    ),
    "Θ (Theta)": (
        "how far V had come when attention began: the maximum over the steps of min(progress of V, "
        "1 - progress of attention). 1: V was done first; 0.5: both together; 0: attention was done first",
        r"Θ",
    ),
    "log lag": ("the number of e-foldings of the step by which V is ahead of attention", r"[Ll]og lag"),
    "loss view": (
        "progress measured by held-out losses: V by the loss with attention forced uniform, attention by how "
        "much it lowers that loss, in units of stage 1 - stage 2, which is what the topics can give",
        r"loss view|by the loss",
    ),
    "order view": (
        "progress measured by order parameters: same-topic minus other-topic entries of the value matrix and "
        "of the attention scores",
        r"order view|order parameters",
    ),
    "norms": (
        "progress measured by the norms of W^V and of W^K and W^Q, as in the paper's Figure 4",
        r"norms",
    ),
    "two-stage": (
        f"W^V learns the topics first, while attention is still uniform; then attention learns them: Θ of at "
        f"least {CUTS.two_stage:g}, attention gained at least {CUTS.stage2:.0%} of what topics can give, and "
        "it became topical",
        r"two-stage|Two-stage",
    ),
    "topical": (
        f"attention scores within a topic are at least {CUTS.topical:g} above those between topics",
        r"topical|by topic",
    ),
    "two-stage, non-topical": ("two-stage, but attention did not become topical", r"two-stage, non-topical"),
    "stage 2 begun": (
        f"V was first, but attention gained less than {CUTS.stage2:.0%} of what topics give within the "
        "steps of the run",
        r"stage 2 begun",
    ),
    "V leads": (f"V was ahead of attention, but with Θ below {CUTS.two_stage:g}", r"V leads"),
    "simultaneous": (
        f"V and attention are learned together: Θ and its reverse are below {CUTS.simultaneous:g}",
        r"simultaneous",
    ),
    "attention leads": ("attention was ahead of V, but V had begun", r"attention leads"),
    "reversed": ("attention helps before V is learned", r"reversed"),
    "V-only": ("V is learned, but attention has not moved within the steps of the run", r"V-only"),
    "compensated": (
        "the loss reaches stage 1, but not with attention forced uniform",
        r"compensated",
    ),
    "attention-only": ("attention moved, but V is frozen or did not", r"attention-only"),
    "unfinished": (f"less than {CUTS.finished:.0%} of the way to the best loss of stage 1", r"unfinished"),
    "no-learning": (
        f"less than {CUTS.no_learning:.0%} of the way to the best loss of stage 1",
        r"no-learning",
    ),
    "diverged": ("not finite", r"diverged"),
    "collapsed": ("finite, never finished, and the final loss is above the initial one", r"collapsed"),
    "then lost": (
        "a suffix: only the way up is scored, and the trial ended with less than "
        f"{CUTS.lost:.0%} of its gain",
        r"then lost",
    ),
    "then copying": (
        "a suffix: at the end a word counts more for itself than for its topic",
        r"then copying|copying",
    ),
}


def findings(
    scores: pd.DataFrame, cells: pd.DataFrame, missing: Sequence[str] = (), claims: Sequence[str] = ()
) -> list[str]:
    """Write the sentences of a run's answer, the main one first; counts are of cells.

    The verdicts on `claims`, those of the sweep, come before and replace the answer; its caveats are left out
    as well if none of them is about stages.
    """
    both = cells.loc[trains_both(cells)]
    sentences = [] if claims else [*answer(scores, cells, both), *views(both)]
    if not claims or not ABOUT_STAGES.isdisjoint(claims):
        sentences += [*afterwards(scores, both), *budget(both), *seeds(cells), *cuts(scores)]
    sentences += divergence(scores, cells)
    return sentences + [f"Not complete: {sentence}." for sentence in missing]


def answer(scores: pd.DataFrame, cells: pd.DataFrame, both: pd.DataFrame) -> Iterable[str]:
    """Say in how many cells training is two-stage by the loss, and where."""
    if both.empty:
        yield f"{frozen_parts(scores)} in every trial, so none can be two-stage: classes are by construction."
        return
    is_two_stage, theta = array(both, "class") == "two-stage", array(both, "theta")
    if is_two_stage.any():
        flat = count_of(array(both, "class") == "two-stage, non-topical")
        yield (
            f"Two-stage by the loss (V first, then topical attention) in {share(is_two_stage)} of this grid, "
            f"with a median Θ of {smallest_to_largest(theta[is_two_stage])}"
            + (f"; in {flat} more the second stage is not topical." if flat else ".")
        )
        y, axes = axes_of(cells)
        lasting = survival(axes, y) if len(axes) > 1 else [f"It holds with {where(both, is_two_stage)}."]
        yield from lasting if len(both) > 1 else []
    else:
        name, count = Counter(array(both, "class").tolist()).most_common(1)[0]
        yield (
            f"No cell is two-stage by the loss; most frequent is {name} ({count} of "
            f"{counted(len(both), 'cell')}). The largest median Θ is {largest(theta)}."
        )
    frozen = len(cells) - len(both)
    if frozen:
        yield f"{counted(frozen, 'more cell')} with a frozen part: class by construction."


def views(both: pd.DataFrame) -> Iterable[str]:
    """Say where the norms, the paper's view, call cells two-stage that the loss does not."""
    by_norm = array(both, "class_norm") == "two-stage" if len(both) else np.zeros(0, bool)
    other = count_of(by_norm & (array(both, "class") != "two-stage")) if len(both) else 0
    if other:
        flat = count_of(by_norm & (array(both, "topical") <= array(both, "trials") / 2))
        yield (
            f"By the norms alone, as in the paper's Figure 4, {share(by_norm)} would be two-stage, {other} "
            f"of them not by the loss" + (f"; {flat} never attend by topic." if flat else ".")
        )


def afterwards(scores: pd.DataFrame, both: pd.DataFrame) -> Iterable[str]:
    """Say in how many two-stage cells most trials later lose what they gained, or turn to copying."""
    two_stage = scores.loc[trains_both(scores) & (array(scores, "class") == "two-stage")]
    if two_stage.empty:
        return
    number = cell_numbers(two_stage)[1]
    ways = {"then lost": "lose more than half of it again", "then copying": "turn to copying"}
    rates = {text: np.bincount(number, has_suffix(two_stage, name)) for name, text in ways.items()}
    counts = {text: count_of(hits > np.bincount(number) / 2) for text, hits in rates.items()}
    named = [f"in {count} most trials {text}" for text, count in counts.items() if count]
    if named:
        total = counted(int(number.max()) + 1, "cell")
        yield f"After both stages, of {total} with two-stage trials: {', '.join(named)}."


def budget(both: pd.DataFrame) -> Iterable[str]:
    """Say how many cells have a class that more steps may change."""
    kinds = Counter(name for name in (array(both, "class") if len(both) else []) if name in BUDGET)
    if kinds:
        listed = ", ".join(f"{count} {name}" for name, count in kinds.most_common())
        total = f"{sum(kinds.values())} of {counted(len(both), 'cell')}"
        yield f"More steps could change the class of {total}: {listed}."


def divergence(scores: pd.DataFrame, cells: pd.DataFrame) -> Iterable[str]:
    """Say how many trials diverged or collapsed, in how many cells, and at which learning rates."""
    ways = dict(diverged="diverged (not finite)", collapsed="collapsed (the loss ended higher)")
    number = cell_numbers(scores)[1]
    for name, text in ways.items():
        is_lost = array(scores, "class") == name
        if is_lost.any():
            rates = array(scores, "learning_rate")[is_lost]
            at = "a learning rate of" if rates.min() == rates.max() else "learning rates"
            touched = f"{len({*number[is_lost]})} of {counted(len(cells), 'cell')}"
            yield (
                f"{counted(count_of(is_lost), 'trial')} in {touched} {text}, with {at} "
                f"{smallest_to_largest(rates)}; medians leave them out."
            )


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
    """Say how many cells change class with the cut of Theta."""
    if np.isnan(array(scores, "theta")).all():
        return
    total = count_cells(scores)
    table = sensitivity(scores).to_dict("records")
    changes = {
        row["cut"]: round(total * row["cells_changed"])
        for row in table
        if row["view"] == "loss" and row["cut"] != CUTS.two_stage
    }
    texts = [f"{count} with {cut:g} instead" for cut, count in changes.items()]
    cells = f"of {counted(total, 'cell')}"
    start = (
        f"'V first' means that V had made at least {CUTS.two_stage:.0%} of its way (Θ ≥ {CUTS.two_stage:g})"
    )
    if any(changes.values()):
        yield f"{start}, a convention: {' and '.join(texts)} {cells} would be in another class."
    else:
        yield f"{start}; with {' or '.join(f'{cut:g}' for cut in changes)} every cell has the same class."


def documents(run: Run, scores: pd.DataFrame) -> Iterable[str]:
    """Say how far Θ moves, and how many cells change class, by the lines of all documents.

    All trials share their held-out documents, so the spread over seeds does not include the error that comes
    from having only these; the difference between the two kinds of lines does.
    """
    trials = run.trials
    if not {*HELD_OUT_LINES} <= {*trials} or len(trials) > MOST_RESCORED or not trains_both(scores).any():
        return
    if trials[list(HELD_OUT_LINES)].isna().to_numpy().all():
        return
    other = run.replace(trials=trials.assign(**dict.fromkeys(HELD_OUT_LINES, np.nan)))
    number = cell_numbers(scores)[1]
    tables = scores, score_trials(other)
    classes = [majority(number, array(own, "class"), CLASSES)[0] for own in tables]
    changed = count_of(classes[0] != classes[1])
    total = counted(len(classes[0]), "cell")
    text = (
        "Held-out documents: measured by the best losses over all documents instead of those on the held-out "
        f"ones, {changed or 'none'} of {total} would be in another class."
    )
    moved = np.abs(scores["theta"].to_numpy(float) - tables[1]["theta_any"].to_numpy(float))
    moved = moved[np.isfinite(moved)]
    if len(moved):
        text += (
            f" Θ of single trials would move by {np.median(moved):.3f} in the median and by at most "
            f"{moved.max():.3f}; quartiles over seeds do not contain this error."
        )
    yield text


def frozen_parts(scores: pd.DataFrame) -> str:
    """Say which part is not trained in any trial."""
    if not trains_attention(scores).any():
        return "Attention is uniform by construction"
    return "The value matrix is frozen" if not trains_value(scores).any() else "V or attention is frozen"


def largest(values: np.ndarray) -> str:
    """Write the largest number, or "undefined"."""
    return "undefined" if np.isnan(values).all() else f"{np.nanmax(values):.2f}"


def has_suffix(scores: pd.DataFrame, suffix: str) -> np.ndarray:
    """Mask the trials with this suffix."""
    return np.array([suffix in found for found in array(scores, "suffix")], bool)


def array(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column as an array."""
    return np.asarray(frame[name])


def count_of(which: np.ndarray) -> int:
    """Count the true entries."""
    return int(np.count_nonzero(which))


def share(chosen: np.ndarray) -> str:
    """Write '12 of 96 cells'."""
    return f"{count_of(chosen)} of {counted(len(chosen), 'cell')}"


def smallest_to_largest(values: np.ndarray) -> str:
    """Write the range of numbers, or one number if its ends look the same."""
    low, high = (written(float(end), 3) for end in (np.nanmin(values), np.nanmax(values)))
    return low if low == high else f"{low} to {high}"
