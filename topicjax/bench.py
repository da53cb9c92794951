"""How fast is it?  The engine against the plain ways, interleaved in one run: only ratios are to be trusted.

Programs: `engine-sgd` and `engine-adam` as users get them, records on; `token-vmap`, the token-space model
under `vmap` over trials that share documents; `one-trial`, the type-space kernel one trial at a time.
"""

import functools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from topicjax import engine, grid, lda, model, plan, train
from topicjax.config import Hypers, Spec, Stream, numbers, validate_spec
from topicjax.programs import Programs

TRIALS = 64
BUSY_SPREAD = 0.3  # (largest - smallest) / median above which the machine was not quiet


@dataclass
class Program:
    """Something to time: `step()` runs `trial_steps` trial-steps to their end."""

    name: str
    step: Callable[[], Any]
    trial_steps: int
    compile_seconds: float


def settings(optimizer: str, record_every: int = 20, **changes: Any) -> Spec:
    """Return the default model and documents with this optimizer."""
    spec = replace(Spec(steps=20 * record_every, record_every=record_every), optimizer=optimizer, **changes)
    validate_spec(spec)
    return spec


def engine_program(name: str, spec: Spec) -> Program:
    """Return the engine's own program, on all devices, for trials that share their documents."""
    rates = grid.product(learning_rate=grid.logspace(1e-4, 1e-2, TRIALS // 2))
    base = dict(optimizer=spec.optimizer, steps=spec.steps, record_every=spec.record_every)
    trials = grid.trials(base, rates * grid.product(objective=("cross_entropy", "squared")))
    options = engine.Options()
    lanes = engine.choose_lanes(trials, options)
    (group,) = plan.make_plan(trials, len(options.devices), lanes)
    mesh = Mesh(np.array(options.devices), ("devices",), axis_types=(AxisType.Auto,))
    compiling: list[float] = []
    programs = Programs(group, (), mesh, compiling.append)
    streams, hypers = programs.arguments(group.chunks[0])
    state = programs.init(streams, hypers)

    def step() -> None:
        nonlocal state
        state, records = programs.advance(streams, hypers, state)
        jax.block_until_ready((state, records))

    step()
    steps = programs.window * spec.record_every * group.rows_per_chunk * group.lanes
    return Program(name, step, steps, sum(compiling))


def token_program() -> Program:
    """Return SGD steps of the token-space model under vmap, documents shared by all trials."""
    spec, stream = settings("sgd"), numbers(Stream())
    hypers = [numbers(Hypers(learning_rate=0.01 * (i + 1), objective="cross_entropy")) for i in range(TRIALS)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *hypers)
    keys = lda.stream_keys(0)
    names = model.trained_names(spec)

    def one(hypers: Hypers, params: model.Params, documents: lda.Documents) -> model.Params:
        loss = functools.partial(model.token_loss, spec, stream, hypers.objective)
        gradients = jax.grad(lambda trained: loss(params | trained, documents))({n: params[n] for n in names})
        return params | {n: params[n] - hypers.learning_rate * gradients[n] for n in names}

    @jax.jit
    def step(params: model.Params, number: jax.Array) -> model.Params:
        phi_TxW, key = lda.topic_words(spec, stream), jax.random.fold_in(keys.documents, number)
        documents = lda.sample_documents(spec, stream, phi_TxW, key, spec.batch_size)
        return jax.vmap(one, (0, 0, None))(stacked, params, documents)

    params = jax.vmap(lambda h: model.init(spec, stream, h, keys.weights))(stacked)
    start = time.monotonic()
    compiled = step.lower(params, jnp.int32(0)).compile()
    seconds = time.monotonic() - start
    return Program(
        "token-vmap", lambda: jax.block_until_ready(compiled(params, jnp.int32(0))), TRIALS, seconds
    )


def single_program(name: str = "one-trial", optimizer: str = "adam") -> Program:
    """Return one trial alone, jitted, records on."""
    spec, stream, hypers = settings(optimizer), numbers(Stream()), numbers(Hypers())
    spec = train.fit_rows(spec, [Stream()])
    state = jax.jit(functools.partial(train.init, spec))(stream, hypers)
    advance = jax.jit(functools.partial(train.advance, spec, num_records=5))
    start = time.monotonic()
    compiled = advance.lower(stream, hypers, state).compile()
    seconds = time.monotonic() - start
    return Program(
        name, lambda: jax.block_until_ready(compiled(stream, hypers, state)), 5 * spec.record_every, seconds
    )


def gemm_gflops(size: int = 2048) -> float:
    """Return the rate of one large matrix product."""
    matrix = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    product(matrix).block_until_ready()
    start = time.monotonic()
    for _ in range(4):
        product(matrix).block_until_ready()
    return 4 * 2 * size**3 / (time.monotonic() - start) / 1e9


def run(repeats: int) -> dict[str, Any]:
    """Return the rates of all programs, timed in turns."""
    programs = [
        engine_program("engine-sgd", settings("sgd")),
        engine_program("engine-adam", settings("adam")),
        token_program(),
        single_program(),
    ]
    rates: dict[str, list[float]] = {program.name: [] for program in programs}
    gemm = []
    for _ in range(repeats):
        gemm.append(gemm_gflops())
        for program in programs:
            start = time.monotonic()
            program.step()
            rates[program.name].append(program.trial_steps / (time.monotonic() - start))
    flops = plan.step_flops(train.fit_rows(settings("adam"), [Stream()]))
    rows = []
    for program in programs:
        rate = statistics.median(rates[program.name])
        rows.append(
            {
                "program": program.name,
                "trial_steps_per_second": rate,
                "spread": (max(rates[program.name]) - min(rates[program.name])) / rate,
                "compile_seconds": program.compile_seconds,
            }
        )
    return {
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "repeats": repeats,
        "gemm_gflops": statistics.median(gemm),
        "flop_per_trial_step": flops,
        "programs": rows,
    }


def text(result: dict[str, Any]) -> str:
    """Return the table people read."""
    by_name = {row["program"]: row["trial_steps_per_second"] for row in result["programs"]}
    limit = result["gemm_gflops"] * 1e9 / result["flop_per_trial_step"]
    lines = [
        f"{result['device']}; T = v = 10, batch 40; median of {result['repeats']} interleaved repeats",
        f"{'program':14}{'trial-steps/s':>15}{'x token-vmap':>14}{'of GEMM limit':>15}{'compile s':>11}",
    ]
    for row in result["programs"]:
        rate = row["trial_steps_per_second"]
        ratio, share = rate / by_name["token-vmap"], rate / limit
        lines.append(
            f"{row['program']:14}{rate:15,.0f}{ratio:14.1f}{share:15.0%}{row['compile_seconds']:11.1f}"
        )
    lines.append(f"large GEMM: {result['gemm_gflops']:.0f} GFLOP/s = at most {limit:,.0f} trial-steps/s")
    if max(row["spread"] for row in result["programs"]) > BUSY_SPREAD:
        lines.append("the machine was busy: rates spread by more than 30 %, trust the ratios only")
    return "\n".join(lines)


def main(repeats: int, as_json: bool) -> None:
    """Time everything and print it."""
    engine.use_all_cores()
    result = run(repeats)
    print(json.dumps(result, indent=2) if as_json else text(result))
