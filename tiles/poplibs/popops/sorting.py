"""The codelet that sorts rows: several arrays together, by keys or by any comparing expression.

A row is sorted by one vertex, so it must fit on a tile; rows are spread over the tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles.errors import InvalidGraph
from tiles.graph import Cell, Codelet, Cycles, Extents, Graph, OpForm, Tensor, identity_map, register
from tiles.numerics.dtypes import is_float, itemsize
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops import elementwise_cycles
from tiles.poplibs.popops.expression import Body, body_dtypes, evaluate_body
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/popops/codelets: HeapSortVertex estimators"
Key = tuple[int, bool, bool]
"""``(array, is_descending, is_total)``: total order goes by bits; else zeros are equal, NaN greatest."""


@register
@dataclass(frozen=True)
class Sort(Codelet):
    """Sort arrays together along one dimension; equal elements keep their order.

    Args:
      dimension: the dimension sorted, of the domain and of every array.
      dtypes: dtype of every array.
      keys: the keys compared, the first one first; empty to compare by ``comparator``.
      comparator: expression of array 0's first and second element, array 1's, ...; its last row tells whether
        the first elements come before the second.

    Raises:
      InvalidGraph: neither keys nor a comparator, or a comparator that is no boolean.
    """

    name: ClassVar[str] = "popops.Sort"

    dimension: int
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
    def label(self) -> str:
        """Vertex type as PopLibs spells it."""
        first, *rest = (elementwise_cycles.cpp_name(dtype) for dtype in self.dtypes)
        return f"popops::HeapSortVertex{'KV' if rest else ''}<{','.join([first, *rest])}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the cell's rows, sorted."""
        if self.keys:
            columns = [_key_column(operands[number], *how) for number, *how in self.keys]
            result = lax.sort([*columns, *operands], self.dimension, True, len(columns))
            return tuple(result[len(columns) :])
        return self._by_network(cell, operands)

    def _by_network(self, cell: Cell, operands: Sequence[Array]) -> tuple[Array, ...]:
        """Sort by a bitonic network of comparisons; positions decide between equal elements."""
        size = operands[0].shape[self.dimension]
        width = 1 << max(0, size - 1).bit_length()
        blocks = [2 << i for i in range(width.bit_length() - 1)]
        steps = [(block, block >> (j + 1)) for block in blocks for j in range(block.bit_length() - 1)]
        if not steps:
            return tuple(operands)
        moved = [jnp.moveaxis(x, self.dimension, -1) for x in operands]
        fill = [(0, 0, 0)] * (moved[0].ndim - 1) + [(0, width - size, 0)]
        padded = [lax.pad(x, jnp.zeros((), x.dtype), fill) for x in moved]
        lane = jnp.arange(width, dtype=jnp.int32)
        table = jnp.array(steps, jnp.int32)

        def before(a: Sequence[Array], b: Sequence[Array]) -> Array:
            pairs = [x for pair in zip(a, b, strict=True) for x in pair]
            return jnp.broadcast_to(evaluate_body(self.comparator, pairs, cell)[-1], a[0].shape)

        def precedes(a: Sequence[Array], b: Sequence[Array]) -> Array:
            earlier = before(a[:-1], b[:-1]) | (~before(b[:-1], a[:-1]) & (a[-1] < b[-1]))
            return (a[-1] < size) & ((b[-1] >= size) | earlier)

        def step(number: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            partner = lane ^ table[number, 1]
            others = [jnp.take(x, partner, axis=-1, mode="clip") for x in state]
            keeps_first = (lane < partner) == ((lane & table[number, 0]) == 0)
            takes = keeps_first == precedes(others, state)
            return tuple(jnp.where(takes, other, x) for x, other in zip(state, others, strict=True))

        position = jnp.broadcast_to(lane, padded[0].shape)
        result = lax.fori_loop(0, len(steps), step, (*padded, position))
        return tuple(jnp.moveaxis(x[..., :size], -1, self.dimension) for x in result[:-1])

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the heap sort's estimate, rows shared out to the workers."""
        n = np.asarray(extents.sizes[self.dimension], np.int64)
        levels = np.floor(np.log2(np.maximum(n, 1)))
        each = (8 if len(self.dtypes) == 1 else 16) * (19 * n * levels + 6 * n + 2)
        rows = extents.points // np.maximum(n, 1)
        return Cycles(each * -(-rows // target.workers_per_tile), Basis.ASSUMED, SOURCE)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep rows whole."""
        return d != self.dimension

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Count one row for every worker: what is being moved while results are built."""
        row = np.asarray(extents.sizes[self.dimension], np.int64) * sum(map(itemsize, self.dtypes))
        return np.broadcast_to(row * target.workers_per_tile, extents.points.shape)


def _key_column(x: Array, is_descending: bool, is_total: bool) -> Array:
    """Return what orders ascending as a key orders ``x``."""
    if is_float(x.dtype) and (is_total or is_descending):
        if not is_total:
            x = lax.select(x == 0, lax.full_like(x, 0), x)
            x = lax.select(x != x, lax.full_like(x, np.nan), x)
        bits = 8 * x.dtype.itemsize
        words = lax.bitcast_convert_type(x, np.dtype(f"int{bits}"))
        magnitude = np.array((1 << (bits - 1)) - 1, words.dtype)
        x = words ^ ((words >> (bits - 1)) & magnitude)
    return ~x if is_descending else x


def sort(
    graph: Graph,
    arrays: Sequence[Tensor],
    dimension: int = -1,
    keys: Sequence[Key] = ((0, False, False),),
    comparator: Body = (),
    **options: Any,
) -> tuple[Tensor, ...]:
    """Sort tensors of one shape together; see ``Sort`` for keys and comparator, ``place`` for options.

    Raises:
      InvalidGraph: shapes that differ, or a dimension that does not exist.
    """
    shape = arrays[0].shape
    if any(x.shape != shape for x in arrays) or not -len(shape) <= dimension < len(shape):
        raise InvalidGraph(f"cannot sort shapes {[x.shape for x in arrays]} along dimension {dimension}")
    dtypes = tuple(x.dtype for x in arrays)
    codelet = Sort(dimension % len(shape), dtypes, () if comparator else tuple(keys), comparator)
    form = map_form(shape, [identity_map(len(shape))] * len(arrays), len(arrays))
    return place(graph, codelet, form, arrays, dtypes, options.pop("name", "sort"), **options)
