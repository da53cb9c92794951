"""The notebook runs from top to bottom, and is kept without its outputs."""

import json
import os
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

import topicjax

NOTEBOOK = json.loads((Path(__file__).resolve().parents[1] / "docs" / "tour.ipynb").read_text())
CELLS = NOTEBOOK["cells"]
CODE = {cell["id"]: "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"}


def test_it_is_a_clean_notebook_of_format_4_5():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


def test_it_runs_from_top_to_bottom(smoke, tmp_path, monkeypatch, capsys):
    folder, _ = smoke
    (tmp_path / "results").mkdir()
    os.symlink(folder, tmp_path / "results" / "smoke")
    monkeypatch.chdir(tmp_path)
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


def test_it_trains_the_sweep_if_the_folder_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    called: list[list[str]] = []
    names: dict = {}
    exec(CODE["imports"], names)
    monkeypatch.setattr(names["subprocess"], "run", lambda command, check: called.append(command))
    exec(CODE["run"], names)
    assert called == [[names["sys"].executable, *"-m topicjax run smoke --out results/smoke".split()]]
