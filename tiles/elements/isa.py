"""The instruction set of a tile's workers as data: ``configs/isa/<generation>.json``.

A row says in which issue slot an instruction goes, the registers of its operands, how many of its worker's slots
it takes and where that is from. What an instruction computes is in ``semantics``; a generation may extend another.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tiles.errors import InvalidInstructionSet, NoTileCode
from tiles.files import JsonObject, is_dict, is_list
from tiles.target import Basis, Target

SCHEMA = "ipuxla.isa/1"
FIGURES = {
    "main_registers": "registers",
    "aux_registers": "registers",
    "accumulators": "registers",
    "worker_contexts": "workers",
    "result_latency_slots": "slots",
    "instruction_bytes": "bytes",
    "bundle_alignment_bytes": "bytes",
    "repeat_count_max": "iterations",
    "repeat_body_max_bundles": "bundles",
    "step_min": "accesses",
    "step_max": "accesses",
    "supervisor_dependent_cycles": "cycles",
    "flushes_f32_subnormals": "flag",
}
_MOST = 2**16
_BOUNDS = {
    "main_registers": (6, 16),
    "aux_registers": (4, 16),
    "worker_contexts": (1, 8),
    "step_min": (-(2**15), -1),
}
"""The least and most of figures that are not from 1 to ``_MOST``: a file of registers has 16 names, and code addresses pairs."""
_ACCESS_BITS = (8, 16, 32, 64, 128)
_KINDS = ("data", "control", "system", "exchange")
_ROW_KEYS = {
    *(
        "meaning",
        "slot",
        "mode",
        "kind",
        "forms",
        "issue_slots",
        "slots_basis",
        "slots_source",
        "basis",
        "source",
    ),
}
_OPTIONAL_KEYS = {"loads_bits", "stores_bits"}
_OPERAND = re.compile(r"^(?:[=+]?[MA][124](?::\w+)?(?:\+=|\+\+|@|>>)?(?:\.(?:B|BL|BU))?|#\w+)$")


@dataclass(frozen=True)
class Row:
    """One instruction.

    Attributes:
      slot: "main", "aux", or "either": main with main registers, aux with aux registers.
      forms: legal operands; ``=`` a result, ``+`` read and written, ``M2`` an aligned pair of main registers.
      issue_slots: slots of its worker that it takes; each is one rotation of the tile.
      loads_bits, stores_bits: widths of its accesses to memory.
      slots_basis: how well ``issue_slots`` is known.
    """

    mnemonic: str
    meaning: str
    slot: str
    mode: str
    kind: str
    forms: tuple[tuple[str, ...], ...]
    issue_slots: int
    slots_basis: Basis
    slots_source: str
    basis: Basis
    source: str
    loads_bits: tuple[int, ...] = ()
    stores_bits: tuple[int, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A number about the workers: value, unit, basis and source."""

    value: int
    unit: str
    basis: Basis
    source: str


@dataclass(frozen=True)
class InstructionSet:
    """A generation's instructions and figures; immutable, compared by name."""

    name: str
    rows: Mapping[str, Row]
    figures: Mapping[str, Figure]

    def __hash__(self) -> int:
        return hash(self.name)

    def row(self, mnemonic: str) -> Row:
        """Return an instruction.

        Raises:
          NoTileCode: the generation has none of that name.
        """
        if mnemonic not in self.rows:
            raise NoTileCode(f"generation {self.name} has no instruction {mnemonic!r}")
        return self.rows[mnemonic]

    def __contains__(self, mnemonic: object) -> bool:
        return mnemonic in self.rows

    def __getitem__(self, figure: str) -> int:
        """Return a figure's value."""
        return self.figures[figure].value

    def with_slots(self, **slots: int) -> InstructionSet:
        """Return the set with other issue slots, ASSUMED: what a calibration or a test would try."""
        changed = {
            name: replace(self.rows[name], issue_slots=n, slots_basis=Basis.ASSUMED)
            for name, n in slots.items()
        }
        return InstructionSet(self.name + "*", MappingProxyType({**self.rows, **changed}), self.figures)


