"""Records with one value per layer: layers that follow closed forms, through engine, store and exports."""

import itertools
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from support.damage import flip
from support.engine_runs import stopped_at_every_segment
from support.events import read_events
from support.store_runs import FIRST, ONE, SECOND, TWO, crashing_at, details_of, files, tables

import topicjax
from topicjax import Experiment, Real, TrialSettings, Whole
from topicjax.engine import costs
from topicjax.engine.plan import make_groups
from topicjax.errors import UserError
from topicjax.experiments.one_shot import one_shot
from topicjax.export import write_csv, write_tensorboard
from topicjax.store.files import StoreError, part_path
from topicjax.store.reader import committed, load, status
from topicjax.store.verify import repair, verify
from topicjax.store.writer import Writer
from topicjax.sweep import Sweep, product

RECORDS = ["trial_id", "step"]
DETAILS = ["trial_id", "step", "layer"]
SMALL = 0.05


@dataclass(frozen=True)
class Spec:
    depth: Annotated[int, Whole(1, 8), "number of layers"] = 3
    steps: Annotated[int, Whole(1), "training steps"] = 40
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 2
    until: Annotated[Literal["steps", "decided"], "when a trial ends"] = "steps"


class Stream(NamedTuple):
    seed: Annotated[Any, Whole(0), "layers begin at 1 + seed"] = 0


class Hypers(NamedTuple):
    rate: Annotated[Any, Real(low=0), "layer l is multiplied by 1 - rate l^4 in every step"] = 0.01


def powers(spec: Spec) -> jax.Array:
    return jnp.arange(1, spec.depth + 1, dtype=jnp.float32) ** 4


def measure(spec, stream, hypers, source, state, batch, made) -> dict[str, Any]:
    """Measure the first layer, the size of each, and what the next step takes from each."""
    return dict(first=state[0], size=state, slope=made)


def decided(trial: Any, records: Any, references: Any) -> str:
    """End a trial once its second layer is small: the rule sees records x places."""
    assert records["size"].shape == (len(records["first"]), trial.spec.depth)
    return "small" if abs(records["size"][-1, 1]) < SMALL else ""


EXPERIMENT = Experiment(
    settings=TrialSettings("layers", Spec, Stream, Hypers),
    init=lambda spec, stream, hypers: jnp.full(spec.depth, 1.0 + stream.seed),
    update=lambda spec, stream, hypers, state, batch, step: (
        state * (1 - hypers.rate * powers(spec)),
        hypers.rate * powers(spec) * state,
    ),
    measure=measure,
    weights=lambda spec, state: {"x": state},
    decided=decided,
    details=("layer",),
)
RATES = (0.01, 0.02, 1.0)  # at 1 the first layer is 0 at once, and the others grow beyond float32
SWEEP = product(depth=(1, 3), seed=range(2), rate=RATES)


def train(folder: Path, sweep: Sweep = SWEEP, experiment=EXPERIMENT, **options: Any) -> topicjax.Run:
    options = dict(devices=jax.devices()[:2], lanes=2) | options
    return topicjax.sweep(experiment, sweep, folder, **options)


def frames(run: topicjax.Run) -> list[pd.DataFrame]:
    """Return records and details in an order that does not depend on chunks."""
    return [run.trajectories.sort_values(RECORDS, ignore_index=True), sorted_details(run)]


def sorted_details(run: topicjax.Run) -> pd.DataFrame:
    return run.details.sort_values(DETAILS, ignore_index=True)


def assert_same(run: topicjax.Run, other: topicjax.Run) -> None:
    for mine, others in zip(frames(run), frames(other), strict=True):
        pd.testing.assert_frame_equal(mine, others, check_exact=True)


