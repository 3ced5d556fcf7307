"""Contractions and convolutions off the multiply units by their tile code: drawn extents, types, methods and tiles.

In the ring the code's words are the codelet's; small whole numbers are exact in any order of sums.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st
from jax import lax

from tests.budgets import PROGRAM, budget
from tiles.compiler import Executable, compile_graph
from tiles.engine import coverage_of, make_engine
from tiles.graph import Graph
from tiles.poplibs import poplin
from tiles.poplibs.windows import Window
from tiles.target import Target

DTYPES = st.sampled_from(["float32", "float16", "bfloat16", "int32", "uint32"])
FIELDS = ("NHWC", "HWIO", "NHWC")
AXES = poplin.ConvAxes((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))


def target(tiles: int) -> Target:
    return Target.named("gc200").replace(num_tiles=tiles)


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    low = 0 if dtype == "uint32" else -4
    return np.random.default_rng(seed).integers(low, 5, shape).astype(dtype)


WITHOUT_CODE = {"poplin::ReduceAdd<bfloat16,float>"}
"""What combines partials: rows of bfloat16 that begin or end inside a word have no code (docs/element_compiler.md)."""


def assert_code_computes(executable: Executable, x: np.ndarray, w: np.ndarray, expected: np.ndarray) -> None:
    """Check that what multiplies has code, which in the ring says what the codelet means and else the numbers."""
    entries = {n: e for n, e in coverage_of(executable).codelets.items() if n.startswith("poplin::")}
    without = {name: set(e.reasons) for name, e in entries.items() if e.by_code != e.vertices}
    assert entries and without.keys() <= WITHOUT_CODE
    assert all(reason.endswith("inside a word") for reasons in without.values() for reason in reasons)
    (found,), _ = make_engine(executable, "tile").run(x, w)
    np.testing.assert_array_equal(np.asarray(found), expected)
    rng = np.random.default_rng(7)
    words = [rng.normal(size=a.shape).astype(a.dtype) if a.dtype.kind in "fV" else a for a in (x, w)]
    in_ring = [make_engine(executable, e, arithmetic="ring").run(*words)[0][0] for e in ("tile", "literal")]
    np.testing.assert_array_equal(*in_ring)


def method_of(draw, dtype: str, *others: str) -> str:
    floats = ["hmac", *others] if dtype in ("float16", "float32") else []
    halves = ["vmac"] if dtype == "float16" and "vmac" in others else []
    return draw(st.sampled_from([m for m in floats if m != "vmac"] + halves or ["scalar"]))


@st.composite
def products(draw):
    """Return a method, a dtype and the operands' shapes ``[batch, m, k]`` and ``[batch, k, n]``."""
    dtype = draw(DTYPES)
    batch, m, k, n = (draw(st.integers(1, most)) for most in (9, 7, 13, 9))
    method = method_of(draw, dtype, "outer", "vmac")
    m, n = (1, 1) if method == "vmac" else (m, n)
    k = 1 if method == "outer" else k
    return method, dtype, (batch, m, k), (batch, k, n)


@given(products(), st.integers(1, 7))
@example(
    ("outer", "float32", (1, 3, 1), (1, 1, 2)), 1
)  # loads ahead of a row's end do not reach what is stored to
@budget(PROGRAM)
def test_products_of_matrices(case, tiles) -> None:
    method, dtype, left, right = case
    graph = Graph(target(tiles))
    tensors = [graph.add_input(shape, dtype) for shape in (left, right)]
    graph.outputs = [poplin.matmul(graph, *tensors, method=method).name]
    x, w = numbers(left, dtype, 0), numbers(right, dtype, 1)
    expected = np.matmul(x.astype("float64"), w.astype("float64")).astype(dtype)
    assert_code_computes(compile_graph(graph), x, w, expected)


@st.composite
def convolutions(draw):
    """Return a method, a dtype, shapes, groups, and for each axis stride, dilation and padding."""
    dtype = draw(DTYPES)
    method = method_of(draw, dtype, "outer", "vmac")
    groups, inputs, outputs = (draw(st.integers(1, most)) for most in (9, 6, 4))
    taps = [draw(st.integers(1, 3)) for _ in range(2)]
    if method == "vmac":
        inputs = outputs = 1
    if method == "outer":
        inputs, taps = 1, [1, 1]
    size = [draw(st.integers(3, 7)) for _ in range(2)]
    axes = [(draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(0, 1))) for _ in range(2)]
    lhs = draw(st.integers(1, 2)), *size, groups * inputs
    return method, dtype, lhs, (*taps, inputs, groups * outputs), groups, axes


def convolved(
    method: str, dtype: str, lhs, rhs, groups: int, axes, tiles: int
) -> tuple[Executable, np.ndarray, np.ndarray, np.ndarray]:
    """Return a program of one convolution, its operands, and what XLA says of them."""
    strides, dilations, padding = zip(*axes, strict=True)
    windows = [
        Window(n, t, s, p, p, dilation=d)
        for n, t, s, d, p in zip(lhs[1:3], rhs[:2], strides, dilations, padding, strict=True)
    ]
    assume(min(w.outputs for w in windows) > 0)
    graph = Graph(target(tiles))
    tensors = [graph.add_input(shape, dtype) for shape in (lhs, rhs)]
    placed = poplin.convolution(graph, *tensors, AXES, windows, feature_groups=groups, method=method)
    graph.outputs = [placed.name]
    x, w = numbers(lhs, dtype, 0), numbers(rhs, dtype, 1)
    expected = lax.conv_general_dilated(
        x.astype("float32"),
        w.astype("float32"),
        strides,
        [(p, p) for p in padding],
        rhs_dilation=dilations,
        dimension_numbers=FIELDS,
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )
    return compile_graph(graph), x, w, np.asarray(expected).astype(dtype)


