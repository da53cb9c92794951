"""How fast is it?  The engine against the plain ways, interleaved in one run: only ratios are to be trusted.

Default model and documents.  `engine-sgd` and `engine-adam` are the engine's programs as users get them: all
devices, its own chunks, records on at the default interval, nothing written.  `token-vmap` is the token-space
model in a plain `jit(vmap)` over trials that share documents, `one-trial` the type-space kernel without vmap,
`torch-eager` equation 7 in PyTorch (if installed), one trial at a time and documents drawn beforehand,
`torch-masked` the same tuned: outputs of masked positions only.
"""

import functools
import importlib.util
import json
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

from topicjax import sweep
from topicjax.bench.sizes import Engine, Program, memory_bytes, seconds_of, settings
from topicjax.engine import plan
from topicjax.engine import run as engine_run
from topicjax.experiments.one_layer import lda, model, train
from topicjax.trial import Hypers, Spec, Stream, traced

ENGINE_TRIALS = 64
TOKEN_TRIALS = 16  # about a second a step on two cores, at the rate that 64 reach
SINGLE_RECORDS = 5
TORCH_STEPS = 20
BUSY_SPREAD = 0.3  # (largest - smallest) / median above which the machine was not quiet
BUSY_LOAD = 0.5  # processes that wait or run before we start, a core
REFERENCES = ("token-vmap", "torch-eager")
HEADER = (
    f"{'program':13}{'trial-steps/s':>14}{'spread':>8}{'x token-vmap':>14}{'x torch-eager':>15}"
    f"{'MFLOP/step':>12}{'of GEMM':>9}{'compile s':>11}{'memory MB':>11}"
)


def token_flops(spec: Spec, attending: float = 1.0) -> float:
    """Return the matrix products of one trial-step token by token, if this share of positions attends.

    Keys, queries and values of one-hot tokens are looked up; that is no product.
    """
    lengths = range(spec.length_min, spec.length_max + 1)
    pairs = spec.batch_size * attending * statistics.mean(length**2 for length in lengths)
    return 3 * (2 * pairs * spec.head_width + 2 * pairs * spec.width)


