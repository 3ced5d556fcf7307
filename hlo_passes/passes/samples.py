"""Values of a computation as functions of earlier ones, tabulated at a few sample points.

Two pieces of a program that compute the same function give the same numbers, however they are written. So what
a value is as a function of another is kept as a small table: rows of a sample of the other, numbered freely, and
what comes out. A sum over ``n`` elements of a row is taken to be ``n`` times the sample's mean. The tables
recognize functions (``passes.known_functions``); what an operation means stays with the operation.

A network says the same again in every layer, so a table that is made in the same way of the same tables is the same
object: it is computed once, and what is asked of it can be remembered by it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from hlo_passes import ops
from hlo_passes.ir import Computation, Instruction, Op, TensorType, Value
from hlo_passes.ops import simple_combiner

POINTS = np.array(
    [[-2.3, 0.37, 1.9, -0.81, 2.6], [0.11, -1.27, 3.1, 2.2, -3.4], [-0.53, 0.94, -6.9, 7.2, 1.41]]
)
"""What a source is in its table: ``[rows, columns]``; large enough to see what is cut off at 6."""
GRADIENT = np.array(
    [[0.71, -1.9, 0.33, 1.2, -0.47], [-0.6, 0.85, 1.7, -1.1, 0.29], [1.3, 0.52, -0.9, 0.4, -1.6]]
)
"""What a gradient is that a value is linear in."""

MAX_SOURCES, MAX_GRADIENTS = 12, 24


@dataclass(frozen=True, eq=False)
class Sample:
    """A value's table. Compares by identity.

    Args:
      values: ``[rows, columns]``; of one column where it is the same along a row, without axes where it is one number
        everywhere, whatever the source.
      reduced: the source's axes that make up a row, None while any may.
      axes: for each axis of the value the source's axis it goes along, -1 where it does not vary.
    """

    values: np.ndarray
    reduced: frozenset[int] | None
    axes: tuple[int, ...]

    @functools.cached_property
    def is_finite(self) -> bool:
        """Whether the table's sum, and so every element, is a finite number."""
        return math.isfinite(self.values.sum())

    @property
    def is_constant(self) -> bool:
        """Whether it is one number everywhere."""
        return self.values.ndim == 0


class Gradient(NamedTuple):
    """What a value is linear in.

    Args:
      value: the gradient.
      source: the other value it depends on, None where it depends on none.
      rest: a value that is added to it, if any. It is no part of the table.
    """

    value: Value
    source: Value | None
    rest: Value | None = None


K = TypeVar("K", Value, Gradient)
_T = TypeVar("_T")

Linear: TypeAlias = dict[Gradient, Sample]
Found: TypeAlias = dict[Gradient, Sample | None]

_BINARY: dict[type[Op], Callable[..., np.ndarray]] = {
    ops.Add: np.add,
    ops.Subtract: np.subtract,
    ops.Multiply: np.multiply,
    ops.Divide: np.divide,
    ops.Maximum: np.maximum,
    ops.Minimum: np.minimum,
    ops.Power: np.power,
    ops.And: np.logical_and,
    ops.Or: np.logical_or,
    ops.Xor: np.logical_xor,
}
_UNARY: dict[type[Op], Callable[[np.ndarray], np.ndarray]] = {
    ops.Abs: np.abs,
    ops.Cbrt: np.cbrt,
    ops.Exponential: np.exp,
    ops.ExponentialMinusOne: np.expm1,
    ops.IsFinite: np.isfinite,
    ops.Log: np.log,
    ops.LogPlusOne: np.log1p,
    ops.Logistic: lambda x: 1 / (1 + np.exp(-x)),
    ops.Negate: np.negative,
    ops.Not: np.logical_not,
    ops.ReducePrecision: lambda x: x,
    ops.Rsqrt: lambda x: 1 / np.sqrt(x),
    ops.Sign: np.sign,
    ops.Sqrt: np.sqrt,
    ops.Tanh: np.tanh,
}
_MOVEMENT = (ops.BroadcastInDim, ops.Reshape, ops.Transpose)
_COMPARE = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def function_of(instruction: Instruction) -> Callable[..., np.ndarray] | None:
    """Return what an elementwise instruction computes of numbers, None where it is not in the tables.

    Floats are numbers of unlimited precision here and booleans are booleans; there are no integers.
    """
    op = instruction.op
    if isinstance(op, ops.Compare):
        return _COMPARE[op.direction]
    if isinstance(op, ops.Select):
        return np.where
    if isinstance(op, ops.Clamp):
        return _clamp
    if isinstance(op, ops.Convert):
        return _as_number if instruction.result.type.is_float else None
    return _BINARY.get(type(op)) or _UNARY.get(type(op))


