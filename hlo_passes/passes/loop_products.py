"""Products that every trip of a loop computes of a slice each, computed once of all slices: before the loop, or after it.

The gradient of a recurrent network adds a product to a weight's gradient in every step: of few rows, into as many elements as
the weight has. So do its inputs' projection, which waits for no step before, and its gradient, which no other step reads. cuDNN
computes these for all steps at once, as popnn's LSTM may (its option ``preCalcWeights``); programs that are written as
``lax.scan`` have them in the loop.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from hlo_passes.ir import Computation, Instruction, TensorType, Value, value_names
from hlo_passes.ops import (
    Add,
    Concatenate,
    Constant,
    Convert,
    DotGeneral,
    DynamicSlice,
    DynamicUpdateSlice,
    Negate,
    Pad,
    Reduce,
    Repeat,
    Reshape,
    Slice,
    Subtract,
    Transpose,
    simple_combiner,
)
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.loops import constant_in, num_carried, with_invariants
from hlo_passes.passes.rewriter import Rewriter
from hlo_passes.passes.structure import FreshNames

LITTLE = 1 << 24
"""Bytes that new stacks may always take: less than 2 % of a chip's memory."""
LEAST_SHARE = 2
"""How many times as large as the slices that are stacked for it, in every trip, a sum has to be."""
_LINEAR = (Add, Concatenate, Convert, Negate, Pad, Reshape, Slice, Subtract, Transpose)
"""Operations that sums over trips may be behind instead of before; what is padded with has to be zero, as any other leaf."""
_DEEP = 64
"""Operations behind each other that are looked at between a product and the sum that it is added to."""
MOST_AT_ONCE = 1 << 18
"""Elements of a trip's product up to which it is computed before the loop: larger ones have enough rows by themselves."""


