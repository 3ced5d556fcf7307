"""Padding between elements, and padding that cuts off, written otherwise before XLA partitions a module.

The partitioner (jaxlib 0.10.2) computes other values where the result of a pad with interior padding, or negative low padding,
is cut and its operand is not, as in gradients of cumulative products; and it ends the process where a pad has both. Reshapes,
slices and padding at edges it gets right.
"""

# pyright: standard, reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

from typing import Any

from jax._src.interpreters import mlir as _mlir
from jax._src.lib.mlir.dialects import hlo as _hlo

from ipuxla.frontend._jax_compat.walking import operations


def pad_at_edges(module: Any) -> None:
    """Rewrite pads of an MLIR module of StableHLO that pad between elements or cut off. Hides MLIR's bindings."""
    with module.context:
        for op in [op for op in operations(module) if op.name == "stablehlo.pad"]:
            low, high, interior = _amounts(op)
            if any(interior) or min((*low, *high), default=0) < 0:
                _rewrite(op, low, high, interior)


def _amounts(op: Any) -> tuple[list[int], list[int], list[int]]:
    ir = _mlir.ir
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, interior = (list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in names)
    return low, high, interior


def _rewrite(op: Any, low: list[int], high: list[int], interior: list[int]) -> None:
    """Replace a pad: elements and what is between them, then what is cut off at the edges, then padding there.

    It stays where an edge cuts off more than there is.
    """
    ir = _mlir.ir
    operand, value = op.operands
    type_ = ir.RankedTensorType(operand.type)
    shape = list(type_.shape)
    between = [n if size > 1 else 0 for n, size in zip(interior, shape, strict=True)]
    spread = [size * (1 + n) for size, n in zip(shape, between, strict=True)]
    ends = [end - n for end, n in zip(high, between, strict=True)]
    start = [max(0, -begin) for begin in low]
    limit = [size - max(0, -end) for size, end in zip(spread, ends, strict=True)]
    if any(first > last for first, last in zip(start, limit, strict=True)):
        return
    rank, edges = len(shape), _mlir.dense_int_array

    def reshaped(x: Any, sizes: list[int]) -> Any:
        return _hlo.ReshapeOp(ir.RankedTensorType.get(sizes, type_.element_type), x).result

    with ir.InsertionPoint(op), op.location:
        made = operand
        if any(between):
            made = reshaped(made, [n for size in shape for n in (size, 1)])
            nothing = edges([0] * 2 * rank)
            behind = edges([n for amount in between for n in (0, amount)])
            made = _hlo.PadOp(made, value, nothing, behind, nothing).result
            made = reshaped(made, spread)
        if any(start) or limit != spread:
            made = _hlo.SliceOp(made, edges(start), edges(limit), edges([1] * rank)).result
        first, last = ([max(0, n) for n in amounts] for amounts in (low, ends))
        padded = _hlo.PadOp(made, value, edges(first), edges(last), edges([0] * rank))
        own = padded.operation.attributes
        for name in [name for name in op.attributes if name not in own]:  # a sharding, for instance
            own[name] = op.attributes[name]
    op.results[0].replace_all_uses_with(padded.result)
    op.erase()
