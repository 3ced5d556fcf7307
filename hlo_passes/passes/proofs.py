"""Proofs that some instructions compute a known function: all of them, in exact arithmetic, by algebra.

What stands between the operands and the result is evaluated as an expression (``passes.algebra``), and so is the
function's definition (``passes.known_functions``). Every instruction counts: one without a law ends the proof, and there
may be no more of them than the longest way of writing the function takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hlo_passes import ops
from hlo_passes.ir import Instruction, Op, Value
from hlo_passes.ops import simple_combiner
from hlo_passes.passes.algebra import Algebra, Expression, NotProvable
from hlo_passes.passes.error_functions import error_function
from hlo_passes.passes.known_functions import (
    MAX_EPSILON,
    MAX_OPERATIONS,
    TOLERANCES,
    Known,
    Numbers,
    definition,
    gradient_definition,
)
from hlo_passes.passes.samples import function_of, joined_axes, moved_axes, natural_axes

MOVEMENT = (ops.BroadcastInDim, ops.Constant, ops.Convert, ops.Reshape, ops.Transpose)
"""Operations that compute nothing new."""

_STEPS = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""By element type the relative step from one number to the next."""

_ROUNDINGS = 2
"""Steps by which a number may be off that rounded constants went into: four times half a step."""


@dataclass(frozen=True)
class Claim:
    """What is to be proved of a piece of a computation.

    Args:
      known: the function.
      is_gradient: whether it is the function's gradient; the operands are then source, gradient and, if there is
        one, what is added.
      of_result: whether the gradient's source is the function's result, else its operand.
      dimensions: the operands' dimensions that make up a row; none for functions of single elements.
    """

    known: Known
    is_gradient: bool = False
    of_result: bool = False
    dimensions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Proof:
    """That a claim holds.

    Args:
      kind: the function's name: which of those it may be.
      is_exact: whether constants differ by their rounding only, and there is no point at which the two differ.
    """

    kind: str
    is_exact: bool


def prove(claim: Claim, operands: Sequence[Value], cone: Sequence[Instruction]) -> Proof | None:
    """Return the proof that the last instruction's result is what is claimed of the operands; None if there is none.

    Args:
      claim: the claim.
      operands: what the instructions read.
      cone: the instructions, in order.
    """
    for kind in claim.known.variants:
        edges = _at_edges(kind, claim, operands, cone)
        proof = None if edges is None else _prove(kind, claim, operands, cone)
        if proof is not None:
            return Proof(kind, proof.is_exact and bool(edges))
    return None


def _prove(kind: str, claim: Claim, operands: Sequence[Value], cone: Sequence[Instruction]) -> Proof | None:
    rounding = _rounding(operands, cone)
    if rounding is None:
        return None
    shape = operands[0].type.shape
    algebra = Algebra(
        row_size=math.prod(shape[d] for d in claim.dimensions) if claim.dimensions else 0,
        tolerance=max(rounding, TOLERANCES[cone[-1].result.type.dtype]),
    )
    wanted = gradient_definition(kind, claim.of_result) if claim.is_gradient else definition(kind)
    if wanted is None:
        return None
    try:
        variables = [algebra.variable() for _ in operands]
        arguments = variables[:2] if claim.is_gradient else variables
        if kind != "norm":  # so that its exponentials are what others are taken to be powers of
            wanted(algebra, *arguments)
        evaluation = _Evaluation(algebra, claim, dict(zip(operands, variables, strict=True)), cone)
        found = evaluation.run()
        if evaluation.operations > MAX_OPERATIONS[kind][claim.is_gradient] + (len(operands) > 2):
            return None
        more = [_epsilon(algebra, variables[0])] if kind == "norm" else []
        ties = algebra.ties(found, sum(variables[len(arguments) :], wanted(algebra, *arguments, *more)))
    except (NotProvable, OverflowError, ZeroDivisionError):
        return None
    return None if ties is None else Proof(kind, not ties and algebra.deviation <= rounding)


_EDGES = np.array([-20.0, 20.0, -1e4, 1e4, -1e-6, 1e-6, -np.inf, np.inf, np.nan])
"""Numbers far from those of the tables."""


