"""What is joined onto a run that was loaded: settings, limit lines, order, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.synthetic_runs import line_entry, records, trial, whole_id, write_run

import topicjax
from topicjax.analysis import frames
from topicjax.analysis.frames import bands, distinct, owners, varying
from topicjax.analysis.topic_model import FIRST, LINE_COLUMNS, SETTINGS, aligned, prepared, settings_in
from topicjax.experiments.one_layer import settings as trials
from topicjax.experiments.one_layer.settings import DEFAULTS
from topicjax.store.files import StoreError
from topicjax.store.reader import Run, load
from topicjax.theory.document_settings import DATA_SETTINGS


def prepare(folder: Path, *arguments: Any, **manifest: Any) -> Run:
    return prepared(load(write_run(folder, *arguments, **manifest)))


def test_settings_are_those_that_identify_a_trial_the_telling_ones_first():
    assert sorted(SETTINGS) == sorted(trials.SETTINGS)
    assert SETTINGS[: len(FIRST)] == FIRST
    assert SETTINGS[len(FIRST) :] == DATA_SETTINGS


def test_a_complete_run_is_sorted_joined_and_misses_nothing(tmp_path: Path):
    rows = [trial("b", seed=1, learning_rate=0.5), trial("a", seed=2)]
    shuffled = [records("b", steps=2, loss=[9.0, 8.0])[::-1], records("a", loss=[3.0, 2.0, 1.0])[::-1]]
    run = prepare(tmp_path / "run", rows, shuffled)
    assert run.missing == ()
    assert run.name == "tiny"
    assert settings_in(run.trials) == list(SETTINGS)
    table = run.trajectories
    assert table["trial_id"].tolist() == [whole_id(name) for name in "bbaaa"]
    assert table["step"].tolist() == [0, 10, 0, 10, 20]
    assert table["loss"].tolist() == [9, 8, 3, 2, 1]
    assert table["seed"].tolist() == [1, 1, 2, 2, 2]
    assert table["learning_rate"].tolist() == [0.5, 0.5, 0.01, 0.01, 0.01]
    assert isinstance(table["objective"].dtype, pd.StringDtype)
    assert not table.columns.duplicated().any()


def test_preparing_twice_is_harmless_and_leaves_the_loaded_run_alone(tmp_path: Path):
    loaded = load(write_run(tmp_path / "run", [trial("a"), trial("b", p_mask=0.3)]))
    before = loaded.trials.columns.tolist(), loaded.trajectories.columns.tolist(), loaded.missing
    run = prepared(loaded)
    assert prepared(run) is run
    assert run.missing == ("1 of 2 trials have no limit lines",)
    assert (loaded.trials.columns.tolist(), loaded.trajectories.columns.tolist(), loaded.missing) == before
    one = run.select([whole_id("b")])
    assert prepared(one) is one and one.trajectories["p_mask"].tolist() == [0.3] * 3


def test_an_aligned_run_has_lines_and_order_but_no_settings_at_its_records(tmp_path: Path):
    shuffled = [records("b", steps=2)[::-1], records("a")[::-1]]
    run = aligned(load(write_run(tmp_path / "run", [trial("b"), trial("a")], shuffled)))
    assert aligned(run) is run and set(LINE_COLUMNS) <= set(run.trials)
    assert not {*SETTINGS, *LINE_COLUMNS} & set(run.trajectories)
    assert owners(run).tolist() == [0, 0, 1, 1, 1]
    pd.testing.assert_frame_equal(prepared(run).trajectories, prepared(load(run.folder)).trajectories)


def test_distinct_rows_are_numbered_as_they_appear():
    frame = pd.DataFrame(dict(a=[2, 1, 2, np.nan, np.nan], b="x", c=[0, 0, 1, 1, 1]))
    number, kinds = distinct(frame, ["a", "b"])
    assert number.tolist() == [0, 1, 0, 2, 2]
    pd.testing.assert_frame_equal(kinds, frame[["a", "b"]].iloc[[0, 1, 3]].reset_index(drop=True))
    assert distinct(frame, ["b"])[0].tolist() == [0] * 5 and len(distinct(frame, ["b"])[1]) == 1


def test_parts_with_and_without_a_diverged_trial_join(tmp_path: Path):
    lost = trial("b") | dict(status="diverged", diverged_step=40)
    run = prepare(tmp_path / "run", [trial("a"), lost])
    assert run.trials["status"].tolist() == ["ok", "diverged"]
    np.testing.assert_array_equal(run.trials["diverged_step"], [np.nan, 40])


def test_an_equals_sign_in_the_path_is_no_column(tmp_path: Path):
    run = prepare(tmp_path / "seed=7", [trial("a", seed=1)])
    assert run.trials["seed"].tolist() == [1]


def test_each_trial_gets_the_lines_of_its_own_data_and_objective(tmp_path: Path):
    rows = [
        trial("a"),
        trial("b", objective="squared"),
        trial("c", p_mask=0.3),
        trial("d", word_distribution="dirichlet", seed=3),
        trial("e", word_distribution="dirichlet", seed=4),
    ]
    entries = [
        line_entry(),
        line_entry("squared", dict(stage1=0.94, bayes=None)),
        line_entry(values=dict(stage1=3.1), word_distribution="dirichlet", seed=4),
    ]
    run = prepare(tmp_path / "run", rows, references=entries)
    lines = run.trials.set_index("trial_id")
    np.testing.assert_array_equal(lines["line_stage1"], [3.4, 0.94, np.nan, np.nan, 3.1])
    np.testing.assert_array_equal(lines["line_bayes"], [2.9, np.nan, np.nan, np.nan, 2.9])
    np.testing.assert_array_equal(lines["line_stage2_se"], [0.002, 0.002, np.nan, np.nan, 0.002])
    assert run.trajectories["line_stage1"].tolist()[3:6] == [0.94] * 3
    assert run.missing == ("2 of 5 trials have no limit lines",)


def test_each_trial_gets_the_lines_of_its_own_held_out_documents(tmp_path: Path):
    rows = [trial("a"), trial("b", eval_documents=40), trial("c", eval_documents=7)]
    held_out = dict(held_out_stage1=3.38, held_out_stage2=3.29, held_out_stage1_se=0.04)
    entries = [
        line_entry(values=dict(stage1=3.3, held_out_stage1=3.2, held_out_stage2=None), eval_documents=40),
        line_entry(values=held_out, eval_documents=DEFAULTS["eval_documents"]),
        line_entry(values=dict(stage1=3.1)),  # for any held-out documents
    ]
    found = prepare(tmp_path / "run", rows, references=entries).trials
    np.testing.assert_array_equal(found["line_stage1"], [3.4, 3.3, 3.1])
    np.testing.assert_array_equal(found["held_out_stage1"], [3.38, 3.2, np.nan])
    np.testing.assert_array_equal(found["held_out_stage2"], [3.29, np.nan, np.nan])
    np.testing.assert_array_equal(found["held_out_stage1_se"], [0.04, np.nan, np.nan])
    np.testing.assert_array_equal(found["held_out_stage2_se"], [np.nan] * 3)


def test_seeds_that_single_precision_cannot_tell_apart_have_their_own_lines(tmp_path: Path):
    seeds = (2**24, 2**24 + 1)  # equal as float32
    drawn = dict(word_distribution="dirichlet")
    rows = [trial(f"{seed}", seed=seed, **drawn) for seed in seeds]
    entries = [line_entry(values=dict(stage1=3.0 + i), seed=seed, **drawn) for i, seed in enumerate(seeds)]
    run = prepare(tmp_path / "run", rows, references=entries)
    assert run.trials["line_stage1"].tolist() == [3.0, 4.0]


def test_settings_are_compared_to_the_last_digit(tmp_path: Path):
    near = float(np.nextafter(0.15, 1))
    entries = [line_entry(values=dict(stage1=3.1), p_mask=near), line_entry()]
    run = prepare(tmp_path / "run", [trial("a"), trial("b", p_mask=near)], references=entries)
    assert run.trials["line_stage1"].tolist() == [3.4, 3.1]


def test_a_run_still_going_says_how_far_it_is_and_leaves_out_the_unfinished(tmp_path: Path):
    trajectories = [records("a"), records("b"), records("unfinished", steps=1)]
    folder = write_run(tmp_path / "run", [trial("a"), trial("b")], trajectories, planned=264)
    (folder / "trials" / ".part-00002.parquet.tmp").write_bytes(b"half a file")
    (folder / "trials" / "part-00002.parquet.tmp").write_bytes(b"half a file")
    run = prepared(load(folder))
    assert run.trajectories["trial_id"].unique().tolist() == [whole_id("a"), whole_id("b")]
    assert run.missing == ("2 of 264 trials are finished",)


def test_without_a_manifest_the_trials_still_read(tmp_path: Path):
    folder = write_run(tmp_path / "run", [trial("a")])
    (folder / "manifest.json").unlink()
    run = prepared(load(folder))
    assert run.missing == ("manifest.json is not there: planned trials and references are unknown",)
    assert run.name == "run"
    np.testing.assert_array_equal(run.trials["line_stage1"], [np.nan])


def test_lines_for_an_unknown_setting_are_refused(tmp_path: Path):
    with pytest.raises(StoreError, match="name 'colour', no setting of the trials"):
        prepare(tmp_path / "run", [trial("a")], references=[line_entry(colour="red")])


def test_missing_columns_are_named(tmp_path: Path):
    with pytest.raises(StoreError, match=r"trajectories has no column a_topic"):
        prepare(tmp_path / "a", [trial("a")], [records("a").drop(columns="a_topic")])
    row = trial("a")
    del row["objective"]
    with pytest.raises(StoreError, match=r"trials has no column objective"):
        prepare(tmp_path / "b", [row])


def test_trials_and_records_must_be_unique_and_start_at_zero(tmp_path: Path):
    two = [trial("a"), trial("b")]
    with pytest.raises(StoreError, match=r"trial 0+b has step 20 more than once"):
        prepare(tmp_path / "1", two, [records("a"), pd.concat([records("b"), records("b")[2:]])])
    with pytest.raises(StoreError, match=r"has trial 0+a more than once"):
        prepare(tmp_path / "2", [trial("a"), trial("a")], [records("a"), records("a")])
    with pytest.raises(StoreError, match=r"trial 0+b has no record at step 0"):
        prepare(tmp_path / "3", two, [records("a"), records("b")[1:]])
    with pytest.raises(StoreError, match=r"trial 0+b has no record at step 0"):
        prepare(tmp_path / "4", two, [records("a"), records("c")])
    folder = write_run(tmp_path / "5", [trial("a")])
    (part,) = (folder / "trajectories").iterdir()
    part.unlink()
    with pytest.raises(StoreError, match=f"{part.name} is missing"):
        prepared(load(folder))
    with pytest.raises(StoreError, match="has status 'lost'; allowed: ok, diverged"):
        prepare(tmp_path / "6", [trial("a") | dict(status="lost")])


def test_bands_are_quantiles_over_seeds_at_each_step(tmp_path: Path):
    rows = [trial(f"{i}", seed=i % 5, learning_rate=1.0 + i // 5) for i in range(10)]
    values = [records(f"{i}", loss=[i, 10.0 * i, np.nan]) for i in range(10)]
    values[4].loc[1, "loss"] = np.inf
    table = bands(prepare(tmp_path / "run", rows, values).trajectories, "loss", "learning_rate")
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


def test_settings_vary_among_rows_that_agree_in_others():
    rows = pd.DataFrame(
        dict(a=[1, 1, 2, 2], b=[1, 1, 2, 2], c=[1, 2, 1, 2], d=[np.nan] * 4, e=[np.nan, 1, 1, 1])
    )
    assert varying(rows, ("a", "b", "c", "d", "e", "absent")) == ["a", "b", "c", "e"]
    assert varying(rows, rows, ["a"]) == ["c", "e"]


def test_analysis_needs_neither_jax_nor_the_engine():
    code = (
        "import importlib, pkgutil, sys\n"
        "import topicjax.analysis as analysis\n"
        "found = list(pkgutil.walk_packages(analysis.__path__, 'topicjax.analysis.'))\n"
        "for module in found: importlib.import_module(module.name)\n"
        "engine = ('jax', 'orbax', 'flax', 'topicjax.engine.run', 'topicjax.cli')\n"
        "print(len(found) > 20, [name for name in engine if name in sys.modules])"
    )
    root = str(Path(topicjax.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ, cwd=root
    )
    assert found.stdout.strip() == "True []"
    assert Path(frames.__file__).parent.name == "analysis"
