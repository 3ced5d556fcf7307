"""``dot_general`` in all its forms against the reference interpreter."""

import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from hlo_passes.ir import DTYPES, evaluate_module
from ipuxla.frontend.importer import import_stablehlo

FORMS = [
    ("matrix product", "contracting_dims = [1] x [0]", "2x3", "3x4", "2x4"),
    ("transposed operands", "contracting_dims = [0] x [1]", "3x2", "4x3", "2x4"),
    ("batched", "batching_dims = [0] x [0], contracting_dims = [2] x [1]", "5x2x3", "5x3x4", "5x2x4"),
    ("batch last", "batching_dims = [2] x [1], contracting_dims = [0] x [0]", "3x2x5", "3x5x4", "5x2x4"),
    ("two contracting", "contracting_dims = [1, 2] x [1, 0]", "2x3x4", "4x3x5", "2x5"),
    ("outer product", "contracting_dims = [] x []", "2", "3", "2x3"),
    ("inner product", "contracting_dims = [0] x [0]", "6", "6", ""),
    ("matrix by vector", "contracting_dims = [1] x [0]", "2x3", "3", "2"),
    ("elementwise batch", "batching_dims = [0, 1] x [0, 1], contracting_dims = [] x []", "2x3", "2x3", "2x3"),
]


def _text(attributes, lhs, rhs, result, dtype="f32", result_dtype=None):
    lhs, rhs, result = (
        f"tensor<{shape}{'x' if shape else ''}{kind}>"
        for shape, kind in ((lhs, dtype), (rhs, dtype), (result, result_dtype or dtype))
    )
    return f"""func.func @main(%a: {lhs}, %b: {rhs}) -> {result} {{
      %0 = stablehlo.dot_general %a, %b, {attributes} : ({lhs}, {rhs}) -> {result}
      return %0 : {result}
    }}"""


def _arrays(*shapes, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, [int(n) for n in shape.split("x")]).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("case", FORMS, ids=lambda case: case[0])
def test_dimension_numbers(case, conforms):
    _, attributes, lhs, rhs, result = case
    conforms(_text(attributes, lhs, rhs, result), *_arrays(lhs, rhs), rtol=1e-7)


@pytest.mark.parametrize("types", ["i32 i32", "i8 i32", "ui8 ui8", "f16 f32", "f32 f64", "f64 f64"])
def test_element_types(types, conforms):
    old, new = types.split()
    kind = {"i": "int", "u": "uint", "f": "float"}[old[0]] + old.strip("uif")
    arrays = _arrays("2x3", "3x4", dtype=kind)
    conforms(_text("contracting_dims = [1] x [0]", "2x3", "3x4", "2x4", old, new), *arrays)


@pytest.mark.parametrize("precision", ["HIGH, HIGH", "HIGHEST, DEFAULT"])
def test_precision_is_kept_and_gives_the_same_small_integers(precision, conforms):
    attributes = f"contracting_dims = [1] x [0], precision = [{precision}]"
    text = _text(attributes, "2x3", "3x4", "2x4")
    conforms(text, *_arrays("2x3", "3x4"))
    (dot,) = import_stablehlo(text).entry_computation.instructions
    assert dot.op.precision == tuple(precision.split(", "))


def _with_algorithm(operand_type, operations, lhs, rhs):
    """Evaluate a product under an algorithm given as JAX gives it: operations, no component counts."""
    algorithm = f"""algorithm = <lhs_precision_type = {operand_type}, rhs_precision_type = {operand_type},
      accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1,
      num_primitive_operations = {operations}, allow_imprecise_accumulation = false>"""
    shape = "x".join(map(str, lhs.shape))
    text = _text(f"contracting_dims = [1] x [0], {algorithm}", shape, shape, shape)
    return np.asarray(evaluate_module(import_stablehlo(text), lhs, rhs)[0])


ALGORITHMS = ["bf16 1 2e-2", "bf16 3 1e-4", "bf16 6 1e-6", "bf16 9 1e-6", "tf32 1 2e-3", "f32 1 1e-6"]


@pytest.mark.parametrize("case", ALGORITHMS)
def test_algorithm_is_as_exact_as_its_operations(case):
    operand_type, operations, bound = case.split()
    lhs, rhs = np.random.default_rng(1).standard_normal((2, 16, 16)).astype(np.float32)
    got = _with_algorithm(operand_type, operations, lhs, rhs)
    exact = lhs.astype(np.float64) @ rhs
    error = np.abs(got - exact).max() / np.abs(exact).max()
    assert float(bound) / 100 < error < float(bound)


def test_one_operation_equals_the_product_of_rounded_operands():
    lhs, rhs = np.random.default_rng(2).standard_normal((2, 8, 8)).astype(np.float32)
    rounded = [np.asarray(x, jnp.bfloat16).astype(np.float64) for x in (lhs, rhs)]
    got = _with_algorithm("bf16", 1, lhs, rhs)
    np.testing.assert_allclose(got, rounded[0] @ rounded[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_algorithm_on_tiles(engine, tiny_target):
    """The products of components are what the machine computes."""
    x, y = np.random.default_rng(3).standard_normal((2, 8, 8)).astype(np.float32)
    text = _text(
        """contracting_dims = [1] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16,
      accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1,
      num_primitive_operations = 3, allow_imprecise_accumulation = false>""",
        *["8x8"] * 3,
    )
    (got,) = ipuxla.compile_stablehlo(text, tiny_target, engine=engine)(x, y)
    np.testing.assert_allclose(got, evaluate_module(import_stablehlo(text), x, y)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("types", ["f8E4M3FN f8E5M2 f32", "f8E5M2 f8E4M3FN f16", "f32 i8 f32", "i8 i32 i32"])
def test_operands_of_two_types(types):
    lhs, rhs, out = types.split()
    x, y = np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2) - 2
    text = f"""func.func @main(%a: tensor<2x3x{lhs}>, %b: tensor<3x2x{rhs}>) -> tensor<2x2x{out}> {{
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<2x3x{lhs}>, tensor<3x2x{rhs}>) -> tensor<2x2x{out}>
      return %0 : tensor<2x2x{out}>
    }}"""
    arrays = (array.astype(DTYPES[dtype].np_dtype) for array, dtype in ((x, lhs), (y, rhs)))
    np.testing.assert_array_equal(evaluate_module(import_stablehlo(text), *arrays)[0], x @ y)
