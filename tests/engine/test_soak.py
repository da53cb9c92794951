"""The real command, killed a hundred times at random moments, with damage and repair in between."""

import collections
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.command_line import start

import topicjax
from topicjax.store.reader import committed
from topicjax.store.verify import verify

KILLS, REPAIR_EVERY = 100, 10
RUN = ("run", "smoke", "--lanes", "2", "--snapshots", "50,100", "--save-every", "0")
KEYS = {"trials": ["trial_id"], "trajectories": ["trial_id", "step"]}

pytestmark = pytest.mark.slow


def finish(*arguments: str, cache: Path, cwd: Path) -> str:
    """Run a command to its end, which must be a good one; return what it printed."""
    process = start(*arguments, cache=cache, cwd=cwd)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, f"{arguments}: {out} {err}"
    return out


def kill(cwd: Path, cache: Path, seconds: float) -> bool:
    """Start a run and kill it after so many seconds; return whether it was still running."""
    process = start(*RUN, cache=cache, cwd=cwd)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode in (-signal.SIGKILL, 0), f"{out} {err}"
    return process.returncode != 0


def flip_bits(folder: Path, rng: np.random.Generator) -> None:
    """Flip a bit in each of three files."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    paths = [path for path in paths if path.name != "lock.json" and "set_aside" not in path.parts]
    for path in rng.choice(np.array(paths, dtype=object), min(3, len(paths)), replace=False):
        data = bytearray(path.read_bytes())
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)


def assert_equal(folder: Path, whole: Path) -> None:
    """Check that a folder has the numbers and weights of another, bit for bit, and is not damaged."""
    mine, other = topicjax.load(folder), topicjax.load(whole)
    for name, keys in KEYS.items():
        ours, theirs = (getattr(run, name).sort_values(keys, ignore_index=True) for run in (mine, other))
        which = [column for column in theirs if column != "run"]
        pd.testing.assert_frame_equal(ours[which], theirs[which], check_exact=True)
    for trial_id in other.trials["trial_id"]:
        for step in (50, 100):
            ours, theirs = mine.restore(trial_id, step), other.restore(trial_id, step)
            assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert verify(folder).problems == []


def test_a_hundred_kills_with_damage_and_repair(
    smoke: tuple[Path, str], tmp_path: Path, cache: Path, record_property: Any
):
    rng, counts, begun = np.random.default_rng(0), collections.Counter[str](), time.monotonic()
    (tmp_path / "timed").mkdir()
    finish(*RUN, cache=cache, cwd=tmp_path / "timed")
    seconds, place = time.monotonic() - begun, 0  # of an undisturbed run on this machine
    while counts["kills"] < KILLS:
        cwd = tmp_path / str(place)
        cwd.mkdir(exist_ok=True)
        folder = cwd / "results" / "smoke"
        counts["kills" if kill(cwd, cache, rng.uniform(0.1, 1.0) * seconds) else "too late"] += 1
        if counts["kills"] // REPAIR_EVERY > counts["repairs"] and (folder / "journal.log").exists():
            flip_bits(folder, rng)
            problems = verify(folder).problems
            counts["damaged files found"] += len({problem.path for problem in problems})
            finish("repair", "results/smoke", cache=cache, cwd=cwd)
            finish("verify", "results/smoke", cache=cache, cwd=cwd)
            counts["repairs"] += 1
        if (folder / "trials").is_dir() and len(committed(folder)) == 16:
            finish(*RUN, cache=cache, cwd=cwd)
            assert_equal(folder, smoke[0])
            counts["folders"] += 1
            place += 1
    finish(*RUN, cache=cache, cwd=cwd)
    assert_equal(folder, smoke[0])
    counts["folders"] += 1
    counts["seconds"] = round(time.monotonic() - begun)
    record_property("soak", dict(counts))
    print(dict(counts))
