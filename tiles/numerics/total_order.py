"""Integers that are ordered as floats are: by sign and magnitude, whatever the bits stand for; floats moved as bits.

IEEE's total order (-NaN < -inf < ... < -0 < 0 < ... < inf < NaN), and what XLA makes of it where a format lacks
something: the one NaN of formats without a negative zero has its bits and is least; without a sign, bits count.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def total_order_key(x: Array) -> Array:
    """Return signed integers, as wide, that are ordered as floats are."""
    return _folded(lax.bitcast_convert_type(x, np.dtype(f"int{8 * x.dtype.itemsize}")), x.dtype)


def from_total_order_key(key: Array, dtype: np.dtype) -> Array:
    """Return the floats of a type that have these keys."""
    return lax.bitcast_convert_type(_folded(key, dtype), dtype)


def as_moved(x: Array) -> Array:
    """Return floats of 8 bits and bf16 as unsigned integers, anything else as it is: what is sorted, padded or joined.

    XLA:CPU (jaxlib 0.10.2) moves them as wider floats. That loses the bits of a NaN, of most formats of 8 bits its sign,
    too, and with them the place that it has in the total order.
    """
    is_narrow = jnp.issubdtype(x.dtype, jnp.floating) and (x.dtype.itemsize == 1 or x.dtype == jnp.bfloat16)
    return lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}")) if is_narrow else x


def from_moved(moved: Array, like: Array) -> Array:
    """Return what ``as_moved`` made of an array of the type of ``like``."""
    return moved if moved.dtype == like.dtype else lax.bitcast_convert_type(moved, like.dtype)


def concatenated(arrays: Sequence[Array], axis: int) -> Array:
    """Return arrays of one type joined along an axis, bit for bit; see ``as_moved``."""
    return from_moved(lax.concatenate([as_moved(x) for x in arrays], axis), arrays[0])


def padded(x: Array, fill: Array, padding: Sequence[tuple[int, int, int]]) -> Array:
    """Return ``lax.pad`` of an array, bit for bit; see ``as_moved``."""
    return from_moved(lax.pad(as_moved(x), as_moved(fill), padding), x)


def _folded(words: Array, dtype: np.dtype) -> Array:
    """Return signed words with the magnitude of negative ones turned round, which is its own inverse."""
    bits = 8 * words.dtype.itemsize
    if dtype == jnp.float8_e8m0fnu:
        return words ^ np.array(-(1 << (bits - 1)), words.dtype)
    if dtype.name.endswith("fnuz"):
        least = np.array(-(1 << (bits - 1)), words.dtype)
        return jnp.where((words < 0) & (words != least), least - words, words)
    return words ^ ((words >> (bits - 1)) & np.array((1 << (bits - 1)) - 1, words.dtype))