def data_directory() -> pathlib.Path:
    """Return the folder of data files: inside an installed package, else the repository's ``configs``."""
    packaged = importlib.resources.files("tiles") / "_configs" / "isa"
    if isinstance(packaged, pathlib.Path) and packaged.is_dir():
        return packaged
    return pathlib.Path(__file__).resolve().parents[2] / "configs" / "isa"


@functools.cache
def named(name: str) -> InstructionSet:
    """Return the instruction set of a generation ("mk1", "mk2", "mk2-fp8").

    Raises:
      InvalidInstructionSet: no such file, or a malformed one.
    """
    return read(data_directory() / f"{name}.json")


def of_target(target: Target) -> InstructionSet:
    """Return the instruction set of a machine: by 8-bit floats, and by the width of its convolution units."""
    if target.supports_fp8:
        return named("mk2-fp8")
    return named("mk2" if target.fp16_in_fp16_out_conv_units > 8 else "mk1")


def instructions_of(target: Target | InstructionSet) -> InstructionSet:
    """Return the instruction set of a machine, or itself."""
    return target if isinstance(target, InstructionSet) else of_target(target)


def read(path: pathlib.Path) -> InstructionSet:
    """Return the instruction set of a data file, with what it extends.

    Raises:
      InvalidInstructionSet: unreadable, a missing or unknown field, a negative number, an unknown source.
    """
    extended, *rest = _files(path)
    data = _json(path)
    base = read(rest[0]) if rest else None
    sources: dict[str, str] = {}
    for file in reversed([extended, *rest]):
        sources |= _json(file)["sources"]
    figures = {name: _figure(path, name, item, sources) for name, item in data["figures"].items()}
    rows = {name: _row(path, name, item, sources) for name, item in data["instructions"].items()}
    if base:
        figures, rows = {**base.figures, **figures}, {**base.rows, **rows}
    for name in FIGURES.keys() - figures.keys():
        raise _invalid(path, f"figure {name!r} is missing", f"a figure in {FIGURES[name]}")
    return InstructionSet(data["name"], MappingProxyType(rows), MappingProxyType(figures))


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    """Return a file, the one that it extends, and so on.

    Raises:
      InvalidInstructionSet: it extends no file beside it, or in the end itself.
    """
    found = [path]
    while "extends" in (data := _json(found[-1])):
        name = data["extends"]
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
            raise _invalid(found[-1], f"it extends {name!r}", "the name of a file beside it, without .json")
        base = found[-1].with_name(f"{name}.json")
        if base in found:
            raise _invalid(path, f"in the end it extends itself, by {name!r}", "another file")
        found.append(base)
    return found


def _json(path: pathlib.Path) -> JsonObject:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInstructionSet(
            "a file of instructions cannot be read", location=str(path), got=str(error)
        ) from error
    if not is_dict(data) or data.get("schema") != SCHEMA:
        raise _invalid(path, "not a file of instructions", f"schema {SCHEMA}")
    for key, kind in (("name", str), ("sources", dict), ("figures", dict), ("instructions", dict)):
        if not isinstance(data.get(key), kind):
            raise _invalid(path, f"{key!r} is missing or no {kind.__name__}", kind.__name__)
    if not all(isinstance(source, str) for source in data["sources"].values()):
        raise _invalid(path, "'sources' has a source that is no text", "texts")
    return data


