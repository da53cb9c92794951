"""Shipped measures against dense matrices, other implementations of the loss, and closed forms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from support.engine_runs import BASE, DEEP_BASE, DEEP_LINEAR

from topicjax.errors import UserError
from topicjax.experiments.encoder.experiment import EXPERIMENT as ENCODER
from topicjax.experiments.encoder.losses import loss_and_gradients
from topicjax.experiments.one_layer import model
from topicjax.experiments.one_layer.experiment import EXPERIMENT as ONE_LAYER
from topicjax.experiments.shared import lda
from topicjax.experiments.shared.bags import to_bag
from topicjax.experiments.shared.state import split
from topicjax.measures.curvature import lanczos, mean_loss, sharpness, times_hessian
from topicjax.measures.learning_coefficient import estimate
from topicjax.measures.snapshot import Snapshot
from topicjax.measures.weights import participation

KEY = jax.random.key(7)


def snapshot_of(experiment, settings, weights=None) -> Snapshot:
    """Make the snapshot of a trial at its start, or with these weights."""
    trial = experiment.settings.make_trial(settings)
    spec = experiment.fit(trial.spec, [trial.stream])
    stream, hypers = map(experiment.settings.traced, trial[1:])
    if weights is None:
        weights = experiment.weights(spec, experiment.init(spec, stream, hypers))
    return Snapshot(experiment, spec, stream, hypers, weights, 0, KEY)


def test_participation_counts_singular_directions():
    rng = np.random.default_rng(0)
    wide, stack = rng.normal(size=(3, 7)), rng.normal(size=(2, 5, 4))
    tree = dict(wide=wide, layers=[stack, np.ones(3)], one=np.outer(wide[0], wide[1]) * 1e-20)
    tree |= dict(turned=np.linalg.qr(rng.normal(size=(6, 6)))[0], zero=np.zeros((2, 2)))
    given = snapshot_of(DEEP_LINEAR, DEEP_BASE, jax.tree.map(lambda leaf: jnp.array(leaf, "float32"), tree))
    found = participation(given)

    def by_svd(matrix: np.ndarray) -> float:
        squares = np.linalg.svd(matrix, compute_uv=False) ** 2
        return squares.sum() ** 2 / (squares**2).sum()

    assert found["participation_wide"] == pytest.approx(by_svd(wide), rel=1e-5)
    for place in (0, 1):
        assert found[f"participation_layers_0_{place + 1}"] == pytest.approx(by_svd(stack[place]), rel=1e-5)
    assert found["participation_one"] == pytest.approx(1, rel=1e-5)
    assert found["participation_turned"] == pytest.approx(6, rel=1e-5)
    assert np.isnan(found["participation_zero"]) and len(found) == 6
    with pytest.raises(UserError, match="the weights of deep_linear have no matrix"):
        participation(snapshot_of(DEEP_LINEAR, DEEP_BASE, [jnp.ones(3)]))


@pytest.mark.parametrize("eigenvalues", [np.linspace(-3, 5, 30), np.repeat([2.0, 2.0, -7.0, 0.0], 3)])
def test_lanczos_finds_both_ends_of_a_spectrum(eigenvalues):
    turned, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(len(eigenvalues),) * 2))
    matrix = jnp.array(turned @ np.diag(eigenvalues) @ turned.T, "float32")
    start = jax.random.normal(KEY, (len(matrix),))
    found = jax.jit(lambda: lanczos(lambda vector: matrix @ vector, start, 30))()
    assert found.largest == pytest.approx(eigenvalues.max(), abs=1e-4)
    assert found.smallest == pytest.approx(eigenvalues.min(), abs=1e-4)
    assert found.residual < 1e-3
    early = lanczos(lambda vector: matrix @ vector, start, 2)
    distance = np.abs(eigenvalues - early.largest).min()
    assert distance <= early.residual + 1e-4  # the residual bounds the distance to an exact eigenvalue


def test_sharpness_is_that_of_the_dense_hessian():
    given = snapshot_of(DEEP_LINEAR, DEEP_BASE | dict(depth=2, init_scale=0.5, width=3))
    found = jax.jit(lambda: sharpness(given, batches=2))()
    vector, loss = given.parameters()

    def dense():
        batches = [given.batch(given.spec.steps + number) for number in (0, 1)]
        return sum(jax.hessian(loss)(vector, batch) for batch in batches) / 2

    values = np.linalg.eigvalsh(jax.jit(dense)())
    assert found["hessian_max"] == pytest.approx(values[-1], rel=1e-3)
    assert found["hessian_min"] == pytest.approx(values[0], rel=1e-3)


@pytest.mark.parametrize("attention", ["trained", "uniform"])
def test_the_loss_of_one_layer_is_that_of_the_token_model_to_second_order(attention):
    settings = BASE | dict(attention=attention, init_scale=0.3, learning_rate=1.0)
    given = snapshot_of(ONE_LAYER, settings)
    spec, stream = given.spec, given.stream
    phi = lda.topic_words(spec, stream)
    documents = lda.draw_documents(spec, stream, phi, lda.threefry.raw(KEY), spec.batch_size)
    bag = to_bag(spec, stream, documents, uniform=attention == "uniform")
    vector, loss = given.parameters()
    names = [name for name in sorted(given.weights) if name in model.trained_names(spec)]
    assert vector.size == sum(given.weights[name].size for name in names)
    assert names == (["W_K", "W_Q", "W_V"] if attention == "trained" else ["W_V"])

    def by_tokens(vector):
        own = ravel_pytree([given.weights[name] for name in names])[1](vector)
        params = given.weights | dict(zip(names, own, strict=True))
        if attention == "uniform":
            params |= dict(W_K=0 * params["W_K"], W_Q=0 * params["W_Q"])
        return model.token_loss(spec, stream, given.hypers.objective, params, documents)

    direction = jax.random.normal(KEY, vector.shape)

    @jax.jit
    def to_second_order():
        return [
            (of(vector), jax.grad(of)(vector), times_hessian(of, vector)(direction))
            for of in (lambda vector: loss(vector, bag), by_tokens)
        ]

    for ours, tokens in zip(*to_second_order(), strict=True):
        np.testing.assert_allclose(ours, tokens, rtol=2e-4, atol=3e-5)
        assert np.abs(tokens).max() > 1e-2


def test_the_loss_of_an_encoder_is_the_one_it_trains_on():
    small = dict(topics=2, words_per_topic=2, length_min=4, length_max=5, batch_size=2, eval_documents=2)
    given = snapshot_of(ENCODER, small | dict(layers=2, width=4, heads=2, mlp=0))
    batch, (vector, loss) = given.batch(0), given.parameters()
    trained = [name for name, own in ENCODER.trained(given.spec, given.weights).items() if own]
    own, frozen = split(given.weights, trained)
    of = partial(loss_and_gradients, given.spec, given.hypers)
    value, gradients = jax.jit(of)(own, frozen, batch)
    found, gradient = jax.jit(jax.value_and_grad(loss))(vector, batch)
    assert found == pytest.approx(float(value), rel=1e-5)
    expected = ravel_pytree([gradients[name] for name in sorted(gradients)])[0]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_an_experiment_without_a_loss_is_refused():
    given = snapshot_of(DEEP_LINEAR, DEEP_BASE)
    object.__setattr__(given, "experiment", DEEP_LINEAR.__class__(**vars(DEEP_LINEAR) | dict(loss=None)))
    with pytest.raises(UserError, match=r"deep_linear has no loss; allowed: measures of the weights alone"):
        sharpness(given)


NBETA, GAMMA = 100.0, 1.0


def model_loss(vector, batch):
    """A quadratic with the curvatures and slopes of the batch, and c x^2 y^2 of the first two parameters."""
    curvature, slope, c = batch[:4], batch[4:8], batch[8]
    return (curvature * vector**2).sum() / 2 + (slope * vector).sum() + c * (vector[0] * vector[1]) ** 2


@pytest.fixture(scope="module")
def estimated():
    """The estimator, compiled once for all models of four parameters; `noise` moves the slopes of batches."""
    run = partial(estimate, model_loss, gamma=GAMMA, chains=16, step=0.5)

    @jax.jit
    def compiled(batches, nbeta):
        return run(jnp.zeros(4), batches, KEY, nbeta=nbeta, warmup=200, burnin=100, draws=1600)

    def of(curvature, c=0.0, slope=(0.0,) * 4, noise=(0.0,) * 4, nbeta=NBETA):
        batches = np.tile(np.array([*curvature, *slope, c], "float32"), (16, 1))
        drawn = np.random.default_rng(3).normal(size=(16, 4))
        drawn -= drawn.mean(axis=0)
        batches[:, 4:8] += np.asarray(noise) * drawn / drawn.std(axis=0)
        found = compiled(jnp.array(batches), nbeta)
        return {name: float(value) for name, value in found.items()}

    return of


def regular(curvature) -> float:
    """Sum what each direction adds, in closed form: near 1/2 where n beta h is far above gamma."""
    h = NBETA * np.asarray(curvature)
    return float((h / (h + GAMMA)).sum() / 2)


def crossing(nbeta: float) -> float:
    """Integrate x^2 y^2 against its localized density: y in closed form, x > 0 on a grid of ln x."""
    x = np.exp(np.linspace(-40, 3, 200_001)) / GAMMA**0.5
    precision = 2 * nbeta * x**2 + GAMMA
    density = x * np.exp(-GAMMA * x**2 / 2) / np.sqrt(precision)
    return float((density * nbeta * x**2 / precision).sum() / density.sum())


@pytest.mark.parametrize("curvature", [(0.5, 1.0, 30.0, 4.0), (1.0, 0.0, 30.0, 0.0)], ids=["regular", "flat"])
def test_the_coefficient_of_a_quadratic_is_half_its_directions(estimated, curvature):
    found, exact = estimated(curvature), regular(curvature)
    assert abs(exact - np.count_nonzero(curvature) / 2) < 0.03  # d / 2, whatever the curvatures
    assert found["llc"] == pytest.approx(exact, abs=4 * found["llc_se"]) and found["llc_se"] < 0.03 * exact
    assert found["llc_virial"] == pytest.approx(1, abs=0.05)
    assert abs(found["llc_drift"]) < 8 * found["llc_se"] and found["llc_below"] == 0


def test_the_integral_of_two_crossing_lines_goes_to_one_half():
    """x^2 y^2 has lambda = 1/2 of multiplicity 2: the closed-form limit, approached like 1 / ln n."""
    found = [crossing(nbeta) for nbeta in (1e2, 1e3, 1e4, 1e6, 1e12)]
    assert found == pytest.approx([0.354, 0.390, 0.412, 0.438, 0.466], abs=1e-3)
    missing = [(0.5 - crossing(nbeta)) * np.log(nbeta) for nbeta in (1e9, 1e12, 1e15)]
    assert np.ptp(missing) < 0.1 * missing[-1]


@pytest.mark.parametrize("nbeta", [1e2, 1e3])
def test_the_coefficient_of_two_crossing_lines_is_that_of_its_integral(estimated, nbeta):
    found = estimated((0.0, 0.0, 0.0, 0.0), c=1.0, nbeta=nbeta)
    assert found["llc"] == pytest.approx(crossing(nbeta), abs=4 * found["llc_se"])
    assert found["llc_se"] < 0.03


def test_off_a_minimum_draws_lie_below_the_start(estimated):
    """On a slope g draws are normal around -n beta g / p, p = n beta h + gamma, so the loss is known."""
    h, g = np.array([0.5, 1.0, 30.0, 4.0]), np.array([0.2, 0.0, 0.0, 0.0])
    p = NBETA * h + GAMMA
    middle = -NBETA * g / p
    exact = float((NBETA * (g * middle + h * (middle**2 + 1 / p) / 2)).sum())
    drawn = middle + np.random.default_rng(0).normal(size=(200_000, 4)) / np.sqrt(p)
    below = float(((h * drawn**2 / 2 + g * drawn).sum(axis=1) < 0).mean())
    found = estimated(h, slope=g)
    assert exact < -1 and below > 0.7  # no learning coefficient, and llc_below says so
    assert found["llc"] == pytest.approx(exact, abs=4 * found["llc_se"]) and found["llc_se"] < 0.1
    assert found["llc_below"] == pytest.approx(below, abs=0.03)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_noise_of_batches_adds_little(estimated, ratio):
    """Slopes of batches are noise with `ratio` times the standard deviation of the gradients of the mean."""
    curvature = np.array([0.5, 1.0, 30.0, 4.0])
    found, exact = estimated(curvature, noise=ratio * np.sqrt(curvature / NBETA)), regular(curvature)
    assert exact - 4 * found["llc_se"] < found["llc"] < exact * (1 + 0.5 / 4) + 4 * found["llc_se"]
    assert found["llc_se"] < 0.03 * exact
    assert (
        {0.5: 0.03, 1.0: 0.12, 2.0: 0.25}[ratio]
        < found["llc_below"]
        < {0.5: 0.1, 1.0: 0.22, 2.0: 0.35}[ratio]
    )


def test_the_virial_shows_chains_that_fail(estimated):
    """The arms of x^2 y^2 are too thin for the steps at a large n beta: the estimate is far too high."""
    found = estimated((0.0, 0.0, 0.0, 0.0), c=1.0, nbeta=1e4)
    assert found["llc"] > 2 * crossing(1e4) and found["llc_virial"] > 2


def test_the_mean_loss_is_over_all_batches():
    batches = jnp.array([[1.0, 2.0], [3.0, 5.0]])
    assert mean_loss(lambda vector, batch: (vector * batch).sum(), batches)(jnp.ones(2)) == 5.5
