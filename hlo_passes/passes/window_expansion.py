"""Windows that no vertex folds by itself, as operations that vertices do.

``popnn`` pools windows of a few taps by one well-known operation. Everything else is rewritten here, axis by
axis, the innermost first, so that the elements of a window meet in row-major order: windows over everything
before (or behind) an element are scans; windows that do not overlap are rows of a scan; others are folded by
doubling, a fold of ``2 k`` taps out of two folds of k. Reductions that round by how they are grouped are rows of
scans too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Op, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Combiner,
    Constant,
    Convert,
    Pad,
    Reduce,
    ReduceWindow,
    Reshape,
    Scan,
    Select,
    SelectAndScatter,
    Slice,
    is_neutral,
    neutral_element,
    simple_combiner,
)
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.folding import Folding, geometries
from hlo_passes.passes.lifting import NARROW, combine_apart, converted, is_liftable, lift, widened
from hlo_passes.passes.reductions import is_choosing, reduce_in_order
from hlo_passes.passes.rewriter import Pattern, Rewriter
from hlo_passes.passes.scans import scan_in_blocks
from hlo_passes.passes.select_scatter import collect_selected


@dataclass(frozen=True)
class Windows(LocalPass):
    """Rewrite windows that are not pooling: cumulative, large, or of another region; and reductions of such."""

    name: ClassVar[str] = "windows"

    def change(self, computation: Computation) -> Computation:
        """Return the computation rewritten; itself when it has none."""
        patterns: dict[type[Op], tuple[Pattern, ...]] = {
            ReduceWindow: (combine_apart, separate_windows, fold_windows),
            Reduce: (combine_apart, reduce_in_order),
            SelectAndScatter: (collect_selected,),
            Scan: (combine_apart, scan_in_blocks),
        }
        if not any(type(instruction.op) in patterns for instruction in computation.walk()):
            return computation
        return Rewriter(computation, patterns).run()


@dataclass(frozen=True)
class RepeatElements(LocalPass):
    """Repeat elements instead of folding windows that have one each: before padding between elements becomes a reshape's."""

    name: ClassVar[str] = "repeat-elements"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with such windows as repetitions; itself when it has none."""
        if ReduceWindow not in computation.op_types:
            return computation
        return Rewriter(computation, {ReduceWindow: (repeat_elements,)}).run()


def fold_windows(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """Fold windows that are cumulative or large, or of more than one operation."""
    region = instruction.regions[0]
    if 0 in instruction.results[0].type.shape or not is_liftable(region):
        return None
    combiner = simple_combiner(region)
    if combiner is not None:
        return _fold_by_one_operation(instruction, rewriter, combiner)
    op, half = instruction.op, len(instruction.results)
    assert isinstance(op, ReduceWindow)
    inputs, initial = instruction.operands[:half], instruction.operands[half:]
    shape = instruction.results[0].type.shape
    windows = geometries(op, inputs[0].type.shape, shape)
    if not all(g.is_told_apart for g in windows):
        return None
    wide, types = region if is_choosing(region) else widened(region), [x.type for x in inputs]
    inputs, initial = (converted(rewriter, given, wide.result_types) for given in (inputs, initial))
    starts = [rewriter.emit(BroadcastInDim(shape, ()), value) for value in initial]
    if 0 in inputs[0].type.shape:
        return converted(rewriter, starts, types)
    folding = Folding(rewriter, wide, inputs)
    for axis, g in reversed(list(enumerate(windows))):
        folding.fold(axis, g)
    combined, real = lift(rewriter, wide, (*starts, *folding.values)), folding.is_real()
    if real is not None:
        combined = [rewriter.emit(Select(), real, x, y) for x, y in zip(combined, starts, strict=True)]
    return converted(rewriter, combined, types)


def _fold_by_one_operation(
    instruction: Instruction, rewriter: Rewriter, combiner: Combiner
) -> Sequence[Value] | None:
    """Fold the cumulative and the large axes; padding holds the neutral element, the rest is pooled before.

    Sums and products of 16-bit floats are formed in f32, as pooling forms them.
    """
    op, (value, initial) = instruction.op, instruction.operands
    assert isinstance(op, ReduceWindow)
    found = geometries(op, value.type.shape, instruction.result.type.shape)
    chosen = [d for d, g in enumerate(found) if not g.is_trivial and (g.is_cumulative or g.is_large)]
    if not chosen or 0 in value.type.shape:
        return None
    is_narrow = combiner in ("add", "mul") and value.type.dtype in NARROW
    dtype = "f32" if is_narrow else value.type.dtype
    region = widened(instruction.regions[0]) if is_narrow else instruction.regions[0]
    x = rewriter.emit(Convert(dtype), value) if is_narrow else value
    neutral = neutral_element(combiner, dtype)
    if any(not g.is_trivial for d, g in enumerate(found) if d not in chosen):
        start = rewriter.emit(Constant.of(neutral, dtype))
        (x,) = rewriter.emit_all(_without(op, chosen), (x, start), (region,))
    folding = Folding(rewriter, region, [x], [neutral])
    for axis in chosen:
        folding.fold(axis, found[axis])
    (total,) = folding.values
    total = rewriter.emit(Convert(value.type.dtype), total) if is_narrow else total
    constant = rewriter.constant(initial)
    if constant is not None and is_neutral(combiner, constant):
        return [total]
    start = rewriter.emit(BroadcastInDim(total.type.shape, ()), initial)
    return lift(rewriter, instruction.regions[0], (start, total))


def repeat_elements(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Repeat elements that windows have one each of: the gradient of an average of windows that do not overlap, or of all.

    JAX writes it as the windows' own sums again, of the gradient with zeros around and between its elements.
    """
    op, shape = instruction.op, instruction.results[0].type.shape
    assert isinstance(op, ReduceWindow)
    combiner = simple_combiner(instruction.regions[0])
    if combiner is None or len(instruction.operands) != 2:
        return None
    x, initial = instruction.operands
    constant = _constant(initial, rewriter)
    if constant is None or not is_neutral(combiner, constant) or 0 in (*shape, *x.type.shape):
        return None
    low, between = op.low, tuple(dilation - 1 for dilation in op.base_dilations)
    padded = rewriter.producer(x, Pad)
    if padded is not None and not any((*op.low, *op.high, *between)):
        filling = _constant(padded[1][1], rewriter)
        if filling is None or not is_neutral(combiner, filling) or min((*padded[0].low, *padded[0].high)) < 0:
            return None
        low, between, x = padded[0].low, padded[0].interior, padded[1][0]
    times: list[int] = []
    for d, size in enumerate(x.type.shape):
        taps = op.window_dimensions[d]
        is_each = (size == 1 or between[d] == taps - 1) and low[d] == taps - 1
        if op.window_strides[d] != 1 or op.window_dilations[d] != 1 or not is_each:
            return None
        times.append(taps)
    if max(times, default=1) == 1:
        return None
    apart = tuple(n for pair in zip(x.type.shape, times, strict=True) for n in pair)
    repeated = rewriter.emit(BroadcastInDim(apart, tuple(range(0, len(apart), 2))), x)
    whole = tuple(size * n for size, n in zip(x.type.shape, times, strict=True))
    repeated = rewriter.emit(Reshape(whole), repeated)
    kept = tuple(min(sides) for sides in zip(whole, shape, strict=True))
    if kept != whole:
        repeated = rewriter.emit(Slice((0,) * len(kept), kept, (1,) * len(kept)), repeated)
    if kept == shape:
        return repeated
    rest = tuple(n - k for n, k in zip(shape, kept, strict=True))  # windows that have no element
    neutral = rewriter.emit(Constant.of(neutral_element(combiner, x.type.dtype), x.type.dtype))
    return rewriter.emit(Pad((0,) * len(rest), rest, (0,) * len(rest)), repeated, neutral)


