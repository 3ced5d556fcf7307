"""The convolution codelet: sums of products over the windows of one cell, its geometry read off the maps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jax import Array, lax

from tiles._jax_compat import broadcast, broadcasted_iota, dot_general
from tiles.errors import InvalidGraph
from tiles.graph import Arrangement, Cell, Codelet, Cycles, Extents, OpForm, VertexCode, register
from tiles.numerics.convolution import convolve
from tiles.numerics.dtypes import is_float, itemsize, to_jax
from tiles.poplibs.poplin.conv_code import conv_code
from tiles.poplibs.poplin.conv_cycles import (
    CONV_METHODS,
    ConvRoles,
    conv_cycles,
    conv_orders,
    conv_roles,
    conv_shape,
    depthwise_grain,
    laid_out_bytes,
    widened_bytes,
)
from tiles.poplibs.poplin.matmul import (
    bytes_of_sums,
    check_kinds,
    held_numbers,
    method_for,
    partials_of,
)
from tiles.poplibs.poplin.methods import stream_of, streamed_dtype
from tiles.poplibs.poplin.partials import add_partials, partials_cycles
from tiles.poplibs.popops.elementwise_cycles import cpp_name
from tiles.poplibs.popops.reduce import cast_accumulator
from tiles.target import Target

WHOLE_TAPS = 4
"""Kernel dimensions up to this size stay whole: cutting them saves little and multiplies the plans."""
LAID_OUT = 64
"""Most slices of which a part's windows are laid out; a part with more taps and positions is convolved."""
RUN = 16
"""Elements of a tap that lie together, where there are as many: XLA:CPU joins single elements ten times slower."""
STACKED = -1
"""Stands for the axis of taps or positions where domain dimensions name axes."""


