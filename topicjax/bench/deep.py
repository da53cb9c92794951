"""Compare encoders on topics, text and syntax with eager PyTorch, timed in turns: trust ratios, not rates.

`topicjax bench --layers`: encoders of 1, 2 and 4 layers with four heads, residual connections, no layer norm
or MLP, and Adam: those of the sweep `depth` (narrower, fewer documents), and with default settings.
`topicjax bench --text`: the model of the sweep `wikipedia`, on windows of words drawn by Zipf's law, so that
no corpus is needed.  `topicjax bench --syntax`: the model of the sweep `syntax`, with Adam, and with as many
records as a trial of the sweep has on average; PyTorch computes it position by position.  The engine runs its
own programs on all devices, with the records of the experiment, and without any.  PyTorch trains one trial
per process, on batches drawn beforehand, with outputs only at positions that have a loss, and with one
process per core or one process with all threads, whichever is faster.
"""

import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from topicjax.bench.compare import busy_warning, device, gemm_gflops, rates_of, record_share
from topicjax.bench.timing import (
    EngineChunks,
    Method,
    drawing_share,
    planned_record_share,
    seconds_of,
    without_records,
)
from topicjax.bench.torch_processes import best_torch, need_torch
from topicjax.engine.resources import use_all_cores
from topicjax.experiments import Experiment
from topicjax.experiments.contract import Data
from topicjax.experiments.encoder.experiment import EXPERIMENT as ENCODER
from topicjax.experiments.shared import encoder, lda, threefry
from topicjax.experiments.syntax import language
from topicjax.experiments.syntax.experiment import EXPERIMENT as SYNTAX
from topicjax.experiments.text import experiment as text
from topicjax.experiments.text.windows import Windows, id_type
from topicjax.pace import record_count
from topicjax.sweep import expand, logspace, product
from topicjax.sweep.files import load_sweep

LAYERS, HEADS = (1, 2, 4), 4
TRIALS = 8  # per device, with the same data
TORCH_BATCHES, TORCH_STEPS = 10, {"encoder": 10, "text": 4, "syntax": 40}  # steps in a turn
RATE = 1e-3
TRAINING_WINDOWS = 4096  # of text; rates do not depend on it
HEADER = (
    f"{'model':14}{'engine/s':>10}{'torch/s':>9}{'ratio':>7}{'between':>14}{'no records':>12}{'ratio':>7}"
    f"{'of GEMM':>9}{'records':>9}{'drawing':>9}{'compile s':>11}{'  torch':14}"
)
LEGEND = [
    "trial-steps/s; ratio: engine to PyTorch, of neighbouring turns; of GEMM: useful products as a share",
    "  of the large product's rate; records, drawing: their share of the engine's time",
]


@dataclass
class Case:
    """A model to compare: its experiment, settings, and batches for PyTorch."""

    name: str
    experiment: Experiment
    base: dict[str, Any]
    documents: Callable[[Any, Any, int], Sequence[lda.Documents]]  # (spec, stream, number) -> batches


def encoder_case(layers: int, sweep: str = "") -> Case:
    """Describe an encoder of so many layers, with default settings or those of a sweep."""

    def documents(spec: Any, stream: Any, number: int) -> list[lda.Documents]:
        keys, phi_TxW = lda.stream_keys(0), lda.topic_words(spec, stream)
        draw = jax.jit(lambda key: lda.sample_documents(spec, stream, phi_TxW, key, spec.batch_size))
        return [draw(threefry.fold_in(threefry.raw(keys.documents), step)) for step in range(number)]

    base = load_sweep(sweep).base if sweep else {}
    return Case(
        f"{sweep or 'encoder'}, {layers}", ENCODER, {**base, "layers": layers, "heads": HEADS}, documents
    )


def text_case() -> Case:
    """Describe the model of the sweep `wikipedia`, on drawn words."""
    base = load_sweep("wikipedia").base
    drawn = replace(text.EXPERIMENT, data=lambda spec: Data(zipf_windows(spec), lambda: zipf_windows(spec)))

    def documents(spec: Any, stream: Any, number: int) -> list[lda.Documents]:
        source = text.make_source(spec, stream, zipf_windows(spec))
        draw = jax.jit(lambda step: text.draw_windows(spec, stream, source, step))
        return [draw(step) for step in range(number)]

    return Case("text", drawn, base | dict(init="default", init_scale=1.0), documents)


def syntax_case() -> Case:
    """Describe the model of the sweep `syntax`."""

    def documents(spec: Any, stream: Any, number: int) -> list[lda.Documents]:
        key = threefry.raw(language.documents_key(0))
        draw = jax.jit(
            lambda step: language.draw_documents(spec, stream, threefry.fold_in(key, step), spec.batch_size)
        )
        return [draw(step) for step in range(number)]

    base = load_sweep("syntax").base
    steps, every = base["steps"], base["record_every"]
    records = record_count(every, base["records_per_decade"], steps)
    evenly = dict(record_every=every * round(steps / records / every), records_per_decade=0)
    return Case("syntax", SYNTAX, base | evenly | dict(optimizer="adam"), documents)


@functools.cache
def zipf_windows(spec: Any) -> Windows:
    """Draw full windows whose words follow Zipf's law."""
    rng, V, N = np.random.default_rng(0), spec.vocabulary, spec.context
    p_V = np.where(np.arange(V) < text.SPECIAL, 0.0, 1 / np.maximum(np.arange(V) - 1, 1))
    draw = functools.partial(rng.choice, V, p=p_V / p_V.sum())
    ids = draw(TRAINING_WINDOWS * N).astype(id_type(V))
    return Windows(
        id_C=ids,
        start_W=np.arange(0, ids.size, N, dtype=np.int32),
        length_W=np.full(TRAINING_WINDOWS, N, np.int32),
        number=np.asarray(TRAINING_WINDOWS, np.int32),
        count_V=np.bincount(ids, minlength=V).astype(np.int32),
        held_out_BxN=draw((spec.eval_windows, N)).astype(np.int32),
        held_out_B=np.full(spec.eval_windows, N, np.int32),
    )


