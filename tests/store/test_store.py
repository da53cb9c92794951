"""The run folder: what is whole counts, what is not is invisible, every fault has a sentence."""

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.store_runs import (
    EMPTY,
    ENTRY,
    FIRST,
    ONE,
    SECOND,
    TWO,
    crashing_at,
    files,
    ordinary_user,
    same,
    tables,
    weights,
)

from topicjax.store import checkpoints, journal
from topicjax.store import files as files_module
from topicjax.store.files import (
    LOCK,
    TEMPORARY,
    FileMark,
    StoreError,
    ids_name,
    lock_folder,
    part_path,
    plain,
    unlock_folder,
)
from topicjax.store.journal import Commit, Journal
from topicjax.store.manifest import FORMAT, digest
from topicjax.store.parts import write_table
from topicjax.store.reader import PlanStatus, Status, committed, find_id, load, status
from topicjax.store.verify import repair, verify
from topicjax.store.writer import Writer


def test_plain_pandas_reads_both_folders_and_passes_over_temporary_files(run: Path):
    for name in ("trials", "trajectories"):
        (run / name / f"{TEMPORARY}part-{ONE}.parquet").write_bytes(b"half a file")
    trials = pd.read_parquet(run / "trials").set_index("trial_id").loc[FIRST + SECOND]
    assert trials["status"].tolist() == ["ok"] * 4 + ["diverged"]
    np.testing.assert_array_equal(trials["diverged_step"], [np.nan] * 4 + [2])
    assert [own.tolist() for own in trials["snapshot_steps"]] == [[2, 4]] * 3 + [[]] * 2
    assert trials["row"].tolist() == [0, 1, 2, 0, 1]
    expected = pd.concat([tables(FIRST, ONE)[1], tables(SECOND, TWO)[1]])
    found = pd.read_parquet(run / "trajectories")
    for frame in (found, load(run).trajectories):
        frame = frame.sort_values(["trial_id", "step"], ignore_index=True)
        pd.testing.assert_frame_equal(frame, expected.reset_index(drop=True))
    assert set(load(run).trials["trial_id"]) == {*FIRST, *SECOND}


def test_types_of_a_part_do_not_depend_on_its_values(run: Path):
    one, two = (pq.read_schema(part_path(run / "trials", chunk)) for chunk in (ONE, TWO))
    assert one.equals(two)


def test_restore_gives_each_trial_its_own_weights(run: Path):
    loaded = load(run)
    for row, trial in enumerate(FIRST):
        assert same(loaded.restore(trial), weights(3, seed=4), row)
        assert same(loaded.restore(trial, step=2), weights(3, seed=2), row)


def test_restore_reads_the_bytes_of_one_trial(tmp_path: Path):
    import tensorstore as ts

    def bytes_read() -> int:
        name = "/tensorstore/kvstore/file/bytes_read"
        metrics = ts.experimental_collect_matching_metrics(name)
        return sum(value["value"] for metric in metrics for value in metric["values"])

    params = weights(64, size=60)
    checkpoints.save(tmp_path / "run" / "chunk" / "4", checkpoints.describe_tree(params), params)
    before = bytes_read()
    _, found = checkpoints.read_trials(tmp_path / "run" / "chunk" / "4", 37)
    own, every = (sum(array.nbytes for array in group.values()) for group in (found, params))
    assert same(found, params, 37)
    assert 0.8 * own < bytes_read() - before < 2 * own < every / 30


def test_snapshot_is_an_ordinary_orbax_checkpoint(run: Path):
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(run / "checkpoints" / ONE / "4")
    for name, array in weights(3, seed=4).items():
        np.testing.assert_array_equal(found[name], array)


