"""Names of files are on disk before the journal forgets them: a power cut may drop what was not synced."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.damage import flip
from support.store_runs import ONE, tables, weights, write_run

from topicjax.store import journal
from topicjax.store.files import ids_name, part_path
from topicjax.store.verify import repair
from topicjax.store.writer import Writer

Operation = tuple[str, ...]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Operation]]:
    """Operations that change or sync names, in order, and the moments at which the journal forgets chunks."""
    found: list[Operation] = []
    rename, unlink, rmdir, mkdir, fsync, append = (
        *(os.rename, os.unlink, os.rmdir, os.mkdir, os.fsync),
        journal.append,
    )

    def note(name: str, function):
        def operation(*arguments, **options):
            found.append((name, *(str(each) for each in arguments[:2] if isinstance(each, str | Path))))
            return function(*arguments, **options)

        return operation

    def synced(descriptor: int) -> None:
        found.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def appended(folder: Path, *entries) -> None:
        if any(entry["event"] == "drop" for entry in entries):
            found.append(("forget",))
        append(folder, *entries)

    for name, function in (("rename", rename), ("unlink", unlink), ("rmdir", rmdir), ("mkdir", mkdir)):
        monkeypatch.setattr(os, name, note(name, function))
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(journal, "append", appended)
    yield found


def assert_synced(log: list[Operation], kinds: tuple[str, ...], until: int) -> int:
    """Assert that both folders of each changed name are synced before an operation; return how many were."""
    changed = [(place, operation) for place, operation in enumerate(log[:until]) if operation[0] in kinds]
    for place, (_, *paths) in changed:
        for path in paths:
            assert ("sync", os.path.dirname(path)) in log[place:until], path
    return len(changed)


def test_repair_syncs_both_folders_before_the_journal_forgets(tmp_path, log):
    run = tmp_path / "run"
    write_run(run)
    flip(part_path(run / "trajectories", ONE), 100, 3)
    log.clear()
    repair(run)
    assert assert_synced(log, ("rename", "mkdir"), log.index(("forget",))) >= 4


def test_recovery_syncs_what_it_removed_before_the_journal_forgets(tmp_path, log):
    run = tmp_path / "run"
    write_run(run)
    third = ids_name(["e" * 12])
    _, records = tables(["e" * 12], third, [2])
    with Writer(run, "demo") as writer:
        writer.save_snapshot(third, 2, weights(1))
    records.to_parquet(part_path(run / "trajectories", third))
    log.clear()
    with Writer(run, "demo"):
        pass
    until = log.index(("forget",))
    removed = [("unlink", str(part_path(run / "trajectories", third)))]
    removed += [("rmdir", str(run / "checkpoints" / third))]
    for operation in removed:
        place = log.index(operation)
        assert ("sync", os.path.dirname(operation[1])) in log[place:until]


def test_a_new_folder_and_its_parents_are_synced(tmp_path, log):
    with Writer(tmp_path / "some" / "where" / "run", "demo"):
        pass
    for folder in (tmp_path, tmp_path / "some", tmp_path / "some" / "where"):
        assert ("sync", str(folder)) in log
