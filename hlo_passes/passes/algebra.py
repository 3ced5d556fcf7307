"""Expressions of real numbers in a form in which equality is decided by algebra, not by trying values.

An expression is a sum of products of *atoms* with exponents: ``3 * x * exp(x)^-1``. Atoms are the variables, what no
law takes apart (``exp`` of a variable, the sum of ``exp(x)`` along a row), sums that are raised to a power
(``(1 + exp(x))^-1``), and truth values, which are 0 or 1. The laws are those of exponentials, logarithms and powers;
a sum along a row is linear; a function of truth values is the sum over their cases. Whatever else two expressions
may have in common is not seen, so what is found equal is equal for all values of the variables (where both are
defined), and what is not found equal may be.

Constants are compared with a tolerance, since programs state them rounded; what was needed is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias, Union

Monomial: TypeAlias = tuple[tuple[int, Fraction], ...]
Number: TypeAlias = Union["Expression", float, int]

_MAX_TERMS = 600
_MAX_CASES = 6
_CANCELLED = 1e-11
_ONE = Fraction(1)


class NotProvable(Exception):
    """An expression that the laws here say nothing about."""


@dataclass(frozen=True, eq=False)
class Atom:
    """What expressions are made of.

    Args:
      kind: ``variable``, ``exp``, ``log``, ``erf``, ``base``, ``sum``, ``max``, ``positive``, ``zero`` or ``finite``.
      argument: what it is a function of; None for a variable.
      varies: whether it differs along a row.
      is_positive: whether it is more than zero wherever it is defined.
      partner: of ``positive`` the index of the ``zero`` of the same argument, and the reverse.
    """

    kind: str
    argument: Expression | None
    varies: bool
    is_positive: bool = False
    partner: int = -1

    @property
    def is_truth(self) -> bool:
        """Whether it is 0 or 1."""
        return self.kind in ("positive", "zero", "finite")


@dataclass(frozen=True, eq=False)
class Expression:
    """A sum of monomials.

    Args:
      algebra: whose atoms it is made of.
      terms: by monomial the coefficient and the sum of the magnitudes that were added up to it.
    """

    algebra: Algebra
    terms: dict[Monomial, tuple[float, float]]

    def __add__(self, other: Number) -> Expression:
        """Return the sum."""
        terms = dict(self.terms)
        for key, (value, size) in self.algebra.of(other).terms.items():
            old, weight = terms.get(key, (0.0, 0.0))
            terms[key] = old + value, weight + size
        return self.algebra.make(terms)

    def __mul__(self, other: Number) -> Expression:
        """Return the product."""
        return self.algebra.product(self, self.algebra.of(other))

    def __neg__(self) -> Expression:
        """Return the negative."""
        return Expression(self.algebra, {key: (-value, size) for key, (value, size) in self.terms.items()})

    def __sub__(self, other: Number) -> Expression:
        """Return the difference."""
        return self + -self.algebra.of(other)

    def __truediv__(self, other: Number) -> Expression:
        """Return the quotient."""
        return self * self.algebra.of(other) ** -1

    def __pow__(self, exponent: float | Fraction) -> Expression:
        """Return a power with a constant exponent."""
        return self.algebra.power(self, Fraction(exponent).limit_denominator(64))

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Number) -> Expression:
        """Return the difference from something else."""
        return self.algebra.of(other) - self

    def __rtruediv__(self, other: Number) -> Expression:
        """Return the quotient of something else by this."""
        return self.algebra.of(other) * self**-1

    @property
    def constant(self) -> float | None:
        """The number that it is, None if it is none."""
        if not self.terms:
            return 0.0
        return self.terms[()][0] if set(self.terms) == {()} else None

    @property
    def atoms(self) -> set[int]:
        """The atoms in it."""
        return {atom for key in self.terms for atom, _ in key}


@dataclass
class Algebra:
    """Atoms, and the laws that hold between them.

    Args:
      row_size: elements along a row; 0 where there are no rows.
      tolerance: how far constants may differ, of the larger.

    Attributes:
      deviation: the largest difference of constants that was overlooked so far, of the larger.
    """

    row_size: int = 0
    tolerance: float = 1e-6
    atoms: list[Atom] = field(default_factory=list[Atom])
    deviation: float = 0.0
    _infinity: Expression | None = None

    # ---- making expressions

    def variable(self, varies: bool = True) -> Expression:
        """Return a new variable."""
        return self._atom(Atom("variable", None, varies))

    def of(self, value: Number) -> Expression:
        """Return a number as an expression.

        Raises:
          NotProvable: it is no finite number.
        """
        if isinstance(value, Expression):
            return value
        if not math.isfinite(value):
            raise NotProvable(f"{value} in an expression")
        return self.make({(): (float(value), abs(float(value)))})

    def make(self, terms: dict[Monomial, tuple[float, float]]) -> Expression:
        """Return a sum of terms without those that cancelled."""
        kept = {key: term for key, term in terms.items() if abs(term[0]) > _CANCELLED * term[1]}
        if len(kept) > _MAX_TERMS:
            raise NotProvable(f"an expression of {len(kept)} terms")
        return Expression(self, kept)

    def _atom(self, atom: Atom) -> Expression:
        self.atoms.append(atom)
        return self._of_atom(len(self.atoms) - 1)

    def _of_atom(self, index: int, exponent: Fraction = _ONE) -> Expression:
        return Expression(self, {((index, exponent),): (1.0, 1.0)})

    def _varies(self, expression: Expression) -> bool:
        return any(self.atoms[a].varies for a in expression.atoms)

    # ---- products and powers

    def product(self, left: Expression, right: Expression) -> Expression:
        """Return the product."""
        if len(left.terms) * len(right.terms) > 8 * _MAX_TERMS:
            raise NotProvable("a product of too many terms")
        terms: dict[Monomial, tuple[float, float]] = {}
        for one, (a, size) in left.terms.items():
            for other, (b, weight) in right.terms.items():
                key = self._joined(one, other)
                if key is not None:
                    old, before = terms.get(key, (0.0, 0.0))
                    terms[key] = old + a * b, before + size * weight
        return self.make(terms)

    def _joined(self, one: Monomial, other: Monomial) -> Monomial | None:
        """Return the product of two monomials, None where it is zero."""
        exponents = dict(one)
        for atom, exponent in other:
            exponents[atom] = exponents.get(atom, Fraction(0)) + exponent
        for atom in exponents:
            found = self.atoms[atom]
            if found.is_truth:
                exponents[atom] = _ONE
                if found.partner in exponents:
                    return None
                if found.kind == "zero" and any(exponents.get(a, 0) > 0 for a in self._vanishing(found)):
                    return None
        return tuple(sorted((a, e) for a, e in exponents.items() if e))

    def _vanishing(self, zero: Atom) -> Iterable[int]:
        """Return the atom that is zero where this truth holds, if it says so of a single one."""
        assert zero.argument is not None
        if len(zero.argument.terms) != 1:
            return ()
        (key,) = zero.argument.terms
        return (key[0][0],) if len(key) == 1 and key[0][1] > 0 else ()

    def power(self, x: Expression, exponent: Fraction) -> Expression:
        """Return a constant power.

        Raises:
          NotProvable: a root of what may be negative, or a quotient by zero.
        """
        if exponent.denominator == 1 and 0 <= exponent <= 8:
            made = self.of(1)
            for _ in range(int(exponent)):
                made = made * x
            return made
        return self._by_cases(x, lambda case: self._power(case, exponent))

    def _power(self, x: Expression, exponent: Fraction) -> Expression:
        if not x.terms:
            raise NotProvable("a power of zero")
        is_root = exponent.denominator != 1
        content = self._content(x)
        if is_root:
            content = {a: e for a, e in content.items() if self.atoms[a].is_positive}
        rest = {self._divided(key, content): term for key, term in x.terms.items()}
        lead = rest[min(rest)][0]
        scale = abs(lead) if is_root else lead
        made = self.of(scale ** float(exponent))
        for atom, e in content.items():
            made = made * self._of_atom(atom, e * exponent)
        if set(rest) == {()} and rest[()][0] == scale:
            return made
        if len(rest) == 1:
            ((key, (value, _)),) = rest.items()
            simple = len(key) == 1 and key[0][1].numerator % 2 and key[0][1].denominator == 1 and value > 0
            if not simple:
                raise NotProvable("a root of a product")
            return made * self._of_atom(key[0][0], key[0][1] * exponent)
        base = Expression(self, {key: (v / scale, w / abs(scale)) for key, (v, w) in rest.items()})
        return made * self._of_atom(self._found("base", base), exponent)

    def _content(self, x: Expression) -> dict[int, Fraction]:
        """Return the largest monomial that divides every term."""
        atoms = {a for key in x.terms for a, _ in key if not self.atoms[a].is_truth}
        least = {a: min(dict(key).get(a, Fraction(0)) for key in x.terms) for a in atoms}
        return {a: e for a, e in sorted(least.items()) if e}

    @staticmethod
    def _divided(key: Monomial, content: dict[int, Fraction]) -> Monomial:
        left = {a: e - content.get(a, Fraction(0)) for a, e in key}
        left.update((a, -e) for a, e in content.items() if a not in left)
        return tuple(sorted((a, e) for a, e in left.items() if e))

    def _found(self, kind: str, argument: Expression, **more: bool) -> int:
        """Return the atom of that kind and argument, a new one if there is none."""
        for index, atom in enumerate(self.atoms):
            if atom.kind == kind and atom.argument is not None and self.is_equal(atom.argument, argument):
                return index
        self.atoms.append(Atom(kind, argument, more.pop("varies", self._varies(argument)), **more))
        return len(self.atoms) - 1

    # ---- functions

    def exp(self, x: Expression) -> Expression:
        """Return the exponential."""
        return self._by_cases(x, self._exp)

    def _exp(self, x: Expression) -> Expression:
        made = self.of(1)
        varying: dict[Monomial, tuple[float, float]] = {}
        for key, (value, size) in x.terms.items():
            atom = self.atoms[key[0][0]] if len(key) == 1 and key[0][1] == 1 else None
            if not key:
                made = made * math.exp(value)
            elif atom is not None and atom.kind == "log":
                assert atom.argument is not None
                made = made * self.power(atom.argument, self._simple(value))
            elif any(self.atoms[a].varies for a, _ in key):
                varying[key] = value, size
            else:
                made = made * self._exp_of(Expression(self, {key: (value, size)}))
        return made * self._exp_of(Expression(self, varying)) if varying else made

    def _exp_of(self, x: Expression) -> Expression:
        for index, atom in enumerate(self.atoms):
            if atom.kind == "exp":
                assert atom.argument is not None
                ratio = self._ratio(x, atom.argument)
                if ratio is not None:
                    return self._of_atom(index, ratio)
        return self._atom(Atom("exp", x, self._varies(x), is_positive=True))

    def _ratio(self, x: Expression, y: Expression) -> Fraction | None:
        """Return the simple number by which ``y`` is to be multiplied to give ``x``; None if there is none."""
        if set(x.terms) != set(y.terms):
            return None
        key = next(iter(x.terms))
        try:
            ratio = self._simple(x.terms[key][0] / y.terms[key][0])
        except NotProvable:
            return None
        return ratio if self.is_equal(x, y * float(ratio)) else None

    def _simple(self, value: float) -> Fraction:
        """Return a number as the fraction with a small denominator that it is."""
        ratio = Fraction(value).limit_denominator(8)
        if not ratio or not self._close(float(ratio), value, abs(value)):
            raise NotProvable(f"{value} as an exponent")
        return ratio

    def log(self, x: Expression) -> Expression:
        """Return the natural logarithm."""
        return self._by_cases(x, self._log)

    def _log(self, x: Expression) -> Expression:
        content = {a: e for a, e in self._content(x).items() if self.atoms[a].is_positive}
        rest = {self._divided(key, content): term for key, term in x.terms.items()}
        made = self.of(0)
        for index, e in content.items():
            atom = self.atoms[index]
            if atom.kind == "exp":
                assert atom.argument is not None
                made = made + atom.argument * float(e)
            else:
                made = made + float(e) * self._of_atom(self._found("log", self._of_atom(index)))
        number = Expression(self, rest).constant
        if number is not None:
            if number <= 0:
                raise NotProvable("the logarithm of what is not positive")
            return made + math.log(number)
        return made + self._of_atom(self._found("log", Expression(self, rest)))

    def tanh(self, x: Expression) -> Expression:
        """Return the hyperbolic tangent."""
        return 1 - 2 / (1 + self.exp(x * 2))

    def sigmoid(self, x: Expression) -> Expression:
        """Return the logistic function."""
        return 1 / (1 + self.exp(-x))

    def erf(self, x: Expression) -> Expression:
        """Return the error function, which is odd."""
        return self._by_cases(x, self._erf)

    def _erf(self, x: Expression) -> Expression:
        if (number := x.constant) is not None:
            return self.of(math.erf(number))
        for index, atom in enumerate(self.atoms):
            if atom.kind == "erf" and atom.argument is not None and self.is_equal(atom.argument, -x):
                return -self._of_atom(index)
        return self._of_atom(self._found("erf", x))

    # ---- truth values

    def positive(self, x: Expression) -> Expression:
        """Return 1 where an expression is more than zero, else 0."""
        return self._by_cases(x, lambda case: self._sign(case)[0])

    def zero(self, x: Expression) -> Expression:
        """Return 1 where an expression is zero, else 0."""
        return self._by_cases(x, lambda case: self._sign(case)[1])

    def finite(self, x: Expression) -> Expression:
        """Return 1 where an expression is a finite number, else 0."""
        return self.of(1) if x.constant is not None else self._of_atom(self._found("finite", x))

    def infinity(self, value: float) -> Expression:
        """Return one of the infinities; only the larger and the smaller of two have laws for them."""
        if self._infinity is None:
            self._infinity = self.variable(varies=False)
        return self._infinity if value > 0 else -self._infinity

    def _is_infinity(self, x: Expression, value: int) -> bool:
        known = self._infinity
        return known is not None and set(x.terms) == set(known.terms) and min(x.terms.values())[0] == value

    def maximum(self, x: Number, y: Number) -> Expression:
        """Return the larger of two."""
        x, y = self.of(x), self.of(y)
        for one, other in ((x, y), (y, x)):
            if self._is_infinity(one, -1):
                return other
            if self._is_infinity(one, 1):
                return one
        difference = x - y
        if self._is_variance(difference):
            return x
        if self._is_variance(-difference):
            return y
        return y + self.positive(difference) * difference

    def minimum(self, x: Expression, y: Expression) -> Expression:
        """Return the smaller of two."""
        return -self.maximum(-x, -y)

    def choose(self, truth: Expression, x: Expression, y: Expression) -> Expression:
        """Return ``x`` where it is true, else ``y``."""
        return truth * x + (1 - truth) * y

    def _sign(self, x: Expression) -> tuple[Expression, Expression]:
        """Return where an expression is positive and where it is zero."""
        number = x.constant
        if number is not None:
            return self.of(float(number > 0)), self.of(float(number == 0))
        if all(self.atoms[a].is_positive for a in x.atoms):
            signs = {value > 0 for value, _ in x.terms.values()}
            if len(signs) == 1:
                return self.of(float(signs.pop())), self.of(0)
        lead = abs(x.terms[min(x.terms)][0])
        scaled = Expression(self, {key: (v / lead, w / lead) for key, (v, w) in x.terms.items()})
        for index, atom in enumerate(self.atoms):
            if atom.kind == "positive":
                assert atom.argument is not None
                truths = self._of_atom(index), self._of_atom(atom.partner)
                if self.is_equal(atom.argument, scaled):
                    return truths
                if self.is_equal(atom.argument, -scaled):
                    return 1 - truths[0] - truths[1], truths[1]
        index, varies = len(self.atoms), self._varies(x)
        self.atoms += [
            Atom("positive", scaled, varies, partner=index + 1),
            Atom("zero", scaled, varies, partner=index),
        ]
        zero = self._of_atom(index + 1)
        if self._is_variance(x):
            return 1 - zero, zero
        return self._of_atom(index), zero

    def _by_cases(self, x: Expression, function: Callable[[Expression], Expression]) -> Expression:
        """Return a function of an expression as the sum over the cases of the truth values in it."""
        truths = sorted(a for a in x.atoms if self.atoms[a].is_truth)
        if len(truths) > _MAX_CASES:
            raise NotProvable(f"{len(truths)} truth values in one expression")
        if not truths:
            return function(x)
        truth = self._of_atom(truths[0])
        yes, no = self._given(x, truths[0], True), self._given(x, truths[0], False)
        return truth * self._by_cases(yes, function) + (1 - truth) * self._by_cases(no, function)

    def _given(self, x: Expression, truth: int, holds: bool) -> Expression:
        """Return an expression where a truth value is known."""
        terms: dict[Monomial, tuple[float, float]] = {}
        for key, (value, size) in x.terms.items():
            inside = dict(key)
            if inside.pop(truth, None) is not None and not holds:
                continue
            if holds and self.atoms[truth].partner in inside:
                continue
            kept = tuple(sorted(inside.items()))
            old, weight = terms.get(kept, (0.0, 0.0))
            terms[kept] = old + value, weight + size
        return self.make(terms)

    # ---- rows

    def sum(self, x: Expression) -> Expression:
        """Return the sum along a row."""
        made = self.of(0)
        for key, (value, size) in x.terms.items():
            inside = tuple((a, e) for a, e in key if self.atoms[a].varies)
            outside = tuple((a, e) for a, e in key if not self.atoms[a].varies)
            term = Expression(self, {outside: (value, size)})
            if not inside:
                made = made + term * self.row_size
                continue
            is_positive = all(self.atoms[a].is_positive for a, _ in inside)
            summed = Expression(self, {inside: (1.0, 1.0)})
            made = made + term * self._of_atom(
                self._found("sum", summed, varies=False, is_positive=is_positive)
            )
        return made

    def mean(self, x: Expression) -> Expression:
        """Return the mean along a row."""
        return self.sum(x) / self.row_size

    def max(self, x: Expression) -> Expression:
        """Return the largest along a row."""
        if not self._varies(x):
            return x
        return self._of_atom(self._found("max", x, varies=False))

    def variances(self) -> list[tuple[Expression, Expression]]:
        """Return the variance of every atom whose sum and sum of squares along a row are known, with the atom."""
        found: list[tuple[Expression, Expression]] = []
        for index, atom in enumerate(list(self.atoms)):
            if atom.kind == "variable" and atom.varies and self.row_size:
                x = self._of_atom(index)
                found.append((self.mean(x * x) - self.mean(x) ** 2, x))
        return found

    def _is_variance(self, x: Expression) -> bool:
        """Whether an expression is a positive multiple of a variance, and so not negative."""
        if self.row_size < 2 or not 2 <= len(x.terms) <= 3:
            return False
        for variance, _ in self.variances():
            if set(variance.terms) == set(x.terms):
                key = min(variance.terms)
                ratio = x.terms[key][0] / variance.terms[key][0]
                if ratio > 0 and self.is_equal(x, variance * ratio):
                    return True
        return False

    # ---- equality

    def is_equal(self, x: Expression, y: Expression) -> bool:
        """Whether two expressions are the same for all values; notes the largest difference of their constants."""
        return self._compared(x, y) == frozenset()

    def ties(self, x: Expression, y: Expression) -> frozenset[int] | None:
        """Return the ``zero`` truth values at which alone two expressions may differ, None if they do elsewhere."""
        return self._compared(x, y)

    def _compared(self, x: Expression, y: Expression) -> frozenset[int] | None:
        x, y = self._cleared(x, y)
        deviation, ties = 0.0, set[int]()
        for key in {*x.terms, *y.terms}:
            (a, size), (b, weight) = x.terms.get(key, (0.0, 0.0)), y.terms.get(key, (0.0, 0.0))
            if a == b:
                continue
            difference = abs(a - b) / max(size, weight)
            if difference <= self.tolerance:
                deviation = max(deviation, difference)
                continue
            at = {atom for atom, _ in key if self.atoms[atom].kind == "zero"}
            if not at:
                return None
            ties |= at
        if not ties:
            self.deviation = max(self.deviation, deviation)
        return frozenset(ties)

    def _close(self, a: float, b: float, size: float) -> bool:
        difference = abs(a - b) / size
        if difference <= self.tolerance:
            self.deviation = max(self.deviation, difference)
        return difference <= self.tolerance

    def _cleared(self, x: Expression, y: Expression) -> tuple[Expression, Expression]:
        """Return two expressions multiplied by the same, so that no sum in them has a negative or a whole exponent."""
        bases = {a for a in x.atoms | y.atoms if self.atoms[a].kind == "base"}
        while bases:
            base = max(bases)
            low = min(
                math.floor(dict(key).get(base, Fraction(0)))
                for e in (x, y)
                for key in (e.terms or {(): None})
            )
            x, y = self._raised(x, base, low), self._raised(y, base, low)
            bases = {a for a in x.atoms | y.atoms if self.atoms[a].kind == "base" and a < base}
        return x, y

    def _raised(self, x: Expression, base: int, low: int) -> Expression:
        """Return an expression divided by ``base ** low``, whole powers of it multiplied out."""
        argument = self.atoms[base].argument
        assert argument is not None
        by_power: dict[int, dict[Monomial, tuple[float, float]]] = {}
        for key, term in x.terms.items():
            exponent = dict(key).get(base, Fraction(0))
            whole = math.floor(exponent) - low
            part = exponent - math.floor(exponent)
            kept = tuple(sorted([(a, e) for a, e in key if a != base] + ([(base, part)] if part else [])))
            by_power.setdefault(whole, {})[kept] = term
        made = self.of(0)
        for whole, terms in by_power.items():
            made = made + Expression(self, terms) * self.power(argument, Fraction(whole))
        return made
