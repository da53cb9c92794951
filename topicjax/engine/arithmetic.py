"""Arithmetic of compiled programs: options of jax that change numbers, pinned, recorded and compared.

float32 matrix products run at full precision on every platform: stage 2 grows out of logits of 1e-6, which
the defaults of GPUs (TF32) and TPUs (bfloat16) would round away.  A matmul precision that the user has set is
kept.  Every run records these options, and a folder trained under others is not continued unawares.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax

FULL = "highest"
PRECISION = "jax_default_matmul_precision"
OPTIONS = (  # of jax.config: they change results, not only speed
    "jax_enable_x64",
    PRECISION,
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_disable_jit",
)


def arithmetic() -> dict[str, Any]:
    """Return the options that programs of this process are compiled with, by name."""
    found = {name: getattr(jax.config, name) for name in OPTIONS}
    return found | {PRECISION: str(found[PRECISION] or FULL)}


def use(options: Mapping[str, Any]) -> None:
    """Compile with the options of another process from now on: a worker computes as its driver would."""
    for name, value in options.items():
        if getattr(jax.config, name) != value:
            jax.config.update(name, value)


@contextlib.contextmanager
def pinned() -> Iterator[None]:
    """Trace float32 products at full precision, unless the user chose another."""
    if getattr(jax.config, PRECISION) is not None:
        yield
        return
    with jax.default_matmul_precision(FULL):
        yield
