"""The command line as a user meets it: real processes, real signals, one sentence for every mistake."""

import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from support import engine_runs
from support.command_line import DEEP, FAST, ROOT, environment, start

import topicjax
from topicjax import advice, cli
from topicjax.cli import commands, parser
from topicjax.engine.progress import Progress
from topicjax.engine.run import Outcome
from topicjax.experiments.one_layer.settings import SETTINGS
from topicjax.sweep import product
from topicjax.sweep.files import load_sweep


def test_a_run_says_what_it_did_and_what_is_next(smoke):
    folder, out = smoke
    assert "smoke: 16 trials to train on" in out
    assert "Done: 16 trials in" in out and "16 ok, 0 diverged" in out
    for place in ("trials", "trajectories", "checkpoints"):
        assert f"results/smoke/{place}" in out and (folder / place).is_dir()
    manifest = topicjax.load(folder).manifest
    (run,) = manifest["runs"]
    assert run["planned"] == run["trials"] == 16 and run["versions"]["jax"]
    assert run["axes"]["learning_rate"] == [0.3, 1.0, 0.001, 0.01]
    objectives = {entry["settings"]["objective"] for entry in manifest["references"]}
    assert objectives == {"cross_entropy", "squared"}
    for entry in (entry["values"] for entry in manifest["references"]):
        assert entry["uniform"] > entry["stage1"] > entry["bayes"]
        for stage in ("stage1", "stage2"):
            away = abs(entry[f"held_out_{stage}"] - entry[stage])
            assert 0 < away < 4 * entry[f"held_out_{stage}_se"]


@pytest.mark.parametrize(("typed", "kept"), [(None, "log:12"), ("none", "none"), ("last", "last")])
def test_a_sweep_file_says_which_snapshots_are_kept_unless_the_option_does(typed, kept):
    arguments = ["run", "learning_coefficient", *([] if typed is None else ["--snapshots", typed])]
    parsed = parser.make_parser().parse_args(arguments)
    options = commands.with_snapshots(commands.typed_options(parsed), parsed, load_sweep(parsed.sweep))
    assert options.snapshots == kept


def test_no_trained_model_beats_bayes(smoke):
    """Not even on its own held-out documents, by more than sampling allows."""
    folder, _ = smoke
    run = topicjax.load(folder)
    assert (run.trials["final_eval_loss"] > 0.9 * run.references["bayes"]).all()


def test_the_same_command_again_has_nothing_to_do(smoke, monkeypatch, capsys):
    folder, _ = smoke
    monkeypatch.chdir(folder.parents[1])
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda: None)
    assert cli.main(["run", "smoke", "--lanes", "2"]) == 0
    out = capsys.readouterr().out
    assert "Nothing left to train" in out
    assert "limit lines" not in out  # nothing to compute
    assert len(topicjax.load(folder).manifest["runs"]) == 1  # it added nothing


QUICK = (DEEP, *"--set depth=2 --set width=4 --set batch_size=8 --set seed=0 --set until=steps".split())
MOMENTS = (4.5, 2.0, 7.0)  # seconds, from the start of a process to its end


@pytest.mark.parametrize(
    ("sweep", "steps", "moments"),
    [(QUICK, (500, 1000), ()), pytest.param(("smoke",), (50, 100), MOMENTS, marks=pytest.mark.slow)],
    ids=["deep_linear", "smoke"],
)
def test_killed_at_random_moments_and_resumed_equals_uninterrupted(sweep, steps, moments, tmp_path, cache):
    """SIGKILLs at these seconds, another when some trials are finished, then the same command."""
    arguments = ("run", *sweep, "--lanes", "2", "--snapshots", "{},{}".format(*steps), "--save-every", "0")

    def kill_when(is_time, seconds: float = 0.0) -> None:
        process = start(*arguments, "--out", "killed", cache=cache, cwd=tmp_path)
        time.sleep(seconds)
        while not is_time():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    for moment in moments:
        kill_when(lambda: True, moment)
    kill_when(lambda: list(tmp_path.glob("killed/trials/part-*.parquet")))
    for out in ("killed", "whole"):
        process = start(*arguments, "--out", out, cache=cache, cwd=tmp_path)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    resumed, whole = topicjax.load(tmp_path / "killed"), topicjax.load(tmp_path / "whole")
    assert len(whole.trials) == 16 and resumed.trials["run"].nunique() > 1  # several runs made these
    for table, keys in (("trials", ["trial_id"]), ("trajectories", ["trial_id", "step"])):
        mine, other = (getattr(run, table).sort_values(keys, ignore_index=True) for run in (resumed, whole))
        which = [name for name in other if name != "run"]
        pd.testing.assert_frame_equal(mine[which], other[which])
    for trial_id in whole.trials["trial_id"][::5]:
        for step in steps:
            mine, other = (jax.tree.leaves(run.restore(trial_id, step)) for run in (resumed, whole))
            assert all((a == b).all() for a, b in zip(mine, other, strict=True))
    assert pd.read_parquet(tmp_path / "killed" / "trajectories")["trial_id"].nunique() == 16