@given(convolutions(), st.integers(1, 7))
@budget(PROGRAM)
def test_convolutions(case, tiles) -> None:
    assert_code_computes(*convolved(*case, tiles))


@given(
    st.sampled_from(["bfloat16", "bfloat16", "float32", "float16"]),
    *(st.integers(1, most) for most in (3, 20, 36, 20)),
    st.integers(1, 5),
)
@budget(PROGRAM)
def test_products_on_the_units(dtype, batch, m, k, n, tiles) -> None:
    """Operands of bfloat16 are widened first, in the ring by zeros."""
    graph = Graph(target(tiles))
    tensors = [graph.add_input(shape, dtype) for shape in ((batch, m, k), (batch, k, n))]
    graph.outputs = [poplin.matmul(graph, *tensors, method="amp").name]
    x, w = numbers((batch, m, k), dtype, 0), numbers((batch, k, n), dtype, 1)
    expected = np.matmul(x.astype("float64"), w.astype("float64")).astype(dtype)
    assert_code_computes(compile_graph(graph), x, w, expected)


@given(
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.sampled_from(["amp", "amp2", "amp4"]),
    st.tuples(*(st.integers(1, most) for most in (9, 3, 3))),
    st.integers(1, 5),
)
@budget(PROGRAM)
def test_groups_that_the_units_take_as_one(dtype, method, channels, tiles) -> None:
    """Weights between groups are zeros; groups that fill no whole number of combined ones are filled up."""
    assume(dtype == "float16" or method != "amp4")
    groups, inputs, outputs = channels
    lhs, rhs = (1, 6, 7, groups * inputs), (3, 3, inputs, groups * outputs)
    assert_code_computes(*convolved(method, dtype, lhs, rhs, groups, [(1, 1, 1)] * 2, tiles))


@given(
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.tuples(*(st.integers(1, most) for most in (2, 17, 18))),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 2)), min_size=2, max_size=2),
    st.integers(1, 5),
)
@budget(PROGRAM)
def test_convolutions_over_a_spread_array(dtype, channels, axes, tiles) -> None:
    """As in the gradient of a strided one: of the taps that a result's phase meets, none in some."""
    groups, inputs, outputs = channels
    spreads, taps, padding = zip(*axes, strict=True)
    assume(max(spreads) > 1)
    lhs, rhs = (1, 4, 5, groups * inputs), (*taps, inputs, groups * outputs)
    padding = [(p, p) for p in padding]
    x, w = numbers(lhs, dtype, 0), numbers(rhs, dtype, 1)
    windows = [
        Window(n, t, 1, low, high, base=base)
        for n, t, (low, high), base in zip(lhs[1:3], taps, padding, spreads, strict=True)
    ]
    assume(min(w.outputs for w in windows) > 0)
    graph = Graph(target(tiles))
    tensors = [graph.add_input(shape, dtype) for shape in (lhs, rhs)]
    placed = poplin.convolution(graph, *tensors, AXES, windows, feature_groups=groups, method="amp")
    graph.outputs = [placed.name]
    expected = lax.conv_general_dilated(
        x.astype("float32"),
        w.astype("float32"),
        (1, 1),
        padding,
        lhs_dilation=spreads,
        dimension_numbers=FIELDS,
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )
    assert_code_computes(compile_graph(graph), x, w, np.asarray(expected).astype(dtype))


@given(
    st.tuples(*(st.integers(1, most) for most in (9, 4, 4))),
    st.tuples(st.integers(1, 3), st.integers(2, 9)),
    st.tuples(st.integers(1, 2), st.integers(1, 13), st.integers(3, 20)),
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(0, 2)),
    st.integers(1, 2),
    st.integers(1, 5),
    st.sampled_from(["float32", "float16"]),
)
@budget(PROGRAM)
def test_short_sliding_windows(channels, taps, size, rows, stride, tiles, partials) -> None:
    """One, two or four channels of a group; taps of a row that fill no whole windows; an odd number of results in a row.

    Builders add halves up in float32; a codelet may be told otherwise.
    """
    groups, inputs, outputs = channels
    images, *field = size
    axes = [rows, (stride, 1, 1)]
    reach = [(t - 1) * d + 1 - 2 * p for t, (_, d, p) in zip(taps, axes, strict=True)]
    more = (0 if taps[0] == 1 else rows[0]), stride  # where taps do not slide, they are channels
    assume(all(n >= r + m for n, r, m in zip(field, reach, more, strict=True)))
    lhs, rhs = (images, *field, groups * inputs), (*taps, inputs, groups * outputs)
    with mock.patch("tiles.poplibs.poplin.conv.partials_of", return_value=partials):
        case = convolved("slic", "float16", lhs, rhs, groups, axes, tiles)
    assert_code_computes(*case)