def _at_edges(kind: str, claim: Claim, operands: Sequence[Value], cone: Sequence[Instruction]) -> bool | None:
    """Return whether a function of single elements is what it should be far out; None if it differs by finite numbers.

    Where it overflows on the way and the function does not, or the other way round, the two are the same in exact
    arithmetic only.
    """
    if claim.dimensions:
        return True
    wanted = gradient_definition(kind, claim.of_result) if claim.is_gradient else definition(kind)
    if wanted is None:
        return None
    points = _EDGES[np.isfinite(_EDGES)] if claim.is_gradient else _EDGES
    given = [points, *(np.full_like(points, number) for number in (1.3, -0.7))][: len(operands)]
    values: dict[Value, Any] = dict(zip(operands, given, strict=True))
    with np.errstate(all="ignore"):
        for instruction in cone:
            op = instruction.op
            function = function_of(instruction) if isinstance(op, ops.Elementwise) else None
            if isinstance(op, ops.Constant) and op.is_splat:
                made = np.asarray(op.value, None if op.type.is_bool else np.float64)
            elif isinstance(op, MOVEMENT[:1] + MOVEMENT[3:]):
                made = values[instruction.operands[0]]
            elif function is not None:
                made = function(*(values[v] for v in instruction.operands))
            else:
                return None
            values[instruction.result] = made
        want = sum(given[2:], wanted(Numbers(), *given[:2]))
        found = values[cone[-1].result]
        near = np.abs(found - want) <= TOLERANCES[cone[-1].result.type.dtype] * np.maximum(1, np.abs(want))
    same = near | (found == want) | (np.isnan(found) & np.isnan(want))
    return None if (~same & np.isfinite(found) & np.isfinite(want)).any() else bool(same.all())


def _rounding(operands: Sequence[Value], cone: Sequence[Instruction]) -> float | None:
    """Return how far rounded constants may differ, of the larger; None if something in between is rounded more."""
    steps = {v: _STEPS.get(v.type.dtype) for i in cone for v in (*i.operands, *i.results) if v.type.is_float}
    ends = [_STEPS.get(v.type.dtype, math.inf) for v in (*operands, *cone[-1].results)]
    widest = max(ends)
    if widest == math.inf or any(step is None or step > widest for step in steps.values()):
        return None
    return _ROUNDINGS * widest


def _epsilon(algebra: Algebra, x: Expression) -> float:
    """Return what is added to the variance of a row wherever a power of it is taken."""
    variance = algebra.mean(x * x) - algebra.mean(x) ** 2
    for atom in algebra.atoms:
        if (
            atom.kind == "base"
            and atom.argument is not None
            and set(variance.terms) <= set(atom.argument.terms)
        ):
            key = min(variance.terms)
            added = atom.argument * (variance.terms[key][0] / atom.argument.terms[key][0]) - variance
            if added.constant is not None and 0 <= added.constant < MAX_EPSILON:
                return added.constant
    return 0.0


class _Evaluation:
    """A piece of a computation as expressions of its operands.

    Args:
      algebra: whose expressions.
      claim: what the rows are.
      given: expressions of the operands.
      cone: the instructions, in order.

    Attributes:
      operations: how many were evaluated so far, an error function counted as one, what only moves as none.
    """

    def __init__(
        self, algebra: Algebra, claim: Claim, given: Mapping[Value, Expression], cone: Sequence[Instruction]
    ) -> None:
        self.algebra, self.claim, self.cone = algebra, claim, cone
        self.values = dict(given)
        self.axes = {value: natural_axes(value.type) for value in given}
        self.producers = {v: i for i in cone for v in i.results if v not in given}
        self.operations = 0

    def run(self) -> Expression:
        """Return the last instruction's result.

        Raises:
          NotProvable: something in between has no law.
        """
        root = self.cone[-1].result
        source = next(iter(self.axes.values()))
        expression = self._value(root)
        if self.axes[root] != source:
            raise NotProvable("the result lies otherwise than its operand")
        return expression

    def _value(self, root: Value) -> Expression:
        """Return a value, computed from the operands on; inside an error function only its argument is looked at."""
        stack = [root]
        while stack:
            value = stack[-1]
            if value in self.values:
                stack.pop()
                continue
            instruction = self.producers[value]
            found = error_function(instruction, self.producers, self._number)
            needed = instruction.operands if found is None else (found[1],)
            missing = [v for v in needed if v not in self.values]
            if missing:
                stack.extend(missing)
                continue
            self.operations += not isinstance(instruction.op, MOVEMENT)
            if found is not None:
                made = self.algebra.erf(self.values[found[1]])
                self.values[value], self.axes[value] = 1 - made if found[0] else made, self.axes[found[1]]
            else:
                self.values[value], self.axes[value] = self._evaluated(instruction)
        return self.values[root]

    def _number(self, value: Value) -> float | None:
        """Return the number that a value is everywhere, None for others."""
        producer = self.producers.get(value)
        while producer is not None and isinstance(producer.op, MOVEMENT) and producer.operands:
            value = producer.operands[0]
            producer = self.producers.get(value)
        if producer is None or not isinstance(producer.op, ops.Constant) or not producer.op.is_splat:
            return None
        return float(producer.op.value)

    def _evaluated(self, instruction: Instruction) -> tuple[Expression, tuple[int, ...]]:
        op, result = instruction.op, instruction.result.type
        if isinstance(op, ops.Constant):
            return self._constant(op), (-1,) * result.rank
        axes = [self.axes[v] for v in instruction.operands]
        given = [self.values[v] for v in instruction.operands]
        if isinstance(op, (ops.BroadcastInDim, ops.Reshape, ops.Transpose)):
            moved = moved_axes(instruction, axes[0])
        elif isinstance(op, ops.Reduce):
            return self._folded(instruction, given[0], axes[0])
        else:
            moved = joined_axes(axes)
        if moved is None:
            raise NotProvable(f"{op.name} of values that lie otherwise")
        return self._pointwise(instruction, *given), moved

    def _constant(self, op: ops.Constant) -> Expression:
        if not op.is_splat:
            raise NotProvable("a constant of several numbers")
        value = float(op.value)
        if math.isnan(value):
            return self.algebra.variable(varies=False)  # known to be nothing
        return self.algebra.infinity(value) if math.isinf(value) else self.algebra.of(value)

    def _folded(
        self, instruction: Instruction, x: Expression, axes: tuple[int, ...]
    ) -> tuple[Expression, tuple[int, ...]]:
        op, operand = instruction.op, instruction.operands[0].type
        assert isinstance(op, ops.Reduce)
        kept = tuple(axis for d, axis in enumerate(axes) if d not in op.dimensions)
        folded = {axes[d] for d in op.dimensions if operand.shape[d] != 1}
        row = {d for d in self.claim.dimensions if self._size(d) != 1}
        combiner = simple_combiner(instruction.regions[0]) if len(instruction.operands) == 2 else None
        if combiner not in ("add", "max") or (folded and folded != row):
            raise NotProvable("a fold of something else than rows")
        initial = self.values[instruction.operands[1]]
        if combiner == "add":
            return (self.algebra.sum(x) if folded else x) + initial, kept
        return self.algebra.maximum(self.algebra.max(x) if folded else x, initial), kept

    def _size(self, d: int) -> int:
        """Return the size of the source's dimension ``d``."""
        return next(iter(self.axes)).type.shape[d]

    def _pointwise(self, instruction: Instruction, *given: Expression) -> Expression:
        """Return what an instruction computes element by element.

        Raises:
          NotProvable: there is no law for it.
        """
        op, m = instruction.op, self.algebra
        if isinstance(op, (ops.BroadcastInDim, ops.Reshape, ops.Transpose)):
            return given[0]
        if isinstance(op, ops.Convert) and instruction.result.type.is_float:
            return given[0]
        if isinstance(op, ops.Compare) and instruction.operands[0].type.is_float:
            return _compared(m, op.direction, *given)
        if isinstance(op, ops.Power) and (exponent := given[1].constant) is not None:
            return given[0] ** exponent
        law = _LAWS.get(type(op))
        if law is None or (type(op) in _LOGICAL and not instruction.result.type.is_bool):
            raise NotProvable(f"no law for {op.name}")
        return law(m, *given)


