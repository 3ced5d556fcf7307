"""Tile code of convolutions on the multiply units: a panel of weights after the other, each of a tap and over a field.

Operands lie as ``conv_orders`` says, and field by field. Workers take runs of positions of a row; where rows are few, parts
of rows. Where channels are few, a panel has taps of several rows of the kernel. Windows that are laid out first are a
product of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product as pairs
from typing import Any

import numpy as np

from tiles.elements import Formula, InstructionSet, instructions_for
from tiles.elements.amp import Product, run_strides
from tiles.elements.cell import ACCESS_BYTES
from tiles.elements.variants import Variant, existing
from tiles.errors import NoTileCode
from tiles.graph import Extents, OpForm, VertexCode
from tiles.graph.cycles import Field
from tiles.numerics.dtypes import itemsize
from tiles.poplibs.poplin.conv_cycles import (
    ROWS_AT_ONCE,
    ConvRoles,
    ConvShape,
    conv_roles,
    conv_shape,
    conv_ways,
)
from tiles.poplibs.poplin.dots_code import FieldDots, FieldVectors, RowExtents, same_dtype, vector_width
from tiles.poplibs.poplin.fields import (
    Geometry,
    geometry_of,
    held_fields,
    run_parts,
    runs_of,
    window_axes,
)
from tiles.poplibs.poplin.methods import streamed_dtype
from tiles.poplibs.poplin.outer_code import FieldOuter
from tiles.poplibs.poplin.product_kernel import Counts, Products, cast_parts
from tiles.poplibs.poplin.slic_code import slic_parts
from tiles.poplibs.poplin.units_code import (
    CAST,
    INPUTS,
    RUNS,
    SUMS,
    WEIGHTS,
    as_passed,
    code_by_method,
    extent_of,
    filled_up,
    holds_words,
    in_floats,
    in_order,
    in_words,
    of_each_cell,
    streamed_product,
    tap_variant,
    weights_bits,
)
from tiles.poplibs.poplin.widening_code import widened
from tiles.target import Target


def conv_code(
    method: str, accumulate: str, out_dtype: str, extents: Extents, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code of vertices that convolve; what has none runs none.

    Arguments as of ``conv_cycles``, and the name of the variants.

    Raises:
      NoTileCode: no vertex has code; says why.
    """
    isa, roles = instructions_for(target), conv_roles(extents.form)
    if roles.phases or roles.kernel_taps:
        raise NoTileCode("a convolution over an array that is spread out")
    methods, combined = conv_ways(method, accumulate, extents, target)
    points, shape = np.asarray(extents.points), conv_shape(extents)
    ways = {way: (methods == way).reshape(points.shape) & (points > 0) for way in np.unique(methods).tolist()}

    def code(way: str, does: np.ndarray) -> Iterator[VertexCode]:
        if way == "slic":
            bits, form = weights_bits(target), extents.form
            return slic_parts(isa, bits, form, accumulate, out_dtype, shape, does, name)
        if way != "expanded" and way not in ROWS_AT_ONCE:
            return _off_units(isa, way, accumulate, out_dtype, extents, does, name)
        dtype = streamed_dtype(extents.operand_dtypes)
        product = streamed_product(dtype, accumulate, target)
        units = Units(isa, weights_bits(target), product, out_dtype, extents.form, shape, name)
        if way == "expanded":
            return units.expanded(does)
        parts = units.taps(does, combined.reshape(points.shape), ROWS_AT_ONCE[way], extents, Taps)
        return in_floats(widened(parts, dtype, product.dtype, extents, isa, name), accumulate)

    return code_by_method(ways, code, "a convolution")