def test_zero_and_not_finite_weights_come_back(tmp_path: Path):
    params = {"W_K": np.zeros((2, 3), "f4"), "W_V": np.array([[np.nan, np.inf], [0, -np.inf]])}
    checkpoints.save(tmp_path / "run" / "chunk" / "0", checkpoints.describe_tree(params), params)
    for row in range(2):
        _, found = checkpoints.read_trials(tmp_path / "run" / "chunk" / "0", row)
        np.testing.assert_array_equal(found["W_K"], params["W_K"][row])
        np.testing.assert_array_equal(found["W_V"], params["W_V"][row])


def test_writes_from_a_thread(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with Writer(tmp_path / "run", "demo") as writer, ThreadPoolExecutor(1) as pool:
        pool.submit(writer.save_snapshot, ONE, 4, weights(3)).result()
        pool.submit(writer.commit, ONE, *tables(FIRST, ONE, [4])).result()
    assert same(load(tmp_path / "run").restore("bb"), weights(3), 2)
    assert capfd.readouterr() == ("", "")


def test_what_is_not_committed_is_invisible_and_removed(run: Path):
    third = ids_name(["e" * 12])
    whole = files(run)
    with Writer(run, "demo") as writer, pytest.raises(StoreError), crashing_at(writer, "trials"):
        writer.save_snapshot(third, 2, weights(1))
        writer.commit(third, *tables(["e" * 12], third, [2]))
    (run / "checkpoints" / third / "3.orbax-checkpoint-tmp").mkdir(parents=True)
    (run / "trials" / f"{TEMPORARY}part-{third}.parquet").write_bytes(b"half")
    loaded = load(run)
    assert set(loaded.trials["trial_id"]) == set(loaded.trajectories["trial_id"]) == {*FIRST, *SECOND}
    with Writer(run, "demo") as writer:
        assert committed(writer.folder) == {*FIRST, *SECOND}
    assert files(run) == whole
    assert not (run / "checkpoints" / third).exists()


def test_state_of_an_unfinished_chunk_is_kept_and_its_snapshots_are_removed(run: Path):
    third, ids = ids_name(["e" * 12]), ["e" * 12]
    with Writer(run, "demo") as writer:
        writer.save_partial(third, {}, {"step": 4})  # the engine keeps snapshots in the state until the end
        for step in (2, 4):
            writer.save_snapshot(third, step, weights(1, seed=step))
    (run / "checkpoints" / third / "6.orbax-checkpoint-tmp").mkdir()
    with Writer(run, "demo") as writer:
        assert not (run / "checkpoints" / third).exists()
        assert writer.load_partial(third) == ({}, {"step": 4})
        for step in (2, 4, 4):
            writer.save_snapshot(third, step, weights(1, seed=9))
        writer.commit(third, *tables(ids, third, [2, 4]))
    assert same(load(run).restore(ids[0]), weights(1, seed=9), 0)
    assert not list((run / "partial").iterdir())


def test_states_of_chunks_no_longer_planned_are_removed(tmp_path: Path):
    with Writer(tmp_path / "run", "demo") as writer:
        for chunk in (ONE, TWO):
            writer.save_partial(chunk, {}, {"step": 2})
            (writer.folder / "checkpoints" / chunk / "2").mkdir(parents=True)
        writer.keep_partials([TWO])
        assert writer.load_partial(ONE) is None
        assert writer.load_partial(TWO) == ({}, {"step": 2})
        assert not list((writer.folder / "checkpoints").iterdir())


HOLD = "import sys; from topicjax.store.writer import Writer\nwith Writer(sys.argv[1], 'demo'):\n"
HOLD += "    print('ready', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def other_process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_second_process_is_refused_and_a_killed_one_leaves_no_lock(run: Path):
    with other_process(run) as process:
        by = f"process {process.pid} on {socket.gethostname()} since"
        with pytest.raises(StoreError, match=f"{run} is being written by {by}"):
            Writer(run, "demo").__enter__()
        running = status(run).running
        assert (running["pid"], running["host"]) == (process.pid, socket.gethostname())
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (run / "lock.json").exists()
    assert status(run).running is None
    with Writer(run, "demo") as writer:
        assert status(run).running["pid"] == os.getpid()
        assert len(committed(writer.folder)) == 5
    assert not (run / "lock.json").exists()


def test_lock_of_a_process_that_ended_well_is_gone(run: Path):
    with other_process(run) as process:
        process.communicate(timeout=20)
        assert process.returncode == 0
    assert not (run / "lock.json").exists()


def test_one_holder_at_a_time_however_many_try(tmp_path: Path):
    inside, most, taken = 0, 0, 0
    guard = threading.Lock()

    def contend(_: int) -> None:
        nonlocal inside, most, taken
        for _ in range(20):
            with contextlib.suppress(StoreError):
                descriptor = lock_folder(tmp_path)
                with guard:
                    inside, taken = inside + 1, taken + 1
                    most = max(most, inside)
                time.sleep(0.0005)
                with guard:
                    inside -= 1
                unlock_folder(tmp_path, descriptor)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(contend, range(8)))
    assert most == 1
    assert taken > 8


