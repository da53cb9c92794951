"""Which trials stand for a run: a few telling ones, chosen by rule."""

from itertools import cycle

import pandas as pd

from .stages import CLASSES

KIND = ("objective", "optimizer", "key_visibility")


def example_trials(scores: pd.DataFrame, count: int = 4) -> list[str]:
    """Return the ids of up to `count` telling trials; the same scores give the same ids.

    One of each class of the loss view, the most frequent first, diverged and unscored ones last.
    Of a class, in this order: trials that keep what they learned before those that recede; those
    that the norm view classes otherwise (of two-stage, those that both views call so: the others
    are read against them); nearest the median Theta of the class; the smaller id.  If classes run
    out, further rounds begin with objectives, optimizers and keys that are not shown yet.
    """
    distance = (scores["theta"] - scores.groupby("class")["theta"].transform("median")).abs().fillna(0)
    agrees = (scores["class"] == scores["class_norm"]) ^ (scores["class"] == "two-stage")
    kind = scores[[*KIND]].astype(str).agg(" ".join, axis=1)
    recedes = scores["flags"].str.contains("recedes")
    rank = pd.DataFrame(
        dict(recedes=recedes, agrees=agrees, distance=distance, id=scores["trial_id"], kind=kind)
    )
    rank = rank.sort_values(["recedes", "agrees", "distance", "id"])
    groups = rank.groupby(scores["class"])
    left = {str(name): group[["id", "kind"]].to_numpy().tolist() for name, group in groups}
    is_last = {name: name in ("diverged", "unscored") for name in left}
    order = sorted(left, key=lambda name: (is_last[name], -len(left[name]), CLASSES.index(name)))
    chosen: dict[str, str] = {}
    for turn, name in enumerate(cycle(order)):
        if len(chosen) >= min(count, len(scores)):
            break
        shown = set(chosen.values()) if turn >= len(order) else set()
        by_novelty = sorted(left[name], key=lambda pair: pair[1] in shown)  # stable: keeps the rank
        chosen |= dict(by_novelty[:1])
        left[name] = [pair for pair in left[name] if pair[0] not in chosen]
    return list(chosen)
