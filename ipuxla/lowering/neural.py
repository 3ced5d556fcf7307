"""Named functions of networks onto popnn: functions of rows, whole rows on tiles or composed of popops steps."""

from __future__ import annotations

from dataclasses import replace

from hlo_passes import ops
from hlo_passes.ir import Computation, Instruction, Module, Value
from hlo_passes.ops import RowFunction, simple_combiner
from hlo_passes.passes import (
    Canonicalize,
    EliminateCommonSubexpressions,
    EliminateDeadCode,
    FoldConstants,
    Fuse,
    Pass,
)
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.indexing import expression
from hlo_passes.passes.rewriter import Rewriter
from ipuxla.lowering.movement import lower_computation
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from tiles.graph import Dim, Operation, OpForm, Site, Step, Tensor, identity_map
from tiles.numerics.ring import to_ring
from tiles.poplibs.popnn import RowFunction as RowCodelet
from tiles.poplibs.popops.elementwise_cycles import dims_of_values
from tiles.poplibs.popops.expression import Body
from tiles.poplibs.popops.fold_many import COMPARISONS
from tiles.poplibs.popops.map import Map
from tiles.poplibs.popops.reduce import neutral_element
from tiles.poplibs.poputil.place import place

INVERTED = "divide_by_inverse"
BY_INVERSE = ("popnn.softmax",)
"""What popnn divides by multiplying with inverses: max, subtract, exp, sum, inverse, multiply (lib/popnn/NonLinearity.cpp).

In emulation the quotient is what the program says; a product with the inverse differs from it by a rounding or two.
"""

_FOLDED = {"add": "add", "max": "maximum", "min": "minimum", "mul": "multiply"}


class _DecideComparisons(LocalPass):
    """Replace comparisons of float constants that the ring decides as floats do, such as ``n > 0`` of a variance."""

    def change(self, computation: Computation) -> Computation:
        """Return the computation with what is decided as constants."""
        return Rewriter(computation, {ops.Compare: (_decided,)}).run()


