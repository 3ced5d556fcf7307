"""Folds of everything up to each element, recognized in what ``lax.associative_scan`` becomes.

JAX writes the function ``2 log2(n)`` times: on the elements at even and at odd places, on what that gives, and so on; then
the folds of every second element are completed by those between them, and the two are interleaved. As one operation the
folds are rows that vertices walk, in blocks where rows are long.

That is another grouping of the same operations. So the function has to be associative by algebra, also of words: one
operation that is (a sum, a product, a maximum), or polynomials of which both groupings are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from hlo_passes.ir import Computation, Instruction, Location, Op, Value, value_names
from hlo_passes.ops import Add, BroadcastInDim, Concatenate, Constant, Convert, Or, Pad, Reverse, Scan, Slice
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.associativity import is_associative
from hlo_passes.passes.base import LocalPass, map_control_regions
from hlo_passes.passes.lifting import widened
from hlo_passes.passes.reductions import is_choosing
from hlo_passes.passes.structure import FreshNames

Number = int
"""Values of one number are equal whatever a computation is given."""

Leaf = tuple[str, int]
"""What an expression reads: ``("early", k)`` or ``("late", k)``, array k's fold so far and array k's next element."""

MOST_OPERATIONS = 64
"""Operations that the function may have, for each of its results; more are not looked through."""


@dataclass(frozen=True)
class AssociativeScans(LocalPass):
    """Make one scan of what ``lax.associative_scan`` wrote, along axes of at least ``least`` elements.

    A minimum over 256 floats takes 3,000 cycles on a gc200 instead of 17,600.
    """

    name: ClassVar[str] = "associative-scans"
    least: int = 4

    def change(self, computation: Computation) -> Computation:
        """Return the computation with scans; itself when it has none."""
        instructions = tuple(map_control_regions(i, self.change) for i in computation.instructions)
        if any(new is not old for new, old in zip(instructions, computation.instructions, strict=True)):
            computation = replace(computation, instructions=instructions)
        if not computation.op_types >= {Pad, Slice, Concatenate}:
            return computation
        found = _find(computation, self.least)
        return _with_scans(computation, found) if found else computation


class _Found(NamedTuple):
    """A scan.

    Args:
      arrays: what is folded.
      axis: along which.
      region: how; of scalars, twice as many as there are arrays.
      results: what is read, by the place of the array that it is the fold of.
    """

    arrays: tuple[Value, ...]
    axis: int
    region: Computation
    results: Mapping[int, Value]


def _with_scans(computation: Computation, found: Sequence[_Found]) -> Computation:
    """Return the computation with scans in the places of their first results, under the same names."""
    names = FreshNames(value_names(computation))
    makers = {i.results[0].name: i for i in computation.instructions if len(i.results) == 1}
    of_result = {result.name: scan for scan in found for result in scan.results.values()}
    instructions: list[Instruction] = []
    written: set[str] = set()
    for instruction in computation.instructions:
        name = instruction.results[0].name if instruction.results else None
        if name not in of_result:
            instructions.append(instruction)
        elif name not in written:
            scan = of_result[name]
            instructions += _written(scan, makers, names, instruction.location)
            written.update(result.name for result in scan.results.values())
    return replace(computation, instructions=tuple(instructions))


def _written(
    scan: _Found, makers: Mapping[str, Instruction], names: FreshNames, location: Location
) -> Iterator[Instruction]:
    """Yield a scan's instructions. What is reversed is scanned from its end as it is; narrow floats as f32."""
    arrays, region, axis = list(scan.arrays), scan.region, scan.axis
    turned = [makers[x.name].operands[0] for x in arrays if _is_reversed(makers.get(x.name), axis)]
    is_reverse = len(turned) == len(arrays)
    if is_reverse:
        half = len(arrays)
        region = replace(region, parameters=region.parameters[half:] + region.parameters[:half])
        arrays = turned
    region = region if is_choosing(region) else widened(region)
    wide = [x.type.with_dtype(type_.dtype) for x, type_ in zip(arrays, region.result_types, strict=True)]
    for place, (x, type_) in enumerate(zip(arrays, wide, strict=True)):
        if x.type != type_:
            arrays[place] = Value(names.new(), type_)
            yield Instruction(Convert(type_.dtype), (x,), (arrays[place],), (), location)
    steps: list[list[Op]] = [[] for _ in arrays]
    for place, result in scan.results.items():
        steps[place] += [Convert(result.type.dtype)] if result.type != wide[place] else []
        steps[place] += [Reverse((axis,))] if is_reverse else []
    folds = tuple(
        scan.results[place] if place in scan.results and not steps[place] else Value(names.new(), type_)
        for place, type_ in enumerate(wide)
    )
    yield Instruction(Scan(axis, is_reverse), tuple(arrays), folds, (region,), location)
    for place, result in scan.results.items():
        x = folds[place]
        for op in steps[place]:
            (type_,) = op.infer(x.type)
            y = result if op is steps[place][-1] else Value(names.new(), type_)
            yield Instruction(op, (x,), (y,), (), location)
            x = y


