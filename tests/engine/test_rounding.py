"""Products with rounded factors: exact rounding, both passes of the gradient, every product, never mixed."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.extend.core import jaxprs_in_params
from support.engine_runs import BASE, DEEP_BASE, DEEP_LINEAR, WITHOUT_LINES, columns, train_sweep

from topicjax.cli import main
from topicjax.engine import costs
from topicjax.engine.options import MANTISSA_BITS
from topicjax.engine.origin import origin_name
from topicjax.engine.plan import make_groups
from topicjax.engine.programs import Programs, device_mesh
from topicjax.engine.rounding import round_factors, with_rounded_products
from topicjax.engine.segments import to_host
from topicjax.experiments.encoder.experiment import EXPERIMENT as ENCODER
from topicjax.store.files import StoreError
from topicjax.store.reader import status
from topicjax.sweep import product

ENCODER_BASE = BASE | dict(width=4, layers=2, mlp=3, steps=10)
RATE = product(learning_rate=0.02)


def nearest(values: Any, bits: int) -> np.ndarray:
    """Round float32 to a shorter mantissa, ties to even: integer arithmetic on its representation."""
    left_out = 23 - bits
    pattern = np.asarray(values, np.float32).view(np.uint32).astype(np.int64)
    is_odd = (pattern >> left_out) & 1
    rounded = (pattern + (1 << (left_out - 1)) - 1 + is_odd) >> left_out << left_out
    return rounded.astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("bits", MANTISSA_BITS.values())
def test_factors_are_rounded_to_the_nearest_and_ties_to_even(bits):
    tie = 2.0 ** -(bits + 1)
    factors = jnp.array([[1 + tie, 1 + 3 * tie, 1 + 1.01 * tie, -1 - tie]], jnp.float32)
    times_one = jax.jit(with_rounded_products(lambda x: x.T @ jnp.ones((1, 1)), bits))
    np.testing.assert_array_equal(times_one(factors)[:, 0], [1, 1 + 4 * tie, 1 + 2 * tie, -1])
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(1, 5000)) * 10.0 ** rng.uniform(-30, 30, (1, 5000))
    np.testing.assert_array_equal(times_one(drawn.astype(np.float32))[:, 0], nearest(drawn, bits)[0])


def test_small_factors_keep_their_size():
    tiny = jnp.full((1, 1), 1e-6)
    assert float(with_rounded_products(jnp.matmul, 7)(tiny, tiny)[0, 0]) == pytest.approx(1e-12, rel=0.01)


@pytest.mark.parametrize("bits", MANTISSA_BITS.values())
def test_a_step_of_gradient_descent_rounds_in_both_passes(bits):
    """Against float64, on whole numbers: each product of rounded factors is exact in float32."""

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            return 0.5 * jnp.sum(jnp.square(weights[1] @ (weights[0] @ x)))

        return jax.tree.map(lambda w, g: w - 0.5 * g, weights, jax.grad(loss)(weights))

    rng = np.random.default_rng(1)
    first, second, x = (rng.integers(-3000, 3000, (2, 2)).astype(np.float32) for _ in range(3))
    found = jax.jit(with_rounded_products(step, bits))((first, second), x)

    def times(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return nearest(left, bits).astype(float) @ nearest(right, bits)

    hidden = times(first, x)
    output = times(second, hidden)
    gradients = times(times(second.T, output), x.T), times(output, hidden.T)
    for new, old, gradient in zip(found, (first, second), gradients, strict=True):
        np.testing.assert_array_equal(new, (old - np.float32(0.5) * gradient.astype(np.float32)))
    exact = jax.jit(step)((first, second), x)
    assert not np.allclose(found[0], exact[0], rtol=1e-5)


def products_of(jaxpr: Any) -> Iterator[tuple[Any, list[str]]]:
    """Yield every product of a traced program and of those inside it, with what made each of its factors."""
    made_by = {out: equation.primitive.name for equation in jaxpr.eqns for out in equation.outvars}
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation, [made_by.get(factor, "") for factor in equation.invars]
        for inner in jaxprs_in_params(equation.params):
            yield from products_of(inner)


@pytest.mark.parametrize(
    ("experiment", "base", "order"),
    [
        (WITHOUT_LINES, BASE, "lane"),
        pytest.param(ENCODER, ENCODER_BASE, "together", marks=pytest.mark.slow),
    ],
)
def test_every_product_of_a_program_gets_rounded_factors(experiment, base, order):
    """Those that state their precision keep it, as on an accelerator: documents are drawn exactly."""
    trial = experiment.settings.make_trial(base)
    (group,) = make_groups(experiment, {experiment.settings.trial_id(trial): trial}, 1, 1)
    programs = Programs(replace(group, order=order), device_mesh(jax.devices()[:1]))
    plain = jax.make_jaxpr(programs.functions["advance"])(*programs.shapes()["advance"]).jaxpr
    before, after = (list(products_of(jaxpr)) for jaxpr in (plain, round_factors(plain, 10, {})))
    unstated = [product.params["precision"] is None for product, _ in before]
    assert sum(unstated) > 10 and not all(unstated)
    assert [makers == ["reduce_precision"] * 2 for _, makers in after] == unstated
    assert all("HIGHEST" in str(product.params["precision"]) for product, _ in after)


def two_steps(experiment: Any, spec: Any, stream: Any, hypers: Any) -> Any:
    state, source = experiment.init(spec, stream, hypers), experiment.make_source(spec, stream, ())
    for number in (jnp.int32(0), jnp.int32(1)):
        batch = experiment.batch(spec, stream, source, number)
        before, (state, made) = state, experiment.update(spec, stream, hypers, state, batch, number)
    return state, experiment.measure(spec, stream, hypers, source, before, batch, made)


@pytest.mark.slow  # two programs of each are compiled
@pytest.mark.parametrize(
    ("experiment", "base", "tolerance"), [(WITHOUT_LINES, BASE, 0), (ENCODER, ENCODER_BASE, 1e-6)]
)
def test_rounding_to_all_bits_changes_nothing(experiment, base, tolerance):
    """Bit for bit, but for records of the encoder, which are compiled into other loops."""
    trial = experiment.settings.make_trial(base)
    function = functools.partial(two_steps, experiment, experiment.fit(trial.spec, [trial.stream]))
    function = with_rounded_products(function, 23)
    given = costs.example(experiment)
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(function.__wrapped__)(*given)
    for new, old in zip(*map(jax.tree.leaves, (jax.jit(function)(*given), expected)), strict=True):
        np.testing.assert_allclose(to_host(new), to_host(old), rtol=tolerance, atol=tolerance)


def test_a_run_with_all_bits_has_the_same_numbers(tmp_path, monkeypatch):
    given = dict(sweep=RATE, base=DEEP_BASE, devices=1, order="lane")  # together, XLA joins the products anew
    monkeypatch.setitem(MANTISSA_BITS, "tf32", 23)
    # An experiment of its own: no other test compiles programs for it.
    own = replace(DEEP_LINEAR, version="all bits")
    runs = [
        train_sweep(tmp_path / f"run{rounding}", experiment=own, round_products=rounding, **given)[0]
        for rounding in ("", "tf32")
    ]
    pd.testing.assert_frame_equal(*(columns(run, "loss") for run in runs), check_exact=True)


@pytest.fixture(scope="module")
def rounded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rounding") / "tf32"
    run, _ = train_sweep(folder, RATE, DEEP_BASE, experiment=DEEP_LINEAR, round_products="tf32", devices=1)
    return run


def test_a_run_with_rounding_says_so_and_is_not_continued_without(rounded, tmp_path, capsys):
    folder, another = rounded.folder, product(learning_rate=0.03)
    assert rounded.manifest["runs"][0]["arithmetic"]["round_products"] == "tf32"
    words = "float32, factors of matrix products rounded to TF32"
    assert status(folder).arithmetic == (words,)
    assert main(["status", str(folder)]) == 0 and f"arithmetic: {words}\n" in capsys.readouterr().out
    given = dict(sweep=another, base=DEEP_BASE, experiment=DEEP_LINEAR, devices=1)
    with pytest.raises(StoreError, match=r"round_products was tf32, is None.*another folder"):
        train_sweep(folder, **given)
    with pytest.raises(StoreError, match=r"round_products was tf32, is bf16.*another folder"):
        train_sweep(folder, **given, round_products="bf16")
    train_sweep(tmp_path / "plain", RATE, DEEP_BASE, experiment=DEEP_LINEAR, devices=1)
    assert status(tmp_path / "plain").arithmetic == ("float32, matrix products at full precision",)
    with pytest.raises(StoreError, match="round_products was None, is tf32"):
        train_sweep(tmp_path / "plain", **given, round_products="tf32")


def test_a_run_with_rounding_has_other_numbers_and_is_evaluated_with_them(rounded, tmp_path):
    plain, _ = train_sweep(tmp_path / "plain", RATE, DEEP_BASE, experiment=DEEP_LINEAR, devices=1)
    losses = [columns(run, "loss").to_numpy() for run in (rounded, plain)]
    assert not np.array_equal(*losses)
    np.testing.assert_allclose(*losses, rtol=0.02)
    (trial_id,) = rounded.trials["trial_id"]
    again = rounded.trial(trial_id).evaluate(DEEP_LINEAR)
    assert float(again["loss"]) == rounded.trial(trial_id).records["loss"].iloc[-1]


def test_a_saved_state_of_another_rounding_has_another_origin():
    own = replace(DEEP_LINEAR, version=1)
    assert len({origin_name(own), origin_name(own, "tf32"), origin_name(own, "bf16")}) == 3
