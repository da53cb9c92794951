"""Odd inputs that once hung, raised or left something behind: one sentence, exit code 2, nothing written."""

import ast
import errno
import io
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.small_corpus import write_corpora, write_text
from support.synthetic_runs import trial, write_run

from topicjax.advice import command, quoted, report_command
from topicjax.cli import main, terminal
from topicjax.corpora.corpus import STANDARD
from topicjax.engine.progress import Progress
from topicjax.errors import quoted_cell
from topicjax.export import without_formulas

LONG = "a" * 300
ODD = {
    "run smoke --out gs://bucket/x": "'gs://bucket/x' is not on this machine; allowed: the name of a file",
    "plan missing.py": "there is no file 'missing.py'; allowed: a sweep file, or one of budget, ",
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


AXIS = """from topicjax.sweep import product
BASE = dict(topics=3, words_per_topic=2, length_min=8, length_max=12, batch_size=4, steps=20)
SWEEP = product(seed=0)
"""
OWN_TEXT = """from topicjax.sweep import product
EXPERIMENT = "text"
BASE = dict(corpus="own", vocabulary_size=10, context=8, layers=1, width=4, heads=1, eval_windows=2)
SWEEP = product(seed=0)
"""


@pytest.mark.parametrize("name", ["own", "wikipedia"])
def test_plan_run_and_probe_refuse_a_corpus_without_arrays_alike(name, tmp_path, monkeypatch, capsys):
    data = write_corpora(tmp_path)
    path = data / name / "ids.npy"
    if name == "wikipedia":  # known before it is made: what is there counts all the same
        (data / "own").rename(data / name)
        about = json.loads((data / name / "corpus.json").read_text()) | {"hash": STANDARD[name].hash}
        (data / name / "corpus.json").write_text(json.dumps(about))
    path.unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOPICJAX_DATA", "data")
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda *_: None)  # jax has started already
    (tmp_path / "own.py").write_text(OWN_TEXT.replace('"own"', f'"{name}"'))
    before = sorted(tmp_path.rglob("*"))
    for typed in (["plan", "own.py"], ["run", "own.py"], ["probe", "minilm", "--corpus", name]):
        assert main(typed) == 2
        said = capsys.readouterr().err
        assert f"data/{name}/ids.npy cannot be used: No such file or directory; to make it again: " in said
        assert "topicjax corpus" in said and "make corpus" not in said
        assert said.count("\n") == 1 and sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_begins_with_a_hyphen_is_not_an_option_in_the_advice(tmp_path):
    assert report_command(Path("-out")).endswith("report ./-out")
    assert command("inspect", Path("-out"), "-5").endswith("inspect ./-out -5")


def test_odd_names_in_advised_commands_are_those_that_a_shell_reads():
    names = [
        "a b",
        "it's",
        "\x1b[2J",
        "two\nlines",
        "\udcff\udcfe",
        "back\\slash\x07'quote",
        "emoji 🙂",
        "-x",
        "$y",
    ]
    script = "printf '%s\\0' " + quoted(names)
    assert not set(script) & CONTROLS
    found = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert found.split(b"\0")[:-1] == [os.fsencode(name) for name in names]


CONTROLS = {chr(number) for number in (*range(32), *range(127, 160)) if chr(number) not in "\n\t"} | {
    "\u202e"
}
HOSTILE = "[red]a[/]\x1b]0;title\x07\x1b[2J\x9b\u202e_b_ :smile:"


def test_names_and_values_do_not_control_the_terminal(tmp_path, monkeypatch, capsys):
    for name in ("use_all_cores", "use_one_core"):  # jax has started already
        monkeypatch.setattr(f"topicjax.engine.resources.{name}", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    file = f"{HOSTILE}.py".replace("/", "_")
    (tmp_path / file).write_text(f'"""{HOSTILE}"""\nEXPERIMENT = "one_layer"\n' + AXIS)
    (tmp_path / "raises.py").write_text(f"raise ValueError({HOSTILE!r})\n")
    write_run(tmp_path / "foreign", [trial("1")], sweep=HOSTILE)
    commands = [
        (["plan", file, "--out", f"new {file}"], 0, "already in new [red]a[_]\\x1b]0;title\\x07"),
        (["plan", file, "--set", f"objective={HOSTILE}"], 2, ":smile:"),
        (["plan", "raises.py", "--traceback"], 2, "ValueError: [red]a[/]\\x1b"),
        (["plan", HOSTILE], 2, "unknown sweep '[red]a[/]\\x1b"),
        (["status", "foreign"], 0, "[red]a[/]\\x1b]0;title"),
        (["status", file], 2, "is not a folder"),
    ]
    for typed, code, part in commands:
        assert main(typed) == code, typed
        said = "".join(capsys.readouterr())
        assert part in said and not set(said) & CONTROLS, typed


def test_a_folder_that_may_not_be_entered_is_no_defect(tmp_path, monkeypatch, capsys):
    stat = os.stat

    def refuse(path, *args, **kwargs):
        if "locked" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *args, **kwargs)

    write_run(tmp_path / "run", [trial("1")])
    write_text(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOPICJAX_DATA", "locked")
    monkeypatch.setattr(os, "stat", refuse)
    for typed in (["restore", "run", "1", "--out", "locked/w.npz"], ["corpus", "--text", "own.txt"]):
        assert main(typed) == 1
        said = capsys.readouterr().err
        assert said.startswith("topicjax: cannot use locked") and said.endswith(": permission denied\n")


def test_commands_print_in_one_way():
    for path in Path(terminal.__file__).parent.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        named = [call.func.id for call in calls if isinstance(call.func, ast.Name)]
        assert path.name == "terminal.py" or "print" not in named, path


def test_progress_prints_markup_and_control_characters_as_text():
    out = io.StringIO()
    bar = Progress(1, 1.0, out)
    bar.begin_program(HOSTILE)
    assert (
        out.getvalue().startswith("compiling 1/0: [red]a[/]\\x1b]0;title\\x07")
        and ":smile:" in out.getvalue()
    )
    bar.console.print(bar.bar())
    assert "[red]a[/]\\x1b]0;" in out.getvalue() and not set(out.getvalue()) & CONTROLS


def test_cells_of_a_csv_file_are_no_formulas():
    frame = pd.DataFrame(dict(name=["=1+1", "+x", "-y", "@z", "plain", None], value=[-1.0] * 6))
    found = without_formulas(frame)
    assert found["name"].tolist()[:5] == ["'=1+1", "'+x", "'-y", "'@z", "plain"]
    assert found["value"].tolist() == [-1.0] * 6 and pd.isna(found["name"].iloc[5])
    kept = ["-0.5", "+1e-3", "-.5", "1", "a=b", -0.5, np.float32(-0.1), True, None]
    assert [quoted_cell(value) for value in kept] == kept
    for text in ("\t=1", "\r=1", "\n=1", "-0.5+A1", "-", "+-1", "-1 "):
        assert quoted_cell(text) == f"'{text}"
