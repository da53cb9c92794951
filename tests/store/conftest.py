"""A small run folder that tests may change."""

import shutil
from pathlib import Path

import pytest
from support.store_runs import write_run


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
