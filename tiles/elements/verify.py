"""Checks of finished tile code against the instruction set: operand forms, slots, what repeat loops may hold, what is read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tiles.elements.isa import InstructionSet, Row
from tiles.elements.tilecode import (
    AUX,
    MAIN,
    Block,
    Bundle,
    If,
    Instruction,
    Item,
    Loop,
    Register,
    Repeat,
    TileCode,
    instructions_of,
    walk,
)
from tiles.errors import NoTileCode

Unit = tuple[str, int, int]
"""A single register, as ``(file, index, offset)``."""
_IMMEDIATE = re.compile(r"^#(z|s)imm(\d+)$")
_TOP_BITS = 20


def verify(code: TileCode, isa: InstructionSet) -> None:
    """Check every bundle of a variant.

    Raises:
      NoTileCode: an instruction in a form, or at a place, that the machine does not have, or that reads a register that nothing
        can have written before; names it.
    """
    _reads(code.items, set())
    for item in walk(code.items):
        if isinstance(item, Block):
            _bundles(item.bundles or (), isa, in_repeat=False)
        elif isinstance(item, Repeat):
            _bundles(item.lead.bundles or (), isa, in_repeat=False)
            body = item.body.bundles or ()
            if not 1 <= len(body) <= isa["repeat_body_max_bundles"]:
                raise NoTileCode(f"{code.name}: a repeat loop of {len(body)} bundles")
            _bundles(body, isa, in_repeat=True)


def _reads(items: Sequence[Item], known: set[Unit]) -> None:
    """Check that what each instruction reads may have been written before, and add what is written to ``known``.

    In a loop what any iteration writes is known; a branch that is not taken is not told from one that is.
    """
    for item in items:
        control = item.count if isinstance(item, Repeat) else item.condition if isinstance(item, If) else None
        control = item.counter if isinstance(item, Loop) else control
        if control is not None and not known.issuperset(control.units):
            raise NoTileCode(f"{control}, which nothing wrote, controls a loop or a branch")
        if isinstance(item, Block):
            _reads_in_order(item.bundles or (), known)
        elif isinstance(item, Repeat):
            _reads_in_order(item.lead.bundles or (), known)
            known.update(u for b in item.body.bundles or () for i in b.instructions for u in i.written)
            _reads_in_order(item.body.bundles or (), known)
        else:
            if isinstance(item, Loop):
                known.update(u for i in instructions_of(item.body) for u in i.written)
            _reads(item.body, known)


def _reads_in_order(bundles: Sequence[Bundle], known: set[Unit]) -> None:
    for bundle in bundles:
        for i in bundle.instructions:
            if not known.issuperset(i.read):
                raise NoTileCode(f"{i} reads a register that nothing wrote")
        known.update(u for i in bundle.instructions for u in i.written)


def _bundles(bundles: tuple[Bundle, ...], isa: InstructionSet, in_repeat: bool) -> None:
    for bundle in bundles:
        written = [u for i in bundle.instructions for r in i.outs for u in r.units]
        if len(set(written)) < len(written):
            raise NoTileCode(f"a bundle writes a register twice: {' | '.join(map(str, bundle.instructions))}")
        for slot, instruction in ((MAIN, bundle.main), (AUX, bundle.aux)):
            if instruction is not None:
                _instruction(instruction, isa.row(instruction.mnemonic), slot, in_repeat)


def _instruction(i: Instruction, row: Row, slot: str, in_repeat: bool) -> None:
    if i.slot != slot or row.slot not in (slot, "either"):
        raise NoTileCode(f"{i} in the {slot} slot", expected=row.slot)
    if in_repeat and row.kind != "data":
        raise NoTileCode(f"{i} in a repeat loop", expected="neither control nor system instructions")
    for register in (*i.outs, *i.ins):
        if register.virtual or (register.index % register.width and register.index < 12):
            raise NoTileCode(f"{i}: {register} is no register or no aligned group")
    if not any(matches(i, form) for form in row.forms):
        raise NoTileCode(f"{i} has no such form", expected=[" ".join(form) for form in row.forms])


def matches(i: Instruction, form: tuple[str, ...]) -> bool:
    """Return whether an instruction's operands are those of a form, in order."""
    outs, ins, imms = list(i.outs), list(i.ins), list(i.imms)
    for operand in form:
        if operand.startswith("#"):
            if not imms or not _fits(imms.pop(0), operand):
                return False
        elif operand.startswith("="):
            if not outs or not _is(outs.pop(0), operand[1:]):
                return False
        elif not ins or not _is(ins[0], operand.lstrip("+")) or _modifier(operand) not in ("", i.modifier):
            return False
        else:
            register = ins.pop(0)
            if (operand.startswith("+") or operand.endswith("+=")) and register in outs:
                outs.remove(register)
            elif operand.startswith("+") or operand.endswith("+="):
                return False
    wanted = next((_modifier(o) for o in form if _modifier(o)), "")
    return not (outs or ins or imms) and wanted == i.modifier


def _modifier(operand: str) -> str:
    return operand.partition(".")[2]


def _is(register: Register, operand: str) -> bool:
    return register.file == operand[0] and register.width == int(operand[1])


def _fits(value: int, kind: str) -> bool:
    """Return whether an immediate can be encoded; ``immz12`` are the top bits of a word."""
    if kind == "#immz12":
        return 0 <= value < 1 << 32 and not value & ((1 << _TOP_BITS) - 1)
    found = _IMMEDIATE.match(kind)
    if not found:
        return value >= 0
    bits = int(found.group(2))
    return 0 <= value < 1 << bits if found.group(1) == "z" else -(1 << (bits - 1)) <= value < 1 << (bits - 1)
