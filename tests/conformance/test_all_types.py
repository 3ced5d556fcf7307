"""Contractions, convolutions, gathers and scatters of every element type, against XLA: a failure names operation and type.

Results of another type than the operands are in ``test_product_types``.
"""

from __future__ import annotations

import numpy as np
import pytest

import ipuxla
from hlo_passes.ir import DTYPES, TensorType, evaluate_module
from ipuxla.frontend.importer import import_stablehlo
from tests import xla
from tiles.target import Target

UPDATES = {
    "set": "",
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "least": "minimum",
    "greatest": "maximum",
    "and": "and",
    "xor": "xor",
}
"""What a scatter does where it writes, by name: nothing but writing, or an operation."""
ROWS = np.array([[1], [3], [0], [3], [7], [-2]], np.int32)
"""Lookups of a table of four rows: one of them twice, two outside."""

POWERS_OF_TWO = "f8E8M0FNU"
"""A type of nothing else: no zeros, no signs."""


def _of(dtype: str) -> str:
    return DTYPES[dtype].kind


def _fits(update: str, dtype: str) -> bool:
    """Whether StableHLO has the update for a type, and XLA is a witness of it.

    StableHLO orders complex numbers by their real parts, then by their imaginary ones; XLA:CPU leaves the latter out.
    """
    if update in ("and", "xor"):
        return _of(dtype) in ("bool", "integer", "unsigned")
    if update in ("least", "greatest"):
        return _of(dtype) not in ("bool", "complex")
    if dtype == POWERS_OF_TWO and update == "subtract":
        return False  # most differences are none
    return _of(dtype) != "bool" or update in ("set", "add")


CASES = [
    *((kind, dtype) for kind in ("dot", "convolution", "gather") for dtype in DTYPES),
    *((f"scatter {update}", dtype) for update in UPDATES for dtype in DTYPES if _fits(update, dtype)),
]


def _operands(kind: str, dtype: str) -> tuple[np.ndarray, ...]:
    """Small whole numbers, of which every type holds all products and sums, and with signs where it has any."""
    rng = np.random.default_rng(0)
    low = 0 if _of(dtype) in ("bool", "unsigned") else -1

    def drawn(*shape: int) -> np.ndarray:
        values = rng.integers(low, 2, shape) if dtype != POWERS_OF_TWO else 2.0 ** rng.integers(-1, 2, shape)
        whole = values + 1j * rng.integers(low, 2, shape) if _of(dtype) == "complex" else values
        return whole.astype(DTYPES[dtype].np_dtype)

    if kind == "dot":
        return drawn(3, 6), drawn(6, 4)
    if kind == "convolution":
        return drawn(1, 9, 2), drawn(3, 2, 4)
    return (drawn(4, 5), ROWS) if kind == "gather" else (drawn(4, 5), ROWS, drawn(6, 5))


def _text(kind: str, operands: tuple[np.ndarray, ...]) -> str:
    types = list(map(TensorType.of, operands))
    dtype = types[0].dtype
    shape = {"dot": (3, 4), "convolution": (1, 7, 4), "gather": (6, 5)}.get(kind, (4, 5))
    result, element = TensorType(shape, dtype), TensorType((), dtype)
    if kind == "dot":
        op = '"stablehlo.dot_general"(%a0, %a1) {dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1],'
        op += " rhs_contracting_dimensions = [0]>}"
    elif kind == "convolution":
        op = """stablehlo.convolution(%a0, %a1) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
          window = {stride = [1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}"""
    elif kind == "gather":
        op = """"stablehlo.gather"(%a0, %a1) {slice_sizes = array<i64: 1, 5>, dimension_numbers = #stablehlo.gather<
          offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}"""
    else:
        update = UPDATES[kind.removeprefix("scatter ")]
        body = f"%r = stablehlo.{update} %a, %b : {element}\n" if update else ""
        op = f""""stablehlo.scatter"(%a0, %a1, %a2) ({{ ^bb0(%a: {element}, %b: {element}):
          {body}stablehlo.return {"%r" if update else "%b"} : {element} }}) {{
          scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
          scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}"""
    given = ", ".join(f"%a{n}: {type_}" for n, type_ in enumerate(types))
    taken = ", ".join(map(str, types))
    return (
        f"func.func @main({given}) -> {result} {{ %0 = {op} : ({taken}) -> {result}\nreturn %0 : {result} }}"
    )


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_meaning(kind: str, dtype: str) -> None:
    """What the operation means to engine hlo, before any pass."""
    arrays = _operands(kind, dtype)
    text = _text(kind, arrays)
    (got,) = evaluate_module(import_stablehlo(text), *arrays)
    np.testing.assert_array_equal(np.asarray(got), *xla.evaluate(text, *arrays))


@pytest.mark.parametrize("engine", ["fast", "literal"])
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_on_tiles(kind: str, dtype: str, engine: str, tiny_target: Target) -> None:
    arrays = _operands(kind, dtype)
    text = _text(kind, arrays)
    (got,) = ipuxla.compile_stablehlo(text, tiny_target, engine=engine)(*arrays)
    np.testing.assert_array_equal(np.asarray(got), *xla.evaluate(text, *arrays))
