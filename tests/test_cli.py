"""The command line as a user meets it: real processes, real signals, one sentence for every mistake."""

import re
import signal
import sys
import time

import numpy as np
import pandas as pd
import pytest
from command_line import start

import topicjax
from topicjax import __main__ as cli

pytestmark = pytest.mark.xdist_group("cli")  # one worker: the smoke run is made once


def test_a_run_says_what_it_did_and_what_is_next(smoke):
    folder, out = smoke
    assert "smoke: 16 trials to train on" in out
    assert "Done: 16 trials in" in out and "16 ok, 0 diverged" in out
    for place in ("trials", "trajectories", "checkpoints"):
        assert f"results/smoke/{place}" in out and (folder / place).is_dir()
    manifest = topicjax.load(folder).manifest
    assert manifest["trials_planned"] == 16 and manifest["versions"]["jax"]
    assert manifest["axes"]["learning_rate"] == [0.3, 1.0, 0.001, 0.01]
    assert {entry["objective"] for entry in manifest["limit_lines"]} == {"cross_entropy", "squared"}
    for entry in manifest["limit_lines"]:
        assert entry["uniform"] > entry["stage1"] > entry["bayes"]


def test_no_trained_model_beats_bayes(smoke):
    """Not even on its own held-out documents, by more than sampling allows."""
    folder, _ = smoke
    run = topicjax.load(folder)
    lines = {entry["objective"]: entry["bayes"] for entry in run.manifest["limit_lines"]}
    for _, trial in run.trials.iterrows():
        assert trial["final_eval_loss"] > 0.9 * lines[trial["objective"]]


def test_the_same_command_again_has_nothing_to_do(smoke, cache):
    folder, _ = smoke
    process = start("run", "smoke", "--chunk", "2", cache=cache, cwd=folder.parents[1])
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "Nothing left to train" in out


def test_killed_at_random_moments_and_resumed_equals_uninterrupted(smoke, tmp_path, cache):
    """Ten SIGKILLs, from the start of the process to its last writes, then the same command."""
    folder, _ = smoke
    arguments = ("run", "smoke", "--chunk", "2", "--snapshots", "50,100", "--save-every", "0")
    rng = np.random.default_rng(0)
    moments = rng.permutation(np.linspace(0.5, 7.0, 10))
    for moment in moments:
        process = start(*arguments, cache=cache, cwd=tmp_path)
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start(*arguments, cache=cache, cwd=tmp_path)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    resumed, whole = topicjax.load(tmp_path / "results" / "smoke"), topicjax.load(folder)
    for table, keys in (("trials", ["trial_id"]), ("trajectories", ["trial_id", "step"])):
        mine, other = (getattr(run, table).sort_values(keys, ignore_index=True) for run in (resumed, whole))
        pd.testing.assert_frame_equal(mine, other)
    for trial_id in whole.trials["trial_id"][::5]:
        for step in (50, 100):
            mine, other = resumed.restore(trial_id, step), whole.restore(trial_id, step)
            assert all((mine[name] == other[name]).all() for name in other)
    assert pd.read_parquet(tmp_path / "results" / "smoke" / "trajectories")["trial_id"].nunique() == 16


def test_ctrl_c_stops_says_how_to_continue_and_returns_130(tmp_path, cache):
    process = start("run", "smoke", "--set", "steps=200000", cache=cache, cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("results/smoke/manifest.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - asked < 30  # seconds on a quiet machine
    assert "Continue with the same command: make sweep SWEEP=smoke ARGS='--set steps=200000'" in out
    status = start("status", "results/smoke", cache=cache, cwd=tmp_path).communicate()[0]
    assert "0 of 16 trials finished" in status and "not running" in status


MISTAKES = [
    (["run", "two_stag"], "did you mean 'two_stage'"),
    (["run", "smoke", "--set", "lerning_rate=1"], "did you mean 'learning_rate'"),
    (["run", "smoke", "--set", "steps=ten"], "steps is 'ten'; allowed: a whole number"),
    (["run", "smoke", "--set", "steps=7"], "steps is 7; allowed: a multiple of record_every"),
    (["run", "smoke", "--axis", "learning_rate=log:0:1:3"], "learning_rate"),
    (["run", "smoke", "--snapshots", "often"], "snapshots is 'often'; allowed"),
    (["run", "smoke", "--chunk", "-1"], "--chunk is -1; allowed"),
    (["run", "smoke", "--chunk", "x"], "invalid int value"),
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
    monkeypatch.setattr("topicjax.engine.use_all_cores", lambda: None)
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
    assert re.search(r"two_stage +384 trials +Where does", listed)


def test_plan_prints_without_writing(smoke, tmp_path, monkeypatch, capsys):
    folder, _ = smoke
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("topicjax.engine.use_all_cores", lambda: None)
    assert cli.main(["plan", "smoke", "--set", "learning_rate=0.1", "--axis", "l2=0,1e-3"]) == 0
    text = capsys.readouterr().out
    assert "smoke: 16 trials" in text and "l2" in text and "left: 16" in text
    assert "learning_rate" not in text  # no longer an axis
    assert "memory: about" in text and "disk: about" in text and "time: about" in text
    assert not list(tmp_path.iterdir())
    assert cli.main(["plan", "smoke", "--out", str(folder)]) == 0
    assert f"already in {folder}: 16 trials; left: 0" in capsys.readouterr().out


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
    monkeypatch.setattr("topicjax.engine.use_all_cores", lambda: None)
    assert cli.main(["run", "joint", "--out", str(folder)]) == 2
    assert "smoke" in capsys.readouterr().err
    assert len(topicjax.load(folder).trials) == 16
