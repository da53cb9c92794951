"""The random numbers of jax.random, drawn by position and in one pass.

On cores every call of jax.random makes several passes over memory, and documents take many small calls.  The
bits are those of jax.random (tests compare them), and a number can be drawn by its position in a shape that
is known only when the program runs.  A key is a pair of uint32: jax.random.key_data of the key.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
KEY_INJECTIONS = 5  # each after four rounds
PIECE = 2048  # numbers drawn at a time


class Key(NamedTuple):
    """The two halves of a jax.random key."""

    first: jax.Array
    second: jax.Array


def raw(key: jax.Array) -> Key:
    """Split a jax.random key into its halves."""
    return Key(*jax.random.key_data(key))


@functools.partial(jax.jit, inline=True)  # traced once per shape: its 120 operations stand in every drawing
def hashed(key: Key, place: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute threefry-2x32 (Salmon et al., 2011) of the counters (0, place)."""
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
    """Derive independent keys, equal to those of jax.random.split."""
    return [fold_in(key, place) for place in range(count)]


def fold_in(key: Key, number: jax.Array | int) -> Key:
    """Derive the key of a number, equal to that of jax.random.fold_in."""
    return Key(*hashed(key, jnp.asarray(number)))


def places(*shape: int) -> jax.Array:
    """Number the entries of an array of this shape."""
    return jnp.arange(math.prod(shape)).reshape(shape)


def random_bits(*requests: tuple[Key, jax.Array]) -> list[jax.Array]:
    """Draw 32 bits for every place of every request, equal to those of jax.random.bits.

    One loop over pieces draws them all: outside a loop the compiler would draw every number again wherever it
    is used, and compile the drawing as often.
    """
    pieces = [-(-place.size // PIECE) for _, place in requests]

    def in_pieces(place: jax.Array) -> jax.Array:
        return jnp.pad(place.reshape(-1), (0, -place.size % PIECE)).reshape(-1, PIECE)

    def draw(piece: tuple[Key, jax.Array]) -> jax.Array:
        left, right = hashed(*piece)
        return left ^ right

    key_P = jax.tree.map(
        lambda *halves: jnp.repeat(jnp.stack(halves), jnp.array(pieces), total_repeat_length=sum(pieces)),
        *(key for key, _ in requests),
    )
    bits_PxN = jax.lax.map(draw, (key_P, jnp.concatenate([in_pieces(place) for _, place in requests])))
    ends = [sum(pieces[: number + 1]) for number in range(len(pieces))]
    return [
        bits_PxN[end - count : end].reshape(-1)[: place.size].reshape(place.shape)
        for end, count, (_, place) in zip(ends, pieces, requests, strict=True)
    ]


def uniform(bits: jax.Array) -> jax.Array:
    """Convert bits to numbers in [0, 1), equal to those of jax.random.uniform."""
    one_to_two = (bits >> jnp.uint32(9)) | jnp.uint32(0x3F800000)
    return jax.lax.bitcast_convert_type(one_to_two, jnp.float32) - 1


def normal(bits: jax.Array) -> jax.Array:
    """Convert bits to standard normal numbers, equal to those of jax.random.normal."""
    lowest = jnp.nextafter(jnp.float32(-1), jnp.float32(0))
    between = jnp.maximum(lowest, uniform(bits) * (1 - lowest) + lowest)
    return jnp.float32(2**0.5) * jax.lax.erf_inv(between)


def integers(key: Key, count: int, low: jax.Array, high: jax.Array) -> jax.Array:
    """Draw integers from low to high - 1, equal to those of jax.random.randint."""
    place, span = jnp.arange(count), (high - low).astype(jnp.uint32)
    upper, lower = (bits % span for bits in random_bits(*((own, place) for own in split(key, 2))))
    factor = jnp.uint32(2**16) % span
    factor = factor * factor % span
    return low + ((upper * factor + lower) % span).astype(jnp.int32)
