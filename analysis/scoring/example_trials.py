"""Which trials stand for a run: a few telling ones, chosen by rule."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pandas as pd

from ..frames import distinct
from .stages import CLASSES

KIND = ("objective", "optimizer", "key_visibility")
Queues = dict[int, deque[int]]  # of one class: per kind the ranks of its trials, ascending


def example_trials(scores: pd.DataFrame, count: int = 4) -> list[str]:
    """Return the ids of up to `count` telling trials, the first of `ranked_trials`."""
    return list(islice(ranked_trials(scores), count))


def ranked_trials(scores: pd.DataFrame) -> Iterator[str]:
    """Yield the ids of all trials, the most telling first; the same scores give the same ids.

    One of each class of the loss view: two-stage, then the most frequent first, failed and unscored last.
    Of a class, in this order: trials that keep what they learned before those that recede; those
    that the norm view classes otherwise (of two-stage, those that both views call so: the others
    are read against them); nearest the median Theta of the class; the smaller id.  If classes run
    out, further rounds begin with objectives, optimizers and keys that are not shown yet.
    """
    distance = (scores["theta"] - scores.groupby("class")["theta"].transform("median")).abs().fillna(0)
    agrees = (scores["class"] == scores["class_norm"]) ^ (scores["class"] == "two-stage")
    kind = distinct(scores, KIND)[0]
    recedes = scores["flags"].str.contains("recedes") | scores["suffix"].str.contains("lost")
    names = dict(recedes=recedes, agrees=agrees, distance=distance, id=scores["trial_id"])
    rank = pd.DataFrame(names | {"class": scores["class"], "kind": kind})
    rank = rank.sort_values(["recedes", "agrees", "distance", "id"])
    left: dict[str, Queues] = {}
    indices: Any = rank.groupby(["class", "kind"]).indices
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


def take(queues: Queues, shown: set[int]) -> tuple[int, int]:
    """Take the first trial of a class, of a kind that is not shown yet if there is one; return both."""
    kinds = [kind for kind in queues if kind not in shown] or list(queues)
    kind = min(kinds, key=lambda kind: queues[kind][0])
    place = queues[kind].popleft()
    if not queues[kind]:
        del queues[kind]
    return kind, place
