"""Tile code of convolutions on the multiply units: a panel of weights after the other, each of a tap and over a field.

Operands lie as ``conv_orders`` says, and field by field. Workers take runs of positions of a row; where rows are few, parts
of rows. Where channels are few, a panel has taps of several rows of the kernel. Windows that are laid out first are a
product of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product as pairs
from typing import Any

import numpy as np

from tiles.elements import Formula, instructions_for
from tiles.elements.amp import RUN_FIELDS, Product, run_strides
from tiles.elements.cell import ACCESS_BYTES
from tiles.elements.variants import existing
from tiles.errors import NoTileCode
from tiles.graph import Extents, OpForm, VertexCode
from tiles.graph.cycles import Field
from tiles.numerics.dtypes import itemsize
from tiles.poplibs.poplin.conv_cycles import ROWS_AT_ONCE, ConvRoles, conv_roles, conv_shape, conv_ways
from tiles.poplibs.poplin.methods import streamed_dtype
from tiles.poplibs.poplin.product_kernel import Counts, Products, cast_parts
from tiles.poplibs.poplin.units_code import (
    CAST,
    INPUTS,
    SUMS,
    WEIGHTS,
    extent_of,
    filled_up,
    in_order,
    in_words,
    streamed_product,
    tap_variant,
    weights_bits,
)
from tiles.target import Target

RUNS = "runs"
MOST_PIECES = 12
"""Into how many parts rows are cut at most."""


def conv_code(
    method: str, accumulate: str, out_dtype: str, extents: Extents, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code of vertices that convolve on the units; others of the same operation run none.

    Arguments as of ``conv_cycles``, and the name of the variants.

    Raises:
      NoTileCode: no vertex does, or the units do not take these dtypes as they are.
    """
    isa, bits, roles = instructions_for(target), weights_bits(target), conv_roles(extents.form)
    if roles.phases or roles.kernel_taps:
        raise NoTileCode("a convolution over an array that is spread out")
    methods = conv_ways(method, accumulate, extents, target)
    points = np.asarray(extents.points)
    ways = {n: (methods == n).reshape(points.shape) & (points > 0) for n in (*ROWS_AT_ONCE, "expanded")}
    if not any(does.any() for does in ways.values()):
        raise NoTileCode(f"convolutions by method {', '.join(sorted(set(methods.tolist())))}")
    product = streamed_product(streamed_dtype(extents.operand_dtypes), accumulate, target)
    shape, parts = conv_shape(extents), list[VertexCode]()
    outputs = -(-shape.outputs // product.outputs)
    if ways["expanded"].any():
        inputs = -(-(shape.inputs * shape.taps) // product.inputs)
        counts = Counts(shape.groups, shape.positions, shape.outputs, outputs, inputs)
        windows = _Windows(extents.form, product, out_dtype)
        parts += windows.parts(isa, bits, ways["expanded"], counts, name)
    for way, height in ROWS_AT_ONCE.items():
        if not ways[way].any():
            continue
        first, later = (
            existing(tap_variant(isa, product, bits, height, is_first)).named(name)
            for is_first in (True, False)
        )
        kernel = _Taps(extents.form, product, out_dtype, height, later.formula)
        does = ways[way] & kernel.reaches(extents)
        pieces = _pieces(shape.field.rows, shape.field.columns, later.formula)
        taps = -(-shape.first_taps // height) * (shape.taps // np.maximum(shape.first_taps, 1))
        firsts = np.where(does, shape.groups * outputs, 0)
        inputs = -(-shape.inputs // (product.inputs // height))
        for is_first, variant, runs in ((True, first, firsts), (False, later, firsts * (inputs * taps - 1))):
            parts.append(
                VertexCode(
                    variant,
                    -(-shape.field.columns // pieces),
                    shape.field.rows * pieces,
                    runs,
                    kernel=kernel,
                    turn=partial(kernel.turns, is_first),
                    interleaved=(SUMS,),
                )
            )
        sums = shape.groups * outputs * product.outputs * shape.positions
        parts += cast_parts(isa, kernel, does, sums, name)
    return tuple(parts)


def _pieces(rows: Any, columns: Any, formula: Formula) -> np.ndarray:
    """Return into how many parts rows are cut, so that the busiest worker has least to do by a variant's closed form."""
    cuts = np.arange(1, MOST_PIECES + 1).reshape(-1, *[1] * np.ndim(rows))
    length = -(-np.asarray(columns) // cuts)
    return 1 + np.argmin(np.asarray(formula.cycles(length, np.asarray(rows) * cuts)), axis=0)


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
        x = _window_axes(operands[0], self.form, (*roles.groups, *roles.batch), roles.inputs)
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


def _window_axes(x: np.ndarray, form: OpForm, before: Sequence[int], after: Sequence[int]) -> np.ndarray:
    """Return the left operand, ``[cells, *before, *windows, *after]``; axes of constant index vanish."""
    axes = form.operands[0].axes
    single = {axis.terms[0][0]: 1 + n for n, axis in enumerate(axes) if len(axis.terms) == 1}
    windows = [1 + n for n, axis in enumerate(axes) if len(axis.terms) > 1]
    constant = [1 + n for n, axis in enumerate(axes) if not axis.terms]
    order = [0, *(single[d] for d in before), *windows, *(single[d] for d in after)]
    return x.transpose(*order, *constant).reshape([x.shape[n] for n in order])


@dataclass(frozen=True)
class _Geometry:
    """A cell's fields: rows of two dimensions at least.

    Attributes:
      batch: fields.
      field, taps, strides, dilations, reach: of every dimension; the reach is of what a cell reads, in elements.
    """

    batch: int
    field: tuple[int, ...]
    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    reach: tuple[int, ...]

    def place(self, index: Sequence[int]) -> int:
        """Return where an element lies in a field."""
        at = 0
        for i, reach in zip(index, self.reach, strict=True):
            at = at * reach + i
        return at


@dataclass(frozen=True)
class _Taps:
    """Panels of taps over fields: a ``Kernel``.

    Attributes:
      form: the operation.
      product: what the units compute.
      out_dtype: dtype of results.
      height: rows of the kernel in a panel.
      formula: closed form of a panel over runs, which says how rows are cut.
    """

    form: OpForm
    product: Product
    out_dtype: str
    height: int
    formula: Formula

    @property
    def roles(self) -> ConvRoles:
        """The roles of the domain's dimensions."""
        return conv_roles(self.form)

    @property
    def channels(self) -> int:
        """Channels that a panel takes of a row."""
        return self.product.inputs // self.height

    @property
    def position_bytes(self) -> int:
        """Bytes of a position's channels in a row of a field."""
        return self.channels * itemsize(self.product.dtype)

    def reaches(self, extents: Extents) -> np.ndarray:
        """Return for which cells positions and rows are near enough for strides, bool."""
        shape = np.shape(extents.points)
        sizes = np.stack([np.broadcast_to(size, shape).reshape(-1) for size in extents.sizes])
        different, of_cell = np.unique(sizes, axis=1, return_inverse=True)
        may = [self._may(tuple(x)) for x in different.T.tolist()]
        return np.array(may, bool)[of_cell].reshape(shape)

    def _may(self, sizes: tuple[int, ...]) -> bool:
        try:
            self._strides(sizes)
        except NoTileCode:
            return False
        return True

    def geometry(self, sizes: Sequence[int]) -> _Geometry:
        """Return a cell's fields; rows of what is read are filled up to whole panels."""
        roles, one = self.roles, (1,) if len(self.roles.field) < 2 else ()
        field, taps = ((*one, *(sizes[d] for d in dims)) for dims in (roles.field, roles.taps))
        strides, dilations = (*one, *roles.strides), (*one, *roles.dilations)
        whole = (-(-taps[0] // self.height) * self.height, *taps[1:])
        reach = tuple(
            (f - 1) * s + (t - 1) * d + 1 for f, s, t, d in zip(field, strides, whole, dilations, strict=True)
        )
        return _Geometry(extent_of(sizes, roles.batch), field, taps, strides, dilations, reach)

    def _strides(self, sizes: Sequence[int]) -> int:
        g = self.geometry(sizes)
        row = g.dilations[0] * math.prod(g.reach[1:]) * self.position_bytes
        return run_strides(self.product, self.height, row, g.strides[-1] * self.position_bytes)

    def _groups(self, sizes: Sequence[int]) -> tuple[int, int, int]:
        """Return groups, and groups of outputs and of inputs that units take at once."""
        roles = self.roles
        groups, outputs, inputs = (extent_of(sizes, d) for d in (roles.groups, roles.outputs, roles.inputs))
        return groups, -(-outputs // self.product.outputs), -(-inputs // self.channels)

    def find(
        self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """See ``Kernel``."""
        roles, g, p = self.roles, self.geometry(sizes), self.product
        groups, output_groups, input_groups = self._groups(sizes)
        x = _window_axes(operands[0], self.form, (*roles.groups, *roles.inputs, *roles.batch), ())
        cells, is_ring = len(x), x.dtype.kind == "u"
        held = x.shape[len(x.shape) - len(roles.field) :]
        held = held if len(held) == len(g.reach) else (1, *held)
        x = filled_up(x.reshape(cells, groups, -1, g.batch, *held), 2, self.channels)
        missing = [(0, 0)] * 4 + [(0, r - h) for r, h in zip(g.reach, held, strict=True)]
        x = np.pad(x, missing).reshape(cells, groups, input_groups, self.channels, g.batch, *g.reach)
        runs = self.runs(sizes)
        memory = {
            INPUTS: np.ascontiguousarray(np.moveaxis(x, 3, -1)),
            WEIGHTS: self._panels(sizes, operands[1]),
            RUNS: np.ascontiguousarray(np.broadcast_to(runs, (cells, *runs.shape))),
        }
        sums = (cells, groups, output_groups, g.batch * math.prod(g.field), p.outputs)
        memory[SUMS] = np.zeros(sums, in_words(p.partials, is_ring))
        if self.out_dtype != p.partials:
            memory[CAST] = np.zeros(sums, in_words(self.out_dtype, is_ring))
        return memory, {"strides": self._strides(sizes)}

    def _panels(self, sizes: Sequence[int], kernel: np.ndarray) -> np.ndarray:
        """Return panels ``[cells, groups, output groups, input groups, *taps, outputs, inputs]``, taps of rows by heights."""
        roles, g, p = self.roles, self.geometry(sizes), self.product
        groups, output_groups, input_groups = self._groups(sizes)
        w = in_order(kernel, self.form, 1, (*roles.groups, *roles.outputs, *roles.inputs, *roles.taps))
        outputs, inputs = (extent_of(sizes, d) for d in (roles.outputs, roles.inputs))
        w = w.reshape(len(w), groups, outputs, inputs, *g.taps)
        for axis, multiple in ((2, p.outputs), (3, self.channels), (4, self.height)):
            w = filled_up(w, axis, multiple)
        heights = w.shape[4] // self.height
        w = w.reshape(
            *(len(w), groups, output_groups, p.outputs, input_groups, self.channels),
            *(heights, self.height, math.prod(g.taps[1:])),
        )
        return np.ascontiguousarray(w.transpose(0, 1, 2, 4, 6, 8, 3, 7, 5))

    def runs(self, sizes: Sequence[int]) -> np.ndarray:
        """Return where inputs and results of runs begin, in accesses, and their positions: uint16 ``[runs, 3]``, longest first."""
        g = self.geometry(sizes)
        rows, columns = g.batch * math.prod(g.field[:-1]), g.field[-1]
        length = -(-columns // int(_pieces(rows, columns, self.formula)))
        first = np.indices((g.batch, *g.field[:-1])).reshape(len(g.field), -1)
        at = first[0]
        for index, step, reach in zip(first[1:], g.strides, g.reach, strict=False):
            at = at * reach + index * step
        start = np.arange(0, columns, length)
        count = np.broadcast_to(np.minimum(length, columns - start), (rows, len(start)))
        inputs = at[:, None] * g.reach[-1] + start * g.strides[-1]
        results = np.arange(rows)[:, None] * columns + start
        each = self.position_bytes // ACCESS_BYTES, self.product.partials_bytes // ACCESS_BYTES
        found = np.stack([inputs * each[0], results * each[1], count], axis=-1).reshape(-1, RUN_FIELDS)
        return found[np.argsort(-found[:, 2], kind="stable")].astype(np.uint16)

    def turns(self, is_first: bool, sizes: tuple[int, ...]) -> list[dict[str, Field]]:
        """Return the fields of every panel: of the first tap of the first groups of inputs, or of all later ones."""
        g, p = self.geometry(sizes), self.product
        groups, output_groups, input_groups = self._groups(sizes)
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
        outputs = extent_of(sizes, roles.outputs)
        found = found.transpose(0, 1, 3, 2, 4).reshape(*found.shape[:2], found.shape[3], -1)[..., :outputs]
        dims = (*roles.groups, *roles.batch, *roles.field, *roles.outputs)
        found = found.reshape(len(found), *(sizes[d] for d in dims))
        return [found.transpose([0, *(1 + dims.index(d) for d in self.form.results[0].dims)])]
