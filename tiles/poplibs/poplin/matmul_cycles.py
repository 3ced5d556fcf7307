"""Cycles of a matrix-multiplication vertex, after PopLibs' convolution estimators.

A matmul is a convolution with a 1x1 kernel: rows of one operand are positions, columns of the other output
channels, the contracted dimension input channels, batches groups. Either operand may be the weights.
Operands are read in the order that ``matmul_orders`` gives; bringing them into it is not part of these figures,
but of the exchange before (``tiles.plan.element_order``).

Source: graphcore/poplibs lib/poplin/PerformanceEstimation.hpp, ConvModel.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tiles.errors import InvalidGraph
from tiles.graph import ROW_MAJOR, Arrangement, Cycles, Extents, OpForm
from tiles.numerics.arrays import where
from tiles.numerics.dtypes import is_float, itemsize
from tiles.numerics.shared import Amount
from tiles.poplibs.poplin.casts import cast_cycles
from tiles.poplibs.poplin.dots_variants import register_cycles
from tiles.poplibs.poplin.methods import (
    AUTO,
    NEVER,
    Method,
    costs_of,
    fastest,
    grouped,
    order_of,
    stream_of,
    streamed_dtype,
    vertex_cycles,
    widening_cycles,
)
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/poplin/PerformanceEstimation.hpp"
METHODS = ("amp", "hmac", "outer", "vmac", "scalar")
RETAINED_SLOTS = 7, 3
"""Of halves: slots of set-up that a worker keeps from one panel to the next, and of those from one input group to the next.

Vertices of float32, and of half partials on fewer than 16 units, keep nothing (``conv1x1WorkerRetentionSavings``).
"""
JOIN_CYCLES = 14  # that the supervisor takes from the end of the quickest worker on
UNEXPECTED_ORDER_CYCLES = 5 / 4
"""What an element costs readers of a result whose rows, not columns, lie together, in the choice of the weights.

