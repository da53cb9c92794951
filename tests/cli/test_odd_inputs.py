"""Odd inputs that once hung, raised or left something behind: one sentence, exit code 2, nothing written."""

import pandas as pd
import pytest

from topicjax.cli import main
from topicjax.cli.terminal import command, report_command
from topicjax.export import without_formulas

LONG = "a" * 300
ODD = {
    "run smoke --out gs://bucket/x": "'gs://bucket/x' is not on this machine; allowed: the name of a file",
    "plan missing.py": "there is no file 'missing.py'; allowed: a sweep file, or one of depth, ",
    f"plan smoke --cluster {LONG}:6379": "and nothing answers there",
    "plan depth --axis width=1000000000": "width is 1000000000; allowed: 0 to 65536",
    "plan two_stage_map --refine foo": "unknown setting 'foo'",
}


@pytest.mark.parametrize("typed", ODD, ids=range(len(ODD)))
def test_odd_inputs_are_one_sentence_and_leave_nothing(typed, tmp_path, monkeypatch, capsys):
    if "--cluster" in typed:
        pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    for name in ("use_all_cores", "use_one_core"):  # jax has started already
        monkeypatch.setattr(f"topicjax.engine.resources.{name}", lambda *_: None)
    try:
        code = main(typed.split())
    except SystemExit as stop:  # argparse
        code = stop.code
    said = capsys.readouterr().err
    assert code == 2 and ODD[typed] in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_begins_with_a_hyphen_is_not_an_option_in_the_advice(tmp_path):
    from pathlib import Path

    assert report_command(Path("-out")).endswith("report ./-out")
    assert command("inspect", Path("-out"), "-5").endswith("inspect ./-out -5")


def test_cells_of_a_csv_file_are_no_formulas():
    frame = pd.DataFrame(dict(name=["=1+1", "+x", "-y", "@z", "plain", None], value=[-1.0] * 6))
    found = without_formulas(frame)
    assert found["name"].tolist()[:5] == ["'=1+1", "'+x", "'-y", "'@z", "plain"]
    assert found["value"].tolist() == [-1.0] * 6 and pd.isna(found["name"].iloc[5])