@dataclass(frozen=True)
class LoopProducts(LocalPass):
    """Take products out of loops that count their trips, where slices of all trips are there, or may be kept.

    - A carried sum that a trip adds products to, and does nothing else with, becomes what one product over all trips adds. Sums of
      slices that are kept follow. This changes the order of a sum, as how a product's tiles share it does, and rounds it once.
    - A product of a slice and an invariant whose result a trip only writes to its place in an array is computed after the loop,
      one that only reads its place in an array before it.

    What is computed in a trip is kept where that takes no more than the arrays that the loop reads and writes by trips do, or
    ``little`` bytes.
    """

    name: ClassVar[str] = "loop-products"
    little: int = LITTLE

    def change(self, computation: Computation) -> Computation:
        """Return the computation with such products outside of their loops; itself when there are none."""
        if Repeat not in computation.op_types:
            return computation
        return Rewriter(computation, {Repeat: (self._moved,)}).run()

    def _moved(self, instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
        loop = _Loop.of(instruction, rewriter, self.little)
        return None if loop is None else loop.moved()


class _Place(NamedTuple):
    """Where a trip reads or writes along the first axis of an array: ``number`` or ``count - 1 - number`` of the trip."""

    is_reversed: bool
    at: Value


@dataclass
class _Loop:
    """A loop, and what is known of its trips.

    Args:
      instruction: the ``Repeat``.
      rewriter: of the computation around it.
      counter: the carried value that counts trips from 0.
      little: bytes that may always be kept.
      kept: values of the body that new stacks are made of, each with its place.
    """

    instruction: Instruction
    rewriter: Rewriter
    counter: Value
    little: int
    kept: dict[Value, _Place] = field(default_factory=dict[Value, _Place])

    @classmethod
    def of(cls, instruction: Instruction, rewriter: Rewriter, little: int) -> _Loop | None:
        """Return a loop of two trips and more that are counted from 0; None of any other."""
        assert isinstance(instruction.op, Repeat)
        (body,) = instruction.regions
        if instruction.op.count < 2 or body.has_effect:
            return None
        for parameter, start, result in zip(
            body.parameters, instruction.operands, body.results, strict=False
        ):
            first = rewriter.constant(start)
            if parameter.type.rank or not parameter.type.is_integer or first is None or int(first.value[()]):
                continue
            step = body.producers.get(result)
            if step is None or not isinstance(step.op, Add) or parameter not in step.operands:
                continue
            others = [value for value in step.operands if value != parameter]
            one = constant_in(body, others[0]) if len(others) == 1 else None
            if one is not None and int(one.value[()]) == 1:
                return cls(instruction, rewriter, parameter, little)
        return None

    # ---- what the body says

    @property
    def body(self) -> Computation:
        """The region."""
        return self.instruction.regions[0]

    @property
    def count(self) -> int:
        """How many trips there are."""
        assert isinstance(self.instruction.op, Repeat)
        return self.instruction.op.count

    def __post_init__(self) -> None:
        """Count who reads what."""
        self._makers = self.body.producers
        self._uses = Counter(v for i in self.body.instructions for v in i.operands)
        self._uses.update(self.body.results)
        self._numbers = {value: number for number, value in enumerate(self.body.parameters)}
        self._carried = num_carried(self.instruction)

    def _made(self, value: Value, op: type) -> Instruction | None:
        made = self._makers.get(value)
        return made if made is not None and isinstance(made.op, op) else None

    def _unchanged(self, value: Value) -> bool:
        """Whether a parameter is the same in every trip."""
        number = self._numbers.get(value)
        return number is not None and (number >= self._carried or self.body.results[number] == value)

    def _outside(self, parameter: Value) -> Value:
        """Return what an unchanged parameter is outside."""
        return self.instruction.operands[self._numbers[parameter]]

    def _affine(self, value: Value, depth: int = 6) -> tuple[int, int] | None:
        """Return a and b where an integer is ``a * trip + b``."""
        if value == self.counter:
            return 1, 0
        constant = constant_in(self.body, value)
        if constant is not None:
            return (0, int(constant.value[()])) if value.type.rank == 0 and value.type.is_integer else None
        made = self._makers.get(value)
        if made is None or not depth or not isinstance(made.op, Add | Subtract):
            return None
        one, other = (self._affine(operand, depth - 1) for operand in made.operands)
        if one is None or other is None:
            return None
        sign = -1 if isinstance(made.op, Subtract) else 1
        return one[0] + sign * other[0], one[1] + sign * other[1]

    def _place(self, array: TensorType, window: tuple[int, ...], indices: Sequence[Value]) -> _Place | None:
        """Return the place of a window of one element along the first axis, and all of the others, if trips go through all."""
        if array.rank < 2 or array.shape[0] != self.count or window != (1, *array.shape[1:]):
            return None
        found = self._affine(indices[0])
        if found == (1, 0):
            return _Place(False, indices[0])
        return _Place(True, indices[0]) if found == (-1, self.count - 1) else None

    def _sliced(self, value: Value) -> tuple[Value, _Place] | None:
        """Return the array outside of which a value is a trip's slice, and the place of it."""
        reshape = self._made(value, Reshape)
        cut = None if reshape is None else self._made(reshape.operands[0], DynamicSlice)
        if cut is None:
            return None
        array, *indices = cut.operands
        assert isinstance(cut.op, DynamicSlice)
        if not self._unchanged(array) or value.type.shape != array.type.shape[1:]:
            return None
        place = self._place(array.type, cut.op.slice_sizes, indices)
        return None if place is None else (self._outside(array), place)

    def _written(self, number: int) -> tuple[Value, _Place] | None:
        """Return what a trip writes to its place in a carried array, and does nothing else with the array."""
        parameter, result = self.body.parameters[number], self.body.results[number]
        update = self._made(result, DynamicUpdateSlice)
        if update is None or update.operands[0] != parameter or self._uses[parameter] != 1:
            return None
        reshape = self._made(update.operands[1], Reshape)
        if self._uses[result] != 1 or reshape is None:
            return None
        (value,) = reshape.operands
        place = self._place(parameter.type, update.operands[1].type.shape, update.operands[2:])
        if place is None or value.type.shape != parameter.type.shape[1:]:
            return None
        return value, place

    # ---- what leaves the loop

    def moved(self) -> Sequence[Value] | None:
        """Return what stands for the loop's results; None where nothing leaves it."""
        self._arrays = {  # values of the body of which an array outside has all trips, after the loop at the latest
            value: (number, place)
            for number in range(self._carried)
            if (found := self._written(number)) is not None
            for value, place in [found]
        }
        sums = self._worthwhile(
            {n: terms for n in range(self._carried) if (terms := self._terms(n)) is not None}
        )
        sunk = self._sunk()
        early = self._early({v for v, (n, _) in self._arrays.items() if n in sunk})
        if not sums and not sunk and not early:
            return None
        return self._rewritten(sums, sunk, early)

    def _terms(self, number: int) -> list[Instruction] | None:
        """Return the products, and sums of arrays, that a trip adds to a carried sum and does nothing else with it; None of any other.

        They may be added, moved and converted before that, as the sums over all trips are then.
        """
        parameter = self.body.parameters[number]
        is_sum = parameter.type.is_float or parameter.type.is_integer
        added = self._added(self.body.results[number], parameter) if is_sum else None
        if not added or self._uses[parameter] != 1:
            return None
        found: list[Instruction] = []
        for value in added:
            leaves = self._leaves(value, parameter.type)
            if leaves is None:
                return None
            found += leaves
        return found

    def _added(self, value: Value, parameter: Value, depth: int = _DEEP) -> list[Value] | None:
        """Return what is added to a parameter, once, to make a value; None where that is not how it is made."""
        if value == parameter:
            return []
        made = self._made(value, Add)
        if made is None or self._uses[value] != 1 or not depth:
            return None
        for one, other in (made.operands, made.operands[::-1]):
            before = self._added(one, parameter, depth - 1)
            if before is not None:
                return [*before, other]
        return None

    def _leaves(self, value: Value, type_: TensorType, depth: int = _DEEP) -> list[Instruction] | None:
        """Return the products and sums of arrays that a value is a linear function of, and nothing else of them; else None."""
        made = self._makers.get(value)
        if self._is_zero(value):
            return []
        if made is None or self._uses[value] != 1 or len(made.results) != 1 or not depth:
            return None
        if isinstance(made.op, DotGeneral):
            return [made]
        if isinstance(made.op, Reduce):
            is_add = len(made.operands) == 2 and simple_combiner(made.regions[0]) == "add"
            is_as_wide = made.result.type.bits >= type_.bits  # or all trips together may pass its range
            return [made] if is_add and is_as_wide and self._is_zero(made.operands[1]) else None
        if isinstance(made.op, Convert) and not (made.operands[0].type.is_float and type_.is_float):
            return None
        if not isinstance(made.op, _LINEAR):
            return None
        found: list[Instruction] = []
        for operand in made.operands:
            leaves = self._leaves(operand, type_, depth - 1)
            if leaves is None:
                return None
            found += leaves
        return found

    def _is_zero(self, value: Value) -> bool:
        constant = constant_in(self.body, value)
        return constant is not None and constant.is_splat and not constant.value.any()

    def _stacked_place(self, value: Value) -> _Place | None:
        """Return the place of a value that an array outside has of every trip."""
        sliced = self._sliced(value)
        if sliced is not None:
            return sliced[1]
        if value in self._arrays:
            return self._arrays[value][1]
        return self.kept.get(value)

    def _common_place(self, values: Sequence[Value]) -> _Place | None:
        """Return one place for several values, of those of which arrays are there: new ones may have any."""
        places = [place for value in values if (place := self._stacked_place(value)) is not None]
        if len({place.is_reversed for place in places}) > 1:
            return None
        return places[0] if places else _Place(False, self.counter)

    def _missing(self, values: Sequence[Value]) -> list[Value]:
        return [v for v in dict.fromkeys(values) if self._stacked_place(v) is None]

    def _worthwhile(self, sums: Mapping[int, Sequence[Instruction]]) -> set[int]:
        """Return the sums that leave the loop, the largest first where new stacks share the room; note what is stacked for them."""
        chosen: set[int] = set()
        # of those without products the last: slices are not stacked for them, but may be for others
        order = sorted(
            sums, key=lambda n: (not _products(sums[n]), -self.body.parameters[n].type.size_bytes, n)
        )
        for number in order:
            before = dict(self.kept)
            arrays = [each.operands[0] for each in sums[number] if isinstance(each.op, Reduce)]
            is_kept = self._keep(_products(sums[number]), self.body.parameters[number].type.size_bytes)
            if sums[number] and is_kept and not self._missing(arrays):
                chosen.add(number)
            else:
                self.kept = before
        return chosen

    def _keep(self, products: Sequence[Instruction], size: int) -> bool:
        """Whether operands of products into a sum of so many bytes are stacked, or may be; note which."""
        fresh: set[Value] = set()
        for product in products:
            missing = self._missing(product.operands)
            place = self._common_place(product.operands)
            if place is None or any(not value.type.rank or value in self._numbers for value in missing):
                return False
            self.kept.update(dict.fromkeys(missing, place))
            fresh.update(missing)
        is_little = LEAST_SHARE * sum(value.type.size_bytes for value in fresh) <= size
        return is_little and self._kept_bytes <= max(self.little, self._array_bytes)

    @property
    def _kept_bytes(self) -> int:
        """Bytes of new stacks."""
        return sum(self.count * value.type.size_bytes for value in self.kept)

    @property
    def _array_bytes(self) -> int:
        """Bytes of the arrays that the loop reads and writes by trips."""
        parameters = [p for p in self.body.parameters if p.type.rank and p.type.shape[0] == self.count]
        return sum(p.type.size_bytes for p in parameters)

    def _sunk(self) -> dict[int, Instruction]:
        """Return the arrays, by number, of whose places a trip computes each as a product with an invariant alone."""
        found: dict[int, Instruction] = {}
        for value, (number, place) in list(self._arrays.items()):
            product = self._made(value, DotGeneral)
            if product is None or self._uses[value] != 1:
                continue
            one = self._one_varying(product)
            if one is None:
                continue
            at = self._stacked_place(product.operands[one])
            if at is not None and at.is_reversed == place.is_reversed:
                found[number] = product
                del self._arrays[value]
        return found

    def _early(self, sunk: set[Value]) -> list[Instruction]:
        """Return the products of a slice of an array and an invariant that may be computed before the loop."""
        found: list[Instruction] = []
        total = self._kept_bytes
        for made in self.body.instructions:
            if not isinstance(made.op, DotGeneral) or made.result in sunk or not self._uses[made.result]:
                continue
            if made.result.type.size > MOST_AT_ONCE:
                continue
            one = self._one_varying(made)
            if one is None or self._sliced(made.operands[one]) is None:
                continue
            size = self.count * made.result.type.size_bytes
            if total + size <= max(self.little, self._array_bytes):
                total += size
                found.append(made)
        return found

    def _one_varying(self, product: Instruction) -> int | None:
        """Return which operand of a product differs from trip to trip, where the other is the same in all of them."""
        fixed = [self._unchanged(value) for value in product.operands]
        return fixed.index(False) if fixed.count(False) == 1 else None

    # ---- the loop without them, and what stands for it

    def _rewritten(
        self, sums: set[int], sunk: dict[int, Instruction], early: Sequence[Instruction]
    ) -> Sequence[Value]:
        rewriter, body, operands = self.rewriter, self.body, self.instruction.operands
        names = FreshNames(value_names(body))
        before = {made.result: self._product_of_all(made, self._array_before) for made in early}
        added = {value: Value(names.new(), array.type) for value, array in before.items()}
        kept = [n for n in range(self._carried) if n not in sums and n not in sunk]
        stacks = {value: Value(names.new(), _stack_type(value.type, self.count)) for value in self.kept}
        instructions: list[Instruction] = []
        for each in body.instructions:
            if each in early:
                instructions += self._slicing(names, added[each.result], each)
            else:
                instructions.append(each)
        results = [body.results[n] for n in kept]
        for value, stack in stacks.items():
            results.append(self._emit_update(instructions, names, stack, value, self.kept[value]))
        parameters = (
            *(body.parameters[n] for n in kept),
            *stacks.values(),
            *body.parameters[self._carried :],
            *added.values(),
        )
        region = Computation(body.name, parameters, _needed(instructions, results), tuple(results))
        empty = [rewriter.emit(Constant.splat(0, stack.type)) for stack in stacks.values()]
        assert isinstance(self.instruction.op, Repeat)
        op = with_invariants(self.instruction.op, self.instruction.op.invariants + len(added))
        given = (*(operands[n] for n in kept), *empty, *operands[self._carried :], *before.values())
        found = rewriter.emit_all(op, given, (region,))
        after = dict(zip(kept, found, strict=False))
        arrays = dict(zip(stacks, found[len(kept) :], strict=True))

        def array_of(value: Value) -> Value:
            sliced = self._sliced(value)
            if sliced is not None:
                return sliced[0]
            return arrays[value] if value in arrays else after[self._arrays[value][0]]

        for number, product in sunk.items():
            after[number] = self._product_of_all(product, array_of)
        for number in sorted(sums):
            after[number] = self._total(number, array_of)
        return [after[n] for n in range(self._carried)]

    def _array_before(self, value: Value) -> Value:
        sliced = self._sliced(value)
        assert sliced is not None
        return sliced[0]

    def _slicing(self, names: FreshNames, array: Value, product: Instruction) -> list[Instruction]:
        """Return what reads a trip's product out of an array that has those of all, in place of the product."""
        one = self._one_varying(product)
        assert one is not None
        sliced = self._sliced(product.operands[one])
        assert sliced is not None
        index, where = sliced[1].at, product.location
        made: list[Instruction] = []
        zero = _zero(made, names, index.type)
        window = Value(names.new(), TensorType((1, *array.type.shape[1:]), array.type.dtype))
        at = index, *[zero] * (array.type.rank - 1)
        made.append(Instruction(DynamicSlice(window.type.shape), (array, *at), (window,), location=where))
        made.append(
            Instruction(Reshape(product.result.type.shape), (window,), product.results, location=where)
        )
        return made

    def _emit_update(
        self, made: list[Instruction], names: FreshNames, stack: Value, value: Value, place: _Place
    ) -> Value:
        """Add what writes a value to its place in a stack to instructions of the body; return the stack after that."""
        zero = _zero(made, names, place.at.type)
        window = Value(names.new(), TensorType((1, *value.type.shape), value.type.dtype))
        made.append(Instruction(Reshape(window.type.shape), (value,), (window,)))
        result = Value(names.new(), stack.type)
        at = (place.at, *[zero] * value.type.rank)
        made.append(Instruction(DynamicUpdateSlice(), (stack, window, *at), (result,)))
        return result

    def _product_of_all(self, product: Instruction, array_of: Callable[[Value], Value]) -> Value:
        """Return the products of all trips, those of each at its place along the first axis; one operand is an invariant."""
        op, one = product.op, self._one_varying(product)
        assert isinstance(op, DotGeneral)
        assert one is not None
        values = [array_of(v) if k == one else self._outside(v) for k, v in enumerate(product.operands)]
        numbers = op.dimension_numbers
        if one == 0:
            shifted = dataclasses.replace(
                numbers,
                lhs_batching=_shifted(numbers.lhs_batching),
                lhs_contracting=_shifted(numbers.lhs_contracting),
            )
            first = len(numbers.lhs_batching)
        else:
            shifted = dataclasses.replace(
                numbers,
                rhs_batching=_shifted(numbers.rhs_batching),
                rhs_contracting=_shifted(numbers.rhs_contracting),
            )
            free = numbers.lhs_free(product.operands[0].type.rank)
            first = len(numbers.lhs_batching) + len(free)
        op = dataclasses.replace(op, dimension_numbers=shifted)
        found = self.rewriter.emit(op, *values, location=product.location)
        if first == 0:
            return found
        rest = [d for d in range(found.type.rank) if d != first]
        return self.rewriter.emit(Transpose((first, *rest)), found)

    def _total(self, number: int, array_of: Callable[[Value], Value]) -> Value:
        """Return a carried sum after all trips."""
        start, parameter = self.instruction.operands[number], self.body.parameters[number]
        constant = self.rewriter.constant(start)
        is_zero = constant is not None and constant.is_splat and not constant.value.any()
        total = None if is_zero else start
        for value in self._added(self.body.results[number], parameter) or ():
            found = self._over_trips(value, parameter.type, array_of)
            total = found if total is None else self.rewriter.emit(Add(), total, found)
        return start if total is None else total

    def _over_trips(self, value: Value, type_: TensorType, array_of: Callable[[Value], Value]) -> Value:
        """Return the sum over all trips of a linear function of products; of floats in as many digits as it is added in."""
        made, emit = self._makers[value], self.rewriter.emit
        if isinstance(made.op, Constant):
            return emit(Constant.splat(0, type_.with_shape(value.type.shape)))
        if isinstance(made.op, Reduce):
            return self._fold_of_all(made, array_of)
        if isinstance(made.op, DotGeneral):
            wide = max(value.type, type_, key=lambda type_: type_.bits).dtype
            return self._sum_of_products(made, wide, array_of)
        operands = [self._over_trips(operand, type_, array_of) for operand in made.operands]
        if isinstance(made.op, Convert):
            (inner,) = operands
            is_wide = inner.type.bits >= made.result.type.bits
            return inner if inner.type.dtype == type_.dtype and is_wide else emit(Convert(type_.dtype), inner)
        kinds = {operand.type.dtype for operand in operands}
        if len(kinds) > 1:
            operands = [emit(Convert(type_.dtype), o) if o.type.dtype != type_.dtype else o for o in operands]
        return emit(made.op, *operands, location=made.location)

    def _fold_of_all(self, made: Instruction, array_of: Callable[[Value], Value]) -> Value:
        assert isinstance(made.op, Reduce)
        start = self.rewriter.emit(Constant.splat(0, made.operands[1].type))
        op = dataclasses.replace(made.op, dimensions=(0, *_shifted(made.op.dimensions)))
        operands = array_of(made.operands[0]), start
        return self.rewriter.emit_all(op, operands, made.regions, location=made.location)[0]

    def _sum_of_products(self, made: Instruction, dtype: str, array_of: Callable[[Value], Value]) -> Value:
        assert isinstance(made.op, DotGeneral)
        numbers = made.op.dimension_numbers
        shifted = dataclasses.replace(
            numbers,
            lhs_batching=_shifted(numbers.lhs_batching),
            rhs_batching=_shifted(numbers.rhs_batching),
            lhs_contracting=(0, *_shifted(numbers.lhs_contracting)),
            rhs_contracting=(0, *_shifted(numbers.rhs_contracting)),
        )
        op = dataclasses.replace(made.op, dimension_numbers=shifted, dtype=dtype)
        return self.rewriter.emit(op, *map(array_of, made.operands), location=made.location)


def _needed(instructions: Sequence[Instruction], results: Sequence[Value]) -> tuple[Instruction, ...]:
    """Return the instructions that results follow from, of a region without effects."""
    needed = set(results)
    kept: list[Instruction] = []
    for instruction in reversed(instructions):
        if not needed.isdisjoint(instruction.results):
            needed.update(instruction.operands)
            kept.append(instruction)
    return tuple(kept[::-1])


def _products(leaves: Sequence[Instruction]) -> list[Instruction]:
    return [each for each in leaves if isinstance(each.op, DotGeneral)]


def _shifted(dimensions: Sequence[int]) -> tuple[int, ...]:
    return tuple(d + 1 for d in dimensions)


def _stack_type(type_: TensorType, count: int) -> TensorType:
    return TensorType((count, *type_.shape), type_.dtype)


def _zero(made: list[Instruction], names: FreshNames, type_: TensorType) -> Value:
    zero = Value(names.new(), type_)
    made.append(Instruction(Constant.splat(0, type_), (), (zero,)))
    return zero
