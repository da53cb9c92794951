"""Damage is noticed and named, and can be repaired; what is not ours is never changed."""

import collections
import errno
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.damage import SOME_OR_ALL, flip
from support.store_runs import (
    EMPTY,
    ENTRY,
    FIRST,
    ONE,
    SECOND,
    TWO,
    details_of,
    files,
    ordinary_user,
    same,
    tables,
    weights,
    write_run,
)

from topicjax.store import journal
from topicjax.store import verify as verify_module
from topicjax.store.files import StoreError, holder_in_words, ids_name, part_path
from topicjax.store.manifest import read_manifest, write_manifest
from topicjax.store.reader import committed, load, status
from topicjax.store.verify import repair, verify
from topicjax.store.writer import Writer

IDS = [f"{number:012x}" for number in range(8)]
EIGHT = ids_name(IDS)


def content(folder: Path) -> dict[str, bytes]:
    """Return all files by name, as a user would compare two copies."""
    return {name: (folder / name).read_bytes() for name in files(folder)}


def write_again(folder: Path) -> None:
    """Compute what is missing of write_run, as the next run would."""
    with Writer(folder, "demo") as writer:
        done = committed(folder)
        if not done >= {*FIRST}:
            for step in (2, 4):
                writer.save_snapshot(ONE, step, weights(3, seed=step))
            writer.commit(ONE, *tables(FIRST, ONE, [2, 4]))
        if not done >= {*SECOND}:
            lost = dict(status=["ok", "diverged"], diverged_step=[None, 2])
            writer.commit(TWO, *tables(SECOND, TWO, **lost))


TRUNCATED = {
    "a record in the middle": (lambda rows: rows.drop(1), {}, "has 2 of its 3 records"),
    "its last records": (lambda rows: rows.drop([1, 2]), {}, "stopped at step 4 and has 1 of its 3 records"),
    "its reason": (lambda rows: rows, dict(stop_reason=["", "steps"]), "has no reason why it stopped"),
    "its last weights": (lambda rows: rows, dict(snapshot_steps=[[], [4]]), "has no weights of that step"),
}


@pytest.mark.parametrize("lacks", TRUNCATED)
def test_a_truncated_trial_is_neither_written_nor_passed(lacks, tmp_path, monkeypatch):
    cut, columns, sentence = TRUNCATED[lacks]
    trials, records = tables(SECOND, TWO, **(dict(snapshot_steps=[[4], [4]], run=1) | columns))
    with Writer(tmp_path / "run", "demo") as writer:
        writer.write_manifest(EMPTY | {"runs": [ENTRY | {"snapshots": "last"}]})
        writer.save_snapshot(TWO, 4, weights(sum(map(bool, trials["snapshot_steps"]))))
        with pytest.raises(
            RuntimeError, match=f"is not whole and is not kept: trial {SECOND[0]}.*{sentence}"
        ):
            writer.commit(TWO, trials, cut(records), keeps_end=True)
        assert committed(tmp_path / "run") == set()
        monkeypatch.setattr("topicjax.store.writer.incomplete_trials", lambda *_: [])  # as it was before
        writer.commit(TWO, trials, cut(records), keeps_end=True)
    (problem,) = verify(tmp_path / "run").problems
    assert sentence in problem.sentence and problem.chunk == TWO
    repair(tmp_path / "run")
    assert committed(tmp_path / "run") == set() and verify(tmp_path / "run").problems == []


# Bit flips


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two chunks without weights: it is read in a few milliseconds."""
    folder = tmp_path_factory.mktemp("flips") / "small"
    with Writer(folder, "démo") as writer:
        plan = writer.write_plan([*FIRST, *SECOND])
        entry = ENTRY | {"plan": plan, "planned": 5, "description": "1e-05 ½", "wall_seconds": 1e-5}
        references = [{"settings": {"learning_rate": 0.1}, "values": {"bayes": 0.3, "uniform": None}}]
        writer.write_manifest(EMPTY | {"sweep": "démo", "runs": [entry], "references": references})
        writer.commit(ONE, *tables(FIRST, ONE), details_of(FIRST))
        writer.commit(TWO, *tables(SECOND, TWO), details_of(SECOND))
    return folder


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one chunk of eight trials with matrices of real size."""
    folder = tmp_path_factory.mktemp("flips") / "heavy"
    with Writer(folder, "demo") as writer:
        writer.write_manifest(EMPTY)
        writer.save_snapshot(EIGHT, 4, weights(8, size=101))
        writer.commit(EIGHT, *tables(IDS, EIGHT, [4]))
    return folder