def fail_at(monkeypatch: pytest.MonkeyPatch, number: int, code: int) -> Callable[[], int]:
    """Let call `number` (from 0) of os.fsync and os.replace fail; return a count of the calls."""
    calls = 0

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number + 1:
                raise OSError(code, os.strerror(code))
            return function(*arguments)

        return failing

    monkeypatch.setattr(os, "fsync", wrap(os.fsync))
    monkeypatch.setattr(os, "replace", wrap(os.replace))
    return lambda: calls


@pytest.mark.parametrize("number", range(8))  # journal; two parts: file, rename, folder; journal
def test_disk_full_while_committing_leaves_nothing_that_passes_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    folder = tmp_path / "run"
    with Writer(folder, "demo") as writer, monkeypatch.context() as patch:
        writer.write_manifest(EMPTY)
        writer.commit(TWO, *tables(SECOND, TWO))
        fail_at(patch, number, errno.ENOSPC)
        part = f"{'trials' if number > 3 else 'trajectories'}/part-{ONE}.parquet"
        part = "journal.log" if number in (0, 7) else part
        with pytest.raises(StoreError, match=f"cannot write {folder}/{part}: the disk is full"):
            writer.commit(ONE, *tables(FIRST, ONE))
        assert not list(folder.rglob(f"{TEMPORARY}*"))
    whole = set(SECOND) | (set(FIRST) if number > 5 else set())  # the file is there, whole
    loaded = load(folder)
    assert set(loaded.trials["trial_id"]) == set(loaded.trajectories["trial_id"]) == whole
    with Writer(folder, "demo") as writer:
        if number <= 5:
            writer.commit(ONE, *tables(FIRST, ONE))
        assert committed(writer.folder) == {*FIRST, *SECOND}
    assert status(folder).problems == ()


def test_every_moment_of_a_commit_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Writer(tmp_path / "run", "demo") as writer, monkeypatch.context() as patch:
        count = fail_at(patch, 99, errno.ENOSPC)
        writer.commit(ONE, *tables(FIRST, ONE))
        assert count() == 9  # and the folder, when the journal is new


def test_disk_full_while_writing_the_bytes(run: Path, monkeypatch: pytest.MonkeyPatch):
    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = files(run)
    with Writer(run, "demo") as writer, monkeypatch.context() as patch:
        writer.save_partial("0" * 12, {}, {})  # begun
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(StoreError, match="the disk is full"):
            writer.commit("0" * 12, *tables(["e" * 12], "0" * 12))
    assert files(run) == {*before, f"partial/{'0' * 12}.npz"}


