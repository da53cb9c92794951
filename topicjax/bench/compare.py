"""Compare the engine with simpler implementations, timed in turns: trust ratios, not rates.

`topicjax bench`, default model and documents: `engine-sgd` and `engine-adam` are the engine's programs as
users get them: all devices, its own chunks, records on at the default interval, nothing written; `no-records`
is engine-adam with one column that costs nothing, `adam-together` engine-adam in the order of accelerators,
all lanes together.  `token-vmap` is the token-space model in a plain `jit(vmap)` over trials that share
documents, `one-trial` the type-space kernel for a single trial, `torch-eager` equation 7 in PyTorch (if
installed), one trial per process with documents drawn beforehand, and `torch-masked` the same with outputs
only at masked positions; both with one process per core or one with all threads, whichever is faster.
"""

import functools
import importlib.util
import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.advice import install_command
from topicjax.bench.timing import (
    EngineChunks,
    Method,
    bench_spec,
    drawing_share,
    memory_bytes,
    planned_record_share,
    seconds_of,
    without_records,
)
from topicjax.bench.torch_processes import TorchProcesses, best_torch
from topicjax.engine import costs
from topicjax.engine.programs import init_row, lane_at_a_time
from topicjax.engine.resources import use_all_cores
from topicjax.experiments import Experiment
from topicjax.experiments.one_layer import model
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import TRIALS, Hypers, Spec, traced
from topicjax.experiments.shared import lda, threefry
from topicjax.experiments.shared.bags import fit_queries
from topicjax.experiments.shared.model import Params
from topicjax.sweep import expand, logspace, product
from topicjax.theory.document_settings import Stream

ENGINE_TRIALS = 128
TOGETHER_LANES = 16  # fastest on a core for lanes together
TOKEN_TRIALS = 16  # about a second per step on two cores, at the same rate as 64 trials
SINGLE_RECORDS = 5
TORCH_STEPS = 20
BUSY_SPREAD = 0.3  # (largest - smallest) / median above which the machine was not quiet
BUSY_LOAD = 0.5  # running processes per core before this one
REFERENCES = ("token-vmap", "torch-eager")
HEADER = (
    f"{'method':13}{'trial-steps/s':>14}{'spread':>8}{'x token-vmap':>14}{'x torch-eager':>15}"
    f"{'MFLOP/step':>12}{'of GEMM':>9}{'compile s':>11}{'memory MB':>11}"
)


def token_flops(spec: Spec, attending: float = 1.0) -> float:
    """Compute the FLOP of one trial-step in the token-space model, if this share of positions attends.

    Keys, queries and values of one-hot tokens are looked up, not multiplied.
    """
    lengths = range(spec.shortest, spec.longest + 1)
    pairs = spec.batch_size * attending * statistics.mean(length**2 for length in lengths)
    return 3 * (2 * pairs * spec.head_width + 2 * pairs * spec.width)


