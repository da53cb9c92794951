"""The examples of the README work as printed."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.one_trial import expand

from topicjax import cli
from topicjax.sweep.files import load_sweep

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def folder(smoke, tmp_path_factory) -> Path:
    """A small run where the README expects the one of two_stage."""
    place = tmp_path_factory.mktemp("readme")
    shutil.copytree(smoke[0], place / "results" / "two_stage")
    return place


@pytest.mark.parametrize("example", EXAMPLES, ids=("phase map", "pandas", "restore"))
def test_examples_work_as_printed(example, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    exec(example, {})
    assert capsys.readouterr().out


COMMANDS = re.findall(r'^make sweep SWEEP=(\S+) ARGS="(.*?)"', README, re.MULTILINE)


@pytest.mark.parametrize(("sweep", "arguments"), COMMANDS, ids=[f"{s} {a}" for s, a in COMMANDS])
def test_commands_are_understood(sweep, arguments, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda count=0: None)
    assert cli.main(["plan", sweep, *shlex.split(arguments)]) == 0
    trials = re.search(r": ([\d,]+) trials\n", capsys.readouterr().out)
    full = load_sweep(sweep)
    if "quick" in arguments:
        assert f"{trials[1]} trials, one seed" in README
        assert int(trials[1]) < len(expand(full.base, full.sweep))


def test_accelerators_keep_the_editable_install_and_the_tested_versions():
    assert "make gpu" in README and "make tpu" in README and "pip install '" not in README
    for target, extra in (("gpu", "cuda12"), ("tpu", "tpu")):
        shown = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
        (command,) = [line for line in shown.stdout.splitlines() if f"[{extra}]" in line]
        assert "--constraint constraints.txt" in command and f"--editable '.[{extra}]'" in command


def test_examples_leave_nothing_outside_results(folder):
    assert [path.name for path in folder.iterdir()] == ["results"]


def test_the_columns_named_are_those_written(folder):
    import pandas as pd

    written = set(pd.read_parquet(folder / "results/two_stage/trajectories")) - {"trial_id", "step"}
    table = README.split("| columns | meaning |")[1].split("\n\n")[0]
    assert set(" ".join(re.findall(r"`([^`]+)`", table)).split()) == written
