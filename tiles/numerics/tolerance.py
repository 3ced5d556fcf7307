"""How close two results must be: the project's tolerances, defined once, and the comparisons that use them.

Integers, booleans, random keys and the positions of NaN are exact. Floats may differ by a share of the
largest finite magnitude of the wanted result: 1e-4 for 32 and 64 bits, 1e-2 for 16 bits, for 8 bits one eighth or,
where that is more, one step of the type (float8_e5m2: a quarter). Complex numbers, which no machine has but programs
may return, are compared as their parts.

Where a program is well conditioned, every element is as close as its own magnitude says: nothing in it cancels, so that a
rounding error is not larger, relative to the result, than it was relative to what was rounded. ``ELEMENTWISE`` is
that bound; sums of terms of both signs, differences, and functions near their zeros and poles are not.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tiles._jax_compat import Datum, finfo, keystr, tree_flatten_with_path
from tiles.numerics import dtypes

_BY_BYTES = {8: 1e-4, 4: 1e-4, 2: 1e-2, 1: 0.125}


ELEMENTWISE = {"f64": 1e-13, "f32": 1e-5, "f16": 5e-3, "bf16": 4e-2, "f8": 0.5}
"""By type how far an element of a well-conditioned program's result may be off, of its own magnitude."""


class NotClose(AssertionError):
    """Two results differ by more than the tolerance of their type."""


