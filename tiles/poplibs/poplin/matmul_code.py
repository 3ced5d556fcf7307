"""Tile code of matrix products on the multiply units: a panel of weights after the other, each over all positions.

Operands lie as ``matmul_orders`` says: inputs and results in groups of channels, position by position, weights in panels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tiles.elements import InstructionSet, instructions_for
from tiles.graph import Extents, VertexCode
from tiles.poplibs.poplin.dots_code import MatrixDots, MatrixVectors, RowExtents, same_dtype, vector_width
from tiles.poplibs.poplin.matmul_cycles import Roles, Shape, chosen_ways, roles_of, shape_of
from tiles.poplibs.poplin.methods import grouped, streamed_dtype
from tiles.poplibs.poplin.outer_code import MatrixOuter
from tiles.poplibs.poplin.product_kernel import Counts, Products
from tiles.poplibs.poplin.units_code import (
    code_by_method,
    extent_of,
    filled_up,
    in_floats,
    in_order,
    streamed_product,
    weights_bits,
)
from tiles.poplibs.poplin.widening_code import widened
from tiles.target import Target


def matmul_code(
    method: str,
    accumulate: str,
    out_dtype: str,
    extents: Extents,
    target: Target,
    may_swap: bool,
    name: str,
) -> tuple[VertexCode, ...]:
    """Return the code of vertices that multiply on the units; others of the same operation run none.

    Arguments as of ``matmul_cycles``, and the name of the variants.

    Raises:
      NoTileCode: no vertex does, or the units do not take these dtypes as they are.
    """
    isa = instructions_for(target)
    methods, swapped = chosen_ways(method, accumulate, extents, target, may_swap)
    shape = shape_of(extents, accumulate, target, may_swap)
    cells = np.shape(shape.inputs)
    is_there = np.asarray(extents.points) > 0
    ways = {way: (methods == way).reshape(cells) & is_there for way in np.unique(methods).tolist()}

    def code(way: str, does: np.ndarray) -> Iterator[VertexCode]:
        if way == "amp":
            turned = swapped.reshape(cells)
            return _on_units(isa, accumulate, out_dtype, extents, target, does, turned, shape, name)
        return _off_units(isa, way, accumulate, out_dtype, extents, does, shape, name)

    return code_by_method(ways, code, "products")


def _on_units(
    isa: InstructionSet,
    accumulate: str,
    out_dtype: str,
    extents: Extents,
    target: Target,
    does: np.ndarray,
    swapped: np.ndarray,
    shape: Shape,
    name: str,
) -> Iterator[VertexCode]:
    dtype = streamed_dtype(extents.operand_dtypes)
    product = streamed_product(dtype, accumulate, target)
    for is_swapped in (False, True):
        ways, own = shape.swapped if is_swapped else shape, does & (swapped == is_swapped)
        if own.any():
            outputs = -(-ways.outputs // product.outputs)
            inputs = ways.input_groups(product.inputs)
            counts = Counts(ways.groups, ways.positions, ways.outputs, outputs, inputs)
            kernel = _Matrices(extents.form, product, out_dtype, is_swapped)
            parts = kernel.parts(isa, weights_bits(target), own, counts, name)
            yield from in_floats(widened(parts, dtype, product.dtype, extents, isa, name), accumulate)


def _off_units(
    isa: InstructionSet,
    way: str,
    accumulate: str,
    out_dtype: str,
    extents: Extents,
    does: np.ndarray,
    shape: Shape,
    name: str,
) -> Iterator[VertexCode]:
    """Yield the code of dot products, of products side by side, and of outer products."""
    dtype, form = same_dtype(extents.operand_dtypes), extents.form
    if way == "outer":
        outer = MatrixOuter(form, dtype, accumulate, out_dtype)
        return outer.parts(isa, does, shape.groups, shape.positions, shape.outputs, name)
    if way == "vmac":
        kernel = MatrixVectors(form, dtype, accumulate, out_dtype, vector_width(shape.groups, does))
        vectors = -(-shape.groups // kernel.width)
        return kernel.parts(isa, does, RowExtents(shape.inputs, vectors), name)
    kernel = MatrixDots(form, dtype, accumulate, out_dtype)
    n = -(-shape.inputs // kernel.per_access)
    rows = shape.groups * shape.positions * shape.outputs
    return kernel.parts(isa, does, RowExtents(n, rows), name)


@dataclass(frozen=True)
class _Matrices(Products):
    """Products of matrices; where ``is_swapped`` the left operand is the weights."""

    is_swapped: bool

    @property
    def roles(self) -> Roles:
        """The roles of the domain's dimensions; grouped channels are the last contracted ones."""
        found = roles_of(self.form)
        last = grouped(self.form, found.contracted, self.product.inputs)
        others = tuple(d for d in found.contracted if d != last)
        contracted = others if last is None else (*others, last)
        return Roles(found.batch, found.lhs_free, found.rhs_free, contracted)

    @property
    def kept(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """See ``Products``."""
        roles = self.roles
        positions, outputs = roles.lhs_free, roles.rhs_free
        return (roles.batch, outputs, positions) if self.is_swapped else (roles.batch, positions, outputs)

    def counts(self, sizes: Sequence[int]) -> Counts:
        """See ``Products``."""
        groups, positions, outputs = (extent_of(sizes, dims) for dims in self.kept)
        contracted, p = self.roles.contracted, self.product
        last = sizes[contracted[-1]] if contracted else 1
        inputs = extent_of(sizes, contracted[:-1]) * -(-last // p.inputs)
        return Counts(groups, positions, outputs, -(-outputs // p.outputs), inputs)

    def channels(self, sizes: Sequence[int], operands: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """See ``Products``."""
        groups, *free = self.kept
        found: list[np.ndarray] = []
        for k, dims in zip((int(self.is_swapped), int(not self.is_swapped)), free, strict=True):
            contracted = self.roles.contracted
            x = in_order(operands[k], self.form, k, (*groups, *dims, *contracted))
            shape = len(x), extent_of(sizes, groups), extent_of(sizes, dims)
            last = sizes[contracted[-1]] if contracted else 1
            whole = filled_up(x.reshape(*shape, -1, last), 4, self.product.inputs)
            found.append(whole.reshape(*shape, whole.shape[3] * whole.shape[4]))
        return found[0], found[1]
