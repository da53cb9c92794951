"""Curvature of the loss at a snapshot: extreme eigenvalues of its Hessian, without the Hessian."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from topicjax.measures.snapshot import Loss, Snapshot

Product = Callable[[jax.Array], jax.Array]  # of a symmetric matrix with a vector
TINY = 1e-30


class Extremes(NamedTuple):
    """The largest and smallest eigenvalue found, and how far the largest can be from an eigenvalue."""

    largest: jax.Array
    smallest: jax.Array
    residual: jax.Array  # |A v - largest v|: an eigenvalue lies within this distance


def lanczos(product: Product, start: jax.Array, iterations: int) -> Extremes:
    """Find the extreme eigenvalues of a symmetric matrix by Lanczos' method with full reorthogonalization.

    The small tridiagonal matrix is decomposed alone: a batched call of LAPACK could hang on several cores.
    """
    size = min(iterations, start.size)

    def iterate(place: Any, carry: Any) -> Any:
        basis, alphas, betas, vector = carry
        basis = basis.at[place].set(vector)
        image = product(vector)
        alphas = alphas.at[place].set(vector @ image)
        for _ in range(2):  # twice is enough: rounding brings earlier directions back
            image = image - basis.T @ (basis @ image)
        length = jnp.linalg.norm(image)
        betas = betas.at[place].set(length)
        scale = jnp.abs(alphas).max() + jnp.abs(betas).max() + TINY
        # The space is exhausted: a vector of zeros adds eigenvalues 0 of no weight, which are left out below.
        following = jnp.where(length > 1e-6 * scale, image / (length + TINY), 0.0)
        return basis, alphas, betas, following

    zeros = jnp.zeros(size, start.dtype)
    first = (jnp.zeros((size, start.size), start.dtype), zeros, zeros, start / jnp.linalg.norm(start))
    basis, alphas, betas, _ = jax.lax.fori_loop(0, size, iterate, first)
    is_used = jnp.linalg.norm(basis, axis=1) > 0.5
    inner = jnp.where(is_used[1:], betas[:-1], 0.0)
    values, vectors = jnp.linalg.eigh(jnp.diag(alphas) + jnp.diag(inner, 1) + jnp.diag(inner, -1))
    weight = (is_used[:, None] * vectors**2).sum(axis=0)
    largest = jnp.argmax(jnp.where(weight > 0.5, values, -jnp.inf))
    smallest = jnp.argmin(jnp.where(weight > 0.5, values, jnp.inf))
    last = is_used.sum() - 1
    return Extremes(values[largest], values[smallest], betas[last] * jnp.abs(vectors[last, largest]))


def times_hessian(loss: Callable[[jax.Array], jax.Array], vector: jax.Array) -> Product:
    """Make the product of a direction with the Hessian of a loss at a vector."""
    return lambda direction: jax.jvp(jax.grad(loss), (vector,), (direction,))[1]


def mean_loss(loss: Loss, batches: Any) -> Callable[[jax.Array], jax.Array]:
    """Make the mean of a loss over stacked batches, one at a time."""
    return lambda vector: jax.lax.map(lambda batch: loss(vector, batch), batches).mean()


def sharpness(snapshot: Snapshot, batches: int = 4, iterations: int = 30) -> dict[str, jax.Array]:
    """Find the extreme eigenvalues of the Hessian of the loss in the trained weights, by Lanczos' method.

    The loss is the mean over this many batches that training has not seen, the same for all snapshots of a
    stream.  `hessian_max` is the sharpness, `hessian_min` the strongest negative curvature (a saddle has
    one); `hessian_error` is the residual of the largest: an exact eigenvalue of this loss lies as near.
    """
    vector, loss = snapshot.parameters()
    whole = mean_loss(loss, snapshot.fresh_batches(batches))
    start = jax.random.normal(snapshot.key, vector.shape, vector.dtype)
    found = lanczos(times_hessian(whole, vector), start, iterations)
    return dict(hessian_max=found.largest, hessian_min=found.smallest, hessian_error=found.residual)
