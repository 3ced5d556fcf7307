"""Operations that move, contract, fold or carry complex numbers, in terms of pairs of real tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from hlo_passes import ops
from hlo_passes.errors import UnsupportedOp
from hlo_passes.ir import Builder, Computation, Instruction, Op, TensorType, Value
from hlo_passes.passes.complex.arithmetic import FORMULAS, Pair, absolute, divide_by_real
from hlo_passes.passes.expansions.term import Term

Split: TypeAlias = "Value | Pair"
"""What stands for a value: itself, or the parts of a complex one."""


@dataclass(frozen=True)
class Site:
    """One instruction being rewritten.

    Args:
      instruction: the instruction as it was.
      operands: what stands for its operands.
      regions: its regions, rewritten: each complex parameter and result has become two, side by side.
      builder: where the new instructions go.
      zeros: values of the new computation known to be 0 everywhere.
    """

    instruction: Instruction
    operands: tuple[Split, ...]
    regions: tuple[Computation, ...]
    builder: Builder
    zeros: set[Value]

    @property
    def op(self) -> Op:
        """The operation."""
        return self.instruction.op

    @property
    def flat(self) -> list[Value]:
        """The operands, parts of complex ones side by side."""
        return [value for operand in self.operands for value in flattened(operand)]

    def pair(self, number: int) -> Pair:
        """Return a complex operand's parts."""
        return cast(Pair, self.operands[number])

    def is_real(self, pair: Pair) -> bool:
        """Whether the imaginary part of numbers is known to be 0."""
        return pair.imag.value in self.zeros

    def one(self, op: Op, *operands: Value) -> Value:
        """Add an instruction with one result; return it."""
        return self.builder.add(op, *operands)

    def splat(self, element: Any, type_: TensorType) -> Value:
        """Return a tensor that holds one element everywhere."""
        op = ops.Constant.splat(element, type_)
        value = self.one(op)
        if not any(op.value.tobytes()):  # a zero with a sign is not nothing
            self.zeros.add(value)
        return value

    def joined(self, real: Value, imag: Value) -> Pair:
        """Return a pair of values."""
        return Pair(Term(self.builder, real), Term(self.builder, imag))


Rule = Callable[[Site], "Sequence[Split]"]


def flattened(split: Split) -> tuple[Value, ...]:
    """Return the one or two values of what stands for a value."""
    return (split.real.value, split.imag.value) if isinstance(split, Pair) else (split,)


