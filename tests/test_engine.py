"""The engine: a trial's result does not depend on its company, its devices, its chunks or interruptions."""

import contextlib
import io
import itertools
import re
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import topicjax
from topicjax import config, engine, grid, lda, plan, programs, store
from topicjax.progress import Progress

BASE = dict(
    topics=3,
    words_per_topic=2,
    length_min=8,
    length_max=12,
    batch_size=4,
    eval_documents=6,
    optimizer="sgd",
    steps=40,
    record_every=10,
)
SWEEP = grid.product(seed=(0, 1, 2), learning_rate=(0.1, 0.5, 1.0), init_scale=(0.01, 0.3))


def train_sweep(folder: Path, sweep=SWEEP, base=BASE, lanes=0, devices=4, snapshots="last", **options):
    """Run a sweep as the command line does and return its folder."""
    trials = grid.trials(base, sweep)
    chosen = engine.Options(lanes, snapshots, devices=jax.devices()[:devices], **options)
    with store.Writer(folder, "test") as writer:
        writer.write_manifest({"sweep": "test", "trials_planned": len(trials)})
        outcome = engine.run(trials, writer, Progress(len(trials), 1.0, io.StringIO()), chosen)
    return topicjax.load(folder), outcome


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run, outcome = train_sweep(tmp_path_factory.mktemp("whole") / "run")
    assert (outcome.ok, outcome.diverged, outcome.programs) == (18, 0, 1)
    return run


def columns(run, *names) -> pd.DataFrame:
    frame = run.trajectories.sort_values(["trial_id", "step"])
    return frame.set_index(["trial_id", "step"])[list(names)]


def assert_same_training(run, other):
    for trial_id in other.trials["trial_id"]:
        mine, others = run.restore(trial_id), other.restore(trial_id)
        for name in mine:
            np.testing.assert_allclose(mine[name], others[name], rtol=1e-4, atol=1e-6)


def test_plain_pandas_reads_the_folder(whole):
    trials = pd.read_parquet(whole.folder / "trials")
    trajectories = pd.read_parquet(whole.folder / "trajectories")
    assert len(trials) == 18 and trials["trial_id"].is_unique
    assert set(trials["learning_rate"]) == {0.1, 0.5, 1.0}
    assert (trajectories.groupby("trial_id")["step"].apply(list).map(str) == "[0, 10, 20, 30, 40]").all()
    joined = trajectories.merge(trials[["trial_id", "final_loss"]], on="trial_id").query("step == 40")
    assert (joined["loss"] == joined["final_loss"]).all()


def test_every_trial_has_the_id_and_settings_of_its_plan(whole):
    planned = {config.trial_id(t): config.settings_of(t) for t in grid.trials(BASE, SWEEP)}
    for _, row in whole.trials.iterrows():
        assert {name: row[name] for name in config.IDENTITY} == planned[row["trial_id"]]


@pytest.mark.parametrize(("lanes", "devices"), [(1, 4), pytest.param(3, 2, marks=pytest.mark.slow), (8, 1)])
def test_chunks_and_devices_do_not_change_results(whole, tmp_path, lanes, devices):
    run, _ = train_sweep(tmp_path / "run", lanes=lanes, devices=devices)
    assert set(run.trials["trial_id"]) == set(whole.trials["trial_id"])
    assert_same_training(run, whole)
    names = ("loss", "eval_loss", "norm_k", "norm_v")
    np.testing.assert_allclose(columns(run, *names), columns(whole, *names), rtol=1e-4)


def test_a_lane_is_the_trial_alone(whole, tmp_path):
    alone = grid.product(seed=1, learning_rate=0.5, init_scale=0.3)
    run, _ = train_sweep(tmp_path / "run", alone, devices=1)
    assert len(run.trials) == 1
    assert_same_training(whole, run)


@pytest.mark.slow
def test_adam_lanes_agree_in_norms(tmp_path):
    base = BASE | {"optimizer": "adam", "steps": 20}
    runs = [train_sweep(tmp_path / str(n), base=base, lanes=n, devices=2)[0] for n in (1, 6)]
    np.testing.assert_allclose(
        columns(runs[0], "norm_k", "norm_v"), columns(runs[1], "norm_k", "norm_v"), rtol=1e-3
    )


