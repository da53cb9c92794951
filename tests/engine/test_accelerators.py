"""Programs for accelerators that are not here: lowered for all of them, compiled for TPUs, never run."""

import functools
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from support.command_line import start
from support.engine_runs import DEEP_BASE, DEEP_LINEAR

from topicjax.engine import costs, target
from topicjax.engine import programs as orders
from topicjax.engine.plan import group_trials, make_groups
from topicjax.errors import UserError
from topicjax.experiments import load_experiment
from topicjax.sweep import expand as expand_any
from topicjax.sweep import product
from topicjax.sweep.files import load_sweep, sweep_names

STREAMS, LANES = 2, 3


def shapes(part, *lengths: int):
    """Return traced settings with leading axes, as shapes alone."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(lengths, np.asarray(leaf).dtype), part)


@functools.cache
def lowered_for(experiment, spec) -> tuple[str, ...]:
    """Return the platforms that a window of this program, from its start, can be lowered for."""

    def window(stream, hypers, data):
        state = orders.init_row(experiment, spec, stream, hypers, data)
        state, records = orders.lanes_together(experiment, spec, stream, hypers, state, num_windows=1)
        return experiment.weights(spec, jax.tree.map(lambda leaf: leaf[0], state.trial_L)), records

    export = jax.export.export(jax.jit(jax.vmap(window, (0, 0, None))), platforms=("cuda", "tpu"))
    _, Stream, Hypers = experiment.settings.classes
    traced = experiment.settings.traced
    data = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), experiment.data_shapes(spec)
    )
    return export(shapes(traced(Stream()), STREAMS), shapes(traced(Hypers()), STREAMS, LANES), data).platforms


QUICK = "remark6"  # a single program
NAMES = [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in sweep_names()]


@pytest.mark.parametrize("name", NAMES)
def test_shipped_programs_can_be_lowered_for_gpu_and_tpu(name):
    named = load_sweep(name)
    experiment = load_experiment(named.experiment)
    trials = expand_any(named.settings, named.base, named.sweep)
    by_id = {named.settings.trial_id(trial): trial for trial in trials}
    for group in group_trials(experiment, by_id):
        assert lowered_for(experiment, group.spec) == ("cuda", "tpu")


def test_a_target_needs_the_compiler_of_tpus(monkeypatch):
    monkeypatch.setattr(target.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"--target needs the compiler of TPUs; install it with: .*'jax\[tpu\]"
    ):
        target.target_devices("v5e:2x2")


def test_an_unknown_target_is_one_sentence(monkeypatch):
    def refuse(**_):
        raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: Invalid TPU external name: TPU v99\nat libtpu.cc")

    monkeypatch.setattr(target.importlib.util, "find_spec", lambda name: "found")
    monkeypatch.setattr(target.topologies, "get_topology_desc", refuse)
    for name in target.TPU_ALONE:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"--target is 'v99:2x2'; allowed: .* as v5e:2x2 .*TPU v99\)$"):
        target.target_devices("v99:2x2")


def test_a_program_is_compiled_for_devices_from_shapes_alone():
    """On devices that are here; those of a topology differ in their platform only."""
    trials = expand_any(DEEP_LINEAR.settings, DEEP_BASE, product(seed=(0, 1)))
    by_id = {DEEP_LINEAR.settings.trial_id(trial): trial for trial in trials}
    (group,) = make_groups(DEEP_LINEAR, by_id, 2, 4)
    text = target.verdict(group, jax.local_devices()[:2])
    assert re.fullmatch(r"fits: .* arguments, .* results, .* temporary per device \(compiled in .*\)", text)
    work = target.step_work(group, jax.local_devices()[:2])
    # forward and backward of two 4 x 4 matrices on 8 examples, at least; not many times as much
    assert work.source == "the compiler's count" and 3 * 2 * 2 * 8 * 16 < work.flop < 1e5
    state = costs.sizes(DEEP_LINEAR, group.spec).state
    assert work.num_bytes > 2 * state  # read and written


@pytest.mark.parametrize(
    ("num_bytes", "limit", "rate"), [(1e6, "arithmetic", 195e3), (1e9, "memory", 15.55e3)]
)
def test_a_roofline_against_hand_values(monkeypatch, num_bytes, limit, rate):
    """Ten trials with 1 GFLOP a step on 19.5 TFLOP/s and 1,555 GB/s."""
    monkeypatch.setattr(target, "step_work", lambda *_: target.Work(1e9, num_bytes, "by hand"))
    group = SimpleNamespace(trials_per_chunk=20)
    devices = [SimpleNamespace(device_kind="NVIDIA A100-SXM4-40GB")] * 2
    text = target.roofline(group, devices)  # type: ignore[arg-type]
    assert f"limited by {limit}: " in text and f"at most {rate:,.0f} trial-steps/s per device" in text
    assert "1,000.0 MFLOP" in text and f"{1e9 / num_bytes:.2g} FLOP per byte (by hand)" in text
    unknown = [SimpleNamespace(device_kind="Other")] * 2
    assert "the peaks of Other are not known" in target.roofline(group, unknown)  # type: ignore[arg-type]


def test_a_gpu_needs_the_plugin_for_cuda(monkeypatch):
    monkeypatch.setattr(target.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"--target a100 needs XLA's plugin for CUDA; install it with: .*'jax\[cuda12\]"
    ):
        target.target_devices("a100")


def test_a_program_without_room_is_said_to_have_none(monkeypatch):
    def too_large(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm\nmore")

    monkeypatch.setattr(target, "compile_advance", too_large)
    text = target.verdict(None, [])  # type: ignore[arg-type]
    assert text.startswith("does not fit: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm; fewer")


@pytest.mark.slow
def test_a_sweep_is_compiled_for_tpus_that_are_not_here(tmp_path):
    pytest.importorskip("libtpu", reason="the extra tpu is not installed")
    process = start("plan", "smoke", "--target", "v5e:2x2", cache=tmp_path, cwd=tmp_path, XLA_FLAGS="")
    printed, said = process.communicate()
    assert process.returncode == 0, said
    assert "4 x TPU v5 lite; none is run" in printed
    assert printed.count("fits: ") == 2 and "does not fit" not in printed
    assert printed.count("limited by ") == 2 and "the compiler's count" in printed


@pytest.mark.slow
def test_a_sweep_is_compiled_for_a_gpu_that_is_not_here(tmp_path):
    pytest.importorskip("jax_cuda12_plugin", reason="the extra cuda12 is not installed")
    process = start("plan", "smoke", "--target", "a100", cache=tmp_path, cwd=tmp_path, XLA_FLAGS="")
    printed, said = process.communicate()
    assert process.returncode == 0, said
    assert "1 x NVIDIA A100-SXM4-40GB; none is run" in printed
    assert printed.count("fits: ") == 2 and printed.count("limited by ") == 2