def test_ctrl_c_stops_says_how_to_continue_and_returns_130(tmp_path, cache, capsys):
    arguments = ["--set", "depth=1", "--axis", "steps=2500000", "--save-every", "0"]
    arguments += ["--out", "my runs", DEEP]
    process = start("run", *arguments, cache=cache, cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("my runs/partial/*.npz")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)  # seconds on a quiet machine
    assert process.returncode == 130
    again = f"{advice.python()} -m topicjax run {shlex.join(arguments)}"
    assert f"Continue with the same command: {again}\n" in out
    assert cli.main(["status", str(tmp_path / "my runs")]) == 0
    status = capsys.readouterr().out
    assert "0 of 80 trials finished" in status and "not running" in status


MISTAKES = [
    (["run", "two_stag"], "did you mean 'two_stage'"),
    (["run", "smoke", "--set", "lerning_rate=1"], "did you mean 'learning_rate'"),
    (["run", "smoke", "--set", "steps=ten"], "steps is 'ten'; allowed: a whole number"),
    (["run", "smoke", "--set", "steps=7"], "steps is 7; allowed: a multiple of record_every"),
    (["run", "smoke", "--axis", "learning_rate=log:0:1:3"], "learning_rate"),
    (["run", "smoke", "--snapshots", "often"], "snapshots is 'often'; allowed"),
    (
        ["run", "smoke", "--set", "seed=7"],
        "the sweep has seed at 0, 1; to use another value instead: --axis seed=7",
    ),
    (["run", "smoke", "--lanes", "-1"], "--lanes is -1; allowed"),
    (["run", "smoke", "--lanes", "x"], "--lanes is 'x'; allowed: 1 or more, or 0 for automatic"),
    (["plan", "smoke", "--set", "p_keep=0.95"], "p_keep"),
    (["status", "nowhere"], "nowhere"),
    (["restore", "nowhere", "abc"], "nowhere"),
    (["report", "nowhere"], "there is no folder nowhere"),
    (["report", "."], "is empty"),
    (["inspect", "nowhere", "abc"], "nowhere"),
    (["inspect", "."], "the following arguments are required: trial_id"),
    (["fly"], "invalid choice"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=lambda x: " ".join(x)[:40])
def test_mistakes_are_one_sentence_exit_2_and_write_nothing(
    arguments, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["topicjax", *arguments])
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda: None)
    try:
        returned = cli.main(arguments)
    except SystemExit as stopped:
        returned = stopped.code
    error = capsys.readouterr().err
    assert returned == 2 and sentence in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_list_names_every_sweep(capsys):
    assert cli.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"two_stage +480 trials +Where does", listed)


