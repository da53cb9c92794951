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
    "report": ("report", "run"),
}
KILLS_EACH, IN_A_ROW = 60, 4  # the second and later ones in a row hit a command that resumes
PAGE = ("report.html", "scores.parquet", "figures", "tables")  # what `report` writes


def numbers(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the tables of a folder without the number of the run, which counts interrupted ones too."""
    run = topicjax.load(folder)
    return {
        name: getattr(run, name).sort_values(keys, ignore_index=True).drop(columns="run", errors="ignore")
        for name, keys in KEYS.items()
    }


def page_files(folder: Path) -> dict[str, bytes]:
    """Read all files that `report` has written."""
    paths = [path for name in PAGE for path in (folder / name, *(folder / name).rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def data_files(folder: Path) -> dict[str, bytes]:
    """Read all other files of a folder."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if name.split("/")[0] not in PAGE}


def check_end(name: str, folder: Path, before: Path, whole: Path) -> None:
    """Check that a folder is as if the command had not been disturbed, and that nothing is damaged."""
    found, expected = numbers(folder), numbers(whole)
    for table, frame in expected.items():
        pd.testing.assert_frame_equal(found[table], frame, check_exact=True)
    assert verify(folder).problems == []
    if name == "report":
        assert page_files(folder) == page_files(whole), "the page is not that of an undisturbed report"
        assert data_files(folder) == data_files(before), "the report changed the run"


@pytest.mark.parametrize("name", SESSION)
def test_kills_of_a_session_of_commands(name: str, tmp_path: Path, record_property: Any, monkeypatch):
    """Run, extend, train further, refine, report: each killed over and over ends as if undisturbed."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    rng, commands = np.random.default_rng([*SESSION].index(name)), Commands(tmp_path)
    folder, before, whole = tmp_path / "run", tmp_path / "before", tmp_path / "whole"
    kills = collections.Counter[str]()
    for earlier in [*SESSION][: [*SESSION].index(name)]:
        commands.finish(*SESSION[earlier])
    command = SESSION[name]
    if folder.exists():
        shutil.copytree(folder, before)
    commands.finish(*command)
    shutil.copytree(folder, whole)
    seconds = min(timed(commands, command, before, folder) for _ in range(2))
    while kills.total() < KILLS_EACH:
        start_again(before, folder)
        for place in range(rng.integers(1, IN_A_ROW + 1)):
            code = commands.run(*command, kill_after=rng.uniform(0.02, 1.0) * seconds)
            assert code in (0, -signal.SIGKILL), commands.printed.read_text()[-2000:]
            kills["resumed" if place else "first"] += code != 0
        commands.finish(*command)
        check_end(name, folder, before, whole)
    record_property(f"kills of {name}", dict(kills))
    print(f"{name}: {dict(kills)}, {seconds:.1f} s undisturbed", flush=True)


def timed(commands: Commands, command: tuple[str, ...], before: Path, folder: Path) -> float:
    """Measure an undisturbed command, its programs compiled."""
    start_again(before, folder)
    return commands.finish(*command)


def start_again(before: Path, folder: Path) -> None:
    """Bring a folder back to an earlier state."""
    shutil.rmtree(folder, ignore_errors=True)
    if before.exists():
        shutil.copytree(before, folder)
