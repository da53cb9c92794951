"""A sweep file of trials that files in the folder SLOW_TRIALS make slow, broken or short of memory.

These files are read wherever a chunk is trained, each time a trial is asked whether it is decided.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from topicjax import Experiment, Real, TrialSettings, Whole
from topicjax.sweep import product

CONTROL = "SLOW_TRIALS"
BROKEN_RATE = 0.25
REFERENCE_SECONDS = 0.5
TRAINING = set()  # the trial that was asked last, unless it has ended


@dataclass(frozen=True)
class Spec:
    size: Annotated[int, Whole(1), "of the vector that is trained"] = 3
    steps: Annotated[int, Whole(1), "training steps"] = 20
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 1
    until: Annotated[Literal["steps", "decided"], "when a trial ends"] = "decided"


class Stream(NamedTuple):
    seed: Annotated[Any, Whole(0), "of the data"] = 0


class Hypers(NamedTuple):
    learning_rate: Annotated[Any, Real(low=0), "of gradient descent"] = 0.1


def batch(spec, stream, source, step):
    return jax.random.normal(jax.random.fold_in(jax.random.key(stream.seed), step), (spec.size,))


def loss(vector, data):
    return jnp.sum((vector - data) ** 2) + jnp.sum(jnp.sin(vector) ** 2)


def said(name: str) -> str:
    """Return what a file in the control folder says; it may vanish while we look."""
    with contextlib.suppress(FileNotFoundError):
        return (Path(os.environ[CONTROL]) / name).read_text()
    return ""


def references(trial):
    time.sleep(REFERENCE_SECONDS)
    return {"value": 1.0}


def decided(trial, records, references):
    assert references == {"value": 1.0}
    time.sleep(float(said("pause") or 0))
    if said("broken") and trial.hypers.learning_rate == BROKEN_RATE:
        raise RuntimeError("broken on purpose\nand so on")
    why = "enough" if trial.hypers.learning_rate == 0.5 and len(records["loss"]) >= 10 else ""
    if said("hungry"):
        check_alone(trial, is_over=bool(why) or len(records["loss"]) == trial.spec.steps)
    return why


def check_alone(trial, is_over):
    """Raise if another trial is asked before the last one has ended: both are in one chunk."""
    others = TRAINING - {trial}
    TRAINING.clear()
    if others:
        raise MemoryError("two at once")
    TRAINING.update(() if is_over else {trial})


EXPERIMENT = Experiment(
    settings=TrialSettings("slow_trials", Spec, Stream, Hypers),
    batch=batch,
    init=lambda spec, stream, hypers: jnp.full(spec.size, 0.1) * (1 + stream.seed),
    update=lambda spec, stream, hypers, vector, data, step: (
        vector - hypers.learning_rate * jax.grad(loss)(vector, data),
        None,
    ),
    measure=lambda spec, stream, hypers, source, vector, data, made: {"loss": loss(vector, data)},
    weights=lambda spec, vector: {"vector": vector},
    references=references,
    reference_settings=lambda trial: (),
    decided=decided,
)
SWEEP = product(size=(3, 4), seed=range(4), learning_rate=(0.05, 0.1, BROKEN_RATE, 0.5))