def engine_chunks(case: Case, experiment: Experiment) -> EngineChunks:
    """Compile the engine's own program on all devices, for trials that share their data."""
    devices, settings = jax.local_devices(), experiment.settings
    base = settings.converted(case.base)
    every, rare = (base.get(name, settings.defaults[name]) for name in ("record_every", "rare_every"))
    trials = expand(
        settings,
        base | dict(steps=every * rare),  # a turn has as many rare records as belong to it
        product(learning_rate=logspace(1e-4, 1e-2, TRIALS * len(devices))),
    )
    return EngineChunks(trials, devices, TRIALS, experiment=experiment)


def torch_given(case: Case) -> dict[str, Any]:
    """Collect what a PyTorch process needs: initial weights and batches, as NumPy arrays."""
    settings = case.experiment.settings
    trial = settings.make_trial(case.base | dict(learning_rate=RATE))
    stream, hypers = settings.traced(trial.stream), settings.traced(trial.hypers)
    weights = encoder.init(trial.spec, hypers, lda.stream_keys(0).weights)
    drawn = case.documents(trial.spec, stream, TORCH_BATCHES)
    return dict(
        model="encoder",
        learning_rate=RATE,
        weights={name: np.asarray(weights[name]) for name in encoder.trained_names(trial.spec)},
        heads=trial.spec.heads,
        layer_norm=trial.hypers.layer_norm,
        bias_gain=getattr(trial.hypers, "bias_gain", 0.0),
        documents=[tuple(map(np.asarray, documents)) for documents in drawn],
    )


def run(
    cases: Sequence[Case], repeats: int, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure each case, the engine with and without records and PyTorch in turns; say a line about each."""
    need_torch()
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    say(f"{device()}; median of {repeats} interleaved repeats\n{HEADER}")
    rows = []
    for case in cases:
        rows.append(run_case(case, repeats))
        say(table_row(rows[-1]))
    result = dict(device=device(), load_before=load, repeats=repeats, models=rows)
    say("\n".join(LEGEND + busy_warning(result)))
    return result


def run_case(case: Case, repeats: int) -> dict[str, Any]:
    """Measure one case."""
    chunks = engine_chunks(case, case.experiment)
    bare = engine_chunks(case, without_records(case.experiment))
    steps = TORCH_STEPS[case.experiment.name]
    torch = best_torch(torch_given(case), steps)
    methods = [
        chunks.method("engine"),
        bare.method("no records"),
        Method("torch", functools.partial(torch.train, steps), steps * len(torch.members), float("nan")),
    ]
    gemm: list[float] = []
    calls = [lambda: gemm.append(gemm_gflops()), *(method.step for method in methods)]
    start = time.monotonic()
    rates = rates_of(methods, seconds_of(calls, repeats)[1:])
    seconds = time.monotonic() - start
    torch.close()
    median = {name: statistics.median(values) for name, values in rates.items()}
    ratios = {
        name: [mine / other for mine, other in zip(rates[name], rates["torch"], strict=True)]
        for name in ("engine", "no records")
    }
    return dict(
        model=case.name,
        trial_steps_per_second=median["engine"],
        without_records=median["no records"],
        torch=median["torch"],
        torch_processes=torch.label,
        ratio=statistics.median(ratios["engine"]),
        lowest_ratio=min(ratios["engine"]),
        highest_ratio=max(ratios["engine"]),
        ratio_without_records=statistics.median(ratios["no records"]),
        flop_per_trial_step=methods[0].flop,
        gemm_gflops=statistics.median(gemm),
        gemm_share=median["engine"] * methods[0].flop / statistics.median(gemm) / 1e9,
        record_share=record_share(rates["engine"], rates["no records"]),
        planned_record_share=planned_record_share(chunks),
        drawing_share=drawing_share(chunks, median["engine"], repeats),
        compile_seconds=chunks.compile_seconds,
        record_every=chunks.group.spec.record_every,
        rare_every=chunks.group.spec.rare_every,
        seconds=seconds,
    )


def cases_of(what: str) -> list[Case]:
    """List what to time: encoders of several depths, or the model on text, or on syntax and topics."""
    if what == "layers":
        return [encoder_case(layers, sweep) for sweep in ("depth", "") for layers in LAYERS]
    return [text_case() if what == "text" else syntax_case()]


def compare_deep(what: str, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Time "layers", "text" or "syntax"; say a line as soon as a case is measured."""
    use_all_cores()
    return run(cases_of(what), repeats, say)


def table_row(row: dict[str, Any]) -> str:
    """Format what was measured of a case as a row below HEADER."""
    between = f"{row['lowest_ratio']:.2f}-{row['highest_ratio']:.2f}"
    return (
        f"{row['model']:14}{row['trial_steps_per_second']:10,.1f}{row['torch']:9,.1f}{row['ratio']:7.2f}"
        f"{between:>14}{row['without_records']:12,.1f}{row['ratio_without_records']:7.2f}"
        f"{row['gemm_share']:9.1%}{row['record_share']:9.1%}{row['drawing_share']:9.1%}"
        f"{row['compile_seconds']:11.1f}  {row['torch_processes']}"
    )
