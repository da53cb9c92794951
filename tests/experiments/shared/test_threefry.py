"""Our numbers against those of jax.random, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from topicjax.experiments.shared import threefry

KEYS = [jax.random.key(seed) for seed in (0, 7, 2**31 + 5)]


@pytest.mark.parametrize("key", KEYS)
def test_keys_are_those_of_jax(key):
    raw = threefry.raw(key)
    for ours, theirs in zip(threefry.split(raw, 3), jax.random.split(key, 3), strict=True):
        np.testing.assert_array_equal(jnp.stack(ours), jax.random.key_data(theirs))
    for number in (0, 1, 123_456):
        ours, theirs = threefry.fold_in(raw, jnp.int32(number)), jax.random.fold_in(key, number)
        np.testing.assert_array_equal(jnp.stack(ours), jax.random.key_data(theirs))


def test_numbers_are_those_of_jax():
    """All drawn together, in several pieces."""
    shape = (3, 501)
    drawn = threefry.random_bits(*((threefry.raw(key), threefry.places(*shape)) for key in KEYS))
    for key, bits in zip(KEYS, drawn, strict=True):
        np.testing.assert_array_equal(bits, jax.random.bits(key, shape))
        np.testing.assert_array_equal(threefry.uniform(bits), jax.random.uniform(key, shape))
        np.testing.assert_allclose(threefry.normal(bits), jax.random.normal(key, shape), rtol=1e-6)


@pytest.mark.parametrize("low, high", [(100, 151), (0, 1), (5, 100_000), (3, 11)])
def test_integers_are_those_of_jax(low, high):
    found = threefry.integers(threefry.raw(KEYS[1]), 300, jnp.int32(low), jnp.int32(high))
    np.testing.assert_array_equal(found, jax.random.randint(KEYS[1], (300,), low, high))
