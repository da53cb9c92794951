"""A small run folder that tests may change."""

import shutil
from pathlib import Path

import pytest
from support.sessions import read_plainly, save_plainly
from support.store_runs import write_run

from topicjax.store import checkpoints


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as it was written: only to be read."""
    folder = tmp_path_factory.mktemp("store") / "original"
    write_run(folder)
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture
def plain_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots as plain files, which are written and read a hundred times as fast."""
    monkeypatch.setattr(checkpoints, "save", save_plainly)
    monkeypatch.setattr(checkpoints, "read_trials", read_plainly)
