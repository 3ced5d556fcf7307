"""Long slices of vectors and of matrices, read and replaced at offsets known at run time, as slices of rows and of columns.

``lax.dynamic_slice(parameters, (i * n,), (n,))`` moves along the only dimension there is: whatever the machine cuts the
vector into, every part may hold any of the slice's elements, and gives a partial result as long as the slice. Of a matrix
whose rows follow each other in the vector, the rows that hold the slice are found in each column apart, and where it
begins in the first of them in each row apart. A slice that is replaced would go to every tile as a whole; moved within its
rows first, it replaces rows in each column apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_passes.ir import Computation, Instruction, TensorType, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Concatenate,
    Constant,
    DynamicSlice,
    DynamicUpdateSlice,
    Iota,
    Pad,
    Reshape,
    Slice,
)
from hlo_passes.ops.elementwise import (
    And,
    Clamp,
    Compare,
    Convert,
    Divide,
    Minimum,
    Multiply,
    Select,
    Subtract,
)
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.rewriter import Rewriter

_INDEX = TensorType((), "i32")
_UNEVEN = 4
"""A row is at most as many times longer, or shorter, than there would be rows of a square."""


@dataclass(frozen=True)
class LongSlices(LocalPass):
    """Slice rows, then columns, where at least ``least`` of one dimension are taken and others have ``most_beside`` elements.

    Elements of the operand times those taken along the dimension are ``least_work``, below which one slice is as fast. To
    replace a slice every tile goes over all that it holds, and gets all of the slice: where at least a quarter of ``least`` are
    replaced, and the operand's elements with ten times the slice's are ``least_replaced``, two steps are faster. The elements
    are those of the long slice, also where it was moved to lie inside.

    Of joined matrices that have up to ``most_beside_wide`` beside, ``least_wide`` elements or more are read in two steps where that
    work is ``least_wide_work``: rolls of images by what is known at run time. 1,024 x 1,024 floats take 11,000 to 18,000 cycles on a
    gc200 instead of 13,500 to 18,500. Rows of others are looked up one by one (``ipuxla/lowering/indexing.py``).
    """

    name: ClassVar[str] = "long-slices"
    least: int = 1024
    least_work: int = 1 << 26
    least_replaced: int = 200_000
    most_beside: int = 64
    least_wide: int = 512
    least_wide_work: int = 1 << 30
    most_beside_wide: int = 4096

    def change(self, computation: Computation) -> Computation:
        """Return the computation with such slices in two steps; itself when it has none."""
        return Rewriter(
            computation, {DynamicSlice: (self._read,), DynamicUpdateSlice: (self._replace,)}
        ).run()

    def _read(self, instruction: Instruction, rewriter: Rewriter) -> Value | None:
        x, *offsets = instruction.operands
        sizes = instruction.result.type.shape
        work = x.type.size * _taken(x, sizes)
        if work < self.least_work:
            return None
        found = self._found(x, offsets, sizes, self.least, self.most_beside, rewriter)
        if (
            found is None
            and work >= self.least_wide_work
            and rewriter.producer(x, Concatenate) is not None
            and x.type.size > self.most_beside * max(x.type.shape)
        ):
            found = self._found(x, offsets, sizes, self.least_wide, self.most_beside_wide, rewriter)
        return None if found is None else _unrolled(found.moved(found.read(x), -1), found)

    def _replace(self, instruction: Instruction, rewriter: Rewriter) -> Value | None:
        x, update, *offsets = instruction.operands
        if x.type.size + 10 * update.type.size < self.least_replaced:
            return None
        found = self._found(x, offsets, update.type.shape, self.least // 4, self.most_beside, rewriter)
        return None if found is None else found.replaced(x, update)

    def _found(
        self,
        x: Value,
        offsets: Sequence[Value],
        sizes: Sequence[int],
        least: int,
        most_beside: int,
        rewriter: Rewriter,
    ) -> _Rows | None:
        """Return the rows of a slice of ``sizes``, at least ``least`` along one dimension, None of another one."""
        pairs = zip(x.type.shape, sizes, strict=True)
        moved = [d for d, (size, taken) in enumerate(pairs) if taken < size]
        if len(moved) != 1 or x.type.is_complex:
            return None
        (d,) = moved
        whole, taken = x.type.shape[d], sizes[d]
        if taken < least or x.type.size > whole * most_beside:
            return None
        width = _width(whole, taken)
        if width is None or whole - taken > _most(offsets[d].type) or whole > _most(_INDEX):
            return None
        return _Rows(x.type, d, taken, width, offsets[d], rewriter)


def _taken(x: Value, sizes: Sequence[int]) -> int:
    """Return how many elements are taken along the dimensions that a slice does not take whole."""
    return math.prod(n for size, n in zip(x.type.shape, sizes, strict=True) if n < size)


def _width(whole: int, taken: int) -> int | None:
    """Return a row's elements, which divide the whole: about as many as the slice has rows, an even number that divides it, too."""
    side = math.sqrt(taken)
    found = np.arange(math.ceil(side / _UNEVEN), int(side * _UNEVEN) + 1)
    found = found[whole % found == 0]
    found = found[whole // found > -(-taken // found)]  # a row more than the slice fills
    unlike = np.abs(np.log2(found / side)) + ((taken % found > 0).astype(float) + found % 2) / 2
    return int(found[unlike.argmin()]) if found.size else None


class _Rows:
    """The rows of a tensor's dimension that hold a slice of it.

    One row more than the slice fills is read. The slice begins in the first of them or, where they were moved to lie inside
    and the slice does not fill its last row, in the second.

    Args:
      type_: of the tensor.
      d: the dimension.
      taken: elements of the slice along it.
      width: elements of a row, which divide the dimension.
      offset: where the slice begins, before it is moved to lie inside.
      rewriter: emits what follows.
    """

    def __init__(
        self, type_: TensorType, d: int, taken: int, width: int, offset: Value, rewriter: Rewriter
    ) -> None:
        """Emit where the rows begin, and how far behind that the slice does."""
        self.d, self.taken, self.width, self.rewriter = d, taken, width, rewriter
        self._shape = type_.shape
        self.rows = -(-taken // width)
        self.reach = 1 if taken % width == 0 else 2
        whole, emit = type_.shape[d], rewriter.emit
        low, high = (emit(Constant.splat(end, offset.type)) for end in (0, whole - taken))
        start = emit(Convert(_INDEX.dtype), emit(Clamp(), low, offset, high))
        row = emit(Divide(), start, self._number(width))
        self._row = emit(Minimum(), row, self._number(whole // width - (self.rows + 1)))
        self._column = emit(Subtract(), start, emit(Multiply(), self._row, self._number(width)))

    def read(self, x: Value) -> Value:
        """Return the rows, ``[..., rows + 1, width, ...]``."""
        sizes = self._with(self.rows + 1, self.width)
        return self.rewriter.emit(DynamicSlice(sizes), self._as_rows(x), *self._at(self.d, self._row))

    def moved(self, x: Value, way: int) -> Value:
        """Return what begins in some rows where the slice does, from the first row on (-1), or so far behind it (1).

        Args:
          x: ``rows + 1`` rows for the former, of which the slice is read; ``rows`` for the latter, which are the slice.
          way: see above.
        """
        emit, rows, d = self.rewriter.emit, self.rows + (way > 0), self.d
        pieces: list[Value] = []
        for number in range(self.reach + 1):
            before = (self.reach - number) if way > 0 else -number
            pieces.append(self._shifted(x, before, rows))
        start = self._column
        if way > 0:
            start = emit(Subtract(), self._number(self.reach * self.width), start)
        beside = emit(Concatenate(d + 1), *pieces)
        return emit(DynamicSlice(self._with(rows, self.width)), beside, *self._at(d + 1, start))

    def replaced(self, x: Value, update: Value) -> Value:
        """Return a tensor with a slice replaced."""
        emit, d = self.rewriter.emit, self.d
        missing = self.rows * self.width - self.taken
        if missing:
            update = self._padded(update, 0, missing)
        new = self.moved(emit(Reshape(self._with(self.rows, self.width)), update), 1)
        old = self.read(x)
        plane = TensorType((self.rows + 1, self.width), _INDEX.dtype)
        flat = emit(Iota(TensorType((plane.size,), _INDEX.dtype), 0))
        place = emit(Reshape(plane.shape), flat)
        place = emit(Subtract(), place, emit(BroadcastInDim(plane.shape, ()), self._column))
        ends = (emit(Constant.splat(end, plane)) for end in (0, self.taken))
        low, high = ends
        is_new = emit(And(), emit(Compare("GE"), place, low), emit(Compare("LT"), place, high))
        is_new = emit(BroadcastInDim(old.type.shape, (d, d + 1)), is_new)
        rows = emit(Select(), is_new, new, old)
        found = emit(DynamicUpdateSlice(), self._as_rows(x), rows, *self._at(d, self._row))
        return emit(Reshape(self._shape), found)

    def _as_rows(self, x: Value) -> Value:
        return self.rewriter.emit(Reshape(self._with(self._shape[self.d] // self.width, self.width)), x)

    def _with(self, *sizes: int) -> tuple[int, ...]:
        """Return the tensor's shape with its dimension in rows."""
        return (*self._shape[: self.d], *sizes, *self._shape[self.d + 1 :])

    def _at(self, axis: int, offset: Value) -> list[Value]:
        """Return offsets that are 0 but along one axis."""
        return [offset if k == axis else self._number(0) for k in range(len(self._shape) + 1)]

    def _shifted(self, x: Value, before: int, rows: int) -> Value:
        """Return so many rows, x's from row ``before`` on; of none there is, zeros."""
        first, end = max(0, -before), min(x.type.shape[self.d], rows - before)
        x = _run(x, self.d, first, end, self.rewriter)
        low, high = max(0, before), rows - max(0, before) - (end - first)
        return self._padded(x, low, high) if low or high else x

    def _padded(self, x: Value, low: int, high: int) -> Value:
        """Return a tensor with zeros before and behind along the dimension."""
        nothing = [0] * x.type.rank
        before, behind = ([n if k == self.d else 0 for k in range(x.type.rank)] for n in (low, high))
        zero = self.rewriter.emit(Constant.splat(0, TensorType((), x.type.dtype)))
        return self.rewriter.emit(Pad(tuple(before), tuple(behind), tuple(nothing)), x, zero)

    def _number(self, value: int) -> Value:
        return self.rewriter.emit(Constant.splat(value, _INDEX))


def _unrolled(x: Value, found: _Rows) -> Value:
    """Return the slice whose rows begin with it."""
    d, shape = found.d, x.type.shape
    x = found.rewriter.emit(Reshape((*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])), x)
    return _run(x, d, 0, found.taken, found.rewriter)


def _run(x: Value, d: int, first: int, end: int, rewriter: Rewriter) -> Value:
    """Return what lies from one place along a dimension up to another."""
    start, limit = [0] * x.type.rank, list(x.type.shape)
    if (first, end) == (0, limit[d]):
        return x
    start[d], limit[d] = first, end
    return rewriter.emit(Slice(tuple(start), tuple(limit), (1,) * x.type.rank), x)


def _most(type_: TensorType) -> int:
    """Return the largest number of a type of integers."""
    return int(np.iinfo(type_.np_dtype).max)
