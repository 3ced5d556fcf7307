"""Loops and branches. Their regions are closed: what a region reads from outside is an operand.

Evaluation is by JAX's own control flow. What decides a loop or branch goes through the ``decisions`` that the
regions were handed (see ``ir.interpreter``), so that a run can record its decisions and another repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from hlo_passes._jax_compat import fori_loop, switch
from hlo_passes.ir.interpreter import Closure, Datum, as_closure, as_computation
from hlo_passes.ir.module import Computation
from hlo_passes.ir.op import FusionCategory, Op
from hlo_passes.ir.types import TensorType

_PREDICATE = TensorType((), "i1")
_INDEX = TensorType((), "i32")


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


_Carry: TypeAlias = tuple[tuple[Datum, ...], Datum]
"""Carried values, and the state of the decisions."""

_WhileCarry: TypeAlias = tuple[Datum, tuple[Datum, ...], Datum]
"""Whether another round follows, carried values, and the state of the decisions."""


@dataclass(frozen=True)
class ControlFlow(Op):
    """What loops and branches have in common; not an operation itself."""

    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE
    is_control: ClassVar[bool] = True

    def require_region(
        self,
        tag: str,
        region: Computation | Closure,
        takes: Sequence[TensorType],
        gives: Sequence[TensorType] | None,
    ) -> None:
        """Raise ``ConstraintViolation`` with ``tag`` unless a region has this type; any results for None."""
        body = as_computation(region)
        wanted = body.result_types if gives is None else tuple(gives)
        self.require(
            tag,
            body.parameter_types == tuple(takes) and body.result_types == wanted,
            lambda: (
                f"@{body.name} has type ({_listed(body.parameter_types)}) -> ({_listed(body.result_types)}), "
                f"expected ({_listed(takes)}) -> ({_listed(wanted)})"
            ),
        )

    def require_count(self, regions: Sequence[object], expected: int) -> None:
        """Raise ``ConstraintViolation`` tagged ``arity`` unless there are ``expected`` regions."""
        if len(regions) != expected:
            self.require("arity", False, f"expected {expected} regions, got {len(regions)}")


@dataclass(frozen=True)
class While(ControlFlow):
    """While the first region is true of the values, replace them by what the second makes of them.

    The last ``invariants`` operands are read by the regions and stay as they are; the others are carried, and
    their last values are the results. Spec: StableHLO "while", constraints C1-C3 (its regions take no
    invariants: they may read values from outside).
    """

    name: ClassVar[str] = "stablehlo.while"
    num_regions: ClassVar[int] = 2
    invariants: int = 0

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the types of the carried operands."""
        self.require_count(regions, 2)
        carried = _carried(self, self.invariants, operands)
        self.require_region("C1", regions[0], operands, (_PREDICATE,))
        self.require_region("C2", regions[1], operands, carried)
        return carried

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Loop with ``lax.while_loop``; the predicate is part of what is carried."""
        condition, body = (as_closure(region) for region in regions)
        count = len(operands) - self.invariants
        invariants = operands[count:]
        decisions = body.decisions

        def decided(values: Sequence[Datum]) -> _WhileCarry:
            (holds,) = condition(*values, *invariants)
            return decisions.goes_on(holds), tuple(values), decisions.state

        def again(carry: _WhileCarry) -> _WhileCarry:
            decisions.state = carry[2]
            return decided(body(*carry[1], *invariants))

        _, values, decisions.state = lax.while_loop(lambda c: c[0], again, decided(operands[:count]))
        return tuple(values)


@dataclass(frozen=True)
class Repeat(ControlFlow):
    """Replace the carried values ``count`` times by what the region makes of them.

    The last ``invariants`` operands are read by the region and stay as they are. Spec: a StableHLO "while"
    whose trip count is a constant; constraints C1 (a count that is not negative) and C2 as there.
    """

    name: ClassVar[str] = "hlo.repeat"
    num_regions: ClassVar[int] = 1
    count: int
    invariants: int = 0

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the types of the carried operands."""
        self.require_count(regions, 1)
        self.require("C1", self.count >= 0, f"the region cannot run {self.count} times")
        carried = _carried(self, self.invariants, operands)
        self.require_region("C2", regions[0], operands, carried)
        return carried

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Loop with ``lax.fori_loop``."""
        body = as_closure(regions[0])
        count = len(operands) - self.invariants
        invariants, decisions = operands[count:], body.decisions

        def again(_: Array, carry: _Carry) -> _Carry:
            decisions.state = carry[1]
            return tuple(body(*carry[0], *invariants)), decisions.state

        values, decisions.state = fori_loop(0, self.count, again, (operands[:count], decisions.state))
        return tuple(values)


def _carried(op: ControlFlow, invariants: int, operands: Sequence[TensorType]) -> tuple[TensorType, ...]:
    count = len(operands) - invariants
    message = f"{invariants} invariants among {len(operands)} operands"
    op.require("arity", invariants >= 0 and count >= 0, message)
    return tuple(operands[:count])


@dataclass(frozen=True)
class Case(ControlFlow):
    """Run the region that the first operand numbers, the last one for a number out of range.

    Every region takes the remaining operands. Spec: StableHLO "case", constraints C1-C4 (its regions take no
    operands: they may read values from outside).
    """

    name: ClassVar[str] = "stablehlo.case"
    num_regions: ClassVar[int | None] = None

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the result types of the regions."""
        self.require("C1", len(regions) >= 1, "expected at least one region")
        is_index = operands[:1] == (_INDEX,)
        self.require("I1", is_index, lambda: f"expected an index {_INDEX}, got {_listed(operands[:1])}")
        for region in regions:
            self.require_region("C2", region, operands[1:], None)
            self.require_region("C3", region, operands[1:], as_computation(regions[0]).result_types)
        return as_computation(regions[0]).result_types

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Choose with ``lax.switch``."""
        index, *arguments = operands
        return _choose(index, len(regions) - 1, [as_closure(region) for region in regions], arguments)


@dataclass(frozen=True)
class If(ControlFlow):
    """Run the first region if the first operand is true, else the second.

    Both take the remaining operands. Spec: StableHLO "if", constraints C1-C3 (its regions take no operands:
    they may read values from outside).
    """

    name: ClassVar[str] = "stablehlo.if"
    num_regions: ClassVar[int] = 2

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the result types of the regions."""
        self.require_count(regions, 2)
        is_predicate = operands[:1] == (_PREDICATE,)
        message = f"expected a predicate {_PREDICATE}, got {_listed(operands[:1])}"
        self.require("I1", is_predicate, message)
        for region in regions:
            self.require_region("C1", region, operands[1:], None)
            self.require_region("C2", region, operands[1:], as_computation(regions[0]).result_types)
        return as_computation(regions[0]).result_types

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Choose with ``lax.switch``."""
        predicate, *arguments = operands
        on_true, on_false = (as_closure(region) for region in regions)
        return _choose(predicate, 1, [on_false, on_true], arguments)


def _choose(
    index: Datum, otherwise: int, branches: list[Closure], arguments: list[Datum]
) -> tuple[Datum, ...]:
    """Run the branch of a number, ``otherwise`` for a number out of range."""
    decisions = branches[0].decisions
    index = decisions.take(index).astype(jnp.int32)
    index = jnp.where((index < 0) | (index >= len(branches)), otherwise, index)

    def run(branch: Closure) -> Callable[..., _Carry]:
        def apart(state: Datum, *values: Datum) -> _Carry:
            decisions.state = state
            return tuple(branch(*values)), decisions.state

        return apart

    results, decisions.state = switch(index, [run(b) for b in branches], decisions.state, *arguments)
    return tuple(results)
