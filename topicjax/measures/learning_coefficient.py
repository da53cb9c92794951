"""The local learning coefficient (LLC), estimated by preconditioned stochastic gradient Langevin dynamics.

What is estimated.  For a loss L, a point w0, an inverse temperature n beta and a localization gamma,

    llc = n beta (E[L(w)] - L(w0)),    w ~ exp(-n beta L(w) - gamma |w - w0|^2 / 2).

At a minimum w0 of a population loss, as n beta grows and gamma is small beside n beta times the curvature,
it goes to the learning coefficient lambda of singular learning theory: half the number of parameters if the
minimum is regular, less if it is degenerate (Watanabe 2009; the estimator: Lau et al. 2023).  A direction of
curvature h adds n beta h / (n beta h + gamma) / 2: n beta says which differences of the loss count (from
1 / n beta on), gamma how far from w0 we look (1 / sqrt(gamma) per weight).

Assumptions, to keep in mind when reading it.
- Values are comparable only at equal n beta and gamma, and in the same parametrization.  n beta is a fixed
  number here, 1000, and not n / ln n, the usual choice: about 1,280 for the one-layer model with its usual
  settings, whose 16 batches have n = 12,000 words to predict (40 documents of 125 words, 15 % masked).
- w0 should be near a local minimum.  During training it is not: where the loss falls along a direction, draws
  lie below L(w0) and the estimate is too low, or negative.  `llc_below` shows it.  Losses are compared on one
  batch, so noise of the batches puts some draws below at a minimum too: 17 % with four regular directions if
  gradients of a batch vary as much as that of the mean does over the draws, 1 % with 24 of them.
- The loss is that of `batches` batches that training has not seen.  n, the number of words to predict in
  them, say, should be several times n beta, or the chains fit these data: their gain lowers the estimate.
- A step takes the gradient of one batch, whose noise heats the chains a little.

The sampler.  Every weight has its own step size, eps / E[F^2] with F = dU, the gradient of the exponent:
by parts, E[F^2] is the mean curvature of the distribution in that weight.  The mean is taken over all chains
in the second half of the warm-up; then step sizes are frozen, since steps that go on adapting change the
distribution.  eps is `step` divided by the largest eigenvalue of the rescaled curvature, so that no direction
is unstable.  A step is w - eps F / (2 E[F^2]) plus the mean of this step's noise and the next one's
(Leimkuhler and Matthews 2013), which is exact for a quadratic loss, whatever eps.  A gradient beyond CLIP
times its typical size is cut, which keeps chains together where the curvature changes much.  Noise of the
batches adds at most step / 4 to the variance of a direction.  Losses are compared with those at w0 on the
same batch, which removes most of their noise.
"""

from typing import Any

import jax
import jax.numpy as jnp

from topicjax.measures.curvature import lanczos, times_hessian
from topicjax.measures.snapshot import Loss, Snapshot

DECAY = 0.9  # of the running mean of squared gradients while warming up
CLIP = 5.0  # times the root mean square of a gradient
POWER = 8  # Lanczos iterations for a step size: a few per cent are enough


def learning_coefficient(
    snapshot: Snapshot,
    nbeta: float = 1000.0,
    gamma: float = 1.0,
    chains: int = 4,
    warmup: int = 200,
    burnin: int = 96,
    draws: int = 192,
    batches: int = 16,
    step: float = 0.5,
) -> dict[str, jax.Array]:
    """Estimate the local learning coefficient in the trained weights; see the module for its assumptions.

    `llc` is the mean over chains and `llc_se` its standard error from their spread.  Diagnostics:
    `llc_drift`, second half of the draws minus first, which should be a few standard errors at most;
    `llc_below`, share of draws whose loss is below that of the snapshot (all of them for chains that only
    descend); `llc_virial`, E[(w - w0) . dU] over the number of parameters, which is 1 for draws of the
    distribution, less for chains that have not spread yet, more for steps that are too large.
    """
    vector, loss = snapshot.parameters()
    data = snapshot.fresh_batches(batches)
    return estimate(loss, vector, data, snapshot.key, nbeta, gamma, chains, warmup, burnin, draws, step)


