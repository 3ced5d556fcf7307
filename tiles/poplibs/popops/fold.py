"""Folding an array along dimensions the way a CPU or GPU backend does quickly.

XLA:CPU walks down one column of a leading dimension after the other: 131,072 columns of 7 take 6.8 ms, against
0.24 ms as halves added to each other. Where columns are near each other that is as fast as halves, and takes XLA a
fifth of the time to compile (jaxlib 0.10.2: 64 rows of 4,096 in 56 us and 14 ms, as halves in 65 us and 61 ms).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jax import Array, lax

from tiles._jax_compat import reduce_sum
from tiles.numerics.accumulate import accumulate
from tiles.numerics.dtypes import is_float, to_jax

FOLDS: dict[str, tuple[Callable[..., Array], Callable[[Array, Array], Array]]] = {
    "add": (reduce_sum, lax.add),
    "mul": (lax.reduce_prod, lax.mul),
    "max": (lax.reduce_max, lax.max),
    "min": (lax.reduce_min, lax.min),
    "and": (lax.reduce_and, lax.bitwise_and),
    "or": (lax.reduce_or, lax.bitwise_or),
    "xor": (lax.reduce_xor, lax.bitwise_xor),
}


NEAR = 4096
"""Elements between neighbours of a column up to which whole columns are reduced at once."""


def fold(operation: str, x: Array, dims: Sequence[int]) -> Array:
    """Return ``x`` folded over ``dims``; the dimensions vanish.

    The number of operations grows at most with the logarithm of an outer dimension's size.
    """
    reduce, combine = FOLDS[operation]
    inner = x.ndim
    while inner - 1 in dims:
        inner -= 1
    if 0 in (x.shape[d] for d in dims) or not dims:
        return reduce(x, tuple(dims))
    if math.prod(n for d, n in enumerate(x.shape) if d > min(dims) and d not in dims) <= NEAR:
        return reduce(x, tuple(dims))
    outer = [d for d in dims if d < inner]
    for d in outer:
        x = _halve(combine, x, d)
    x = reduce(x, tuple(range(inner, x.ndim))) if inner < x.ndim else x
    return lax.squeeze(x, outer)


def _halve(combine: Callable[[Array, Array], Array], x: Array, axis: int) -> Array:
    """Fold one axis to size 1 by adding halves; an odd element is kept for last."""
    rest = None
    while (size := x.shape[axis]) > 1:
        half = size // 2
        if size % 2:
            odd = lax.slice_in_dim(x, size - 1, size, axis=axis)
            rest = odd if rest is None else combine(rest, odd)
        x = combine(lax.slice_in_dim(x, 0, half, axis=axis), lax.slice_in_dim(x, half, 2 * half, axis=axis))
    return x if rest is None else combine(x, rest)


def cast_accumulator(x: Array, dtype: str) -> Array:
    """Return values cast into or out of an accumulator: floats by ``accumulate``, others as they are.

    Unsigned words behind a float result are the float's own bits: partials of exact movement, of which at
    most one is not zero, so that ``or`` joins them.
    """
    if x.dtype == to_jax(dtype):
        return x
    if is_float(dtype) and not is_float(x.dtype):
        return lax.bitcast_convert_type(x, to_jax(dtype))
    return accumulate(x, dtype) if is_float(x.dtype) else lax.convert_element_type(x, to_jax(dtype))
