"""Compare the engine on a tiny model with a hand-written loop and eager PyTorch, timed in turns.

`topicjax bench --tiny`: linear attention of 363 parameters, 1,000 trials of 10 seeds, 10 learning rates and
10 scales of the initial weights.  `engine` is what users get: its own chunks, the order of work that it finds
faster, records on.  `by hand` is a plain `jit(vmap(scan))` of the same functions with the same records: the
100 trials of a seed share their prompts, and every core trains a seed of its own.  PyTorch trains one trial
per process, without records, on prompts drawn beforehand.  Nothing is written.
"""

import functools
import os
import statistics
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.bench import linear_attention as model
from topicjax.bench.compare import busy_warning, device, gemm_gflops, jitted, rates_of, record_share
from topicjax.bench.timing import EngineChunks, Method, drawing_share, seconds_of, without_records
from topicjax.bench.torch_processes import best_torch, need_torch
from topicjax.engine import costs
from topicjax.engine.orders import faster
from topicjax.engine.plan import group_trials
from topicjax.engine.programs import REPLICATED, SHARDED, device_mesh
from topicjax.engine.resources import use_all_cores
from topicjax.experiments import Experiment
from topicjax.sweep import expand, logspace, product

SWEEP = product(seed=range(10), learning_rate=logspace(1e-3, 1e-1, 10), init_scale=logspace(1e-2, 1.0, 10))
TORCH_BATCHES, TORCH_STEPS = 20, 200
HEADER = f"{'method':12}{'trial-steps/s':>15}{'spread':>8}{'x by hand':>11}{'x torch':>9}{'of GEMM':>9}"


def engine_chunks(experiment: Experiment, order: str = "") -> EngineChunks:
    """Compile the engine's program as a run would: its own lanes, and the faster order unless it is given."""
    settings, devices = experiment.settings, jax.local_devices()
    trials = expand(settings, {}, SWEEP)
    groups = group_trials(experiment, {settings.trial_id(trial): trial for trial in trials})
    most = costs.lanes_that_fit(experiment, [group.spec for group in groups], devices)
    lanes = costs.chosen_lanes(groups, devices, most)
    chunks = EngineChunks(trials, devices, lanes, order, experiment)
    chosen = chunks.programs if order else faster(chunks.programs)
    if chosen.order != chunks.programs.order:  # compiled while it was timed
        chunks = EngineChunks(trials, devices, lanes, chosen.order, experiment)
        chunks.compile_seconds = chosen.compile_seconds
    return chunks


def by_hand(spec: model.Spec, records: int, seed: Any, rate_L: Any, scale_L: Any) -> tuple[Any, Any]:
    """Train the trials of a seed; return their states and records, L x records."""
    stream = model.Stream(seed)
    held_out = model.source(spec, stream)

    def train(rate: Any, scale: Any) -> tuple[Any, Any]:
        hypers = model.Hypers(rate, scale)

        def step(state: Any, at: Any) -> tuple[Any, None]:
            return model.update(spec, stream, hypers, state, model.batch(spec, stream, held_out, at), at)[
                0
            ], None

        def window(state: Any, first: Any) -> tuple[Any, Any]:
            prompts = model.batch(spec, stream, held_out, first)
            following, made = model.update(spec, stream, hypers, state, prompts, first)
            record = model.measure(spec, stream, hypers, held_out, state, prompts, made)
            others = first + jnp.arange(1, spec.record_every)
            return jax.lax.scan(step, following, others)[0], record

        first = spec.record_every * jnp.arange(records)
        return jax.lax.scan(window, model.init(spec, stream, hypers), first)

    return jax.vmap(train)(rate_L, scale_L)


