"""Sorting rows: several arrays together, by keys or by any comparing expression.

A row that a tile sorts soon enough is sorted by one vertex; a longer one is spread over tiles, see ``sorting_stages``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import broadcasted_iota
from tiles.cached import cached_property
from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
from tiles.graph import (
    Cell,
    Codelet,
    Cycles,
    Extents,
    Graph,
    OpForm,
    Plan,
    Site,
    Tensor,
    VertexCode,
    code_cycles,
    identity_map,
    register,
    site_of,
)
from tiles.numerics.dtypes import itemsize
from tiles.numerics.total_order import padded
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops import elementwise_cycles
from tiles.poplibs.popops.expression import Body
from tiles.poplibs.popops.merging_code import sorting_bytes, sorting_code
from tiles.poplibs.popops.merging_levels import Merging
from tiles.poplibs.popops.packing_code import unpacked_bytes
from tiles.poplibs.popops.sort_order import Key, Order
from tiles.poplibs.popops.sorting_stages import (
    SOURCE,
    SortKeys,
    Stage,
    heap_cycles,
    parts_of_rows,
    sort_in_stages,
    staged,
)
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target


@register
@dataclass(frozen=True)
class Sort(Codelet):
    """Sort arrays together along one dimension; equal elements keep their order.

    Args:
      dimension: the dimension sorted, of the domain and of every array.
      dtypes: dtype of every array.
      keys: see ``Order``.
      comparator: see ``Order``.

    Raises:
      InvalidGraph: neither keys nor a comparator, or a comparator that is no boolean.
    """

    name: ClassVar[str] = "popops.Sort"
    version: ClassVar[int] = 2

    dimension: int
    dtypes: tuple[str, ...]
    keys: tuple[Key, ...] = ()
    comparator: Body = ()

    def __post_init__(self) -> None:
        """Check that there is one way to compare."""
        assert self.order

    @cached_property
    def order(self) -> Order:
        """How elements compare."""
        return Order(self.dtypes, self.keys, self.comparator)

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """Those of all arrays."""
        return self.dtypes

    @property
    def label(self) -> str:
        """Vertex type as PopLibs spells it."""
        first, *rest = (elementwise_cycles.cpp_name(dtype) for dtype in self.dtypes)
        return f"popops::HeapSortVertex{'KV' if rest else ''}<{','.join([first, *rest])}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the cell's rows, sorted."""
        if self.keys:
            return tuple(self.order.by_keys(operands, self.dimension))
        size = operands[0].shape[self.dimension]
        width = 1 << max(0, size - 1).bit_length()
        fill = [(0, width - size if d == self.dimension else 0, 0) for d in range(operands[0].ndim)]
        filled = [padded(x, jnp.zeros((), x.dtype), fill) for x in operands]
        position = broadcasted_iota(jnp.int32, filled[0].shape, self.dimension)
        found = self.order.by_network(cell, [*filled, position], self.dimension, size)
        return tuple(lax.slice_in_dim(x, 0, size, axis=self.dimension) for x in found[:-1])

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the cycles of the code; where there is none, of PopLibs' heap sort, rows shared out to the workers."""
        try:
            return code_cycles(self.tile_code(extents, target))
        except (NoTileCode, OutOfRegisters):
            n = np.asarray(extents.sizes[self.dimension], np.int64)
            rows = extents.points // np.maximum(n, 1)
            each = heap_cycles(n, len(self.dtypes))
            return Cycles(each * -(-rows // target.workers_per_tile), Basis.ASSUMED, SOURCE)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of sorting rows by merges, which keep the order of equal elements."""
        what = Merging(self.order, has_positions=False)
        return sorting_code(what, self.dimension, extents, target, self.label)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep rows whole."""
        return d != self.dimension

    def misfit(self, form: OpForm, stages: Sequence[Codelet]) -> str:
        """Stages sort rows of this length by this order: which positions are padding few data show.

        Where keys are computed of this order, stages sort longer rows, of which no position is padding, by these.
        """
        own = Stage(self.dtypes, form.dims[self.dimension].size, self.keys, self.comparator)
        order = staged(self.order)
        for stage in stages:
            if isinstance(stage, Stage):
                found, expected = Stage(stage.dtypes, stage.size, stage.keys, stage.comparator), own
                if order is not self.order and not isinstance(stage, SortKeys):
                    size = max(own.size, stage.size)
                    expected = Stage(order.dtypes, size, order.keys, order.comparator)
                if found != expected:
                    return f"{stage.name} of {found} in a sort of {own}"
        return ""

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Count one row for every worker: what is being moved while results are built; and words of narrow elements.

        Or the records of rows, where these are more.
        """
        n = np.asarray(extents.sizes[self.dimension], np.int64)
        count = extents.points // np.maximum(n, 1)
        rows = n * sum(map(itemsize, self.dtypes)) * target.workers_per_tile
        rows = np.maximum(rows, sorting_bytes(Merging(self.order, has_positions=False), n, count))
        words = unpacked_bytes(self.dtypes, extents.points, extents.points)
        return np.broadcast_to(rows + words, extents.points.shape)


def sort(
    where: Graph | Site,
    arrays: Sequence[Tensor],
    dimension: int = -1,
    keys: Sequence[Key] = ((0, False, False),),
    comparator: Body = (),
    *,
    plan: Plan | None = None,
) -> tuple[Tensor, ...]:
    """Sort tensors of one shape together; see ``Sort`` for keys and comparator.

    Rows are spread over as many tiles as make it cheapest, a power of two; with a plan given, or where one tile is
    cheapest, one vertex sorts whole rows.

    Raises:
      InvalidGraph: shapes that differ, or a dimension that does not exist.
    """
    site = site_of(where, "sort")
    shape = arrays[0].shape
    if any(x.shape != shape for x in arrays) or not -len(shape) <= dimension < len(shape):
        raise InvalidGraph(f"cannot sort shapes {[x.shape for x in arrays]} along dimension {dimension}")
    dtypes = tuple(x.dtype for x in arrays)
    codelet = Sort(dimension % len(shape), dtypes, () if comparator else tuple(keys), comparator)
    form = map_form(shape, [identity_map(len(shape))] * len(arrays), len(arrays))
    parts = 1 if plan else parts_of_rows(codelet.order, shape, codelet.dimension, site.graph.target)[0]
    if parts == 1:
        return place(site, codelet, form, arrays, dtypes, plan=plan)
    return sort_in_stages(site, arrays, codelet, form, parts)
