"""What the exchange of a step moves: one movement for every tensor, or slices of it, that goes to where it is wanted.

A movement is known by the words that it moves between tiles, whatever their addresses. Movements of a step are counted
in the order of its groups and their operands, or of its copies and their sources.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tiles.compiler.executable import Variable
from tiles.compiler.steps import CopyStep, ExecuteStep, StepRecord, VariableCopy
from tiles.graph import Layout, OpForm, Plan
from tiles.numerics.dtypes import itemsize
from tiles.numerics.shared import read_only
from tiles.plan import (
    Traffic,
    exchange_code_bytes,
    is_resident,
    layout_traffic,
    operand_code,
    operand_traffic,
    reshape_traffic,
)
from tiles.target import Target


@dataclass(frozen=True)
class Read:
    """Slices of an operand that the cells of a plan read and do not hold as they read them.

    Args:
      source: where the tensor lies.
      form: the operation.
      plan: how it is cut.
      k: the operand's number.
      shape: the tensor's.
      dtype: its dtype.
    """

    source: Layout
    form: OpForm
    plan: Plan
    k: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def key(self) -> tuple[Hashable, ...]:
        """What movements have in common whose words go between the same places of the same tiles."""
        order, plan = self.plan.operand_order(self.form, self.k), self.plan
        index_map = self.form.operands[self.k]
        return self.shape, self.source, itemsize(self.dtype), index_map, plan.splits, plan.base, order

    def traffic(self, target: Target) -> Traffic:
        """Return what moves."""
        return operand_traffic(self.source, self.form, self.plan, self.k, self.shape, self.dtype, target)

    def add_code(self, target: Target, total: np.ndarray) -> int:
        """Add the bytes of exchange code on each tile to ``total``; return a bound of the most on one tile."""
        changes, sending = operand_code(
            self.source, self.form, self.plan, self.k, self.shape, self.dtype, target
        )
        total[self.plan.tiles] += changes * target.instruction_bytes
        total[self.source.tiles] += sending * target.instruction_bytes
        return (int(changes.max(initial=0)) + int(sending.max(initial=0))) * target.instruction_bytes


@dataclass(frozen=True)
class Copied:
    """One source of a copy.

    Args:
      source: where it lies.
      destination: where what it is copied into lies.
      shape: the source's.
      dtype: its dtype.
      axis: along which it is joined with others, None for none.
      offset: its place along that.
      is_reshape: whether the destination has another shape.
    """

    source: Layout
    destination: Layout
    shape: tuple[int, ...]
    dtype: str
    axis: int | None
    offset: int
    is_reshape: bool

    @property
    def key(self) -> tuple[Hashable, ...]:
        """See ``Read.key``."""
        place = self.axis, self.offset, self.is_reshape
        return self.shape, self.source, self.destination, itemsize(self.dtype), *place

    def traffic(self, target: Target) -> Traffic:
        """Return what moves."""
        if self.is_reshape:
            return reshape_traffic(self.source, self.destination, self.dtype, target)
        place = target, self.axis, self.offset
        return layout_traffic(self.source, self.destination, self.shape, self.dtype, *place)

    def add_code(self, target: Target, total: np.ndarray) -> int:
        """Add the bytes of exchange code on each tile to ``total``; return the most on one tile."""
        code = _copy_code(self, target)
        total += code
        return int(code.max(initial=0))


@lru_cache(maxsize=4096)
def _copy_code(copied: Copied, target: Target) -> np.ndarray:
    """Return the bytes of exchange code on each tile that one source of a copy takes, int32 ``[num_tiles]``.

    A program is allocated more than once, and costed after that: small as these tables are, they are kept until then.
    """
    code = exchange_code_bytes(copied.traffic(target), target)
    return read_only(code.astype(np.int32))


Movement = Read | Copied


def movements(step: StepRecord, variables: Mapping[str, Variable]) -> Iterator[Movement | None]:
    """Yield the movements of a compute set's or copy's exchange, None for what was computed where it is copied to."""
    for copy in step.copies if isinstance(step, CopyStep) else ():
        yield from copied(copy, variables)
    for group in step.groups if isinstance(step, ExecuteStep) else ():
        for k, operand in enumerate(group.operands):
            v = variables[operand.variable]
            if not is_resident(group.form, group.plan, k, v.layout):
                yield Read(v.layout, group.form, group.plan, k, v.shape, v.dtype)


def copied(step: VariableCopy, variables: Mapping[str, Variable]) -> Iterator[Copied | None]:
    """Yield what each source of a copy moves; None for one that was computed where it is copied to."""
    destination = variables[step.destination]
    if step.axis is None:
        source = variables[step.sources[0]]
        is_reshape = source.shape != destination.shape
        moves = is_reshape or source.storage != destination.storage
        given = source.layout, destination.layout, source.shape, source.dtype
        yield Copied(*given, None, 0, is_reshape) if moves else None
        return
    offset = 0
    for name in step.sources:
        source = variables[name]
        yield Copied(
            source.layout, destination.layout, source.shape, source.dtype, step.axis, offset, is_reshape=False
        )
        offset += source.shape[step.axis]