def by_hand_method(steps: int) -> Method:
    """Set up the hand-written loop, one seed on every device."""
    spec, devices = model.Spec(steps=steps), jax.local_devices()
    rate_L, scale_L = jnp.repeat(jnp.logspace(-3, -1, 10), 10), jnp.tile(jnp.logspace(-2, 0, 10), 10)

    def of_device(seed_1: Any, rate_L: Any, scale_L: Any) -> Any:
        trained = by_hand(spec, steps // spec.record_every, seed_1[0], rate_L, scale_L)
        return jax.tree.map(lambda leaf: leaf[None], trained)

    mapped = jax.shard_map(
        of_device,
        mesh=device_mesh(devices),
        in_specs=(SHARDED, REPLICATED, REPLICATED),
        out_specs=SHARDED,
        check_vma=False,
    )
    seeds = jnp.arange(len(devices))
    flop, trial_steps = model.step_flops(spec), steps * rate_L.size * len(devices)
    return jitted("by hand", mapped, (seeds, rate_L, scale_L), trial_steps, flop)


def torch_given() -> dict[str, Any]:
    """Collect what a PyTorch process needs: initial weights and prompts, as NumPy arrays."""
    spec, stream, hypers = model.Spec(), model.Stream(), model.Hypers()
    draw = jax.jit(lambda step: model.batch(spec, stream, model.source(spec, stream), step))
    weights = model.init(spec, stream, hypers).weights
    return dict(
        model="linear_attention",
        learning_rate=hypers.learning_rate,
        weights={name: np.asarray(matrix) for name, matrix in weights.items()},
        prompts=[tuple(map(np.asarray, draw(step))) for step in range(TORCH_BATCHES)],
    )


def run(repeats: int) -> dict[str, Any]:
    """Measure all methods, in turns."""
    need_torch()
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    chunks = engine_chunks(model.EXPERIMENT)
    bare = engine_chunks(without_records(model.EXPERIMENT), chunks.programs.order)
    torch = best_torch(torch_given(), TORCH_STEPS)
    flop, torch_steps = model.step_flops(model.Spec()), TORCH_STEPS * len(torch.members)
    methods = [
        replace(chunks.method("engine"), flop=flop),
        by_hand_method(chunks.steps),
        replace(bare.method("no records"), flop=flop),
        Method("torch", functools.partial(torch.train, TORCH_STEPS), torch_steps, flop),
    ]
    gemm: list[float] = []
    calls = [lambda: gemm.append(gemm_gflops()), *(method.step for method in methods)]
    rates = rates_of(methods, seconds_of(calls, repeats)[1:])
    torch.close()
    engine = statistics.median(rates["engine"])
    return summary(methods, rates, gemm) | dict(
        device=device(),
        load_before=load,
        trials=chunks.group.num_trials,
        order=chunks.programs.order,
        lanes=chunks.group.lanes,
        torch_processes=torch.label,
        record_every=chunks.group.spec.record_every,
        drawing_share=drawing_share(chunks, engine, repeats),
    )


def summary(methods: list[Method], rates: dict[str, list[float]], gemm: list[float]) -> dict[str, Any]:
    """Compute medians, and ratios of neighbouring turns."""
    gemm_rate = statistics.median(gemm)

    def ratio(name: str, to: str) -> float:
        return statistics.median(one / other for one, other in zip(rates[name], rates[to], strict=True))

    rows = []
    for method in methods:
        own = rates[method.name]
        rate = statistics.median(own)
        rows.append(
            dict(
                method=method.name,
                trial_steps_per_second=rate,
                spread=(max(own) - min(own)) / rate,
                times_by_hand=ratio(method.name, "by hand"),
                times_torch=ratio(method.name, "torch"),
                gemm_share=rate * method.flop / gemm_rate / 1e9,
                compile_seconds=method.compile_seconds,
            )
        )
    return dict(
        repeats=len(gemm),
        gemm_gflops=gemm_rate,
        flop_per_trial_step=methods[0].flop,
        record_share=record_share(rates["engine"], rates["no records"]),
        methods=rows,
    )


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = [
        f"{result['device']}; linear attention, {result['trials']:,} trials, records every "
        f"{result['record_every']} steps; median of {result['repeats']} interleaved repeats",
        f"{HEADER}{'compile s':>11}",
    ]
    for row in result["methods"]:
        compiling = f"{row['compile_seconds']:.1f}" if row["compile_seconds"] else "-"
        lines.append(
            f"{row['method']:12}{row['trial_steps_per_second']:15,.0f}{row['spread']:8.0%}"
            f"{row['times_by_hand']:11.2f}{row['times_torch']:9.3g}{row['gemm_share']:9.1%}{compiling:>11}"
        )
    lines += [
        f"engine: order {result['order']}, {result['lanes']} lanes; PyTorch: {result['torch_processes']}",
        f"  records take {result['record_share']:.1%} of the engine's time, drawing "
        f"{result['drawing_share']:.1%}",
        f"of GEMM: {result['flop_per_trial_step'] / 1e6:.2f} MFLOP of products per trial-step as a share of "
        f"the large product's {result['gemm_gflops']:.0f} GFLOP/s",
    ]
    return "\n".join(lines + busy_warning(result))


def compare_tiny(repeats: int) -> tuple[dict[str, Any], str]:
    """Time all methods on the tiny model; return the numbers, and a table of them."""
    use_all_cores()
    result = run(repeats)
    return result, table(result)
