"""A model of integer variables, what they are computed from, and the search for its best solution.

Variables are non-negative, as popsolver's are (github.com/graphcore/poplibs, include/popsolver/Model.hpp): so every
relation here rises or falls with each of its operands, and bounds of results follow from bounds of operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tiles.errors import InvalidArguments
from tiles.solver import relations
from tiles.solver.branching import minimum
from tiles.solver.relations import MOST, Bounds, Function, Relation


@dataclass(frozen=True)
class Variable:
    """A variable of a model, by its number."""

    number: int
    name: str


@dataclass(frozen=True)
class Solution:
    """The best values of all variables.

    Args:
      values: by variable's number.
      nodes: boxes of values that were looked at before it was known to be the best.
    """

    values: Mapping[int, int]
    nodes: int

    def __getitem__(self, variable: Variable) -> int:
        """Return a variable's value."""
        return self.values[variable.number]


class Model:
    """Variables, constraints between them, and the search for the values that minimise some of them.

    >>> model = Model()
    >>> rows, columns = model.variable(1, 64, "rows"), model.variable(1, 64, "columns")
    >>> model.less_or_equal(model.product([rows, columns]), model.constant(60))
    >>> work = model.product([model.ceildiv(model.constant(100), rows), model.ceildiv(model.constant(30), columns)])
    >>> best = model.minimize([work])
    >>> best[rows], best[columns], best[work]
    (20, 3, 50)
    """

    def __init__(self) -> None:
        """Start without variables."""
        self._low: list[int] = []
        self._high: list[int] = []
        self._names: list[str] = []
        self._choices: dict[int, np.ndarray] = {}
        self._free: list[int] = []
        self._relations: list[Relation] = []

    # ---- variables

    def variable(self, low: int, high: int, name: str = "") -> Variable:
        """Return a variable that may have any value from ``low`` to ``high``, both included.

        Raises:
          InvalidArguments: no such value, or a negative one.
        """
        made = self._made(low, high, name)
        self._free.append(made.number)
        return made

    def choice(self, values: Sequence[int], name: str = "") -> Variable:
        """Return a variable that has one of some values.

        Raises:
          InvalidArguments: none is given, or a negative one.
        """
        if not len(values):
            raise InvalidArguments(f"variable {name or len(self._low)} has no value to choose from")
        domain = np.unique(np.asarray(values, np.int64))
        made = self.variable(int(domain[0]), int(domain[-1]), name)
        self._choices[made.number] = domain
        return made

    def constant(self, value: int, name: str = "") -> Variable:
        """Return a variable that has one value."""
        return self._made(value, value, name or str(value))

    def _made(self, low: int, high: int, name: str) -> Variable:
        number = len(self._low)
        if not 0 <= low <= high <= MOST:
            raise InvalidArguments(
                f"variable {name or number} from {low} to {high}", expected=f"0 <= low <= high <= {MOST}"
            )
        self._low.append(int(low))
        self._high.append(int(high))
        self._names.append(name or f"v{number}")
        return Variable(number, self._names[-1])

    def _computed(self, relation: Callable[[int], Relation], name: str) -> Variable:
        made = self._made(0, MOST, name)
        self._relations.append(relation(made.number))
        return made

    # ---- what is computed of variables

    def sum(self, variables: Sequence[Variable], name: str = "") -> Variable:
        """Return the sum of variables."""
        numbers = _numbers(variables)
        return self._computed(lambda result: relations.Sum(result, numbers), name)

    def product(self, variables: Sequence[Variable], name: str = "") -> Variable:
        """Return the product of variables; one beyond ``MOST`` counts as ``MOST``."""
        numbers = _numbers(variables)
        return self._computed(lambda result: relations.Product(result, numbers), name)

    def ceildiv(self, a: Variable, b: Variable, name: str = "") -> Variable:
        """Return ``a / b``, rounded up; ``b`` is at least 1 then."""
        return self._computed(lambda result: relations.CeilDiv(result, (a.number, b.number)), name)

    def max(self, variables: Sequence[Variable], name: str = "") -> Variable:
        """Return the greatest of variables."""
        numbers = _numbers(variables)
        return self._computed(lambda result: relations.Max(result, numbers), name)

    def call(
        self,
        variables: Sequence[Variable],
        function: Function,
        name: str = "",
        bounds: Bounds | None = None,
    ) -> Variable:
        """Return what a function makes of variables.

        Args:
          variables: its operands.
          function: from an int64 array ``[candidates]`` for each operand to the results, of that shape, rounded up if
            they are floats; what is no number, or beyond ``MOST``, counts as ``MOST``.
          name: of the result.
          bounds: from the least and the greatest operands, float64 arrays ``[candidates]`` each, to arrays of least
            and greatest results. Without it a result is known only when all operands are.
        """
        numbers = _numbers(variables)
        return self._computed(lambda result: relations.Call(result, numbers, function, bounds), name)

    # ---- constraints

    def less_or_equal(self, a: Variable, b: Variable) -> None:
        """Require that ``a <= b``."""
        self._relations.append(relations.LessOrEqual(a.number, (b.number,)))

    def equal(self, a: Variable, b: Variable) -> None:
        """Require that ``a == b``."""
        self.less_or_equal(a, b)
        self.less_or_equal(b, a)

    # ---- search

    def minimize(self, objectives: Sequence[Variable]) -> Solution | None:
        """Return values that make the first objective least, then the second, and so on; None if there are none.

        The same model always has the same solution, also among equals.
        """
        found = minimum(
            np.array(self._low, np.int64),
            np.array(self._high, np.int64),
            self._choices,
            tuple(self._free),
            tuple(self._relations),
            _numbers(objectives),
        )
        if found is None:
            return None
        values, nodes = found
        return Solution({number: int(value) for number, value in enumerate(values)}, nodes)


def _numbers(variables: Sequence[Variable]) -> tuple[int, ...]:
    return tuple(v.number for v in variables)
