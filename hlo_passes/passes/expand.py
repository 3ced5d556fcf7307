"""Write operations that no tile computes as a whole with simpler ones."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hlo_passes.ir import Builder, Computation, Instruction, Module, Value, placed
from hlo_passes.ops import Call
from hlo_passes.passes.base import Pass, map_module
from hlo_passes.passes.expansions import EXPANSIONS, Term
from hlo_passes.passes.rewriter import Patterns, Rewriter


@dataclass(frozen=True)
class Expand(Pass):
    """Replace operations of ``EXPANSIONS`` by calls of computations that do the same.

    Operations of one kind, type and source line share a computation.

    The block sizes are where a block's vertex (its cycles grow with the cube, or square, of its size) and the
    steps around it (whose number shrinks with it) take equal time on a gc200, by the tiles package's own cost
    model; they are no limits.

    Args:
      factor_block: rows of the blocks that larger Cholesky factorizations are made of.
      solve_block: rows of the blocks that larger triangular solves are made of.
    """

    name: ClassVar[str] = "expand"
    factor_block: int = 16
    solve_block: int = 64

    def run(self, module: Module) -> Module:
        """Return the module without such operations; itself when it has none."""
        if not any(type(instruction.op) in EXPANSIONS for instruction in module.walk()):
            return module
        expander = _Expander(self, {computation.name for computation in module.computations})
        patterns: Patterns = dict.fromkeys(EXPANSIONS, (expander.pattern,))
        changed = map_module(module, lambda computation: Rewriter(computation, patterns).run())
        done: list[Computation] = []
        while expander.pending:
            done.append(Rewriter(expander.pending.pop(), patterns).run())
        return dataclasses.replace(changed, computations=(*changed.computations, *done)) if done else changed


class _Expander:
    """Remembers the computation made for each operation and its operands' types."""

    def __init__(self, options: Expand, taken: set[str]) -> None:
        self.pending: list[Computation] = []
        self._options = options
        self._taken = taken
        self._made: dict[Any, Computation | None] = {}

    def pattern(self, instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
        """Replace an instruction by a call of its expansion."""
        types = tuple(value.type for value in instruction.operands)
        key = instruction.op, types, instruction.location
        if key not in self._made:
            self._made[key] = self._expanded(instruction)
        made = self._made[key]
        if made is None:
            return None
        return rewriter.emit_all(Call(made.name, made.result_types), instruction.operands)

    def _expanded(self, instruction: Instruction) -> Computation | None:
        op = instruction.op
        builder = Builder("")
        operands = [Term(builder, builder.parameter(value.type)) for value in instruction.operands]
        results = EXPANSIONS[type(op)](op, operands, self._options)
        if results is None:
            return None
        builder.name = self._unused(op.name.rpartition(".")[2])
        given = [results] if isinstance(results, Term) else results
        built = builder.build(*(term.value for term in given))
        self.pending.append(placed(built, instruction.location))
        return self.pending[-1]

    def _unused(self, wished: str) -> str:
        names = itertools.chain([wished], (f"{wished}_{number}" for number in itertools.count(1)))
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        return name
