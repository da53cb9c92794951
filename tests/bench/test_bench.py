"""Benchmarks: numbers by hand, timing in turns, and PyTorch against the token-space model."""

import dataclasses
import functools
import io
import json
import pickle
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from topicjax import cli
from topicjax.advice import install_command
from topicjax.analysis.figures import bench_sizes
from topicjax.bench import compare, deep, linear_attention, machine, sizes, timing, tiny, torch_processes
from topicjax.bench.compare import summary, text
from topicjax.bench.sizes import Size
from topicjax.bench.timing import Method
from topicjax.engine import costs, plan
from topicjax.experiments.one_layer import model
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import Hypers, Spec, traced, trial_id
from topicjax.experiments.shared import lda
from topicjax.experiments.shared.bags import fit_queries
from topicjax.theory.document_settings import Stream

MACHINE = dict(device="2 x cpu", load_before=0.1, peak_memory_bytes=900e6, record_every=20)
MACHINE |= dict(record_share=0.1, planned_record_share=0.08, drawing_share=0.02)
MACHINE |= dict(torch_processes={"torch-eager": "2 x 1 thread"})


def result(with_torch: bool = True, **changes):
    """Timings by hand: engine 1000 (950-1050), token 10, torch 20 trial-steps/s; GEMM 100 GFLOP/s."""
    methods = [
        Method("engine-adam", lambda: None, 1, 2e7, 5.0, 40e6),
        Method("token-vmap", lambda: None, 1, 1e8, 2.0, 100e6),
    ]
    rates = {"engine-adam": [950.0, 1000.0, 1050.0], "token-vmap": [10.0, 10.0, 10.0]}
    if with_torch:
        methods.append(Method("torch-eager", lambda: None, 1, 1e8))
        rates["torch-eager"] = [20.0, 19.0, 21.0]
    return summary(methods, rates, [90.0, 100.0, 110.0]) | MACHINE | changes


def test_summary_against_hand_values():
    found = result()
    assert found["gemm_gflops"] == 100.0
    assert found["repeats"] == 3
    adam, token, torch = found["methods"]
    assert adam["trial_steps_per_second"] == 1000.0
    assert (adam["lowest"], adam["highest"]) == (950.0, 1050.0)
    assert adam["spread"] == pytest.approx(0.1)
    assert adam["times_token_vmap"] == pytest.approx(100.0)
    assert adam["times_torch_eager"] == pytest.approx(50.0)
    assert adam["gemm_share"] == pytest.approx(0.2)  # 1000 x 20 MFLOP of 100 GFLOP/s
    assert token["gemm_share"] == pytest.approx(0.01)
    assert token["times_torch_eager"] == pytest.approx(0.5)
    assert torch["memory_bytes"] is None  # nobody knows what eager PyTorch holds


def test_json_is_strict_and_keeps_the_promised_names():
    read = json.loads(json.dumps(result(), allow_nan=False))
    assert [row["method"] for row in read["methods"]] == ["engine-adam", "token-vmap", "torch-eager"]
    assert {"trial_steps_per_second", "compile_seconds", "spread"} <= read["methods"][0].keys()
    assert read["gemm_gflops"] == 100.0


def test_the_machine_that_a_stranger_measured_on_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "NVIDIA_DRIVER", tmp_path / "version")
    found = machine.machine()
    assert found["devices"] == ["cpu"] * jax.local_device_count() and found["platform"] == "cpu"
    assert found["versions"]["jax"] == jax.__version__ and found["driver"] is None
    assert {"runtime", "system", "processor", "cores", "accelerator_packages", "python"} <= found.keys()
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Wed Jan 22 2025\nGCC version:  12.3.0 "
    (tmp_path / "version").write_text(text)
    assert machine.nvidia_driver() == "570.86.15"


