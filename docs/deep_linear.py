"""When does a deep linear network learn each mode of its teacher?  An experiment of your own, in one file.

Command:  topicjax run docs/deep_linear.py
Size:     240 trials, 3 programs, about 20 seconds on 2 cores, most of it compiling
Expect:   the product W = W_L ... W_1 learns the singular modes of its teacher one after another.  A mode of
          strength s is learned at a rate s; from depth 2 on it first waits, the longer the smaller the init.
          Steps are not gradient flow: the largest learning rate should take some 5 % longer than predicted.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from topicjax import Experiment, Real, TrialSettings, Whole
from topicjax.sweep import logspace, product

STRENGTHS = jnp.array([4.0, 2.0, 1.0])  # singular values of the teacher
POWER_ITERATIONS = 20


@dataclass(frozen=True)
class Spec:
    """Static settings: each distinct Spec is a program."""

    depth: Annotated[int, Whole(1, 8), "number of weight matrices"] = 2
    width: Annotated[int, Whole(3), "size of inputs, outputs and hidden layers"] = 16
    batch_size: Annotated[int, Whole(1), "examples per step"] = 64
    steps: Annotated[int, Whole(1), "training steps"] = 1000
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 20
    rare_every: Annotated[int, Whole(1), "records from one measurement of the sharpness to the next"] = 5
    until: Literal["steps", "decided"] = "steps"


class Stream(NamedTuple):
    """Traced numbers that fix the data: equal Streams see the same examples."""

    seed: Annotated[Any, Whole(0), "of the examples and the initial weights"] = 0
    noise: Annotated[Any, Real(low=0), "standard deviation of the label noise"] = 0.0


class Hypers(NamedTuple):
    """Traced numbers that act on a trial."""

    learning_rate: Annotated[Any, Real(low=0), "of gradient descent"] = 0.02
    warmup: Annotated[Any, Whole(1), "steps over which the learning rate rises from 0"] = 1
    init_scale: Annotated[Any, Real(low=0), "scale of the product of the initial weights"] = 0.01


def teacher(width: int) -> jax.Array:
    """Return the teacher: its modes are the first coordinates."""
    return jnp.diag(jnp.pad(STRENGTHS, (0, width - len(STRENGTHS))))


def product_of(layers: list[jax.Array]) -> jax.Array:
    """Return W_L ... W_1."""
    whole = layers[0]
    for layer in layers[1:]:
        whole = layer @ whole
    return whole


def batch(spec: Spec, stream: Stream, source: tuple, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw the inputs and noisy labels of a step."""
    key, noise_key = jax.random.split(jax.random.fold_in(jax.random.key(stream.seed), step))
    inputs = jax.random.normal(key, (spec.batch_size, spec.width))
    noise = stream.noise * jax.random.normal(noise_key, inputs.shape)
    return inputs, inputs @ teacher(spec.width).T + noise


def init(spec: Spec, stream: Stream, hypers: Hypers) -> list[jax.Array]:
    """Return balanced layers: scaled identities with a little noise."""
    scale = hypers.init_scale ** (1 / spec.depth)
    keys = jax.random.split(jax.random.key(stream.seed), spec.depth)
    noise = [jax.random.normal(key, (spec.width, spec.width)) / spec.width for key in keys]
    return [scale * (jnp.eye(spec.width) + 0.1 * each) for each in noise]


