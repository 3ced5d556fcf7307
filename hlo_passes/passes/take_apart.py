"""Arrays of a few elements taken apart, so that what is computed of each element fuses with what it is computed from.

A program on few numbers (the state of a pendulum, a random key) takes elements out of small arrays and joins others to
new ones. Each slice and concatenation would be a step of its own, of hundreds of cycles, for operations of a few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Op, TensorType, Value
from hlo_passes.ops import (
    BitcastConvert,
    BroadcastInDim,
    Compare,
    Concatenate,
    Constant,
    Iota,
    Select,
    Slice,
)
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.fusion_groups import FEW, is_cheap
from hlo_passes.passes.patterns import PATTERNS
from hlo_passes.passes.rewriter import Rewriter

MOST_JOINED = 8
"""Elements along the axis of a concatenation that becomes selections: every point chooses among all of them."""


@dataclass(frozen=True)
class TakeApart(LocalPass):
    """Slice the operands of a cheap operation of which only slices are read; select where elements are joined.

    A concatenation becomes ``select(index < 1, a, select(index < 2, b, c))``, which fuses as any other expression does. This
    is for arrays of at most ``max_elements`` elements, of which at most eight lie along the axis that is joined.
    """

    name: ClassVar[str] = "take-apart"
    max_elements: int = FEW

    def change(self, computation: Computation) -> Computation:
        """Return the computation rewritten; itself when nothing in it is small enough."""
        sliced = Rewriter(computation, {Slice: (*PATTERNS[Slice], self._slice_operands)}).run()
        return Rewriter(sliced, {Concatenate: (self._select_operand,)}).run()

    def _slice_operands(self, instruction: Instruction, rewriter: Rewriter) -> Value | None:
        """A slice of what is computed element by element, of which nothing but slices is read, is computed of slices."""
        (whole,) = instruction.operands
        maker, readers = rewriter.maker(whole), rewriter.readers(whole)
        if maker is None or not readers or whole.type.size > self.max_elements:
            return None
        if not _is_of_any_shape(type(maker.op)) or not is_cheap(maker):
            return None
        if sum(r.result.type.size for r in readers if isinstance(r.op, Slice)) > whole.type.size:
            return None
        if not all(isinstance(reader.op, Slice) for reader in readers):
            return None
        operands = [x if x.type.rank == 0 else rewriter.emit(instruction.op, x) for x in maker.operands]
        return rewriter.emit(maker.op, *operands, location=maker.location)

    def _select_operand(self, instruction: Instruction, rewriter: Rewriter) -> Value | None:
        """Joined elements are, at every point, one of them."""
        op, result = instruction.op, instruction.result.type
        assert isinstance(op, Concatenate)
        axis = op.dimension
        if not 0 < result.size <= self.max_elements or result.shape[axis] > MOST_JOINED or result.is_complex:
            return None
        elements = [e for part in instruction.operands for e in _elements(part, axis, rewriter)]
        index = rewriter.emit(Iota(result.with_dtype("i32"), axis))
        repeated = [_repeated(element, result, rewriter) for element in elements]
        selected = repeated.pop()
        for number in reversed(range(len(repeated))):
            bound = rewriter.emit(Constant.splat(number + 1, index.type))
            is_before = rewriter.emit(Compare("LT", "SIGNED"), index, bound)
            selected = rewriter.emit(Select(), is_before, repeated[number], selected)
        return selected


def _is_of_any_shape(op: type[Op]) -> bool:
    """Whether an operation is element by element whatever its shape."""
    return issubclass(op, Elementwise) and op is not BitcastConvert and not op.num_regions


def _elements(value: Value, axis: int, rewriter: Rewriter) -> list[Value]:
    """Return the slices of size 1 along an axis that a value consists of."""
    shape = value.type.shape
    if shape[axis] == 1:
        return [value]
    found: list[Value] = []
    for k in range(shape[axis]):
        start = tuple(k if d == axis else 0 for d in range(len(shape)))
        limit = tuple(k + 1 if d == axis else size for d, size in enumerate(shape))
        found.append(rewriter.emit(Slice(start, limit, (1,) * len(shape)), value))
    return found


def _repeated(element: Value, result: TensorType, rewriter: Rewriter) -> Value:
    """Return a slice of size 1 along an axis, at every index along it."""
    if element.type.shape == result.shape:
        return element
    return rewriter.emit(BroadcastInDim(result.shape, tuple(range(result.rank))), element)
