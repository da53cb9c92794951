"""A folder that was copied while a run wrote to it heals: verify, repair and run agree on what is wrong."""

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.machines import Machine, running_on
from support.power import Moment, PowerMachine, Tree, make
from support.sessions import ALL, KEYS, RUN, check_numbers, frames, session
from support.store_runs import files

from topicjax.store.files import StoreError, part_files, part_path
from topicjax.store.verify import repair, verify

MANY = 400  # copies
NEEDED = {  # what a copy may need to be whole again
    "run",
    "run, from the beginning",
    "repair, as run said",
    "repair, as verify said",
    "no run folder",  # nothing in it says that it is one
}
LISTS = ("snapshot_steps", "snapshot_checksums")  # arrays for pandas, tuples for our reader


def copied(moments: list[Moment], rng: np.random.Generator) -> Tree:
    """Copy a folder as cp -r does, in any order, while the session goes on; some copies are interrupted."""
    now, pace = int(rng.integers(len(moments))), int(rng.choice([1, 3, 20]))
    found: Tree = {}

    def copy(folder: str) -> None:
        nonlocal now
        inside = [name for name in moments[now].seen if name.rpartition("/")[0] == folder]
        for place in rng.permutation(len(inside)):
            now = min(now + int(rng.integers(pace + 1)), len(moments) - 1)
            name = inside[place]
            if name in moments[now].seen:  # else it was removed meanwhile
                found[name] = moments[now].seen[name]
                if found[name] is None:
                    copy(name)

    copy("")
    if rng.random() < 0.25:
        names = [*found][: int(rng.integers(1, len(found) + 1))] if found else []
        found = {name: found[name] for name in names}
        if names and (content := found[names[-1]]):
            found[names[-1]] = content[: int(rng.integers(len(content)))]
    return found


def has_nothing_yet(folder: Path) -> bool:
    """Whether a copy has at most a lock and unfinished files, as a run leaves that was killed at once."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")} <= {"lock.json"}


def has_no_trace(folder: Path) -> bool:
    """Whether a copy has neither a journal nor a part of trials/: nothing in it could be repaired."""
    return not (folder / "journal.log").exists() and not [*folder.glob("trials/part-*.parquet")]


def try_copy(folder: Path, whole: list[pd.DataFrame], repair_first: bool) -> str:
    """Let a copy heal and run to its end; return what was needed for it."""
    try:
        problems = [each.sentence for each in verify(folder).problems]
    except StoreError as error:
        assert "is not a run folder" in str(error) or "is empty" in str(error), error
        if not has_nothing_yet(folder):  # and nothing in it says that it is a run folder
            for attempt in (repair, lambda path: session(path, ALL)):
                with pytest.raises(StoreError, match=r"is not a run folder|no trials: nothing to repair"):
                    attempt(folder)
            return "no run folder"
        session(folder, ALL)
        check_whole(folder, whole)
        return "run, from the beginning"
    needed = "run"
    if not repair_first:
        try:
            session(folder, ALL)
        except StoreError as error:
            names_it = "topicjax repair" in str(error) or (
                "is not a run folder" in str(error) and has_no_trace(folder)
            )
            assert names_it and "\n" not in str(error), error
            assert problems, f"verify does not know of: {error}"
            needed = "repair, as run said"
    if found := verify(folder).problems:
        needed = "repair, as verify said" if needed == "run" else needed
        named = {each.path for each in found} | {
            part_path(folder / "trials", each.chunk) for each in found if each.chunk
        }
        intact = {*part_files(folder / "trials")} - named
        before = {(folder / name).read_bytes() for name in files(folder) if "/" in name}
        try:
            _, moved = repair(folder)
        except StoreError as error:
            assert "no trials: nothing to repair" in str(error) and has_no_trace(folder), error
            return "no run folder"
        assert moved or "columns.parquet" in "".join(problems) or "is missing" in "".join(problems), problems
        assert before <= {(folder / name).read_bytes() for name in files(folder)}, "repair deletes nothing"
        assert intact <= {*part_files(folder / "trials")}, "repair keeps what verify does not name"
        assert verify(folder).problems == []
    session(folder, ALL)
    check_whole(folder, whole)
    return needed


def check_whole(folder: Path, whole: list[pd.DataFrame]) -> None:
    """Check that a folder has all trials with the right numbers, also for readers of plain parquet."""
    tables = frames(folder)
    assert len(tables[0]) == len(whole[0]) and verify(folder).problems == []
    check_numbers(folder, tables, whole, may_lack_states=True)
    for name, frame in zip(("trials", "trajectories", "details"), tables, strict=True):
        plain = pd.read_parquet(folder / name)
        plain = plain.sort_values([key for key in KEYS if key in plain], ignore_index=True)
        numbers = [column for column in frame if column not in LISTS]
        assert set(plain) == set(frame)
        pd.testing.assert_frame_equal(plain[numbers], frame[numbers].reset_index(drop=True))


@pytest.mark.parametrize("seeds", [8, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_copy_taken_while_a_run_was_writing_heals(
    tmp_path: Path, plain_snapshots: None, seeds: int, record_property: Any
):
    (tmp_path / "run").mkdir()
    machine = PowerMachine(tmp_path / "run")
    with running_on(machine):
        for job in (RUN, ALL):
            session(tmp_path / "run", job)
    whole, counts, failed = frames(tmp_path / "run"), collections.Counter[str](), []
    for seed in range(seeds):
        make(copied(machine.moments, np.random.default_rng(seed)), tmp_path / "copy")
        try:
            with running_on(Machine()):
                counts[try_copy(tmp_path / "copy", whole, repair_first=seed % 2 == 1)] += 1
        except (AssertionError, StoreError, pytest.fail.Exception) as error:
            failed.append(f"{seed}: {type(error).__name__}: {error!s:.300}")
    assert counts.keys() <= NEEDED
    record_property("copies", dict(counts))
    print(f"copies healed by: {dict(counts)}")
    assert not failed, f"{len(failed)} of {seeds}: {failed[:5]}"
    assert len(counts) == len(NEEDED) or seeds < MANY, "each way to heal is seen"
