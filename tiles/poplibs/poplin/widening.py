"""Where operands that the multiply units do not take are widened: in the vertices that multiply, or before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tiles.graph import Sequence, Site, Tensor
from tiles.numerics.dtypes import is_narrow_float
from tiles.poplibs.poplin.matmul import partials_of
from tiles.poplibs.poplin.methods import stream_of
from tiles.poplibs.popops.elementwise import map as map_elements
from tiles.poplibs.popops.expr import arg, call


def choose_widening(
    site: Site,
    lhs: Tensor,
    rhs: Tensor,
    out_dtype: str,
    multiply: Callable[[Site, Tensor, Tensor], Tensor],
) -> Tensor:
    """Record products, and where their operands have to be widened a choice of where they are.

    Vertices widen what they hold, each its own copy of what others read, too. Widened before, every element is once, but
    has twice the bytes where it is exchanged and until it has been read.

    Args:
      site: where to add them.
      lhs: left operand.
      rhs: right operand.
      out_dtype: of the result.
      multiply: adds the products of two operands to a site.
    """
    stream = stream_of(lhs.dtype, partials_of(lhs.dtype, out_dtype), site.graph.target)
    wide, is_narrow = stream.dtype, is_narrow_float(lhs.dtype) and lhs.dtype == rhs.dtype
    if not is_narrow or not stream.units or wide == lhs.dtype:
        return multiply(site, lhs, rhs)

    def in_vertices(body: Sequence) -> tuple[Tensor, ...]:
        return (multiply(replace(site, sequence=body), lhs, rhs),)

    def before(body: Sequence) -> tuple[Tensor, ...]:
        own = replace(site, sequence=body)
        left = _widened(own.at("lhs"), lhs, wide)
        return (multiply(own, left, left if lhs is rhs else _widened(own.at("rhs"), rhs, wide)),)

    return site.graph.add_choice(site.name, (in_vertices, before), site.program, site.location)[0]


def _widened(site: Site, x: Tensor, dtype: str) -> Tensor:
    return map_elements(site, call("convert", arg(0), dtype=dtype, accumulates=True), [x])
