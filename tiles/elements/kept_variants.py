"""Variants' figures kept on disk: what planning asks of tile code, without compiling it again in another process.

An entry holds the closed form of the cycles, the bytes of code and their basis, or why there is no code; a code itself is
compiled when somebody wants to see it. It is named after the content of what decides it: what is compiled, the
instruction set, and the source of the element compiler with the versions of what it computes with.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

from tiles.elements.cost import Formula
from tiles.elements.extents import Extent
from tiles.elements.isa import InstructionSet
from tiles.elements.variants import NoVariant, Variant, variant_or_why
from tiles.files import JsonObject, opened, read_json, sealed
from tiles.kept import KeptFiles, capacity, kept_folder, source_digest
from tiles.target import Basis

FOLDER = "variants"
"""In the folder of all that is kept."""
CAPACITY_BYTES = 16 << 20
"""Some ten thousand variants; what one process adds comes on top, until the next one begins."""
SUFFIX = ".variant"
_MAGIC = b"ipuxla variant 1\n"
_COMPILER = (
    "tiles/elements",
    "tiles/numerics",
    *(f"tiles/poplibs/{name}" for name in ("poplin", "popnn", "popops", "poprand")),
)
"""Where the source lies that decides what a variant is: the compiler, arithmetic, and the expressions it is handed."""
_SYMBOLS = ("n", "rows", "worker")
_OPERATORS = ("+", "-", "*", "//", "%", ">", "==")


def kept_variant(
    what: tuple[Any, ...], isa: InstructionSet, make: Callable[[], Variant]
) -> Variant | NoVariant:
    """Return what ``make`` returns, or why it returns none; its figures from disk if another process has made it.

    Args:
      what: all that decides the variant beside the instruction set, of values whose texts say what they are.
      isa: the instruction set.
      make: compiles it.
    """
    files = _files()
    text = repr(what)
    if files is None or " at 0x" in text:  # an object that has no text of its own
        return variant_or_why(make)
    key = hashlib.sha256("\0".join((_made_by(), _content(isa), text)).encode()).hexdigest()
    blob = files.get(key)
    if blob is not None:
        try:
            known = _read(blob, lambda: make().code)
        except ValueError as error:
            files.drop_damaged(key, str(error))
        else:
            files.used(key)
            return known
    found = variant_or_why(make)
    files.put(key, sealed(_MAGIC, json.dumps(_data(found)).encode()))
    return found


def _files() -> KeptFiles | None:
    """Return the folder of variants; it is kept to its capacity once a process, before its first use."""
    folder = kept_folder()
    return None if folder is None else _files_in(folder, min(CAPACITY_BYTES, capacity()))


@functools.lru_cache(maxsize=16)
def _files_in(folder: pathlib.Path, capacity_bytes: int) -> KeptFiles:
    files = KeptFiles(folder, capacity_bytes, SUFFIX, FOLDER)
    files.shrink()
    return files


@functools.cache
def _made_by() -> str:
    return source_digest(pathlib.Path(__file__).parents[2], *_COMPILER)


@functools.lru_cache(maxsize=16)
def _content(isa: InstructionSet) -> str:
    """Return a digest of an instruction set: of each instruction and figure, wherever they are from."""
    parts = (sorted(isa.rows.items()), sorted(isa.figures.items()))
    return hashlib.sha256(repr((isa.name, *parts)).encode()).hexdigest()


def _data(found: Variant | NoVariant) -> JsonObject:
    """Return a variant's figures, or why there is none, as plain data."""
    if isinstance(found, NoVariant):
        return dataclasses.asdict(found)
    formula = found.formula
    return {
        "generation": found.generation,
        "terms": [[slots, list(map(_of_extent, product))] for slots, product in formula.terms],
        "supervisor_cycles": formula.supervisor_cycles,
        "workers": formula.workers,
        "n_max": formula.n_max,
        "rows_max": formula.rows_max,
        "code_bytes": found.code_bytes,
        "scratch_bytes": found.scratch_bytes,
        "basis": found.basis.name,
    }


def _of_extent(extent: Extent) -> list[Any]:
    return [extent.kind, *(_of_extent(arg) if isinstance(arg, Extent) else arg for arg in extent.args)]


def _read(blob: bytes, make: Callable[[], Any]) -> Variant | NoVariant:
    """Return what a file says.

    Raises:
      ValueError: it is damaged.
    """
    data = read_json(opened(_MAGIC, blob))
    try:
        if "what" in data:
            return NoVariant(str(data["what"]), data["expected"], bool(data["lacks_registers"]))
        terms = tuple((_int(slots), tuple(map(_to_extent, product))) for slots, product in data["terms"])
        limits = (_int(data[name]) for name in ("supervisor_cycles", "workers", "n_max", "rows_max"))
        size, scratch = _int(data["code_bytes"]), _int(data["scratch_bytes"])
        generation, basis = str(data["generation"]), Basis[data["basis"]]
        return Variant("", generation, Formula(terms, *limits), size, scratch, basis, make)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no variant: {error!r}") from error


def _to_extent(data: Any) -> Extent:
    kind, *args = data
    if kind == "const" and len(args) == 1:
        return Extent(kind, (_int(args[0]),))
    if kind == "symbol" and len(args) == 1 and args[0] in _SYMBOLS:
        return Extent(kind, (args[0],))
    if kind in _OPERATORS and len(args) == 2:
        return Extent(kind, tuple(map(_to_extent, args)))
    raise ValueError(f"it is no closed form: {kind!r} of {len(args)}")


def _int(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no integer")
    return value
