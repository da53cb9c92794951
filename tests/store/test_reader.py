"""What readers get: references of each trial, lists with types, columns that a folder can take."""

import time
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
    details_of,
    same,
    tables,
    weights,
    write_run,
)

from topicjax.store import reader
from topicjax.store.files import StoreError, ids_name, part_path
from topicjax.store.manifest import read_manifest
from topicjax.store.parts import check_columns, column_types
from topicjax.store.reader import Run, load
from topicjax.store.verify import verify
from topicjax.store.writer import Writer


def run_of(trials: pd.DataFrame, *entries: dict[str, Any]) -> Run:
    """Return a run without a folder."""
    return Run(Path("run")).replace(trials=trials, manifest={"references": list(entries)})


def entry(values: dict[str, float | None], **settings: Any) -> dict[str, Any]:
    return {"settings": settings, "values": values}


TRIALS = pd.DataFrame(
    dict(rate=[0.1, 0.1, 0.2, 0.2], kind=["a", "b", "a", "b"], flag=[True, False, True, False]),
    index=[7, 3, 5, 9],
)


def test_an_entry_belongs_to_the_trials_that_have_all_its_settings():
    found = run_of(
        TRIALS, entry({"bayes": 1.0}, rate=0.1), entry({"uniform": 2}, kind="b", flag=False)
    ).references
    assert found.index.equals(TRIALS.index) and found.columns.tolist() == ["bayes", "uniform"]
    np.testing.assert_array_equal(found["bayes"], [1, 1, np.nan, np.nan])
    np.testing.assert_array_equal(found["uniform"], [np.nan, 2, np.nan, 2])


def test_of_several_entries_the_one_with_more_settings_counts_for_each_name():
    entries = [
        entry({"bayes": 3.0, "best": None}, rate=0.1, kind="a"),
        entry({"bayes": 1.0, "uniform": 5.0, "best": 7.0}),
        entry({"bayes": 2.0}, rate=0.1),
        {"settings": {"rate": 0.1, "kind": "b", "flag": False}, "error": "theory knows none"},
    ]
    for given in (entries, entries[::-1]):
        found = run_of(TRIALS, *given).references
        np.testing.assert_array_equal(found["bayes"], [3, 2, 1, 1])
        np.testing.assert_array_equal(found["uniform"], [5, 5, 5, 5])
        np.testing.assert_array_equal(found["best"], [np.nan, 7, 7, 7])  # null says that there is none


def test_references_follow_the_trials_of_a_run():
    run = run_of(TRIALS, entry({"bayes": 1.0}, rate=0.1))
    assert run.references["bayes"].count() == 2
    assert run.replace(trials=TRIALS[2:]).references["bayes"].count() == 0
    assert run_of(TRIALS).references.shape == (4, 0)
    with pytest.raises(StoreError, match=r"in manifest.json name 'colour', no setting of the trials"):
        _ = run_of(TRIALS, entry({"bayes": 1.0}, colour="red")).references


def test_references_of_thousands_of_trials_equal_a_plain_search_and_are_quick():
    rng = np.random.default_rng(0)
    trials = pd.DataFrame({name: rng.integers(6, size=8000) / 7 for name in "abcde"})
    entries = []
    for number in range(500):
        names = rng.permutation(list("abcde"))[: rng.integers(1, 4)]
        settings = {name: float(rng.integers(6) / 7) for name in names}
        entries.append(entry({"xy"[number % 2]: float(number)}, **settings))
    start = time.process_time()
    found = run_of(trials, *entries).references
    assert time.process_time() - start < 2
    for row in rng.integers(8000, size=200):
        own = trials.loc[row].to_dict()
        for name in "xy":
            fits = [e for e in entries if name in e["values"] and e["settings"].items() <= own.items()]
            most = max((len(e["settings"]) for e in fits), default=0)
            allowed = [e["values"][name] for e in fits if len(e["settings"]) == most]
            assert found.loc[row, name] in allowed if fits else np.isnan(found.loc[row, name])


ODD: dict[str, Any] = {
    "no settings": {"values": {"bayes": 1.0}},
    "neither": {"settings": {}},
    "both": {"settings": {}, "values": {}, "error": "x"},
    "another key": {"settings": {}, "values": {}, "objective": "squared"},
    "a list": {"settings": {"rate": [1]}, "values": {}},
    "a setting that is not finite": {"settings": {"rate": float("nan")}, "values": {}},
    "text": {"settings": {}, "values": {"bayes": "1"}},
    "a truth value": {"settings": {}, "values": {"bayes": True}},
    "an error that is no text": {"settings": {}, "error": 5},
}


