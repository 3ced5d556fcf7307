"""How elements that are sorted together compare: by keys one after the other, or by any expression.

One meaning for every codelet that sorts, whether it has whole rows or parts of them: elements that compare equal
keep the order of their positions, so that there is exactly one result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import broadcasted_iota, fori_loop
from tiles.errors import InvalidGraph
from tiles.graph import Cell
from tiles.numerics.dtypes import is_float
from tiles.numerics.total_order import as_moved, from_moved, from_total_order_key, total_order_key
from tiles.poplibs.popops.expression import Body, body_dtypes, evaluate_body

Key = tuple[int, bool, bool]
"""``(array, is_descending, is_total)``: total order goes by bits; else zeros and NaNs are equal first."""


@dataclass(frozen=True)
class Order:
    """The order of elements of several arrays.

    Args:
      dtypes: dtype of every array.
      keys: the keys compared, the first one first; empty to compare by ``comparator``.
      comparator: expression of array 0's first and second element, array 1's, ...; its last row tells whether
        the first elements come before the second.

    Raises:
      InvalidGraph: neither keys nor a comparator, or a comparator that is no boolean.
    """

    dtypes: tuple[str, ...]
    keys: tuple[Key, ...] = ()
    comparator: Body = ()

    def __post_init__(self) -> None:
        """Check that there is one way to compare."""
        if bool(self.keys) == bool(self.comparator):
            raise InvalidGraph("a sort compares by keys or by an expression, and by one of them")
        if self.comparator:
            pairs = tuple(dtype for dtype in self.dtypes for _ in range(2))
            found = body_dtypes(self.comparator, pairs)[-1]
            if found != "bool":
                raise InvalidGraph("a comparator must be a boolean", got=found)

    @property
    def comparison_slots(self) -> int:
        """Instructions of one comparison (ASSUMED): two loads, a compare and a branch per key; 8 per expression row."""
        return 4 * len(self.keys) if self.keys else 8 * len(self.comparator)

    def columns(self, arrays: Sequence[Array]) -> list[Array]:
        """Return what orders ascending as the keys order the arrays."""
        return [_key_column(arrays[number], *how) for number, *how in self.keys]

    def key(self, arrays: Sequence[Array]) -> Array:
        """Return int32 that order ascending as the one key orders the arrays; its elements have 32 bits at most."""
        (column,) = self.columns(arrays)
        if column.dtype == np.uint32:
            return lax.bitcast_convert_type(column ^ np.uint32(1 << 31), np.int32)
        return column.astype(np.int32)

    def precedes(self, cell: Cell, a: Sequence[Array], b: Sequence[Array], size: int) -> Array:
        """Return whether the first elements come before the second ones.

        Args:
          cell: where the expression is evaluated.
          a: the arrays' first elements, then their positions.
          b: the second elements, then their positions.
          size: positions from here on are padding, which comes last.
        """
        return (a[-1] < size) & ((b[-1] >= size) | self.earlier(cell, a, b))

    def earlier(self, cell: Cell, a: Sequence[Array], b: Sequence[Array]) -> Array:
        """Return whether the first elements come before the second ones where neither is padding; see ``precedes``."""
        if self.keys:
            earlier = a[-1] < b[-1]
            for x, y in reversed([*zip(self.columns(a[:-1]), self.columns(b[:-1]), strict=True)]):
                earlier = (x < y) | ((x == y) & earlier)
            return earlier
        return self._before(cell, a, b) | (~self._before(cell, b, a) & (a[-1] < b[-1]))

    def less(self, cell: Cell, a: Sequence[Array], b: Sequence[Array]) -> Array:
        """Return whether the first elements come before the second ones by the keys alone, or the expression."""
        if not self.keys:
            return self._before(cell, [*a, a[0]], [*b, b[0]])
        *before, (x, y) = zip(self.columns(a), self.columns(b), strict=True)
        less = x < y
        for x, y in reversed(before):
            less = (x < y) | ((x == y) & less)
        return less

    def _before(self, cell: Cell, a: Sequence[Array], b: Sequence[Array]) -> Array:
        pairs = [x for pair in zip(a[:-1], b[:-1], strict=True) for x in pair]
        return jnp.broadcast_to(evaluate_body(self.comparator, pairs, cell)[-1], a[-1].shape)

    def by_keys(self, arrays: Sequence[Array], dimension: int) -> list[Array]:
        """Return arrays sorted together.

        XLA on CPU sorts one array of integers several times faster than floats or several arrays: a key of 32 bits is
        sorted in one word with the position, and the arrays follow.
        """
        number, is_descending, is_total = self.keys[0]
        is_single = len(self.keys) == 1
        if is_single and len(arrays) == 1 and (is_total or not is_float(arrays[0].dtype)):
            (column,) = self.columns(arrays)
            return [_from_column(lax.sort(column, dimension), arrays[0].dtype, is_descending)]
        if is_single and arrays[number].dtype.itemsize <= 4:
            return self._by_one_word(arrays, dimension)
        columns = self.columns(arrays)
        found = lax.sort([*columns, *map(as_moved, arrays)], dimension, True, len(columns))
        return list(map(from_moved, found[len(columns) :], arrays))

    def _by_one_word(self, arrays: Sequence[Array], dimension: int) -> list[Array]:
        (column,) = self.columns(arrays)
        if column.dtype == np.uint32:
            column = lax.bitcast_convert_type(column ^ np.uint32(1 << 31), np.int32)
        position = broadcasted_iota(np.int64, column.shape, dimension)
        words = lax.shift_left(column.astype(np.int64), np.int64(32)) | position
        place = (lax.sort(words, dimension, is_stable=False) & np.int64(0xFFFFFFFF)).astype(np.int32)
        return [jnp.take_along_axis(x, place, dimension, mode="promise_in_bounds") for x in arrays]

    def by_network(
        self, cell: Cell, arrays: Sequence[Array], dimension: int, size: int, is_merge: bool = False
    ) -> list[Array]:
        """Return arrays, the positions last, sorted by a network of comparisons.

        Args:
          cell: where the expression is evaluated.
          arrays: the arrays and their positions; the dimension's size is a power of two.
          dimension: the dimension sorted.
          size: positions from here on are padding.
          is_merge: whether every row is bitonic already, so that the last block's halvings are enough.
        """
        moved = [jnp.moveaxis(x, dimension, -1) for x in arrays]
        width = moved[0].shape[-1]
        table = network(width)
        if is_merge:
            halvings = width.bit_length() - 1
            table = [width >> (j + 1) for j in range(halvings)]
        if not table:
            return list(arrays)
        masks = jnp.array(table, jnp.int32)
        lane = jnp.arange(width, dtype=jnp.int32)

        def step(number: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            partner = lane ^ masks[number]
            others = [jnp.take(x, partner, axis=-1, mode="clip") for x in state]
            takes = (lane < partner) == self.precedes(cell, others, state, size)
            kept = (jnp.where(takes, as_moved(x), as_moved(y)) for x, y in zip(others, state, strict=True))
            return tuple(map(from_moved, kept, state))

        result = fori_loop(0, len(table), step, tuple(moved))
        return [jnp.moveaxis(x, -1, dimension) for x in result]


def network(width: int) -> list[int]:
    """Return which bits of its place an element and its partner differ in, step by step, for a power of two.

    Blocks of 2, 4, ... are merged: the first step compares with the mirror image in the block, so that every
    block ascends; the others halve (Batcher's bitonic sorter, 1968, in its form without directions).
    """
    blocks = [2 << i for i in range(width.bit_length() - 1)]
    return [m for block in blocks for m in (block - 1, *(block >> j for j in range(2, block.bit_length())))]


def _key_column(x: Array, is_descending: bool, is_total: bool) -> Array:
    """Return integers that order ascending as a key orders ``x``."""
    if is_float(x.dtype):
        if not is_total:
            x = lax.select(x == 0, lax.full_like(x, 0), x)
            x = lax.select(x != x, lax.full_like(x, np.nan), x)
        x = total_order_key(x)
    return ~x if is_descending else x


def _from_column(column: Array, dtype: np.dtype, is_descending: bool) -> Array:
    """Return the array that a key's column was made of."""
    x = ~column if is_descending else column
    return from_total_order_key(x, dtype) if is_float(dtype) else x
