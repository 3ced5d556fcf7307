"""Elementwise operations, data movement by affine maps, reductions and their fusions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hlo_passes.ir import Computation, FusionCategory, Instruction, Op, TensorType, Value
from hlo_passes.ir.op import OPS
from hlo_passes.ops import Concatenate, Constant, DotGeneral, Fusion, Nonlinearity, Reduce, Reshape
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.ops.reduction import simple_combiner
from hlo_passes.passes.indexing import ParameterMap, expressions
from ipuxla.lowering.contraction import place_dot
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.registry import RULES, Lowering, dtype_of, lowers, where
from tiles.graph import REDUCTION, Affine, Dim, IndexMap, Operation, OpForm, Site, Tensor, along, identity_map
from tiles.graph import Sequence as Program
from tiles.poplibs.popops.expression import Body
from tiles.poplibs.popops.map import Map
from tiles.poplibs.popops.reduce import neutral_element, reduce_codelet
from tiles.poplibs.popops.stencil import merged
from tiles.poplibs.poputil.place import place

Maps = list[tuple[Tensor, IndexMap]]


def place_expression(
    lowering: Lowering, region: Computation, operands: list[Tensor], name: str, location: str
) -> Tensor:
    """Place an injective computation with one result as one Map over the result's domain."""
    (placed,) = place_expressions(lowering, region, operands, name, location)
    return placed


def place_expressions(
    lowering: Lowering, region: Computation, operands: list[Tensor], name: str, location: str
) -> tuple[Tensor, ...]:
    """Place an injective computation with results of one shape as one Map over their domain."""
    body, maps, outputs = _expression(region, operands)
    dims = tuple(Dim(f"d{i}", size) for i, size in enumerate(region.results[0].type.shape))
    own = identity_map(len(dims))
    form = OpForm(dims, tuple(m for _, m in maps), (own,) * len(outputs))
    dtypes = tuple(t.dtype for t, _ in maps)
    result_dtypes = tuple(dtype_of(result.type) for result in region.results)
    codelet = Map(body, outputs, dtypes, result_dtypes)
    tensors = [t for t, _ in maps]
    neighbours = merged(form, [t.name for t in tensors], codelet)
    if neighbours is not None:
        form, kept, codelet = neighbours
        tensors = [tensors[number] for number in kept]
    return place(
        lowering.site(location, lowering.prefix + name),
        codelet,
        form,
        tensors,
        result_dtypes,
    )


