"""Long slices of vectors, at offsets known at run time, as slices of rows and then of columns.

``lax.dynamic_slice(parameters, (i * n,), (n,))`` moves along the only dimension there is: whatever the machine cuts the
vector into, every part may hold any of the slice's elements, and gives a partial result as long as the slice. Of a matrix
whose rows follow each other in the vector, the rows that hold the slice are found in each column apart, and where it
begins in the first of them in each row apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_passes.ir import Computation, Instruction, TensorType, Value
from hlo_passes.ops import Concatenate, Constant, DynamicSlice, Reshape, Slice
from hlo_passes.ops.elementwise import Clamp, Convert, Divide, Minimum, Multiply, Subtract
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.rewriter import Rewriter

_INDEX = TensorType((), "i32")
_UNEVEN = 4
"""A row is at most as many times longer, or shorter, than there would be rows of a square."""


@dataclass(frozen=True)
class LongSlices(LocalPass):
    """Slice rows, then columns, where at least ``least`` of one dimension are taken and others have ``most_beside`` elements.

    Elements of the operand times those taken along the dimension are ``least_work``, below which one slice is as fast. The
    elements are those of the long slice, also where it was moved to lie inside.
    """

    name: ClassVar[str] = "long-slices"
    least: int = 1024
    least_work: int = 1 << 26
    most_beside: int = 64

    def change(self, computation: Computation) -> Computation:
        """Return the computation with such slices in two steps; itself when it has none."""
        return Rewriter(computation, {DynamicSlice: (self._split,)}).run()

    def _split(self, instruction: Instruction, rewriter: Rewriter) -> Value | None:
        op, (x, *offsets) = instruction.op, instruction.operands
        assert isinstance(op, DynamicSlice)
        shape, sizes = x.type.shape, op.slice_sizes
        moved = [d for d, (size, taken) in enumerate(zip(shape, sizes, strict=True)) if taken < size]
        if len(moved) != 1 or x.type.is_complex:
            return None
        (d,) = moved
        whole, taken = shape[d], sizes[d]
        if taken < self.least or x.type.size > whole * self.most_beside:
            return None
        if x.type.size * taken < self.least_work:
            return None
        width = _width(whole, taken)
        if width is None or whole - taken > _most(offsets[d].type) or whole > _most(_INDEX):
            return None
        return _in_two_steps(x, d, offsets[d], taken, width, rewriter)


def _width(whole: int, taken: int) -> int | None:
    """Return a row's elements, which divide the whole: about as many as the slice has rows, an even number that divides it, too."""
    side = math.sqrt(taken)
    found = np.arange(math.ceil(side / _UNEVEN), int(side * _UNEVEN) + 1)
    found = found[whole % found == 0]
    found = found[whole // found > -(-taken // found)]  # a row more than the slice fills
    unlike = np.abs(np.log2(found / side)) + ((taken % found > 0).astype(float) + found % 2) / 2
    return int(found[unlike.argmin()]) if found.size else None


def _in_two_steps(x: Value, d: int, offset: Value, taken: int, width: int, rewriter: Rewriter) -> Value:
    """Return as many elements along dimension d from an offset on, by rows of a width that divides the dimension.

    One row more is read than the slice fills. It begins in the first of these or, where the rows were moved to lie inside and
    the slice does not fill its last row, in the second.
    """
    emit, shape = rewriter.emit, x.type.shape
    before, behind, whole = shape[:d], shape[d + 1 :], shape[d]
    rows, zeros = -(-taken // width), [_number(0, rewriter)] * (len(shape) + 1)
    row, column = _places(offset, whole, taken, width, rewriter)
    x = emit(Reshape((*before, whole // width, width, *behind)), x)
    x = emit(DynamicSlice((*before, rows + 1, width, *behind)), x, *zeros[:d], row, *zeros[d + 1 :])
    parts = [_run(x, d, first, first + rows, rewriter) for first in (0, 1)]
    if taken % width:  # nothing is taken from behind the last row
        last = _run(x, d, rows, rows + 1, rewriter)
        parts.append(emit(Concatenate(d), _run(x, d, 2, rows + 1, rewriter), last))
    x = emit(Concatenate(d + 1), *parts)
    x = emit(DynamicSlice((*before, rows, width, *behind)), x, *zeros[: d + 1], column, *zeros[d + 2 :])
    return _run(emit(Reshape((*before, rows * width, *behind)), x), d, 0, taken, rewriter)


def _places(offset: Value, whole: int, taken: int, width: int, rewriter: Rewriter) -> tuple[Value, Value]:
    """Return the first of the rows that are read, and how far behind its beginning the slice begins; scalars."""
    emit, type_ = rewriter.emit, offset.type
    low, high = (emit(Constant.splat(end, type_)) for end in (0, whole - taken))
    start = emit(Convert(_INDEX.dtype), emit(Clamp(), low, offset, high))
    row = emit(Divide(), start, _number(width, rewriter))
    last = whole // width - (-(-taken // width) + 1)
    row = emit(Minimum(), row, _number(last, rewriter))
    return row, emit(Subtract(), start, emit(Multiply(), row, _number(width, rewriter)))


def _run(x: Value, d: int, first: int, end: int, rewriter: Rewriter) -> Value:
    """Return what lies from one place along a dimension up to another."""
    start, limit = [0] * x.type.rank, list(x.type.shape)
    if (first, end) == (0, limit[d]):
        return x
    start[d], limit[d] = first, end
    return rewriter.emit(Slice(tuple(start), tuple(limit), (1,) * x.type.rank), x)


def _number(value: int, rewriter: Rewriter) -> Value:
    return rewriter.emit(Constant.splat(value, _INDEX))


def _most(type_: TensorType) -> int:
    """Return the largest number of a type of integers."""
    return int(np.iinfo(type_.np_dtype).max)
