"""Sweep files of a user: loaded once jax has its devices; what they raise is not called our defect."""

import os
import sys
from pathlib import Path

import pytest
from support.command_line import DEEP, start

from topicjax import cli
from topicjax.engine import resources

TEXT = Path(DEEP).read_text()
CHANGED = """
import dataclasses
EXPERIMENT = dataclasses.replace(EXPERIMENT, {name}={function})
SWEEP = product(depth=1, seed=0, learning_rate=0.01, init_scale=0.1)
BASE = dict(steps=20)
"""


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resources, "use_all_cores", lambda: None)


def write(function: str, name: str = "update", before: str = "") -> int:
    """Write mine.py with one function of its experiment replaced; return how many lines precede `before`."""
    Path("mine.py").write_text(TEXT + before + CHANGED.format(name=name, function=function))
    return TEXT.count("\n")


def refused(capsys, command: str = "plan", *more: str) -> str:
    """Return the one sentence with which a command is refused; nothing was written."""
    before = {path.name for path in Path().iterdir()}
    assert cli.main([command, "mine.py", *more]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "defect" not in said
    assert {path.name for path in Path().iterdir()} - {"__pycache__"} == before
    return said


@pytest.mark.parametrize("options", [(), ("--cluster", "local:3")], ids=["here", "cluster"])
def test_a_file_may_make_arrays_when_it_is_loaded(options, cache, tmp_path):
    """Arrays start jax: its devices have to be configured before."""
    if options:
        pytest.importorskip("ray")
    (tmp_path / "mine.py").write_text(TEXT + "\nARRAY = jnp.ones(3) + 1\nDEVICES = len(jax.devices())\n")
    process = start("plan", "mine.py", *options, cache=cache, cwd=tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    cores = len(os.sched_getaffinity(0))
    assert f"3 programs on {'3 workers of 1' if options else cores} x cpu\n" in out


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("error", ["TypeError", "KeyError", "ValueError", "FileNotFoundError", "SystemExit"])
def test_what_a_function_raises_while_planning_is_one_sentence(command, error, capsys):
    line = (
        write("broken", before=f"\ndef broken(*arguments):\n    raise {error}('two words\\nand more')\n") + 3
    )
    said = refused(capsys, command)
    assert said.startswith(f"topicjax: sweep file mine.py fails: {error}: ")
    assert f"(mine.py, line {line}, in broken); for the traceback: --traceback\n" in said


def test_an_error_deep_inside_names_the_last_line_of_the_file(capsys):
    before = (
        "\ndef inner():\n    return jnp.ones(3) @ jnp.ones(4)\n\ndef outer(*arguments):\n    return inner()\n"
    )
    line = write("outer", before=before) + 3
    assert f"(mine.py, line {line}, in inner)" in refused(capsys)


def test_functions_of_other_modules_are_the_users_too(capsys, monkeypatch, tmp_path):
    (tmp_path / "my_helper.py").write_text("def measure(*arguments):\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    write("my_helper.measure", "measure", before="\nimport my_helper\n")
    said = refused(capsys)
    assert (
        "fails: ZeroDivisionError: division by zero (" in said and "my_helper.py, line 2, in measure)" in said
    )
    del sys.modules["my_helper"]


def test_a_function_with_other_arguments_is_named(capsys):
    line = write("short", "batch", before="\ndef short(spec):\n    return 1\n") + 2
    said = refused(capsys)
    assert "fails: TypeError: short() takes 1 positional argument but" in said
    assert f"(mine.py, line {line}, in short)" in said


def test_what_a_file_raises_when_it_is_loaded_names_its_line(capsys):
    Path("mine.py").write_text("x = 1\nx / 0\n")
    said = refused(capsys)
    assert said == (
        "topicjax: sweep file mine.py fails: ZeroDivisionError: division by zero (mine.py, line 2)\n"
    )
    Path("mine.py").write_text("x = 1\nx = (\n")
    assert "SyntaxError: '(' was never closed (mine.py, line 2)\n" in refused(capsys)


def test_the_whole_traceback_is_there_for_the_asking(capsys):
    Path("mine.py").write_text("1 / 0\n")
    assert cli.main(["plan", "mine.py", "--traceback"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and 'File "mine.py", line 1' in said
    write("broken", before="\ndef broken(*arguments):\n    raise KeyError('x')\n")
    assert cli.main(["plan", "mine.py", "--traceback"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and said.count("Traceback") <= 3 and "in broken" in said


def test_an_error_in_the_middle_of_a_run_is_the_same_sentence_and_exit_1(capsys):
    before = """
from pathlib import Path
original = EXPERIMENT.weights

def later(*arguments):
    if Path("out/manifest.json").exists():
        raise ValueError("too late")
    return original(*arguments)
"""
    line = write("later", "weights", before=before) + 7
    assert cli.main(["run", "mine.py", "--out", "out"]) == 1
    said = capsys.readouterr().err
    assert f"fails: ValueError: too late (mine.py, line {line}, in later)" in said and said.count("\n") == 1


def test_a_defect_of_ours_is_still_called_one(capsys, monkeypatch):
    def broken(*arguments):
        raise ValueError("ours")

    Path("mine.py").write_text(TEXT)
    monkeypatch.setattr("topicjax.engine.plan_text.plan_text", broken)
    assert cli.main(["plan", "mine.py"]) == 1
    assert "this is a defect of topicjax" in capsys.readouterr().err