The rule of PopLibs' convolution planner for results that it has to rearrange because operands are swapped: 5/4 of the
bytes, over what one copy moves, an element here (lib/poplin/ConvPlan.cpp, ConvModel.cpp).
"""


@dataclass(frozen=True)
class Roles:
    """Domain dimensions of a contraction by role, in the order of the first operand that has them."""

    batch: tuple[int, ...]
    lhs_free: tuple[int, ...]
    rhs_free: tuple[int, ...]
    contracted: tuple[int, ...]


@lru_cache(maxsize=4096)
def roles_of(form: OpForm) -> Roles:
    """Read the roles of a contraction's dimensions off its maps.

    Raises:
      InvalidGraph: not two operands, a shifted, strided or summed index, or a reduced dimension that only one
        operand has.
    """
    if len(form.operands) != 2:
        raise InvalidGraph(f"a contraction has two operands, got {len(form.operands)}")
    for index_map in form.operands:
        if any(len(axis.terms) > 1 for axis in index_map.axes):
            raise InvalidGraph(f"a contraction is indexed by single dimensions, got {index_map}")
    lhs, rhs = (index_map.dims for index_map in form.operands)
    shared = [d for d in lhs if d in rhs]
    single = [d for d in (*lhs, *rhs) if d not in shared and form.dims[d].is_reduced]
    missing = [d for d, dim in enumerate(form.dims) if d not in lhs and d not in rhs and not dim.is_reduced]
    if single or missing:
        names = ", ".join(form.dims[d].name for d in (*single, *missing))
        raise InvalidGraph(f"dimensions {names} are summed over in one operand only, or in neither operand")
    return Roles(
        tuple(d for d in shared if not form.dims[d].is_reduced),
        tuple(d for d in lhs if d not in shared),
        tuple(d for d in rhs if d not in shared),
        tuple(d for d in shared if form.dims[d].is_reduced),
    )


@dataclass(frozen=True)
class Shape:
    """Extents of a cell as a 1x1 convolution; arrays of one shape.

    Args:
      groups: batches.
      positions: rows of the operand that streams through.
      outputs: output channels, columns of the weights.
      inputs: input channels, the contracted dimension.
      grouped: of these, the channels that are counted in groups of what the units load at once; all if there is one
        contracted dimension.
      may_swap: whether the operand that streams through may be the weights instead.
    """

    groups: Amount
    positions: Amount
    outputs: Amount
    inputs: Amount
    grouped: Amount
    may_swap: bool = True

    def input_groups(self, channels: int) -> Amount:
        """Groups of ``channels`` input channels, the last of every run of channels filled up."""
        return self.inputs // np.maximum(self.grouped, 1) * -(-self.grouped // channels)

    @property
    def read(self) -> Amount:
        """Elements of both operands."""
        return self.groups * self.inputs * (self.positions + self.outputs)

    @property
    def swapped(self) -> Shape:
        """The same product with the other operand as weights."""
        return replace(self, positions=self.outputs, outputs=self.positions)


def matmul_cycles(
    method: str, accumulate: str, out_dtype: str, extents: Extents, target: Target, may_swap: bool = True
) -> Cycles:
    """Return the duration of a matmul vertex on all workers, vectorized over ``extents``.

    Args:
      method: one of ``METHODS``, or "auto" for the fastest of each cell.
      accumulate: dtype of the sums.
      out_dtype: dtype of the result; a cast is added where it is narrower.
      extents: cell sizes.
      target: the machine.
      may_swap: whether either operand may be the weights, or only the right one.

    Raises:
      InvalidGraph: the method computes none of these cells.
    """
    costs = _matmul_costs(method, accumulate, extents, target, may_swap)
    found = vertex_cycles(costs, "multiply", accumulate, out_dtype, extents, target)
    empty = np.asarray(extents.results) == 0
    return Cycles(np.where(empty, 0, found.value), found.basis, SOURCE)


def _matmul_costs(
    method: str, accumulate: str, extents: Extents, target: Target, may_swap: bool
) -> list[Method]:
    """Return the figures of a method, or of all; the duration of cells and the order they are read in ask for the same."""

    def found() -> list[Method]:
        shape = shape_of(extents, accumulate, target, may_swap)
        return costs_of(method, _COSTS, shape, streamed_dtype(extents.operand_dtypes), accumulate, target)

    return extents.once(("product", method, accumulate, target, may_swap), found)


def matmul_orders(
    method: str, accumulate: str, extents: Extents, target: Target, may_swap: bool = True
) -> list[Arrangement]:
    """Return the order in which vertices of given extents read and write, by dimensions of the domain.

    The units take input channels in groups, and leave output channels in groups, as PopLibs arranges the operands and
    results of its 1x1 vertex (``[CI/g][N][g]``, ``[CO/g][N][g]``; lib/poplin/ConvUtilInternal.cpp). Dot products run along
    contracted dimensions that lie together. The other methods take what comes.
    """
    stream = stream_of(streamed_dtype(extents.operand_dtypes), accumulate, target)
    units, channels = stream.units, stream.channels
    names, swapped = chosen_ways(method, accumulate, extents, target, may_swap)
    roles = roles_of(extents.form)

    def order(name: str, is_swapped: bool) -> Arrangement:
        rows, columns = roles.lhs_free, roles.rhs_free
        rows, columns = (columns, rows) if is_swapped else (rows, columns)
        if name == "amp":
            groups = ((columns, units), (roles.contracted, channels))
            return order_of(extents.form, roles.batch, roles.contracted, columns, rows, groups=groups)
        if name == "hmac":
            return order_of(extents.form, roles.batch, rows, columns, roles.contracted)
        return ROW_MAJOR

    return [order(str(name), bool(turned)) for name, turned in zip(names, swapped, strict=True)]


def chosen_ways(
    method: str, accumulate: str, extents: Extents, target: Target, may_swap: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return every cell's method by its name, and whether units take the left operand as weights, in cell order."""
    costs = _matmul_costs(method, accumulate, extents, target, may_swap)
    names = np.array([cost.name for cost in costs])[np.atleast_1d(fastest(costs)).reshape(-1)]
    stream = stream_of(streamed_dtype(extents.operand_dtypes), accumulate, target)
    swapped: Amount = False
    if stream.units:
        shape = shape_of(extents, accumulate, target, may_swap)
        swapped = _better_way(shape, stream.dtype, stream.sums, target)[1]
    return names, np.broadcast_to(np.asarray(swapped).reshape(-1), names.shape)


