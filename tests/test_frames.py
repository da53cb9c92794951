"""A run folder as frames: complete, still going, interrupted, empty, foreign and damaged ones."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import frames
from analysis.frames import NEEDED_TRAJECTORIES, SETTINGS, bands, load
from topicjax.config import DATA_SETTINGS, DEFAULTS, IDENTITY

LINES = dict(uniform=4.6, stage1=3.4, stage2=3.3, bayes=2.9)
ERRORS = dict(uniform_se=0.0, stage1_se=0.001, stage2_se=0.002, bayes_se=0.003)


def trial(trial_id: str, **changed: Any) -> dict[str, Any]:
    settings = {name: DEFAULTS[name] for name in IDENTITY} | changed
    return dict(trial_id=trial_id, status="ok", diverged_step=None) | settings


def records(trial_id: str, steps: int = 3, **columns: Any) -> pd.DataFrame:
    measured = dict.fromkeys(NEEDED_TRAJECTORIES[2:], 1.0) | columns
    return pd.DataFrame(dict(trial_id=trial_id, step=10 * np.arange(steps)) | measured)


def line_entry(objective: str = "cross_entropy", **changed: Any) -> dict[str, Any]:
    settings = {name: DEFAULTS[name] for name in DATA_SETTINGS} | changed
    return dict(settings=settings, objective=objective, **LINES, **ERRORS)


def write_run(
    folder: Path,
    trials: list[dict[str, Any]],
    trajectories: list[pd.DataFrame] | None = None,
    **manifest: Any,
) -> Path:
    """Write a run folder with one part per trial; trajectories default to three records a trial."""
    if trajectories is None:
        trajectories = [records(row["trial_id"]) for row in trials]
    tables = {"trials": [pd.DataFrame([row]) for row in trials], "trajectories": trajectories}
    for name, parts in tables.items():
        (folder / name).mkdir(parents=True)
        for number, part in enumerate(parts):
            part.to_parquet(folder / name / f"part-{number:05d}.parquet", index=False)
    defaults = dict(sweep="tiny", trials_planned=len(trials), limit_lines=[line_entry()])
    (folder / "manifest.json").write_text(json.dumps(defaults | manifest))
    return folder


def test_settings_are_those_that_identify_a_trial():
    assert sorted(SETTINGS) == sorted(IDENTITY)


def test_a_complete_run_is_sorted_joined_and_misses_nothing(tmp_path: Path):
    trials = [trial("b", seed=1, learning_rate=0.5), trial("a", seed=2)]
    shuffled = [records("a", loss=[3.0, 2.0, 1.0])[::-1], records("b", steps=2, loss=[9.0, 8.0])]
    run = load(write_run(tmp_path / "run", trials, shuffled))
    assert run.missing == ()
    assert run.name == "tiny"
    assert run.settings == list(SETTINGS)
    table = run.trajectories
    assert table["trial_id"].tolist() == ["b", "b", "a", "a", "a"]
    assert table["step"].tolist() == [0, 10, 0, 10, 20]
    assert table["loss"].tolist() == [9, 8, 3, 2, 1]
    assert table["seed"].tolist() == [1, 1, 2, 2, 2]
    assert table["learning_rate"].tolist() == [0.5, 0.5, 0.01, 0.01, 0.01]
    assert isinstance(table["objective"].dtype, pd.StringDtype)
    assert not table.columns.duplicated().any()


def test_parts_with_and_without_a_diverged_trial_join(tmp_path: Path):
    lost = trial("b") | dict(status="diverged", diverged_step=40)
    run = load(write_run(tmp_path / "run", [trial("a"), lost]))
    assert run.trials["status"].tolist() == ["ok", "diverged"]
    np.testing.assert_array_equal(run.trials["diverged_step"], [np.nan, 40])


def test_an_equals_sign_in_the_path_is_no_column(tmp_path: Path):
    run = load(write_run(tmp_path / "seed=7", [trial("a", seed=1)]))
    assert run.trials["seed"].tolist() == [1]


def test_each_trial_gets_the_lines_of_its_own_data_and_objective(tmp_path: Path):
    trials = [
        trial("a"),
        trial("b", objective="squared"),
        trial("c", p_mask=0.3),
        trial("d", word_distribution="dirichlet", seed=3),
        trial("e", word_distribution="dirichlet", seed=4),
    ]
    entries = [
        line_entry(),
        line_entry("squared") | dict(stage1=0.94, bayes=None),
        line_entry(word_distribution="dirichlet", seed=4) | dict(stage1=3.1),
    ]
    run = load(write_run(tmp_path / "run", trials, limit_lines=entries))
    lines = run.trials.set_index("trial_id")
    np.testing.assert_array_equal(lines["line_stage1"], [3.4, 0.94, np.nan, np.nan, 3.1])
    np.testing.assert_array_equal(lines["line_bayes"], [2.9, np.nan, np.nan, np.nan, 2.9])
    np.testing.assert_array_equal(lines["line_stage2_se"], [0.002, 0.002, np.nan, np.nan, 0.002])
    assert run.trajectories["line_stage1"].tolist()[3:6] == [0.94] * 3
    assert run.missing == ("2 of 5 trials have no limit lines",)


def test_single_precision_settings_find_their_lines(tmp_path: Path):
    row = trial("a") | {name: np.float32(DEFAULTS[name]) for name in ("alpha", "p_mask")}
    run = load(write_run(tmp_path / "run", [row]))
    assert run.trials["line_stage1"].tolist() == [3.4]


def test_a_run_still_going_says_how_far_it_is_and_leaves_out_the_unfinished(tmp_path: Path):
    trajectories = [records("a"), records("b"), records("unfinished", steps=1)]
    folder = write_run(tmp_path / "run", [trial("a"), trial("b")], trajectories, trials_planned=264)
    (folder / "trials" / ".part-00002.parquet.tmp").write_bytes(b"half a file")
    (folder / "trials" / "part-00002.parquet.tmp").write_bytes(b"half a file")
    run = load(folder)
    assert run.trajectories["trial_id"].unique().tolist() == ["a", "b"]
    assert run.missing == (
        "2 of 264 trials are finished",
        "records of 1 unfinished trials are left out",
    )


def test_a_run_before_its_first_trial_says_so(tmp_path: Path):
    (tmp_path / "manifest.json").write_text('{"sweep": "tiny", "trials_planned": 264}')
    with pytest.raises(FileNotFoundError, match=r"no trial of 264 in .* is finished yet"):
        load(tmp_path)
    (tmp_path / "trials").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no trial of 264 in .* is finished yet"):
        load(tmp_path)


def test_without_a_manifest_the_trials_still_read(tmp_path: Path):
    folder = write_run(tmp_path / "run", [trial("a")])
    (folder / "manifest.json").unlink()
    run = load(folder)
    assert run.missing == ("manifest.json is not there: planned trials and limit lines are unknown",)
    assert run.name == "run"
    np.testing.assert_array_equal(run.trials["line_stage1"], [np.nan])


def test_folders_of_another_kind_are_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="is empty"):
        load(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"is not a run folder, .* it holds notes.txt"):
        load(tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        load(tmp_path / "notes.txt")
    write_run(tmp_path / "two_stage", [trial("a")])
    with pytest.raises(ValueError, match=r"did you mean .*two_stage\?"):
        load(tmp_path)


def test_a_manifest_of_something_else_is_refused(tmp_path: Path):
    folder = write_run(tmp_path / "run", [trial("a")])
    (folder / "manifest.json").write_text('{"name": "web app"}')
    with pytest.raises(ValueError, match="is not the manifest of a run"):
        load(folder)
    (folder / "manifest.json").write_text('{"sweep": "ti')
    with pytest.raises(ValueError, match=r"manifest.json is damaged"):
        load(folder)


def test_lines_for_an_unknown_setting_are_refused(tmp_path: Path):
    folder = write_run(tmp_path / "run", [trial("a")], limit_lines=[line_entry(colour="red")])
    with pytest.raises(ValueError, match="name 'colour', no setting of the trials"):
        load(folder)


@pytest.mark.parametrize("name", ["trials", "trajectories"])
@pytest.mark.parametrize("kept", [0, 4, 0.5, 0.99])
def test_a_damaged_part_is_named(tmp_path: Path, name: str, kept: float):
    folder = write_run(tmp_path / "run", [trial("a"), trial("b")])
    part = folder / name / "part-00001.parquet"
    content = part.read_bytes()
    part.write_bytes(content[: int(kept if kept >= 1 else kept * len(content))])
    with pytest.raises(ValueError, match=rf"{name}/part-00001.parquet is damaged: \S") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_missing_columns_are_named(tmp_path: Path):
    folder = write_run(tmp_path / "a", [trial("a")], [records("a").drop(columns="a_topic")])
    with pytest.raises(ValueError, match=r"trajectories has no column a_topic"):
        load(folder)
    row = trial("a")
    del row["objective"]
    with pytest.raises(ValueError, match=r"trials has no column objective"):
        load(write_run(tmp_path / "b", [row]))


def test_trials_and_records_must_be_unique_and_start_at_zero(tmp_path: Path):
    twice = [records("a"), records("b"), records("b")[2:]]
    with pytest.raises(ValueError, match="trial b has step 20 more than once"):
        load(write_run(tmp_path / "1", [trial("a"), trial("b")], twice))
    with pytest.raises(ValueError, match="has trial a more than once"):
        load(write_run(tmp_path / "2", [trial("a"), trial("a")], [records("a")]))
    late = [records("a"), records("b")[1:]]
    with pytest.raises(ValueError, match="trial b has no record at step 0"):
        load(write_run(tmp_path / "3", [trial("a"), trial("b")], late))
    with pytest.raises(ValueError, match="trial b has no record at step 0"):
        load(write_run(tmp_path / "4", [trial("a"), trial("b")], [records("a")]))
    with pytest.raises(FileNotFoundError, match=r"trajectories has no part-\*.parquet"):
        load(write_run(tmp_path / "5", [trial("a")], []))
    with pytest.raises(ValueError, match="has status 'lost'; allowed: ok, diverged"):
        load(write_run(tmp_path / "6", [trial("a") | dict(status="lost")]))


def test_bands_are_quantiles_over_seeds_at_each_step(tmp_path: Path):
    trials = [trial(f"{i}", seed=i % 5, learning_rate=1.0 + i // 5) for i in range(10)]
    values = [records(f"{i}", loss=[i, 10.0 * i, np.nan]) for i in range(10)]
    values[4].loc[1, "loss"] = np.inf
    table = bands(load(write_run(tmp_path / "run", trials, values)).trajectories, "loss", "learning_rate")
    assert table.columns.tolist() == ["learning_rate", "step", "q25", "q50", "q75", "trials"]
    table = table.set_index(["learning_rate", "step"])
    assert table.loc[(1.0, 0)].tolist() == [1, 2, 3, 5]
    assert table.loc[(1.0, 10)].tolist() == [7.5, 15, 22.5, 4]  # the infinite one is left out
    assert table.loc[(2.0, 10)].tolist() == [60, 70, 80, 5]
    assert table.loc[(2.0, 20), "trials"] == 0


def test_bands_over_everything_and_other_quantiles():
    frame = pd.DataFrame(dict(step=[0, 0, 0, 5], x=[1.0, 2.0, 4.0, 7.0]))
    table = bands(frame, "x", quantiles=(0, 1))
    assert table.to_dict("list") == dict(step=[0, 5], q0=[1, 7], q100=[4, 7], trials=[3, 1])


def test_analysis_needs_neither_jax_nor_the_engine():
    code = (
        "import analysis, importlib, pkgutil, sys\n"
        "for module in pkgutil.iter_modules(analysis.__path__):\n"
        "    importlib.import_module(f'analysis.{module.name}')\n"
        "engine = ('jax', 'orbax', 'flax', 'topicjax.engine', 'topicjax.train', 'topicjax.session')\n"
        "print([name for name in engine if name in sys.modules])"
    )
    root = Path(frames.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert found.stdout.strip() == "[]"
