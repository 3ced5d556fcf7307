"""Calls of users' codelets onto tiles: a domain of points, split as planned or as the call says."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_passes.ir import Computation, Instruction
from hlo_passes.ir.interpreter import evaluate_computation
from hlo_passes.ops import CodeletCall, Constant, DotGeneral, Elementwise, Reduce, Repeat, summed_products
from hlo_passes.ops.point_form import Axis, PointForm, at_points
from hlo_passes.ops.point_form import Tensor as FormTensor
from hlo_passes.passes.indexing import NotAffine, expression
from hlo_passes.passes.while_to_repeat import WhileToRepeat
from ipuxla.errors import InvalidCodelet
from ipuxla.lowering.indexing import in_memory
from ipuxla.lowering.regions import region_body
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from tiles._jax_compat import broadcast
from tiles.errors import NoTileCode, OutOfRegisters
from tiles.graph import (
    PARALLEL,
    REDUCTION,
    WINDOW,
    Affine,
    AxisSplit,
    Cell,
    Codelet,
    Cycles,
    Dim,
    Extents,
    IndexMap,
    OpForm,
    Plan,
    Tensor,
    VertexCode,
    code_or_formula,
    whole,
)
from tiles.numerics.dtypes import is_float
from tiles.poplibs.popops.expression import function_of
from tiles.poplibs.popops.inner_loops import loop_of
from tiles.poplibs.popops.map import Map
from tiles.poplibs.popops.reduce import neutral_element
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

_FRAME = 29
"""Slots that a worker takes before and behind its points, as PopLibs' vertices of rows do."""
_MOVED = 2
"""Slots to load and store an element that is only moved."""
_TURN = 1
"""Slots by which a loop goes on to its next trip."""


