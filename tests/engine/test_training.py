"""Trials that end when they are decided, and trainings that go on from where shorter ones ended."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.engine_runs import DEEP_BASE, DEEP_LINEAR, columns, stopped_at_every_segment, train_sweep

from topicjax.engine import segments
from topicjax.experiments.one_layer.settings import TRIALS
from topicjax.store import checkpoints
from topicjax.store.files import StoreError
from topicjax.sweep import product

EVERY = 2  # so that trials are asked at steps 20, 40, ...
FULL = DEEP_BASE | dict(record_every=EVERY, steps=60)
DECIDED = FULL | dict(until="decided")
SWEEP = product(seed=(0, 1, 2), learning_rate=(0.01, 0.02, 0.05), init_scale=(0.01, 0.3))
ENDS = {0.01: 60, 0.02: 20, 0.05: 40}  # by learning rate
NAMES = ("loss", "test_loss", "mode_1", "mode_3", "gradient", "sharpness")


def decided(trial, records, references):
    """Decide by the learning rate, and check what the rule is told."""
    count = len(records["loss"])
    assert count * EVERY % 20 == 0 and np.isfinite(records["test_loss"]).all() and references == {}
    rate = trial.hypers.learning_rate
    return f"enough of {rate}" if rate > 0.01 and count * EVERY >= ENDS[rate] else ""


def train(folder: Path, base=DECIDED, sweep=SWEEP, devices=2, **options):
    experiment = replace(DEEP_LINEAR, decided=decided)
    options = dict(order="lane") | options  # tiny models that cannot stop early would have the other order
    return train_sweep(folder, sweep, base, devices=devices, experiment=experiment, **options)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return train(tmp_path_factory.mktemp("full") / "run", FULL, snapshots="20,40,60")[0]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    found, outcome = train(tmp_path_factory.mktemp("stopped") / "run")
    assert outcome.ok == 18 and outcome.trial_steps == 6 * (20 + 40 + 60)
    return found


def twin(trial_id: str, run, **changes) -> str:
    """Return the id of a trial with other settings."""
    trials = DEEP_LINEAR.settings
    row = run.trials.set_index("trial_id").loc[trial_id, list(trials.settings)].to_dict()
    return trials.trial_id(trials.make_trial(row | changes))


def assert_same_weights(run, other) -> None:
    for trial_id in other.trials["trial_id"]:
        mine, its = run.restore(trial_id), other.restore(trial_id)
        assert len(mine) == len(its) == 2
        for array, expected in zip(mine, its, strict=True):
            np.testing.assert_array_equal(array, expected)


def assert_cut(stopped, full, **tolerance) -> None:
    """Every stopped trial is the beginning of its full training: records and weights."""
    whole = columns(full, *NAMES)
    for row in stopped.trials.itertuples():
        other = twin(row.trial_id, stopped, until="steps")
        mine, its = columns(stopped, *NAMES).loc[row.trial_id], whole.loc[other]
        assert mine.index.tolist() == list(range(0, row.stopped_step + 1, EVERY))
        np.testing.assert_allclose(mine, its.loc[: row.stopped_step], **tolerance)
        np.testing.assert_allclose(row.final_mode_3, mine["mode_3"].iloc[-1], rtol=0)
        weights, expected = stopped.restore(row.trial_id), full.restore(other, row.stopped_step)
        assert len(weights) == len(expected) == 2
        for array, other_array in zip(weights, expected, strict=True):
            np.testing.assert_allclose(array, other_array, **tolerance)


def test_a_trial_ends_where_it_is_decided(stopped, full):
    """What it leaves equals the first part of a full training to the bit, and its neighbours go on."""
    ends = stopped.trials.set_index("learning_rate")[["stopped_step", "stop_reason"]]
    for rate, step in ENDS.items():
        why = f"enough of {rate}" if step < 60 else "steps"
        assert set(ends.loc[rate].itertuples(index=False, name=None)) == {(step, why)}
    assert_cut(stopped, full, rtol=0)
    assert stopped.trials["snapshot_steps"].tolist() == [(step,) for step in stopped.trials["stopped_step"]]


@pytest.mark.parametrize(("devices", "order", "lanes"), [(1, "together", 0), (4, "lane", 2)])
def test_stopping_does_not_depend_on_where_it_ran(stopped, full, tmp_path, devices, order, lanes):
    found, _ = train(tmp_path / "run", devices=devices, order=order, lanes=lanes)
    pd.testing.assert_series_equal(
        found.trials.set_index("trial_id")["stopped_step"].sort_index(),
        stopped.trials.set_index("trial_id")["stopped_step"].sort_index(),
    )
    assert_cut(found, full, rtol=1e-3, atol=1e-6)


def test_a_stopped_run_that_is_interrupted_resumes_bit_for_bit(stopped, tmp_path, monkeypatch):
    stops, left = 0, True
    with stopped_at_every_segment(monkeypatch):
        while left:
            found, outcome = train(tmp_path / "run")
            left, stops = outcome.left, stops + 1
    assert stops >= 3
    pd.testing.assert_frame_equal(columns(found, *NAMES), columns(stopped, *NAMES))
    assert_same_weights(found, stopped)


def test_wanted_snapshots_are_kept_up_to_the_end_of_each_trial(tmp_path, full):
    found, _ = train(tmp_path / "run", snapshots="0,20,30,60")
    steps = found.trials.groupby("learning_rate")["snapshot_steps"].agg(set).to_dict()
    assert steps == {0.01: {(0, 20, 30, 60)}, 0.02: {(0, 20)}, 0.05: {(0, 20, 30, 40)}}
    assert_cut(found, full, rtol=0)


def test_more_steps_go_on_from_where_they_were(tmp_path, full):
    """Two thirds first, then all: only the last third is trained, and all is as if trained at once."""
    train(tmp_path / "run", FULL | dict(steps=40))
    found, outcome = train(tmp_path / "run", FULL)
    assert outcome.trial_steps == 18 * 20
    found = found.select(full.trials["trial_id"].tolist())
    pd.testing.assert_frame_equal(columns(found, *NAMES), columns(full, *NAMES))
    assert_same_weights(found, full)


def test_more_steps_train_only_what_was_not_decided(tmp_path, stopped):
    """A decided trial is taken over as it is, the others go on; the folder is whole after each."""
    train(tmp_path / "run", DECIDED | dict(steps=40))
    found, outcome = train(tmp_path / "run", DECIDED)
    assert outcome.trial_steps == 6 * 20
    found = found.select(stopped.trials["trial_id"].tolist())
    pd.testing.assert_frame_equal(columns(found, *NAMES), columns(stopped, *NAMES))
    results = ["stopped_step", "stop_reason", "snapshot_steps", "final_loss"]
    mine, its = (each.trials.set_index("trial_id").sort_index() for each in (found, stopped))
    pd.testing.assert_frame_equal(mine[results], its[results])


def test_a_saved_state_stays_as_it_was_while_training_goes_on(tmp_path, monkeypatch):
    """On a cluster a state is sent some segments later, when its trials have changed or ended."""
    kept = []

    def train_chunk(programs, chunk, start, around):
        def keep(saved):
            payload = {name: values.copy() for name, values in saved.payload.items()}
            kept.append((saved, payload, dict(saved.meta)))

        around.options, around.save = replace(around.options, save_every=-1.0), keep
        segments.train_chunk(programs, chunk, start, around)

    monkeypatch.setattr("topicjax.engine.training.train_chunk", train_chunk)
    train(tmp_path / "run")
    assert len(kept) >= 2 and any((payload["stopped"] >= 0).any() for _, payload, _ in kept)
    for saved, payload, meta in kept:
        assert saved.meta == meta and saved.payload.keys() == payload.keys()
        assert payload["stopped"].max() <= meta["step"]
        for name, values in payload.items():
            np.testing.assert_array_equal(saved.payload[name], values)
    for name, values in kept[0][0].payload.items():
        assert not values.flags.writeable, name


@pytest.mark.parametrize("case", ["ended later", "ended without a reason"])
def test_a_state_that_contradicts_itself_is_not_used(case, stopped, tmp_path, monkeypatch, capsys):
    with stopped_at_every_segment(monkeypatch):
        train(tmp_path / "run")
    (path,) = (tmp_path / "run" / "partial").iterdir()
    payload, meta = checkpoints.load_state(path)
    ends = np.full_like(payload["stopped"], meta["step"] + 20 if case == "ended later" else meta["step"])
    reasons = ["steps" if case == "ended later" else ""] * len(ends)
    checkpoints.save_state(path, payload | {"stopped": ends}, meta | {"reasons": reasons})
    found, _ = train(tmp_path / "run")
    why = "has trials that ended at step 40" if case == "ended later" else "is not complete"
    assert f"{why}: its trials start again" in capsys.readouterr().out
    pd.testing.assert_frame_equal(columns(found, *NAMES), columns(stopped, *NAMES))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("other snapshots are wanted", marks=pytest.mark.slow),
        pytest.param("no states were kept", marks=pytest.mark.slow),
        pytest.param("another version", marks=pytest.mark.slow),
    ],
)
def test_without_a_state_of_use_training_begins_at_the_start(case, tmp_path, full, monkeypatch):
    small = product(seed=0, learning_rate=0.02, init_scale=0.3)
    first = "none" if case == "no states were kept" else "last"
    train(tmp_path / "run", FULL | dict(steps=40), small, snapshots=first)
    if case == "another version":
        monkeypatch.setattr("topicjax.store.checkpoints.STATE", {"format": 1, "version": "0"})
    wanted = "10,60" if case == "other snapshots are wanted" else "last"
    found, outcome = train(tmp_path / "run", FULL, small, snapshots=wanted)
    assert outcome.trial_steps == 60
    own = found.trials.query("steps == 60")["trial_id"].item()
    np.testing.assert_allclose(
        columns(found, *NAMES).loc[own], columns(full, *NAMES).loc[own], rtol=1e-3, atol=1e-6
    )


def test_a_damaged_state_is_named(tmp_path):
    small = product(seed=0, learning_rate=0.02, init_scale=0.3)
    train(tmp_path / "run", FULL | dict(steps=40), small)
    (path,) = (tmp_path / "run" / "states").iterdir()
    content = bytearray(path.read_bytes())
    content[200] ^= 255
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"is damaged.*repair"):
        train(tmp_path / "run", FULL, small)


def test_ids_of_trials_without_the_setting_are_those_of_before():
    """`until` came later: at its default it is no part of the id."""
    trial = TRIALS.make_trial(dict(seed=3, learning_rate=0.5))
    assert TRIALS.trial_id(trial) == "f0324dce7f47"
    other = TRIALS.make_trial(dict(seed=3, learning_rate=0.5, until="decided"))
    assert TRIALS.trial_id(other) != TRIALS.trial_id(trial)