def read_tables(folder: Path) -> tuple[Any, ...]:
    """Return all that readers see, except the weights."""
    found, state = load(folder), status(folder)
    if state.problems:
        raise StoreError(state.problems[0])
    tables = (found.trials, found.trajectories, found.details)
    return *(table.to_dict("list") for table in (*tables, found.references)), found.manifest, state


def flips(paths: list[Path], number: int, seed: int) -> Iterator[tuple[Path, int, int]]:
    """Give random bits: half of them of any byte, half of a byte of any file, however small that is."""
    rng = np.random.default_rng(seed)
    sizes = np.array([path.stat().st_size for path in paths])
    for count in range(number):
        which = rng.choice(len(paths), p=sizes / sizes.sum() if count % 2 else None)
        yield paths[which], int(rng.integers(sizes[which])), int(rng.integers(8))


def try_flips(
    folder: Path, paths: list[Path], number: int, read: Callable[[], Any], name: Callable[[Path], str]
) -> collections.Counter[str]:
    """Flip bits one at a time; count what readers notice, what is harmless, and what verify notices."""
    before, counts = read(), collections.Counter[str]()
    for path, place, bit in flips(paths, number, seed=len(paths)):
        flip(path, place, bit)
        try:
            counts["harmless" if repr(read()) == repr(before) else "wrong"] += 1
        except StoreError as error:
            counts["noticed" if name(path) in str(error) and "\n" not in str(error) else "wrong"] += 1
        problems = verify(folder).problems
        counts["verified"] += any(name(path) in problem.sentence for problem in problems)
        flip(path, place, bit)
    assert repr(read()) == repr(before) and not verify(folder).problems
    return counts


KINDS = {
    "trajectories": 400,
    "details": 200,
    "trials": 400,
    "manifest.json": 400,
    "journal.log": 400,
    "plans": 100,
}


@SOME_OR_ALL
@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_of_a_table_passes_for_a_number(
    small: Path, kind: str, share: float, record_property: Any
):
    number = round(share * KINDS[kind])
    paths = [small / kind] if (small / kind).is_file() else sorted((small / kind).iterdir())
    counts = try_flips(small, paths, number, lambda: read_tables(small), str)
    record_property(kind, dict(counts))
    print(kind, dict(counts))
    assert counts["wrong"] == 0 and counts["verified"] == number, counts


@SOME_OR_ALL
def test_no_flipped_bit_of_a_snapshot_passes_for_a_weight(heavy: Path, share: float, record_property: Any):
    snapshot = heavy / "checkpoints" / EIGHT / "4"
    paths = sorted(path for path in snapshot.rglob("*") if path.is_file())
    rng, written = np.random.default_rng(0), weights(8, size=101)

    def read() -> None:
        row = int(rng.integers(8))
        assert same(load(heavy).restore(IDS[row]), written, row)

    number = round(share * 400)
    counts = try_flips(heavy, paths, number, read, lambda _: f"the snapshot {snapshot} is damaged")
    record_property("snapshots", dict(counts))
    print("snapshots", dict(counts))
    assert counts["wrong"] == 0 and counts["verified"] == number, counts


# Verify and repair