def test_plan_prints_without_writing(smoke, tmp_path, monkeypatch, capsys):
    folder, _ = smoke
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda: None)
    assert cli.main(["plan", "smoke", "--set", "learning_rate=0.3", "--axis", "l2=0,1e-3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("--set learning_rate=0.3 keeps 4 of 16 trials\nsmoke: 8 trials\n")
    assert "l2" in text and "left: 8" in text
    assert text.count("learning_rate") == 1  # no longer an axis
    assert "memory: about" in text and "disk: about" in text and "time: about" in text
    assert not list(tmp_path.iterdir())
    assert cli.main(["plan", "smoke", "--out", str(folder)]) == 0
    text = capsys.readouterr().out
    assert f"already in {folder}: 16 trials; left: 0" in text
    marked = [line for line in text.splitlines() if line.endswith("(each value has its own program)")]
    assert len(marked) == 1 and marked[0].startswith("  optimizer ")


def test_a_layout_is_repeated(smoke, tmp_path, monkeypatch, capsys):
    folder, _ = smoke
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda: None)
    (entry,) = topicjax.load(folder).manifest["runs"]
    assert entry["lanes"] == 2 and set(entry["devices"]) == {"cpu"}
    assert cli.main(["plan", "smoke", "--layout", str(folder)]) == 0
    text = capsys.readouterr().out
    assert f"2 programs on {len(entry['devices'])} x cpu\n" in text and "streams x 2 trials" in text
    monkeypatch.setattr("topicjax.engine.resources.available_devices", lambda: jax.devices()[:1])
    if len(entry["devices"]) > 1:
        assert cli.main(["plan", "smoke", "--layout", str(folder)]) == 2
        assert "and there are 1 x cpu; allowed: --lanes and --devices instead" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "options", "devices"),
    [
        ({"JAX_NUM_CPU_DEVICES": "3"}, (), 3),
        ({"XLA_FLAGS": f"{FAST} --xla_force_host_platform_device_count=3"}, ("--devices", "2"), 2),
    ],
)
def test_the_environment_and_an_option_say_how_many_devices(variables, options, devices, tmp_path, cache):
    process = start("plan", DEEP, "--set", "depth=1", *options, cache=cache, cwd=tmp_path, **variables)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert f"1 programs on {devices} x cpu\n" in out


@pytest.mark.parametrize("variable", ["JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS"])
def test_an_environment_that_jax_cannot_take_is_one_sentence(variable, tmp_path, cache):
    process = start("plan", DEEP, cache=cache, cwd=tmp_path, **{variable: "many"})
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and err.startswith("topicjax: ") and err.count("\n") == 1


def test_help_tells_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "129, 130, 143 stopped by SIGHUP, Ctrl-C, SIGTERM: what is finished is kept" in text


def test_a_run_without_snapshots_is_not_told_to_restore_them(smoke, tmp_path):
    shutil.copytree(smoke[0], tmp_path / "run")
    outcome = Outcome(16, 0, 0, 0, 160.0, 2.0, 1.0, 2, "one_layer")
    with_weights = commands.closing(tmp_path / "run", outcome)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    without = commands.closing(tmp_path / "run", outcome)
    assert all(word in with_weights for word in (" restore ", " inspect ", "/checkpoints", " report "))
    assert " report " in without
    assert not any(word in without for word in (" restore ", " inspect ", "/checkpoints"))


def test_restore_writes_weights_for_people_without_python(smoke, tmp_path, capsys):
    folder, _ = smoke
    run = topicjax.load(folder)
    trial_id = run.trials["trial_id"][3]
    out = tmp_path / "weights.npz"
    assert cli.main(["restore", str(folder), trial_id[:9], "--out", str(out)]) == 0
    assert "W_K 13x13" in capsys.readouterr().out
    with np.load(out) as stored:
        assert (stored["W_V"] == run.restore(trial_id)["W_V"]).all()
        assert set(stored) == {"W_K", "W_Q", "W_V", "b_pred"}
    assert cli.main(["restore", str(folder), "zzz", "--out", str(out)]) == 2


def test_another_sweeps_folder_is_refused_unless_extended(smoke, tmp_path, monkeypatch, capsys):
    folder, _ = smoke
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda: None)
    assert cli.main(["run", "joint", "--out", str(folder)]) == 2
    assert "holds trials of smoke, not of joint; allowed: another folder (--out), or --extend" in (
        capsys.readouterr().err
    )
    assert len(topicjax.load(folder).trials) == 16


