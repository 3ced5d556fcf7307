"""Compute values again that contractions read, instead of keeping them where most is kept: for programs that do not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes import ops
from hlo_passes.ir import Computation, Instruction, Module, Value, value_names
from hlo_passes.passes.base import Pass
from hlo_passes.passes.rematerialize import LEAST_BYTES, Kept
from hlo_passes.passes.structure import FreshNames

AGAIN = (ops.Elementwise, ops.BroadcastInDim, ops.Reshape)
"""Operations that are computed again, and what they are computed from if that is not kept."""

FREE = (ops.Constant, ops.Iota)
"""What takes no memory to keep."""

MOST_PRODUCTS = 1024
"""Products that a contraction sums for each element that is computed again, at most: on a tile, what a few elementwise
operations take."""

MOST_OPS = 24
"""Operations, but for those on few bytes, that one value is computed again by at most: what a layer computes elementwise."""

SMALL = 1 / 64
"""Of a value's bytes: what it is computed from and has no more is kept."""

MOST_KEPT = 0.5
"""Of a value's bytes: what has to be kept to compute it again, and would not be otherwise."""

LEAST_GAIN = 0.05
"""Share of the bytes kept at the fullest place that have to become free there."""

NEAR = 64
"""Instructions after which a value is computed once more rather than kept for another reader: about the gradient of a layer."""


@dataclass(frozen=True)
class Recompute(Pass):
    """Compute values again that are kept from before to after the place where most bytes are.

    Unlike pass ``rematerialize``, which goes before, this costs cycles: what is computed again is written to memory once more,
    costly functions and short contractions are computed once more. Elementwise results come first, then results of contractions
    that nothing is computed again from: of a network with batch norm what ``relu`` gives and what widens a block stay no longer,
    of a transformer what normalizations and activations give. All layers that are alike are treated alike, so that they go on
    sharing their code: nothing is computed again through several layers.

    A value is computed again right before what reads it, and anew for readers far from there. Barriers keep that from being
    merged with what it repeats.
    """

    name: ClassVar[str] = "recompute"

    def run(self, module: Module) -> Module:
        """Return the module with values computed again; itself when little would be gained."""
        entry = module.entry_computation
        kept = Kept(entry, module.donated)
        if kept.position < 0:
            return module
        changed = _rewritten(kept, _Choice(kept))
        if Kept(changed, module.donated).size_bytes > (1 - LEAST_GAIN) * kept.size_bytes:
            return module
        computations = tuple(changed if c is entry else c for c in module.computations)
        return dataclasses.replace(module, computations=computations)


class _Choice:
    """Which of the values that are kept at a place are computed again after it.

    Attributes:
      again: these values.
    """

    def __init__(self, kept: Kept) -> None:
        self._readers, self._producers = kept.readers, kept.producers
        self._results = set(kept.computation.results)
        self._crossing = {
            v: None
            for v, n in kept.made.items()
            if n <= kept.position < kept.readers.get(v, [-1])[-1] and v not in self._results
        }
        self._always = self._results | {v for v in kept.computation.parameters if v not in kept.donated}
        self.again: dict[Value, None] = {}
        may_be = [v for v in self._crossing if v.type.size_bytes >= LEAST_BYTES]
        needed = set[Value]()
        for is_asked in (self._is_elementwise, self._is_short):
            for value in filter(is_asked, may_be):
                leaves = self._leaves(value)
                if value not in needed and leaves is not None and self._is_worth_it(value, leaves):
                    self.again[value] = None
                    needed |= leaves

    def _is_elementwise(self, value: Value) -> bool:
        return isinstance(self._producers[value].op, AGAIN)

    def _is_short(self, value: Value) -> bool:
        """Whether a value is the result of a contraction that sums few products for each element."""
        made = self._producers[value]
        return 0 < ops.summed_products(made.op, [v.type for v in made.operands]) <= MOST_PRODUCTS

    def _is_worth_it(self, value: Value, leaves: set[Value]) -> bool:
        """Whether little has to be kept to compute a value again, and nothing that could be computed again in its place."""
        size, last = value.type.size_bytes, self._readers[value][-1]
        more = sum(leaf.type.size_bytes for leaf in leaves if not self._is_kept(leaf, last))
        if more > MOST_KEPT * size:
            return False
        if self._is_short(value):
            return self.again.keys().isdisjoint(leaves)
        large = [v for v in leaves if v in self._crossing and v.type.size_bytes >= MOST_KEPT * size]
        # A sum of what comes in and what a layer adds to it: were it computed again, it would be from all layers before.
        return len(large) < 2 or not any(map(self._is_short, large))

    def _is_kept(self, value: Value, until: int) -> bool:
        """Whether a value is kept anyway, up to about an instruction."""
        if value in self._always:
            return True
        is_there = value in self._crossing or value not in self._producers
        return is_there and self._readers[value][-1] + NEAR >= until

    def _leaves(self, value: Value) -> set[Value] | None:
        """Return what is kept of what a value is computed from; None where that takes too many operations."""
        behind = list(self.behind(value))
        leaves = {one for one, is_leaf in behind if is_leaf}
        return leaves if len(behind) - len(leaves) <= MOST_OPS else None

    def behind(self, value: Value) -> Iterator[tuple[Value, bool]]:
        """Yield what a value is computed by, itself first, and whether each is kept rather than computed again."""
        seen, stack = {value}, [value]
        while stack:
            one = stack.pop()
            is_leaf = one != value and self._is_leaf(one, value)
            yield one, is_leaf
            if not is_leaf:
                operands = [v for v in dict.fromkeys(self._producers[one].operands) if v not in seen]
                seen.update(operands)
                stack += operands

    def _is_leaf(self, one: Value, value: Value) -> bool:
        producer = self._producers.get(one)
        if producer is None or isinstance(producer.op, FREE):
            return producer is None
        if not isinstance(producer.op, AGAIN) or one.type.size_bytes <= SMALL * value.type.size_bytes:
            return True
        return one in self._crossing and one not in self.again