def _is_reversed(maker: Instruction | None, axis: int) -> bool:
    return maker is not None and isinstance(maker.op, Reverse) and maker.op.dimensions == (axis,)


def _find(computation: Computation, least: int) -> list[_Found]:
    """Return the scans of a computation, none inside another."""
    numbering = _Numbering(computation)
    found: list[_Found] = []
    inside: set[Number] = set()
    for number in sorted(numbering.interleaved, reverse=True):  # outer ones are behind what they read
        axis = numbering.interleaved[number].axis
        size = numbering.values[number].type.shape[axis]
        if number in inside or size < least:
            continue
        reading = _Reading(numbering, axis, size)
        scan = reading.read(number)
        if scan is not None:
            found.append(scan)
            inside |= reading.inside
    return found


class _Interleaved(NamedTuple):
    """What an array of alternating elements is made of, and along which axis it alternates."""

    even: Number
    odd: Number
    axis: int


class _Numbering:
    """Numbers of a computation's values, alike for those that are made alike.

    Attributes:
      values: by number the first such value.
      made: by number what makes it: the operation, and the numbers of its operands.
      interleaved: by number what is interleaved.
      of_odd: by the number of an array's elements at odd places the arrays that have these.
      begun: by the number of an array the interleaved ones that begin with its first element.
    """

    def __init__(self, computation: Computation) -> None:
        self.computation = computation
        self.values: list[Value] = []
        self.made: dict[Number, tuple[Op, tuple[Number, ...]]] = {}
        self.interleaved: dict[Number, _Interleaved] = {}
        self.of_odd: dict[Number, list[Number]] = {}
        self.begun: dict[Number, list[Number]] = {}
        self._numbers: dict[str, Number] = {}
        self._known: dict[Hashable, Number] = {}
        for value in computation.parameters:
            self._new(value)
        for instruction in computation.instructions:
            self._enter(instruction)

    def _new(self, value: Value) -> Number:
        number = self._numbers[value.name] = len(self.values)
        self.values.append(value)
        return number

    def number(self, value: Value) -> Number | None:
        """Return a value's number; None of what comes from outside of the computation."""
        return self._numbers.get(value.name)

    def _enter(self, instruction: Instruction) -> None:
        op, operands = instruction.op, tuple(self._numbers.get(x.name, -1) for x in instruction.operands)
        plain = len(instruction.results) == 1 and not instruction.regions and not instruction.has_effect
        if not plain or -1 in operands:
            for value in instruction.results:
                self._new(value)
            return
        value = instruction.result
        if isinstance(op, BroadcastInDim) and self.splat(operands[0]) is not None:
            held = self.splat(operands[0])
            assert held is not None
            op, operands = Constant.splat(held.value, value.type), ()
        key = _key(op, operands)
        if key in self._known:
            self._numbers[value.name] = self._known[key]
            return
        number = self._known[key] = self._new(value)
        self.made[number] = op, operands
        between = self._interleaved(number)
        if between is not None:
            self.interleaved[number] = between
            self.of_odd.setdefault(between.odd, []).append(number)
            parts = self.completed(between.even, between.axis)
            if parts is not None:
                self.begun.setdefault(parts[0], []).append(number)

    def splat(self, number: Number) -> Constant | None:
        """Return the constant, the same everywhere, that a number is of; None if it is none."""
        op = self.made[number][0] if number in self.made else None
        return op if isinstance(op, Constant) and op.is_splat else None

    def find(self, op: Op, *operands: Number | None) -> Number | None:
        """Return the number of what an operation makes of operands; None if the computation does not have it."""
        return None if None in operands else self._known.get(_key(op, operands))

    def taken(
        self, number: Number | None, axis: int, start: int, limit: int, stride: int = 1
    ) -> Number | None:
        """Return the number of a slice along an axis; None if the computation does not have it."""
        if number is None:
            return None
        shape = self.values[number].type.shape
        starts, strides = (
            tuple(at if d == axis else rest for d in range(len(shape)))
            for at, rest in ((start, 0), (stride, 1))
        )
        limits = tuple(limit if d == axis else size for d, size in enumerate(shape))
        return self.find(Slice(starts, limits, strides), number)

    def completed(self, even: Number, axis: int) -> tuple[Number, Number] | None:
        """Return the array whose first element is even folds' first, and what makes the others; None if nothing is."""
        made = self.made.get(even)
        if made is None or not isinstance(made[0], Concatenate) or len(made[1]) != 2:
            return None
        first, rest = made[1]
        slice_ = self.made.get(first)
        if made[0].dimension != axis or slice_ is None or not isinstance(slice_[0], Slice):
            return None
        (array,) = slice_[1]
        return (array, rest) if self.taken(array, axis, 0, 1) == first else None

    def _interleaved(self, number: Number) -> _Interleaved | None:
        op, operands = self.made[number]
        if not isinstance(op, (Add, Or)) or not all(x in self.made for x in operands):
            return None
        (even, low), (odd, high) = (self._spread(x) for x in operands)
        if even is None or odd is None or low is None or high is None:
            return None
        (axis, before), (other, more) = low, high
        return _Interleaved(even, odd, axis) if (other, before, more) == (axis, 0, 1) else None

    def _spread(self, number: Number) -> tuple[Number | None, tuple[int, int] | None]:
        """Return what has a zero behind each element along one axis, that axis, and how many zeros are before it."""
        op, operands = self.made[number]
        if not isinstance(op, Pad) or sum(op.interior) != 1:
            return None, None
        axis = op.interior.index(1)
        fill = self.splat(operands[1])
        is_zero = fill is not None and not fill.value.any()
        beside = [n for d in range(len(op.low)) if d != axis for n in (op.low[d], op.high[d])]
        if any(beside) or not is_zero or op.low[axis] not in (0, 1) or op.high[axis] not in (0, 1):
            return None, None
        return operands[0], (axis, op.low[axis])


