"""The engine: a trial's result does not depend on its company, its devices, its chunks or interruptions."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from support.calls import count_calls
from support.engine_runs import (
    BASE,
    DEEP_BASE,
    DEEP_LINEAR,
    SWEEP,
    WITHOUT_LINES,
    columns,
    stopped_at_every_segment,
    train_sweep,
)
from support.one_trial import expand

import topicjax
from topicjax.engine import costs, programs, resources
from topicjax.engine.options import requested_cpu_devices
from topicjax.engine.plan import make_groups, parse_snapshots
from topicjax.engine.progress import Progress
from topicjax.engine.resources import Layout, choose_devices, layout_of
from topicjax.errors import UserError
from topicjax.experiments import load_experiment
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import Spec, trial_id
from topicjax.experiments.shared.bags import fit_queries
from topicjax.store.files import StoreError
from topicjax.store.writer import Writer
from topicjax.sweep import Sweep, logspace, product
from topicjax.sweep import expand as expand_any
from topicjax.sweep.files import load_sweep, sweep_names
from topicjax.sweep.overrides import override
from topicjax.theory.document_settings import Stream

SLOW = pytest.mark.slow
ONE_LAYER = dict(sweep=SWEEP, base=BASE, experiment=WITHOUT_LINES)
DEEP = dict(
    sweep=product(seed=(0, 1, 2), learning_rate=(0.003, 0.01, 0.03), init_scale=(0.01, 0.3)),
    base=DEEP_BASE,
    experiment=DEEP_LINEAR,
)
LARGEST_RATE = {"deep_linear": 0.03, "one_layer": 1.0}
RECORDED = {"deep_linear": ("loss", "mode_1", "sharpness"), "one_layer": ("loss", "norm_k", "rotation_v")}


@pytest.fixture(scope="module", params=[DEEP, pytest.param(ONE_LAYER, marks=SLOW)], ids=list(RECORDED))
def case(request):
    """What is trained: the engine knows neither; deep linear networks compile in a sixth of the time."""
    return request.param


@pytest.fixture(scope="module")
def whole(case, tmp_path_factory):
    found, outcome = train_sweep(tmp_path_factory.mktemp("whole") / "run", **case)
    assert (outcome.ok, outcome.diverged, outcome.programs) == (18, 0, 1)
    return found


def assert_same_training(run, other):
    for name in other.trials["trial_id"]:
        pairs = zip(*(jax.tree.leaves(each.restore(name)) for each in (run, other)), strict=True)
        for mine, others in pairs:
            np.testing.assert_allclose(mine, others, rtol=1e-4, atol=1e-6)


def records(run):
    return columns(run, *RECORDED[run.experiment])


def test_plain_pandas_reads_the_folder(whole, case):
    trials = pd.read_parquet(whole.folder / "trials")
    trajectories = pd.read_parquet(whole.folder / "trajectories")
    assert len(trials) == 18 and trials["trial_id"].is_unique
    assert set(trials["learning_rate"]) == {row["learning_rate"] for row in case["sweep"]}
    assert (trajectories.groupby("trial_id")["step"].apply(list).map(str) == "[0, 10, 20, 30, 40]").all()
    joined = trajectories.merge(trials[["trial_id", "final_loss"]], on="trial_id").query("step == 40")
    assert (joined["loss"] == joined["final_loss"]).all()


def test_every_trial_has_the_id_and_settings_of_its_plan(whole, case):
    settings = case["experiment"].settings
    trials = expand_any(settings, case["base"], case["sweep"])
    planned = {settings.trial_id(trial): settings.settings_of(trial) for trial in trials}
    for _, row in whole.trials.iterrows():
        own = planned[row["trial_id"]]
        assert {name: row[name] for name in own} == own


@pytest.mark.parametrize(
    ("lanes", "devices"), [(1, 4), pytest.param(3, 2, marks=SLOW), (3, 1), pytest.param(8, 1, marks=SLOW)]
)
def test_chunks_and_devices_do_not_change_results(whole, case, tmp_path, lanes, devices):
    found, _ = train_sweep(tmp_path / "run", **case, lanes=lanes, devices=devices)
    assert set(found.trials["trial_id"]) == set(whole.trials["trial_id"])
    assert_same_training(found, whole)
    np.testing.assert_allclose(records(found), records(whole), rtol=1e-4, atol=1e-6)


def test_empty_arrays_are_placed_on_several_devices(tmp_path, monkeypatch):
    """JAX returns them replicated, whatever was asked for: also to programs that were compiled ahead."""
    own = replace(DEEP_LINEAR, source=lambda spec, stream: dict(nothing=jax.numpy.zeros((0, 3))))
    case = dict(sweep=product(depth=(1, 2), seed=(0, 1)), base=DEEP_BASE, experiment=own, devices=2)
    with stopped_at_every_segment(monkeypatch):
        train_sweep(tmp_path / "run", **case)
    found, _ = train_sweep(tmp_path / "run", **case)
    assert (found.trials["stopped_step"] == DEEP_BASE["steps"]).all()


def test_a_lane_is_the_trial_alone(whole, case, tmp_path):
    """Also on other devices: 18 trials in lanes of 4 devices against one of them."""
    alone = product(seed=1, learning_rate=LARGEST_RATE[case["experiment"].name], init_scale=0.3)
    found, _ = train_sweep(tmp_path / "alone", **case | dict(sweep=alone), devices=1)
    assert (len(whole.trials), len(found.trials)) == (18, 1)
    assert_same_training(whole, found)
    names = RECORDED[case["experiment"].name]
    mine = columns(found, *names)
    np.testing.assert_allclose(mine, columns(whole, *names).loc[mine.index], rtol=1e-4)


@pytest.mark.slow
def test_adam_lanes_agree_in_norms(tmp_path):
    base = BASE | {"optimizer": "adam", "steps": 20}
    runs = [train_sweep(tmp_path / str(n), base=base, lanes=n, devices=2)[0] for n in (1, 6)]
    np.testing.assert_allclose(
        columns(runs[0], "norm_k", "norm_v"), columns(runs[1], "norm_k", "norm_v"), rtol=1e-3
    )


@pytest.mark.slow
def test_the_record_interval_does_not_change_training(tmp_path):
    runs = [train_sweep(tmp_path / str(n), base=BASE | {"record_every": n})[0] for n in (10, 5)]
    pairs = zip(expand(BASE, SWEEP), expand(BASE | {"record_every": 5}, SWEEP), strict=True)
    for trial, other in itertools.islice(pairs, 0, None, 5):
        coarse = columns(runs[0], "eval_loss").loc[trial_id(trial)]
        fine = columns(runs[1], "eval_loss").loc[trial_id(other)]
        np.testing.assert_allclose(fine.loc[coarse.index], coarse, rtol=1e-5)


def test_extending_an_axis_trains_only_the_new_trials(case, tmp_path):
    folder = tmp_path / "run"
    small, wide = (
        case | dict(sweep=product(seed=(0, 1), learning_rate=rates))
        for rates in ((0.003, 0.01), (0.003, 0.01, 0.03))
    )
    train_sweep(folder, **small, lanes=1)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/part-*")}
    _, outcome = train_sweep(folder, **wide, lanes=1)
    assert outcome.ok == 2 and len(topicjax.load(folder).trials) == 6
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    _, outcome = train_sweep(folder, **small, lanes=1)
    assert outcome.ok == outcome.programs == 0


def test_a_diverged_trial_is_a_result_and_spares_its_neighbours(whole, case, tmp_path):
    """One of the six trials of seed 0 is replaced; all others are those of the whole run, to the bit."""
    *others, last = [row for row in case["sweep"] if row["seed"] == 0]
    rows = [row for row in case["sweep"] if row["seed"] > 0] + others
    sick = Sweep((*rows, last | {"learning_rate": 1e20}))
    found, outcome = train_sweep(tmp_path / "run", **case | dict(sweep=sick))
    assert (outcome.ok, outcome.diverged) == (17, 1)
    diverged = found.trials.query("status == 'diverged'").iloc[0]
    assert diverged["learning_rate"] == 1e20 and diverged["diverged_step"] == 10
    healthy = found.trials.query("status == 'ok'")
    assert healthy["diverged_step"].isna().all() and healthy["final_loss"].notna().all()
    same = records(found.select(healthy["trial_id"].tolist()))
    pd.testing.assert_frame_equal(same, records(whole).loc[same.index])


def recorded_weight(weights) -> tuple[str, float]:
    """Return a column that is a function of the weights, and what it should be."""
    if isinstance(weights, dict):
        return "norm_v", float(np.linalg.norm(weights["W_V"]))
    return "mode_1", float((weights[1] @ weights[0])[0, 0]) / 4  # of the strongest mode of the teacher


def test_snapshots_at_chosen_steps(case, tmp_path):
    found, _ = train_sweep(tmp_path / "run", **case, snapshots="0,10,40")
    own, row = case["experiment"], found.trials.iloc[0]
    name, settings = row["trial_id"], {name: row[name] for name in ("seed", "learning_rate", "init_scale")}
    spec, stream, hypers = own.settings.make_trial(case["base"] | settings)
    start = jax.jit(lambda *given: own.weights(spec, own.init(spec, *given)))(
        own.settings.traced(stream), own.settings.traced(hypers)
    )
    for mine, drawn in zip(*map(jax.tree.leaves, (found.restore(name, 0), start)), strict=True):
        np.testing.assert_allclose(mine, drawn, rtol=1e-6)
    for step in (0, 10, 40):
        column, value = recorded_weight(found.restore(name, step))
        assert columns(found, column).loc[(name, step), column] == pytest.approx(value, rel=1e-5)
    none, _ = train_sweep(tmp_path / "none", **case, snapshots="none")
    with pytest.raises(StoreError, match="without snapshots"):
        none.restore(name)


def test_a_stop_inside_a_chunk_resumes_bit_for_bit(whole, case, tmp_path, monkeypatch):
    """Stop after every segment, over and over: the records and weights equal an unbroken run's."""
    monkeypatch.setattr(costs, "SEGMENT_STEPS", 10)
    stops, left = 0, True
    with stopped_at_every_segment(monkeypatch):
        while left:
            resumed, outcome = train_sweep(tmp_path / "run", **case)
            stops, left = stops + 1, outcome.left
            assert stops < 20
    assert stops > 3
    pd.testing.assert_frame_equal(records(resumed), records(whole))
    assert not list((tmp_path / "run" / "partial").iterdir())


