"""Select and scatter with any regions: find each window's position, then let every element collect.

The position is a fold of pairs (element, flat index); an element then looks at the windows that may cover it,
in order, and combines the sources of those whose position is its own. Where these are many, sources are scattered
to their positions at runtime instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hlo_passes.ir import Builder, Computation, Instruction, TensorType, Value
from hlo_passes.ops import (
    Add,
    BroadcastInDim,
    Compare,
    Constant,
    Iota,
    Multiply,
    Reshape,
    Scatter,
    ScatterDimensionNumbers,
    Select,
    SelectAndScatter,
    simple_combiner,
    simple_selection,
)
from hlo_passes.passes.folding import Folding, Geometry
from hlo_passes.passes.lifting import is_liftable, lift
from hlo_passes.passes.rewriter import Rewriter
from hlo_passes.passes.scans import pad, slice_axis

MANY_ROUNDS = 32
"""Windows that may cover an element, up to which it looks at each of them."""


def is_pooling_gradient(instruction: Instruction, initial: Constant | None) -> bool:
    """Whether an instruction adds, from zero, to what one comparison selects: ``popnn`` has a vertex for that."""
    select, scatter = instruction.regions
    from_zero = initial is not None and not initial.value.any()
    by_order = simple_selection(select) in ("GE", "GT", "LE", "LT")
    return by_order and simple_combiner(scatter) == "add" and from_zero


def selecting_windows(instruction: Instruction) -> list[Geometry]:
    """Return how the windows of a select-and-scatter lie along every axis of its operand."""
    op, (operand, source, _) = instruction.op, instruction.operands
    assert isinstance(op, SelectAndScatter)
    shapes, window = (operand.type.shape, source.type.shape), (op.window_dimensions, op.window_strides)
    return [
        Geometry(size, count, taps, stride, 1, 1, low, high)
        for size, count, taps, stride, low, high in zip(*shapes, *window, op.low, op.high, strict=True)
    ]


def collect_selected(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """Write a select-and-scatter that is no gradient of pooling as elementwise operations."""
    op, (operand, source, initial) = instruction.op, instruction.operands
    assert isinstance(op, SelectAndScatter)
    select, scatter = instruction.regions
    if is_pooling_gradient(instruction, rewriter.constant(initial)) or 0 in operand.type.shape:
        return None
    if not is_liftable(select) or not is_liftable(scatter):
        return None
    shape, windows = operand.type.shape, selecting_windows(instruction)
    if not all(g.is_told_apart for g in windows):
        return None
    total = rewriter.emit(BroadcastInDim(shape, ()), initial)
    if 0 in source.type.shape:
        return [total]
    own = _flat_index(rewriter, shape)
    position = _selected(rewriter, operand, own, select, windows)
    rounds = [_rounds(g) for g in windows]
    if math.prod(map(len, rounds)) > MANY_ROUNDS:
        return [_looked_up(rewriter, total, position, source, scatter)]
    for round_ in itertools.product(*rounds):
        where, value = (
            _of_windows(rewriter, x, windows, round_, fill) for x, fill in ((position, -1), (source, 0))
        )
        (combined,) = lift(rewriter, scatter, (total, value))
        here = rewriter.emit(Compare("EQ"), where, own)
        total = rewriter.emit(Select(), here, combined, total)
    return [total]


def _looked_up(
    rewriter: Rewriter, total: Value, position: Value, source: Value, scatter: Computation
) -> Value:
    """Return every source scattered to its window's position; a position of -1 lies outside and is left out."""
    count = source.type.size
    flat = rewriter.emit(Reshape((total.type.size,)), total)
    indices = rewriter.emit(Reshape((count, 1)), position)
    updates = rewriter.emit(Reshape((count,)), source)
    numbers = ScatterDimensionNumbers((), (0,), (), (), (0,), 1)
    (made,) = rewriter.emit_all(Scatter(numbers), (flat, indices, updates), (scatter,))
    return rewriter.emit(Reshape(total.type.shape), made)


def _flat_index(rewriter: Rewriter, shape: tuple[int, ...]) -> Value:
    """Return every element's position in row-major order."""
    type_ = TensorType(shape, "i32")
    total = rewriter.emit(Constant.splat(0, type_))
    for axis, size in enumerate(shape):
        width = rewriter.emit(Constant.splat(size, type_))
        counter = rewriter.emit(Iota(type_, axis))
        total = rewriter.emit(Add(), rewriter.emit(Multiply(), total, width), counter)
    return total


def _selected(
    rewriter: Rewriter, operand: Value, index: Value, select: Computation, windows: Sequence[Geometry]
) -> Value:
    """Return the flat index of each window's selected element, -1 of windows of padding only."""
    folding = Folding(rewriter, _better(select), [operand, index])
    for axis, g in reversed(list(enumerate(windows))):
        folding.fold(axis, g)
    _, position = folding.values
    real = folding.is_real()
    if real is None:
        return position
    return rewriter.emit(Select(), real, position, rewriter.emit(Constant.splat(-1, position.type)))


def _better(select: Computation) -> Computation:
    """Return the fold of pairs (element, index): an earlier pair stays while ``select`` says so."""
    builder = Builder("selected")
    element, index = select.parameters[0].type, TensorType((), "i32")
    a, here, b, there = (builder.parameter(type_) for type_ in (element, index) * 2)
    (stays,) = builder.inline(select, a, b)
    return builder.build(builder.add(Select(), stays, a, b), builder.add(Select(), stays, here, there))


def _rounds(g: Geometry) -> range:
    """Return what to count along one axis so that windows are met in order.

    That is the windows themselves, or how far a window lies before the last that may cover an element,
    whichever are fewer.
    """
    reach = -(-g.taps // g.stride)
    return range(g.outputs) if g.outputs <= reach else range(reach - 1, -1, -1)


def _of_windows(
    rewriter: Rewriter, x: Value, windows: Sequence[Geometry], round_: Sequence[int], fill: int
) -> Value:
    """Return for every element what ``x`` holds for the window that ``round_`` counts, see ``_rounds``.

    Where that window does not exist it is ``fill``.
    """
    for axis, (g, count) in enumerate(zip(windows, round_, strict=True)):
        if g.is_trivial:
            continue
        if _rounds(g).step > 0:
            x = _repeated(rewriter, slice_axis(rewriter, x, axis, count, 1), axis, g.size)
            continue
        x = _repeated(rewriter, x, axis, g.stride)
        first = g.low - count * g.stride
        behind = first + g.size - x.type.shape[axis]
        x = pad(rewriter, x, axis, -first, behind, fill)
    return x


def _repeated(rewriter: Rewriter, x: Value, axis: int, count: int) -> Value:
    """Return each element along an axis ``count`` times."""
    if count == 1:
        return x
    shape = x.type.shape
    apart = (*shape[: axis + 1], count, *shape[axis + 1 :])
    dimensions = tuple(d + (d > axis) for d in range(len(shape)))
    merged = (*shape[:axis], shape[axis] * count, *shape[axis + 1 :])
    return rewriter.emit(Reshape(merged), rewriter.emit(BroadcastInDim(apart, dimensions), x))