def engine_chunks(
    optimizer: str, order: str = "", lanes: int = 0, experiment: Experiment = EXPERIMENT
) -> EngineChunks:
    """Compile the engine's own program on all devices, for trials that share their documents."""
    rates = product(learning_rate=logspace(1e-4, 1e-2, ENGINE_TRIALS // 2))
    spec, devices = bench_spec(optimizer), jax.local_devices()
    base = dict(optimizer=optimizer, steps=spec.steps, record_every=spec.record_every)
    trials = expand(TRIALS, base, rates * product(objective=("cross_entropy", "squared")))
    lanes = lanes or costs.lanes_that_fit(experiment, [spec], devices)
    return EngineChunks(trials, devices, lanes, order, experiment)


def token_method() -> Method:
    """Set up one SGD step of the token-space model under vmap, with documents shared by all trials."""
    spec, stream = bench_spec("sgd"), traced(Stream())
    rates = jnp.linspace(0.01, 1.0, TOKEN_TRIALS)
    keys, names = lda.stream_keys(0), model.trained_names(spec)
    objective = traced(Hypers()).objective

    def one(rate: jax.Array, params: Params, documents: lda.Documents) -> Params:
        loss = functools.partial(model.token_loss, spec, stream, objective)
        gradients = jax.grad(lambda trained: loss(params | trained, documents))({n: params[n] for n in names})
        return params | {n: params[n] - rate * gradients[n] for n in names}

    def step(params: Params, number: jax.Array) -> Params:
        phi_TxW, key = lda.topic_words(spec, stream), threefry.fold_in(threefry.raw(keys.documents), number)
        documents = lda.sample_documents(spec, stream, phi_TxW, key, spec.batch_size)
        return jax.vmap(one, (0, 0, None))(rates, params, documents)

    params = model.init(spec, stream, traced(Hypers()), keys.weights)
    params = {name: jnp.stack([leaf] * TOKEN_TRIALS) for name, leaf in params.items()}
    return jitted("token-vmap", step, (params, jnp.int32(0)), TOKEN_TRIALS, token_flops(spec))


def single_method() -> Method:
    """Set up the type-space kernel for a single trial, with Adam and records."""
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
    """Compile the function; it starts from the same arguments every time."""
    start = time.monotonic()
    compiled = jax.jit(function).lower(*arguments).compile()
    seconds = time.monotonic() - start

    def step() -> None:
        jax.block_until_ready(compiled(*arguments))

    step()
    return Method(name, step, trial_steps, flop, seconds, memory_bytes(compiled))


def drawn_documents(spec: Any, stream: Any, steps: int) -> list[lda.Documents]:
    """Draw the documents of the first steps."""
    keys, phi_TxW = lda.stream_keys(0), lda.topic_words(spec, stream)
    draw = jax.jit(lambda key: lda.sample_documents(spec, stream, phi_TxW, key, spec.batch_size))
    return [draw(threefry.fold_in(threefry.raw(keys.documents), number)) for number in range(steps)]


def torch_methods() -> tuple[list[Method], list[TorchProcesses]]:
    """Set up trials in eager PyTorch with Adam, plain and tuned, and return their processes too."""
    spec, stream, hypers = bench_spec("adam"), traced(Stream()), traced(Hypers())
    weights = model.init(spec, stream, hypers, lda.stream_keys(0).weights)
    given = dict(
        model="attention",
        learning_rate=Hypers().learning_rate,
        weights={name: np.asarray(weights[name]) for name in ("W_K", "W_Q", "W_V")},
        documents=[tuple(map(np.asarray, each)) for each in drawn_documents(spec, stream, TORCH_STEPS)],
    )
    methods, processes = [], []
    for name, only_masked in (("torch-eager", False), ("torch-masked", True)):
        torch = best_torch(given | dict(only_masked=only_masked), TORCH_STEPS)
        flop = token_flops(spec, Stream().p_mask if only_masked else 1.0)
        train = functools.partial(torch.train, TORCH_STEPS)
        methods.append(Method(name, train, TORCH_STEPS * len(torch.members), flop))
        processes.append(torch)
    return methods, processes


def gemm_gflops(size: int = 2048) -> float:
    """Measure the GFLOP/s of large matrix products on all cores, or on all accelerators."""
    matrix = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    product(matrix).block_until_ready()
    start = time.monotonic()
    for _ in range(4):
        product(matrix).block_until_ready()
    copies = 1 if jax.devices()[0].platform == "cpu" else len(jax.devices())
    return copies * 4 * 2 * size**3 / (time.monotonic() - start) / 1e9


def time_in_turns(methods: Sequence[Method], repeats: int) -> tuple[dict[str, list[float]], list[float]]:
    """Time the trial-steps per second of each method and the GFLOP/s of a large product, in turns."""
    gemm: list[float] = []
    calls = [lambda: gemm.append(gemm_gflops()), *(method.step for method in methods)]
    return rates_of(methods, seconds_of(calls, repeats)[1:]), gemm


def rates_of(methods: Sequence[Method], seconds: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """Compute the trial-steps per second of each method and repeat."""
    return {
        method.name: [method.trial_steps / each for each in taken]
        for method, taken in zip(methods, seconds, strict=True)
    }


def device() -> str:
    """Describe the devices."""
    return f"{len(jax.devices())} x {jax.devices()[0].device_kind}"


def peak_memory_bytes() -> int:
    """Measure the peak memory of this process, which often occurs during compilation."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # in kilobytes except on macOS


def run(repeats: int) -> dict[str, Any]:
    """Measure the rates of all methods, timed in turns."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    chunks = engine_chunks("adam")
    methods = [engine_chunks("sgd").method("engine-sgd"), chunks.method("engine-adam")]
    methods.append(engine_chunks("adam", experiment=without_records(EXPERIMENT)).method("no-records"))
    methods.append(engine_chunks("adam", "together", TOGETHER_LANES).method("adam-together"))
    methods += [token_method(), single_method()]
    eager, processes = torch_methods() if importlib.util.find_spec("torch") else ([], [])
    methods += eager
    rates, gemm = time_in_turns(methods, repeats)
    for torch in processes:
        torch.close()
    machine = dict(device=device(), load_before=load, peak_memory_bytes=peak_memory_bytes())
    machine |= dict(
        record_share=record_share(rates["engine-adam"], rates["no-records"]),
        planned_record_share=planned_record_share(chunks),
        drawing_share=drawing_share(chunks, statistics.median(rates["engine-adam"]), repeats),
    )
    labels = {method.name: torch.label for method, torch in zip(eager, processes, strict=True)}
    return (
        summary(methods, rates, gemm)
        | machine
        | dict(record_every=Spec().record_every, torch_processes=labels)
    )


def record_share(with_records: Sequence[float], without: Sequence[float]) -> float:
    """Compute the share of time that records take, from rates of neighbouring turns."""
    return 1 - statistics.median(one / other for one, other in zip(with_records, without, strict=True))


def compare(repeats: int) -> tuple[dict[str, Any], str]:
    """Time all methods on the default model; return the numbers, and a table of them."""
    use_all_cores()
    result = run(repeats)
    return result, text(result)


def summary(
    methods: Sequence[Method], rates: Mapping[str, Sequence[float]], gemm: Sequence[float]
) -> dict[str, Any]:
    """Compute medians, spreads, ratios and shares of all methods; None where a number is unknown."""
    median = {name: statistics.median(values) for name, values in rates.items()}
    gemm_gflops = statistics.median(gemm)
    rows = []
    for method in methods:
        rate, low, high = median[method.name], min(rates[method.name]), max(rates[method.name])
        row: dict[str, Any] = dict(method=method.name, trial_steps_per_second=rate)
        row |= dict(lowest=low, highest=high, spread=(high - low) / rate)
        for reference in REFERENCES:
            ratio = rate / median[reference] if reference in median else None
            row[f"times_{reference.replace('-', '_')}"] = ratio
        row |= dict(flop_per_trial_step=method.flop, gemm_share=rate * method.flop / gemm_gflops / 1e9)
        known = math.isfinite(method.memory_bytes)
        row |= dict(compile_seconds=method.compile_seconds)
        row |= dict(memory_bytes=method.memory_bytes if known else None)
        rows.append(row)
    return dict(repeats=len(gemm), gemm_gflops=gemm_gflops, methods=rows)


def text(result: Mapping[str, Any]) -> str:
    """Format the result as a table."""
    rows = result["methods"]
    flop = next(row["flop_per_trial_step"] for row in rows if row["method"] == "engine-adam")
    limit = result["gemm_gflops"] * 1e9 / flop
    lines = [
        f"{result['device']}; T = v = 10, batch 40, records every {result['record_every']} steps; "
        f"median of {result['repeats']} interleaved repeats",
        HEADER,
        *map(line, rows),
        f"large GEMM on all cores: {result['gemm_gflops']:.0f} GFLOP/s = at most {limit:,.0f} trial-steps/s "
        f"of the engine's {flop / 1e6:.1f} MFLOP",
        f"records take {result['record_share']:.1%} of engine-adam's time (the plan expects "
        f"{result['planned_record_share']:.1%}), drawing documents {result['drawing_share']:.1%}",
        "MFLOP/step: matrix products of the method, forward and backward, without padding or unused queries;",
        "  of GEMM: their share of the large GEMM's rate; memory: arguments, results and temporaries",
        f"peak memory of the whole process, compiling included: {result['peak_memory_bytes'] / 1e6:,.0f} MB",
    ]
    if labels := result["torch_processes"]:
        lines.append(", ".join(f"{name}: {label}" for name, label in labels.items()))
    else:
        lines.append(f"torch-eager was left out; to add it: {install_command('bench')}")
    return "\n".join(lines + warnings(result))


def line(row: Mapping[str, Any]) -> str:
    """Format the line of one method."""
    rate = row["trial_steps_per_second"]
    ratios = [row["times_token_vmap"], row["times_torch_eager"]]
    vmap, torch = (f"{ratio:.3g}" if ratio is not None else "-" for ratio in ratios)
    memory = f"{row['memory_bytes'] / 1e6:.0f}" if row["memory_bytes"] is not None else "-"
    compiling = f"{row['compile_seconds']:.1f}" if row["compile_seconds"] else "-"
    return (
        f"{row['method']:13}{rate:14,.0f}{row['spread']:8.0%}{vmap:>14}{torch:>15}"
        f"{row['flop_per_trial_step'] / 1e6:12.1f}{row['gemm_share']:9.1%}{compiling:>11}{memory:>11}"
    )


def warnings(result: Mapping[str, Any]) -> list[str]:
    """List reasons to doubt these rates."""
    found = []
    if max(row["spread"] for row in result["methods"]) > BUSY_SPREAD:
        found.append(
            f"warning: rates spread by more than {BUSY_SPREAD:.0%}: the machine is busy; ratios are more "
            "reliable than rates, and a quiet machine is better than both"
        )
    return found + busy_warning(result)


def busy_warning(result: Mapping[str, Any]) -> list[str]:
    """Say so if other processes were running before the benchmark."""
    if result["load_before"] <= BUSY_LOAD:
        return []
    return [
        f"warning: {result['load_before']:.1f} processes per core were running before this one: "
        "the machine is busy, rates are too low"
    ]
