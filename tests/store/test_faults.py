"""Fail or kill at every file operation of the store: what is left is whole, and the next run finishes it."""

import contextlib
import errno
import functools
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.damage import SOME_OR_ALL, some
from support.store_runs import ENTRY, FIRST, SECOND, details_of, files, same, tables, weights

from topicjax.store import checkpoints
from topicjax.store import files as files_module
from topicjax.store.files import StoreError, ids_name, part_path
from topicjax.store.reader import committed, load, status
from topicjax.store.verify import repair, verify
from topicjax.store.writer import Writer

CHUNKS = {ids_name(ids): ids for ids in (FIRST, SECOND)}
STEPS = (2, 4)
OPERATIONS = (
    "open",
    "write",
    "pwrite",
    "ftruncate",
    "fsync",
    "replace",
    "rename",
    "mkdir",
    "unlink",
    "rmdir",
)
WRITES = ("write", "pwrite")
Outcome = dict[str, Any]


class Killed(BaseException):
    """The process is gone: from here on no operation has any effect."""


class Machine:
    """Counts file operations that change something; lets one of them fail, or be the last."""

    def __init__(
        self, last: int = -1, code: int = 0, part: float | None = None, for_good: bool = False
    ) -> None:
        """Fail at operation `last` with `code`, or die; if it writes, first write `part` of its bytes."""
        self.last, self.code, self.part, self.for_good = last, code, part, for_good
        self.is_dead = False
        self.names: list[str] = []  # of all operations so far

    def before(self, name: str) -> bool:
        """Count an operation; return whether it is to be torn, or raise what happens instead of it."""
        if self.is_dead:
            raise Killed
        number = len(self.names)
        self.names.append(name)
        is_struck = number == self.last or (self.for_good and 0 <= self.last < number and name != "unlink")
        if is_struck and self.code:
            raise OSError(self.code, os.strerror(self.code))
        if is_struck:
            self.is_dead = True
            if self.part is not None and name in WRITES:
                return True
            raise Killed
        return False

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return an operation of the module os that this machine controls."""

        def operation(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                return function(*arguments, **options)
            if self.before(name):
                descriptor, data, *rest = arguments
                function(descriptor, data[: int(len(data) * (self.part or 0))], *rest)
                raise Killed
            return None if name == "fsync" else function(*arguments, **options)  # nothing here outlives power

        return operation

    def open(self, descriptor: int, mode: str) -> Any:
        """Return a file whose writes this machine controls."""
        machine = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                if machine.before("write"):
                    super().write(bytes(data)[: int(len(data) * (machine.part or 0))])
                    raise Killed
                return super().write(data)

        raw = Raw(descriptor, mode.replace("b", ""))
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedReader(raw)


@contextlib.contextmanager
def running_on(machine: Machine) -> Iterator[Machine]:
    """Let the store run on this machine."""
    unlock = files_module.unlock_folder

    def unlock_or_die(folder: Path, descriptor: int) -> None:
        try:
            unlock(folder, descriptor)
        except Killed:
            os.close(descriptor)  # as the kernel does
            raise

    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, machine.wrap(name, getattr(os, name)))
        patch.setattr(files_module, "open", machine.open, raising=False)
        patch.setattr(files_module, "unlock_folder", unlock_or_die)
        yield machine


def save_plainly(folder: Path, structure: Any, leaves: Mapping[str, np.ndarray]) -> None:
    """Stand in for orbax, which takes a tenth of a second: the same names and the same order, plain files."""
    temporary = folder.with_name(f"{folder.name}{checkpoints.UNFINISHED}")
    if folder.exists():
        shutil.rmtree(folder)
    temporary.mkdir(parents=True)
    for name, array in leaves.items():
        data = io.BytesIO()
        np.save(data, array)
        write_plainly(temporary / f"{name}.npy", data.getvalue())
    os.rename(temporary, folder)
    write_plainly(folder / checkpoints.STRUCTURE, json.dumps(structure).encode())
    checkpoints.sync_tree(folder)


def write_plainly(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, content)
    os.close(descriptor)


def read_plainly(folder: Path, place: int | slice) -> tuple[Any, dict[str, np.ndarray]]:
    structure = json.loads((folder / checkpoints.STRUCTURE).read_text())
    names = checkpoints.leaf_names(structure)
    return structure, {name: np.load(folder / f"{name}.npy")[place] for name in names}


@pytest.fixture
def plain_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "save", save_plainly)
    monkeypatch.setattr(checkpoints, "read_trials", read_plainly)


def session(folder: Path) -> None:
    """Do what a run does, from wherever the last one left it."""
    with Writer(folder, "demo") as writer:
        plan = writer.write_plan([*FIRST, *SECOND])
        runs = [ENTRY | {"plan": plan, "planned": 5}]
        writer.write_manifest(writer.manifest | {"runs": runs})
        done = committed(folder)
        left = {chunk: ids for chunk, ids in CHUNKS.items() if not done >= {*ids}}
        writer.keep_partials(left)
        for chunk in left:
            for number in (1, 2):
                found = writer.load_partial(chunk, {"records": ["loss"]})
                assert found is None or found[0]["W"].tolist() == [found[1]["number"]] * 3
                if found is None or found[1]["number"] < number:
                    writer.save_partial(
                        chunk, {"W": np.full(3, number)}, {"number": number, "records": ["loss"]}
                    )
            for step in STEPS:
                writer.save_snapshot(chunk, step, chunk_weights(chunk, step))
            writer.save_end(chunk, {"0": np.arange(len(CHUNKS[chunk]))}, {"trial_ids": CHUNKS[chunk]})
            writer.commit(chunk, *chunk_tables(chunk))
        writer.write_manifest(writer.manifest | {"runs": [runs[0] | {"trials": 5}]})


@functools.cache
def chunk_weights(chunk: str, step: int) -> dict[str, np.ndarray]:
    return weights(len(CHUNKS[chunk]), seed=step, size=4)


@functools.cache
def chunk_tables(chunk: str) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    ids = CHUNKS[chunk]
    return *tables(ids, chunk, STEPS), details_of(ids)


def file_names(folder: Path) -> set[str]:
    """Return the names of all files; orbax gives random ones to some."""
    return {re.sub("[0-9a-f]{32}", "*", name) for name in files(folder)}


def frames(folder: Path) -> list[pd.DataFrame]:
    run = load(folder)
    keys = ["trial_id", "step", "layer"]
    return [
        run.trials.sort_values(keys[:1]),
        run.trajectories.sort_values(keys[:2]),
        run.details.sort_values(keys),
    ]


def check_readers(folder: Path, whole: list[pd.DataFrame]) -> int:
    """Check that readers see whole chunks with the right numbers only; return how many trials."""
    try:
        tables = frames(folder)
    except StoreError as error:
        allowed = (
            "is finished yet",
            "there is no folder",
            "is empty",
            "it has no manifest.json; it holds lock",
        )
        assert any(text in str(error) for text in allowed), error
        return 0
    ids = set(tables[0]["trial_id"])
    assert all(ids >= {*chunk} or not ids & {*chunk} for chunk in CHUNKS.values())
    for mine, other in zip(tables, whole, strict=True):
        expected = other[other["trial_id"].isin(ids)]
        pd.testing.assert_frame_equal(mine.reset_index(drop=True), expected.reset_index(drop=True))
    for chunk, own in CHUNKS.items():
        for step in STEPS if ids >= {*own} else ():
            assert same(load(folder).restore(own[-1], step), chunk_weights(chunk, step), len(own) - 1)
        if ids >= {*own}:
            assert load(folder).end_states(own[::-1])[0].tolist() == list(range(len(own)))[::-1]
    assert status(folder).problems == ()
    return len(ids)


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


MODES: dict[str, Callable[[int], Machine]] = {
    "fail": lambda number: Machine(number, code=(errno.ENOSPC, errno.EIO)[number % 2]),
    "fail for good": lambda number: Machine(number, code=errno.ENOSPC, for_good=True),
    "kill": Machine,
    "torn in the middle": lambda number: Machine(number, part=0.5),
    "torn before the last byte": lambda number: Machine(number, part=0.9999),
}


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
    part_path(folder / "trials", ids_name(SECOND)).unlink()
    damaged = folder.glob(f"checkpoints/{ids_name(FIRST)}/*/*")
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