@register
@dataclass(frozen=True)
class Convolution(Codelet):
    """Sum products of the windows of the first operand with the kernel, over taps and input channels.

    Args:
      operand_dtypes: dtypes of the two operands; see ``MatMul``.
      accumulate_dtype: dtype in which products are formed and added, and of partials.
      out_dtype: dtype of the result.
      method: how the vertex computes: one of ``CONV_METHODS``, or "auto", the fastest one for the extents of
        each cell.

    Raises:
      InvalidGraph: an unknown method, or floats accumulated as integers.
    """

    name: ClassVar[str] = "poplin.Convolution"
    vectorizes_windows: ClassVar[bool] = True
    is_contraction: ClassVar[bool] = True
    without_code: ClassVar[str] = "another method than the multiply units"

    operand_dtypes: tuple[str, str]
    accumulate_dtype: str
    out_dtype: str
    method: str = "auto"

    def __post_init__(self) -> None:
        """Check the method and the dtypes."""
        if self.method not in ("auto", *CONV_METHODS):
            raise InvalidGraph(
                f"no convolution method {self.method!r}", expected=f"auto, {', '.join(CONV_METHODS)}"
            )
        check_kinds(self.operand_dtypes, self.accumulate_dtype, self.out_dtype, self.method)

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """Those of both operands."""
        return self.operand_dtypes

    @property
    def label(self) -> str:
        """Vertex type, e.g. ``poplin::Conv<half,float>`` (operands, partials, the result if it differs)."""
        method = [] if self.method == "auto" else [self.method.upper()]
        dtypes = (self.operand_dtypes[0], self.accumulate_dtype, self.out_dtype)
        names = [cpp_name(d) for d in (dtypes if self.out_dtype != self.accumulate_dtype else dtypes[:2])]
        return f"poplin::Conv<{','.join(method + names)}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the cell's sums; operands arrive padded and as wide as the windows of the cell reach.

        The whole domain is one convolution. A part of it is a matrix product over windows laid out, because
        ``jax.vmap`` over parts makes a batched product of that, and of a convolution a grouped one, for which
        XLA:CPU takes 20 times as long. Float products are asked for at the highest precision: float32 on the
        machine is float32.
        """
        roles = conv_roles(cell.form)
        precision = lax.Precision.HIGHEST if is_float(self.accumulate_dtype) else None
        dtype = to_jax(self.accumulate_dtype)
        extents = [math.prod(cell.sizes[d] for d in dims) for dims in (roles.taps, roles.field)]
        operands = tuple(held_numbers(operands, self.accumulate_dtype))
        if cell.sizes == cell.form.shape or min(extents) > LAID_OUT:
            total, order = _convolved(cell, roles, operands, precision, dtype)
        else:
            total, order = _multiplied(cell, roles, operands, precision, dtype)
        final = [order.index(d) for d in cell.form.results[0].dims]
        total = total if final == sorted(final) else lax.transpose(total, final)
        return (cast_accumulator(total, self.out_dtype),)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the PopLibs estimate of the vertex; see ``conv_cycles``."""
        return conv_cycles(self.method, self.accumulate_dtype, self.out_dtype, extents, target)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of convolutions on the multiply units."""
        return conv_code(self.method, self.accumulate_dtype, self.out_dtype, extents, target, self.label)

    def least_cycles(self, extents: Extents, target: Target) -> np.ndarray | None:
        """Return the cycles of the multiply-adds at the rate of the product units, which no method is above."""
        stream = stream_of(streamed_dtype(self.operand_dtypes), self.accumulate_dtype, target)
        return extents.points / target.macs_per_cycle(stream.dtype) if stream.units else None

    def arrangements(self, extents: Extents, target: Target) -> list[Arrangement]:
        """Return the channels of activations, kernel and results in groups; see ``conv_orders``."""
        return conv_orders(self.method, self.accumulate_dtype, extents, target)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count a multiplication and an addition per point of the domain, on floats."""
        return 2 * extents.points if is_float(self.accumulate_dtype) else np.zeros_like(extents.points)

    def combiner(self) -> str | None:
        """Return how partials are combined: added, or "or" of booleans."""
        return "or" if self.accumulate_dtype == "bool" else "add"

    def combining(self, partials_dtype: str, out_dtype: str) -> Codelet | None:
        """Return poplin's own addition of partials, of floats."""
        return add_partials(partials_dtype, out_dtype) if is_float(partials_dtype) else None

    def joining_cycles(self, results: Any, partials: Any, target: Target) -> Any:
        """Return the cycles of the addition of partials."""
        return partials_cycles(self.accumulate_dtype, self.out_dtype, results, partials, target)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep small kernels whole; everything else may be cut."""
        return d not in conv_roles(form).taps or form.dims[d].size > WHOLE_TAPS

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Return the convolution that leaves sums in the accumulator's dtype."""
        return dataclasses.replace(self, out_dtype=self.accumulate_dtype), (self.accumulate_dtype,)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer channels of whole weight groups and sets of units, and depthwise ones that vertices take at once."""
        roles, dtype = conv_roles(form), streamed_dtype(self.operand_dtypes)
        stream = stream_of(dtype, self.accumulate_dtype, target)
        unit = stream.channels if stream.units else max(1, 4 // itemsize(dtype))
        units = max(1, stream.units)
        grains = [1] * len(form.dims)
        channels_last = tuple(d for d in form.operands[0].dims[-1:] if d in roles.batch)
        for dims, grain in ((roles.inputs, unit), (roles.outputs, units), (channels_last, unit)):
            for d in [d for d in dims if form.dims[d].size > 1][-1:]:
                grains[d] = grain if form.dims[d].size >= 2 * grain else 1
        channels = math.prod(form.dims[d].size for d in (*roles.inputs, *roles.outputs))
        if dtype == "float16" and channels == 1 and roles.groups:
            kept = math.prod(dim.size for dim in form.dims if not dim.is_reduced)
            grains[roles.groups[-1]] = depthwise_grain(
                form.dims[roles.groups[-1]].size, kept, target.num_tiles
            )
        return tuple(grains)

    def code_bytes(self, target: Target) -> int:
        """Estimate instructions of the convolution vertex and its remainder paths (ASSUMED)."""
        return target.instruction_bytes * 400

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Return the bytes of operands laid out or widened, and of sums before they are cast to a narrower result."""
        laid_out = laid_out_bytes(self.method, self.accumulate_dtype, extents, target)
        laid_out = laid_out + widened_bytes(
            self.method, self.accumulate_dtype, conv_shape(extents), extents, target
        )
        each = bytes_of_sums(self.operand_dtypes, self.accumulate_dtype, self.out_dtype, target)
        return extents.results * each + laid_out