@dataclass(frozen=True)
class Units:
    """What vertices on the multiply units have in common."""

    isa: InstructionSet
    weights_bits: int
    product: Product
    out_dtype: str
    form: OpForm
    shape: ConvShape
    name: str

    def expanded(self, does: np.ndarray) -> Iterator[VertexCode]:
        """Yield the code of vertices that lay their windows out."""
        shape, product = self.shape, self.product
        outputs = -(-shape.outputs // product.outputs)
        inputs = -(-(shape.inputs * shape.taps) // product.inputs)
        counts = Counts(shape.groups, shape.positions, shape.outputs, outputs, inputs)
        windows = _Windows(self.form, product, self.out_dtype)
        yield from windows.parts(self.isa, self.weights_bits, does, counts, self.name)

    def taps(
        self,
        does: np.ndarray,
        combined: np.ndarray,
        height: int,
        extents: Extents,
        kind: Callable[[OpForm, Product, str, int, int, Formula], Taps],
    ) -> Iterator[VertexCode]:
        """Yield the code of vertices that go from tap to tap, or from some rows of the kernel to the next ones.

        Args:
          does: which cells run it.
          combined: how many groups of each are computed as one.
          height: rows of the kernel in a panel.
          extents: of the cells.
          kind: makes the kernel of those that combine equally many.
        """
        shape, product = self.shape, self.product
        first, later = (
            existing(tap_variant(self.isa, product, self.weights_bits, height, is_first)).named(self.name)
            for is_first in (True, False)
        )
        factors: list[int] = np.unique(combined[does]).tolist()
        for factor in factors:
            kernel = kind(self.form, product, self.out_dtype, height, factor, later.formula)
            own = does & (combined == factor) & kernel.reaches(extents)
            yield from kernel.parts(own, shape, first, later)
            sums = -(-shape.groups // factor) * -(-(factor * shape.outputs) // product.outputs)
            sums = sums * product.outputs * shape.positions * kernel.results_each
            yield from cast_parts(self.isa, kernel, own, sums, self.name)


def _off_units(
    isa: InstructionSet,
    way: str,
    accumulate: str,
    out_dtype: str,
    extents: Extents,
    does: np.ndarray,
    name: str,
) -> Iterator[VertexCode]:
    """Yield the code of dot products, of products side by side, and of outer products.

    Raises:
      NoTileCode: there is none for the method.
    """
    dtype, form, shape = same_dtype(extents.operand_dtypes), extents.form, conv_shape(extents)
    if way == "outer":
        outer = FieldOuter(form, dtype, accumulate, out_dtype)
        return outer.parts(isa, does, shape.groups, shape.positions, shape.outputs, name)
    if way == "vmac":
        vectors = FieldVectors(form, dtype, accumulate, out_dtype, vector_width(shape.groups, does))
        count = -(-shape.groups // vectors.width)
        return vectors.parts(isa, does, RowExtents(shape.taps, count * shape.positions), name)
    if way not in ("hmac", "scalar"):
        raise NoTileCode(f"convolutions by method {way}")
    dots = FieldDots(form, dtype, accumulate, out_dtype)
    run = shape.tap_columns if shape.dilation == 1 else 1
    n = run * -(-shape.inputs // dots.per_access)
    rows = shape.groups * shape.positions * shape.outputs
    return dots.parts(isa, does, RowExtents(n, rows, shape.taps // run - 1), name)


@dataclass(frozen=True)
class _Windows(Products):
    """Windows laid out whole: taps are channels."""

    @property
    def kept(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """See ``Products``."""
        roles = conv_roles(self.form)
        return roles.groups, (*roles.batch, *roles.field), roles.outputs

    def counts(self, sizes: Sequence[int]) -> Counts:
        """See ``Products``."""
        roles, p = conv_roles(self.form), self.product
        groups, positions, outputs = (extent_of(sizes, dims) for dims in self.kept)
        channels = extent_of(sizes, (*roles.taps, *roles.inputs))
        return Counts(groups, positions, outputs, -(-outputs // p.outputs), -(-channels // p.inputs))

    def channels(self, sizes: Sequence[int], operands: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """See ``Products``."""
        roles = conv_roles(self.form)
        groups, positions, outputs = self.kept
        x = window_axes(operands[0], self.form, (*roles.groups, *roles.batch), roles.inputs)
        first = 1 + len(roles.groups) + len(roles.batch)
        index: list[Any] = [slice(None)] * first
        k = len(roles.field)
        for n, (f, t) in enumerate(zip(roles.field, roles.taps, strict=True)):
            at = np.arange(sizes[f])[:, None] * roles.strides[n] + np.arange(sizes[t]) * roles.dilations[n]
            shape = [1] * (2 * k)
            shape[n], shape[k + n] = at.shape
            index.append(at.reshape(shape))
        x = x[tuple(index)]
        shape = len(x), extent_of(sizes, groups), extent_of(sizes, positions)
        kernel = in_order(operands[1], self.form, 1, (*groups, *outputs, *roles.taps, *roles.inputs))
        return x.reshape(*shape, -1), kernel.reshape(len(x), shape[1], extent_of(sizes, outputs), -1)


@dataclass(frozen=True)
class Taps:
    """Panels of taps over fields: a ``Kernel``.

    Attributes:
      form: the operation.
      product: what the units compute.
      out_dtype: dtype of results.
      height: rows of the kernel in a panel.
      combined: groups that are computed as one, with zeros for weights between them.
      formula: closed form of a panel over runs, which says how rows are cut.
    """

    form: OpForm
    product: Product
    out_dtype: str
    height: int
    combined: int
    formula: Formula

    @property
    def roles(self) -> ConvRoles:
        """The roles of the domain's dimensions."""
        return conv_roles(self.form)

    @property
    def sums_dtype(self) -> str:
        """Dtype of the sums."""
        return self.product.partials

    @property
    def results_each(self) -> int:
        """Results of a position."""
        return 1

    @property
    def channels(self) -> int:
        """Channels that a panel takes of a row."""
        return self.product.inputs // self.height

    @property
    def position_bytes(self) -> int:
        """Bytes of a position's channels in a row of a field."""
        return self.channels * itemsize(self.product.dtype)

    def parts(
        self, does: np.ndarray, shape: ConvShape, first: Variant, later: Variant
    ) -> Iterator[VertexCode]:
        """Yield the code of vertices: of the first panels, whose sums begin at nothing, and of later ones.

        Args:
          does: which cells run it.
          shape: extents of every cell.
          first: the code of a panel that begins a sum.
          later: the code of a panel that adds to one.
        """
        outputs = -(-(self.combined * shape.outputs) // self.product.outputs)
        sums = np.where(does, -(-shape.groups // self.combined) * outputs, 0)
        firsts, laters = self.panels_each(shape)
        field, runs = (shape.field.rows, shape.field.columns), (sums * firsts, sums * laters)
        yield from run_parts(self, (first, later), *field, runs, self.formula)

    def panels_each(self, shape: ConvShape) -> tuple[Any, Any]:
        """Return how many panels begin sums of a group of outputs, and how many add to them, of every cell."""
        taps = -(-shape.first_taps // self.height) * (shape.taps // np.maximum(shape.first_taps, 1))
        return 1, -(-(self.combined * shape.inputs) // self.channels) * taps - 1

    def reaches(self, extents: Extents) -> np.ndarray:
        """Return for which cells positions and rows are near enough for strides, bool."""
        return of_each_cell(extents, self._may)

    def _may(self, sizes: tuple[int, ...]) -> bool:
        try:
            self._strides(sizes)
        except NoTileCode:
            return False
        return True

    def geometry(self, sizes: Sequence[int]) -> Geometry:
        """Return a cell's fields; rows of what is read are filled up to whole panels."""
        return geometry_of(self.form, sizes, self.height)

    def _strides(self, sizes: Sequence[int]) -> int:
        g = self.geometry(sizes)
        row = g.dilations[0] * math.prod(g.reach[1:]) * self.position_bytes
        return run_strides(self.product, self.height, row, g.strides[-1] * self.position_bytes)

    def groups_of(self, sizes: Sequence[int]) -> tuple[int, int, int]:
        """Return groups, and groups of outputs and of inputs that units take at once; combined ones are one."""
        roles, factor = self.roles, self.combined
        groups, outputs, inputs = (extent_of(sizes, d) for d in (roles.groups, roles.outputs, roles.inputs))
        output_groups = -(-(factor * outputs) // self.product.outputs)
        return -(-groups // factor), output_groups, -(-(factor * inputs) // self.channels)

    def find(
        self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """See ``Kernel``."""
        g, p = self.geometry(sizes), self.product
        groups, output_groups, input_groups = self.groups_of(sizes)
        operands = [as_passed(x, self.out_dtype) for x in operands]
        x = held_fields(operands[0], self.form, sizes, g, 1)
        cells, is_ring = len(x), holds_words(x, self.out_dtype)
        x = filled_up(x, 1, self.combined).reshape(cells, groups, -1, *x.shape[3:])
        x = filled_up(x, 2, self.channels).reshape(cells, groups, input_groups, self.channels, *x.shape[3:])
        runs = self.runs(sizes)
        memory = {
            INPUTS: np.ascontiguousarray(np.moveaxis(x, 3, -1)),
            WEIGHTS: self.panels(sizes, operands[1]),
            RUNS: np.ascontiguousarray(np.broadcast_to(runs, (cells, *runs.shape))),
        }
        positions = g.batch * math.prod(g.field)
        sums = (cells, groups, output_groups, self.results_each * positions, p.outputs)
        memory[SUMS] = np.zeros(sums, in_words(p.partials, is_ring))
        if self.out_dtype != p.partials:
            memory[CAST] = np.zeros(sums, in_words(self.out_dtype, is_ring))
        return memory, {"strides": self._strides(sizes)}

    def panels(self, sizes: Sequence[int], kernel: np.ndarray) -> np.ndarray:
        """Return panels ``[cells, groups, output groups, input groups, *taps, outputs, inputs]``, taps of rows by heights."""
        roles, g, p = self.roles, self.geometry(sizes), self.product
        groups, output_groups, input_groups = self.groups_of(sizes)
        w = in_order(kernel, self.form, 1, (*roles.groups, *roles.outputs, *roles.inputs, *roles.taps))
        outputs, inputs = (extent_of(sizes, d) for d in (roles.outputs, roles.inputs))
        w = self.apart(w.reshape(len(w), -1, outputs, inputs, *g.taps))
        for axis, multiple in ((2, p.outputs), (3, self.channels), (4, self.height)):
            w = filled_up(w, axis, multiple)
        heights = w.shape[4] // self.height
        w = w.reshape(
            *(len(w), groups, output_groups, p.outputs, input_groups, self.channels),
            *(heights, self.height, math.prod(g.taps[1:])),
        )
        return np.ascontiguousarray(w.transpose(0, 1, 2, 4, 6, 8, 3, 7, 5))

    def apart(self, w: np.ndarray) -> np.ndarray:
        """Return weights ``[cells, groups, outputs, inputs, ...]`` of combined groups, zero from one group to another."""
        if self.combined == 1:
            return w
        factor, (cells, _, outputs, inputs, *taps) = self.combined, w.shape
        w = filled_up(w, 1, factor)
        w = w.reshape(cells, -1, factor, outputs, inputs, *taps)
        found = np.zeros((cells, w.shape[1], factor, outputs, factor, inputs, *taps), w.dtype)
        for k in range(factor):
            found[:, :, k, :, k] = w[:, :, k]
        return found.reshape(cells, -1, factor * outputs, factor * inputs, *taps)

    def runs(self, sizes: Sequence[int]) -> np.ndarray:
        """Return where inputs and results of runs begin, in accesses, and their positions: uint16 ``[runs, 3]``, longest first."""
        g = self.geometry(sizes)
        each = self.position_bytes // ACCESS_BYTES, self.product.partials_bytes // ACCESS_BYTES
        return runs_of(g, self.formula, each)

    def turns(self, is_first: bool, sizes: tuple[int, ...]) -> list[dict[str, Field]]:
        """Return the fields of every panel: of the first tap of the first groups of inputs, or of all later ones."""
        g, p = self.geometry(sizes), self.product
        groups, output_groups, input_groups = self.groups_of(sizes)
        block = g.batch * math.prod(g.reach) * self.position_bytes
        sums_block = g.batch * math.prod(g.field) * p.outputs * itemsize(p.partials)
        heights = -(-g.taps[0] // self.height)
        taps = list(pairs(range(heights), *(range(t) for t in g.taps[1:])))
        steps = list(pairs(range(input_groups), range(len(taps))))
        found: list[dict[str, Field]] = []
        for group, (i, t), o in pairs(
            range(groups), steps[:1] if is_first else steps[1:], range(output_groups)
        ):
            index = [n * d for n, d in zip(taps[t], g.dilations, strict=True)]
            index[0] *= self.height
            at = (group * input_groups + i) * block + g.place(index) * self.position_bytes
            panel = ((group * output_groups + o) * input_groups + i) * len(taps) + t
            sums = SUMS, (group * output_groups + o) * sums_block
            found.append(
                {"in0": (INPUTS, at), "out0": sums, "runs": RUNS, "weights": (WEIGHTS, panel * p.panel_bytes)}
            )
        return found

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        roles = self.roles
        found = memory[SUMS if self.out_dtype == self.product.partials else CAST]
        outputs, groups, factor = (
            extent_of(sizes, roles.outputs),
            extent_of(sizes, roles.groups),
            self.combined,
        )
        cells, positions = len(found), found.shape[3]
        found = found.transpose(0, 1, 3, 2, 4).reshape(*found.shape[:2], positions, -1)
        found = found[..., : factor * outputs].reshape(cells, -1, positions, factor, outputs)
        found = found.transpose(0, 1, 3, 2, 4).reshape(cells, -1, positions, outputs)[:, :groups]
        dims = (*roles.groups, *roles.batch, *roles.field, *roles.outputs)
        found = found.reshape(len(found), *(sizes[d] for d in dims))
        return [found.transpose([0, *(1 + dims.index(d) for d in self.form.results[0].dims)])]
