"""Tile code of a sort's exchange: of every element and its partner's the one that belongs here, as any expression is."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from tiles._jax_compat import Jaxpr, make_jaxpr
from tiles.elements import Access, Arrangement, CellFunction, contiguous, instructions_for
from tiles.elements.cell import CELL
from tiles.elements.records import LAST_KEY
from tiles.elements.variants import existing
from tiles.errors import NoTileCode
from tiles.graph import CodeData, Extents, VertexCode
from tiles.numerics.dtypes import to_jax
from tiles.poplibs.popops.expression import ONE_ELEMENT
from tiles.poplibs.popops.map_code import check_widths, named_variant
from tiles.poplibs.popops.sort_order import Order
from tiles.target import Target

POSITION = "int32"
_WORD_BYTES = 4


def exchange_code(
    order: Order, size: int | None, side: int, extents: Extents, target: Target, name: str
) -> VertexCode:
    """Return the code that keeps, of elements and their partners', what belongs on this side.

    Args:
      order: of the elements.
      size: positions from here on are padding; None where there is none.
      side: the domain dimension that tells the sides apart; a vertex has one of them.
      extents: cell sizes.
      target: the machine.
      name: of the variant.

    Raises:
      NoTileCode: elements that fit no word, or vertices of both sides.
      OutOfRegisters: too few registers, even with values spilled.
    """
    if (extents.product((side,)) != 1).any():
        raise NoTileCode("both sides of an exchange in one vertex", expected="one of them")
    cell = partial(_cell, order, size)
    found = existing(named_variant(name, instructions_for(target), "sort exchange", _cell, *cell.args))
    count, dims = len(order.dtypes) + 1, extents.form.results[0].dims
    data = CodeData(
        (*(("operand", k) for k in range(2 * count)), ("position", side)),
        tuple(("result", k) for k in range(count)),
        (),
        dims,
    )
    return VertexCode(found, extents.points, cell=cell, data=data)


def keys_code(order: Order, size: int, extents: Extents, target: Target, name: str) -> VertexCode:
    """Return the code that computes what orders elements, see ``key_body``; arguments as of ``exchange_code``.

    Raises:
      NoTileCode: elements that fit no word.
      OutOfRegisters: too few registers, even with values spilled.
    """
    cell = partial(_keys_cell, order, size)
    found = existing(named_variant(name, instructions_for(target), "sort keys", _keys_cell, *cell.args))
    dims = extents.form.results[0].dims
    data = CodeData((("operand", 0), ("operand", 1)), (("result", 0),), (), dims)
    return VertexCode(found, extents.points, cell=cell, data=data)


def key_body(order: Order, size: int, x: jax.Array, position: jax.Array) -> tuple[jax.Array]:
    """Return what orders elements ``x`` of the array of the one key, int32; padding, from position ``size`` on, comes last."""
    return (jnp.where(position < size, order.key([x] * len(order.dtypes)), LAST_KEY),)


def _keys_cell(order: Order, size: int) -> CellFunction:
    ((number, _, _),) = order.keys
    taken = (order.dtypes[number], POSITION)
    check_widths(taken)
    jaxpr: Jaxpr = make_jaxpr(partial(key_body, order, size))(
        *(jax.ShapeDtypeStruct((), to_jax(d)) for d in taken)
    )
    return CellFunction(jaxpr, (taken, (POSITION,)), contiguous(2))


def _cell(order: Order, size: int | None) -> CellFunction:
    """Return what is computed of one element: the arrays and position here, the partner's, and the side."""
    arrays = (*order.dtypes, POSITION)
    check_widths(arrays)

    def element(*operands: jax.Array) -> tuple[jax.Array, ...]:
        here, partner, side = operands[: len(arrays)], operands[len(arrays) : -1], operands[-1]
        if size is None:
            precedes = order.earlier(ONE_ELEMENT, partner, here)
        else:
            precedes = order.precedes(ONE_ELEMENT, partner, here, size)
        takes = jnp.logical_xor(side != 0, precedes)
        return tuple(jnp.where(takes, x, y) for x, y in zip(partner, here, strict=True))

    taken = (*arrays, *arrays, POSITION)
    jaxpr: Jaxpr = make_jaxpr(element)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in taken))
    accesses = (Access(),) * (2 * len(arrays)), (Access(),) * len(arrays)
    how = Arrangement((*accesses[0], Access(CELL, _WORD_BYTES, counts=True)), accesses[1])
    return CellFunction(jaxpr, (taken, arrays), how)
