"""Any experiment: a user's own in one file, a one-shot training function, additions to the topic model."""

import contextlib
import runpy
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from support.command_line import ROOT
from support.engine_runs import BASE, columns, stopped_at_every_segment

import topicjax
from topicjax.engine import costs
from topicjax.engine.plan import make_groups
from topicjax.engine.programs import Programs, compiled_ahead, device_mesh
from topicjax.errors import UserError
from topicjax.experiments import load_experiment, trial_settings
from topicjax.experiments.contract import Data
from topicjax.experiments.one_shot import one_shot
from topicjax.settings import Real
from topicjax.store.files import StoreError
from topicjax.sweep import expand, product
from topicjax.sweep.files import load_sweep
from topicjax.trial import TrialSettings

FILE = ROOT / "docs" / "deep_linear.py"
DEEP = runpy.run_path(str(FILE))
COLUMNS = ["loss", "test_loss", "mode_1", "mode_2", "mode_3", "gradient", "sharpness"]
SMALL = dict(width=4, batch_size=8, steps=40, record_every=10, rare_every=2)
SWEEP = product(depth=(1, 2), seed=range(3), learning_rate=(0.01, 0.05))


def train(folder: Path, sweep=SWEEP, **options: Any) -> topicjax.Run:
    options = dict(devices=jax.devices()[:2], base=SMALL) | options
    return topicjax.sweep(DEEP["EXPERIMENT"], sweep, folder, **options)


@pytest.fixture(scope="module")
def deep(tmp_path_factory) -> topicjax.Run:
    return train(tmp_path_factory.mktemp("deep") / "run")


def test_a_users_experiment_trains_as_plain_loops_do(deep):
    """Gradient descent on W_2 W_1 in float64, on the examples that the experiment draws."""
    experiment, spec = DEEP["EXPERIMENT"], DEEP["Spec"](depth=2, **SMALL)
    row = deep.trials.query("depth == 2 and seed == 1 and learning_rate == 0.05").iloc[0]
    stream = experiment.settings.traced(DEEP["Stream"](seed=1))
    hypers = experiment.settings.traced(DEEP["Hypers"](learning_rate=0.05))
    first, second = (np.asarray(W, np.float64) for W in experiment.init(spec, stream, hypers))
    for step in range(40):
        X, Y = (np.asarray(part, np.float64) for part in experiment.batch(spec, stream, (), step))
        slope = (X @ (second @ first).T - Y).T @ X / 8
        first, second = first - 0.05 * second.T @ slope, second - 0.05 * slope @ first.T
    found = deep.restore(row["trial_id"])
    assert isinstance(found, list) and len(found) == 2  # the tree that `weights` returned
    np.testing.assert_allclose(found[0], first, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(found[1], second, rtol=2e-3, atol=1e-5)
    error = np.sum((second @ first - np.diag([4.0, 2.0, 1.0, 0.0])) ** 2)
    assert row["final_test_loss"] == pytest.approx(error / 2, rel=1e-3)
    assert row["final_mode_1"] == pytest.approx((second @ first)[0, 0] / 4, rel=1e-3)


def test_its_folder_is_like_any_other(deep):
    assert deep.experiment == "deep_linear" and not deep.missing
    assert list(deep.trajectories) == ["trial_id", "step", *COLUMNS]
    assert deep.setting_names == list(DEEP["EXPERIMENT"].settings.settings)
    assert len(deep.trials) == 12 and (deep.trials["status"] == "ok").all()


def test_a_trial_has_its_settings_records_and_weights_and_is_measured_again(deep, tmp_path):
    """Measured again from the state it ended in; a decided trial, which keeps none, is trained again."""
    row = deep.trials.query("depth == 2 and seed == 1 and learning_rate == 0.05").iloc[0]
    trial = deep.trial(row["trial_id"][:8])
    assert trial.settings == {name: row[name] for name in deep.setting_names}
    assert trial.records["step"].tolist() == [0, 10, 20, 30, 40] and trial.details.empty
    assert len(trial.weights()) == 2
    again = trial.evaluate()
    assert set(again) == set(COLUMNS)
    for name in COLUMNS:
        np.testing.assert_allclose(again[name], row[f"final_{name}"], rtol=1e-5)
    own = replace(DEEP["EXPERIMENT"], decided=lambda trial, records, references: "soon", decide_every=2)
    ended = topicjax.sweep(own, product(seed=1), tmp_path / "run", SMALL | dict(until="decided"))
    short = ended.trial(ended.trials["trial_id"].item())
    assert short.row["stopped_step"] == 20 and short.row["stop_reason"] == "soon"
    np.testing.assert_allclose(short.evaluate()["loss"], short.row["final_loss"], rtol=1e-5)
    reopened = topicjax.load(ended.folder)
    with pytest.raises(UserError, match=r"the experiment deep_linear is not known"):
        reopened.trial(short.trial_id).evaluate()
    found = topicjax.load(ended.folder, own).trial(short.trial_id).evaluate()
    assert found["loss"] == short.evaluate()["loss"]


def test_references_are_computed_once_per_data_setting(deep):
    """They depend on depth and seed here, not on the learning rate, and every trial finds its own."""
    assert len(deep.manifest["references"]) == 6
    found = deep.references
    assert list(found.columns) == ["nothing learned", "one mode", "two modes", "all modes"]
    np.testing.assert_allclose(found, np.tile([10.5, 2.5, 0.5, 0.0], (12, 1)))


def test_both_orders_and_any_layout_agree(deep, tmp_path):
    for options in (dict(order="together"), dict(lanes=1, devices=jax.devices()[:1])):
        other = train(tmp_path / str(len(options)), **options)
        np.testing.assert_allclose(columns(other, *COLUMNS), columns(deep, *COLUMNS), rtol=1e-3, atol=1e-6)


def test_data_drawn_in_blocks_are_the_same_data(deep, tmp_path, monkeypatch):
    monkeypatch.setattr("topicjax.engine.programs.BLOCK_BYTES", 700)  # two steps of examples
    other = train(tmp_path / "run")
    pd.testing.assert_frame_equal(columns(other, *COLUMNS), columns(deep, *COLUMNS))


def test_it_resumes_bit_for_bit_and_trains_nothing_twice(deep, tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "SEGMENT_STEPS", 10)
    stops = 0
    with stopped_at_every_segment(monkeypatch):
        while True:
            try:
                resumed = train(tmp_path / "run")
                break
            except KeyboardInterrupt:
                stops += 1
    assert stops > 3
    pd.testing.assert_frame_equal(columns(resumed, *COLUMNS), columns(deep, *COLUMNS))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("*/part-*")}
    train(tmp_path / "run")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("*/part-*")} == before


