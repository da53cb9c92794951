"""Cut the power at every moment of a session: nothing acknowledged is lost, nothing is wrong or stuck.

`support.power` makes the states that a disk may be in after a cut.  Each is read and verified, and the
session is run again to its end.
"""

import collections
import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.damage import flip
from support.machines import Killed, Machine, running_on
from support.power import ORDERINGS, Moment, PowerMachine, after_cut, make
from support.sessions import (
    ALL,
    CHUNKS,
    EXTEND,
    MORE_STEPS,
    NOTHING_YET,
    ONE,
    REFINE,
    RUN,
    THREE,
    TWO,
    Job,
    check_numbers,
    file_names,
    frames,
    session,
)
from support.store_runs import files

from topicjax import export
from topicjax.store.files import StoreError, part_path, partial_path, state_path
from topicjax.store.manifest import read_manifest
from topicjax.store.reader import committed, load, status
from topicjax.store.verify import repair, verify
from topicjax.store.writer import Writer

RANDOM_CUTS = 2  # of each moment; the other orderings have one
FEW = 4  # cuts by default; a check takes a quarter of a second
FEW_OR_ALL = pytest.mark.parametrize("count", [FEW, pytest.param(None, marks=pytest.mark.slow)])
Counts = collections.Counter[tuple[str, str]]  # by ordering and outcome
Check = Callable[[Path, frozenset], None]


class Lost(AssertionError):
    """Something that was acknowledged is gone."""


class Stuck(AssertionError):
    """The same command does not go on."""


def run_folder(disk: Path) -> Path:
    return disk / "some" / "run"


def try_cuts(
    disk: Path, recordings: dict[str, tuple[list[Moment], Check]], count: int | None
) -> tuple[Counts, int, list[str]]:
    """Check what power cuts leave of recordings: at every moment one cut per ordering and some random ones.

    Or only a sample of `count` cuts.  Return counts, the number of distinct states, and what failed.
    """
    orderings = [name for name in ORDERINGS for _ in range(RANDOM_CUTS if name == "random" else 1)]
    cases = [
        (name, place, seed)
        for name, (moments, _) in recordings.items()
        for place in range(len(moments))
        for seed in range(len(orderings))
    ]
    counts, failed = Counts(), []
    known: dict[tuple, str] = {}  # equal states need one look
    chosen = np.random.default_rng(len(cases)).choice(len(cases), count or len(cases), replace=False)
    for name, place, seed in (cases[each] for each in sorted(chosen)):
        moments, check = recordings[name]
        moment, ordering = moments[place], orderings[seed]
        tree = after_cut(moment, ordering, np.random.default_rng([place, seed]))
        key = (name, frozenset(tree.items()), moment.said)
        if key not in known:
            make(tree, disk)
            try:
                check(disk, moment.said)
                known[key] = "fine"
            except Exception as error:
                known[key] = {Lost: "lost", Stuck: "stuck"}.get(type(error), "wrong")
                failed.append(f"{name}, moment {place}, {ordering}: {type(error).__name__}: {error!s:.300}")
        counts[ordering, known[key]] += 1
    return counts, len(known), failed


def report(scenario: str, tried: tuple[Counts, int, list[str]], record_property: Any) -> None:
    """Print the counts of a scenario by ordering, and fail unless all cuts were survived."""
    counts, distinct, failed = tried
    rows = {name: sum(n for (own, _), n in counts.items() if own == name) for name in ORDERINGS}
    ends = {
        kind: sum(n for (_, own), n in counts.items() if own == kind) for kind in ("lost", "wrong", "stuck")
    }
    line = f"{scenario} | {' | '.join(map(str, rows.values()))} | {sum(rows.values())} | {distinct} | "
    line += " | ".join(map(str, ends.values()))
    record_property(scenario, line)
    print(line)
    assert not failed, f"{len(failed)} of {distinct} states: {failed[:5]}"