def test_disk_full_before_and_during_a_snapshot(run: Path, monkeypatch: pytest.MonkeyPatch):
    before, third = files(run), "0" * 12
    path = run / "checkpoints" / third / "4"
    with Writer(run, "demo") as writer:
        with monkeypatch.context() as patch:
            usage = shutil.disk_usage(run)._replace(free=100)
            patch.setattr(shutil, "disk_usage", lambda _: usage)
            with pytest.raises(StoreError, match=f"cannot write {path}: the disk is full"):
                writer.save_snapshot(third, 4, weights(2))
        assert files(run) == before

        def save(*_: Any) -> None:
            raise ValueError("RESOURCE_EXHAUSTED: Failed to write: No space left on device [...]")

        monkeypatch.setattr(checkpoints, "save", save)
        with pytest.raises(StoreError, match=f"cannot write {path}: the disk is full"):
            writer.save_snapshot(third, 4, weights(2))


def test_snapshot_that_fails_midway_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import orbax.checkpoint as ocp

    def save(self: Any, path: Path, **_: Any) -> None:
        path.with_name(f"{path.name}.orbax-checkpoint-tmp-7").mkdir(parents=True)
        path.with_name(f"{path.name}.mine").mkdir()
        raise ValueError("stopped\nand pages more")

    monkeypatch.setattr(ocp.Checkpointer, "save", save)
    with Writer(tmp_path / "run", "demo") as writer:
        with pytest.raises(StoreError, match=f"cannot write .*{ONE}/4: stopped$"):
            writer.save_snapshot(ONE, 4, weights(3))
        assert os.listdir(tmp_path / "run" / "checkpoints" / ONE) == ["4.mine"]


def test_unwritable_and_unreadable_folders(tmp_path: Path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    with ordinary_user(), pytest.raises(StoreError, match=r"cannot .* permission denied$"):
        Writer(folder / "run", "demo").__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=f"{tmp_path}/file is not a folder"):
        Writer(tmp_path / "file", "demo").__enter__()
    with pytest.raises(StoreError, match="file/run is not a folder"):
        Writer(tmp_path / "file" / "run", "demo").__enter__()


def test_read_only_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def open_regular(path: Path, flags: int) -> int:
        if path.name == LOCK:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return original(path, flags)

    original = files_module.open_regular
    monkeypatch.setattr(files_module, "open_regular", open_regular)
    with pytest.raises(StoreError, match=f"cannot write {tmp_path}: the file system is read-only"):
        Writer(tmp_path, "demo").__enter__()