def test_a_fixed_setting_selects_and_both_runs_of_a_folder_are_known(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda: None)
    folder = str(tmp_path / "run")
    tiny = [DEEP, *"--set width=3 --set depth=1 --set seed=0 --set steps=100 --lanes 2 --out".split(), folder]
    assert cli.main(["run", *tiny]) == 0
    capsys.readouterr()
    assert cli.main(["run", *tiny, "--set", "init_scale=0.01", "--axis", "noise=0,0.1"]) == 0
    out = capsys.readouterr().out
    assert "--set seed=0 keeps 16 of 80 trials\n--set init_scale=0.01 keeps 4 of 16 trials\n" in out
    assert "deep_linear: 4 trials to train (4 already finished)" in out
    run = topicjax.load(folder)
    assert run.trials["run"].value_counts().to_dict() == {1: 16, 2: 4}
    assert set(run.trials.query("run == 2")["init_scale"]) == {0.01}
    first, second = run.manifest["runs"]
    assert len(first["overrides"]) == 4 and second["base"]["init_scale"] == 0.01
    assert second["git_commit"] == first["git_commit"] and second["devices"]
    assert cli.main(["status", folder]) == 0
    same = "deep_linear --set width=3 --set depth=1 --set seed=0 --set steps=100"
    assert capsys.readouterr().out == (
        "deep_linear: 20 of 20 trials finished, 20 ok, 0 diverged; not running\n"
        "arithmetic: float32, matrix products at full precision\n"
        "the folder holds trials of several plans:\n"
        f"  16 of 16  {same}\n"
        f"  8 of 8  {same} --set init_scale=0.01 --axis noise=0,0.1\n"
    )


