"""A page that is made again while a run goes on: when, with what, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.synthetic_runs import TWO_STAGE, case, whole_id, write_run

from topicjax.analysis.page import report
from topicjax.analysis.page.live import Live, is_finished, watch
from topicjax.store.files import LOCK, lock_folder, unlock_folder
from topicjax.store.reader import Status


def begun(folder: Path, planned: int) -> Path:
    """Write a run folder without trials."""
    write_run(folder, [], [], planned=planned)
    return folder


def add(folder: Path, number: int) -> None:
    """Finish one trial, as a writer does: records first, each file in one move."""
    row, frame = case(*TWO_STAGE, seed=number)
    row = {name: value for name, value in row.items() if not name.startswith("line_")}
    row |= dict(trial_id=whole_id(f"{number:x}"), snapshot_steps=())
    row |= {f"final_{name}": 0.1 for name in ("a_topic", "a_self", "eval_loss")}
    row |= {f"final_attn_{name}": 0.1 for name in ("same_word", "same_topic", "diff_topic")}
    tables = {"trajectories": frame.assign(trial_id=row["trial_id"]), "trials": pd.DataFrame([row])}
    for name, table in tables.items():
        part = folder / name / f"part-{number:012x}.parquet"
        table.to_parquet(part.with_suffix(".new"), index=False)
        os.replace(part.with_suffix(".new"), part)


def state(**changed: Any) -> Status:
    fields = dict(finished=0, ok=0, diverged=0, planned=2, beyond=0, plans=(), problems=(), versions=())
    return Status(**dict(sweep="tiny", running=None) | fields | changed)


def test_a_run_is_finished_when_nobody_writes_and_all_trials_are_there():
    assert is_finished(state(finished=2))
    assert not is_finished(state(finished=1))
    assert not is_finished(state(finished=2, running=dict(pid=1)))
    assert not is_finished(state(finished=2, planned=None))
    assert not is_finished(state(finished=0, planned=0))


def test_pages_are_made_when_there_are_new_trials_and_the_whole_one_at_the_end(tmp_path: Path):
    """Each sleep is one look: nothing, nothing, one trial, none more, two, and the lock is let go."""
    folder, said, made = begun(tmp_path / "run", 2), [], []
    held = lock_folder(folder)
    events = iter([lambda: None, lambda: add(folder, 0), lambda: None, lambda: add(folder, 1)])
    ends = iter([*[lambda: None] * 4, lambda: unlock_folder(folder, held)])

    def write(live: Live | None) -> Path:
        made.append(live)
        return folder / "report.html"

    watch(folder, 7.0, write, said.append, sleep=lambda seconds: (next(events, lambda: None)(), next(ends)()))
    assert [live and (live.seconds, live.planned) for live in made] == [(7.0, 2), (7.0, 2), None]
    assert said[0] == "waiting: 0 of 2 trials are finished"
    assert next(line for line in said if "updated" in line).startswith(f"{folder}/report.html: 1 of 2 trials")
    assert said[-1] == "finished: 2 trials; making the full page"
    assert len([line for line in said if line.startswith("waiting: 0")]) == 1  # said once, not at every look


def test_a_live_page_loads_itself_and_the_last_one_does_not(tmp_path: Path, monkeypatch):
    folder = begun(tmp_path / "run", 2)
    add(folder, 0)
    drawn: list[str] = []
    monkeypatch.setattr(report.Report, "draw", lambda self, entry, page: drawn.append(entry.name) or "")
    text = report.write(folder, live=Live(5.0, 2, "12:34:56")).read_text()
    assert "Running: 1 of 2 trials, updated 12:34:56." in text
    assert "location.reload()" in text and 'content="5"' in text and "sessionStorage" in text
    assert drawn == [
        "phase_map",
        "robustness",
        "budget",
        "theta",
        "log_lag",
        "measured",
        "details",
    ]  # those that fit are drawn
    drawn.clear()
    text = report.write(folder).read_text()
    assert "reload" not in text and "refresh" not in text and "Running" not in text
    assert {"figure4", "loss"} <= {*drawn}


def started(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "topicjax", "report", str(folder), "--watch", "0.3"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(folder: Path, pattern: str, seconds: float = 120) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        path = folder / "report.html"
        if path.exists() and re.search(pattern, text := path.read_text()):
            return text
        time.sleep(0.1)
    raise AssertionError(f"no page with {pattern}")


@pytest.mark.slow
def test_a_watched_folder_that_grows_has_a_growing_page_and_a_last_one(tmp_path: Path):
    folder = begun(tmp_path / "run", 3)
    before = (folder / "manifest.json").read_bytes()
    watching = started(folder)
    assert watching.stderr is not None
    first = watching.stderr.readline()

    def train() -> None:
        add(folder, 0)
        wait_for(folder, "Running: 1 of 3 trials, updated")
        assert not (folder / LOCK).exists()
        add(folder, 1)
        add(folder, 2)

    thread = threading.Thread(target=train)
    thread.start()
    out, err = watching.communicate(timeout=300)
    thread.join()
    assert watching.returncode == 0, err
    assert first.startswith("waiting: 0 of 3 trials are finished") and "finished: 3 trials" in err
    text = (folder / "report.html").read_text()
    assert "3 trials in 1 cell." in text and "reload" not in text and "report.html: open it" in out
    assert (folder / "manifest.json").read_bytes() == before and json.loads(before)


def test_ctrl_c_ends_watching_with_130_and_leaves_the_last_page(tmp_path: Path):
    folder = begun(tmp_path / "run", 3)
    add(folder, 0)
    watching = started(folder)
    wait_for(folder, "Running: 1 of 3 trials")
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=60)
    assert watching.returncode == 130 and "Traceback" not in err
    assert "Running: 1 of 3 trials" in (folder / "report.html").read_text()
