"""Several accesses in one instruction: pointers packed in a pair of registers, each with a stride of its own.

Modulo scheduling joins accesses of different operands that lie in different memory elements; here the joined ones
get their packed pointers, made after the bundles that fill the pipeline, and their strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiles.elements.tilecode import (
    MAIN,
    MZERO,
    Block,
    Bundle,
    If,
    Instruction,
    Item,
    Loop,
    Register,
    Repeat,
    walk,
)

_FIELD_BITS = 10
_LOADS = {"ld2x64pace": 2, "ldst64pace": 1}


def is_joined(instruction: Instruction | None) -> bool:
    """Return whether an instruction stands for several accesses that still have their own pointers."""
    return instruction is not None and instruction.mnemonic in _LOADS and MZERO in instruction.ins


def packed(items: Sequence[Item], next_register: int) -> tuple[Item, ...]:
    """Return scheduled items with every joined access on packed pointers."""
    return tuple(_Packer(next_register).items(items))


def first_free(items: Sequence[Item]) -> int:
    """Return a number above those of all main registers in use."""
    found = [0]
    for item in walk(tuple(items)):
        blocks = (
            (item,) if isinstance(item, Block) else (item.lead, item.body) if isinstance(item, Repeat) else ()
        )
        for block in blocks:
            for i in (i for b in block.bundles or () for i in b.instructions):
                found += [r.index + 1 for r in (*i.ins, *i.outs) if r.virtual]
    return max(found)


class _Packer:
    def __init__(self, next_register: int) -> None:
        self.next = next_register

    def fresh(self, width: int) -> Register:
        self.next += 1
        return Register("M", self.next - 1, width)

    def items(self, items: Sequence[Item]) -> list[Item]:
        out: list[Item] = []
        for item in items:
            if isinstance(item, Repeat) and any(is_joined(b.main) for b in item.body.bundles or ()):
                out.append(self.repeat(item))
            elif isinstance(item, (Loop, If)):
                out.append(replace(item, body=tuple(self.items(item.body))))
            else:
                out.append(item)
        return out

    def repeat(self, item: Repeat) -> Repeat:
        before: list[Bundle] = []
        body = [self.bundle(bundle, before) for bundle in item.body.bundles or ()]
        return replace(
            item, lead=Block((), (*(item.lead.bundles or ()), *before)), body=Block((), tuple(body))
        )

    def bundle(self, bundle: Bundle, before: list[Bundle]) -> Bundle:
        if not is_joined(bundle.main):
            return bundle
        joined = bundle.main
        assert joined is not None
        loads = _LOADS[joined.mnemonic]
        pointers = [r for r in joined.outs if r in joined.ins]
        values = tuple(r for r in joined.outs if r not in pointers)
        data = tuple(r for r in joined.ins if r.file == "A")
        pair, (fields, code) = self.fresh(2), _strides(joined.imms)
        stride = self.fresh(1) if fields else MZERO
        slots = [*pointers[:loads], *[MZERO] * (2 - loads), *pointers[loads:]]
        slots += [MZERO] * (3 - len(slots))
        before.append(Bundle(Instruction("tapack", MAIN, (pair,), tuple(slots))))
        if fields:
            before.append(Bundle(Instruction("setzi", MAIN, (stride,), (), (fields,))))
        return replace(
            bundle,
            main=replace(joined, outs=(*values, pair), ins=(*data, pair, stride), imms=(code,)),
        )


def _strides(steps: tuple[int, ...]) -> tuple[int, int]:
    """Return the word of stride fields and the immediate that picks one for each access; 0 picks a step of 1."""
    distinct = [s for s in dict.fromkeys(steps) if s != 1]
    fields = sum((s & ((1 << _FIELD_BITS) - 1)) << (_FIELD_BITS * k) for k, s in enumerate(distinct[:2]))
    picks = [0 if s == 1 else distinct.index(s) + 1 for s in steps]
    return fields, sum(p << (2 * k) for k, p in enumerate(picks))
