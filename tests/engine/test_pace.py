"""Records at a number of steps per decade: the same numbers as evenly spaced ones, at fewer steps."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.engine_runs import BASE, columns, stopped_at_every_segment, train_sweep

import topicjax
from topicjax import Experiment, Real, TrialSettings, Whole
from topicjax.engine import costs
from topicjax.engine.plan import group_trials, make_groups, shaped
from topicjax.engine.plan_text import compile_lines, record_lines
from topicjax.errors import UserError
from topicjax.experiments import load_experiment
from topicjax.pace import Gap, due_steps, due_windows, record_count, record_number
from topicjax.settings import RecordsPerDecade
from topicjax.store.parts import incomplete_trials
from topicjax.store.verify import verify
from topicjax.sweep import chain, expand, product
from topicjax.sweep.files import load_sweep, sweep_names

SMALL = 0.1
SWEEP = product(seed=range(3), rate=(0.003, 0.01, 0.02, 0.05))


@dataclass(frozen=True)
class Spec:
    steps: Annotated[int, Whole(1), "training steps"] = 200
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 2
    records_per_decade: RecordsPerDecade = 4
    rare_every: Annotated[int, Whole(1), "records from one rare measurement to the next"] = 3
    until: Annotated[Literal["steps", "decided"], "when a trial ends"] = "steps"


class Stream(NamedTuple):
    seed: Annotated[Any, Whole(0), "the state begins at 1 + seed"] = 0


class Hypers(NamedTuple):
    rate: Annotated[Any, Real(low=0), "of decay per step"] = 0.01


def decided(trial: Any, records: Any, references: Any) -> str:
    """End a trial once its state is small, by the closed form at the step of its last record."""
    size = (1 + trial.stream.seed) * (1 - trial.hypers.rate) ** float(records["step"][-1])
    np.testing.assert_allclose(records["size"][-1], size, rtol=1e-4)
    return "small" if size < SMALL else ""


EXPERIMENT = Experiment(
    settings=TrialSettings("decay", Spec, Stream, Hypers),
    init=lambda spec, stream, hypers: jnp.float32(1) + stream.seed,
    update=lambda spec, stream, hypers, state, batch, step: (state * (1 - hypers.rate), step),
    measure=lambda spec, stream, hypers, source, state, batch, step: dict(size=state, at=step.astype(float)),
    measure_rarely=lambda spec, stream, hypers, source, state, batch, step: dict(double=2 * state),
    weights=lambda spec, state: {"x": state},
    decided=decided,
)


def train(folder, order: str = "lane", **base: Any) -> topicjax.Run:
    run, _ = train_sweep(folder, SWEEP, base, lanes=3, devices=2, experiment=EXPERIMENT, order=order)
    return run


def records_of(run: topicjax.Run) -> pd.DataFrame:
    """Join every record with the settings of its trial; ids are left out."""
    names = ["trial_id", "seed", "rate", "stopped_step"]
    frame = run.trajectories.merge(run.trials[names], on="trial_id").drop(columns="trial_id")
    return frame.sort_values(["seed", "rate", "step"]).set_index(["seed", "rate", "step"])


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> topicjax.Run:
    return train(tmp_path_factory.mktemp("pace") / "run", until="decided")


def test_a_decade_has_its_number_of_records_wherever_it_begins():
    for rate in (3, 10, 40):
        due = due_windows(rate, 10**5)
        for first in (100, 1000, 10_000):
            assert abs(np.sum((due >= first) & (due < 10 * first)) - rate) <= 1
        wanted = {0} | {round(10 ** (power / rate)) for power in range(6 * rate)}
        assert due.tolist() == sorted(window for window in wanted if window < 10**5)
        for end in (1, 2, 17, 1000):  # what is due does not depend on the end
            assert due_windows(rate, end).tolist() == due[due < end].tolist()
    assert due_windows(0, 4).tolist() == [0, 1, 2, 3]
    assert due_steps(Spec(), 25).tolist() == [0, 2, 4, 6, 12, 20] and due_steps(Spec(), 21)[-1] == 20
    assert record_count(2, 4, 24) == 7 and record_count(2, 4, 20) == 6 and record_count(2, 0, 24) == 13


def test_records_are_numbered_by_those_before_them():
    step = np.array([0, 2, 6, 12, 18, 20, 0, 2, 6])
    number = record_number(step, np.full(9, 2), np.array([4] * 6 + [0] * 3))
    assert number.tolist() == [0, 1, 3, 4, 5, 5, 0, 1, 3]


def test_a_gap_is_an_interval_or_a_share_of_the_step():
    assert Gap.of(20, 0).at(1e6) == 20 and Gap.of(20, 0, 4).at(0) == 80
    gap = Gap.of(20, 10)
    assert gap.at(20) == 20 and gap.at(1000) == pytest.approx(1000 * (10**0.1 - 1))


def test_numbers_are_those_of_evenly_spaced_records(tmp_path):
    even = records_of(train(tmp_path / "even", records_per_decade=0))
    for order in ("lane", "together"):
        run = train(tmp_path / order, order=order)
        found, due = records_of(run), [*due_steps(Spec(), 200), 200]
        for _, own in found.groupby(["seed", "rate"]):
            assert own.index.get_level_values("step").tolist() == due
            assert np.isfinite(own["double"]).tolist() == [number % 3 == 0 for number in range(len(due))]
        seed, rate, step = (found.index.get_level_values(name) for name in found.index.names)
        np.testing.assert_allclose(found["size"], (1 + seed) * (1 - rate) ** step, rtol=1e-4)
        common = even.loc[found.index]
        np.testing.assert_array_equal(found["size"], common["size"])
        np.testing.assert_array_equal(found["at"], step)
        rare = found["double"].dropna()
        np.testing.assert_array_equal(rare, 2 * found["size"].loc[rare.index])
        assert not verify(run.folder).problems


def test_a_trial_that_ends_between_two_records_has_one_there(run):
    ends = run.trials.set_index("trial_id")["stopped_step"]
    due = set(due_steps(Spec(), 201).tolist())
    assert ends.nunique() >= 3 and not set(ends) <= due
    for trial_id, own in run.trajectories.groupby("trial_id"):
        end = ends[trial_id]
        assert own["step"].tolist() == sorted({step for step in due if step < end} | {end})
    np.testing.assert_array_equal(run.trajectories["at"], run.trajectories["step"])
    assert not verify(run.folder).problems


def test_an_interrupted_run_resumes_bit_for_bit(run, tmp_path, monkeypatch):
    stops, left = 0, True
    with stopped_at_every_segment(monkeypatch):
        while left:
            found, outcome = train_sweep(
                *(tmp_path / "run", SWEEP, dict(until="decided")),
                **dict(lanes=3, devices=2, experiment=EXPERIMENT, order="lane"),
            )
            left, stops = outcome.left, stops + 1
    assert stops > 3
    pd.testing.assert_frame_equal(columns(found, "size", "double"), columns(run, "size", "double"))


def test_more_steps_go_on_and_leave_no_trace_of_the_shorter_end(run, tmp_path):
    train(tmp_path / "run", until="decided", steps=100)
    assert 100 not in due_steps(Spec(), 200)
    both = train(tmp_path / "run", until="decided")
    found = columns(both, "size", "double").loc[run.trials["trial_id"].sort_values()]
    pd.testing.assert_frame_equal(found, columns(run, "size", "double"))
    assert not verify(tmp_path / "run").problems


def test_a_missing_record_is_noticed(run):
    trials, records = (pa.Table.from_pandas(frame) for frame in (run.trials, run.trajectories))
    assert not [*incomplete_trials(trials, records, keeps_end=True)]
    kept = run.trajectories["step"] != 12
    less = pa.Table.from_pandas(run.trajectories[kept])
    assert len([*incomplete_trials(trials, less, keeps_end=True)]) == len(run.trials)


def test_costs_know_how_many_records_there_are():
    spec, even = Spec(), Spec(records_per_decade=0)
    assert costs.steps_per_record(even) == 2 and costs.steps_per_record(spec) == 200 / 9
    assert costs.record_share(EXPERIMENT, spec) < costs.record_share(EXPERIMENT, even)


def test_a_plan_says_what_records_and_compiling_take(monkeypatch):
    sweep = product(steps=(100, 200), records_per_decade=0, rate=(0.01, 0.02))
    trials = {EXPERIMENT.settings.trial_id(trial): trial for trial in expand(EXPERIMENT.settings, {}, sweep)}
    groups = make_groups(EXPERIMENT, trials, 1, 2)
    work = costs.work(EXPERIMENT, groups[0].spec)
    step = 2 * (work.update + work.draw / 2)
    share = (work.record + work.rare / 3) / (work.record + work.rare / 3 + step)
    (line, *_) = record_lines(groups)
    assert line == f"records: about {share:.0%} of the work, at most {share:.0%} in one program"
    monkeypatch.setattr(costs, "expected_compile_time", lambda name: 10.0)
    assert len(compile_lines(groups, 100.0)) == 1  # 20 of 120 s
    assert "  up to 25% of the time: fewer values" in compile_lines(groups, 60.0)[1]
    assert len(compile_lines(groups[:1], 1.0)) == 1  # one program cannot be fewer


def test_the_share_of_all_programs_weighs_them_by_their_steps():
    sweep = chain(product(record_every=2, rate=(0.01, 0.02, 0.03)), product(record_every=20, steps=400))
    settings = EXPERIMENT.settings
    trials = {settings.trial_id(each): each for each in expand(settings, dict(records_per_decade=0), sweep)}
    often, seldom = make_groups(EXPERIMENT, trials, 1, 3)
    work = costs.work(EXPERIMENT, often.spec)  # counts do not depend on how often a record is taken
    each = work.record + work.rare / 3
    step_often, step_seldom = work.update + work.draw / often.lanes, work.update + work.draw / seldom.lanes
    records = each * (3 * 200 / 2 + 400 / 20)
    whole = records + 3 * 200 * step_often + 400 * step_seldom
    assert costs.record_share_of_all([often, seldom]) == pytest.approx(records / whole)


OFTEN_RECORDED = {"gradients": 0.2}  # trials of ten steps: the run is nearly all compiling


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep_names())
def test_records_of_a_shipped_sweep_are_a_small_share_of_its_work(name):
    named = load_sweep(name)
    experiment, devices = load_experiment(named.experiment), jax.devices()[:2]
    trials = expand(experiment.settings, named.base, named.sweep)
    groups = group_trials(experiment, {experiment.settings.trial_id(trial): trial for trial in trials})
    most = costs.lanes_that_fit(experiment, [group.spec for group in groups], devices)
    lanes = costs.chosen_lanes(groups, devices, most)
    share = costs.record_share_of_all([shaped(group, len(devices), lanes) for group in groups])
    assert 0 < share <= OFTEN_RECORDED.get(name, 0.15)


def test_ids_are_those_of_trials_without_the_setting():
    @dataclass(frozen=True)
    class Without:
        steps: Annotated[int, Whole(1), "training steps"] = 200
        record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 2

    @dataclass(frozen=True)
    class With(Without):
        records_per_decade: RecordsPerDecade = 0

    ids = []
    for own in (Without, With):
        settings = TrialSettings("decay", own, Stream, Hypers)
        ids.append(settings.trial_id(settings.make_trial({"steps": 100})))
    assert ids[0] == ids[1]
    assert ids[1] != settings.trial_id(settings.make_trial({"steps": 100, "records_per_decade": 5}))
    with pytest.raises(UserError, match="records_per_decade is -1; allowed: 0 to 1000"):
        settings.make_trial({"records_per_decade": -1})


@pytest.mark.slow
def test_the_one_layer_model_has_the_same_numbers_at_common_steps(tmp_path):
    """Rotations compare W^V with ten steps before, also where no record is due between."""
    base = BASE | dict(steps=60, record_every=5, until="steps")
    sweep = product(seed=(0, 1), learning_rate=(0.1, 1.0))
    even, _ = train_sweep(tmp_path / "even", sweep, base, devices=1)
    found, _ = train_sweep(tmp_path / "log", sweep, base | dict(records_per_decade=3), devices=1)
    names = ["eval_loss", "rotation_v", "a_topic"]
    tables = []
    for run in (even, found):
        table = run.trajectories.merge(run.trials[["trial_id", "seed", "learning_rate"]], on="trial_id")
        tables.append(table.set_index(["seed", "learning_rate", "step"])[names].sort_index())
    assert tables[1].index.get_level_values("step").unique().tolist() == [0, 5, 10, 25, 50, 60]
    pd.testing.assert_frame_equal(tables[1], tables[0].loc[tables[1].index])
    assert tables[1]["rotation_v"].notna().sum() == 4 * 4