def methods_for(accumulate: str, extents: Extents, target: Target) -> tuple[str, ...]:
    """Return the methods that can compute a single cell, fastest first."""
    shape, dtype = shape_of(extents, accumulate, target), streamed_dtype(extents.operand_dtypes)
    costs = {m: int(np.max(_COSTS[m](shape, dtype, accumulate, target).value)) for m in METHODS}
    return tuple(sorted((m for m in METHODS if costs[m] < NEVER), key=costs.__getitem__))


def shape_of(extents: Extents, accumulate: str, target: Target, may_swap: bool = True) -> Shape:
    """Return a cell's extents as batches, positions, output and input channels."""
    roles = roles_of(extents.form)
    channels = stream_of(streamed_dtype(extents.operand_dtypes), accumulate, target).channels
    inner = grouped(extents.form, roles.contracted, channels)
    together = () if inner is None else (inner,)
    parts = (roles.batch, roles.lhs_free, roles.rhs_free, roles.contracted, together)
    groups, positions, outputs, inputs, kept = np.broadcast_arrays(
        *(np.asarray(extents.product(dims)) for dims in parts)
    )
    return Shape(groups, positions, outputs, inputs, kept, may_swap)


def _better_weights(cost: Callable[[Shape], Amount], shape: Shape) -> Amount:
    """Return the cost with the better of the two operands as weights, if either may be."""
    return np.minimum(cost(shape), cost(shape.swapped)) if shape.may_swap else np.asarray(cost(shape))


def _better_way(shape: Shape, dtype: str, accumulate: str, target: Target) -> tuple[Amount, Amount]:
    """Return the cycles of the units' vertex, and whether the units take the left operand as weights.

    They do where that saves more than readers of the result lose by it: weights are what lies together in the result,
    and what reads it goes on along its last dimension far more often than not.
    """
    right = amp_cycles(shape, dtype, accumulate, target)
    if not shape.may_swap:
        return right, np.zeros_like(shape.inputs, bool)
    left = amp_cycles(shape.swapped, dtype, accumulate, target)
    lost = UNEXPECTED_ORDER_CYCLES * shape.groups * shape.positions * shape.outputs
    is_swapped = left + lost < right
    return where(is_swapped, left, right), is_swapped