def test_table_has_a_line_for_each_method_and_the_limit():
    table = text(result())
    (adam,) = [line for line in table.splitlines() if line.startswith("engine-adam")]
    assert adam.split() == ["engine-adam", "1,000", "10%", "100", "50", "20.0", "20.0%", "5.0", "40"]
    assert "at most 5,000 trial-steps/s" in table  # 100 GFLOP/s by 20 MFLOP
    assert "2 x cpu" in table and "records every 20 steps" in table
    assert "900 MB" in table and "torch-eager: 2 x 1 thread" in table
    shares = "10.0% of engine-adam's time (the plan expects 8.0%), drawing documents 2.0%"
    assert f"records take {shares}" in table
    assert "warning" not in table and "pip install" not in table


@pytest.mark.parametrize("platform, place", [("cpu", ""), ("gpu", " on the CPU")])
def test_pytorch_beside_an_accelerator_is_said_to_run_on_the_cpu(platform, place, monkeypatch):
    def started(command, **pipes):
        return SimpleNamespace(stdin=io.BytesIO(), stdout=io.BytesIO(pickle.dumps(None)))

    monkeypatch.setattr(torch_processes.subprocess, "Popen", started)
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    assert torch_processes.TorchProcesses({}, 2, 1).label == f"2 x 1 thread{place}"
    assert torch_processes.TorchProcesses({}, 1, 2).label == f"1 x 2 threads{place}"


def test_table_without_torch_says_how_to_add_it():
    table = text(result(with_torch=False, torch_processes={}))
    (adam,) = [line for line in table.splitlines() if line.startswith("engine-adam")]
    assert adam.split()[4] == "-"
    assert f"torch-eager was left out; to add it: {install_command('bench')}\n" in f"{table}\n"


def test_a_busy_machine_is_named():
    assert "more than 30%" in text(
        summary(
            [Method("engine-adam", lambda: None, 1, 2e7), Method("token-vmap", lambda: None, 1, 1e8)],
            {"engine-adam": [800.0, 1000.0, 1200.0], "token-vmap": [10.0] * 3},
            [100.0] * 3,
        )
        | MACHINE
    )
    assert "1.5 processes per core" in text(result(load_before=1.5))


def test_methods_are_timed_in_turns(monkeypatch):
    order, clock = [], iter(range(100))
    monkeypatch.setattr(compare, "gemm_gflops", lambda: order.append("gemm") or 7.0)
    monkeypatch.setattr(timing.time, "monotonic", lambda: next(clock))
    methods = [Method(name, lambda name=name: order.append(name), 30, 1.0) for name in "ab"]
    rates, gemm = compare.time_in_turns(methods, 2)
    assert order == ["gemm", "a", "b"] * 2
    assert rates == {"a": [30.0, 30.0], "b": [30.0, 30.0]}  # 30 trial-steps in one tick
    assert gemm == [7.0, 7.0]


def test_useful_work_against_a_count_by_hand():
    # 40 documents of 125 words on average, 15 % masked, a fifth of them shown as words: 150 + 40
    # queries: outputs, their gradient, the gradient of W_V: 3 x 2 x 190 x 101 x 101; scores the same with 101
    spec = fit_queries(Spec(), [Stream()])
    assert costs.step_flops(EXPERIMENT, spec) == pytest.approx(6 * 190 * 10201 + 6 * 101 * 10201)


def test_token_work_against_a_count_by_hand():
    spec = Spec(topics=2, words_per_topic=2, shortest=10, longest=12, batch_size=3)
    pairs = 3 * 0.15 * (100 + 121 + 144) / 3  # masked positions times positions
    assert compare.token_flops(spec, 0.15) == pytest.approx(3 * 2 * pairs * (5 + 5))
    assert compare.token_flops(spec) == pytest.approx(3 * 2 * pairs / 0.15 * (5 + 5))


SMALL = Spec(topics=3, words_per_topic=4, batch_size=6)
NAMES = ("W_K", "W_Q", "W_V")


