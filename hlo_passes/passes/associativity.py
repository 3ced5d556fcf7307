"""Whether a function that combines values is associative: of exact numbers, and of words that wrap around.

Both groupings of three operands are written out as polynomials and compared. Selections are polynomials, too, in truth
values, which are their own squares. A constant that is not 0, 1 or -1 stands for itself in floats and for some word in the
ring, so it is a variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hlo_passes.ir import Computation, Instruction
from hlo_passes.ops import Constant, simple_combiner
from hlo_passes.ops.elementwise import Add, And, Convert, Multiply, Negate, Not, Or, Select, Subtract
from hlo_passes.passes.lifting import separate

Polynomial = dict[tuple[tuple[int, int], ...], int]
"""Coefficients by monomial: pairs of a variable and its exponent, sorted."""

_MOST_TERMS = 400
"""Terms of polynomials beyond which nothing is claimed."""


def is_associative(region: Computation) -> bool:
    """Return whether a region that combines N values with N others, all scalars, is known to be associative."""
    parts = separate(region) or [region]
    return all(simple_combiner(part) is not None or _has_equal_groupings(part) for part in parts)


def _has_equal_groupings(region: Computation) -> bool:
    """Return whether both groupings of three operands are the same polynomials."""
    polynomials = _Polynomials([x.type.is_bool for x in region.results])
    a, b, c = (polynomials.variables(n) for n in range(3))
    left, right = polynomials.applied(region, [*a, *b]), polynomials.applied(region, [*b, *c])
    if left is None or right is None:
        return False
    first, second = polynomials.applied(region, [*left, *c]), polynomials.applied(region, [*a, *right])
    return first is not None and first == second


@dataclass
class _Polynomials:
    """Polynomials in variables of which some are truth values.

    Args:
      truths: of the values of one operand, which are. Variable k of operand n has the number ``n * len(truths) + k``.
      constants: by type and bits the numbers of the variables that stand for constants.
    """

    truths: Sequence[bool]
    constants: dict[tuple[str, bytes], int] = field(default_factory=dict[tuple[str, bytes], int])

    def variables(self, operand: int) -> list[Polynomial]:
        """Return the values of an operand."""
        count = len(self.truths)
        return [{((operand * count + k, 1),): 1} for k in range(count)]

    def applied(self, region: Computation, arguments: Sequence[Polynomial]) -> list[Polynomial] | None:
        """Return what a region makes of polynomials; None if that is not known to be some, or if they are long."""
        env = {x.name: p for x, p in zip(region.parameters, arguments, strict=True)}
        for instruction in region.instructions:
            made = self._made(instruction, [env[x.name] for x in instruction.operands])
            if made is None or len(made) > _MOST_TERMS:
                return None
            env[instruction.result.name] = made
        return [env[x.name] for x in region.results]

    def _made(self, instruction: Instruction, p: Sequence[Polynomial]) -> Polynomial | None:
        op, is_bool = instruction.op, instruction.result.type.is_bool
        if isinstance(op, Constant):
            return self._constant(op)
        if isinstance(op, Negate):
            return _sum({}, p[0], -1)
        if isinstance(op, Subtract):
            return _sum(p[0], p[1], -1)
        if isinstance(op, Not) and is_bool:
            return _sum({(): 1}, p[0], -1)
        if isinstance(op, Convert) and instruction.operands[0].type.is_bool:
            return p[0]
        if isinstance(op, Select):
            return _sum(self._product(p[0], _sum(p[1], p[2], -1)), p[2])
        if isinstance(op, Multiply) or (isinstance(op, And) and is_bool):
            return self._product(p[0], p[1])
        if isinstance(op, (Add, Or)) and is_bool:
            return _sum(_sum(p[0], p[1]), self._product(p[0], p[1]), -1)
        return _sum(p[0], p[1]) if isinstance(op, Add) else None

    def _constant(self, op: Constant) -> Polynomial:
        value = np.asarray(op.value)
        for number in (0, 1, -1):
            if value == number:
                return {(): number} if number else {}
        key = op.type.dtype, value.tobytes()
        return {((self.constants.setdefault(key, 3 * len(self.truths) + len(self.constants)), 1),): 1}

    def _product(self, one: Polynomial, other: Polynomial) -> Polynomial:
        result: Polynomial = {}
        for key, a in one.items():
            for more, b in other.items():
                powers = dict(key)
                for variable, exponent in more:
                    powers[variable] = powers.get(variable, 0) + exponent
                joined = tuple(sorted((v, 1 if self._is_truth(v) else e) for v, e in powers.items()))
                result[joined] = result.get(joined, 0) + a * b
        return {key: value for key, value in result.items() if value}

    def _is_truth(self, variable: int) -> bool:
        count = len(self.truths)
        return variable < 3 * count and self.truths[variable % count]


def _sum(one: Polynomial, other: Polynomial, factor: int = 1) -> Polynomial:
    """Return ``one + factor * other``."""
    result = dict(one)
    for key, value in other.items():
        result[key] = result.get(key, 0) + factor * value
    return {key: value for key, value in result.items() if value}