def _convolved(
    cell: Cell, roles: ConvRoles, operands: Sequence[Array], precision: Any, dtype: Any
) -> tuple[Array, list[int]]:
    """Return the sums as one convolution, and the domain dimensions of their axes."""
    lhs, rhs = operands
    windows = [(d,) for d in roles.field]
    features = (*roles.groups, *roles.inputs)
    lhs, lhs_spec = grouped_axes(cell, 0, lhs, [roles.batch, features, *windows])
    kernels = (*roles.groups, *roles.outputs)
    rhs, rhs_spec = grouped_axes(cell, 1, rhs, [kernels, roles.inputs, *((d,) for d in roles.taps)])
    order, out_spec = in_order(cell.form.results[0].dims, [roles.batch, kernels, *windows])
    total = convolve(
        lhs,
        rhs,
        roles.strides,
        [(0, 0)] * len(windows),
        None,
        roles.dilations,
        lax.ConvDimensionNumbers(lhs_spec, rhs_spec, out_spec),
        math.prod(cell.sizes[d] for d in roles.groups),
        precision=precision,
        preferred_element_type=dtype,
    )
    return total.reshape([cell.sizes[d] for d in order]), order


def _multiplied(
    cell: Cell, roles: ConvRoles, operands: Sequence[Array], precision: Any, dtype: Any
) -> tuple[Array, list[int]]:
    """Return the sums as a product of windows laid out tap by tap, or by positions if those are fewer."""
    field, taps = ([cell.sizes[d] for d in dims] for dims in (roles.field, roles.taps))
    by_tap = math.prod(taps) <= math.prod(field)
    lhs, axes = _laid_out(cell, roles, operands[0], by_tap)
    rhs, kernel = operands[1], list(cell.form.operands[1].dims)
    rhs = rhs.reshape([cell.sizes[d] for d in kernel])
    if by_tap:
        rest = [d for d in kernel if d not in roles.taps]
        rhs = lax.transpose(rhs, [kernel.index(d) for d in (*roles.taps, *rest)])
        rhs = rhs.reshape(math.prod(taps), *rhs.shape[len(taps) :])
        kernel = [STACKED, *rest]
        summed = (STACKED, *roles.inputs)
    else:
        summed = (*roles.taps, *roles.inputs)
    contracted = tuple(axes.index(d) for d in summed), tuple(kernel.index(d) for d in summed)
    batch = tuple(axes.index(d) for d in roles.groups), tuple(kernel.index(d) for d in roles.groups)
    total = dot_general(lhs, rhs, (contracted, batch), precision=precision, preferred_element_type=dtype)
    order = [*roles.groups, *(d for d in axes if d not in (*summed, *roles.groups)), *roles.outputs]
    if not by_tap:
        order = [d for dim in order for d in (roles.field if dim == STACKED else (dim,))]
    return total.reshape([cell.sizes[d] for d in order]), order