def place_reduction(
    lowering: Lowering,
    region: Computation,
    operands: list[Tensor],
    reduce: Instruction,
    name: str,
    location: str,
    *,
    is_whole: bool = False,
) -> Tensor:
    """Place a single-operand reduction of an injective computation's result, in one step or, if cheaper, in two.

    Code that folds few columns as it computes them keeps one worker busy, where PopLibs' own reduction has all of them fold.
    Dimensions that are not neighbours may be folded one after the other. With ``is_whole`` it is one step.

    Raises:
      UnsupportedLowering: a combiner that is not one arithmetic operation.
    """
    combiner = simple_combiner(reduce.regions[0])
    if combiner is None or len(reduce.operands) != 2:
        raise UnsupportedLowering(
            "this reduction's combining function is not one of add, mul, max, min, and, or, xor of one operand",
            location=where(reduce),
            try_="several reductions with one operation each",
        )
    assert isinstance(reduce.op, Reduce)
    dimensions = reduce.op.dimensions
    body, maps, (value,) = _expression(region, operands)
    kinds = [
        REDUCTION if d in reduce.op.dimensions else "parallel"
        for d in range(len(region.results[0].type.shape))
    ]
    dims = tuple(Dim(f"d{i}", n, kinds[i]) for i, n in enumerate(region.results[0].type.shape))
    kept = IndexMap(tuple(along(i) for i, kind in enumerate(kinds) if kind != REDUCTION))
    form = OpForm(dims, tuple(m for _, m in maps), (kept,))
    dtype = dtype_of(reduce.result.type)
    if dtype != dtype_of(
        region.results[0].type
    ):  # the combining function takes wider values than it is given
        body = (*body, ("convert", (value,), (("dtype", dtype),)))
    codelet = reduce_codelet(combiner, dtype, body, tuple(t.dtype for t, _ in maps))

    def fused(program: Program) -> tuple[Tensor, ...]:
        site = Site(lowering.graph, lowering.prefix + name, location, sequence=program)
        return place(site, codelet, form, [t for t, _ in maps], (dtype,))

    def apart(program: Program) -> tuple[Tensor, ...]:
        own = replace(lowering, program=program)
        computed = place_expression(own, region, operands, name, location)
        whole = Computation("value", region.results, (), region.results)
        return (place_reduction(own, whole, [computed], reduce, "reduce", location),)

    def in_turn(first: tuple[int, ...], program: Program) -> tuple[Tensor, ...]:
        own = replace(lowering, program=program)
        type_ = region.results[0].type
        left = [d for d in range(type_.rank) if d not in first]
        inner = Value("inner", TensorType(tuple(type_.shape[d] for d in left), reduce.result.type.dtype))
        before = replace(reduce, op=Reduce(first), results=(inner,))
        folded = place_reduction(own, region, operands, before, name, location, is_whole=True)
        rest = tuple(left.index(d) for d in sorted(dimensions) if d not in first)
        whole = Computation("value", (inner,), (), (inner,))
        after = replace(reduce, op=Reduce(rest))
        return (place_reduction(own, whole, [folded], after, name, location, is_whole=True),)

    if is_whole:
        return fused(lowering.program)[0]
    few_columns = _folds_few_columns(form) and bool(region.instructions)
    may_be_apart = _may_be_apart(region, lowering)
    ways: list[Callable[[Program], tuple[Tensor, ...]]] = [fused]
    ways += [apart] if few_columns or may_be_apart else []
    ways += [partial(in_turn, run) for run in _first_runs(reduce, region.results[0].type, combiner)]
    if len(ways) == 1:
        return fused(lowering.program)[0]
    called, share = lowering.prefix + name, SURELY_LESS if may_be_apart and not few_columns else 1.0
    return lowering.graph.add_choice(called, ways, lowering.program, location, share)[0]


def _first_runs(reduce: Instruction, type_: TensorType, combiner: str) -> list[tuple[int, ...]]:
    """Return the dimensions, all neighbours, that many elements may be folded along before the others: the last ones or the first.

    Vertices that fold along several runs of dimensions at once go through short pieces. Floats of 16 bits would be rounded
    between the two.
    """
    assert isinstance(reduce.op, Reduce)
    result = reduce.result.type
    is_exact = combiner in ("max", "min", "and", "or") or not result.is_inexact
    if type_.size < MANY or (result.bits < _WORD_BITS and not is_exact):
        return []
    runs: list[list[int]] = []
    is_joined = False
    for d, size in enumerate(type_.shape):
        if d in reduce.op.dimensions and size > 1:
            runs = [*runs[:-1], [*runs[-1], d]] if is_joined else [*runs, [d]]
        is_joined = bool(runs) and (d in reduce.op.dimensions or (size == 1 and is_joined))
    return [tuple(runs[-1]), tuple(runs[0])] if len(runs) > 1 else []


SURELY_LESS = 0.7
"""What computing elements before they are folded costs at most, as a share of folding them as they are computed, to be done: they
take memory, and what is brought where the one or the other reads it is not counted."""
MANY = 1 << 16
"""Elements from which on it is asked which is quicker."""
FEW_OPERANDS = 4
"""Of which code that folds what it computes of them keeps all in registers."""
FEW_BYTES = 1 / 16
"""Share of an IPU's memory that elements computed before they are folded may take."""
_WORD_BITS = 32


def _may_be_apart(region: Computation, lowering: Lowering) -> bool:
    """Return whether elements that are computed as they are folded could be computed before: many, but not too many.

    Code that folds what it computes compares and counts one element at a time, and has registers for few operands.
    """
    type_, target = region.results[0].type, lowering.graph.target
    if type_.size < MANY or type_.size_bytes > FEW_BYTES * target.num_tiles * target.bytes_per_tile:
        return False
    chooses = any(isinstance(i.op, Elementwise) and not i.result.type.is_float for i in region.instructions)
    return chooses or len(region.parameters) > FEW_OPERANDS


FEW_COLUMNS = 4
"""Columns that tile code folds together (``popops/reduce_code.py``); of no more, workers of a tile have nothing to share."""


