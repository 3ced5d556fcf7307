"""Integers that are ordered as floats are: by sign and magnitude, whatever the bits stand for.

IEEE's total order (-NaN < -inf < ... < -0 < 0 < ... < inf < NaN), and what XLA makes of it where a format lacks
something: the one NaN of formats without a negative zero has its bits and is least; without a sign, bits count.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def total_order_key(x: Array) -> Array:
    """Return signed integers, as wide, that are ordered as floats are."""
    return _folded(lax.bitcast_convert_type(x, np.dtype(f"int{8 * x.dtype.itemsize}")), x.dtype)


def from_total_order_key(key: Array, dtype: np.dtype) -> Array:
    """Return the floats of a type that have these keys."""
    return lax.bitcast_convert_type(_folded(key, dtype), dtype)


def _folded(words: Array, dtype: np.dtype) -> Array:
    """Return signed words with the magnitude of negative ones turned round, which is its own inverse."""
    bits = 8 * words.dtype.itemsize
    if dtype == jnp.float8_e8m0fnu:
        return words ^ np.array(-(1 << (bits - 1)), words.dtype)
    if dtype.name.endswith("fnuz"):
        least = np.array(-(1 << (bits - 1)), words.dtype)
        return jnp.where((words < 0) & (words != least), least - words, words)
    return words ^ ((words >> (bits - 1)) & np.array((1 << (bits - 1)) - 1, words.dtype))
