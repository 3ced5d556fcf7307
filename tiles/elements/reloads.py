"""What is in a register already is not loaded from scratch memory, and what nothing loads is not stored there.

A value that is spilled is stored where it is made and loaded before each use. Once registers are given out, the register
that it was stored from, or loaded into before, is often the one that it is loaded into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tiles.elements.tilecode import (
    MZERO,
    WORKER_BASE,
    Block,
    Bundle,
    If,
    Instruction,
    Item,
    Loop,
    Repeat,
    instructions_of,
)

_LOADS = {"ld32": 1, "ld64": 2}
_STORES = {"st32": 1, "st64": 2}
"""Words of scratch memory that are moved, by mnemonic."""


def without_reloads(items: Sequence[Item]) -> tuple[Item, ...]:
    """Return code on physical registers without loads, and then stores, of scratch memory that change nothing.

    Loops whose iterations overlap stay as they are.
    """
    left = _changed(items, _kept_loads)
    loaded = {word for i in instructions_of(left) for word in _words(i, _LOADS)}

    def is_read(instruction: Instruction | None) -> Instruction | None:
        words = () if instruction is None else _words(instruction, _STORES)
        return None if words and loaded.isdisjoint(words) else instruction

    return _changed(left, lambda bundles: [Bundle(is_read(b.main), is_read(b.aux)) for b in bundles])


def _changed(
    items: Sequence[Item], change: Callable[[Sequence[Bundle]], Sequence[Bundle]]
) -> tuple[Item, ...]:
    """Return items with the bundles of every block changed; empty ones go away."""

    def block(old: Block) -> Block:
        bundles = tuple(bundle for bundle in change(old.bundles or ()) if bundle.instructions)
        return old if bundles == old.bundles else Block((), bundles)

    out: list[Item] = []
    for item in items:
        match item:
            case Block():
                out.append(block(item))
            case Repeat():
                out.append(replace(item, body=block(item.body)) if item.stages == 1 else item)
            case Loop() | If():
                out.append(replace(item, body=_changed(item.body, change)))
    return tuple(out)


def _kept_loads(bundles: Sequence[Bundle]) -> list[Bundle]:
    """Return bundles without loads into registers that hold what is loaded."""
    held: dict[int, tuple[str, int]] = {}  # by word of scratch memory, a register that holds the same
    out: list[Bundle] = []
    for bundle in bundles:
        main = bundle.main
        if main is not None and (words := _words(main, _LOADS)):
            (register,) = main.outs
            places = [(register.file, register.index + k) for k in range(register.width)]
            if all(held.get(word) == place for word, place in zip(words, places, strict=True)):
                main = None
        kept = bundle if main is bundle.main else Bundle(None, bundle.aux)
        out.append(kept)
        _follow(held, kept)
    return out


def _follow(held: dict[int, tuple[str, int]], bundle: Bundle) -> None:
    """Change what registers hold as a bundle does: its halves read before either writes."""
    for i in bundle.instructions:
        words = _words(i, _STORES)
        if words:
            held |= {word: (i.ins[0].file, i.ins[0].index + k) for k, word in enumerate(words)}
    written = {(file, index) for i in bundle.instructions for r in i.outs for file, index, _ in r.units}
    if written:
        for word in [word for word, place in held.items() if place in written]:
            del held[word]
    for i in bundle.instructions:
        words = _words(i, _LOADS)
        if words:
            held |= {word: (i.outs[0].file, i.outs[0].index + k) for k, word in enumerate(words)}


def _words(instruction: Instruction, widths: dict[str, int]) -> range | tuple[()]:
    """Return the words of scratch memory that an instruction loads, or stores; none of any other."""
    width = widths.get(instruction.mnemonic)
    if width is None or not instruction.stream.startswith("scratch"):
        return ()
    if instruction.ins[-2:] != (WORKER_BASE, MZERO):
        return ()
    return range(width * instruction.imms[0], width * (instruction.imms[0] + 1))
