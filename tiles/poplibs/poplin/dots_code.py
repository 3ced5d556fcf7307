"""Tile code of contractions and convolutions off the multiply units: dot products, products side by side, outer products.

Whatever the operation, a kernel says of every row of results where its operands begin in memory (``Places``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product as pairs

import numpy as np

from tiles.elements import (
    InstructionSet,
)
from tiles.elements.cell import ACCESS_BYTES
from tiles.elements.dots import HALVES_AT_ONCE, STEPS_AHEAD
from tiles.elements.variants import existing
from tiles.errors import NoTileCode
from tiles.graph import OpForm, VertexCode
from tiles.graph.cycles import CodeMemory, Field
from tiles.numerics.dtypes import is_float, itemsize
from tiles.numerics.shared import Amount
from tiles.poplibs.poplin.conv_cycles import conv_roles
from tiles.poplibs.poplin.dots_variants import (
    compiled_dots,
    compiled_vertical,
    dots_variant,
    step_cell,
    vertical_variant,
)
from tiles.poplibs.poplin.fields import Geometry, geometry_of, held_fields
from tiles.poplibs.poplin.matmul_cycles import roles_of
from tiles.poplibs.poplin.product_kernel import cast_parts
from tiles.poplibs.poplin.units_code import (
    CAST,
    INPUTS,
    SUMS,
    WEIGHTS,
    extent_of,
    filled_up,
    in_order,
    in_words,
)

PLACES, STEPS = "places", "at"


def same_dtype(dtypes: Sequence[str]) -> str:
    """Return the dtype of both operands.

    Raises:
      NoTileCode: they have none in common.
    """
    first, second = dtypes
    if first != second:
        raise NoTileCode(f"products of {first} and {second} off the multiply units")
    return first


def vector_width(groups: Amount, does: np.ndarray) -> int:
    """Return how many channels vertices multiply side by side: the most that the narrowest of them fills."""
    least = int(np.asarray(groups)[does].min(initial=HALVES_AT_ONCE[-1]))
    return max((width for width in HALVES_AT_ONCE if width <= least), default=HALVES_AT_ONCE[0])


@dataclass(frozen=True)
class RowExtents:
    """Extents of cells' rows of results; numbers or arrays.

    Args:
      n: accesses that a row reads of an operand, or vectors side by side that are added up.
      rows: of results, or of vectors of them.
      later: runs that add to the first one's results.
    """

    n: Amount
    rows: Amount
    later: Amount = 0


@dataclass(frozen=True)
class Places:
    """What cells of an operation have in memory for sums of products: a ``Kernel``.

    Attributes:
      form: the operation.
      dtype: of the operands.
      sums_dtype: dtype of the sums.
      out_dtype: dtype of results.
      width: channels that lie side by side, each with a sum of its own; 0 where they are added up.
    """

    form: OpForm
    dtype: str
    sums_dtype: str
    out_dtype: str
    width: int = 0

    @property
    def accesses(self) -> int:
        """Accesses of a vector of channels side by side."""
        return self.width * itemsize(self.dtype) // ACCESS_BYTES

    @property
    def per_access(self) -> int:
        """Channels of an access."""
        return ACCESS_BYTES // itemsize(self.dtype)

    def in_place(self, sizes: Sequence[int], operands: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return both operands as they lie, ``[cells, ...]``."""
        raise NotImplementedError

    def places(self, sizes: Sequence[int]) -> np.ndarray:
        """Return where the operands of every row of results begin, in accesses: ``[2, rows]``."""
        raise NotImplementedError

    def steps(self, sizes: Sequence[int]) -> np.ndarray:
        """Return where what is added up lies, in bytes from a row's first vector on; of channels side by side."""
        raise NotImplementedError

    def in_form(self, sizes: Sequence[int], found: np.ndarray) -> np.ndarray:
        """Return the codelet's result from rows in memory, ``[cells, rows]`` or ``[cells, rows, width]``."""
        raise NotImplementedError

    def turns(self, is_first: bool, sizes: tuple[int, ...]) -> list[dict[str, Field]]:
        """Return the fields of the first run on a cell, or of all later ones, which add to its results."""
        del sizes
        return [self.fields(0, 0)] if is_first else []

    def fields(self, at: int, weights: int) -> dict[str, Field]:
        """Return the fields of a run whose operands begin some bytes from where they lie."""
        found: dict[str, Field] = {"in0": (INPUTS, at), "in1": (WEIGHTS, weights), "out0": SUMS}
        return found | {PLACES: PLACES} | ({STEPS: STEPS} if self.width else {})

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        x, w = (np.ascontiguousarray(found) for found in self.in_place(sizes, operands))
        is_ring = x.dtype.kind == "u" and is_float(self.dtype)
        places = self.places(sizes).T.astype(np.uint32) * np.uint32(ACCESS_BYTES)
        shape = (len(places), self.width) if self.width else (len(places),)
        same = {PLACES: places, SUMS: np.zeros(shape, in_words(self.sums_dtype, is_ring))}
        if self.width:
            same[STEPS] = np.append(self.steps(sizes), np.zeros(STEPS_AHEAD)).astype(np.uint32)
        if self.out_dtype != self.sums_dtype:
            same[CAST] = np.zeros(shape, in_words(self.out_dtype, is_ring))
        memory = {name: np.broadcast_to(found, (len(x), *found.shape)) for name, found in same.items()}
        return memory | {INPUTS: x, WEIGHTS: w}, {}

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        return [self.in_form(sizes, memory[SUMS if self.out_dtype == self.sums_dtype else CAST])]

    def parts(
        self, isa: InstructionSet, does: np.ndarray, extents: RowExtents, name: str
    ) -> Iterator[VertexCode]:
        """Yield the code of vertices.

        Args:
          isa: the instruction set.
          does: which cells run it.
          extents: of every cell.
          name: of the variants.
        """
        for is_first, runs in ((True, 1), (False, extents.later)):
            count = np.where(does, runs, 0)
            if not is_first and not count.any():
                continue
            if self.width:
                variant = vertical_variant(isa, self.dtype, self.width)
                compiled = partial(compiled_vertical, self.width)
            else:
                variant = dots_variant(isa, self.dtype, self.sums_dtype, not is_first)
                compiled = partial(compiled_dots, not is_first)
            yield VertexCode(
                existing(variant).named(name),
                extents.n,
                extents.rows,
                count,
                cell=partial(step_cell, self.dtype, self.sums_dtype),
                kernel=self,
                compiled=compiled,
                turn=partial(self.turns, is_first),
                interleaved=(INPUTS, WEIGHTS) if self.width else (WEIGHTS,),
            )
        yield from cast_parts(isa, self, does, np.asarray(extents.rows) * (self.width or 1), name)


