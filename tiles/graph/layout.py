"""Layouts: how a tensor's elements are divided over tiles and stored inside one.

A layout is a product over the tensor's dimensions. Each dimension is cut into parts of ``grain``
elements, and the tile number is a sum of one contribution per dimension, so every question about a
layout (who owns what, how much two layouts overlap) factorizes into small per-dimension tables.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tiles.cached import cached_property
from tiles.errors import InvalidPlan
from tiles.files import JsonObject
from tiles.graph.arrangement import ROW_MAJOR, Arrangement
from tiles.graph.hashing import hashed_once
from tiles.numerics.dtypes import itemsize
from tiles.numerics.shared import read_only

WORD_BYTES = 4


def ceil_div(a: Any, b: Any) -> Any:
    """Return a / b rounded up; numbers or numpy arrays."""
    return -(-a // b)


def align_up(value: Any, multiple: Any) -> Any:
    """Return the smallest multiple of ``multiple`` that is at least ``value``; numbers or numpy arrays."""
    return ceil_div(value, multiple) * multiple


@hashed_once
@dataclass(frozen=True)
class AxisSplit:
    """One dimension cut into parts of ``grain`` elements (the last may be short).

    Args:
      size: elements along the dimension.
      grain: elements of a full part, at least 1.
      digits: ``(radix, tile_stride)`` pairs, slowest first. A part's index is read in this mixed
        radix, and each digit adds ``digit * tile_stride`` to the tile number.
    """

    size: int
    grain: int
    digits: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or self.grain < 1:
            raise InvalidPlan(
                f"a split needs size >= 0 and grain >= 1, got size {self.size}, grain {self.grain}"
            )
        parts = max(1, ceil_div(self.size, self.grain))
        self.__dict__.update(parts=parts, is_split=parts > 1)  # plans make very many splits
        if parts > 1 and parts > math.prod(radix for radix, _ in self.digits):
            raise InvalidPlan(
                f"{self.parts} parts of {self.grain} elements do not fit the digits {self.digits} of dimension size {self.size}"
            )

    @cached_property
    def parts(self) -> int:
        """Number of parts, at least 1 (an empty dimension has one empty part)."""
        return max(1, ceil_div(self.size, self.grain))

    @cached_property
    def is_split(self) -> bool:
        """Whether there is more than one part."""
        return self.parts > 1

    @cached_property
    def tiles(self) -> np.ndarray:
        """Tile contribution of every part, int64 ``[parts]``."""
        index = np.arange(self.parts)
        tile = np.zeros(self.parts, np.int64)
        for radix, stride in reversed(self.digits):
            tile += (index % radix) * stride
            index = index // radix
        return read_only(tile)

    @cached_property
    def lo(self) -> np.ndarray:
        """First element of every part, int64 ``[parts]``."""
        return read_only(np.arange(self.parts, dtype=np.int64) * self.grain)

    @cached_property
    def hi(self) -> np.ndarray:
        """One past the last element of every part, int64 ``[parts]``."""
        return read_only(np.minimum(self.lo + self.grain, self.size))

    def scaled(self, size: int, group: int = 1) -> AxisSplit:
        """Return a cut of ``size`` elements into as many parts on the same tiles, each of whole groups."""
        if self.size == size:
            return self
        if not self.is_split:
            return whole(size)
        return AxisSplit(size, align_up(ceil_div(size, self.parts), group), self.digits)

    def to_data(self) -> list[Any]:
        """Return plain data."""
        return [self.size, self.grain, [list(digit) for digit in self.digits]]

    @classmethod
    def from_data(cls, data: list[Any]) -> AxisSplit:
        """Build from plain data."""
        size, grain, digits = data
        return cls(int(size), int(grain), tuple((int(r), int(s)) for r, s in digits))

    def __str__(self) -> str:
        """Return e.g. ``1024/16@23`` (size / grain @ tile stride), or ``1024`` when unsplit."""
        if not self.is_split:
            return str(self.size)
        return f"{self.size}/{self.grain}@" + "+".join(f"{r}x{s}" for r, s in self.digits)


@lru_cache(maxsize=4096)
def whole(size: int) -> AxisSplit:
    """Return an unsplit dimension."""
    return AxisSplit(size, max(1, size))


def splits_groups(split: AxisSplit, group: int) -> bool:
    """Return whether parts of a dimension begin inside groups of elements that lie together."""
    return split.is_split and split.grain > group and split.grain % group != 0


def require_whole_groups(order: Arrangement, splits: tuple[AxisSplit, ...]) -> None:
    """Raise InvalidPlan if parts of a dimension begin inside groups of it."""
    for d, group in order.digits:
        if group and d < len(splits) and splits_groups(splits[d], group):
            raise InvalidPlan(
                f"arrangement {order} has groups of {group} of dimension {d}, cut as {splits[d]}"
            )


@hashed_once
@dataclass(frozen=True)
class Layout:
    """A partition of a tensor over tiles, and the order of a part's elements inside its tile.

    Args:
      axes: one split per tensor dimension.
      base: tile of the first part; global tile number (IPU number x tiles per IPU + tile).
      arrangement: order of a full part's elements in memory; every part is stored at full grain. It is kept in its
        simplest form for these parts.

    Raises:
      InvalidPlan: the arrangement does not count the dimensions of a part, or cuts groups.
    """

    axes: tuple[AxisSplit, ...]
    base: int = 0
    arrangement: Arrangement = ROW_MAJOR

    def __post_init__(self) -> None:
        if not self.arrangement.is_row_major:
            require_whole_groups(self.arrangement, self.axes)
            object.__setattr__(self, "arrangement", self.arrangement.fit(self.part_shape))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor laid out."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of parts along each dimension."""
        return tuple(axis.parts for axis in self.axes)

    @cached_property
    def part_shape(self) -> tuple[int, ...]:
        """Extents of a full part."""
        return tuple(min(axis.grain, axis.size) if axis.size else 0 for axis in self.axes)

    @cached_property
    def tiles(self) -> np.ndarray:
        """Tile of every part, int64 ``[prod(grid)]`` in row-major order of the grid."""
        return tile_grid(self.axes, self.base)

    @cached_property
    def tile_mask(self) -> int:
        """The set of tiles as the bits of an integer."""
        return mask_of(self.tiles)

    def part_bytes(self, dtype: str) -> int:
        """Bytes that one full part takes on its tile, in whole words."""
        return align_up(self.arrangement.stored_elements(self.part_shape) * itemsize(dtype), WORD_BYTES)

    @cached_property
    def owners(self) -> np.ndarray:
        """Row-major part index that each tile up to the last one owns, -1 for none; int64."""
        owner = np.full(int(self.tiles.max(initial=-1)) + 1, -1, np.int64)
        owner[self.tiles] = np.arange(self.tiles.size)
        return read_only(owner)

    def part_of_tile(self, num_tiles: int) -> np.ndarray:
        """Return the row-major part index that each tile owns, -1 for none; int64 ``[num_tiles]``."""
        owner = np.full(num_tiles, -1, np.int64)
        owner[: self.owners.size] = self.owners
        return owner

    def scaled(self, axis: int, size: int) -> Layout:
        """Return the layout of a tensor with ``size`` elements along an axis: cut into as many parts, ordered alike.

        Where parts had one element along the axis, their order did not count it: it comes first now, so that what
        was a part stays together.
        """
        groups = [group for d, group in self.arrangement.digits if d == axis and group]
        axes = (a.scaled(size, *groups) if i == axis else a for i, a in enumerate(self.axes))
        return Layout(tuple(axes), self.base, self.arrangement.over(len(self.axes)))

    def to_data(self) -> JsonObject:
        """Return plain data."""
        axes = [axis.to_data() for axis in self.axes]
        return {"axes": axes, "base": self.base, "arrangement": self.arrangement.to_data()}

    @classmethod
    def from_data(cls, data: JsonObject) -> Layout:
        """Build from plain data."""
        axes = tuple(AxisSplit.from_data(axis) for axis in data["axes"])
        return cls(axes, int(data["base"]), Arrangement.from_data(data["arrangement"]))

    def __str__(self) -> str:
        """Return e.g. ``[128/32@4x1, 1024]+0``, followed by the order inside a tile if that is not row-major."""
        inside = f" by {self.arrangement}" if self.arrangement.digits else ""
        return "[" + ", ".join(map(str, self.axes)) + f"]+{self.base}{inside}"


