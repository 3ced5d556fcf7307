"""Tile code as text: one bundle a line, main slot on the left and aux on the right."""

from __future__ import annotations

from collections import Counter

from tiles.elements.cost import code_bytes
from tiles.elements.isa import InstructionSet
from tiles.elements.tilecode import Block, Bundle, Item, Loop, Repeat, TileCode

_MAIN_COLUMN = 42


def as_text(code: TileCode, isa: InstructionSet) -> str:
    """Return the code of one variant: its arguments, registers, bytes, and every bundle."""
    main, aux = code.registers
    head = [
        f"tile code {code.name} ({code.generation}): {code.lanes} lanes, {main} main and {aux} aux registers, "
        f"{code_bytes(code, isa)} bytes of code, {code.scratch_bytes} bytes of scratch a worker",
        f"  arguments: {', '.join(code.arguments)}",
    ]
    if code.supervisor.weights:
        counted = Counter((*code.supervisor.single, *code.supervisor.dependent))
        parts = [f"{count} {name}" if count > 1 else name for name, count in counted.items()]
        head.append(f"  supervisor: {', '.join(parts)}")
    return "\n".join([*head, *_items(code.items, "  ", isa)])


def _items(items: tuple[Item, ...], indent: str, isa: InstructionSet) -> list[str]:
    lines: list[str] = []
    for item in items:
        if isinstance(item, Block):
            lines += _block(item, indent, isa)
        elif isinstance(item, Repeat):
            count = item.count if item.count is not None else item.trips
            lines += _block(item.lead, indent, isa)
            lines.append(f"{indent}rpt {count}  ; {item.trips} times, {item.stages} iterations overlap")
            lines += _block(item.body, indent + "  ", isa)
        elif isinstance(item, Loop):
            lines.append(f"{indent}loop  ; {item.trips} times")
            lines += _items(item.body, indent + "  ", isa)
            lines.append(f"{indent}  brnzdec {item.counter}")
        else:
            lines.append(
                f"{indent}{'brnz' if item.inverted else 'brz'} {item.condition}, past  ; {item.taken}"
            )
            lines += _items(item.body, indent + "  ", isa)
    return lines


def _block(block: Block, indent: str, isa: InstructionSet) -> list[str]:
    return [indent + _bundle(bundle, isa) for bundle in block.bundles or ()]


def _bundle(bundle: Bundle, isa: InstructionSet) -> str:
    slots = max((isa.row(i.mnemonic).issue_slots for i in bundle.instructions), default=1)
    main = str(bundle.main) if bundle.main else ""
    text = f"{main:<{_MAIN_COLUMN}}{'| ' + str(bundle.aux) if bundle.aux else ''}".rstrip()
    return f"{text}  ; {slots} slots" if slots > 1 else text
