"""Removal of extensions that nobody needs: what is only stored as a byte is not made a 32-bit number first.

Integers below 32 bits are wrapped to their width after each function that can leave it (``integers.wrap``): two shifts.
Where all that reads a result looks at its low bits alone (sums, products, logic, the packing of bytes before a store), the
unwrapped result does as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from tiles.elements.tilecode import Block, If, Instruction, Item, Loop, Register, Repeat, walk

_ALL = (1 << 32) - 1
_Bits = Callable[[int, tuple[int, ...]], int]
"""From the bits of a result that are needed, and the immediates, those of every operand that they depend on."""


def _up_to_highest(needed: int, _: tuple[int, ...]) -> int:
    """Return the bits up to the highest that is needed: a carry goes upwards only."""
    return (1 << needed.bit_length()) - 1


def _same(needed: int, _: tuple[int, ...]) -> int:
    return needed


def _before_shift_left(needed: int, imms: tuple[int, ...]) -> int:
    return needed >> imms[0] if imms else _ALL


def _before_shift_right(needed: int, imms: tuple[int, ...]) -> int:
    return needed << imms[0] & _ALL if imms else _ALL


def _before_signed_shift(needed: int, imms: tuple[int, ...]) -> int:
    sign = 1 << 31 if imms and needed >> (32 - imms[0]) else 0
    return _before_shift_right(needed, imms) | sign


def _of_low_bytes(needed: int, _: tuple[int, ...]) -> int:
    """Return what bytes of ``shuf8x8lo``, which takes turns between its operands' low ones, stem from."""
    return 0xFF if needed <= 0xFFFF else 0xFFFF


def _of_low_halves(_: int, __: tuple[int, ...]) -> int:
    return 0xFFFF


_NEEDS: dict[str, _Bits] = {
    "add": _up_to_highest,
    "sub": _up_to_highest,
    "mul": _up_to_highest,
    "and": _same,
    "andc": _same,
    "or": _same,
    "xor": _same,
    "shl": _before_shift_left,
    "shr": _before_shift_right,
    "shrs": _before_signed_shift,
    "shuf8x8lo": _of_low_bytes,
    "sort4x16lo": _of_low_halves,
}
"""What else reads a register needs all of it."""


_Name = tuple[str, int]


def narrowed(items: Sequence[Item]) -> list[Item]:
    """Return unscheduled items without extensions whose bits nobody needs."""
    if not any(_is_extension(i) for item in walk(tuple(items)) for i in _instructions(item)):
        return list(items)
    reads, writes = Counter[_Name](), Counter[_Name]()
    for item in walk(tuple(items)):
        for i in _instructions(item):
            reads.update(_names(i.ins))
            writes.update(_names(i.outs))
        control = item.count if isinstance(item, Repeat) else None
        control = item.counter if isinstance(item, Loop) else control
        control = item.condition if isinstance(item, If) else control
        reads.update(_names((control,) if control is not None else ()))
    return [_item(item, reads, writes) for item in items]


def _instructions(item: Item) -> tuple[Instruction, ...]:
    """Return what a block or a repeated one holds before it is scheduled."""
    block = item.body if isinstance(item, Repeat) else item
    return block.instructions if isinstance(block, Block) else ()


def _names(registers: Sequence[Register]) -> list[_Name]:
    return [(r.file, r.index) for r in registers if r.virtual]


def _is_extension(i: Instruction) -> bool:
    return i.mnemonic in ("shr", "shrs") and len(i.imms) == 1 and len(i.ins) == 1


def _item(item: Item, reads: Counter[_Name], writes: Counter[_Name]) -> Item:
    if isinstance(item, Block):
        return item if item.bundles is not None else Block(_block(item.instructions, reads, writes))
    if isinstance(item, Repeat):
        body = item.body
        return item if body.bundles is not None else replace(item, body=_item(body, reads, writes))
    return replace(item, body=tuple(_item(x, reads, writes) for x in item.body))


def _block(
    code: tuple[Instruction, ...], reads: Counter[_Name], writes: Counter[_Name]
) -> tuple[Instruction, ...]:
    if not any(map(_is_extension, code)):
        return code
    needed = _needed(code, reads, writes)
    made: dict[_Name, Instruction] = {}
    instead: dict[_Name, Register] = {}
    kept: list[Instruction] = []
    for i in code:
        if instead:
            ins = tuple([instead.get((r.file, r.index), r) if r.virtual else r for r in i.ins])
            i = i if ins == i.ins else replace(i, ins=ins)
        source = _unwrapped(i, made, needed)
        if source is not None and all(
            not r.virtual or writes[r.file, r.index] == 1 for r in (source, *i.outs)
        ):
            instead[i.outs[0].file, i.outs[0].index] = source
            continue
        made.update((name, i) for name in _names(i.outs))
        kept.append(i)
    left = Counter(name for i in kept for name in _names(i.ins))
    before = Counter(name for i in code for name in _names(i.ins))

    def is_read(i: Instruction) -> bool:
        (name,) = _names(i.outs)
        return left[name] > 0 or reads[name] > before[name]

    return tuple(i for i in kept if i.mnemonic != "shl" or i.has_effect or not _names(i.outs) or is_read(i))


def _unwrapped(i: Instruction, made: dict[_Name, Instruction], needed: dict[_Name, int]) -> Register | None:
    """Return what an extension extends, where nobody needs the bits above; None where it stays."""
    if not _is_extension(i) or i.has_effect or not i.ins[0].virtual:
        return None
    up = made.get((i.ins[0].file, i.ins[0].index))
    if up is None or up.mnemonic != "shl" or up.imms != i.imms or len(up.ins) != 1:
        return None
    return None if needed[i.outs[0].file, i.outs[0].index] >> (32 - i.imms[0]) else up.ins[0]


def _needed(code: tuple[Instruction, ...], reads: Counter[_Name], writes: Counter[_Name]) -> dict[_Name, int]:
    """Return the bits of every register written in a block that are needed: all, where it is read elsewhere, too."""
    before = Counter(name for i in code for name in _names(i.ins))
    needed: dict[_Name, int] = {name: _ALL for name in reads if reads[name] > before[name]}
    seen = Counter[_Name]()
    for i in reversed(code):
        for name in _names(i.outs):
            is_plain = writes[name] == 1 and not i.has_effect and seen[name] == before[name]
            needed[name] = needed.get(name, 0) if is_plain else _ALL  # else of a former iteration, too
        out = needed[i.outs[0].file, i.outs[0].index] if len(_names(i.outs)) == 1 == len(i.outs) else _ALL
        bits = _NEEDS.get(i.mnemonic)
        is_known = (
            bits is not None and not i.has_effect and all(r.file == "M" and r.width == 1 for r in i.outs)
        )
        of_operands = bits(out, i.imms) if bits is not None and is_known else _ALL
        for name in _names(i.ins):
            needed[name] = needed.get(name, 0) | of_operands
            seen[name] += 1
    return needed