def split_types(types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Return types with each complex one replaced by two of its parts."""
    return tuple(part for t in types for part in ((t.part, t.part) if t.is_complex else (t,)))


def grouped(values: Sequence[Value], types: Sequence[TensorType], builder: Builder) -> list[Split]:
    """Return what stands for values of the given types, whose parts lie side by side."""
    remaining = iter(values)
    return [
        Pair(Term(builder, next(remaining)), Term(builder, next(remaining)))
        if type_.is_complex
        else next(remaining)
        for type_ in types
    ]


def _emit_flat(site: Site, op: Op, regions: Sequence[Computation]) -> list[Split]:
    """Emit an operation on the flat operands; it has a result per part."""
    results = site.builder.emit(op, *site.flat, regions=regions)
    return grouped(results, [value.type for value in site.instruction.results], site.builder)


def carry(site: Site) -> list[Split]:
    """Loops, branches, barriers and folds of any kind: the same with more values."""
    op = site.op
    if isinstance(op, ops.While | ops.Repeat) and op.invariants:
        last = site.operands[-op.invariants :]
        op = dataclasses.replace(op, invariants=sum(len(flattened(operand)) for operand in last))
    return _emit_flat(site, op, site.regions)


def call(site: Site) -> list[Split]:
    """Calls: the callee is rewritten too."""
    assert isinstance(site.op, ops.Call)
    return _emit_flat(site, dataclasses.replace(site.op, types=split_types(site.op.types)), ())


def part_by_part(site: Site) -> list[Split]:
    """Movement, and what acts on each part alone: once for real, once for imaginary parts."""
    regions = [_on_part(region) for region in site.instruction.regions]
    pairs = [operand for operand in site.operands if isinstance(operand, Pair)]
    if all(map(site.is_real, pairs)):
        real, imag = _halves(site, regions, 1), site.splat(0, site.instruction.result.type.part)
        return [site.joined(real[0], imag)]
    real, imag = _halves(site, regions, 2)
    return [site.joined(real, imag)]


def _halves(site: Site, regions: Sequence[Computation], count: int) -> list[Value]:
    """Return the operation on the real and then, if asked for both, on the imaginary parts."""
    halves: list[Value] = []
    for number in range(count):
        operands = (
            operand[number].value if isinstance(operand, Pair) else operand for operand in site.operands
        )
        halves += site.builder.emit(site.op, *operands, regions=regions)
    return halves


def _on_part(region: Computation) -> Computation:
    """Return a region of additions and nothing else with parts in place of complex numbers."""
    builder = Builder(region.name)
    env = {p: builder.parameter(p.type.part, p.name) for p in region.parameters}
    for instruction in region.instructions:
        results = builder.clone(instruction, [env[value] for value in instruction.operands])
        env.update(zip(instruction.results, results, strict=True))
    return builder.build(*(env[value] for value in region.results))


def fold(site: Site) -> list[Split]:
    """Folds: a sum of complex numbers is two sums."""
    is_sum = len(site.instruction.results) == 1 and (
        ops.simple_combiner(site.instruction.regions[0]) == "add"
    )
    return part_by_part(site) if is_sum else carry(site)


def reduce_across(site: Site) -> list[Split]:
    """Collectives that combine: a sum of complex numbers is two sums."""
    if ops.simple_combiner(site.instruction.regions[0]) != "add":
        raise refusal(site.instruction)
    return part_by_part(site)


def scatter(site: Site) -> list[Split]:
    """Updates: replacing and adding act on each part alone."""
    is_single = len(site.instruction.results) == 1
    acts_on_parts = is_single and ops.update_kind(site.instruction.regions[0]) in ("set", "add")
    return part_by_part(site) if acts_on_parts else carry(site)


def sort(site: Site) -> list[Split]:
    """Sort parts together: the comparator takes the two elements of each array side by side."""
    (region,) = site.regions
    wanted: list[Value] = []
    remaining = iter(region.parameters)
    for operand in site.operands:
        left = [next(remaining) for _ in flattened(operand)]
        right = [next(remaining) for _ in flattened(operand)]
        wanted += [value for both in zip(left, right, strict=True) for value in both]
    return _emit_flat(site, site.op, [dataclasses.replace(region, parameters=tuple(wanted))])


def contract(site: Site) -> list[Split]:
    """Contractions and convolutions: four real ones."""
    op = site.op
    assert isinstance(op, ops.DotGeneral | ops.Convolution)
    on_parts = dataclasses.replace(op, dtype=site.instruction.result.type.part.dtype)
    lhs, rhs = site.pair(0), site.pair(1)

    def product(x: int, y: int) -> Term:
        return lhs[x].apply(on_parts, rhs[y])

    return [Pair(product(0, 0) - product(1, 1), product(0, 1) + product(1, 0))]


def constant(site: Site) -> list[Split]:
    """Constants: one per part."""
    assert isinstance(site.op, ops.Constant)
    value, part = site.op.value, site.op.type.part
    halves = [ops.Constant(half.copy(), part) for half in (np.real(value), np.imag(value))]
    values = [site.splat(half.value, part) if half.is_splat else site.one(half) for half in halves]
    return [site.joined(*values)]


def iota(site: Site) -> list[Split]:
    """Count in the real part."""
    assert isinstance(site.op, ops.Iota)
    part = site.op.type.part
    return [site.joined(site.one(dataclasses.replace(site.op, type=part)), site.splat(0, part))]


def elementwise(site: Site) -> list[Split]:
    """Arithmetic, by its formula."""
    formula = FORMULAS.get(type(site.op))
    if formula is None:
        raise refusal(site.instruction)
    if isinstance(site.op, ops.Divide) and site.is_real(site.pair(1)):
        return [divide_by_real(site.pair(0), site.pair(1).real)]
    return [formula(*site.operands)]


def magnitude(site: Site) -> list[Split]:
    """``abs``."""
    return [absolute(site.pair(0)).value]


def compare(site: Site) -> list[Split]:
    """Equality of both parts."""
    assert isinstance(site.op, ops.Compare)
    x, y, direction = site.pair(0), site.pair(1), site.op.direction
    real, imag = x.real.compare(direction, y.real), x.imag.compare(direction, y.imag)
    return [(real & imag if direction == "EQ" else real | imag).value]


def convert(site: Site) -> list[Split]:
    """Conversions from and to complex numbers."""
    (operand,), (result,) = site.operands, site.instruction.results
    op = ops.Convert(result.type.part.dtype)
    if not isinstance(operand, Pair):
        imag = site.splat(0, result.type.part)
        return [site.joined(site.one(op, operand), imag)]
    if result.type.is_complex:
        return [Pair(*(half.apply(op) for half in operand))]
    if result.type.is_bool:
        return [(operand.real.compare("NE", 0.0) | operand.imag.compare("NE", 0.0)).value]
    return [operand.real.apply(op).value]


def bitcast(site: Site) -> list[Split]:
    """``bitcast_convert``: a wider number's real part makes up one narrower number, its imaginary part another."""
    pair, (result,) = site.pair(0), site.instruction.results
    if pair.real.type.dtype == result.type.part.dtype:
        return [pair]
    op = ops.BitcastConvert(result.type.part.dtype)
    if result.type.rank > pair.real.type.rank:
        halves = [part.apply(op) for part in pair]
        return [Pair(*(halves[0].at(-1, k).joined(-1, halves[1].at(-1, k)) for k in range(2)))]
    return [Pair(*(pair.real.at(-1, k).joined(-1, pair.imag.at(-1, k)).apply(op) for k in range(2)))]


def join(site: Site) -> list[Split]:
    """``complex``."""
    return [site.joined(*site.flat)]


def take_part(site: Site) -> list[Split]:
    """``real`` and ``imag``, of complex or real numbers."""
    (operand,) = site.operands
    is_real = isinstance(site.op, ops.Real)
    if isinstance(operand, Pair):
        return [(operand.real if is_real else operand.imag).value]
    return [operand if is_real else site.splat(0, operand.type)]


def refusal(instruction: Instruction) -> UnsupportedOp:
    """Return the named error for an operation that has no rule."""
    hint = "real and imaginary parts apart, with jnp.real, jnp.imag and lax.complex"
    if isinstance(instruction.op, ops.Fft):
        hint = "the pass expand-fft in front of legalize-complex"
    return UnsupportedOp(f"{instruction.op.name} of complex numbers", str(instruction.location), hint)


RULES: dict[type[Op], Rule] = {
    ops.Abs: magnitude,
    ops.AllReduce: reduce_across,
    ops.BitcastConvert: bitcast,
    ops.Call: call,
    ops.Compare: compare,
    ops.Complex: join,
    ops.Constant: constant,
    ops.Convert: convert,
    ops.Convolution: contract,
    ops.DotGeneral: contract,
    ops.Imag: take_part,
    ops.Iota: iota,
    ops.Real: take_part,
    ops.Reduce: fold,
    ops.ReduceScatter: reduce_across,
    ops.ReduceWindow: fold,
    ops.Scatter: scatter,
    ops.Sort: sort,
    **dict.fromkeys(FORMULAS, elementwise),
    **dict.fromkeys((ops.Case, ops.Fusion, ops.If, ops.OptimizationBarrier, ops.Repeat, ops.While), carry),
    **dict.fromkeys(
        (
            ops.AllGather,
            ops.AllToAll,
            ops.BroadcastInDim,
            ops.CollectiveBroadcast,
            ops.CollectivePermute,
            ops.Concatenate,
            ops.DynamicSlice,
            ops.DynamicUpdateSlice,
            ops.Gather,
            ops.Pad,
            ops.Reshape,
            ops.Reverse,
            ops.Select,
            ops.Slice,
            ops.Transpose,
        ),
        part_by_part,
    ),
}
"""How each operation that meets complex numbers is written in terms of their parts."""