def check_reading(folder: Path, said: frozenset, whole: list[pd.DataFrame]) -> None:
    """Check what readers see after a cut, and what verify and status say."""
    chunks = {chunk for chunk in said if chunk in CHUNKS}
    try:
        tables = frames(folder)
    except StoreError as error:
        if chunks or not any(text in str(error) for text in NOTHING_YET):
            raise Stuck(f"reading: {error}") from error
        if not (folder / "manifest.json").exists():
            return
    else:
        check_numbers(folder, tables, whole)
        missing = [chunk for chunk in chunks if not {*CHUNKS[chunk]} <= {*tables[0]["trial_id"]}]
        if missing:
            raise Lost(f"{missing} of {chunks}")
    problems = [each.sentence for each in verify(folder).problems if "middle of a line" not in each.sentence]
    if problems or status(folder).problems:
        raise Stuck(f"verify: {problems}, status: {status(folder).problems}")
    runs = max((what[1] for what in said if what[0] == "run"), default=0)
    if len(read_manifest(folder).get("runs", [])) < runs:
        raise Lost(f"run {runs} of the manifest")


def check_states(folder: Path, said: frozenset, sweep: str) -> None:
    """Check that saved states are there, unless their chunks are finished."""
    with Writer(folder, sweep, extend=True) as writer:
        for _, chunk, number in (what for what in said if what[0] == "state"):
            found = writer.load_partial(chunk) if chunk not in writer.journal.commits else None
            if chunk not in writer.journal.commits and (found is None or found[1]["number"] < number):
                raise Lost(f"state {number} of chunk {chunk}")


def check_session(job: Job, whole: list[pd.DataFrame], names: set[str]) -> Check:
    """Make the check of a session: read, verify, go on to the end."""

    def check(disk: Path, said: frozenset) -> None:
        folder = run_folder(disk)
        with running_on(Machine()):  # quick: without fsync
            check_reading(folder, said, whole)
            try:
                if any(what[0] == "state" for what in said):
                    check_states(folder, said, job.sweep)
                session(folder, job)
            except StoreError as error:
                raise Stuck(f"running again: {error}") from error
            tables = frames(folder)
            check_numbers(folder, tables, whole)
            if len(tables[0]) != len(whole[0]):
                raise Lost("some trials, after running again")
            if verify(folder).problems:
                raise Stuck(f"verify after running again: {verify(folder).problems}")
            if file_names(folder) != names:
                raise AssertionError(f"other files: {sorted(file_names(folder) ^ names)}")

    return check


def unfinished(folder: Path) -> None:
    """Leave what a run leaves that is interrupted while it writes its second chunk."""
    session(folder, RUN, end_after=f"{TWO} 2")


SESSIONS: dict[str, tuple[list[Callable[[Path], None]], Job]] = {
    "run": ([], RUN),
    "resume": ([unfinished], RUN),
    "extend": ([session], EXTEND),
    "refine": ([session], REFINE),
    "more steps": ([session], MORE_STEPS),
}


def undisturbed(folder: Path, before: list[Callable[[Path], None]], job: Job) -> Check:
    """Run a session without a cut, and make the check that compares others with it."""
    with running_on(Machine()):
        for step in before:
            step(folder)
        session(folder, job)
    return check_session(job, frames(folder), file_names(folder))


def recorded(disk: Path, before: list[Callable[[Path], None]], job: Job) -> list[Moment]:
    """Run a session and return its moments; what was before is on the disk."""
    disk.mkdir()
    with running_on(Machine()):
        for step in before:
            step(run_folder(disk))
    machine = PowerMachine(disk)
    done = committed(run_folder(disk)) if before else set()
    machine.said |= {chunk for chunk, ids in CHUNKS.items() if done >= {*ids}}
    with running_on(machine):
        session(run_folder(disk), job, machine.say)
    return machine.moments


CASES = [
    *((name, FEW) for name in ("run", "extend")),
    *(pytest.param(name, None, marks=pytest.mark.slow) for name in SESSIONS),
]