def _laid_out(cell: Cell, roles: ConvRoles, lhs: Array, by_tap: bool) -> tuple[Array, list[int]]:
    """Return the left operand with all taps (or all positions) of its windows along an axis of their own.

    Returns:
      The array and the domain dimensions of its axes; ``STACKED`` stands for that axis, in front of the last ones.
    """
    map_axes = cell.form.operands[0].axes
    window_axes = [number for number, axis in enumerate(map_axes) if len(axis.terms) > 1]
    moved, kept = (roles.taps, roles.field) if by_tap else (roles.field, roles.taps)
    steps, strides = (roles.dilations, roles.strides) if by_tap else (roles.strides, roles.dilations)
    axes = [_kept_dim(cell, axis.terms) for axis in map_axes]
    for number, d in zip(window_axes, kept, strict=True):
        axes[number] = d
    position = len(axes) - 1
    while position and math.prod(cell.sizes[d] for d in axes[position:]) < RUN:
        position -= 1
    stacked, found = lhs, list[int]()  # an axis for each window, in front of ``position``
    for number, step, stride, d, along in zip(window_axes, steps, strides, kept, moved, strict=True):
        axis, new = number + len(found) * (number >= position), position + len(found)
        pieces: list[Array] = []
        for index in range(cell.sizes[along]):
            last = index * step + stride * (cell.sizes[d] - 1) + 1
            piece = lax.slice_in_dim(stacked, index * step, last, stride, axis=axis)
            limit = cell.limits[along]
            if by_tap and limit is not None:
                piece = lax.select(broadcast(index < limit, piece.shape), piece, lax.full_like(piece, 0))
            pieces.append(lax.expand_dims(piece, (new,)))
        stacked = pieces[0] if len(pieces) == 1 else lax.concatenate(pieces, new)
        found.append(along)
    shape = stacked.shape[:position], stacked.shape[position + len(found) :]
    stacked = stacked.reshape(*shape[0], math.prod(cell.sizes[d] for d in moved), *shape[1])
    axes.insert(position, STACKED)
    for number, d in enumerate(axes):
        limit = cell.limits[d] if d in roles.taps else None
        if limit is not None:
            stacked = _zeroed(stacked, number, limit)
    return stacked, axes


def _zeroed(x: Array, axis: int, limit: Any) -> Array:
    """Return an array with zeros from index ``limit`` on along one axis."""
    real = broadcasted_iota(np.int32, x.shape, axis) < limit
    return lax.select(real, x, lax.full_like(x, 0))


def grouped_axes(
    cell: Cell, k: int, operand: Array, groups: Sequence[tuple[int, ...]]
) -> tuple[Array, tuple[int, ...]]:
    """Return operand k with one axis per group of domain dimensions, and where each group went.

    Nothing is transposed where the dimensions of every group lie together. An axis belongs to the dimension
    that is its first term; axes of a constant index vanish.
    """
    moving = [
        (number, _kept_dim(cell, axis.terms))
        for number, axis in enumerate(cell.form.operands[k].axes)
        if axis.terms
    ]
    order, spec = in_order([d for _, d in moving], groups)
    where = {d: number for number, d in moving}
    constant = [number for number in range(operand.ndim) if number not in where.values()]
    axes = [where[d] for d in order] + constant
    operand = operand if axes == sorted(axes) else lax.transpose(operand, axes)
    extents = dict(zip(order, operand.shape, strict=False))
    shape = [0] * len(groups)
    for group, position in zip(groups, spec, strict=True):
        shape[position] = int(np.prod([extents[d] for d in group], dtype=np.int64))
    return operand.reshape(shape), spec


def _kept_dim(cell: Cell, terms: Sequence[tuple[int, int]]) -> int:
    """Return the dimension that stands for an axis: of a window, its output."""
    return (
        min((d for d, _ in terms), key=lambda d: cell.form.dims[d].is_reduced)
        if len(terms) > 1
        else terms[0][0]
    )


def in_order(given: Sequence[int], groups: Sequence[tuple[int, ...]]) -> tuple[list[int], tuple[int, ...]]:
    """Return dimensions with each group's together, nearly as ``given``, and the groups' places.

    Groups without dimensions come last.
    """
    given = list(given)
    ranked = sorted(
        range(len(groups)), key=lambda g: min((given.index(d) for d in groups[g]), default=len(given))
    )
    order = [d for g in ranked for d in groups[g]]
    return order, tuple(ranked.index(g) for g in range(len(groups)))


def conv_codelet(lhs: str, rhs: str, out_dtype: str | None = None, method: str = "auto") -> Convolution:
    """Return the convolution of operands of the given dtypes; see ``matmul_codelet``."""
    out = out_dtype or lhs
    return Convolution((lhs, rhs), partials_of(lhs, out), out, method_for(lhs, out, method))
