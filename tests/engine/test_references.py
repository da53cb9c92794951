"""Reference losses: computed once for equal data, beside a training, and never its undoing."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from support.slow_trials import EXPERIMENT

from topicjax.engine.references import Background, Known, Pending, checked, compute, pending_references
from topicjax.errors import UserError

MAKE = EXPERIMENT.settings.make_trial


def test_a_chunk_that_needs_some_does_not_wait_for_all() -> None:
    last, begin = threading.Event(), threading.Event()

    def references(trial):
        if trial.stream.seed:
            last.wait(20)
        return {"best": 1.0}

    wanted = [Pending({"seed": seed}, MAKE({"seed": seed})) for seed in (0, 1)]
    computed = Background(replace(EXPERIMENT, references=references), wanted, begin, lambda: None)
    started = time.monotonic()
    computed.wait(lambda: False, lambda: len(computed.entries) > 0)
    assert computed.entries == [{"settings": {"seed": 0}, "values": {"best": 1.0}}]
    assert computed.left == 1 and time.monotonic() - started < 10
    last.set()
    computed.wait(lambda: False)
    assert computed.left == 0


def test_equal_data_share_them_and_what_is_known_is_not_wanted():
    trials = [
        MAKE({"seed": s, "size": n, "learning_rate": r}) for s in (0, 1) for n in (3, 4) for r in (0.1, 0.2)
    ]
    own = replace(EXPERIMENT, references=lambda trial: {}, reference_settings=None)
    wanted = pending_references(own, trials, [])
    assert [each.settings for each in wanted] == [{"size": n, "seed": s} for n in (3, 4) for s in (0, 1)]
    known = [{"settings": {"seed": 1, "size": 3}, "values": {"best": 0.5}}]
    assert len(pending_references(own, trials, known)) == 3
    by_size = replace(own, reference_settings=lambda trial: ("size",))
    assert [each.settings for each in pending_references(by_size, trials, [])] == [{"size": 3}, {"size": 4}]
    found = Known(own, known)
    assert [found.of(trial) for trial in trials[:6:2]] == [None, None, {"best": 0.5}]
    assert Known(replace(own, references=None), []).of(trials[0]) == {}


def test_what_they_raise_is_a_sentence_and_what_is_no_number_is_refused():
    def fail(trial):
        raise TypeError("unsupported operand")

    own = replace(EXPERIMENT, references=fail)
    assert compute(own, Pending({"seed": 0}, MAKE({}))) == {
        "settings": {"seed": 0},
        "error": "unsupported operand",
    }
    assert checked(own, {"a": np.float32(2), "b": float("nan")}) == {"a": 2.0, "b": None}
    with pytest.raises(
        UserError, match=r"references of slow_trials returns \[1\]; allowed: a dict of numbers by"
    ):
        checked(own, [1])
    with pytest.raises(UserError, match="references of slow_trials has best = 'low'; allowed: a number"):
        checked(own, {"best": "low"})