def _constant(value: Value, rewriter: Rewriter) -> Constant | None:
    """Return the constant that a scalar is, or repeats."""
    while (repeated := rewriter.producer(value, BroadcastInDim)) is not None:
        (value,) = repeated[1]
    return rewriter.constant(value)


SEPARATE_FROM = 2
"""How many times as many elements windows of several dimensions fold as windows along one after the other, from which on they are."""


def separate_windows(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Fold windows of several dimensions along one dimension after the other: 13 x 13 neighbours are 13 and 13 again.

    Sums of 16-bit floats are formed in f32 until the last one, as pooling forms them.
    """
    op, region, shape = instruction.op, instruction.regions[0], instruction.results[0].type.shape
    combiner = simple_combiner(region)
    assert isinstance(op, ReduceWindow)
    if combiner is None or len(instruction.operands) != 2 or set(op.base_dilations) - {1}:
        return None
    value, initial = instruction.operands
    axes = [d for d in range(len(shape)) if op.window_dimensions[d] > 1 or _moves(op, d)]
    constant = rewriter.constant(initial)
    if (
        sum(taps > 1 for taps in op.window_dimensions) < 2
        or 0 in (*shape, *value.type.shape)
        or constant is None
        or not is_neutral(combiner, constant)
    ):
        return None
    axes.sort(key=lambda d: shape[d] / value.type.shape[d])  # what leaves least goes first
    sizes, folded = list(value.type.shape), 0
    for d in axes:
        sizes[d] = shape[d]
        folded += math.prod(sizes) * op.window_dimensions[d]
    if SEPARATE_FROM * folded > math.prod(shape) * math.prod(op.window_dimensions):
        return None
    is_narrow = combiner in ("add", "mul") and value.type.dtype in NARROW
    dtype = "f32" if is_narrow else value.type.dtype
    region = widened(region) if is_narrow else region
    x = rewriter.emit(Convert(dtype), value) if is_narrow else value
    start = rewriter.emit(Constant.of(neutral_element(combiner, dtype), dtype))
    for d in axes:
        others = [e for e in range(len(shape)) if e != d]
        (x,) = rewriter.emit_all(_without(op, others), (x, start), (region,))
    return rewriter.emit(Convert(value.type.dtype), x) if is_narrow else x


def _moves(op: ReduceWindow, d: int) -> bool:
    """Return whether windows of one element along an axis are not those elements, each in its place."""
    return op.window_strides[d] > 1 or op.low[d] != 0 or op.high[d] != 0


def _without(op: ReduceWindow, axes: Sequence[int]) -> ReduceWindow:
    """Return the windows along the other axes alone."""
    plain = {field.name: int(field.name not in ("low", "high")) for field in dataclasses.fields(op)}
    changed = {
        name: tuple(value if d in axes else old for d, old in enumerate(getattr(op, name)))
        for name, value in plain.items()
    }
    return ReduceWindow(**changed)