@pytest.mark.parametrize("content", [b"", b"PAR1 and nonsense PAR1"])
def test_damaged_part_is_named(run: Path, content: bytes):
    part = part_path(run / "trials", TWO)
    whole = part.read_bytes()
    for damaged in (content, whole[:-9], whole[len(whole) // 2 :]):
        part.write_bytes(damaged)
        with pytest.raises(StoreError, match=f"{part} has .* bytes instead of .*topicjax repair {run}"):
            Writer(run, "demo").__enter__()
        assert len(status(run).problems) == 1 and str(part) in status(run).problems[0]
        with pytest.raises(StoreError, match=f"{part} is damaged: .*; `topicjax repair`"):
            _ = load(run).trials


def test_damaged_and_missing_trajectories_are_named(run: Path):
    part = part_path(run / "trajectories", TWO)
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(StoreError, match=f"{part} is damaged"):
        _ = load(run).trajectories
    part.unlink()
    with pytest.raises(StoreError, match=f"{part} is missing; `topicjax repair`"):
        _ = load(run).trajectories


def test_part_of_something_else_is_named(run: Path):
    part = part_path(run / "trials", "0" * 12)
    pd.DataFrame({"patient": [1]}).to_parquet(part)
    with pytest.raises(
        StoreError, match=f"{part} is there, and {run}/journal.log does not know it; .*repair {run}`"
    ):
        Writer(run, "demo").__enter__()
    with pytest.raises(StoreError, match=f"{part} is not part of a run"):
        committed(run)
    with pytest.raises(StoreError, match=f"{part} is not part of a run"):
        status(run)


@pytest.mark.parametrize("text", ["", "{", '{"name": "a web page"}', "[]"])
def test_damaged_or_foreign_manifest_is_named(run: Path, text: str):
    (run / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match=f"{run}/manifest.json is (damaged|not the manifest)"):
        Writer(run, "demo").__enter__()
    with pytest.raises(StoreError, match=f"{run}/manifest.json is (damaged|not the manifest)"):
        status(run)
    assert not (run / "lock.json").exists()


def test_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StoreError, match=r"not a run folder, it has no manifest.json; it holds thesis.tex$"):
        load(tmp_path)
    (tmp_path / "trials").mkdir()  # a folder of that name may be anyone's
    with pytest.raises(StoreError, match=r"not a run folder, .*; it holds thesis.tex, trials$"):
        Writer(tmp_path, "demo").__enter__()
    assert sorted(os.listdir(tmp_path)) == ["thesis.tex", "trials"]


def test_foreign_file_among_the_parts_is_named(run: Path):
    (run / "trials" / "notes.txt").touch()
    with pytest.raises(StoreError, match=f"{run}/trials/notes.txt is not part of a run"):
        Writer(run, "demo").__enter__()


def test_another_sweep_is_refused_unless_extending(run: Path):
    before = files(run)
    with pytest.raises(StoreError, match=f"{run} holds trials of demo, not of other; allowed: .*--extend"):
        Writer(run, "other").__enter__()
    assert files(run) == before
    with Writer(run, "other", extend=True) as writer:
        assert committed(writer.folder) == {*FIRST, *SECOND}
    (run / "manifest.json").unlink()
    with pytest.raises(StoreError, match="is not a run folder, it has no manifest"):
        Writer(run, "demo").__enter__()
    assert len(load(run).trials) == 5  # reading needs none


def test_no_run_folder(tmp_path: Path):
    with pytest.raises(StoreError, match=f"there is no folder {tmp_path}/absent"):
        load(tmp_path / "absent")
    with pytest.raises(StoreError, match=f"{tmp_path} is empty"):
        status(tmp_path)
    with Writer(tmp_path, "demo"):
        pass
    assert status(tmp_path).finished == 0
    with pytest.raises(StoreError, match=f"no trial in {tmp_path} is finished yet"):
        load(tmp_path).restore("aa")


def test_abbreviated_unknown_and_ambiguous_ids(run: Path):
    loaded = load(run)
    assert same(loaded.restore("bb"), weights(3, seed=4), 2)
    with pytest.raises(StoreError, match=f"2 trials in .* begin with 'aa': {', '.join(FIRST[:2])}$"):
        loaded.restore("aa")
    with pytest.raises(StoreError, match=f"begins with 'aa22bb22aa22'; the nearest: {FIRST[1]}, "):
        loaded.restore("aa22bb22aa22")
    with pytest.raises(StoreError, match="begins with ''; the nearest: "):
        loaded.restore("")
    assert find_id("ab", ["abc", "ab"], run) == "ab"


def test_steps_and_snapshots_that_are_not_there(run: Path):
    loaded = load(run)
    with pytest.raises(StoreError, match=f"{FIRST[0]} .* no snapshot at step 3; there are: 2, 4$"):
        loaded.restore(FIRST[0], step=3)
    with pytest.raises(StoreError, match=f"trial {SECOND[0]} in {run} was run without snapshots"):
        loaded.restore(SECOND[0])
    shutil.rmtree(run / "checkpoints" / ONE / "4")
    with pytest.raises(StoreError, match=f"snapshot {run}/checkpoints/{ONE}/4 .* is missing"):
        loaded.restore(FIRST[0])
    assert same(loaded.restore(FIRST[0], step=2), weights(3, seed=2), 0)


def test_damaged_snapshot_gives_its_name_or_the_right_weights(run: Path):
    folder = run / "checkpoints" / ONE / "4"
    loaded, outcomes = load(run), []
    for path in [path for path in sorted(folder.rglob("*")) if path.is_file()]:
        content = path.read_bytes()
        for damaged in (None, b"", content[: len(content) // 2]):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            try:
                assert same(loaded.restore(FIRST[2]), weights(3, seed=4), 2)
            except StoreError as error:
                outcomes.append(str(error))
            path.write_bytes(content)
    assert len(outcomes) >= 9  # orbax writes more files at some times than at others
    assert all(f"snapshot {folder} " in outcome for outcome in outcomes)
    assert all("\n" not in outcome for outcome in outcomes)


def test_partial_state_comes_back_and_is_dropped_by_commit(tmp_path: Path):
    payload = weights(3) | {"file": np.arange(4), "count": np.int32(7), "opt/mu": np.zeros((2, 0))}
    with Writer(tmp_path / "run", "demo") as writer:
        assert writer.load_partial(ONE) is None
        writer.save_partial(ONE, payload, {"step": 3, "seconds": 0.5})
    with Writer(tmp_path / "run", "demo") as writer:
        found, meta = writer.load_partial(ONE) or ({}, {})
        assert meta == {"step": 3, "seconds": 0.5}
        assert found.keys() == payload.keys()
        for name, array in payload.items():
            np.testing.assert_array_equal(found[name], array, strict=True)
        writer.commit(ONE, *tables(FIRST, ONE))
        assert writer.load_partial(ONE) is None


@pytest.mark.parametrize("number", range(2))
def test_partial_state_that_cannot_be_written_leaves_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    with Writer(tmp_path / "run", "demo") as writer:
        writer.save_partial(ONE, {"W_K": np.ones(3)}, {"step": 1})
        fail_at(monkeypatch, number, errno.ENOSPC)
        with pytest.raises(StoreError, match=f"cannot write .*{ONE}.npz: the disk is full"):
            writer.save_partial(ONE, {"W_K": np.zeros(3)}, {"step": 2})
        found, meta = writer.load_partial(ONE) or ({}, {})
    assert meta == {"step": 1}
    assert found["W_K"].tolist() == [1, 1, 1]


def test_damaged_state_is_set_aside_with_a_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with Writer(tmp_path / "run", "demo") as writer:
        writer.save_partial(ONE, weights(3), {"step": 3})
        path = tmp_path / "run" / "partial" / f"{ONE}.npz"
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[200] ^= 1  # within the numbers of the first array
        for damaged in (b"", b"nonsense", whole[:-30], whole[300:], bytes(flipped)):
            path.write_bytes(damaged)
            caplog.clear()
            assert writer.load_partial(ONE) is None
            assert f"{path} is damaged: " in caplog.text and "its trials start again" in caplog.text
            assert not path.exists()
    kept = {path.read_bytes() for path in (tmp_path / "run" / "set_aside").rglob(f"partial/{ONE}.npz")}
    assert kept == {b"", b"nonsense", whole[:-30], whole[300:], bytes(flipped)}


def test_every_flipped_byte_of_a_state_is_noticed(tmp_path: Path):
    path = tmp_path / "state.npz"
    checkpoints.save_state(path, {"W_K": np.arange(6.0)}, {"step": 3})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        with pytest.raises(checkpoints.StateError, match="is damaged"):
            checkpoints.load_state(path)


def test_state_of_another_version_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    records = {"records": ["loss", "norm_v"]}
    path = tmp_path / "run" / "partial" / f"{ONE}.npz"
    for name, value in (("version", "0.0.9"), ("format", 99), ("records", ["loss"])):
        with Writer(tmp_path / "run", "demo") as writer, monkeypatch.context() as patch:
            patch.setitem(checkpoints.STATE if name in checkpoints.STATE else records, name, value)
            writer.save_partial(ONE, {"W_K": np.ones(3)}, {"step": 3, **records})
        with Writer(tmp_path / "run", "demo") as writer:
            caplog.clear()
            assert writer.load_partial(ONE, records) is None
            assert caplog.text.count("\n") == 1 and f"{path} was saved " in caplog.text
            assert f"another {name}" in caplog.text or f"another version: {name} {value}" in caplog.text
            assert not path.exists() and writer.load_partial(ONE, records) is None
    assert len([*(tmp_path / "run" / "set_aside").rglob("*.npz")]) == 3
    with Writer(tmp_path / "run", "demo") as writer:
        writer.save_partial(ONE, {"W_K": np.ones(3)}, {"step": 3, **records})
        found = writer.load_partial(ONE, {"records": ("loss", "norm_v")})
    assert found is not None and found[1] == {"step": 3, **records}


def test_manifest_is_plain_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    values = {"stage1": np.float32(0.5), "stage2": float("nan"), "bayes": np.inf}
    given = EMPTY | {
        "references": [{"settings": {"seed": np.int32(3)}, "values": values}],
        "shape": (1, 2),
        "steps": np.arange(2),
        "out": Path("results"),
    }
    with Writer(tmp_path, "demo") as writer:
        writer.write_manifest(given)
        text = (tmp_path / "manifest.json").read_text()
        values = {"stage1": 0.5, "stage2": None, "bayes": None}
        assert json.loads(text, parse_constant=refuse) == EMPTY | {
            "digest": digest({**plain(given)}),
            "references": [{"settings": {"seed": 3}, "values": values}],
            "shape": [1, 2],
            "steps": [0, 1],
            "out": "results",
        }
        assert text.count("\n") > 5
        fail_at(monkeypatch, 1, errno.ENOSPC)
        with pytest.raises(StoreError, match=f"cannot write {tmp_path}/manifest.json: the disk is"):
            writer.write_manifest(EMPTY)
    assert (tmp_path / "manifest.json").read_text() == text


def test_chunk_name_depends_on_the_trials():
    assert len({ONE, TWO, ids_name(FIRST[:2]), ids_name(FIRST[::-1])}) == 4
    assert ids_name(tuple(FIRST)) == ONE
    assert len(ONE) == 12 and int(ONE, 16) >= 0


def test_status_of_a_run(run: Path):
    plans = (PlanStatus("demo", 7, 5),)
    expected = Status(
        "demo",
        finished=5,
        ok=4,
        diverged=1,
        planned=7,
        beyond=0,
        plans=plans,
        problems=(),
        versions=(),
        running=None,
    )
    assert status(run) == expected
    assert load(run).missing == ("5 of 7 trials are finished",)


def test_status_says_what_each_plan_of_a_folder_asked_for(run: Path):
    with Writer(run, "demo") as writer:
        runs = [*writer.manifest["runs"]]
        runs.append(dict(ENTRY, overrides=["--set alpha=0.5"], plan=writer.write_plan(FIRST[:1])))
        runs.append(runs[0] | {"left": 2})  # the first plan again, resumed
        writer.write_manifest(writer.manifest | {"runs": runs})
    found = status(run)
    assert found.plans == (PlanStatus("demo", 7, 5), PlanStatus("demo --set alpha=0.5", 1, 1))
    assert (found.planned, found.finished, found.beyond) == (7, 5, 0)
    with Writer(run, "demo") as writer:
        writer.write_manifest(writer.manifest | {"runs": runs[1:2]})
    assert (status(run).planned, status(run).beyond) == (1, 4)


OLD = {
    "format 1": dict(sweep="demo", planned=7, runs=[{"trials": 5}], references=[]),
    "format 2": dict(format=2, sweep="demo", runs=[{"sweep": "demo"}], references=[], digest=None),
    "a newer format": EMPTY | dict(format=FORMAT + 1, digest=None),
}


@pytest.mark.parametrize("version", OLD)
def test_folder_of_another_version_is_refused_and_left_as_it_is(run: Path, version: str):
    manifest = dict(OLD[version])
    if manifest.pop("digest", "none") is None:
        manifest["digest"] = digest(manifest)
    (run / "manifest.json").write_text(json.dumps(manifest))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    refused = (
        rf"manifest.json was written by another version of topicjax \(format {manifest.get('format', 1)}, "
    )
    for attempt in (
        lambda: status(run),
        lambda: load(run).missing,
        lambda: Writer(run, "demo").__enter__(),
        lambda: verify(run),
        lambda: repair(run),
    ):
        with pytest.raises(StoreError, match=rf"{refused}not {FORMAT}\); allowed: another folder \(--out\)$"):
            attempt()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_the_experiment_is_that_of_the_runs(run: Path):
    assert load(run).experiment == "demo"
    with Writer(run, "demo") as writer:
        writer.write_manifest(EMPTY)
        assert load(run).experiment == ""
        for missing in ("sweep", "experiment"):
            entry = {name: value for name, value in ENTRY.items() if name != missing}
            with pytest.raises(StoreError, match=f"cannot write .*: a run does not name its {missing}"):
                writer.write_manifest(EMPTY | {"runs": [entry]})


def test_later_parts_may_have_more_columns_and_pandas_sees_them(run: Path):
    third = "f" * 12
    trials, records = tables(["e" * 12], third)
    with Writer(run, "demo") as writer:
        with pytest.raises(StoreError, match=f"{run}/trajectories has columns that these trials lack .*loss"):
            writer.commit(third, trials, records.drop(columns="loss"))
        writer.commit(third, trials.assign(new_setting=1), records)
    found = pd.read_parquet(run / "trials")  # the first part by name lacks the column
    assert len(found) == 6 and found["new_setting"].notna().sum() == 1
    assert not verify(run).problems
    (run / "trials" / "columns.parquet").unlink()
    assert "does not list every column" in verify(run).problems[0].sentence
    repair(run)
    assert not verify(run).problems and "new_setting" in pd.read_parquet(run / "trials")
    (run / "trials" / "columns.parquet").write_bytes(b"no parquet")
    assert len(verify(run).problems) == 1
    repair(run)
    assert not verify(run).problems and "new_setting" in pd.read_parquet(run / "trials")


def test_parts_with_other_columns_are_read_as_one_table(run: Path):
    part = part_path(run / "trials", TWO)
    pd.read_parquet(part).assign(late_column=7).to_parquet(part, index=False)
    (run / "journal.log").unlink()  # it would call the changed part damaged
    found = load(run).trials.set_index("trial_id")["late_column"]
    assert found[SECOND].tolist() == [7, 7] and found[FIRST].isna().all()


TIMED = """
import sys, time
from topicjax.store.reader import status
times = []
for _ in range(3):
    start = time.process_time()  # others may use the machine
    found = status(sys.argv[1])
    times.append(time.process_time() - start)
assert not {"jax", "orbax", "tensorstore"} & sys.modules.keys()
assert not found.problems
assert (found.finished, found.diverged) == (100_000, 2_000), found
print(min(times))
"""


@pytest.mark.slow
def test_status_of_100000_trials_in_2000_parts_takes_less_than_a_second(tmp_path: Path):
    with Writer(tmp_path, "demo") as writer:
        writer.write_manifest(EMPTY)
    found = Journal()
    write_table(tmp_path / "part", pa.table({"trial_id": ["0" * 12], "status": ["ok"]}))
    content = (tmp_path / "part").read_bytes()
    for part in range(2000):
        chunk, ids = f"{part:012x}", tuple(f"{part:04x}{row:08x}" for row in range(50))
        marks = dict.fromkeys(("trials", "trajectories"), FileMark.of(content))
        for name in marks:
            part_path(tmp_path / name, chunk).write_bytes(content)
        found.commits[chunk] = Commit(chunk, ids, 1, {4: "00000000"}, marks)
        (tmp_path / "checkpoints" / chunk / "4").mkdir(parents=True)
    journal.replace(tmp_path, found)
    command = [sys.executable, "-c", TIMED, str(tmp_path)]
    seconds = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert seconds < 1
    start = time.process_time()
    with Writer(tmp_path, "demo") as writer:
        assert len(committed(writer.folder)) == 100_000
    assert time.process_time() - start < 10
