"""The numbers of jax.random, drawn by their places, in straight-line code.

On cores jax.random draws in a loop of several passes over memory, for every call; documents take many small
calls.  Here the compiler fuses a draw with what uses it.  The bits are those of jax.random (tests compare
them), and a number can be drawn by its place in a shape that is only known when the program runs.
A key is a pair of uint32: jax.random.key_data of the key.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
KEY_INJECTIONS = 5  # each after four rounds


class Key(NamedTuple):
    """The two halves of a key of jax.random."""

    first: jax.Array
    second: jax.Array


def raw(key: jax.Array) -> Key:
    """Return a key of jax.random as its halves."""
    return Key(*jax.random.key_data(key))


def hashed(key: Key, place: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return threefry-2x32 (Salmon et al., 2011) of the counters (0, place)."""
    schedule = (key.first, key.second, key.first ^ key.second ^ jnp.uint32(PARITY))
    place = place.astype(jnp.uint32)
    left, right = jnp.zeros_like(place) + schedule[0], place + schedule[1]
    for injection in range(1, KEY_INJECTIONS + 1):
        for bits in ROTATIONS[(injection - 1) % 2]:
            left = left + right
            right = (right << jnp.uint32(bits)) | (right >> jnp.uint32(32 - bits))
            right = right ^ left
        left = left + schedule[injection % 3]
        right = right + schedule[(injection + 1) % 3] + jnp.uint32(injection)
    return left, right


def split(key: Key, count: int) -> list[Key]:
    """Return independent keys: those of jax.random.split."""
    return [fold_in(key, place) for place in range(count)]


def fold_in(key: Key, number: jax.Array | int) -> Key:
    """Return the key of a number: that of jax.random.fold_in."""
    return Key(*hashed(key, jnp.asarray(number)))


def random_bits(key: Key, place: jax.Array) -> jax.Array:
    """Return 32 bits for every place."""
    left, right = hashed(key, place)
    return left ^ right


def uniform(key: Key, place: jax.Array) -> jax.Array:
    """Return a number in [0, 1) for every place: that of jax.random.uniform."""
    one_to_two = (random_bits(key, place) >> jnp.uint32(9)) | jnp.uint32(0x3F800000)
    return jax.lax.bitcast_convert_type(one_to_two, jnp.float32) - 1


def normal(key: Key, place: jax.Array) -> jax.Array:
    """Return a standard normal number for every place: that of jax.random.normal."""
    lowest = jnp.nextafter(jnp.float32(-1), jnp.float32(0))
    between = jnp.maximum(lowest, uniform(key, place) * (1 - lowest) + lowest)
    return jnp.float32(2**0.5) * jax.lax.erf_inv(between)


def integers(key: Key, count: int, low: jax.Array, high: jax.Array) -> jax.Array:
    """Return integers from low to high - 1: those of jax.random.randint."""
    place, span = jnp.arange(count), (high - low).astype(jnp.uint32)
    upper, lower = (random_bits(own, place) % span for own in split(key, 2))
    factor = jnp.uint32(2**16) % span
    factor = factor * factor % span
    return low + ((upper * factor + lower) % span).astype(jnp.int32)
