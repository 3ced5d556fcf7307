"""Injective computations as one expression over the result's domain, parameters read through affine maps.

This is what lowering places: broadcasts, transposes, slices, reverses, reshapes that move sizes of 1, and
pads of parameters become maps; elementwise operations, constants and iotas become rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hlo_passes.ir import DTYPES, Computation, Instruction, TensorType, Value, print_instruction
from hlo_passes.ops import (
    BitcastConvert,
    BroadcastInDim,
    Compare,
    Constant,
    Iota,
    Nonlinearity,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
    compare_types,
)
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.errors import NotAffine


class Axis(NamedTuple):
    """The index along one axis of a tensor: ``coefficient * (index along domain dimension dim) + offset``.

    ``dim`` is None for an index that is ``offset`` everywhere (the coefficient is then 0), as it is along
    every dimension of size 1 of the domain.
    """

    dim: int | None
    coefficient: int
    offset: int


Axes = tuple[Axis, ...]
"""One index for each axis of a tensor."""


class ParameterMap(NamedTuple):
    """How an expression reads a parameter.

    Args:
      parameter: position among the computation's parameters.
      axes: the index along each axis of the parameter.
      fill: the value standing for what lies outside the parameter; None when nothing does.
    """

    parameter: int
    axes: Axes
    fill: float | int | bool | None = None


class Row(NamedTuple):
    """One function of an expression, at every point of the domain.

    Args:
      function: the StableHLO operation without its dialect, such as ``add``.
      arguments: numbers of its operands: first the parameter maps count, then the rows before it.
      attributes: plain data, element types by their numpy names: ``compare`` has ``direction`` and
        ``compare_type``, ``convert`` and ``bitcast_convert`` ``dtype``, ``reduce_precision``
        ``exponent_bits`` and ``mantissa_bits``, ``constant`` ``value`` and ``dtype``, ``iota`` ``dim`` (of
        the domain) and ``dtype``, ``nonlinearity`` ``kind``, ``body`` (rows of its operands), ``dtype`` and,
        if it is, ``is_approximate``.
    """

    function: str
    arguments: tuple[int, ...]
    attributes: dict[str, Any]


def expression(computation: Computation) -> tuple[tuple[Row, ...], tuple[ParameterMap, ...]]:
    """Return an injective computation with one result as rows over the result's domain.

    The last row is the result; without rows, what the only parameter map reads is. A parameter read in two
    ways has two maps, a value read in two ways two rows.

    Args:
      computation: elementwise operations, splat constants, iotas and data movement as the module's text says.

    Raises:
      NotAffine: an operation that is none of these, a pad of something computed or by something computed.
    """
    (_,) = computation.results
    rows, maps, _ = expressions(computation)
    return rows, maps


def expressions(
    computation: Computation,
) -> tuple[tuple[Row, ...], tuple[ParameterMap, ...], tuple[int, ...]]:
    """Return an injective computation, the results of which have one shape, as rows over their domain.

    Returns:
      The rows and maps as ``expression`` does, and for each result the number of what gives it, as arguments are numbered.

    Raises:
      NotAffine: as ``expression`` does.
    """
    found = _Expression(computation)
    numbers = [found.read(result, identity(result.type.shape)) for result in computation.results]
    return found.finish(numbers)


@functools.lru_cache(maxsize=4096)  # scheduling and joining ask the same of a fusion
def index_maps(computation: Computation) -> tuple[ParameterMap, ...]:
    """Return how an injective computation reads its parameters. Raises as ``expression`` does."""
    return expressions(computation)[1]


def identity(shape: Sequence[int]) -> Axes:
    """Return the indices of a tensor of the domain's own shape."""
    return tuple(Axis(None, 0, 0) if size == 1 else Axis(dim, 1, 0) for dim, size in enumerate(shape))


def compose(outer: Axes, inner: Axes) -> Axes:
    """Return the indices of an operand: ``inner`` in terms of a value's axes, ``outer`` of the domain."""
    if inner == identity_of(len(outer)):
        return outer
    composed: list[Axis] = []
    for dim, coefficient, offset in inner:
        if dim is None:
            composed.append(Axis(None, 0, offset))
        else:
            over, factor, start = outer[dim]
            composed.append(Axis(over, coefficient * factor, coefficient * start + offset))
    return tuple(composed)