def test_a_state_saved_under_another_layout_is_not_used(whole, case, tmp_path, monkeypatch):
    """Stopped with short segments, continued with long ones: trained anew, never past the end."""
    with monkeypatch.context() as patch, stopped_at_every_segment(patch):
        patch.setattr(costs, "SEGMENT_STEPS", 10)
        with pytest.raises(StoreError, match=r"no trial of 18 in .* is finished yet"):
            _ = train_sweep(tmp_path / "run", **case)[0].trials
    assert list((tmp_path / "run" / "partial").iterdir())
    found, _ = train_sweep(tmp_path / "run", **case)
    pd.testing.assert_frame_equal(records(found), records(whole))


def damaged(change):
    """Return a Writer's load_partial whose payload or meta is changed."""
    whole = Writer.load_partial

    def load_partial(writer, chunk, expected):
        found = whole(writer, chunk, expected)
        return found and change(dict(found[0]), dict(found[1]))

    return load_partial


def without(items, name):
    return {key: value for key, value in items.items() if key != name}


DAMAGES = {
    "a leaf is missing": lambda payload, meta: (without(payload, "state/0"), meta),
    "a record is missing": lambda payload, meta: (without(payload, "record/loss"), meta),
    "a record has another name": lambda payload, meta: (payload, meta | {"records": ["loss"]}),
    "a record is short": lambda payload, meta: (
        payload | {"record/loss": payload["record/loss"][:, :0]},
        meta,
    ),
    "there is one leaf too many": lambda payload, meta: (payload | {"state/99": np.zeros(3)}, meta),
    "no step": lambda payload, meta: (payload, without(meta, "step")),
    "a step between segments": lambda payload, meta: (payload, meta | {"step": 5}),
    "a step beyond the end": lambda payload, meta: (payload, meta | {"step": 400}),
    "other devices": lambda payload, meta: (payload, meta | {"devices": 3}),
}


