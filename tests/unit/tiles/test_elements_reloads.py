"""Loads from scratch memory of what a register holds go away, and stores of what nothing loads; nothing else does."""

from __future__ import annotations

from tiles.elements.reloads import without_reloads
from tiles.elements.tilecode import (
    AUX,
    MAIN,
    MZERO,
    WORKER_BASE,
    Block,
    Bundle,
    Instruction,
    Register,
    Repeat,
)

A0, A1, A2, PAIR = (Register("A", i, w, virtual=False) for i, w in ((0, 1), (1, 1), (2, 1), (0, 2)))


def load(register: Register, at: int = 0, stream: str = "scratch0") -> Instruction:
    return Instruction(
        f"ld{32 * register.width}", MAIN, (register,), (WORKER_BASE, MZERO), (at,), stream=stream
    )


def store(register: Register, at: int = 0, stream: str = "scratch0") -> Instruction:
    ins = register, WORKER_BASE, MZERO
    return Instruction(f"st{32 * register.width}", MAIN, (), ins, (at,), stream=stream)


def add(out: Register, *ins: Register) -> Instruction:
    return Instruction("f32add", AUX, (out,), ins)


def left(*bundles: Bundle) -> list[Bundle]:
    (block,) = without_reloads([Block((), bundles)])
    return list(block.bundles or ())


def test_a_value_is_not_loaded_into_the_register_that_it_was_stored_from() -> None:
    use = Bundle(aux=add(A1, A0, A0))
    again = Bundle(load(A2))
    assert left(Bundle(store(A0)), Bundle(load(A0)), use, again) == [Bundle(store(A0)), use, again]


def test_a_value_that_no_register_holds_any_more_is_loaded() -> None:
    overwritten = [Bundle(store(A0)), Bundle(aux=add(A0, A1, A1)), Bundle(load(A0))]
    assert left(*overwritten) == overwritten
    at_once = [Bundle(store(A0), add(A0, A1, A1)), Bundle(load(A0))]
    assert left(*at_once) == at_once
    half = [Bundle(store(PAIR)), Bundle(aux=add(A1, A2, A2)), Bundle(load(PAIR))]
    assert left(*half) == half
    elsewhere = [Bundle(store(A0, 1)), Bundle(store(A0)), Bundle(load(A1)), Bundle(load(A2, 1))]
    assert left(*elsewhere) == elsewhere


def test_a_loaded_value_is_not_loaded_twice() -> None:
    first, use = Bundle(load(A0)), Bundle(aux=add(A1, A0, A0))
    joined = Bundle(load(A0), add(A2, A0, A1))
    assert left(first, use, joined) == [first, use, Bundle(aux=add(A2, A0, A1))]


def test_halves_stored_apart_are_one_pair() -> None:
    stores = [Bundle(store(A0)), Bundle(store(A1, 1))]
    assert left(*stores, Bundle(load(PAIR)), Bundle(load(A2))) == [stores[0], Bundle(load(A2))]


def test_what_nothing_loads_is_not_stored_and_operands_stay() -> None:
    result = Bundle(store(A0, stream="out0"))
    assert left(Bundle(store(A0)), Bundle(load(A0)), result) == [result]


def test_a_loop_loads_what_its_last_iteration_may_have_overwritten() -> None:
    body = Block((), (Bundle(load(A0)), Bundle(aux=add(A0, A0, A0))))
    items = [Block((), (Bundle(store(A0)),)), Repeat(None, 4, body)]
    assert list(without_reloads(items)) == items
