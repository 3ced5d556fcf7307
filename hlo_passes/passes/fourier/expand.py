"""Discrete Fourier transforms become contractions, which machines with matrix units do best."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_passes import ops
from hlo_passes.ir import Builder, Instruction, Module, TensorType, Value
from hlo_passes.passes.base import Pass, map_module
from hlo_passes.passes.expansions.term import Term
from hlo_passes.passes.fourier.transform import Signal, Transform, transformed
from hlo_passes.passes.rewriter import Rewriter

COUNTED_FROM = 1 << 20
"""Elements of a spectrum from which on its weights are computed: a constant of them would take as much memory as it does."""


@dataclass(frozen=True)
class ExpandFft(Pass):
    """Rewrite every ``fft`` as contractions with the factors of its matrix.

    Lengths that split are done in stages (Cooley and Tukey), up to 256 elements as one contraction each;
    longer primes as a cyclic convolution (Bluestein). The number of operations grows with the number of
    stages alone. Factors are computed in double precision and rounded once.
    """

    name: ClassVar[str] = "expand-fft"
    removes: ClassVar[tuple[str, ...]] = (ops.Fft.name,)

    def run(self, module: Module) -> Module:
        """Return a module without ``fft``; itself when it has none."""
        return map_module(module, lambda computation: Rewriter(computation, {ops.Fft: (_expand,)}).run())


def _expand(instruction: Instruction, rewriter: Rewriter) -> Value:
    op, (operand,), (result,) = instruction.op, instruction.operands, instruction.results
    assert isinstance(op, ops.Fft)
    if 0 in (operand.type.size, result.type.size):
        return rewriter.emit(ops.Constant.splat(0, result.type))
    made = rewriter.producer(operand, ops.Convert)
    if made is not None and made[1][0].type == operand.type.part:  # a real signal made complex for nothing
        (operand,) = made[1]
    builder = Builder("fft")
    x = Term(builder, builder.parameter(operand.type))
    x = x.reshape(_batched(x.shape, len(op.fft_length)))
    parts = (x.apply(ops.Real()), x.apply(ops.Imag())) if x.type.is_complex else (x,)
    done = _Axes(op, len(x.shape)).transformed(Signal(parts)).reshape(result.type.shape)
    return rewriter.inline(builder.build(done.value), [operand])[0]


def _batched(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return a shape with the dimensions in front of the last ``rank`` made one, or none."""
    batch = shape[: len(shape) - rank]
    return (math.prod(batch), *shape[len(batch) :]) if batch else shape


class _Axes:
    """Transforms one dimension after the other.

    The dimensions of what is being transformed may lie in any order: lists of them name dimensions of the
    operand in the order in which they lie, the one transformed last at the end.
    """

    def __init__(self, op: ops.Fft, rank: int) -> None:
        self.op = op
        self.axes = range(rank - len(op.fft_length), rank)

    def transformed(self, signal: Signal) -> Term:
        """Return the whole result, the dimensions in their order."""
        last = self.axes[-1]
        is_back = self.op.fft_type == "IRFFT"
        order = list(range(last + 1))
        for axis in self.axes if is_back else reversed(self.axes):
            signal, order = _moved(signal, order, axis)
            if is_back and axis == last:
                signal = self._weighted(signal)
            signal = transformed(signal, self._wanted(axis))
        results = [_ordered(x, order) for x in signal.terms]
        return results[0] if is_back else results[0].apply(ops.Complex(), results[1])

    def _wanted(self, axis: int) -> Transform:
        length, kind = self.op.fft_length[axis - self.axes[0]], self.op.fft_type
        is_last, is_inverse = axis == self.axes[-1], kind in ("IFFT", "IRFFT")
        outputs = length // 2 + 1 if kind == "RFFT" and is_last else length
        sign, scale = (1, 1 / length) if is_inverse else (-1, 1.0)
        if kind == "IRFFT":
            return Transform(length, sign, scale, outputs, "real" if is_last else "joined")
        return Transform(length, sign, scale, outputs, "apart" if axis == self.axes[0] else "joined")

    def _weighted(self, signal: Signal) -> Signal:
        """Return the half of a spectrum with what stands for two elements, itself and its mirror, doubled."""
        alone = [0, signal.length - 1] if self.op.fft_length[-1] % 2 == 0 else [0]
        if signal.length >= COUNTED_FROM:
            return signal.map(lambda x: _doubled_beside(x, alone))
        weights = np.full(signal.length, 2.0)
        weights[alone] = 1.0
        return signal.map(lambda x: x * x.array(weights))


def _doubled_beside(x: Term, alone: Sequence[int]) -> Term:
    """Return a signal with all elements doubled but some, told by their index."""
    index = x.iota(-1)
    which = functools.reduce(operator.or_, (index.compare("EQ", n) for n in alone))
    return x * which.choose(x.constant(1, TensorType(which.shape, x.type.dtype)), 2)


def _moved(signal: Signal, order: list[int], axis: int) -> tuple[Signal, list[int]]:
    """Return the signal with ``axis`` last, and the new order."""
    if order[-1] == axis:
        return signal, order
    moved = [other for other in order if other != axis] + [axis]
    places = [order.index(other) for other in moved]
    if signal.is_joined:  # the parts lie in front of the last dimension
        last = len(order) - 1
        places = [place + (place == last) for place in places]
        places = [*places[:-1], last, places[-1]]
    return signal.map(lambda x: x.permuted(places)), moved


def _ordered(x: Term, order: Sequence[int]) -> Term:
    """Return the dimensions in their order."""
    return x.permuted([order.index(axis) for axis in range(len(order))])