@pytest.mark.parametrize(("scenario", "count"), CASES)
def test_power_is_cut_during_a_session(
    tmp_path: Path, plain_snapshots: None, scenario: str, count: int | None, record_property: Any
):
    before, job = SESSIONS[scenario]
    check = undisturbed(tmp_path / "whole", before, job)
    moments = recorded(tmp_path / "disk", before, job)
    report(scenario, try_cuts(tmp_path / "cut", {scenario: (moments, check)}, count), record_property)


@pytest.mark.slow
def test_power_is_cut_while_orbax_writes(tmp_path: Path, record_property: Any):
    """What orbax and tensorstore write by themselves is not synced until the store does it."""
    check = undisturbed(tmp_path / "whole", [], RUN)
    moments = recorded(tmp_path / "disk", [], RUN)
    report("run, with orbax", try_cuts(tmp_path / "cut", {"run": (moments, check)}, 60), record_property)


@pytest.mark.parametrize("count", [FEW, pytest.param(1500, marks=pytest.mark.slow)])
def test_power_is_cut_after_a_process_was_killed(
    tmp_path: Path, plain_snapshots: None, count: int, record_property: Any
):
    """A killed session leaves names and bytes that are not synced, and the next one builds on them."""
    check = undisturbed(tmp_path / "whole", [], RUN)
    with running_on(Machine()) as counted:
        session(tmp_path / "counted")
    syncs = [place for place, name in enumerate(counted.names) if name == "fsync"]  # killed just before
    kills = [syncs[0], *(place for place in syncs if counted.names[place - 1] in ("write", "replace"))]
    recordings = {}
    for last in kills if count > FEW else kills[:1]:
        disk = tmp_path / f"killed at {last}"
        disk.mkdir()
        machine = PowerMachine(disk, last)
        with contextlib.suppress(Killed), running_on(machine):
            session(run_folder(disk), RUN, machine.say)
        machine.last, machine.is_dead, machine.moments = -1, False, []
        with running_on(machine):
            session(run_folder(disk), RUN, machine.say)
        recordings[disk.name] = (machine.moments, check)
    report("killed, then run", try_cuts(tmp_path / "cut", recordings, count), record_property)


def in_all(folder: Path) -> None:
    """Two chunks are finished; of the third there are a saved state and a snapshot."""
    session(folder, ALL, end_after=f"{THREE} 2")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "trials part": lambda run: flip(part_path(run / "trials", ONE), 50, 3),
    "trials part missing": lambda run: part_path(run / "trials", TWO).unlink(),
    "trajectories part": lambda run: flip(part_path(run / "trajectories", TWO), 50, 3),
    "details missing": lambda run: part_path(run / "details", ONE).unlink(),
    "snapshot": lambda run: flip(run / "checkpoints" / ONE / "4" / "W_K.npy", 150, 1),
    "snapshot missing": lambda run: shutil.rmtree(run / "checkpoints" / TWO / "2"),
    "end state": lambda run: flip(state_path(run, ONE), 80, 1),
    "saved state": lambda run: flip(partial_path(run, THREE), 80, 1),
    "plan": lambda run: flip(next((run / "plans").iterdir()), 50, 1),
    "plan missing": lambda run: next((run / "plans").iterdir()).unlink(),
    "manifest": lambda run: flip(run / "manifest.json", 40, 1),
    "manifest missing": lambda run: (run / "manifest.json").unlink(),
    "journal": lambda run: flip(run / "journal.log", 400, 1),
    "journal missing": lambda run: (run / "journal.log").unlink(),
    "journal torn": lambda run: os.truncate(run / "journal.log", os.stat(run / "journal.log").st_size - 9),
    "several": lambda run: [DAMAGE[name](run) for name in ("snapshot", "journal", "manifest", "saved state")],
}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files(folder)}


