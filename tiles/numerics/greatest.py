"""``greatest``: the k greatest integers of every row and where they are, the earlier of equal ones first.

XLA:CPU selects from rows of floats in one pass with a small heap, by their bits in total order, and sorts rows of
anything else: 15 to 30 times slower for a few of 2,048. So integers of up to 32 bits are handed to it as the floats
that are ordered as they are. All of this is one primitive of integers, which ring arithmetic leaves as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, core, lax

from tiles._jax_compat import Atom, batchers, lower_fun, new_primitive, register_lowering
from tiles.errors import UnsupportedDtype

greatest_p = new_primitive("tiles_greatest")
greatest_p.multiple_results = True


def greatest(x: Array, k: int) -> tuple[Array, Array]:
    """Return the greatest elements along the last axis, and their places.

    Args:
      x: integers or booleans ``[..., n]``.
      k: how many, at most n.

    Returns:
      elements of the type of ``x`` and int32 places, both ``[..., k]``.

    Raises:
      UnsupportedDtype: floats, whose order has to be stated by integers.
    """
    if x.dtype.kind not in "biu":
        raise UnsupportedDtype("greatest takes integers or booleans", got=x.dtype.name)
    values, places = greatest_p.bind(x, k=k)
    return values, places


def _as_sorted(x: Array, *, k: int) -> list[Array]:
    """Select by whatever XLA makes of integers."""
    if x.dtype == np.bool_:
        values, places = lax.top_k(x.astype(np.uint8), k)
        return [values.astype(np.bool_), places]
    return list(lax.top_k(x, k))


def _as_floats(x: Array, *, k: int) -> list[Array]:
    """Select among the floats that are ordered as the integers are."""
    if x.dtype.itemsize > 4 or not x.size:
        return _as_sorted(x, k=k)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    words = _signed(rows)
    words = words ^ ((words >> 31) & np.int32(0x7FFFFFFF))  # floats keep sign and magnitude
    _, places = lax.top_k(lax.bitcast_convert_type(words, np.float32), k)
    values = jnp.take_along_axis(rows, places, -1, mode="promise_in_bounds")
    shape = (*x.shape[:-1], k)
    return [values.reshape(shape), places.reshape(shape)]


def _signed(x: Array) -> Array:
    """Return int32 in the order of integers of up to 32 bits."""
    if x.dtype == np.uint32:
        return lax.bitcast_convert_type(x ^ np.uint32(1 << 31), np.int32)
    return x.astype(np.int32)


def _abstract(x: Atom, *, k: int) -> list[core.ShapedArray]:
    shape = (*x.shape[:-1], k)
    return [core.ShapedArray(shape, x.dtype), core.ShapedArray(shape, np.dtype(np.int32))]


def _batch(args: Sequence[Array], dims: Sequence[int], *, k: int) -> tuple[list[Array], list[int]]:
    found = greatest_p.bind(jnp.moveaxis(args[0], dims[0], 0), k=k)
    return found, [0, 0]


greatest_p.def_impl(_as_sorted)
greatest_p.def_abstract_eval(_abstract)
batchers[greatest_p] = _batch
register_lowering(greatest_p, lower_fun(_as_sorted, multiple_results=True))
register_lowering(greatest_p, lower_fun(_as_floats, multiple_results=True), platform="cpu")
