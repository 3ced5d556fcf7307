"""Contractions and convolutions whose result is of another type than their operands, against XLA."""

from __future__ import annotations

import numpy as np
import pytest

import ipuxla
from hlo_passes.ir import DTYPES, TensorType, evaluate_module
from ipuxla.frontend.importer import import_stablehlo
from tests import xla
from tiles.numerics.tolerance import check_close
from tiles.target import Target

OPERANDS = ("i1", "i8", "ui8", "i32", "i64", "f16", "bf16", "f32", "f64", "complex<f32>")
PAIRS = [
    (operand, result)
    for operand in OPERANDS
    for result in OPERANDS
    if operand != result and not (DTYPES[operand].kind == "complex" and DTYPES[result].kind != "complex")
]


def _text(kind: str, operands: tuple[np.ndarray, ...], result: str, shape: tuple[int, ...]) -> str:
    x, y = map(TensorType.of, operands)
    r = TensorType(shape, result)
    if kind == "dot":
        op = "stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]"
    else:
        op = """stablehlo.convolution(%x, %y) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
          window = {stride = [1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}"""
    return f"func.func @main(%x: {x}, %y: {y}) -> {r} {{ %0 = {op} : ({x}, {y}) -> {r}\nreturn %0 : {r} }}"


def _operands(kind: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, (3, 6)), rng.integers(0, 3, (6, 4))
    if kind == "convolution":
        x, y = x.reshape(1, 9, 2), y.reshape(3, 2, 4)
    return x.astype(DTYPES[dtype].np_dtype), y.astype(DTYPES[dtype].np_dtype)


@pytest.mark.parametrize("kind", ["dot", "convolution"])
@pytest.mark.parametrize(("operand", "result"), PAIRS)
def test_meaning(kind: str, operand: str, result: str) -> None:
    """What the operation means to engine hlo, before any pass."""
    arrays = _operands(kind, operand)
    text = _text(kind, arrays, result, (3, 4) if kind == "dot" else (1, 7, 4))
    check_close(
        [np.asarray(x) for x in evaluate_module(import_stablehlo(text), *arrays)], xla.evaluate(text, *arrays)
    )


@pytest.mark.parametrize("kind", ["dot", "convolution"])
@pytest.mark.parametrize(
    ("operand", "result"),
    [("i8", "f32"), ("i32", "f16"), ("ui8", "bf16"), ("i1", "f64"), ("f32", "i32"), ("i8", "complex<f32>")],
)
def test_on_tiles(kind: str, operand: str, result: str, tiny_target: Target) -> None:
    arrays = _operands(kind, operand)
    text = _text(kind, arrays, result, (3, 4) if kind == "dot" else (1, 7, 4))
    got = ipuxla.compile_stablehlo(text, tiny_target)(*arrays)
    check_close(list(got), xla.evaluate(text, *arrays))