def _folds_few_columns(form: OpForm) -> bool:
    """Return whether what is kept behind the last dimension that is folded is more than one column, but few."""
    sizes = [dim.size for dim in form.dims]
    behind = 1 + max((d for d in form.reduced if sizes[d] > 1), default=len(sizes))
    return 1 < math.prod(sizes[behind:]) <= FEW_COLUMNS


def _expression(region: Computation, operands: list[Tensor]) -> tuple[Body, Maps, tuple[int, ...]]:
    rows, parameters, outputs = expressions(region)
    maps = [(operands[p.parameter], _index_map(p)) for p in parameters]
    body = tuple(
        (name, tuple(arguments), tuple(sorted(attributes.items()))) for name, arguments, attributes in rows
    )
    return body, maps, outputs


def _index_map(parameter: ParameterMap) -> IndexMap:
    axes = tuple(
        Affine(() if dim is None else ((dim, coefficient),), offset)
        for dim, coefficient, offset in parameter.axes
    )
    return IndexMap(axes, parameter.fill)


def _single(instruction: Instruction) -> Computation:
    """Return an injective instruction as a computation of its own."""
    names = dict.fromkeys(instruction.operands)
    return Computation("single", tuple(names), (instruction,), instruction.results)


def label(instructions: tuple[Instruction, ...]) -> str:
    """Return a short name for what some instructions do: their distinct arithmetic ops, or what moves."""
    names = [
        i.op.kind if isinstance(i.op, Nonlinearity) else i.op.name.split(".")[-1]
        for i in instructions
        if not isinstance(i.op, Constant)
    ]
    moving = ("broadcast_in_dim", "reshape", "transpose", "slice", "pad", "reverse", "iota", "convert")
    arithmetic = [n for n in dict.fromkeys(names) if n not in moving]
    return "_".join((arithmetic or list(dict.fromkeys(names)) or ["constant"])[-3:])


def lower_injective(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Lower a lone elementwise or affine data-movement op."""
    region = with_constants(lowering, _single(instruction))
    operands = [lowering.tensor(v) for v in region.parameters]
    return (place_expression(lowering, region, operands, label((instruction,)), where(instruction)),)


def with_constants(lowering: Lowering, region: Computation) -> Computation:
    """Pull splat constants that a region takes as parameters into it."""
    constants = [v for v in region.parameters if (c := lowering.constant(v)) is not None and c.is_splat]
    if not constants:
        return region
    producers = tuple(lowering.computation.producers[v] for v in constants)
    kept = tuple(v for v in region.parameters if v not in constants)
    return Computation(region.name, kept, producers + region.instructions, region.results)


@lowers(Reduce)
def lower_reduce(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Lower a lone reduction."""
    value, values = alone(lowering, instruction.operands[0])
    reduced = place_reduction(lowering, value, values, instruction, "reduce", where(instruction))
    return (with_initial(lowering, reduced, instruction, *alone(lowering, instruction.operands[-1])),)


def alone(lowering: Lowering, value: Value) -> tuple[Computation, list[Tensor]]:
    """Return a value as a computation of its own (a splat constant is computed there), and its operands."""
    region = with_constants(lowering, Computation("single", (value,), (), (value,)))
    return region, [lowering.tensor(v) for v in region.parameters]


def with_initial(
    lowering: Lowering, reduced: Tensor, reduce: Instruction, region: Computation, operands: list[Tensor]
) -> Tensor:
    """Apply a reduction's initial value, which ``region`` computes, unless it is the neutral element."""
    combiner = simple_combiner(reduce.regions[0])
    assert combiner is not None
    producer = region.producers.get(region.results[0])
    if producer is not None and isinstance(producer.op, Constant):
        neutral = neutral_element(combiner, reduced.dtype)
        start = producer.op.value.astype(neutral.dtype)
        if start.tobytes() == neutral.tobytes() or (combiner == "add" and not start):
            return reduced
    location = where(reduce)
    initial = (
        place_expression(lowering, region, operands, "fill", location) if region.instructions else operands[0]
    )
    name = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}.get(combiner, combiner)
    rank = len(reduced.shape)
    dims = tuple(Dim(f"d{i}", n) for i, n in enumerate(reduced.shape))
    form = OpForm(dims, (identity_map(rank), IndexMap(())), (identity_map(rank),))
    body: Body = ((name, (0, 1), ()),)
    if initial.dtype != reduced.dtype:
        body = (("convert", (1,), (("dtype", reduced.dtype),)), (name, (0, 2), ()))
    codelet = Map(body, (1 + len(body),), (reduced.dtype, initial.dtype), (reduced.dtype,))
    operands = [reduced, initial]
    return place(
        lowering.site(location, "initial"),
        codelet,
        form,
        operands,
        (reduced.dtype,),
    )[0]


