"""Durations of vertices with where they come from, and the tile code that vertices run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from tiles.elements import CellFunction, InstructionSet, TileCode, Variant
from tiles.numerics.shared import Amount
from tiles.target import Basis


@dataclass(frozen=True)
class Cycles:
    """A duration in tile cycles, with where the figure comes from.

    Args:
      value: cycles; a number, or an array with one entry per vertex or per candidate plan.
      basis: how far to trust it.
      source: the formula's or measurement's public source.
    """

    value: Any
    basis: Basis
    source: str


ValueName = tuple[str, int]
"""A value of a vertex: ``("operand", k)``, ``("result", k)``, ``("position", d)`` (of an element along domain dimension
``d``), or ``("value", i)``: the i-th of those that one part of its code leaves for another."""


@dataclass(frozen=True)
class CodeData:
    """What a part of a vertex' code reads and writes, and which domain dimensions its loops run over.

    Args:
      reads: the values of the code's operands, in order.
      writes: the values of its results, in order.
      rows, inner: domain dimensions of the outer and of the inner loop, outermost first.
      folds: "" where a result has an element for each element, "inner" where it has one a row, "rows" where rows are
        folded to one, "shares" where it folds what each row's sharers found.
      each: dimensions for every point of which the code runs once more.
    """

    reads: tuple[ValueName, ...]
    writes: tuple[ValueName, ...]
    rows: tuple[int, ...]
    inner: tuple[int, ...]
    folds: str = ""
    each: tuple[int, ...] = ()


CodeMemory: TypeAlias = tuple[dict[str, np.ndarray], dict[str, Any]]
"""What lies in memory by the field that points to it, ``[cells, ...]``, and the other fields: numbers, or ``[cells]``."""


class Kernel(Protocol):
    """What code finds and leaves in memory that is no function of elements: slices and updates at runtime offsets."""

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """Return what lies in memory by the field that points to it, ``[cells, ...]``, and the other fields.

        Fields are numbers, or ``[cells]``.

        Args:
          sizes: extents of the cells.
          origins: where they begin, int32 ``[cells, dims]``.
          operands: of the codelet, ``[cells, *extents]``.
        """
        ...

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the codelet's results, ``[cells, *extents]``, from what lies in memory afterwards."""
        ...


Field = int | str | tuple[str, int]
"""A field of a vertex' state: a number, the name of memory, or a place in it, a name and bytes."""


@dataclass(frozen=True, eq=False)
class VertexCode:
    """A variant of tile code that some vertices run.

    Args:
      variant: the code.
      n, rows: its loops' extents; numbers, or arrays with one entry per vertex or candidate plan.
      runs: how often a vertex runs it, 0 where it runs another variant; as ``n``.
      sharers: how many workers share a row's elements, each folding its own: the last one takes what is left; as ``n``.
      cell: what the code computes, for other arithmetics; None where only the code says it.
      data: what it reads and writes; None where that is not known.
      kernel: the same of code whose loops are none of a cell. Without ``cell`` it computes on words: it is the same in
        the ring.
      compiled: makes the code of a kernel for another arithmetic's ``cell``.
      turn: where parts with one kernel run one after another on the same memory: returns the fields that change from cells'
        extents, or those of each of the part's runs; a text names memory of the kernel, with a number of bytes a place in it.
      interleaved: names of a kernel's memory that lies in interleaved elements; the rest lies in others.
      in_floats: whether a kernel computes in floats in the ring, too, because they hold integers to the bit.
    """

    variant: Variant
    n: Amount
    rows: Amount = 1
    runs: Amount = 1
    sharers: Amount = 1
    cell: Callable[[], CellFunction] | None = None
    data: CodeData | None = None
    kernel: Kernel | None = None
    compiled: Callable[[CellFunction, InstructionSet], TileCode] | None = None
    turn: Callable[[tuple[int, ...]], Mapping[str, Field] | Sequence[Mapping[str, Field]]] | None = None
    interleaved: tuple[str, ...] = ()
    in_floats: bool = False

    @property
    def cycles(self) -> Any:
        """Tile cycles of all its runs."""
        return self.runs * self.variant.formula.cycles(self.n, self.rows)


def code_cycles(parts: Sequence[VertexCode]) -> Cycles:
    """Return the cycles of vertices that run parts one after another.

    They are DERIVED, or ASSUMED where the slots of an instruction are.
    """
    behind = Basis.weakest(part.variant.basis for part in parts)
    generation = parts[0].variant.generation
    source = f"tile code of the element compiler; slots: {behind}, configs/isa/{generation}.json"
    basis = Basis.ASSUMED if behind is Basis.ASSUMED else Basis.DERIVED
    return Cycles(sum((part.cycles for part in parts), np.int64(0)), basis, source)


def code_or_formula(parts: Sequence[VertexCode], formula: Cycles) -> Cycles:
    """Return the cycles of code; where some vertices run none, the formula's, and its basis for all."""
    found = code_cycles(parts)
    has_code = np.asarray(sum((np.asarray(part.runs, np.int64) for part in parts), np.int64(0))) > 0
    if bool(np.all(has_code)):
        return found
    source = f"{formula.source}; {found.source}"
    return Cycles(np.where(has_code, found.value, formula.value), formula.basis, source)


def vertex_code_bytes(parts: Sequence[VertexCode]) -> int:
    """Return the bytes of the variants that some vertex runs, each once."""
    used = {id(part.variant): part.variant.code_bytes for part in parts if np.any(np.asarray(part.runs) > 0)}
    return sum(used.values())


def code_scratch_bytes(parts: Sequence[VertexCode], workers: int) -> Any:
    """Return the bytes in which a tile's workers keep what they have no registers for, of the part that needs most."""
    need = np.int64(0)
    for part in parts:
        each = -(-part.variant.scratch_bytes // _ACCESS_BYTES) * _ACCESS_BYTES
        need = np.maximum(need, np.where(np.asarray(part.runs) > 0, workers * each, 0))
    return need


_ACCESS_BYTES = 8
