"""Removal of copies: a register that is copied and not read again becomes its copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tiles.elements.tilecode import Block, If, Instruction, Item, Loop, Register, Repeat, walk

Group = tuple[str, int, bool]
"""A group of registers: its file, its number, and whether it is virtual."""
_NAMED_BY_A_COPY = 2
"""Groups: a copy is counted once for its source and once for its target."""


def coalesced(items: Sequence[Item]) -> list[Item]:
    """Return unscheduled items without copies that nobody needs."""
    uses = _uses(items)
    return [_item(item, uses) for item in items]


def _uses(items: Sequence[Item]) -> Counter[Group]:
    """Count the instructions and controls that name each group."""
    found: Counter[Group] = Counter()
    for item in walk(tuple(items)):
        if isinstance(item, (Block, Repeat)):
            block = item if isinstance(item, Block) else item.body
            for i in (*block.instructions, *(i for b in block.bundles or () for i in b.instructions)):
                found.update({_name(r) for r in (*i.ins, *i.outs)})
        control = item.count if isinstance(item, Repeat) else None
        control = item.counter if isinstance(item, Loop) else control
        control = item.condition if isinstance(item, If) else control
        if control is not None:
            found[_name(control)] += 1
    return found


def _name(register: Register) -> Group:
    return register.file, register.index, register.virtual


def _item(item: Item, uses: Counter[Group]) -> Item:
    if isinstance(item, Block) and item.bundles is not None:
        return item
    if isinstance(item, Repeat) and item.body.bundles is not None:
        return item
    if isinstance(item, Block):
        return Block(_block(list(item.instructions), uses))
    if isinstance(item, Repeat):
        return replace(item, body=Block(_block(list(item.body.instructions), uses)))
    return replace(item, body=tuple(_item(x, uses) for x in item.body))


def _block(code: list[Instruction], uses: Counter[Group]) -> tuple[Instruction, ...]:
    """Return a block without copies that nobody needs, and keep the counts: a copy takes over what named its source."""
    at = 0
    while at < len(code):
        if _is_needless(code, at, uses):
            kept, gone = code[at].outs[0], code[at].ins[0]
            code = [_renamed(i, gone, kept) for k, i in enumerate(code) if k != at]
            uses[_name(kept)] += uses.pop(_name(gone)) - _NAMED_BY_A_COPY
        else:
            at += 1
    return tuple(code)


def _is_needless(code: list[Instruction], at: int, uses: Counter[Group]) -> bool:
    """Return whether a copy's source lives in this block only, is written once before, and is not read after."""
    copy = code[at]
    if copy.mnemonic != "or" or copy.imms != (0,) or not copy.ins[0].virtual:
        return False
    source, target = copy.ins[0], copy.outs[0]
    if source.width != source.group_width or target.width != target.group_width:
        return False
    name = _name(source)
    here = [k for k, i in enumerate(code) if any(_name(r) == name for r in (*i.ins, *i.outs))]
    before = code[: here[0]] if here else []
    untouched = not any(target in (*i.ins, *i.outs) for i in (*before, *code[here[0] : at]))
    return here[-1] == at and len(here) == uses[name] and source in code[here[0]].outs and untouched


def _renamed(i: Instruction, gone: Register, kept: Register) -> Instruction:
    name = _name(gone)
    if not any(_name(r) == name for r in (*i.ins, *i.outs)):
        return i

    def new(r: Register) -> Register:
        return kept if _name(r) == name else r

    return replace(i, ins=tuple(map(new, i.ins)), outs=tuple(map(new, i.outs)))
