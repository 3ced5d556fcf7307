"""Cycles of a convolution vertex whose kernel has more than one tap, after PopLibs' estimators.

Operands are read in the order that ``conv_orders`` gives, as those of matrix products (``matmul_cycles``).
Workers of the product units share positions, row after row (a row lies along the last field dimension): each begins where
the one before ends, and runs once for every row that it has a part of. Other methods share whole rows, or the columns of
few rows.

Source: graphcore/poplibs lib/poplin/PerformanceEstimation.hpp, ConvModel.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from tiles.cached import cached_property
from tiles.errors import InvalidGraph
from tiles.graph import ROW_MAJOR, Affine, Arrangement, Cycles, Extents, OpForm
from tiles.numerics.arrays import where
from tiles.numerics.dtypes import is_float, itemsize
from tiles.numerics.shared import Amount, hold
from tiles.plan.transpose_cycles import copy_cycles, repeat_cycles, transpose_cycles
from tiles.poplibs.poplin.casts import cast_cycles
from tiles.poplibs.poplin.dots_variants import of_access, register_cycles
from tiles.poplibs.poplin.matmul_cycles import Shape, amp_cycles
from tiles.poplibs.poplin.methods import (
    AUTO,
    NEVER,
    Method,
    costs_of,
    fastest,
    order_of,
    stream_of,
    streamed_dtype,
    vertex_cycles,
    widening_cycles,
)
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/poplin/PerformanceEstimation.hpp"
CONV_METHODS = ("amp", "amp2", "amp4", "expanded", "banded", "slic", "hmac", "outer", "vmac", "scalar")
ROWS_AT_ONCE = {"amp": 1, "amp2": 2, "amp4": 4}
"""Rows of the kernel whose taps fill the units' input channels together, by method (``filterHeight``)."""
JOIN_CYCLES = 9  # that the supervisor takes from the end of the quickest worker on
_LOADING = {1: 15, 2: 46, 4: 60}
"""Cycles that the supervisor spends on a panel beside loading it, by rows of the kernel in it."""
_SLIC_WIDTH = 4
_SIDE_BY_SIDE = (4, 8, 16)
"""Depthwise channels that a vertical multiply-accumulate may work on at once; a short sliding window takes the first."""
LAID_OUT_SHARE = 4
"""A vertex lays out its windows in at most this part of a tile's memory, which counts as its scratch; larger cells are cut further."""
_COMBINED = (2, 4, 8, 16)
"""How many groups the units may compute as one."""


@dataclass(frozen=True)
class ConvRoles:
    """Domain dimensions of a convolution by role.

    Args:
      batch: kept dimensions of the left operand alone: batches, and field dimensions that one tap meets.
      field: output dimensions of windows.
      taps: kernel dimensions of the same windows.
      strides: distance between neighbouring windows.
      dilations: distance between neighbouring taps.
      groups: kept dimensions that both operands have.
      outputs: kept dimensions of the kernel alone.
      inputs: summed dimensions other than taps.
      phases: kept dimensions of neither operand: outputs that follow each other, of windows over a spread array.
      kernel_taps: summed dimensions of the kernel alone: taps of such windows, of which a phase meets some.
    """

    batch: tuple[int, ...]
    field: tuple[int, ...]
    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: tuple[int, ...]
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    phases: tuple[int, ...] = ()
    kernel_taps: tuple[int, ...] = ()


@lru_cache(maxsize=4096)
def conv_roles(form: OpForm) -> ConvRoles:
    """Read the roles of a convolution's dimensions off its maps.

    Raises:
      InvalidGraph: not two operands, a kernel axis of several dimensions, a window that is no sum of an
        output and a tap with positive coefficients, or a dimension without a role.
    """
    if len(form.operands) != 2:
        raise InvalidGraph(f"a convolution has two operands, got {len(form.operands)}")
    lhs, rhs = form.operands
    windows = [_window(form, axis) for axis in lhs.axes if len(axis.terms) > 1]
    field, taps = tuple(w[0] for w in windows), tuple(w[1] for w in windows)
    single = [axis.terms[0][0] for axis in lhs.axes if len(axis.terms) == 1]
    shared = [d for d in single if d in rhs.dims]
    alone = [d for d in rhs.dims if d not in shared and d not in taps]
    roles = ConvRoles(
        tuple(d for d in single if d not in rhs.dims),
        field,
        taps,
        tuple(w[2] for w in windows),
        tuple(w[3] for w in windows),
        tuple(d for d in shared if not form.dims[d].is_reduced),
        tuple(d for d in alone if not form.dims[d].is_reduced),
        tuple(d for d in shared if form.dims[d].is_reduced),
        tuple(d for d in range(len(form.dims)) if d not in lhs.dims and d not in rhs.dims),
        tuple(d for d in alone if form.dims[d].is_reduced),
    )
    kept = (*roles.batch, *roles.field, *roles.groups, *roles.outputs, *roles.phases)
    summed = (*roles.taps, *roles.inputs, *roles.kernel_taps)
    named = sorted((*kept, *summed)) == list(range(len(form.dims)))
    if (
        not named
        or any(form.dims[d].is_reduced for d in kept)
        or not all(form.dims[d].is_reduced for d in summed)
    ):
        raise InvalidGraph(
            f"not every dimension of {[d.name for d in form.dims]} has a part in a convolution"
        )
    return roles


