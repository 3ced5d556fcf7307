"""Tile code between elements below 32 bits and words of one element each: what sorts compare and move are words.

All rows of a vertex follow one another in memory, so that workers take a vertex' elements as one vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import lax

from tiles._jax_compat import Jaxpr, make_jaxpr
from tiles.elements import (
    CellFunction,
    InstructionSet,
    TileCode,
    Variant,
    compile_cell,
    compile_variant,
    contiguous,
    instructions_for,
)
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.numerics.dtypes import itemsize, to_jax
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.sort_order import Order
from tiles.target import Target

_WORD_BYTES, _HALF_BITS = 4, 16
_KEYED, _KEY = ("float16", "bfloat16"), "int32"
_SIGNED = ("int8", "int16")


def is_narrow(dtype: str) -> bool:
    """Return whether elements are smaller than words."""
    return itemsize(dtype) < _WORD_BYTES


def word_of(dtype: str) -> str:
    """Return the dtype of a word that holds an element: of integers with a sign the same number, else the element's bits."""
    if not is_narrow(dtype):
        return dtype
    return "int32" if dtype in _SIGNED else "uint32"


@dataclass(frozen=True)
class Narrow:
    """An array of elements that are smaller than words.

    Args:
      dtype: of the elements.
      key: how they are ordered (``Order.keys``) where the upper half of a word says it: for floats of 16 bits, as an integer.
    """

    dtype: str
    key: tuple[bool, bool] | None = None

    @property
    def bits(self) -> str:
        """Dtype as which code reads and writes elements that it only moves."""
        return self.dtype if self.dtype in _SIGNED else f"uint{8 * itemsize(self.dtype)}"

    def unpacking(self) -> CellFunction:
        """Return what makes a word of an element."""
        if self.key is None:
            return _moving_cell(self.bits, word_of(self.dtype))
        return _keyed_cell(self.dtype, self.key)

    def variant(self, packs: bool, target: Target, name: str) -> Variant:
        """Return the code that makes elements of words, or words of elements.

        Raises:
          NoTileCode: a dtype without code.
          OutOfRegisters: too few registers, even with values spilled.
        """
        return existing(_variant(instructions_for(target), self, packs)).named(name)


def narrow_arrays(order: Order) -> dict[int, Narrow]:
    """Return the arrays of narrow elements by number."""
    numbers = [number for number, _, _ in order.keys]
    keys = {key[0]: key[1:] for key in order.keys if numbers.count(key[0]) == 1}
    found: dict[int, Narrow] = {}
    for k, dtype in enumerate(order.dtypes):
        if is_narrow(dtype):
            found[k] = Narrow(dtype, keys.get(k) if dtype in _KEYED else None)
    return found


def in_words(order: Order) -> Order:
    """Return the order of the upper halves of words where they say it, and of elements elsewhere."""
    keyed = {k for k, narrow in narrow_arrays(order).items() if narrow.key is not None}
    if not keyed:
        return order
    dtypes = tuple(_KEY if k in keyed else dtype for k, dtype in enumerate(order.dtypes))
    keys = tuple((key[0], False, True) if key[0] in keyed else key for key in order.keys)
    return Order(dtypes, keys)


def upper_half(word: jax.Array) -> jax.Array:
    """Return what orders a word whose upper half says it."""
    return word >> np.int32(_HALF_BITS)


def packing_cycles(order: Order, read: Amount, written: Amount, target: Target) -> Any:
    """Return the cycles of making words of ``read`` elements of each narrow array, and ``written`` elements of words."""
    ways = ((False, read), (True, written))
    return sum(
        narrow.variant(packs, target, UNNAMED).formula.cycles(n)
        for narrow in narrow_arrays(order).values()
        for packs, n in ways
    )


def unpacked_bytes(dtypes: Sequence[str], read: Amount, written: Amount) -> Amount:
    """Return the bytes of the words of narrow arrays, as they are read and as they are written."""
    return _WORD_BYTES * sum(map(is_narrow, dtypes)) * (read + written)


def compiled_packing(cell: CellFunction, isa: InstructionSet) -> TileCode:
    """Return the code of an unpacking cell for another arithmetic."""
    return compile_cell(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)


@lru_cache(maxsize=64)
def _variant(isa: InstructionSet, narrow: Narrow, packs: bool) -> Variant | NoVariant:
    def make() -> Variant:
        cell = _moving_cell(word_of(narrow.dtype), narrow.bits) if packs else narrow.unpacking()
        return compile_variant(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)

    return kept_variant(("packing", narrow, packs), isa, make)


def _moving_cell(source: str, made: str) -> CellFunction:
    """Return the conversion of integers."""

    def converted(x: jax.Array) -> tuple[jax.Array, ...]:
        return (x.astype(made),)

    jaxpr: Jaxpr = make_jaxpr(converted)(jax.ShapeDtypeStruct((), to_jax(source)))
    return CellFunction(jaxpr, ((source,), (made,)), contiguous(1))


@lru_cache(maxsize=16)
def _keyed_cell(dtype: str, key: tuple[bool, bool]) -> CellFunction:
    """Return the word of an element: above what orders it, below its bits."""
    is_brief = dtype == "bfloat16"  # the upper half of an f32, which no code reads as what it is
    order = Order(("float32" if is_brief else dtype,), ((0, *key),))

    def word(x: jax.Array) -> tuple[jax.Array, ...]:
        bits = (x if is_brief else lax.bitcast_convert_type(x, np.uint16)).astype(_KEY)
        above = bits << np.int32(_HALF_BITS)
        (column,) = order.columns([lax.bitcast_convert_type(above, np.float32) if is_brief else x])
        upper = upper_half(column) if is_brief else column.astype(_KEY)
        return ((upper << np.int32(_HALF_BITS)) | bits,)

    source = "uint16" if is_brief else dtype
    jaxpr: Jaxpr = make_jaxpr(word)(jax.ShapeDtypeStruct((), to_jax(source)))
    return CellFunction(jaxpr, ((source,), (_KEY,)), contiguous(1))
