"""A run for other programs: the numbers that come back are those of the run."""

import errno
import math
import os
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pytest
from support.events import read_events

import topicjax
from topicjax import export
from topicjax.errors import UserError
from topicjax.store.files import StoreError, ids_name
from topicjax.store.parts import SNAPSHOT_COLUMNS
from topicjax.store.reader import Run
from topicjax.store.writer import Writer

CHUNKS = (["0123456789ab", "2" * 12], ["12e456789012"])  # ids that look like numbers
DIVERGED = "12e456789012"
STEPS = [0, 10, 20, 30]
SETTINGS = dict(optimizer="adam", topics=4, infinite_documents=False)


def make_tables(ids: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return trials and records with numbers of many digits; one trial diverges, one has no norm_e."""
    rng = np.random.default_rng(len(ids))
    count = len(ids) * len(STEPS)
    floats = {name: np.exp(10 * rng.normal(size=count)).astype("f4") for name in ("loss", "norm_k", "norm_e")}
    keys = dict(trial_id=np.repeat(ids, len(STEPS)), step=np.tile(STEPS, len(ids)))
    records = pd.DataFrame(keys | floats)
    lost = records["trial_id"] == DIVERGED
    records.loc[lost & (records["step"] == 20), "loss"] = np.inf
    records.loc[lost & (records["step"] > 20), "loss"] = np.nan
    records.loc[lost, "norm_e"] = np.nan
    final = records[records["step"] == STEPS[-1]].reset_index(drop=True)
    diverged = [trial_id == DIVERGED for trial_id in ids]
    trials = pd.DataFrame(
        dict(trial_id=ids, learning_rate=rng.random(len(ids)), seed=[2**31 - 1 - len(ids)] * len(ids))
        | dict(objective=["squared" if lost else "cross_entropy" for lost in diverged])
        | SETTINGS
        | dict(status=["diverged" if lost else "ok" for lost in diverged])
        | dict(diverged_step=[20 if lost else None for lost in diverged])
        | {f"final_{name}": final[name] for name in floats}
        | dict(stopped_step=STEPS[-1], stop_reason="steps", record_every=10)
        | dict(
            chunk=ids_name(ids),
            row=range(len(ids)),
            snapshot_steps=[[] if lost else [0, 30] for lost in diverged],
        )
    )
    return trials, records


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("export") / "run"
    with Writer(folder, "demo") as writer:
        for step in (0, 30):
            writer.save_snapshot(ids_name(CHUNKS[0]), step, np.arange(2.0) + step)
        for ids in CHUNKS:
            writer.commit(ids_name(ids), *make_tables(ids))
    return topicjax.load(folder)


def test_csv_gives_every_number_back(run: Run, tmp_path: Path):
    said: list[str] = []
    paths = export.write_csv(run, tmp_path / "new" / "csv", said.append)
    assert paths == [tmp_path / "new" / "csv" / name for name in ("trials.csv", "trajectories.csv")]
    assert {*(tmp_path / "new" / "csv").iterdir()} == {*paths}
    assert said == ["trials.csv: 3 rows", "trajectories.csv: 12 rows"]
    texts = {name: run.trials[name].map(lambda own: " ".join(map(str, own))) for name in SNAPSHOT_COLUMNS}
    assert sorted(texts["snapshot_steps"]) == ["", "0 30", "0 30"]
    trials = run.trials.assign(**texts).astype(dict.fromkeys(texts, "str"))
    for path, frame in zip(paths, (trials, run.trajectories), strict=True):
        types = frame.dtypes.to_dict()
        back = pd.read_csv(path, dtype=types, keep_default_na=False, na_values="")
        back = back.fillna({name: "" for name, kind in types.items() if kind == "str"})  # no text is missing
        pd.testing.assert_frame_equal(back, frame, check_exact=True)


def test_csv_has_the_digits_a_number_needs_and_no_more(run: Run, tmp_path: Path):
    numbers = pd.DataFrame(dict(half=np.array([0.1, 1 / 3, np.nan], "f4"), whole=[0.1, 1 / 3, -np.inf]))
    _, path = export.write_csv(run.replace(trajectories=numbers), tmp_path)
    assert path.read_text() == '"half","whole"\n0.1,0.1\n0.33333334,0.3333333333333333\n,-inf\n'


def test_csv_of_selected_trials_has_only_these(run: Run, tmp_path: Path):
    trials, records = export.write_csv(run.select([DIVERGED]), tmp_path)
    assert len(trials.read_text().splitlines()) == 2
    assert len(records.read_text().splitlines()) == 1 + len(STEPS)


def read_hparams(value: Any) -> Any:
    """Return what a summary value tells the HParams page."""
    plugin_hparams_pb2 = pytest.importorskip("tensorboardX.proto.plugin_hparams_pb2")
    assert value.metadata.plugin_data.plugin_name == "hparams"
    return plugin_hparams_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)


def test_events_hold_every_record_and_the_settings_that_vary(run: Run, tmp_path: Path):
    pytest.importorskip("tensorboardX", reason="the extra 'tensorboard' is not installed")
    said: list[str] = []
    paths = export.write_tensorboard(run, tmp_path / "events", said.append)
    assert said == ["0 of 3 trials"]
    assert [path.parent.name for path in paths] == run.trials["trial_id"].tolist()
    assert {path for path in (tmp_path / "events").rglob("*") if path.is_file()} == {*paths}
    for path, trial in zip(paths, run.trials.to_dict("records"), strict=True):
        version, start, *records, end = read_events(path)
        assert version.file_version == "brain.Event:2"
        expected = run.trajectories[run.trajectories["trial_id"] == trial["trial_id"]]
        left_out = {"norm_e"} if trial["trial_id"] == DIVERGED else set()
        assert [event.step for event in records] == STEPS
        for event, (_, row) in zip(records, expected.iterrows(), strict=True):
            found = {value.tag: value.simple_value for value in event.summary.value}
            wanted = {name: row[name] for name in ("loss", "norm_k", "norm_e") if name not in left_out}
            assert found.keys() == wanted.keys()
            np.testing.assert_array_equal([*found.values()], [float(value) for value in wanted.values()])
        start = read_hparams(start.summary.value[0]).session_start_info
        hparams = {name: value.string_value or value.number_value for name, value in start.hparams.items()}
        names = ("learning_rate", "seed", "objective", "status")
        assert hparams == {name: trial[name] for name in names}
        assert read_hparams(end.summary.value[0]).HasField("session_end_info")


def test_events_keep_what_is_not_finite_where_a_trial_diverges(run: Run, tmp_path: Path):
    pytest.importorskip("tensorboardX", reason="the extra 'tensorboard' is not installed")
    (path,) = export.write_tensorboard(run.select([DIVERGED]), tmp_path)
    values = [value.simple_value for event in read_events(path) for value in event.summary.value]
    assert math.inf in values and any(map(math.isnan, values))


def test_an_id_that_leads_out_of_the_folder_is_refused(run: Run, tmp_path: Path):
    pytest.importorskip("tensorboardX", reason="the extra 'tensorboard' is not installed")
    foreign = run.replace(trials=run.trials.replace({"trial_id": {DIVERGED: "../../elsewhere"}}))
    with pytest.raises(StoreError, match=r"has trial '../../elsewhere'; allowed: 12 hexadecimal digits"):
        export.write_tensorboard(foreign, tmp_path / "deep" / "events")
    assert os.listdir(tmp_path) == []


def test_without_tensorboardx_one_sentence_says_what_to_type(run: Run, tmp_path: Path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboardX"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UserError, match=r"tensorboardX is not installed; .* install 'tensorboardX>="):
        export.write_tensorboard(run, tmp_path / "events")
    assert not (tmp_path / "events").exists()


def test_a_folder_with_anything_in_it_is_refused_and_left_alone(run: Run, tmp_path: Path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"is not empty; allowed: a new or empty folder"):
        export.write_csv(run, tmp_path)
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_a_file_is_refused(run: Run, tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UserError, match=r"mine is not a folder; allowed"):
        export.write_csv(run, tmp_path / "mine")


def test_a_full_disk_is_a_sentence_and_leaves_nothing(run: Run, tmp_path: Path, monkeypatch):
    def write_csv(table: object, file: IO[bytes]) -> None:
        file.write(b"half a row")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export.csv, "write_csv", write_csv)
    with pytest.raises(StoreError, match=r"^cannot write .*: the disk is full"):
        export.write_csv(run, tmp_path)
    assert os.listdir(tmp_path) == []


def test_an_export_that_fails_or_was_killed_leaves_nothing_and_can_be_repeated(run: Run, tmp_path: Path):
    def stop(text: str) -> None:
        if text.startswith("trajectories"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export.write_csv(run, tmp_path, stop)
    assert os.listdir(tmp_path) == []
    (tmp_path / export.UNFINISHED / "old").mkdir(parents=True)  # what a kill leaves
    export.write_csv(run, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["trajectories.csv", "trials.csv"]
