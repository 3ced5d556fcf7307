"""The codelet behind the gradient of pooling by maximum: every element collects from the windows it leads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import broadcasted_iota
from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
from tiles.graph import Cell, Codelet, Cycles, Extents, OpForm, VertexCode, code_or_formula, register
from tiles.numerics.dtypes import is_float
from tiles.poplibs.popnn.scatter_code import Reach, scatter_bytes, scatter_code
from tiles.poplibs.popnn.window_code import STAYS, Axis, select_code, tap_views, taps_form
from tiles.poplibs.popops.elementwise_cycles import cpp_name
from tiles.poplibs.windows import Collection
from tiles.target import Basis, Target


@register
@dataclass(frozen=True)
class SelectAndScatter(Codelet):
    """Give every element the sum of the sources of those windows that select it.

    Windows select among their elements inside the operand in row-major order: an earlier element stays while
    it compares with the later one as ``direction`` says. Operands are the windowed array and the source. The
    domain has, per windowed axis, blocks of ``stride`` elements and the elements of a block.

    Args:
      direction: GE, GT, LE or LT.
      dtype: dtype of everything.
      axes: windowed axes.
      strides: distance between neighbouring windows along them.
      taps: elements of a window along them.
      reach: windows that may cover a block, along them.
      lead: where the first element of a block lies in what a cell reads, along them.
      origins: index in the array of the first element that the first block reads, along them.
      bounds: elements of the array along them; empty when no window reaches outside.
    """

    name: ClassVar[str] = "popnn.SelectAndScatter"

    direction: str
    dtype: str
    axes: tuple[int, ...]
    strides: tuple[int, ...]
    taps: tuple[int, ...]
    reach: tuple[int, ...]
    lead: tuple[int, ...]
    origins: tuple[int, ...]
    bounds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the direction."""
        if self.direction not in STAYS:
            raise InvalidGraph(f"no selection by {self.direction!r}", expected=", ".join(STAYS))

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """That of everything."""
        return (self.dtype,)

    @property
    def label(self) -> str:
        """Vertex type, e.g. ``popnn::MaxPoolingGrad<float>``."""
        kind = "MaxPoolingGrad" if self.direction[0] == "G" else "MinPoolingGrad"
        return f"popnn::{kind}<{cpp_name(self.dtype)}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Find what each window within reach selects, then let each element collect."""
        x, source = operands
        chosen = self._select(cell, x, source.shape)
        total = None
        for shift in itertools.product(*(range(count) for count in self.reach)):
            share = self._collect(cell, source, chosen, shift)
            total = share if total is None else total + share
        assert total is not None
        return (total,)

    def _select(self, cell: Cell, x: Array, windows: tuple[int, ...]) -> list[Array]:
        """Return, per windowed axis, the position in ``x`` of the element that each window selects.

        The innermost axis is folded first: the first of the best of a window is the first of the best of its
        first best row.
        """
        state: list[Any] = [x, self._inside(cell, x.shape)]
        found: list[Array] = []
        for i in reversed(range(len(self.axes))):
            axis, stride, count = self.axes[i], self._read_stride(i), windows[self.axes[i]]
            best: list[Any] | None = None
            for tap in range(self.taps[i]):
                last = tap + stride * (count - 1) + 1
                piece = [
                    None if s is None else lax.slice_in_dim(s, tap, last, stride, axis=axis)
                    for s in (*state, *found)
                ]
                assert piece[0] is not None
                piece.append(broadcasted_iota(np.int32, piece[0].shape, axis) * self.strides[i] + tap)
                best = piece if best is None else self._better(best, piece)
            assert best is not None
            state, found = best[:2], best[2:]
        return found[::-1]

    def _inside(self, cell: Cell, shape: tuple[int, ...]) -> Array | None:
        """Return which elements read lie inside the array; None when all do."""
        inside = None
        for i, bound in enumerate(self.bounds):
            axis, stride = self.axes[i], self.strides[i]
            block = self._dims(cell, i)[0]
            index = broadcasted_iota(np.int32, shape, axis) * (stride // self._read_stride(i))
            index = index + (cell.origin[block] * stride + self.origins[i])
            real = (index >= 0) & (index < bound)
            inside = real if inside is None else inside & real
        return inside

    def _read_stride(self, i: int) -> int:
        """Return the distance of neighbouring windows in what is read: of single elements, only those are."""
        return 1 if self.taps[i] == self.reach[i] == 1 else self.strides[i]

    def _better(self, left: list[Any], right: list[Any]) -> list[Any]:
        """Return, per window, the selected one of an earlier and a later candidate."""
        keep = STAYS[self.direction](left[0], right[0])
        inside = left[1]
        if inside is not None:
            keep = ~right[1] | (inside & keep)
            inside = inside | right[1]
        merged = [lax.select(keep, a, b) for a, b in zip(left[2:], right[2:], strict=True)]
        return [lax.select(keep, left[0], right[0]), inside, *merged]

    def _collect(self, cell: Cell, source: Array, chosen: list[Array], shift: tuple[int, ...]) -> Array:
        """Return what the windows ``shift`` further than the first within reach give to every element."""
        hit = None
        for i in range(len(self.axes)):
            position = self._shifted(cell, chosen[i], shift)
            block, element = self._dims(cell, i)
            result_axes = cell.form.results[0].dims
            shape = [cell.sizes[d] for d in result_axes]
            own = broadcasted_iota(np.int32, shape, result_axes.index(block)) * self.strides[i] + self.lead[i]
            if element is not None:
                own = own + broadcasted_iota(np.int32, shape, result_axes.index(element))
            here = position == own
            hit = here if hit is None else hit & here
        value = self._shifted(cell, source, shift)
        if hit is None:
            return value
        return jnp.where(hit, value, jnp.zeros((), value.dtype))

    def _shifted(self, cell: Cell, x: Array, shift: tuple[int, ...]) -> Array:
        """Return the windows ``shift`` further for every block, repeated over the block's elements."""
        for i, axis in enumerate(self.axes):
            count = cell.sizes[self._dims(cell, i)[0]]
            x = lax.slice_in_dim(x, shift[i], shift[i] + count, axis=axis)
        shape: list[int] = []
        result = cell.form.results[0].dims
        own = {axis.terms[0][0]: n for axis, n in zip(cell.form.operands[1].axes, x.shape, strict=True)}
        for d in result:
            shape.append(own.get(d, 1))
        return jnp.broadcast_to(x.reshape(shape), [cell.sizes[d] for d in result])

    def _dims(self, cell: Cell, i: int) -> tuple[int, int | None]:
        """Return the domain dimensions of a windowed axis: blocks, and (None if single) their elements."""
        block = cell.form.operands[1].axes[self.axes[i]].terms[0][0]
        return block, block + 1 if self.strides[i] > 1 else None

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep the elements of a block together, and windows whole."""
        elements = [
            form.operands[1].axes[axis].terms[0][0] + 1
            for axis, stride in zip(self.axes, self.strides, strict=True)
            if stride > 1
        ]
        return not form.dims[d].is_reduced and d not in elements

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the cycles of its code; where it has none, a formula's (ASSUMED).

        That has three slots per element of a window compared and six per element that collects.
        """
        stated = self._estimated(extents, target)
        try:
            return code_or_formula(self.tile_code(extents, target), stated)
        except (NoTileCode, OutOfRegisters):
            return stated

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code for windows that lie side by side, inside the array (``window_code``), or any others."""
        how = self.direction, self.dtype
        if not self._is_side_by_side:
            return scatter_code(*how, self._reaches(extents.form), extents, target, self.label)
        return select_code(*how, self._code_axes(extents.form), extents, target, self.label)

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Count what windows that do not lie side by side select before elements collect it, and which taps lie inside."""
        if self._is_side_by_side:
            return np.zeros_like(extents.results)
        try:
            return scatter_bytes(self.dtype, self._reaches(extents.form), extents)
        except NoTileCode:
            return np.zeros_like(extents.results)

    @property
    def _is_side_by_side(self) -> bool:
        """Whether windows neither overlap, nor leave elements out, nor reach outside the array."""
        are_together = self.taps == self.strides and not any(self.lead) and not any(self.origins)
        return are_together and not self.bounds and all(reach == 1 for reach in self.reach)

    def _reaches(self, form: OpForm) -> list[Reach]:
        """Return where windows of any kind lie."""
        bounds = self.bounds or (None,) * len(self.axes)
        return [
            Reach(
                axis,
                form.operands[1].axes[axis].terms[0][0],
                self.strides[i],
                self.taps[i],
                self.reach[i],
                self.lead[i],
                self.origins[i],
                bounds[i],
            )
            for i, axis in enumerate(self.axes)
        ]

    def _code_axes(self, form: OpForm) -> list[Axis]:
        """Return where windows side by side lie."""
        blocks = [form.operands[1].axes[axis].terms[0][0] for axis in self.axes]
        return [
            Axis(number, block, taps, taps)
            for number, block, taps in zip(self.axes, blocks, self.taps, strict=True)
        ]

    def code_operands(
        self, form: OpForm, sizes: tuple[int, ...], operands: Sequence[np.ndarray]
    ) -> tuple[OpForm, list[np.ndarray]]:
        """Return the elements of windows as operands of their own, and the source."""
        axes = self._code_axes(form)
        return taps_form(form, axes, form.operands[1:]), [*tap_views(operands[0], axes, sizes), operands[1]]

    def code_results(
        self, form: OpForm, sizes: tuple[int, ...], values: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Return the result, of which every element of a window is written by itself."""
        axes = [i for i in range(len(self.axes)) if self.strides[i] > 1]
        elements = [form.operands[1].axes[self.axes[i]].terms[0][0] + 1 for i in axes]
        shape = list(values[0].shape)
        for i, d in zip(axes, elements, strict=True):
            shape[1 + d] = self.taps[i]
        whole = np.empty(shape, values[0].dtype)
        taps = itertools.product(*(range(count) for count in self.taps))
        for at, value in zip(taps, values, strict=True):
            cut: list[Any] = [slice(None)] * whole.ndim
            for i, d in zip(axes, elements, strict=True):
                cut[1 + d] = slice(at[i], at[i] + 1)
            whole[tuple(cut)] = value
        return [whole]

    def _estimated(self, extents: Extents, target: Target) -> Cycles:
        results = np.asarray(extents.results)
        block, reach = int(np.prod(self.strides)), int(np.prod(self.reach))
        windows = -(-results // block)
        share = -(-results // target.workers_per_tile)
        compared = -(-windows // target.workers_per_tile) * (8 + 3 * int(np.prod(self.taps)))
        slots = 40 + compared + share * 6 * reach
        value = target.supervisor_vertex_overhead_cycles + target.worker_issue_interval_cycles * slots
        return Cycles(value, Basis.ASSUMED, "comparisons of windows, then a masked sum per element")

    def flops(self, extents: Extents) -> np.ndarray:
        """Count an addition per window within reach of an element, on floats."""
        count = np.asarray(extents.results) * int(np.prod(self.reach))
        return count if is_float(self.dtype) else np.zeros_like(count)

    def code_bytes(self, target: Target) -> int:
        """Estimate instructions of both passes (ASSUMED)."""
        return target.instruction_bytes * 180


def select_scatter_codelet(
    direction: str, dtype: str, collections: dict[int, Collection], padded: bool
) -> SelectAndScatter:
    """Return the codelet for windows that lie along axes as ``collections`` says."""
    axes = tuple(sorted(collections))
    chosen = [collections[axis] for axis in axes]
    return SelectAndScatter(
        direction,
        dtype,
        axes,
        tuple(c.stride for c in chosen),
        tuple(c.taps for c in chosen),
        tuple(c.reach for c in chosen),
        tuple(c.lead for c in chosen),
        tuple(c.origin for c in chosen),
        tuple(c.size for c in chosen) if padded else (),
    )
