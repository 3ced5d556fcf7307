"""Custom calls by which JAX asks for a library's decompositions on other platforms, as functions of arrays.

``ROUTINES`` are LAPACK's, which JAX calls on a CPU as ``lapack_<type><routine>_ffi``; ``CALLS`` are those that XLA
knows on a TPU. Each says with ``jax.lax.linalg`` what is meant; lowering that finds the rules of this platform.
Results are as LAPACK's: matrices overwritten by others, and ``info``, which is 0 where all went well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_passes.ir import TensorType
from ipuxla._jax_compat import Params
from ipuxla.frontend import eigenvalues
from ipuxla.frontend.decompositions import adjoint, geqp3, geqrf, indices, lu

Options = Params
"""What a call says beside its operands: numbers, truth values, and letters as their codes."""

Routine = Callable[..., Sequence[Array]]
"""``(options, types of results, *operands)`` to results; ``None`` where the options are not served."""

linalg = lax.linalg


def routine_of(target: str) -> Routine | None:
    """Return what a custom call of that name computes; None if it is none of these."""
    found = re.fullmatch(r"lapack_[sdcz]([a-z0-9]+)_ffi", target)
    return ROUTINES.get(found[1]) if found else CALLS.get(target)


def _is(options: Options, name: str, letter: str) -> bool:
    """Whether an option is a letter, given as its code."""
    return options.get(name) == ord(letter)


def _info(types: Sequence[TensorType], *results: Array) -> Array:
    """Return LAPACK's last result: 1 for matrices whose results hold NaN, 0 for others."""
    shape = types[-1].shape
    failed = jnp.zeros(shape, bool)
    for x in results:
        failed |= jnp.any(x != x, tuple(range(len(shape), x.ndim)))
    return failed.astype(np.int32)


def _geqrf(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    return geqrf(a)


def _geqp3(options: Options, types: Sequence[TensorType], a: Array, columns: Array) -> Sequence[Array]:
    return geqp3(a, columns)


def _orgqr(options: Options, types: Sequence[TensorType], a: Array, taus: Array) -> Sequence[Array]:
    return [linalg.householder_product(a, taus)]


def _ormqr(options: Options, types: Sequence[TensorType], a: Array, taus: Array, c: Array) -> Sequence[Array]:
    left, transpose = bool(options["left"]), bool(options["transpose"])
    if not taus.shape[-1]:
        return [c]
    return [linalg.ormqr(a, taus, c, left=left, transpose=transpose)]


def _getrf(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    factors, pivots, _ = lu(a)
    return [factors, pivots + 1, jnp.zeros(types[-1].shape, np.int32)]


def _potrf(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    row, column = indices(a)
    if _is(options, "uplo", "L"):
        factor = linalg.cholesky(a, symmetrize_input=False)
        return [jnp.where(row >= column, factor, a), _info(types, factor)]
    factor = adjoint(linalg.cholesky(adjoint(a), symmetrize_input=False))
    return [jnp.where(row <= column, factor, a), _info(types, factor)]


def _trsm(options: Options, types: Sequence[TensorType], a: Array, b: Array) -> Sequence[Array]:
    solved = linalg.triangular_solve(
        a,
        b,
        left_side=_is(options, "side", "L"),
        lower=_is(options, "uplo", "L"),
        transpose_a=not _is(options, "trans_x", "N"),
        conjugate_a=_is(options, "trans_x", "C"),
        unit_diagonal=_is(options, "diag", "U"),
    )
    return [solved]


def _syevd(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    vectors, values = linalg.eigh(a, lower=_is(options, "uplo", "L"), symmetrize_input=False)
    return [vectors, values, _info(types, values)]


def _gesdd(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    if _is(options, "mode", "N"):
        values = linalg.svd(a, compute_uv=False)
        left, right = (jnp.zeros(t.shape, t.np_dtype) for t in types[2:4])
    else:
        left, values, right = linalg.svd(a, full_matrices=_is(options, "mode", "A"))
    return [a, values, left, right, _info(types, values)]


def _geev(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    has_left, has_right = (_is(options, f"compute_{side}", "V") for side in ("left", "right"))
    values, *found = linalg.eig(a, compute_left_eigenvectors=has_left, compute_right_eigenvectors=has_right)
    vectors = [found.pop(0) if has else jnp.zeros(a.shape, values.dtype) for has in (has_left, has_right)]
    return [*_values(a, values), *vectors, _info(types, values)]


def _gees(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    form, vectors = linalg.schur(a)
    values = eigenvalues.of_schur_form(form)
    return [form, vectors, *_values(a, values), jnp.zeros(types[-2].shape, np.int32), _info(types, values)]


def _values(a: Array, values: Array) -> list[Array]:
    """Return eigenvalues as LAPACK does: those of real matrices as real and imaginary parts."""
    return [values] if jnp.iscomplexobj(a) else [values.real, values.imag]


def _gehrd(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    return [*linalg.hessenberg(a), jnp.zeros(types[-1].shape, np.int32)]


def _sytrd(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    return [*linalg.tridiagonal(a, lower=_is(options, "uplo", "L")), jnp.zeros(types[-1].shape, np.int32)]


def _gtsv(options: Options, types: Sequence[TensorType], *operands: Array) -> Sequence[Array]:
    solved = linalg.tridiagonal_solve(*operands)
    return [*operands[:3], solved, _info(types, solved)]


ROUTINES: dict[str, Routine] = {
    "geqrf": _geqrf,
    "geqp3": _geqp3,
    **dict.fromkeys(("orgqr", "ungqr"), _orgqr),
    **dict.fromkeys(("ormqr", "unmqr"), _ormqr),
    "getrf": _getrf,
    "potrf": _potrf,
    "trsm": _trsm,
    **dict.fromkeys(("syevd", "heevd"), _syevd),
    **dict.fromkeys(("gesdd", "gesvd"), _gesdd),
    "geev": _geev,
    "gees": _gees,
    "gehrd": _gehrd,
    **dict.fromkeys(("sytrd", "hetrd"), _sytrd),
    "gtsv": _gtsv,
}
"""LAPACK's routines without the letter of their type."""


def _eigh(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    """Serve XLA's call, whose configuration begins with whether the lower triangle counts."""
    is_lower = str(options.get("", "1")).partition(",")[0] == "1"
    return linalg.eigh(a, lower=is_lower, symmetrize_input=False)


def _lu(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    return lu(a)


def _cholesky(options: Options, types: Sequence[TensorType], a: Array) -> Sequence[Array]:
    return [linalg.cholesky(a, symmetrize_input=False)]


CALLS: dict[str, Routine] = {
    "Qr": _geqrf,
    "ProductOfElementaryHouseholderReflectors": _orgqr,
    "Eigh": _eigh,
    "LuDecomposition": _lu,
    "Cholesky": _cholesky,
}
"""Custom calls that XLA serves on a TPU."""