def small_documents():
    """Six documents of 2 to 9 words, padding at the end; the first has nothing to predict."""
    rng = np.random.default_rng(3)
    word, other = rng.integers(1, 13, (2, 6, 9))
    present = np.arange(9) < np.array([[9], [2], [5], [7], [8], [4]])
    masked = present & (rng.random((6, 9)) < 0.4)
    masked[0], masked[1, 1], masked[2, 3] = False, True, True
    shown = np.where(masked, rng.choice([0, 1, 2], (6, 9)), 2)
    shown = np.choose(shown, [np.zeros_like(word), other, word])  # [MASK], random, kept
    return lda.Documents(word, shown, masked, present)


def small_weights():
    rng = np.random.default_rng(5)
    return {name: rng.normal(size=(13, 13)).astype(np.float32) for name in NAMES}


@functools.cache
def token_loss():
    """The token model's loss and gradients on the small documents, for a traced objective."""

    def loss(trained, objective):
        params = trained | dict(b_pred=jnp.zeros(13))
        return model.token_loss(SMALL, traced(Stream()), objective, params, small_documents())

    return jax.jit(jax.value_and_grad(loss))


@pytest.mark.parametrize("only_masked", [False, True])
@pytest.mark.parametrize("objective", ["cross_entropy", "squared"])
def test_torch_has_the_loss_and_gradients_of_the_token_model(objective, only_masked):
    pytest.importorskip("torch", reason="PyTorch comes with the extra `bench`")
    from topicjax.bench import torch_eager

    expected, gradients = token_loss()(small_weights(), traced(Hypers(objective=objective)).objective)
    attention = torch_eager.Attention(**small_weights())
    found = torch_eager.loss(attention, torch_eager.batch(small_documents(), only_masked), objective)
    found.backward()
    np.testing.assert_allclose(found.item(), expected, rtol=1e-5)
    for name in NAMES:
        gradient = getattr(attention, name).grad.numpy().T
        assert np.abs(gradient).max() > 1e-3
        np.testing.assert_allclose(gradient, gradients[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_torch_takes_the_first_adam_step():
    pytest.importorskip("torch", reason="PyTorch comes with the extra `bench`")
    from topicjax.bench import torch_eager

    weights = small_weights()
    eager = torch_eager.EagerTrial(
        torch_eager.Attention(**weights), [torch_eager.batch(small_documents())], 0.01
    )
    eager.train(1)
    moved = eager.model.W_V.detach().numpy().T - weights["W_V"]
    gradient = eager.model.W_V.grad.numpy().T
    clear = np.abs(gradient) > 1e-4  # Adam's first step is the learning rate times the sign
    np.testing.assert_allclose(moved[clear], -0.01 * np.sign(gradient[clear]), rtol=1e-2)


def test_no_repeats_is_the_users_mistake(capsys):
    for arguments in (["--repeats", "0"], ["--scaling", "--repeats", "-1"]):
        assert cli.main(["bench", *arguments]) == 2
        assert f"--repeats is {arguments[-1]}; allowed: 1 or more" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_told_before_the_work(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["bench", "--scaling", "--out", str(tmp_path / "file" / "folder")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_sizes_become_the_chunks_they_name():
    for size in {size for curve in sizes.curves(2).values() for size in curve}:
        trials = {trial_id(trial): trial for trial in sizes.trials(size, chunks=3)}
        (group,) = plan.make_groups(EXPERIMENT, trials, size.devices, size.streams * size.hypers)
        assert (group.lanes, group.rows_per_chunk) == (size.hypers, size.devices * size.streams)
        assert len(group.chunks) == 3
        assert group.spec.batch_size == size.batch_size
        assert group.spec.num_words == size.topics * size.words_per_topic


def test_curves_cover_the_devices_there_are():
    counts = {n: [size.devices for size in sizes.curves(n)["devices"]] for n in (1, 2, 6)}
    assert counts == {1: [1], 2: [1, 2], 6: [1, 2, 4, 6]}
    hypers = sizes.curves(2)["hypers per stream"]
    assert [size.hypers for size in hypers] == [1, 2, 4, 8, 16, 32]
    assert {size.trials for size in hypers} == {64}
    assert tuple(sizes.curves(2)) == bench_sizes.CURVES[:-2]


class StubChunks:
    """Chunks that take half a second of a clock each."""

    compile_seconds, steps = 3.0, 40

    def __init__(self, size, clock):
        self.size, self.clock, self.trained = size, clock, []
        self.group = plan.Group(EXPERIMENT, Spec(), "", (), (), size.hypers, size.devices * size.streams)

    def advance(self, chunk=0):
        self.trained.append(chunk)
        self.clock[0] += 0.5

    advance_each = timing.EngineChunks.advance_each


@pytest.fixture
def frame(monkeypatch):
    """The table of an engine that needs half a second per call, whatever its size."""
    clock = [0.0]
    monkeypatch.setattr(sizes, "build", lambda size, chunks=1: StubChunks(size, clock))
    monkeypatch.setattr(timing.time, "monotonic", lambda: clock[0])
    return sizes.run(3, lambda line: None)


def test_table_of_sizes_against_hand_values(frame):
    devices = frame[frame.curve == "devices"]
    assert devices.devices.tolist() == [1, 2, 4]  # those of the tests
    assert devices.trial_steps_per_second.tolist() == [16 * n * 40 / 0.5 for n in (1, 2, 4)]
    for name, fixed in (("steps", "trials"), ("trials", "steps")):
        part = frame[frame.curve == name]
        assert part.seconds.tolist() == [0.5, 1.0, 1.5, 2.0]
        assert part[name].tolist() == [part[name].iloc[0] * n for n in (1, 2, 3, 4)]
        assert part[fixed].nunique() == 1
    flop = costs.step_flops(EXPERIMENT, Spec())
    np.testing.assert_allclose(frame.useful_gflops, frame.trial_steps_per_second * flop / 1e9)


def test_more_steps_train_one_chunk_and_more_trials_the_next(monkeypatch):
    built = {}

    def build(size, chunks=1):
        return built.setdefault(size, StubChunks(size, [0.0]))

    ticks = iter(range(10**6))
    monkeypatch.setattr(sizes, "build", build)
    monkeypatch.setattr(timing.time, "monotonic", lambda: next(ticks))
    sizes.run(1, lambda line: None)
    trained = built[Size(len(jax.devices()))].trained
    assert trained == [0] + [0, 0, 0, 0, 0, 0, 0, 0, 0, 0] + [0, 0, 1, 0, 1, 2, 0, 1, 2, 3]
    assert {tuple(engine.trained) for engine in built.values()} == {(0,), tuple(trained)}


def test_figure_of_sizes_draws_the_table(frame):
    picture = bench_sizes.scaling_figure(frame)
    names = [ax.get_xlabel() for ax in picture.figure.axes]
    assert names[:3] == ["trials per chunk", "hypers per stream", "devices"]
    assert names[3:5] == ["documents in a batch", "words in the vocabulary, T v"]
    measured = picture.figure.axes[2].containers[0].lines[0]
    np.testing.assert_allclose(measured.get_ydata(), [1.28, 2.56, 5.12])
    assert "4 devices do 4.00 times the work of 1" in picture.caption
    assert "within 0% (steps) and 0% (trials)" in picture.caption


def test_departure_from_the_line_is_the_largest(frame):
    seconds = [1.0, 2.0, 3.0, 6.0]  # the mean slope is 1.125 per unit
    frame.loc[frame.curve == "steps", "seconds"] = seconds
    assert bench_sizes.departure(frame, "steps") == pytest.approx(6 / (4 * 1.125) - 1)


def test_one_device_draws_too(frame):
    alone = frame[(frame.curve != "devices") | (frame.devices == 1)]
    assert "times the work" not in bench_sizes.scaling_figure(alone).caption


def test_a_table_of_something_else_is_refused():
    with pytest.raises(ValueError, match=r"the scaling table lacks .*devices.*allowed: a table written by"):
        bench_sizes.scaling_figure(pd.DataFrame({"loss": [1.0]}))


def test_a_size_counts_its_trials():
    assert Size(2, 3, 5).trials == 30


@pytest.mark.slow
def test_chunks_are_trained_by_the_engines_own_programs():
    chunks = sizes.build(Size(1, 1, 2, batch_size=4, topics=2, words_per_topic=2), chunks=2)
    method = chunks.method("engine-adam")
    assert method.trial_steps == 2 * chunks.steps == 2 * 40
    assert method.memory_bytes > 0 and method.compile_seconds > 0
    chunks.advance_each([0, 1])
    assert [int(state.step) for state in chunks.states] == [2 * chunks.steps, chunks.steps]


def test_torch_encoder_has_the_loss_and_gradients_of_the_encoder():
    pytest.importorskip("torch", reason="PyTorch comes with the extra `bench`")
    from topicjax.bench import torch_eager
    from topicjax.experiments.encoder import losses, rows
    from topicjax.experiments.encoder import settings as encoder
    from topicjax.experiments.shared import encoder as encoder_model
    from topicjax.experiments.shared.settings import LayerHypers

    spec = encoder.Spec(topics=3, words_per_topic=4, layers=2, heads=2, width=8, shortest=20, longest=30)
    hypers, stream = encoder.traced(LayerHypers(init="default", init_scale=1.0)), traced(Stream())
    documents = small_documents()

    @jax.jit
    def both(key):
        params = encoder_model.init(spec, hypers, key)
        own = rows.from_documents(spec, stream, documents)
        return params, *losses.loss_and_gradients(spec, hypers, params, {}, own)

    params, expected, gradients = both(jax.random.key(0))
    module = torch_eager.Encoder(params, spec.heads)
    found = torch_eager.loss(module, torch_eager.batch(documents), "cross_entropy")
    found.backward()
    np.testing.assert_allclose(found.item(), expected, rtol=1e-5)
    for name in ("W_E", "W_K", "W_Q", "W_V"):
        own = module.weights[name].grad.numpy()
        assert np.abs(own).max() > 1e-5
        np.testing.assert_allclose(own, gradients[name], rtol=1e-3, atol=1e-6, err_msg=name)


def test_torch_on_text_has_the_loss_and_gradients_of_the_encoder():
    pytest.importorskip("torch", reason="PyTorch comes with the extra `bench`")
    from topicjax.bench import torch_eager
    from topicjax.experiments.shared import encoder as encoder_model
    from topicjax.experiments.shared.settings import LayerHypers
    from topicjax.experiments.text import losses, rows
    from topicjax.experiments.text import settings as text_settings

    spec = text_settings.Spec(vocabulary_size=13, context=9, layers=2, heads=2, width=8, mlp=6)
    spec = dataclasses.replace(spec, output_projection=True, output_bias="trained", mask_probability=1.0)
    made = LayerHypers(init="default", init_scale=1.0, layer_norm="pre")
    hypers, stream = text_settings.traced(made), text_settings.traced(text_settings.Stream())
    documents, room = small_documents(), rows.room(spec, 6)

    @jax.jit
    def both(key):
        params = encoder_model.init(spec, hypers, key)
        own = rows.from_documents(
            spec, stream, jax.tree.map(jnp.asarray, documents), documents.masked_BxN, room
        )
        return params, *losses.loss_and_gradients(spec, hypers, params, {}, own, room)

    params, expected, gradients = both(jax.random.key(0))
    module = torch_eager.Encoder(params, spec.heads, "pre")
    batch = torch_eager.only_targets(torch_eager.batch(documents))
    assert batch.target_BxM.shape == (1, documents.masked_BxN.sum())
    found = torch_eager.loss(module, batch, "cross_entropy")
    found.backward()
    np.testing.assert_allclose(found.item(), expected, rtol=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(module.weights[name].grad, gradient, rtol=1e-3, atol=2e-6, err_msg=name)


def test_torch_on_syntax_has_the_loss_and_gradients_of_the_encoder():
    torch = pytest.importorskip("torch", reason="PyTorch comes with the extra `bench`")
    from topicjax.bench import torch_eager
    from topicjax.experiments.shared import encoder as encoder_model
    from topicjax.experiments.syntax import masked, model, settings

    spec = settings.Spec(topics=3, words_per_topic=4, classes=2, heads=2, width=8, longest=12)
    spec = dataclasses.replace(spec, mask_probability=1.0, relative_reach=2)
    hypers, documents = settings.traced(settings.Hypers(bias_gain=2.0)), small_documents()
    documents = documents._replace(shown_BxN=np.where(documents.masked_BxN, 0, documents.word_BxN))

    @jax.jit
    def both(key):
        params = encoder_model.init(spec, hypers, key)
        params["R"] = jax.random.normal(key, params["R"].shape)
        own = masked.from_documents(spec, jax.tree.map(jnp.asarray, documents))
        return params, *model.loss_and_gradients(spec, hypers, params, {}, own)

    params, expected, gradients = both(jax.random.key(0))
    given = dict(model="encoder", weights=params, heads=2, layer_norm="none", bias_gain=2.0)
    given |= dict(documents=[tuple(documents)], learning_rate=0.1)
    trial = torch_eager.given_trial(given)
    assert trial.batches[0].target_BxM.shape[1] == documents.masked_BxN.sum(axis=1).max()
    found = trial.loss(trial.model, trial.batches[0])
    found.backward()
    np.testing.assert_allclose(found.item(), expected, rtol=1e-5)
    assert torch.abs(trial.model.weights["R"].grad).max() > 1e-4
    for name, weight in trial.model.weights.items():
        np.testing.assert_allclose(weight.grad, gradients[name], rtol=1e-3, atol=2e-6, err_msg=name)


def test_deep_rows_against_hand_values():
    row = dict(model="text", trial_steps_per_second=50.0, without_records=60.0, torch=40.0, ratio=1.25)
    row |= dict(lowest_ratio=1.2, highest_ratio=1.3, ratio_without_records=1.5, gemm_share=0.5)
    row |= dict(record_share=1 / 6, drawing_share=0.02, compile_seconds=9.0, torch_processes="2 x 1 thread")
    line = deep.table_row(row)
    assert line.split()[:9] == ["text", "50.0", "40.0", "1.25", "1.20-1.30", "60.0", "1.50", "50.0%", "16.7%"]
    assert line.endswith("2.0%        9.0  2 x 1 thread")


def test_deep_cases_are_told_as_soon_as_they_are_measured(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(deep, "need_torch", lambda: None)
    monkeypatch.setattr(deep, "run_case", lambda case, repeats: dict(model=case, known=len(told)))
    monkeypatch.setattr(deep, "table_row", lambda row: row["model"])
    monkeypatch.setattr(deep.os, "getloadavg", lambda: (100.0,) * 3)
    result = deep.run(["one", "two"], 3, told.append)
    assert told[1:3] == ["one", "two"] and [row["known"] for row in result["models"]] == [1, 2]
    assert "busy" in told[3]


@pytest.mark.slow
def test_the_engine_without_records_trains_the_same():
    case = deep.encoder_case(1)
    case.base |= dict(topics=2, words_per_topic=2, width=8, batch_size=2, eval_documents=2, record_every=2)
    every, none = (
        deep.engine_chunks(case, experiment)
        for experiment in (case.experiment, timing.without_records(case.experiment))
    )
    assert every.steps == none.steps == 8  # four windows: one rare record
    for one, other in zip(*(jax.tree.leaves(own.states[0].trial_L) for own in (every, none)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert 0 < timing.drawing_seconds(every, 1) < 10


def test_the_hand_written_loop_trains_what_the_engine_trains():
    spec, experiment = linear_attention.Spec(3, 4, 2, steps=6, record_every=3), linear_attention.EXPERIMENT
    base = dict(dimension=3, pairs=4, batch_size=2, steps=6, record_every=3, seed=5)
    rates, scales = [0.01, 0.1], [0.5, 1.0]
    settings = [base | dict(learning_rate=r, init_scale=s) for r, s in zip(rates, scales, strict=True)]
    trials = [experiment.settings.make_trial(own) for own in settings]
    chunks = timing.EngineChunks(trials, jax.local_devices()[:1], 2, "together", experiment)
    arguments = chunks.arguments[0]
    ended, record_RxLxW = chunks.programs.advance(*arguments, chunks.programs.init(*arguments))
    loop = jax.jit(functools.partial(tiny.by_hand, spec, 2))
    state_L, record_LxW = loop(5, jnp.asarray(rates), jnp.asarray(scales))
    for name, column in record_LxW.items():
        np.testing.assert_allclose(record_RxLxW[name][0], column, rtol=1e-4, err_msg=name)
    for name, weights in state_L.weights.items():
        np.testing.assert_allclose(ended.trial_L.weights[name][0], weights, rtol=1e-4, atol=1e-6)


def test_products_of_the_tiny_model_are_those_of_its_gradient():
    spec, stream = linear_attention.Spec(3, 4, 2), linear_attention.Stream(0)
    weights = linear_attention.init(spec, stream, linear_attention.Hypers()).weights
    prompts = linear_attention.prompts(spec, jax.random.key(0), 2)
    traced_gradient = jax.make_jaxpr(jax.grad(linear_attention.loss))(weights, prompts)
    products = [each for each in traced_gradient.eqns if each.primitive.name == "dot_general"]
    flop = 0
    for each in products:
        ((contracted, _), _), left = each.params["dimension_numbers"], each.invars[0].aval.shape
        flop += 2 * each.outvars[0].aval.size * np.prod([left[axis] for axis in contracted])
    assert flop == linear_attention.step_flops(spec)


def test_torch_has_the_loss_and_gradients_of_the_tiny_model():
    torch = pytest.importorskip("torch", reason="PyTorch comes with the extra `bench`")
    from topicjax.bench import torch_eager

    given = tiny.torch_given()
    prompts = linear_attention.Prompts(*map(jnp.asarray, given["prompts"][0]))
    expected, gradients = jax.value_and_grad(linear_attention.loss)(given["weights"], prompts)
    trial = torch_eager.given_trial(given)
    found = trial.loss(trial.model, trial.batches[0])
    found.backward()
    np.testing.assert_allclose(found.item(), expected, rtol=1e-5)
    for name, gradient in gradients.items():
        assert torch.abs(trial.model.weights[name].grad).max() > 1e-6
        np.testing.assert_allclose(trial.model.weights[name].grad, gradient, rtol=1e-3, atol=1e-6)


def test_tiny_table_against_hand_values():
    methods = [
        Method(name, lambda: None, 1, 4e5, 3.0) for name in ("engine", "by hand", "no records", "torch")
    ]
    rates = {"engine": [900.0, 1000.0], "by hand": [1000.0, 1000.0], "no records": [1000.0, 1250.0]}
    found = tiny.summary(methods, rates | {"torch": [10.0, 10.0]}, [100.0, 100.0])
    engine = found["methods"][0]
    assert engine["trial_steps_per_second"] == 950.0 and engine["times_by_hand"] == pytest.approx(0.95)
    assert engine["times_torch"] == pytest.approx(95.0)
    assert engine["gemm_share"] == pytest.approx(950 * 4e5 / 1e11)
    assert found["record_share"] == pytest.approx(1 - (0.9 + 0.8) / 2)
    machine = dict(device="2 x cpu", load_before=0.1, trials=1000, order="together", lanes=64)
    machine |= dict(torch_processes="2 x 1 thread", record_every=20, drawing_share=0.03)
    table = tiny.table(found | machine)
    (line,) = [line for line in table.splitlines() if line.startswith("engine  ")]
    assert line.split() == ["engine", "950", "11%", "0.95", "95", "0.4%", "3.0"]
    assert "records take 15.0% of the engine's time, drawing 3.0%" in table and "busy" not in table