def _key(op: Op, operands: Sequence[Number | None]) -> Hashable:
    return type(op), op, tuple(operands)


class _Expression(NamedTuple):
    """What is computed element by element: ``op`` of ``operands``, or a constant, or what it reads."""

    op: Op | None
    operands: tuple[_Expression, ...]
    leaf: Leaf | None = None

    def walk(self) -> Iterator[_Expression]:
        """Yield all expressions in it, operands first."""
        for operand in self.operands:
            yield from operand.walk()
        yield self


@dataclass
class _Reading:
    """The reading of one associative scan, from its outermost result inwards.

    Args:
      numbering: of the computation.
      axis: along which the scan goes.
      size: elements along it.

    Attributes:
      arrays: the numbers of what is folded.
      folds: by place among the arrays the function, as far as it is known.
      inside: the numbers of what the scan makes on the way.
    """

    numbering: _Numbering
    axis: int
    size: int
    arrays: list[Number] = field(default_factory=list[Number])
    folds: dict[int, _Expression] = field(default_factory=dict[int, _Expression])
    inside: set[Number] = field(default_factory=set[Number])

    def read(self, outermost: Number) -> _Found | None:
        """Return the scan that a number is a result of; None if it is none, or something else reads parts of it."""
        results = self._results(outermost)
        if results is None or not self._others(results) or len(self.folds) != len(self.arrays):
            return None
        folded = self._folded(list(self.arrays), self.size)
        if any(folded[place] != number for place, number in results.items()):
            return None
        region = self._region()
        values = [self.numbering.values[number] for number in self.arrays]
        if self._is_read_outside(set(results.values())) or not is_associative(region):
            return None
        if max(self.arrays) > min(results.values()):
            return None
        read = {place: self.numbering.values[number] for place, number in results.items()}
        return _Found(tuple(values), self.axis, region, read)

    # ---- what the function is

    def _results(self, outermost: Number) -> dict[int, Number] | None:
        """Return by place the results that are read, and note the functions that give them."""
        results: dict[int, Number] = {}
        todo, begun = [outermost], self.numbering.begun
        while todo:
            number = todo.pop()
            parts = self._parts(number)
            if parts is None or number not in begun[parts[0]]:
                return None
            place = self._place(parts[0])
            if results.setdefault(place, number) != number:
                return None
            if place in self.folds:
                continue
            expression = self._expression(parts[1], self._outer_names())
            if expression is None:
                return None
            early: dict[Number, int] = {}
            for odd in {
                at.leaf[1] for at in expression.walk() if at.leaf is not None and at.leaf[0] == "odd"
            }:
                outer = self.numbering.of_odd[odd]
                of_it = self._parts(outer[0]) if len(outer) == 1 else None
                if of_it is None:
                    return None
                early[odd] = self._place(of_it[0])
                todo.append(outer[0])
            self.folds[place] = _with_early(expression, early)
            todo += [n for array in self.arrays for n in begun.get(array, ()) if n not in results.values()]
        return results

    def _parts(self, number: Number) -> tuple[Number, Number] | None:
        """Return the array that an interleaved one has the folds of, and what makes every second fold but the first."""
        between = self.numbering.interleaved.get(number)
        if between is None or between.axis != self.axis:
            return None
        return self.numbering.completed(between.even, self.axis)

    def _place(self, array: Number) -> int:
        if array not in self.arrays:
            self.arrays.append(array)
        return self.arrays.index(array)

    def _outer_names(self) -> Callable[[Number], Leaf | None]:
        """Return what says whether a number is of every second fold, or of every second element, of the outermost level."""
        numbering, axis, size = self.numbering, self.axis, self.size

        def name(number: Number) -> Leaf | None:
            if number in numbering.of_odd:
                return "odd", number
            made = numbering.made.get(number)
            if made is None or not isinstance(made[0], Slice):
                return None
            (x,) = made[1]
            if x in numbering.of_odd and number == numbering.taken(x, axis, 0, size // 2 - 1):
                return "odd", x
            if number == numbering.taken(x, axis, 2, size, 2):
                return "late", self._place(x)
            return None

        return name

    def _others(self, results: Mapping[int, Number]) -> bool:
        """Note the functions of arrays whose folds only others read; return whether all could be told."""
        missing = [place for place in range(len(self.arrays)) if place not in results]
        if not missing:
            return True
        inner: dict[int, Number] = {}  # the elements of the next level, by place
        for place, number in results.items():
            parts = self._parts(self.numbering.interleaved[number].odd)
            if parts is None or not self._same(self.folds[place], parts[1], inner):
                return False
        for place in missing:
            if place not in inner:
                return False
            expression = self._expression(inner[place], self._pair_names())
            if expression is None:
                return False
            self.folds[place] = expression
        return True

    def _same(self, expression: _Expression, number: Number, inner: dict[int, Number]) -> bool:
        """Return whether a number is of the same function one level in, and note which elements it reads there."""
        if expression.leaf is not None and expression.leaf[0] == "early":
            return True
        if number not in self.numbering.made:
            return False
        op, operands = self.numbering.made[number]
        if expression.leaf is not None:
            _, place = expression.leaf
            return isinstance(op, Slice) and inner.setdefault(place, operands[0]) == operands[0]
        if isinstance(expression.op, Constant):
            return isinstance(op, Constant)
        if op != expression.op or len(operands) != len(expression.operands):
            return False
        return all(self._same(e, x, inner) for e, x in zip(expression.operands, operands, strict=True))

    def _pair_names(self) -> Callable[[Number], Leaf | None]:
        """Return what says which elements of neighbours a number is of."""
        places = {
            self.numbering.taken(array, self.axis, start, self.size - 1 + start, 2): (kind, place)
            for place, array in enumerate(self.arrays)
            for kind, start in (("early", 0), ("late", 1))
        }
        return places.get

    def _expression(self, number: Number, name: Callable[[Number], Leaf | None]) -> _Expression | None:
        """Return how a number is computed of what has a name; None if it is not, element by element."""
        left = MOST_OPERATIONS

        def build(number: Number) -> _Expression | None:
            nonlocal left
            leaf = name(number)
            if leaf is not None:
                return _Expression(None, (), leaf)
            left -= 1
            if number not in self.numbering.made:
                return None
            op, operands = self.numbering.made[number]
            if isinstance(op, Constant) and op.is_splat:
                return _Expression(Constant.splat(op.value, op.type.with_shape(())), ())
            if left < 0 or not isinstance(op, Elementwise):
                return None
            parts = [build(x) for x in operands]
            known = tuple(part for part in parts if part is not None)
            return _Expression(op, known) if len(known) == len(parts) else None

        return build(number)

    # ---- whether that is what the computation does

    def _folded(self, elements: list[Number | None], size: int) -> list[Number | None]:
        """Return the folds of elements as JAX writes them, None where the computation does not have them."""
        if size < 2:
            return elements
        taken = self._taken
        first, second = ([taken(x, start, size - 1 + start, 2) for x in elements] for start in (0, 1))
        odd = self._folded(self._applied(first, second), size // 2)
        early = odd if size % 2 else [taken(x, 0, size // 2 - 1) for x in odd]
        later = self._applied(early, [taken(x, 2, size, 2) for x in elements])
        results: list[Number | None] = []
        for x, rest, between in zip(elements, later, odd, strict=True):
            results.append(self._interleaving(x, rest, between, size))
        return results

    def _taken(self, number: Number | None, start: int, limit: int, stride: int = 1) -> Number | None:
        found = self.numbering.taken(number, self.axis, start, limit, stride)
        return found if number in self.arrays else self._note(found)

    def _note(self, number: Number | None) -> Number | None:
        if number is not None and self.numbering.splat(number) is None:
            self.inside.add(number)
        return number

    def _interleaving(
        self, array: Number | None, rest: Number | None, odd: Number | None, size: int
    ) -> Number | None:
        """Return the folds whose first is an array's first element; of two, how nothing is combined does not matter."""
        if array is None or odd is None:
            return None
        for number in self.numbering.begun.get(array, ()):
            found, shape = self.numbering.interleaved[number], self.numbering.values[number].type.shape
            is_it = found.axis == self.axis and found.odd == odd and shape[self.axis] == size
            if is_it and (size == 2 or self._parts(number) == (array, rest)):
                self._taken(array, 0, 1)
                self.inside.update((found.even, *self.numbering.made[number][1]))
                return self._note(number)
        return None

    def _applied(self, early: Sequence[Number | None], late: Sequence[Number | None]) -> list[Number | None]:
        """Return the function of what is folded so far and what comes next."""
        arguments = {"early": early, "late": late}
        shape = next((self.numbering.values[x].type.shape for x in late if x is not None), None)
        if shape is None:
            return [None] * len(self.arrays)
        known: dict[_Expression, Number | None] = {}

        def value(expression: _Expression) -> Number | None:
            if expression.leaf is not None:
                kind, place = expression.leaf
                return arguments[kind][place]
            if expression not in known:
                op = expression.op
                assert op is not None
                if isinstance(op, Constant):
                    op = Constant.splat(op.value, op.type.with_shape(shape))
                found = self.numbering.find(op, *(value(x) for x in expression.operands))
                known[expression] = self._note(found)
            return known[expression]

        return [value(self.folds[place]) for place in range(len(self.arrays))]

    def _is_read_outside(self, results: set[Number]) -> bool:
        """Return whether anything but the scan reads what it makes on the way."""
        numbering, inside = self.numbering, self.inside
        on_the_way = inside - results
        for instruction in numbering.computation.instructions:
            own = numbering.number(instruction.results[0]) if instruction.results else None
            is_empty = own is not None and 0 in instruction.results[0].type.shape
            if own in inside or is_empty:
                continue
            if any(numbering.number(x) in on_the_way for x in _read_by(instruction)):
                return True
        return any(numbering.number(x) in on_the_way for x in numbering.computation.results)

    # ---- the function as a region

    def _region(self) -> Computation:
        scalars = [self.numbering.values[x].type.with_shape(()) for x in self.arrays]
        count = len(scalars)
        parameters = tuple(Value(f"x{k}", scalars[k % count]) for k in range(2 * count))
        instructions: list[Instruction] = []
        known: dict[_Expression, Value] = {}

        def value(expression: _Expression) -> Value:
            if expression.leaf is not None:
                kind, place = expression.leaf
                return parameters[place + count * (kind == "late")]
            if expression not in known:
                op = expression.op
                assert op is not None
                operands = tuple(value(x) for x in expression.operands)
                (type_,) = op.infer(*(x.type for x in operands))
                known[expression] = Value(f"y{len(instructions)}", type_)
                instructions.append(Instruction(op, operands, (known[expression],)))
            return known[expression]

        results = tuple(value(self.folds[place]) for place in range(count))
        return Computation("combine", parameters, tuple(instructions), results)


def _with_early(expression: _Expression, places: Mapping[Number, int]) -> _Expression:
    """Return an expression that reads the folds so far of arrays in place of folds at odd places."""
    if expression.leaf is not None:
        kind, number = expression.leaf
        return expression._replace(leaf=("early", places[number])) if kind == "odd" else expression
    return expression._replace(operands=tuple(_with_early(x, places) for x in expression.operands))


def _read_by(instruction: Instruction) -> Iterator[Value]:
    """Yield what an instruction reads, its regions too."""
    yield from instruction.operands
    for region in instruction.regions:
        yield from region.results
        for inner in region.instructions:
            yield from _read_by(inner)
