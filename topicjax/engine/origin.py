"""Origin of results: the experiment's code, and the options of jax that change numbers.

Every run records its origin, and a folder or a saved state of another origin is not continued unawares.
float32 matrix products run at full precision on every platform, so that results are comparable: by default
GPUs would round their factors to TF32 and TPUs to bfloat16.  A matmul precision that the user has set is
kept.  `round_products` emulates those defaults on any device; docs/precision.md has what they do to a map.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from topicjax.experiments.contract import Experiment
from topicjax.experiments.fingerprint import changed_parts, fingerprint

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
ROUND_PRODUCTS = "round_products"  # the option of a run, which counts as arithmetic
MOST_PARTS = 6  # of changed code in a message
Origin = Mapping[str, Any]  # code: a hash by part; arithmetic: options of jax by name, and any rounding


def origin(experiment: Experiment, round_products: str = "") -> dict[str, Any]:
    """Describe what results depend on besides the settings."""
    rounding = {ROUND_PRODUCTS: round_products} if round_products else {}
    return {"code": dict(known_code(experiment)), "arithmetic": arithmetic() | rounding}


@functools.lru_cache(maxsize=64)
def known_code(experiment: Experiment) -> Mapping[str, str]:
    """Read the code of an experiment once per process."""
    return fingerprint(experiment)


def origin_name(experiment: Experiment, round_products: str = "") -> str:
    """Hash the origin, to be kept with saved states."""
    text = json.dumps(origin(experiment, round_products), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(before: Origin, now: Origin) -> str:
    """Describe how two origins differ; empty if they do not."""
    if not before.get("code"):
        return "its record was lost"
    parts = changed_parts(before.get("code", {}), now["code"])
    more = f" and {len(parts) - MOST_PARTS} more" if len(parts) > MOST_PARTS else ""
    texts = [f"changed since: {', '.join(parts[:MOST_PARTS])}{more}"] if parts else []
    old, new = before.get("arithmetic", {}), now["arithmetic"]
    texts += [
        f"{name} was {old.get(name)}, is {new.get(name)}"
        for name in {**new, **old}
        if old.get(name) != new.get(name)
    ]
    return "; ".join(texts)


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