@dataclass(frozen=True)
class PointCodelet(Codelet):
    """A function of one point, run at every point of a cell; executables carry it as compiled code.

    Args:
      call: name, form, combiner and cost, as they were given.
      function: what one point reads to what it writes.
    """

    call: CodeletCall
    function: Computation

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name that its author gave it."""
        return self.call.label

    @property
    def points(self) -> int:
        """Dimensions that come first in the domain and may be split; those behind them are what one point reads or writes."""
        form = self.call.point_form
        return len(form.points) + len(form.combined)

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Run the function at the cell's points."""
        form = self.call.point_form
        sizes = dict(zip((*form.points, *form.combined), cell.sizes, strict=False))

        def function(*slices: Array) -> tuple[Array, ...]:
            return evaluate_computation(self.function, *slices)

        mask = cell.reduced_mask()

        def kept(contributions: Array) -> Array:
            """Of a cell that is padded to the extents of others: its own points' contributions."""
            assert mask is not None
            shape = (*mask.shape[: self.points], *(1,) * (contributions.ndim - self.points))
            real = jnp.broadcast_to(mask.reshape(shape), contributions.shape)
            neutral = neutral_element(self.call.combiner, contributions.dtype.name)
            return lax.select(real, contributions, broadcast(neutral, contributions.shape))

        return at_points(form, sizes, function, operands, self.call.combiner, None if mask is None else kept)

    @functools.cached_property
    def _priced(self) -> Computation:
        """The function, its loops with counts where these are constant."""
        return WhileToRepeat().change(self.function)

    def combiner(self) -> str | None:
        """What joins contributions to one result, where there are several."""
        return self.call.combiner or None

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Partials are of the results' dtypes."""
        return self, tuple(dtype_of(t) for t in self.function.result_types)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Points may be split; those that contribute to one result, where there is one result."""
        return d < self.points and (not form.dims[d].is_reduced or len(form.results) == 1)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Six workers share the points of a cell; what their code takes, where there is code and nothing was stated."""
        n, basis = extents.product(range(self.points)), Basis.ASSUMED
        if self.call.cycles:
            slots, source = self.call.cycles, f"stated for codelet {self.name}"
        else:
            slots, unknown = slots_of_point(self._priced, target)
            source = "operation by operation, each as PopLibs' vertex of its kind takes it"
            if unknown:
                source = f"codelet {self.name}: {unknown}; cycles= states what one point takes on one worker"
                basis = Basis.UNKNOWN
        workers = target.workers_per_tile * (_FRAME + -(-n // target.workers_per_tile) * slots)
        estimated = Cycles(target.supervisor_vertex_overhead_cycles + workers, basis, source)
        try:
            return code_or_formula(self.tile_code(extents, target), estimated)
        except (NoTileCode, OutOfRegisters):
            return estimated

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of a function of single elements."""
        return self._expression(extents).tile_code(extents, target)

    def own_code(self, extents: Extents, target: Target) -> Codelet:
        """Return the expression that a function of single elements is; see ``Codelet.own_code``."""
        found = self._expression(extents)
        found.tile_code(extents, target)
        return found

    def _expression(self, extents: Extents) -> Map:
        """Return the expression that a function of single elements is.

        Raises:
          NoTileCode: it is none; says why.
        """
        form = extents.form
        if self.call.cycles:
            raise NoTileCode(f"codelet {self.name} states what it takes")
        if any(dim.kind != PARALLEL for dim in form.dims) or any(
            v.type.shape for v in self.function.parameters
        ):
            raise NoTileCode(f"a point of codelet {self.name} is more than one element")
        if any(not _follows(m, form.results[0]) for m in (*form.operands, *form.results)):
            raise NoTileCode(f"codelet {self.name} reads elements in another order than it writes them")
        try:
            body, outputs = region_body(self.function)
        except NotAffine as error:
            raise NoTileCode(f"codelet {self.name}: {error}") from error
        return Map(body, outputs, extents.operand_dtypes, extents.result_dtypes)

    def flops(self, extents: Extents) -> np.ndarray:
        """Floating-point operations of the function, at every point."""
        return extents.product(range(self.points)) * flops_of_point(self.function)


def _follows(operand: IndexMap, result: IndexMap) -> bool:
    """Return whether an operand's elements lie in the order of the result's, each next to the one before."""
    if any(len(axis.terms) > 1 or any(c != 1 for _, c in axis.terms) for axis in operand.axes):
        return False
    order = [d for d in result.dims if d in operand.dims]
    return list(operand.dims) == order


@lowers(CodeletCall)
def lower_codelet_call(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Place a user's codelet."""
    call = instruction.op
    assert isinstance(call, CodeletCall)
    operands = [in_memory(lowering, v) for v in instruction.operands]
    codelet = PointCodelet(call, instruction.regions[0])
    form = op_form(call.point_form, instruction)
    plan = _plan(call, form, lowering.graph.target, where(instruction))
    return place(
        lowering.site(where(instruction), lowering.prefix + call.label),
        codelet,
        form,
        operands,
        tuple(dtype_of(v.type) for v in instruction.results),
        plan=plan,
    )


def op_form(form: PointForm, instruction: Instruction) -> OpForm:
    """Return the domain: points first, then what contributes to one result, then what a point reads and writes."""
    sizes = form.sizes([v.type.shape for v in instruction.operands])
    dims = [Dim(name, sizes[name]) for name in form.points]
    dims += [Dim(name, sizes[name], REDUCTION) for name in form.combined]
    numbers = {name: d for d, name in enumerate((*form.points, *form.combined))}

    def inner(kind: str, size: int) -> int:
        dims.append(Dim(f"e{len(dims)}", size, kind))
        return len(dims) - 1

    def axis_of(axis: Axis, length: int, kind: str) -> Affine:
        terms = [(numbers[name], c) for name, c in axis.terms]
        if axis.window == 0:
            terms = [(inner(kind, length), 1)]
        elif axis.window is not None:
            terms.append((inner(WINDOW, axis.window), axis.dilation))
        return Affine(tuple(terms), axis.offset)

    def map_of(tensor: FormTensor, shape: tuple[int, ...], kind: str) -> IndexMap:
        return IndexMap(tuple(axis_of(axis, n, kind) for axis, n in zip(tensor, shape, strict=True)))

    operands = tuple(
        map_of(tensor, v.type.shape, REDUCTION)
        for tensor, v in zip(form.operands, instruction.operands, strict=True)
    )
    results = tuple(
        map_of(tensor, v.type.shape, PARALLEL)
        for tensor, v in zip(form.results, instruction.results, strict=True)
    )
    return OpForm(tuple(dims), operands, results)


def _plan(call: CodeletCall, form: OpForm, target: Target, location: str) -> Plan | None:
    """Return the plan that a call states: parts in row-major order on evenly spaced tiles."""
    if not call.parts:
        return None
    first, step = call.tiles
    splits: list[AxisSplit] = []
    stride = step
    for dim, parts in reversed(list(zip(form.dims, call.parts, strict=False))):
        if not 1 <= parts <= max(1, dim.size):
            raise InvalidCodelet(
                f"codelet {call.label} cuts index {dim.name} of {dim.size} into {parts} parts",
                location=location,
            )
        grain = -(-dim.size // parts)
        splits.insert(0, AxisSplit(dim.size, grain, ((parts, stride),)) if parts > 1 else whole(dim.size))
        stride *= parts
    last = first + step * (math.prod(call.parts) - 1)
    if not 0 <= first <= last < target.num_tiles:
        raise InvalidCodelet(
            f"codelet {call.label} is placed on tiles {first} to {last}; {target.name} has {target.num_tiles}",
            location=location,
        )
    splits += [whole(dim.size) for dim in form.dims[len(splits) :]]
    return Plan(tuple(splits), first)


# ---- what a point takes


def slots_of_point(function: Computation, target: Target) -> tuple[int, str]:
    """Return the slots that one worker takes for one point, and which operations have a time that shapes do not tell.

    A loop counts as one trip, a branch as its longest one.
    """
    total, unknown = 0.0, list[str]()
    for instruction in function.instructions:
        op, size = instruction.op, instruction.results[0].type.size if instruction.results else 0
        kind = op.name.split(".")[-1]
        if isinstance(op, Constant):
            continue
        if isinstance(op, DotGeneral):
            total += 2 * _MOVED * size * _contracted(instruction)
        elif isinstance(op, Reduce):
            read = sum(v.type.size for v in instruction.operands)
            total += _MOVED * read + sum(_own(i, read, target) for i in instruction.regions[0].instructions)
        elif isinstance(op, Elementwise) and function_of(kind) is not None:
            total += _own(instruction, size, target)
        elif isinstance(op, Repeat):
            slots, why = slots_of_point(instruction.regions[0], target)
            total += op.count * (slots + _TURN)
            unknown += [why] if why else []
        else:
            total += _MOVED * sum(v.type.size for v in instruction.results)
            if kind not in _MOVES:
                inner = [slots_of_point(region, target)[0] for region in instruction.regions]
                is_branch = kind in _BRANCHES
                total += (max if is_branch else sum)(inner) if inner else 0
                counted = "its longest branch" if is_branch else "one trip" if kind == "while" else "a copy"
                unknown.append(f"no tile code for {op.name} of {where(instruction)}, counted as {counted}")
    return math.ceil(total), "; ".join(dict.fromkeys(unknown))


_BRANCHES = ("if", "case")
_MOVES = (
    "broadcast_in_dim",
    "concatenate",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "iota",
    "optimization_barrier",
    "pad",
    "reshape",
    "reverse",
    "slice",
    "transpose",
)
"""Operations of which every element of the result is moved once."""


def _own(instruction: Instruction, elements: int, target: Target) -> float:
    """Return the slots of a function of elements by itself: what PopLibs' loop for it takes for so many."""
    names = tuple(dict.fromkeys(instruction.operands))
    rows, _ = expression(Computation("single", names, (instruction,), instruction.results))
    dtype = dtype_of((instruction.operands or instruction.results)[0].type)
    count = np.asarray(elements, np.int64)
    return sum(float(loop_of(name, attrs, dtype).total(count, dtype, target)) for name, _, attrs in rows)


def _contracted(instruction: Instruction) -> int:
    """Return how many products are summed for one element of a product of matrices."""
    return summed_products(instruction.op, [v.type for v in instruction.operands])


def flops_of_point(function: Computation) -> int:
    """Return the floating-point operations of one point, those of loops not counted."""
    total = 0
    for instruction in function.instructions:
        if not instruction.results or not is_float(dtype_of(instruction.results[0].type)):
            continue
        op, size = instruction.op, instruction.results[0].type.size
        known = function_of(op.name.split(".")[-1])
        if isinstance(op, DotGeneral):
            total += 2 * size * _contracted(instruction)
        elif isinstance(op, Reduce):
            total += instruction.operands[0].type.size
        elif known is not None and known.is_arithmetic:
            total += size
    return total
