"""How fast is the engine beside plain ways to train?  All are timed in turns: trust ratios, not rates.

Default model and documents.  `engine-sgd` and `engine-adam` are the engine's programs as users get them: all
devices, its own chunks, records on at the default interval, nothing written; `adam-together` is engine-adam
in the order of accelerators, all lanes together.  `token-vmap` is the token-space model in a plain
`jit(vmap)` over trials that share documents, `one-trial` the type-space kernel for one trial alone,
`torch-eager` equation 7 in PyTorch (if installed), one trial at a time with documents drawn beforehand, and
`torch-masked` the same with outputs of masked positions only.
"""

import functools
import importlib.util
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from topicjax.bench.engine_chunks import EngineChunks, bench_spec
from topicjax.bench.summary import summary, text
from topicjax.bench.timing import Method, memory_bytes, seconds_of
from topicjax.engine import costs
from topicjax.engine.programs import init_row, lane_at_a_time
from topicjax.engine.run import use_all_cores
from topicjax.experiments.one_layer import lda, model, threefry
from topicjax.experiments.one_layer.experiment import EXPERIMENT, fit_queries
from topicjax.experiments.one_layer.settings import TRIALS, Hypers, Spec, Stream, traced
from topicjax.sweep import expand, logspace, product

ENGINE_TRIALS = 128
TOGETHER_LANES = 16  # at which lanes together are fastest on a core
TOKEN_TRIALS = 16  # about a second per step on two cores, at the rate that 64 trials reach too
SINGLE_RECORDS = 5
TORCH_STEPS = 20


def token_flops(spec: Spec, attending: float = 1.0) -> float:
    """Return the FLOP of one trial-step in the token-space model, if this share of positions attends.

    Keys, queries and values of one-hot tokens are looked up, not multiplied.
    """
    lengths = range(spec.shortest, spec.longest + 1)
    pairs = spec.batch_size * attending * statistics.mean(length**2 for length in lengths)
    return 3 * (2 * pairs * spec.head_width + 2 * pairs * spec.width)