DAMAGE: dict[str, Callable[[Path], object]] = {
    "trials part": lambda run: flip(part_path(run / "trials", ONE), 50, 3),
    "trials part missing": lambda run: part_path(run / "trials", TWO).unlink(),
    "trajectories part": lambda run: flip(part_path(run / "trajectories", TWO), 50, 3),
    "trajectories missing": lambda run: shutil.rmtree(run / "trajectories"),
    "trials lost in a copy": lambda run: shutil.rmtree(run / "trials"),
    "snapshot": lambda run: flip(next((run / "checkpoints" / ONE / "4").rglob("ocdbt.process_0/d/*")), 9, 1),
    "snapshot missing": lambda run: shutil.rmtree(run / "checkpoints" / ONE / "2"),
    "snapshots missing": lambda run: shutil.rmtree(run / "checkpoints"),
    "manifest": lambda run: flip(run / "manifest.json", 40, 1),
    "manifest missing": lambda run: (run / "manifest.json").unlink(),
    "manifest, spaces only": lambda run: (run / "manifest.json").write_text(
        json.dumps(json.loads((run / "manifest.json").read_text()))
    ),
    "journal": lambda run: flip(run / "journal.log", 400, 1),
    "journal missing": lambda run: (run / "journal.log").unlink(),
    "journal torn": lambda run: os.truncate(run / "journal.log", os.stat(run / "journal.log").st_size - 9),
    "plan": lambda run: flip(next((run / "plans").iterdir()), 50, 1),
    "plan missing": lambda run: shutil.rmtree(run / "plans"),
    "everything": lambda run: [flip(path, 20, 2) for path in run.rglob("*") if path.is_file()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_repair_sets_damage_aside_and_the_next_run_computes_it_again(run: Path, damage: str):
    whole = load(run)
    tables_before = [whole.trials, whole.trajectories]
    DAMAGE[damage](run)
    before = content(run)
    assert verify(run).problems
    verdict, moved = repair(run)
    assert verdict.problems and "\n" not in "".join(problem.sentence for problem in verdict.problems)
    kept = {path.read_bytes() for path in run.rglob("*") if path.is_file()}
    if "journal" not in damage and damage != "everything":
        del before["journal.log"]  # it is added to
    if "plan" in damage:
        del before["manifest.json"]  # it forgets that plan
    assert set(before.values()) <= kept
    assert all(path.exists() and "set_aside" in path.parts for path in moved)
    assert verify(run).problems == [] and repair(run)[1] == []
    assert status(run).problems == ()
    write_again(run)
    assert verify(run).problems == [] and status(run).finished == 5
    again = load(run)
    for mine, other in zip([again.trials, again.trajectories], tables_before, strict=True):
        keys = [name for name in ("trial_id", "step") if name in other]
        mine, other = (frame.sort_values(keys, ignore_index=True) for frame in (mine, other))
        pd.testing.assert_frame_equal(mine, other)
    assert all(same(again.restore(trial), weights(3, seed=4), row) for row, trial in enumerate(FIRST))


def test_repair_computes_again_no_more_than_is_damaged(run: Path):
    flip(part_path(run / "trajectories", TWO), 50, 3)
    repair(run)
    assert committed(run) == {*FIRST}
    flip(run / "journal.log", 400, 1)
    repair(run)
    assert committed(run) == {*FIRST}


def test_journal_that_is_written_anew_keeps_the_checksums_it_had(run: Path):
    before = journal.read_journal(run)
    line = (run / "journal.log").read_bytes().index(b"begin")
    flip(run / "journal.log", line, 0)
    flip(part_path(run / "trials", TWO), 50, 3)  # its checksum is in a line that is whole
    repair(run)
    after = journal.read_journal(run)
    assert after.commits == {ONE: before.commits[ONE]} and after.plans == before.plans


def test_repair_leaves_a_folder_that_is_not_ours_alone(tmp_path: Path):
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    (tmp_path / "checkpoints" / ONE).mkdir(parents=True)
    before = content(tmp_path)
    with pytest.raises(StoreError, match=r"manifest.json is damaged or not of a run.*nothing to repair"):
        repair(tmp_path)
    assert content(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "manifest.json"]
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(StoreError, match="is not a run folder"):
        repair(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["checkpoints"]


def test_repair_waits_for_no_one_and_moves_over_to_another_disk(run: Path, monkeypatch: pytest.MonkeyPatch):
    with Writer(run, "demo"), pytest.raises(StoreError, match=f"being written by process {os.getpid()} on"):
        repair(run)

    def rename(*_: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(verify_module.os, "rename", rename)
    DAMAGE["snapshot"](run)
    _, moved = repair(run)
    assert len(moved) == 3 and all(path.exists() for path in moved)
    assert not (run / "checkpoints" / ONE).exists()


def test_damaged_state_is_found_and_set_aside(run: Path):
    third = ids_name(["e" * 12])
    with Writer(run, "demo") as writer:
        writer.save_partial(third, {"W_K": np.ones(3)}, {"step": 4})
    assert verify(run).problems == []
    path = run / "partial" / f"{third}.npz"
    flip(path, 30, 0)
    (problem,) = verify(run).problems
    assert problem.sentence.startswith(f"{path} is damaged: ")
    assert len(repair(run)[1]) == 1 and verify(run).problems == []
    with Writer(run, "demo") as writer:
        assert writer.load_partial(third) is None and committed(run) == {*FIRST, *SECOND}


def test_hidden_files_of_others_in_a_snapshot_are_no_damage(run: Path):
    (run / "checkpoints" / ONE / "4" / ".DS_Store").write_bytes(b"x")
    (run / "checkpoints" / ONE / "notes.txt").write_bytes(b"x")
    assert verify(run).problems == []


# What is not ours


def test_users_files_in_a_folder_without_manifest(tmp_path: Path):
    model = tmp_path / "p" / "checkpoints" / "best" / "model.pt"
    model.parent.mkdir(parents=True)
    model.write_text("x")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=r"p is not a run folder, it has no manifest.json; it holds checkp"):
        Writer(tmp_path / "p", "demo").__enter__()
    assert sorted(tmp_path.rglob("*")) == before and model.read_text() == "x"


def test_users_files_in_a_run_folder_are_left_alone(run: Path):
    mine = ["checkpoints/best/model.pt", "checkpoints/123/4/x", f"checkpoints/{ONE}/mine/x", "partial/notes"]
    mine += [
        "figures/a.png",
        "thesis.tex",
        "trials/.hidden",
        f"partial/{ONE}",
        "plans/notes.txt",
        "plans/x.parquet",
    ]
    for name in mine:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    third = ids_name(["e" * 12])
    with Writer(run, "demo") as writer:
        writer.save_snapshot(third, 2, weights(1))
    with Writer(run, "demo") as writer:
        writer.keep_partials([])
        assert not (run / "checkpoints" / third).exists()
    DAMAGE["trajectories part"](run)
    repair(run)
    write_again(run)
    assert {name: (run / name).read_text() for name in mine} == {name: name for name in mine}
    assert len(load(run).trials) == 5


def test_users_file_beside_an_unfinished_snapshot_is_left_alone(run: Path):
    third = ids_name(["e" * 12])
    with Writer(run, "demo") as writer:
        writer.save_snapshot(third, 2, weights(1))
    for name in ("2.backup", "notes.txt"):
        (run / "checkpoints" / third / name).write_text("x")
    with Writer(run, "demo") as writer:
        assert sorted(os.listdir(run / "checkpoints" / third)) == ["2.backup", "notes.txt"]
        writer.save_snapshot(third, 2, weights(1))
        writer.commit(third, *tables(["e" * 12], third, [2]))
    assert sorted(os.listdir(run / "checkpoints" / third)) == ["2", "2.backup", "notes.txt"]
    assert verify(run).problems == []


@pytest.mark.parametrize("damage", [None, "journal missing", "snapshot", "everything"])
def test_shared_store_behind_a_link_is_left_alone(run: Path, tmp_path: Path, damage: str | None):
    shared = tmp_path / "shared"
    shutil.move(run / "checkpoints", shared)
    other = [shared / "0123456789ab" / "4" / "x", shared / "ffffffffffff" / "x"]
    for path in other:
        path.parent.mkdir(parents=True)
        path.write_text("x")
    (run / "checkpoints").symlink_to(shared)
    third = ids_name(["e" * 12])
    with Writer(run, "demo") as writer:
        writer.save_snapshot(third, 2, weights(1))
    with Writer(run, "demo"):
        assert sorted(os.listdir(shared)) == sorted([ONE, "0123456789ab", "ffffffffffff"])
    if damage:
        DAMAGE[damage](run)
        repair(run)
        write_again(run)
        assert verify(run).problems == []
    assert all(path.read_text() == "x" for path in other)


def test_trials_lost_in_a_partial_copy_are_reported_and_nothing_changes(run: Path):
    shutil.rmtree(run / "trials")
    before = content(run)
    lost = (
        f"{run}/trials/part-.* is missing, though its trials are finished .and 1 more.; copy the folder again"
    )
    with pytest.raises(StoreError, match=f"{lost}, or .* `topicjax repair {run}`"):
        Writer(run, "demo").__enter__()
    assert content(run) == before and not (run / "trials").exists()
    assert len(status(run).problems) == 2
    repair(run)
    kept = {path.read_bytes() for path in (run / "set_aside").rglob("*") if path.is_file()}
    assert {data for name, data in before.items() if name.startswith(("check", "traj"))} <= kept
    write_again(run)
    assert len(load(run).trials) == 5 and verify(run).problems == []


UNKNOWN = ("checkpoints/{}/4/x", "partial/{}.npz", "states/{}.npz", "trajectories/part-{}.parquet")


@pytest.mark.parametrize("name", UNKNOWN)
def test_files_with_the_name_of_a_chunk_that_the_journal_does_not_know(run: Path, name: str):
    third = ids_name(["e" * 12])
    path = run / name.format(third)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    before, (problem,) = content(run), verify(run).problems
    unknown = f"{problem.path} is there, and {run}/journal.log does not know it"
    assert third in problem.path.name and problem.sentence == unknown and status(run).problems == (unknown,)
    with pytest.raises(StoreError, match=f"{unknown}; .* `topicjax repair {run}`"):
        Writer(run, "demo").__enter__()
    assert content(run) == before
    (moved,) = repair(run)[1]
    assert (moved / "4" / "x" if moved.is_dir() else moved).read_text() == "x" and not path.exists()
    assert verify(run).problems == [] and status(run).problems == ()
    with Writer(run, "demo") as writer:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")  # by someone else, meanwhile
        refused = f"{run}/.*{third}.* is there, but no run of this folder wrote it; move it elsewhere"
        with pytest.raises(StoreError, match=refused):
            writer.save_snapshot(third, 4, weights(1))
        with pytest.raises(StoreError, match=refused):
            writer.commit(third, *tables(["e" * 12], third))
    assert path.read_text() == "x"


def test_lock_file_of_someone_else_makes_no_run_folder(tmp_path: Path):
    (tmp_path / "lock.json").write_text('{"packages": []}')
    with pytest.raises(StoreError, match="is not a run folder"):
        Writer(tmp_path, "demo").__enter__()
    assert (tmp_path / "lock.json").read_text() == '{"packages": []}'
    for ours in ("", '{"pi', '{"pid": 7, "host": "here", "since": "today"}'):
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "lock.json").write_text(ours)  # of a process that was killed at its start
        with Writer(tmp_path / "new", "demo"):
            pass
        shutil.rmtree(tmp_path / "new")


# Links and odd files


def test_links_in_a_received_folder_are_not_followed(run: Path, tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("{}")
    third, ids = ids_name(["e" * 12]), ["e" * 12]
    names = [
        ".tmp-manifest.json",
        f"trials/.tmp-part-{third}.parquet",
        f"trajectories/.tmp-part-{third}.parquet",
    ]
    names += [f"partial/.tmp-{third}.npz", f"plans/.tmp-plan-{ids_name(ids)}.parquet", ".tmp-journal.log"]
    for name in names:
        (run / name).symlink_to(victim)
    with Writer(run, "demo") as writer:
        writer.write_plan(ids)
        writer.write_manifest(writer.manifest)
        writer.save_partial(third, {}, {})
        writer.commit(third, *tables(ids, third))
    assert victim.read_text() == "{}"
    assert not [path for path in run.rglob("*") if path.is_symlink()]
    assert verify(run).problems == []


@pytest.mark.parametrize("name", ["lock.json", "journal.log"])
def test_lock_and_journal_that_are_links(run: Path, tmp_path: Path, name: str):
    victim = tmp_path / "victim"
    victim.write_bytes((run / name).read_bytes() if (run / name).exists() else b"precious")
    before = victim.read_bytes()
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    refused = f"cannot write {run}.*: it is a link, and links are not followed"
    with pytest.raises(StoreError, match=refused), Writer(run, "demo") as writer:
        writer.save_partial("0" * 12, {}, {})
    assert victim.read_bytes() == before


def test_manifest_that_is_a_link_is_replaced(run: Path, tmp_path: Path):
    victim = tmp_path / "victim"
    shutil.move(run / "manifest.json", victim)
    before = victim.read_bytes()
    (run / "manifest.json").symlink_to(victim)
    with Writer(run, "demo") as writer:
        writer.write_manifest(writer.manifest | {"runs": []})
    assert victim.read_bytes() == before and not (run / "manifest.json").is_symlink()
    (run / "manifest.json").unlink()
    (run / "manifest.json").symlink_to(tmp_path / "nowhere")
    for attempt in (lambda: Writer(run, "demo").__enter__(), lambda: status(run)):
        with pytest.raises(StoreError, match=r"manifest.json is a link to a file that is not there"):
            attempt()


def test_chunk_folder_that_is_a_link_is_not_cleaned(run: Path, tmp_path: Path):
    third = ids_name(["e" * 12])
    (tmp_path / "photos" / "2024").mkdir(parents=True)
    journal.append(run, {"event": "begin", "chunk": third})
    (run / "checkpoints" / third).symlink_to(tmp_path / "photos")
    with pytest.raises(StoreError, match=f"{run}/checkpoints/{third} is a link"):
        Writer(run, "demo").__enter__()
    assert (tmp_path / "photos" / "2024").is_dir()


ODD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "device": lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3)),
    "link": lambda path: path.symlink_to("nowhere"),
    "link to a pipe": lambda path: (os.mkfifo(f"{path}.pipe"), path.symlink_to(f"{path}.pipe")),
}


