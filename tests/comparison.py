"""Evaluate modules such that "the same" can mean to the bit, and compare the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from hlo_passes.ir import Module, TensorType, evaluate_module
from hlo_passes.ops import DotGeneral


def results(module: Module, arrays: Sequence[Any]) -> list[np.ndarray]:
    """Evaluate a module's entry; contractions by ``sorted_products``."""
    return [np.asarray(x) for x in evaluate_module(module, *arrays, apply=sorted_products)]


def sorted_products(function: Any, *operands: Any) -> Sequence[Any]:
    """Evaluate an operation; a contraction by adding its products in order of size.

    Passes may exchange a contraction's operands or read them transposed, upon which XLA adds in another
    order; in this one the sum does not depend on theirs. Products of up to 32-bit floats are exact in 64
    bits.
    """
    op = function.func.__self__
    if not isinstance(op, DotGeneral):
        return function(*operands)
    lhs, rhs = (np.asarray(x) for x in operands)
    n = op.dimension_numbers
    left, right = n.lhs_free(lhs.ndim), n.rhs_free(rhs.ndim)
    batch, rows, columns = (
        [array.shape[d] for d in dims] for array, dims in ((lhs, n.lhs_batching), (lhs, left), (rhs, right))
    )
    terms = int(np.prod([lhs.shape[d] for d in n.lhs_contracting], dtype=int))
    a = lhs.transpose(n.lhs_batching + left + n.lhs_contracting)
    a = a.reshape([*batch, int(np.prod(rows, dtype=int)), 1, terms])
    b = rhs.transpose(n.rhs_batching + right + n.rhs_contracting)
    b = b.reshape([*batch, 1, int(np.prod(columns, dtype=int)), terms])
    wide = a.dtype if a.dtype.kind in "iub" else np.dtype(np.float64)
    with np.errstate(invalid="ignore"):
        total = np.sort(a.astype(wide) * b.astype(wide), axis=-1).sum(-1)
        (like,) = function(*operands)
        return (jax.numpy.asarray(total.astype(like.dtype).reshape([*batch, *rows, *columns])),)


def assert_same_bits(before: Iterable[np.ndarray], after: Iterable[np.ndarray]) -> None:
    """Check types, shapes and bits; of a NaN only where it is."""
    for one, other in zip(before, after, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one != one, other != other)
        np.testing.assert_array_equal(_words(one), _words(other))


def _words(array: np.ndarray) -> np.ndarray:
    words = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    return np.where((array != array).reshape(-1), 0, words)


def special_array(type_: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Return elements that identities fail on: zeros of both signs, infinities, NaN, extreme integers."""
    if type_.is_bool:
        return rng.integers(0, 2, type_.shape).astype(bool)
    if type_.is_float:
        values: list[Any] = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.7, -2.5, 3e4]
    else:
        limits = np.iinfo(type_.np_dtype)
        values = [limits.min, limits.max, 0, 1, 2, 7]
    chosen = rng.integers(0, len(values), type_.shape)
    return np.array(values).astype(type_.np_dtype)[chosen]