def engine_method(name: str, optimizer: str, order: str = "", lanes: int = 0) -> Method:
    """Return the engine's own program on all devices, for trials that share their documents."""
    rates = product(learning_rate=logspace(1e-4, 1e-2, ENGINE_TRIALS // 2))
    spec, devices = bench_spec(optimizer), jax.local_devices()
    base = dict(optimizer=optimizer, steps=spec.steps, record_every=spec.record_every)
    trials = expand(TRIALS, base, rates * product(objective=("cross_entropy", "squared")))
    lanes = lanes or costs.lanes_that_fit(EXPERIMENT, [spec], devices)
    return EngineChunks(trials, devices, lanes, order).method(name)


def token_method() -> Method:
    """Return one SGD step of the token-space model under vmap, documents shared by all trials."""
    spec, stream = bench_spec("sgd"), traced(Stream())
    rates = jnp.linspace(0.01, 1.0, TOKEN_TRIALS)
    keys, names = lda.stream_keys(0), model.trained_names(spec)
    objective = traced(Hypers()).objective

    def one(rate: jax.Array, params: model.Params, documents: lda.Documents) -> model.Params:
        loss = functools.partial(model.token_loss, spec, stream, objective)
        gradients = jax.grad(lambda trained: loss(params | trained, documents))({n: params[n] for n in names})
        return params | {n: params[n] - rate * gradients[n] for n in names}

    def step(params: model.Params, number: jax.Array) -> model.Params:
        phi_TxW, key = lda.topic_words(spec, stream), threefry.fold_in(threefry.raw(keys.documents), number)
        documents = lda.sample_documents(spec, stream, phi_TxW, key, spec.batch_size)
        return jax.vmap(one, (0, 0, None))(rates, params, documents)

    params = model.init(spec, stream, traced(Hypers()), keys.weights)
    params = {name: jnp.stack([leaf] * TOKEN_TRIALS) for name, leaf in params.items()}
    return jitted("token-vmap", step, (params, jnp.int32(0)), TOKEN_TRIALS, token_flops(spec))


def single_method() -> Method:
    """Return the type-space kernel for one trial alone, Adam, records on."""
    spec, stream = fit_queries(bench_spec("adam"), [Stream()]), traced(Stream())
    hypers_1 = jax.tree.map(lambda leaf: leaf[None], traced(Hypers()))
    state = jax.jit(functools.partial(init_row, EXPERIMENT, spec))(stream, hypers_1)
    advance = functools.partial(lane_at_a_time, EXPERIMENT, spec, num_windows=SINGLE_RECORDS)
    steps = SINGLE_RECORDS * spec.record_every
    flop = costs.step_flops(EXPERIMENT, spec)
    return jitted("one-trial", advance, (stream, hypers_1, state), steps, flop)


def jitted(
    name: str, function: Callable[..., Any], arguments: tuple, trial_steps: int, flop: float
) -> Method:
    """Return the function, compiled; it starts from the same arguments every time."""
    start = time.monotonic()
    compiled = jax.jit(function).lower(*arguments).compile()
    seconds = time.monotonic() - start

    def step() -> None:
        jax.block_until_ready(compiled(*arguments))

    step()
    return Method(name, step, trial_steps, flop, seconds, memory_bytes(compiled))


def torch_methods() -> list[Method]:
    """Return one trial in eager PyTorch, Adam, plain and tuned, each with the best number of threads."""
    from topicjax.bench import torch_eager

    spec, stream, hypers = bench_spec("adam"), traced(Stream()), traced(Hypers())
    keys, phi_TxW = lda.stream_keys(0), lda.topic_words(spec, stream)
    draw = jax.jit(lambda key: lda.sample_documents(spec, stream, phi_TxW, key, spec.batch_size))
    drawn = [draw(threefry.fold_in(threefry.raw(keys.documents), number)) for number in range(TORCH_STEPS)]
    weights = model.init(spec, stream, hypers, keys.weights)
    methods, attention = [], lambda own: torch_eager.Attention(own["W_K"], own["W_Q"], own["W_V"])
    for name, only_masked in (("torch-eager", False), ("torch-masked", True)):
        batches = [torch_eager.batch(documents, only_masked) for documents in drawn]
        trial = torch_eager.EagerTrial(attention(weights), batches, Hypers().learning_rate)
        trial.use_best_threads(sorted({1, os.cpu_count() or 1}))
        flop = token_flops(spec, Stream().p_mask if only_masked else 1.0)
        methods.append(Method(name, functools.partial(trial.train, TORCH_STEPS), TORCH_STEPS, flop))
    return methods


def gemm_gflops(size: int = 2048) -> float:
    """Return the GFLOP/s of large matrix products on all cores, or on all accelerators."""
    matrix = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    product(matrix).block_until_ready()
    start = time.monotonic()
    for _ in range(4):
        product(matrix).block_until_ready()
    copies = 1 if jax.devices()[0].platform == "cpu" else len(jax.devices())
    return copies * 4 * 2 * size**3 / (time.monotonic() - start) / 1e9


def time_in_turns(methods: Sequence[Method], repeats: int) -> tuple[dict[str, list[float]], list[float]]:
    """Return the trial-steps per second of each method and the GFLOP/s of a large product, timed in turns."""
    gemm: list[float] = []
    calls = [lambda: gemm.append(gemm_gflops()), *(method.step for method in methods)]
    seconds = seconds_of(calls, repeats)[1:]
    rates = {
        method.name: [method.trial_steps / each for each in own]
        for method, own in zip(methods, seconds, strict=True)
    }
    return rates, gemm


def device() -> str:
    """Return the devices in words."""
    return f"{len(jax.devices())} x {jax.devices()[0].device_kind}"


def peak_memory_bytes() -> int:
    """Return the peak memory of this process, which is often that of compiling."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # in kilobytes except on macOS


def run(repeats: int) -> dict[str, Any]:
    """Return the rates of all methods, timed in turns."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    methods = [engine_method("engine-sgd", "sgd"), engine_method("engine-adam", "adam")]
    methods.append(engine_method("adam-together", "adam", "together", TOGETHER_LANES))
    methods += [token_method(), single_method()]
    if importlib.util.find_spec("torch"):
        methods += torch_methods()
    rates, gemm = time_in_turns(methods, repeats)
    machine = dict(device=device(), load_before=load, peak_memory_bytes=peak_memory_bytes())
    return summary(methods, rates, gemm) | machine | dict(record_every=Spec().record_every)


def main(repeats: int, as_json: bool) -> None:
    """Time all methods and print the result."""
    use_all_cores()
    result = run(repeats)
    print(json.dumps(result, indent=2) if as_json else text(result))