def _share(n: Amount, target: Target) -> Amount:
    return -(-np.asarray(n) // target.workers_per_tile)


def worker_slots(n: Amount, dtype: str, accumulate: str, units: int) -> tuple[Amount, Amount]:
    """Return the issue slots of a worker for ``n`` positions: of the zeroing first pass, and of a later one.

    Source: ``getConvPartial1x1SupervisorInnerLoopCycleEstimateHalfFloat`` of PopLibs' newest estimators.

    Args:
      n: positions of the worker, any shape.
      dtype: dtype of the operands, float16 or float32.
      accumulate: dtype of partials.
      units: convolution units used.
    """
    n = np.asarray(n)
    small = [n == 0, n == 1, n == 2]
    if dtype == "float32":
        later = np.select(small, [24, 47, 46], 46 + 8 * (n - 3))
        return later + where(n > 0, 2 + (8 if units >= 16 else 4) * n, 0), later
    if accumulate == "float16" and units < 16:
        later = np.select(small, [24, 39, 40], 41 + 4 * (n - 3))
        return later + where(n > 0, 2 + 2 * n, 0), later
    later = np.select(small, [22, 33, 42], 38 + 4 * (n - 3))
    first = np.select(small, [21, 32, 41], 37 + 4 * (n - 3))
    return first, later


def _retained(dtype: str, accumulate: str, units: int) -> tuple[int, int]:
    """Return the slots of set-up that workers keep; see ``RETAINED_SLOTS``."""
    keeps = dtype != "float32" and (accumulate != "float16" or units >= 16)
    return RETAINED_SLOTS if keeps else (0, 0)


def _panel_cycles(
    positions: Amount, dtype: str, accumulate: str, units: int, target: Target
) -> tuple[Amount, Amount]:
    """Return the cycles of all workers over a panel of weights: of the zeroing first pass, and of a later one.

    Positions are shared out as evenly as they can be; one of three takes less than one of two or, in float32, of one, so
    that the busiest worker may be one with fewer. A worker without any does not run. The supervisor waits 14 cycles for the
    quickest one at least.
    """
    most, workers = _share(positions, target), target.workers_per_tile
    fewest = np.asarray(positions) // workers
    kept, _ = _retained(dtype, accumulate, units)
    found: list[Amount] = []
    for of_most, of_fewest in zip(
        worker_slots(most, dtype, accumulate, units),
        worker_slots(fewest, dtype, accumulate, units),
        strict=True,
    ):
        of_most = of_most - kept
        of_fewest = where(fewest > 0, of_fewest - kept, 0)
        cycles = np.maximum(of_most, of_fewest) * target.worker_issue_interval_cycles
        least = np.minimum(of_most, of_fewest) * target.worker_issue_interval_cycles
        found.append(np.maximum(cycles, least + JOIN_CYCLES))
    first, later = found
    return first, later


def amp_cycles(shape: Shape, dtype: str, accumulate: str, target: Target) -> Amount:
    """Return the cycles of the 1x1 convolution vertex on the accumulating matrix product units.

    The units load a panel of weights, then every worker streams its positions through it.
    """
    units = target.conv_units(dtype, accumulate)
    channels = target.weights_per_conv_unit(dtype)
    load = units * channels * itemsize(dtype) // target.conv_unit_coeff_load_bytes_per_cycle
    workers = target.worker_issue_interval_cycles
    in_groups, out_groups = shape.input_groups(channels), -(-shape.outputs // units)
    if itemsize(dtype) == 1:
        return _narrow_cycles(shape, in_groups, out_groups, load, target)
    first, later = _panel_cycles(shape.positions, dtype, accumulate, units, target)
    kept, kept_of_inputs = _retained(dtype, accumulate, units)
    fixed = 50 + workers * (kept + kept_of_inputs * (in_groups * shape.groups - 1))
    later_pass = 15 + out_groups * (19 + 6 + load + later)
    first_pass = 11 + out_groups * (18 + 7 + load + first)
    return fixed + shape.groups * (13 + (in_groups - 1) * later_pass + first_pass)


def _narrow_cycles(shape: Shape, in_groups: Amount, out_groups: Amount, load: int, target: Target) -> Amount:
    """Return the cycles of the 1x1 vertex on 8-bit floats, whose scales are set before every panel."""
    later = 17 + 27 + 4 * (np.maximum(_share(shape.positions, target), 3) - 3)
    first, later = (target.worker_issue_interval_cycles * slots for slots in (later - 5, later))
    one_out = 46 + 131 + load + first + (in_groups - 1) * (108 + load + later)
    return 46 + shape.groups * (21 + out_groups * one_out)


def _amp(shape: Shape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """AMP; what the units do not take (see ``stream_of``) is widened first, and sums are cast after it."""
    stream = stream_of(dtype, accumulate, target)
    if not stream.units:
        return Cycles(np.full_like(shape.inputs, NEVER), Basis.DOCUMENTED, SOURCE)
    widen = widening_cycles(dtype, stream.dtype, shape.read, target)
    results = shape.groups * shape.positions * shape.outputs
    narrow = cast_cycles(stream.sums, accumulate, results, target)
    basis = Basis.weakest([widen.basis, narrow.basis])
    better, _ = _better_way(shape, stream.dtype, stream.sums, target)
    may_stream = (shape.inputs > 0) & (shape.inputs <= stream.most_inputs)
    return Cycles(np.where(may_stream, widen.value + better + narrow.value, NEVER), basis, SOURCE)


def widened_bytes(
    method: str, accumulate: str, extents: Extents, target: Target, may_swap: bool = True
) -> Amount:
    """Return the bytes that a vertex widens its operands in before it streams them; 0 where it does not."""
    dtype = streamed_dtype(extents.operand_dtypes)
    stream = stream_of(dtype, accumulate, target)
    if not stream.units or stream.dtype == dtype or method not in (AUTO, "amp"):
        return np.zeros_like(extents.points)
    shape = shape_of(extents, accumulate, target, may_swap)
    costs = _matmul_costs(method, accumulate, extents, target, may_swap)
    is_streamed = fastest(costs) == next(i for i, cost in enumerate(costs) if cost.name == "amp")
    return np.where(is_streamed, shape.read * itemsize(stream.dtype), 0)


def _hmac(shape: Shape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """Horizontal multiply-accumulate: a dot product per output, for few channels."""
    if dtype not in ("float16", "float32"):
        return Cycles(np.full_like(shape.inputs, NEVER), Basis.DOCUMENTED, SOURCE)
    width = target.vector_width(dtype)

    def cost(s: Shape) -> Amount:
        dot = 8 + -(-s.inputs // width)
        slots = _share(s.groups * s.positions, target) * (7 + s.outputs * dot)
        return (58 if dtype == "float32" else 65) + target.worker_issue_interval_cycles * slots

    return Cycles(_better_weights(cost, shape), Basis.DOCUMENTED, SOURCE)


def _outer(shape: Shape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """Outer product, for a contracted extent of one; the result has the operands' dtype."""
    if dtype not in ("float16", "float32"):
        return Cycles(np.full_like(shape.inputs, NEVER), Basis.DOCUMENTED, SOURCE)
    lead, width = (6, 2) if dtype == "float32" else (12, 4)

    def cost(s: Shape) -> Amount:
        row = 6 + -(-np.maximum(s.outputs - lead, 0) // width)
        slots = 25 + s.groups * (11 + _share(s.positions, target) * row)
        return target.supervisor_vertex_overhead_cycles + target.worker_issue_interval_cycles * slots

    return Cycles(np.where(shape.inputs == 1, _better_weights(cost, shape), NEVER), Basis.DOCUMENTED, SOURCE)


def _vmac(shape: Shape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """Vertical multiply-accumulate, for batches of single dot products (depthwise): float16 only."""
    if dtype != "float16":
        return Cycles(np.full_like(shape.inputs, NEVER), Basis.DOCUMENTED, SOURCE)
    chans = -(-_share(shape.groups, target) // 4) * 4
    steps = np.maximum(shape.inputs - 1, 0)
    body = where(chans >= 8, 3 * steps * chans // 8, 2 * steps * chans // 4)
    slots = 7 + 15 + 3 + body
    value = 61 + 14 + 25 + target.worker_issue_interval_cycles * slots
    single = (shape.positions == 1) & (shape.outputs == 1)
    return Cycles(np.where(single, value, NEVER), Basis.DOCUMENTED, SOURCE)


def _scalar(shape: Shape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """One multiply-add after another: of integers and bfloat16 by their code, else two loads, multiply, add, loop (ASSUMED)."""
    outputs = shape.groups * shape.positions * shape.outputs
    by_code = register_cycles(dtype, accumulate, shape.inputs, outputs, 0, target)
    if by_code is not None:
        return by_code
    each = 5 if itemsize(accumulate) <= 4 else 120 if is_float(accumulate) else 45
    slots = 26 + _share(outputs, target) * (12 + each * shape.inputs)
    value = target.supervisor_vertex_overhead_cycles + target.worker_issue_interval_cycles * slots
    return Cycles(value, Basis.ASSUMED, SOURCE)


_COSTS: dict[str, Callable[[Shape, str, str, Target], Cycles]] = {
    "amp": _amp,
    "hmac": _hmac,
    "outer": _outer,
    "vmac": _vmac,
    "scalar": _scalar,
}