@pytest.mark.parametrize("name", ["lock.json", "journal.log", "manifest.json"])
@pytest.mark.parametrize("kind", ODD)
def test_odd_files_give_one_sentence_and_do_not_hang(run: Path, name: str, kind: str):
    (run / name).unlink(missing_ok=True)
    try:
        ODD[kind](run / name)
    except PermissionError:
        pytest.skip("only root makes devices")
    start = time.monotonic()

    def write() -> None:
        with Writer(run, "demo") as writer:
            writer.save_partial("0" * 12, {}, {})

    for attempt in (write, lambda: status(run)):
        if (name, kind) == ("journal.log", "link") and attempt is not write:
            continue  # for readers a journal that is not there
        with pytest.raises(StoreError, match=name if attempt is not write else str(run)) as caught:
            attempt()
        assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 2


HOLDERS = [
    "",
    "nonsense",
    "[]",
    "{}",
    '{"pid": 7}',
    '{"pid": "x", "host": 3, "since": null}',
    "[" * 4000,
    "\0" * 80,
]


@pytest.mark.parametrize("text", HOLDERS)
def test_odd_content_of_a_lock_file(run: Path, text: str):
    with Writer(run, "demo"):
        (run / "lock.json").write_text(text)
        assert status(run).running is not None
        assert holder_in_words(status(run).running or {}) == "another process"
        with pytest.raises(StoreError, match=f"{run} is being written by another process$"):
            Writer(run, "demo").__enter__()
    assert status(run).running is None
    (run / "lock.json").write_text(text)  # nobody holds it
    assert status(run).running is None
    with Writer(run, "demo"):
        assert f"process {os.getpid()} on " in holder_in_words(status(run).running or {})


