"""Tile code of the gradient of pooling by maximum where windows overlap, leave elements out, or reach outside the array.

Code of two phases runs on the same memory. First every window says which of its taps it selects, as a number of the
array's dtype; then every element of a block adds up the sources of those windows within reach that select it. Windows of
a vertex are taken to follow each other at one distance, as in ``window_code``; so are the blocks, whose rows are as long
as those of windows: what is computed beyond a row's last block is dropped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tiles._jax_compat import Function, make_jaxpr
from tiles.elements import (
    Access,
    Arrangement,
    CellFunction,
    InstructionSet,
    TileCode,
    compile_cell,
    instructions_for,
)
from tiles.elements.cell import ELEMENT, ROW
from tiles.elements.variants import UNNAMED
from tiles.errors import NoTileCode
from tiles.graph import Extents, OpForm, VertexCode
from tiles.graph.cycles import CodeMemory, Field
from tiles.numerics.dtypes import itemsize, to_jax
from tiles.poplibs.popnn.window_code import MOST_TAPS, STAYS, channels_of, folded
from tiles.poplibs.popops.map_code import aligned_rows, check_widths
from tiles.target import Target

_ACCESS_BYTES, _WORD_BYTES = 8, 4
_MASK = "int32"
_Fields = dict[str, Field]


@dataclass(frozen=True)
class Reach:
    """Windows along one axis of an array, and the blocks of elements that collect from them.

    Args:
      number: of the axis.
      block: domain dimension of blocks.
      stride: elements of a block, and distance between neighbouring windows.
      taps: elements of a window.
      reach: windows that may cover a block.
      lead: where the first element of a block lies in what the windows within its reach cover.
      origin: index in the array of the first element that the first window within reach of the first block covers.
      bound: elements of the array along the axis; None where no window reaches outside.
    """

    number: int
    block: int
    stride: int
    taps: int
    reach: int
    lead: int
    origin: int
    bound: int | None

    @property
    def read_stride(self) -> int:
        """Distance of neighbouring windows in what is read: of single elements, only those are."""
        return 1 if self.taps == self.reach == 1 else self.stride

    def tap(self, element: int, shift: int) -> int | None:
        """Return the tap by which the window ``shift`` further than the first within reach covers an element of a block."""
        found = self.lead + element - self.stride * shift
        return found if 0 <= found < self.taps else None

    def may_leave(self, form: OpForm, tap: int) -> bool:
        """Return whether a tap of a window that there is may lie outside the array."""
        if self.bound is None:
            return False
        first = max(0, -form.operands[1].axes[self.number].offset)
        last = form.dims[self.block].size + self.reach - 2
        return self._at(first, tap) < 0 or self._at(last, tap) >= self.bound

    def inside(self, windows: np.ndarray) -> np.ndarray:
        """Return which taps of windows lie inside the array: ``[..., taps]``."""
        at = np.asarray(self._at(windows[..., None], np.arange(self.taps)))
        return np.ones(at.shape, bool) if self.bound is None else (at >= 0) & (at < self.bound)

    def _at(self, window: Any, tap: Any) -> Any:
        return window * self.stride + self.origin + tap


def scatter_code(
    direction: str, dtype: str, axes: Sequence[Reach], extents: Extents, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code of the gradient of pooling by maximum.

    Args:
      direction: which of two elements stays, as of ``STAYS``.
      dtype: of everything.
      axes: where windows lie.
      extents: cell sizes.
      target: the machine.
      name: of the variants.

    Raises:
      NoTileCode: no channels innermost, too many taps, or a dtype without code.
      OutOfRegisters: too few registers, even with values spilled.
    """
    check_widths((dtype,))
    taps = tuple(axis.taps for axis in axes)
    count, form = math.prod(taps), extents.form
    if not 1 <= count <= MOST_TAPS or dtype == "bool":
        raise NoTileCode(f"windows of {count} elements of {dtype}", expected=f"at most {MOST_TAPS} numbers")
    order = _Order.of(form, axes)
    n = extents.product(order.inner)
    windows, blocks = order.rows(extents.sizes)
    n, windows, blocks = np.broadcast_arrays(np.atleast_1d(n), windows, blocks)
    kernel = _Windows(tuple(axes), order, dtype, target.workers_per_tile)
    masked = _masked(tuple(axes), form)
    isa, element = instructions_for(target), ((ELEMENT, True),)
    parts = aligned_rows(
        "selecting",
        _selecting_cell,
        (direction, dtype, taps, masked),
        ((dtype,) * count, (dtype,)),
        element * count,
        n,
        windows,
        isa,
        name,
    )
    turns: list[tuple[tuple[VertexCode, ...], Callable[..., _Fields]]] = [(parts, _selecting_fields)]
    elements = [*itertools.product(*(range(axis.stride) for axis in axes))]
    for number, each in enumerate(elements):
        hits, is_whole = _hits(axes, each)
        parts = aligned_rows(
            "collecting",
            _collecting_cell,
            (dtype, tuple(tap for tap, _ in hits), is_whole),
            ((dtype,) * (2 * len(hits)), (dtype,)),
            element * (2 * len(hits)),
            n,
            blocks,
            isa,
            name,
        )
        turns.append((parts, partial(_collecting_fields, number, tuple(shift for _, shift in hits))))
    runs = [np.sum([np.asarray(part.runs, np.int64) for part in parts], axis=0) for parts, _ in turns]
    covered = np.prod(runs, axis=0)
    return tuple(_turn(part, kernel, covered, fields) for parts, fields in turns for part in parts)