def expected(row: Any, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return size and slope in float64, steps x layers, as one loop over the steps has them."""
    strength = row["rate"] * np.arange(1.0, row["depth"] + 1) ** 4
    size = (1 + row["seed"]) * (1 - strength) ** steps[:, None]
    return size, strength * size


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> topicjax.Run:
    return train(tmp_path_factory.mktemp("details") / "run")


@pytest.fixture
def copied(run: topicjax.Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run.folder, tmp_path / "run"))


def test_details_follow_their_closed_forms_at_every_depth(run):
    assert list(run.details) == [*DETAILS, "size", "slope"] and run.detail_names == ["layer"]
    assert run.details.dtypes[["step", "layer", "size"]].tolist() == ["int32", "int32", "float32"]
    assert list(run.trajectories) == [*RECORDS, "first"]
    assert [name for name in run.trials if name.startswith("final_")] == ["final_first"]
    steps = np.arange(0, 41, 2)
    for _, row in run.trials.iterrows():
        own = run.details[run.details["trial_id"] == row["trial_id"]]
        assert own["step"].tolist() == np.repeat(steps, row["depth"]).tolist()
        assert own["layer"].tolist() == [*range(1, row["depth"] + 1)] * len(steps)
        for name, values in zip(("size", "slope"), expected(row, steps), strict=True):
            found = own[name].to_numpy().reshape(len(steps), -1)
            finite = np.abs(values) < np.finfo(np.float32).max
            np.testing.assert_allclose(found[finite], values[finite], rtol=2e-5)
            assert not np.isfinite(found[~finite]).any()


def test_details_become_columns_of_the_trajectories(run):
    """One per layer, NaN where a trial has fewer layers; a second time changes nothing."""
    wide = run.with_details("size", "slope")
    names = [f"{name}_{layer}" for name in ("size", "slope") for layer in (1, 2, 3)]
    assert list(wide.trajectories) == [*RECORDS, "first", *names]
    pd.testing.assert_frame_equal(wide.trajectories[list(run.trajectories)], run.trajectories)
    own = wide.trajectories.merge(run.trials[["trial_id", "depth"]], on="trial_id")
    assert own.loc[own["depth"] == 1, ["size_2", "slope_3"]].isna().all(axis=None)
    for layer in (1, 2, 3):
        found = own.loc[own["depth"] >= layer, [*RECORDS, f"size_{layer}"]].sort_values(RECORDS)
        expected = run.details[run.details["layer"] == layer].sort_values(RECORDS)
        np.testing.assert_array_equal(found[f"size_{layer}"], expected["size"])
    pd.testing.assert_frame_equal(wide.with_details("size").trajectories, wide.trajectories)
    with pytest.raises(UserError, match=r"unknown column of the details 'sise'; did you mean 'size'\?"):
        run.with_details("sise")


def test_a_layer_that_is_not_finite_makes_the_trial_diverge(run, tmp_path):
    """The third layer is (-80)^t: 81 x 80^20 is beyond float32, 81 x 80^18 is not, nor is 15^20."""
    lost = run.trials.query("rate == 1 and depth == 3")
    assert set(lost["status"]) == {"diverged"} and set(lost["diverged_step"]) == {20.0}
    assert np.isfinite(lost["final_first"]).all()
    assert set(run.trials.drop(lost.index)["status"]) == {"ok"}
    deaf = train(tmp_path / "run", product(rate=1.0), replace(EXPERIMENT, healthy=("first",)))
    assert deaf.trials["status"].tolist() == ["ok"]


def test_both_orders_agree(run, tmp_path):
    other = train(tmp_path / "run", order="together")
    for mine, others in zip(frames(other), frames(run), strict=True):
        pd.testing.assert_frame_equal(mine, others, rtol=1e-5)


def test_an_interrupted_run_resumes_bit_for_bit(run, tmp_path, monkeypatch, capsys):
    """Its chunks stay the same, even if others would be chosen now."""
    monkeypatch.setattr(costs, "SEGMENT_STEPS", 10)
    lanes = itertools.cycle([2, 1])
    monkeypatch.setattr(costs, "chosen_lanes", lambda *_: next(lanes))
    stops, resumed = 0, None
    with stopped_at_every_segment(monkeypatch):
        while resumed is None:
            try:
                resumed = train(tmp_path / "run", lanes=0)
            except KeyboardInterrupt:
                stops += 1
                assert stops < 40
    assert stops > 3 and "start again" not in capsys.readouterr().out
    assert_same(resumed, run)


def test_more_steps_go_on_and_take_the_details_along(run, tmp_path, capsys):
    train(tmp_path / "run", base=dict(steps=20))
    longer = train(tmp_path / "run")
    assert "12 of them go on from where shorter trainings ended" in capsys.readouterr().out
    assert_same(longer.select(longer.trials.query("steps == 40")["trial_id"].tolist()), run)


def test_the_rule_sees_them_and_decided_trials_keep_theirs(tmp_path):
    """Layer 2 of rate 0.02 is 0.68^t, below 0.05 from step 8 on; asked at step 20.  That of 0.01 is not."""
    sweep = product(rate=RATES[:2])
    for steps in (20, 60):
        run = train(tmp_path / "run", sweep, base=dict(steps=steps, until="decided"))
        ends = run.trials[run.trials["steps"] == steps].set_index("rate")["stopped_step"]
        assert ends.to_dict() == {0.02: 20, 0.01: min(steps, 20)}
    for _, row in run.trials.iterrows():
        own = run.details[run.details["trial_id"] == row["trial_id"]]
        steps = np.arange(0, row["stopped_step"] + 1, 2)
        assert own["step"].tolist() == np.repeat(steps, 3).tolist()
        np.testing.assert_allclose(own["size"], expected(row, steps)[0].ravel(), rtol=2e-5)


def test_disk_is_asked_for_them():
    trials = [EXPERIMENT.settings.make_trial(dict(depth=depth)) for depth in (1, 3)]
    groups = make_groups(EXPERIMENT, {EXPERIMENT.settings.trial_id(t): t for t in trials}, 1, 1)
    assert [costs.disk_bytes(group)["records"] for group in groups] == [21 * 4 * 3, 21 * 4 * 7]


def with_record(details: Any = ("layer",), **fields: Any) -> Experiment:
    """Return the experiment with other columns, each a function of depth."""

    def measure(spec, *_):
        return {name: jnp.zeros(shape(spec.depth)) for name, shape in fields.items()}

    return replace(EXPERIMENT, measure=measure, details=details)


REFUSED = {
    r"norm of layers has shape \(1,\); allowed: a number, or one value per place of an index": (
        with_record((), loss=lambda depth: (), norm=lambda depth: (depth,))
    ),
    r"norm of layers has shape \(2, 1\); allowed: a number, or an array with an axis per": with_record(
        norm=lambda depth: (2, depth)
    ),
    r"norm of layers has shape \(0,\); allowed: a number, or an array": with_record(
        norm=lambda depth: (depth - 1,)
    ),
    r"norm and gap of layers have 1 and 2 values per layer; allowed: as many for all": (
        with_record(norm=lambda depth: (depth,), gap=lambda depth: (depth + 1,))
    ),
    r"programs of layers measure different columns \(gap\); allowed: the same columns": with_record(
        norm=lambda depth: (depth,), gap=lambda depth: (3,) if depth == 3 else ()
    ),
    r"details of layers is .* no column is an array": with_record(norm=lambda depth: ()),
    r"measure of layers has a column 'depth'; allowed: letters": with_record((), depth=lambda depth: ()),
    r"measure of layers has a column 'layer'; allowed: letters": with_record(layer=lambda depth: (depth,)),
}


@pytest.mark.parametrize(("sentence", "experiment"), REFUSED.items(), ids=range(len(REFUSED)))
def test_records_that_are_no_table_are_refused_before_anything_is_made(sentence, experiment, tmp_path):
    with pytest.raises(UserError, match=sentence):
        train(tmp_path / "run", experiment=experiment)
    assert not (tmp_path / "run").exists()


def test_weights_that_no_checkpoint_holds_are_refused_before_anything_is_made(tmp_path):
    keyed = replace(EXPERIMENT, weights=lambda spec, state: {1: state})
    with pytest.raises(UserError, match=r"weights of layers: the key 1 .*string keys"):
        train(tmp_path / "run", experiment=keyed)
    assert not (tmp_path / "run").exists()
    train(tmp_path / "none", product(rate=0.01), replace(EXPERIMENT, weights=lambda spec, state: {}))


def test_columns_that_a_folder_has_and_trials_lack_are_refused_before_anything_is_trained(copied):
    """A folder of other columns once had its first chunk trained and written in vain."""
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    for sentence, other in {
        r"trajectories has columns that these trials lack \(first\)": with_record(
            size=lambda depth: (depth,), slope=lambda depth: (depth,)
        ),
        r"details has columns that these trials lack \(slope\)": with_record(
            first=lambda depth: (), size=lambda depth: (depth,), gap=lambda depth: (depth,)
        ),
        "holds trials with details, unlike these": with_record((), first=lambda depth: ()),
    }.items():
        with pytest.raises(StoreError, match=rf"{sentence}.*; allowed: another folder \(--out\)"):
            train(copied, product(rate=0.03), other, other_code=True)
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before


class MoreHypers(NamedTuple):
    rate: Annotated[Any, Real(low=0), "layer l is multiplied by 1 - rate l^4 in every step"] = 0.01
    offset: Annotated[Any, Real(), "added to the first column"] = 0.0


def more_measured(spec, stream, hypers, source, state, batch, made) -> dict[str, Any]:
    return measure(spec, stream, hypers, source, state, batch, made) | dict(last=state[-1] + hypers.offset)


def test_new_settings_and_columns_extend_a_folder(tmp_path):
    """Old trials keep their ids and have the default; their rows of a new column are null, also in pandas."""
    folder, first = tmp_path / "run", replace(EXPERIMENT, version=1)
    before = train(folder, product(rate=(0.01, 0.02)), first, base=dict(steps=20))
    ids = before.trials["trial_id"].tolist()
    grown = replace(
        first, settings=TrialSettings("layers", Spec, Stream, MoreHypers), measure=more_measured, version=1
    )
    run = train(folder, product(rate=(0.01, 0.02), offset=(0.0, 1.0)), grown, base=dict(steps=20))
    assert len(run.trials) == 4 and run.setting_names.index("offset") == run.setting_names.index("rate") + 1
    offsets = run.trials.set_index("trial_id")["offset"]
    assert offsets[ids].tolist() == [0.0, 0.0] and sorted(offsets) == [0, 0, 1, 1]
    plain = pd.read_parquet(folder / "trajectories").set_index("trial_id")["last"]
    assert plain[ids].isna().all() and plain.drop(index=ids).notna().all()
    assert "offset" in pd.read_parquet(folder / "trials")
    again = train(folder, product(rate=(0.01, 0.02), offset=(0.0, 1.0)), grown, base=dict(steps=20))
    assert sorted(again.trials["trial_id"]) == sorted(run.trials["trial_id"])  # nothing was left to train
    longer = train(folder, product(rate=0.01, offset=(0.0, 1.0)), grown)  # the old one from its start
    own = longer.trials.query("steps == 40")["trial_id"].tolist()
    records = longer.trajectories.set_index("trial_id")
    assert records.loc[own, "last"].notna().all() and len(own) == 2
    assert not verify(folder).problems
    with pytest.raises(StoreError, match=r"has columns that these trials lack \(last\)"):
        train(folder, product(rate=0.03), first)


@pytest.mark.parametrize("name", ["depth", "step", "trial_id", "a layer", "layer"])
def test_an_index_that_cannot_be_a_column_is_refused(name):
    with pytest.raises(UserError, match=rf"details of layers has '{name}'; allowed: letters, digits and _, "):
        replace(EXPERIMENT, details=("layer", name))


def test_columns_over_two_indices_have_a_row_per_pair(tmp_path):
    """A column with the first index only repeats its value along the second; more steps go on from both."""

    def measure(spec, stream, hypers, source, state, batch, made):
        heads = state[:, None] * jnp.arange(1.0, 3.0)[None, :]
        return dict(first=state[0], size=state, score=heads)

    own = replace(EXPERIMENT, measure=measure, details=("layer", "head"), decided=None)
    train(tmp_path / "run", product(depth=(1, 3)), own, base=dict(steps=20))
    found = train(tmp_path / "run", product(depth=(1, 3)), own)
    for trial_id, row in found.trials.query("steps == 40").set_index("trial_id").iterrows():
        frame = found.details[found.details["trial_id"] == trial_id]
        assert list(frame.columns[:4]) == ["trial_id", "step", "layer", "head"]
        steps = np.arange(0, 41, 2)
        grid = [(s, a, b) for s in steps for a in range(1, row["depth"] + 1) for b in (1, 2)]
        assert list(zip(frame["step"], frame["layer"], frame["head"], strict=True)) == grid
        size = expected(row, steps)[0]
        np.testing.assert_allclose(frame["size"], np.repeat(size.ravel(), 2), rtol=2e-5)
        np.testing.assert_allclose(frame["score"], np.repeat(size.ravel(), 2) * frame["head"], rtol=2e-5)


def test_rare_columns_are_nan_between_and_final_values_are_the_last_that_were_measured(tmp_path):
    @dataclass(frozen=True)
    class Rare(Spec):
        rare_every: Annotated[int, Whole(1), "records from one rare measurement to the next"] = 3

    own = replace(
        EXPERIMENT,
        settings=TrialSettings("rare", Rare, Stream, Hypers),
        measure_rarely=lambda spec, stream, hypers, source, state, batch, made: dict(
            total=state.sum(), double=2 * state
        ),
    )
    for order in ("lane", "together"):
        found = train(tmp_path / order, product(rate=(0.01, 0.02)), own, order=order)
        for _, row in found.trials.iterrows():
            records = found.trajectories[found.trajectories["trial_id"] == row["trial_id"]].set_index("step")
            steps = np.arange(0, 41, 2)
            size = expected(row, steps)[0]
            is_due = np.arange(len(steps)) % 3 == 0
            np.testing.assert_allclose(
                records["total"], np.where(is_due, size.sum(axis=1), np.nan), rtol=2e-5
            )
            assert row["status"] == "ok" and row["final_total"] == records["total"].loc[36]
            layers = found.details[found.details["trial_id"] == row["trial_id"]]["double"].to_numpy()
            wanted = np.where(is_due[:, None], 2 * size, np.nan).ravel()
            np.testing.assert_allclose(layers, wanted, rtol=2e-5)
    with pytest.raises(UserError, match="has measure_rarely and its Spec no rare_every; allowed"):
        replace(EXPERIMENT, measure_rarely=own.measure_rarely)
    with pytest.raises(UserError, match="measure_rarely of rare has total of type int32; allowed: float"):
        train(tmp_path / "new", experiment=replace(own, measure_rarely=lambda *_: dict(total=jnp.int32(1))))


def test_an_update_knows_its_step(tmp_path):
    def update(spec, stream, hypers, state, batch, step):
        return state + jnp.where(step < 10, step, 0), None

    own = replace(
        EXPERIMENT,
        update=update,
        measure=lambda spec, stream, hypers, source, state, *_: dict(first=state[0]),
        details=(),
        decided=None,
    )
    for order in ("lane", "together"):
        found = train(tmp_path / order, product(seed=(0, 1)), own, order=order)
        steps = np.arange(0, 41, 2)
        summed = np.array([sum(range(min(step, 10))) for step in steps])
        for _, row in found.trials.iterrows():
            mine = found.trajectories.query("trial_id == @row.trial_id")["first"]
            np.testing.assert_array_equal(mine, 1 + row["seed"] + summed)


def test_a_state_that_changes_its_shape_is_refused_in_a_sentence(tmp_path):
    for update, sentence in {
        lambda *given: (given[3][:1], None): r"update of layers returns the state as float32\[1\], and init",
        lambda *given: ((given[3], 1), None): "update of layers returns a state of another structure",
    }.items():
        with pytest.raises(UserError, match=sentence):
            train(tmp_path / "run", product(depth=3), replace(EXPERIMENT, update=update))
        assert not (tmp_path / "run").exists()


def test_a_one_shot_function_has_static_settings_and_lengths_of_its_own(tmp_path):
    @dataclass(frozen=True)
    class Static:
        power: Annotated[int, Whole(1), "of the metric"] = 1
        steps: Annotated[int, Whole(1), "entries"] = 3
        record_every: Annotated[int, Whole(1), "entries from one record to the next"] = 1

    def powers(spec, hypers, key):
        def body(carry, entry):
            matrix = jnp.ones((100, 100)) @ jnp.ones((100, 100))
            return carry + matrix[0, 0], hypers.rate * entry**spec.power

        last, metric = jax.lax.scan(body, 0.0, jnp.arange(1.0, spec.steps + 1))
        return last, {"metric": metric}

    own = one_shot("powers", powers, Hypers, ("metric",), Spec=Static, weights=lambda state: {"last": state})
    found = train(tmp_path / "run", product(power=(1, 2), steps=(2, 3), rate=2.0), own)
    for _, row in found.trials.iterrows():
        mine = found.trajectories.query("trial_id == @row.trial_id")["metric"].tolist()
        entries = [2.0 * n ** row["power"] for n in range(1, row["steps"] + 1)]
        assert mine == [entries[0], *entries] and found.restore(row["trial_id"])["last"] == 100 * row["steps"]
    spec = Static(steps=200)
    assert costs.step_flops(own, spec) == pytest.approx(2 * 100**3, rel=0.1)
    short = one_shot("short", lambda *_: ((), {"metric": jnp.ones(2)}), Hypers, ("metric",), 3)
    with pytest.raises(UserError, match=r"metric metric of short has shape \(2,\); allowed: 3 entries"):
        train(tmp_path / "new", product(rate=2.0), short)


def test_a_one_shot_function_may_have_them(tmp_path):
    def twice(hypers, key):
        return (), {"loss": jnp.arange(3.0), "norm": hypers.rate * jnp.arange(6.0).reshape(3, 2)}

    experiment = one_shot("twice", twice, Hypers, ("loss", "norm"), 3, details=("part",))
    run = train(tmp_path / "run", product(rate=2.0), experiment)
    assert run.details["part"].tolist() == [1, 2] * 4
    assert run.details["norm"].tolist() == [0, 2, 0, 2, 4, 6, 8, 10]


# The folder


def test_a_flipped_byte_is_named_and_just_its_chunk_computed_again(run, copied):
    parts = sorted((copied / "details").iterdir())
    assert len(parts) == len(list((copied / "trials").iterdir())) > 2
    before = {path: path.stat().st_mtime_ns for path in parts}
    flip(parts[1], 60, 3)
    (problem,) = verify(copied).problems
    assert problem.path == parts[1] and str(parts[1]) in problem.sentence
    with pytest.raises(StoreError, match=parts[1].name):
        _ = load(copied).details
    _, moved = repair(copied)
    assert {path.parent.name for path in moved} >= {"details", "trajectories", "trials"}
    assert len(committed(copied)) < len(run.trials)
    assert_same(train(copied), run)
    assert verify(copied).problems == []
    changed = [path for path in parts if path.stat().st_mtime_ns != before[path]]
    assert changed == [parts[1]]


def write_details(folder: Path) -> None:
    """Write what is missing of two chunks, each with details."""
    with Writer(folder, "demo") as writer:
        for chunk, ids in ((ONE, FIRST), (TWO, SECOND)):
            if not committed(folder) >= {*ids}:
                writer.commit(chunk, *tables(ids, chunk), details_of(ids))


LOST = {
    "a part": lambda run: part_path(run / "details", ONE).unlink(),
    "a part of another chunk": lambda run: shutil.copy(
        part_path(run / "details", TWO), part_path(run / "details", ONE)
    ),
    "all": lambda run: shutil.rmtree(run / "details"),
    "a part and the journal": lambda run: [
        path.unlink() for path in (part_path(run / "details", ONE), run / "journal.log")
    ],
    "trials and the journal": lambda run: [
        path.unlink() for path in (part_path(run / "trials", ONE), run / "journal.log")
    ],
}


@pytest.mark.parametrize("lost", LOST)
def test_lost_details_are_noticed_and_repaired(lost, tmp_path):
    write_details(tmp_path)
    whole, names = load(tmp_path), files(tmp_path)
    before = sorted_details(whole)
    LOST[lost](tmp_path)
    assert verify(tmp_path).problems
    if "journal" not in lost:
        with pytest.raises(StoreError, match="details"):
            _ = load(tmp_path).details
    assert repair(tmp_path)[1]
    assert verify(tmp_path).problems == [] and status(tmp_path).problems == ()
    assert committed(tmp_path) == ({*SECOND} if lost != "all" else set())
    write_details(tmp_path)
    assert verify(tmp_path).problems == []
    pd.testing.assert_frame_equal(sorted_details(load(tmp_path)), before)
    assert {name for name in files(tmp_path) if not name.startswith("set_aside")} == names


def test_status_misses_a_part_that_is_cut_off(tmp_path):
    write_details(tmp_path)
    path = part_path(tmp_path / "details", TWO)
    path.write_bytes(path.read_bytes()[:-7])
    (problem,) = status(tmp_path).problems
    assert str(path) in problem and "bytes instead of" in problem
    with pytest.raises(StoreError, match=r"though its trials are finished"), Writer(tmp_path, "demo"):
        pass


@pytest.mark.parametrize("at", ["trajectories", "trials"])
def test_details_without_their_trials_count_for_nothing_and_are_removed(at, tmp_path):
    with Writer(tmp_path, "demo") as writer:
        writer.commit(ONE, *tables(FIRST, ONE), details_of(FIRST))
        whole = files(tmp_path)
        with pytest.raises(StoreError, match="the disk is full"), crashing_at(writer, at):
            writer.commit(TWO, *tables(SECOND, TWO), details_of(SECOND))
    assert part_path(tmp_path / "details", TWO).exists()
    assert set(load(tmp_path).details["trial_id"]) == {*FIRST} and verify(tmp_path).problems == []
    with Writer(tmp_path, "demo"):
        assert files(tmp_path) == whole
    write_details(tmp_path)
    assert set(load(tmp_path).details["trial_id"]) == {*FIRST, *SECOND}


def test_a_folder_has_details_of_all_its_trials_or_of_none(tmp_path):
    for has, other in ((True, "with"), (False, "without")):
        folder = tmp_path / other
        with Writer(folder, "demo") as writer:
            writer.commit(ONE, *tables(FIRST, ONE), details_of(FIRST) if has else None)
            with pytest.raises(StoreError, match=rf"{folder} holds trials {other} details, unlike these"):
                writer.commit(TWO, *tables(SECOND, TWO), None if has else details_of(SECOND))
        assert (folder / "details").exists() == has and len(load(folder).details) == 9 * 2 * has
    assert load(folder).detail_names == [] and load(folder).select(FIRST[:1]).details.empty


# What reads it


def test_selected_trials_have_their_own_details_only(run):
    one = run.select([run.trials["trial_id"][0]])
    assert set(one.details["trial_id"]) == {run.trials["trial_id"][0]}
    assert run.replace(details=one.details).details is one.details
    plain = pd.read_parquet(run.folder / "details")
    assert plain.equals(run.details)


def test_details_are_exported(run, tmp_path):
    assert [path.name for path in write_csv(run, tmp_path / "csv")] == [
        *("trials.csv", "trajectories.csv", "details.csv")
    ]
    types = {"trial_id": str, "step": "int32", "layer": "int32", "size": "f4", "slope": "f4"}
    written = pd.read_csv(tmp_path / "csv" / "details.csv", dtype=types)
    pd.testing.assert_frame_equal(written, run.details, check_exact=True)


def test_events_have_a_tag_per_layer(run, tmp_path):
    pytest.importorskip("tensorboardX")
    kept = run.trials.query("seed == 1 and rate == 0.02")["trial_id"].tolist()
    paths = write_tensorboard(run.select(kept), tmp_path / "events")
    for path, (_, row) in zip(paths, run.select(kept).trials.iterrows(), strict=True):
        values = {}
        for event in read_events(path):
            values |= {(event.step, value.tag): value.simple_value for value in event.summary.value}
        layers = range(1, row["depth"] + 1)
        tags = [f"layer_{layer}/{name}" for layer in layers for name in ("size", "slope")]
        assert {tag for _, tag in values if "/" in tag and "hparams" not in tag} == {*tags}
        size, slope = expected(row, np.array([4]))
        for layer in layers:
            assert values[4, f"layer_{layer}/size"] == pytest.approx(size[0, layer - 1], rel=1e-5)
            assert values[4, f"layer_{layer}/slope"] == pytest.approx(slope[0, layer - 1], rel=1e-5)
