"""The result of a comparison: medians, spreads and ratios as data and as the table people read."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from topicjax.bench.timing import Method

BUSY_SPREAD = 0.3  # (largest - smallest) / median above which the machine was not quiet
BUSY_LOAD = 0.5  # processes per core that were running before this one
REFERENCES = ("token-vmap", "torch-eager")
HEADER = (
    f"{'method':13}{'trial-steps/s':>14}{'spread':>8}{'x token-vmap':>14}{'x torch-eager':>15}"
    f"{'MFLOP/step':>12}{'of GEMM':>9}{'compile s':>11}{'memory MB':>11}"
)


def summary(
    methods: Sequence[Method], rates: Mapping[str, Sequence[float]], gemm: Sequence[float]
) -> dict[str, Any]:
    """Return medians, spreads, ratios and shares of all methods; None where a number is not known."""
    median = {name: statistics.median(values) for name, values in rates.items()}
    gemm_gflops = statistics.median(gemm)
    rows = []
    for method in methods:
        rate, own = median[method.name], rates[method.name]
        row: dict[str, Any] = dict(method=method.name, trial_steps_per_second=rate)
        row |= dict(lowest=min(own), highest=max(own), spread=(max(own) - min(own)) / rate)
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
    """Return the table people read."""
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
        "MFLOP/step: matrix products of the method, forward and backward, without padding or unused queries;",
        "  of GEMM: their share of the large GEMM's rate; memory: arguments, results and temporaries",
        f"peak memory of the whole process, compiling included: {result['peak_memory_bytes'] / 1e6:,.0f} MB",
    ]
    if not any(row["method"] == "torch-eager" for row in rows):
        lines.append("torch-eager was left out; to add it: .venv/bin/pip install --editable '.[bench]'")
    return "\n".join(lines + warnings(result))


def line(row: Mapping[str, Any]) -> str:
    """Return the line of one method."""
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
    """Return what makes these rates doubtful."""
    found = []
    if max(row["spread"] for row in result["methods"]) > BUSY_SPREAD:
        found.append(
            f"warning: rates spread by more than {BUSY_SPREAD:.0%}: the machine is busy; ratios are more "
            "reliable than rates, and a quiet machine is better than both"
        )
    if result["load_before"] > BUSY_LOAD:
        found.append(
            f"warning: {result['load_before']:.1f} processes per core were running before this one: "
            "the machine is busy, rates are too low"
        )
    return found