def test_paths_in_tables_are_checked(run: Path, tmp_path: Path):
    part = part_path(run / "trials", ONE)
    whole = pd.read_parquet(part)
    (tmp_path / "etc").mkdir()
    changes = dict(chunk="../../etc", row=-1, snapshot_steps=[[-4]] * 3, trial_id=["../x", *FIRST[1:]])
    for name, value in changes.items():
        whole.assign(**{name: value}).to_parquet(part, index=False)
        (run / "journal.log").unlink(missing_ok=True)  # whoever forges a table can leave it out
        with pytest.raises(StoreError, match=r"does not say where the weights|12 hexadecimal digits"):
            _ = load(run).trials
            load(run).restore(FIRST[0])
        with pytest.raises(StoreError):
            Writer(run, "demo").__enter__()
        assert any("does not say where the weights" in problem.sentence for problem in verify(run).problems)
    repair(run)
    assert committed(run) == {*SECOND} and verify(run).problems == []


def test_forged_journals_are_named(run: Path):
    good = journal.commit_entry(journal.read_journal(run).commits[ONE])
    forged: list[dict[str, Any]] = [
        {"event": "begin", "chunk": "../../etc"},
        {"event": "begin"},
        {"event": "explode", "chunk": ONE},
        {"event": "plan", "plan": ONE, "sweep": "demo", "file": 7},
        good | {"trial_ids": ["../x"]},
        good | {"trial_ids": 7},
        good | {"files": {"../../etc": [1, 2]}},
        good | {"files": []},
        good | {"snapshots": {"../..": "x"}},
        good | {"diverged": None},
    ]
    for entry in forged:
        (run / "journal.log").write_bytes(journal.encode(entry))
        for attempt in (
            lambda: status(run),
            lambda: load(run).trials,
            lambda: Writer(run, "demo").__enter__(),
        ):
            with pytest.raises(
                StoreError, match=f"{run}/journal.log is damaged at line 1; `topicjax repair`"
            ):
                attempt()
    repair(run)
    assert verify(run).problems == [] and len(load(run).trials) == 5


