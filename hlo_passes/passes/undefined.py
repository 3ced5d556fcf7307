"""What is NaN whatever the arguments are is a constant.

XLA:CPU's own exponential of a NaN that LLVM knows gives whatever a register holds: it rounds the operand to an integer, which
is undefined for NaN, so that ``exp(x * nan)`` and ``exp(log(-1))`` are any number. XLA evaluates most such constants before;
an engine hides constants from it, so that they round as the machine's arithmetic does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hlo_passes.ir import Computation, Instruction, Op, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Constant,
    Convert,
    OptimizationBarrier,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from hlo_passes.ops.elementwise import (
    Abs,
    Add,
    Atan2,
    Cbrt,
    Ceil,
    Cosine,
    Divide,
    Exponential,
    ExponentialMinusOne,
    Floor,
    Log,
    Logistic,
    LogPlusOne,
    Maximum,
    Minimum,
    Multiply,
    Negate,
    Power,
    Remainder,
    RoundNearestEven,
    Rsqrt,
    Sign,
    Sine,
    Sqrt,
    Subtract,
    Tan,
    Tanh,
)
from hlo_passes.passes.base import LocalPass, map_control_regions

_EXACT: dict[type[Op], Callable[..., Any]] = {
    Abs: np.abs,
    Add: np.add,
    Ceil: np.ceil,
    Divide: np.divide,
    Floor: np.floor,
    Maximum: np.maximum,
    Minimum: np.minimum,
    Multiply: np.multiply,
    Negate: np.negative,
    RoundNearestEven: np.round,
    Sign: np.sign,
    Sqrt: np.sqrt,
    Subtract: np.subtract,
}
"""Functions that every machine rounds alike: float64 holds twice the bits of the narrower types and two more, so that
rounding its result again changes nothing."""
_DOMAINS: dict[type[Op], Callable[..., Any]] = {
    Atan2: np.arctan2,
    Cbrt: np.cbrt,
    Cosine: np.cos,
    Exponential: np.exp,
    ExponentialMinusOne: np.expm1,
    Log: np.log,
    LogPlusOne: np.log1p,
    Logistic: np.positive,
    Power: np.power,
    Remainder: np.fmod,
    Rsqrt: np.sqrt,
    Sine: np.sin,
    Tan: np.tan,
    Tanh: np.tanh,
}
"""Functions that machines round otherwise, with one of numpy's that is NaN for the same arguments: where they are defined
is all that is asked."""
_KEEPING = (Power,)
"""Functions that may be a number though one operand is NaN: ``pow(x, 0)`` is 1."""
_MOVING = (BroadcastInDim, Reshape, Reverse, Slice, Transpose)
_FLOATS = frozenset(("bf16", "f16", "f32", "f64"))


@dataclass(frozen=True)
class FoldNan(LocalPass):
    """Replace what is NaN in every element, whatever the arguments, by a constant."""

    name: ClassVar[str] = "fold-nan"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with what is always NaN as constants; itself when nothing is."""
        known: dict[Value, float] = {}
        instructions: list[Instruction] = []
        for old in computation.instructions:
            instruction = map_control_regions(old, self.change)
            if isinstance(instruction.op, OptimizationBarrier):
                passed = zip(instruction.results, instruction.operands, strict=True)
                known |= {result: known[operand] for result, operand in passed if operand in known}
            else:
                value = _value(instruction, known)
                if value is not None:
                    known[instruction.result] = value
                    if math.isnan(value) and not isinstance(instruction.op, Constant):
                        constant = Constant.splat(math.nan, instruction.result.type)
                        instruction = dataclasses.replace(instruction, op=constant, operands=())
            instructions.append(instruction)
        if all(new is old for new, old in zip(instructions, computation.instructions, strict=True)):
            return computation
        return dataclasses.replace(computation, instructions=tuple(instructions))


def _value(instruction: Instruction, known: dict[Value, float]) -> float | None:
    """Return what all elements of a result are; None where that is not known, or they are no floats."""
    op = instruction.op
    if len(instruction.results) != 1 or instruction.result.type.dtype not in _FLOATS:
        return None
    dtype: np.dtype[Any] = np.dtype(instruction.result.type.np_dtype)
    if isinstance(op, Constant):
        return float(op.value) if op.is_splat else None
    operands = [known.get(value) for value in instruction.operands]
    if isinstance(op, (*_MOVING, Convert)):
        return None if operands[0] is None else _rounded(dtype, operands[0])
    function = _EXACT.get(type(op)) or _DOMAINS.get(type(op))
    if function is None:
        return None
    if not isinstance(op, _KEEPING) and any(value is not None and math.isnan(value) for value in operands):
        return math.nan
    if None in operands:
        return None
    with np.errstate(all="ignore"):
        value = float(function(*(np.float64(value) for value in operands)))
    if type(op) in _EXACT:
        return _rounded(dtype, value)
    return value if math.isnan(value) else None


def _rounded(dtype: np.dtype[Any], value: float) -> float:
    """Return the nearest number of a type, an infinity where it is too large."""
    with np.errstate(all="ignore"):
        return float(np.float64(value).astype(dtype))
