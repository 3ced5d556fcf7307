"""Modules that JAX lowered for a CPU or a TPU, whose library calls mean what our own lowering computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import ipuxla
from hlo_passes.errors import UnsupportedOp
from hlo_passes.ir import evaluate_module
from ipuxla.frontend.importer import import_stablehlo
from tiles.numerics.tolerance import check_close
from tiles.target import Target

L = lax.linalg
RNG = np.random.default_rng(0)


def _real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _complex(*shape: int) -> np.ndarray:
    return (_real(*shape) + 1j * _real(*shape)).astype(np.complex64)


def _definite(a: np.ndarray) -> np.ndarray:
    return a @ a.conj().swapaxes(-1, -2) + 2 * np.eye(a.shape[-1], dtype=a.dtype)


def _rebuilt(left: Any, values: Any, right: Any) -> Any:
    """Return a product that does not depend on the phases of vectors."""
    return values, (left[..., : values.shape[-1]] * values[..., None, :]) @ right


def _svd(full: bool) -> Callable[..., Any]:
    def function(a: Any) -> Any:
        left, values, right = L.svd(a, full_matrices=full)
        return _rebuilt(left, values, right[..., : values.shape[-1], :])

    return function


def _eigh(a: Any) -> Any:
    vectors, values = L.eigh(a)
    return _rebuilt(vectors, values, vectors.conj().mT)


def _eig(a: Any) -> Any:
    values, left, right = L.eig(a)
    apart = a @ right - right * values[..., None, :]
    other = left.conj().mT @ a - values[..., None] * left.conj().mT
    return jnp.sort_complex(values), jnp.abs(apart) < 1e-4, jnp.abs(other) < 1e-4


def _schur(a: Any) -> Any:
    form, vectors = L.schur(a)
    return vectors @ form @ vectors.conj().mT


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "qr": (lambda a: L.qr(a, full_matrices=False), (_real(2, 4, 3),)),
    "qr, full and complex": (L.qr, (_complex(2, 4, 3),)),
    "qr, pivoted": (lambda a: L.qr(a, pivoting=True)[1:], (_real(4, 3),)),
    "ormqr": (lambda a, t, c: L.ormqr(a, t, c, transpose=True), (_real(4, 3), _real(3), _real(4, 2))),
    "lu": (L.lu, (_real(2, 4, 3),)),
    "lu, complex": (L.lu, (_complex(3, 4),)),
    "cholesky": (L.cholesky, (_definite(_complex(2, 3, 3)),)),
    "cholesky of what is not definite": (L.cholesky, (np.array([[1, 2], [2, 1]], np.float32),)),
    "eigh": (_eigh, (_definite(_real(2, 3, 3)),)),
    "eigh, complex": (_eigh, (_definite(_complex(3, 3)),)),
    "svd": (_svd(False), (_real(2, 4, 3),)),
    "svd, full and complex": (_svd(True), (_complex(4, 3),)),
    "svd by QR": (lambda a: L.svd(a, algorithm=L.SvdAlgorithm.QR)[1], (_real(4, 3),)),
    "singular values": (lambda a: L.svd(a, compute_uv=False), (_real(3, 4),)),
    "triangular_solve": (
        lambda a, b: L.triangular_solve(a, b, left_side=True, lower=True),
        (_definite(_real(3, 3)), _real(3, 2)),
    ),
    "triangular_solve, adjoint": (
        lambda a, b: L.triangular_solve(a, b, transpose_a=True, conjugate_a=True, unit_diagonal=True),
        (_complex(3, 3), _complex(2, 3)),
    ),
    "eig": (_eig, (_real(3, 3),)),
    "eig, complex": (_eig, (_complex(3, 3),)),
    "schur": (_schur, (_real(3, 3),)),
    "schur, complex": (_schur, (_complex(3, 3),)),
    "hessenberg": (L.hessenberg, (_complex(2, 4, 4),)),
    "tridiagonal": (lambda a: (L.tridiagonal(a), L.tridiagonal(a, lower=False)), (_real(4, 4),)),
    "tridiagonal_solve": (
        L.tridiagonal_solve,
        (np.float32([0, 1, 1]), np.float32([3, 4, 5]), np.float32([1, 1, 0]), _real(3, 2)),
    ),
    "lu of nothing": (L.lu, (_real(2, 0, 3),)),
    "svd of no matrices": (lambda a: (L.svd(a), L.svd(a, full_matrices=False)), (_complex(0, 3, 4),)),
    "ormqr by no reflections": (L.ormqr, (_real(3, 0), _real(0), _real(3, 2))),
}
ON_TPU = [*PROGRAMS][:2] + [*PROGRAMS][3:11] + [*PROGRAMS][13:16]


def _check(source: Any, name: str) -> None:
    function, arguments = PROGRAMS[name]
    module = import_stablehlo(source)
    got = jax.jit(lambda *arrays: evaluate_module(module, *arrays))(*arguments)
    check_close(list(got), jax.tree.leaves(jax.jit(function)(*arguments)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_lapack(name: str) -> None:
    function, arguments = PROGRAMS[name]
    _check(jax.jit(function).lower(*arguments).compiler_ir("stablehlo"), name)


WIDE = (
    *(
        "qr",
        "qr, full and complex",
        "lu, complex",
        "cholesky",
        "eigh",
        "eigh, complex",
        "svd",
        "svd, full and complex",
    ),
    *("triangular_solve", "triangular_solve, adjoint", "eig", "eig, complex", "schur", "schur, complex"),
    *("hessenberg", "tridiagonal", "tridiagonal_solve", "ormqr"),
)


@pytest.mark.parametrize("name", WIDE)
def test_lapack_in_64_bits_as_a_compiled_program(name: str, small_target: Target) -> None:
    """Routines named ``d`` and ``z``, whose results come from a compiled program."""
    function, arguments = PROGRAMS[name]
    with jax.enable_x64(True):
        wide = [a.astype(np.complex128 if np.iscomplexobj(a) else np.float64) for a in arguments]
        wanted = jax.jit(function)(*wide)
        text = jax.jit(function).lower(*wide).as_text()
        assert "lapack_z" in text or "lapack_d" in text
        got = ipuxla.compile_stablehlo(text, small_target)(*wide)
        check_close(list(got), jax.tree.leaves(wanted))


@pytest.mark.parametrize("name", ON_TPU)
def test_calls_of_a_tpu(name: str) -> None:
    function, arguments = PROGRAMS[name]
    checks = [export.DisabledSafetyCheck.custom_call("Eigh")]
    exported = export.export(jax.jit(function), platforms=["tpu"], disabled_checks=checks)(*arguments)
    _check(exported.mlir_module(), name)


@pytest.mark.parametrize("target", ["Qr", "lapack_sgetrf_ffi", "lapack_strsm_ffi", "lapack_sgeev_ffi"])
def test_calls_with_other_operands_than_jaxs_are_a_named_error(target: str) -> None:
    text = f"""func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {{
      %0 = stablehlo.custom_call @{target}(%x) : (tensor<3xf32>) -> tensor<3xf32>
      return %0 : tensor<3xf32>
    }}"""
    with pytest.raises(UnsupportedOp, match=f"custom_call @{target}"):
        import_stablehlo(text)


def test_annotations_of_one_device() -> None:
    """Shardings, placements and what Shardy writes around them."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))

    @jax.jit
    def f(x: Any) -> Any:
        x = lax.with_sharding_constraint(x + 1, sharding)
        return jax.device_put(x * 2, jax.memory.Space.Device)

    x = np.arange(4, dtype=np.float32)
    for shardy in (True, False):
        jax.config.update("jax_use_shardy_partitioner", shardy)
        try:
            module = f.lower(x).compiler_ir("stablehlo")
        finally:
            jax.config.update("jax_use_shardy_partitioner", True)
        (got,) = evaluate_module(import_stablehlo(module), x)
        np.testing.assert_array_equal(got, (x + 1) * 2)