def access(instruction: Instruction, number: int) -> Axes | None:
    """Return how operand ``number`` is read, in terms of the result's axes; None where that is not affine.

    Indices outside the operand occur for pads only.
    """
    op, operand = instruction.op, instruction.operands[number].type
    match op:
        case BitcastConvert() if operand.shape != instruction.result.type.shape:
            return None
        case Elementwise():
            return () if operand.rank == 0 else identity_of(operand.rank)
        case BroadcastInDim():
            repeated = zip(operand.shape, op.broadcast_dimensions, strict=True)
            return tuple(Axis(None, 0, 0) if size == 1 else Axis(dim, 1, 0) for size, dim in repeated)
        case Transpose():
            return tuple(Axis(op.permutation.index(axis), 1, 0) for axis in range(operand.rank))
        case Slice():
            cut = zip(op.strides, op.start, strict=True)
            return tuple(Axis(axis, stride, start) for axis, (stride, start) in enumerate(cut))
        case Reverse():
            return tuple(
                Axis(axis, -1, size - 1) if axis in op.dimensions else Axis(axis, 1, 0)
                for axis, size in enumerate(operand.shape)
            )
        case Reshape():
            return _reshape_access(operand.shape, op.shape)
        case Pad() if not any(op.interior):
            return () if number else tuple(Axis(axis, 1, -low) for axis, low in enumerate(op.low))
        case _:
            return None


@functools.cache
def identity_of(rank: int) -> Axes:
    """Return the indices of an operand that is read at the result's own index, whatever its sizes."""
    return tuple(Axis(axis, 1, 0) for axis in range(rank))


def _reshape_access(old: tuple[int, ...], new: tuple[int, ...]) -> Axes | None:
    places = [axis for axis, size in enumerate(new) if size != 1]
    if [new[axis] for axis in places] != [size for size in old if size != 1]:
        return None
    remaining = iter(places)
    return tuple(Axis(None, 0, 0) if size == 1 else Axis(next(remaining), 1, 0) for size in old)


