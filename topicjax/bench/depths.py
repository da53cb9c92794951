"""How fast are encoders beside eager PyTorch?  All are timed in turns: trust ratios, not rates.

The default encoder (residual connections, no layer norm or MLP) with four heads, Adam, on all cores: the
engine's programs as users get them, records on, nothing written, against one trial at a time in PyTorch, with
documents drawn beforehand and the number of threads that is fastest.
"""

import functools
import json
import os
import statistics
from typing import Any

import jax

from topicjax.bench.engine_chunks import EngineChunks
from topicjax.bench.timing import Method, seconds_of
from topicjax.engine.run import use_all_cores
from topicjax.errors import UserError
from topicjax.experiments.encoder import model
from topicjax.experiments.encoder.experiment import EXPERIMENT
from topicjax.experiments.encoder.settings import TRIALS, Spec, make_trial, traced
from topicjax.experiments.one_layer import lda, threefry
from topicjax.sweep import expand, logspace, product

LAYERS, HEADS = (1, 2, 4), 4
TRIALS_PER_DEVICE, TORCH_STEPS = 8, 10
RATE = 1e-3


def engine_method(layers: int) -> Method:
    """Return the engine's own program on all devices, for trials that share their documents."""
    devices = jax.local_devices()
    base = dict(layers=layers, heads=HEADS, steps=2 * Spec.record_every)
    rates = logspace(1e-4, 1e-2, TRIALS_PER_DEVICE * len(devices))
    trials = expand(TRIALS, base, product(learning_rate=rates))
    return EngineChunks(trials, devices, TRIALS_PER_DEVICE, experiment=EXPERIMENT).method(f"engine-{layers}")


def torch_method(layers: int) -> Method:
    """Return one trial of the same model in eager PyTorch."""
    from topicjax.bench import torch_eager, torch_encoder

    trial = make_trial(dict(layers=layers, heads=HEADS, learning_rate=RATE))
    spec, stream = trial.spec, traced(trial.stream)
    keys, phi_TxW = lda.stream_keys(0), lda.topic_words(spec, stream)
    draw = jax.jit(lambda key: lda.sample_documents(spec, stream, phi_TxW, key, spec.batch_size))
    drawn = [draw(threefry.fold_in(threefry.raw(keys.documents), number)) for number in range(TORCH_STEPS)]
    weights = model.init(spec, traced(trial.hypers), keys.weights)
    encoder = torch_encoder.Encoder(weights, HEADS)
    eager = torch_eager.EagerTrial(encoder, [torch_eager.batch(own) for own in drawn], RATE)
    eager.use_best_threads(sorted({1, os.cpu_count() or 1}))
    return Method(f"torch-{layers}", functools.partial(eager.train, TORCH_STEPS), TORCH_STEPS, float("nan"))


def run(repeats: int) -> list[dict[str, Any]]:
    """Return the rates of the engine and of PyTorch, and their ratio, for each number of layers."""
    try:
        pairs = [(engine_method(layers), torch_method(layers)) for layers in LAYERS]
    except ModuleNotFoundError:
        raise UserError("PyTorch is not installed; .venv/bin/pip install --editable '.[bench]'") from None
    methods = [method for pair in pairs for method in pair]
    seconds = seconds_of([method.step for method in methods], repeats)
    rates = {
        method.name: [method.trial_steps / each for each in own]
        for method, own in zip(methods, seconds, strict=True)
    }
    rows = []
    for layers in LAYERS:
        engine, torch = rates[f"engine-{layers}"], rates[f"torch-{layers}"]
        ratios = [own / other for own, other in zip(engine, torch, strict=True)]  # of neighbouring turns
        medians = dict(engine=statistics.median(engine), torch=statistics.median(torch))
        spread = dict(lowest_ratio=min(ratios), highest_ratio=max(ratios))
        rows.append(dict(layers=layers, **medians, ratio=statistics.median(ratios), **spread))
    return rows


def main(repeats: int, as_json: bool) -> None:
    """Time all methods and print the result."""
    use_all_cores()
    rows = run(repeats)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print(f"trial-steps/s of the default encoder with {HEADS} heads, median of {repeats} turns")
    print(f"{'layers':>6}{'engine':>10}{'torch':>10}{'ratio':>8}  of neighbouring turns")
    for row in rows:
        between = f"{row['lowest_ratio']:.1f} to {row['highest_ratio']:.1f}"
        print(f"{row['layers']:6}{row['engine']:10,.0f}{row['torch']:10,.0f}{row['ratio']:8.1f}  {between}")