def test_data_from_outside_are_loaded_once_and_reach_every_stream(tmp_path):
    """A stream's source holds the data; what is missing is missed before anything is written."""
    loads = []

    def load():
        loads.append(1)
        return np.arange(5.0, dtype=np.float32)

    def measure(spec, stream, hypers, source, state, batch, made):
        return DEEP["measure"](spec, stream, hypers, (), state, batch, made) | dict(gradient=source.sum())

    shape = np.empty(5, np.float32)
    own = replace(
        DEEP["EXPERIMENT"],
        data=lambda spec: Data(shape, load),
        source=lambda spec, stream, data: data + stream.seed,
        measure=measure,
    )
    sweep = product(seed=range(3), learning_rate=(0.01, 0.05))
    for order in ("lane", "together"):
        run = topicjax.sweep(own, sweep, tmp_path / order, SMALL, order=order, devices=jax.devices()[:2])
        np.testing.assert_allclose(run.trials["final_gradient"], 10 + 5 * run.trials["seed"])
    assert len(loads) == 4  # before anything is written, and on the devices
    missing = replace(own, data=lambda spec: Data(shape, lambda: fail("it is not there")))
    with pytest.raises(UserError, match="it is not there"):
        topicjax.sweep(missing, sweep, tmp_path / "new", SMALL)
    assert not (tmp_path / "new").exists()


def fail(sentence: str):
    raise UserError(sentence)


def test_trials_of_different_experiments_have_different_ids_and_folders(deep):
    settings = DEEP["EXPERIMENT"].settings
    renamed = TrialSettings("other", *settings.classes)
    assert renamed.trial_id(renamed.make_trial({})) != settings.trial_id(settings.make_trial({}))
    with pytest.raises(StoreError, match=r"holds trials of the experiment deep_linear, not of one_layer"):
        topicjax.sweep("one_layer", product(seed=0), deep.folder, BASE)