@pytest.mark.parametrize("case", ODD)
def test_odd_references_are_refused_when_they_are_written(tmp_path: Path, case: str):
    with Writer(tmp_path, "demo") as writer:
        writer.write_manifest(EMPTY | {"runs": [ENTRY]})
        with pytest.raises(StoreError, match=r"cannot write .*manifest.json: references has \{"):
            writer.write_manifest(EMPTY | {"references": [ODD[case]]})
    assert read_manifest(tmp_path)["runs"] == [ENTRY]


def test_lists_are_lists_in_parquet_whatever_their_length(tmp_path: Path):
    write_run(tmp_path / "run")
    for chunk in (ONE, TWO):  # the second has no snapshots
        schema = pq.read_schema(part_path(tmp_path / "run" / "trials", chunk))
        assert schema.field("snapshot_steps").type == pa.list_(pa.int64())
        assert schema.field("snapshot_checksums").type == pa.list_(pa.string())
    found = load(tmp_path / "run").trials.set_index("trial_id")["snapshot_steps"]
    assert found[FIRST].tolist() == [(2, 4)] * 3 and found[SECOND].tolist() == [(), ()]
    assert found.groupby(found).size().to_dict() == {(2, 4): 3, (): 2}
    rows = load(tmp_path / "run").columns(["trial_id", "snapshot_steps"])
    assert {row["trial_id"]: row["snapshot_steps"] for row in rows}[FIRST[0]] == [2, 4]


def test_a_part_is_read_once_to_locate_the_weights_of_all_its_trials(tmp_path: Path, monkeypatch):
    write_run(tmp_path / "run")
    run, read = load(tmp_path / "run"), []
    assert run.trials["trial_id"].tolist()  # reads every part as a table
    plain = reader.read_part
    monkeypatch.setattr(reader, "read_part", lambda path, *more: read.append(path) or plain(path, *more))
    for row, trial in enumerate(FIRST):
        for step in (2, 4):
            assert same(run.restore(trial, step), weights(3, seed=step), row)
    assert read == [part_path(tmp_path / "run" / "trials", ONE)]


def test_columns_can_be_checked_before_anything_is_written(tmp_path: Path):
    write_run(tmp_path / "run")
    third = ids_name(["e" * 12])
    trials, records = tables(["e" * 12], third)
    with Writer(tmp_path / "alike", "demo") as writer:
        writer.commit(third, trials, records)
    parts = {name: part_path(tmp_path / "alike" / name, third) for name in ("trials", "trajectories")}
    kinds = {name: column_types(pq.read_schema(path)) for name, path in parts.items()}
    for added in ("snapshot_steps", "snapshot_checksums"):
        del kinds["trials"][added]
    check_columns(tmp_path / "run", kinds)
    check_columns(tmp_path / "new", kinds | {"details": {}})  # a folder without trials takes anything
    bad = {
        r"trials has columns that these trials lack \(status\)": (
            "trials",
            {name: kind for name, kind in kinds["trials"].items() if name != "status"},
        ),
        r"trajectories has columns of another type \(loss was \w+, is int8\)": (
            "trajectories",
            dict(kinds["trajectories"], loss=pa.int8()),
        ),
        "holds trials without details, unlike these": ("details", {"trial_id": pa.string()}),
    }
    for sentence, (name, columns) in bad.items():
        with pytest.raises(StoreError, match=rf"{sentence}.*allowed: another folder \(--out\)"):
            check_columns(tmp_path / "run", kinds | {name: columns})
    before = (tmp_path / "run" / "journal.log").read_bytes()
    with Writer(tmp_path / "run", "demo") as writer:
        with pytest.raises(StoreError, match="holds trials without details"):
            writer.commit(third, trials, records, details_of(["e" * 12]))
        assert (tmp_path / "run" / "journal.log").read_bytes() == before
        writer.commit(third, trials[trials.columns[::-1]], records)  # the order of columns does not matter
    assert len(load(tmp_path / "run").trials) == 6 and verify(tmp_path / "run").problems == []


def test_weights_that_the_journal_forgot_are_checked_by_those_of_each_trial(tmp_path: Path):
    """Page checksums and the checksums of trials count where the journal's are lost."""
    write_run(tmp_path)
    (tmp_path / "journal.log").unlink()
    (problem,) = verify(tmp_path).problems
    assert "its checksums are lost" in problem.sentence
    snapshot = tmp_path / "checkpoints" / ONE / "4"
    (piece, *_) = sorted(snapshot.glob("ocdbt.process_0/d/*"), key=lambda path: -path.stat().st_size)
    content = bytearray(piece.read_bytes())
    for quarter in (1, 2):  # one alone may hit an old index node between the weights, which nobody reads
        content[len(content) * quarter // 4] ^= 1
    piece.write_bytes(content)
    assert [problem.path for problem in verify(tmp_path).problems[1:]] == [snapshot]
    assert weights(3)["W_K"].nbytes < len(content) * 3
