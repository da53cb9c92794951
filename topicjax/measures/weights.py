"""Measures of the weights alone."""

import jax
import jax.numpy as jnp

from topicjax.errors import UserError
from topicjax.measures.snapshot import Snapshot


def participation(snapshot: Snapshot) -> dict[str, jax.Array]:
    """Compute the participation ratio (tr G)^2 / tr G^2, G = W W^T, of every weight matrix.

    It counts the directions among which a matrix distributes its squared norm: 1 for a matrix of rank one,
    n for an orthogonal one of size n.  No decomposition is needed.  Arrays with more than two axes are stacks
    of matrices, one column each.  NaN for a matrix of zeros.
    """
    columns = {}
    for path, leaf in jax.tree.leaves_with_path(snapshot.weights):
        name = "_".join(
            str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path
        )
        name = "participation" + f"_{name}" * bool(name)
        if leaf.ndim < 2:
            continue
        stack = leaf.reshape(-1, *leaf.shape[-2:])
        for place in range(len(stack)):
            number = f"_{place + 1}" * (leaf.ndim > 2)
            columns[name + number] = participation_ratio(stack[place])
    if not columns:
        raise UserError(
            f"the weights of {snapshot.experiment.name} have no matrix; allowed: a matrix or more"
        )
    return columns


def participation_ratio(matrix: jax.Array) -> jax.Array:
    """Compute (tr G)^2 / tr G^2 of G = W W^T, whatever the scale of W; NaN for zeros."""
    scaled = matrix / jnp.abs(matrix).max()
    smaller = scaled if scaled.shape[0] <= scaled.shape[1] else scaled.T
    gram = smaller @ smaller.T
    return jnp.trace(gram) ** 2 / jnp.sum(gram**2)
