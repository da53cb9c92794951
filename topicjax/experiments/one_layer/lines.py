"""Limit lines of topic documents: which a sweep needs, and the documents as theory takes them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from topicjax.experiments import Line
from topicjax.experiments.one_layer import lda
from topicjax.experiments.one_layer.settings import DATA_SETTINGS, settings_of, traced
from topicjax.theory.documents import DataModel
from topicjax.theory.limits import limit_lines
from topicjax.trial import Trial


def wanted_lines(trials: Iterable[Trial], known: Sequence[dict[str, Any]]) -> list[Line]:
    """Return the lines of each data setting and objective of the trials that are not known yet, once."""
    found: dict[str, Line] = {}
    seen: set[tuple] = set()
    have = [(entry["settings"], entry["objective"]) for entry in known]
    for trial in trials:
        is_drawn = trial.spec.word_distribution == "dirichlet"  # then the seed decides on the words
        stream = trial.stream if is_drawn else trial.stream._replace(seed=0)
        quick = (trial.spec, stream, trial.hypers.objective)
        if quick in seen:
            continue
        seen.add(quick)
        every, objective = settings_of(trial), trial.hypers.objective
        data = {name: every[name] for name in (*DATA_SETTINGS, *(["seed"] if is_drawn else []))}
        if (data, objective) not in have:
            found.setdefault(f"{sorted(data.items())}{objective}", line(trial, data))
    return list(found.values())


def line(trial: Trial, data: dict[str, Any]) -> Line:
    """Return the lines of a trial's documents under its objective, to be computed."""
    objective = trial.hypers.objective
    return Line({"settings": data, "objective": objective}, lambda: limit_lines(data_model(trial), objective))


class StageLines(NamedTuple):
    """The losses of the best models of both stages."""

    stage1: float
    stage2: float


def line_finder(entries: Sequence[dict[str, Any]]) -> Callable[[Trial], StageLines | None]:
    """Return a function from a trial to its stage lines, on its held-out documents where these are known."""
    known = {
        (entry["objective"], *sorted(entry["settings"].items())): entry
        for entry in entries
        if entry.get("stage1") is not None
    }
    fields = sorted({tuple(sorted(entry["settings"])) for entry in entries})

    def find(trial: Trial) -> StageLines | None:
        every = settings_of(trial)
        for names in fields:
            entry = known.get((every["objective"], *((name, every[name]) for name in names)))
            if entry is not None:
                found = StageLines(*(entry.get(f"held_out_{n}") or entry[n] for n in StageLines._fields))
                return found if found.stage2 < found.stage1 else None
        return None

    return find


def data_model(trial: Trial) -> DataModel:
    """Return the trial's documents as theory takes them."""
    is_plain = trial.spec.word_distribution == "uniform" and trial.stream.overlap == 0
    words = None
    if not is_plain:
        words = np.asarray(lda.topic_words(trial.spec, traced(trial.stream)), np.float64)
        words /= words.sum(axis=1, keepdims=True)
    return DataModel.of(settings_of(trial), words)
