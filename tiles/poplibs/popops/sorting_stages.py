"""Sorting rows that are spread over tiles: every tile sorts its part, then pairs of tiles exchange parts.

Batcher's bitonic sorter with a tile's part in place of an element. Blocks of 2, 4, ... tiles are merged: each tile
compares its part with its partner's element by element and keeps the smaller or the greater ones, which leaves both
parts bitonic; at the end of a block every tile sorts its own. PopLibs' ``popops::TopK`` uses the same network.

Elements carry their position in the row, so that equal ones keep their order and padding comes last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import broadcasted_iota
from tiles.cached import cached_property
from tiles.errors import NoTileCode, OutOfRegisters
from tiles.graph import (
    AxisSplit,
    Cell,
    Codelet,
    Composite,
    Cycles,
    Dim,
    Extents,
    Graph,
    IndexMap,
    OpForm,
    Plan,
    Site,
    Tensor,
    VertexCode,
    Vertices,
    along,
    code_cycles,
    identity_map,
    register,
    site_of,
    unsplit_plan,
    whole,
)
from tiles.graph import Sequence as Program
from tiles.graph.layout import align_up, ceil_div
from tiles.numerics.dtypes import is_float, itemsize, to_jax
from tiles.numerics.shared import Amount
from tiles.numerics.total_order import as_moved, from_moved
from tiles.plan.superstep import entry_cycles
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops.expression import Body
from tiles.poplibs.popops.map import Map
from tiles.poplibs.popops.merging_code import (
    bitonic_code,
    bitonic_cycles,
    least_bitonic_cycles,
    least_merging_cycles,
    merging_cycles,
    sorting_bytes,
    sorting_code,
)
from tiles.poplibs.popops.merging_levels import Merging
from tiles.poplibs.popops.packing_code import unpacked_bytes, word_of
from tiles.poplibs.popops.sort_order import Key, Order
from tiles.poplibs.popops.sorting_code import POSITION, exchange_code, key_body, keys_code
from tiles.poplibs.poputil.copies import reshape
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

SOURCE = (
    "graphcore/poplibs lib/popops/codelets: HeapSortVertex estimators; merges 12 slots an element (ASSUMED)"
)
MERGE_SLOTS = 12
"""Instructions by which a merge moves one element: compare, choose, load, store, count."""
_WORD_BYTES = 4
COPIES = 4
"""Times a tile holds its part at once: what it has, what its partner sent, what it keeps, what is being sorted."""


@dataclass(frozen=True)
class Stage(Codelet):
    """What the stages' codelets have in common.

    Args:
      dtypes: dtype of every array; their positions follow as one more operand and result.
      size: elements of a row; positions from here on are padding.
      keys: see ``Order``.
      comparator: see ``Order``.
    """

    dtypes: tuple[str, ...]
    size: int
    keys: tuple[Key, ...] = ()
    comparator: Body = ()

    @cached_property
    def order(self) -> Order:
        """How elements compare."""
        return Order(self.dtypes, self.keys, self.comparator)


@register
@dataclass(frozen=True)
class SortPart(Stage):
    """Sort the innermost dimension, a tile's part of a row.

    Args:
      is_merge: whether the part is bitonic, two runs that are merged; any other is in the order of its positions before.
    """

    name: ClassVar[str] = "popops.SortPart"

    is_merge: bool = False

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """Those of all arrays; positions are integers."""
        return self.dtypes

    @property
    def label(self) -> str:
        """Vertex type: PopLibs has none that sorts a part with positions."""
        return f"popops::{'MergePart' if self.is_merge else 'SortPart'}<{','.join(self.dtypes)}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the part in order, padding last."""
        last = operands[0].ndim - 1
        if not self.keys:
            return tuple(self.order.by_network(cell, operands, last, self.size, self.is_merge))
        position = operands[-1]
        is_padding = [(position >= self.size).astype(jnp.int8)] if self._is_padded(cell.form) else []
        columns = [*is_padding, *self.order.columns(operands[:-1]), position]
        found = lax.sort([*columns, *map(as_moved, operands[:-1])], last, False, len(columns))
        values = map(from_moved, found[len(columns) :], operands)
        return (*values, found[len(columns) - 1])

    def _is_padded(self, form: OpForm) -> bool:
        return form.dims[-2].size * form.dims[-1].size != self.size

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the cycles of the code for each row; where there is none, of ``part_cycles`` and ``merge_cycles``."""
        try:
            return code_cycles(self.tile_code(extents, target))
        except (NoTileCode, OutOfRegisters):
            n = np.asarray(extents.sizes[-1], np.int64)
            cost = merge_cycles if self.is_merge else part_cycles
            each = cost(n, len(self.dtypes) + 1, self.order.comparison_slots, target)
            return Cycles(each * (extents.points // np.maximum(n, 1)), Basis.ASSUMED, SOURCE)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of sorting parts."""
        size = self.size if self._is_padded(extents.form) else None
        what = Merging(self.order, size=size, ascends=not self.is_merge)
        if self.is_merge:
            return bitonic_code(what, extents, target, self.label)
        return sorting_code(what, len(extents.form.dims) - 1, extents, target, self.label)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep a part whole."""
        return d != len(form.dims) - 1

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Count a part, as runs or records are merged from one place to another, or what every worker finds in a bitonic one.

        Narrow elements are words meanwhile.
        """
        each = sum(itemsize(word_of(dtype)) for dtype in self.dtypes) + itemsize(POSITION)
        n = np.asarray(extents.sizes[-1], np.int64)
        row = n * each
        if not self.is_merge:
            row = np.maximum(
                row, sorting_bytes(Merging(self.order, ascends=True), n, extents.points // np.maximum(n, 1))
            )
        words = unpacked_bytes(self.dtypes, extents.points, extents.points)
        return np.broadcast_to(np.maximum(row, 4 * target.workers_per_tile) + words, extents.points.shape)


@register
@dataclass(frozen=True)
class SortExchange(Stage):
    """Keep, of every element and its partner's, the one that belongs here.

    Operands are the arrays and positions here, then the same of the partner. The fourth dimension from the end has
    two sides: side 0 keeps what comes first.
    """

    name: ClassVar[str] = "popops.SortExchange"

    @property
    def label(self) -> str:
        """Vertex type: PopLibs has none of the kind for several arrays."""
        return f"popops::SortExchange<{','.join(self.dtypes)}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return what this side keeps."""
        count = len(operands) // 2
        here, partner = operands[:count], operands[count:]
        d = len(cell.sizes) - 3
        side = broadcasted_iota(jnp.int32, cell.sizes, d) + cell.origin[d]
        takes = (side == 0) == self.order.precedes(cell, partner, here, self.size)
        kept = (jnp.where(takes, as_moved(x), as_moved(y)) for x, y in zip(partner, here, strict=True))
        return tuple(map(from_moved, kept, here))

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the cycles of the code; where there is none, of comparing and choosing, see ``exchange_slots``."""
        try:
            return code_cycles(self.tile_code(extents, target))
        except (NoTileCode, OutOfRegisters):
            slots = exchange_slots(extents.points, len(self.dtypes) + 1, self.order.comparison_slots, target)
            return Cycles(slots * target.worker_issue_interval_cycles, Basis.ASSUMED, SOURCE)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of comparing and choosing elements."""
        dims = extents.form.dims
        side = len(dims) - 3
        size = None if math.prod(dim.size for dim in dims[-4:]) == self.size else self.size
        return (exchange_code(self.order, size, side, extents, target, self.label),)


@register
@dataclass(frozen=True)
class SortKeys(Stage):
    """Compute what orders the elements of an array: int32 that ascend, the greatest for padding.

    Operands are the array of the order's one key and the positions.
    """

    name: ClassVar[str] = "popops.SortKeys"

    @property
    def label(self) -> str:
        """Vertex type: PopLibs has none, since its sorts compare elements."""
        ((number, _, _),) = self.keys
        return f"popops::SortKeys<{self.dtypes[number]}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the keys."""
        return key_body(self.order, self.size, *operands)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the cycles of the code; where there is none, of comparing each element."""
        try:
            return code_cycles(self.tile_code(extents, target))
        except (NoTileCode, OutOfRegisters):
            slots = exchange_slots(extents.points, 1, self.order.comparison_slots, target)
            return Cycles(slots * target.worker_issue_interval_cycles, Basis.ASSUMED, SOURCE)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of an expression of each element and its position."""
        return (keys_code(self.order, self.size, extents, target, self.label),)


def staged(order: Order) -> Order:
    """Return the order by which stages compare: floats, which are compared often, by keys that are computed once.

    A key is one more array to move, in front of the others; an integer is its own.
    """
    if len(order.keys) != 1:
        return order
    ((number, _, _),) = order.keys
    dtype = order.dtypes[number]
    if not is_float(to_jax(dtype)) or not _WORD_BYTES // 2 <= itemsize(dtype) <= _WORD_BYTES:
        return order
    return Order((POSITION, *order.dtypes), ((0, False, True),))


def heap_cycles(n: Amount, arrays: int) -> Any:
    """Return the cycles in which one worker heap-sorts ``n`` elements (PopLibs' estimate for one or more arrays)."""
    n = np.asarray(n, np.int64)
    levels = np.floor(np.log2(np.maximum(n, 1)))
    return (8 if arrays == 1 else 16) * (19 * n * levels + 6 * n + 2)


def merge_cycles(n: Amount, arrays: int, comparison: int, target: Target) -> Any:
    """Return the cycles of merging two runs of ``n`` elements in all: every worker its share of the result."""
    share = ceil_div(np.asarray(n, np.int64), target.workers_per_tile)
    return target.worker_issue_interval_cycles * (40 + share * (MERGE_SLOTS + 2 * (arrays - 1) + comparison))


def part_cycles(n: Amount, arrays: int, comparison: int, target: Target) -> Any:
    """Return the cycles of sorting a part: every worker sorts a share, then shares are merged in pairs."""
    rounds = (target.workers_per_tile - 1).bit_length()
    share = ceil_div(np.asarray(n, np.int64), target.workers_per_tile)
    return heap_cycles(share, arrays) + rounds * merge_cycles(n, arrays, comparison, target)


def exchange_slots(n: Amount, arrays: int, comparison: int, target: Target) -> Any:
    """Return the slots of comparing ``n`` elements with their partners': load both, compare, choose, store."""
    return 30 + ceil_div(n, target.workers_per_tile) * (4 * arrays + comparison)


class Way(NamedTuple):
    """A way to sort rows: over how many tiles each, the cycles that it takes at least, and what tells how many it does."""

    parts: int
    least: float
    cycles: Callable[[], float]


def parts_of_rows(
    order: Order, shape: Sequence[int], dimension: int, target: Target, below: float = math.inf
) -> tuple[int, float]:
    """Return over how many tiles each row is best spread, a power of two, and about how long that takes.

    Code is compiled for the ways only that may be the best: those with the lowest bounds come first.

    Args:
      order: of the elements.
      shape: of the arrays.
      dimension: along which they are sorted.
      target: the machine.
      below: cycles from which on a sort is of no interest.

    Returns:
      1 to keep rows whole; estimated cycles, infinite where nothing has room or takes fewer than ``below``.
    """
    chosen, best = 1, math.inf
    for way in sorted(ways_of_rows(order, shape, dimension, target), key=lambda way: (way.least, way.parts)):
        if way.least > best or way.least >= below:
            break
        cycles = way.cycles()
        if (cycles, way.parts) < (best, chosen):
            chosen, best = way.parts, cycles
    return chosen, best


def ways_of_rows(order: Order, shape: Sequence[int], dimension: int, target: Target) -> Iterator[Way]:
    """Yield the ways to sort rows for which tiles have room."""
    n, rows = shape[dimension], math.prod(shape) // max(1, shape[dimension])
    if n < 2 or not rows:
        yield Way(1, 0.0, lambda: 0.0)
        return
    element, words = sum(map(itemsize, order.dtypes)), unpacked_bytes(order.dtypes, 1, 1)
    moved = sum(map(itemsize, staged(order).dtypes)) + itemsize(POSITION)
    held = ceil_div(rows, target.num_tiles)
    if (2 * element + words) * n * held <= target.bytes_per_tile:
        cycles = partial(_row_cycles, order, n, held, target)
        yield Way(1, cycles(is_least=True), cycles)
    for level in range(1, (target.num_tiles - 1).bit_length() + 1):
        parts = 1 << level
        if parts > target.num_tiles or 2 * parts > n:
            break
        part = _part_size(order, n, parts)
        here = math.prod(
            s.grain for s in _row_splits(_others(shape, dimension), target.num_tiles // parts, 1)
        )
        if (COPIES * moved + words) * part * here <= target.bytes_per_tile:
            cycles = partial(_stages_cycles, order, part, here, level, target)
            yield Way(parts, cycles(is_least=True), cycles)


def _stages_cycles(
    order: Order, n: int, rows: int, levels: int, target: Target, is_least: bool = False
) -> float:
    """Estimate a sort whose tiles hold ``n`` elements each of ``rows`` rows, from the stages' own figures.

    Where ``is_least``, here and below, it is what that is at least, without code being compiled.
    """
    spread, own, order = 2, order, staged(order)
    held = n * rows
    keys = 0.0
    if order is not own:
        spread, keys = 3, float(_keys_cycles(own, held, target))
    received = (
        held * (sum(map(itemsize, order.dtypes)) + itemsize(POSITION)) / target.exchange_bytes_per_cycle
    )
    phase = entry_cycles(target) + received
    swap = phase if is_least else phase + _swap_cycles(order, held, target)
    stages = levels * (levels + 1) // 2
    merges = levels * _merge_cycles(order, n, rows, target, is_least)
    return float(
        _part_cycles(order, n, rows, target, is_least) + stages * swap + merges + spread * phase + keys
    )


def _merge_cycles(order: Order, n: int, rows: int, target: Target, is_least: bool = False) -> float:
    """Return the cycles in which a tile merges bitonic parts of rows, without padding, see ``SortPart``."""
    stated = float(rows * merge_cycles(n, len(order.dtypes) + 1, order.comparison_slots, target))
    coded = partial(least_bitonic_cycles if is_least else bitonic_cycles, Merging(order), n, rows, target)
    return _coded_or_stated(coded, stated, is_least)


def _row_cycles(order: Order, n: int, rows: int, target: Target, is_least: bool = False) -> float:
    """Return the cycles in which a tile sorts whole rows, see ``Sort``."""
    stated = float(heap_cycles(n, len(order.dtypes)) * ceil_div(rows, target.workers_per_tile))
    what = Merging(order, has_positions=False)
    coded = partial(least_merging_cycles if is_least else merging_cycles, what, n, rows, target)
    return _coded_or_stated(coded, stated, is_least)


def _part_cycles(order: Order, n: int, rows: int, target: Target, is_least: bool = False) -> float:
    """Return the cycles in which a tile sorts parts of rows, without padding, see ``SortPart``."""
    stated = float(rows * part_cycles(n, len(order.dtypes) + 1, order.comparison_slots, target))
    what = Merging(order, ascends=True)
    coded = partial(least_merging_cycles if is_least else merging_cycles, what, n, rows, target)
    return _coded_or_stated(coded, stated, is_least)


def _coded_or_stated(coded: Callable[[], Any], stated: float, is_least: bool) -> float:
    """Return the cycles of code, of which there may turn out to be none; then those that are stated."""
    try:
        found = float(coded())
    except (NoTileCode, OutOfRegisters):
        return stated
    return min(found, stated) if is_least else found


def _swap_cycles(order: Order, n: int, target: Target) -> float:
    """Return the cycles in which a tile keeps ``n`` elements of as many and their partners'.

    Rows without padding are taken, whatever is sorted: code is compiled for each size at which padding begins.
    """
    codelet = SortExchange(order.dtypes, 2 * n, order.keys, order.comparator)
    dtypes = (*order.dtypes, POSITION)
    dims = tuple(Dim(f"d{d}", size) for d, size in enumerate((1, 2, 1, n)))
    form = OpForm(dims, (identity_map(4),) * (2 * len(dtypes)), (identity_map(4),) * len(dtypes))
    sizes = tuple(np.asarray(size, np.int64) for size in (1, 1, 1, n))
    cycles = codelet.cycles(Extents(form, sizes, dtypes * 2, dtypes), target)
    return float(np.max(cycles.value))


def _keys_cycles(order: Order, n: int, target: Target) -> Any:
    """Return the cycles in which a tile computes the keys of ``n`` elements."""
    codelet = SortKeys(order.dtypes, n, order.keys)
    ((number, _, _),) = order.keys
    form = map_form((n,), [identity_map(1)] * 2)
    dtypes = (order.dtypes[number], POSITION)
    extents = Extents(form, (np.asarray(n, np.int64),), dtypes, (POSITION,))
    return np.max(codelet.cycles(extents, target).value)


def _part_size(order: Order, size: int, parts: int) -> int:
    """Return the elements of a part: two to a 64-bit access by keys; a power of two for a network inside it."""
    part = ceil_div(size, parts)
    return align_up(part, 2) if order.keys else 1 << (part - 1).bit_length()


def _others(shape: Sequence[int], dimension: int) -> tuple[int, ...]:
    return tuple(n for d, n in enumerate(shape) if d != dimension)


def _row_splits(rows: Sequence[int], room: int, stride: int) -> tuple[AxisSplit, ...]:
    """Spread rows over ``room`` groups of ``stride`` tiles, leading dimensions first."""
    splits: list[tuple[int, int]] = []
    for size in rows:
        grain = ceil_div(size, max(1, min(size, room)))
        splits.append((size, grain))
        room //= max(1, ceil_div(size, grain))
    found: list[AxisSplit] = []
    for size, grain in reversed(splits):
        parts = max(1, ceil_div(size, grain))
        found.insert(0, AxisSplit(size, grain, ((parts, stride),)) if parts > 1 else whole(size))
        stride *= parts
    return tuple(found)


def sort_in_stages(
    where: Graph | Site,
    arrays: Sequence[Tensor],
    codelet: Any,
    form: OpForm,
    parts: int,
) -> tuple[Tensor, ...]:
    """Sort every row over ``parts`` tiles (a power of two), as one composite that does what ``codelet`` does.

    Args:
      where: graph, or site in it, to add to.
      arrays: tensors of one shape.
      codelet: the sort in one piece.
      form: its form.
      parts: tiles of a row.
    """
    site = site_of(where, "sort")
    body = Program()
    sorting = _Sorting(replace(site, sequence=body), codelet.order, codelet.dimension, arrays[0].shape, parts)
    results = sorting.run(arrays)
    names = tuple(t.name for t in arrays), tuple(t.name for t in results)
    one = Vertices(site.name, codelet, form, unsplit_plan(form), *names, site.location)
    site.program.add(Composite(body, one))
    return results


class _Sorting:
    """One sort being written, stage by stage."""

    def __init__(
        self,
        site: Site,
        order: Order,
        dimension: int,
        shape: Sequence[int],
        parts: int,
    ) -> None:
        self.site, self.own, self.dimension, self.shape = site, order, dimension, tuple(shape)
        self.order = staged(order)
        self.levels = parts.bit_length() - 1
        self.size = self.shape[dimension]
        self.part = _part_size(order, self.size, parts)
        self.compared = self.size if self.order is order else self.part << self.levels
        self.rows = _others(self.shape, dimension)
        self.splits = _row_splits(self.rows, site.graph.target.num_tiles // parts, parts)
        self.dtypes = (*self.order.dtypes, POSITION)

    def run(self, arrays: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Add all stages and return the sorted arrays."""
        held = self._sort(self._keyed(self._spread(arrays)), is_merge=False)
        for level in range(1, self.levels + 1):
            held = self._exchange(held, level - 1, is_mirrored=True)
            for distance in reversed(range(level - 1)):
                held = self._exchange(held, distance, is_mirrored=False)
            held = self._sort(held, is_merge=True)
        return self._gathered(held[-1 - len(self.own.dtypes) : -1])

    def _tiles(self, first: int, end: int, grain: int = 1) -> AxisSplit:
        """Return the split of a dimension whose parts count bits ``first`` to ``end`` (exclusive) of the tile."""
        digits = tuple((2, 1 << bit) for bit in reversed(range(first, end)))
        return AxisSplit(grain << (end - first), grain, digits) if end > first else whole(grain)

    def _spread(self, arrays: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Lay every row over its tiles, the sorted dimension last, padded with zeros; count positions."""
        row = self._tiles(0, self.levels, self.part)
        last = len(self.rows)
        kept = iter(range(last))
        axes = tuple(along(last if d == self.dimension else next(kept)) for d in range(len(self.shape)))
        read = IndexMap(axes, 0 if row.size > self.size else None)
        form = map_form((*self.rows, row.size), [read] * len(arrays), len(arrays) + 1)
        counter = ("iota", (), (("dim", last), ("dtype", POSITION)))
        dtypes = (*self.own.dtypes, POSITION)
        codelet = Map((counter,), tuple(range(len(dtypes))), self.own.dtypes, dtypes)
        plan = Plan((*self.splits, row))
        return place(self.site.at("spread"), codelet, form, arrays, dtypes, plan=plan)

    def _keyed(self, held: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Put keys in front of arrays that are compared by them."""
        if self.order is self.own:
            return held
        ((number, _, _),) = self.own.keys
        row = self._tiles(0, self.levels, self.part)
        form = map_form((*self.rows, row.size), [identity_map(len(self.rows) + 1)] * 2)
        codelet = SortKeys(self.own.dtypes, self.size, self.own.keys)
        plan = Plan((*self.splits, row))
        keys = place(self.site.at("keys"), codelet, form, (held[number], held[-1]), (POSITION,), plan=plan)
        return (*keys, *held)

    def _viewed(self, held: Sequence[Tensor], inner: Sequence[int]) -> list[Tensor]:
        shape = (*self.rows, *inner)
        return [reshape(self.site.at("view"), x, shape) for x in held]

    def _stage(self) -> tuple[tuple[str, ...], int, tuple[Key, ...], Body]:
        return self.order.dtypes, self.compared, self.order.keys, self.order.comparator

    def _sort(self, held: Sequence[Tensor], is_merge: bool) -> tuple[Tensor, ...]:
        """Sort every part where it lies."""
        inner = (1 << self.levels, self.part)
        form = map_form((*self.rows, *inner), [identity_map(len(self.rows) + 2)] * len(held), len(held))
        plan = Plan((*self.splits, self._tiles(0, self.levels), whole(self.part)))
        site = self.site.at("merge" if is_merge else "parts")
        codelet = SortPart(*self._stage(), is_merge)
        held = self._viewed(held, inner)
        return place(site, codelet, form, held, self.dtypes, plan=plan)

    def _exchange(self, held: Sequence[Tensor], bit: int, is_mirrored: bool) -> tuple[Tensor, ...]:
        """Compare with the part of the tile whose number differs in ``bit``, or is mirrored in all bits up to it."""
        inner = (1 << (self.levels - bit - 1), 2, 1 << bit, self.part)
        first = len(self.rows)
        here = identity_map(first + 4)
        turned = (first + 1, first + 2, first + 3) if is_mirrored else (first + 1,)
        sizes = (*self.rows, *inner)
        partner = IndexMap(
            tuple(along(d, -1, n - 1) if d in turned else along(d) for d, n in enumerate(sizes))
        )
        dims = tuple(Dim(f"d{d}", n) for d, n in enumerate(sizes))
        form = OpForm(dims, (here,) * len(held) + (partner,) * len(held), (here,) * len(held))
        tiles = (
            self._tiles(bit + 1, self.levels),
            self._tiles(bit, bit + 1),
            self._tiles(0, bit),
            whole(self.part),
        )
        plan = Plan((*self.splits, *tiles))
        codelet = SortExchange(*self._stage())
        held = self._viewed(held, inner)
        return place(self.site.at("exchange"), codelet, form, [*held, *held], self.dtypes, plan=plan)

    def _gathered(self, held: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Cut the padding off and bring the dimensions back into their order."""
        rows = self._viewed(held, (self.part << self.levels,))
        order = [d for d in range(len(self.shape)) if d != self.dimension] + [self.dimension]
        back = IndexMap(tuple(along(d) for d in order))
        form = map_form(self.shape, [back] * len(rows), len(rows))
        dtypes = self.own.dtypes
        codelet = Map((), tuple(range(len(rows))), dtypes, dtypes)
        return place(self.site.at("gathered"), codelet, form, rows, dtypes)
