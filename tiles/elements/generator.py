"""What a worker draws from the random generator that it has: bits, floats of (-0.5, 0.5) and normal ones.

Which numbers a machine's generator gives, no public source says. The simulator gives a worker what it is handed, in the
order in which the worker draws; of the instructions around it, that which makes floats of bits has the rounding that is
assumed of it in ``semantics``.
"""

from __future__ import annotations

import numpy as np
from jax import Array, core

from tiles._jax_compat import Params, new_primitive
from tiles.elements.cell import ELEMENT
from tiles.elements.floats import Context
from tiles.elements.tilecode import GENERATOR, Register
from tiles.elements.values import Value, piece_count, piece_width
from tiles.errors import NoTileCode

BITS, UNIFORM, NORMAL = "bits", "uniform", "normal"
_FORMS = {"float32": "f32", "float16": "f16"}
drawn_p = new_primitive("tiles_drawn")


def drawn(distribution: str, dtype: str) -> Array:
    """Return, in a cell's function, the next number of a worker's generator.

    Args:
      distribution: "bits" (of a float that is only moved), "uniform" (of (-0.5, 0.5), never 0) or "normal".
      dtype: float32 or float16.
    """
    return drawn_p.bind(distribution=distribution, dtype=np.dtype(dtype))


def _abstract(*, distribution: str, dtype: np.dtype) -> core.ShapedArray:
    del distribution
    return core.ShapedArray((), dtype)


drawn_p.def_abstract_eval(_abstract)


def rule(ctx: Context, params: Params) -> Value:
    """Return numbers of the generator, one for each lane.

    Raises:
      NoTileCode: of another dtype than floats of the machine.
    """
    e, lanes, dtype = ctx.emitter, ctx.forms.lanes, params["dtype"].name
    if dtype not in _FORMS:
        raise NoTileCode(f"no generator of {dtype}", expected=", ".join(_FORMS))
    form = _FORMS[dtype]
    with e.at(ELEMENT):
        pieces: list[Register] = []
        for _ in range(piece_count(form, lanes)):
            piece = e.fresh("A", piece_width(form, lanes))
            if params["distribution"] == NORMAL:
                _normal(ctx, piece, form)
            else:
                e.emit(f"urand{32 * piece.width}", (piece,), effect=GENERATOR)
            if params["distribution"] == UNIFORM:
                each = piece.width * (2 if form == "f16" else 1)
                piece = e.op(f"{form}{f'v{each}' if each > 1 else ''}sufromui", ("A", piece.width), piece)
            pieces.append(piece)
    return Value(dtype, ELEMENT, lanes, {form: tuple(pieces)})


def _normal(ctx: Context, piece: Register, form: str) -> None:
    """Emit normal numbers: two floats, or two halves at a time."""
    e = ctx.emitter
    if form == "f16":
        for k in range(piece.width):
            e.emit("f16v2grand", (piece.part(k) if piece.width > 1 else piece,), effect=GENERATOR)
    elif piece.width == 1:
        raise NoTileCode("a single normal number", expected="two at a time")
    else:
        e.emit("f32v2grand", (piece,), effect=GENERATOR)
