"""Reductions of blocks that a reshape cuts out, as windows that do not overlap: ``x.reshape(h, 2, w, 2).mean((1, 3))``.

That is how pooling is written without a library, and how the gradient of a repetition arrives. A pooling vertex reads its windows
where they lie; a reduction of several short dimensions between others folds a few elements at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import (
    Constant,
    Reduce,
    ReduceWindow,
    Reshape,
    is_neutral,
    neutral_element,
    simple_combiner,
)
from hlo_passes.ops.elementwise import Convert
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.rewriter import Rewriter


@dataclass(frozen=True)
class ReshapedWindows(LocalPass):
    """Pool blocks of at most ``most`` elements in several dimensions."""

    name: ClassVar[str] = "reshaped-windows"
    most: int = 64

    def change(self, computation: Computation) -> Computation:
        """Return the computation with windows; itself when it reduces no blocks."""
        if Reduce not in computation.op_types or Reshape not in computation.op_types:
            return computation

        def pooled(instruction: Instruction, rewriter: Rewriter) -> Value | None:
            return self._pooled(instruction, rewriter)

        return Rewriter(computation, {Reduce: (pooled,)}).run()

    def _pooled(self, instruction: Instruction, rewriter: Rewriter) -> Value | None:
        op, region = instruction.op, instruction.regions[0]
        if not isinstance(op, Reduce) or len(instruction.operands) != 2:
            return None
        value, initial = instruction.operands
        combiner, constant = simple_combiner(region), rewriter.constant(initial)
        if combiner is None or constant is None or not is_neutral(combiner, constant):
            return None
        given, wide = value, value.type.dtype
        converted = rewriter.producer(value, Convert)
        if converted is not None:
            (given,) = converted[1]
        reshaped = rewriter.producer(given, Reshape)
        if reshaped is None:
            return None
        (source,) = reshaped[1]
        window = _window(source.type.shape, given.type.shape, op.dimensions)
        if window is None or sum(n > 1 for n in window) < 2 or math.prod(window) > self.most:
            return None
        if source.type.dtype != wide:
            source = rewriter.emit(Convert(wide), source)
        start = rewriter.emit(Constant.of(neutral_element(combiner, wide), wide))
        ones, nothing = (1,) * len(window), (0,) * len(window)
        pooling = ReduceWindow(window, window, ones, ones, nothing, nothing)
        (found,) = rewriter.emit_all(pooling, (source, start), (region,))
        shape = instruction.result.type.shape
        return found if found.type.shape == shape else rewriter.emit(Reshape(shape), found)


def _window(whole: Sequence[int], cut: Sequence[int], reduced: Sequence[int]) -> tuple[int, ...] | None:
    """Return what of each dimension is reduced together: the inner one of the two that a reshape cuts it into.

    None where a dimension is cut otherwise, or nothing is left of it.
    """
    window: list[int] = []
    position = 0
    for size in whole:
        if position < len(cut) and cut[position] == size and position not in reduced:
            window.append(1)
            position += 1
            continue
        if position + 1 >= len(cut) or cut[position] * cut[position + 1] != size:
            return None
        if position in reduced or position + 1 not in reduced or cut[position] < 2:
            return None
        window.append(cut[position + 1])
        position += 2
    return tuple(window) if position == len(cut) else None
