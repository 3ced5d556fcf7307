"""Constant folding, by evaluating the operations themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from hlo_passes.ir import OPS, Computation, Instruction, Op, TensorType, Value, evaluate_instruction
from hlo_passes.ops import (
    BitcastConvert,
    Constant,
    Convert,
    DotGeneral,
    Fusion,
    Iota,
    Negate,
    OptimizationBarrier,
    Reduce,
    Select,
)
from hlo_passes.ops.data_movement import DataMovement
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.rewriter import Pattern, Rewriter
from hlo_passes.passes.small import evaluated_exactly


@dataclass(frozen=True)
class FoldConstants(LocalPass):
    """Replace an operation on constants by its value, up to ``max_elements`` elements.

    Elementwise operations on splats are folded whatever their shape, and stay splats. Arithmetic on floats
    (anything but moving, choosing, negating and converting them) is left to the program unless ``floats`` is
    set, so that what computes it there can give it another meaning, such as integers modulo 2^n.
    """

    name: ClassVar[str] = "fold-constants"
    max_elements: int = 64
    floats: bool = False

    def change(self, computation: Computation) -> Computation:
        """Return the computation with constants folded; itself when there is nothing to fold."""
        patterns: dict[type[Op], tuple[Pattern, ...]] = {
            op: (self._fold,) for op in OPS.values() if _is_foldable(op)
        }
        return Rewriter(computation, patterns).run()

    def _fold(self, instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
        constants: list[Constant] = []
        for value in instruction.operands:
            constant = rewriter.constant(value)
            if constant is None:
                return None
            constants.append(constant)
        if not self.floats and _computes_floats(instruction):
            return None
        types = [value.type for value in instruction.results]
        if self._is_on_splats(instruction, constants):
            return [rewriter.emit(folded) for folded in _evaluate_splats(instruction, constants, types)]
        sizes = [value.type.size for value in (*instruction.operands, *instruction.results)]
        if max(sizes, default=0) > self.max_elements:
            return None
        return [rewriter.emit(folded) for folded in _evaluate(instruction, constants, types)]

    def _is_on_splats(self, instruction: Instruction, constants: Sequence[Constant]) -> bool:
        if not isinstance(instruction.op, Elementwise) or not all(
            constant.is_splat for constant in constants
        ):
            return False
        shape = instruction.result.type.shape
        if isinstance(instruction.op, BitcastConvert) and shape != instruction.operands[0].type.shape:
            return False  # narrower parts of one element need not be alike
        return all(value.type.shape in ((), shape) for value in instruction.operands)


def _is_foldable(op: type[Op]) -> bool:
    if op in (Constant, OptimizationBarrier, Fusion, Iota):  # an iota is smaller than its value
        return False
    return issubclass(op, (Elementwise, DataMovement, Reduce, DotGeneral))


def _computes_floats(instruction: Instruction) -> bool:
    """Whether an operation reads or makes floats other than by copying, negating or converting them."""
    if isinstance(instruction.op, (DataMovement, Select, Negate, Convert, BitcastConvert)):
        return False
    return any(value.type.is_inexact for value in (*instruction.operands, *instruction.results))


def _evaluate(
    instruction: Instruction, constants: Sequence[Constant], types: Sequence[TensorType]
) -> list[Constant]:
    results = _results(instruction, [constant.array for constant in constants])
    return [Constant(result, type_) for result, type_ in zip(results, types, strict=True)]


def _evaluate_splats(
    instruction: Instruction, constants: Sequence[Constant], types: Sequence[TensorType]
) -> list[Constant]:
    """Evaluate on one element, whatever the shape."""
    results = _results(instruction, [constant.value for constant in constants])
    return [Constant.splat(result, type_) for result, type_ in zip(results, types, strict=True)]


def _results(instruction: Instruction, operands: Sequence[Any]) -> list[np.ndarray]:
    """Return what an instruction makes of arrays, by numpy where that is exact."""
    with jax.enable_x64(True):
        given = [np.asarray(operand) for operand in operands]
        found = evaluated_exactly(lambda *arrays: evaluate_instruction(instruction, *arrays), *given)
        if found is None:
            found = evaluate_instruction(instruction, *map(jax.numpy.asarray, given))
        return [np.asarray(result) for result in found]