@pytest.mark.slow
def test_the_record_interval_does_not_change_training(whole, tmp_path):
    run, _ = train_sweep(tmp_path / "run", base=BASE | {"record_every": 5})
    pairs = zip(grid.trials(BASE, SWEEP), grid.trials(BASE | {"record_every": 5}, SWEEP), strict=True)
    for trial, other in itertools.islice(pairs, 0, None, 5):
        coarse = columns(whole, "eval_loss").loc[config.trial_id(trial)]
        fine = columns(run, "eval_loss").loc[config.trial_id(other)]
        np.testing.assert_allclose(fine.loc[coarse.index], coarse, rtol=1e-5)


def test_extending_an_axis_trains_only_the_new_trials(tmp_path):
    folder = tmp_path / "run"
    small = grid.product(seed=(0, 1), learning_rate=(0.1, 0.5))
    train_sweep(folder, small, lanes=1)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/part-*")}
    _, outcome = train_sweep(folder, grid.product(seed=(0, 1), learning_rate=(0.1, 0.5, 1.0)), lanes=1)
    assert outcome.ok == 2 and len(topicjax.load(folder).trials) == 6
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    _, outcome = train_sweep(folder, small, lanes=1)
    assert outcome.ok == outcome.programs == 0


def test_a_diverged_trial_is_a_result_and_spares_its_neighbours(whole, tmp_path):
    sick = grid.chain(
        grid.product(seed=0, learning_rate=(0.1, 0.5, 1.0), init_scale=(0.01, 0.3)),
        grid.product(seed=0, learning_rate=1e20, init_scale=0.3, objective="squared"),
    )
    run, outcome = train_sweep(tmp_path / "run", sick)
    assert (outcome.ok, outcome.diverged) == (6, 1)
    diverged = run.trials.query("status == 'diverged'").iloc[0]
    assert diverged["learning_rate"] == 1e20 and diverged["diverged_step"] == 10
    healthy = run.trials.query("status == 'ok'")
    assert healthy["diverged_step"].isna().all() and healthy["final_loss"].notna().all()


def test_snapshots_at_chosen_steps(tmp_path):
    base, one = BASE | {"steps": 40}, grid.product(seed=(0, 1))
    run, _ = train_sweep(tmp_path / "run", one, base, lanes=1, snapshots="0,10,40")
    trial_id = run.trials["trial_id"][0]
    stream = config.numbers(config.Stream(seed=int(run.trials["seed"][0])))
    spec, _, hypers = config.make_trial(BASE)
    start = topicjax.train.model.init(
        spec, stream, config.numbers(hypers), lda.stream_keys(stream.seed).weights
    )
    np.testing.assert_allclose(run.restore(trial_id, 0)["W_K"], start["W_K"], rtol=1e-6)
    norms = [np.linalg.norm(run.restore(trial_id, step)["W_V"]) for step in (0, 10, 40)]
    recorded = columns(run, "norm_v").loc[trial_id].loc[[0, 10, 40], "norm_v"]
    np.testing.assert_allclose(norms, recorded, rtol=1e-5)
    assert run.restore(trial_id)["W_V"].shape == (7, 7)
    none, _ = train_sweep(tmp_path / "none", one, base, lanes=1, snapshots="none")
    with pytest.raises(store.StoreError, match="without snapshots"):
        none.restore(trial_id)


def test_a_stop_inside_a_chunk_resumes_bit_for_bit(whole, tmp_path, monkeypatch):
    """Stop after every segment, over and over: the records and weights equal an unbroken run's."""
    monkeypatch.setattr(plan, "SEGMENT_STEPS", 10)
    stops = 0
    with monkeypatch.context() as patch:
        patch.setattr(engine, "stop_requests", lambda: contextlib.nullcontext(lambda: True))
        while True:
            try:
                run, _ = train_sweep(tmp_path / "run")
            except engine.Interrupted:
                stops += 1
                continue
            break
    assert stops >= 3
    pd.testing.assert_frame_equal(
        columns(run, "loss", "norm_k", "rotation_v"), columns(whole, "loss", "norm_k", "rotation_v")
    )
    assert not list((tmp_path / "run" / "partial").iterdir())