class _Again:
    """Instructions that compute values again.

    Args:
      kept: what is kept where most is.
      choice: what of it is computed again.
    """

    def __init__(self, kept: Kept, choice: _Choice) -> None:
        self._made, self._producers, self._choice = kept.made, kept.producers, choice
        self._names = FreshNames(value_names(kept.computation))
        self._copies: dict[Value, Value] = {}
        self._used: dict[Value, int] = {}

    def computed(self, value: Value, number: int) -> tuple[Value, list[Instruction]]:
        """Return a value again for an instruction by its number, and what computes it unless it was just computed."""
        instructions: list[Instruction] = []
        if not self._is_near(value, number):
            behind = sorted(self._choice.behind(value), key=lambda one: self._made.get(one[0], -1))
            for one, is_leaf in behind:
                if one in self._producers and not self._is_near(one, number):
                    instructions.append(self._copied(one, is_leaf))
                self._used[one] = number
        self._used[value] = number
        return self._copies[value], instructions

    def _is_near(self, value: Value, number: int) -> bool:
        return value in self._copies and number - self._used[value] <= NEAR

    def _copied(self, value: Value, is_leaf: bool) -> Instruction:
        producer = self._producers[value]
        operands = tuple(self._copies.get(v, v) for v in producer.operands)
        self._copies[value] = copy = Value(self._names.new(), value.type)
        if is_leaf:
            return Instruction(ops.OptimizationBarrier(), (value,), (copy,), (), producer.location)
        return dataclasses.replace(producer, operands=operands, results=(copy,))


def _rewritten(kept: Kept, choice: _Choice) -> Computation:
    """Return the computation with values computed again, each right before what reads it."""
    instructions = kept.computation.instructions
    made = list(instructions[: kept.position + 1])
    again = _Again(kept, choice)
    env: dict[Value, Value] = {}
    for number in range(kept.position + 1, len(instructions)):
        instruction = instructions[number]
        new: dict[Value, Value] = {}
        for value in dict.fromkeys(instruction.operands):
            if value in choice.again:
                new[value], computing = again.computed(value, number)
                made += computing
        operands = tuple(new.get(v, env.get(v, v)) for v in instruction.operands)
        if new and isinstance(instruction.op, ops.OptimizationBarrier) and len(operands) == 1:
            # It kept apart what is computed again from a value that is, now, computed again itself.
            env.update(zip(instruction.results, operands, strict=True))
        else:
            made.append(dataclasses.replace(instruction, operands=operands))
    results = tuple(env.get(v, v) for v in kept.computation.results)
    return dataclasses.replace(kept.computation, instructions=tuple(made), results=results)
