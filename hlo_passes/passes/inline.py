"""Replace calls and fusions by what they run."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import (
    Computation,
    Instruction,
    Location,
    Module,
    Value,
    map_regions,
    relocated,
    value_names,
)
from hlo_passes.ops import BroadcastInDim, Call, Constant, Elementwise, Fusion, Reshape
from hlo_passes.passes.base import Pass, map_control_regions, map_module
from hlo_passes.passes.structure import SIDE_BY_SIDE, FreshNames, callees_first, independent_callees

Body = Callable[[Instruction], Computation | None]
"""Returns the computation to put in an instruction's place, or None to keep the instruction."""


@dataclass(frozen=True)
class Inline(Pass):
    """Inline calls of computations with at most ``max_ops`` operations, and of those called only once.

    What stays a call is planned and laid out once for all its callers; a call's arguments are copied, and
    nothing fuses across it, which small bodies do not repay. What a region of elements calls (the body of a
    reduction) is always inlined: such a region is one expression. Computations left without a caller go with
    ``dce``.

    With ``pointwise`` a body of nothing but operations element by element is inlined, too, if there are no more of
    them, once fused, than the call has operands and results: it moves nothing between tiles, and needs little code
    wherever it stands, but a call copies every operand and result. A stage of an optimizer over the leaves of a layer,
    which repeats layer by layer, is one such; inlined before fusion it fuses with the other stages. Any other body of
    no more operations than a call of it takes copies is inlined if that adds at most ``most_added`` operations: each of
    them needs exchange code of its own. This is for fused bodies, whose operations are units.

    Calls run one after another. Those of a computation that wait for none of each other (heads, experts, members, a twin's halves
    that a user calls through ``jax.jit``) are inlined while there are at most ``apart`` operations of them, so that planning sets
    these side by side; loops and branches run one after another anyway.
    """

    name: ClassVar[str] = "inline"
    max_ops: int = 32
    pointwise: bool = False
    most_added: int = 0
    apart: int = SIDE_BY_SIDE

    def run(self, module: Module) -> Module:
        """Return the module with fewer calls; itself when none is inlined."""
        calls = Counter(name for c in callees_first(module) for name in c.callees)
        independent = independent_callees(module) if self.apart else frozenset[str]()

        def is_wanted(callee: Computation) -> bool:
            if calls[callee.name] == 1 or len(callee.instructions) <= self.max_ops:
                return True
            if self.pointwise and _is_cheaper_in_place(callee):
                return True
            work = sum(not isinstance(i.op, Constant) for i in callee.instructions)
            if callee.name in independent and calls[callee.name] * work <= self.apart:
                return not any(i.op.is_control and not isinstance(i.op, Call) for i in callee.walk())
            return work <= min(_copies(callee), self.most_added // max(1, calls[callee.name] - 1))

        return inline_where(module, is_wanted)


def inline_where(module: Module, is_wanted: Callable[[Computation], bool]) -> Module:
    """Return the module with calls of wanted computations inlined, and all in regions of elements.

    Args:
      module: a module.
      is_wanted: asked of every callee, in which calls are inlined already.
    """
    done: dict[str, Computation] = {}

    def callee(instruction: Instruction) -> Computation | None:
        return done[instruction.op.callee] if isinstance(instruction.op, Call) else None

    def body(instruction: Instruction) -> Computation | None:
        found = callee(instruction)
        return found if found is not None and is_wanted(found) else None

    for computation in callees_first(module):
        done[computation.name] = _inline(computation, body, callee)
    return map_module(module, lambda computation: done.get(computation.name, computation))


_FEW = 8
"""How many operations, on average, those that fuse are at most: longer ones are compiled once, for all calls."""


def _is_cheaper_in_place(computation: Computation) -> bool:
    """Whether a body computes element by element, in no more operations, once fused, than a call of it takes copies."""
    work = [i for i in computation.instructions if not isinstance(i.op, Constant)]
    if not all(map(_is_pointwise, work)):
        return False
    readers: defaultdict[Value, list[Instruction]] = defaultdict(list)
    for instruction in work:
        for value in dict.fromkeys(instruction.operands):
            readers[value].append(instruction)
    results = set(computation.results)
    left = sum(isinstance(i.op, Fusion) or i.result in results or _is_kept(readers[i.result]) for i in work)
    return left <= _copies(computation) and len(work) <= _FEW * left


def _copies(computation: Computation) -> int:
    """Return the copies that a call takes at most."""
    return len(computation.parameters) + len(computation.results)


def _is_kept(readers: Sequence[Instruction]) -> bool:
    """Whether a value of a body stays one when operations that only one other reads are fused with it."""
    return len(readers) != 1 or isinstance(readers[0].op, Fusion)


def _is_pointwise(instruction: Instruction) -> bool:
    """Whether an operation reads its operands where its result lies, single elements for all of it apart."""
    if isinstance(instruction.op, Fusion):
        return all(map(_is_pointwise, instruction.regions[0].instructions))
    op = instruction.op
    if isinstance(op, BroadcastInDim):
        return instruction.operands[0].type.size == 1
    if isinstance(op, Reshape):
        before, after = (
            [size for size in value.type.shape if size != 1]
            for value in (instruction.operands[0], instruction.result)
        )
        return before == after
    return isinstance(op, (Constant, Elementwise))


@dataclass(frozen=True)
class Flatten(Pass):
    """Inline every call, so that only the entry is left; open fusions too if ``fusions`` is set."""

    name: ClassVar[str] = "flatten"
    fusions: bool = False

    def run(self, module: Module) -> Module:
        """Return a module of one computation; itself when it is one without fusions to open."""
        done: dict[str, Computation] = {}

        def body(instruction: Instruction) -> Computation | None:
            if isinstance(instruction.op, Call):
                return done[instruction.op.callee]
            return instruction.regions[0] if self.fusions and isinstance(instruction.op, Fusion) else None

        for computation in callees_first(module):
            done[computation.name] = _inline(computation, body, body)
        entry = done[module.entry]
        if entry is module.entry_computation and len(module.computations) == 1:
            return module
        return dataclasses.replace(module, computations=(entry,))


def _seen_from(instruction: Instruction) -> Callable[[Location], Location]:
    """Return what a location in a body becomes outside: scopes of a callee go on from the call's."""
    outer = instruction.location
    if isinstance(instruction.op, Call):
        return lambda inner: inner.within(outer)
    return lambda inner: inner.or_line_of(outer)


def _inline(computation: Computation, body: Body, in_elements: Body) -> Computation:
    """Return a computation with calls replaced by ``body``, in regions of elements by ``in_elements``."""
    names = FreshNames(value_names(computation))
    env: dict[Value, Value] = {}
    made: list[Instruction] = []
    has_changed = False

    def substitute(values: tuple[Value, ...], scope: dict[Value, Value]) -> tuple[Value, ...]:
        return tuple(scope.get(value, value) for value in values)

    for old in computation.instructions:
        if old.regions and not old.op.is_control:
            instruction = map_regions(old, lambda region: _inline(region, in_elements, in_elements))
        else:
            instruction = map_control_regions(old, lambda region: _inline(region, body, in_elements))
        operands = substitute(instruction.operands, env)
        inner = body(instruction)
        if inner is None:
            if operands != instruction.operands:
                instruction = dataclasses.replace(instruction, operands=operands)
            has_changed |= instruction is not old
            made.append(instruction)
            continue
        has_changed = True
        inner = relocated(inner, _seen_from(instruction))
        scope = dict(zip(inner.parameters, operands, strict=True))
        for copied in inner.instructions:
            results = tuple(Value(names.new(), value.type) for value in copied.results)
            reads = substitute(copied.operands, scope)
            made.append(dataclasses.replace(copied, operands=reads, results=results))
            scope.update(zip(copied.results, results, strict=True))
        env.update(zip(instruction.results, substitute(inner.results, scope), strict=True))
    if not has_changed:
        return computation
    return dataclasses.replace(
        computation, instructions=tuple(made), results=substitute(computation.results, env)
    )