def _window(form: OpForm, axis: Affine) -> tuple[int, int, int, int]:
    """Return output and tap dimension of a window axis, with their coefficients."""
    terms = sorted(axis.terms, key=lambda term: form.dims[term[0]].is_reduced)
    if len(terms) != 2 or not form.dims[terms[1][0]].is_reduced or min(c for _, c in terms) < 1:
        raise InvalidGraph(f"{axis} is no window of a convolution")
    return terms[0][0], terms[1][0], terms[0][1], terms[1][1]


@dataclass(frozen=True, eq=False)
class Field:
    """The fields of cells; arrays of one shape.

    Args:
      rows: rows of the field, of all batches.
      columns: outputs of a row.
    """

    rows: np.ndarray
    columns: np.ndarray

    @cached_property
    def positions(self) -> np.ndarray:
        """Outputs per output channel that a tap meets."""
        return self.rows * self.columns


@dataclass(frozen=True)
class ConvShape:
    """Extents of a cell; arrays of one shape.

    Args:
      groups: convolutions side by side.
      field: rows and columns that are computed.
      outputs: output channels of a group.
      inputs: input channels of a group.
      tap_rows: taps along all but the last kernel dimension.
      tap_columns: taps along the last.
      first_taps: of the rows, taps along the first of several kernel dimensions; else 1.
      input_rows: rows of the array that windows reach, of all batches.
      stride: distance between the windows of neighbouring outputs of a row.
      dilation: distance between neighbouring taps of a row.
      phases: results of each row and column; a tap meets one of them.
      is_filter: whether the operation has one channel on either side, and no groups.
    """

    groups: Amount
    field: Field
    outputs: Amount
    inputs: Amount
    tap_rows: Amount
    tap_columns: Amount
    first_taps: Amount
    input_rows: Amount
    stride: int
    dilation: int
    phases: int = 1
    is_filter: bool = False

    @property
    def positions(self) -> Amount:
        """Outputs per output channel that a tap meets."""
        return self.field.positions

    @property
    def taps(self) -> Amount:
        """Elements of the kernel per pair of channels."""
        return self.tap_rows * self.tap_columns

    @property
    def read(self) -> Amount:
        """Elements of both operands, about: windows that follow each other share theirs."""
        return self.groups * self.inputs * (self.positions * self.stride + self.outputs * self.taps)

    @property
    def results(self) -> Amount:
        """Elements of the result."""
        return self.groups * self.positions * self.phases * self.outputs


def conv_shape(extents: Extents) -> ConvShape:
    """Return a cell's extents as a convolution's."""
    return extents.once("convolution", lambda: _conv_shape(extents))


def _conv_shape(extents: Extents) -> ConvShape:
    roles = conv_roles(extents.form)
    parts = (
        roles.groups,
        (*roles.batch, *roles.field[:-1]),
        roles.field[-1:],
        roles.outputs,
        roles.inputs,
        roles.taps[:-1],
        roles.taps[-1:],
        roles.taps[:-1][:1],
    )
    reached: Amount = np.asarray(extents.product(roles.batch))
    for field, tap, stride, dilation in zip(
        roles.field[:-1], roles.taps[:-1], roles.strides[:-1], roles.dilations[:-1], strict=True
    ):
        reached = reached * (
            (np.asarray(extents.product((field,))) - 1) * stride
            + (np.asarray(extents.product((tap,))) - 1) * dilation
            + 1
        )
    arrays = np.broadcast_arrays(*(np.asarray(extents.product(dims)) for dims in parts), reached)
    groups, rows, columns, *others = arrays
    stride, dilation = (1, *roles.strides)[-1], (1, *roles.dilations)[-1]
    channels = math.prod(extents.form.dims[d].size for d in (*roles.inputs, *roles.outputs, *roles.groups))
    return ConvShape(
        groups, Field(rows, columns), *others, stride=stride, dilation=dilation, is_filter=channels == 1
    )


def spread_shape(extents: Extents, phases: Sequence[int], taps: Sequence[int]) -> ConvShape:
    """Return a cell's extents as a convolution's over a spread array.

    Args:
      extents: of cells that have all phases and taps.
      phases: outputs that follow each other along each window, of which a tap meets one.
      taps: elements of the kernel along each window.
    """
    (*rows, columns), ones = taps, np.ones_like(np.asarray(extents.points))
    shape = conv_shape(extents)
    return replace(
        shape,
        tap_rows=ones * math.prod(rows),
        tap_columns=ones * columns,
        first_taps=ones,
        phases=math.prod(phases),
    )


def spread_cycles(
    method: str, accumulate: str, out_dtype: str, shape: ConvShape, extents: Extents, target: Target
) -> Cycles:
    """Return the duration of a vertex that convolves a spread array; see ``conv_cycles``.

    PopLibs' n x 1 vertex goes through the positions of a phase with a stride of its own in the result
    (``transformedOutStride``): a tap takes as long as where nothing is spread, and nothing is put in turn afterwards.
    """
    costs = costs_of(method, _SPREAD_COSTS, shape, streamed_dtype(extents.operand_dtypes), accumulate, target)
    found = vertex_cycles(costs, "convolve", accumulate, out_dtype, extents, target)
    empty = np.asarray(extents.points) == 0
    return Cycles(np.where(empty, 0, found.value), found.basis, SOURCE)