def engine_program(name: str, optimizer: str) -> Program:
    """Return the engine's own program, on all devices, for trials that share their documents."""
    rates = sweep.product(learning_rate=sweep.logspace(1e-4, 1e-2, ENGINE_TRIALS // 2))
    spec = settings(optimizer)
    base = dict(optimizer=optimizer, steps=spec.steps, record_every=spec.record_every)
    trials = sweep.trials(base, rates * sweep.product(objective=("cross_entropy", "squared")))
    options = engine_run.Options()
    return Engine(trials, options.devices, engine_run.choose_lanes(trials, options)).program(name)


def token_program() -> Program:
    """Return one SGD step of the token-space model under vmap, documents shared by all trials."""
    spec, stream = settings("sgd"), traced(Stream())
    rates = jnp.linspace(0.01, 1.0, TOKEN_TRIALS)
    keys, names = lda.stream_keys(0), model.trained_names(spec)
    objective = traced(Hypers()).objective

    def one(rate: jax.Array, params: model.Params, documents: lda.Documents) -> model.Params:
        loss = functools.partial(model.token_loss, spec, stream, objective)
        gradients = jax.grad(lambda trained: loss(params | trained, documents))({n: params[n] for n in names})
        return params | {n: params[n] - rate * gradients[n] for n in names}

    def step(params: model.Params, number: jax.Array) -> model.Params:
        phi_TxW, key = lda.topic_words(spec, stream), jax.random.fold_in(keys.documents, number)
        documents = lda.sample_documents(spec, stream, phi_TxW, key, spec.batch_size)
        return jax.vmap(one, (0, 0, None))(rates, params, documents)

    params = model.init(spec, stream, traced(Hypers()), keys.weights)
    params = {name: jnp.stack([leaf] * TOKEN_TRIALS) for name, leaf in params.items()}
    return jitted("token-vmap", step, (params, jnp.int32(0)), TOKEN_TRIALS, token_flops(spec))


def single_program() -> Program:
    """Return the type-space kernel for one trial alone, Adam, records on."""
    spec, arguments = settings("adam"), (traced(Stream()), traced(Hypers()))
    spec = train.fit_queries(spec, [Stream()])
    state = jax.jit(functools.partial(train.init, spec))(*arguments)
    advance = functools.partial(train.advance, spec, num_records=SINGLE_RECORDS)
    steps = SINGLE_RECORDS * spec.record_every
    return jitted("one-trial", advance, (*arguments, state), steps, plan.step_flops(spec))


def jitted(
    name: str, function: Callable[..., Any], arguments: tuple, trial_steps: int, flop: float
) -> Program:
    """Return the compiled function as a program that starts from the same arguments every time."""
    start = time.monotonic()
    compiled = jax.jit(function).lower(*arguments).compile()
    seconds = time.monotonic() - start

    def step() -> None:
        jax.block_until_ready(compiled(*arguments))

    step()
    return Program(name, step, trial_steps, flop, seconds, memory_bytes(compiled))


def torch_programs() -> list[Program]:
    """Return one trial in eager PyTorch, Adam, plain and tuned, with the number of threads that suits it."""
    from topicjax.bench import torch_programs

    spec, stream, hypers = settings("adam"), traced(Stream()), traced(Hypers())
    keys, phi_TxW = lda.stream_keys(0), lda.topic_words(spec, stream)
    draw = jax.jit(lambda key: lda.sample_documents(spec, stream, phi_TxW, key, spec.batch_size))
    drawn = [draw(jax.random.fold_in(keys.documents, number)) for number in range(TORCH_STEPS)]
    weights = model.init(spec, stream, hypers, keys.weights)
    programs = []
    for name, only_masked in (("torch-eager", False), ("torch-masked", True)):
        batches = [torch_programs.batch(documents, only_masked) for documents in drawn]
        eager = torch_programs.Eager(weights, batches, Hypers().learning_rate)
        eager.use_best_threads(sorted({1, os.cpu_count() or 1}))
        flop = token_flops(spec, Stream().p_mask if only_masked else 1.0)
        programs.append(Program(name, functools.partial(eager.train, TORCH_STEPS), TORCH_STEPS, flop))
    return programs


def gemm_gflops(size: int = 2048) -> float:
    """Return the rate of large matrix products on all cores, or on all accelerators."""
    matrix = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    product(matrix).block_until_ready()
    start = time.monotonic()
    for _ in range(4):
        product(matrix).block_until_ready()
    copies = 1 if jax.devices()[0].platform == "cpu" else len(jax.devices())
    return copies * 4 * 2 * size**3 / (time.monotonic() - start) / 1e9


def time_in_turns(programs: Sequence[Program], repeats: int) -> tuple[dict[str, list[float]], list[float]]:
    """Return the trial-steps/s of every program and the GFLOP/s of a large product, timed in turns."""
    gemm: list[float] = []
    calls = [lambda: gemm.append(gemm_gflops()), *(program.step for program in programs)]
    seconds = seconds_of(calls, repeats)[1:]
    rates = {
        program.name: [program.trial_steps / each for each in own]
        for program, own in zip(programs, seconds, strict=True)
    }
    return rates, gemm


def device() -> str:
    """Return the devices in words."""
    return f"{len(jax.devices())} x {jax.devices()[0].device_kind}"


def peak_memory_bytes() -> int:
    """Return the most memory this process ever held; compiling is often what sets it."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # kilobytes but for macOS


def run(repeats: int) -> dict[str, Any]:
    """Return the rates of all programs, timed in turns."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    programs = [engine_program("engine-sgd", "sgd"), engine_program("engine-adam", "adam")]
    programs += [token_program(), single_program()]
    if importlib.util.find_spec("torch"):
        programs += torch_programs()
    rates, gemm = time_in_turns(programs, repeats)
    machine = dict(device=device(), load_before=load, peak_memory_bytes=peak_memory_bytes())
    return summary(programs, rates, gemm) | machine | dict(record_every=Spec().record_every)


def summary(
    programs: Sequence[Any], rates: Mapping[str, Sequence[float]], gemm: Sequence[float]
) -> dict[str, Any]:
    """Return medians, spreads, ratios and shares of all programs; None where there is nothing to say."""
    median = {name: statistics.median(values) for name, values in rates.items()}
    gemm_gflops = statistics.median(gemm)
    rows = []
    for program in programs:
        rate, own = median[program.name], rates[program.name]
        row = dict(program=program.name, trial_steps_per_second=rate, lowest=min(own), highest=max(own))
        row |= dict(spread=(max(own) - min(own)) / rate)
        for reference in REFERENCES:
            ratio = rate / median[reference] if reference in median else None
            row[f"times_{reference.replace('-', '_')}"] = ratio
        row |= dict(flop_per_trial_step=program.flop, gemm_share=rate * program.flop / gemm_gflops / 1e9)
        known = math.isfinite(program.memory_bytes)
        row |= dict(compile_seconds=program.compile_seconds)
        row |= dict(memory_bytes=program.memory_bytes if known else None)
        rows.append(row)
    return dict(repeats=len(gemm), gemm_gflops=gemm_gflops, programs=rows)


def text(result: Mapping[str, Any]) -> str:
    """Return the table people read."""
    rows = result["programs"]
    flop = next(row["flop_per_trial_step"] for row in rows if row["program"] == "engine-adam")
    limit = result["gemm_gflops"] * 1e9 / flop
    lines = [
        f"{result['device']}; T = v = 10, batch 40, records every {result['record_every']} steps; "
        f"median of {result['repeats']} interleaved repeats",
        HEADER,
        *map(line, rows),
        f"large GEMM on all cores: {result['gemm_gflops']:.0f} GFLOP/s = at most {limit:,.0f} trial-steps/s "
        f"of the engine's {flop / 1e6:.1f} MFLOP",
        "MFLOP/step: matrix products the method needs, forward and backward, without padding or spare rows;",
        "  of GEMM: what that is of the large GEMM's rate; memory: arguments, results and temporaries",
        f"peak memory of the whole process, compiling included: {result['peak_memory_bytes'] / 1e6:,.0f} MB",
    ]
    if not any(row["program"] == "torch-eager" for row in rows):
        lines.append("torch-eager was left out; to add it: .venv/bin/pip install --editable '.[bench]'")
    return "\n".join(lines + warnings(result))


def line(row: Mapping[str, Any]) -> str:
    """Return one program's line."""
    rate = row["trial_steps_per_second"]
    ratios = [row["times_token_vmap"], row["times_torch_eager"]]
    vmap, torch = (f"{ratio:.3g}" if ratio is not None else "-" for ratio in ratios)
    memory = f"{row['memory_bytes'] / 1e6:.0f}" if row["memory_bytes"] is not None else "-"
    compiling = f"{row['compile_seconds']:.1f}" if row["compile_seconds"] else "-"
    return (
        f"{row['program']:13}{rate:14,.0f}{row['spread']:8.0%}{vmap:>14}{torch:>15}"
        f"{row['flop_per_trial_step'] / 1e6:12.1f}{row['gemm_share']:9.1%}{compiling:>11}{memory:>11}"
    )


def warnings(result: Mapping[str, Any]) -> list[str]:
    """Return what makes these rates doubtful."""
    found = []
    if max(row["spread"] for row in result["programs"]) > BUSY_SPREAD:
        found.append(
            f"warning: rates spread by more than {BUSY_SPREAD:.0%}: the machine is busy; ratios are surer "
            "than rates, a quiet machine is better than both"
        )
    if result["load_before"] > BUSY_LOAD:
        found.append(
            f"warning: {result['load_before']:.1f} processes a core were running before this one: "
            "the machine is busy, rates are too low"
        )
    return found


def main(repeats: int, as_json: bool) -> None:
    """Time everything and print it."""
    engine_run.use_all_cores()
    result = run(repeats)
    print(json.dumps(result, indent=2) if as_json else text(result))
