"""Sums at indices stay sparse: what would be made of zeros only to be added is added where it belongs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_passes.ir import Builder, Computation, Instruction, Module, TensorType, Value
from hlo_passes.ops import Add, BroadcastInDim, Constant, Multiply, Negate, Scatter, Subtract, update_kind
from hlo_passes.passes.base import Pass, map_module
from hlo_passes.passes.patterns.registry import splat_element
from hlo_passes.passes.rewriter import Rewriter


@dataclass(frozen=True)
class AddSparseSums(Pass):
    """Add what a scatter adds to zeros to the other summand instead; scale and negate its updates before.

    The gradient of a lookup is a scatter into zeros of the table's shape. PopLibs' ``multiUpdateAdd`` adds scaled updates
    to a tensor that is there, and so does every user of it: an embedding's update, or the gradient of a table that is a
    projection, too. The order in which a scatter adds is not specified, so floats may round otherwise and a zero may have
    another sign; integers, and floats as integers modulo 2^n, keep every bit.
    """

    name: ClassVar[str] = "add-sparse-sums"

    def run(self, module: Module) -> Module:
        """Return the module with sparse sums; itself when it has none to add elsewhere."""
        patterns = {Add: (_added,), Subtract: (_subtracted,), Multiply: (_scaled,), Negate: (_negated,)}
        return map_module(module, lambda computation: Rewriter(computation, patterns).run())


def _added(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``x + scatter(0, add)`` adds the updates to ``x``."""
    for x, sums in (instruction.operands, instruction.operands[::-1]):
        made = _sums(sums, rewriter)
        if made is not None:
            return _emit(rewriter, made, x, made.operands[2], made.regions[0])
    return None


def _subtracted(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``x - scatter(0, add)`` subtracts the updates from ``x``."""
    x, sums = instruction.operands
    made = _sums(sums, rewriter)
    if made is None:
        return None
    return _emit(rewriter, made, x, made.operands[2], _subtraction(sums.type))


def _scaled(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``c * scatter(0, add)`` of one constant adds scaled updates, where there are fewer of them."""
    for scale, sums in (instruction.operands, instruction.operands[::-1]):
        element, made = _element(scale, rewriter), _sums(sums, rewriter)
        if made is None or element is None or not np.isfinite(element):
            continue
        zeros, _, updates = made.operands
        scaled = rewriter.emit(Multiply(), rewriter.emit(Constant.splat(element, updates.type)), updates)
        return _emit(rewriter, made, zeros, scaled, made.regions[0])
    return None


def _negated(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``-scatter(0, add)`` adds negated updates."""
    made = _sums(instruction.operands[0], rewriter)
    if made is None:
        return None
    zeros, _, updates = made.operands
    return _emit(rewriter, made, zeros, rewriter.emit(Negate(), updates), made.regions[0])


def _sums(value: Value, rewriter: Rewriter) -> Instruction | None:
    """Return the scatter that adds updates to zeros, if that makes ``value`` and nothing else reads it."""
    made = rewriter.maker(value)
    if made is None or not isinstance(made.op, Scatter) or len(made.operands) != 3:
        return None
    if value.type.is_bool or value.type.is_complex or update_kind(made.regions[0]) != "add":
        return None
    start = splat_element(made.operands[0], rewriter)
    return made if start is not None and not start and rewriter.has_one_use(value) else None


def _element(value: Value, rewriter: Rewriter) -> np.generic | None:
    """Return the element that a constant, or what is broadcast of one, repeats."""
    while (spread := rewriter.producer(value, BroadcastInDim)) is not None:
        (value,) = spread[1]
    return splat_element(value, rewriter)


def _emit(rewriter: Rewriter, made: Instruction, x: Value, updates: Value, region: Computation) -> Value:
    (result,) = rewriter.emit_all(made.op, (x, made.operands[1], updates), (region,), made.location)
    return result


def _subtraction(type_: TensorType) -> Computation:
    builder = Builder("subtract")
    old, update = (builder.parameter(type_.with_shape(())) for _ in range(2))
    return builder.build(builder.add(Subtract(), old, update))