def materialize(lowering: Lowering, value: Value) -> Tensor:
    """Return a tensor for a splat constant that someone needs in memory, filled by its own compute set."""
    if value not in lowering.values:
        producer = lowering.computation.producers[value]
        region = Computation("fill", (), (producer,), producer.results)
        lowering.values[value] = place_expression(lowering, region, [], "fill", where(producer))
    return lowering.tensor(value)


def fill_into(lowering: Lowering, producer: Instruction, target: Tensor) -> None:
    """Write a splat constant into a variable."""
    graph, location = lowering.graph, where(producer)
    if not math.prod(target.shape):
        return
    body, _, outputs = _expression(Computation("fill", (), (producer,), producer.results), [])
    dims = tuple(Dim(f"d{i}", size) for i, size in enumerate(target.shape))
    form = OpForm(dims, (), (identity_map(len(dims)),))
    codelet = Map(body, outputs, (), (target.dtype,))
    label = graph.unique("fill", "step")
    lowering.program.add(Operation(label, codelet, form, (), (target.name,), location))


@lowers(Fusion)
def lower_fusion(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Lower a fusion as its kind says: one Map, one Reduce with a prologue, or a contraction and a Map behind it."""
    assert isinstance(instruction.op, Fusion)
    region = instruction.regions[0]
    operands = [
        materialize(lowering, v) if lowering.constant(v) is not None else lowering.tensor(v)
        for v in instruction.operands
    ]
    name, location = label(region.instructions), where(instruction)
    if instruction.op.kind == "input":
        return (_lower_input_fusion(lowering, region, operands, name, location),)
    if instruction.op.kind == "output":
        return (_lower_output_fusion(lowering, instruction, operands, name, location),)
    return place_expressions(lowering, region, operands, name, location)


def _lower_input_fusion(
    lowering: Lowering, region: Computation, operands: list[Tensor], name: str, location: str
) -> Tensor:
    (reduce,) = (i for i in region.instructions if isinstance(i.op, Reduce))
    rest = tuple(i for i in region.instructions if i is not reduce)

    def part(value: Value) -> tuple[Computation, list[Tensor]]:
        found = _reachable(Computation(region.name, region.parameters, rest, (value,)))
        return found, [operands[region.parameters.index(p)] for p in found.parameters]

    reduced = place_reduction(lowering, *part(reduce.operands[0]), reduce, name, location)
    return with_initial(lowering, reduced, reduce, *part(reduce.operands[-1]))


def _lower_output_fusion(
    lowering: Lowering, fusion: Instruction, operands: list[Tensor], name: str, location: str
) -> Tensor:
    (region,) = fusion.regions
    (dot,) = (i for i in region.instructions if isinstance(i.op, DotGeneral))
    lhs, rhs = (operands[region.parameters.index(v)] for v in dot.operands)
    rest = tuple(i for i in region.instructions if i is not dot)
    epilogue = _reachable(Computation(region.name, (*region.parameters, dot.result), rest, region.results))
    product = place_dot(lowering, dot, lhs, rhs, where(dot) or location)
    given = dict(zip((*region.parameters, dot.result), (*operands, product), strict=True))
    return place_expression(lowering, epilogue, [given[p] for p in epilogue.parameters], name, location)


def _reachable(region: Computation) -> Computation:
    """Drop instructions and parameters that the results do not need."""
    needed = set(region.results)
    kept: list[Instruction] = []
    for instruction in reversed(region.instructions):
        if needed.intersection(instruction.results):
            needed.update(instruction.operands)
            kept.append(instruction)
    return Computation(
        region.name, tuple(p for p in region.parameters if p in needed), tuple(reversed(kept)), region.results
    )


def _is_regular(op: type[Op]) -> bool:
    return op.category is FusionCategory.INJECTIVE and op not in (Constant, Reshape, Concatenate)


for _op in OPS.values():
    if _is_regular(_op):
        RULES[_op] = lower_injective
