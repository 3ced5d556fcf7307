"""dot_general onto poplin."""

from __future__ import annotations

import math

from hlo_passes.ir import Instruction
from hlo_passes.ops import DotGeneral
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from tiles.graph import OpForm, Site, Tensor
from tiles.poplibs.forms import dot_form
from tiles.poplibs.poplin import choose_widening, place_contraction
from tiles.poplibs.poplin.matmul import matmul_codelet


def place_dot(
    lowering: Lowering,
    instruction: Instruction,
    lhs: Tensor,
    rhs: Tensor,
    location: str,
) -> Tensor:
    """Place a contraction.

    Raises:
      UnsupportedLowering: it asks for an algorithm of several products.
    """
    op = instruction.op
    assert isinstance(op, DotGeneral)
    if op.algorithm is not None:
        raise UnsupportedLowering(
            "dot_general with an explicit algorithm",
            location=location,
            try_="precision=None, or convert the operands",
        )
    form, out = _contraction(instruction)

    def multiply(site: Site, lhs: Tensor, rhs: Tensor) -> Tensor:
        return place_contraction(site, matmul_codelet(lhs.dtype, rhs.dtype, out), form, [lhs, rhs], out)

    products = math.prod(dim.size for dim in form.dims if dim.is_reduced)
    return choose_widening(lowering.site(location, "dot"), lhs, rhs, out, multiply, products)


def _contraction(instruction: Instruction) -> tuple[OpForm, str]:
    """Return the form and the result's dtype of a dot_general."""
    op = instruction.op
    assert isinstance(op, DotGeneral)
    n, (lhs, rhs) = op.dimension_numbers, (v.type for v in instruction.operands)
    form = dot_form(
        lhs.shape, rhs.shape, n.lhs_batching, n.rhs_batching, n.lhs_contracting, n.rhs_contracting
    )
    return form, dtype_of(instruction.result.type)


@lowers(DotGeneral)
def lower_dot(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Lower a lone contraction."""
    lhs, rhs = (lowering.tensor(v) for v in instruction.operands)
    return (place_dot(lowering, instruction, lhs, rhs, where(instruction)),)
