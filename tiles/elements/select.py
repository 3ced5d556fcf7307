"""Instruction selection: a jaxpr's equations one after the other, each by the rule of its primitive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from tiles._jax_compat import Atom, Datum, Equation
from tiles.elements import bfloat16, routines
from tiles.elements.cell import CELL
from tiles.elements.emitter import Emitter
from tiles.elements.rules import RULES
from tiles.elements.values import Forms, Value
from tiles.errors import NoTileCode
from tiles.files import is_list

_CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "remat2",
    "checkpoint",
)


ONE_FUNCTION = "one_function"
"""Name of a call inside of which bfloat16 is not rounded: what it computes is one function, its result is."""


@dataclass(frozen=True)
class Equations:
    """A part of a jaxpr: its constants, operands and results, and the equations between them."""

    constvars: list[Atom]
    invars: list[Atom]
    outvars: list[Atom]
    eqns: list[Equation]


def part_of(jaxpr: Jaxpr, operands: slice, results: slice) -> Equations:
    """Return the part of a jaxpr that gives some of its results from some of its operands, on which alone they depend."""
    outvars = list(jaxpr.outvars[results])
    invars = list(jaxpr.invars[operands])
    return Equations(list(jaxpr.constvars), invars, outvars, _needed(jaxpr.eqns, outvars))


def _needed(equations: Sequence[Equation], outvars: Sequence[Atom]) -> list[Equation]:
    """Return the equations on which variables depend, in order."""
    wanted, kept = set[Atom](v for v in outvars if not isinstance(v, Literal)), list[Equation]()
    for eqn in reversed(equations):
        if wanted.intersection(eqn.outvars):
            kept.append(eqn)
            wanted.update(v for v in eqn.invars if not isinstance(v, Literal))
    return kept[::-1]


def with_sigmoids(jaxpr: Jaxpr | Equations, consts: Sequence[Datum]) -> Jaxpr | Equations:
    """Return a jaxpr whose ``1 / (1 + exp(-x))`` are the function that the machine has an instruction for.

    That is what JAX's sigmoid and silu say. The instruction rounds once where exponential, sum and quotient each do. What
    was computed for a quotient alone is left out.
    """
    made: dict[Atom, Equation] = {out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}
    known = dict(zip(jaxpr.constvars, consts, strict=True))

    def is_one(atom: Atom) -> bool:
        (atom,) = operands(atom, "optimization_barrier") or (
            atom,
        )  # constants of expressions stand behind one
        value = atom.val if isinstance(atom, Literal) else known.get(atom)
        return value is not None and np.size(value) == 1 and bool(np.all(np.asarray(value) == 1))

    def operands(atom: Atom, name: str) -> tuple[Atom, ...]:
        eqn = None if isinstance(atom, Literal) else made.get(atom)
        return tuple(eqn.invars) if eqn is not None and eqn.primitive.name == name else ()

    def argument(eqn: Equation) -> Atom | None:
        """Return the ``x`` of a quotient that is its sigmoid."""
        if eqn.primitive.name != "div" or not is_one(eqn.invars[0]):
            return None
        summands = operands(eqn.invars[1], "add")
        exponentials = [v for v in summands if not is_one(v)]
        if len(summands) != 2 or len(exponentials) != 1:
            return None
        negated = [x for v in operands(exponentials[0], "exp") for x in operands(v, "neg")]
        return negated[0] if negated else None

    found = [argument(eqn) for eqn in jaxpr.eqns]
    if not any(x is not None for x in found):
        return jaxpr
    equations = [
        eqn if x is None else eqn.replace(primitive=lax.logistic_p, invars=[x], params={"accuracy": None})
        for eqn, x in zip(jaxpr.eqns, found, strict=True)
    ]
    outvars = list(jaxpr.outvars)
    return Equations(list(jaxpr.constvars), list(jaxpr.invars), outvars, _needed(equations, outvars))


class Walker:
    """Walks a jaxpr and keeps the value of each variable; the context of all rules."""

    def __init__(self, emitter: Emitter, lanes: int) -> None:
        """Emit into ``emitter``; element-level values have ``lanes`` lanes."""
        self.emitter = emitter
        self.forms = Forms(emitter, lanes)
        self.rounds = True
        self._constants: dict[tuple[str, str], Value] = {}
        self._known: dict[tuple[str, str, bool, tuple[int, ...]], tuple[list[Value], list[Value]]] = {}

    def level(self, *values: Value) -> int:
        """Return the level at which a function of the values is computed."""
        return max((v.level for v in values), default=CELL)

    def constant(self, number: float | int | bool, dtype: str) -> Value:
        """Return a literal: one value for all places that name it, so that it is brought into every form once."""
        return self._constants.setdefault((dtype, repr(number)), Value(dtype, CELL, 1, constant=number))

    def run(self, jaxpr: Jaxpr | Equations, consts: list[Datum], operands: list[Value]) -> list[Value]:
        """Return the values of a jaxpr's results.

        Raises:
          NoTileCode: an operation without code; names it.
        """
        jaxpr = with_sigmoids(jaxpr, consts)
        env: dict[Atom, Value] = dict(zip(jaxpr.invars, operands, strict=True))
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            env[var] = self._constant_array(const)
        for eqn in jaxpr.eqns:
            values = [self._read(env, atom) for atom in eqn.invars]
            env.update(zip(eqn.outvars, self.equation(eqn, values), strict=True))
        return [self._read(env, atom) for atom in jaxpr.outvars]

    def equation(self, eqn: Equation, values: list[Value]) -> list[Value]:
        """Return the results of one equation, those of an equal one of the same values where there was one.

        Routines of one argument have much in common: sine and cosine, all but the end.
        """
        name = eqn.primitive.name
        if name in _CALLS:
            inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
            closed = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, [])
            if eqn.params.get("name") == ONE_FUNCTION and self.rounds:
                self.rounds = False
                results = self.run(closed.jaxpr, list(closed.consts), values)
                self.rounds = True
                return bfloat16.rounded_results(self, eqn, results)
            return self.run(closed.jaxpr, list(closed.consts), values)
        if not values:  # a generator's: every number is another one
            return self._computed(eqn, values)
        key = name, repr(sorted(eqn.params.items())), self.rounds, tuple(map(id, values))
        if key not in self._known:
            self._known[key] = (
                self._computed(eqn, values),
                values,
            )  # kept, so that no other value has its identity
        return self._known[key][0]

    def _computed(self, eqn: Equation, values: list[Value]) -> list[Value]:
        if bfloat16.concerns(eqn):
            return bfloat16.computed(self, eqn, values, lambda wide: self._by_rule(eqn, wide))
        return self._by_rule(eqn, values)

    def _by_rule(self, eqn: Equation, values: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        rule = RULES.get(name)
        if rule is not None:
            value = rule(self, eqn.params, *values)
            return list(value) if is_list(value) else [value]
        routine = routines.find(name, tuple(v.dtype for v in values))
        if routine is None:
            raise NoTileCode(f"no tile code for {name!r} of {', '.join(v.dtype for v in values)}")
        return self.run(routine.jaxpr, list(routine.consts), values)

    def _read(self, env: dict[Atom, Value], atom: Atom) -> Value:
        if isinstance(atom, Literal):
            return self._constant_array(atom.val)
        if atom not in env:
            raise NoTileCode("a function of a reduced value and of what was not reduced, in one cell")
        return env[atom]

    def _constant_array(self, array: Datum) -> Value:
        values = np.asarray(array)
        if values.size != 1:
            raise NoTileCode(f"a constant array of shape {values.shape} in a cell's body", expected="scalars")
        return self.constant(values.reshape(()).item(), values.dtype.name)
