"""Tile code that puts phases in turn: rows of a result are looked up among those of all operands, at places that are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tiles.elements import InstructionSet, Variant, compile_lookup, instructions_for
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.errors import NoTileCode
from tiles.graph import Extents, VertexCode
from tiles.graph.cycles import CodeMemory
from tiles.numerics.dtypes import itemsize, to_jax
from tiles.numerics.ring import to_ring
from tiles.target import Target

WORD_BYTES, ACCESS_BYTES = 4, 8


@lru_cache(maxsize=8)
def _variant(isa: InstructionSet, alignment_bytes: int) -> Variant | NoVariant:
    def make() -> Variant:
        return Variant.of(compile_lookup(isa, alignment_bytes, name=UNNAMED), isa)

    return kept_variant(("rows of phases", alignment_bytes), isa, make)


@dataclass(frozen=True)
class Phases:
    """Rows of a result: of what lies behind its last dimension that counts phases. A ``Kernel``.

    Attributes:
      axes: dimensions that count phases.
      present: which phases, in row-major order, have an operand.
      dtype: dtype of everything.
      fill: what the other phases hold.
    """

    axes: tuple[int, ...]
    present: tuple[bool, ...]
    dtype: str
    fill: float | int | bool

    @property
    def inner(self) -> int:
        """The first dimension of a row."""
        return max(self.axes, default=-1) + 1

    def parts(self, extents: Extents, target: Target, name: str) -> tuple[VertexCode, ...]:
        """Return the code of vertices.

        Raises:
          NoTileCode: rows that begin inside a word.
        """
        isa, dims = instructions_for(target), range(len(extents.form.dims))
        row = np.asarray(extents.product([d for d in dims if d >= self.inner]) * itemsize(self.dtype))
        rows = extents.product([d for d in dims if d < self.inner])
        alignment = np.gcd(row, ACCESS_BYTES)
        found: list[VertexCode] = []
        for size in (ACCESS_BYTES, WORD_BYTES):
            runs = np.where(alignment == size, np.asarray(extents.points) > 0, 0).astype(np.int64)
            if runs.any():
                variant = existing(_variant(isa, size)).named(name)
                found.append(VertexCode(variant, row // WORD_BYTES, rows, runs, kernel=self))
        if not found:
            raise NoTileCode("rows of phases that begin inside a word")
        return tuple(found)

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        cells, width = len(origins), math.prod(sizes[self.inner :])
        count = math.prod(n for d, n in enumerate(sizes[: self.inner]) if d not in self.axes)
        fill = np.asarray(self.fill, to_jax(self.dtype))
        if operands and operands[0].dtype != fill.dtype:
            fill = np.asarray(to_ring(fill))
        rows = [x.reshape(cells, count, width) for x in operands]
        table = np.concatenate([*rows, np.broadcast_to(fill, (cells, 1, width))], axis=1)
        places = self._places(sizes, count)
        pitch = width * table.itemsize
        fields: dict[str, Any] = {
            "in0_row_bytes": pitch,
            "out0_row_bytes": pitch,
            "size": table.shape[1],
        }
        memory = {
            "in0": np.ascontiguousarray(table),
            "in1": np.broadcast_to(places.astype(np.int32), (cells, *places.shape)),
            "out0": np.zeros((cells, len(places), width), table.dtype),
        }
        return memory, fields

    def _places(self, sizes: Sequence[int], count: int) -> np.ndarray:
        """Return where the rows of the result lie among the operands' and, behind these, a row of what fills."""
        number = phase = np.zeros((1,) * self.inner, np.int64)
        for d, i in enumerate(np.indices(sizes[: self.inner], sparse=True)):
            number, phase = (
                (number, phase * sizes[d] + i) if d in self.axes else (number * sizes[d] + i, phase)
            )
        operand = np.cumsum(self.present) - 1
        there = np.asarray(self.present)[phase]
        found = np.where(there, operand[phase] * count + number, sum(self.present) * count)
        return np.broadcast_to(found, sizes[: self.inner]).reshape(-1)

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        return [memory["out0"].reshape(-1, *sizes)]
