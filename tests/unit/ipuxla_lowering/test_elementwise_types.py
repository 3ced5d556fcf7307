"""Every elementwise operation in every element type it takes: lowered alone, it computes what evaluating it gives."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from hlo_passes.ir import DTYPES, Builder, Computation, Module, TensorType, evaluate_module
from hlo_passes.ir.op import OPS
from hlo_passes.ops import (
    BitcastConvert,
    Clamp,
    Compare,
    Convert,
    IsFinite,
    Maximum,
    Negate,
    Nonlinearity,
    ReducePrecision,
    Select,
)
from hlo_passes.ops.elementwise import FLOAT, Binary, Elementwise, Unary
from hlo_passes.passes import LegalizeComplex
from ipuxla.lowering import lower_module
from tests.flow import assert_same_words, ring_reference, run
from tiles.compiler import compile_graph
from tiles.numerics.tolerance import check_close
from tiles.target import Target

SHAPE = (3, 5)
BITS = {1: ("ui8", "i8"), 2: ("i16", "f16", "bf16"), 4: ("i32", "f32"), 8: ("ui64", "f64")}
PLAIN = ("f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "i1")


def _maximum(type_: TensorType) -> Computation:
    """Return the larger one of each element and its negative."""
    builder = Builder("maximum")
    x = builder.parameter(type_)
    return builder.build(builder.add(Maximum(), x, builder.add(Negate(), x)))


def module_of(dtype: str) -> Module:
    """Return a module whose results are all elementwise operations of three operands of a type."""
    type_ = TensorType(SHAPE, dtype)
    builder = Builder("main")
    x, y, z = (builder.parameter(type_) for _ in range(3))
    p = builder.parameter(TensorType(SHAPE, "i1"))
    results = []
    for op in OPS.values():
        if op.name in LegalizeComplex.removes:
            continue
        if issubclass(op, Unary | Binary | IsFinite) and dtype in op.accepts:
            results.append(builder.add(op(), *([x, y] if issubclass(op, Binary) else [x])))
    results += [builder.add(Compare(direction), x, y) for direction in ("EQ", "NE", "LT", "LE", "GT", "GE")]
    results.append(builder.add(Select(), p, x, y))
    if dtype in Clamp.accepts:
        results.append(builder.add(Clamp(), y, x, z))
    if dtype in ("f32", "f16"):
        results.append(builder.add(ReducePrecision(5, 7), x))
    if dtype in FLOAT:
        results.append(builder.add(Compare("LT", "TOTALORDER"), x, y))
        results.append(builder.add(Nonlinearity("popnn.relu"), x, regions=[_maximum(type_)]))
    results += [builder.add(Convert(other), x) for other in PLAIN]
    results += [
        builder.add(BitcastConvert(other), x) for other in BITS[type_.np_dtype.itemsize] if dtype != "i1"
    ]
    return Module("elementwise", (builder.build(*results),), "main")


def arrays_of(dtype: str) -> list[np.ndarray]:
    """Return operands: numbers of both signs, zeros, equal ones, and what shifts and powers are small for."""
    rng = np.random.default_rng(4)
    numpy_dtype = DTYPES[dtype].np_dtype
    if dtype == "i1":
        values: list[Any] = [rng.integers(0, 2, SHAPE) for _ in range(3)]
    elif numpy_dtype.kind in "iu":
        low = 0 if numpy_dtype.kind == "u" else -9
        values = [rng.integers(low, 100, SHAPE), rng.integers(1, 5, SHAPE), rng.integers(20, 90, SHAPE)]
    else:
        values = [rng.standard_normal(SHAPE) * 3, rng.standard_normal(SHAPE), 2 + rng.random(SHAPE)]
        values[0][0, :2] = 0.0, -0.0
        values[1][1] = values[0][1]
    return [*(v.astype(numpy_dtype) for v in values), rng.integers(0, 2, SHAPE).astype(bool)]


@pytest.mark.parametrize("dtype", PLAIN)
def test_lowered_alone_they_compute_what_they_mean(dtype):
    module, arrays = module_of(dtype), arrays_of(dtype)
    executable = compile_graph(lower_module(module, Target.named("gc200").replace(num_tiles=4)))
    assert len(list(executable.groups())) == len(module.entry_computation.instructions)
    if dtype in FLOAT:  # in the ring nothing else changes
        assert_same_words(run(executable, "fast", arrays, "ring"), ring_reference(module, arrays), dtype)
    with jax.enable_x64(True):
        want = jax.jit(lambda *xs: evaluate_module(module, *xs))(*arrays)
    for number, (got, wanted) in enumerate(zip(run(executable, "fast", arrays), want, strict=True)):
        check_close(got, np.asarray(wanted), f"{dtype}, {module.entry_computation.instructions[number].op}")


def test_every_elementwise_operation_is_among_them():
    made = {type(i.op) for dtype in PLAIN for i in module_of(dtype).entry_computation.instructions}
    wanted = {op for op in OPS.values() if issubclass(op, Elementwise)}
    assert made == {op for op in wanted if op.name not in LegalizeComplex.removes}
