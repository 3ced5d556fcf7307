"""Block-sparse products: against dense ones in NumPy, on every engine, and PopLibs' figures of a vertex."""

from __future__ import annotations

import numpy as np
import pytest

from tests.random_plans import random_planner
from tiles.compiler import certify, compile_graph
from tiles.engine import make_engine
from tiles.errors import InvalidGraph
from tiles.graph import Graph
from tiles.poplibs import popsparse
from tiles.poplibs.popsparse.cycles import dynamic_cycles, static_cycles

RNG = np.random.default_rng(0)


def _matrix(high: int, wide: int, block: int, share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a matrix of small integers of which only some blocks are not zero, and where those are."""
    mask = RNG.random((high, wide)) < share
    mask[1] = False  # a row of no block
    dense = RNG.integers(-3, 4, (high, block, wide, block)) * mask[:, None, :, None]
    return dense.reshape(high * block, wide * block), *popsparse.pattern_of(mask)


def _parts(matrix: np.ndarray, rows, columns, pattern: popsparse.Pattern, block: int) -> np.ndarray:
    blocks = matrix.reshape(matrix.shape[0] // block, block, -1, block).swapaxes(1, 2)[rows, columns]
    return np.where((pattern.order >= 0)[..., None, None], blocks[np.maximum(pattern.order, 0)], 0)


def _program(target, matrix, rows, columns, block, bands, parts, n, dtype, is_dynamic=False, planner=None):
    shape = matrix.shape[0] // block, matrix.shape[1] // block
    pattern = popsparse.cut(rows, columns, shape, bands, parts)
    values = _parts(matrix, rows, columns, pattern, block).astype(dtype)
    x = RNG.integers(-3, 4, (matrix.shape[1], n)).astype(dtype)
    graph = Graph(target)
    arrays = [values, pattern.block_rows, pattern.block_columns, x]
    operands = [graph.add_input(a.shape, a.dtype.name) for a in arrays]
    result = popsparse.sparse_dense_matmul(graph, *operands, pattern.rows, is_dynamic=is_dynamic)
    graph.outputs.append(result.name)
    executable = compile_graph(graph, planner)
    certify(executable)
    return executable, arrays, matrix.astype(np.float32) @ x.astype(np.float32)


@pytest.mark.parametrize(("block", "dtype", "is_dynamic"), [(1, "float32", True), (4, "float16", False)])
@pytest.mark.parametrize("engine", ["fast", "literal", "vertex"])
def test_engines_multiply_as_the_dense_matrix_does(gc200, block, dtype, is_dynamic, engine):
    matrix, rows, columns = _matrix(6, 4, block, 0.4)
    target = gc200.replace(num_tiles=12)
    executable, arrays, wanted = _program(target, matrix, rows, columns, block, 2, 3, 5, dtype, is_dynamic)
    (found,), _ = make_engine(executable, engine).run(*arrays)
    assert np.array_equal(np.asarray(found), wanted)


def test_any_plan_gives_the_same_bits_in_the_ring(gc200):
    matrix, rows, columns = _matrix(6, 6, 4, 0.5)
    found = []
    for seed in range(3):
        target, planner = gc200.replace(num_tiles=7), random_planner(seed)
        executable, arrays, _ = _program(
            target, matrix, rows, columns, 4, 3, 2, 6, "float32", planner=planner
        )
        arrays[3] = np.arange(24 * 6, dtype=np.float32).reshape(24, 6) + 0.3
        for engine in ("fast", "literal", "vertex"):
            (bits,), _ = make_engine(executable, engine, "ring").run(*arrays)
            found.append(np.asarray(bits))
    assert all(np.array_equal(found[0], bits) for bits in found)


def test_parts_hold_every_block_once():
    _, rows, columns = _matrix(8, 12, 1, 0.3)
    pattern = popsparse.cut(rows, columns, (8, 12), 3, 4)
    order = pattern.order
    held = np.nonzero(order >= 0)
    assert sorted(order[held].tolist()) == list(range(len(rows)))
    assert np.array_equal(held[1] * pattern.rows + pattern.block_rows[held], rows[order[held]])
    assert np.array_equal(held[0] * pattern.columns + pattern.block_columns[held], columns[order[held]])
    assert (pattern.block_rows[order < 0] == pattern.rows).all()


@pytest.mark.parametrize(("rows", "columns", "parts"), [([9], [0], 2), ([0, 0], [1, 1], 2), ([0], [0], 3)])
def test_what_is_no_pattern_is_refused(rows, columns, parts):
    with pytest.raises(InvalidGraph):
        popsparse.cut(np.array(rows), np.array(columns), (8, 8), 2, parts)


def test_blocks_without_a_vertex_are_refused():
    with pytest.raises(InvalidGraph, match="blocks of 2"):
        popsparse.SparseDenseMatMul("float16", "float16", 2, False)


@pytest.mark.parametrize(
    ("rows", "blocks", "columns", "block", "dtype", "cycles"),
    [
        # matmulComputeCycles of StaticMatMulPartitioner.cpp, by hand: 6 x (31 + 2 x (7 + 3 x 2)); half, 4 columns
        (12, 48, 4, 1, "float16", 342),
        # 6 x (31 + 2 x (12 + 4 x (10 + 3 x 3))); float, 16 columns
        (12, 48, 16, 1, "float32", 1242),
        # 30 + 13 x 6 + 2 x (6 + 17 + 3 x (16 + 64 + (19 + 3 x 4) x 6)), and 6 x (12 + 2 x 16 x 24 x 4 / 8 / 6)
        (2, 6, 24, 16, "float16", 2206),
    ],
)
def test_vertices_take_what_poplibs_states(gc200, rows, blocks, columns, block, dtype, cycles):
    assert static_cycles(rows, blocks, columns, block, dtype, gc200) == cycles


def test_a_pattern_known_at_run_time_costs_more(gc200):
    each = (64, 640, 128, 16, "float16", gc200)
    assert dynamic_cycles(*each) > static_cycles(*each)