def test_its_file_is_a_sweep_file():
    named = load_sweep(str(FILE))
    assert named.settings.experiment == "deep_linear" and "depth" in named.settings.settings
    with pytest.raises(UserError, match=r"unknown setting 'topics'; .*allowed: depth, width"):
        named.settings.convert("topics", 3)


WRONG = {
    "EXPERIMENT = 'two_layer'": "unknown experiment 'two_layer'; .*allowed: encoder, one_layer",
    "EXPERIMENT = 3": "EXPERIMENT is 3; allowed: an Experiment, or one of encoder, one_layer",
}


@pytest.mark.parametrize(("line", "sentence"), WRONG.items())
def test_an_experiment_that_is_none_is_one_sentence(line, sentence, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"from topicjax.sweep import product\n{line}\nSWEEP = product(seed=1)\n")
    with pytest.raises(UserError, match=rf"sweep file .*mine.py fails: {sentence}"):
        load_sweep(str(path))


class Empty(NamedTuple):
    rate: Annotated[Any, Real(low=0), "a number"] = 0.1


def test_settings_classes_that_do_not_fit_are_one_sentence():
    Spec, Stream, Hypers = DEEP["EXPERIMENT"].settings.classes
    with pytest.raises(UserError, match=r"Spec of mine is .*; allowed: a frozen dataclass"):
        TrialSettings("mine", Empty, Stream, Hypers)
    with pytest.raises(UserError, match=r"Stream of mine is .*; allowed: a NamedTuple"):
        TrialSettings("mine", Spec, Spec, Hypers)
    with pytest.raises(UserError, match="the name of an experiment is 'my own'; allowed: letters"):
        TrialSettings("my own", Spec, Stream, Hypers)


class Hypers(NamedTuple):
    rate: Annotated[Any, Real(low=0), "of gradient descent"] = 0.1


