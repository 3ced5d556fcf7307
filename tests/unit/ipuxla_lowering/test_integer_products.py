"""Products of bytes pass through the multiply units as halves and add up to the bit; the witness is numpy's integers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from tiles.compiler import ExecuteStep, compile_graph
from tiles.engine import ENGINES, make_engine
from tiles.graph import Graph
from tiles.poplibs import poplin

TARGET = ipuxla.Target.named("gc200").replace(num_tiles=4)
WHOLE = ipuxla.Target.named("gc200")
RNG = np.random.default_rng(7)


def numbers(dtype, *shape, extreme=False):
    """Return all kinds of numbers of a dtype, or the one of greatest magnitude alone."""
    limits = np.iinfo(dtype)
    if extreme:
        return np.full(shape, limits.min or limits.max, dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def dot(x, w, dtype="int32"):
    return lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.dtype(dtype))


def batched(x, w):
    return lax.dot_general(x, w, (((2,), (1,)), ((0,), (0,))), preferred_element_type=jnp.int32)


def convolved(x, w):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=numbers, preferred_element_type=jnp.int32
    )


def in_int64(function, *arguments):
    """Return what a function of integers gives, computed by numpy in 64 bits, in the dtype of the function's result."""
    x, w = (a.astype(np.int64) for a in arguments)
    dtype = jax.eval_shape(function, *arguments).dtype
    if function is convolved:
        pad = w.shape[0] // 2
        x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[:2], (1, 2))
        return np.einsum("nijcyx,yxco->nijo", windows, w).astype(dtype)
    return (x @ w).astype(dtype)


CASES = {
    "bytes": (dot, (numbers(np.int8, 24, 96), numbers(np.int8, 96, 32))),
    "all the least": (
        dot,
        (numbers(np.int8, 8, 1024, extreme=True), numbers(np.int8, 1024, 16, extreme=True)),
    ),
    "more than are exact": (
        dot,
        (numbers(np.int8, 8, 1100, extreme=True), numbers(np.int8, 1100, 16, extreme=True)),
    ),
    "unsigned": (dot, (numbers(np.uint8, 24, 96), numbers(np.uint8, 96, 32))),
    "unsigned, all the greatest": (
        dot,
        (numbers(np.uint8, 8, 300, extreme=True), numbers(np.uint8, 300, 16, extreme=True)),
    ),
    "into bytes": (lambda x, w: x @ w, (numbers(np.int8, 24, 96), numbers(np.int8, 96, 32))),
    "into unsigned bytes": (lambda x, w: x @ w, (numbers(np.uint8, 24, 96), numbers(np.uint8, 96, 32))),
    "batched": (batched, (numbers(np.int8, 3, 12, 64), numbers(np.int8, 3, 64, 24))),
    "windows": (convolved, (numbers(np.int8, 2, 6, 6, 16), numbers(np.int8, 3, 3, 16, 24))),
    "windows of unsigned": (convolved, (numbers(np.uint8, 2, 6, 6, 16), numbers(np.uint8, 3, 3, 16, 24))),
    "few channels": (convolved, (numbers(np.int8, 1, 6, 6, 3), numbers(np.int8, 3, 3, 3, 8))),
}


@pytest.mark.parametrize("name", CASES)
def test_products_of_bytes_are_exact_on_all_engines(name):
    function, arguments = CASES[name]
    expected = in_int64(function, *arguments)
    lowered = ipuxla.jit(function, target=TARGET).lower(*arguments)
    for engine in ENGINES:
        for arithmetic in ("float", "ring"):
            found = lowered.compile(engine=engine, arithmetic=arithmetic)(*arguments)
            np.testing.assert_array_equal(np.asarray(found), expected, f"{engine} {arithmetic}")
    compiled = lowered.compile()
    assert "100% of their cycles" in str(compiled.tile_coverage())
    assert compiled.cost_analysis()["basis_shares"]["ASSUMED"] < 0.1
    compiled.certify()


@pytest.mark.parametrize("engine", ["fast", "literal", "tile"])
@pytest.mark.parametrize("count", [1024, 3000])
def test_long_sums_of_halves_that_hold_integers_are_cut_into_exact_parts(engine, count):
    """3,000 products of a result, all of the greatest magnitude, take three parts."""
    graph = Graph(TARGET)
    shapes = (8, count), (count, 16)
    x, w = (graph.add_input(shape, "float16", name) for shape, name in zip(shapes, "xw", strict=True))
    graph.outputs.append(poplin.matmul(graph, x, w, out_dtype="int32").name)
    executable = compile_graph(graph)
    groups = [group for step in executable.steps if isinstance(step, ExecuteStep) for group in step.groups]
    products = {group.form for group in groups if isinstance(group.codelet, poplin.MatMul)}
    assert len(products) == -(-count // 1024)
    values = [numbers(np.int8, *shape, extreme=True).astype(np.float16) for shape in shapes]
    values[0][:, ::2] *= np.float16(-0.5)
    (found,), _ = make_engine(executable, engine).run(*values)
    np.testing.assert_array_equal(np.asarray(found), in_int64(dot, *(v.astype(np.int32) for v in values)))


def test_widened_before_where_many_tiles_read_an_operand():
    x, w = (jax.ShapeDtypeStruct((512, 512), jnp.int8) for _ in range(2))
    lowered = ipuxla.jit(dot, target=WHOLE).lower(x, w)
    assert "dot.lhs" in lowered.as_text("plans")
    wide = [jax.ShapeDtypeStruct((512, 512), jnp.int32)] * 2
    cycles = [
        ipuxla.jit(dot, target=WHOLE).lower(*a).compile().cost_analysis()["cycles"] for a in ((x, w), wide)
    ]
    assert cycles[0] < cycles[1] / 20