def loss(layers: list[jax.Array], data: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return half the mean squared error."""
    inputs, labels = data
    return 0.5 * jnp.mean(jnp.sum((inputs @ product_of(layers).T - labels) ** 2, axis=1))


def update(
    spec: Spec, stream: Stream, hypers: Hypers, layers: list[jax.Array], data: tuple, step: jax.Array
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Take a step of gradient descent with a warm-up; keep the gradients for the record."""
    rate = hypers.learning_rate * jnp.minimum(1.0, (step + 1) / hypers.warmup)
    gradients = jax.grad(loss)(layers, data)
    stepped = [layer - rate * gradient for layer, gradient in zip(layers, gradients, strict=True)]
    return stepped, gradients


def measure(
    spec: Spec,
    stream: Stream,
    hypers: Hypers,
    source: tuple,
    layers: list[jax.Array],
    data: tuple,
    gradients: list[jax.Array],
) -> dict[str, jax.Array]:
    """Measure what every record has: losses, and how far each mode is learned (0 before, 1 after)."""
    whole = product_of(layers)
    error = jnp.sum((whole - teacher(spec.width)) ** 2)
    modes = jnp.diag(whole)[: len(STRENGTHS)] / STRENGTHS
    return dict(
        loss=loss(layers, data),
        test_loss=0.5 * (error + spec.width * stream.noise**2),  # exact: inputs are standard normal
        mode_1=modes[0],
        mode_2=modes[1],
        mode_3=modes[2],
        gradient=jnp.sqrt(sum(jnp.sum(gradient**2) for gradient in gradients)),
    )


def measure_rarely(
    spec: Spec,
    stream: Stream,
    hypers: Hypers,
    source: tuple,
    layers: list[jax.Array],
    data: tuple,
    gradients: list[jax.Array],
) -> dict[str, jax.Array]:
    """Measure the sharpness, the largest eigenvalue of the Hessian, by power iteration: many gradients."""

    def times_hessian(vector: list[jax.Array]) -> list[jax.Array]:
        return jax.jvp(lambda at: jax.grad(loss)(at, data), (layers,), (vector,))[1]

    def iterate(_: int, vector: list[jax.Array]) -> list[jax.Array]:
        return unit(times_hessian(vector))

    vector = jax.lax.fori_loop(0, POWER_ITERATIONS, iterate, unit([jnp.ones_like(layer) for layer in layers]))
    return dict(sharpness=inner(vector, times_hessian(vector)))


def inner(first: list[jax.Array], second: list[jax.Array]) -> jax.Array:
    """Return the inner product of two lists of matrices."""
    return sum((jnp.sum(a * b) for a, b in zip(first, second, strict=True)), jnp.zeros(()))


def unit(vector: list[jax.Array]) -> list[jax.Array]:
    """Return a list of matrices scaled to length one."""
    return [part / jnp.sqrt(inner(vector, vector) + 1e-30) for part in vector]


def references(trial: Any) -> dict[str, float]:
    """Return the exact test loss once the first modes are learned and the others are not begun."""
    noise = trial.spec.width * trial.stream.noise**2
    left = [sum(s**2 for s in STRENGTHS.tolist()[learned:]) for learned in range(len(STRENGTHS) + 1)]
    names = ("nothing learned", "one mode", "two modes", "all modes")
    return {name: 0.5 * (rest + noise) for name, rest in zip(names, left, strict=True)}


def decided(trial: Any, records: Any, references: Any) -> str:
    """Say why the answer can no longer change, or nothing."""
    return "all modes learned" if records["mode_3"][-1] > 0.99 else ""


def report() -> Any:
    """Describe the page.  Only `topicjax report` calls this: training never imports matplotlib."""
    from topicjax.analysis import Claim, Figure, Page, Verdict, curves_by, stages

    def score(run: Any) -> Any:
        """Score each trial: is the first mode learned before the second begins?"""
        scores = stages(run, first="mode_1", second="mode_2")
        one_by_one = {True: "one at a time", False: "together"}
        return scores.assign(**{"class": scores["theta"].gt(0.9).map(one_by_one)})

    def rate_law(run: Any, scores: Any) -> Any:
        """Divide the step at which a mode is half learned, at depth 2, by the time of gradient flow."""
        deep = scores[scores["depth"] == 2]

        def ratio(onset: str, strength: float) -> float:
            wait = np.log(strength / deep["init_scale"] - 1)
            return float((deep[onset] * 2 * strength * deep["learning_rate"] / wait).median())

        first, second = ratio("onset_first", 4.0), ratio("onset_second", 2.0)
        verdict = "holds" if max(abs(first - 1), abs(second - 1)) < 0.1 else "fails"
        sentence = f"at depth 2 modes of strength 4 and 2 take {first:.2f} and {second:.2f} times as long"
        return Verdict(verdict, sentence, first=first, second=second)

    def one_cell(run: Any) -> Any:
        """Select the fastest training from the smallest start: its seeds end together, so no curve jumps."""
        trials = run.trials
        is_fast = trials["learning_rate"] == trials["learning_rate"].max()
        is_small = trials["init_scale"] == trials["init_scale"].min()
        return run.select(trials.loc[is_fast & is_small, "trial_id"].tolist())

    caption = "Largest learning rate, smallest init scale; medians and quartiles over seeds."

    def modes(run: Any, scores: Any) -> Any:
        """Draw the modes over the steps, one panel per depth."""
        drawn = curves_by(one_cell(run), ["mode_1", "mode_2", "mode_3"], panel="depth")
        return Figure(drawn, "Modes over the steps", caption)

    def sharpness(run: Any, scores: Any) -> Any:
        """Draw the sharpness, measured at every 20th record."""
        drawn = curves_by(one_cell(run), ["sharpness"], panel="depth")
        return Figure(drawn, "Sharpness: the largest eigenvalue of the Hessian", caption)

    return Page(
        score=score,
        classes={"one at a time": "#0072B2", "together": "#E69F00"},
        claims=[
            Claim(
                "Rate law",
                "From a small start a, half of a mode of strength s is learned after ln(s/a - 1) / (2 s).",
                rate_law,
                "Saxe et al. 2014",
            )
        ],
        figures=[modes, sharpness],
    )


EXPERIMENT = Experiment(
    settings=TrialSettings("deep_linear", Spec, Stream, Hypers),
    batch=batch,
    init=init,
    update=update,
    measure=measure,
    measure_rarely=measure_rarely,
    weights=lambda spec, layers: layers,
    loss=lambda spec, stream, hypers, layers, data: loss(layers, data),  # for measures: docs/measuring.md
    references=references,
    decided=decided,
    report=report,
)
BASE = dict(steps=1000, record_every=5, rare_every=20, until="decided")
SWEEP = product(
    depth=(1, 2, 3),
    seed=range(5),
    learning_rate=logspace(0.003, 0.03, 4),
    init_scale=logspace(1e-4, 1e-1, 4),
)