def _clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.clip(x, low, high)


def _as_number(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float64)


def _where_false(predicate: np.ndarray, x: np.ndarray) -> np.ndarray:
    return ~predicate * x


class Samples:
    """The tables of one computation, filled instruction by instruction.

    Args:
      computation: the computation.

    Attributes:
      functions: per value the values it is a function of, itself included, with its table.
      linear: per value the values it is linear in, each with the other source it depends on, if any.
      constants: values that are one number everywhere.
      sources: those that a gradient may depend on; whoever uses the tables adds them.
    """

    def __init__(self, computation: Computation) -> None:
        """Start with the parameters."""
        self.functions: dict[Value, dict[Value, Sample]] = {}
        self.linear: dict[Value, Linear] = {}
        self.constants: dict[Value, Sample] = {}
        self.sources: set[Value] = set()
        self._numbers: dict[tuple[str, bytes], Sample] = {}
        self._starts: dict[tuple[int, ...], tuple[Sample, Sample]] = {}
        self._computed: dict[Hashable, Sample | None] = {}
        self._moved: dict[Hashable, dict[Sample, Sample | None]] = {}
        for value in computation.parameters:
            self._begin(value, {}, {})

    def visit(self, instruction: Instruction) -> None:
        """Add the tables of an instruction's results; those of its operands are there."""
        with np.errstate(all="ignore"):
            constant = self._constant(instruction)
            if constant is not None:
                self.constants[instruction.result] = constant
                return
            if len(instruction.results) != 1 or not _is_number(instruction.result.type):
                for value in instruction.results:
                    self._begin(value, {}, {})
                return
            self._begin(instruction.result, self._functions(instruction), self._linear(instruction))

    def _begin(self, value: Value, functions: dict[Value, Sample], linear: Linear) -> None:
        """Keep a value's tables, the nearest sources if there are many, and its own as a source."""
        functions = {s: sample for s, sample in functions.items() if sample.is_finite}
        linear = {key: sample for key, sample in linear.items() if sample.is_finite}
        kept = dict(itertools.islice(functions.items(), max(0, len(functions) - MAX_SOURCES + 1), None))
        near = dict(itertools.islice(linear.items(), max(0, len(linear) - MAX_GRADIENTS + 1), None))
        if value.type.is_float and value.type.size > 1:
            axes = natural_axes(value.type)
            if axes not in self._starts:
                self._starts[axes] = Sample(POINTS, None, axes), Sample(GRADIENT, None, axes)
            kept[value], near[Gradient(value, None)] = self._starts[axes]
        self.functions[value], self.linear[value] = kept, near

    def _constant(self, instruction: Instruction) -> Sample | None:
        op = instruction.op
        if isinstance(op, ops.Constant):
            if not op.is_splat or op.type.is_complex:
                return None
            number = np.asarray(op.value, None if op.type.is_bool else np.float64).reshape(())
            return self._numbers.setdefault((number.dtype.char, number.tobytes()), Sample(number, None, ()))
        if not instruction.operands or any(v not in self.constants for v in instruction.operands):
            return None
        given = [self.constants[v] for v in instruction.operands]
        if isinstance(op, _MOVEMENT):
            return given[0]
        if len(instruction.results) != 1 or not _is_number(instruction.result.type):
            return None
        function = function_of(instruction) if isinstance(op, ops.Elementwise) else None
        return None if function is None else self._pointwise(function, *given)

    def _functions(self, instruction: Instruction) -> dict[Value, Sample]:
        op = instruction.op
        tables = [self.functions[v] for v in instruction.operands if v not in self.constants]
        if not tables:
            return {}
        common = [s for s in tables[0] if all(s in table for table in tables[1:])]
        if not isinstance(op, ops.Elementwise):
            return self._after(instruction, {s: tables[0][s] for s in common})
        function = function_of(instruction)
        if function is None:
            return {}
        made: dict[Value, Sample | None] = {}
        for source in common:
            given = [
                constant if (constant := self.constants.get(v)) is not None else self.functions[v][source]
                for v in instruction.operands
            ]
            made[source] = self._pointwise(function, *given)
        return {s: sample for s, sample in made.items() if sample is not None}

    def _pointwise(self, function: Callable[..., np.ndarray], *samples: Sample) -> Sample | None:
        """Return the table of a function of tables, element by element; None where they do not lie alike."""
        key = function, *samples
        if key not in self._computed:
            joined = _joined([s for s in samples if not s.is_constant])
            values = [s.values for s in samples]
            self._computed[key] = None if joined is None else Sample(np.asarray(function(*values)), *joined)
        return self._computed[key]

    def _after(self, instruction: Instruction, table: Mapping[K, Sample]) -> dict[K, Sample]:
        """Return the tables after data movement or a fold; none for anything else."""
        op, shape, initial, combiner = instruction.op, instruction.operands[0].type.shape, None, None
        if isinstance(op, ops.Reduce) and len(instruction.operands) == 2:
            initial = self.constants.get(instruction.operands[1])
            combiner = simple_combiner(instruction.regions[0])
        elif not isinstance(op, _MOVEMENT):
            return {}
        key = op, shape, instruction.result.type.shape, initial, combiner
        known = self._moved.setdefault(key, {})
        made: dict[K, Sample] = {}
        for source, sample in table.items():
            if sample not in known:
                known[sample] = self._move(instruction, sample)
            moved = known[sample]
            if moved is not None:
                made[source] = moved
        return made

    def _move(self, instruction: Instruction, sample: Sample) -> Sample | None:
        if isinstance(instruction.op, ops.Reduce):
            return self._folded(instruction, instruction.op, sample)
        axes = moved_axes(instruction, sample.axes)
        return None if axes is None else replace(sample, axes=axes)

    def _folded(self, instruction: Instruction, op: ops.Reduce, sample: Sample) -> Sample | None:
        initial = self.constants.get(instruction.operands[1])
        shape = instruction.operands[0].type.shape
        combiner = simple_combiner(instruction.regions[0])
        kept = tuple(axis for d, axis in enumerate(sample.axes) if d not in op.dimensions)
        folded = [sample.axes[d] for d in op.dimensions if shape[d] != 1]
        if initial is None or -1 in folded or combiner not in ("add", "max"):
            return None
        if not folded:
            values = sample.values
        elif sample.reduced not in (None, frozenset(folded)):
            return None
        elif combiner == "add":
            values = math.prod(shape[d] for d in op.dimensions) * sample.values.mean(1, keepdims=True)
        else:
            values = sample.values.max(1, keepdims=True)
        values = values + initial.values if combiner == "add" else np.maximum(values, initial.values)
        return Sample(values, frozenset(folded) or sample.reduced, kept)

    def _linear(self, instruction: Instruction) -> Linear:
        op, operands = instruction.op, instruction.operands
        if isinstance(op, (ops.Add, ops.Subtract)):
            made = self._sums(instruction)
        elif isinstance(op, ops.Multiply):
            made = {**self._products(instruction, 1), **self._products(instruction, 0)}
        elif isinstance(op, ops.Divide):
            made = self._products(instruction, 0)
        elif isinstance(op, ops.Select):
            made = self._choices(instruction)
        elif isinstance(op, (ops.Negate, ops.Convert)):
            function = function_of(instruction)
            table = _alone(self.linear.get(operands[0], {}))
            made = {k: self._pointwise(function, s) for k, s in table.items()} if function else {}
        elif isinstance(op, _MOVEMENT) or _is_sum(instruction):
            made = self._after(instruction, _alone(self.linear.get(operands[0], {})))
        else:
            made = {}
        return {key: sample for key, sample in made.items() if sample is not None}

    def _sums(self, instruction: Instruction) -> Found:
        """Return the tables of a sum of what is linear in the same; of one of its terms, beside a rest."""
        left, right = (self.linear.get(v, {}) for v in instruction.operands)
        function = function_of(instruction)
        assert function is not None
        made: Found = {}
        if isinstance(instruction.op, ops.Add):
            for table, rest in ((left, instruction.operands[1]), (right, instruction.operands[0])):
                if rest not in self.constants:
                    made.update(
                        (key._replace(rest=rest), sample)
                        for key, sample in table.items()
                        if key.source is not None and key.rest is None
                    )
        same: dict[Value, list[tuple[Gradient, Sample]]] = {}
        for other, b in right.items():
            same.setdefault(other.value, []).append((other, b))
        for one, a in left.items():
            for other, b in same.get(one.value, ()):
                sources, rests = {one.source, other.source} - {None}, {one.rest, other.rest} - {None}
                if len(sources) > 1 or (one.rest and other.rest):
                    continue
                if other.rest is None or isinstance(instruction.op, ops.Add):
                    key = Gradient(one.value, next(iter(sources), None), next(iter(rests), None))
                    made[key] = self._pointwise(function, a, b)
        return made

    def _products(self, instruction: Instruction, number: int) -> Found:
        """Return the tables of a product (or quotient) that is linear in operand ``number``."""
        value, factor = instruction.operands[number], instruction.operands[1 - number]
        table = _alone(self.linear.get(value, {}))
        function = function_of(instruction)
        assert function is not None
        if factor in self.constants:
            by = self.constants[factor]
            return {
                key: self._pointwise(function, *_ordered(sample, by, number)) for key, sample in table.items()
            }
        made: Found = {}
        for source, by in self._known_functions(factor).items():
            for key, sample in table.items():
                if key.source in (None, source):
                    made[key._replace(source=source)] = self._pointwise(
                        function, *_ordered(sample, by, number)
                    )
        return made

    def _choices(self, instruction: Instruction) -> Found:
        """Return the tables of a select between something linear and zero."""
        predicate, *branches = instruction.operands
        made: Found = {}
        if predicate in self.constants:
            number = 0 if self.constants[predicate].values else 1
            return {**_alone(self.linear.get(branches[number], {}))}
        for number, value in enumerate(branches):
            zero = self.constants.get(branches[1 - number])
            if zero is None or zero.values != 0:
                continue
            keep = np.multiply if number == 0 else _where_false
            for source, by in self._known_functions(predicate).items():
                for key, sample in _alone(self.linear.get(value, {})).items():
                    if key.source in (None, source):
                        made[key._replace(source=source)] = self._pointwise(keep, by, sample)
        return made

    def _known_functions(self, value: Value) -> dict[Value, Sample]:
        """Return a value's tables as a function of sources that a gradient may depend on."""
        return {s: sample for s, sample in self.functions.get(value, {}).items() if s in self.sources}


