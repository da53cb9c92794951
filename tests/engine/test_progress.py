"""Progress: rates leave compile time out, numbers read as people say them."""

import io
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from topicjax.engine import costs, progress
from topicjax.engine.chunk import Chunk
from topicjax.engine.options import Options
from topicjax.engine.training import Training, callbacks
from topicjax.errors import size


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_rate_and_time_left_without_compile_time(clock):
    out = io.StringIO()
    bar = progress.Progress(10, 10_000.0, out)
    clock[0] += 30
    bar.add_compile_time(20)
    bar.update(steps=2000, ok=1, diverged=1)
    assert bar.rate == 200
    line = out.getvalue()
    assert line.startswith(
        "2/10 trials · 20% of the steps · 200 trial-steps/s · 40 s left · 1 ok, 1 diverged"
    )


def test_time_left_counts_the_programs_that_are_not_compiled_yet(clock):
    out = io.StringIO()
    bar = progress.Progress(10, 10_000.0, out)
    bar.programs = 3
    bar.begin_program("depth=1")
    clock[0] += 30
    bar.add_compile_time(20)
    bar.update(steps=2000)
    assert out.getvalue().startswith("compiling 1/3: depth=1\n")
    assert bar.seconds_left == 8000 / 200 + 2 * 20  # two more programs
    bar.begin_program("depth=2")
    assert bar.group == "program 2/3: depth=2" and bar.seconds_left == 8000 / 200 + 10


def test_compile_times_are_remembered_and_a_foreign_file_is_no_matter(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert costs.expected_compile_time("mine") is None
    for seconds in (9.0, 1.0, 4.0):
        costs.remember_compile_time("mine", seconds)
    assert costs.expected_compile_time("mine") == 9.0 and costs.expected_compile_time("other") is None
    for _ in range(costs.KEPT - 2):
        costs.remember_compile_time("mine", 2.0)
    assert costs.expected_compile_time("mine") == 4.0  # the first is forgotten
    (tmp_path / "topicjax" / costs.COMPILE_TIMES).write_text("[1, 2]")
    assert costs.expected_compile_time("mine") is None


def test_plain_lines_come_every_ten_seconds(clock):
    out = io.StringIO()
    bar = progress.Progress(10, 1000.0, out)
    for _ in range(50):
        clock[0] += 1
        bar.update(steps=1)
    assert len(out.getvalue().splitlines()) == 5


def test_the_first_line_comes_with_the_first_segment(clock):
    out = io.StringIO()
    bar = progress.Progress(10, 1000.0, out)
    clock[0] += 2
    bar.update(steps=50)
    assert out.getvalue().startswith("0/10 trials · 5% of the steps · 25 trial-steps/s · 38 s left")


def test_trials_are_shown_once_they_are_written_not_when_the_next_chunk_ends(clock):
    bar = progress.Progress(10, 1000.0, io.StringIO())
    own = Training([], {}, cast(Any, None), cast(Any, None), bar, Options())
    group = SimpleNamespace(experiment=SimpleNamespace(decided=None))
    on_segment = callbacks(own, cast(Any, group), Chunk([]), lambda: False).on_segment
    written, goes_on = threading.Event(), threading.Event()
    own.later(lambda: (3, 1) if goes_on.wait(10) else None)
    own.later(lambda: written.set())
    on_segment(50, 0)
    assert (bar.ok, bar.diverged) == (0, 0)
    goes_on.set()
    assert written.wait(10)  # so the first is done
    on_segment(50, 0)
    assert (bar.ok, bar.diverged, bar.steps) == (3, 1, 100)


def test_a_terminal_without_the_middle_dot_gets_a_bar(clock):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    bar = progress.Progress(10, 1000.0, out)
    clock[0] += 20
    bar.update(steps=100)
    line = b"0/10 trials | 10% of the steps | 5 trial-steps/s | 3 min 00 s left | 0 ok, 0 diverged"
    assert raw.getvalue().startswith(line)


def test_a_closed_standard_output_is_silence(clock, monkeypatch):
    monkeypatch.setattr(progress.sys, "stdout", None)
    with progress.Progress(10, 1000.0) as bar:
        clock[0] += 20
        bar.update(steps=100)
    bar.out.close()


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_durations(seconds, said):
    assert progress.duration(seconds) == said


@pytest.mark.parametrize(("num_bytes", "said"), [(12, "12 B"), (45_800_000, "45.8 MB"), (3e12, "3 TB")])
def test_sizes(num_bytes, said):
    assert size(num_bytes) == said