# Names of folders


@pytest.mark.parametrize(
    "name", ["lr=[0.1]", "a*b?", "back\\slash", "with space", "größe 数", "50%", "a#b", "{x}", "~"]
)
def test_any_name_of_a_folder_will_do(tmp_path: Path, name: str):
    folder = tmp_path / name / "run"
    write_run(folder)
    assert same(load(folder).restore("bb"), weights(3, seed=4), 2)
    assert verify(folder).problems == [] and status(folder).problems == ()
    with Writer(folder, "demo"):
        pass
    flip(part_path(folder / "trials", TWO), 40, 1)
    repair(folder)
    write_again(folder)
    assert verify(folder).problems == [] and len(load(folder).trials) == 5


def test_name_that_is_not_utf8_is_refused_before_anything_is_created(tmp_path: Path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    with pytest.raises(StoreError, match="is not valid UTF-8"):
        Writer(folder / "run", "demo").__enter__()
    assert not os.listdir(tmp_path)


def test_no_snapshot_says_where_it_was_written(heavy: Path):
    for path in heavy.rglob("*"):
        assert not path.is_file() or str(heavy.parent).encode() not in path.read_bytes()


# What a status says


def test_status_says_what_is_missing_and_nothing_is_built_on_it(run: Path):
    shutil.rmtree(run / "checkpoints" / ONE / "2")
    part = part_path(run / "trajectories", TWO)
    os.truncate(part, 100)
    size = journal.read_journal(run).commits[TWO].files["trajectories"].size
    assert sorted(status(run).problems) == [
        f"{part} has 100 bytes instead of {size:,}, though its trials are finished",
        f"the snapshot {run}/checkpoints/{ONE}/2 is missing, though its trials are finished",
    ]
    with pytest.raises(StoreError, match=r"though its trials are finished \(and 1 more\)"):
        Writer(run, "demo").__enter__()
    shutil.rmtree(run / "checkpoints")
    assert len(status(run).problems) == 3


@pytest.mark.parametrize("name", ["trials", "trajectories", "checkpoints"])
def test_folders_that_may_not_be_read_are_not_called_empty(original: Path, name: str):
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are root's alone
        run = Path(shutil.copytree(original, Path(place) / "run"))
        for path in (run.parent, *run.rglob("*"), run):
            path.chmod(0o777)
        (run / name).chmod(0o300)
        refused = f"cannot read {run}/{name}: permission denied"
        with ordinary_user():
            if name == "trials":
                with pytest.raises(StoreError, match=refused):
                    status(run)
            else:
                assert status(run).problems == (refused,)
            with pytest.raises(StoreError, match=refused):
                Writer(run, "demo").__enter__()
        (run / name).chmod(0o700)


def test_plans_that_are_damaged_do_not_hide_the_rest(run: Path):
    DAMAGE["plan"](run)
    found = status(run)
    assert found.finished == 5 and found.planned == 7 and len(found.problems) == 1
    assert "repair` forgets that plan" in found.problems[0]
    repair(run)
    assert status(run).problems == () and status(run).planned == 7
    with Writer(run, "demo") as writer:
        writer.write_plan([*FIRST, *SECOND, "e" * 12, "f" * 12])
    assert verify(run).problems == []


def test_damaged_plan_that_no_run_names_is_found_and_written_again(run: Path):
    write_manifest(run, EMPTY)
    DAMAGE["plan"](run)
    assert len(verify(run).problems) == 1
    with Writer(run, "demo") as writer:
        writer.write_plan([*FIRST, *SECOND, "e" * 12, "f" * 12])
    assert verify(run).problems == []


def test_manifest_written_anew_names_the_sweep(run: Path):
    renamed = run.rename(run.with_name("elsewhere"))
    flip(renamed / "manifest.json", 40, 1)
    repair(renamed)
    assert read_manifest(renamed)["sweep"] == "demo"
    with Writer(renamed, "demo"):
        pass
    (renamed / "manifest.json").write_text("{")
    (renamed / "journal.log").unlink()
    repair(renamed)
    assert status(renamed).sweep is None and load(renamed).name == "elsewhere"
    with Writer(renamed, "any") as writer:  # nothing says whose it was
        writer.write_manifest(writer.manifest)
    assert status(renamed).sweep == "any"