def _compared(m: Algebra, direction: str, x: Expression, y: Expression) -> Expression:
    match direction:
        case "GT":
            return m.positive(x - y)
        case "LT":
            return m.positive(y - x)
        case "GE":
            return 1 - m.positive(y - x)
        case "LE":
            return 1 - m.positive(x - y)
        case "EQ":
            return m.zero(x - y)
        case _:
            return 1 - m.zero(x - y)


_Law = (
    Callable[[Algebra, Expression], Expression]
    | Callable[[Algebra, Expression, Expression], Expression]
    | Callable[[Algebra, Expression, Expression, Expression], Expression]
)

_LAWS: dict[type[Op], _Law] = {
    ops.Abs: lambda m, x: m.maximum(x, -x),
    ops.Add: lambda m, x, y: x + y,
    ops.And: lambda m, x, y: x * y,
    ops.Clamp: lambda m, low, x, high: m.minimum(m.maximum(x, low), high),
    ops.Divide: lambda m, x, y: x / y,
    ops.Exponential: lambda m, x: m.exp(x),
    ops.ExponentialMinusOne: lambda m, x: m.exp(x) - 1,
    ops.IsFinite: lambda m, x: m.finite(x),
    ops.Log: lambda m, x: m.log(x),
    ops.LogPlusOne: lambda m, x: m.log(x + 1),
    ops.Logistic: lambda m, x: m.sigmoid(x),
    ops.Maximum: lambda m, x, y: m.maximum(x, y),
    ops.Minimum: lambda m, x, y: m.minimum(x, y),
    ops.Multiply: lambda m, x, y: x * y,
    ops.Negate: lambda m, x: -x,
    ops.Not: lambda m, x: 1 - x,
    ops.Or: lambda m, x, y: x + y - x * y,
    ops.Rsqrt: lambda m, x: x**-0.5,
    ops.Select: lambda m, truth, x, y: m.choose(truth, x, y),
    ops.Sign: lambda m, x: m.positive(x) - m.positive(-x),
    ops.Sqrt: lambda m, x: x**0.5,
    ops.Subtract: lambda m, x, y: x - y,
    ops.Tanh: lambda m, x: m.tanh(x),
    ops.Xor: lambda m, x, y: x + y - 2 * x * y,
}
"""What operations are in an algebra."""

_LOGICAL = (ops.And, ops.Not, ops.Or, ops.Xor)