def natural_axes(type_: TensorType) -> tuple[int, ...]:
    """Return the axes of a source itself."""
    return tuple(-1 if n == 1 else d for d, n in enumerate(type_.shape))


def moved_axes(instruction: Instruction, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return along which of a source's axes those of a result lie after data movement; None where they are cut apart.

    Args:
      instruction: a broadcast, a transpose or a reshape.
      axes: the operand's, as in ``Sample.axes``.
    """
    op, operand, result = instruction.op, instruction.operands[0].type, instruction.results[0].type
    if isinstance(op, ops.BroadcastInDim):
        moved = [-1] * result.rank
        for axis, d in enumerate(op.broadcast_dimensions):
            if operand.shape[axis] != 1:
                moved[d] = axes[axis]
        return tuple(moved)
    if isinstance(op, ops.Transpose):
        return tuple(axes[d] for d in op.permutation)
    assert isinstance(op, ops.Reshape)
    wide = [(n, axes[d]) for d, n in enumerate(operand.shape) if n != 1]
    if [n for n, _ in wide] != [n for n in result.shape if n != 1]:
        return None
    rest = iter(wide)
    return tuple(-1 if n == 1 else next(rest)[1] for n in result.shape)


def joined_axes(axes: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return along which of a source's axes values lie that are combined element by element; None where they do not agree.

    A scalar among them (a predicate, a bound) goes with every element.
    """
    given = [*axes]
    rank = max((len(each) for each in given), default=0)
    joined: list[int] = []
    for along in zip(*(each or (-1,) * rank for each in given), strict=True):
        moving = set(along) - {-1}
        if len(moving) > 1:
            return None
        joined.append(max(along))
    return tuple(joined)


def _alone(table: Linear) -> Linear:
    """Return the entries without a rest."""
    return {key: sample for key, sample in table.items() if key.rest is None}


def _ordered(one: _T, other: _T, number: int) -> tuple[_T, _T]:
    return (one, other) if number == 0 else (other, one)


def _joined(samples: Sequence[Sample]) -> tuple[frozenset[int] | None, tuple[int, ...]] | None:
    """Return the rows and axes that tables combined element by element have in common, if they do."""
    reduced = {s.reduced for s in samples} - {None}
    if len(reduced) > 1:
        return None
    axes = joined_axes(s.axes for s in samples)
    return None if axes is None else (next(iter(reduced), None), axes)


def _is_number(type_: TensorType) -> bool:
    return type_.is_float or type_.is_bool


def _is_sum(instruction: Instruction) -> bool:
    return isinstance(instruction.op, ops.Reduce) and simple_combiner(instruction.regions[0]) == "add"
