"""The index of a folder of runs: what it says of each run, and what it refuses."""

import re
from pathlib import Path

import pytest
from support.synthetic_runs import trial, write_run

from topicjax import cli
from topicjax.analysis.page import runs_index
from topicjax.store.files import MANIFEST


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    rows = [trial(f"{n}", learning_rate=rate, seed=n) for n, rate in enumerate((0.01, 0.1))]
    write_run(folder / "first", rows, planned=3, description="Is it <fast>?\nMore.", claims=["Figure 4"])
    rows = [trial(f"{n}", optimizer="sgd", learning_rate=1.0 + n) for n in range(70)]
    write_run(folder / "second", rows, sweep="second", description="Is it slow?")
    (folder / "second" / "report.html").write_text("made before")
    (folder / "broken").mkdir()
    (folder / "broken" / MANIFEST).write_text("{")
    (folder / "notes").mkdir()
    return folder


def rows_of(text: str) -> dict[str, str]:
    """Each row of the table by the name of its run."""
    found = re.findall(r"<tr data-search.*?</tr>", text, re.S)
    return {re.sub(r"<.*?>", "", re.findall(r"<b>(.*?)</b>", row)[0]): row for row in found}


def test_every_run_has_its_question_verdicts_size_state_and_link(results, capsys):
    assert cli.main(["report", str(results)]) == 0
    assert f"{results / 'index.html'}: open it in a browser" in capsys.readouterr().out
    text = (results / "index.html").read_text()
    rows = rows_of(text)
    assert list(rows) == ["broken", "first", "second"] and "3 runs, 72 trials." in text
    assert "manifest.json" in rows["broken"]
    assert "Is it &lt;fast&gt;?" in rows["first"] and "More." not in text
    assert "<td>2 of 3</td>" in rows["first"] and "not finished" in rows["first"]
    assert re.search(r'<span class="\w+" title="[^"]*"><b>Figure 4</b>: \w+</span>', rows["first"])
    assert "no page yet" in rows["first"] and '<a href="second/report.html">' in rows["second"]
    assert "<td>70</td>" in rows["second"] or "<td>70 of 70</td>" in rows["second"]
    assert re.search(r"<td>[\d.]+ [kM]B</td>", rows["second"])
    assert " learning_rate=0.01 learning_rate=0.1 " in rows["first"] and "seed=1" in rows["first"]
    assert " learning_rate=1..70 " in rows["second"] and "optimizer=sgd" in rows["second"]


def test_a_folder_without_runs_and_options_of_one_run_are_refused(results, tmp_path, capsys):
    assert cli.main(["report", str(results / "notes")]) == 2
    assert "is empty; allowed: a run folder" in capsys.readouterr().err
    (results / "notes" / "text").write_text("x")
    assert cli.main(["report", str(results / "notes")]) == 2
    assert (
        "is not a run folder and has none in it; allowed: one, or a folder of them" in capsys.readouterr().err
    )
    assert cli.main(["report", str(results), "--filter", "seed=1"]) == 2
    assert "is a folder of runs; allowed with --filter: one run folder" in capsys.readouterr().err
    assert not (results / "index.html").exists()
    assert runs_index.run_folders(results / "notes") == []