@dataclass
class _Expression:
    """Collects rows and maps while values are asked for, each at one set of indices."""

    computation: Computation
    maps: list[ParameterMap] = field(default_factory=list[ParameterMap])
    rows: list[Row] = field(default_factory=list[Row])
    _known: dict[tuple[Value, Axes], int] = field(default_factory=dict[tuple[Value, Axes], int])
    _needed: dict[tuple[Value, Axes], list[tuple[Value, Axes]]] = field(
        default_factory=dict[tuple[Value, Axes], list[tuple[Value, Axes]]]
    )
    _made: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    @functools.cached_property
    def parameters(self) -> dict[Value, int]:
        """The position of each parameter."""
        return {value: number for number, value in enumerate(self.computation.parameters)}

    def finish(
        self, results: Sequence[int]
    ) -> tuple[tuple[Row, ...], tuple[ParameterMap, ...], tuple[int, ...]]:
        """Number the arguments and results: while collecting, maps count from -1 downwards and rows from 0 upwards."""
        count = len(self.maps)

        def numbered(places: Sequence[int]) -> tuple[int, ...]:
            return tuple(-1 - k if k < 0 else count + k for k in places)

        rows = [row._replace(arguments=numbered(row.arguments)) for row in self.rows]
        return tuple(rows), tuple(self.maps), numbered(results)

    def read(self, value: Value, axes: Axes) -> int:
        """Return the number of the map or row that gives ``value`` at ``axes``, adding what it needs.

        Walks with a stack of its own: chains of operations are deeper than Python's.
        """
        stack = [(value, axes)]
        while stack:
            key = stack[-1]
            if key not in self._known:
                missing = [need for need in self._needs(key) if need not in self._known]
                if missing:
                    stack += reversed(missing)
                    continue
                self._known[key] = self._make(*key)
            stack.pop()
        return self._known[value, axes]

    def _needs(self, key: tuple[Value, Axes]) -> list[tuple[Value, Axes]]:
        """Return what must be read before a value at some indices."""
        if key not in self._needed:
            self._needed[key] = self._find_needs(*key)
        return self._needed[key]

    def _find_needs(self, value: Value, axes: Axes) -> list[tuple[Value, Axes]]:
        instruction = self.computation.producers.get(value)
        if instruction is None or isinstance(instruction.op, Pad):
            return []
        needs: list[tuple[Value, Axes]] = []
        for number, operand in enumerate(instruction.operands):
            inner = access(instruction, number)
            if inner is None:
                raise _not_affine(instruction, "its operands are not read through affine maps")
            needs.append((operand, compose(axes, inner)))
        return needs

    def _make(self, value: Value, axes: Axes) -> int:
        instruction = self.computation.producers.get(value)
        if instruction is None:
            return self._add_map(self.parameters[value], axes, None)
        match instruction.op:
            case Pad():
                return self._make_pad(instruction, axes)
            case Constant():
                return self._make_constant(instruction)
            case Iota():
                return self._make_iota(instruction.op, axes)
            case _:
                pass
        arguments = tuple(self._known[need] for need in self._needs((value, axes)))
        if isinstance(instruction.op, Nonlinearity):
            return self._add_named(instruction, arguments)
        if isinstance(instruction.op, Elementwise):
            return self._add_row(instruction.op.name.rpartition(".")[2], arguments, _attributes(instruction))
        (moved,) = arguments
        return moved

    def _add_named(self, instruction: Instruction, arguments: tuple[int, ...]) -> int:
        """Add a row for a function that its region says, an expression of one point."""
        rows, maps = expression(instruction.regions[0])
        body = tuple((row.function, row.arguments, tuple(sorted(row.attributes.items()))) for row in rows)
        name = ("nonlinearity", "nonlinearity_gradient")[len(maps) - 1]
        assert isinstance(instruction.op, Nonlinearity)
        attributes: dict[str, Any] = {
            "kind": instruction.op.kind,
            "body": body,
            "dtype": _dtype(instruction.result.type),
        }
        if instruction.op.is_approximate:
            attributes["is_approximate"] = True
        return self._add_row(name, tuple(arguments[m.parameter] for m in maps), attributes)

    def _make_pad(self, instruction: Instruction, axes: Axes) -> int:
        operand, value = instruction.operands
        op, inner = instruction.op, access(instruction, 0)
        assert isinstance(op, Pad)
        filled = self.computation.producers.get(value)
        if inner is None or min((*op.low, *op.high), default=0) < 0:
            raise _not_affine(instruction, "it pads between elements, or by a negative number")
        if operand not in self.parameters:
            raise _not_affine(instruction, "it pads something that is computed here")
        if filled is None or not isinstance(filled.op, Constant):
            raise _not_affine(instruction, "its padding value is not a constant")
        fill = filled.op.value.item()
        return self._add_map(self.parameters[operand], compose(axes, inner), fill)

    def _make_constant(self, instruction: Instruction) -> int:
        op = instruction.op
        assert isinstance(op, Constant)
        if not op.is_splat:
            raise _not_affine(instruction, "its elements differ")
        return self._add_constant(_plain(op.value), op.type)

    def _make_iota(self, op: Iota, axes: Axes) -> int:
        """Add rows for ``coefficient * iota + offset``; floats are counted in integers, as by iota itself."""
        dim, coefficient, offset = axes[op.dimension]
        counter = op.type.with_dtype("i32") if op.type.is_float else op.type
        if dim is None:
            made = self._add_constant(_wrapped(offset, counter), counter)
        elif (coefficient, offset) == (1, 0):
            return self._add_row("iota", (), {"dim": dim, "dtype": _dtype(op.type)})
        else:
            made = self._add_row("iota", (), {"dim": dim, "dtype": _dtype(counter)})
            for function, number, neutral in (("multiply", coefficient, 1), ("add", offset, 0)):
                if number != neutral:
                    other = self._add_constant(_wrapped(number, counter), counter)
                    made = self._add_row(function, (made, other), {})
        return made if counter == op.type else self._add_row("convert", (made,), {"dtype": _dtype(op.type)})

    def _add_constant(self, value: float | int | bool | str, type_: TensorType) -> int:
        return self._add_row("constant", (), {"value": value, "dtype": _dtype(type_)})

    def _add_row(self, function: str, arguments: tuple[int, ...], attributes: dict[str, Any]) -> int:
        key = function, arguments, repr(attributes)
        if key not in self._made:
            self.rows.append(Row(function, arguments, attributes))
            self._made[key] = len(self.rows) - 1
        return self._made[key]

    def _add_map(self, parameter: int, axes: Axes, fill: float | int | bool | None) -> int:
        key = parameter, axes, repr(fill)
        if key not in self._made:
            self.maps.append(ParameterMap(parameter, axes, fill))
            self._made[key] = -len(self.maps)
        return self._made[key]


def _attributes(instruction: Instruction) -> dict[str, Any]:
    op = instruction.op
    attributes = {attribute.name: getattr(op, attribute.name) for attribute in dataclasses.fields(op)}
    if "dtype" in attributes:
        attributes["dtype"] = DTYPES[attributes["dtype"]].np_dtype.name
    if isinstance(op, Compare) and not op.compare_type:
        attributes["compare_type"] = compare_types(instruction.operands[0].type.dtype)[0]
    return attributes


def _dtype(type_: TensorType) -> str:
    return type_.np_dtype.name


def _plain(element: np.ndarray) -> float | int | bool | str:
    """Return a scalar as a Python number; a NaN or -0.0, which numbers do not tell apart, as its bits."""
    value = element.item()
    if isinstance(value, float) and (value != value or (value == 0.0 and np.signbit(value))):
        return f"0x{element.tobytes()[::-1].hex()}"
    return value


def _wrapped(number: int, type_: TensorType) -> int:
    """Return an integer modulo 2^n, as ``type_`` holds it."""
    return int(np.array(number, np.int64).astype(type_.np_dtype))


def _not_affine(instruction: Instruction, reason: str) -> NotAffine:
    return NotAffine(
        f"{instruction.op.name} is no part of one expression over its result: {reason}\n"
        f"  in: {print_instruction(instruction)}",
        str(instruction.location),
        "the pass canonicalize first, or this operation on its own",
    )