def estimate(
    loss: Loss,
    start: jax.Array,
    batches: Any,
    key: jax.Array,
    nbeta: float,
    gamma: float,
    chains: int,
    warmup: int,
    burnin: int,
    draws: int,
    step: float,
) -> dict[str, jax.Array]:
    """Run the chains around `start`, on stacked batches in turn; return the estimate and its diagnostics."""
    count = len(jax.tree.leaves(batches)[0])
    base = jax.lax.map(lambda batch: loss(start, batch), batches)
    begin_C = jnp.arange(chains) * count // chains  # chains take the batches in turn, each from its own

    def at(place: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[place % count], batches)

    def curvature(vector: jax.Array, scale: jax.Array) -> jax.Array:
        """Find the largest eigenvalue of the curvature of U in weights divided by `scale`, on one batch."""
        times = times_hessian(lambda own: loss(own, at(0)), vector)
        first = jax.random.normal(jax.random.fold_in(key, 1), start.shape, start.dtype)
        product = lambda own: scale * (nbeta * times(scale * own) + gamma * scale * own)  # noqa: E731
        return lanczos(product, first, POWER).largest

    def pull(vector_CxD: jax.Array, number: Any) -> tuple[jax.Array, jax.Array]:
        """Compute the losses above those at the start, and the gradients of U, each chain on its batch."""

        def one(vector: jax.Array, first: Any) -> tuple[jax.Array, jax.Array]:
            value, gradient = jax.value_and_grad(loss)(vector, at(number + first))
            return value - base[(number + first) % count], nbeta * gradient + gamma * (vector - start)

        return jax.vmap(one)(vector_CxD, begin_C)

    def noise(number: Any) -> jax.Array:
        return jax.random.normal(jax.random.fold_in(key, 2 + number), (chains, start.size), start.dtype)

    def move(vector_CxD: jax.Array, force_CxD: jax.Array, scale_D: jax.Array, eps: Any, number: Any) -> Any:
        """Take a step in weights that have unit curvature once divided by `scale`."""
        unit_CxD = jnp.clip(scale_D[None, :] * force_CxD, -CLIP, CLIP)
        mean_CxD = (noise(number) + noise(number + 1)) / 2
        return vector_CxD + scale_D[None, :] * (jnp.sqrt(eps) * mean_CxD - eps / 2 * unit_CxD)

    def step_sizes(vector_CxD: jax.Array, mean_D: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Choose the size of each weight, and eps: one size for all before gradients are known."""
        scale_D = 1 / jnp.sqrt(jnp.maximum(mean_D, gamma))
        return scale_D, jnp.maximum(curvature(vector_CxD[0], scale_D), 1.0)

    def advance(carry: Any, number: Any) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        vector_CxD, square_D, mean_D, scale_D, stiffest = carry
        is_warm, is_new = number < warmup, (number == 0) | (number == warmup)
        scale_D, stiffest = jax.lax.cond(
            is_new, lambda: step_sizes(vector_CxD, mean_D), lambda: (scale_D, stiffest)
        )
        square_D = jnp.where(number == 0, stiffest / scale_D**2, square_D)
        above_C, force_CxD = pull(vector_CxD, number)
        virial = ((vector_CxD - start[None, :]) * force_CxD).sum(axis=1).mean() / start.size
        now_D = (force_CxD**2).mean(axis=0)
        square_D = DECAY * square_D + (1 - DECAY) * now_D
        mean_D += jnp.where(is_warm & (number >= warmup // 2), now_D / (warmup - warmup // 2), 0.0)
        warm_D = 1 / jnp.sqrt(jnp.maximum(jnp.maximum(square_D, now_D), gamma))
        size_D, eps = jnp.where(is_warm, warm_D, scale_D), jnp.where(is_warm, step, step / stiffest)
        following_CxD = move(vector_CxD, force_CxD, size_D, eps, number)
        return (following_CxD, square_D, mean_D, scale_D, stiffest), (above_C, virial)

    zeros_D = jnp.zeros_like(start)
    first = (jnp.tile(start, (chains, 1)), zeros_D, zeros_D, zeros_D, jnp.ones((), start.dtype))
    numbers = jnp.arange(warmup + burnin + draws)
    _, (above_TxC, virial_T) = jax.lax.scan(advance, first, numbers)
    kept_TxC = nbeta * above_TxC[warmup + burnin :]
    by_chain_C = kept_TxC.mean(axis=0)
    early, late = kept_TxC[: draws // 2].mean(), kept_TxC[draws // 2 :].mean()
    return dict(
        llc=by_chain_C.mean(),
        llc_se=by_chain_C.std(ddof=1) / chains**0.5,
        llc_drift=late - early,
        llc_below=(kept_TxC < 0).mean(),
        llc_virial=virial_T[warmup + burnin :].mean(),
    )
