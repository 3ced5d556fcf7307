"""Where operands that the multiply units do not take are widened: in the vertices that multiply, or before."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import reduce
from operator import add

from tiles.graph import OpForm, Plan, Sequence, Site, Tensor, along
from tiles.numerics.dtypes import is_narrow_float
from tiles.plan.serial import SerialSplit
from tiles.poplibs.poplin.conv import Convolution
from tiles.poplibs.poplin.matmul import MatMul, partials_of
from tiles.poplibs.poplin.methods import HELD, holds_integers, stream_of
from tiles.poplibs.popops.elementwise import map as map_elements
from tiles.poplibs.popops.expr import arg, call
from tiles.poplibs.poputil.place import place
from tiles.target import Target

MOST_PARTS = 16
"""Parts of sums of integers, of as many products each as are exact, that are added up after."""

Multiply = Callable[[Site, Tensor, Tensor], Tensor]


def choose_widening(
    site: Site, lhs: Tensor, rhs: Tensor, out_dtype: str, multiply: Multiply, products: int | None
) -> Tensor:
    """Record products, and where their operands have to be widened a choice of where they are.

    Vertices widen what they hold, each its own copy of what others read, too. Widened before, every element is once, but
    has twice the bytes where it is exchanged and until it has been read.

    Args:
      site: where to add them.
      lhs: left operand.
      rhs: right operand.
      out_dtype: of the result.
      multiply: adds the products of two operands to a site, by ``place_contraction``.
      products: how many a result adds up; None where they cannot be cut into parts.
    """
    stream = stream_of(lhs.dtype, partials_of(lhs.dtype, out_dtype), site.graph.target)
    wide = stream.dtype
    may_widen = lhs.dtype == rhs.dtype and stream.units and wide != lhs.dtype
    is_exact = lhs.dtype == HELD and products is not None and products <= stream.most_inputs * MOST_PARTS
    if not may_widen or not (is_narrow_float(lhs.dtype) or is_exact):
        return multiply(site, lhs, rhs)

    def in_vertices(body: Sequence) -> tuple[Tensor, ...]:
        return (multiply(replace(site, sequence=body), lhs, rhs),)

    def before(body: Sequence) -> tuple[Tensor, ...]:
        own = replace(site, sequence=body)
        left = _widened(own.at("lhs"), lhs, wide)
        return (multiply(own, left, left if lhs is rhs else _widened(own.at("rhs"), rhs, wide)),)

    return site.graph.add_choice(site.name, (in_vertices, before), site.program, site.location)[0]


def place_contraction(
    site: Site,
    codelet: MatMul | Convolution,
    form: OpForm,
    operands: Seq[Tensor],
    out_dtype: str,
    plan: Plan | None = None,
) -> Tensor:
    """Place a contraction; where halves hold integers, in parts whose sums are exact each, and add these up.

    Args:
      site: where to add it.
      codelet: the contraction.
      form: its form.
      operands: the two tensors.
      out_dtype: of the result.
      plan: of each part; by default it is searched.
    """
    parts = [
        place(site, codelet, part, operands, (out_dtype,), plan=plan)[0]
        for part in _exact_parts(codelet, form, site.graph.target)
    ]
    if len(parts) == 1:
        return parts[0]
    return map_elements(site.at("sum"), reduce(add, map(arg, range(len(parts)))), parts)


def _exact_parts(codelet: MatMul | Convolution, form: OpForm, target: Target) -> list[OpForm]:
    """Return the forms of parts that add up as many products each as are exact: of some contracted elements, or channels."""
    if not holds_integers(codelet.operand_dtypes[0], codelet.accumulate_dtype):
        return [form]
    stream = stream_of(codelet.operand_dtypes[0], codelet.accumulate_dtype, target)
    products = math.prod(dim.size for dim in form.dims if dim.is_reduced)
    if products <= stream.most_inputs:
        return [form]
    d = max(
        (
            d
            for d, dim in enumerate(form.dims)
            if all(along(d) in m.axes for m in form.operands) and dim.is_reduced
        ),
        key=lambda d: form.dims[d].size,
    )
    extent = stream.most_inputs * form.dims[d].size // products
    return SerialSplit(d, max(1, extent // stream.channels * stream.channels or extent)).forms(form)


def _widened(site: Site, x: Tensor, dtype: str) -> Tensor:
    return map_elements(site, call("convert", arg(0), dtype=dtype, accumulates=True), [x])
