"""Bits read as elements of another width by tile code: drawn extents, types and tiles, bit for bit as numpy views them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import PROGRAM, budget
from tiles.compiler import compile_graph
from tiles.engine import coverage_of, make_engine
from tiles.graph import Graph
from tiles.poplibs import popops
from tiles.target import Target

WIDTHS = (
    *(("uint32", "uint64"), ("uint64", "uint32"), ("float32", "uint16"), ("float32", "float16")),
    *(("float16", "uint32"), ("int8", "uint16"), ("uint16", "int8"), ("uint8", "int32")),
)


@given(st.sampled_from(WIDTHS), st.lists(st.integers(1, 9), max_size=2), st.integers(1, 7))
@budget(PROGRAM)
def test_bits_of_another_width(dtypes, shape, tiles) -> None:
    dtype, out = map(np.dtype, dtypes)
    own = (*shape, out.itemsize // dtype.itemsize) if out.itemsize > dtype.itemsize else tuple(shape)
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=own) * 50 if dtype.kind == "f" else rng.integers(0, 100, own)
    x = numbers.astype(dtype).reshape(own)
    graph = Graph(Target.named("gc200").replace(num_tiles=tiles))
    operand = graph.add_input(own, dtype.name)
    graph.outputs = [popops.bitcast_width(graph, operand, out.name).name]
    executable = compile_graph(graph)
    (found,), _ = make_engine(executable, "tile").run(x)
    bits = f"u{out.itemsize}"
    expected = np.ascontiguousarray(x).view(out).view(bits)
    np.testing.assert_array_equal(np.asarray(found).view(bits).ravel(), expected.ravel())
    assert coverage_of(executable).vertices_share == 1
    in_ring = [
        make_engine(executable, engine, arithmetic="ring").run(x)[0][0] for engine in ("tile", "literal")
    ]
    np.testing.assert_array_equal(*in_ring)
