"""The learning coefficient at three widths of its localization: topicjax measure FOLDER docs/llc_scan.py"""

from typing import Any

import jax
import jax.numpy as jnp

from topicjax.measures.learning_coefficient import learning_coefficient

GAMMAS = (1, 10, 100)


def measure(snapshot: Any) -> dict[str, jax.Array]:
    """Estimate it at each gamma, one after another in one program: llc_g1, llc_se_g1 and so on."""
    gammas = jnp.array(GAMMAS, "float32")
    found = jax.lax.map(lambda gamma: learning_coefficient(snapshot, gamma=gamma), gammas)
    return {f"{name}_g{gamma}": own[n] for name, own in found.items() for n, gamma in enumerate(GAMMAS)}
