"""Operands that are widened before they pass through the multiply units, as a ``Kernel`` around that of the product."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tiles.elements import InstructionSet
from tiles.elements.variants import existing
from tiles.graph import Extents, VertexCode
from tiles.graph.cycles import CodeMemory, Field, Kernel
from tiles.numerics.dtypes import is_float, to_jax
from tiles.poplibs.poplin.casts import cast_variant, compiled_cast, words_cell
from tiles.poplibs.poplin.units_code import INPUTS, WEIGHTS, holds_words, in_words, of_each_cell

_GIVEN = "given "
"""Before the name of a kernel's memory that is widened: as operands are given."""


@dataclass(frozen=True)
class Widened:
    """A kernel of products of ``wide`` operands that are given in another dtype, a narrower one."""

    kernel: Kernel
    given: str
    wide: str

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        memory, fields = self.kernel.find(sizes, origins, operands)
        is_ring = holds_words(memory[INPUTS], self.given)
        for name in (INPUTS, WEIGHTS):
            memory[_GIVEN + name] = memory[name]
            memory[name] = np.zeros(memory[name].shape, in_words(self.wide, is_ring))
        return memory, fields

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        return self.kernel.results(sizes, memory)

    def elements(self, extents: Extents) -> tuple[np.ndarray, np.ndarray]:
        """Return how many elements of inputs and of weights cells have in memory, those that fill up groups included."""
        counts = of_each_cell(extents, partial(self._counts, extents))
        return counts[..., 0], counts[..., 1]

    def _counts(self, extents: Extents, sizes: tuple[int, ...]) -> tuple[int, int]:
        cell = replace(extents, sizes=tuple(np.asarray(n, np.int64) for n in sizes))
        nothing: list[np.ndarray] = []
        for k, dtype in enumerate(extents.operand_dtypes):
            shape = map(int, cell.operand_spans(k))
            nothing.append(np.zeros((1, *shape), np.dtype(to_jax(dtype))))
        memory, _ = self.kernel.find(sizes, np.zeros((1, len(sizes)), np.int32), nothing)
        return memory[INPUTS].size, memory[WEIGHTS].size


def widened(
    parts: Iterable[VertexCode], given: str, wide: str, extents: Extents, isa: InstructionSet, name: str
) -> Iterator[VertexCode]:
    """Yield the code of products, and before that of every kernel the code that widens its operands where they are narrower.

    Args:
      parts: the code; those of one kernel follow one another.
      given: dtype of the operands.
      wide: dtype that the units take.
      extents: of the cells.
      isa: the instruction set.
      name: of the variants.

    Raises:
      NoTileCode: there is none that widens them.
    """
    if given == wide:
        yield from parts
        return
    variant = existing(cast_variant(isa, given, wide)).named(name)
    whole = list(parts)
    for kernel in {id(part.kernel): part.kernel for part in whole}.values():
        assert kernel is not None
        own, around = [part for part in whole if part.kernel is kernel], Widened(kernel, given, wide)
        does = sum((np.asarray(part.runs, np.int64) for part in own), np.int64(0)) > 0
        how: dict[str, Any] = {"kernel": around, "interleaved": own[0].interleaved}
        if is_float(given):
            how |= {"cell": partial(words_cell, given, wide), "compiled": compiled_cast}
        for what, n in zip((INPUTS, WEIGHTS), around.elements(extents), strict=True):
            yield VertexCode(variant, n, 1, np.asarray(does, np.int64), turn=partial(_widening, what), **how)
        for part in own:
            yield replace(part, kernel=around)


def _widening(what: str, sizes: tuple[int, ...]) -> dict[str, Field]:
    del sizes
    return {"in0": _GIVEN + what, "out0": what}
