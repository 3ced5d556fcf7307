"""The reduction primitive."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tiles.errors import InvalidGraph
from tiles.graph import Graph, Plan, Site, Tensor, require_dimensions, require_tensors, site_of
from tiles.poplibs.forms import broadcast_map, reduce_form
from tiles.poplibs.popops.elementwise import broadcast_shape
from tiles.poplibs.popops.expr import Expr, rows_of
from tiles.poplibs.popops.expression import body_dtypes
from tiles.poplibs.popops.reduce import reduce_codelet
from tiles.poplibs.poputil.place import place


def reduce(
    where: Graph | Site,
    x: Tensor,
    dimensions: Seq[int],
    operation: str = "add",
    *,
    plan: Plan | None = None,
) -> Tensor:
    """Fold ``dimensions`` of a tensor; the result keeps the others and the dtype.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor.
      dimensions: the ones folded.
      operation: add, mul, max, min, and, or, xor.
      plan: use this plan instead of searching; it may split the folded dimensions.

    Raises:
      InvalidGraph: an unknown operation or dimension.
    """
    site = site_of(where, f"reduce_{operation}")
    require_tensors(site, x)
    require_dimensions(site, dimensions)
    codelet = reduce_codelet(operation, x.dtype)
    form = reduce_form(x.shape, dimensions)
    return place(site, codelet, form, [x], (x.dtype,), plan=plan)[0]


def map_reduce(
    where: Graph | Site,
    expression: Expr,
    operands: Seq[Tensor],
    dimensions: Seq[int],
    operation: str = "add",
    *,
    plan: Plan | None = None,
) -> Tensor:
    """Fold ``dimensions`` of an expression of broadcast tensors, in one step; arguments as in ``reduce``."""
    site = site_of(where, "map_reduce")
    require_tensors(site, *operands)
    require_dimensions(site, dimensions)
    dtypes = tuple(t.dtype for t in operands)
    body, (output,) = rows_of([expression], dtypes)
    if output != len(dtypes) + len(body) - 1:
        raise InvalidGraph(f"the expression leaves {len(dtypes) - 1} of its operands unused")
    dtype = body_dtypes(body, dtypes)[output]
    shape = broadcast_shape([t.shape for t in operands])
    form = reduce_form(shape, dimensions, [broadcast_map(t.shape, shape) for t in operands])
    codelet = reduce_codelet(operation, dtype, body, dtypes)
    return place(site, codelet, form, operands, (dtype,), plan=plan)[0]