@pytest.mark.parametrize("damages", [["several"], pytest.param([*DAMAGE], marks=pytest.mark.slow)])
def test_power_is_cut_during_a_repair(
    tmp_path: Path, plain_snapshots: None, damages: list[str], record_property: Any
):
    with running_on(Machine()):
        in_all(tmp_path / "damaged")
        session(tmp_path / "whole", ALL)
    whole, recordings = frames(tmp_path / "whole"), {}
    for name in damages:
        disk = tmp_path / name
        shutil.copytree(tmp_path / "damaged", run_folder(disk))
        DAMAGE[name](run_folder(disk))
        before = contents(run_folder(disk))
        machine = PowerMachine(disk)
        with running_on(machine):
            repair(run_folder(disk))
            machine.say("repaired")
        if "journal" not in name and name != "several":
            before.pop("journal.log")  # it is added to
        if "plan" in name:
            before.pop("manifest.json")  # it forgets that plan
        check = check_repair(before, committed(run_folder(disk)), whole)
        recordings[name] = (machine.moments, check)
    tried = try_cuts(tmp_path / "cut", recordings, FEW if len(damages) < len(DAMAGE) else 3000)
    report("repair", tried, record_property)


def check_repair(before: dict[str, bytes], kept: set[str], whole: list[pd.DataFrame]) -> Check:
    """Make the check of a repair: read, repair again, run to the end; no byte of the folder is lost."""

    def check(disk: Path, said: frozenset) -> None:
        folder = run_folder(disk)
        with running_on(Machine()):
            with contextlib.suppress(StoreError):
                check_numbers(folder, frames(folder), whole)
            problems = verify(folder).problems
            if said and problems:
                raise Lost(f"the repair: {problems}")
            try:
                repair(folder)
                missing = [name for name, data in before.items() if data not in contents(folder).values()]
                if missing or not kept <= committed(folder):
                    raise Lost(f"files {missing}, trials {kept - committed(folder)}")
                if verify(folder).problems:
                    raise Stuck(f"repair leaves {verify(folder).problems}")
                session(folder, ALL)
                tables = frames(folder)
                if len(tables[0]) != len(whole[0]) or verify(folder).problems:
                    raise Stuck(f"running again leaves {verify(folder).problems}")
                check_numbers(folder, tables, whole, may_lack_states=True)  # a damaged one is set aside
            except StoreError as error:
                raise Stuck(f"repairing again: {error}") from error

    return check


@FEW_OR_ALL
@pytest.mark.parametrize("kind", export.FORMATS)
def test_power_is_cut_during_an_export(
    tmp_path: Path,
    plain_snapshots: None,
    kind: str,
    count: int | None,
    record_property: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    """An exported file is whole or absent, and all of them are there once the command has ended."""
    monkeypatch.setattr(export.time, "time", lambda: 1e9)  # it is written into event files
    with running_on(Machine()):
        session(tmp_path / "run")
        run = load(tmp_path / "run")
        export.FORMATS[kind](run, tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    (tmp_path / "disk").mkdir()
    machine = PowerMachine(tmp_path / "disk")
    with running_on(machine):
        export.FORMATS[kind](run, tmp_path / "disk" / "some" / "out")
        machine.say("exported")

    def check(disk: Path, said: frozenset) -> None:
        out = disk / "some" / "out"
        found = {name: data for name, data in contents(out).items() if not name.startswith(export.UNFINISHED)}
        assert not [name for name, data in found.items() if whole[name] != data], "wrong bytes"
        if said and found.keys() != whole.keys():
            raise Lost(str(whole.keys() - found.keys()))
        with running_on(Machine()):
            if {*os.listdir(out)} - {export.UNFINISHED} if out.exists() else False:
                shutil.rmtree(out)  # as the sentence says
            export.FORMATS[kind](run, out)
        if contents(out) != whole:
            raise Stuck("exporting again")

    tried = try_cuts(tmp_path / "cut", {kind: (machine.moments, check)}, count)
    report(f"export {kind}", tried, record_property)
