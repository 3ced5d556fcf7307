"""Tile code of random bits: the generator's rounds for one counter after the other, on words of 32 bits.

A state is words in memory. Elements below 32 bits are made of words of one element each, at last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from tiles._jax_compat import Jaxpr, make_jaxpr
from tiles.elements import InstructionSet, Variant, compile_blocks, instructions_for
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.errors import NoTileCode
from tiles.graph import Extents, VertexCode
from tiles.graph.cycles import CodeMemory, Field
from tiles.numerics.dtypes import is_float, to_jax, unsigned_of
from tiles.poplibs.popops.packing_code import Narrow, is_narrow
from tiles.poplibs.poprand.generators import advanced, philox, threefry
from tiles.poplibs.poprand.numbering import Numbering
from tiles.target import Target

_WORD_BYTES, _WORD_BITS = 4, 32


def bits_code(
    numbering: Numbering, operands: int, extents: Extents, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code of vertices: workers take rows in turn or share each of them, whichever is faster.

    Args:
      numbering: of the array.
      operands: key, counter, and the counter's upper half if it has one.
      extents: cell sizes.
      target: the machine.
      name: of the variants.

    Raises:
      NoTileCode: floats, or more words than a counter of 32 bits counts.
      OutOfRegisters: too few registers, even with values spilled.
    """
    if is_float(to_jax(numbering.dtype)):
        raise NoTileCode(f"random bits that are {numbering.dtype}", expected="integers")
    if math.prod(numbering.numbered) * numbering.element_words >= 1 << _WORD_BITS:
        raise NoTileCode(f"random bits of {numbering.shape}", expected="less than 2^32 words")
    isa = instructions_for(target)
    by_rows, together = (
        existing(_variant(isa, numbering.algorithm, operands, numbering.apart, shares)).named(name)
        for shares in (False, True)
    )
    n, (_, rows) = numbering.blocks_of_rows(extents.sizes), numbering.rows(extents.sizes)
    is_there, kernel = np.asarray(extents.points) > 0, _Bits(numbering)
    is_faster = np.less(together.formula.cycles(n, rows), by_rows.formula.cycles(n, rows))
    narrow = is_narrow(numbering.dtype)

    def words(_: tuple[int, ...]) -> dict[str, Field]:
        return {"out0": "words"} if narrow else {}

    parts = [
        VertexCode(by_rows, n, rows, is_there & ~is_faster, kernel=kernel, turn=words),
        VertexCode(together, n, rows, is_there & is_faster, kernel=kernel, turn=words),
    ]
    if narrow:
        packing = Narrow(numbering.dtype).variant(True, target, name)
        parts.append(VertexCode(packing, extents.points, runs=is_there, kernel=kernel, turn=_packed))
    return tuple(parts)


def bits_scratch_bytes(numbering: Numbering, extents: Extents) -> np.ndarray:
    """Return the bytes of a vertex' words that say where rows lie, and of those that elements are made of."""
    _, rows = numbering.rows(extents.sizes)
    table = rows * (3 if numbering.apart else 2) * _WORD_BYTES
    return np.asarray(table + (extents.points * _WORD_BYTES if is_narrow(numbering.dtype) else 0))


def _packed(_: tuple[int, ...]) -> dict[str, Field]:
    return {"in0": "words"}


@lru_cache(maxsize=64)
def _variant(
    isa: InstructionSet, algorithm: str, operands: int, apart: bool, shares_rows: bool
) -> Variant | NoVariant:
    def make() -> Variant:
        code = compile_blocks(block_jaxpr(algorithm, operands), isa, apart, shares_rows, UNNAMED)
        return Variant.of(code, isa)

    return kept_variant(("random bits", algorithm, operands, apart, shares_rows), isa, make)


@lru_cache(maxsize=8)
def block_jaxpr(algorithm: str, operands: int) -> Jaxpr:
    """Return the closed jaxpr of a block: from its number and the words of key and counter to its words."""

    def block(number: jax.Array, *state: jax.Array) -> tuple[jax.Array, ...]:
        key, counter, upper = (state[k : k + 2] for k in (0, 2, 4 if operands > 2 else 0))
        low, high, carry = advanced((counter[0], counter[1]), number)
        if algorithm == "threefry":
            return threefry((key[0], key[1]), (low, high))
        above, beyond, _ = advanced((upper[0], upper[1]), carry)
        return tuple(philox((key[0], key[1]), (low, high), (above, beyond)))

    return make_jaxpr(block)(*(jax.ShapeDtypeStruct((), jnp.uint32),) * (1 + 2 * operands))


@dataclass(frozen=True)
class _Bits:
    """What vertices find and leave in memory. A ``Kernel``."""

    numbering: Numbering

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        numbering, cells = self.numbering, len(origins)
        state = [np.ascontiguousarray(x.reshape(cells, 1)).view(np.uint32) for x in operands]
        table, runs = numbering.table(sizes, origins)
        length = int(numbering.rows([np.asarray(size) for size in sizes])[0])
        words, each = length * numbering.element_words, numbering.block_words
        blocks: int | np.ndarray = length
        if not numbering.apart:
            blocks = -(-(table[:, :, 1].max(axis=1).astype(np.int64) + words) // each)
        memory = {"in0": np.concatenate(state, axis=1), "in1": table}
        elements, dtype = math.prod(sizes), unsigned_of(numbering.dtype)
        held = np.zeros((cells, elements * numbering.element_words), np.uint32)
        if is_narrow(numbering.dtype):
            memory |= {"words": held, "out0": np.zeros((cells, elements), dtype)}
        else:
            memory["out0"] = held
        return memory, {"runs": runs, "blocks": blocks, "size_bytes": words * _WORD_BYTES}

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        found = np.ascontiguousarray(memory["out0"])
        return [found.view(to_jax(self.numbering.dtype)).reshape(-1, *sizes)]