@pytest.fixture(scope="module")
def stopped(case, tmp_path_factory):
    """A run that was stopped in its first chunk."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch, stopped_at_every_segment(patch):
        patch.setattr(costs, "SEGMENT_STEPS", 10)
        train_sweep(folder, **case)
    assert list((folder / "partial").iterdir())
    return folder


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
def test_a_state_that_is_not_whole_is_not_used(change, stopped, whole, case, tmp_path, monkeypatch, capsys):
    """Its trials start again, with a sentence, and end as if nothing had been saved."""
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    monkeypatch.setattr(costs, "SEGMENT_STEPS", 10)
    monkeypatch.setattr(Writer, "load_partial", damaged(change))
    found, outcome = train_sweep(folder, **case)
    assert outcome.ok == 18
    assert capsys.readouterr().out.count(": its trials start again\n") == 1
    pd.testing.assert_frame_equal(records(found), records(whole))


def test_the_same_layout_gives_the_same_bits_and_another_the_same_numbers(whole, case, tmp_path):
    """The manifest says under which layout a run was trained, also if it was chosen."""
    assert layout_of(whole.folder) == Layout(64, ("cpu",) * 4)
    layout = layout_of(whole.folder)
    same, _ = train_sweep(tmp_path / "same", **case, lanes=layout.lanes, devices=len(layout.devices))
    other, _ = train_sweep(tmp_path / "other", **case, lanes=3, devices=1)
    assert layout_of(other.folder) == Layout(3, ("cpu",))
    names = [name for name in whole.trajectories if name not in ("trial_id", "step")]
    pd.testing.assert_frame_equal(columns(same, *names), columns(whole, *names))
    for name in whole.trials["trial_id"]:
        mine, its = (jax.tree.leaves(run.restore(name)) for run in (same, whole))
        assert all((a == b).all() for a, b in zip(mine, its, strict=True))
    assert_same_training(other, whole)


def test_devices_are_those_asked_for(tmp_path):
    four = jax.devices()[:4]
    assert choose_devices(four, None, None) == four
    assert choose_devices(four, 3, None) == four[:3]
    assert choose_devices(four, None, Layout(16, ("cpu",) * 2)) == four[:2]
    for count in (0, -1, 5):
        with pytest.raises(UserError, match=f"--devices is {count}; allowed: 1 to 4, as many as there are"):
            choose_devices(four, count, None)
    for kinds in (("cpu",) * 5, ("NVIDIA A100",)):
        sentence = f"--layout asks for {len(kinds)} x {kinds[0]} and there are 4 x cpu"
        with pytest.raises(UserError, match=sentence):
            choose_devices(four, None, Layout(16, kinds))
    with Writer(tmp_path / "new", "demo"):
        pass
    with pytest.raises(UserError, match="whose last run does not name its layout"):
        layout_of(tmp_path / "new")


@pytest.mark.parametrize(
    ("variable", "flags", "devices"),
    [(None, "", None), ("3", "", 3), (None, "--xla_force_host_platform_device_count=5", 5)]
    + [("2", "--a=1 --xla_force_host_platform_device_count=5 --b=2", 2), (None, "--xla_other=4", None)],
)
def test_the_environment_says_how_many_cores_are_devices(variable, flags, devices, monkeypatch):
    asked = {}
    monkeypatch.setattr(jax.config, "update", asked.__setitem__)
    monkeypatch.setattr(resources.os, "sched_getaffinity", lambda process: range(7))
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    if variable:
        monkeypatch.setenv("JAX_NUM_CPU_DEVICES", variable)
    resources.use_all_cores()
    assert asked["jax_num_cpu_devices"] == (devices or 7)
    assert requested_cpu_devices() == devices


@pytest.mark.parametrize("text", ["abc", "0", "-1", "1.5", "", "9" * 5000])
def test_a_number_of_devices_that_jax_cannot_take_is_one_sentence(text, monkeypatch):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv("XLA_FLAGS", f"--xla_force_host_platform_device_count={text}")
    with pytest.raises(UserError, match=r"device_count in XLA_FLAGS is .*; allowed: 1 to 4096"):
        requested_cpu_devices()
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", text)
    with pytest.raises(UserError, match=r"JAX_NUM_CPU_DEVICES is .*; allowed: 1 to 4096"):
        requested_cpu_devices()


def test_one_compilation_per_group_whatever_the_chunks(case, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(Progress, "add_compile_time", lambda self, seconds: compiled.append(seconds))
    train_sweep(tmp_path / "run", **case, lanes=1)
    assert len(compiled) == 3  # init, advance, weights: five chunks


SMALL = "steps=2 record_every=1 topics=9 words_per_topic=2 length_min=8 length_max=12".split()
SMALL += ["batch_size=4", "eval_documents=4"]


ON_TEXT = ("wikipedia", "wikipedia_content")  # run on a corpus of their own in test_text


@pytest.mark.slow  # the fixture smoke is a shipped sweep, and the programs of others differ little from it
@pytest.mark.parametrize("name", [name for name in sweep_names() if name not in ON_TEXT])
def test_shipped_sweeps_run(name, tmp_path):
    named = load_sweep(name)
    small, _ = override(named, [], SMALL)
    own = replace(load_experiment(named.experiment), references=None)
    pairs = zip(small.sweep, expand_any(own.settings, small.base, small.sweep), strict=False)
    sweep = Sweep(tuple({trial.spec: row for row, trial in pairs}.values()))
    found, outcome = train_sweep(tmp_path / "run", sweep, small.base, devices=2, experiment=own)
    assert outcome.programs == len(sweep)
    assert np.isfinite(found.trials["final_eval_loss"]).all()


def test_snapshot_steps_are_parsed():
    spec = Spec(steps=1000, record_every=20)
    assert parse_snapshots("last", spec) == (1000,)
    assert parse_snapshots("none", spec) == ()
    assert parse_snapshots("0,100,1000", spec) == (0, 100, 1000)
    assert parse_snapshots("log:3", spec) == (20, 140, 1000)
    with pytest.raises(ValueError, match="snapshots is 'often'; allowed: last, none, log:N"):
        parse_snapshots("often", spec)
    assert parse_snapshots("log:1", spec) == (1000,)
    assert parse_snapshots("30,31,40,40", spec) == (40,)  # rounded to the records
    assert len(parse_snapshots("log:1000", Spec(steps=10**6, record_every=1))) < 1000  # the first coincide
    for text in ("2000", "1001", "-5", "-1,40"):
        with pytest.raises(UserError, match="allowed: steps from 0 to steps = 1000"):
            parse_snapshots(text, spec)
    for text in ("log:0", "log:-1", "log:1001", "log:1000000000", "log:2,3"):
        with pytest.raises(UserError, match=f"snapshots is '{text}'; allowed: log:1 to log:1000"):
            parse_snapshots(text, spec)


def test_a_program_has_room_for_the_documents_of_all_its_streams():
    streams = [Stream(), Stream(p_mask=0.5, p_random=0.3)]
    assert fit_queries(Spec(), streams).word_query_probability == pytest.approx(0.5 * (0.1 + 0.3))
    assert fit_queries(Spec(), streams[:1]).word_query_probability == pytest.approx(0.15 * (0.1 + 0.1))


def by_id(trials):
    return {trial_id(trial): trial for trial in trials}


def test_segments_divide_the_training_and_meet_the_snapshots():
    trials = by_id(expand({"steps": 1000}, product(seed=range(4))))
    for snapshots, rate, windows in (("last", 1e15, 10), ("40,1000", 1e15, 2), ("last", 1.0, 1)):
        (group,) = make_groups(EXPERIMENT, trials, 2, 16, snapshots)
        assert costs.segment_windows(group, rate) == windows
    (long,) = make_groups(
        EXPERIMENT, by_id(expand({"steps": 2 * 10**9}, product(seed=range(4)))), 2, 16, "last"
    )
    assert costs.segment_windows(long, 1e15) == 10  # found at once


def test_stream_rows_share_a_stream_and_survive_resuming():
    trials = expand({}, product(seed=range(3), learning_rate=logspace(1e-3, 1, 10)))
    (group,) = make_groups(EXPERIMENT, by_id(trials), 2, 4)
    assert group.lanes == 4 and group.rows_per_chunk == 2
    rows = list(itertools.chain(*group.chunks))
    assert [len(row.trial_ids) for row in rows] == [4, 4, 2] * 3
    first = {name for row in group.chunks[0] for name in row.trial_ids}
    rest = group.without(first)
    assert rest.chunks == group.chunks[1:] and rest.spec == group.spec and rest.lanes == group.lanes


def test_the_work_of_grouping_grows_with_the_trials_alone():
    def plan(trials):
        (group,) = make_groups(EXPERIMENT, trials, 2, 16)
        return group.chunks, group.trial_steps, group.without({"0" * 12}).chunks

    few, many = (by_id(expand({}, product(seed=range(n), l2=[0, 1, 2]))) for n in (200, 800))
    assert count_calls(plan, many) < 4.2 * count_calls(plan, few)
    assert count_calls(plan, many) < 30 * len(many)


def test_stream_rows_one_by_one_are_those_under_vmap(whole, case, tmp_path, monkeypatch):
    """Cores loop over the stream rows of a chunk, accelerators take them together."""
    monkeypatch.setattr(programs, "on_cores", lambda mesh: False)
    found, _ = train_sweep(tmp_path / "together", **case, lanes=12, devices=1)
    assert_same_training(found, whole)
