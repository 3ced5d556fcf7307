"""Phases put in turn by their tile code: drawn extents, phases, types and tiles, bit for bit as numpy puts them."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import PROGRAM, budget
from tiles.compiler import compile_graph
from tiles.engine import coverage_of, make_engine
from tiles.graph import Graph
from tiles.poplibs.popops.interleave import interleave, phase_numbers
from tiles.target import Target


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3),
    st.integers(1, 6),
    st.sampled_from(["float32", "float16", "int32", "int8"]),
    st.data(),
    st.integers(1, 7),
)
@budget(PROGRAM)
def test_phases_in_turn(axes, channels, dtype, data, tiles) -> None:
    shape, phases = (*(n for n, _ in axes), channels), (*(p for _, p in axes), 1)
    numbers = phase_numbers(phases)
    is_there = [data.draw(st.booleans()) for _ in numbers[1:]]
    rng = np.random.default_rng(0)
    parts = [
        rng.integers(-9, 9, shape).astype(dtype) if there else None
        for there in [*is_there, not any(is_there)]
    ]
    expected = np.full([n * p for n, p in zip(shape, phases, strict=True)], 3, dtype)
    for number, part in zip(numbers, parts, strict=True):
        if part is not None:
            expected[tuple(slice(k, None, p) for k, p in zip(number, phases, strict=True))] = part
    graph = Graph(Target.named("gc200").replace(num_tiles=tiles))
    given_parts = [x for x in parts if x is not None]
    tensors = iter([graph.add_input(shape, dtype) for _ in given_parts])
    placed = [None if x is None else next(tensors) for x in parts]
    result = interleave(graph, placed, phases, expected.shape, dtype=dtype, shape=shape, fill=3)
    graph.outputs = [result.name]
    executable = compile_graph(graph)
    (found,), _ = make_engine(executable, "tile").run(*given_parts)
    np.testing.assert_array_equal(found, expected)
    in_ring = [
        make_engine(executable, engine, arithmetic="ring").run(*given_parts)[0][0]
        for engine in ("tile", "literal")
    ]
    np.testing.assert_array_equal(*in_ring)
    if math.prod(phases) > 1 and np.dtype(dtype).itemsize == 4:
        assert coverage_of(executable).vertices_share == 1
