"""Choose example trials of a run by rule: the clearest of each class."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from typing import Any

import numpy as np
import pandas as pd

from topicjax.stages import Array
from topicjax.theory.progress import CUTS, Cuts

from ..frames import distinct
from .scores import CLASSES, class_inputs, class_numbers

KIND = ("objective", "optimizer", "key_visibility")
MOVED = (  # the cuts that separate classes; each is moved towards 0 and towards 1
    *("collapsed", "no_learning", "finished", "attention"),
    *("stage2", "two_stage", "simultaneous", "topical"),
)
SHIFTS = 10  # equal steps from a cut to 0 or to 1; it is moved by all but the last
Queues = dict[int, deque[int]]  # for one class: kind -> ranks of its trials, ascending


def example_trials(scores: pd.DataFrame, count: int = 4) -> list[str]:
    """List the ids of up to `count` trials, the first of `ranked_trials`."""
    return list(islice(ranked_trials(scores), count))


def ranked_trials(scores: pd.DataFrame, cuts: Cuts = CUTS) -> Iterator[str]:
    """Yield the ids of all trials, the most representative first; the order depends only on the scores.

    The first round has one trial of each class of the loss view: two-stage, then the most frequent class,
    failed and unscored ones last.  Within a class the order is: trials without a suffix; those with the
    fewest flags; the clearest (see `clearness`); those that the norm view classifies differently (for
    two-stage those that both views agree on, as a baseline for the others); the smaller id.  Further rounds
    begin with objectives, optimizers and keys that are not shown yet.
    """
    margin, held = clearness(scores, cuts)
    names = dict(
        changes=scores["suffix"] != "",
        flags=[len(flags.split(",")) if flags else 0 for flags in scores["flags"]],
        unclear=-margin,
        agrees=(scores["class"] == scores["class_norm"]) ^ (scores["class"] == "two-stage"),
        doubtful=-held,
        id=scores["trial_id"],
    )
    rank = pd.DataFrame(names).sort_values(list(names))
    kind = pd.Series(distinct(scores, KIND)[0], scores.index)
    left: dict[str, Queues] = {}
    indices: Any = rank.assign(**{"class": scores["class"], "kind": kind}).groupby(["class", "kind"]).indices
    for (name, kind), places in indices.items():
        left.setdefault(name, {})[kind] = deque(places.tolist())
    sizes = {name: sum(map(len, queues.values())) for name, queues in left.items()}
    is_last = {name: name in ("diverged", "collapsed", "unscored") for name in left}
    order = sorted(
        left, key=lambda name: (name != "two-stage", is_last[name], -sizes[name], CLASSES.index(name))
    )
    ids, shown = rank["id"].to_numpy(), set()
    for turn in range(max(sizes.values(), default=0)):
        for name in (name for name in order if turn < sizes[name]):
            kind, place = take(left[name], shown if turn else set())
            shown.add(kind)
            yield ids[place]


def clearness(scores: pd.DataFrame, cuts: Cuts = CUTS) -> tuple[Array, Array]:
    """Measure how far any single cut can move before a trial changes class, and how many moves it survives.

    A cut moves towards 0 or towards 1; the first number is the share of that way, in tenths, and the minimum
    over all cuts.
    """
    inputs = class_inputs(scores, "loss")
    before = class_numbers(inputs, "loss", cuts)
    least, total = np.full(len(scores), SHIFTS - 1), np.zeros(len(scores), int)
    for name, end in product(MOVED, (0.0, 1.0)):
        cut, same, held = getattr(cuts, name), np.ones(len(scores), bool), np.zeros(len(scores), int)
        for shift in range(1, SHIFTS):
            moved = replace(cuts, **{name: cut + (end - cut) * shift / SHIFTS})
            same &= class_numbers(inputs, "loss", moved) == before
            held += same
        least, total = np.minimum(least, held), total + held
    return least / SHIFTS, total


def take(queues: Queues, shown: set[int]) -> tuple[int, int]:
    """Take the first trial of a class, if possible of a kind not shown yet; return kind and rank."""
    kinds = [kind for kind in queues if kind not in shown] or list(queues)
    kind = min(kinds, key=lambda kind: queues[kind][0])
    place = queues[kind].popleft()
    if not queues[kind]:
        del queues[kind]
    return kind, place