def descend(hypers: Hypers, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Five steps of gradient descent on x^2 / 2 from a random start, in one call."""
    start = jax.random.normal(key, (3,))

    def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        x = x - hypers.rate * x
        return x, 0.5 * jnp.sum(x**2)

    end, loss = jax.lax.scan(step, start, None, 5)
    return end, {"loss": loss}


def test_a_one_shot_training_function_is_an_experiment(tmp_path):
    experiment = one_shot("descent", descend, Hypers, ("loss",), 5, lambda x: {"x": x})
    rates = product(seed=range(2), rate=(0.1, 0.5))
    run = topicjax.sweep(experiment, rates, tmp_path / "run", devices=jax.devices()[:2])
    assert len(run.trials) == 4
    for _, row in run.trials.iterrows():
        start = np.asarray(jax.random.normal(jax.random.key(row["seed"]), (3,)), np.float64)
        losses = [0.5 * (start**2).sum() * (1 - row["rate"]) ** (2 * n) for n in (1, 1, 2, 3, 4, 5)]
        np.testing.assert_allclose(columns(run, "loss").loc[row["trial_id"], "loss"], losses, rtol=1e-5)
        np.testing.assert_allclose(
            run.restore(row["trial_id"])["x"], start * (1 - row["rate"]) ** 5, rtol=1e-5
        )


def test_an_experiment_without_weights_leaves_tables_alone(tmp_path):
    experiment = one_shot("descent", descend, Hypers, ("loss",), 5)
    run = topicjax.sweep(experiment, product(rate=(0.1, 0.5)), tmp_path / "run", devices=jax.devices()[:1])
    assert run.trials["final_loss"].notna().all()
    with pytest.raises(StoreError, match="was run without snapshots"):
        run.restore(run.trials["trial_id"][0])


def test_costs_of_an_experiment_without_figures_come_from_its_functions():
    experiment = DEEP["EXPERIMENT"]
    spec = DEEP["Spec"](depth=2, width=32, batch_size=64)
    sizes = costs.sizes(experiment, spec)
    assert sizes.state == sizes.weights == 2 * 32 * 32 * 4
    assert sizes.batch == 2 * 64 * 32 * 4 and sizes.source == 0
    products = 2 * 32**3 * 3 + 2 * 64 * 32 * 32 * 2  # W_2 W_1 and both gradients; outputs and their gradient
    assert products < costs.step_flops(experiment, spec) < 4 * products


NO_LINES = "theory has no limit lines for objective absolute; it has for cross_entropy, squared"
ADDED = """
import sys
import jax
import jax.numpy as jnp
import topicjax
from topicjax.experiments.shared import losses, optimizers
from topicjax.sweep import product

def absolute(output, real):
    return losses.Terms(jnp.abs(output).sum(axis=1), jnp.abs(output - 1) - jnp.abs(output))

lion = optimizers.Optimizer(lambda optax, h: optax.lion(h.learning_rate))
optimizers.OPTIMIZERS["lion"] = lion
losses.OBJECTIVES["absolute"] = absolute
topicjax.use_all_cores()
from topicjax import cli
base = {base!r}
sweep = product(optimizer="lion", objective=("squared", "absolute"), learning_rate=(1e-3, 1e-2))
run = topicjax.sweep("one_layer", sweep, sys.argv[1], base)
assert (run.trials["optimizer"] == "lion").all() and len(run.trials) == 4
assert (run.trials.groupby("learning_rate")["final_norm_v"].nunique() == 2).all()
assert (run.trials["status"] == "ok").all()
sys.exit(cli.main(["report", sys.argv[1]]))
"""


@pytest.mark.slow
def test_an_optimizer_or_objective_is_one_entry_in_a_table(tmp_path):
    """Planned, trained and reported; theory has no limit lines for an objective it does not know."""
    base = BASE | {"steps": 20}
    del base["optimizer"]
    script = ADDED.replace("{base!r}", repr(base))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    entries = topicjax.load(tmp_path / "run").manifest["references"]
    errors = {entry["settings"]["objective"]: entry.get("error") for entry in entries}
    assert errors == {"squared": None, "absolute": NO_LINES}
    assert (tmp_path / "run" / "report.html").exists()


def test_a_record_column_with_an_svd_is_one_line_and_does_not_hang(tmp_path):
    experiment = with_column("spectral", lambda layers: jnp.linalg.norm(layers[0], 2))
    run = topicjax.sweep(experiment, product(seed=range(4)), tmp_path / "run", SMALL)
    for _, row in run.trials.iterrows():
        first, *_ = run.restore(row["trial_id"])
        assert row["final_spectral"] == pytest.approx(np.linalg.norm(first, 2), rel=1e-4)


def test_a_column_that_decomposes_several_matrices_at_once_is_refused(tmp_path):
    """On several CPU devices such a call can wait for a thread that never comes."""

    def both(layers):
        return jnp.linalg.norm(jnp.stack(layers), 2, axis=(1, 2)).max()

    with pytest.raises(UserError, match=r"LAPACK .* on several matrices at once, .* jax.lax.map"):
        topicjax.sweep(with_column("largest", both), product(seed=range(4)), tmp_path / "run", SMALL)


def with_column(name, of_layers):
    """Return the deep linear networks with one more column of their records."""
    own = DEEP["EXPERIMENT"]

    def measure(spec, stream, hypers, source, layers, *made):
        return own.measure(spec, stream, hypers, source, layers, *made) | {name: of_layers(layers)}

    return replace(own, measure=measure)


def test_programs_compiled_ahead_are_those_that_run(monkeypatch):
    settings = DEEP["EXPERIMENT"].settings
    base = SMALL | {"batch_size": 7}  # compiled by no other test
    trials = {settings.trial_id(trial): trial for trial in expand(settings, base, SWEEP)}
    groups = make_groups(DEEP["EXPERIMENT"], trials, 2, 2)
    waited: list[float] = []
    every = [Programs(group, device_mesh(jax.devices()[:2]), waited.append) for group in groups]
    begun, compile_second = threading.Event(), every[1].compile
    monkeypatch.setattr(every[1], "compile", lambda: (begun.set(), compile_second()))
    with contextlib.closing(compiled_ahead(every)) as ahead:
        first = next(ahead)
        assert first is every[0] and not first.compiled  # its first call compiles it
        second = next(ahead)
        assert begun.wait(60)  # in the other thread
    compile_second()  # waits for it
    assert second is every[1] and set(second.compiled) == {"init", "advance"}
    streams, hypers = second.arguments(second.group.chunks[0])
    second.advance(streams, hypers, second.init(streams, hypers))
    assert not waited and second.compile_seconds > 0


def test_shipped_experiments_are_found_by_name():
    assert load_experiment("one_layer").name == "one_layer"
    assert trial_settings("one_layer") is load_experiment("one_layer").settings
