"""Folders stay readable: those of every format are read, verified, reported, extended and trained further."""

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.store_runs import files

import topicjax
from topicjax.analysis.page import report
from topicjax.store import checkpoints, journal
from topicjax.store.files import TABLES, chunk_of, part_files, state_path
from topicjax.store.manifest import FORMAT, read_manifest
from topicjax.store.reader import status
from topicjax.store.verify import verify
from topicjax.sweep import product

FIXTURES = Path(__file__).parent / "fixtures"
FOLDERS = sorted(path for path in FIXTURES.glob("format_*") if path.is_dir() and path.suffix != ".csv")
OTHER = (
    "what a run writes is not what {} has: {}; if a reader of that format could misread it, raise FORMAT in "
    "topicjax/store/manifest.py and add a fixture, as tests/store/fixtures/README.md says"
)
LISTS = ["snapshot_steps", "snapshot_checksums"]


def layers() -> Any:
    """Import the experiment of the fixtures."""
    spec = importlib.util.spec_from_file_location("layers", FIXTURES / "layers.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda path: path.name)
def old(request: pytest.FixtureRequest) -> Path:
    """A folder of a format, as it was written."""
    return request.param


@pytest.fixture(scope="module")
def extended(old: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of it, with another trial of each seed, and all of them with more steps."""
    folder = Path(shutil.copytree(old, tmp_path_factory.mktemp("format") / "copy"))
    rates = product(seed=(0, 1), learning_rate=(0.05, 0.1, 0.2), steps=16)
    layers().train(folder, rates, "4,8,16", other_code=True)  # a later jax may have other options
    return folder


def test_this_format_has_a_fixture():
    assert FIXTURES / f"format_{FORMAT}" in FOLDERS, OTHER.format(f"format_{FORMAT - 1}", "FORMAT")


def test_it_is_read_to_the_last_digit(old: Path):
    run = topicjax.load(old)
    for name, frame in (("trials", run.trials), ("trajectories", run.trajectories), ("details", run.details)):
        written = pd.read_csv(
            FIXTURES / f"{old.name}.csv" / f"{name}.csv",
            dtype=frame.drop(columns=LISTS, errors="ignore").dtypes.to_dict(),
        )
        if name == "trials":
            frame = frame.assign(
                **{name: frame[name].map(lambda own: " ".join(map(str, own))) for name in LISTS}
            )
        pd.testing.assert_frame_equal(frame, written)
        plain = pd.read_parquet(old / name)
        assert plain[["trial_id"]].equals(frame[["trial_id"]]) and len(plain) == len(frame)
    assert run.references["seed"].tolist() == (0.25 * run.trials["seed"]).tolist()
    assert (status(old).finished, status(old).planned, status(old).problems) == (4, 4, ())
    assert verify(old).problems == []


def test_its_weights_are_restored(old: Path):
    run, written = topicjax.load(old), json.loads((FIXTURES / f"{old.name}.json").read_text())
    for trial_id, own in written.items():
        np.testing.assert_array_equal(run.restore(trial_id, 4)["layers"], np.array(own, "f4"))
    assert len(written) == 4 and run.restore(trial_id)["layers"][0].shape == (3, 3)


def test_it_is_reported(old: Path, tmp_path: Path, undrawn: None):
    folder = shutil.copytree(old, tmp_path / "copy")
    text = report.write(folder).read_text()
    assert "layers" in text and "learning_rate" in text


def test_it_is_extended_and_trained_further(old: Path, extended: Path):
    before, run = topicjax.load(old), topicjax.load(extended)
    short, long = (run.trials[run.trials["steps"] == steps] for steps in (8, 16))
    assert (len(short), len(long), sorted(set(long["learning_rate"]))) == (4, 6, [0.05, 0.1, 0.2])
    pd.testing.assert_frame_equal(short[before.trials.columns].reset_index(drop=True), before.trials)
    keys, records = ["seed", "learning_rate", "step"], run.trajectories.merge(run.trials, on="trial_id")
    own, other = (
        records[records["steps"] == steps].set_index(keys)["loss"].sort_index() for steps in (8, 16)
    )
    np.testing.assert_allclose(other.loc[own.index], own, rtol=1e-5)  # to rounding: versions differ
    # 64: the shorter trainings went on; 96: their states are of another version, and all began anew
    assert run.manifest["runs"][-1]["trial_steps"] in (64, 96)
    assert verify(extended).problems == [] and len(run.details) == 2 * len(run.trajectories)


def layout(folder: Path, run: int) -> dict[str, Any]:
    """Describe what a run wrote into a folder: names, columns, keys and types."""
    names = (re.sub(r"[0-9a-f]{12}", "*", re.sub(r"/\d+/.*", "/STEP", name)) for name in files(folder))
    chunks = [
        chunk_of(path)
        for path in part_files(folder / "trials")
        if pq.read_table(path)["run"][0].as_py() == run
    ]
    parts = {name: pq.read_schema(folder / name / f"part-{chunks[0]}.parquet") for name in TABLES}
    lines = [journal.decode(line) for line in (folder / "journal.log").read_bytes().splitlines()]
    payload, meta = checkpoints.load_state(state_path(folder, chunks[0])) or ({}, {})
    manifest = read_manifest(folder)
    return {
        "files": sorted({*names} - {"report.html"}),
        "journal.log": {entry["event"]: kinds(entry) for entry in lines},
        "states": [sorted(payload), kinds(meta)],
        "manifest.json": kinds(manifest),
        "its runs": kinds(manifest["runs"][run - 1]),
        "its references": kinds(manifest["references"][0]),
        **{name: dict(zip(own.names, map(str, own.types), strict=True)) for name, own in parts.items()},
    }


def kinds(entry: dict[str, Any]) -> dict[str, str]:
    return {name: type(value).__name__ for name, value in entry.items()}


def test_the_number_of_the_format_changes_with_the_layout(old: Path, extended: Path):
    """A reader passes over new columns and new keys of the manifest; everything else must be as it was."""
    if old.name != f"format_{FORMAT}":
        pytest.skip("only the present format is written")
    was, now = layout(old, run=1), layout(extended, run=2)
    for name in ("files", "journal.log", "states"):
        assert now[name] == was[name], OTHER.format(old.name, f"{name}: {now[name]} instead of {was[name]}")
    for name in was.keys() - {"files", "journal.log", "states"}:
        lost = {key: kind for key, kind in was[name].items() if now[name].get(key) != kind}
        assert not lost, OTHER.format(old.name, f"{name} no longer has {lost}")