def tolerance_of(dtype: object) -> float:
    """Return the error allowed for a type, as a share of the largest magnitude; 0.0 means exact."""
    dtype = np.dtype(dtype)  # pyright: ignore
    if dtype.kind == "c":
        return _BY_BYTES[dtype.itemsize // 2]
    if not dtypes.is_float(dtype):
        return 0.0
    # Two sums that are both rounded well may lie a step apart, which is a quarter of a float8_e5m2.
    step = float(finfo(dtype).eps) if dtype.itemsize == 1 else 0.0
    return max(_BY_BYTES[dtype.itemsize], step)


def max_error(got: Datum, want: Datum) -> float:
    """Return the largest difference as a share of the wanted result's largest finite magnitude.

    Args:
      got: the numbers to judge.
      want: the numbers wanted, of equal shape.

    Returns:
      0.0 where all is equal; infinity where NaNs or infinities lie elsewhere, or all wanted values are zero.
    """
    got, want = _numbers(got), _numbers(want)
    finite = _is_finite(want)
    if _misplaced(got, want).any():
        return float("inf")
    if not finite.any():
        return 0.0
    with np.errstate(over="ignore"):
        difference = np.max(np.abs(got[finite] - want[finite]))
    scale = np.max(np.abs(want[finite]))
    if difference == 0:
        return 0.0
    return float(difference / scale) if scale else float("inf")


def check_close(got: Datum, want: Datum, where: str = "") -> None:
    """Check that results are as close as the project promises.

    Args:
      got: an array or a pytree of arrays.
      want: the same structure, from an independent witness.
      where: what is compared, for the message.

    Raises:
      NotClose: naming the place, the error and the tolerance.
    """
    got_leaves, got_tree = tree_flatten_with_path(got)
    want_leaves, want_tree = tree_flatten_with_path(want)
    if got_tree != want_tree:
        raise NotClose(f"{where or 'result'}: structure {got_tree}, expected {want_tree}")
    for (path, got_leaf), (_, want_leaf) in zip(got_leaves, want_leaves, strict=True):
        _check_leaf(_plain(got_leaf), _plain(want_leaf), (where or "result") + keystr(path))


def elementwise_of(dtype: object) -> float:
    """Return the error allowed for an element of a well-conditioned result, as a share of the element."""
    dtype = np.dtype(dtype)  # pyright: ignore
    if dtype.name == "bfloat16":
        return ELEMENTWISE["bf16"]
    return ELEMENTWISE[f"f{8 * dtype.itemsize}"] if dtypes.is_float(dtype) else 0.0


def check_elements(got: Datum, want: Datum, where: str = "") -> None:
    """Check that every element of a well-conditioned program's result is close, relative to itself.

    Args:
      got: an array.
      want: an array of its shape and type, from an independent witness.
      where: what is compared, for the message.

    Raises:
      NotClose: naming the place, the error and the tolerance.
    """
    got, want = _plain(got), _plain(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        raise NotClose(f"{where}: {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}")
    allowed, one, other = elementwise_of(want.dtype), _numbers(got), _numbers(want)
    with np.errstate(invalid="ignore"):
        wrong = _misplaced(one, other) | (np.abs(one - other) > allowed * np.abs(other))
    if wrong.any():
        raise NotClose(
            f"{where or 'result'}: {want.dtype} off by more than {allowed:g} of an element{_first(got, want, wrong)}"
        )


def ulp_distance(a: Datum, b: Datum) -> np.ndarray:
    """Return, elementwise, how many representable floats lie between two arrays of one float type.

    Args:
      a: floats.
      b: floats of the same shape and type.

    Returns:
      uint64 of their shape: 0 for equal values (and for NaN beside NaN, and zeros of either sign), the
      greatest uint64 for NaN beside a number.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or not dtypes.is_float(a.dtype):
        raise TypeError(f"ulp_distance compares one float type, got {a.dtype} and {b.dtype}")
    low, high = _ordered(a), _ordered(b)
    low, high = np.minimum(low, high), np.maximum(low, high)
    with np.errstate(over="ignore"):
        distance = high.astype(np.uint64) - low.astype(np.uint64)
    nan_a, nan_b = np.isnan(_numbers(a)), np.isnan(_numbers(b))
    distance = np.where(nan_a ^ nan_b, np.uint64(np.iinfo(np.uint64).max), distance)
    return np.where(nan_a & nan_b, np.uint64(0), distance)


def _ordered(x: np.ndarray) -> np.ndarray:
    """Return floats' bits as int64 that grow with the floats, both zeros at 0."""
    signed = np.dtype(f"int{8 * x.dtype.itemsize}")
    bits = np.ascontiguousarray(x).view(signed).astype(np.int64).reshape(x.shape)
    magnitude = bits & np.int64(np.iinfo(signed).max)
    return np.where(bits < 0, -magnitude, magnitude)


def _plain(x: Datum) -> np.ndarray:
    """Return an array on the host; random keys as their words."""
    if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def _parts(x: np.ndarray) -> np.ndarray:
    """Return complex numbers as their parts along a last axis of 2; anything else as it is."""
    return np.stack([np.real(x), np.imag(x)], axis=-1) if x.dtype.kind == "c" else x


def _numbers(x: Datum) -> np.ndarray:
    """Return an array as float64, or as exact integers where it holds integers or booleans."""
    x = _parts(_plain(x))
    if dtypes.is_float(x.dtype):
        with np.errstate(invalid="ignore"):
            return x.astype(np.float64)
    return x.astype(object) if x.dtype.itemsize == 8 else x.astype(np.int64)


def _is_finite(x: np.ndarray) -> np.ndarray:
    """Return where numbers are finite: everywhere for integers."""
    return np.isfinite(x) if x.dtype == np.float64 else np.ones(x.shape, bool)


def _misplaced(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Return where one array holds a NaN or an infinity that the other does not."""
    special = ~_is_finite(got) | ~_is_finite(want)
    both_nan = (got != got) & (want != want)
    return special & ~both_nan & (got != want)


def _check_leaf(got: np.ndarray, want: np.ndarray, where: str) -> None:
    """Check one array."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise NotClose(f"{where}: {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}")
    got, want = _parts(got), _parts(want)
    if not dtypes.is_float(want.dtype):
        wrong = got != want
        if wrong.any():
            raise NotClose(f"{where}: {int(wrong.sum())} of {wrong.size} differ{_first(got, want, wrong)}")
        return
    error, allowed = max_error(got, want), tolerance_of(want.dtype)
    if error > allowed:
        raise NotClose(
            f"{where}: {want.dtype} off by {error:.3g} of the largest value, allowed {allowed:g}"
            + _first(got, want, _worst(_numbers(got), _numbers(want)))
        )


def _worst(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Return where floats differ most: misplaced NaNs and infinities before any distance."""
    misplaced = _misplaced(got, want)
    if misplaced.any():
        return misplaced
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.nan_to_num(np.abs(got - want), nan=0.0)
    return apart == apart.max()


def _first(got: np.ndarray, want: np.ndarray, wrong: np.ndarray) -> str:
    """Return the first wrong element in words."""
    places = np.argwhere(wrong)
    if not len(places):
        return ""
    at = tuple(int(i) for i in places[0])
    return f"; at {list(at)} got {got[at]!r}, expected {want[at]!r}"
