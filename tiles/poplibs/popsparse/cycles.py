"""Cycles of popsparse's vertices: PopLibs' own estimates, for patterns known when compiling and for ones known later.

Source: graphcore/poplibs lib/popsparse/StaticMatMulPartitioner.cpp (matmulComputeCycles, zeroingCycles) and
PerformanceEstimation.hpp (sparseDenseElementwiseMultiply, sparseDenseBlockMultiply).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tiles.numerics.dtypes import itemsize
from tiles.numerics.shared import Amount
from tiles.target import Target

SOURCE = "graphcore/poplibs lib/popsparse: StaticMatMulPartitioner.cpp, PerformanceEstimation.hpp"
LOAD_BYTES_PER_CYCLE = 8
_BLOCK_STATIC = {
    (4, "float16"): (17, 1, 13, 1),
    (4, "float32"): (13, 1, 12, 4),
    (8, "float16"): (13, 1, 14, 2),
    (8, "float32"): (13, 4, 19, 8),
    (16, "float16"): (13, 1, 19, 4),
    (16, "float32"): (16, 4, 74, 16),
}
"""By block and dtype: a worker's frame, its slots per row, those of a block's first column and of every later one."""
_BLOCK_DYNAMIC = {
    (4, "float16"): (26, 19, 2, 1),
    (4, "float32"): (26, 14, 4, 1),
    (8, "float16"): (20, 23, 4, 1),
    (8, "float32"): (23, 23, 8, 1),
    (16, "float16"): (23, 24, 4, 2),
    (16, "float32"): (23, 24, 8, 4),
}
"""A worker's frame, its slots per block and per column, and in how many loads of weights a block goes through the units.

PopLibs has no estimate for blocks of 16 in float32: counted as four of its 8 x 8 passes.
"""


def static_cycles(
    rows: Amount, blocks: Amount, columns: Amount, block: int, dtype: str, target: Target
) -> Any:
    """Return the cycles of a vertex for a pattern known when compiling, with the zeroing of its partials.

    Args:
      rows: block rows of the vertex.
      blocks: its blocks, spread evenly over the rows.
      columns: of the dense operand.
      block: elements along a block's side, 1, 4, 8 or 16.
      dtype: float16 or float32.
      target: the machine.
    """
    workers = target.worker_issue_interval_cycles
    per_row = -(-blocks // np.maximum(rows, 1))
    if block == 1:
        return workers * _elements_static(_share(rows, target), np.maximum(per_row, 1), columns, dtype)
    frame, per_block_row, first, later = _BLOCK_STATIC[block, dtype]
    load = block * block * itemsize(dtype) // LOAD_BYTES_PER_CYCLE
    each = first + later * (_share(columns, target) - 1)
    products = (
        30 + frame * workers + rows * (per_block_row * workers + 17 + per_row * (16 + load + each * workers))
    )
    return products + (
        0 if block == 4 else zeroing_cycles(rows * block * columns * itemsize("float32"), target)
    )


def _elements_static(rows: Amount, per_row: Amount, columns: Amount, dtype: str) -> Any:
    """Return the slots of a worker that has whole rows of single elements."""
    more = per_row - 1
    if dtype == "float16":
        general = 33 + rows * (11 + columns // 8 * (14 + 3 * more) + (columns % 8 != 0) * (9 + 2 * more))
        return np.select(
            [columns <= 4, columns == 8], [31 + rows * (7 + 2 * more), 31 + rows * (8 + 3 * more)], general
        )
    general = 31 + rows * (12 + columns // 4 * (10 + 3 * more) + (columns % 4 != 0) * (10 + 2 * more))
    return np.select(
        [columns <= 2, columns == 4], [29 + rows * (5 + 2 * more), 30 + rows * (6 + 3 * more)], general
    )


def dynamic_cycles(
    rows: Amount, blocks: Amount, columns: int | np.ndarray, block: int, dtype: str, target: Target
) -> Any:
    """Return the cycles of a vertex for a pattern known at run time that lies in one bucket, with the zeroing of partials.

    Args are those of ``static_cycles``.
    """
    workers = target.worker_issue_interval_cycles
    per_row = np.maximum(-(-blocks // np.maximum(rows, 1)), 1)
    zeros = zeroing_cycles(rows * block * columns * itemsize("float32"), target)
    if block == 1:
        return zeros + 30 + 90 + workers * _elements_dynamic(_share(rows, target), per_row, columns, dtype)
    frame, per_block, per_column, loads = _BLOCK_DYNAMIC[block, dtype]
    load = block * block * itemsize(dtype) // LOAD_BYTES_PER_CYCLE
    products = workers * (frame + rows * per_row * loads * (per_block + _share(columns, target) * per_column))
    return zeros + 40 + 102 + rows * per_row * (load + 3 + 12 * loads) + 2 + products


def _elements_dynamic(rows: Amount, per_row: Amount, columns: int | np.ndarray, dtype: str) -> Any:
    if dtype == "float16":
        vectors = (columns >= 8) * 14 + columns // 8 * 3 * per_row
        rest = (columns & 4 != 0) * (13 + 2 * per_row) + (columns & 3 != 0) * (
            10 + 2 * per_row * (columns & 3)
        )
        return 29 + rows * (10 + vectors + rest)
    vectors = (columns >= 4) * 10 + columns // 4 * 3 * per_row
    rest = (columns & 2 != 0) * (8 + 2 * per_row) + (columns & 1) * (8 + 2 * per_row)
    return 30 + rows * (13 + vectors + rest)


def zeroing_cycles(size_bytes: Amount, target: Target) -> Any:
    """Return the cycles in which all workers of a tile clear its partials."""
    return (
        12 + _share(-(-size_bytes // target.data_path_bytes), target)
    ) * target.worker_issue_interval_cycles


def _share(n: Amount, target: Target) -> Any:
    return -(-np.asarray(n) // target.workers_per_tile)