@lru_cache(maxsize=16384)
def tile_grid(axes: tuple[AxisSplit, ...], base: int) -> np.ndarray:
    """Return the tile of every cell of the product grid, flattened row-major, int64; shared, so read-only."""
    tile = np.full((1,), base, np.int64)
    for axis in axes:
        tile = (tile[:, None] + axis.tiles[None, :]).reshape(-1)
    return read_only(tile)


def mask_of(tiles: np.ndarray) -> int:
    """Return a set of tile numbers as the bits of one integer (cheap to intersect)."""
    if tiles.size == 0:
        return 0
    bits = np.zeros(int(tiles.max()) + 1, np.uint8)
    bits[tiles] = 1
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def tiles_of(mask: int) -> np.ndarray:
    """Return the tile numbers of a bit set, ascending, int64."""
    raw = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8 or 1, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(raw, bitorder="little")).astype(np.int64)


@lru_cache(maxsize=4096)
def linear_layout(shape: tuple[int, ...], dtype: str, num_tiles: int, min_bytes: int = 128) -> Layout:
    """Spread a tensor evenly over tiles in row-major order, at least ``min_bytes`` a tile.

    The default mapping of a tensor nobody asked a layout for. Leading dimensions are split one element
    a part as long as parts stay large enough, the last split dimension takes what is left.

    Source: PopLibs ``poputil::mapTensorLinearly`` (128 bytes a tile, grain of the vector width).
    """
    per_word = max(1, 8 // itemsize(dtype))
    want = max(1, min(num_tiles, math.prod(shape) * itemsize(dtype) // min_bytes))
    axes: list[AxisSplit] = []
    for index, size in enumerate(shape):
        room = want
        inner = math.prod(shape[index + 1 :])
        if room <= 1 or size <= 1:
            axes.append(whole(size))
            continue
        grain = max(1, ceil_div(size, room))
        if inner == 1:
            grain = align_up(grain, per_word)
        parts = ceil_div(size, grain)
        axes.append(AxisSplit(size, grain, ((parts, 0),)))
        want = want // parts
    return Layout(_assign_strides(axes))


def _assign_strides(axes: list[AxisSplit]) -> tuple[AxisSplit, ...]:
    stride = 1
    out: list[AxisSplit] = []
    for axis in reversed(axes):
        if axis.is_split:
            out.append(AxisSplit(axis.size, axis.grain, ((axis.parts, stride),)))
            stride *= axis.parts
        else:
            out.append(whole(axis.size))
    return tuple(reversed(out))


def reshape_layout(layout: Layout, shape: tuple[int, ...]) -> Layout | None:
    """Re-express a layout for the row-major reshape of its tensor, if parts stay where they are.

    Returns None when some part of the old layout is not a box of the new shape; the caller then copies.
    """
    groups = _common_groups(layout.shape, shape)
    if groups is None:
        return None
    axes: list[AxisSplit] = []
    for old, new in groups:
        merged = _merge(layout.axes[old[0] : old[1]])
        pieces = None if merged is None else _divide(merged, shape[new[0] : new[1]])
        if pieces is None:
            return None
        axes.extend(pieces)
    reshaped = Layout(tuple(axes), layout.base)
    if layout.arrangement.is_row_major:
        return reshaped
    order = _reshape_order(layout, reshaped.part_shape, groups)
    if order is None or any(group and splits_groups(reshaped.axes[d], group) for d, group in order.digits):
        return None
    return replace(reshaped, arrangement=order)


def aligned_layout(layout: Layout, shape: tuple[int, ...], num_tiles: int) -> Layout | None:
    """Return a layout near another, of the same tensor, whose parts stay where they are in the row-major reshape of it.

    Where dimensions are merged or divided, their elements are cut in equal stretches that are boxes of both shapes, in as many as
    there are tiles for. Other dimensions are cut as they were.

    Returns None where no such cut has nearly as many parts.
    """
    groups = _common_groups(layout.shape, shape)
    if groups is None:
        return None
    axes = list(layout.axes)
    changed = [(old, new) for old, new in groups if layout.shape[slice(*old)] != shape[slice(*new)]]
    wanted = [math.prod(axis.parts for axis in layout.axes[slice(*old)]) for old, _ in changed]
    left = num_tiles * math.prod(wanted) // max(1, math.prod(axis.parts for axis in layout.axes))
    for number, (old, new) in enumerate(changed):
        most = left // math.prod(wanted[number + 1 :])
        sizes = layout.shape[slice(*old)]
        grains = _boxes(sizes) & _boxes(shape[slice(*new)])
        grain = min((g for g in grains if math.prod(sizes) // g <= most), default=0)
        if not grain:
            return None
        left //= math.prod(sizes) // grain
        inner = math.prod(sizes)
        for d, size in enumerate(sizes, old[0]):
            inner //= size
            extent = min(size, max(1, grain // inner))
            axes[d] = AxisSplit(size, extent, ((size // extent, 0),)) if extent < size else whole(size)
    found = Layout(_assign_strides(axes))
    if math.prod(found.part_shape) > MOST_UNEVEN * math.prod(layout.part_shape):
        return None
    return found if reshape_layout(found, shape) is not None else None


MOST_UNEVEN = 2
"""How many times as large parts may become so that a reshape keeps them."""


def _boxes(sizes: tuple[int, ...]) -> set[int]:
    """Return lengths of stretches that cut an array of a shape, in row-major order, in boxes of it, all alike."""
    found, inner = {1}, 1
    for size in reversed(sizes):
        small = [d for d in range(1, math.isqrt(size) + 1) if not size % d]
        found |= {inner * d for each in small for d in (each, size // each)}
        inner *= size
    return found


def _reshape_order(
    layout: Layout,
    part: tuple[int, ...],
    groups: list[tuple[tuple[int, int], tuple[int, int]]],
) -> Arrangement | None:
    """Return the order of the reshaped parts that leaves every element where it is, None if there is none.

    Dimensions that merge must be counted one right after the other; where the last of them is grouped, the groups
    must fit into the last of the new ones.
    """
    digits, held = layout.arrangement.digits, layout.part_shape
    counted: dict[
        tuple[int, int], tuple[tuple[int, int], ...]
    ] = {}  # by digit, what counts it in the new shape
    for old, new in groups:
        gone = [d for d in range(*old) if held[d] > 1]
        come = [d for d in range(*new) if part[d] > 1]
        if not gone:
            continue
        at = digits.index((gone[0], 0))
        if digits[at : at + len(gone)] != tuple((d, 0) for d in gone):
            return None
        counted |= {(d, 0): () for d in gone} | {(gone[0], 0): tuple((d, 0) for d in come)}
        for d, group in digits:
            if group and d in gone:
                is_renamed = len(gone) == len(come) == 1
                if not is_renamed and (d != gone[-1] or held[d] % group or part[come[-1]] % group):
                    return None
                counted[d, group] = ((come[-1], group),)
    return Arrangement(tuple(itertools.chain.from_iterable(counted[digit] for digit in digits)))


def _common_groups(
    old: tuple[int, ...], new: tuple[int, ...]
) -> list[tuple[tuple[int, int], tuple[int, int]]] | None:
    """Cut both shapes into the shortest runs of dimensions with equal products."""
    if math.prod(old) != math.prod(new) or 0 in old:
        return None
    groups: list[tuple[tuple[int, int], tuple[int, int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0, a, b = i, j, 1, 1
        while True:
            if a == b and (i > i0 or j > j0) and a * b > 0 and (a > 1 or (i == len(old) and j == len(new))):
                break
            if (a <= b and i < len(old)) or j == len(new):
                a, i = a * old[i], i + 1
            else:
                b, j = b * new[j], j + 1
        while i < len(old) and old[i] == 1:
            i += 1
        while j < len(new) and new[j] == 1:
            j += 1
        groups.append(((i0, i), (j0, j)))
    return groups


def _merge(axes: tuple[AxisSplit, ...]) -> AxisSplit | None:
    """Fold neighbouring dimensions into one whose parts are the same element sets, or None."""
    axes = tuple(axis for axis in axes if axis.size != 1)
    if not axes:
        return whole(1)
    result = axes[0]
    for axis in axes[1:]:
        size = result.size * axis.size
        if not axis.is_split:
            digits = result.digits if result.is_split else ()
            result = AxisSplit(size, result.grain * axis.size, digits) if result.is_split else whole(size)
        elif result.grain == 1 and axis.size % axis.grain == 0:
            outer = result.digits if result.is_split else ((result.parts, 0),)
            if axis.parts != math.prod(r for r, _ in axis.digits):
                return None
            result = AxisSplit(size, axis.grain, outer + axis.digits)
        else:
            return None
    return result


def _divide(axis: AxisSplit, sizes: tuple[int, ...]) -> list[AxisSplit] | None:
    """Cut one dimension into the given row-major sizes, keeping the parts; None if they straddle."""
    if not axis.is_split:
        return [whole(size) for size in sizes]
    pieces: list[AxisSplit] = []
    inner = math.prod(sizes)
    digits = list(axis.digits)
    grain = axis.grain
    for index, size in enumerate(sizes):
        inner //= size
        if size == 1:
            pieces.append(whole(1))
        elif grain >= inner:
            if grain % inner:
                return None
            pieces.append(
                AxisSplit(size, grain // inner, tuple(digits)) if grain // inner < size else whole(size)
            )
            if math.prod(r for r, _ in digits) < pieces[-1].parts:
                return None
            return pieces + [whole(rest) for rest in sizes[index + 1 :]]
        else:
            if inner % grain:
                return None
            inner_parts = inner // grain
            tail: list[tuple[int, int]] = []
            while digits and (wanted := inner_parts // math.prod(r for r, _ in tail)) > 1:
                radix, stride = digits.pop()
                if radix > wanted and radix % wanted == 0:  # one digit counts what two do
                    digits.append((radix // wanted, stride * wanted))
                    radix = wanted
                tail.insert(0, (radix, stride))
            if math.prod(r for r, _ in tail) != inner_parts:
                return None
            if math.prod(r for r, _ in digits) < size:
                return None
            pieces.append(AxisSplit(size, 1, tuple(digits)))
            digits = tail
    return pieces