def spread_orders(
    method: str, accumulate: str, shape: ConvShape, extents: Extents, target: Target
) -> list[Arrangement]:
    """Return the order in which vertices that convolve a spread array read and write; see ``conv_orders``."""
    costs = costs_of(method, _SPREAD_COSTS, shape, streamed_dtype(extents.operand_dtypes), accumulate, target)
    roles, form = conv_roles(extents.form), extents.form
    stream = stream_of(streamed_dtype(extents.operand_dtypes), accumulate, target)
    units, channels = stream.units, stream.channels
    places = sorted((*roles.batch, *roles.field, *roles.phases))
    taps = (*roles.taps, *roles.kernel_taps)
    groups = ((roles.outputs, units), (roles.inputs, channels))
    orders = {name: ROW_MAJOR for name in _SPREAD_COSTS}
    orders["amp"] = order_of(form, *(roles.groups, roles.inputs, roles.outputs, places, taps), groups=groups)
    orders["hmac"] = order_of(form, roles.groups, places, roles.outputs, taps, roles.inputs)
    numbers: list[int] = np.atleast_1d(fastest(costs)).tolist()
    return [orders[costs[i].name] for i in numbers]


def conv_cycles(method: str, accumulate: str, out_dtype: str, extents: Extents, target: Target) -> Cycles:
    """Return the duration of a convolution vertex on all workers, vectorized over ``extents``.

    Args:
      method: one of ``CONV_METHODS``, or "auto" for the fastest of each cell.
      accumulate: dtype of the sums.
      out_dtype: dtype of the result; a cast is added where it is narrower.
      extents: cell sizes.
      target: the machine.

    Raises:
      InvalidGraph: the method computes none of these cells.
    """
    costs = _conv_costs(method, accumulate, extents, target)
    found = vertex_cycles(costs, "convolve", accumulate, out_dtype, extents, target)
    empty = np.asarray(extents.points) == 0
    return Cycles(np.where(empty, 0, found.value), found.basis, SOURCE)


def _conv_costs(method: str, accumulate: str, extents: Extents, target: Target) -> list[Method]:
    """Return the figures of a method, or of all; the duration of cells and what they lay out ask for the same."""
    dtype = streamed_dtype(extents.operand_dtypes)
    return extents.once(
        ("convolution", method, accumulate, target),
        lambda: costs_of(method, _COSTS, conv_shape(extents), dtype, accumulate, target),
    )


def conv_orders(method: str, accumulate: str, extents: Extents, target: Target) -> list[Arrangement]:
    """Return the order in which vertices of given extents read and write, by dimensions of the domain.

    As PopLibs arranges them (lib/poplin/ConvUtilInternal.cpp): activations ``[G][CI/g][N][field][g]``, kernels
    ``[G][CI/g][CO/g][taps][g][g]``, results ``[G][CO/g][N][field][g]`` with groups of what the units load at once; with a
    channel a group (SLIC, vertical multiply-accumulate) groups of convolutions lie innermost, as many as the vertex
    works on at once.
    """
    shape = conv_shape(extents)
    costs = _conv_costs(method, accumulate, extents, target)
    stream = stream_of(streamed_dtype(extents.operand_dtypes), accumulate, target)
    orders, depthwise = _orders_of(extents.form, stream.units, stream.channels)
    numbers: list[int] = np.atleast_1d(fastest(costs)).tolist()
    chosen = [costs[i].name for i in numbers]
    at_once = np.broadcast_to(side_by_side(shape.groups), len(chosen)).tolist()
    return [depthwise[n] if name == "vmac" else orders[name] for name, n in zip(chosen, at_once, strict=True)]


def conv_ways(
    method: str, accumulate: str, extents: Extents, target: Target
) -> tuple[np.ndarray, np.ndarray]:
    """Return every cell's method by its name, in cell order, and how many groups the units take as one."""
    costs = _conv_costs(method, accumulate, extents, target)
    return _ways(costs, conv_shape(extents), accumulate, extents, target)