def _in_order_of(form: OpForm, sizes: Sequence[int], dims: Sequence[int], found: np.ndarray) -> np.ndarray:
    """Return a result ``[cells, ...]`` whose elements are in the order of some dimensions, in its own order."""
    found = found.reshape(len(found), *(sizes[d] for d in dims))
    return found.transpose([0, *(1 + dims.index(d) for d in form.results[0].dims)])


class MatrixDots(Places):
    """Dot products of a product of matrices."""

    def _counts(self, sizes: Sequence[int]) -> tuple[int, int, int, int]:
        """Return batches, rows, columns, and accesses of what is contracted."""
        roles = roles_of(self.form)
        dims = (roles.batch, roles.lhs_free, roles.rhs_free, roles.contracted)
        batches, rows, columns, contracted = (extent_of(sizes, d) for d in dims)
        return batches, rows, columns, -(-contracted // self.per_access)

    def in_place(self, sizes: Sequence[int], operands: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """See ``Places``."""
        roles = roles_of(self.form)
        found: list[np.ndarray] = []
        for k, free in enumerate((roles.lhs_free, roles.rhs_free)):
            x = in_order(operands[k], self.form, k, (*roles.batch, *free, *roles.contracted))
            x = x.reshape(len(x), -1, extent_of(sizes, roles.contracted))
            found.append(filled_up(x, 2, self.per_access))
        return found[0], found[1]

    def places(self, sizes: Sequence[int]) -> np.ndarray:
        """See ``Places``."""
        batches, rows, columns, accesses = self._counts(sizes)
        batch, row, column = np.indices((batches, rows, columns)).reshape(3, -1)
        return np.stack([batch * rows + row, batch * columns + column]) * accesses

    def in_form(self, sizes: Sequence[int], found: np.ndarray) -> np.ndarray:
        """See ``Places``."""
        roles = roles_of(self.form)
        return _in_order_of(self.form, sizes, (*roles.batch, *roles.lhs_free, *roles.rhs_free), found)


class MatrixVectors(Places):
    """Batches of single dot products, which lie side by side."""

    def in_place(self, sizes: Sequence[int], operands: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """See ``Places``."""
        roles = roles_of(self.form)
        found: list[np.ndarray] = []
        for k, free in enumerate((roles.lhs_free, roles.rhs_free)):
            x = in_order(operands[k], self.form, k, (*roles.contracted, *roles.batch, *free))
            x = x.reshape(len(x), -1, extent_of(sizes, roles.batch))
            found.append(_side_by_side(x, 2, self.width).transpose(0, 2, 1, 3))
        return found[0], found[1]

    def places(self, sizes: Sequence[int]) -> np.ndarray:
        """See ``Places``."""
        roles = roles_of(self.form)
        vectors = np.arange(-(-extent_of(sizes, roles.batch) // self.width))
        return np.stack([vectors, vectors]) * extent_of(sizes, roles.contracted) * self.accesses

    def steps(self, sizes: Sequence[int]) -> np.ndarray:
        """See ``Places``."""
        return np.arange(extent_of(sizes, roles_of(self.form).contracted)) * self.accesses * ACCESS_BYTES

    def in_form(self, sizes: Sequence[int], found: np.ndarray) -> np.ndarray:
        """See ``Places``."""
        roles = roles_of(self.form)
        found = found.reshape(len(found), -1)[:, : extent_of(sizes, roles.batch)]
        return _in_order_of(self.form, sizes, (*roles.batch, *roles.lhs_free, *roles.rhs_free), found)


def _side_by_side(x: np.ndarray, axis: int, width: int) -> np.ndarray:
    """Return an array with an axis as ``[vectors, width]``."""
    x = filled_up(x, axis, width)
    return x.reshape(*x.shape[:axis], -1, width, *x.shape[axis + 1 :])


def _rows_of(geometry: Geometry) -> np.ndarray:
    """Return where the windows of a cell begin, in elements of all fields that it holds: ``[positions]``."""
    index = np.indices((geometry.batch, *geometry.field)).reshape(1 + len(geometry.field), -1)
    at = index[0]
    for i, stride, reach in zip(index[1:], geometry.strides, geometry.reach, strict=True):
        at = at * reach + i * stride
    return at


class FieldDots(Places):
    """Dot products of a convolution: over channels, of as many taps of a row as lie together."""

    def _run(self, geometry: Geometry) -> int:
        """Return taps that lie together."""
        return geometry.taps[-1] if geometry.dilations[-1] == 1 else 1

    def _channels(self, sizes: Sequence[int]) -> int:
        """Return the accesses of a position's channels."""
        return -(-extent_of(sizes, conv_roles(self.form).inputs) // self.per_access)

    def in_place(self, sizes: Sequence[int], operands: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """See ``Places``."""
        roles, g = conv_roles(self.form), geometry_of(self.form, sizes)
        x = np.moveaxis(held_fields(operands[0], self.form, sizes, g, self.per_access), 2, -1)
        w = in_order(operands[1], self.form, 1, (*roles.groups, *roles.outputs, *roles.taps, *roles.inputs))
        outputs = extent_of(sizes, (*roles.groups, *roles.outputs))
        w = filled_up(w.reshape(len(w), outputs, math.prod(g.taps), -1), 3, self.per_access)
        w = w.reshape(len(w), outputs, math.prod(g.taps) // self._run(g), -1)
        return x, w.transpose(0, 2, 1, 3)

    def places(self, sizes: Sequence[int]) -> np.ndarray:
        """See ``Places``."""
        roles, g = conv_roles(self.form), geometry_of(self.form, sizes)
        groups, outputs = (extent_of(sizes, d) for d in (roles.groups, roles.outputs))
        windows, channels = _rows_of(g), self._channels(sizes)
        group, position, output = np.indices((groups, len(windows), outputs)).reshape(3, -1)
        x = group * g.batch * math.prod(g.reach) + windows[position]
        return np.stack([x, (group * outputs + output) * self._run(g)]) * channels

    def turns(self, is_first: bool, sizes: tuple[int, ...]) -> list[dict[str, Field]]:
        """See ``Places``: a run for the taps that lie together."""
        roles, g = conv_roles(self.form), geometry_of(self.form, sizes)
        run, channels = self._run(g), self._channels(sizes) * ACCESS_BYTES
        outputs = extent_of(sizes, (*roles.groups, *roles.outputs))
        firsts = list(pairs(*(range(t) for t in g.taps[:-1]), range(0, g.taps[-1], run)))
        found: list[dict[str, Field]] = []
        for number, index in list(enumerate(firsts))[:1] if is_first else list(enumerate(firsts))[1:]:
            at = g.place([i * d for i, d in zip(index, g.dilations, strict=True)])
            found.append(self.fields(at * channels, number * outputs * run * channels))
        return found

    def in_form(self, sizes: Sequence[int], found: np.ndarray) -> np.ndarray:
        """See ``Places``."""
        roles = conv_roles(self.form)
        dims = (*roles.groups, *roles.batch, *roles.field, *roles.outputs)
        return _in_order_of(self.form, sizes, dims, found)


class FieldVectors(Places):
    """A convolution of channels of their own, which lie side by side."""

    def in_place(self, sizes: Sequence[int], operands: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """See ``Places``."""
        roles, g = conv_roles(self.form), geometry_of(self.form, sizes)
        x = held_fields(operands[0], self.form, sizes, g, 1)[:, :, 0]
        x = np.moveaxis(_side_by_side(x, 1, self.width), 2, -1)
        w = in_order(operands[1], self.form, 1, (*roles.taps, *roles.groups, *roles.outputs, *roles.inputs))
        w = _side_by_side(w.reshape(len(w), math.prod(g.taps), -1), 2, self.width)
        return x, w.transpose(0, 2, 1, 3)

    def places(self, sizes: Sequence[int]) -> np.ndarray:
        """See ``Places``."""
        g = geometry_of(self.form, sizes)
        windows, vectors = _rows_of(g), -(-extent_of(sizes, conv_roles(self.form).groups) // self.width)
        position, vector = np.indices((len(windows), vectors)).reshape(2, -1)
        x = vector * g.batch * math.prod(g.reach) + windows[position]
        return np.stack([x, vector * math.prod(g.taps)]) * self.accesses

    def steps(self, sizes: Sequence[int]) -> np.ndarray:
        """See ``Places``."""
        g = geometry_of(self.form, sizes)
        at = 0
        for i, dilation, reach in zip(np.indices(g.taps), g.dilations, g.reach, strict=True):
            at = at * reach + i * dilation
        return np.asarray(at).reshape(-1) * self.accesses * ACCESS_BYTES

    def in_form(self, sizes: Sequence[int], found: np.ndarray) -> np.ndarray:
        """See ``Places``."""
        roles = conv_roles(self.form)
        groups = extent_of(sizes, roles.groups)
        positions = extent_of(sizes, (*roles.batch, *roles.field))
        found = found.reshape(len(found), positions, -1)[..., :groups]
        dims = (*roles.batch, *roles.field, *roles.groups, *roles.outputs)
        return _in_order_of(self.form, sizes, dims, found)
