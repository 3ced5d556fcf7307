"""JAX's cases, and how the results of each are compared."""

from __future__ import annotations

import functools
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax._src.internal_test_util import test_harnesses

from tiles.numerics.tolerance import NotClose, check_close, tolerance_of

Check = Callable[[Any, Any, list[Any]], None]
"""Compares results with wanted ones; the arguments are for results that are not unique.

Raises:
  NotClose: they differ.
"""


@functools.cache
def harnesses() -> dict[str, Any]:
    """Return JAX's cases for a CPU by their full names."""
    return {h.fullname: h for h in test_harnesses.all_harnesses if h.filter("cpu")}


def arguments(harness: Any) -> list[Any]:
    """Return the arguments of a case, the same ones every time.

    As ``jax.jit`` takes them: what is 64 bits wide is narrowed, which ``ipuxla.jit`` would not do.
    """
    seed = zlib.adler32(harness.fullname.encode())
    made = list(harness.dyn_args_maker(np.random.RandomState(seed)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [jnp.asarray(x) if isinstance(x, np.ndarray | np.generic) else x for x in made]


def check(harness: Any, got: Any, want: Any, args: list[Any]) -> None:
    """Compare the results of a case.

    Raises:
      NotClose: they differ by more than the project promises.
    """
    found = CHECKS.get(harness.group_name, _check_close)
    options = harness.params
    if harness.group_name == "sort" and not options["is_stable"] and options["num_arrays"] > 1:
        found = functools.partial(_check_sort, dimension=options["dimension"], num_keys=options["num_keys"])
    found(got, want, args)


# ---- results that are not unique are compared by what defines them


def _check_close(got: Any, want: Any, args: list[Any]) -> None:
    check_close(got, want)


def _adjoint(x: np.ndarray) -> np.ndarray:
    return x.conj().swapaxes(-1, -2)


def _wide(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _check_small(difference: np.ndarray, scale: float, dtype: Any, what: str) -> None:
    allowed = tolerance_of(np.zeros(0, dtype).real.dtype) * max(scale, 1e-30)
    error = float(np.max(np.abs(difference), initial=0))
    if not error <= allowed:
        raise NotClose(f"{what} off by {error:.3g}, allowed {allowed:.3g}")


def _same_types(got: Any, want: Any) -> None:
    found, wanted = ([(x.shape, x.dtype) for x in results] for results in (got, want))
    if found != wanted:
        raise NotClose(f"results of {found}, expected {wanted}")


def _check_unitary(vectors: np.ndarray, dtype: Any, what: str) -> None:
    identity = np.eye(vectors.shape[-1])
    _check_small(_adjoint(vectors) @ vectors - identity, 1, dtype, f"{what} not orthonormal:")


def _check_svd(got: Any, want: Any, args: list[Any]) -> None:
    """Values as wanted; vectors orthonormal; their product the argument."""
    _same_types(got, want)
    check_close(got[0], want[0])
    if len(got) == 1:
        return
    values, left, right = map(_wide, got)
    dtype, k = got[1].dtype, values.shape[-1]
    _check_unitary(left, dtype, "left vectors")
    _check_unitary(_adjoint(right), dtype, "right vectors")
    product = (left[..., :k] * values[..., None, :]) @ right[..., :k, :]
    _check_small(product - _wide(args[0]), np.max(values, initial=0), dtype, "the product of factors")


def _check_eigh(got: Any, want: Any, args: list[Any]) -> None:
    """Values as wanted; vectors orthonormal; what they rebuild as what the wanted ones do."""
    _same_types(got, want)
    check_close(got[1], want[1])
    vectors, values = map(_wide, got)
    other, own = map(_wide, want)
    _check_unitary(vectors, got[0].dtype, "vectors")
    rebuilt = (vectors * values[..., None, :]) @ _adjoint(vectors)
    wanted = (other * own[..., None, :]) @ _adjoint(other)
    _check_small(rebuilt - wanted, np.max(np.abs(own), initial=0), got[0].dtype, "what the vectors rebuild")


def _check_eig(got: Any, want: Any, args: list[Any]) -> None:
    """Values in any order; vectors of length one that the argument only scales by them."""
    _same_types(got, want)
    dtype = got[0].dtype
    matrix, values, wanted = _wide(args[0]), _wide(got[0]), _wide(want[0])
    apart = np.abs(values[..., :, None] - wanted[..., None, :])
    nearest = np.argsort(apart, axis=-1)[..., :1]
    size = float(np.max(np.abs(wanted), initial=0))
    _check_small(np.take_along_axis(apart, nearest, -1), size, dtype, "values")
    _check_small(np.sum(values, -1) - np.trace(matrix, axis1=-2, axis2=-1), size, dtype, "the sum of values")
    has_left = len(got) == 3 or (len(got) == 2 and _is_left(want, matrix))
    for position, vectors in enumerate(map(_wide, got[1:])):
        is_left = has_left and position == 0
        a, w = (_adjoint(matrix), values.conj()) if is_left else (matrix, values)
        scale = max(size, float(np.max(np.abs(matrix), initial=0)))
        _check_small(a @ vectors - vectors * w[..., None, :], scale, dtype, "what vectors are scaled by")
        _check_small(np.linalg.norm(vectors, axis=-2) - 1, 1, dtype, "lengths of vectors")


def _is_left(want: Any, matrix: np.ndarray) -> bool:
    """Whether the only vectors that were asked for are left ones."""
    values, vectors = map(_wide, want)
    right = np.max(np.abs(matrix @ vectors - vectors * values[..., None, :]), initial=0)
    left = np.max(np.abs(_adjoint(matrix) @ vectors - vectors * values.conj()[..., None, :]), initial=0)
    return bool(left < right)


def _check_cholesky(got: Any, want: Any, args: list[Any]) -> None:
    """The triangle of the factor; the specification leaves open what the other one holds."""
    _same_types([got], [want])
    check_close(np.tril(got), np.tril(want))


def _check_sort(got: Any, want: Any, args: list[Any], *, dimension: int, num_keys: int) -> None:
    """Keys as wanted, and the same columns; where a sort need not be stable, equal keys leave their order open."""
    got, want = ([np.asarray(x) for x in found] for found in (got, want))
    _same_types(got, want)
    check_close(got[:num_keys], want[:num_keys])
    orders = [np.lexsort([x.astype(np.float64) for x in reversed(found)], dimension) for found in (got, want)]
    for x, y in zip(got, want, strict=True):
        mine, theirs = (np.take_along_axis(v, o, dimension) for v, o in zip((x, y), orders, strict=True))
        check_close(mine, theirs)


def _check_selection(got: Any, want: Any, args: list[Any]) -> None:
    """The values wanted, and for each a place of its own where it stands."""
    _same_types(got, want)
    check_close(got[0], want[0])
    values, places = map(np.asarray, got)
    check_close(np.take_along_axis(np.asarray(args[0]), places, -1), values)
    ordered = np.sort(places, -1)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise NotClose("one place is taken twice")


CHECKS: dict[str, Check] = {"svd": _check_svd, "eigh": _check_eigh, "eig": _check_eig}
CHECKS |= {"cholesky": _check_cholesky, "approx_top_k": _check_selection}
