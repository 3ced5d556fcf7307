"""Rows that are folded and then moved, where the whole is moved too: a softmax over logits with an axis of one element.

``jax.nn.dot_product_attention`` and whatever else maps over an axis of one head takes the maximum of the logits as they are,
moves that axis to the front, in the maximum and in the logits, and goes on. Folded after the move, all of it is one softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import BroadcastInDim, Constant, Reduce, Transpose
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.base import LocalPass, map_control_regions
from hlo_passes.passes.rewriter import Rewriter

_MOST_DEPTH = 8
"""Operations between a fold and the move: a maximum with a constant, a sum's logarithm."""


@dataclass(frozen=True)
class JoinTransposes(LocalPass):
    """Fold what is transposed, instead of transposing what is folded, where axes of one element move and both are asked for."""

    name: ClassVar[str] = "join-transposes"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with such folds after the move; itself when it has none."""
        if Transpose not in computation.op_types or Reduce not in computation.op_types:
            return computation
        instructions = tuple(map_control_regions(i, self.change) for i in computation.instructions)
        if any(new is not old for new, old in zip(instructions, computation.instructions, strict=True)):
            computation = replace(computation, instructions=instructions)
        moved: dict[tuple[Value, tuple[int, ...]], Value] = {}

        def fold_later(instruction: Instruction, rewriter: Rewriter) -> Value | None:
            op, (x,) = instruction.op, instruction.operands
            # the walk goes into regions too, which are changed already
            if not isinstance(op, Transpose) or rewriter is not here:
                return None
            known = moved.get((x, op.permutation))
            if known is None and _moves_ones(op.permutation, x.type.shape):
                known = _moved(x, op.permutation, rewriter, moved, 0)
            return known

        here = Rewriter(computation, {Transpose: (fold_later,)})
        return here.run()


def _moves_ones(permutation: Sequence[int], shape: tuple[int, ...]) -> bool:
    """Whether the axes of several elements stay in order."""
    kept = [d for d in permutation if shape[d] != 1]
    return kept == sorted(kept)


def _moved(
    x: Value,
    permutation: tuple[int, ...],
    rewriter: Rewriter,
    moved: dict[tuple[Value, tuple[int, ...]], Value],
    depth: int,
) -> Value | None:
    """Return a value with its axes moved, computed from folds of what is moved so too; None if it comes from others."""
    known = moved.get((x, permutation))
    if known is not None:
        return known
    made = rewriter.maker(x)
    if made is None or depth == _MOST_DEPTH:
        return None
    op, shape = made.op, tuple(x.type.shape[d] for d in permutation)
    result = None
    if isinstance(op, Constant) and op.is_splat:
        result = rewriter.emit(replace(op, type=op.type.with_shape(shape)), location=made.location)
    elif isinstance(op, BroadcastInDim) and not op.broadcast_dimensions:
        result = rewriter.emit(BroadcastInDim(shape, ()), *made.operands, location=made.location)
    elif isinstance(op, Elementwise) and not op.num_regions:
        operands = [
            v if not v.type.rank else _moved(v, permutation, rewriter, moved, depth + 1)
            for v in made.operands
        ]
        if operands and None not in operands:
            result = rewriter.emit(op, *(v for v in operands if v is not None), location=made.location)
    elif isinstance(op, Reduce) and len(made.results) == 1:
        result = _folded(made, op, permutation, rewriter, moved)
    if result is not None:
        moved[x, permutation] = result
    return result


def _folded(
    made: Instruction,
    op: Reduce,
    permutation: tuple[int, ...],
    rewriter: Rewriter,
    moved: dict[tuple[Value, tuple[int, ...]], Value],
) -> Value | None:
    """Return a fold of what is transposed somewhere so that the result's axes are moved as they ought to be."""
    x, start = made.operands
    kept = [d for d in range(x.type.rank) if d not in op.dimensions]
    wanted = [kept[d] for d in permutation]
    for reader in rewriter.readers(x) or ():
        if isinstance(reader.op, Transpose):
            whole = reader.op.permutation
            if [d for d in whole if d in kept] == wanted and _moves_ones(whole, x.type.shape):
                if (x, whole) not in moved:
                    moved[x, whole] = rewriter.emit(Transpose(whole), x, location=reader.location)
                dimensions = tuple(place for place, d in enumerate(whole) if d in op.dimensions)
                (result,) = rewriter.emit_all(
                    replace(op, dimensions=dimensions), (moved[x, whole], start), made.regions, made.location
                )
                return result
    return None