def _decided(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    op, constants = instruction.op, [rewriter.constant(value) for value in instruction.operands]
    assert isinstance(op, ops.Compare)
    values = [constant.value for constant in constants if constant is not None and constant.is_splat]
    if len(values) != 2 or op.compare_type not in ("", "FLOAT") or not instruction.operands[0].type.is_float:
        return None
    compare = COMPARISONS[op.direction]
    is_true = bool(compare(*values))
    if is_true != bool(compare(*map(to_ring, values))):
        return None
    return rewriter.emit(ops.Constant.splat(is_true, instruction.result.type))


_SIMPLIFIED = (
    FoldConstants(),
    Canonicalize(),
    _DecideComparisons(),
    Canonicalize(),
    EliminateCommonSubexpressions(),
    EliminateDeadCode(),
)
"""Passes over a region, which was made after those of the module: ``n - convert(0)`` of a variance becomes ``n``."""


@lowers(RowFunction)
def lower_row_function(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Lower a function of rows as one vertex per tile on whole rows, or step by step: whichever is cheaper."""
    op, region = instruction.op, instruction.regions[0]
    assert isinstance(op, RowFunction)
    operands = [lowering.tensor(v) for v in instruction.operands]
    result = instruction.result.type
    region = _passed(region, *_SIMPLIFIED)
    composed = _passed(region, Fuse())
    body = row_body(region, op.dimensions)
    if body is not None and op.kind in BY_INVERSE:
        rows = [(INVERTED if name == "divide" and not attrs else name, a, attrs) for name, a, attrs in body]
        body = tuple(rows)
    if body is not None:
        dims = tuple(Dim(f"d{i}", size) for i, size in enumerate(result.shape))
        form = OpForm(dims, (identity_map(len(dims)),) * len(operands), (identity_map(len(dims)),))
        dtypes = tuple(t.dtype for t in operands)
        codelet = RowCodelet(op.kind, body, op.dimensions, dtypes, dtype_of(result))
        return lowering.graph.add_choice(
            op.kind,
            (
                lambda body: place(
                    Site(lowering.graph, op.kind, where(instruction), sequence=body),
                    codelet,
                    form,
                    operands,
                    (dtype_of(result),),
                ),
                lambda body: _in_stages(replace(lowering, program=body), op.kind, composed, operands),
            ),
            lowering.program,
            where(instruction),
        )
    return _in_stages(lowering, op.kind, composed, operands)


def _in_stages(
    lowering: Lowering, kind: str, composed: Computation, operands: list[Tensor]
) -> tuple[Tensor, ...]:
    """Lower a function of rows operation by operation."""
    first = len(lowering.program.steps)
    results = lower_computation(replace(lowering, prefix=f"{kind}."), composed, operands)
    if kind in BY_INVERSE:
        steps = lowering.program.steps
        steps[first:] = [_divided_by_inverse(step) for step in steps[first:]]
    return results


def _divided_by_inverse(step: Step) -> Step:
    """Return a step that divides by what is smaller as its vertices do it: multiplying by the inverse."""
    if not isinstance(step, Operation) or not isinstance(step.codelet, Map) or len(step.codelet.body) != 1:
        return step
    ((name, arguments, attrs),) = step.codelet.body
    varies = dims_of_values((), step.form)
    if name != "divide" or attrs or not varies[arguments[1]] < varies[arguments[0]]:
        return step
    return replace(step, codelet=replace(step.codelet, body=((INVERTED, arguments, attrs),)))


def _passed(region: Computation, *passes: Pass) -> Computation:
    """Return a region after passes over it alone."""
    alone = Module("region", (region,), region.name)
    for each in passes:
        alone = each.run(alone)
    return alone.entry_computation


def row_body(region: Computation, dimensions: tuple[int, ...]) -> Body | None:
    """Return a region as rows of ``popnn.RowFunction``; None where it is more than that.

    Every value must lie along the operands' dimensions, in their places, or not vary along them.
    """
    return _Rows(region, dimensions).run()


class _Rows:
    """The rows of a region, and for every value the domain's dimension along each of its axes (-1: none)."""

    def __init__(self, region: Computation, dimensions: tuple[int, ...]) -> None:
        self.region, self.dimensions = region, dimensions
        self.axes: dict[Value, tuple[int, ...]] = {}
        self.index: dict[Value, int] = {}
        self.rows: list[tuple[str, tuple[int, ...], tuple[tuple[str, object], ...]]] = []

    def run(self) -> Body | None:
        """Return the rows."""
        for number, value in enumerate(self.region.parameters):
            self.index[value] = number
            self.axes[value] = tuple(-1 if n == 1 else d for d, n in enumerate(value.type.shape))
        for instruction in self.region.instructions:
            if not self._add(instruction):
                return None
        (result,) = self.region.results
        whole = tuple(-1 if n == 1 else d for d, n in enumerate(result.type.shape))
        is_last = self.index[result] == len(self.region.parameters) + len(self.rows) - 1
        return tuple(self.rows) if self.rows and is_last and self.axes[result] == whole else None

    def _row(
        self,
        value: Value,
        axes: tuple[int, ...],
        name: str,
        arguments: tuple[int, ...],
        *attrs: tuple[str, object],
    ) -> None:
        self.rows.append((name, arguments, attrs))
        self.index[value] = len(self.region.parameters) + len(self.rows) - 1
        self.axes[value] = axes

    def _alias(self, value: Value, of: Value, axes: tuple[int, ...]) -> bool:
        self.index[value], self.axes[value] = self.index[of], axes
        return True

    def _add(self, instruction: Instruction) -> bool:
        op, result = instruction.op, instruction.results[0]
        if len(instruction.results) != 1:
            return False
        if isinstance(op, ops.Constant):
            return op.is_splat and self._point(instruction, (-1,) * result.type.rank)
        axes = [self.axes[v] for v in instruction.operands]
        operand = instruction.operands[0]
        match op:
            case ops.Elementwise():
                spread = [along or (-1,) * result.type.rank for along in axes]
                joined = [set(along) - {-1} for along in zip(*spread, strict=True)]
                if any(len(along) > 1 for along in joined):
                    return False
                return self._point(instruction, tuple(max(along, default=-1) for along in joined))
            case ops.BroadcastInDim():
                moved = [-1] * result.type.rank
                for axis, d in enumerate(op.broadcast_dimensions):
                    moved[d] = axes[0][axis]
                return self._alias(result, operand, tuple(moved))
            case ops.Reshape():
                wide = [(n, axes[0][d]) for d, n in enumerate(operand.type.shape) if n != 1]
                if [n for n, _ in wide] != [n for n in result.type.shape if n != 1]:
                    return False
                rest = iter(wide)
                return self._alias(
                    result, operand, tuple(-1 if n == 1 else next(rest)[1] for n in result.type.shape)
                )
            case ops.Reduce():
                return self._fold(instruction, axes[0])
            case _:
                return False

    def _point(self, instruction: Instruction, axes: tuple[int, ...]) -> bool:
        """Add what one elementwise instruction computes of one point."""
        names = tuple(dict.fromkeys(instruction.operands))
        found, maps = expression(Computation("point", names, (instruction,), instruction.results))
        if len(found) != 1:
            return False
        (row,) = found
        arguments = tuple(self.index[names[maps[a].parameter]] for a in row.arguments)
        self._row(instruction.result, axes, row.function, arguments, *sorted(row.attributes.items()))
        return True

    def _fold(self, instruction: Instruction, axes: tuple[int, ...]) -> bool:
        """Add a fold over whole rows, and behind it an initial value that changes something."""
        op, result = instruction.op, instruction.results[0]
        assert isinstance(op, ops.Reduce)
        combiner = simple_combiner(instruction.regions[0])
        start = self.region.producers.get(instruction.operands[1])
        value = instruction.operands[0]
        if combiner not in _FOLDED or start is None or not isinstance(start.op, ops.Constant):
            return False
        if value.type.dtype != result.type.dtype:
            return False
        folded = {axes[d] for d in op.dimensions} - {-1}
        kept = tuple(axis for d, axis in enumerate(axes) if d not in op.dimensions)
        if all(value.type.shape[d] == 1 for d in op.dimensions):
            return combiner == "add" and not start.op.value and self._alias(result, value, kept)
        if folded != {d for d in self.dimensions if self._size(d) != 1}:
            return False
        self._row(result, kept, "fold", (self.index[value],), ("operation", combiner))
        neutral = neutral_element(combiner, dtype_of(result.type))
        initial = start.op.value.astype(neutral.dtype)
        if initial.tobytes() != neutral.tobytes() and (combiner != "add" or initial):
            pair = (self.index[result], self.index[instruction.operands[1]])
            self._row(result, kept, _FOLDED[combiner], pair)
        return True

    def _size(self, d: int) -> int:
        return self.region.parameters[0].type.shape[d]
