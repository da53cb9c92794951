"""The examples of the README work as printed."""

import re
from pathlib import Path

import pytest
import test_engine

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small run where the README expects the one of two_stage."""
    place = tmp_path_factory.mktemp("readme")
    test_engine.train_sweep(place / "results" / "two_stage")
    return place


@pytest.mark.parametrize("example", EXAMPLES, ids=("phase map", "pandas", "restore"))
def test_examples_work_as_printed(example, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    exec(example, {})
    assert capsys.readouterr().out


def test_the_columns_named_are_those_written(folder):
    import pandas as pd

    written = set(pd.read_parquet(folder / "results/two_stage/trajectories")) - {"trial_id", "step"}
    table = README.split("| columns | meaning |")[1].split("\n\n")[0]
    assert set(" ".join(re.findall(r"`([^`]+)`", table)).split()) == written
