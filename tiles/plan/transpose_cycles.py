"""Cycles of bringing elements into another order inside a tile: copies, block transposes, and anything slower.

Sources: lib/popsparse/PerformanceEstimation.hpp (transposes), lib/poplin/ConvModel.cpp (rearrangement) of
graphcore/poplibs.
"""

from __future__ import annotations

import numpy as np

from tiles.graph import Cycles
from tiles.numerics.shared import Amount
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/popsparse/PerformanceEstimation.hpp, lib/poplin/ConvModel.cpp"
CYCLES_PER_BYTE = {8: 0.4404, 4: 3.125, 2: 5.1484, 1: 2 * 5.1484}
"""Cycles per byte of a rearrangement by the bytes that stay together, six workers at it.

FITTED: the regression over 10,000 random rearrangements that PopLibs' convolution planner offers (ConvModel.cpp). It
has no single bytes; an element of one is taken to cost what an element of two does. An SDK profile of a C600 confirms
the order: 126,283 cycles to reorder 11,650 bytes of halves on a tile, and 52,333 for 5,900 bytes of 8-bit floats
(github.com/osmarks/ipu-stack, docs/SDK_ONNX_PROFILE_ANALYSIS.md).
"""
_GRAINS = {1: (8, 4), 2: (4, 4), 4: (2, 3), 8: (1, 3)}
"""By element bytes: rows and columns of a block transposed in registers, slots per block."""


def copy_cycles(size_bytes: Amount, target: Target) -> Amount:
    """Return the cycles of a contiguous copy inside a tile."""
    return target.local_copy_call_cycles + -(-np.asarray(size_bytes) // target.memcpy_bytes_per_cycle)


def rearrange_cycles(size_bytes: Amount, run_bytes: Amount, target: Target) -> Amount:
    """Return the cycles of bringing bytes that come in contiguous runs into another order.

    What stays together is moved by whole 64-bit words, words or elements, whichever divides a run; see
    ``CYCLES_PER_BYTE``.
    """
    run_bytes = np.asarray(run_bytes)
    atom = np.gcd(np.maximum(run_bytes, 1), target.data_path_bytes)
    rate = np.select([atom == n for n in CYCLES_PER_BYTE], list(CYCLES_PER_BYTE.values()))
    return target.local_copy_call_cycles + np.ceil(np.asarray(size_bytes) * rate).astype(np.int64)


def repeat_cycles(size_bytes: Amount, run_bytes: Amount, target: Target) -> Amount:
    """Return the cycles of writing bytes that repeat contiguous runs: each run is read once and stored often.

    The convolution planner's rule for regrouping, ``bytes * 5 / (k * r)``: ``k`` is 4 where runs are whole 64-bit
    words, else 3, and ``r`` the bytes of a run that one access moves.
    """
    size_bytes, run_bytes = np.asarray(size_bytes), np.maximum(np.asarray(run_bytes), 1)
    per_access = np.minimum(target.memcpy_bytes_per_cycle, run_bytes)
    whole = np.where(run_bytes % target.data_path_bytes == 0, 4, 3)
    return target.local_copy_call_cycles + np.ceil(size_bytes * 5 / (whole * per_access)).astype(np.int64)


def fills_blocks(rows: int, columns: int, size: int) -> bool:
    """Return whether matrices of elements of ``size`` bytes fall into blocks that are transposed in registers."""
    grain, _ = _GRAINS[size]
    return grain > 1 and rows % grain == 0 and columns % grain == 0


def transpose_cycles(batch: Amount, rows: Amount, columns: Amount, size: int, target: Target) -> Cycles:
    """Return the cycles of transposing ``batch`` matrices of elements of ``size`` bytes.

    Whole blocks go through the block-transpose vertex, row blocks shared out to the workers; rows and columns
    that fill no block, and elements that have none, are rearranged one by one. A single row or column keeps its
    order and is copied.
    """
    batch, rows, columns = (np.asarray(x, np.int64) for x in (batch, rows, columns))
    grain, slots_per_block = _GRAINS[size]
    row_blocks, column_blocks = rows // grain, columns // grain
    has_blocks = (row_blocks > 0) & (column_blocks > 0) & (grain > 1)
    workers = target.workers_per_tile
    share = -(-(batch * row_blocks) // workers)
    general = 29 + 18 + share * (12 + slots_per_block * np.maximum(column_blocks - 2, 0))
    narrow = 27 + -(-batch // workers) * (15 + 20 + slots_per_block * np.maximum(row_blocks - 2, 0))
    each = -(-batch // workers)
    many = np.where(each == 1, 17 + 12, 17 + 20 + np.maximum(each - 2, 0) * slots_per_block)
    slots = np.where(column_blocks > 1, general, np.where(row_blocks > 1, narrow, many))
    fast = 7 + target.worker_issue_interval_cycles * slots
    in_blocks = np.where(has_blocks, row_blocks * column_blocks * grain**2, 0)
    rest = batch * (rows * columns - in_blocks) * size
    slow = np.where(rest > 0, rearrange_cycles(rest, size, target), 0)
    basis = Basis.FITTED if bool(np.any(rest)) else Basis.DOCUMENTED
    keeps_order = (rows == 1) | (columns == 1)
    moved = copy_cycles(batch * rows * columns * size, target)
    return Cycles(np.where(keeps_order, moved, np.where(has_blocks, fast, 0) + slow), basis, SOURCE)
