"""The real command, killed hundreds of times at random moments, with damage and repair in between."""

import collections
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.command_line import DEEP, start
from support.forked_commands import Commands

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


SMALL = ("width=4", "batch_size=8", "depth=2", "record_every=5", "rare_every=2", "seed=0")


def small_run(rates: str = "0.01,0.02", steps: int = 60) -> tuple[str, ...]:
    """Return a command that trains deep linear networks within a second."""
    settings = [text for value in (*SMALL, f"steps={steps}") for text in ("--set", value)]
    axes = ["--axis", f"learning_rate={rates}", "--axis", "init_scale=log:1e-4:1e-1:4"]
    return ("run", DEEP, *settings, *axes, "--lanes", "2", "--save-every", "0", "--out", "run")


SESSION = {  # commands on one folder, one after another
    "run": small_run(),
    "extend": small_run(rates="0.01,0.02,0.03"),
    "more steps": small_run(steps=120),
    "refine": (*small_run(steps=120), "--refine", "init_scale", "--levels", "1"),
}
KILLS_EACH, IN_A_ROW = 20, 4


def numbers(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the tables of a folder without the number of the run, which counts interrupted ones too."""
    run = topicjax.load(folder)
    return {
        name: getattr(run, name).sort_values(keys, ignore_index=True).drop(columns="run", errors="ignore")
        for name, keys in KEYS.items()
    }


def test_kills_of_a_session_of_commands(tmp_path: Path, record_property: Any, monkeypatch):
    """Run, extend, train further, refine: each killed over and over ends as if undisturbed."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    rng, commands = np.random.default_rng(1), Commands(tmp_path)
    folder, kills = tmp_path / "run", collections.Counter[str]()
    for name, command in SESSION.items():
        before = tmp_path / f"before {name}"
        if folder.exists():
            shutil.copytree(folder, before)
        commands.finish(*command)
        shutil.copytree(folder, tmp_path / "whole", dirs_exist_ok=False)
        expected = numbers(tmp_path / "whole")
        seconds = min(timed(commands, command, before, folder) for _ in range(2))
        while kills[name] < KILLS_EACH:
            start_again(before, folder)
            for _ in range(rng.integers(1, IN_A_ROW + 1)):
                code = commands.run(*command, kill_after=rng.uniform(0.02, 1.0) * seconds)
                assert code in (0, -signal.SIGKILL), commands.printed.read_text()[-2000:]
                kills[name] += code != 0
            commands.finish(*command)
            found = numbers(folder)
            for table, frame in expected.items():
                pd.testing.assert_frame_equal(found[table], frame, check_exact=True)
            assert verify(folder).problems == []
        print(f"{name}: {kills[name]} kills, {seconds:.1f} s undisturbed", flush=True)
        start_again(tmp_path / "whole", folder)
        shutil.rmtree(tmp_path / "whole")
    record_property("kills", dict(kills))
    print(dict(kills))


def timed(commands: Commands, command: tuple[str, ...], before: Path, folder: Path) -> float:
    """Measure an undisturbed command, its programs compiled."""
    start_again(before, folder)
    return commands.finish(*command)


def start_again(before: Path, folder: Path) -> None:
    """Bring a folder back to an earlier state."""
    shutil.rmtree(folder, ignore_errors=True)
    if before.exists():
        shutil.copytree(before, folder)
