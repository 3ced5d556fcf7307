"""Tile code of sorts by one key: keys are computed once, records of a key and an offset are sorted, arrays put in order.

Merges of the elements themselves compute what orders an element anew at each level, and move every array. Both take
more slots than these records (``tiles/elements/records.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiles._jax_compat import Jaxpr, make_jaxpr
from tiles.elements import (
    Access,
    Arrangement,
    CellFunction,
    InstructionSet,
    TileCode,
    Variant,
    compile_fours,
    compile_gathered_records,
    compile_record_merges,
    compile_variant,
    instructions_for,
)
from tiles.elements.kept_variants import kept_variant
from tiles.elements.merges import PIECES_SHIFT, with_halvings
from tiles.elements.records import LAST_KEY, RECORD_BYTES, RUN
from tiles.elements.variants import UNNAMED, NoVariant, existing, variant_or_why
from tiles.errors import NoTileCode
from tiles.graph import VertexCode
from tiles.graph.cycles import Field, Kernel
from tiles.numerics.dtypes import is_float, itemsize, to_jax
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.merging_levels import POSITION, Level, Merging, levels_of
from tiles.poplibs.popops.packing_code import compiled_packing, in_words, narrow_arrays, upper_half
from tiles.poplibs.popops.sort_order import Order
from tiles.target import Target

_WORD_BYTES = 4
_KEY = "int32"
_SEARCH = 6.0, 1.6
"""As ``SEARCH``, in the time that a record takes: some 60 slots, 16 for each halving."""


def has_records(what: Merging) -> bool:
    """Return whether elements are ordered by one integer of a word, and equal ones by where they lie."""
    if len(what.order.keys) != 1 or what.run != 1:
        return False
    return not what.has_positions or what.counts or what.ascends


def record_bytes(n: Amount) -> Any:
    """Return the bytes in which a row of ``n`` elements is sorted: their keys, and records twice, with one behind each run."""
    padded = _padded(n)
    return _WORD_BYTES * padded + 2 * RECORD_BYTES * (padded + padded // RUN)


@dataclass(frozen=True)
class Part:
    """One code that vertices run: the variant, its extents, how often, and the fields of its state.

    ``cell`` and ``compiled`` say what is computed, and what makes the code, in another arithmetic, where they differ.
    """

    variant: Variant
    n: Any
    rows: Any
    runs: Any
    turn: Callable[[RecordRows, tuple[int, ...]], dict[str, Field]]
    cell: Callable[[], CellFunction] | None = None
    compiled: Callable[[CellFunction, InstructionSet], TileCode] = compiled_packing


def record_parts(what: Merging, n: Amount, rows: Amount, target: Target) -> list[Part]:
    """Return what sorts ``rows`` rows of ``n`` elements each, in order.

    Args:
      what: is sorted; ``has_records`` of it holds.
      n: elements of a row; a number, or an array with one entry per vertex.
      rows: as ``n``.
      target: the machine.

    Raises:
      NoTileCode: elements that fit no word, a key without code, or rows that loops cannot count.
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa, found = instructions_for(target), list[Part]()
    n, rows = np.broadcast_arrays(np.asarray(n, np.int64), np.asarray(rows, np.int64))
    padded = _padded(n)
    if int(np.max(padded, initial=0)) > isa["repeat_count_max"]:
        raise NoTileCode(
            f"rows of {int(np.max(n)):,} elements", expected=f"at most {isa['repeat_count_max']:,}"
        )
    for is_odd in (False, True):
        runs = np.where((n % 2 == 1) == is_odd, rows, 0)
        if runs.any():
            key = partial(_key_cell, what.order, what.size, is_odd)
            made = existing(_key_variant(isa, what.order, what.size, is_odd))
            found.append(Part(made, n, 1, runs, RecordRows.keys, key))
    missing, is_bounded = padded - n, _is_bounded(what)
    if missing.any():
        runs = np.where(missing > 0, rows, 0)
        made = existing(_padding(isa, is_bounded))
        in_ring = partial(_padding_cell, False)  # where any key may be the greatest
        found.append(Part(made, missing, 1, runs, RecordRows.padding, in_ring))
    found.append(Part(existing(_fours(isa)), padded // RUN, 1, rows, RecordRows.fours))
    for level in levels_of(padded, RUN, what.kept, isa["worker_contexts"], is_sorted=True, search=_SEARCH):
        for steps in (0, level.steps):
            runs = np.where(level.active & ((level.pieces > 1) == (steps > 0)), rows, 0)
            if runs.any():
                turn = partial(RecordRows.level, number=level.number)
                made, in_ring = existing(_merges(isa, is_bounded, steps)), partial(_merges_in_ring, steps)
                all_pieces = level.pairs * level.pieces
                found.append(
                    Part(made, level.piece, all_pieces, runs, turn, partial(_padding_cell, False), in_ring)
                )
    kept = n if what.kept is None else np.minimum(n, what.kept)
    gathers = existing(_gathers(isa, len(what.dtypes) - what.counts, what.counts))
    found.append(Part(gathers, kept, 1, rows, RecordRows.gathered))
    return found


def record_cycles(parts: Sequence[Part]) -> Any:
    """Return the cycles of parts, one after another."""
    return sum((part.runs * part.variant.formula.cycles(part.n, part.rows) for part in parts), np.int64(0))


def record_code(parts: Sequence[Part], records: RecordRows, kernel: Kernel, name: str) -> list[VertexCode]:
    """Return parts as code of vertices, with a kernel that holds the memory of ``records``; variants have a name."""
    return [
        VertexCode(
            part.variant.named(name),
            part.n,
            part.rows,
            part.runs,
            cell=part.cell,
            kernel=kernel,
            compiled=part.compiled,
            turn=partial(part.turn, records),
        )
        for part in parts
    ]


@dataclass(frozen=True)
class RecordRows:
    """The memory in which records of rows are sorted, and the fields of the codes that do.

    Args:
      what: is sorted.
      n_of: returns a row's elements from a cell's extents.
      workers: of a tile.
    """

    what: Merging
    n_of: Callable[[tuple[int, ...]], int]
    workers: int

    def memory(self, rows: int, n: int) -> dict[str, np.ndarray]:
        """Return keys and both buffers of records, of so many rows."""
        padded = int(_padded(n))
        held = padded + padded // RUN
        records = {name: np.zeros((rows, 2 * held), np.int32) for name in ("a", "b")}
        return {"key": np.zeros((rows, padded), np.int32), **records}

    def keys(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of computing keys."""
        ((number, _, _),) = self.what.order.keys
        fields: dict[str, Field] = {"in0": self._array(number), "out0": "key"}
        return fields if self.what.size is None else {**fields, "in1": f"in{len(self.what.dtypes) - 1}"}

    def padding(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of adding the keys of what is no element."""
        return {"out0": ("key", self.n_of(sizes) * _WORD_BYTES)}

    def fours(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of making runs of four."""
        return {"in0": "key", "out0": "a"}

    def _levels(self, sizes: tuple[int, ...]) -> list[Level]:
        padded = _padded(self.n_of(sizes))
        return [*levels_of(padded, RUN, self.what.kept, self.workers, is_sorted=True, search=_SEARCH)]

    def level(self, sizes: tuple[int, ...], *, number: int) -> dict[str, Field]:
        """Return the fields of a level."""
        level = self._levels(sizes)[number]
        pieces = int(level.pieces)
        elements = int(level.elements)
        behind = (elements - 1) // level.run
        lengths = {"run": level.run, "most": level.most, "size": elements + behind, "piece": level.piece}
        fields: dict[str, Field] = {name: int(length) * RECORD_BYTES for name, length in lengths.items()}
        fields |= {"in0": "ab"[number % 2], "out0": "ab"[(number + 1) % 2]}
        return fields | {"pieces": pieces, "factor": -(-(1 << PIECES_SHIFT) // pieces)}

    def gathered(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of putting arrays in order."""
        fields: dict[str, Field] = {"records": "ab"[len(self._levels(sizes)) % 2]}
        count = len(self.what.dtypes)
        fields |= {f"in{k}": self._array(k) for k in range(count - self.what.counts)}
        return fields | {f"out{k}": f"r{k}" for k in range(count)}

    def _array(self, k: int) -> str:
        return f"w{k}" if k in self.what.narrow else f"in{k}"


def _padded(n: Amount) -> Any:
    return -(-np.asarray(n, np.int64) // RUN) * RUN


def _is_bounded(what: Merging) -> bool:
    """Return whether no element has one of the two greatest keys."""
    ((number, _, is_total),) = what.order.keys
    dtype = what.order.dtypes[number]
    is_less = itemsize(dtype) < _WORD_BYTES or (is_float(to_jax(dtype)) and not is_total)
    return is_less and what.size is None


def _no_element(is_bounded: bool) -> int:
    """Return the key of what is no element: it is sorted behind elements, and less than what lies behind a run if they are."""
    return LAST_KEY - is_bounded


@lru_cache(maxsize=64)
def _key_cell(order: Order, size: int | None, is_odd: bool) -> CellFunction:
    """Return the key of an element's word, and of its position where some are padding."""
    ((number, _, _),) = order.keys
    narrow = narrow_arrays(order).get(number)
    dtype = order.dtypes[number]
    if itemsize(dtype) > _WORD_BYTES or (
        narrow is not None and narrow.key is None and is_float(to_jax(dtype))
    ):
        raise NoTileCode(f"an order of {dtype}", expected="elements of at most a word, of no 8-bit floats")
    words = in_words(order)
    word = dtype
    if narrow is not None:
        word = narrow.unpacking().dtypes[1][0]

    def key(*given: jax.Array) -> tuple[jax.Array, ...]:
        x = given[0]
        if narrow is not None:
            x = x.astype(_KEY) if narrow.key is None else upper_half(x)
        column = words.key([x] * len(order.dtypes))
        return (column if size is None else jnp.where(given[1] < size, column, LAST_KEY),)

    operands = (word,) if size is None else (word, POSITION)
    reading = Access(alignment_bytes=_WORD_BYTES if is_odd else 2 * _WORD_BYTES)
    jaxpr: Jaxpr = make_jaxpr(key)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in operands))
    how = Arrangement((reading,) * len(operands), (Access(),))
    return CellFunction(jaxpr, (operands, (_KEY,)), how)


@lru_cache(maxsize=64)
def _key_variant(isa: InstructionSet, order: Order, size: int | None, is_odd: bool) -> Variant | NoVariant:
    def make() -> Variant:
        cell = _key_cell(order, size, is_odd)
        return compile_variant(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)

    return kept_variant(("record keys", order, size, is_odd), isa, make)


def _kept(isa: InstructionSet, what: tuple[Any, ...], make: Callable[[], TileCode]) -> Variant | NoVariant:
    return kept_variant(what, isa, lambda: Variant.of(make(), isa))


@lru_cache(maxsize=8)
def _padding(isa: InstructionSet, is_bounded: bool) -> Variant | NoVariant:
    cell = _padding_cell(is_bounded)
    return variant_or_why(lambda: compile_variant(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED))


@lru_cache(maxsize=2)
def _padding_cell(is_bounded: bool) -> CellFunction:
    """Return what fills the end of a row's keys."""

    def nothing() -> tuple[jax.Array, ...]:
        return (jnp.full((), _no_element(is_bounded), _KEY),)

    how = Arrangement((), (Access(alignment_bytes=_WORD_BYTES),))
    return CellFunction(make_jaxpr(nothing)(), ((), (_KEY,)), how)


@lru_cache(maxsize=8)
def _fours(isa: InstructionSet) -> Variant | NoVariant:
    return _kept(isa, ("record fours",), lambda: compile_fours(isa, UNNAMED))


@lru_cache(maxsize=8)
def _searching(isa: InstructionSet, is_bounded: bool) -> TileCode:
    return compile_record_merges(isa, is_bounded, 1, UNNAMED)


@lru_cache(maxsize=64)
def _merges(isa: InstructionSet, is_bounded: bool, steps: int) -> Variant | NoVariant:
    def make() -> TileCode:
        if steps:
            return with_halvings(_searching(isa, is_bounded), steps)
        return compile_record_merges(isa, is_bounded, 0, UNNAMED)

    return _kept(isa, ("record merges", is_bounded, steps), make)


def _merges_in_ring(steps: int, cell: CellFunction, isa: InstructionSet) -> TileCode:
    """Return the code of a level where any key may be the greatest."""
    return existing(_merges(isa, False, steps)).code


@lru_cache(maxsize=32)
def _gathers(isa: InstructionSet, arrays: int, counts: bool) -> Variant | NoVariant:
    return _kept(
        isa,
        ("gathered records", arrays, counts),
        lambda: compile_gathered_records(isa, arrays, counts, UNNAMED),
    )
