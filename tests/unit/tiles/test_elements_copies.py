"""Copies of registers go away only where nobody sees it: every store writes what it wrote before."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from tests.unit.tiles.elements_running import compiled, simulate
from tiles.elements import Access, Arrangement, TileCode, named
from tiles.elements.cell import CELL, ELEMENT
from tiles.elements.coalesce import coalesced
from tiles.elements.extents import const
from tiles.elements.tilecode import (
    MAIN,
    MZERO,
    Block,
    Bundle,
    Instruction,
    Item,
    Register,
    Repeat,
    instructions_of,
)
from tiles.elements.verify import verify
from tiles.errors import NoTileCode

MK2 = named("mk2")
REGISTERS = tuple(Register("M", k) for k in range(4))
STEPS = st.tuples(
    st.sampled_from(["copy", "copy", "add", "store", "update"]), st.integers(1, 4), st.integers(1, 4)
)


def instruction(kind: str, out: int, first: int, second: int) -> Instruction:
    target, a, b = (Register("M", k) for k in (out, first, second))
    if kind == "copy":
        return Instruction("or", MAIN, (target,), (a,), (0,))
    if kind == "store":
        return Instruction("st32", MAIN, (), (a, b, MZERO), (0,), stores=True)
    return Instruction("add", MAIN, (a if kind == "update" else target,), (a, b))


def stored(items: Sequence[Item]) -> list[tuple[int, ...]]:
    """Return what is stored, in order; loops go round twice."""
    held = {MZERO: 0}
    found: list[tuple[int, ...]] = []
    for item in items:
        block = item if isinstance(item, Block) else item.body
        for i in block.instructions * (1 if item is block else 2):
            if i.stores:
                found.append(tuple(held[r] for r in i.ins))
            elif i.mnemonic == "setzi":
                held[i.outs[0]] = i.imms[0]
            elif i.mnemonic == "or":
                held[i.outs[0]] = held[i.ins[0]]
            else:
                held[i.outs[0]] = held[i.ins[0]] + 3 * held[i.ins[1]] + 1
    return found


@given(st.lists(st.lists(STEPS, max_size=6), min_size=3, max_size=3))
def test_stores_write_the_same(parts) -> None:
    """Of code that makes a value of one of the last four, in a block, a loop and a block."""
    blocks, made = [[Instruction("setzi", MAIN, (r,), (), (r.index,)) for r in REGISTERS]], len(REGISTERS)
    for part in parts:
        blocks.append([])
        for kind, first, second in part:
            blocks[-1].append(instruction(kind, made, made - first, made - second))
            made += kind in ("copy", "add")
    before, inside, after = (tuple(block) for block in blocks[1:])
    items = [Block((*blocks[0], *before)), Repeat(None, const(2), Block(inside)), Block(after)]
    assert stored(coalesced(items)) == stored(items)


def test_a_copy_that_takes_over_a_register_is_counted_where_it_is_read() -> None:
    """The first copy goes away; the second one stays, as the loop reads what it copies."""
    value, one, other = REGISTERS[:3]
    items = [
        Block(
            (
                Instruction("setzi", MAIN, (value,), (), (7,)),
                Instruction("add", MAIN, (REGISTERS[3],), (value, value)),
                Instruction("or", MAIN, (one,), (value,), (0,)),
                Instruction("or", MAIN, (other,), (one,), (0,)),
            )
        ),
        Repeat(
            None, const(2), Block((Instruction("st32", MAIN, (), (one, other, MZERO), (0,), stores=True),))
        ),
    ]
    after = coalesced(items)
    assert stored(after) == [(7, 7, 0)] * 2
    assert len(list(instructions_of(tuple(after)))) == len(list(instructions_of(tuple(items)))) - 1


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
@pytest.mark.parametrize("f", [lax.div, lax.rem])
def test_a_result_of_all_elements_that_others_are_made_of(f, dtype) -> None:
    def cell(a):
        value = f(a, jnp.asarray(3, dtype))
        word = value.astype("int32")
        return value, jnp.where(word < 0, word + 7, word), jnp.where(word < 0, word + 1, word)

    how = Arrangement((Access(CELL, 4),), (Access(ELEMENT, 8),) * 3, is_short=True)
    code = compiled(cell, [dtype], MK2, how)
    given = np.array([[29]], dtype)
    got, _ = simulate(code, [given], [dtype, "int32", "int32"], MK2, how, n=7)
    for one, wanted in zip(got, cell(jnp.asarray(given)), strict=True):
        np.testing.assert_array_equal(one, np.broadcast_to(wanted, (1, 7)))


def test_a_register_that_nothing_wrote_is_not_read() -> None:
    known, unknown = Register("M", 0, virtual=False), Register("M", 1, virtual=False)

    def code(read: Register) -> TileCode:
        write = Instruction("setzi", MAIN, (known,), (), (1,))
        store = Instruction("st32", MAIN, (), (read, MZERO, MZERO), (0,), stream="out0", stores=True)
        return TileCode("cell", "mk2", ("out0",), (Block((), (Bundle(write), Bundle(store))),))

    verify(code(known), MK2)
    with pytest.raises(NoTileCode, match="nothing wrote"):
        verify(code(unknown), MK2)