@pytest.mark.parametrize("error", [ValueError, FileNotFoundError, KeyError])
def test_our_own_bugs_are_not_called_the_users_mistake(error, monkeypatch, capsys):
    def broken() -> None:
        raise error("operands could not be broadcast together")

    monkeypatch.setattr("topicjax.cli.commands.sweep_names", broken)
    assert cli.main(["list"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and "operands could not be broadcast" in said
    assert said.endswith("please report it, with the lines above, where you got topicjax\n")


def test_pages_of_the_documentation_are_named_by_their_file_only_where_there_is_one(monkeypatch, tmp_path):
    assert advice.guide("cluster") == "docs/cluster.md"
    monkeypatch.setattr(advice, "__file__", str(tmp_path / "site-packages" / "topicjax" / "advice.py"))
    assert advice.guide("cluster") == "page cluster of the documentation"


def test_advice_repeats_what_was_typed(monkeypatch):
    typed = ["run", "--set", "steps=20", "my sweep.py", "--out", "a $b"]
    monkeypatch.setattr(sys, "argv", [".venv/bin/topicjax", *typed])
    monkeypatch.delenv(advice.FROM_MAKE, raising=False)
    assert advice.same_again(typed) == ".venv/bin/topicjax run --set steps=20 'my sweep.py' --out 'a $b'"
    assert advice.report_command(Path("results/a")) == ".venv/bin/topicjax report results/a"


def test_advice_for_users_of_make_is_what_make_understands(monkeypatch, tmp_path):
    typed = ["run", "my sweep.py", "--out", "a $b 'c'", "--set", "steps=20"]
    monkeypatch.setenv(advice.FROM_MAKE, "1")
    assert advice.report_command(Path("results/a")) == "make report SWEEP=a"
    assert (
        advice.same_again(["run", "smoke", "--set", "steps=20"])
        == "make sweep SWEEP=smoke ARGS='--set steps=20'"
    )
    recipe = "sweep:\n\t@printf '%s\\n' run $(SWEEP) $(ARGS)\n"
    (tmp_path / "Makefile").write_text(recipe)
    for name in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS"):  # `make test` runs this: its own make is not the user's
        monkeypatch.delenv(name, raising=False)
    command = advice.same_again(typed)
    shown = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == typed


def test_what_to_install_is_advised_for_the_way_this_copy_is_called(monkeypatch):
    monkeypatch.delenv(advice.FROM_MAKE, raising=False)
    monkeypatch.setattr(advice.importlib.util, "find_spec", lambda name: None)  # as in an environment of uv
    monkeypatch.setattr(sys, "executable", "/env/bin/python3")
    monkeypatch.setattr(advice.shutil, "which", lambda name: f"/env/bin/{name}")
    assert advice.python() == "python"
    monkeypatch.setattr(advice.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert advice.python() == "/env/bin/python3"
    monkeypatch.setattr(advice, "python", lambda: "my python")
    known = ["numpy>=2", 'jax[tpu]>=0.10; extra == "tpu"', 'ray==2.60.0; extra == "ray"']
    monkeypatch.setattr(advice.metadata, "requires", lambda name: known)
    assert advice.install_command("tpu") == "uv pip install --python 'my python' 'jax[tpu]>=0.10'"
    monkeypatch.setattr(advice.importlib.util, "find_spec", lambda name: name)
    assert advice.install_command("ray") == "'my python' -m pip install ray==2.60.0"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/topicjax"])
    monkeypatch.setattr(advice.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert advice.corpus_command(is_standard=False) == "topicjax corpus --text my.txt"
    monkeypatch.setattr(advice.shutil, "which", lambda name: f"/bin/{name}")  # another one comes first
    assert advice.command("list") == "/usr/bin/topicjax list"
    monkeypatch.setenv(advice.FROM_MAKE, "1")
    assert advice.install_command("tpu") == "make tpu"
    assert advice.install_command("bench") == "make extra EXTRA=bench"
    assert advice.corpus_command(is_standard=False) == "make corpus TEXT=my.txt"


def test_every_extra_is_known_and_every_target_of_make_exists():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all(advice.requirements(name)[0] != f".[{name}]" for name in ("tpu", "ray", "text", "bench"))
    makefile = (ROOT / "Makefile").read_text()
    for extra, target in {**advice.MAKE_TARGETS, "any": "extra", "corpus": "corpus"}.items():
        assert re.search(rf"^{target}: ", makefile, re.M) and (
            extra in listed or target in ("extra", "corpus")
        )


def test_no_advice_names_make_or_an_environment():
    """Only `advice` knows how this copy is called."""
    for path in [*(ROOT / "topicjax").rglob("*.py"), *(ROOT / "analysis").rglob("*.py")]:
        texts = [
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        found = [text for text in texts if re.search(r"\bmake [a-z-]+ [A-Z]+=|\.venv|: make|`make ", text)]
        assert path.name == "advice.py" or not found, (path, found)


def test_version_and_settings_are_printed(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"topicjax {topicjax.__version__}\n"
    assert cli.main(["settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("experiment ")]
    assert [lines[head] for head in heads] == [
        "experiment encoder",
        "experiment one_layer",
        "experiment syntax",
        "experiment text",
    ]
    own = lines[heads[1] + 2 : heads[2]]
    assert [line.split()[0] for line in own] == list(SETTINGS)
    (row,) = [line.strip() for line in own if line.startswith("  p_mask ")]
    assert re.split(r"  +", row)[1:] == [
        "0.15",
        "above 0, at most 1",
        "p_m: a position is masked",
    ]


def test_folders_of_the_user_do_not_stand_in_the_way(tmp_path, cache):
    """The analysis and the sweeps are inside the package once installed."""
    for name in ("analysis", "sweeps"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('the wrong package')")
    code = "import sys, topicjax.analysis.one_layer.page; from topicjax import cli; "
    code += "sys.exit(cli.main(['list']) or cli.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "report", "nowhere"]
    done = subprocess.run(command, env=environment(cache), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "topicjax: there is no folder nowhere\n"


class PressingCtrlC:
    """Sends Ctrl-C to this process when the last segment of the last chunk is counted."""

    def __init__(self, monkeypatch):
        self.update = Progress.update
        monkeypatch.setattr(Progress, "update", lambda progress, **counts: self.count(progress, **counts))

    def count(self, progress, **counts):
        self.update(progress, **counts)
        if counts.get("steps") and progress.steps >= progress.total_steps:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_the_last_segment_comes_too_late_to_stop(tmp_path, monkeypatch):
    PressingCtrlC(monkeypatch)
    given = dict(base=engine_runs.DEEP_BASE, experiment=engine_runs.DEEP_LINEAR)
    _, outcome = engine_runs.train_sweep(tmp_path / "run", product(seed=(0, 1)), **given)
    assert outcome.is_whole and outcome.ok == 2


def test_ctrl_c_does_not_wait_for_limit_lines(tmp_path, monkeypatch):
    begun, never = threading.Event(), threading.Event()

    def endless(trial):
        if threading.current_thread() is threading.main_thread():
            return {}  # the check of a user's experiment, before signals mean a clean stop
        begun.set()
        never.wait()
        return {}

    threading.Thread(target=lambda: (begun.wait(), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
    given = dict(base=engine_runs.DEEP_BASE, experiment=replace(engine_runs.DEEP_LINEAR, references=endless))
    try:
        _, outcome = engine_runs.train_sweep(tmp_path / "run", product(seed=(0, 1)), **given)
    finally:
        never.set()
    assert not outcome.is_whole
    assert topicjax.load(tmp_path / "run").manifest["references"] == []
