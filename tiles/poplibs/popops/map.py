"""The elementwise codelet: expressions, fills, iotas, broadcasts, transpositions and padding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jax import Array, lax

from tiles._jax_compat import broadcast_in_dim
from tiles.errors import InvalidGraph
from tiles.graph import Cell, Codelet, Cycles, Dim, Extents, OpForm, VertexCode, identity_map, register
from tiles.graph.hashing import hashed_once
from tiles.numerics.dtypes import is_float, itemsize
from tiles.poplibs.popops import elementwise_cycles
from tiles.poplibs.popops.expression import FUNCTIONS, NAMED, Body, body_dtypes, evaluate_body
from tiles.poplibs.popops.map_code import expression_code
from tiles.target import Target


@register
@hashed_once
@dataclass(frozen=True)
class Map(Codelet):
    """Evaluate an expression at every point of the domain.

    An empty body is a rearrangement: results are operands, moved as their indexing maps say.

    Args:
      body: rows of the expression, each ``(function, operand indices, attributes)``; an index counts the
        operands first, then the earlier rows.
      outputs: index of the value that each result takes.
      operand_dtypes: dtype of every operand.
      result_dtypes: dtype of every result.

    Raises:
      InvalidGraph: a malformed expression.
    """

    name: ClassVar[str] = "popops.Map"
    any_order: ClassVar[bool] = True
    is_pointwise: ClassVar[bool] = True

    body: Body
    outputs: tuple[int, ...]
    operand_dtypes: tuple[str, ...]
    result_dtypes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the expression against the dtypes."""
        dtypes = self.dtypes
        if any(not 0 <= i < len(dtypes) for i in self.outputs):
            raise InvalidGraph(
                f"outputs {self.outputs} are not among the {len(dtypes)} values of the expression"
            )
        found = tuple(dtypes[i] for i in self.outputs)
        if found != self.result_dtypes:
            raise InvalidGraph("the expression gives other dtypes", expected=self.result_dtypes, got=found)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of the operands and rows, in index order."""
        return body_dtypes(self.body, self.operand_dtypes)

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """Those of all operands."""
        return self.operand_dtypes

    @property
    def label(self) -> str:
        """Vertex type as PopLibs spells it, e.g. ``popops::BinaryOp<ADD,float>``."""
        return elementwise_cycles.vertex_name(self.body, self.outputs, self.operand_dtypes)

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the expression's values over the cell, axes in the order of each result's map."""
        aligned = [cell.align(k, x) for k, x in enumerate(operands)]
        values = evaluate_body(self.body, aligned, cell)
        return tuple(_place(cell, k, values[i]) for k, i in enumerate(self.outputs))

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the PopLibs estimate of the vertex; see ``elementwise_cycles``."""
        return elementwise_cycles.map_cycles(self.body, self.outputs, extents, target)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of the expression; operands in another order are rearranged before it."""
        return expression_code(self.body, self.outputs, extents, target, self.label)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count one operation per point for every arithmetic function of floats, transcendental ones too."""
        return body_flops(self.body, extents)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole groups of channels, or 64-bit accesses, along the innermost dimension of the results."""
        return channel_grains(form, self.operand_dtypes + self.result_dtypes, target)

    def may_overwrite(self, k: int) -> bool:
        """Every element is read before the result at its place is written."""
        return True

    def code_bytes(self, target: Target) -> int:
        """Estimate instructions: a fixed frame and the unrolled loop of every function (ASSUMED)."""
        return target.instruction_bytes * (48 + 12 * len(self.body))


@register
@hashed_once
@dataclass(frozen=True)
class Rearrange(Map):
    """Copy a tensor into the order, and to the tiles, that its plan says.

    It computes what a ``Map`` without a body computes, which goes on in the order of its operand.
    """

    name: ClassVar[str] = "popops.Rearrange"
    any_order: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """Vertex type, e.g. ``popops::Rearrange<float>``."""
        return f"popops::Rearrange<{elementwise_cycles.cpp_name(self.result_dtypes[0])}>"


def rearranging(shape: tuple[int, ...], dtype: str) -> tuple[OpForm, Codelet]:
    """Return the operation that rearranges a tensor."""
    dims = tuple(Dim(f"d{i}", size) for i, size in enumerate(shape))
    form = OpForm(dims, (identity_map(len(shape)),), (identity_map(len(shape)),))
    return form, Rearrange((), (0,), (dtype,), (dtype,))


def _place(cell: Cell, k: int, value: Array) -> Array:
    """Return a value of the domain's rank as result k of a cell."""
    if value.shape != cell.sizes:
        value = broadcast_in_dim(value, cell.sizes, range(len(cell.sizes)))
    order = cell.form.results[k].dims
    return value if order == tuple(range(value.ndim)) else lax.transpose(value, order)


def body_flops(body: Body, extents: Extents) -> np.ndarray:
    """Return floating-point operations of an expression over a cell, each value computed where it varies."""
    dtypes = body_dtypes(body, extents.operand_dtypes)
    varies = elementwise_cycles.dims_of_values(body, extents.form)
    total = np.zeros_like(extents.points)
    first_row = len(extents.operand_dtypes)
    for i, (name, arguments, attrs) in enumerate(body):
        taken = [dtypes[a] for a in arguments]
        each = _operations(name, taken, dict(attrs))
        if each:
            total = total + each * extents.product(sorted(varies[first_row + i]))
    return total


def _operations(name: str, dtypes: list[str], attrs: dict[str, Any]) -> int:
    """Return the floating-point operations of one value of a function, of all in it if it stands for several."""
    if name not in NAMED:
        return int(FUNCTIONS[name].is_arithmetic and is_float(dtypes[0]))
    known = body_dtypes(attrs["body"], tuple(dtypes))
    return sum(_operations(f, [known[a] for a in args], dict(more)) for f, args, more in attrs["body"])


CONTRACTED = ("float16", "float32")
"""Dtypes that the matrix units take as they are."""


def access_grains(form: OpForm, dtypes: tuple[str, ...], target: Target) -> tuple[int, ...]:
    """Return the multiple for each dimension: a whole data path along the innermost of the first result.

    Small dimensions stay free: parts of one access each would leave most tiles without work.
    """
    grains = [1] * len(form.dims)
    long = [d for d in form.results[0].dims if form.dims[d].size > 1] if form.results else []
    if long:
        innermost = long[-1]
        width = max(1, target.data_path_bytes // min(map(itemsize, dtypes)))
        if form.dims[innermost].size >= 2 * width:
            grains[innermost] = width
    return tuple(grains)


def channel_grains(form: OpForm, dtypes: tuple[str, ...], target: Target) -> tuple[int, ...]:
    """Return the multiple for each dimension: a group of channels that contractions read together along the innermost.

    Only where that leaves work for all tiles; else see ``access_grains``.
    """
    grains = list(access_grains(form, dtypes, target))
    kept = math.prod(form.dims[d].size for d in form.results[0].dims) if form.results else 0
    channels = max((target.weights_per_conv_unit(d) for d in dtypes if d in CONTRACTED), default=1)
    innermost = next((d for d, grain in enumerate(grains) if grain > 1), None)
    if innermost is not None and form.dims[innermost].size >= 2 * channels:
        if kept // channels >= target.num_tiles:
            grains[innermost] = max(grains[innermost], channels)
    return tuple(grains)
