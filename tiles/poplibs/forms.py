"""Builders of forms: the domain and indexing maps of elementwise, reducing and contracting operations.

Pure functions of shapes; what they return is planned and placed by ``poputil.place``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiles.errors import InvalidGraph
from tiles.graph import REDUCTION, Affine, Dim, IndexMap, OpForm, along, identity_map

Shape = Sequence[int]
HERE = Affine(())
"""The index 0: an axis of one element, repeated along whatever the result has there."""


def broadcast_map(shape: Shape, result: Shape) -> IndexMap:
    """Return the map of an operand of ``shape`` read at ``result``'s points, aligned as numpy aligns them.

    Raises:
      InvalidGraph: the shapes do not broadcast.
    """
    lead = len(result) - len(shape)
    return placed_map(shape, tuple(range(lead, len(result))), result)


def placed_map(shape: Shape, dimensions: Sequence[int], result: Shape) -> IndexMap:
    """Return the map of an operand whose axis i lies along ``dimensions[i]``, repeated where its size is 1.

    Raises:
      InvalidGraph: an axis is neither of size 1 nor as long as its dimension.
    """
    if len(dimensions) != len(shape) or any(not 0 <= d < len(result) for d in dimensions):
        raise InvalidGraph(
            f"shape {tuple(shape)} cannot be placed along dimensions {tuple(dimensions)} of {tuple(result)}"
        )
    axes: list[Affine] = []
    for size, d in zip(shape, dimensions, strict=True):
        if size not in (1, result[d]):
            raise InvalidGraph(f"shape {tuple(shape)} does not broadcast to {tuple(result)}")
        axes.append(along(d) if size == result[d] and size != 1 else HERE)
    return IndexMap(tuple(axes))


def transpose_map(permutation: Sequence[int]) -> IndexMap:
    """Return the map of an operand whose axis ``permutation[d]`` lies along domain dimension d."""
    axes = [permutation.index(axis) for axis in range(len(permutation))]
    return IndexMap(tuple(along(d) for d in axes))


def slice_map(start: Shape, strides: Shape | None = None) -> IndexMap:
    """Return the map that reads from ``start`` in steps of ``strides``."""
    steps = strides or (1,) * len(start)
    return IndexMap(
        tuple(along(d, step, first) for d, (first, step) in enumerate(zip(start, steps, strict=True)))
    )


def reverse_map(shape: Shape, dimensions: Sequence[int]) -> IndexMap:
    """Return the map that reads backwards along ``dimensions``."""
    backwards = set(dimensions)
    return IndexMap(tuple(along(d, -1, n - 1) if d in backwards else along(d) for d, n in enumerate(shape)))


def pad_map(low: Shape, fill: float | int | bool) -> IndexMap:
    """Return the map of an operand with ``low`` elements of ``fill`` in front of it (negative: cut off)."""
    return IndexMap(tuple(along(d, 1, -count) for d, count in enumerate(low)), fill)


def map_form(shape: Shape, operands: Sequence[IndexMap], results: Sequence[IndexMap] | int = 1) -> OpForm:
    """Return an elementwise form over ``shape``.

    Args:
      shape: the domain.
      operands: one map per operand.
      results: a map per result, or how many results there are in the domain's own order.
    """
    dims = tuple(Dim(f"d{i}", int(size)) for i, size in enumerate(shape))
    if isinstance(results, int):
        results = (identity_map(len(dims)),) * results
    return OpForm(dims, tuple(operands), tuple(results))


def reduce_form(
    shape: Shape, dimensions: Sequence[int], operands: Sequence[IndexMap] | None = None
) -> OpForm:
    """Return a form that folds ``dimensions`` of a domain of ``shape``; the result keeps the others in order.

    Args:
      shape: the domain.
      dimensions: the ones folded.
      operands: a map per operand; one operand of the domain's shape by default.

    Raises:
      InvalidGraph: a dimension that does not exist, or twice the same.
    """
    folded = set(dimensions)
    if len(folded) != len(dimensions) or not folded <= set(range(len(shape))):
        raise InvalidGraph(f"cannot reduce dimensions {tuple(dimensions)} of shape {tuple(shape)}")
    dims = tuple(
        Dim(f"r{i}", int(size), REDUCTION) if i in folded else Dim(f"d{i}", int(size))
        for i, size in enumerate(shape)
    )
    kept = IndexMap(tuple(along(d) for d in range(len(shape)) if d not in folded))
    return OpForm(dims, tuple(operands) if operands is not None else (identity_map(len(shape)),), (kept,))


def dot_form(
    lhs_shape: Shape,
    rhs_shape: Shape,
    lhs_batch: Sequence[int],
    rhs_batch: Sequence[int],
    lhs_contract: Sequence[int],
    rhs_contract: Sequence[int],
) -> OpForm:
    """Return the form of a contraction: batches, free dimensions of lhs, of rhs, and contracted ones.

    Raises:
      InvalidGraph: dimensions that repeat, do not exist, or differ in size.
    """
    for shape, used in ((lhs_shape, (*lhs_batch, *lhs_contract)), (rhs_shape, (*rhs_batch, *rhs_contract))):
        if len(set(used)) != len(used) or any(not 0 <= d < len(shape) for d in used):
            raise InvalidGraph(f"dimensions {used} repeat or are not all dimensions of {tuple(shape)}")
    pairs = [*zip(lhs_batch, rhs_batch, strict=True), *zip(lhs_contract, rhs_contract, strict=True)]
    if any(lhs_shape[i] != rhs_shape[j] for i, j in pairs):
        raise InvalidGraph(f"sizes of {tuple(lhs_shape)} and {tuple(rhs_shape)} differ along {pairs}")
    lhs_free = [i for i in range(len(lhs_shape)) if i not in (*lhs_batch, *lhs_contract)]
    rhs_free = [i for i in range(len(rhs_shape)) if i not in (*rhs_batch, *rhs_contract)]
    dims: list[Dim] = []
    of_lhs: dict[int, int] = {}
    of_rhs: dict[int, int] = {}
    for n, (i, j) in enumerate(zip(lhs_batch, rhs_batch, strict=True)):
        of_lhs[i] = of_rhs[j] = len(dims)
        dims.append(Dim(f"b{n}", int(lhs_shape[i])))
    for n, i in enumerate(lhs_free):
        of_lhs[i] = len(dims)
        dims.append(Dim(f"m{n}", int(lhs_shape[i])))
    for n, j in enumerate(rhs_free):
        of_rhs[j] = len(dims)
        dims.append(Dim(f"n{n}", int(rhs_shape[j])))
    kept = len(dims)
    for n, (i, j) in enumerate(zip(lhs_contract, rhs_contract, strict=True)):
        of_lhs[i] = of_rhs[j] = len(dims)
        dims.append(Dim(f"k{n}", int(lhs_shape[i]), REDUCTION))
    maps = tuple(
        IndexMap(tuple(along(of[axis]) for axis in range(len(shape))))
        for of, shape in ((of_lhs, lhs_shape), (of_rhs, rhs_shape))
    )
    return OpForm(tuple(dims), maps, (identity_map(kept),))
