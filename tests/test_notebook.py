"""The notebook runs from top to bottom, and is kept without its outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
from support.synthetic_runs import trial, write_run

import topicjax

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = json.loads((ROOT / "docs" / "tour.ipynb").read_text())
CELLS = NOTEBOOK["cells"]
CODE = {cell["id"]: "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"}


def test_it_is_a_clean_notebook_of_format_4_5():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


def test_it_runs_from_top_to_bottom_and_trains_no_finished_run(smoke, tmp_path, monkeypatch, capsys):
    folder, _ = smoke
    (tmp_path / "results").mkdir()
    os.symlink(folder, tmp_path / "results" / "smoke")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("it trains again"))
    matplotlib.use("agg")
    names: dict = {}
    try:
        for cell, source in CODE.items():
            exec(compile(source, f"cell {cell}", "exec"), names)
        assert len(plt.get_fignums()) == 2  # norms and W^V; the map is not pyplot's
    finally:
        plt.close("all")
    run = topicjax.load(folder)
    assert len(names["scores"]) == len(run.trials) == 16
    vocabulary = int(run.trials["topics"].iloc[0] * run.trials["words_per_topic"].iloc[0]) + 1
    assert names["W_V"].shape == (vocabulary, vocabulary)
    assert names["picture"].caption in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize("is_begun", [False, True])
def test_it_trains_what_is_missing_and_prints_a_few_lines(is_begun, tmp_path, monkeypatch, capsys):
    called: list[list[str]] = []

    def run(command: list[str], **options):
        called.append(command)
        return subprocess.CompletedProcess(command, 0, "Done: 16 trials\nNext:\n  topicjax report", "")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    if is_begun:
        write_run(tmp_path / "results" / "smoke", [trial("1")], planned=16)
    names: dict = {}
    exec(CODE["imports"], names)
    exec(CODE["run"], names)
    folder = tmp_path / "results" / "smoke"
    assert called == [[sys.executable, *"-m topicjax run smoke --out".split(), str(folder)]]
    assert capsys.readouterr().out == "Done: 16 trials\n\n"


def test_in_a_checkout_its_results_are_not_in_the_folder_of_the_notebook(monkeypatch):
    names: dict = {}
    for folder in (ROOT, ROOT / "docs"):
        monkeypatch.chdir(folder)
        exec(CODE["imports"], names)
        assert names["FOLDER"] == ROOT / "results" / "smoke"
