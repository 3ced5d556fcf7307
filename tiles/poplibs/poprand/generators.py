"""Threefry-2x32 and Philox-4x32: a key and counters to random words, elementwise, on words of 32 bits alone.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; 20 and 10 rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

Words = tuple[Array, Array]
"""The lower and upper 32 bits of 64."""
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_HALF_BITS, _HALF = np.uint32(16), np.uint32(0xFFFF)


def halves(x: Array) -> Words:
    """Return the lower and upper 32 bits of 64-bit words."""
    return x.astype(jnp.uint32), (x >> np.uint64(32)).astype(jnp.uint32)


def joined(low: Array, high: Array) -> Array:
    """Return 64-bit words of their lower and upper halves."""
    return low.astype(jnp.uint64) | (high.astype(jnp.uint64) << np.uint64(32))


def advanced(counter: Words, blocks: Array) -> tuple[Array, Array, Array]:
    """Return a counter of 64 bits that has gone on by less than 2^32, and whether it has passed its end, as 0 or 1."""
    low = counter[0] + blocks
    high = counter[1] + (low < blocks).astype(jnp.uint32)
    return low, high, (high < counter[1]).astype(jnp.uint32)


def threefry(key: Words, counter: Words) -> tuple[Array, Array]:
    """Return two random uint32 per counter.

    Args:
      key: uint32 of one element each.
      counter: uint32 of any shape.
    """
    keys = [*key, key[0] ^ key[1] ^ _PARITY]
    a, b = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            a = a + b
            b = a ^ ((b << np.uint32(distance)) | (b >> np.uint32(32 - distance)))
        a = a + keys[(group + 1) % 3]
        b = b + (keys[(group + 2) % 3] + np.uint32(group + 1))
    return a, b


def philox(key: Words, low: Words, high: Words) -> Sequence[Array]:
    """Return four random uint32 per counter of 128 bits.

    Args:
      key: uint32 of one element each.
      low: lower halves of the counters, uint32 of any shape.
      high: upper halves.
    """
    words = [*low, *high]
    keys = key
    for _ in range(10):
        first, second = (
            _product(word, factor) for word, factor in zip((words[0], words[2]), _MULTIPLIERS, strict=True)
        )
        words = [second[1] ^ words[1] ^ keys[0], second[0], first[1] ^ words[3] ^ keys[1], first[0]]
        keys = keys[0] + np.uint32(_WEYL[0]), keys[1] + np.uint32(_WEYL[1])
    return words


def _product(word: Array, factor: int) -> Words:
    """Return both words of a product of words, of which the machine has the lower one: the upper one by halves."""
    above, below = np.uint32(factor >> 16), np.uint32(factor & 0xFFFF)
    high, low = word >> _HALF_BITS, word & _HALF
    middle = high * below + ((low * below) >> _HALF_BITS)
    rest = low * above + (middle & _HALF)
    return word * np.uint32(factor), high * above + (middle >> _HALF_BITS) + (rest >> _HALF_BITS)