def test_a_state_saved_under_another_layout_is_not_used(whole, tmp_path, monkeypatch):
    """Stopped with short segments, continued with long ones: trained anew, never past the end."""
    with monkeypatch.context() as patch:
        patch.setattr(plan, "SEGMENT_STEPS", 10)
        patch.setattr(engine, "stop_requests", lambda: contextlib.nullcontext(lambda: True))
        with pytest.raises(engine.Interrupted):
            train_sweep(tmp_path / "run")
    assert list((tmp_path / "run" / "partial").iterdir())
    run, _ = train_sweep(tmp_path / "run")
    pd.testing.assert_frame_equal(columns(run, "loss", "norm_k"), columns(whole, "loss", "norm_k"))


def test_one_compilation_per_group_whatever_the_chunks(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(Progress, "add_compile_time", lambda self, seconds: compiled.append(seconds))
    train_sweep(tmp_path / "run", lanes=1)
    assert len(compiled) == 3  # init, advance, record: five chunks


SMALL = "steps=2 record_every=1 topics=3 words_per_topic=2 length_min=8 length_max=12".split()
SMALL += ["batch_size=4", "eval_documents=4"]


@pytest.mark.parametrize("name", grid.sweep_names())
def test_shipped_sweeps_are_what_they_say_and_run(name, tmp_path):
    named = grid.load_sweep(name)
    trials = grid.trials(named.base, named.sweep)
    said = re.search(r"Size: +([\d,]+) trials, (\d+) programs", named.description)
    assert said, "the docstring says how many trials and programs"
    assert len(trials) == int(said[1].replace(",", ""))
    assert len({trial.spec for trial in trials}) == int(said[2])
    assert f"make sweep SWEEP={name}" in named.description
    base, sweep = grid.override(named.base, named.sweep, SMALL, [])
    first = {trial.spec: row for row, trial in zip(sweep, grid.trials(base, sweep), strict=False)}
    run, outcome = train_sweep(tmp_path / "run", grid.Sweep(tuple(first.values())), base, devices=1)
    assert outcome.programs == len(first)
    assert np.isfinite(run.trials["final_eval_loss"]).all()


def test_snapshot_steps_are_parsed():
    spec = config.Spec(steps=1000, record_every=20)
    assert plan.parse_snapshots("last", spec) == (1000,)
    assert plan.parse_snapshots("none", spec) == ()
    assert plan.parse_snapshots("0,100,1000", spec) == (0, 100, 1000)
    assert plan.parse_snapshots("log:3", spec) == (20, 140, 1000)
    with pytest.raises(ValueError, match="snapshots is 'often'; allowed: last, none, log:N"):
        plan.parse_snapshots("often", spec)
    with pytest.raises(ValueError, match="allowed: steps from 0 to steps = 1000"):
        plan.parse_snapshots("2000", spec)


def test_segments_divide_the_training_and_meet_the_snapshots():
    (group,) = plan.make_plan(grid.trials({"steps": 1000}, grid.product(seed=range(4))), 2, 16)
    assert plan.segment_records(group, (1000,), 1e15) == 10
    assert plan.segment_records(group, (40, 1000), 1e15) == 2
    assert plan.segment_records(group, (1000,), 1.0) == 1


def test_rows_share_a_stream_and_survive_resuming():
    trials = grid.trials({}, grid.product(seed=range(3), learning_rate=grid.logspace(1e-3, 1, 10)))
    (group,) = plan.make_plan(trials, 2, 4)
    assert group.lanes == 4 and [len(row.trial_ids) for row in group.rows] == [4, 4, 2] * 3
    first = {trial_id for row in group.chunks[0] for trial_id in row.trial_ids}
    (rest,) = plan.make_plan(trials, 2, 4, first)
    assert rest.rows == group.rows[2:] and rest.spec == group.spec


def test_rows_one_by_one_are_rows_under_vmap(whole, tmp_path, monkeypatch):
    """Cores loop over the rows of a chunk, accelerators take them together."""
    monkeypatch.setattr(programs, "on_cores", lambda mesh: False)
    run, _ = train_sweep(tmp_path / "together", lanes=12, devices=1)
    assert_same_training(run, whole)
