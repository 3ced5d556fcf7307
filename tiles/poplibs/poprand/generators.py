"""Threefry-2x32 and Philox-4x32: a key and counters to random words, elementwise.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; 20 and 10 rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))


def halves(x: Array) -> tuple[Array, Array]:
    """Return the lower and upper 32 bits of 64-bit words."""
    return x.astype(jnp.uint32), (x >> np.uint64(32)).astype(jnp.uint32)


def joined(low: Array, high: Array) -> Array:
    """Return 64-bit words of their lower and upper halves."""
    return low.astype(jnp.uint64) | (high.astype(jnp.uint64) << np.uint64(32))


def threefry(key: Array, counter: Array) -> tuple[Array, Array]:
    """Return two random uint32 per counter.

    Args:
      key: one uint64.
      counter: uint64 of any shape.
    """
    keys = [*halves(key)]
    keys.append(keys[0] ^ keys[1] ^ _PARITY)
    a, b = halves(counter)
    a, b = a + keys[0], b + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            a = a + b
            b = a ^ ((b << np.uint32(distance)) | (b >> np.uint32(32 - distance)))
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def philox(key: Array, low: Array, high: Array) -> Sequence[Array]:
    """Return four random uint32 per counter of 128 bits.

    Args:
      key: one uint64.
      low: lower halves of the counters, uint64 of any shape.
      high: upper halves.
    """
    words = [*halves(low), *halves(high)]
    keys = halves(key)
    for _ in range(10):
        first, second = (
            halves(word.astype(jnp.uint64) * factor)
            for word, factor in zip((words[0], words[2]), _MULTIPLIERS, strict=True)
        )
        words = [second[1] ^ words[1] ^ keys[0], second[0], first[1] ^ words[3] ^ keys[1], first[0]]
        keys = keys[0] + _WEYL[0], keys[1] + _WEYL[1]
    return words
