"""``cholesky`` and ``triangular_solve`` against LAPACK in double precision; the spec's interpreter has neither."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from hlo_passes.errors import ConstraintViolation
from hlo_passes.ir import evaluate_module
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.conformance.conftest import evaluated
from tiles.numerics.tolerance import check_close

RNG = np.random.default_rng(0)
SQUARES = RNG.standard_normal((2, 3, 5, 5))
SYMMETRIC = SQUARES @ SQUARES.swapaxes(-1, -2) + np.eye(5)
TOLERANCE = {"f16": 2e-3, "bf16": 2e-2, "f32": 1e-5, "f64": 1e-12}
NUMPY = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def _cholesky(a, dtype, lower):
    type_ = f"tensor<{'x'.join(map(str, a.shape))}x{dtype}>"
    return f"""func.func @main(%a: {type_}) -> {type_} {{
      %0 = "stablehlo.cholesky"(%a) {{lower = {str(lower).lower()}}} : ({type_}) -> {type_}
      return %0 : {type_}
    }}"""


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky_reads_one_triangle_and_leaves_zeros_in_the_other(dtype, lower):
    a = SYMMETRIC.astype(NUMPY[dtype])
    (got,) = evaluated(_cholesky(a, dtype, lower), np.tril(a) if lower else np.triu(a))
    expected = np.linalg.cholesky(a.astype(np.float64))
    expected = expected if lower else expected.swapaxes(-1, -2)
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE[dtype] * np.abs(expected).max())
    assert got.dtype == NUMPY[dtype]


@pytest.mark.parametrize("pivot", [-1.0, 0.0, np.nan])
def test_cholesky_of_what_is_not_positive_definite_is_nan(pivot):
    a = SYMMETRIC[0].astype(np.float32)
    a[1, 3] = a[1, :, 3] = 0
    a[1, 3, 3] = pivot
    (got,) = evaluated(_cholesky(a, "f32", True), a)
    assert np.isnan(got[1][np.tril_indices(5)]).all()
    assert (got[1][np.triu_indices(5, 1)] == 0).all()
    assert np.isfinite(got[[0, 2]]).all()


def _solve(a, b, dtype, left, lower, unit, transpose):
    ta, tb = (f"tensor<{'x'.join(map(str, x.shape))}x{dtype}>" for x in (a, b))
    flags = {"left_side": left, "lower": lower, "unit_diagonal": unit}
    text = ", ".join(f"{name} = {str(value).lower()}" for name, value in flags.items())
    return f"""func.func @main(%a: {ta}, %b: {tb}) -> {tb} {{
      %0 = "stablehlo.triangular_solve"(%a, %b) {{{text}, transpose_a = #stablehlo<transpose {transpose}>}}
        : ({ta}, {tb}) -> {tb}
      return %0 : {tb}
    }}"""


@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize(("left", "lower", "unit"), [*itertools.product([True, False], repeat=3)])
def test_triangular_solve(left, lower, unit, transpose):
    a = SQUARES[0].astype(np.float32) / 3
    a += 2 * np.eye(5, dtype=np.float32)
    other = np.triu if lower else np.tril
    a[other(np.ones((3, 5, 5), bool), 1 if lower else -1)] = np.nan  # the triangle that must not be read
    if unit:
        a[:, range(5), range(5)] = np.nan
    b = RNG.standard_normal((3, 5, 2) if left else (3, 2, 5)).astype(np.float32)
    (x,) = evaluated(_solve(a, b, "f32", left, lower, unit, transpose), a, b)
    matrix = (np.tril if lower else np.triu)(np.nan_to_num(a))
    matrix = matrix + unit * np.eye(5)
    matrix = matrix if transpose == "NO_TRANSPOSE" else matrix.swapaxes(-1, -2)
    np.testing.assert_allclose(matrix @ x if left else x @ matrix, b, atol=1e-5)


@pytest.mark.parametrize("lower", [True, False])
def test_infinities_stay_in_the_rows_that_they_reach(lower):
    """Column by column as LAPACK's loops: what is solved already is not multiplied by zero and an infinity."""
    a = (np.tril if lower else np.triu)(SQUARES[0][0]).astype(np.float32) / 3 + 2 * np.eye(
        5, dtype=np.float32
    )
    b = RNG.standard_normal((5, 4)).astype(np.float32)
    b[0, 0], b[2, 1], b[4, 2] = np.inf, -np.inf, np.nan
    x = b.copy()
    with np.errstate(invalid="ignore"):
        for i in range(5) if lower else range(4, -1, -1):
            x[i] /= a[i, i]
            for j in range(i + 1, 5) if lower else range(i):
                x[j] -= a[j, i] * x[i]
    assert np.isinf(x).any() and np.isnan(x).any() and np.isfinite(x).any()
    (got,) = evaluated(_solve(a, b, "f32", True, lower, False, "NO_TRANSPOSE"), a, b)
    np.testing.assert_allclose(got, x, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_triangular_solve_in_other_floats(dtype):
    a = (np.tril(SQUARES[0]) / 3 + 2 * np.eye(5)).astype(NUMPY[dtype])
    b = SQUARES[1].astype(NUMPY[dtype])
    (x,) = evaluated(_solve(a, b, dtype, True, True, False, "NO_TRANSPOSE"), a, b)
    expected = np.linalg.solve(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(x, expected, rtol=0, atol=TOLERANCE[dtype] * np.abs(expected).max())


def _complex(shape):
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(np.complex64)


def _both_ways(text, *arrays):
    """Return an operation's own meaning, and what the pass expand makes of it."""
    module = import_stablehlo(text)
    parts = [part for array in arrays for part in (array.real, array.imag)]
    real, imag = evaluate_module(optimize(module), *parts)
    return evaluate_module(module, *arrays)[0], real + 1j * np.asarray(imag)


@pytest.mark.parametrize("lower", [True, False])
def test_cholesky_of_hermitian_matrices(lower):
    a = _complex((2, 5, 5))
    a = a @ a.conj().swapaxes(-1, -2) + np.eye(5, dtype=np.complex64)
    expected = np.linalg.cholesky(a.astype(np.complex128))
    expected = expected if lower else expected.conj().swapaxes(-1, -2)
    for got in _both_ways(_cholesky(a, "complex<f32>", lower), np.tril(a) if lower else np.triu(a)):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize(
    "left, lower, unit, transpose",
    [
        (True, True, False, "ADJOINT"),
        *itertools.product((True, False), (True, False), (True, False), ("NO_TRANSPOSE", "TRANSPOSE")),
        *itertools.product((True, False), (True, False), (True, False), ("ADJOINT",)),
    ],
)
def test_triangular_solve_of_complex_numbers(left, lower, unit, transpose):
    a, b = _complex((3, 3)) + 2 * np.eye(3, dtype=np.complex64), _complex((3, 2) if left else (2, 3))
    types = "tensor<3x3xcomplex<f32>>", f"tensor<{'3x2' if left else '2x3'}xcomplex<f32>>"
    flags = zip(("left_side", "lower", "unit_diagonal"), (left, lower, unit), strict=True)
    shown = ", ".join(f"{name} = {str(value).lower()}" for name, value in flags)
    text = f"""func.func @main(%a: {types[0]}, %b: {types[1]}) -> {types[1]} {{
      %0 = "stablehlo.triangular_solve"(%a, %b) {{{shown}, transpose_a = #stablehlo<transpose {transpose}>}}
        : ({types[0]}, {types[1]}) -> {types[1]}
      return %0 : {types[1]}
    }}"""
    matrix = (np.tril if lower else np.triu)(a)
    if unit:
        matrix = matrix - np.diag(np.diag(matrix)) + np.eye(3)
    matrix = {"NO_TRANSPOSE": matrix, "TRANSPOSE": matrix.T, "ADJOINT": matrix.conj().T}[transpose]
    expected = np.linalg.solve(matrix, b) if left else np.linalg.solve(matrix.T, b.T).T
    for got in _both_ways(text, a, b):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4 * abs(expected).max())


COMPOSITE = """func.func @main(%a: {operand}) -> ({results}) {{
  %0:{count} = stablehlo.composite "{name}" %a {{decomposition = @loops}} : ({operand}) -> ({results})
  return {values} : {results}
}}
func.func private @loops(%a: {operand}) -> ({results}) {{
  %0:{count} = stablehlo.custom_call @loops(%a) : ({operand}) -> ({results})
  return {values} : {results}
}}"""


def _composite(name, operand, *results):
    values = ", ".join(f"%0#{k}" for k in range(len(results)))
    return COMPOSITE.format(
        name=name, operand=operand, results=", ".join(results), values=values, count=len(results)
    )


def test_lu_of_the_composite_by_which_jax_asks_for_it():
    a = SQUARES.astype(np.float32)
    a[0, 0, :, 2] = 0
    a[0, 1, 3, 1] = np.nan
    numbers = "tensor<2x3x5xi32>"
    got = evaluated(_composite("ipuxla.lu", *["tensor<2x3x5x5xf32>"] * 2, numbers, numbers), a)
    for found, expected in zip(got, jax.lax.linalg.lu(a), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert found.dtype == expected.dtype


def test_qr_of_the_composite_by_which_jax_asks_for_it():
    a = SQUARES[..., :3].astype(np.float32)
    a[0, 0, 1:, 0] = 0
    got = evaluated(_composite("ipuxla.qr", *["tensor<2x3x5x3xf32>"] * 2, "tensor<2x3x3xf32>"), a)
    factors, taus = jnp.linalg.qr(a, mode="raw")
    for found, expected in zip(got, (factors.mT, taus), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "tag"), [("ipuxla.lu", r"hlo\.lu.*C2"), ("ipuxla.qr", r"hlo\.qr.*C2")])
def test_a_composite_of_other_types_is_refused(name, tag):
    with pytest.raises(ConstraintViolation, match=tag):
        evaluated(_composite(name, *["tensor<2x3xf32>"] * 2), SQUARES[0, 0, :2, :3].astype(np.float32))


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_a_solve_with_a_transposed_batch_of_products(arithmetic):
    """Drawn programs found it: XLA:CPU made one contraction of products and transposes, for which it has no code, and died."""

    def solved(a, b):
        return lax.linalg.triangular_solve(a, (a @ b).mT, left_side=False, lower=False, transpose_a=True)

    a = np.tile(np.eye(2, dtype=np.float32) * 2 + np.triu(np.ones((2, 2), np.float32), 1), (3, 1, 1))
    b = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    got, same = (
        ipuxla.jit(solved, target="gc200", engine=engine, arithmetic=arithmetic)(a, b)
        for engine in ("hlo", "fast")
    )
    check_close(got, same)
    if arithmetic == "float":
        check_close(got, jax.jit(solved)(a, b))