def _figure(path: pathlib.Path, name: str, item: Any, sources: Mapping[str, str]) -> Figure:
    if name not in FIGURES:
        raise _invalid(path, f"no figure is named {name!r}", ", ".join(FIGURES))
    missing = {"value", "unit", "basis", "source"} - (set(item) if is_dict(item) else set[str]())
    if missing:
        raise _invalid(path, f"figure {name!r} lacks {sorted(missing)}", "value, unit, basis, source")
    value, unit = item["value"], FIGURES[name]
    least, most = _BOUNDS.get(name, (0, 1) if unit == "flag" else (1, _MOST))
    if item["unit"] != unit or not isinstance(value, int) or not least <= value <= most:
        bounds = f"{unit}, at least {least} and at most {most}"
        raise _invalid(path, f"figure {name!r}: {value!r} {item['unit']}", bounds)
    return Figure(
        int(item["value"]),
        item["unit"],
        _basis(path, name, item["basis"]),
        _source(path, name, item["source"], sources),
    )


def _row(path: pathlib.Path, name: str, item: Any, sources: Mapping[str, str]) -> Row:
    keys = set(item) if is_dict(item) else set[str]()
    if _ROW_KEYS - keys or keys - _ROW_KEYS - _OPTIONAL_KEYS:
        wrong = sorted(_ROW_KEYS - keys) or sorted(keys - _ROW_KEYS)
        raise _invalid(
            path, f"instruction {name!r}: fields {wrong} are missing or unknown", ", ".join(sorted(_ROW_KEYS))
        )
    slots = item["issue_slots"]
    if not isinstance(slots, int) or isinstance(slots, bool) or not 1 <= slots <= _MOST:
        expected = f"an integer of at least 1 and at most {_MOST}"
        raise _invalid(path, f"instruction {name!r} takes {slots!r} slots", expected)
    legal = {"slot": ("main", "aux", "either"), "mode": ("worker", "supervisor", "both"), "kind": _KINDS}
    for key, values in legal.items():
        if item[key] not in values:
            raise _invalid(path, f"instruction {name!r}: {key} is {item[key]!r}", ", ".join(values))
    if not isinstance(item["meaning"], str):
        raise _invalid(path, f"instruction {name!r}: meaning is {item['meaning']!r}", "a text")
    if not is_list(item["forms"]) or not all(isinstance(form, str) for form in item["forms"]):
        raise _invalid(path, f"instruction {name!r}: forms are {item['forms']!r}", "a list of texts")
    widths = [_widths(path, name, key, item.get(key, [])) for key in ("loads_bits", "stores_bits")]
    texts: list[str] = item["forms"]
    forms = tuple(tuple(form.split()) for form in texts)
    for operand in (operand for form in forms for operand in form):
        if not _OPERAND.match(operand):
            raise _invalid(path, f"instruction {name!r}: operand {operand!r}", "as in '=A2', '+M1', '#imm'")
    return Row(
        name,
        *(item["meaning"], item["slot"], item["mode"], item["kind"], forms, slots),
        *(_basis(path, name, item["slots_basis"]), _source(path, name, item["slots_source"], sources)),
        *(_basis(path, name, item["basis"]), _source(path, name, item["source"], sources)),
        *widths,
    )


def _widths(path: pathlib.Path, name: str, key: str, bits: Any) -> tuple[int, ...]:
    """Return the widths of an instruction's accesses."""
    if not is_list(bits) or any(isinstance(each, bool) or each not in _ACCESS_BITS for each in bits):
        legal = ", ".join(map(str, _ACCESS_BITS))
        raise _invalid(path, f"instruction {name!r}: {key} is {bits!r}", f"a list of {legal}")
    return tuple(bits)


def _basis(path: pathlib.Path, name: str, basis: Any) -> Basis:
    if basis not in list(Basis):
        raise _invalid(path, f"{name!r} has no legal basis: {basis!r}", ", ".join(Basis))
    return Basis(basis)


def _source(path: pathlib.Path, name: str, source: Any, sources: Mapping[str, str]) -> str:
    if not isinstance(source, str) or source not in sources:
        raise _invalid(path, f"{name!r} names an unknown source {source!r}", ", ".join(sources))
    return sources[source]


def _invalid(path: pathlib.Path, what: str, expected: str) -> InvalidInstructionSet:
    return InvalidInstructionSet(what, location=str(path), expected=expected)
