"""Numbers without a state, as bits from a constant state and arithmetic on them; see ``ops.Rng`` for the formulas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_passes import ops
from hlo_passes.ir import TensorType
from hlo_passes.passes.expansions.registry import expands
from hlo_passes.passes.expansions.term import Term


@expands(ops.Rng)
def expand_rng(op: ops.Rng, operands: Sequence[Term], options: object) -> Term:
    """Draw words once for uniform numbers, twice for normal ones."""
    a, b, _ = operands
    words = _words(op, a, 2 if op.distribution == "NORMAL" else 1)
    if op.type.is_bool:
        return (words[0] & 1).compare("NE", 0).choose(b, a)
    if not op.type.is_float:
        low, high = (x.apply(ops.BitcastConvert(op.word)) for x in (a, b))
        span = (high - low).broadcast(op.type.shape)
        return (words[0].apply(ops.Remainder(), span) + low).apply(ops.BitcastConvert(op.type.dtype))
    wide = f"f{op.word[2:]}"
    first, last = a.convert(wide), b.convert(wide)
    units = [_unit(word, wide, op.fraction_bits) for word in words]
    if op.distribution == "UNIFORM":
        drawn = (units[0] * (last - first) + first).convert(op.type.dtype)
        return drawn.compare("LT", b).choose(drawn, a.broadcast(op.type.shape))
    radius = (units[0].apply(ops.Negate()).apply(ops.LogPlusOne()) * -2).apply(ops.Sqrt())
    normal = radius * (units[1] * (2 * np.pi)).apply(ops.Cosine())
    return (normal * last + first).convert(op.type.dtype)


def _words(op: ops.Rng, beside: Term, draws: int) -> list[Term]:
    """Return independent words of the result's shape."""
    builder = beside.builder
    state_type = TensorType((2,), "ui64")
    state = builder.add(ops.Constant(op.state, state_type))
    generator = ops.RngBitGenerator("THREE_FRY", (state_type, TensorType(op.type.shape, op.word)))
    found: list[Term] = []
    for _ in range(draws):
        state, words = builder.emit(generator, state)
        found.append(Term(builder, words))
    return found


def _unit(words: Term, wide: str, kept: int) -> Term:
    """Return floats in ``[0, 1)`` of the words' upper bits."""
    upper = words.apply(ops.ShiftRightLogical(), words.constant(words.type.bits - kept))
    return upper.convert(wide) * 2.0**-kept