def spread_ways(
    method: str, accumulate: str, shape: ConvShape, extents: Extents, target: Target
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same of convolutions over a spread array."""
    costs = costs_of(method, _SPREAD_COSTS, shape, streamed_dtype(extents.operand_dtypes), accumulate, target)
    return _ways(costs, shape, accumulate, extents, target)


def _ways(
    costs: Sequence[Method], shape: ConvShape, accumulate: str, extents: Extents, target: Target
) -> tuple[np.ndarray, np.ndarray]:
    names = np.array([cost.name for cost in costs])[np.atleast_1d(fastest(costs)).reshape(-1)]
    dtype, combined = streamed_dtype(extents.operand_dtypes), np.ones(names.shape, np.int64)
    for name, height in ROWS_AT_ONCE.items():
        if int(np.max(shape.groups, initial=1)) > 1 and (names == name).any():
            values = _combined(shape, dtype, accumulate, target, height)[0]
            factors = np.array((1, *_COMBINED))[np.argmin(np.stack(values), axis=0)].reshape(-1)
            combined = np.where(names == name, factors, combined)
    return names, combined


@lru_cache(maxsize=512)
def _orders_of(
    form: OpForm, units: int, channels: int
) -> tuple[Mapping[str, Arrangement], Mapping[int, Arrangement]]:
    """Return the order of each method, and of vertical multiply-accumulates by how many channels they work on at once."""
    roles = conv_roles(form)
    places = (*roles.batch, *roles.field)
    orders = {name: ROW_MAJOR for name in CONV_METHODS}
    for name, rows in ROWS_AT_ONCE.items():
        orders[name] = order_of(
            form,
            *(roles.groups, roles.inputs, roles.outputs, places, roles.taps),
            groups=((roles.outputs, units), (roles.inputs, channels // rows)),
        )
    blocks = (roles.groups, roles.outputs, places, roles.taps, roles.inputs)
    orders["expanded"] = order_of(form, *blocks, groups=((roles.outputs, units),))
    orders["banded"] = order_of(form, *blocks)
    orders["hmac"] = order_of(form, roles.groups, places, roles.outputs, roles.taps, roles.inputs)
    orders["outer"] = order_of(form, roles.groups, roles.taps, roles.inputs, places, roles.outputs)
    blocks = (roles.groups, places, roles.taps, roles.inputs, roles.outputs)
    depthwise = {n: order_of(form, *blocks, groups=((roles.groups, n),)) for n in _SIDE_BY_SIDE}
    orders["slic"] = depthwise[_SIDE_BY_SIDE[0]]
    return MappingProxyType(orders), MappingProxyType(depthwise)


def side_by_side(groups: Amount) -> Amount:
    """Return how many depthwise channels of a cell a vertical multiply-accumulate works on at once."""
    least, *more = _SIDE_BY_SIDE
    return np.select([np.asarray(groups) >= n for n in reversed(more)], list(reversed(more)), least)


def depthwise_grain(channels: int, results: int, num_tiles: int) -> int:
    """Return the depthwise channels that stay together: as many as a vertex takes at once and all tiles can have.

    Args:
      channels: of the whole operation.
      results: elements of the whole result.
      num_tiles: tiles to have work for.
    """
    fits = [n for n in _SIDE_BY_SIDE if channels >= 2 * n and results // n >= num_tiles]
    return max(fits, default=1)


def _share(n: Amount, target: Target) -> Amount:
    return -(-np.asarray(n) // target.workers_per_tile)


_SHORT_RUNS = {True: np.array([17, 33, 44]), False: np.array([17, 29, 34])}
"""Slots of runs of no, one and two positions, by whether float32 is streamed."""


def _amp_run(n: np.ndarray, is_single: bool) -> np.ndarray:
    """Return the slots of a worker's run of ``n`` positions of a row; see ``_runs_of_workers``."""
    more = 45 + 8 * (n - 3) if is_single else 34 + 4 * (n - 3)
    slots = where(n > 2, more, _SHORT_RUNS[is_single][np.minimum(n, 2)])
    return np.maximum(3 + slots - 9, 3)


@dataclass(frozen=True, eq=False)
class _Shares:
    """How workers share the positions of cells' fields.

    Args:
      lengths: positions of a worker's run if it has one, of its first and of its last run, int64 ``[3, workers, n]``.
      between: whole rows between the first and the last run, int64 ``[workers, n]``.
      has_several: whether a worker has more than one run, bool ``[workers, n]``.
      has_any: whether it has one, bool ``[workers, n]``.
      columns: positions of a row, int64 ``[n]``.
      of_cell: which of the n each cell has.
    """

    lengths: np.ndarray
    between: np.ndarray
    has_several: np.ndarray
    has_any: np.ndarray
    columns: np.ndarray
    of_cell: np.ndarray

    def __post_init__(self) -> None:
        """Forbid to write into what a cache holds."""
        hold(*vars(self).values())


@lru_cache(maxsize=8)
def _shares(field: Field, workers: int) -> _Shares:
    """Return how workers share fields; few of many cells differ in them.

    Source: ``partitionConvPartialByWorker`` (lib/poplin/ConvUtilInternal.cpp): worker i has the positions from ``i n // 6``
    on.
    """
    columns = np.maximum(field.columns, 1)
    base = int(columns.max(initial=1)) + 1
    pairs, of_cell = np.unique(field.rows * base + columns, return_inverse=True)
    rows, columns = pairs // base, pairs % base
    positions = rows * columns
    worker = np.arange(workers + 1)[:, None]
    ends = worker * positions // workers
    begin, end = ends[:-1], ends[1:]
    first, last = begin // columns, np.maximum(end - 1, 0) // columns
    lengths = np.stack([end - begin, columns - begin % columns, (end - 1) % columns + 1])
    return _Shares(
        lengths, last - first - 1, last > first, end > begin, columns, of_cell.reshape(field.columns.shape)
    )


def _runs_of_workers(
    shape: ConvShape, run: Callable[[np.ndarray], np.ndarray], target: Target
) -> tuple[np.ndarray, np.ndarray]:
    """Return the slots that the workers with most and with least to do spend on their runs.

    Source: ``getConvPartialnx1WorkerCycles`` and others (PerformanceEstimation.hpp) say what a run of positions of a row
    takes.

    Args:
      shape: extents of cells.
      run: the slots of a run of given positions, at least one.
      target: the machine.
    """
    shares = _shares(shape.field, target.workers_per_tile)
    alone, first, last = run(shares.lengths)
    slots = where(shares.has_several, first + last + shares.between * run(shares.columns), alone)
    slots = where(shares.has_any, slots, 0)
    return slots.max(axis=0)[shares.of_cell], slots.min(axis=0)[shares.of_cell]


def _amp(shape: ConvShape, dtype: str, accumulate: str, target: Target, height: int = 1) -> Cycles:
    """The best of the units' vertex over groups as they are and over several groups combined into one.

    Combined groups fill the units' channels with zeros between the groups' weights (PopLibs' convolution planner calls
    it ``combineConvGroups``); operands and result are rearranged for it, by the planner's rule for copies.
    """
    values, basis = _combined(shape, dtype, accumulate, target, height)
    return Cycles(np.minimum.reduce(values), basis, SOURCE)


def _combined(
    shape: ConvShape, dtype: str, accumulate: str, target: Target, height: int
) -> tuple[Sequence[np.ndarray], Basis]:
    """Return the cycles of groups as they are and, where there are several, of each of ``_COMBINED`` groups as one."""
    plain = _amp_panels(shape, dtype, accumulate, target, height)
    values = [np.asarray(plain.value)]
    for factor in _COMBINED if int(np.max(shape.groups, initial=1)) > 1 else ():
        groups = -(-shape.groups // factor)
        combined = replace(shape, groups=groups, inputs=factor * shape.inputs, outputs=factor * shape.outputs)
        kernel = groups * combined.inputs * combined.outputs * shape.taps
        results = shape.outputs * shape.phases
        ends = shape.groups * shape.positions * (shape.inputs * shape.stride + results)
        moved = -(-(kernel + ends) * 5 // 4)
        value = np.asarray(_amp_panels(combined, dtype, accumulate, target, height).value) + moved
        values.append(where((shape.groups >= factor) & (np.asarray(plain.value) < NEVER), value, NEVER))
    return np.broadcast_arrays(*values), plain.basis


def _amp2(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """The units over half as many channels of two rows of the kernel at once."""
    return _amp(shape, dtype, accumulate, target, height=2)


def _amp4(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """The units over a quarter of the channels of four rows of the kernel at once."""
    return _amp(shape, dtype, accumulate, target, height=4)


def _amp_panels(shape: ConvShape, dtype: str, accumulate: str, target: Target, height: int = 1) -> Cycles:
    """The n x 1 vertex on the accumulating matrix product units: a panel of weights per tap and channels.

    Where channels are few, a panel has taps of ``height`` rows of the kernel, of which workers read as many rows of the
    field: whole 64-bit words of channels each (``canUseConvolutionInstruction``, lib/poplin/ConvVertexType.cpp).

    What the units do not take (see ``stream_of``) is widened first, and sums are cast after it. On 8-bit floats the workers'
    runs are taken to be those of halves with half partials (ASSUMED): PopLibs states them for the 1x1 vertex alone.
    """
    stream = stream_of(dtype, accumulate, target)
    streamed, units, loaded = stream.dtype, stream.units, stream.channels
    channels = loaded // height
    words = channels * itemsize(streamed) % target.data_path_bytes == 0
    if not units or (height > 1 and (itemsize(streamed) == 1 or not words)):
        return Cycles(np.full_like(shape.inputs, NEVER), Basis.DOCUMENTED, SOURCE)
    casts = (
        widening_cycles(dtype, streamed, shape.read, target),
        cast_cycles(stream.sums, accumulate, shape.results, target),
    )
    own = Basis.ASSUMED if streamed == dtype and itemsize(dtype) == 1 else Basis.DOCUMENTED
    basis = Basis.weakest([own, *(cast.basis for cast in casts)])
    widen: Amount = casts[0].value + casts[1].value
    load = units * loaded * itemsize(streamed) // target.conv_unit_coeff_load_bytes_per_cycle
    fixed_slots = 18 if streamed != "float32" and stream.sums == "float16" else 17
    busiest, quickest = _runs_of_workers(shape, lambda n: _amp_run(n, streamed == "float32"), target)
    each = target.worker_issue_interval_cycles
    runs = np.maximum(each * (fixed_slots + busiest), each * (fixed_slots + quickest) + JOIN_CYCLES)
    panel = load + 3 + _LOADING[height] + runs
    in_groups, out_groups = -(-shape.inputs // channels), -(-shape.outputs // units)
    first = np.maximum(shape.first_taps, 1)
    tap_rows = -(-first // height) * (shape.tap_rows // first)
    one_out = 14 + in_groups * (14 + tap_rows * (14 + shape.tap_columns * (12 + panel)))
    zeroed = shape.groups * shape.positions * shape.phases * out_groups * units * itemsize(stream.sums)
    zeroing = target.worker_issue_interval_cycles * (10 + _share(zeroed // target.data_path_bytes, target))
    fixed = 109 + 2 * 9 * target.worker_issue_interval_cycles
    value = widen + fixed + zeroing + shape.groups * out_groups * one_out
    may_stream = (shape.inputs > 0) & (shape.inputs * shape.taps <= stream.most_inputs)
    return Cycles(where(may_stream, value, NEVER), basis, SOURCE)


def _expanded(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """The units over windows that are laid out first, so that taps fill their input channels where channels are few.

    PopLibs calls it ``expandDims``: taps of a dimension become input channels. Either those of a row do, or all; then no
    windows are left, positions are flattened and the 1x1 vertex multiplies. Windows are copied run by run, by the planner's
    rule for regrouping (lib/poplin/ConvPlan.cpp, ConvModel.cpp); panels of the kernel, whose outputs lie together, are
    transposed.
    """
    found = np.full_like(shape.inputs, NEVER)
    is_of_use = _may_expand(shape, dtype, accumulate, target)
    if is_of_use.any():
        ways = _laid_out(_only(shape, is_of_use), dtype, accumulate, target)
        most = target.bytes_per_tile // LAID_OUT_SHARE
        found[is_of_use] = np.minimum(*(where(size <= most, cycles, NEVER) for cycles, size in ways))
    return Cycles(found, Basis.DOCUMENTED, SOURCE)


def _may_expand(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> np.ndarray:
    """Return for which cells taps may fill input channels, bool: where these are few, and none of whole groups."""
    channels = stream_of(dtype, accumulate, target).channels
    is_of_use = (shape.inputs % channels > 0) & (shape.inputs < 2 * channels) & (shape.taps > 1)
    return np.asarray(is_of_use & (dtype in ("float16", "float32")))


def _only(shape: ConvShape, chosen: np.ndarray) -> ConvShape:
    """Return the extents of some cells."""
    arrays: dict[str, np.ndarray] = {
        name: value[chosen] for name, value in vars(shape).items() if isinstance(value, np.ndarray)
    }
    field = Field(shape.field.rows[chosen], shape.field.columns[chosen])
    return replace(shape, field=field, **arrays)


def _laid_out(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> list[tuple[Amount, Amount]]:
    """Return the cycles over windows that are laid out by rows, and whole, and the bytes of the laid out operands."""
    size = itemsize(dtype)
    channels = stream_of(dtype, accumulate, target).channels
    units = stream_of(dtype, accumulate, target).units
    step = shape.inputs * size * (shape.stride if shape.dilation == 1 else 1)
    found: list[tuple[Amount, Amount]] = []
    for rows, tap_rows in ((shape.input_rows, shape.tap_rows), (shape.field.rows, 1)):
        inputs = shape.taps // tap_rows * shape.inputs
        panels = shape.groups * -(-shape.outputs // units) * tap_rows * -(-inputs // channels)
        windows = shape.groups * rows * shape.field.columns * -(-inputs // channels) * channels * size
        copies = repeat_cycles(windows, np.gcd(step, target.data_path_bytes), target)
        copies = copies + transpose_cycles(panels, units, channels, size, target).value
        if tap_rows is shape.tap_rows:
            laid_out = replace(shape, inputs=inputs, tap_columns=1, stride=1)
            cycles = _amp_panels(laid_out, dtype, accumulate, target).value
        else:
            product = Shape(shape.groups, shape.positions, shape.outputs, inputs, inputs, may_swap=False)
            cycles = amp_cycles(product, dtype, accumulate, target)
        found.append((cycles + copies, windows + panels * units * channels * size))
    return found


def _banded(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """The units over blocks of a row's outputs, one for each unit, where there is one channel on either side.

    A panel holds a row of the kernel once for every output of a block, each time an element further on, with zeros around:
    what the block's windows reach are its input channels. So all units work on one kernel, a third more products than there
    are taps or so. Rows are copied first, to whole blocks and 64-bit words, and results after where rows are no whole blocks.

    PopLibs has no such vertex, ours no code: its figures are those of the n x 1 vertex, and of copies (ASSUMED). Zeros between
    weights meet elements of other windows, as where groups are combined: on the machine one that is infinite or NaN makes NaN of
    a block.
    """
    stream = stream_of(dtype, accumulate, target)
    is_of_use = _may_band(shape, dtype, accumulate, target)
    found = np.full_like(shape.inputs, NEVER)
    if is_of_use.any():
        few = _only(shape, is_of_use)
        blocks = Field(few.field.rows, -(-few.field.columns // stream.units))
        reached = stream.units + few.tap_columns - 1
        laid_out = replace(
            few,
            field=blocks,
            outputs=np.full_like(few.outputs, stream.units),
            inputs=reached,
            tap_columns=np.ones_like(few.tap_columns),
        )
        rows, panels = _banded_bytes(few, stream.units, stream.channels, itemsize(dtype))
        copies = repeat_cycles(rows, itemsize(dtype), target) + copy_cycles(panels, target)
        copies = copies + repeat_cycles(few.taps * stream.units * itemsize(dtype), itemsize(dtype), target)
        is_cut = few.field.columns % stream.units > 0
        results = few.positions * itemsize(accumulate)
        copies = copies + where(is_cut, repeat_cycles(results, itemsize(accumulate), target), 0)
        fits = rows + panels <= target.bytes_per_tile // LAID_OUT_SHARE
        cycles = _amp_panels(laid_out, dtype, accumulate, target).value
        found[is_of_use] = where(fits & (cycles < NEVER), cycles + copies, NEVER)
    return Cycles(found, Basis.ASSUMED, SOURCE)


def _may_band(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> np.ndarray:
    """Return for which cells the units may work on neighbouring outputs, bool: those of filters with several taps in a row.

    Where there are more channels, or groups, PopLibs' methods are documented, and stay what predictions rest on.
    """
    stream = stream_of(dtype, accumulate, target)
    is_plain = shape.is_filter and shape.stride == shape.dilation == shape.phases == 1
    is_plain = is_plain and dtype == stream.dtype
    is_single = (shape.groups == 1) & (shape.inputs == 1) & (shape.outputs == 1) & (shape.tap_columns > 1)
    return np.asarray(is_single & bool(is_plain and stream.units and dtype in ("float16", "float32")))


def _banded_bytes(shape: ConvShape, units: int, channels: int, size: int) -> tuple[Amount, Amount]:
    """Return the bytes of rows that are laid out in whole blocks, and of panels."""
    inputs = -(-(units + shape.tap_columns - 1) // channels) * channels
    blocks = -(-shape.field.columns // units)
    rows = shape.input_rows * ((blocks - 1) * units + inputs) * size
    return rows, shape.tap_rows * inputs * units * size


def laid_out_bytes(method: str, accumulate: str, extents: Extents, target: Target) -> Amount:
    """Return the bytes that a vertex lays its operands out in; 0 where it does not."""
    shape, dtype = conv_shape(extents), streamed_dtype(extents.operand_dtypes)
    found = np.zeros_like(shape.inputs)
    may_expand = _may_expand(shape, dtype, accumulate, target)
    may_band = _may_band(shape, dtype, accumulate, target)
    if method not in (AUTO, "expanded", "banded") or not (may_expand.any() or may_band.any()):
        return found
    costs = _conv_costs(method, accumulate, extents, target)
    names = np.array([cost.name for cost in costs])[fastest(costs)]
    is_chosen = may_band & (names == "banded")
    if is_chosen.any():
        stream = stream_of(dtype, accumulate, target)
        rows, panels = _banded_bytes(_only(shape, is_chosen), stream.units, stream.channels, itemsize(dtype))
        found[is_chosen] = rows + panels
    is_chosen = may_expand & (names == "expanded")
    if is_chosen.any():
        ways = _laid_out(_only(shape, is_chosen), dtype, accumulate, target)
        (by_row, row_bytes), (whole, whole_bytes) = ways
        most = target.bytes_per_tile // LAID_OUT_SHARE
        is_row = (row_bytes <= most) & ((by_row <= whole) | (whole_bytes > most))
        found[is_chosen] = where(is_row, row_bytes, whole_bytes)
    return found


def widened_bytes(method: str, accumulate: str, shape: ConvShape, extents: Extents, target: Target) -> Amount:
    """Return the bytes that a vertex widens its operands in before it streams them; 0 where it does not."""
    dtype = streamed_dtype(extents.operand_dtypes)
    stream = stream_of(dtype, accumulate, target)
    if not stream.units or stream.dtype == dtype:
        return np.zeros_like(shape.inputs)
    table = _SPREAD_COSTS if shape.phases > 1 else _COSTS
    costs = costs_of(method, table, shape, dtype, accumulate, target)
    ways = [n for n, cost in enumerate(costs) if cost.name in ROWS_AT_ONCE]
    return where(np.isin(fastest(costs), ways), shape.read * itemsize(stream.dtype), 0)


def _slic(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """Short sliding windows of four taps over groups of at most four channels: float16, strides 1 and 2.

    A position a slot, in two passes over the data unless partials are halves and all units take part. The first window
    zeroes. One or two channels a group are taken several groups at once, whose weights workers spread out before.

    Source: ``getConvPartialSlicSupervisorOuterLoopCycleEstimateHalfFloat``, ``...InnerLoop...`` and ``...WeightLoad...``.
    """
    if dtype != "float16" or shape.stride > 2 or shape.dilation != 1:
        return Cycles(np.full_like(shape.inputs, NEVER), Basis.DOCUMENTED, SOURCE)
    keeps_halves = accumulate == "float16"
    passes = 1 if keeps_halves and target.conv_units(dtype, accumulate) >= 16 else 2
    has_two_outputs = keeps_halves and passes == 2
    channels = np.maximum(shape.inputs, shape.outputs)
    spreading = np.select([channels <= 1, channels <= 2], [10, 12], 0)
    each = target.worker_issue_interval_cycles
    load = 16 + where(spreading > 0, 9 + 6 + 6 + each * spreading, 18)
    panels = shape.tap_rows * -(-shape.tap_columns // _SLIC_WIDTH)
    groups = -(-shape.groups // np.select([channels <= 1, channels <= 2], [4, 2], 1))

    def workers(is_first: bool) -> Amount:
        def run(n: np.ndarray) -> np.ndarray:
            if shape.stride == 2:
                row = np.select([n == 1, n == 2], [13, 15], 15 + 2 * (n - 3))
            else:
                few = 13 + where(n > 1, n, 0) if is_first else where(n == 1, 13, 17 + n)
                many = 15 + (n - 5) + 3 * (has_two_outputs and not is_first)
                row = where(n < (6 if has_two_outputs else 5), few, many)
            entry = (9 if has_two_outputs else 10) + is_first + 3 * (not keeps_halves)
            return entry + (row - (not keeps_halves)) * passes

        busiest, _ = _runs_of_workers(shape, run, target)
        joined = 2 + 2 * shape.positions if has_two_outputs and is_first else 0
        return each * (17 + busiest + 2 * has_two_outputs) + joined

    fixed, of_group, of_panel = (25, 12, 16) if has_two_outputs else (28, 15, 20)
    loops = of_group * groups + 6 * (groups - 1) + 1 + (load + of_panel) * panels + 6 * (panels - 1) + 1
    value = fixed + loops + groups * (workers(True) + (panels - 1) * workers(False))
    return Cycles(where((channels <= 4) & (channels > 0), value, NEVER), Basis.DOCUMENTED, SOURCE)


def _hmac(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """Horizontal multiply-accumulate: a dot product per output and tap, for few channels."""
    if dtype not in ("float16", "float32"):
        return Cycles(np.full_like(shape.inputs, NEVER), Basis.DOCUMENTED, SOURCE)
    dot = 8 + -(-shape.inputs // target.vector_width(dtype))
    slots = _share(shape.groups * shape.positions, target) * shape.taps * (7 + shape.outputs * dot)
    value = (58 if dtype == "float32" else 65) + target.worker_issue_interval_cycles * slots
    return Cycles(value, Basis.DOCUMENTED, SOURCE)


def _outer(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """Outer product, for a single tap and input channel (a plan may cut taps and channels to that)."""
    if dtype not in ("float16", "float32"):
        return Cycles(np.full_like(shape.inputs, NEVER), Basis.DOCUMENTED, SOURCE)
    lead, width = (6, 2) if dtype == "float32" else (12, 4)
    row = 6 + -(-np.maximum(shape.outputs - lead, 0) // width)
    slots = 25 + shape.groups * (11 + _share(shape.positions, target) * row)
    value = target.supervisor_vertex_overhead_cycles + target.worker_issue_interval_cycles * slots
    return Cycles(np.where(shape.inputs * shape.taps == 1, value, NEVER), Basis.DOCUMENTED, SOURCE)


def _vmac(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """Vertical multiply-accumulate, depthwise: float16, 4 to 16 channels side by side, a partition per position.

    More channels are taken block after block, as PopLibs' ``convGroupsPerGroup`` is at most 16.
    """
    if dtype != "float16":
        return Cycles(np.full_like(shape.inputs, NEVER), Basis.DOCUMENTED, SOURCE)
    channels = side_by_side(shape.groups)
    steps = np.maximum(shape.taps - 1, 0)
    body = where(channels >= 8, 3 * steps * channels // 8, 2 * steps * channels // 4)
    slots = -(-shape.groups // channels) * _share(shape.positions, target) * (7 + 15 + 3 + body)
    value = 61 + 14 + 25 + target.worker_issue_interval_cycles * slots
    single = (shape.inputs == 1) & (shape.outputs == 1)
    return Cycles(np.where(single, value, NEVER), Basis.DOCUMENTED, SOURCE)


def _scalar(shape: ConvShape, dtype: str, accumulate: str, target: Target) -> Cycles:
    """One multiply-add after another: of integers and bfloat16 by their code, else two loads, multiply, add, loop (ASSUMED)."""
    run = shape.tap_columns if shape.dilation == 1 else 1  # taps of a row lie together
    results = shape.groups * shape.positions * shape.outputs
    inputs, later = run * -(-shape.inputs // of_access(dtype)) * of_access(dtype), shape.taps // run - 1
    by_code = register_cycles(dtype, accumulate, inputs, results, later, target)
    if by_code is not None and shape.phases == 1:
        return by_code
    each = 5 if itemsize(accumulate) <= 4 else 120 if is_float(accumulate) else 45
    slots = 26 + _share(results, target) * (12 * shape.phases + each * shape.inputs * shape.taps)
    value = target.supervisor_vertex_overhead_cycles + target.worker_issue_interval_cycles * slots
    return Cycles(value, Basis.ASSUMED, SOURCE)


_COSTS: dict[str, Callable[[ConvShape, str, str, Target], Cycles]] = {
    "amp": _amp,
    "amp2": _amp2,
    "amp4": _amp4,
    "expanded": _expanded,
    "banded": _banded,
    "slic": _slic,
    "hmac": _hmac,
    "outer": _outer,
    "vmac": _vmac,
    "scalar": _scalar,
}
SPREAD_METHODS = ("amp", "hmac", "scalar")
"""Methods that take a spread array: their vertices count with a stride in the result."""
_SPREAD_COSTS = {name: _COSTS[name] for name in SPREAD_METHODS}
