"""Fail or kill at every file operation of the store: what is left is whole, and the next run finishes it."""

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.damage import SOME_OR_ALL, some
from support.machines import MODES, WRITES, Killed, Machine, running_on
from support.sessions import ONE, TWO, check_readers, file_names, frames, session

from topicjax.store.files import StoreError, part_path
from topicjax.store.verify import repair, verify


def survives(folder: Path, machines: list[Machine], whole: list[pd.DataFrame], names: set[str]) -> bool:
    """Run the session on each machine, then undisturbed; return whether a machine struck, all being well."""
    for machine in machines:
        try:
            with running_on(machine):
                session(folder)
        except (Killed, StoreError):
            check_readers(folder, whole)
    with running_on(Machine()):  # quick: without fsync
        session(folder)
    assert check_readers(folder, whole) == 5
    assert verify(folder).problems == []
    assert file_names(folder) == names
    assert not [path for path in folder.rglob("*") if path.is_dir() and not any(path.iterdir())][
        1:
    ]  # partial
    return any(len(machine.names) > machine.last >= 0 for machine in machines)


def uninterrupted(folder: Path) -> tuple[Machine, list[pd.DataFrame], set[str]]:
    """Return what a session does and leaves if nothing happens."""
    with running_on(Machine()) as machine:
        session(folder)
    return machine, frames(folder), file_names(folder)


def try_all(tmp_path: Path, cases: Iterable[list[Machine]]) -> str:
    """Try every case; return the count of those tried and survived, or raise with those that failed."""
    _, whole, names = uninterrupted(tmp_path / "whole")
    tried, failed = 0, []
    for number, machines in enumerate(cases):
        folder = tmp_path / f"run{number}"
        try:
            tried += survives(folder, machines, whole, names)
        except Exception as error:
            failed.append(f"{[machine.last for machine in machines]}: {type(error).__name__}: {error!s:.300}")
        shutil.rmtree(folder, ignore_errors=True)
    assert not failed, f"tried {tried}, failed {len(failed)}: {failed[:5]}"
    return f"tried {tried}, survived {tried}, failed 0"


@pytest.fixture
def operations(tmp_path: Path, plain_snapshots: None) -> list[str]:
    names = uninterrupted(tmp_path / "counted")[0].names
    assert {"open", "write", "pwrite", "fsync", "replace", "rename", "mkdir", "unlink"} <= {*names}
    return names


@SOME_OR_ALL
@pytest.mark.parametrize("mode", MODES)
def test_every_file_operation_may_be_the_last(
    tmp_path: Path, operations: list[str], mode: str, share: float, record_property: Any
):
    numbers = [n for n, name in enumerate(operations) if "torn" not in mode or name in WRITES]
    counts = try_all(tmp_path, [[MODES[mode](number)] for number in some(numbers, share)])
    record_property(mode, counts)
    print(f"{mode}: {counts}; {len(operations)} operations")


@pytest.mark.slow
def test_runs_that_are_struck_again_and_again(tmp_path: Path, operations: list[str], record_property: Any):
    """Chains of up to five interruptions of any kind, each at a random moment of what was left to do."""
    rng, modes = np.random.default_rng(0), [*MODES.values()]
    cases = [
        [
            modes[rng.integers(len(modes))](int(rng.integers(len(operations) // 2)))
            for _ in range(rng.integers(2, 6))
        ]
        for _ in range(1000)
    ]
    counts = try_all(tmp_path, cases)
    record_property("chains", counts)
    print(f"chains: {counts}")


def all_bytes(folder: Path) -> set[bytes]:
    return {path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def damaged_copy(whole: Path, folder: Path) -> set[bytes]:
    """Copy a folder; damage weights, manifest and journal, remove a part; return the content of its files."""
    shutil.copytree(whole, folder)
    part_path(folder / "trials", TWO).unlink()
    damaged = folder.glob(f"checkpoints/{ONE}/*/*")
    for path in (folder / "journal.log", folder / "manifest.json", *damaged):
        data = path.read_bytes()
        path.write_bytes(data[:-3] + b"x" + data[-2:])
    return all_bytes(folder)


@SOME_OR_ALL
def test_repair_that_is_struck_can_be_repeated(
    tmp_path: Path, plain_snapshots: None, share: float, record_property: Any
):
    """Repair is struck at each operation."""
    _, whole, names = uninterrupted(tmp_path / "whole")
    damaged_copy(tmp_path / "whole", tmp_path / "counted")
    with running_on(Machine()) as counted:
        repair(tmp_path / "counted")
    modes = ("kill", "fail", "torn in the middle")
    cases = some([(mode, number) for number in range(len(counted.names)) for mode in modes], share)
    for case in cases:
        folder, (mode, number) = tmp_path / "run", case
        before = damaged_copy(tmp_path / "whole", folder)
        with contextlib.suppress(Killed, StoreError), running_on(MODES[mode](number)):
            repair(folder)
        with running_on(Machine()):
            repair(folder)
            assert before <= all_bytes(folder), case
            assert verify(folder).problems == [], case
            session(folder)
        assert check_readers(folder, whole) == 5 and verify(folder).problems == [], case
        assert {name for name in file_names(folder) if not name.startswith("set_aside")} == names, case
        shutil.rmtree(folder)
    counts = f"tried {len(cases)}, survived {len(cases)}, failed 0"
    record_property("repair", counts)
    print(f"repair: {counts}")


@pytest.mark.parametrize("step", [24, pytest.param(5, marks=pytest.mark.slow)])
def test_real_snapshots_survive_too(tmp_path: Path, step: int, record_property: Any):
    """Orbax itself, at some of the operations that it and the store do in Python."""
    total = len(uninterrupted(tmp_path / "counted")[0].names)
    counts = try_all(tmp_path, [[MODES["kill"](number)] for number in range(0, total, step)])
    record_property("orbax", counts)
    print(f"orbax: {counts}; {total} operations")
