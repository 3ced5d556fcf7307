"""dot_general onto poplin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hlo_passes.ir import Instruction
from hlo_passes.ops import DotGeneral
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from tiles.graph import Layout, OpForm, Tensor
from tiles.plan import Operand, home_layout, search
from tiles.poplibs.forms import dot_form
from tiles.poplibs.poplin.matmul import MatMul, matmul_codelet
from tiles.poplibs.poputil.place import place


def place_dot(
    lowering: Lowering,
    instruction: Instruction,
    lhs: Tensor,
    rhs: Tensor,
    location: str,
    beside: Sequence[Tensor] = (),
) -> Tensor:
    """Place a contraction; ``beside`` is read later together with its result (see ``poputil.place``).

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
    form, codelet, out = _contraction(instruction)
    return place(
        lowering.graph,
        codelet,
        form,
        [lhs, rhs],
        (out,),
        "dot",
        location,
        program=lowering.program,
        beside=beside,
    )[0]


def _contraction(instruction: Instruction) -> tuple[OpForm, MatMul, str]:
    """Return the form, the codelet and the result's dtype of a dot_general."""
    op = instruction.op
    assert isinstance(op, DotGeneral)
    n, (lhs, rhs) = op.dimension_numbers, (v.type for v in instruction.operands)
    form = dot_form(
        lhs.shape, rhs.shape, n.lhs_batching, n.rhs_batching, n.lhs_contracting, n.rhs_contracting
    )
    out = dtype_of(instruction.result.type)
    return form, matmul_codelet(dtype_of(lhs), dtype_of(rhs), out), out


def preferred_layout(lowering: Lowering, instruction: Instruction, k: int) -> Layout:
    """Return the layout in which operand ``k`` of a dot_general would wait, if nothing lay anywhere yet."""
    graph, types = lowering.graph, [v.type for v in instruction.operands]
    form, codelet, out = _contraction(instruction)
    free = [Operand(type_.shape, dtype_of(type_), None) for type_ in types]
    plan = search(form, codelet, free, (out,), graph.target)[0].plan
    plan = replace(plan, base=graph.rotated_base(int(plan.tiles.max()) + 1))
    return home_layout(form, plan, k, types[k].shape, dtype_of(types[k]), graph.target)


@lowers(DotGeneral)
def lower_dot(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Lower a lone contraction."""
    lhs, rhs = (lowering.tensor(v) for v in instruction.operands)
    beside = lowering.met_tensors(instruction.result)
    return (place_dot(lowering, instruction, lhs, rhs, where(instruction), beside),)
