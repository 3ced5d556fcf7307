"""Primitives that place contractions."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

from tiles.errors import InvalidGraph
from tiles.graph import Graph, Plan, Site, Tensor, site_of
from tiles.poplibs.forms import dot_form
from tiles.poplibs.poplin.matmul import matmul_codelet
from tiles.poplibs.poplin.widening import choose_widening, place_contraction

DimensionNumbers = tuple[tuple[Seq[int], Seq[int]], tuple[Seq[int], Seq[int]]]
"""``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``, as in JAX."""


def dot_general(
    where: Graph | Site,
    lhs: Tensor,
    rhs: Tensor,
    dimension_numbers: DimensionNumbers,
    *,
    out_dtype: str | None = None,
    method: str = "auto",
    plan: Plan | None = None,
) -> Tensor:
    """Sum products over contracting dimensions; the result has batch, free lhs, then free rhs dimensions.

    Args:
      where: graph, or site in it, to add to.
      lhs: left operand.
      rhs: right operand, of the same dtype.
      dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``.
      out_dtype: dtype of the result, that of the operands by default; 16-bit floats are added in float32.
      method: "auto", or one of ``poplin.METHODS``.
      plan: use this plan instead of searching; it may split contracted dimensions.

    Raises:
      InvalidGraph: dimensions or dtypes that do not fit.
    """
    site = site_of(where, "dot_general")
    if lhs.dtype != rhs.dtype:
        raise InvalidGraph(f"cannot multiply {lhs.dtype} with {rhs.dtype}; cast one operand first")
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    form = dot_form(lhs.shape, rhs.shape, lhs_batch, rhs_batch, lhs_contract, rhs_contract)
    out = out_dtype or lhs.dtype

    def multiply(site: Site, lhs: Tensor, rhs: Tensor) -> Tensor:
        codelet = matmul_codelet(lhs.dtype, rhs.dtype, out, method)
        return place_contraction(site, codelet, form, [lhs, rhs], out, plan)

    is_free = method == "auto" and plan is None
    products = math.prod(dim.size for dim in form.dims if dim.is_reduced)
    return choose_widening(site, lhs, rhs, out, multiply, products) if is_free else multiply(site, lhs, rhs)


def matmul(
    where: Graph | Site,
    lhs: Tensor,
    rhs: Tensor,
    *,
    out_dtype: str | None = None,
    method: str = "auto",
    plan: Plan | None = None,
) -> Tensor:
    """Multiply ``[..., m, k]`` with ``[..., k, n]``; leading dimensions are batches. See ``dot_general``.

    Raises:
      InvalidGraph: fewer than two dimensions, or shapes that do not fit.
    """
    site = site_of(where, "matmul")
    rank = len(lhs.shape)
    if rank < 2 or len(rhs.shape) != rank:
        raise InvalidGraph(
            f"matmul takes two tensors of one rank of at least 2, got {lhs.shape} and {rhs.shape}"
        )
    batch = tuple(range(rank - 2))
    numbers: DimensionNumbers = (((rank - 1,), (rank - 2,)), (batch, batch))
    return dot_general(
        site,
        lhs,
        rhs,
        numbers,
        out_dtype=out_dtype,
        method=method,
        plan=plan,
    )