def _turn(
    part: VertexCode, kernel: _Windows, covered: np.ndarray, fields: Callable[..., _Fields]
) -> VertexCode:
    """Return a part as one of those that run on the same memory, where vertices have code of all phases."""
    assert part.cell is not None
    turn = partial(fields, kernel, part.cell)
    return replace(part, runs=part.runs * covered, kernel=kernel, compiled=_compiled, turn=turn)


def _compiled(cell: CellFunction, isa: InstructionSet) -> TileCode:
    return compile_cell(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)


def scatter_bytes(dtype: str, axes: Sequence[Reach], extents: Extents) -> np.ndarray:
    """Return the bytes that the code keeps between its phases: what windows select, and which taps lie inside."""
    order = _Order.of(extents.form, axes)
    windows, _ = order.rows(extents.sizes)
    masks = _WORD_BYTES if any(axis.bound is not None for axis in axes) else 0
    return np.asarray(windows * (extents.product(order.inner) * itemsize(dtype) + masks))


@dataclass(frozen=True)
class _Order:
    """Domain dimensions of a vertex in the order of the loops.

    Attributes:
      outer: that are neither windows nor channels.
      blocks: of blocks.
      reach: windows that may cover a block, along them.
      inner: channels.
      arrays: of the axes of arrays.
    """

    outer: tuple[int, ...]
    blocks: tuple[int, ...]
    reach: tuple[int, ...]
    inner: tuple[int, ...]
    arrays: tuple[int, ...]

    @classmethod
    def of(cls, form: OpForm, axes: Sequence[Reach]) -> _Order:
        """Return the order for a form.

        Raises:
          NoTileCode: windows along the innermost dimension.
        """
        source = tuple(axis.terms[0][0] for axis in form.operands[1].axes)
        blocks = tuple(axis.block for axis in axes)
        inner = channels_of(form, {*source} - {*blocks})
        outer = tuple(d for d in source if d not in inner and d not in blocks)
        return cls(outer, blocks, tuple(axis.reach for axis in axes), inner, source)

    def rows(self, sizes: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return how many windows there are beside channels, and how many places of blocks up to the last one."""
        along = [np.asarray(sizes[d] + m - 1) for d, m in zip(self.blocks, self.reach, strict=True)]
        windows = math.prod((sizes[d] for d in self.outer), start=math.prod(along, start=np.int64(1)))
        last = sum(p * (m - 1) for p, m in zip(self.pitches(along), self.reach, strict=True))
        return np.atleast_1d(windows), np.atleast_1d(windows - last)

    @staticmethod
    def pitches(windows: Sequence[Any]) -> list[Any]:
        """Return the distance of neighbouring windows along each axis, in windows."""
        return [math.prod(windows[i + 1 :], start=np.int64(1)) for i in range(len(windows))]

    def counts(self, sizes: Sequence[int]) -> list[int]:
        """Return the windows of a cell along each axis."""
        return [sizes[d] + m - 1 for d, m in zip(self.blocks, self.reach, strict=True)]


def _masked(axes: tuple[Reach, ...], form: OpForm) -> tuple[bool, ...]:
    """Return which taps of a window may lie outside the array."""
    each = ([axis.may_leave(form, tap) for tap in range(axis.taps)] for axis in axes)
    return tuple(any(tap) for tap in itertools.product(*each))


def _hits(axes: Sequence[Reach], element: tuple[int, ...]) -> tuple[list[tuple[int, tuple[int, ...]]], bool]:
    """Return by which taps which windows within reach cover an element of a block, and whether all of them do."""
    found: list[tuple[int, tuple[int, ...]]] = []
    shifts = [*itertools.product(*(range(axis.reach) for axis in axes))]
    for shift in shifts:
        taps = [axis.tap(e, m) for axis, e, m in zip(axes, element, shift, strict=True)]
        number = 0
        for axis, tap in zip(axes, taps, strict=True):
            number = number * axis.taps + (tap or 0)
        if None not in taps:
            found.append((number, shift))
    return found, len(found) == len(shifts)


@lru_cache(maxsize=256)
def _selecting_cell(
    direction: str, dtype: str, taps: tuple[int, ...], masked: tuple[bool, ...], grain: int, shares: bool
) -> CellFunction:
    """Return which tap a window selects: of its elements, and a word whose bits say which of them lie inside."""
    stays, count = STAYS[direction], math.prod(taps)

    def better(left: Any, right: Any) -> Any:
        keep = stays(left[0], right[0])
        keep = keep if left[1] is None else left[1] & keep
        keep = keep if right[1] is None else ~right[1] | keep
        inside = None if left[1] is None or right[1] is None else left[1] | right[1]
        return lax.select(keep, left[0], right[0]), inside, lax.select(keep, left[2], right[2])

    def selected(*values: jax.Array) -> tuple[jax.Array, ...]:
        def inside(tap: int) -> jax.Array | None:
            return (values[-1] & np.int32(1 << tap)) != 0 if masked[tap] else None

        items = [(x, inside(tap), jnp.full((), tap, x.dtype)) for tap, x in enumerate(values[:count])]
        return (folded(items, taps, better)[2],)

    own, beside = _accesses(dtype, grain)
    has_masks = any(masked)
    operands = (own, *(beside("in0"),) * (count - 1), *(Access(ROW, _WORD_BYTES),) * has_masks)
    how = Arrangement(operands, (own,), has_rows=True, shares_rows=shares)
    dtypes = (*(dtype,) * count, *(_MASK,) * has_masks), (dtype,)
    return CellFunction(_traced(selected, dtypes[0]), dtypes, how)


@lru_cache(maxsize=256)
def _collecting_cell(
    dtype: str, taps: tuple[int, ...], is_whole: bool, grain: int, shares: bool
) -> CellFunction:
    """Return what an element collects: of the taps that windows select, and their sources.

    Windows within reach that do not cover it give zero, which tells where the sum of others is a negative zero.
    """
    count = len(taps)

    def collected(*values: jax.Array) -> tuple[jax.Array, ...]:
        total, zero = None, jnp.zeros((), to_jax(dtype))
        for tap, chosen, source in zip(taps, values[:count], values[count:], strict=True):
            here = jnp.where(chosen == jnp.full((), tap, chosen.dtype), source, zero)
            total = here if total is None else total + here
        return (zero if total is None else total if is_whole else total + zero,)

    own, beside = _accesses(dtype, grain)
    operands = [own, *[beside("in0")] * (count - 1), own, *[beside(f"in{count}")] * (count - 1)]
    how = Arrangement(tuple(operands[: 2 * count]), (own,), has_rows=True, shares_rows=shares)
    dtypes = (dtype,) * (2 * count), (dtype,)
    return CellFunction(_traced(collected, dtypes[0]), dtypes, how)


def _accesses(dtype: str, grain: int) -> tuple[Access, Callable[[str], Access]]:
    alignment = math.gcd(_ACCESS_BYTES, grain * itemsize(dtype))
    if alignment < _WORD_BYTES:
        raise NoTileCode(f"rows of {dtype} that begin inside a word", expected="whole words")
    return Access(ELEMENT, alignment), lambda name: Access(ELEMENT, alignment, beside=name)


def _traced(function: Function, dtypes: Sequence[str]) -> Any:
    return make_jaxpr(function)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in dtypes))


@dataclass(frozen=True)
class _Windows:
    """Taps, sources and what elements collect, window after window: a ``Kernel``."""

    axes: tuple[Reach, ...]
    order: _Order
    dtype: str
    workers: int

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        x, source = operands
        counts = self.order.counts(sizes)
        taps = [
            self._in_order(self._tap(x, each, counts))
            for each in itertools.product(*(range(axis.taps) for axis in self.axes))
        ]
        given = self._in_order(source)
        found = np.zeros((len(x), math.prod(axis.stride for axis in self.axes), *given.shape[1:]), x.dtype)
        memory = {"taps": np.stack(taps, 1), "source": given, "chosen": np.zeros_like(given), "found": found}
        return memory | {"inside": self._inside(sizes, origins, counts)}, {}

    def _tap(self, x: np.ndarray, taps: tuple[int, ...], counts: list[int]) -> np.ndarray:
        """Return what one tap of all windows reads."""
        cut = [slice(None)] * x.ndim
        for axis, tap, count in zip(self.axes, taps, counts, strict=True):
            stride = axis.read_stride
            cut[1 + axis.number] = slice(tap, tap + stride * (count - 1) + 1, stride)
        return x[tuple(cut)]

    def _in_order(self, x: np.ndarray) -> np.ndarray:
        """Return an array ``[cells, windows, channels]``."""
        order, at = self.order, self.order.arrays.index
        axes = [[1 + at(d) for d in dims] for dims in ((*order.outer, *order.blocks), order.inner)]
        ordered = x.transpose([0, *axes[0], *axes[1]])
        rows = math.prod(x.shape[i] for i in axes[0])
        return np.ascontiguousarray(ordered.reshape(len(x), rows, -1))

    def _inside(self, sizes: tuple[int, ...], origins: np.ndarray, counts: list[int]) -> np.ndarray:
        """Return for every window a word whose bits say which taps lie inside the array: ``[cells, windows]``."""
        inside = np.ones((len(origins), *(1,) * len(counts), 1), bool)
        for i, (axis, count) in enumerate(zip(self.axes, counts, strict=True)):
            own = axis.inside(origins[:, axis.block, None] + np.arange(count))
            shape = [len(origins), *(1,) * len(counts), axis.taps]
            shape[1 + i] = count
            both = inside[..., None] & own.reshape(shape)[..., None, :]
            inside = both.reshape(*both.shape[:-2], -1)
        words = (inside << np.arange(inside.shape[-1])).sum(-1).astype(np.int32)
        rows = words.reshape(len(origins), 1, -1)
        outer = math.prod(sizes[d] for d in self.order.outer)
        return np.repeat(rows, outer, axis=1).reshape(len(origins), -1)

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        found, counts = memory["found"], self.order.counts(sizes)
        strides = [axis.stride for axis in self.axes]
        order = (*self.order.outer, *self.order.blocks, *self.order.inner)
        whole = found.reshape(
            len(found),
            *strides,
            *(sizes[d] for d in self.order.outer),
            *counts,
            *(sizes[d] for d in self.order.inner),
        )
        first = 1 + len(strides) + len(self.order.outer)
        cut = [slice(None)] * whole.ndim
        for i, d in enumerate(self.order.blocks):
            cut[first + i] = slice(sizes[d])
        # Elements of a block stand behind their block; of blocks of one element they are no dimension.
        place = {d: 1 + len(strides) + i for i, d in enumerate(order)}
        place |= {axis.block + 1: 1 + i for i, axis in enumerate(self.axes) if axis.stride > 1}
        single = [1 + i for i, axis in enumerate(self.axes) if axis.stride == 1]
        kept = [place[d] for d in sorted(place)]
        ordered = whole[tuple(cut)].transpose([0, *single, *kept])
        return [ordered.reshape(len(found), *ordered.shape[1 + len(single) :])]

    def moving(self, places: Mapping[str, Field], cell: Callable[[], CellFunction], pitch: int) -> _Fields:
        """Return the fields of what lies at some places and moves on from row to row."""
        steps = 1 if cell().arrangement.shares_rows else self.workers
        fields: _Fields = dict(places)
        for name in places:
            fields |= {f"{name}_row_bytes": pitch, f"{name}_step_bytes": pitch * steps}
        return fields

    def distance_bytes(self, shift: Sequence[int], sizes: Sequence[int]) -> int:
        """Return how far the window so many further than another one lies from it."""
        pitches = self.order.pitches(self.order.counts(sizes))
        return int(sum(m * pitch for m, pitch in zip(shift, pitches, strict=True))) * self.row_bytes(sizes)

    def row_bytes(self, sizes: Sequence[int]) -> int:
        """Return the bytes of a window's channels."""
        return math.prod(sizes[d] for d in self.order.inner) * itemsize(self.dtype)

    def plane_bytes(self, sizes: Sequence[int]) -> int:
        """Return the bytes of one tap, or one element, of all windows."""
        return int(self.order.rows(sizes)[0][0]) * self.row_bytes(sizes)


def _selecting_fields(kernel: _Windows, cell: Callable[[], CellFunction], sizes: tuple[int, ...]) -> _Fields:
    """Return the fields of the code that says what windows select."""
    count, plane = math.prod(axis.taps for axis in kernel.axes), kernel.plane_bytes(sizes)
    fields = kernel.moving({"in0": "taps", "out0": "chosen"}, cell, kernel.row_bytes(sizes))
    fields |= {f"in{tap}_distance_bytes": tap * plane for tap in range(1, count)}
    return fields | kernel.moving({f"in{count}": "inside"}, cell, _WORD_BYTES)


def _collecting_fields(
    number: int,
    shifts: tuple[tuple[int, ...], ...],
    kernel: _Windows,
    cell: Callable[[], CellFunction],
    sizes: tuple[int, ...],
) -> _Fields:
    """Return the fields of the code that adds up what one of a block's elements collects from windows."""
    away = [kernel.distance_bytes(shift, sizes) for shift in shifts]
    places: dict[str, Field] = {"out0": ("found", number * kernel.plane_bytes(sizes))}
    distances: _Fields = {}
    for first, name in ((0, "chosen"), (len(away), "source")):
        if away:
            places[f"in{first}"] = (name, away[0])
        distances |= {f"in{first + k}_distance_bytes": at - away[0] for k, at in enumerate(away)}
    return kernel.moving(places, cell, kernel.row_bytes(sizes)) | distances
