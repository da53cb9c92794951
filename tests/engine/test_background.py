"""Limit lines computed beside a training."""

import threading
import time

from topicjax.engine.background import Background
from topicjax.experiments import Line


def test_whoever_waits_for_some_lines_does_not_wait_for_all() -> None:
    last, begin = threading.Event(), threading.Event()
    wanted = [Line({"name": 0}, lambda: {"stage1": 1.0}), Line({"name": 1}, lambda: last.wait(20) and {})]
    lines = Background(wanted, begin, lambda: None)
    started = time.monotonic()
    lines.wait(lambda: False, lambda: len(lines.entries) > 0)
    assert lines.entries == [{"name": 0, "stage1": 1.0}]
    assert lines.left == 1 and time.monotonic() - started < 10
    last.set()
    lines.wait(lambda: False)
    assert lines.left == 0
